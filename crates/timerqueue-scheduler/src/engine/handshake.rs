//! The handshake between notices, the timer, claims and free places: why no wake-up is lost.
//!
//! Ground rules. A plain value without lock, clock or store: the engine calls it under
//! [`Core::state`](super::core::Core), and sets its timer to the instants that the calls return.
//! Each call is one atomic section. `handshake::tests` tries all orders of these sections against a
//! store, a timer and runs.
//!
//! The protocol:
//!
//! 1. A commit is visible before its notice. The notice calls [`wake`](Handshake::wake), which sets
//!    the timer unless it is set as early.
//! 2. The timer's callback calls [`fired`](Handshake::fired). It forgets the instant before the
//!    store is read. So a later notice sets the timer again, and an earlier commit is seen by the
//!    claim.
//! 3. One claim is under way at a time. A callback meanwhile leaves a mark, and the end of the
//!    claim asks for another one.
//! 4. The answer of the store has the first wake instant of the rows that are left.
//!    [`end_claim`](Handshake::end_claim) sets the timer.
//! 5. Rows without a place are no reason to wake up. So a free place asks for a claim, if the last
//!    claim may have left such rows, or if a claim is under way, whose places do not count the free
//!    one.

use crate::store::Micros;

/// The state of the handshake.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Handshake {
    pub(super) closing: bool,
    /// A claim is under way.
    pub(super) claiming: bool,
    /// A wake-up came during a claim.
    again: bool,
    /// The instant that the timer is set to. `None`: it has fired, or was never set.
    armed: Option<Micros>,
    /// Runs of each handler, and of all.
    running: Vec<usize>,
    total: usize,
    /// The last claim may have left due jobs of the handler for want of a place, so its next free
    /// place asks for a claim.
    full: Vec<bool>,
    /// The same, for want of a place among those of all handlers. Also true during a claim: a place
    /// that becomes free meanwhile is not among the places of the claim.
    all_full: bool,
    /// The places of the claim under way, and the most jobs of it.
    places: Vec<usize>,
    left: usize,
}

impl Handshake {
    pub(super) fn new(handlers: usize) -> Self {
        Self { running: vec![0; handlers], full: vec![false; handlers], ..Self::default() }
    }

    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// The instant that the timer is set to.
    pub(super) fn armed(&self) -> Option<Micros> {
        self.armed
    }

    /// A look is due at this instant. `Some`: the timer is to be set to it.
    #[must_use]
    pub(super) fn wake(&mut self, at: Micros) -> Option<Micros> {
        if self.closing || self.armed.is_some_and(|armed| armed <= at) {
            return None;
        }
        self.armed = Some(at);
        self.armed
    }

    /// The timer has fired. True: a claim begins; [`begin_claim`](Self::begin_claim) tells its
    /// places.
    #[must_use]
    pub(super) fn fired(&mut self) -> bool {
        let was_armed = self.armed.take().is_some();
        if self.closing {
            return false;
        }
        if self.claiming {
            // An instant has two timers, and the claim under way may be that of the first one. A
            // wake-up since then has set the instant again.
            self.again |= was_armed;
            return false;
        }
        true
    }

    /// The free places of each handler, with this number of places, and of all. With no places
    /// nothing is to begin.
    pub(super) fn begin_claim(&mut self, handlers: impl Iterator<Item = usize>, parallel: usize) -> (&[usize], usize) {
        (self.claiming, self.again, self.all_full) = (true, false, true);
        self.places.clear();
        self.places.extend(handlers.zip(&self.running).map(|(most, &running)| most.saturating_sub(running)));
        self.left = parallel - self.total.min(parallel);
        (&self.places, self.left)
    }

    /// A run of a claimed job begins. False: the scheduler closes, and the job does not run.
    #[must_use]
    pub(super) fn begin_run(&mut self, handler: usize) -> bool {
        if !self.closing {
            self.running[handler] += 1;
            self.total += 1;
        }
        !self.closing
    }

    /// All jobs of the claim have begun, of these handlers.
    pub(super) fn begun(&mut self, handlers: impl ExactSizeIterator<Item = usize>) {
        self.all_full = handlers.len() >= self.left;
        self.left = self.left.saturating_sub(handlers.len());
        handlers.for_each(|handler| self.places[handler] -= 1);
        self.full.iter_mut().zip(&self.places).for_each(|(full, &places)| *full = places == 0);
    }

    /// The claim has ended, and left rows with these wake instants. As [`wake`](Self::wake).
    #[must_use]
    pub(super) fn end_claim(
        &mut self,
        next_job: Option<Micros>,
        next_schedule: Option<Micros>,
        parallel: usize,
    ) -> Option<Micros> {
        self.claiming = false;
        // With no place left, the end of a run asks for the next claim.
        let next_job = next_job.filter(|_| self.total < parallel);
        let again = std::mem::take(&mut self.again).then_some(Micros::FIRST);
        let at = [again, next_job, next_schedule].into_iter().flatten().min()?;
        self.wake(at)
    }

    /// A run is about to end. True: a job of its handler may wait for its place, and none of
    /// another handler, so the store may give the place on.
    pub(super) fn may_hand_over(&self, handler: usize) -> bool {
        // A claim under way that has enough for all its places leaves no handler without one.
        let is_enough =
            self.claiming && self.places.iter().fold(0, |sum: usize, most| sum.saturating_add(*most)) <= self.left;
        let for_all = !self.all_full || is_enough || self.running.len() == 1;
        !self.closing && for_all && (self.full[handler] || self.all_full)
    }

    /// A run has ended, and its place is free. As [`wake`](Self::wake).
    #[must_use]
    pub(super) fn freed(&mut self, handler: usize) -> Option<Micros> {
        self.running[handler] -= 1;
        self.total -= 1;
        if self.full[handler] || self.all_full { self.wake(Micros::FIRST) } else { None }
    }
}

#[cfg(test)]
#[path = "../../tests/unit/handshake.rs"]
mod tests;
