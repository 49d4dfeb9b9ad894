//! A shared alarm: few alarms for several members, set to the earliest of their instants.
//!
//! Two users. Eight shards share two alarms of the backend for deadlines on a common grid
//! ([`crate::engine::shared_alarm`]). And where descriptors are scarce, several alarms share one
//! timer of the system (`timerfd`).
//!
//! Ground rules. The instants stand behind a lock, and alarms are set with the lock held: so with
//! the lock free, an alarm is at or before each instant. Under this lock no other is taken but a
//! leaf lock of the backend that sets the alarm, perhaps that of a shared alarm of the second kind.
//! [`SharedAlarm::arm`] is called with the lock of the member held, [`SharedAlarm::take`] by the
//! poller that was told of the expiry, with no lock of a member held.
//!
//! **Ahead of time.** A kernel sets its hardware to the next of its timers when one expires, and
//! once more if an earlier one is set afterwards. On a virtual machine each of the two leaves the
//! guest: 5 us. So with two alarms, and after [`STEADY`] instants at equal distances, the free
//! alarm is set to the instant after the next one, which costs the call alone. If the guess is
//! wrong, an alarm expires in vain, and the row of distances begins anew.

use crate::sync::Mutex;
use crate::time::NEVER;

/// So many alarms in a row that come before their instants are no coincidence: the clock stands
/// behind the clock of the system's timers.
pub(crate) const OFTEN_EARLY: u8 = 8;
/// The least time to the next alarm where alarms often come early.
pub(crate) const PAUSE_NS: u64 = 1_000_000;
/// So many equal distances in a row will be followed by another.
const STEADY: u8 = 4;

/// See the module's ground rules.
pub(crate) struct SharedAlarm(Mutex<Instants>);

struct Instants {
    /// By member; [`NEVER`]: not set.
    of: Vec<u64>,
    /// By alarm: the instant to which it is set; [`NEVER`]: it has expired.
    set: Vec<u64>,
    /// The last expiry's instant, the distance from the one before, and how many distances in a row
    /// were equal.
    last: u64,
    distance: u64,
    equal: u8,
    /// The number of expiries in a row that came before their instants.
    early: u8,
    /// How often an alarm was set.
    sets: u64,
}

/// [`NEVER`] of none.
#[inline(never)] // a loop over vectors of instants is long, and there are three
fn earliest(of: &[u64]) -> u64 {
    of.iter().copied().min().unwrap_or(NEVER)
}

impl Instants {
    /// Sets an alarm if none is at or before the earliest instant, and one ahead of time.
    fn cover(&mut self, set: &dyn Fn(usize, u64)) {
        let earliest_set = earliest(&self.set);
        let earliest = earliest(&self.of);
        if earliest < earliest_set {
            self.set_latest(earliest, set);
        }
        let steady = self.equal >= STEADY && earliest == self.last.saturating_add(self.distance);
        if steady && self.set.contains(&NEVER) {
            self.set_latest(earliest.saturating_add(self.distance), set);
        }
    }

    /// Sets the alarm that is free, else the one that is set to the latest instant.
    #[inline(never)] // as above
    fn set_latest(&mut self, at: u64, set: &dyn Fn(usize, u64)) {
        let latest = (0..self.set.len()).max_by_key(|&alarm| self.set[alarm]).unwrap_or(0);
        self.set[latest] = at;
        self.sets += 1;
        set(latest, at);
    }

    /// An alarm has expired.
    fn expired(&mut self, alarm: usize, now: u64) {
        let at = std::mem::replace(&mut self.set[alarm], NEVER);
        if at > now {
            // (An event that is reported late, of an alarm set anew since, looks like this too.)
            self.early = self.early.saturating_add(1);
            return;
        }
        self.early = 0;
        let distance = at.saturating_sub(self.last);
        self.equal = if distance == self.distance { self.equal.saturating_add(1) } else { 0 };
        (self.last, self.distance) = (at, distance);
    }
}

