//! How often and how late a failed attempt is repeated.

use std::any::Any;
use std::cell::Cell;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::debug::debug_of;
use crate::unwind::caught;

/// How often and how late a failed attempt is repeated. Waits grow by a factor, up to a longest
/// wait, and each is longer by a random part: jobs with failures at the same instant are not
/// repeated together. Or waits come from a [list](Self::waits). A [rule](Self::adjust) may look at
/// the error.
///
/// A job that waits for another attempt keeps its key. A run of a recurring job keeps back no later
/// occurrence for longer than the schedule does: see [`Overlap`](crate::Overlap).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use timerqueue_scheduler::Retry;
///
/// let retry = Retry::new(4).first(Duration::from_secs(2)).factor(3.0).longest(Duration::from_secs(10)).jitter(0.0);
/// let waits: Vec<_> = (1..=4).map(|attempt| retry.wait_after(attempt, 0)).collect();
/// let seconds = |s| Some(Duration::from_secs(s));
/// assert_eq!(waits, [seconds(2), seconds(6), seconds(10), None]); // the fourth attempt is the last
/// assert_eq!(Retry::never().wait_after(1, 0), None);
/// ```
#[derive(Clone)]
#[must_use]
pub struct Retry {
    waits: Waits,
    longest: Duration,
    jitter: f64,
    rule: Option<Rule>,
}

/// The waits before their limit and their random part.
#[derive(Clone, Debug)]
enum Waits {
    Growing { attempts: u32, first: Duration, factor: f64 },
    List(Arc<[Duration]>),
}

