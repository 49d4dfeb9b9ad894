//! Costs of single steps, in nanoseconds, and the lines of memory that cores share.
//!
//! Ground rules. Each figure names its source: `measure` (this example, mode `measure`), `fit`
//! (chosen by hand so that the processor times of the mode `check` agree), or `assumed`.

/// The costs of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// From the instant of an alarm to the return of `epoll_wait`, on a core that rested for a
    /// short or a long time. `measure`
    pub(crate) alarm_late: [u64; 2],
    /// From `unpark` to the return of `park`, likewise. `measure`
    pub(crate) unpark_late: [u64; 2],
    /// A core has rested for long after this time. `measure`: the lateness of alarms rises between
    /// gaps of 100 us and 1 ms.
    pub(crate) long_rest: u64,
    /// Processor time of a thread for a rest and a wake-up; after a long rest the caches are empty.
    /// `measure`
    pub(crate) wake_cpu: [u64; 2],
    /// `epoll_wait` that finds an event. `measure`
    pub(crate) epoll_wait: u64,
    /// `epoll_ctl` that makes an event for a poller: 390 ns without, and the rest of `unpark` for
    /// the wake-up. `measure`
    pub(crate) epoll_ctl: u64,
    /// `unpark` of a parked thread, for the calling thread. `measure`
    pub(crate) unpark: u64,
    /// `timerfd_settime`. `measure`
    pub(crate) set_alarm: u64,
    /// A thread is started: for the calling thread, and until the new thread runs. `measure`
    pub(crate) spawn: [u64; 2],
    /// From one thread to another on the same core. `assumed`
    pub(crate) switch: u64,
    /// A read-modify-write of a line that the core has; of a line that a near core has; a far core.
    /// `measure`, `fit`, `assumed`
    pub(crate) line: [u64; 3],
    /// Fence and loads for a look into a deque whose line the core has. `assumed`
    pub(crate) look: u64,
    /// So many lines are fetched at a time, where no fence stands between their loads. `assumed`:
    /// processors fetch ten and more
    pub(crate) at_a_time: u64,
    /// The code of the crate from the return of `epoll_wait` to the next call, beside sweep, alarm
    /// and callback: warm caches. `fit`
    pub(crate) round: u64,
    /// A lock section of a sweep, without timers. `fit`
    pub(crate) section: u64,
    /// In a sweep, for each timer: pop, claim, unlink. Few timers, that the caches hold; many in
    /// order of memory; many scattered. `fit`
    pub(crate) node: [u64; 3],
    /// To take a tick out of its batch and begin it. `fit`
    pub(crate) tick: u64,
    /// The callback: clock and a store, likewise. `fit`
    pub(crate) callback: [u64; 3],
    /// Time slice of the scheduler while other threads are ready. `assumed`: base slice of Linux
    pub(crate) slice: u64,
}

impl Costs {
    /// AMD EPYC, virtual machine with two cores, Linux 6.18.
    pub(crate) const HERE: Self = Self {
        alarm_late: [9_500, 16_000],
        unpark_late: [11_000, 17_000],
        long_rest: 400_000,
        wake_cpu: [9_000, 13_000],
        epoll_wait: 420,
        epoll_ctl: 4_000,
        unpark: 4_500,
        set_alarm: 730,
        spawn: [9_100, 19_500],
        switch: 1_500,
        line: [2, 100, 200],
        look: 10,
        at_a_time: 3,
        round: 1_500,
        section: 150,
        node: [60, 20, 130],
        tick: 15,
        callback: [60, 24, 190],
        slice: 3_000_000,
    };
}

impl Costs {
    /// Changes a cost by its name; a cost of several parts has the part after a dot. Returns
    /// whether there is such a cost.
    pub(crate) fn set(&mut self, name: &str, ns: u64) -> bool {
        let (name, part) = name.split_once('.').unwrap_or((name, "0"));
        let Ok(part) = part.parse::<usize>() else { return false };
        let place = match name {
            "alarm_late" => self.alarm_late.get_mut(part),
            "unpark_late" => self.unpark_late.get_mut(part),
            "spawn" => self.spawn.get_mut(part),
            "line" => self.line.get_mut(part),
            "node" => self.node.get_mut(part),
            "callback" => self.callback.get_mut(part),
            "long_rest" => Some(&mut self.long_rest),
            "wake_cpu" => self.wake_cpu.get_mut(part),
            "epoll_wait" => Some(&mut self.epoll_wait),
            "epoll_ctl" => Some(&mut self.epoll_ctl),
            "unpark" => Some(&mut self.unpark),
            "set_alarm" => Some(&mut self.set_alarm),
            "switch" => Some(&mut self.switch),
            "look" => Some(&mut self.look),
            "at_a_time" => Some(&mut self.at_a_time),
            "round" => Some(&mut self.round),
            "section" => Some(&mut self.section),
            "tick" => Some(&mut self.tick),
            "slice" => Some(&mut self.slice),
            _ => None,
        };
        place.map(|place| *place = ns).is_some()
    }
}

/// A line of memory: the core that wrote it last, the cores that have a copy, and the instant until
/// which it is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    writer: u16,
    copies: [u64; 4],
    pub(crate) free_at: u64,
}

impl Line {
    fn has(&self, core: usize) -> bool {
        self.copies[core / 64] & (1 << (core % 64)) != 0
    }

    fn distance(&self, core: usize, cache: usize) -> usize {
        1 + usize::from(core / cache != usize::from(self.writer) / cache)
    }

    /// Returns the time until `core` has written the line, from `now`. `cache`: the cores that
    /// share a last-level cache.
    pub(crate) fn write(&mut self, core: usize, now: u64, cache: usize, costs: &Costs) -> u64 {
        let mut own = [0; 4];
        own[core / 64] = 1 << (core % 64);
        let distance = if self.copies == own { 0 } else { self.distance(core, cache) };
        self.copies = own;
        self.writer = core as u16;
        self.free_at = now.max(self.free_at) + costs.line[distance];
        self.free_at - now
    }

    /// Returns the time that `core` takes to read the line.
    pub(crate) fn read(&mut self, core: usize, cache: usize, costs: &Costs) -> u64 {
        if self.has(core) {
            return 1;
        }
        self.copies[core / 64] |= 1 << (core % 64);
        costs.line[self.distance(core, cache)]
    }
}
