//! Paths and their queries.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue_scheduler::store::MAX_PAYLOAD_BYTES;
use timerqueue_scheduler::{JobId, JobInfo, Query, State};

use crate::text;

/// An enumeration of which each value has texts; the first one is its word in URLs.
macro_rules! with_texts {
    ($(#[$of:meta])* $name:ident { $($(#[$of_one:meta])* $value:ident: [$word:literal $(, $text:literal)*],)+ }) => {
        $(#[$of])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $name { $($(#[$of_one])* $value,)+ }

        impl $name {
            pub(crate) const ALL: &'static [Self] = &[$(Self::$value),+];

            fn texts(self) -> &'static [&'static str] {
                match self { $(Self::$value => &[$word $(, $text)*],)+ }
            }

            pub(crate) fn word(self) -> &'static str {
                self.texts()[0]
            }

            pub(crate) fn of(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }
    };
}

with_texts! {
    /// A list of jobs.
    Tab {
        Waiting: ["waiting", "Waiting"],
        Running: ["running", "Running"],
        Failing: ["failing", "Failing"],
        Dead: ["dead", "Dead"],
        Queued: ["queued", "Queued"],
        All: ["all", "All jobs"],
    }
}

impl Tab {
    pub(crate) fn title(self) -> &'static str {
        self.texts()[1]
    }

    pub(crate) fn state(self) -> Option<State> {
        match self {
            Self::Waiting => Some(State::Waiting),
            Self::Running => Some(State::Running),
            Self::Dead => Some(State::Dead),
            Self::Queued => Some(State::Queued),
            Self::Failing | Self::All => None,
        }
    }

    /// The order of a list for which none was chosen: those that are about to run first, the
    /// overdue ones before all others, or else those that came last.
    pub(crate) fn sort(self) -> Sort {
        if matches!(self, Self::Dead | Self::All) { Sort::Newest } else { Sort::Due }
    }

    /// The changes of many jobs at a time. A schedule is in none of these lists.
    pub(crate) fn actions(self) -> &'static [Action] {
        match self {
            Self::Waiting => &[Action::RunNow, Action::Pause, Action::Resume, Action::Cancel],
            Self::Failing => &[Action::Retry, Action::Pause, Action::Resume, Action::Cancel],
            Self::Running => &[Action::Cancel],
            Self::Dead => &[Action::Retry, Action::Discard],
            Self::Queued | Self::All => &[],
        }
    }
}

with_texts! {
    /// The order of a list.
    Sort {
        /// By due time.
        Due: ["due", "Due first"],
        /// By put.
        Newest: ["newest", "Put last"],
        Oldest: ["oldest", "Put first"],
    }
}

impl Sort {
    pub(crate) fn title(self) -> &'static str {
        self.texts()[1]
    }
}

with_texts! {
    /// The time that the plots show.
    #[derive(Default)]
    Span {
        #[default]
        Hour: ["hour", "each minute"],
        Day: ["day", "each 15 minutes"],
        Week: ["week", "each 2 hours"],
    }
}

impl Span {
    /// How wide a window is.
    pub(crate) fn each(self) -> &'static str {
        self.texts()[1]
    }

    /// Minutes of a window, and the number of windows.
    pub(crate) fn windows(self) -> (u64, usize) {
        match self {
            Self::Hour => (1, 60),
            Self::Day => (15, 96),
            Self::Week => (120, 84),
        }
    }
}

/// Where a part of a list begins: behind a job. In the order of due times its due time counts too,
/// in microseconds since 1970, unless it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct After {
    pub(crate) due: Option<u64>,
    pub(crate) id: JobId,
}

impl After {
    pub(crate) fn of(job: &JobInfo) -> Self {
        let micros = |due: SystemTime| due.duration_since(UNIX_EPOCH).ok()?.as_micros().try_into().ok();
        Self { due: job.due.and_then(micros), id: job.id }
    }

