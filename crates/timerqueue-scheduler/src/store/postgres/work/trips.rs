//! The round trips of a transaction: what is read and locked with its begin, and what is written
//! with its commit.
//!
//! Ground rules. A transaction that puts jobs or settles runs takes two round trips: all that it
//! reads and locks comes with its begin, and all that it writes goes with its commit and the
//! question which nodes it concerns. A claim that takes jobs has a third one, since its number is
//! written before the commit is sent: of a transaction that finds nothing there is none, and it
//! costs the server no flush.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{LOCKED_AGAIN, Server, Work, whole};
use crate::store::columns::{joined, read_names};
use crate::store::postgres::Shared;
use crate::store::postgres::cursor::{Cursors, Due, Walk};
use crate::store::postgres::error::{Failure, Remedy};
use crate::store::postgres::link::Link;
use crate::store::postgres::members::{OUTLOOK, OUTLOOK_OF, Outlook};
use crate::store::postgres::params::Owned;
use crate::store::postgres::rows::{self, Values, with_columns};
use crate::store::postgres::sleepers::{self, Woken};
use crate::store::postgres::wire::{Step, run};
use crate::store::rules::{Effects, Row, Rows, StoreFacts};
use crate::store::sql::history::{self, Removal, Texted};
use crate::store::sql::{self, Changed, Dialect, Handlers, Heads, Index, Value, index_of};
use crate::store::{Claim, Fault, JobId, Micros, Mutation, Op, Predecessor, limits};

/// The instant of a transaction, which its further statements read as well; and how long they wait
/// for locks, in milliseconds.
const NOW: &str =
    "SELECT set_config('timerqueue.now', clock()::text, true)::bigint, set_config('lock_timeout', $1, true)";

/// Whether some row waits longer than its span.
const BEHIND: &str = "SELECT FROM jobs WHERE earliest > current_setting('timerqueue.now')::bigint LIMIT 1";

