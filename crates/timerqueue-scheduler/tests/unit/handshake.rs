//! All orders of the atomic sections of the handshake: no wake-up is lost, no place is lost, and
//! nothing polls.
//!
//! Ground rules. The handshake is the engine's own; store, timer, clock and runs are models. A
//! [`World`] is a state of all of them, a step one atomic section. The search visits each reachable
//! state once. It checks four things: where no step is left, each job is done; where the engine has
//! no step, no due job waits beside a free place; the runs never exceed the places; and no state is
//! reached from itself, which would be polling.

use std::collections::HashMap;

use super::Handshake;
use crate::store::Micros;

/// What the search is run on.
#[derive(Clone, Debug)]
struct Case {
    /// The places of each handler.
    handlers: Vec<usize>,
    parallel: usize,
    /// The most jobs of a claim.
    batch: usize,
    /// The handler and the due time of each job.
    jobs: Vec<(usize, i64)>,
    /// This job runs again, due at once.
    again: Option<usize>,
    /// Needless callbacks: of the timer on the running clock, or after a step of the clock.
    needless: usize,
    /// Claims that fail.
    failures: usize,
    closes: bool,
    /// The store gives the places of runs on.
    hands_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Job {
    /// Not yet put.
    Absent,
    /// In the store, due at this instant.
    Waiting(i64),
    /// In the answer to a claim.
    Claimed,
    Running,
    /// The run has ended, and its settle is asked for, with a job for its place.
    Ending,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Claim {
    None,
    Asked { places: Vec<usize>, left: usize },
    Answered { claimed: Vec<usize>, begun: Vec<usize>, next: Option<Micros> },
    Begun { next: Option<Micros> },
}

/// The last instant of the clock. It begins at 1.
const LAST: i64 = 2;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    handshake: Handshake,
    now: i64,
    timer: Option<Micros>,
    /// The timer has fired, and its callback has not taken the lock.
    callback: bool,
    /// A claim has failed, and another one follows after a wait.
    later: bool,
    needless: usize,
    failures: usize,
    again: Option<usize>,
    closed: bool,
    jobs: Vec<Job>,
    /// Commits whose notices are to come.
    notices: Vec<i64>,
    /// Handlers of runs whose settle is committed, and not answered, and the jobs that have their
    /// places.
    unanswered: Vec<(usize, Option<usize>)>,
    claim: Claim,
}

impl World {
    fn new(case: &Case) -> Self {
        Self {
            handshake: Handshake::new(case.handlers.len()),
            now: 1,
            timer: None,
            callback: false,
            later: false,
            needless: case.needless,
            failures: case.failures,
            again: case.again,
            closed: false,
            jobs: vec![Job::Absent; case.jobs.len()],
            notices: Vec::new(),
            unanswered: Vec::new(),
            claim: Claim::None,
        }
    }

    /// This world after a step.
    fn after(&self, step: impl FnOnce(&mut Self)) -> Self {
        let mut next = self.clone();
        step(&mut next);
        next.notices.sort_unstable();
        next.unanswered.sort_unstable();
        next
    }

    fn set(&mut self, at: Option<Micros>) {
        self.timer = at.or(self.timer);
    }

    /// The callback of a timer: the lock section of `Core::pump`.
    fn pump(&mut self, case: &Case) {
        if self.handshake.fired() {
            assert!(self.claim == Claim::None, "one claim at a time");
            let (places, left) = self.handshake.begin_claim(case.handlers.iter().copied(), case.parallel);
            self.claim = Claim::Asked { places: places.to_vec(), left };
        }
    }

    /// The store's section of a claim.
    fn take(&mut self, case: &Case, mut places: Vec<usize>, left: usize) {
        let mut claimed = Vec::new();
        let next = loop {
            let waits = |job: usize| match self.jobs[job] {
                Job::Waiting(at) if places[case.jobs[job].0] > 0 => Some((at, job)),
                _ => None,
            };
            match (0..self.jobs.len()).filter_map(waits).min() {
                Some((at, job)) if at <= self.now && claimed.len() < left.min(case.batch) => {
                    self.jobs[job] = Job::Claimed;
                    places[case.jobs[job].0] -= 1;
                    claimed.push(job);
                }
                first => break first.map(|(at, _)| Micros::new(at)),
            }
        };
        self.claim = Claim::Answered { claimed, begun: Vec::new(), next };
    }

    fn begin(&mut self, case: &Case, job: usize) {
        let Claim::Answered { claimed, begun, .. } = &mut self.claim else { return };
        claimed.retain(|&other| other != job);
        if self.handshake.begin_run(case.jobs[job].0) {
            begun.push(job);
            self.jobs[job] = Job::Running;
        } else {
            self.jobs[job] = Job::Waiting(self.now);
        }
    }

