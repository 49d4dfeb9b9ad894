//! A campaign of text messages at given dates: removed and moved by key, sent in parts that keep
//! their progress.
//!
//! On virtual time, so that a month takes no time.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use timerqueue::{ManualClock, Runtime};
use timerqueue_scheduler::{Cancel, Change, Clash, Job, Placed, Query, Run, Scheduler};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Messages of one part.
const PART: u32 = 500;

#[derive(Serialize, Deserialize)]
struct SendSms {
    campaign: u64,
    sent: u32,
    amount: u32,
}

impl Job for SendSms {
    const NAME: &'static str = "send-sms";
}

/// Sends a part, and puts the rest a minute later: under the same key, so that the campaign can
/// still be stopped.
fn send(mut sms: SendSms, run: &Run) -> Result<(), timerqueue_scheduler::Error> {
    sms.sent += PART.min(sms.amount - sms.sent);
    println!("campaign {}: {} of {} sent", sms.campaign, sms.sent, sms.amount);
    if sms.sent < sms.amount {
        let rest = run.scheduler();
        let rest = rest.put(&sms).key(run.key()).due(Duration::from_secs(60)).clash(Clash::Replace);
        let _ = rest.send().wait()?;
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let begin = SystemTime::UNIX_EPOCH + 20_454 * DAY; // 2026-01-01
    clock.set_wall(begin);
    let runtime = Runtime::builder().manual_clock(&clock).start()?;
    let scheduler = Scheduler::builder().runtime(&runtime).on(send).start()?;

    for campaign in 1..=4_u32 {
        let sms = SendSms { campaign: campaign.into(), sent: 0, amount: 400 * campaign };
        let placed = scheduler.put(&sms).key(&format!("campaign/{campaign}")).due(begin + 7 * DAY).send().wait()?;
        assert!(matches!(placed, Placed::Added(_)));
    }
    // The customer thinks again.
    assert_eq!(scheduler.cancel("campaign/2").wait()?, Cancel::Cancelled);
    assert_eq!(scheduler.move_to("campaign/3", begin + 14 * DAY).wait()?, Change::Changed);
    let waiting = scheduler.list(Query::new().key_prefix("campaign/")).wait()?;
    assert_eq!(waiting.len(), 3);
    for job in &waiting {
        println!("{} on day {}", job.key, job.due.unwrap().duration_since(begin)?.as_secs() / DAY.as_secs());
    }

    clock.advance(7 * DAY + Duration::from_secs(90)); // in the middle of campaign 4
    assert_eq!(scheduler.cancel("campaign/4").wait()?, Cancel::Cancelled);
    clock.advance(30 * DAY);
    let stats = scheduler.stats().wait()?;
    assert_eq!(stats.done, 1 + 2 + 3, "campaign 1 in one part, two parts of campaign 4, campaign 3 in three parts");
    Ok(())
}