/// A statement of the texts, among the steps of a trip.
fn step<'v>((sql, values): (&'static str, Vec<Value<'v>>)) -> Step<'v> {
    Step::Run(sql, values.into_iter().map(|value| Box::new(value) as Owned<'v>).collect())
}

/// This writer commits with this number. The row is locked before the `COMMIT` is sent, so the
/// question whether the commit was done waits for it. Returns the number of the transaction, and
/// keeps an instant after which the server has given it.
const MARK: &str = "INSERT INTO writers (writer, number, at) VALUES ($1, $2, clock()) \
     ON CONFLICT (writer) DO UPDATE SET number = excluded.number, at = excluded.at \
     RETURNING pg_current_xact_id()::text::bigint, set_config('timerqueue.numbered', clock()::text, true)";

/// The claimer keeps its member, so no other node ends it before this commit; and for half a lease
/// from now at least.
const HOLD: &str = "WITH mine AS (SELECT id, until FROM members WHERE id = $1 AND NOT dead FOR KEY SHARE), \
     renewed AS (UPDATE members SET until = $3 FROM mine WHERE members.id = mine.id AND mine.until < $2) \
     SELECT id FROM mine";

/// The same as [`MARK`], if the transaction has written or locked something.
const MARK_IF_WRITTEN: &str = "INSERT INTO writers (writer, number, at) SELECT $1, $2, $3 \
     WHERE pg_current_xact_id_if_assigned() IS NOT NULL \
     ON CONFLICT (writer) DO UPDATE SET number = excluded.number, at = excluded.at RETURNING writer";

/// The rows that operations name, with the recurring jobs of runs. One array, since no plan reads
/// more of an index than its elements.
const NAMED: &str = with_columns!(
    "SELECT ",
    " FROM jobs WHERE id = ANY(ARRAY(SELECT unnest($1::bigint[]) UNION ALL SELECT parent FROM jobs WHERE id = ANY($1) \
     UNION ALL SELECT id FROM jobs WHERE key = ANY($2::text[]) AND holds_key)) ORDER BY id FOR UPDATE"
);

/// Keys that done jobs still have.
const TAKEN: &str = "SELECT key, id FROM finished WHERE key = ANY($1::text[]) \
     AND key_until > current_setting('timerqueue.now')::bigint AND key_until > ended ORDER BY key_until";

/// The done jobs of a handler have keys from now on.
const KEEPS_KEYS: &str = "UPDATE handlers SET keeps_keys = true WHERE id = ANY($1::bigint[]) AND NOT keeps_keys";

/// The begin of a walk for due rows: `$4`, unless the clock shows less than `$5`.
macro_rules! low {
    () => {
        "CASE WHEN current_setting('timerqueue.now')::bigint >= $5::bigint THEN $4::bigint ELSE -4611686018427387904 END"
    };
}

/// The due rows of a walk from its cursor on; behind the columns, what sets the cursor.
macro_rules! due {
    ($at:literal, $rows:literal) => {
        joined!([
            "SELECT ",
            read_names!(Server, ""),
            concat!(", (SELECT ", $at, " FROM jobs WHERE ", $rows, " AND ", $at, " >= "),
            low!(),
            concat!(" ORDER BY ", $at, " LIMIT 1) AS first, pg_snapshot_xmin(pg_current_snapshot())::text::bigint"),
            concat!(" FROM jobs WHERE ", $rows, " AND ", $at, " >= "),
            low!(),
            concat!(" AND ", $at, " <= current_setting('timerqueue.now')::bigint"),
            concat!(" ORDER BY ", $at, ", id LIMIT $3 FOR UPDATE SKIP LOCKED")
        ])
    };
}

/// The due rows before the cursor.
macro_rules! early {
    ($at:literal, $rows:literal) => {
        joined!([
            "SELECT ",
            read_names!(Server, ""),
            concat!(" FROM jobs WHERE early AND ", $rows, " AND ", $at, " < "),
            low!(),
            concat!(" AND ", $at, " <= current_setting('timerqueue.now')::bigint"),
            concat!(" ORDER BY ", $at, ", id LIMIT $3 FOR UPDATE SKIP LOCKED")
        ])
    };
}

/// The first wake instant of the others, and how many are due; and what sets the cursor if none is.
macro_rules! next {
    ($at:literal, $rows:literal, $handler:literal) => {
        joined!([
            concat!("SELECT (SELECT ", $at, " FROM jobs WHERE ", $rows),
            concat!(" AND ", $at, " > current_setting('timerqueue.now')::bigint ORDER BY ", $at, " LIMIT 1), "),
            concat!("(SELECT count(*) FROM (SELECT FROM jobs WHERE ", $rows, " AND ", $at, " >= "),
            low!(),
            concat!(" AND ", $at, " <= current_setting('timerqueue.now')::bigint LIMIT $3) AS due) + "),
            concat!("(SELECT count(*) FROM (SELECT FROM jobs WHERE early AND ", $rows, " AND ", $at, " < "),
            low!(),
            concat!(" AND ", $at, " <= current_setting('timerqueue.now')::bigint LIMIT $3) AS due), "),
            concat!("pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM handlers AS h WHERE ", $handler),
            " AND NOT paused"
        ])
    };
}

/// The statements of a walk.
struct Texts {
    due: &'static str,
    early: &'static str,
    next: &'static str,
}

/// Of a handler.
const PLAIN: Texts = Texts {
    due: due!("wake", "handler = (SELECT id FROM handlers WHERE name = $1 AND NOT paused) AND recurs = $2"),
    early: early!("wake", "handler = (SELECT id FROM handlers WHERE name = $1 AND NOT paused) AND recurs = $2"),
    next: next!("wake", "handler = h.id AND recurs = $2", "name = $1"),
};

/// Of a handler's jobs with a priority.
const OF_PRIORITY: Texts = Texts {
    due: due!("apart", "handler = $1 AND priority = $2 AND priority <> 0 AND state = 0 AND affinity_id IS NULL"),
    early: early!("apart", "handler = $1 AND priority = $2 AND priority <> 0 AND state = 0 AND affinity_id IS NULL"),
    next: next!(
        "apart",
        "handler = h.id AND priority = $2 AND priority <> 0 AND state = 0 AND affinity_id IS NULL",
        "id = $1"
    ),
};

/// What a claim finds in an index: the most rows that it asks for, those that it has locked, the
/// first wake instant of the others, and how many are due.
type Found = (Index, i64, Vec<tokio_postgres::Row>, (Option<i64>, i64));

/// The walks of a transaction for due rows.
struct Walks<'l> {
    link: &'l Link,
    since: i64,
    /// Whether rows before the cursor were asked for, in the order of the walks.
    early: VecDeque<bool>,
}

impl<'l> Walks<'l> {
    fn new(link: &'l Link) -> Self {
        Self { link, since: link.cursors.borrow_mut().since(), early: VecDeque::new() }
    }

    fn low(&self, due: &Due) -> Option<i64> {
        self.link.cursors.borrow().low(&Walk::Due(due.clone()))
    }

    fn step(&self, text: impl Fn(&Texts) -> &'static str, due: &Due, limit: i64) -> Step<'static> {
        let low = self.low(due).unwrap_or(i64::MIN);
        match due {
            Due::Handler(name, recurs) => run!(text(&PLAIN), name.to_string(), *recurs, limit, low, self.since),
            Due::Priority(kind, priority) => {
                run!(text(&OF_PRIORITY), *kind, i64::from(*priority), limit, low, self.since)
            }
        }
    }

    fn due(&mut self, steps: &mut Vec<Step<'_>>, due: &Due, limit: i64) {
        let is_behind = self.low(due).is_some();
        steps.push(self.step(|texts| texts.due, due, limit));
        steps.extend(is_behind.then(|| self.step(|texts| texts.early, due, limit)));
        self.early.push_back(is_behind);
    }

    /// The due rows, and the question what is left.
    fn all(&mut self, steps: &mut Vec<Step<'_>>, due: &Due, limit: i64) {
        self.due(steps, due, limit);
        steps.push(self.step(|texts| texts.next, due, limit));
    }

    /// The answer to the first walk that is left.
    fn take(
        &mut self,
        answers: &mut impl Iterator<Item = Vec<tokio_postgres::Row>>,
        due: &Due,
    ) -> Vec<tokio_postgres::Row> {
        let mut rows = answers.next().unwrap_or_default();
        let found =
            rows.first().and_then(|row| Some((row.get::<_, Option<i64>>(row.len() - 2)?, row.get(row.len() - 1))));
        if let Some((first, under_way)) = found {
            self.link.cursors.borrow_mut().found(&Walk::Due(due.clone()), first, under_way);
        }
        if self.early.pop_front() == Some(true) {
            rows.extend(answers.next().unwrap_or_default());
        }
        rows
    }

    /// The same with the answer to what is left: none of a handler that is paused or not known.
    fn take_all(
        &mut self,
        answers: &mut impl Iterator<Item = Vec<tokio_postgres::Row>>,
        due: &Due,
    ) -> (Vec<tokio_postgres::Row>, Option<(Option<i64>, i64)>) {
        let (rows, next) = (self.take(answers, due), answers.next().unwrap_or_default());
        let next = next.first().map(|next| (next.get::<_, Option<i64>>(0), next.get::<_, i64>(1), next.get(2)));
        if let Some((first, 0, under_way)) = next {
            self.link.cursors.borrow_mut().found(&Walk::Due(due.clone()), first.unwrap_or(i64::MAX), under_way);
        }
        (rows, next.map(|(first, due, _)| (first, due)))
    }
}

/// The rows and keys that operations name.
#[derive(Default)]
struct Named<'o> {
    ids: Vec<i64>,
    puts: Vec<&'o Arc<str>>,
    others: BTreeSet<&'o Arc<str>>,
    /// Those of jobs that others are put after.
    predecessors: BTreeSet<&'o Arc<str>>,
}

impl<'o> Named<'o> {
    fn of(ops: impl Iterator<Item = &'o Op>) -> Self {
        let mut named = Self::default();
        // What the rules refuse is asked of no server.
        for op in ops.filter(|op| limits::check(op).is_ok()) {
            match op {
                Op::Put(new) => {
                    named.puts.push(&new.key);
                    named.predecessors.extend(new.after.iter().flat_map(|after| &after.keys));
                }
                Op::Key { key, .. } => _ = named.others.insert(key),
                Op::Settle(settle) => named.ids.push(settle.held.id.0 as i64),
                Op::Progress { held, .. } => named.ids.push(held.id.0 as i64),
                Op::Advance(advance) => named.ids.push(advance.id.0 as i64),
                Op::Revive(id) | Op::Discard(id) | Op::Doubt(id) | Op::Job { id, .. } => named.ids.push(id.0 as i64),
                Op::PauseHandler { .. } | Op::Bind(_) => {}
            }
        }
        named
    }

    fn put_keys(&self) -> Vec<&'o str> {
        self.puts.iter().map(|key| &***key).collect()
    }

    fn step(&self) -> Option<Step<'o>> {
        let keys: Vec<&str> =
            self.puts.iter().chain(&self.others).chain(&self.predecessors).map(|key| &***key).collect();
        let is_empty = self.ids.is_empty() && keys.is_empty();
        (!is_empty).then(|| run!(NAMED, self.ids.clone(), keys))
    }
}

