//! The list of tests that every store must pass.
//!
//! Ground rules. A [`Rig`] makes an empty store and moves its clock. Each test drives the store
//! directly, without a scheduler. A test waits for a reply, on any thread, so blocking and async
//! stores pass as well. [`conformance!`] makes a test of each function.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use timerqueue_scheduler::store::{
    Advance, Applied, Claim, Claimed, ClaimedJob, Held, MAX_KEY_BYTES, MAX_PAYLOAD_BYTES, Micros, Mutation, NewJob,
    Notice, Occurrence, Op, Reply, Room, Scan, Scanned, Settle, Step, Store, Verdict, When,
};
use timerqueue_scheduler::{
    Cancel, Change, Clash, Counts, JobId, JobInfo, Overlap, Placed, Query, Recurrence, Revive, Schedule, State,
};

/// An empty store, and its clock.
pub(crate) trait Rig: Sized {
    type Store: Store;

    /// By how much later a store may tell one of several claimers to look (L18).
    const APART: Duration = Duration::ZERO;

    /// Some operations run in transactions of the user's.
    const JOINS: bool = false;

    /// Whether this machine has what the store needs.
    fn is_here() -> bool {
        true
    }

    fn new() -> Self;
    /// One that does nothing on real time: no lease ends, and no done job is removed with its time.
    fn still() -> Self {
        Self::new()
    }
    fn store(&self) -> &Self::Store;
    /// Applies an operation in a transaction of the user's, if there is such a one.
    fn join(&self, _op: &Op) -> Option<Applied> {
        None
    }

    /// The store's clock shows this instant from now on.
    fn set_clock(&self, at: Micros);
}

/// 2026-01-01T00:00:00Z.
const BEGIN: i64 = 1_767_225_600_000_000;

/// A store whose clock shows `BEGIN`, and short words for its calls.
pub(crate) struct Bench<R: Rig> {
    rig: R,
}

