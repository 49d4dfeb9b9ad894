//! The threads that wait, inside of running code, for the end of code that other threads run:
//! cycles of such waits are refused.
//!
//! Ground rules. Running code is known by an address ([`inside`](super::inside)): the callback or
//! the destructor of a timer by the timer's entry, the callbacks of a token by its source, the
//! driver of a manual clock by its agenda. A thread that is about to wait for the end of running
//! code enters a list of the process, with the address of that code, and the addresses of all the
//! code that the thread itself is inside of. A thread inside of none is not listed: no wait can
//! lead to it. The lock is a leaf, and only waits take it.
//!
//! A listed thread rests, so it stays inside of the listed code. A wait ends only when all threads
//! have left the code. So a path of waits that leads back is a deadlock, and the last thread to
//! come sees the whole path.
//!
//! Not seen: waits of tasks, and waits for an event (a cancellation, an entry, room) that a blocked
//! callback would bring.

use super::frames::each_frame;
use crate::sync::unmodelled::Mutex;
use crate::sync::{ThreadId, thread_id};

/// The calling thread waits for the end of running code, until this is dropped.
pub(crate) struct Waits {
    is_listed: bool,
}

struct Waiting {
    thread: ThreadId,
    inside: Vec<usize>,
    /// The address of the code whose end the thread awaits.
    awaits: usize,
}

static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());

impl Waits {
    /// The calling thread is about to wait for the end of the code at `code`. `None`: the wait
    /// would never end, since the code waits for code that the calling thread is inside of, or is
    /// such code itself.
    #[must_use]
    pub(crate) fn begin(code: *const ()) -> Option<Self> {
        let mut own = Waiting { thread: thread_id(), inside: Vec::new(), awaits: code.addr() };
        each_frame(|frame| own.inside.push(frame.addr()));
        if own.inside.is_empty() {
            return Some(Self { is_listed: false });
        }
        let mut waiting = WAITING.lock();
        let (mut seen, mut next) = (vec![false; waiting.len()], vec![own.awaits]);
        while let Some(code) = next.pop() {
            if own.inside.contains(&code) {
                return None;
            }
            for (other, seen) in waiting.iter().zip(&mut seen) {
                if !*seen && other.inside.contains(&code) {
                    *seen = true;
                    next.push(other.awaits);
                }
            }
        }
        waiting.push(own);
        Some(Self { is_listed: true })
    }

    /// The code at `code` has ended, and further code with the same address may begin: all waits so
    /// far are over, though their threads may not run yet.
    pub(crate) fn are_over(code: *const ()) {
        WAITING.lock().retain(|waiting| waiting.awaits != code.addr());
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        if self.is_listed {
            let own = thread_id();
            WAITING.lock().retain(|waiting| waiting.thread != own);
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::atomic::AtomicU8;
    use std::sync::mpsc;

    use super::super::inside;
    use super::Waits;

    /// The addresses of some code.
    fn code<const N: usize>(all: &'static [AtomicU8; N]) -> [*const (); N] {
        std::array::from_fn(|i| (&raw const all[i]).cast())
    }

    /// A thread inside of `code` that waits for the end of `awaited`, until the sender is dropped.
    fn waiting(code: usize, awaited: usize) -> mpsc::Sender<()> {
        let (ends, end) = mpsc::channel::<()>();
        let (begins, begun) = mpsc::channel();
        std::thread::spawn(move || {
            inside(std::ptr::without_provenance(code), || {
                let waits = Waits::begin(std::ptr::without_provenance(awaited));
                begins.send(waits.is_some()).expect("the test listens");
                let _ = end.recv();
                drop(waits);
            });
        });
        assert_eq!(begun.recv(), Ok(true));
        ends
    }

    #[test]
    fn a_path_of_waits_that_leads_back_is_refused() {
        static CODE: [AtomicU8; 4] = [const { AtomicU8::new(0) }; 4];
        let [a, b, c, d] = code(&CODE);
        let may_wait = |own: *const (), awaited| inside(own, || Waits::begin(awaited).is_some());
        assert!(!may_wait(a, a), "for itself");
        let _b = waiting(b.addr(), c.addr());
        let _c = waiting(c.addr(), d.addr());
        assert!(!may_wait(d, b) && !may_wait(d, c) && !may_wait(d, d));
        assert!(may_wait(a, b) && may_wait(a, d) && may_wait(d, a));
        assert!(inside(d, || inside(a, || Waits::begin(b).is_none())), "outer code counts");
        assert!(Waits::begin(b).is_some_and(|waits| !waits.is_listed), "inside of no code");
        // Callbacks of a timer may overlap, and all of them must end.
        let _other = waiting(b.addr(), a.addr());
        assert!(!may_wait(d, b) && !may_wait(a, b));
    }

    /// The callback that was awaited has ended, and the next callback of the source has the same
    /// address.
    #[test]
    fn a_wait_that_is_over_is_on_no_path() {
        static CODE: [AtomicU8; 2] = [const { AtomicU8::new(0) }; 2];
        let [source, a] = code(&CODE);
        let woken = waiting(a.addr(), source.addr());
        let next = |refused| inside(source, || assert_eq!(Waits::begin(a).is_none(), refused));
        next(true);
        Waits::are_over(source);
        next(false);
        drop(woken);
    }
}
