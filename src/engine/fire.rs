//! The firing of a timer: from a claimed tick to the end of its callback.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::entry::{Begun, finish_disposal, inside};
use super::{Engine, EntryRef, dispose};
use crate::queue::state::End;

/// A due tick on its way to the callback. Carries a reference.
pub(crate) struct Fire {
    pub(crate) node: EntryRef,
    pub(crate) scheduled: u64,
    pub(crate) missed: u64,
}

impl Engine {
    /// Runs the callback of a claimed tick, unless a change or a disposal came between (I10). Returns whether the callback ran.
    /// `put` takes the fire of a deferred tick.
    pub(super) fn run_fire(&self, fire: Fire, mut put: impl FnMut(Fire)) -> bool {
        let node = &fire.node;
        let running = match node.begin() {
            Begun::Run(running) => running,
            Begun::RunAndSettle(running) => {
                settle(node, &mut put);
                running
            }
            Begun::Settle => {
                settle(node, &mut put);
                return false;
            }
            Begun::Refused => return false,
        };
        inside(node.address(), || {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| running.call(fire.scheduled, fire.missed))) {
                self.panicked(payload);
            }
        });
        match running.end() {
            End::Done => {}
            End::Settle => settle(node, &mut put),
            End::DropPayload => finish_disposal(node),
        }
        true
    }
}

/// The thread that took the timer's job, or ended its callback, claims the deferred tick, if it is still deferred (I11).
fn settle(node: &EntryRef, put: &mut impl FnMut(Fire)) {
    let shard = node.shard();
    let mut inner = shard.lock();
    if !node.get().state.settle() {
        return;
    }
    if !inner.is_open() {
        drop(inner);
        dispose(node); // the runtime was shut down: the callback will not run, and the waiters are woken
    } else {
        let fire = inner.take_deferred_tick(node);
        drop(inner);
        put(fire);
    }
}