    /// Behind this job, in the order of due times or of numbers.
    pub(crate) fn narrow(self, query: Query, by_due: bool) -> Query {
        match (by_due, self.due) {
            (true, due) => {
                query.after_due(due.and_then(|due| UNIX_EPOCH.checked_add(Duration::from_micros(due))), self.id)
            }
            (false, _) => query.after(self.id),
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text.split_once('-') {
            Some((due, id)) => Some(Self { due: Some(due.parse().ok()?), id: JobId(id.parse().ok()?) }),
            None => Some(Self { due: None, id: JobId(text.parse().ok()?) }),
        }
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.due {
            Some(due) => write!(f, "{due}-{}", self.id.0),
            None => write!(f, "{}", self.id.0),
        }
    }
}

/// Which jobs a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) tab: Tab,
    pub(crate) handler: Option<String>,
    pub(crate) key: Option<String>,
    /// A text in the key, the handler, the payload or the error.
    pub(crate) find: Option<String>,
    /// When the job was put: from the first, and before the second.
    pub(crate) since: Option<SystemTime>,
    pub(crate) until: Option<SystemTime>,
    pub(crate) sort: Sort,
    pub(crate) after: Option<After>,
}

impl Filter {
    /// `None`: a field is none of its kind. What cannot be read must not widen the list, whose jobs
    /// may be changed.
    fn read(query: &Fields) -> Option<Self> {
        let instant = |name: &str| query.word(name, text::read_instant);
        let tab = query.word("state", Tab::of)?.unwrap_or(Tab::Waiting);
        Some(Self {
            tab,
            handler: query.text("handler"),
            key: query.text("key"),
            find: query.text("find"),
            since: instant("since")?,
            until: instant("until")?,
            sort: query.word("sort", Sort::of)?.unwrap_or(tab.sort()),
            after: query.word("after", After::read)?,
        })
    }

    /// The filter without its position, as the fields of a form.
    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let instant = |at: Option<SystemTime>| at.map(text::input);
        let sort = (self.sort != self.tab.sort()).then(|| self.sort.word().to_owned());
        let fields = [
            ("state", Some(self.tab.word().to_owned())),
            ("handler", self.handler.clone()),
            ("key", self.key.clone()),
            ("find", self.find.clone()),
            ("since", instant(self.since)),
            ("until", instant(self.until)),
            ("sort", sort),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The filter without its position, as the query of a URL.
    pub(crate) fn query(&self) -> String {
        form_urlencoded::Serializer::new(String::new()).extend_pairs(self.fields()).finish()
    }

    /// Whether the store's own lists are enough.
    pub(crate) fn is_of_store(&self) -> bool {
        self.find.is_none() && self.since.is_none() && self.until.is_none()
    }

    /// Whether a job of the store's list is one of the filter.
    pub(crate) fn takes(&self, job: &JobInfo) -> bool {
        let was_put = |fits: &dyn Fn(SystemTime) -> bool| job.added.is_some_and(fits);
        let has = |needle: &String| {
            let texts = [Some(&job.key), Some(&job.name), Some(&job.payload), job.error.as_ref()];
            let needle = needle.to_lowercase();
            texts.into_iter().flatten().any(|text| text.to_lowercase().contains(&needle))
        };
        self.since.is_none_or(|since| was_put(&|added| added >= since))
            && self.until.is_none_or(|until| was_put(&|added| added < until))
            && self.find.as_ref().is_none_or(has)
    }
}

/// A change of many jobs: those of a filter that were there at its begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Many {
    pub(crate) action: Action,
    /// Its position is the last job that was looked at.
    pub(crate) filter: Filter,
    /// The last job that was there. `None`: nothing has been asked for yet.
    pub(crate) until: Option<JobId>,
    pub(crate) changed: u64,
    /// Those that their state has kept from the change.
    pub(crate) kept: u64,
    pub(crate) is_done: bool,
}

