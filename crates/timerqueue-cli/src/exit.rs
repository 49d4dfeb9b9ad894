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
pub(crate) struct Fail {
    code: u8,
    /// `None`: the user was told already, or cannot be told.
    text: Option<String>,
}

impl Fail {
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: Some(text.into()) }
    }

    /// The command line is wrong.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(USAGE, text)
    }

    /// What is wrong in a line, if that is the failure.
    pub(crate) fn wrong_line(self) -> Result<String, Self> {
        match self {
            Self { code: USAGE, text: Some(text) } => Ok(text),
            fail => Err(fail),
        }
    }

    /// The failure with another text, if it has one.
    pub(crate) fn with(self, change: impl FnOnce(String) -> String) -> Self {
        Self { text: self.text.map(change), ..self }
    }

    /// Of a command whose parts have told the user.
    pub(crate) fn told(code: u8) -> Result<(), Self> {
        if code == DONE { Ok(()) } else { Err(Self { code, text: None }) }
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// Tells the user, and returns the code.
    pub(crate) fn report(self) -> u8 {
        if let Some(text) = self.text {
            note(&format!("timerqueue: {text}"));
        }
        self.code
    }
}

/// A line on the standard error, which may be closed.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{}", text::tame_lines(line));
}

impl From<Error> for Fail {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Invalid(_) | Error::NotSerializable { .. } => USAGE,
            Error::NoOccurrence => REFUSED,
            Error::Store { fault: Fault::Damaged | Fault::TooNew { .. }, .. } => DAMAGED,
            _ => PLACE,
        };
        Self::new(code, error.to_string())
    }
}

impl From<StartError> for Fail {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Store(error) => error.into(),
            StartError::InvalidName { .. } | StartError::DuplicateHandler { .. } => Self::usage(error.to_string()),
            other => Self::new(PLACE, other.to_string()),
        }
    }
}

impl From<ScheduleError> for Fail {
    /// With the place in a cron line.
    fn from(error: ScheduleError) -> Self {
        Self::usage(format!("{error:#}"))
    }
}

/// Of the standard output.
impl From<io::Error> for Fail {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self { code: PIPE, text: None },
            _ => Self::new(PLACE, format!("the output failed: {error}")),
        }
    }
}
