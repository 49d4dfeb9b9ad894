//! Shared alarms: shards whose next instants lie on the same grid share a wake-up.
//!
//! Ground rules. Timers with leeway and busy shards have their alarms on *shared points*: multiples
//! of one of [`GRIDS_NS`]. Each [`SHARE`] shards have a [`SharedAlarm`], with [`ALARMS`] alarms of
//! the backend. A shard whose next instant is a shared point sets it instead of its own alarm, with
//! its lock held: then I7 says that the shared alarm is at or before. The poller that takes the
//! shared alarm sweeps each shard whose point has come. So a point costs the process one wake-up
//! and one call, and not one for each shard. A deadline off the grids lies on a shared point by
//! chance only.
//!
//! A shard that becomes due earlier sets its own alarm, and stays in the shared alarm until its
//! sweep. The own alarm may be set to a later instant meanwhile, and costs an empty sweep then.

use super::Engine;
use super::coalesce::Coalescer;
use crate::alarm::SharedAlarm;
use crate::time::NEVER;

/// Points are shared that are multiples of one of these: grids of leeway from 500 us on, and the
/// grid of busy shards.
const GRIDS_NS: [u64; 2] = [500_000, Coalescer::LONGEST_NS];
/// All such points are multiples of this.
const POINT_NS: u64 = 100_000;
/// The shards that share an alarm. One poller sweeps all shards of a point in turn, so more shards
/// would make the last of them late.
pub(crate) const SHARE: usize = 8;
/// The alarms of the backend that such shards have: one for the next instant, one ahead of time.
pub(super) const ALARMS: usize = 2;

#[inline]
fn is_shared_point(at: u64) -> bool {
    at % POINT_NS == 0 && at != NEVER && GRIDS_NS.iter().any(|grid| at % grid == 0)
}

/// The shared alarms of so many shards. (A single one sets alarms ahead, too.)
pub(super) fn shared_alarms(shards: usize) -> Box<[SharedAlarm]> {
    SharedAlarm::row(shards.div_ceil(SHARE), SHARE, ALARMS).into()
}

/// The number of the backend's alarms for so many shards.
pub(crate) fn alarms(shards: usize) -> usize {
    shards + shards.div_ceil(SHARE) * ALARMS
}

/// Whether a shard has its next instant in the shared alarm.
#[derive(Default)]
pub(crate) struct Shares(bool);

impl Shares {
    /// The shard's next instant is `at`. Sets the shared alarm and returns true, if `at` is a
    /// shared point. Caller: holds the lock of the shard.
    #[inline]
    pub(super) fn arm(&mut self, engine: &Engine, shard: usize, at: u64) -> bool {
        let shares = is_shared_point(at) && !engine.shared_alarms.is_empty();
        if shares {
            engine.arm_shared(shard, at);
            self.0 = true;
        }
        shares
    }

    /// As [`Self::arm`], after a sweep: at another instant the shard leaves the shared alarm.
    #[inline]
    pub(super) fn arm_after_sweep(&mut self, engine: &Engine, shard: usize, at: u64) -> bool {
        let shares = self.arm(engine, shard, at);
        if !shares && std::mem::take(&mut self.0) {
            engine.arm_shared(shard, NEVER);
        }
        shares
    }
}

impl Engine {
    #[inline(never)]
    fn arm_shared(&self, shard: usize, at: u64) {
        if let Some(native) = &self.native {
            let group = shard / SHARE;
            let first = self.shards.len() + group * ALARMS;
            let set = |alarm, at| native.pool.alarms.arm(first + alarm, at);
            self.shared_alarms[group].arm(shard % SHARE, at, &set);
        }
    }

