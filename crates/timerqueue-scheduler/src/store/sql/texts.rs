//! The statements that file and server have in common.

use crate::store::columns::{joined, read_names};

/// The places and numbers of jobs in the order of due times, from their index, their place and
/// their condition. The rows of a file stand in the order of the index, and those beyond the sixth
/// parameter are not wanted.
macro_rules! places {
    (file $index:literal, $due:literal, $condition:literal) => {
        concat!(
            "SELECT ",
            $due,
            ", job.id FROM timerqueue_jobs AS job INDEXED BY timerqueue_",
            $index,
            " WHERE ",
            $condition,
            " AND ($1 IS NULL OR job.handler = $1) AND ($2 IS NULL OR substr(job.key, 1, length($2)) = $2) AND (",
            $due,
            ", job.id) > ($3, $4) AND ",
            $due,
            " <= ?6 ORDER BY ",
            $due,
            ", job.id LIMIT ?5"
        )
    };
    (server $due:expr, $condition:literal) => {
        concat!(
            "SELECT ",
            $due,
            ", job.id FROM jobs AS job WHERE ",
            $condition,
            " AND ($1::text IS NULL OR job.handler = (SELECT id FROM handlers WHERE name = $1)) \
             AND ($2::text IS NULL OR starts_with(job.key, $2)) AND (",
            $due,
            ", job.id) > ($3::bigint, $4::bigint) ORDER BY 1, 2 LIMIT $5"
        )
    };
}

/// When a recurring job is due next, on a server. A text that is no JSON has no occurrence. A
/// regular expression for the whole text takes some ten times as long as these parts of it.
#[cfg(feature = "postgres")]
macro_rules! next_due {
    () => {
        "coalesce((SELECT CASE WHEN part.at <> '' AND length(part.at) < 19 AND translate(part.at, '0123456789', '') = '' \
         THEN part.at::bigint END FROM (SELECT split_part(split_part(split_part(replace(job.recurring, ' ', ''), '\"next\":[', 2), \
         ']', 1), ',', 2) AS at) AS part), 9223372036854775807)"
    };
}
#[cfg(feature = "postgres")]
pub(in crate::store) use next_due;

/// Counts of minutes are added up.
macro_rules! add_up {
    ($max:literal) => {
        concat!(
            " DO UPDATE SET done = one.done + excluded.done, again = one.again + excluded.again, failed = one.failed + excluded.failed, \
             died = one.died + excluded.died, expired = one.expired + excluded.expired, late0 = one.late0 + excluded.late0, \
             late1 = one.late1 + excluded.late1, late2 = one.late2 + excluded.late2, late3 = one.late3 + excluded.late3, \
             late4 = one.late4 + excluded.late4, late5 = one.late5 + excluded.late5, late6 = one.late6 + excluded.late6, \
             late7 = one.late7 + excluded.late7, late8 = one.late8 + excluded.late8, late9 = one.late9 + excluded.late9, \
             late10 = one.late10 + excluded.late10, late11 = one.late11 + excluded.late11, longest = ",
            $max,
            "(one.longest, excluded.longest)"
        )
    };
}

/// What the two spell in different ways: in a file, and on a server.
macro_rules! spellings {
    ($d:tt $($name:ident: $file:tt | $server:tt,)+) => {
        macro_rules! spelled {
            $((file $name) => { $file }; (server $name) => { $server };)+
            ($d where:ident $d text:literal) => { $d text };
        }
    };
}

