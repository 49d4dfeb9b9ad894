//! Looks at recurring jobs with rules of users, and at schedules after new zone data. What a look
//! finds is computed by `store::rules::look`.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::core::Core;
use crate::store::rules::look;
use crate::store::{ClaimedSchedule, JobId, JobInfo, Micros, Mutation, Op, Reply, Scan, Scanned};
use crate::unwind::quietly;

/// The rows of a page.
const PAGE: usize = 256;

impl Core {
    /// A look at a job with a rule of the user's: on a thread of the pool, apart from claims, since
    /// the rule may block, panic, or close the scheduler. It happens also if the runtime has ended:
    /// no row stays without a look on a shared store.
    pub(super) fn look(self: &Arc<Self>, row: ClaimedSchedule, now: Micros, back: Duration) {
        let advance = look(&row, now, back);
        self.apply_surely(vec![Op::Advance(Box::new(advance))], |_, _| {});
        quietly(|| drop(row)); // maybe the last reference to the rule
    }

    /// Once after the start and once a day: schedules that by the zone data of now wait for another
    /// occurrence are looked at, page by page.
    pub(super) fn renew_zones(self: &Arc<Self>) {
        if !self.settings.handlers.is_empty() && !self.knows_zones.swap(true, Ordering::Relaxed) {
            for handler in &self.settings.handlers {
                self.renew_zones_behind(&handler.name, JobId(0));
            }
        }
    }

    fn renew_zones_behind(self: &Arc<Self>, name: &Arc<str>, after: JobId) {
        let (core, handler) = (Arc::clone(self), Arc::clone(name));
        let reply = Reply::new(move |scanned| {
            match scanned {
                Ok(Scanned::Jobs(page)) if page.is_empty() => {}
                Ok(Scanned::Jobs(page)) => core.aside(move |core| core.renew_page(&handler, &page)),
                // The next claim asks again.
                _ => core.knows_zones.store(false, Ordering::Relaxed),
            }
        });
        self.store.scan(Scan::Zoned { name: Arc::clone(name), after, limit: PAGE }, reply);
    }

    fn renew_page(self: &Arc<Self>, name: &Arc<str>, page: &[JobInfo]) {
        if self.closing.is_cancelled() || self.runtime.is_shut_down() {
            return;
        }
        let (now, last) = (self.store_now(), page.last().map(|job| job.id));
        let elsewhere = page.iter().filter(|job| job.waits_elsewhere(now));
        let looks: Vec<_> =
            elsewhere.map(|job| Op::Key { key: Arc::clone(&job.key), mutation: Mutation::Look }).collect();
        let name = Arc::clone(name);
        let go_on = move |core: &Arc<Self>| {
            if let Some(last) = last {
                core.renew_zones_behind(&name, last);
            }
        };
        match looks.is_empty() {
            true => go_on(self),
            false => self.apply_surely(looks, move |core, _| go_on(core)),
        }
    }
}