impl Many {
    pub(crate) fn read(query: &Fields) -> Option<Self> {
        let filter = Filter { sort: Sort::Oldest, ..Filter::read(query)? };
        let action = query.get("action").and_then(Action::of)?;
        if !filter.tab.actions().contains(&action) {
            return None;
        }
        let number = |name: &str| query.get(name).and_then(|number| number.parse().ok()).unwrap_or(0);
        let until = query.get("last").and_then(|last| last.parse().ok()).map(JobId);
        let is_done = query.get("done").is_some();
        Some(Self { action, filter, until, changed: number("changed"), kept: number("kept"), is_done })
    }

    pub(crate) fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields: Vec<_> = self.filter.fields().into_iter().filter(|(name, _)| *name != "sort").collect();
        fields.push(("action", self.action.word().to_owned()));
        fields.extend(self.until.map(|JobId(last)| ("last", last.to_string())));
        fields.extend(self.filter.after.map(|after| ("after", after.to_string())));
        fields.extend([("changed", self.changed.to_string()), ("kept", self.kept.to_string())]);
        fields.extend(self.is_done.then(|| ("done", "1".to_owned())));
        fields
    }
}

/// Which done jobs a list shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Past {
    pub(crate) handler: Option<String>,
    pub(crate) key: Option<String>,
    /// Behind the one with this number.
    pub(crate) after: Option<u64>,
}

with_texts! {
    /// A change of a job: its label, and what became of many jobs.
    Action {
        Cancel: ["cancel", "Cancel", "were cancelled"],
        RunNow: ["run", "Run now", "are due now"],
        Retry: ["retry", "Retry", "wait again"],
        Discard: ["discard", "Discard", "were removed"],
        Pause: ["pause", "Pause", "were paused"],
        Resume: ["resume", "Resume", "go on"],
    }
}

impl Action {
    pub(crate) fn label(self) -> &'static str {
        self.texts()[1]
    }

    /// Behind a number of jobs.
    pub(crate) fn past(self) -> &'static str {
        self.texts()[2]
    }
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Overview(Span),
    Jobs(Filter),
    Done(Past),
    Schedules {
        after: Option<After>,
    },
    Nodes,
    Job(JobId),
    Icon,
    Login,
    /// The form for a new job, filled with what another one has.
    New {
        like: Option<JobId>,
    },
    Put,
    /// The form for other parts of a job.
    Edit(JobId),
    Save(JobId),
    /// A change of many jobs, as far as it is.
    Many(Many),
    /// Its next step.
    Step,
    Change {
        id: JobId,
        action: Action,
    },
    Handler {
        name: String,
        paused: bool,
    },
}

