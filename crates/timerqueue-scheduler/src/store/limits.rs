//! What every store accepts: the same limits and the same errors on all of them.
//!
//! Ground rules. Each store calls [`check`] for each operation before anything else (J12). The
//! limits are those of the strictest store: PostgreSQL takes no NUL in a text or in JSON, and an
//! index of PostgreSQL takes no long key.

use super::{
    After, Expiry, Invalid, MAX_KEY_BYTES, MAX_LINKS, MAX_PAYLOAD_BYTES, MAX_PRIORITY, MAX_TRACE_BYTES, Micros,
    Mutation, NewJob, Op, When,
};

/// Whether a store accepts the key of a job.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_key(key: &str) -> Result<(), Invalid> {
    check_word(key, Invalid::EmptyKey, |bytes| Invalid::KeyTooLong { bytes }, Invalid::NulInKey)
}

/// Whether a store accepts the name of a handler.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_name(name: &str) -> Result<(), Invalid> {
    check_word(name, Invalid::EmptyName, |bytes| Invalid::NameTooLong { bytes }, Invalid::NulInName)
}

/// Whether a store accepts the group of a job.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_group(group: &str) -> Result<(), Invalid> {
    check_word(group, Invalid::EmptyGroup, |bytes| Invalid::GroupTooLong { bytes }, Invalid::NulInGroup)
}

fn check_word(word: &str, empty: Invalid, long: fn(usize) -> Invalid, nul: Invalid) -> Result<(), Invalid> {
    match word.len() {
        0 => Err(empty),
        bytes if bytes > MAX_KEY_BYTES => Err(long(bytes)),
        _ if word.contains('\0') => Err(nul),
        _ => Ok(()),
    }
}

/// Whether a store accepts the context of a trace.
///
/// # Errors
///
/// [`Invalid`], with the reason.
pub fn check_trace(context: &str) -> Result<(), Invalid> {
    match context.len() {
        bytes if bytes > MAX_TRACE_BYTES => Err(Invalid::TraceTooLong { bytes }),
        _ if context.contains('\0') => Err(Invalid::NulInTrace),
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
            new.group.as_deref().map_or(Ok(()), check_group)?;
            new.trace.as_deref().map_or(Ok(()), check_trace)?;
            check_priority(new.priority)?;
            new.after.as_ref().map_or(Ok(()), |after| check_after(after, new))?;
            match new.expires {
                Some(Expiry::At(_)) if new.recurrence.is_some() => return Err(Invalid::ExpiresWithSchedule),
                Some(Expiry::At(when)) => check_when(when)?,
                Some(Expiry::AfterDue(_)) | None => {}
            }
            check_when(new.when)
        }
        Op::Key { key, mutation } => {
            check_key(key)?;
            check_mutation(mutation)
        }
        Op::Job { mutation, .. } => check_mutation(mutation),
        Op::PauseHandler { name, .. } => check_name(name),
        Op::Progress { progress, .. } => check_payload(progress),
        Op::Settle(_) | Op::Advance(_) | Op::Revive(_) | Op::Discard(_) | Op::Doubt(_) | Op::Bind(_) => Ok(()),
    }
}

fn check_after(after: &After, new: &NewJob) -> Result<(), Invalid> {
    match after.keys.len() {
        _ if new.recurrence.is_some() => return Err(Invalid::AfterWithSchedule),
        keys if keys > MAX_LINKS => return Err(Invalid::TooManyPredecessors { keys }),
        _ if after.keys.contains(&new.key) => return Err(Invalid::AfterItself),
        _ => {}
    }
    after.keys.iter().try_for_each(|key| check_key(key))
}

fn check_mutation(mutation: &Mutation) -> Result<(), Invalid> {
    match mutation {
        Mutation::Move(when) => check_when(*when),
        Mutation::Edit(edit) => {
            edit.payload.as_deref().map_or(Ok(()), check_payload)?;
            edit.priority.map_or(Ok(()), check_priority)?;
            edit.when.map_or(Ok(()), check_when)
        }
        _ => Ok(()),
    }
}

fn check_priority(priority: i8) -> Result<(), Invalid> {
    let is_in_range = (-MAX_PRIORITY..=MAX_PRIORITY).contains(&priority);
    if is_in_range { Ok(()) } else { Err(Invalid::PriorityOutOfRange { priority }) }
}

fn check_when(when: When) -> Result<(), Invalid> {
    match when {
        When::At(at) if at < Micros::FIRST || at > Micros::LAST => Err(Invalid::InstantOutOfRange),
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
