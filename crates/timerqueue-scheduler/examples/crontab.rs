//! The crontab of a small service: recurring jobs in a time zone, with rules for what is late and
//! what overlaps.
//!
//! On virtual time, so that a week takes no time.

use std::time::{Duration, SystemTime};

use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Catchup, Change, Clash, Overlap, Run, Schedule, Scheduler, Zones};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Key and handler, cron line, and which missed runs are made up for.
const CRONTAB: [(&str, &str, Catchup); 3] = [
    ("backup", "30 2 * * *", Catchup::RunLast),
    ("report", "0 8 * * MON-FRI", Catchup::RunAll { at_most: 5 }),
    ("poll", "*/10 * * * *", Catchup::Skip),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    clock.set_wall(SystemTime::UNIX_EPOCH + 20_534 * 24 * HOUR); // 2026-03-22, a Sunday
    let runtime = Runtime::builder().manual_clock(&clock).start()?;

    let mut builder = Scheduler::builder().runtime(&runtime);
    for (name, _, _) in CRONTAB {
        builder = builder.handler(name, |_: (), run: &Run| assert_eq!(run.attempt(), 1));
    }
    let scheduler = builder.on_run_end(|record| assert!(record.run.error.is_none())).start()?;
    for (name, line, catchup) in CRONTAB {
        let schedule = Schedule::cron(line).zone("Europe/Berlin").build_in(&Zones::bundled())?;
        println!(
            "{name}: next {:?}",
            schedule.preview(clock.wall(), 3).iter().map(|run| run.due()).collect::<Vec<_>>()
        );
        // At each start of the program: what a store has already goes on, and what differs is
        // changed.
        let put = scheduler.put_to(name, &()).key(name).schedule(schedule).catchup(catchup);
        let _ = put.overlap(Overlap::Skip).clash(Clash::Update).send().wait()?;
    }

    clock.advance(24 * HOUR);
    // The machine sleeps for four days. Missed: four backups, four reports, and many polls.
    clock.suspend(4 * 24 * HOUR);
    clock.advance(Duration::ZERO);
    // Over the begin of summer time, on the 29th.
    clock.advance(3 * 24 * HOUR);
    // By hand, beside the schedule.
    assert_eq!(scheduler.run_now("backup").wait()?, Change::Changed);
    clock.advance(Duration::ZERO);

    for (name, _, _) in CRONTAB {
        let job = scheduler.get(name).wait()?.expect("it recurs");
        let last = job.last.expect("it has run");
        println!(
            "{name}: {} runs, {} missed, last {:?} {:?}",
            job.tally.runs, job.tally.missed, last.end, last.nominal
        );
    }
    let runs = |name: &str| scheduler.get(name).wait().map(|job| job.map(|job| (job.tally.runs, job.tally.missed)));
    assert_eq!(runs("backup")?, Some((1 + 1 + 3, 3)));
    assert_eq!(runs("report")?, Some((4 + 1, 0)));
    Ok(())
}