    /// The store's section of a settle: the end is visible, and the place is not free.
    fn settle(&mut self, case: &Case, job: usize) {
        let hands_over = self.jobs[job] == Job::Ending;
        self.jobs[job] = Job::Done;
        if self.again == Some(job) {
            (self.jobs[job], self.again) = (Job::Waiting(self.now), None);
            self.notices.push(self.now);
        }
        let handler = case.jobs[job].0;
        let due = |job: usize| match self.jobs[job] {
            Job::Waiting(at) if at <= self.now && case.jobs[job].0 == handler => Some((at, job)),
            _ => None,
        };
        let next = (0..self.jobs.len()).filter_map(due).min().filter(|_| hands_over).map(|(_, job)| job);
        if let Some(next) = next {
            self.jobs[next] = Job::Claimed;
        }
        self.unanswered.push((handler, next));
    }

    /// The engine's section of the answer to a settle.
    fn settled(&mut self, at: usize) {
        let (handler, next) = self.unanswered.remove(at);
        match next {
            Some(job) if !self.handshake.closing => self.jobs[job] = Job::Running,
            next => {
                let set = self.handshake.freed(handler);
                self.set(set);
                if let Some(job) = next {
                    self.jobs[job] = Job::Waiting(self.now);
                }
            }
        }
    }

    fn close(&mut self) {
        (self.closed, self.handshake.closing, self.timer) = (true, true, None);
    }

    /// The worlds after each possible step.
    fn next(&self, case: &Case) -> Vec<Self> {
        let mut worlds = Vec::new();
        let mut step = |step: &dyn Fn(&mut Self)| worlds.push(self.after(step));
        for (job, &(_, due)) in case.jobs.iter().enumerate() {
            match self.jobs[job] {
                Job::Absent if !self.closed => step(&|world| {
                    world.jobs[job] = Job::Waiting(due);
                    world.notices.push(due);
                }),
                Job::Running if case.hands_over && self.handshake.may_hand_over(case.jobs[job].0) => {
                    step(&|world| world.jobs[job] = Job::Ending);
                }
                Job::Running | Job::Ending => step(&|world| world.settle(case, job)),
                _ => {}
            }
        }
        for at in 0..self.notices.len() {
            step(&|world| {
                let at = world.notices.remove(at);
                let set = world.handshake.wake(Micros::new(at));
                world.set(set);
            });
        }
        for at in 0..self.unanswered.len() {
            step(&|world| world.settled(at));
        }
        match &self.claim {
            Claim::None => {}
            Claim::Asked { places, left } => {
                step(&|world| world.take(case, places.clone(), *left));
                if self.failures > 0 {
                    step(&|world| {
                        (world.failures, world.later, world.claim) = (world.failures - 1, true, Claim::None);
                        world.handshake.claiming = false;
                    });
                }
            }
            Claim::Answered { claimed, begun, next } => match claimed.first() {
                Some(&job) => step(&|world| world.begin(case, job)),
                None => step(&|world| {
                    world.handshake.begun(begun.iter().map(|&job| case.jobs[job].0));
                    world.claim = Claim::Begun { next: *next };
                }),
            },
            Claim::Begun { next } => step(&|world| {
                let set = world.handshake.end_claim(*next, None, case.parallel);
                world.set(set);
                world.claim = Claim::None;
            }),
        }
        if !self.callback && self.timer.is_some_and(|at| at <= Micros::new(self.now)) {
            step(&|world| (world.timer, world.callback) = (None, true));
        }
        if self.callback {
            step(&|world| {
                world.callback = false;
                world.pump(case);
            });
        }
        if self.needless > 0 {
            step(&|world| {
                world.needless -= 1;
                world.pump(case);
            });
        }
        if self.later {
            step(&|world| {
                world.later = false;
                world.pump(case);
            });
        }
        if self.now < LAST {
            step(&|world| world.now += 1);
        }
        if case.closes && !self.closed {
            step(&Self::close);
        }
        worlds
    }

    /// Whether the engine or its timer has work: a step other than those of users and of the clock.
    fn is_busy(&self) -> bool {
        let is_due = self.timer.is_some_and(|at| at <= Micros::new(self.now));
        let waits = !self.notices.is_empty() || !self.unanswered.is_empty() || self.claim != Claim::None;
        waits || is_due || self.callback || self.later
    }