type Rule = Arc<dyn Fn(&Failed<'_>) -> Option<Duration> + Send + Sync>;

impl Retry {
    /// The attempts of the default.
    pub const ATTEMPTS: u32 = 25;
    /// The longest wait, unless [`longest`](Self::longest) sets another: three days.
    pub const LONGEST: Duration = Duration::from_secs(3 * 86_400);

    /// Up to this number of attempts, with the first. Zero counts as one. An attempt during which
    /// the process ends is no failure, and does not count: it is among the
    /// [crashes](crate::JobInfo::crashes) of the job. The first wait is a second, each further wait
    /// twice as long, the longest [three days](Self::LONGEST), and each up to a quarter longer by
    /// chance.
    pub fn new(attempts: u32) -> Self {
        let waits = Waits::Growing { attempts: attempts.max(1), first: Duration::from_secs(1), factor: 2.0 };
        Self { waits, longest: Self::LONGEST, jitter: 0.25, rule: None }
    }

    /// One attempt.
    pub fn never() -> Self {
        Self::new(1)
    }

    /// These waits, one after another, without a random part: one attempt more than there are
    /// waits. [`first`](Self::first) and [`factor`](Self::factor) change nothing then.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_scheduler::Retry;
    ///
    /// let retry = Retry::waits([10, 60, 3_600].map(Duration::from_secs));
    /// assert_eq!(retry.wait_after(2, 0), Some(Duration::from_secs(60)));
    /// assert_eq!(retry.wait_after(4, 0), None);
    /// ```
    pub fn waits(waits: impl IntoIterator<Item = Duration>) -> Self {
        let waits = Waits::List(waits.into_iter().collect());
        Self { waits, longest: Duration::MAX, jitter: 0.0, rule: None }
    }

    /// The wait after the first attempt.
    pub fn first(mut self, wait: Duration) -> Self {
        if let Waits::Growing { first, .. } = &mut self.waits {
            *first = wait;
        }
        self
    }

    /// Each wait is longer than the wait before by this factor. A factor below 1.0 counts as 1.0,
    /// as NaN does.
    pub fn factor(mut self, by: f64) -> Self {
        if let Waits::Growing { factor, .. } = &mut self.waits {
            *factor = by.max(1.0); // `max` gives 1.0 for NaN
        }
        self
    }

    /// No wait is longer than this, before its random part.
    pub fn longest(self, wait: Duration) -> Self {
        Self { longest: wait, ..self }
    }

    /// Each wait is longer by a random part of itself, up to this fraction, from 0.0 to 1.0. The
    /// part depends on the [seed](crate::Builder::seed) of the scheduler, the job and the attempt
    /// alone.
    pub fn jitter(self, fraction: f64) -> Self {
        Self { jitter: if fraction.is_nan() { 0.0 } else { fraction.clamp(0.0, 1.0) }, ..self }
    }

    /// A rule that looks at each failed attempt, and says how long the job waits for the next one.
    /// `None`: the job is dead. [`Failed::wait`] is what happens without the rule. It runs on the
    /// thread on which the attempt has ended, with no lock held, and not for an error that is
    /// [`Permanent`]. If it panics, its answer is `Failed::wait`.
    ///
    /// # Examples
    ///
    /// A server that says when to come back, and a job that gives up at noon of the second day:
    ///
    /// ```
    /// use std::time::Duration;
    /// use timerqueue_scheduler::{Handler, Retry, Run};
    ///
    /// #[derive(Debug)]
    /// struct Busy {
    ///     seconds: u64,
    /// }
    /// # impl std::fmt::Display for Busy {
    /// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "busy for {} s", self.seconds) }
    /// # }
    ///
    /// let retry = Retry::default().adjust(|failed| match failed.downcast_ref::<Busy>() {
    ///     Some(busy) => Some(Duration::from_secs(busy.seconds)),
    ///     None if failed.error().contains("410 Gone") => None,
    ///     None => failed.wait(),
    /// });
    /// let handler = Handler::new("call", |_: u64, _: &Run| Err::<(), _>(Busy { seconds: 30 })).retry(retry);
    /// # drop(handler);
    /// ```
    pub fn adjust(self, rule: impl Fn(&Failed<'_>) -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self { rule: Some(Arc::new(rule)), ..self }
    }

    fn attempts(&self) -> u32 {
        match &self.waits {
            Waits::Growing { attempts, .. } => *attempts,
            Waits::List(waits) => u32::try_from(waits.len()).unwrap_or(u32::MAX).saturating_add(1),
        }
    }

    /// The wait after this attempt, counted from 1, without a [rule](Self::adjust). `None`: no
    /// attempt follows. `random` decides the random part.
    #[must_use]
    pub fn wait_after(&self, attempt: u32, random: u64) -> Option<Duration> {
        self.wait_of(None, attempt, random)
    }

    /// As [`wait_after`](Self::wait_after), of a job with its own number of attempts. Beyond the
    /// end of a list the last wait of the list comes again.
    pub(crate) fn wait_of(&self, most: Option<u32>, attempt: u32, random: u64) -> Option<Duration> {
        if attempt >= most.unwrap_or_else(|| self.attempts()) {
            return None;
        }
        let before = attempt.saturating_sub(1);
        let grown = match &self.waits {
            // Zero times infinity is not a number.
            Waits::Growing { first, .. } if first.is_zero() => 0.0,
            Waits::Growing { first, factor, .. } => {
                first.as_secs_f64() * factor.powi(i32::try_from(before).unwrap_or(i32::MAX))
            }
            Waits::List(waits) => {
                waits.get(before as usize).or(waits.last()).copied().unwrap_or_default().as_secs_f64()
            }
        };
        let longest = self.longest.as_secs_f64();
        let part = (random >> 11) as f64 / (1_u64 << 53) as f64; // at least 0, below 1
        let wait = if grown < longest { grown } else { longest } * (1.0 + self.jitter * part);
        Some(Duration::try_from_secs_f64(wait).unwrap_or(self.longest))
    }

    /// What follows a failed attempt, by the rule too.
    pub(crate) fn decide(&self, failed: &Failed<'_>) -> Option<Duration> {
        match &self.rule {
            Some(rule) => caught(|| rule(failed)).unwrap_or(failed.wait),
            None => failed.wait,
        }
    }
}

impl Default for Retry {
    /// [25](Self::ATTEMPTS) attempts over three weeks: waits of 1 s, 2 s, 4 s and so on up to
    /// [three days](Self::LONGEST).
    fn default() -> Self {
        Self::new(Self::ATTEMPTS)
    }
}

debug_of!(Retry, |retry|
    waits: retry.waits, longest: retry.longest, jitter: retry.jitter, has_rule: retry.rule.is_some()
);

/// A failed attempt, as a rule of [`Retry::adjust`] sees it.
pub struct Failed<'a> {
    pub(crate) key: &'a str,
    pub(crate) name: &'a str,
    pub(crate) attempt: u32,
    pub(crate) wait: Option<Duration>,
    pub(crate) error: &'a HandlerError,
}

impl Failed<'_> {
    /// The key of the job.
    #[must_use]
    pub fn key(&self) -> &str {
        self.key
    }

    /// The name of the handler.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name
    }

    /// The number of the attempt, from 1. Attempts that the end of the process has cut off do not
    /// count here.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The text of the error, or of the panic.
    #[must_use]
    pub fn error(&self) -> &str {
        &self.error.text
    }

    /// Whether the handler panicked.
    #[must_use]
    pub fn is_panic(&self) -> bool {
        self.error.is_panic
    }

    /// The error that the handler has returned, if it has this type. An `anyhow::Error` is one
    /// itself, and has a method of this name for what it holds.
    #[must_use]
    pub fn downcast_ref<E: 'static>(&self) -> Option<&E> {
        self.error.value.as_deref()?.downcast_ref()
    }

    /// What follows without the rule: the wait with its random part, or no further attempt.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        self.wait
    }
}

