//! Wall time: steps, suspend, daylight saving, a year of schedules (J1, J7, J9).

use std::time::{Duration, SystemTime};

use timerqueue_scheduler::{Catchup, Overlap, Schedule, Zones};

use crate::bench::{Bench, DAY, HOUR, expect, secs, wall};

fn nominals(bench: &Bench, key: &str) -> Vec<SystemTime> {
    bench.log.all().iter().filter(|seen| seen.key == key).map(|seen| seen.nominal.unwrap()).collect()
}

#[test]
fn due_times_follow_steps_in_both_directions() {
    let bench = Bench::new();
    let _ = bench.put("duration", HOUR);
    let _ = bench.put("instant", wall(3_600));
    bench.step(-1_800);
    bench.advance(3_600);
    assert_eq!(bench.log.len(), 0, "a duration is an instant of the wall clock from its put on");
    bench.step(1_800);
    let mut keys = bench.log.keys();
    keys.sort();
    assert_eq!(keys, ["duration", "instant"], "at the instant of the step");
}

#[test]
fn what_has_started_is_not_started_again() {
    let bench = Bench::new();
    let _ = bench.put("a", wall(60));
    let cron = Schedule::cron("*/10 * * * *").build().unwrap();
    let _ = bench.job("cron").schedule(cron).send().wait().unwrap();
    bench.clock.advance(HOUR);
    assert_eq!(bench.log.len(), 8);
    let _ = bench.log.take();
    bench.step(-2 * 3_600);
    bench.clock.advance(2 * HOUR);
    assert_eq!(bench.log.len(), 0, "no nominal instant is repeated");
    bench.clock.advance(HOUR);
    assert_eq!(nominals(&bench, "cron").first(), Some(&wall(4_200)));
    assert_eq!(bench.log.len(), 6);
}

