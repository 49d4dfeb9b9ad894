//! Paths and their queries.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use timerqueue_scheduler::{JobId, JobInfo, Query, State};

/// A list of jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tab {
    Waiting,
    Running,
    Failing,
    Dead,
    Queued,
    All,
}

impl Tab {
    pub(crate) const ALL: [Self; 6] =
        [Self::Waiting, Self::Running, Self::Failing, Self::Dead, Self::Queued, Self::All];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Failing => "failing",
            Self::Dead => "dead",
            Self::Queued => "queued",
            Self::All => "all",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Running => "Running",
            Self::Failing => "Failing",
            Self::Dead => "Dead",
            Self::Queued => "Queued",
            Self::All => "All jobs",
        }
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

    fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tab| tab.word() == word)
    }
}

/// The time that the plots show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Span {
    #[default]
    Hour,
    Day,
    Week,
}

impl Span {
    pub(crate) const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
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
    pub(crate) after: Option<After>,
}

/// A change of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Cancel,
    RunNow,
    Retry,
    Discard,
    Pause,
    Resume,
}

impl Action {
    const ALL: [Self; 6] = [Self::Cancel, Self::RunNow, Self::Retry, Self::Discard, Self::Pause, Self::Resume];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::RunNow => "run",
            Self::Retry => "retry",
            Self::Discard => "discard",
            Self::Pause => "pause",
            Self::Resume => "resume",
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Cancel => "Cancel",
            Self::RunNow => "Run now",
            Self::Retry => "Retry",
            Self::Discard => "Discard",
            Self::Pause => "Pause",
            Self::Resume => "Resume",
        }
    }
}

/// What a path asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Overview(Span),
    Jobs(Filter),
    Schedules { after: Option<After> },
    Nodes,
    Job(JobId),
    Icon,
    Login,
    Change { id: JobId, action: Action },
    Handler { name: String, paused: bool },
}

/// The parts of a query, of which the first of each name counts.
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    pub(crate) fn of(text: &[u8]) -> Self {
        let own = |(name, value): (Cow<'_, str>, Cow<'_, str>)| (name.into_owned(), value.into_owned());
        Self(form_urlencoded::parse(text).map(own).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| &**value)
    }

    fn text(&self, name: &str) -> Option<String> {
        self.get(name).filter(|value| !value.is_empty()).map(str::to_owned)
    }

    fn after(&self) -> Option<After> {
        After::read(self.get("after")?)
    }
}

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
            [None, ..] => {
                let span = Span::ALL.into_iter().find(|span| query.get("span") == Some(span.word()));
                Self::Overview(span.unwrap_or_default())
            }
            [Some("jobs"), None, ..] => Self::Jobs(Filter {
                tab: query.get("state").and_then(Tab::of).unwrap_or(Tab::Waiting),
                handler: query.text("handler"),
                key: query.text("key"),
                after: query.after(),
            }),
            [Some("schedules"), None, ..] => Self::Schedules { after: query.after() },
            [Some("nodes"), None, ..] => Self::Nodes,
            [Some("icon.svg"), None, ..] => Self::Icon,
            [Some("login"), None, ..] => Self::Login,
            [Some("job"), Some(id), None, _] => Self::Job(JobId(id.parse().ok()?)),
            [Some("job"), Some(id), Some(word), None] => Self::Change {
                id: JobId(id.parse().ok()?),
                action: Action::ALL.into_iter().find(|action| action.word() == word)?,
            },
            [Some("handler"), Some(word @ ("pause" | "resume")), None, _] => {
                Self::Handler { name: query.text("name")?, paused: word == "pause" }
            }
            _ => return None,
        })
    }

    /// Whether the path changes something, and takes a POST alone.
    pub(crate) fn is_change(&self) -> bool {
        matches!(self, Self::Change { .. } | Self::Handler { .. } | Self::Login)
    }
}

/// What an action came to, for the page after it. The words are in URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Cancelled,
    Cancelling,
    WillRun,
    Revived,
    Discarded,
    Paused,
    Resumed,
    HandlerPaused,
    HandlerResumed,
    Gone,
    Runs,
    Taken,
    NotNow,
}

impl Said {
    const ALL: [Self; 13] = [
        Self::Cancelled,
        Self::Cancelling,
        Self::WillRun,
        Self::Revived,
        Self::Discarded,
        Self::Paused,
        Self::Resumed,
        Self::HandlerPaused,
        Self::HandlerResumed,
        Self::Gone,
        Self::Runs,
        Self::Taken,
        Self::NotNow,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Cancelling => "cancelling",
            Self::WillRun => "will-run",
            Self::Revived => "revived",
            Self::Discarded => "discarded",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::HandlerPaused => "handler-paused",
            Self::HandlerResumed => "handler-resumed",
            Self::Gone => "gone",
            Self::Runs => "runs",
            Self::Taken => "taken",
            Self::NotNow => "not-now",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Cancelled => "Cancelled. No attempt will start.",
            Self::Cancelling => "The run goes on, and was asked to end. No attempt will follow.",
            Self::WillRun => "Due now.",
            Self::Revived => "The job waits again, with all its attempts.",
            Self::Discarded => "The dead job was removed.",
            Self::Paused => "Paused.",
            Self::Resumed => "Goes on.",
            Self::HandlerPaused => "The handler is paused: none of its jobs starts.",
            Self::HandlerResumed => "The jobs of the handler go on.",
            Self::Gone => "Nothing was changed: the job is there no more.",
            Self::Runs => "Nothing was changed: the job runs.",
            Self::Taken => "Nothing was changed: another job has the key by now.",
            Self::NotNow => "Nothing was changed: the job takes no such change in its state.",
        }
    }

    /// Whether the change was made.
    pub(crate) fn is_done(self) -> bool {
        !matches!(self, Self::Gone | Self::Runs | Self::Taken | Self::NotNow)
    }

    pub(crate) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|said| said.word() == word)
    }
}