/// What is asked along with the commit of a transaction.
#[derive(Default)]
pub(in crate::store::postgres) struct Asked {
    /// Before it.
    pub(in crate::store::postgres) before: Option<Step<'static>>,
    /// After it, when others see it.
    pub(in crate::store::postgres) after: Option<Step<'static>>,
}

/// What a transaction has left to do after its commit.
pub(in crate::store::postgres) struct Committed {
    pub(in crate::store::postgres) now: Micros,
    pub(in crate::store::postgres) effects: Effects,
    /// The answer to [`Asked::before`].
    pub(in crate::store::postgres) before: Vec<tokio_postgres::Row>,
    /// [`Asked::after`], and which nodes the commit concerns.
    pub(in crate::store::postgres) questions: Vec<Step<'static>>,
    pub(in crate::store::postgres) looks: bool,
    /// If the answers have come with that to the commit.
    pub(in crate::store::postgres) answers: Option<Vec<Vec<tokio_postgres::Row>>>,
}

/// The predecessors are written again, not only locked: a transaction of the user's with a snapshot
/// from before does not see the links, and so must not end them.
const FOLLOWED: &str = "UPDATE jobs SET followed = 1 WHERE id = ANY($1::bigint[])";

const LINK: &str =
    "INSERT INTO links (follower, predecessor, key) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::text[])";