#[test]
fn an_interval_goes_on_after_a_step_back() {
    for step in [1, 5, 10, 3_600, 7_203, 400 * 86_400] {
        let bench = Bench::new();
        let _ = bench.job("every").schedule(Schedule::every(secs(10)).build().unwrap()).send().wait().unwrap();
        bench.advance(34);
        bench.step(-step);
        bench.advance(100);
        let seen = bench.log.all();
        let instants: Vec<Duration> = seen.iter().map(|seen| seen.at).collect();
        for pair in instants.windows(2) {
            // A short step is followed late: the next point of the grid is within a period by the
            // clock.
            let longest = if step <= 10 { secs(20) } else { secs(10) };
            assert!(pair[1] - pair[0] <= longest + Duration::from_millis(1), "{step}: {instants:?}");
        }
        assert!(instants.len() >= 12, "{step}: {instants:?}");
        let nominals = nominals(&bench, "every");
        assert!(nominals.windows(2).all(|pair| pair[0] < pair[1]), "{step}");
        // From the second run after the step on, runs are on the points of the grid.
        let wall = |at: Duration| wall(0) + at - secs(step as u64);
        let last = wall(*instants.last().unwrap()).duration_since(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(last.as_millis() % 10_000, 0, "{step}");
        // When the clock is right again, so are nominal instants.
        bench.step(step);
        bench.advance(50);
        let seen = bench.log.all();
        let last = seen.last().unwrap();
        assert_eq!(last.nominal, Some(crate::bench::wall(last.at.as_secs() as i64)), "{step}");
    }
}

#[test]
fn an_interval_goes_on_after_steps_forth_and_back() {
    let bench = Bench::new();
    let _ = bench.job("far").due(secs(3_603)).send().wait().unwrap();
    bench.step(3_601);
    // The timers wait for the job that is due two seconds from now, until an hour from now
    // by the running clock.
    let _ = bench.job("every").schedule(Schedule::every(secs(10)).build().unwrap()).send().wait().unwrap();
    bench.step(-3_601);
    bench.advance(100);
    let instants: Vec<Duration> = bench.log.all().iter().map(|seen| seen.at).collect();
    assert!(instants.len() >= 9 && instants[0] <= secs(20), "{instants:?}");
}

#[test]
fn a_fixed_delay_and_a_retry_go_on_after_a_step_back() {
    let bench = Bench::with(|builder, runtime, log| {
        let (runtime, log) = (runtime.clone(), log.clone());
        builder.handler("fails", move |_: (), run: &timerqueue_scheduler::Run| {
            log.add(&runtime, run);
            if run.attempt() == 1 { Err("once") } else { Ok(()) }
        })
    });
    let _ = bench.job("rest").schedule(Schedule::fixed_delay(secs(60)).build().unwrap()).send().wait().unwrap();
    let _ = bench.to("fails", "f").send().wait().unwrap();
    bench.go();
    bench.step(-7_200);
    bench.advance(120);
    let seen = bench.log.all();
    let instants =
        |key: &str| -> Vec<u64> { seen.iter().filter(|seen| seen.key == key).map(|seen| seen.at.as_secs()).collect() };
    assert_eq!(instants("rest").len(), 3, "{seen:?}");
    assert!(instants("f")[1] <= 3, "{seen:?}");
    assert!(nominals(&bench, "rest").windows(2).all(|pair| pair[0] < pair[1]));
}

/// The years of a clock that is taken for wrong: beyond the years of cron lines, of stores, and of
/// civil time.
const WRONG_YEARS: [i64; 5] = [4_900, 5_100, 9_999, 10_000, 250_000];

/// Seconds from the begin to about the middle of a year.
fn to_year(year: i64) -> i64 {
    (year - 2026) * 31_556_952 + 15_000_000
}

#[test]
fn j9_schedules_outlast_a_clock_in_a_year_beyond_schedules() {
    for year in WRONG_YEARS {
        let bench = Bench::new();
        let schedule = |key: &str, schedule: timerqueue_scheduler::ScheduleBuilder| {
            let _ = bench.job(key).schedule(schedule.build().unwrap()).send().wait().unwrap();
        };
        schedule("cron", Schedule::cron("* * * * *"));
        schedule("every", Schedule::every(secs(60)));
        schedule("rest", Schedule::fixed_delay(secs(60)));
        schedule("rule", Schedule::rule("minutes", |t: SystemTime| t.checked_add(secs(60))));
        schedule("until", Schedule::every(secs(60)).until(wall(86_400)));
        schedule("paused", Schedule::every(secs(60)));
        schedule("changed", Schedule::every(secs(60)));
        bench.advance(90);
        let _ = bench.log.take();
        bench.step(to_year(year));
        bench.advance(200);
        assert_eq!(bench.log.len(), 0, "{year}: no schedule runs by a clock that is wrong");
        assert_eq!(bench.stats().jobs.of(timerqueue_scheduler::State::Recurring), 7, "{year}");
        // What changes a schedule meanwhile counts once the clock is right.
        for change in [bench.scheduler.pause("paused"), bench.scheduler.resume("paused")] {
            assert_eq!(change.wait(), Ok(timerqueue_scheduler::Change::Changed));
        }
        let other = Schedule::cron("*/2 * * * *").build().unwrap();
        assert_eq!(bench.scheduler.reschedule("changed", other).wait(), Ok(timerqueue_scheduler::Change::Changed));
        bench.advance(1);
        bench.clock.set_wall(wall(300));
        bench.advance(130);
        let seen = bench.log.all();
        for key in ["cron", "every", "rest", "rule", "until", "paused", "changed"] {
            let runs = seen.iter().filter(|seen| seen.key == key).count();
            let fits = if key == "changed" { 1..=2 } else { 2..=4 };
            assert!(fits.contains(&runs), "{year}: {key} {seen:?}");
            let nominals = nominals(&bench, key);
            assert!(nominals.iter().all(|&nominal| nominal < wall(500)), "{year}: {key} {seen:?}");
        }
    }
}

#[test]
fn j9_a_fixed_delay_whose_run_ends_in_a_year_beyond_schedules_goes_on() {
    for year in WRONG_YEARS {
        let clock = std::sync::Arc::new(std::sync::OnceLock::<timerqueue::ManualClock>::new());
        let steps = std::sync::Arc::clone(&clock);
        let bench = Bench::with(|builder, runtime, log| {
            let (runtime, log) = (runtime.clone(), log.clone());
            builder.handler("steps", move |_: (), run: &timerqueue_scheduler::Run| {
                log.add(&runtime, run);
                if run.due() < wall(60) {
                    steps.get().unwrap().set_wall(wall(to_year(year)));
                }
            })
        });
        clock.set(bench.clock.clone()).unwrap();
        let rest = Schedule::fixed_delay(secs(60)).build().unwrap();
        let _ = bench.to("steps", "rest").schedule(rest).send().wait().unwrap();
        bench.advance(30);
        assert_eq!(bench.log.len(), 1);
        bench.clock.set_wall(wall(100));
        bench.advance(130);
        assert!((2..=4).contains(&bench.log.len()), "{year}: {:?}", bench.log.all());
    }
}

#[test]
fn j13_a_clock_beyond_schedules_costs_a_look_in_ten_seconds_at_most() {
    let bench = Bench::new();
    let _ = bench.job("every").schedule(Schedule::every(secs(60)).build().unwrap()).send().wait().unwrap();
    bench.step(to_year(10_000));
    let before = bench.runtime.metrics().callbacks;
    bench.advance(100);
    let callbacks = bench.runtime.metrics().callbacks - before;
    assert!((1..=11).contains(&callbacks), "{callbacks}");
}

#[test]
fn a_schedule_without_a_further_occurrence_ends() {
    let bench = Bench::new();
    let line = |line: &str| Schedule::cron(line).build();
    assert!(line("0 0 30 2 *").is_err(), "never");
    let _ = bench.job("years").schedule(line("0 0 0 2 1 * 2026").unwrap()).send().wait().unwrap();
    let until = Schedule::every(HOUR).until(wall(7_200)).build().unwrap();
    let _ = bench.job("until").schedule(until).send().wait().unwrap();
    bench.clock.advance(2 * DAY);
    assert_eq!((bench.get("years"), bench.get("until")), (None, None));
    assert_eq!(nominals(&bench, "years").len(), 1);
}

/// A clock that was days ahead for some seconds: schedules go on by the right one, and what it
/// brought does not come again.
#[test]
fn j9_no_schedule_stands_still_after_a_clock_that_was_ahead() {
    const DAYS: i64 = 30 * 86_400;
    let bench = Bench::new();
    let cron = |key: &str, line: &str| {
        let _ = bench.job(key).schedule(Schedule::cron(line).build().unwrap()).send().wait().unwrap();
    };
    cron("minutes", "* * * * *");
    cron("daily", "0 3 * * *");
    let rule = Schedule::rule("minutes", |t: SystemTime| t.checked_add(secs(60))).build().unwrap();
    let _ = bench.job("rule").schedule(rule).send().wait().unwrap();
    bench.clock.set_wall(wall(12 * 3_600));
    bench.go();
    bench.step(DAYS);
    bench.advance(10);
    cron("put by the wrong clock", "* * * * *");
    let _ = bench.log.take();
    bench.step(-DAYS);
    bench.advance(600);
    let seen = bench.log.take();
    for key in ["minutes", "rule", "put by the wrong clock"] {
        let runs = seen.iter().filter(|(seen, _)| seen == key).count();
        assert!((9..=10).contains(&runs), "{key}: {runs}");
        let _ = bench.scheduler.cancel(key).wait().unwrap();
    }
    bench.clock.advance(29 * DAY);
    let daily = nominals(&bench, "daily");
    assert_eq!(daily.len(), 29, "each night: {daily:?}");
    let _ = bench.log.take();
    bench.clock.advance(2 * DAY);
    let daily = nominals(&bench, "daily");
    assert_eq!(daily, [wall(31 * 86_400 + 3 * 3_600)], "that of the day before was run by the wrong clock");
}

/// A machine whose clock begins in 1970 at each boot.
#[test]
fn j9_a_clock_that_was_far_behind_repeats_nothing() {
    let bench = Bench::new();
    for (key, catchup) in [("last", Catchup::RunLast), ("all", Catchup::RunAll { at_most: 5 })] {
        let hourly = Schedule::cron("0 * * * *").build().unwrap();
        let _ = bench.job(key).schedule(hourly).catchup(catchup).overlap(Overlap::Allow).send().wait().unwrap();
    }
    bench.advance(12 * 3_600 + 60);
    let _ = bench.log.take();
    bench.clock.set_wall(SystemTime::UNIX_EPOCH + secs(30));
    bench.advance(3_700);
    let _ = bench.log.take();
    bench.clock.set_wall(wall(12 * 3_600 + 3_000));
    bench.advance(540);
    assert_eq!(bench.log.take(), [], "all hours up to now have run");
    bench.advance(120);
    assert_eq!(nominals(&bench, "last"), [wall(13 * 3_600)]);
    assert_eq!(nominals(&bench, "all"), [wall(13 * 3_600)]);
}

#[test]
fn suspend_counts() {
    let bench = Bench::new();
    let _ = bench.put("a", HOUR);
    let _ = bench.job("r").schedule(Schedule::every(60 * secs(60)).build().unwrap()).send().wait().unwrap();
    bench.go();
    let _ = bench.log.take();
    bench.clock.suspend(10 * HOUR + secs(5));
    bench.go();
    assert_eq!(bench.log.take(), expect(&[("a", 0), ("r", 0)]));
    bench.clock.advance(HOUR);
    assert_eq!(bench.log.take(), expect(&[("r", 3_595)]), "on its grid again");
}

#[test]
fn the_first_occurrence_of_a_later_begin_is_waited_for() {
    let bench = Bench::new();
    let schedule = Schedule::every(secs(10)).from(wall(86_400)).build().unwrap();
    let _ = bench.job("r").schedule(schedule).send().wait().unwrap();
    bench.step(-3_600);
    bench.clock.advance(DAY);
    assert_eq!(bench.log.len(), 0);
    bench.clock.advance(HOUR);
    assert_eq!(bench.log.len(), 1);
}

#[test]
fn spread_is_part_of_the_due_time() {
    let bench = Bench::new();
    let schedule = Schedule::cron("@hourly").key("a").spread(secs(1_800)).jitter(secs(600)).build().unwrap();
    let occurrences = schedule.preview(wall(0), 24);
    let _ = bench.job("r").schedule(schedule).send().wait().unwrap();
    bench.clock.advance(DAY + HOUR);
    let due: Vec<SystemTime> = bench.log.all().iter().map(|seen| wall(0) + seen.at).collect();
    let at_most_late = |(due, occurrence): (&SystemTime, &timerqueue_scheduler::Occurrence)| {
        let late = due.duration_since(occurrence.due()).unwrap();
        late < Duration::from_micros(1)
    };
    assert!(due[1..].iter().zip(&occurrences).all(at_most_late), "{due:?}");
}

#[test]
fn a_year_of_schedules_with_steps_suspend_and_new_zone_data() {
    let bench = Bench::new();
    let berlin = Schedule::cron("30 2 * * *").zone("Europe/Berlin");
    let nightly = berlin.clone().build_in(&Zones::bundled()).unwrap();
    let expected = nightly.clone();
    let _ = bench.job("nightly").schedule(nightly).catchup(Catchup::RunAll { at_most: 10 }).send().wait().unwrap();
    let often = Schedule::cron("0 */2 * * *").zone("America/New_York").build_in(&Zones::bundled()).unwrap();
    let _ = bench.job("often").schedule(often).overlap(Overlap::Allow).send().wait().unwrap();
    let _ = bench.job("hourly").schedule(Schedule::every(HOUR).build().unwrap()).send().wait().unwrap();
    for day in 0..365_u64 {
        bench.clock.advance(DAY);
        match day % 60 {
            20 => bench.step(-1_234),
            21 => bench.step(1_234),
            40 => {
                bench.clock.suspend(5 * HOUR);
                bench.step(-5 * 3_600); // the clock was wrong after the suspend
            }
            50 => {
                // An update of the zone data: here, the same data read again.
                let schedule = berlin.clone().build_in(&Zones::bundled()).unwrap();
                let _ = bench.scheduler.reschedule("nightly", schedule).wait().unwrap();
            }
            _ => {}
        }
    }
    let nightly = nominals(&bench, "nightly");
    let due: Vec<SystemTime> =
        expected.after(wall(-1)).map(|run| run.nominal()).take_while(|&t| t <= wall(365 * 86_400)).collect();
    assert_eq!(nightly, due, "each night once");
    for key in ["often", "hourly"] {
        let nominals = nominals(&bench, key);
        assert!(nominals.windows(2).all(|pair| pair[0] < pair[1]), "{key}");
    }
    assert!((365 * 24 - 30..=365 * 24 + 40).contains(&nominals(&bench, "hourly").len()));
    assert!((365 * 12 - 3..=365 * 12 + 3).contains(&nominals(&bench, "often").len()));
}
