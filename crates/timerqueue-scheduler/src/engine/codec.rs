//! What becomes of payloads between a program and the store.
//!
//! Ground rules. A codec is code of the user's: it runs in the call of a put and before a handler,
//! with no lock held (J11). An encoded payload says so by itself, so payloads from before the
//! codec, and of programs without it, are read as they are.

use std::borrow::Cow;
use std::error::Error;

use serde::{Deserialize, Serialize};

use super::core::Core;
use super::retry::HandlerError;
use crate::unwind::caught;

/// What turns payloads into what the store keeps, and back: encryption, compression, a reference to
/// a large value kept elsewhere. Set by [`Builder::codec`](crate::Builder::codec).
///
/// A codec works on text, for all handlers of the scheduler: it gets the payload as JSON, and gives
/// any text without NUL, such as base64. The store keeps it as `{"timerqueue.encoded":"…"}`, which
/// is JSON as every payload is: at most
/// [`MAX_PAYLOAD_BYTES`](crate::store::MAX_PAYLOAD_BYTES) of it. Lists, the page and the command
/// show it so. Payloads that are not encoded are read as they are: those of jobs from before the
/// codec, of the SQL function `put`, of the command and of the page.
///
/// Values of handlers, progress and errors are kept as they are.
///
/// Another format for one type, such as protobuf, needs no codec: its `Serialize` and `Deserialize`
/// write and read a text.
///
/// All schedulers of a store that run the handler need the codec. Where it is missing, the attempt
/// fails, and is repeated as [`Retry`](crate::Retry) says; so is one whose `decode` fails, unless
/// the error is [`Permanent`](crate::Permanent).
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Codec, Run, Scheduler};
///
/// struct Reversed; // a real one encrypts
///
/// impl Codec for Reversed {
///     fn encode(&self, json: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(json.chars().rev().collect())
///     }
///
///     fn decode(&self, text: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
///         Ok(text.chars().rev().collect())
///     }
/// }
///
/// # let clock = ManualClock::new();
/// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// # let builder = Scheduler::builder().runtime(&runtime);
/// let mail = |to: String, _: &Run| assert_eq!(to, "ann");
/// let scheduler = builder.codec(Reversed).handler("mail", mail).start()?;
/// let _ = scheduler.put_to("mail", "ann").key("a").send().wait()?;
/// assert_eq!(&*scheduler.get("a").wait()?.unwrap().payload, r#"{"timerqueue.encoded":"\"nna\""}"#);
/// # clock.advance(Duration::ZERO);
/// # assert_eq!(scheduler.stats().wait()?.done, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Codec: Send + Sync + 'static {
    /// The text that the store keeps. On the thread of the call that puts the job.
    ///
    /// # Errors
    ///
    /// The job is not put: [`Error::NotSerializable`](crate::Error::NotSerializable), with the text
    /// of the error. So it is after a panic.
    fn encode(&self, json: &str) -> Result<String, Box<dyn Error + Send + Sync>>;

    /// The JSON text that [`encode`](Self::encode) was given. On the thread of the handler, or on
    /// its executor.
    ///
    /// # Errors
    ///
    /// A failed attempt. So is a panic.
    fn decode(&self, text: &str) -> Result<String, Box<dyn Error + Send + Sync>>;
}

/// How the store keeps an encoded payload.
#[derive(Serialize, Deserialize)]
struct Encoded<'a> {
    #[serde(rename = "timerqueue.encoded", borrow)]
    text: Cow<'a, str>,
}

/// How each of these begins that this crate writes.
const BEGIN: &str = "{\"timerqueue.encoded\":";

impl Core {
    /// A payload as the store keeps it. The error: why it cannot be written.
    pub(crate) fn encoded(&self, payload: &(impl Serialize + ?Sized)) -> Result<String, String> {
        let json = serde_json::to_string(payload).map_err(|error| error.to_string())?;
        let Some(codec) = &self.settings.codec else { return Ok(json) };
        let text = caught(|| codec.encode(&json).map_err(|error| error.to_string()))??;
        serde_json::to_string(&Encoded { text: text.into() }).map_err(|error| error.to_string())
    }

    /// The JSON text of a payload.
    pub(super) fn decoded<'p>(&self, payload: &'p str) -> Result<Cow<'p, str>, HandlerError> {
        if !payload.starts_with(BEGIN) {
            return Ok(Cow::Borrowed(payload));
        }
        let encoded: Encoded<'_> = serde_json::from_str(payload).map_err(HandlerError::unreadable)?;
        let Some(codec) = &self.settings.codec else {
            return Err(HandlerError::of_text("the payload is encoded, and the scheduler has no codec".to_owned()));
        };
        codec.decode(&encoded.text).map(Cow::Owned).map_err(HandlerError::new)
    }
}