    fn check(&self, case: &Case) {
        let mut runs = vec![0; case.handlers.len()];
        let is_running = |job: &usize| matches!(self.jobs[*job], Job::Running | Job::Ending);
        let running = (0..self.jobs.len()).filter(is_running).map(|job| case.jobs[job].0);
        running.chain(self.unanswered.iter().map(|&(handler, _)| handler)).for_each(|handler| runs[handler] += 1);
        assert!(runs.iter().zip(&case.handlers).all(|(runs, places)| runs <= places), "{self:#?}");
        assert!(runs.iter().sum::<usize>() <= case.parallel, "{self:#?}");
        assert_eq!(runs.iter().sum::<usize>(), self.handshake.total(), "no place is lost: {self:#?}");
        let is_free = |handler: usize| runs[handler] < case.handlers[handler] && self.handshake.total() < case.parallel;
        let is_late =
            |job: usize| matches!(self.jobs[job], Job::Waiting(at) if at <= self.now && is_free(case.jobs[job].0));
        assert!(self.closed || self.is_busy() || !(0..self.jobs.len()).any(is_late), "a late wake-up: {self:#?}");
    }
}

/// Visits all states. Returns their number.
fn search(case: &Case) -> usize {
    // Whether the state is among those that lead to the current one.
    let mut seen: HashMap<World, bool> = HashMap::new();
    let first = World::new(case);
    seen.insert(first.clone(), true);
    let mut path = vec![(first.next(case), first)];
    while let Some((rest, world)) = path.last_mut() {
        let Some(next) = rest.pop() else {
            seen.insert(world.clone(), false);
            path.pop();
            continue;
        };
        match seen.get(&next) {
            Some(true) => panic!("polling, in {case:?}: {next:#?}"),
            Some(false) => {}
            None => {
                next.check(case);
                let steps = next.next(case);
                let done = next.closed || next.jobs.iter().all(|&job| job == Job::Done);
                assert!(!steps.is_empty() || done, "a lost wake-up, in {case:?}: {next:#?}");
                assert!(!steps.is_empty() || next.claim == Claim::None && next.handshake.total() == 0, "{next:#?}");
                seen.insert(next.clone(), true);
                path.push((steps, next));
            }
        }
    }
    seen.len()
}

/// With stores of both kinds.
fn search_both(case: Case) -> usize {
    search(&case) + search(&Case { hands_over: true, ..case })
}

/// Two jobs of one handler. With `several`, a run that runs again comes together with the other
/// complications.
fn two_jobs(several: bool) -> usize {
    let mut states = 0;
    for (places, parallel, batch) in [(1, 1, 1), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 2)] {
        for jobs in [[(0, 1), (0, 1)], [(0, 1), (0, 2)]] {
            for again in [None, Some(0)] {
                for (needless, failures, closes) in [(0, 0, false), (1, 0, false), (0, 1, false), (0, 0, true)] {
                    if several || again.is_none() || needless + failures == 0 && !closes {
                        let needless = needless + usize::from(several && closes);
                        let (handlers, jobs) = (vec![places], jobs.to_vec());
                        let case = Case {
                            handlers,
                            parallel,
                            batch,
                            jobs,
                            again,
                            needless,
                            failures,
                            closes,
                            hands_over: false,
                        };
                        states += search_both(case);
                    }
                }
            }
        }
    }
    states
}

/// Three jobs of these handlers.
fn three_jobs(handlers: &[usize], jobs: [[(usize, i64); 3]; 2]) -> usize {
    let mut states = 0;
    for (parallel, batch) in [(1, 1), (2, 1), (2, 2)] {
        for jobs in jobs {
            let (handlers, jobs) = (handlers.to_vec(), jobs.to_vec());
            states += search_both(Case {
                handlers,
                parallel,
                batch,
                jobs,
                again: None,
                needless: 0,
                failures: 0,
                closes: false,
                hands_over: false,
            });
        }
    }
    states
}

#[test]
fn no_wake_up_of_two_jobs_is_lost() {
    let states = two_jobs(false);
    assert!(states > 100_000, "{states} states");
}

#[test]
fn no_wake_up_of_two_handlers_is_lost() {
    let states = three_jobs(&[1, 1], [[(0, 1), (0, 1), (1, 1)], [(0, 2), (0, 1), (1, 2)]]);
    assert!(states > 100_000, "{states} states");
}

/// `cargo test --release -p timerqueue-scheduler --lib handshake -- --ignored`.
#[test]
#[ignore = "more than a million states: some seconds in a release build, a minute without optimisation"]
fn no_wake_up_is_lost_in_further_cases() {
    let states = two_jobs(true) + three_jobs(&[2, 1], [[(0, 1), (0, 1), (1, 1)], [(0, 2), (0, 1), (1, 2)]]);
    let states = states + three_jobs(&[2], [[(0, 1), (0, 1), (0, 1)], [(0, 2), (0, 1), (0, 1)]]);
    assert!(states > 1_000_000, "{states} states");
}