impl SharedAlarm {
    pub(crate) fn new(members: usize, alarms: usize) -> Self {
        let (of, set) = (vec![NEVER; members], vec![NEVER; alarms]);
        Self(Mutex::new(Instants { of, set, last: 0, distance: 0, equal: 0, early: 0, sets: 0 }))
    }

    #[inline(never)] // one copy
    pub(crate) fn row(count: usize, members: usize, alarms: usize) -> Vec<Self> {
        (0..count).map(|_| Self::new(members, alarms)).collect()
    }

    /// Gives a member an instant; [`NEVER`] takes the instant back. `set` sets one of the alarms.
    pub(crate) fn arm(&self, member: usize, at: u64, set: &dyn Fn(usize, u64)) {
        let mut instants = self.0.lock();
        instants.of[member] = at;
        instants.cover(set);
    }

    /// An alarm has expired: gives each member whose instant has come to `due`, and takes the
    /// instant back. `set` sets one of the alarms for the rest. Returns whether alarms come early
    /// again and again: the next is not set before a pause, and the caller distrusts them
    /// ([`Backend::distrust`](super::Backend::distrust)).
    #[must_use]
    pub(crate) fn take(
        &self,
        alarm: usize,
        now: &dyn Fn() -> u64,
        due: &mut dyn FnMut(usize),
        set: &dyn Fn(usize, u64),
    ) -> bool {
        let mut instants = self.0.lock();
        let now = now();
        instants.expired(alarm, now);
        let mut any = false;
        for (member, at) in instants.of.iter_mut().enumerate() {
            if *at <= now {
                *at = NEVER;
                any = true;
                due(member);
            }
        }
        if !any {
            instants.equal = 0;
        }
        let often_early = instants.early >= OFTEN_EARLY;
        let from = if often_early { now.saturating_add(PAUSE_NS) } else { now };
        instants.cover(&|alarm, at| set(alarm, at.max(from)));
        often_early
    }