spellings! { $
    groups: "timerqueue_affinities" | "affinities",
    handlers: "timerqueue_handlers" | "handlers",
    jobs: "timerqueue_jobs" | "jobs",
    members: "timerqueue_members" | "members",
    minutes: "timerqueue_minutes" | "minutes",
    finished: "timerqueue_finished" | "finished",
    links: "timerqueue_links" | "links",
    put_finished: "INSERT OR REPLACE INTO timerqueue_finished" | "INSERT INTO finished",
    // A number that a past has given which a copy has taken the place of.
    once: "" | " ON CONFLICT (id) DO NOTHING",
    done: "SELECT one.id, one.key, handler.name, one.payload, one.ended, one.last, one.node, one.result, one.seq \
         FROM timerqueue_finished AS one JOIN timerqueue_handlers AS handler ON handler.id = one.handler WHERE" |
        "SELECT one.id, one.key, handler.name, one.payload, one.ended, one.last, one.node, one.result, one.seq \
         FROM finished AS one JOIN handlers AS handler ON handler.id = one.handler WHERE",
    any_key: "$2 IS NULL" | "$2::text IS NULL",
    any_handler: "$3 IS NULL" | "$3::text IS NULL",
    key_begins: "substr(one.key, 1, length($2)) = $2" | "starts_with(one.key, $2)",
    // A file has no locks of rows: its writers come one after another.
    lock: "" | " FOR UPDATE",
    lock_but_for_references: "" | " FOR NO KEY UPDATE",
    skip: "" | " FOR UPDATE SKIP LOCKED",
    // Transactions meet in the same order.
    in_order: "" | " ORDER BY id",
    // Indexes are found by the words of their conditions.
    is: " = 1" | "",
    not_dead: "dead = 0" | "NOT dead",
    runs: "job.process IS NOT NULL AND job.state = 2" | "job.state = 2",
    by_process: " INDEXED BY timerqueue_held" | "",
    no_process: ", process = NULL" | "",
    // Numbers of a list, which is the first value.
    among: " IN (SELECT value FROM json_each($1))" | " = ANY($1::bigint[])",
    numbers: "SELECT value FROM json_each($1) AS one" | "SELECT value FROM unnest($1::bigint[]) AS one (value)",
    // A member that closes.
    gone: "dead" | "(dead OR leaving)",
    is_there: "dead = 0" | "NOT (dead OR leaving)",
    until: "NULL" | "until",
    // A job for people: its columns, the node that runs it, and its handler.
    infos: (joined!([
        "SELECT ",
        read_names!(File, "job."),
        ", CASE WHEN job.state = 2 THEN (SELECT id FROM timerqueue_members AS m WHERE m.owner = job.owner AND m.dead = 0) END, \
         handler.name FROM timerqueue_jobs AS job"
    ])) | (joined!([
        "SELECT ",
        read_names!(Server, "job."),
        ", CASE WHEN job.state = 2 THEN (SELECT m.id FROM members AS m WHERE m.owner = job.owner AND NOT m.dead LIMIT 1) END, \
         handler.name FROM jobs AS job"
    ])),
    with_handler: " JOIN timerqueue_handlers AS handler ON handler.id = job.handler WHERE " |
        " JOIN handlers AS handler ON handler.id = job.handler WHERE ",
    asked: " AND ($2 IS NULL OR job.state = $2) AND ($3 IS NULL OR handler.name = $3) \
         AND ($4 IS NULL OR substr(job.key, 1, length($4)) = $4) ORDER BY job.id" |
        " AND ($2::bigint IS NULL OR job.state = $2) AND ($3::text IS NULL OR handler.name = $3) \
         AND ($4::text IS NULL OR starts_with(job.key, $4)) ORDER BY job.id",
    by_failing: " INDEXED BY timerqueue_failing_list" | "",
    by_queued: " INDEXED BY timerqueue_queued_list" | "",
    by_dead: " INDEXED BY timerqueue_dead_list" | "",
    by_death: " INDEXED BY timerqueue_dead" | "",
    by_recurring: " INDEXED BY timerqueue_recurring" | "",
    // On a server the numbers come from the index of recurring rows that wait.
    zoned: "handler.name = $1 AND job.id > $2 AND job.state = 4 AND job.paused = 0 AND job.recurring LIKE '%\"zone\":\"%' \
         ORDER BY job.id LIMIT $3" |
        "job.id = ANY(ARRAY(SELECT j.id FROM jobs j WHERE j.handler = (SELECT id FROM handlers WHERE name = $1) AND j.recurs \
         AND j.wake IS NOT NULL AND j.id > $2 AND j.recurring ~ '\"zone\": ?\"' ORDER BY j.id + 0 LIMIT $3)) ORDER BY job.id",
    waiting: "waiting" | "1",
    hold: "timerqueue_hold" | "hold",
    last_id: "last_id FROM timerqueue_store" | "CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM ids",
    // Each writer of a server adds to rows under its name: no node waits for another's commit.
    of_connection: "" | ", connection",
    connection: "" | ", $21",
    add_up: (add_up!("max")) | (add_up!("greatest")),
    old_minutes: "minute <= $1" | "ctid IN (SELECT ctid FROM minutes WHERE minute <= $1 FOR UPDATE SKIP LOCKED)",
    // A sum has more digits than a number.
    as_number: "" | "::bigint",
}

/// A statement: of pieces, or what file and server have each.
macro_rules! text {
    ($of:tt [$($piece:tt)+]) => { joined!([$(spelled!($of $piece)),+]) };
    (file $file:tt | $server:tt) => { $file };
    (server $file:tt | $server:tt) => { $server };
}

macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident: $file:tt $(| $server:tt)?,)+) => {
        /// Statements, by their names.
        pub(in crate::store) struct Texts {
            $($(#[$doc])* pub(in crate::store) $name: &'static str,)+
        }

        #[cfg(feature = "sqlite")]
        pub(in crate::store) const FILE: Texts = Texts { $($name: text!(file $file $(| $server)?),)+ };
        /// Those of a file, for a look at their plans.
        #[cfg(all(test, feature = "sqlite"))]
        pub(in crate::store) const OF_FILE: &[&str] = &[$(FILE.$name),+];
        #[cfg(feature = "postgres")]
        pub(in crate::store) const SERVER: Texts = Texts { $($name: text!(server $file $(| $server)?),)+ };
    };
}

texts! {
    /// The first row with a wake instant of a handler.
    first: ["SELECT wake, id FROM " jobs " WHERE handler = $1 AND recurs = $2 AND wake IS NOT NULL ORDER BY wake, id LIMIT 1"],
    /// The first job with a priority other than zero.
    first_of_priority: [
        "SELECT apart, id FROM " jobs " WHERE handler = $1 AND priority = $2 AND priority <> 0 AND state = 0 \
         AND affinity_id IS NULL AND apart IS NOT NULL ORDER BY apart, id LIMIT 1"
    ],
    behind: ["SELECT id FROM " jobs " WHERE earliest > $1 ORDER BY earliest DESC LIMIT $2"],
    /// The runs of recurring jobs.
    runs: ["SELECT parent, id, state FROM " jobs " WHERE parent" among " AND state <> 3 ORDER BY id"],
    rewrite: ["UPDATE " jobs " SET handler = $1, payload = $2, affinity_id = $3, affinity = $4 WHERE id = $5"],
    bury: ["UPDATE " jobs " SET state = 3, wake = NULL, earliest = NULL, holds_key = false, lease = NULL" no_process ", died = $1, error = $2 WHERE id = $3"],
    discard: ["DELETE FROM " jobs " WHERE id = $1 AND state = 3 RETURNING handler"],
    /// The death so many deaths ago.
    death: ["SELECT died FROM " jobs by_death " WHERE state = 3 ORDER BY died DESC LIMIT 1 OFFSET $1"],
    dead: ["SELECT id FROM " jobs by_death " WHERE state = 3 AND died <= $1 ORDER BY died LIMIT 1"],
    /// Keeps a done job.
    finish: [
        put_finished " (id, key, handler, payload, ended, last, node, result, keep_until, key_until) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)" once
    ],
    /// Removes done jobs whose time is over. On a server a walk has a begin, and the answer is what
    /// sets the cursor; so with those of the next one.
    finished_over: "DELETE FROM timerqueue_finished WHERE id IN (SELECT id FROM timerqueue_finished WHERE keep_until <= $1 \
         ORDER BY keep_until LIMIT $2)" |
        "WITH gone AS (DELETE FROM finished WHERE id = ANY(ARRAY(SELECT id FROM finished WHERE keep_until BETWEEN $3 AND $1 \
         ORDER BY keep_until LIMIT $2 FOR UPDATE SKIP LOCKED))) \
         SELECT (SELECT keep_until FROM finished WHERE keep_until BETWEEN $3 AND $1 ORDER BY keep_until LIMIT 1), \
         pg_snapshot_xmin(pg_current_snapshot())::text::bigint",
    /// Removes done jobs of a handler beyond the most, from among the oldest ones.
    finished_surplus: "DELETE FROM timerqueue_finished WHERE id IN (SELECT id FROM timerqueue_finished WHERE handler = $1 AND seq <= \
         (SELECT seq FROM timerqueue_finished WHERE handler = $1 ORDER BY seq DESC LIMIT 1 OFFSET $2) ORDER BY seq LIMIT $3) \
         AND key_until <= $4" |
        "WITH gone AS (DELETE FROM finished WHERE key_until <= $4 AND id = ANY(ARRAY(SELECT id FROM finished WHERE handler = $1 \
         AND seq BETWEEN $5 AND (SELECT seq FROM finished WHERE handler = $1 ORDER BY seq DESC LIMIT 1 OFFSET $2) \
         ORDER BY seq LIMIT $3 FOR UPDATE SKIP LOCKED))) \
         SELECT seq, pg_snapshot_xmin(pg_current_snapshot())::text::bigint, clock() FROM finished WHERE handler = $1 AND seq >= $5 \
         ORDER BY seq LIMIT 1",
    /// Done jobs behind a number, the last ones first, and the first ones first.
    done_last: [done " one.seq < $1 AND (" any_key " OR " key_begins ") ORDER BY one.seq DESC LIMIT $3"],
    done_first: [done " one.seq > $1 AND (" any_key " OR " key_begins ") ORDER BY one.seq LIMIT $3"],
    /// Of a handler.
    done_last_of: [
        done " one.seq < $1 AND (" any_key " OR " key_begins ") AND one.handler = (SELECT id FROM " handlers " WHERE name = $3) \
         ORDER BY one.seq DESC LIMIT $4"
    ],
    done_first_of: [
        done " one.seq > $1 AND (" any_key " OR " key_begins ") AND one.handler = (SELECT id FROM " handlers " WHERE name = $3) \
         ORDER BY one.seq LIMIT $4"
    ],
    /// Of a key, and perhaps a handler.
    done_last_with: [done " one.key = $1 AND one.seq < $2 AND (" any_handler " OR handler.name = $3) ORDER BY one.seq DESC LIMIT $4"],
    done_first_with: [done " one.key = $1 AND one.seq > $2 AND (" any_handler " OR handler.name = $3) ORDER BY one.seq LIMIT $4"],
    done_job: [done " one.id = $1"],
    /// The last one of the done jobs with a key.
    done_with: ["SELECT id FROM " finished " WHERE key = $1 ORDER BY seq DESC LIMIT 1"],
    /// A dead job with a key, behind a number.
    died_after: ["SELECT id FROM " jobs " WHERE key = $1 AND state = 3 AND id > $2 LIMIT 1"],
    /// How many links a predecessor has, and the links of a follower.
    followers: ["SELECT count(*) FROM " links " WHERE predecessor = $1"],
    predecessors: ["SELECT predecessor, key, ended FROM " links " WHERE follower = $1 ORDER BY predecessor"],
    // On a server walks have begins. Of runs, the first ones come along: one more than the cursor
    // passes by (`LONG`). Those below it are found by their numbers first: with the other
    // conditions, the server would read the index of all jobs of groups.
    counted: "SELECT count(*) FROM timerqueue_jobs WHERE handler = $1 AND state = 2 AND counted = 1" |
        "SELECT count(*), (array_agg(id ORDER BY begun, id))[:17], (array_agg(begun ORDER BY begun, id))[:17], \
         pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM ( \
         (SELECT id, begun FROM jobs WHERE handler = $1 AND state + 0 = 2 AND counted AND begun >= $2 ORDER BY begun) UNION ALL \
         SELECT id, begun FROM (SELECT * FROM jobs WHERE id = ANY($3::bigint[]) OFFSET 0) AS long \
         WHERE handler = $1 AND state = 2 AND counted AND begun < $2) AS run",
    handler: ["INSERT INTO " handlers " (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id, paused"],
    pause: ["UPDATE " handlers " SET paused = $1 WHERE id = $2"],
    /// Claims of a limited handler come one after another.
    full_at: ["SELECT full_at FROM " handlers " WHERE id = $1" lock_but_for_references],
    set_full_at: ["UPDATE " handlers " SET full_at = $1 WHERE id = $2"],
    members: ["SELECT id, " gone ", name, handlers FROM " members " ORDER BY id"],
    member: ["SELECT id FROM " members " WHERE owner = $1 AND " not_dead],
    bound_to: ["SELECT count(*) FROM " groups " WHERE member = $1"],
    group_named: ["SELECT id FROM " groups " WHERE handler = $1 AND affinity = $2"],
    add_group: ["INSERT INTO " groups " (handler, affinity, idle) VALUES ($1, $2, $3) ON CONFLICT (handler, affinity) DO NOTHING RETURNING id"],
    group: ["SELECT id, handler, affinity, member, next, version, most FROM " groups " WHERE id = $1" lock],
    change_group: ["UPDATE " groups " SET member = $1, next = $2, version = $3, most = $4 WHERE id = $5"],
    running_of: ["SELECT count(*) FROM " jobs " WHERE affinity_id = $1 AND state = 2"],
    first_of: ["SELECT apart, id FROM " jobs " WHERE affinity_id = $1 AND state = 0 AND apart IS NOT NULL ORDER BY apart, id LIMIT 1"],
    /// What a group is settled by: its head as it stands, its runs, its first wake instant, whether
    /// it has a job, whether its member and the next one live, and whether it has stood without
    /// jobs.
    facts: "SELECT a.id, handler, affinity, member, next, version, most, head, \
         (SELECT count(*) FROM timerqueue_jobs j WHERE j.affinity_id = a.id AND j.state = 2), \
         (SELECT min(j.apart) FROM timerqueue_jobs j WHERE j.affinity_id = a.id AND j.state = 0 AND j.apart IS NOT NULL), \
         EXISTS (SELECT 1 FROM timerqueue_jobs j WHERE j.affinity_id = a.id), \
         EXISTS (SELECT 1 FROM timerqueue_members m WHERE m.id = a.member AND m.dead = 0), \
         EXISTS (SELECT 1 FROM timerqueue_members m WHERE m.id = a.next AND m.dead = 0), idle IS NOT NULL \
         FROM timerqueue_affinities a WHERE a.id IN (SELECT value FROM json_each($1))" |
        "SELECT a.id, a.handler, a.affinity, a.member, a.next, a.version, a.most, filed.head, runs.number, waiting.first, \
         CASE WHEN waiting.first IS NOT NULL OR runs.number > 0 THEN true ELSE EXISTS (SELECT FROM jobs j \
         WHERE j.affinity_id = a.id AND j.state = 0 AND j.apart IS NULL) OR EXISTS (SELECT FROM jobs j \
         WHERE j.affinity_id = a.id AND j.state = 1) OR EXISTS (SELECT FROM jobs j WHERE j.affinity_id = a.id AND j.state > 2) END, \
         EXISTS (SELECT FROM members m WHERE m.id = a.member AND NOT (m.dead OR m.leaving)), \
         EXISTS (SELECT FROM members m WHERE m.id = a.next AND NOT (m.dead OR m.leaving)), filed.idle IS NOT NULL, \
         runs.ids, runs.begins, waiting.later, pg_snapshot_xmin(pg_current_snapshot())::text::bigint \
         FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS walk (id, low, ran) JOIN affinities a ON a.id = walk.id \
         LEFT JOIN LATERAL (SELECT head, idle FROM heads h WHERE h.id = walk.id ORDER BY h.stamp DESC LIMIT 1) AS filed ON true \
         CROSS JOIN LATERAL (SELECT count(*) AS number, (array_agg(id ORDER BY begun, id))[:17] AS ids, \
         (array_agg(begun ORDER BY begun, id))[:17] AS begins FROM ((SELECT j.id, j.begun FROM jobs j \
         WHERE j.affinity_id = walk.id AND j.state + 0 = 2 AND j.begun >= walk.ran ORDER BY j.begun) UNION ALL \
         SELECT j.id, j.begun FROM (SELECT * FROM jobs WHERE id = ANY(ARRAY(SELECT long.run FROM unnest($4::bigint[], $5::bigint[]) \
         AS long (tie, run) WHERE long.tie = walk.id)) OFFSET 0) AS j WHERE j.affinity_id = walk.id AND j.state = 2 AND j.begun < walk.ran) AS run) AS runs \
         CROSS JOIN LATERAL (SELECT least(later, early) AS first, later FROM (SELECT \
         (SELECT apart FROM jobs j WHERE j.affinity_id = walk.id AND j.state = 0 AND j.apart >= walk.low ORDER BY j.apart LIMIT 1) AS later, \
         (SELECT apart FROM jobs j WHERE j.early AND j.affinity_id = walk.id AND j.apart < walk.low \
         ORDER BY j.apart LIMIT 1) AS early) AS two) AS waiting",
    /// Writes the head of a group, and whether it has a job.
    // On a server heads and idle times stand in a table of their own, and a walk has a begin.
    settle: "UPDATE timerqueue_affinities SET head = $1, idle = CASE WHEN $2 THEN NULL ELSE coalesce(idle, $3) END WHERE id = $4" |
        "SELECT set_head($4, $1, $2, $3)",
    /// Groups of members that are gone, without runs.
    unbound: [
        "SELECT id FROM " groups " AS one WHERE member IN (SELECT id FROM " members " WHERE " gone ") AND NOT EXISTS \
         (SELECT 1 FROM " jobs " AS job WHERE job.affinity_id = one.id AND job.state = 2)" in_order " LIMIT $1" skip
    ],
    forget_members: [
        "DELETE FROM " members " WHERE id IN (SELECT id FROM " members " AS m WHERE dead" is " AND NOT EXISTS \
         (SELECT 1 FROM " groups " AS one WHERE one.member = m.id)" skip ")"
    ],
    /// The begin of a statement for jobs for people.
    infos: [infos],
    /// Jobs for people: the one that holds a key, the last dead one of a key, one with a number,
    /// some with numbers.
    job_with: [infos with_handler "job.key = $1 AND job.holds_key" is],
    dead_with: [infos with_handler "job.key = $1 AND job.state = 3 ORDER BY job.died DESC LIMIT 1"],
    job: [infos with_handler "job.id = $1"],
    jobs: [infos with_handler "job.id" among],
    /// Of these numbers, those of jobs that are dead or have left.
    ended: [numbers " WHERE NOT EXISTS (SELECT 1 FROM " jobs " AS job WHERE job.id = one.value AND job.state <> 3)"],
    /// Recurring jobs of a handler whose schedules have a time zone.
    zoned: [infos by_recurring with_handler zoned],
    /// Jobs in the order of their numbers, and backwards: all, and those of an index that has few.
    list: [infos with_handler "job.id > $1" asked " LIMIT $5"],
    list_back: [infos with_handler "job.id < $1" asked " DESC LIMIT $5"],
    list_failing: [infos by_failing with_handler "job.state = 0 AND job.error IS NOT NULL AND job.id > $1" asked " LIMIT $5"],
    list_failing_back: [infos by_failing with_handler "job.state = 0 AND job.error IS NOT NULL AND job.id < $1" asked " DESC LIMIT $5"],
    list_queued: [infos by_queued with_handler "job.state = 1 AND job.id > $1" asked " LIMIT $5"],
    list_queued_back: [infos by_queued with_handler "job.state = 1 AND job.id < $1" asked " DESC LIMIT $5"],
    list_running: [infos by_process with_handler runs " AND job.id > $1" asked " LIMIT $5"],
    list_running_back: [infos by_process with_handler runs " AND job.id < $1" asked " DESC LIMIT $5"],
    list_dead: [infos by_dead with_handler "job.state = 3 AND job.id > $1" asked " LIMIT $5"],
    list_dead_back: [infos by_dead with_handler "job.state = 3 AND job.id < $1" asked " DESC LIMIT $5"],
    list_recurring: [infos by_recurring with_handler "job.state = 4 AND job.id > $1" asked " LIMIT $5"],
    list_recurring_back: [infos by_recurring with_handler "job.state = 4 AND job.id < $1" asked " DESC LIMIT $5"],
    /// Places and numbers in the order of due times: of waiting jobs those of a handler (on a
    /// server of all handlers), those with a group or a priority, and the rest.
    soonest: (places!(file "due", "job.wake", "job.handler = $1 AND job.recurs = 0 AND job.state = 0 AND job.wake = job.due")) |
        "SELECT near.wake, near.id FROM handlers AS h CROSS JOIN LATERAL (SELECT job.wake, job.id \
         FROM jobs AS job WHERE job.handler = h.id AND NOT job.recurs AND job.wake IS NOT NULL AND job.state = 0 \
         AND job.wake = job.due AND ($2::text IS NULL OR starts_with(job.key, $2)) \
         AND (job.wake, job.id) > ($3::bigint, $4::bigint) ORDER BY job.wake, job.id LIMIT $5) AS near \
         WHERE $1::text IS NULL OR h.name = $1 ORDER BY 1, 2 LIMIT $5",
    soonest_apart:
        (places!(file "apart_due", "job.apart", "job.state = 0 AND job.apart IS NOT NULL AND job.apart = job.due")) |
        (places!(server "job.apart", "job.state = 0 AND job.apart IS NOT NULL AND job.apart = job.due")),
    soonest_rest: (places!(file "unlooked", "job.due", "job.state = 0 AND coalesce(job.wake, job.apart) IS NOT job.due")) |
        (places!(server "job.due", "job.state = 0 AND coalesce(job.wake, job.apart) IS DISTINCT FROM job.due")),
    soonest_failing: (places!(file "failing_list", "job.due", "job.state = 0 AND job.error IS NOT NULL")) |
        (places!(server "job.due", "job.state = 0 AND job.error IS NOT NULL")),
    soonest_queued: (places!(file "queued_list", "job.due", "job.state = 1")) | (places!(server "job.due", "job.state = 1")),
    soonest_running: (places!(file "held", "job.due", "job.process IS NOT NULL AND job.state = 2")) |
        (places!(server "job.due", "job.state = 2")),
    // Each place is a number of a row, so an index of a constant has its rows in their order.
    soonest_dead: "SELECT 9223372036854775807, job.id FROM timerqueue_jobs AS job INDEXED BY timerqueue_dead_list WHERE job.state = 3 \
         AND ($1 IS NULL OR job.handler = $1) AND ($2 IS NULL OR substr(job.key, 1, length($2)) = $2) \
         AND ($3 < 9223372036854775807 OR job.id > $4) AND ?6 = 9223372036854775807 ORDER BY job.id LIMIT ?5" |
        (places!(server "9223372036854775807", "job.state = 3")),
    // A text that is no JSON has no occurrence.
    soonest_recurring: (places!(
        file "recurring",
        "coalesce(CASE WHEN json_valid(job.recurring) THEN json_extract(job.recurring, '$.next[1]') END, 9223372036854775807)",
        "job.state = 4"
    )) | (places!(
        server next_due!(),
        "job.state = 4"
    )),
    last_id: ["SELECT " last_id],
    /// Handlers by their numbers, with their jobs that wait, where they are counted.
    some_handlers: ["SELECT id, " waiting " FROM " handlers " WHERE $1 IS NULL OR name = $1"],
    is_held: "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'timerqueue_hold'" |
        "SELECT 1 WHERE to_regclass('hold') IS NOT NULL",
    /// The instant of a hold, of handler 0, and the last number of a job then, of handler -1.
    hold: ["SELECT handler, since FROM " hold " WHERE handler <= 0"],
    held: [
        "SELECT handler.name FROM " hold " AS hold JOIN " handlers " AS handler ON handler.id = hold.handler ORDER BY handler.name"
    ],
    /// The runs of the members.
    running: [
        "SELECT job.owner, handler.name, count(*) FROM " jobs " AS job" by_process " JOIN " handlers " AS handler ON handler.id = job.handler \
         WHERE " runs " GROUP BY job.owner, handler.id, handler.name"
    ],
    nodes: ["SELECT id, owner, name, since, " until ", handlers FROM " members " WHERE " is_there " ORDER BY id"],
    groups: [
        "SELECT one.id, version, affinity, handler.name, member FROM " groups " AS one \
         JOIN " handlers " AS handler ON handler.id = one.handler WHERE one.id > $1 ORDER BY one.id LIMIT $2"
    ],
    /// Adds the counts of a minute and a handler.
    count: [
        "INSERT INTO " minutes " AS one (minute, handler, done, again, failed, died, expired, longest, \
         late0, late1, late2, late3, late4, late5, late6, late7, late8, late9, late10, late11" of_connection ") VALUES \
         ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20" connection ") \
         ON CONFLICT (minute, handler" of_connection ")" add_up
    ],
    /// What is done with counts that are there already.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "the keeper of a server folds minutes"))]
    add_up: [add_up],
    /// Removes old minutes.
    prune: ["DELETE FROM " minutes " WHERE " old_minutes],
    /// The ends of runs.
    windows: [
        "SELECT minute - minute % $1 AS begin, handler.name, max(longest), sum(done)" as_number ", sum(again)" as_number ", \
         sum(failed)" as_number ", sum(died)" as_number ", sum(expired)" as_number ", sum(late0)" as_number ", sum(late1)" as_number ", sum(late2)" as_number ", sum(late3)" as_number ", sum(late4)" as_number ", sum(late5)" as_number ", sum(late6)" as_number ", sum(late7)" as_number ", sum(late8)" as_number ", sum(late9)" as_number ", sum(late10)" as_number ", sum(late11)" as_number " FROM " minutes " AS counted \
         JOIN " handlers " AS handler ON handler.id = counted.handler WHERE minute >= $2 GROUP BY begin, handler.name ORDER BY begin, handler.name"
    ],
    /// Of each handler: name, pause, the first wake instant, the jobs by state, the failing ones,
    /// and the clock of a server. One statement, so one snapshot. On a server jobs that wait are
    /// counted in their indexes: those of a handler with a wake instant wait. What is walked ends
    /// at a bound. Then the numbers that tell whether it has: what was walked of the handler's own
    /// index, of the indexes of all handlers, and the bound of the handler.
    counts: "SELECT handler.name, handler.paused, (SELECT min(first) FROM (SELECT min(wake) AS first FROM timerqueue_jobs AS job \
         WHERE job.handler = handler.id AND job.recurs = 0 AND job.wake IS NOT NULL UNION ALL SELECT min(head) FROM timerqueue_affinities AS one \
         WHERE one.handler = handler.id AND head IS NOT NULL UNION ALL SELECT (SELECT min(apart) FROM timerqueue_jobs AS job \
         WHERE job.handler = handler.id AND job.priority = one.value AND job.priority <> 0 AND job.state = 0 AND job.affinity_id IS NULL \
         AND job.apart IS NOT NULL) FROM json_each('[-9,-8,-7,-6,-5,-4,-3,-2,-1,1,2,3,4,5,6,7,8,9]') AS one WHERE handler.priorities <> 0)), waiting, queued, running, dead, recurring, (SELECT count(*) FROM (SELECT 1 FROM timerqueue_jobs AS job \
         WHERE job.handler = handler.id AND job.state = 0 AND job.error IS NOT NULL LIMIT $1)), NULL, 0, 0, $1, NULL FROM timerqueue_handlers AS handler ORDER BY handler.name" |
        "WITH few AS (SELECT handler, count(*) FILTER (WHERE state = 1) AS queued, count(*) FILTER (WHERE state = 3) AS dead, \
         count(*) FILTER (WHERE state = 4) AS recurring, count(*) FILTER (WHERE state = 0) AS failing FROM ( \
         (SELECT handler, state FROM jobs WHERE state = 1 LIMIT $1) UNION ALL (SELECT handler, state FROM jobs WHERE state = 3 LIMIT $1) \
         UNION ALL (SELECT handler, state FROM jobs WHERE state = 4 LIMIT $1) \
         UNION ALL (SELECT handler, state FROM jobs WHERE state = 0 AND error IS NOT NULL LIMIT $1)) AS part GROUP BY handler), \
         running AS (SELECT handler, count(*) AS n FROM (SELECT handler FROM jobs WHERE state = 2 LIMIT $1) AS part GROUP BY handler), \
         apart AS (SELECT handler, count(*) AS n FROM (SELECT handler FROM jobs WHERE state = 0 AND apart IS NOT NULL LIMIT $1) AS part \
         GROUP BY handler), \
         rest AS (SELECT handler, count(*) AS walked, count(*) FILTER (WHERE wake IS NULL AND apart IS NULL) AS n FROM (SELECT handler, wake, apart \
         FROM jobs WHERE state = 0 AND coalesce(wake, apart) IS DISTINCT FROM due LIMIT $1) AS part GROUP BY handler), \
         most AS (SELECT greatest($1 / greatest((SELECT count(*) FROM handlers), 1), least($1, 1000)) AS n) \
         SELECT h.name, h.paused, least((SELECT min(wake) FROM jobs WHERE handler = h.id AND NOT recurs AND state = 0), \
         (SELECT min(head) FROM heads AS one WHERE one.handler = h.id AND head IS NOT NULL), \
         (SELECT min(first.apart) FROM priorities_of(h.id) AS p (priority) CROSS JOIN LATERAL (SELECT j.apart FROM jobs j \
         WHERE j.handler = h.id AND j.priority = p.priority AND j.priority <> 0 AND j.state = 0 AND j.affinity_id IS NULL \
         AND j.apart IS NOT NULL ORDER BY j.apart LIMIT 1) AS first)), \
         plain.n + coalesce(apart.n, 0) + coalesce(rest.n, 0), coalesce(few.queued, 0), coalesce(running.n, 0), coalesce(few.dead, 0), \
         coalesce(few.recurring, 0), coalesce(few.failing, 0), clock(), \
         plain.n, greatest(coalesce(apart.n, 0), coalesce(rest.walked, 0)), most.n, CASE WHEN plain.n >= most.n THEN about(h.id) END \
         FROM handlers AS h CROSS JOIN most \
         CROSS JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM jobs WHERE handler = h.id AND NOT recurs AND wake IS NOT NULL \
         LIMIT most.n) AS part) AS plain LEFT JOIN few ON few.handler = h.id \
         LEFT JOIN running ON running.handler = h.id LEFT JOIN apart ON apart.handler = h.id \
         LEFT JOIN rest ON rest.handler = h.id ORDER BY h.name",
    /// Recurring jobs that wait behind a clock that was ahead: those with a span that ends near now
    /// or later. A text that is no JSON has no cursor.
    ahead: "SELECT count(*) FROM timerqueue_jobs WHERE earliest > $1 AND state = 4 AND json_valid(recurring) \
         AND coalesce(json_extract(recurring, '$.schedule.every'), json_extract(recurring, '$.schedule.fixed_delay')) IS NULL \
         AND json_extract(recurring, '$.last_nominal') > $2" |
        "SELECT count(*) FROM jobs WHERE earliest > $1 AND state = 4 AND recurring !~ '\"schedule\": ?[{]\"(every|fixed_delay)\"' \
         AND substring(recurring FROM '\"last_nominal\": ?([0-9]{1,18})')::bigint > $2",
}
