//! Exit codes, and the failures behind them.

use std::io::{self, ErrorKind, Write};

use timerqueue_scheduler::store::Fault;
use timerqueue_scheduler::{Error, ScheduleError, StartError};

use crate::text;

pub(crate) const DONE: u8 = 0;
/// No such job.
pub(crate) const ABSENT: u8 = 1;
/// The command line is wrong, as clap has it.
pub(crate) const USAGE: u8 = 2;
/// The state of the job forbids the change.
pub(crate) const REFUSED: u8 = 3;
/// The file or the server cannot be used now.
pub(crate) const PLACE: u8 = 4;
/// The store is damaged, or no store of jobs.
pub(crate) const DAMAGED: u8 = 5;
/// A worker has put runs back.
pub(crate) const STOPPED: u8 = 6;
/// The job that was waited for is not done, and will not be.
pub(crate) const ENDED: u8 = 7;
/// The job that was waited for has not ended in time.
pub(crate) const LATE: u8 = 8;
/// The reader of the output is gone: 128 and the number of SIGPIPE, as shells show it.
pub(crate) const PIPE: u8 = 141;

/// Why a command ends with another code than 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fail {
    Absent(String),
    Usage(String),
    Refused(String),
    Place(String),
    Damaged(String),
    Stopped(String),
    Ended(String),
    Late(String),
    Pipe,
    /// The user was told already.
    Told(u8),
}

impl Fail {
    fn text(&mut self) -> Option<&mut String> {
        match self {
            Self::Absent(text) | Self::Usage(text) | Self::Refused(text) | Self::Place(text) => Some(text),
            Self::Damaged(text) | Self::Stopped(text) | Self::Ended(text) | Self::Late(text) => Some(text),
            Self::Pipe | Self::Told(_) => None,
        }
    }

    /// The failure with another text, if it has one.
    pub(crate) fn with(mut self, change: impl FnOnce(&str) -> String) -> Self {
        if let Some(text) = self.text() {
            *text = change(text);
        }
        self
    }

    /// Of a command whose parts have told the user.
    pub(crate) fn told(code: u8) -> Result<(), Self> {
        if code == DONE { Ok(()) } else { Err(Self::Told(code)) }
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Absent(_) => ABSENT,
            Self::Usage(_) => USAGE,
            Self::Refused(_) => REFUSED,
            Self::Place(_) => PLACE,
            Self::Damaged(_) => DAMAGED,
            Self::Stopped(_) => STOPPED,
            Self::Ended(_) => ENDED,
            Self::Late(_) => LATE,
            Self::Pipe => PIPE,
            Self::Told(code) => *code,
        }
    }

    /// Tells the user, and returns the code.
    pub(crate) fn report(mut self) -> u8 {
        if let Some(text) = self.text() {
            note(&format!("timerqueue: {text}"));
        }
        self.code()
    }
}

/// A line on the standard error, which may be closed.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{}", text::tame_lines(line));
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Invalid(_) | Error::NotSerializable { .. } => Self::Usage(text),
            Error::NoOccurrence => Self::Refused(text),
            Error::Store { fault: Fault::Damaged | Fault::TooNew { .. }, .. } => Self::Damaged(text),
            _ => Self::Place(text),
        }
    }
}

impl From<StartError> for Fail {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => error.into(),
            StartError::InvalidName { .. } | StartError::DuplicateHandler { .. } => Self::Usage(error.to_string()),
            other => Self::Place(other.to_string()),
        }
    }
}

impl From<ScheduleError> for Fail {
    /// With the place in a cron line.
    fn from(error: ScheduleError) -> Self {
        Self::Usage(format!("{error:#}"))
    }
}

/// Of the standard output.
impl From<io::Error> for Fail {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Place(format!("the output failed: {error}")),
        }
    }
}