fn at(second: i64) -> Micros {
    Micros::new(BEGIN + second * 1_000_000)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl<R: Rig> Bench<R> {
    fn new() -> Self {
        Self::on(R::new())
    }

    fn on(rig: R) -> Self {
        rig.set_clock(at(0));
        Self { rig }
    }

    fn clock(&self, second: i64) {
        self.rig.set_clock(at(second));
    }

    fn apply(&self, ops: Vec<Op>) -> Vec<Applied> {
        let (send, receive) = mpsc::channel();
        self.rig.store().apply(ops, Reply::new(move |applied| send.send(applied).unwrap()));
        receive.recv().unwrap().unwrap()
    }

    fn one(&self, op: Op) -> Applied {
        if let Some(applied) = self.rig.join(&op) {
            return applied;
        }
        self.apply(vec![op])[0]
    }

    fn put(&self, key: &str, when: When) -> Applied {
        self.one(put(key, when))
    }

    fn change(&self, key: &str, mutation: Mutation) -> Applied {
        self.one(Op::Key { key: key.into(), mutation })
    }

    fn claim_as(&self, owner: u64, rooms: &[(&str, usize)], at_most: usize) -> Claimed {
        let rooms = rooms.iter().map(|&(name, places)| Room { name: name.into(), places }).collect();
        let (send, receive) = mpsc::channel();
        let reply = Reply::new(move |claimed| send.send(claimed).unwrap());
        self.rig.store().claim(Claim { owner, rooms, at_most }, reply);
        receive.recv().unwrap().unwrap()
    }

    fn claim(&self) -> Claimed {
        self.claim_as(1, &[("h", 100)], 100)
    }

    /// The keys of the jobs that are claimed now.
    fn due(&self) -> Vec<String> {
        keys(&self.claim().jobs)
    }

    fn settle(&self, job: &ClaimedJob, verdict: Verdict) -> Applied {
        self.one(settle(job.held, verdict))
    }

    /// The end of a run, and a claim for its place.
    fn settle_and_take(&self, job: &ClaimedJob, verdict: Verdict) -> Option<ClaimedJob> {
        let rooms = vec![Room { name: Arc::clone(&job.name), places: 1 }];
        let place = Claim { owner: job.held.owner, rooms, at_most: 1 };
        let (send, receive) = mpsc::channel();
        let reply = Reply::new(move |settled| send.send(settled).unwrap());
        self.rig.store().settle(settle(job.held, verdict), place, reply);
        let settled = receive.recv().unwrap().unwrap();
        assert_eq!(settled.applied, [Applied::Held(true)]);
        settled.next
    }

    fn scan(&self, scan: Scan) -> Scanned {
        let (send, receive) = mpsc::channel();
        self.rig.store().scan(scan, Reply::new(move |scanned| send.send(scanned).unwrap()));
        receive.recv().unwrap().unwrap()
    }

    fn list(&self, query: Query) -> Vec<JobInfo> {
        match self.scan(Scan::List(query)) {
            Scanned::Jobs(jobs) => jobs,
            _ => panic!("a list"),
        }
    }

    fn get(&self, key: &str) -> Option<JobInfo> {
        match self.scan(Scan::Get(key.into())) {
            Scanned::Jobs(jobs) => jobs.into_iter().next(),
            _ => panic!("a job"),
        }
    }

    fn counts(&self) -> Counts {
        match self.scan(Scan::Counts) {
            Scanned::Counts(counts) => counts,
            _ => panic!("counts"),
        }
    }

    /// A recurring job whose first occurrence is at this second.
    fn put_recurring(&self, key: &str, overlap: Overlap, first: i64) -> Applied {
        let schedule = Schedule::every(secs(10)).build().unwrap();
        let recurrence = Recurrence { schedule, catchup: Default::default(), grace: None, overlap };
        let mut new = new_job(key, When::At(at(first)));
        (new.recurrence, new.first) = (Some(Box::new(recurrence)), Some(occurrence(first)));
        self.one(Op::Put(Box::new(new)))
    }

    /// Looks at the one recurring job that is due: puts runs at these seconds, and waits for the
    /// next.
    fn advance(&self, runs: &[i64], next: i64) -> Applied {
        let claimed = self.claim_as(1, &[("h", 0)], 100);
        assert_eq!(claimed.schedules.len(), 1);
        let row = &claimed.schedules[0];
        self.one(advance(row.id, row.version, runs, Some(next)))
    }
}

fn keys(jobs: &[ClaimedJob]) -> Vec<String> {
    jobs.iter().map(|job| job.key.to_string()).collect()
}

fn new_job(key: &str, when: When) -> NewJob {
    NewJob {
        key: key.into(),
        name: "h".into(),
        payload: "null".into(),
        group: None,
        priority: 0,
        trace: None,
        after: None,
        expires: None,
        terms: Default::default(),
        when,
        recurrence: None,
        first: None,
        span: None,
        clash: Clash::Refuse,
        refuse_overdue: false,
    }
}

fn put(key: &str, when: When) -> Op {
    Op::Put(Box::new(new_job(key, when)))
}

fn put_over(key: &str, clash: Clash) -> Op {
    Op::Put(Box::new(NewJob { clash, ..new_job(key, When::At(at(0))) }))
}

fn settle(held: Held, verdict: Verdict) -> Op {
    Op::Settle(Box::new(Settle { held, verdict, record: None }))
}

fn occurrence(second: i64) -> Occurrence {
    Occurrence { nominal: at(second), due: at(second) }
}

fn advance(id: JobId, version: u64, runs: &[i64], next: Option<i64>) -> Op {
    let step = next.map_or(Step::Ended, |next| Step::At { next: occurrence(next), span: None });
    let runs: Vec<Occurrence> = runs.iter().map(|&run| occurrence(run)).collect();
    Op::Advance(Box::new(Advance { id, version, step, last: runs.last().map(|run| run.nominal), runs, missed: 0 }))
}

fn placed(applied: Applied) -> Placed {
    match applied {
        Applied::Placed(placed) => placed,
        other => panic!("a put: {other:?}"),
    }
}

const ADDED: fn(Applied) -> JobId = |applied| placed(applied).added().expect("added");

mod activity;
mod claims;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
mod differential;
mod edits;
mod follow;
mod groups;
mod history;
mod keys;
mod limits;
mod nodes;
mod priorities;
mod recurring;
mod terms;

pub(crate) use activity::*;
pub(crate) use claims::*;
#[cfg(all(feature = "postgres", unix))]
pub(crate) use differential::random_jobs;
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(crate) use differential::random_programs;
pub(crate) use edits::*;
pub(crate) use follow::*;
pub(crate) use groups::*;
pub(crate) use history::*;
pub(crate) use keys::*;
pub(crate) use limits::*;
pub(crate) use nodes::*;
pub(crate) use priorities::*;
pub(crate) use recurring::*;
pub(crate) use terms::*;

/// The tests, for a rig.
macro_rules! conformance {
    ($rig:ty) => {
        crate::conformance::conformance!(@each $rig:
            a_job_is_claimed_at_its_due_time_and_not_before
            due_jobs_come_in_order_of_due_time_then_of_their_puts
            a_duration_is_added_to_the_clock_of_the_commit
            a_due_time_that_has_passed_means_now
            a_claim_tells_the_next_wake_instant
            a_claim_takes_no_more_than_the_places
            rows_of_full_paused_and_unknown_handlers_are_passed_over
            a_settled_job_is_gone_and_its_key_free
            a_retry_and_another_run_wait
            a_dead_job_is_kept_and_its_key_is_free
            a_revived_job_needs_its_key
            a_late_settle_is_refused
            the_end_of_a_run_may_give_its_place_to_the_first_due_job
            an_unrun_attempt_does_not_count
            a_taken_key_is_an_answer
            a_replaced_job_never_starts
            a_replaced_run_goes_on_without_its_key
            cancel_says_what_it_found
            a_cancelled_run_is_not_repeated
            a_moved_job_is_due_at_its_new_time_alone
            a_paused_job_is_in_no_index
            a_paused_handler_is_not_looked_at
            an_overdue_job_is_refused_on_request
            a_commit_applies_its_operations_in_order
            a_notice_follows_each_earlier_wake_instant
            a_cancelled_run_is_noticed
            an_occurrence_is_put_once
            overlap_skip_puts_no_second_run
            j19_an_occurrence_ends_the_wait_of_a_failed_run
            j19_a_failed_run_of_a_fixed_delay_waits_no_longer_than_the_delay
            overlap_queue_one_holds_one_run_back
            overlap_allow_puts_runs_side_by_side
            several_missed_occurrences_run_one_after_another
            a_revived_run_waits_in_the_order_of_puts
            an_ended_schedule_leaves_with_its_last_run
            a_cancelled_schedule_takes_its_waiting_runs_along
            a_paused_schedule_is_not_looked_at
            run_now_of_a_schedule_respects_overlap
            a_rescheduled_job_waits_for_a_look
            the_same_schedule_again_changes_nothing
            an_update_keeps_cursor_and_runs
            a_realigned_schedule_goes_on_from_now
            a_retry_after_a_step_back_waits_its_time_only
            a_look_ends_after_a_step_back
            a_step_back_is_noticed_by_the_next_commit
            j9_a_row_that_comes_after_a_claim_has_noticed_the_step_is_found
            a_fixed_delay_begins_at_the_end_of_its_run
            j9_no_schedule_is_looked_at_in_a_year_beyond_schedules
            a_failed_rule_makes_a_dead_job
            a_run_has_one_identity_over_its_attempts
            limits_of_keys_and_names
            limits_of_payloads
            limits_of_instants
            lists_are_filtered_and_paged
            counts_by_handler_and_state
            bounded_counts_are_exact_or_say_that_there_are_more
            failing_jobs_are_listed_and_counted
            lists_begin_with_the_newest_on_request
            lists_begin_with_the_soonest_on_request
            lists_by_the_begin_of_a_key_have_each_job_with_it
            j17_ends_of_runs_are_counted_by_minute_and_handler
            j17_each_end_counts_once
            j17_a_week_is_kept
            j18_the_last_failed_attempts_are_kept
            j18_a_recurring_job_keeps_the_failures_of_its_runs
            m1_a_node_lives_from_its_start_to_its_end
            m2_jobs_of_a_group_go_to_one_member
            m2_a_member_without_the_handler_gets_no_group
            m2_no_place_is_given_on_while_a_group_waits_for_a_member
            m4_no_place_is_given_on_while_groups_of_a_gone_member_are_left
            m6_no_place_of_all_members_is_given_on_while_a_job_of_a_group_is_due
            m3_jobs_of_other_members_and_of_full_groups_are_in_no_ones_way
            m3_a_retry_and_a_move_keep_the_group
            m4_the_share_of_a_member_that_leaves_is_bound_again
            m5_a_group_moves_when_its_runs_have_ended
            m5_an_idle_group_is_forgotten_after_an_hour
            m5_a_group_is_not_forgotten_in_the_commit_that_puts_a_job_to_it
            m2_runs_of_a_recurring_job_have_its_group
            m6_runs_of_all_members_are_limited
            m7_jobs_of_a_group_run_one_after_another
            m8_a_rate_is_kept_over_all_members
            m6_m7_m8_limits_hold_where_places_are_given_on
            limits_of_groups
            j35_the_context_of_a_trace_goes_from_the_put_to_each_run
            j20_a_higher_priority_goes_before_the_due_time
            j20_a_step_of_priority_is_worth_an_hour
            j20_a_job_with_a_priority_waits_as_any_other
            j20_a_place_goes_to_the_highest_priority
            j20_runs_of_a_recurring_job_have_its_priority
            j21_a_job_does_not_begin_after_its_last_instant
            j21_no_attempt_begins_after_the_last_instant
            limits_of_priorities_and_last_instants
            j23_an_edited_job_runs_with_what_it_has_by_then
            j23_an_edit_of_a_priority_moves_the_job_among_the_others
            j23_runs_of_an_edited_schedule_are_as_it_says
            j23_terms_of_a_job_are_edited_one_by_one
            j23_a_change_by_number_changes_that_job_alone
            limits_of_edits
            a_job_shows_when_it_was_put_and_its_run_began
            a_run_shows_its_node
            j24_a_job_that_is_begun_at_most_once_has_one_begin
            j24_a_job_that_was_claimed_and_has_not_begun_may_begin
            j24_a_run_that_was_in_doubt_does_not_begin
            j24_runs_of_a_recurring_job_have_its_terms
            j25_a_job_has_its_own_attempts_and_limit
            j26_a_key_stays_taken_for_the_time_of_its_job
            j26_the_time_of_a_job_goes_before_that_of_its_handler
            j26_runs_of_a_recurring_job_take_no_key
            j26_a_taken_key_removes_no_other_done_job
            j30_a_done_job_is_kept_with_its_run_node_and_result
            j30_a_job_is_kept_only_where_it_is_asked_for
            j30_done_jobs_are_listed_by_handler_key_and_number
            j30_done_jobs_leave_after_their_time
            j30_a_done_job_whose_time_is_over_is_none_of_the_last_ones
            j30_the_last_done_jobs_of_a_handler_are_kept
            j30_keys_of_done_jobs_are_taken_for_a_time
            j30_a_key_is_taken_in_the_commit_of_its_end
            j31_a_run_leaves_its_progress_to_the_next_attempt
            j31_another_run_begins_without_progress
            j32_the_end_of_a_job_that_is_kept_is_told
            j36_a_job_begins_once_all_that_it_was_put_after_are_done
            j36_a_follower_waits_for_its_due_time_as_well
            j36_a_claim_is_told_of_a_follower_that_may_begin
            j36_each_end_counts_as_the_put_says
            j36_a_revived_predecessor_is_waited_for_again
            j36_a_blocked_job_is_dead_and_its_followers_with_it
            j36_a_follower_that_leaves_is_an_end_for_its_followers
            j36_nothing_is_put_after_a_job_that_is_not_there
            j36_jobs_of_one_commit_follow_each_other
            j36_a_follower_can_be_changed_while_it_waits
            j36_links_are_bounded
            j36_a_job_is_followed_while_thousands_run
            j36_a_follower_of_a_group_goes_to_its_member
            two_schedulers_never_get_the_same_job
        );
    };
    (@each $rig:ty: $($name:ident)*) => {
        $(#[test]
        fn $name() {
            if <$rig as crate::conformance::Rig>::is_here() {
                crate::conformance::$name::<$rig>();
            }
        })*
    };
}
pub(crate) use conformance;