debug_of!(Failed<'_>, |failed|
    key: failed.key, name: failed.name, attempt: failed.attempt, error: failed.error(), wait: failed.wait
);

/// The error of a failed attempt: its text, and the value itself for [`Retry::adjust`]. Made of
/// any error that can be shown, by [`IntoOutcome`](crate::IntoOutcome).
///
/// # Examples
///
/// ```
/// use timerqueue_scheduler::{HandlerError, Permanent};
///
/// assert!(!HandlerError::new("busy").is_permanent());
/// assert!(HandlerError::new(Permanent::new("gone")).is_permanent());
/// ```
pub struct HandlerError {
    pub(crate) text: String,
    value: Option<Box<dyn Any>>,
    is_permanent: bool,
    pub(crate) is_panic: bool,
    /// What follows, if that is known already: a wait, or no attempt.
    pub(crate) next: Option<Option<Duration>>,
}

impl HandlerError {
    /// The error is kept as `{:#}` writes it: with its causes, if it is one of `anyhow` or `eyre`.
    pub fn new<E: fmt::Display + 'static>(error: E) -> Self {
        let _ = SHOWN.try_with(|shown| shown.set(false));
        let text = format!("{error:#}");
        let is_permanent = SHOWN.try_with(Cell::get).unwrap_or_default();
        Self { value: Some(Box::new(error)), is_permanent, ..Self::of_text(text) }
    }

    /// An error without a value.
    pub(crate) fn of_text(text: String) -> Self {
        Self { text, value: None, is_permanent: false, is_panic: false, next: None }
    }

    pub(crate) fn of_panic(text: String) -> Self {
        Self { is_panic: true, ..Self::of_text(text) }
    }

    /// A payload that the handler does not read: another attempt would fail as well.
    pub(crate) fn unreadable(reason: impl fmt::Display) -> Self {
        Self { is_permanent: true, ..Self::of_text(format!("the payload cannot be read: {reason}")) }
    }

    /// What follows is known already.
    pub(crate) fn decided(text: String, wait: Option<Duration>, is_panic: bool) -> Self {
        Self { is_panic, next: Some(wait), ..Self::of_text(text) }
    }

    /// Whether the error is, or shows, one that is [`Permanent`].
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        self.is_permanent
    }
}

debug_of!(HandlerError, |error| text: error.text, is_permanent: error.is_permanent);

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

thread_local! {
    /// A [`Permanent`] has been shown since this was set to false. The type of an error that holds
    /// one is not known here, but all of them show it as a part of themselves.
    static SHOWN: Cell<bool> = const { Cell::new(false) };
}

/// An error after which no attempt follows: the job is dead at once. It is found inside of other
/// errors too, if they show it: those of `anyhow` and `eyre` with their contexts, boxed errors, and
/// enums with `#[from]` and `#[error(transparent)]` or `{0}`. An error that was made a text before
/// is an ordinary one.
///
/// # Examples
///
/// A payload without a meaning fails for good, a server that is away does not:
///
/// ```
/// # use std::time::Duration;
/// # use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Permanent, Run, Scheduler};
///
/// fn charge(amount: &str) -> Result<(), Box<dyn std::error::Error>> {
///     let amount: u64 = amount.parse().map_err(Permanent::new)?;
///     Err(format!("the bank is closed for {amount}"))?
/// }
///
/// # let clock = ManualClock::new();
/// # let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// # let builder = Scheduler::builder().runtime(&runtime);
/// let scheduler = builder.handler("charge", |amount: String, _: &Run| charge(&amount)).start()?;
/// let _ = scheduler.put_to("charge", "12").send().wait()?;
/// let _ = scheduler.put_to("charge", "twelve").send().wait()?;
/// # clock.advance(Duration::ZERO);
/// let stats = scheduler.stats().wait()?;
/// assert_eq!((stats.retried, stats.died), (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Permanent(Box<dyn Error + Send + Sync>);

impl Permanent {
    /// Of an error, or of a text.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(error.into())
    }

    /// The error.
    #[must_use]
    pub fn into_inner(self) -> Box<dyn Error + Send + Sync> {
        self.0
    }
}

impl fmt::Display for Permanent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let _ = SHOWN.try_with(|shown| shown.set(true));
        fmt::Display::fmt(&self.0, f)
    }
}

impl Error for Permanent {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A random number of these three (SplitMix64).
pub(crate) fn mixed(seed: u64, job: u64, attempt: u32) -> u64 {
    let mut x = seed ^ job.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(attempt).rotate_left(32);
    for _ in 0..2 {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}