/// The most links in a statement.
const MOST_LINKS: usize = 10_000;

/// Changes as the server takes them.
pub(super) struct Written {
    links: Vec<(JobId, Predecessor)>,
    gone: Vec<i64>,
    free: Vec<Values>,
    holding: Vec<Values>,
    new: Vec<Values>,
}

impl Written {
    pub(super) fn of(changed: &Changed<'_, ()>) -> Self {
        let of = |rows: &[(&Row, &())]| rows.iter().map(|(row, ())| Values::of_changed(row)).collect();
        // Transactions that put the same keys meet in the same order.
        let mut new = changed.new.clone();
        new.sort_by(|a, b| a.key.cmp(&b.key));
        let new = new.into_iter().map(Values::of_new).collect();
        let gone = changed.gone.iter().map(|id| id.0 as i64).collect();
        Self { links: changed.links.to_vec(), gone, free: of(&changed.free), holding: of(&changed.holding), new }
    }

    pub(super) fn steps(&self) -> Vec<Step<'_>> {
        let gone = (!self.gone.is_empty()).then(|| run!("DELETE FROM jobs WHERE id = ANY($1::bigint[])", &*self.gone));
        let changed = rows::update(&self.free).chain(rows::update(&self.holding));
        self.link().chain(gone).chain(changed).chain(rows::insert(&self.new)).collect()
    }

    fn link(&self) -> impl Iterator<Item = Step<'_>> {
        let predecessors: BTreeSet<i64> = self.links.iter().map(|(_, link)| link.id.0 as i64).collect();
        let followed = (!predecessors.is_empty()).then(|| run!(FOLLOWED, Vec::from_iter(predecessors)));
        followed.into_iter().chain(self.links.chunks(MOST_LINKS).map(|links| {
            let followers: Vec<i64> = links.iter().map(|(follower, _)| follower.0 as i64).collect();
            let predecessors: Vec<i64> = links.iter().map(|(_, link)| link.id.0 as i64).collect();
            run!(LINK, followers, predecessors, links.iter().map(|(_, link)| &*link.key).collect::<Vec<&str>>())
        }))
    }
}

