//! A shared alarm: one alarm of the system for several shards, set to the earliest of their
//! instants.
//!
//! Ground rules. The instants stand behind a lock, and the alarm is set with the lock held: so the
//! latest call is about the earliest instant. Under this lock no other is taken but a leaf lock of
//! the backend that sets the alarm. [`SharedAlarm::arm`] is called with the lock of the shard held,
//! [`SharedAlarm::take`] by the poller that was told of the expiry, with no lock held.

use crate::sync::Mutex;
use crate::time::NEVER;

/// So many alarms in a row that come before their instants are no coincidence: the clock stands
/// behind the clock of the system's timers.
pub(crate) const OFTEN_EARLY: u8 = 8;
/// The least time to the next alarm where alarms often come early.
pub(crate) const PAUSE_NS: u64 = 1_000_000;

/// See the module's ground rules.
pub(crate) struct SharedAlarm(Mutex<Instants>);

struct Instants {
    /// By shard; [`NEVER`]: not set.
    of: Box<[u64]>,
    /// The number of expiries in a row at which no instant had come.
    early: u8,
    /// How often the alarm was set.
    sets: u64,
}

impl Instants {
    fn earliest(&self) -> u64 {
        self.of.iter().copied().min().unwrap_or(NEVER)
    }
}

impl SharedAlarm {
    pub(crate) fn new(shards: usize) -> Self {
        Self(Mutex::new(Instants { of: vec![NEVER; shards].into_boxed_slice(), early: 0, sets: 0 }))
    }

    /// Gives a shard an instant; [`NEVER`] takes the instant back. `set` sets the alarm, if another
    /// instant is the earliest now.
    pub(crate) fn arm(&self, shard: usize, at: u64, set: impl FnOnce(u64)) {
        let mut instants = self.0.lock();
        let before = instants.earliest();
        instants.of[shard] = at;
        let earliest = instants.earliest();
        if earliest != before && earliest != NEVER {
            instants.sets += 1;
            set(earliest);
        }
    }

    /// The alarm has expired: gives each shard whose instant has come to `due`, and takes the
    /// instant back. `set` sets the alarm for the rest; its second argument says that alarms come
    /// early again and again.
    pub(crate) fn take(&self, now: impl FnOnce() -> u64, mut due: impl FnMut(usize), set: impl FnOnce(u64, bool)) {
        let mut instants = self.0.lock();
        let now = now();
        let mut early = instants.early.saturating_add(1);
        for (shard, at) in instants.of.iter_mut().enumerate() {
            if *at <= now {
                *at = NEVER;
                early = 0;
                due(shard);
            }
        }
        instants.early = early;
        let earliest = instants.earliest();
        if earliest != NEVER {
            instants.sets += 1;
            set(earliest, early >= OFTEN_EARLY);
        }
    }

    /// How often the alarm was set.
    pub(crate) fn sets(&self) -> u64 {
        self.0.lock().sets
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    fn arm(alarm: &SharedAlarm, shard: usize, at: u64) -> Option<u64> {
        let mut set = None;
        alarm.arm(shard, at, |at| set = Some(at));
        set
    }

    fn take(alarm: &SharedAlarm, now: u64) -> (Vec<usize>, Option<(u64, bool)>) {
        let (mut shards, mut set) = (Vec::new(), None);
        alarm.take(|| now, |shard| shards.push(shard), |at, often_early| set = Some((at, often_early)));
        (shards, set)
    }

    #[test]
    fn a_shared_alarm_is_set_to_the_earliest_instant_and_to_the_rest() {
        let alarm = SharedAlarm::new(3);
        let sets = [arm(&alarm, 1, 500), arm(&alarm, 0, 900), arm(&alarm, 2, 300)];
        assert_eq!(sets, [Some(500), None, Some(300)]);
        assert_eq!(arm(&alarm, 2, 700), Some(500), "moved later by a sweep");
        assert_eq!(take(&alarm, 499), (vec![], Some((500, false))), "the clock is behind the timer's");
        assert_eq!(take(&alarm, 700), (vec![1, 2], Some((900, false))));
        assert_eq!(arm(&alarm, 1, 950), None);
        assert_eq!(take(&alarm, 2_000), (vec![0, 1], None));
        assert_eq!(take(&alarm, 2_000), (vec![], None), "each shard is given to one poller");
        assert_eq!(
            (arm(&alarm, 0, 3_000), arm(&alarm, 0, NEVER), arm(&alarm, 0, 3_000)),
            (Some(3_000), None, Some(3_000))
        );
        assert_eq!(alarm.sets(), 7);
    }

    #[test]
    fn an_alarm_that_comes_early_again_and_again_is_no_coincidence() {
        let alarm = SharedAlarm::new(2);
        arm(&alarm, 0, 500);
        for _ in 0..2 {
            for _ in 1..OFTEN_EARLY {
                assert_eq!(take(&alarm, 499), (vec![], Some((500, false))));
            }
            assert_eq!(take(&alarm, 499), (vec![], Some((500, true))));
            assert_eq!(take(&alarm, 500), (vec![0], None));
            arm(&alarm, 0, 500);
        }
    }
}
