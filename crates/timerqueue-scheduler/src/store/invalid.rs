//! The limits of what every store accepts, and why a value is refused.

/// The longest key and the longest name of a handler, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// The longest payload, in bytes of JSON text.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// The longest context of a trace, in bytes.
pub const MAX_TRACE_BYTES: usize = 1_024;
/// The longest text of an error that a store keeps, in bytes. Of a longer one it keeps the
/// beginning, and says how long it was.
pub const MAX_ERROR_BYTES: usize = 64 * 1024;

/// The greatest priority of a job. The least one is as far below zero.
pub const MAX_PRIORITY: i8 = 9;

/// The most jobs that a job is put [after](crate::Put::after), and the most that are put after one.
pub const MAX_LINKS: usize = 1_000;

/// A value that no store accepts, and why.
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::store::{Invalid, check_key};
///
/// assert_eq!(check_key("review/17"), Ok(()));
/// assert_eq!(check_key(""), Err(Invalid::EmptyKey));
/// assert_eq!(check_key("a\0b"), Err(Invalid::NulInKey));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// The key has no byte.
    #[error("the key is empty")]
    EmptyKey,
    /// The key has more than [`MAX_KEY_BYTES`].
    #[error("the key has {bytes} bytes, and the most is {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The key has a NUL character.
    #[error("the key has a NUL character")]
    NulInKey,
    /// The name of the handler has no byte.
    #[error("the name of the handler is empty")]
    EmptyName,
    /// The name of the handler has more than [`MAX_KEY_BYTES`].
    #[error("the name of the handler has {bytes} bytes, and the most is {MAX_KEY_BYTES}")]
    NameTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The name of the handler has a NUL character.
    #[error("the name of the handler has a NUL character")]
    NulInName,
    /// The group has no byte.
    #[error("the group is empty")]
    EmptyGroup,
    /// The group has more than [`MAX_KEY_BYTES`].
    #[error("the group has {bytes} bytes, and the most is {MAX_KEY_BYTES}")]
    GroupTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The group has a NUL character.
    #[error("the group has a NUL character")]
    NulInGroup,
    /// The context of the trace has more than [`MAX_TRACE_BYTES`].
    #[error("the context of the trace has {bytes} bytes, and the most is {MAX_TRACE_BYTES}")]
    TraceTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The context of the trace has a NUL character.
    #[error("the context of the trace has a NUL character")]
    NulInTrace,
    /// The priority is beyond [`MAX_PRIORITY`].
    #[error("the priority is {priority}, and the least and the greatest are -{MAX_PRIORITY} and {MAX_PRIORITY}")]
    PriorityOutOfRange {
        /// The priority.
        priority: i8,
    },
    /// A recurring job with a last instant: each of its runs has one, by a time after its due time.
    #[error("a recurring job expires a time after each due time, at no instant")]
    ExpiresWithSchedule,
    /// A recurring job that is put after others.
    #[error("a recurring job is put after no other job")]
    AfterWithSchedule,
    /// A job that is put after the job with its own key.
    #[error("a job cannot be put after the job with its own key")]
    AfterItself,
    /// A job that is put after more than [`MAX_LINKS`] others.
    #[error("the job is put after {keys} others, and the most is {MAX_LINKS}")]
    TooManyPredecessors {
        /// The number of keys.
        keys: usize,
    },
    /// The payload has more than [`MAX_PAYLOAD_BYTES`] of JSON text.
    #[error("the payload has {bytes} bytes, and the most is {MAX_PAYLOAD_BYTES}")]
    PayloadTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// A text inside of the payload has a NUL character.
    #[error("the payload has a NUL character")]
    NulInPayload,
    /// The payload is no JSON text.
    #[error("the payload is no JSON text")]
    PayloadNotJson,
    /// The schedule has a rule of the user's own, and the store keeps schedules as text.
    #[error("a schedule with a rule of one's own cannot be stored: the store keeps schedules as text")]
    RuleNotStorable,
    /// A due time before 1970 or after 9999.
    #[error("the instant is before 1970 or after 9999")]
    InstantOutOfRange,
    /// The schedule has no occurrence any more by the clock of the store.
    #[error("the schedule has no occurrence any more")]
    NoOccurrence,
}
