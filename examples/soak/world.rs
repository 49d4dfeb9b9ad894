//! What all actors share.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use timerqueue::{CancellationTokenSource, Runtime};

use crate::ledger::Retired;
use crate::random::Random;
use crate::tasks::Waits;
use crate::timers::Slot;

const SLOTS: usize = 300;
/// Threads of the long-lived runtime while callbacks block.
pub(crate) const MAX_THREADS: usize = 64;

/// The payload of panics on purpose. All others are faults.
pub(crate) struct Intended;

pub(crate) struct World {
    /// The runtime that lives as long as the program.
    pub(crate) main: Runtime,
    /// Panics on purpose in callbacks of `main`.
    pub(crate) panics: Arc<AtomicU64>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) retired: Retired,
    pub(crate) waits: Waits,
    /// A source that lives as long as the program, with children that come and go.
    pub(crate) root: CancellationTokenSource,
    ending: AtomicBool,
    /// What an actor pauses after each step, so that the machine is loaded moderately.
    pause_us: AtomicU64,
}

impl World {
    pub(crate) fn new() -> Result<Self, timerqueue::error::StartError> {
        let main = Runtime::builder()
            .queues(3)
            .max_threads(MAX_THREADS)
            .keep_alive(Duration::from_secs(2))
            .thread_name("soak-main")
            .start()?;
        Ok(Self {
            root: CancellationTokenSource::on(&main),
            main,
            panics: Arc::default(),
            slots: (0..SLOTS).map(|_| Mutex::new(None)).collect(),
            retired: Retired::default(),
            waits: Waits::new(),
            ending: AtomicBool::new(false),
            pause_us: AtomicU64::new(2_000),
        })
    }

    pub(crate) fn any_slot(&self, random: &mut Random) -> &Slot {
        &self.slots[random.below(self.slots.len() as u64) as usize]
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
    }

    pub(crate) fn pause(&self, random: &mut Random) {
        let pause_us = self.pause_us.load(Ordering::Relaxed);
        // In runs of steps, so that actors meet.
        if random.below(8) == 0 {
            std::thread::sleep(Duration::from_micros(8 * pause_us));
        }
    }

    /// More or less pause, by the share of a core that the process takes.
    pub(crate) fn govern(&self, share: f64, aim: f64) {
        let pause_us = self.pause_us.load(Ordering::Relaxed);
        let pause_us = if share > aim { pause_us + pause_us / 8 + 10 } else { pause_us - pause_us / 16 };
        self.pause_us.store(pause_us.clamp(50, 200_000), Ordering::Relaxed);
    }
}