    /// An alarm of the backend has expired that is no shard's own: the shards whose points have
    /// come. Caller: holds no lock.
    pub(super) fn take_shared(&self, alarm: usize) -> impl Iterator<Item = usize> + use<> {
        let (group, alarm) = ((alarm - self.shards.len()) / ALARMS, (alarm - self.shards.len()) % ALARMS);
        let mut bits = 0_u32;
        if let Some(native) = &self.native {
            let first = self.shards.len() + group * ALARMS;
            let (mut due, set) =
                (|shard| bits |= 1_u32 << shard, |alarm, at| native.pool.alarms.arm(first + alarm, at));
            if self.shared_alarms[group].take(alarm, &|| self.clock.now(), &mut due, &set) {
                native.pool.alarms.distrust();
            }
        }
        (0..SHARE).filter(move |shard| bits >> shard & 1 == 1).map(move |shard| group * SHARE + shard)
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::TimerBuilder;
    use crate::runtime::Runtime;
    use crate::sys::topology::{CoreId, Cores, confine};
    use crate::timer::{Tick, Timer};

    const MS: u64 = 1_000_000;
    const MS_LONG: Duration = Duration::from_millis(1);
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Ticks of 1 ms with leeway in each of two queues. `None`: the machine has a single core, or
    /// threads cannot be pinned here.
    fn two_queues(tick: impl Fn(&Tick<'_>) + Send + Sync + 'static) -> Option<(Runtime, Vec<Timer>)> {
        let cores = Cores::of_process().ids;
        let runtime = Runtime::builder().start().expect("a runtime starts");
        let tick = Arc::new(tick);
        let make = |&core: &CoreId| {
            let (runtime, tick) = (runtime.clone(), Arc::clone(&tick));
            let maker = thread::spawn(move || {
                confine(Some(core), None);
                let builder = TimerBuilder::on(&runtime).due(5 * MS_LONG).period(MS_LONG).leeway(MS_LONG);
                (runtime.engine().current_queue(), builder.start(move |due| tick(due)))
            });
            maker.join().expect("no panic")
        };
        let (queues, timers): (Vec<_>, Vec<_>) = cores.iter().take(2).map(make).unzip();
        (queues == [Some(0), Some(1)]).then_some((runtime, timers))
    }

    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn s58_queues_with_leeway_share_an_alarm_and_lose_no_tick() {
        let (sender, ticks) = mpsc::channel();
        let Some((runtime, timers)) = two_queues(move |tick| _ = sender.send(tick.scheduled())) else { return };
        for _ in 0..100 {
            ticks.recv_timeout(PATIENCE).expect("all ticks come");
        }
        let engine = runtime.engine();
        assert!(engine.shards().take(2).all(|shard| shard.lock().shares.0), "both have the next tick on the grid");
        assert!(engine.shared_alarms[0].sets() > 0);
        drop(timers);
    }

    #[test]
    fn points_of_a_grid_are_shared_and_no_others() {
        for at in [5 * MS, 5 * MS + 500_000, 5 * MS + 200_000, 0] {
            assert!(is_shared_point(at), "{at}");
        }
        for at in [5 * MS - 1, 5 * MS + 100_000, 5 * MS + 300_000, NEVER] {
            assert!(!is_shared_point(at), "{at}");
        }
    }

    #[test]
    fn shards_share_alarms_by_eight() {
        assert_eq!([0, 1, 2, 8, 9, 19].map(|shards| shared_alarms(shards).len()), [0, 1, 1, 1, 2, 3]);
        assert_eq!([1, 2, 8, 9, 19].map(alarms), [3, 4, 10, 13, 25]);
    }

    /// Two of the shards of the second eight, and one of the first.
    #[test]
    fn a_shared_alarm_is_for_each_shard_whose_point_has_come() {
        let runtime = Runtime::builder().queues(19).workers(2).start().expect("a runtime starts");
        let engine = runtime.engine();
        let past = engine.clock.now() / MS * MS;
        let far = past + 3600 * 1_000 * MS;
        let mut shares: Vec<_> = (0..19).map(|_| Shares::default()).collect();
        assert!(shares[8].arm(engine, 8, far) && shares[9].arm(engine, 9, far) && shares[15].arm(engine, 15, far));
        assert!(!shares[9].arm(engine, 9, far + 1) && shares[9].0, "an earlier instant of its own does not end it");
        assert!(!shares[15].arm_after_sweep(engine, 15, far + 1) && !shares[15].0);
        // As if they had come: no poller is told, since the alarm is far ahead.
        let group = &engine.shared_alarms[1];
        let taken = |now| {
            let mut taken = Vec::new();
            assert!(!group.take(0, &|| now, &mut |shard| taken.push(shard), &|_, _| {}));
            taken
        };
        assert_eq!((taken(far - 1), taken(far), taken(far)), (vec![], vec![0, 1], vec![]));
        assert_eq!(engine.take_shared(19).count() + engine.take_shared(23).count(), 0);
        group.arm(7, past, &|_, _| {});
        assert_eq!(engine.take_shared(22).collect::<Vec<_>>(), [15]);
    }
}

#[cfg(all(test, timerqueue_loom))]
#[path = "../../loom-tests/shared_vs_taken.rs"]
mod loom_models;