/// The answer to a statement that removes done jobs.
fn removed(cursors: &mut Cursors, walk: &Walk, answer: &[tokio_postgres::Row]) {
    let Some(row) = answer.first() else { return };
    match walk {
        Walk::Done(Removal::Surplus(_)) => cursors.found_number(walk, (row.get(0), row.get(2)), row.get(1)),
        _ => cursors.found(walk, row.get::<_, Option<i64>>(0).unwrap_or(i64::MAX), row.get(1)),
    }
}

impl<'a> Work<'a> {
    /// Begins a transaction.
    pub(in crate::store::postgres) fn begin(link: &'a Link) -> Result<Self, Failure> {
        Ok(Self::open(link, 0, Vec::new())?.0)
    }

    /// Begins a transaction, with this number of numbers for new rows, and asks further questions
    /// along with that.
    #[allow(clippy::type_complexity, reason = "the answers to the questions")]
    fn open(
        link: &'a Link,
        ids: usize,
        further: Vec<Step<'_>>,
    ) -> Result<(Self, std::vec::IntoIter<Vec<tokio_postgres::Row>>), Failure> {
        // Zero would be for ever.
        let wait = link.lock_wait.get().as_millis().max(1).to_string();
        let mut steps =
            vec![Step::Begin, run!(NOW, wait), run!("SELECT id, name, paused, keeps_keys, priorities FROM handlers")];
        if ids > 0 {
            steps.push(run!("SELECT nextval('ids') FROM generate_series(1, $1::bigint)", ids as i64));
        }
        steps.extend(further);
        let (answers, failed) = link.steps(&steps);
        if let Some(failure) = failed {
            return Err(failure);
        }
        let mut answers = answers.into_iter().skip(1);
        let mut next = || answers.next().unwrap_or_default();
        let (now, handlers) = (next(), next());
        let now = now.first().map_or(0, |row| row.get(0));
        link.cursors.borrow_mut().saw(now);
        let ids = if ids > 0 { next() } else { Vec::new() };
        let ids: VecDeque<u64> = ids.iter().map(|row| row.get::<_, i64>(0) as u64).collect();
        let server = Server {
            link,
            handlers: Handlers::default(),
            ids,
            any_behind: false,
            rests: None,
            due: HashMap::new(),
            remembered: HashMap::new(),
            keeps_keys: HashSet::new(),
            newly_keeps_keys: BTreeSet::new(),
            outlook: Outlook::default(),
            is_locked: false,
            next_bound: None,
            woken: Woken::new(),
            is_marked: false,
            has_asked: false,
            begins: false,
        };
        let facts = StoreFacts { look_time: Some(link.lease), ..StoreFacts::default() };
        let mut work = Self::new(server, Micros::new(now), facts);
        let (mut known, mut priorities) = (link.handlers.borrow_mut(), link.priorities.borrow_mut());
        for row in handlers {
            let name: Arc<str> = row.get::<_, &str>(1).into();
            if !known.contains(&name) {
                known.insert(Arc::clone(&name));
            }
            let kind = row.get::<_, i64>(0) as usize;
            work.dialect.handlers.add(kind, name, row.get(2));
            if row.get(3) {
                work.dialect.keeps_keys.insert(kind);
            }
            if let bits @ 1.. = row.get::<_, i64>(4) {
                priorities.insert(kind as i64, bits);
            }
        }
        link.keeps_keys.set(!work.dialect.keeps_keys.is_empty());
        drop((known, priorities));
        Ok((work, answers.collect::<Vec<_>>().into_iter()))
    }

