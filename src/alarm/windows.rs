//! The Windows backend: leader/followers, with a waitable timer for the leader.
//!
//! Ground rules. Locks and states are those of [`leader_followers`](super::leader_followers); only
//! the leader touches the timer. Due times are relative, rounded up to 100 ns. They do not count
//! the time in suspend, nor does the default clock.
//!
//! Why not a timer per shard: a thread can wait for 64 objects at most, and a machine may have more
//! cores. Why not timed waits alone: they end with a tick of the system clock, up to 15.6 ms late.
//! A high-resolution waitable timer (Windows 10 1803 and later; the ordinary kind where the system
//! refuses it) is some 0.5 ms late.

#![allow(unsafe_code)] // system calls

use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle, RawHandle};
use std::ptr;
use std::time::Duration;

use super::SystemClock;
use super::leader_followers::{LeaderFollowersOn, LeaderWait, State};
use crate::sync::MutexGuard;

const CREATE_WAITABLE_TIMER_HIGH_RESOLUTION: u32 = 2;
/// `TIMER_MODIFY_STATE | SYNCHRONIZE`.
const TIMER_ACCESS: u32 = 0x2 | 0x10_0000;
const INFINITE: u32 = u32::MAX;

#[link(name = "kernel32")]
unsafe extern "system" {
    fn CreateWaitableTimerExW(attributes: *const c_void, name: *const u16, flags: u32, access: u32) -> RawHandle;
    fn SetWaitableTimer(
        timer: RawHandle,
        due: *const i64,
        period: i32,
        routine: *const c_void,
        argument: *const c_void,
        resume: i32,
    ) -> i32;
    fn CreateEventW(attributes: *const c_void, manual_reset: i32, state: i32, name: *const u16) -> RawHandle;
    fn SetEvent(event: RawHandle) -> i32;
    fn WaitForMultipleObjects(n: u32, handles: *const RawHandle, all: i32, milliseconds: u32) -> u32;
}

#[link(name = "api-ms-win-core-realtime-l1-1-1", kind = "raw-dylib")]
unsafe extern "system" {
    fn QueryInterruptTimePrecise(time: *mut u64);
    fn QueryUnbiasedInterruptTimePrecise(time: *mut u64);
}

/// The system's count of 100 ns since its start, as exact as its counters are. (The calls without
/// `Precise` move once a tick.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptTime {
    /// Stands still in suspend.
    Unbiased,
    /// Goes on in suspend.
    Biased,
}

impl InterruptTime {
    #[inline]
    pub(super) fn now(self) -> u64 {
        let mut time = 0;
        let read = match self {
            Self::Unbiased => QueryUnbiasedInterruptTimePrecise,
            Self::Biased => QueryInterruptTimePrecise,
        };
        // SAFETY: `time` is a valid place for the number to be written.
        unsafe { read(&mut time) };
        time * 100
    }
}

/// The alarms of a runtime.
pub(crate) type WaitableTimer = LeaderFollowersOn<TimerAndEvent>;

impl WaitableTimer {
    pub(crate) fn new(clock: SystemClock, alarms: usize) -> io::Result<Self> {
        Self::led_by(TimerAndEvent::new()?, clock, alarms)
    }
}

/// The objects that the leader waits for.
pub(crate) struct TimerAndEvent {
    timer: OwnedHandle,
    /// An auto-reset event: it stays set until a wait ends with it.
    event: OwnedHandle,
}

fn owned(handle: RawHandle) -> io::Result<OwnedHandle> {
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the system has just opened this handle for the caller, so it has no further owner.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

fn timer(flags: u32) -> io::Result<OwnedHandle> {
    // SAFETY: no attributes, no name.
    owned(unsafe { CreateWaitableTimerExW(ptr::null(), ptr::null(), flags, TIMER_ACCESS) })
}

impl TimerAndEvent {
    fn new() -> io::Result<Self> {
        let timer = timer(CREATE_WAITABLE_TIMER_HIGH_RESOLUTION).or_else(|_| timer(0))?;
        // SAFETY: no attributes, no name.
        let event = owned(unsafe { CreateEventW(ptr::null(), 0, 0, ptr::null()) })?;
        Ok(Self { timer, event })
    }
}

/// Milliseconds, rounded up, and less than `INFINITE`.
fn whole_ms(time: Duration) -> u32 {
    u32::try_from(time.as_nanos().div_ceil(1_000_000)).map_or(INFINITE - 1, |ms| ms.min(INFINITE - 1))
}

impl LeaderWait for TimerAndEvent {
    fn wait(&self, state: &mut MutexGuard<'_, State>, time: Duration) {
        // Only the leader sets the timer, and a single thread leads at a time.
        let handles = [self.event.as_raw_handle(), self.timer.as_raw_handle()];
        let timed = i64::try_from(time.as_nanos().div_ceil(100)).is_ok_and(|due| {
            // SAFETY: `self` keeps the timer open, the number lives through the call, and there is
            // no routine.
            unsafe { SetWaitableTimer(handles[1], &-due, 0, ptr::null(), ptr::null(), 0) != 0 }
        });
        // If the timer cannot be set, a limit ends the wait, at a tick of the system's clock.
        let limit_ms = if timed || time == Duration::MAX { INFINITE } else { whole_ms(time) };
        MutexGuard::unlocked(state, || {
            // SAFETY: the array has at least the given number of handles, and `self` keeps them
            // open.
            unsafe { WaitForMultipleObjects(1 + u32::from(timed), handles.as_ptr(), 0, limit_ms) };
        });
    }

    fn wake_leader(&self) {
        // SAFETY: `self` keeps the event open. (So the call cannot fail.)
        unsafe { SetEvent(self.event.as_raw_handle()) };
    }
}

/// The conformance tests, on Windows.
#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;
    use crate::alarm::conformance::{Rig, conformance};
    use crate::sync::Mutex;

    struct Real(WaitableTimer);

    impl Rig for Real {
        type Backend = WaitableTimer;

        fn new(alarms: usize) -> Self {
            Self(WaitableTimer::new(SystemClock::MONOTONIC, alarms).expect("the system has timers"))
        }

        fn alarms(&self) -> &WaitableTimer {
            &self.0
        }

        fn now(&self) -> u64 {
            SystemClock::MONOTONIC.now()
        }

        fn pass(&self, time: Duration) {
            std::thread::sleep(time);
        }
    }

    conformance!(Real);

    #[test]
    fn where_the_timer_cannot_be_set_a_wait_ends_all_the_same() {
        let mut lead = TimerAndEvent::new().expect("the system has timers");
        // SAFETY: no attributes, no name.
        lead.timer = owned(unsafe { CreateEventW(ptr::null(), 0, 0, ptr::null()) }).expect("the system has events");
        let state = Mutex::new(State::new(1));
        lead.wait(&mut state.lock(), Duration::from_millis(5));
        assert_eq!([0, 1, 1_000_000, 1_000_001].map(|ns| whole_ms(Duration::from_nanos(ns))), [0, 1, 1, 2]);
        assert_eq!(whole_ms(Duration::from_secs(u64::MAX)), INFINITE - 1);
    }
}