    /// How often an alarm was set.
    pub(crate) fn sets(&self) -> u64 {
        self.0.lock().sets
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    /// The calls that set an alarm: its number, and the instant.
    type Sets = Vec<(usize, u64)>;

    fn arm(alarm: &SharedAlarm, shard: usize, at: u64) -> Sets {
        let sets = RefCell::new(Sets::new());
        alarm.arm(shard, at, &|alarm, at| sets.borrow_mut().push((alarm, at)));
        sets.into_inner()
    }

    /// The shards that are due; the sets; whether alarms are often early.
    fn take(alarm: &SharedAlarm, expired: usize, now: u64) -> (Vec<usize>, Sets, bool) {
        let (mut shards, sets) = (Vec::new(), RefCell::new(Sets::new()));
        let set = |alarm, at| sets.borrow_mut().push((alarm, at));
        let often_early = alarm.take(expired, &|| now, &mut |shard| shards.push(shard), &set);
        (shards, sets.into_inner(), often_early)
    }

    #[test]
    fn a_shared_alarm_is_set_to_the_earliest_instant_and_to_the_rest() {
        let alarm = SharedAlarm::new(3, 1);
        let sets = [arm(&alarm, 1, 500), arm(&alarm, 0, 900), arm(&alarm, 2, 300)];
        assert_eq!(sets, [vec![(0, 500)], vec![], vec![(0, 300)]]);
        assert_eq!(arm(&alarm, 2, 700), [], "a later instant leaves the alarm");
        assert_eq!(take(&alarm, 0, 300), (vec![], vec![(0, 500)], false));
        assert_eq!(take(&alarm, 0, 499), (vec![], vec![(0, 500)], false), "the clock is behind the timer's");
        assert_eq!(take(&alarm, 0, 700), (vec![1, 2], vec![(0, 900)], false));
        assert_eq!(arm(&alarm, 1, 950), []);
        assert_eq!(take(&alarm, 0, 2_000), (vec![0, 1], vec![], false));
        assert_eq!(take(&alarm, 0, 2_000), (vec![], vec![], false), "each shard is given to one poller");
        assert_eq!((arm(&alarm, 0, 3_000), arm(&alarm, 0, NEVER)), (vec![(0, 3_000)], vec![]));
        assert_eq!(alarm.sets(), 6);
    }

    #[test]
    fn an_alarm_that_comes_early_again_and_again_is_no_coincidence() {
        let alarm = SharedAlarm::new(2, 1);
        arm(&alarm, 0, 500);
        for _ in 0..2 {
            for _ in 1..OFTEN_EARLY {
                assert_eq!(take(&alarm, 0, 499), (vec![], vec![(0, 500)], false));
            }
            assert_eq!(take(&alarm, 0, 499), (vec![], vec![(0, 499 + PAUSE_NS)], true));
            assert_eq!(take(&alarm, 0, 500), (vec![0], vec![], false));
            arm(&alarm, 0, 500);
        }
    }

    #[test]
    fn after_instants_at_equal_distances_an_alarm_is_set_ahead_until_one_is_in_vain() {
        let alarm = SharedAlarm::new(2, 2);
        let mut at = 1_000;
        assert_eq!(arm(&alarm, 0, at), [(1, at)]);
        let mut expired = 1;
        for _ in 0..=STEADY {
            assert_eq!(take(&alarm, expired, at), (vec![0], vec![], false));
            at += 200;
            let sets = arm(&alarm, 0, at);
            assert_eq!(sets.len(), 1, "one call for each instant");
            expired = sets[0].0;
        }
        assert_eq!(take(&alarm, expired, at), (vec![0], vec![], false));
        let sets = arm(&alarm, 0, at + 200);
        let ahead = 1 - sets[0].0;
        assert_eq!(sets, [(1 - ahead, at + 200), (ahead, at + 400)], "the first time two calls");
        for instant in 2..10 {
            assert_eq!(take(&alarm, if instant % 2 == 0 { 1 - ahead } else { ahead }, at + (instant - 1) * 200).0, [0]);
            let next = if instant % 2 == 0 { 1 - ahead } else { ahead };
            assert_eq!(arm(&alarm, 0, at + instant * 200), [(next, at + (instant + 1) * 200)]);
        }
        assert_eq!(arm(&alarm, 1, at + 9 * 200), [], "the instant is covered for others too");
        assert_eq!(take(&alarm, ahead, at + 9 * 200), (vec![0, 1], vec![], false));
        assert_eq!(take(&alarm, 1 - ahead, at + 10 * 200), (vec![], vec![], false), "in vain");
        assert_eq!(arm(&alarm, 0, at + 11 * 200).len(), 1, "no alarm ahead");
    }

    proptest! {
        /// The alarms of the system expire in any order, and late.
        #[test]
        fn an_alarm_is_at_or_before_each_instant(
            steps in prop::collection::vec((0..4_usize, 1..40_u64, any::<bool>()), 1..200),
        ) {
            let alarm = SharedAlarm::new(3, 2);
            let system = RefCell::new([NEVER; 2]);
            let mut of = [NEVER; 3];
            let mut now = 0;
            for (shard, after, regular) in steps {
                if shard < 3 {
                    of[shard] = if regular { (now / 20 + 1) * 20 } else { now + after };
                    alarm.arm(shard, of[shard], &|alarm, at| system.borrow_mut()[alarm] = at);
                } else {
                    now += after;
                    let expired: Vec<usize> = (0..2).filter(|&alarm| system.borrow()[alarm] <= now).collect();
                    for alarm_number in expired {
                        system.borrow_mut()[alarm_number] = NEVER;
                        let set = |alarm: usize, at| system.borrow_mut()[alarm] = at;
                        prop_assert!(!alarm.take(alarm_number, &|| now, &mut |shard| of[shard] = NEVER, &set));
                    }
                }
                let earliest = of.into_iter().min().unwrap_or(NEVER);
                let set = system.borrow().into_iter().min().unwrap_or(NEVER);
                prop_assert!(set <= earliest, "set to {}, earliest {}", set, earliest);
            }
        }
    }
}