    /// Begins a transaction that applies operations: it reads and locks the rows that they name,
    /// and due rows for the places of the runs that they end. `writer` commits with `number`.
    pub(in crate::store::postgres) fn begin_apply<'o>(
        link: &'a Link,
        (writer, number): (i64, i64),
        ops: impl Iterator<Item = &'o Op> + Clone,
        places: &[Claim],
    ) -> Result<Self, Failure> {
        let (named, mut further) = (Named::of(ops.clone()), vec![run!(MARK, writer, number)]);
        // Members are locked before their runs, as at their end.
        for place in places {
            let names: Vec<&str> = place.rooms.iter().map(|room| &*room.name).collect();
            let ((kinds, priorities, lows), (of, members, begins)) =
                (link.walks_of_priorities(), link.cursors.borrow().heads());
            let owner = place.owner as i64;
            further.push(run!(OUTLOOK_OF, owner, names, kinds, priorities, lows, of, members, begins));
        }
        let before = further.len();
        further.extend(named.step());
        let is_named = further.len() > before;
        // A later statement than the one that waits for the end of a run with the key. One more
        // trip where this connection does not know yet that keys are kept.
        let is_asked = link.keeps_keys.get() && !named.puts.is_empty();
        if is_asked {
            further.push(run!(TAKEN, named.put_keys()));
        }
        let mut walks = Walks::new(link);
        for room in places.iter().flat_map(|place| &place.rooms) {
            walks.due(&mut further, &Due::Handler(Arc::clone(&room.name), false), room.places as i64);
        }
        let (mut work, mut answers) = Self::open(link, Self::new_rows(ops), further)?;
        if let Some(own) = answers.next().unwrap_or_default().first() {
            link.cursors.borrow_mut().mark(work.up.as_i64(), own.get(0));
        }
        work.dialect.is_marked = true;
        let outlooks: Vec<Outlook> = answers.by_ref().take(places.len()).map(|rows| Outlook::of(&rows)).collect();
        if is_named {
            work.take_in(answers.next().unwrap_or_default().iter().map(rows::read).collect());
        }
        let mut taken = if is_asked { answers.next().unwrap_or_default() } else { Vec::new() };
        if !is_asked && link.keeps_keys.get() && !named.puts.is_empty() {
            taken = work.query(TAKEN, &[&named.put_keys()]);
        }
        for row in taken {
            work.dialect.remembered.insert(row.get::<_, &str>(0).into(), JobId(row.get::<_, i64>(1) as u64));
        }
        for (place, outlook) in places.iter().zip(outlooks) {
            let walked = place.rooms.iter().map(|room| Due::Handler(Arc::clone(&room.name), false));
            let due = walked.flat_map(|walk| walks.take(&mut answers, &walk));
            let due: Vec<_> = due.map(|row| rows::read(&row)).collect();
            work.dialect.due.insert(place.owner, (outlook, due.iter().map(|read| read.row.id).collect()));
            work.take_in(due);
        }
        // The key of a put is free as far as this transaction sees; if not, the index refuses the
        // row, and the transaction runs again.
        for key in named.puts {
            if !named.others.contains(key) {
                work.is_free(key);
            }
        }
        for id in named.ids {
            work.is_absent(JobId(id as u64));
        }
        Ok(work)
    }

    /// Begins a claim: it reads and locks the due rows, and reads the wake instants of the others.
    pub(in crate::store::postgres) fn begin_claim(link: &'a Link, claim: &Claim) -> Result<Self, Failure> {
        let mut asked = Vec::new();
        for room in &claim.rooms {
            asked.push((&room.name, Due::Handler(Arc::clone(&room.name), true), 257));
            if room.places > 0 {
                let limit = room.places.min(claim.at_most) as i64 + 1;
                asked.push((&room.name, Due::Handler(Arc::clone(&room.name), false), limit));
            }
        }
        let mut further = vec![run!(OUTLOOK, claim.owner as i64), run!(BEHIND)];
        let mut walks = Walks::new(link);
        for (_, walk, limit) in &asked {
            walks.all(&mut further, walk, *limit);
        }
        let (mut work, mut answers) = Self::open(link, 0, further)?;
        work.dialect.outlook = Outlook::of(&answers.next().unwrap_or_default());
        work.dialect.any_behind = !answers.next().unwrap_or_default().is_empty();
        let mut indexes = Vec::new();
        for (name, walk, limit) in asked {
            let (rows, next) = walks.take_all(&mut answers, &walk);
            let (Some(kind), Some(next)) = (work.known(name), next) else { continue };
            let is_plain = matches!(walk, Due::Handler(_, false));
            indexes.push(((kind, is_plain.then_some(0)), limit, rows, next));
        }
        work.ask_priorities(&mut walks, &mut indexes)?;
        let mut heads: HashMap<Index, Heads> = HashMap::new();
        let mut rests: HashMap<Index, Option<Micros>> = HashMap::new();
        let mut read = Vec::new();
        for (index, limit, rows, (mut rest, due)) in indexes {
            if index.1.is_some() && rows.len() as i64 >= limit {
                // More due jobs than places: a node that has one is told.
                let now = work.up;
                work.dialect.wakes(index.0 as i64, now);
            }
            if (rows.len() as i64) < due.min(limit) {
                // Locked elsewhere: that transaction may leave the row as it is.
                rest = Some(rest.unwrap_or(i64::MAX).min(work.up.as_i64() + LOCKED_AGAIN));
            }
            rests.insert(index, rest.map(Micros::new));
            let mine = heads.entry(index).or_insert_with(whole);
            for row in rows {
                let row = rows::read(&row);
                mine.rows.extend(index_of(&row.row).map(|(_, wake)| (wake, row.row.id)));
                read.push(row);
            }
        }
        (work.heads, work.dialect.rests) = (heads, Some(rests));
        work.take_in(read);
        Ok(work)
    }

    /// The due jobs with priorities, by one further trip where handlers have had such jobs.
    fn ask_priorities(&self, walks: &mut Walks<'_>, indexes: &mut Vec<Found>) -> Result<(), Failure> {
        let (mut steps, mut asked) = (Vec::new(), Vec::new());
        for &((kind, which), limit, ..) in &*indexes {
            for priority in which.into_iter().flat_map(|_| self.dialect.link.priorities_of(kind)) {
                let walk = Due::Priority(kind as i64, priority);
                walks.all(&mut steps, &walk, limit);
                asked.push(((kind, Some(priority)), walk, limit));
            }
        }
        if steps.is_empty() {
            return Ok(());
        }
        let (answers, failed) = self.dialect.link.steps(&steps);
        if let Some(failure) = failed {
            return Err(failure);
        }
        let mut answers = answers.into_iter();
        for (index, walk, limit) in asked {
            let (rows, next) = walks.take_all(&mut answers, &walk);
            indexes.push((index, limit, rows, next.unwrap_or_default()));
        }
        Ok(())
    }

    /// How many new rows the operations may put.
    pub(in crate::store::postgres) fn new_rows<'o>(ops: impl Iterator<Item = &'o Op>) -> usize {
        ops.map(|op| match op {
            Op::Put(_) | Op::Key { mutation: Mutation::RunNow, .. } | Op::Job { mutation: Mutation::RunNow, .. } => 1,
            Op::Advance(advance) => advance.runs.len(),
            _ => 0,
        })
        .sum()
    }

    /// Writes what is left, and commits. By the number of the writer a new connection learns
    /// whether the commit was done. After a failure the caller undoes the transaction. Second: what
    /// is left to do if the commit was done all the same, whose answer was lost.
    pub(in crate::store::postgres) fn commit(
        mut self,
        shared: &Shared,
        (writer, number): (i64, i64),
        asked: Asked,
    ) -> Result<Committed, (Failure, Option<Box<Committed>>)> {
        if self.has_unsettled() {
            self.flush();
        }
        let written = Written::of(&self.changes());
        if let Some(failure) = self.failure() {
            return Err((failure, None));
        }
        let link = self.dialect.link;
        let done = std::mem::take(&mut self.done);
        let texted = Texted::of(&done, Server::clean);
        let mut steps = written.steps();
        steps.extend(history::kept(&Server::TEXTS, &done, &texted).map(step));
        let mut removals = Vec::new();
        for (removal, sql, mut values) in history::removals(&Server::TEXTS, &done, self.up) {
            let walk = Walk::Done(removal);
            values.push(link.cursors.borrow().low(&walk).unwrap_or(i64::MIN).into());
            removals.push((steps.len(), walk));
            steps.push(step((sql, values)));
        }
        if !self.dialect.newly_keeps_keys.is_empty() {
            let kinds: Vec<i64> = self.dialect.newly_keeps_keys.iter().copied().collect();
            steps.push(run!(KEEPS_KEYS, kinds));
        }
        let mut pruned = link.pruned.get();
        steps.extend(sql::minutes(&Server::TEXTS, &self.minutes, Some(writer), &mut pruned).into_iter().map(step));
        link.pruned.set(pruned);
        let mut has_written = self.dialect.is_marked;
        if !has_written && (self.dialect.has_asked || !steps.is_empty()) {
            let member = self.dialect.outlook.member.filter(|_| self.dialect.begins);
            let lease = link.lease;
            steps.extend(member.map(|member| run!(HOLD, member, self.kept_until(lease / 2), self.kept_until(lease))));
            steps.push(run!(MARK_IF_WRITTEN, writer, number, self.up.as_i64()));
            let (mut answers, failed) = link.steps(&steps);
            if let Some(failure) = failed {
                return Err((failure, None));
            }
            has_written = answers.pop().is_some_and(|rows| !rows.is_empty());
            if member.is_some() && answers.pop().is_none_or(|rows| rows.is_empty()) {
                // The next try makes the scheduler a member again.
                let reason = "the member has ended".into();
                return Err((Failure { fault: Fault::Locked, reason, remedy: Remedy::Again }, None));
            }
            steps.clear();
            removals.clear();
        }
        let is_asked = asked.before.is_some();
        steps.extend(asked.before);
        let committed = steps.len();
        steps.push(Step::Commit);
        if let Some(at) = self.effects.for_all {
            self.dialect.wakes(sleepers::ALL_NODES, at);
        }
        let looks = asked.after.is_some();
        let mut questions: Vec<Step<'static>> = asked.after.into_iter().collect();
        questions.extend(sleepers::concerned(shared, self.effects.notices(), self.dialect.woken));
        // Behind a pooler each transaction is a trip of its own.
        let along = if link.is_pooled { &[][..] } else { &questions };
        let (mut answers, failed) = link.steps(steps.iter().chain(along));
        let is_done = answers.len() > committed;
        for (at, walk) in removals.iter().filter(|_| is_done) {
            removed(&mut link.cursors.borrow_mut(), walk, &answers[*at]);
        }
        let after = (is_done && failed.is_none() && !link.is_pooled).then(|| answers.split_off(committed + 1));
        let before = if is_asked && is_done { answers.swap_remove(committed - 1) } else { Vec::new() };
        let done = Committed { now: self.up, effects: self.effects, before, questions, looks, answers: after };
        match failed {
            Some(failure) if !is_done => Err((failure, has_written.then(|| Box::new(done)))),
            _ => {
                link.cursors.borrow_mut().commit();
                Ok(done)
            }
        }
    }
}