/// The parts of a query or a form, of which the first of each name counts.
#[derive(Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn new<const N: usize>(fields: [(&str, String); N]) -> Self {
        Self(fields.map(|(name, value)| (name.to_owned(), value)).into())
    }

    pub(crate) fn of(text: &[u8]) -> Self {
        let own = |(name, value): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), value.into_owned());
        Self(form_urlencoded::parse(text).map(own).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    /// What stands in a field: nothing, if there is none.
    pub(crate) fn value(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(crate) fn without(mut self, names: &[&str]) -> Self {
        self.0.retain(|(own, _)| !names.contains(&&**own));
        self
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    /// `None`: it is none of its kind.
    fn word<R>(&self, name: &str, read: impl FnOnce(&str) -> Option<R>) -> Option<Option<R>> {
        match self.value(name) {
            "" => Some(None),
            word => read(word).map(Some),
        }
    }
}

/// The longest form without a text of the user's.
pub(crate) const LONGEST_FORM: usize = 4 * 1024;

/// The version of the JSON.
const API: &str = "/api/v1";

impl Route {
    /// The path of the page whose data are asked for as JSON.
    pub(crate) fn of_data(path: &str) -> Option<&str> {
        path.strip_prefix(API).filter(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// `path`: below the place where the page is mounted. `None`: there is no such page.
    pub(crate) fn of(path: &str, query: &Fields) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let parts = [parts.next(), parts.next(), parts.next(), parts.next()];
        Some(match parts {
            [None, ..] => Self::Overview(query.word("span", Span::of)?.unwrap_or_default()),
            [Some("jobs"), None, ..] => Self::Jobs(Filter::read(query)?),
            [Some("many"), None, ..] => Self::Many(Many::read(query)?),
            [Some("step"), None, ..] => Self::Step,
            [Some("new"), None, ..] => Self::New { like: query.get("like").and_then(|id| id.parse().ok()).map(JobId) },
            [Some("put"), None, ..] => Self::Put,
            [Some("done"), None, ..] => Self::Done(Past {
                handler: query.text("handler"),
                key: query.text("key"),
                after: query.word("after", |after| after.parse().ok())?,
            }),
            [Some("schedules"), None, ..] => Self::Schedules { after: query.word("after", After::read)? },
            [Some("nodes"), None, ..] => Self::Nodes,
            [Some("icon.svg"), None, ..] => Self::Icon,
            [Some("login"), None, ..] => Self::Login,
            [Some("job"), Some(id), None, _] => Self::Job(JobId(id.parse().ok()?)),
            [Some("job"), Some(id), Some("edit"), None] => Self::Edit(JobId(id.parse().ok()?)),
            [Some("job"), Some(id), Some("save"), None] => Self::Save(JobId(id.parse().ok()?)),
            [Some("job"), Some(id), Some(word), None] => {
                Self::Change { id: JobId(id.parse().ok()?), action: Action::of(word)? }
            }
            [Some("handler"), Some(word @ ("pause" | "resume")), None, _] => {
                Self::Handler { name: query.text("name")?, paused: word == "pause" }
            }
            _ => return None,
        })
    }

    /// Whether the path changes something, and takes a POST alone.
    pub(crate) fn is_change(&self) -> bool {
        matches!(
            self,
            Self::Change { .. } | Self::Handler { .. } | Self::Login | Self::Put | Self::Save(_) | Self::Step
        )
    }

    /// The longest form of a change, in bytes. A byte that is no letter takes three.
    pub(crate) fn longest_form(&self) -> usize {
        match self {
            Self::Put | Self::Save(_) => 3 * MAX_PAYLOAD_BYTES + 16 * 1024,
            Self::Step => 16 * 1024, // a filter
            _ => LONGEST_FORM,
        }
    }
}

with_texts! {
    /// What an action came to, for the page after it.
    Said {
        Cancelled: ["cancelled", "Cancelled. No attempt will start."],
        Cancelling: ["cancelling", "The run goes on, and was asked to end. No attempt will follow."],
        WillRun: ["will-run", "Due now."],
        Revived: ["revived", "The job waits again, with all its attempts."],
        Discarded: ["discarded", "The dead job was removed."],
        Paused: ["paused", "Paused."],
        Resumed: ["resumed", "Goes on."],
        HandlerPaused: ["handler-paused", "The handler is paused: none of its jobs starts."],
        HandlerResumed: ["handler-resumed", "The jobs of the handler go on."],
        Put: ["put", "The job was put."],
        Edited: ["edited", "The job was changed."],
        Outdated: ["outdated", "Nothing was changed: the job is not as it was when the form was shown."],
        Gone: ["gone", "Nothing was changed: the job is there no more."],
        Runs: ["runs", "Nothing was changed: the job runs."],
        Taken: ["taken", "Nothing was changed: another job has the key by now."],
        NotNow: ["not-now", "Nothing was changed: the job takes no such change in its state."],
    }
}

impl Said {
    pub(crate) fn text(self) -> &'static str {
        self.texts()[1]
    }

    /// Whether the change was made.
    pub(crate) fn is_done(self) -> bool {
        !matches!(self, Self::Gone | Self::Runs | Self::Taken | Self::NotNow | Self::Outdated)
    }
}
