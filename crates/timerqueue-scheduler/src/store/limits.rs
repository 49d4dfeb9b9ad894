//! What every store accepts: the same limits and the same errors on all of them.
//!
//! Ground rules. Each store calls [`check`] for each operation before anything else (J12). The
//! limits are those of the strictest store: PostgreSQL takes no NUL in a text or in JSON, and an
//! index of PostgreSQL takes no long key.

use std::fmt;

use super::{Mutation, Op, When};

/// The longest key and the longest name of a handler, in bytes.
pub const MAX_KEY_BYTES: usize = 512;
/// The longest payload, in bytes of JSON text.
pub const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// The longest text of an error that a store keeps, in bytes. Of a longer one it keeps the
/// beginning, and says how long it was.
pub const MAX_ERROR_BYTES: usize = 64 * 1024;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Invalid {
    /// The key has no byte.
    EmptyKey,
    /// The key has more than [`MAX_KEY_BYTES`].
    KeyTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The key has a NUL character.
    NulInKey,
    /// The name of the handler has no byte.
    EmptyName,
    /// The name of the handler has more than [`MAX_KEY_BYTES`].
    NameTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The name of the handler has a NUL character.
    NulInName,
    /// The affinity has no byte.
    EmptyAffinity,
    /// The affinity has more than [`MAX_KEY_BYTES`].
    AffinityTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// The affinity has a NUL character.
    NulInAffinity,
    /// The payload has more than [`MAX_PAYLOAD_BYTES`] of JSON text.
    PayloadTooLong {
        /// The length in bytes.
        bytes: usize,
    },
    /// A text inside of the payload has a NUL character.
    NulInPayload,
    /// The payload is no JSON text.
    PayloadNotJson,
    /// The schedule has a rule of the user's own, and the store keeps schedules as text.
    RuleNotStorable,
    /// A due time before 1970 or after 9999.
    InstantOutOfRange,
    /// The schedule has no occurrence any more by the clock of the store.
    NoOccurrence,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EmptyKey => f.write_str("the key is empty"),
            Self::KeyTooLong { bytes } => write!(f, "the key has {bytes} bytes, and the most is {MAX_KEY_BYTES}"),
            Self::NulInKey => f.write_str("the key has a NUL character"),
            Self::EmptyName => f.write_str("the name of the handler is empty"),
            Self::NameTooLong { bytes } => {
                write!(f, "the name of the handler has {bytes} bytes, and the most is {MAX_KEY_BYTES}")
            }
            Self::NulInName => f.write_str("the name of the handler has a NUL character"),
            Self::EmptyAffinity => f.write_str("the affinity is empty"),
            Self::AffinityTooLong { bytes } => {
                write!(f, "the affinity has {bytes} bytes, and the most is {MAX_KEY_BYTES}")
            }
            Self::NulInAffinity => f.write_str("the affinity has a NUL character"),
            Self::PayloadTooLong { bytes } => {
                write!(f, "the payload has {bytes} bytes, and the most is {MAX_PAYLOAD_BYTES}")
            }
            Self::NulInPayload => f.write_str("the payload has a NUL character"),
            Self::PayloadNotJson => f.write_str("the payload is no JSON text"),
            Self::RuleNotStorable => {
                f.write_str("a schedule with a rule of one's own cannot be stored: the store keeps schedules as text")
            }
            Self::InstantOutOfRange => f.write_str("the instant is before 1970 or after 9999"),
            Self::NoOccurrence => f.write_str("the schedule has no occurrence any more"),
        }
    }
}

impl std::error::Error for Invalid {}

/// Whether a store accepts the key of a job.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_key(key: &str) -> Result<(), Invalid> {
    match key.len() {
        0 => Err(Invalid::EmptyKey),
        bytes if bytes > MAX_KEY_BYTES => Err(Invalid::KeyTooLong { bytes }),
        _ if key.contains('\0') => Err(Invalid::NulInKey),
        _ => Ok(()),
    }
}

/// Whether a store accepts the name of a handler.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_name(name: &str) -> Result<(), Invalid> {
    match name.len() {
        0 => Err(Invalid::EmptyName),
        bytes if bytes > MAX_KEY_BYTES => Err(Invalid::NameTooLong { bytes }),
        _ if name.contains('\0') => Err(Invalid::NulInName),
        _ => Ok(()),
    }
}

/// Whether a store accepts the affinity of a job.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_affinity(affinity: &str) -> Result<(), Invalid> {
    match affinity.len() {
        0 => Err(Invalid::EmptyAffinity),
        bytes if bytes > MAX_KEY_BYTES => Err(Invalid::AffinityTooLong { bytes }),
        _ if affinity.contains('\0') => Err(Invalid::NulInAffinity),
        _ => Ok(()),
    }
}

/// Whether a store accepts a payload, which is JSON text.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_payload(payload: &str) -> Result<(), Invalid> {
    if payload.len() > MAX_PAYLOAD_BYTES {
        return Err(Invalid::PayloadTooLong { bytes: payload.len() });
    }
    if serde_json::from_str::<serde::de::IgnoredAny>(payload).is_err() {
        return Err(Invalid::PayloadNotJson);
    }
    if escapes_nul(payload) { Err(Invalid::NulInPayload) } else { Ok(()) }
}

/// Whether a text inside of a JSON text has a NUL: JSON writes it as `\u0000` only.
fn escapes_nul(json: &str) -> bool {
    let mut rest = json;
    while let Some(at) = rest.find('\\') {
        rest = &rest[at + 1..];
        if rest.starts_with("u0000") {
            return true;
        }
        // The escaped character may be a backslash, which begins no escape of its own.
        rest = rest.get(1..).unwrap_or_default();
    }
    false
}

/// Whether a store accepts an operation.
pub(crate) fn check(op: &Op) -> Result<(), Invalid> {
    match op {
        Op::Put(new) => {
            check_key(&new.key)?;
            check_name(&new.name)?;
            check_payload(&new.payload)?;
            new.affinity.as_deref().map_or(Ok(()), check_affinity)?;
            check_when(new.when)
        }
        Op::Key { key, mutation } => {
            check_key(key)?;
            if let Mutation::Move(when) = mutation { check_when(*when) } else { Ok(()) }
        }
        Op::PauseHandler { name, .. } => check_name(name),
        Op::Settle(_) | Op::Renew { .. } | Op::Advance(_) | Op::Revive(_) | Op::Discard(_) | Op::Bind(_) => Ok(()),
    }
}

fn check_when(when: When) -> Result<(), Invalid> {
    match when {
        When::At(at) if at < super::Micros::FIRST || at > super::Micros::LAST => Err(Invalid::InstantOutOfRange),
        When::At(_) | When::After(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_found_in_any_text_and_an_escaped_backslash_is_none() {
        for (payload, answer) in [
            (r#""a""#, Ok(())),
            (r#""\u0000""#, Err(Invalid::NulInPayload)),
            (r#"{"a\u0000":1}"#, Err(Invalid::NulInPayload)),
            (r#""\\u0000""#, Ok(())),
            (r#""\\\u0000""#, Err(Invalid::NulInPayload)),
            (r#""\u00001""#, Err(Invalid::NulInPayload)),
            (r#""\u0001é\\""#, Ok(())),
            ("", Err(Invalid::PayloadNotJson)),
            ("\"\0\"", Err(Invalid::PayloadNotJson)),
            ("1 2", Err(Invalid::PayloadNotJson)),
        ] {
            assert_eq!(check_payload(payload), answer, "{payload}");
        }
    }
}
