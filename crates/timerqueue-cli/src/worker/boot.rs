//! `@reboot`: jobs that run once after each start of the machine.
//!
//! Ground rules. The store keeps such a job as a recurring one whose instant does not come. A
//! worker that starts compares its last run with the start of the machine: no more has to be known.
//! Workers that start at once may both find it due: overlap decides then.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue_scheduler::{Error, JobInfo, Query, Scheduler, State};

use crate::put::is_reboot;

/// When the machine has started. `None`: the system does not say.
pub(super) fn time() -> Option<SystemTime> {
    let text = std::fs::read_to_string("/proc/stat").ok()?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Whether the job has neither run nor been put since the machine has started.
fn is_due(job: &JobInfo, booted: SystemTime) -> bool {
    let is_before = |at: Option<SystemTime>| at.is_none_or(|at| at < booted);
    is_before(job.after) && is_before(job.last.as_ref().map(|last| last.started))
}

fn jobs(scheduler: &Scheduler, name: &str) -> Result<Vec<JobInfo>, Error> {
    let mut jobs = scheduler.list(Query::new().state(State::Recurring).name(name)).wait()?;
    jobs.retain(|job| job.recurrence.as_ref().is_some_and(|rules| is_reboot(&rules.schedule)));
    Ok(jobs)
}

/// Whether one of these handlers has such a job.
pub(super) fn has_jobs(scheduler: &Scheduler, handlers: &[String]) -> Result<bool, Error> {
    for name in handlers {
        if !jobs(scheduler, name)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Lets the jobs of these handlers run that are due since the machine has started.
pub(super) fn run_jobs(scheduler: &Scheduler, handlers: &[String], booted: SystemTime) -> Result<(), Error> {
    for name in handlers {
        for job in jobs(scheduler, name)?.iter().filter(|job| is_due(job, booted)) {
            let runs = scheduler.list(Query::new().name(name).key_prefix(&job.key)).wait()?;
            if !runs.iter().any(|run| run.parent == Some(job.id) && run.state != State::Dead) {
                scheduler.run_now(&job.key).wait()?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use timerqueue::{ManualClock, Runtime};
    use timerqueue_scheduler::{Clash, Schedule};

    use super::*;
    use crate::put::reboot;

    #[test]
    fn each_start_of_the_machine_is_one_run() {
        let (clock, runs) = (ManualClock::new(), Arc::new(AtomicU32::new(0)));
        clock.set_wall(UNIX_EPOCH + Duration::from_secs(1_790_000_000));
        let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
        let counted = Arc::clone(&runs);
        let count = move |_: String, _: &timerqueue_scheduler::Run| _ = counted.fetch_add(1, Ordering::Relaxed);
        let scheduler = Scheduler::builder().runtime(&runtime).handler("sh", count).start().unwrap();
        let schedule = || reboot().map_err(|_| ()).unwrap();
        let put = |key: &str, schedule: Schedule| {
            let put = scheduler.put_to("sh", "true").key(key).schedule(schedule).clash(Clash::Update);
            let _ = put.send().wait().unwrap();
        };
        put("boot", schedule());
        put("nightly", Schedule::cron("@yearly").build().unwrap());
        let start = |booted: SystemTime| {
            run_jobs(&scheduler, &["sh".to_owned()], booted).unwrap();
            clock.advance(Duration::from_secs(1));
            runs.load(Ordering::Relaxed)
        };
        let minute = Duration::from_secs(60);
        assert_eq!(start(runtime.wall_now() - minute), 0, "put after the start of the machine");
        for round in 1..=3 {
            clock.advance(10 * minute);
            let booted = runtime.wall_now();
            clock.advance(minute);
            assert_eq!(start(booted), round);
            put("boot", schedule()); // the same crontab again
            assert_eq!(start(booted), round, "a worker that is started again");
        }
    }
}
