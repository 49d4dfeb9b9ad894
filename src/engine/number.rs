//! Runtimes by number: how a panic finds its handler when the runtime may be gone.
//!
//! Ground rules. A timer that is dropped counts itself out of its shard and then runs the
//! destructor of its payload. Meanwhile another thread may free engine and shard. So the dropping
//! thread takes the number of the runtime along, which is given once, and looks here if the
//! destructor panics. The lock is a leaf lock, and no reference to an engine is dropped under it.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Weak;

use super::{Engine, Label};
use crate::sync::unmodelled::{AtomicU64, Mutex};
use crate::sync::{Arc, Ordering};
use crate::unwind::{Payload, Tell, discard};

/// The engines that have not been freed.
static ENGINES: Mutex<BTreeMap<EngineNumber, Weak<Engine>>> = Mutex::new(BTreeMap::new());
static LAST: AtomicU64 = AtomicU64::new(0);

/// The number of a runtime, which no other runtime of the process gets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EngineNumber(NonZeroU64);

impl EngineNumber {
    /// Numbers an engine that is being made; its drop calls [`Self::remove`].
    pub(super) fn of(engine: &Weak<Engine>) -> Self {
        let before = LAST.fetch_add(1, Ordering::Relaxed);
        let number = Self(NonZeroU64::MIN.saturating_add(before));
        ENGINES.lock().insert(number, Weak::clone(engine));
        number
    }

    pub(super) fn remove(self) {
        let gone = ENGINES.lock().remove(&self);
        drop(gone);
    }

    /// `None`: the runtime is gone.
    pub(super) fn engine(self) -> Option<Arc<Engine>> {
        ENGINES.lock().get(&self).and_then(Weak::upgrade)
    }

    /// As [`Tell::tell`], of a timer with this name.
    pub(super) fn tell_of(self, payload: Payload, label: Option<Arc<Label>>) {
        match self.engine() {
            Some(engine) => engine.handle_panic(payload, label),
            None => discard(payload),
        }
    }
}

impl Tell for EngineNumber {
    fn tell(&self, payload: Payload) {
        self.tell_of(payload, None);
    }
}
