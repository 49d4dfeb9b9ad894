//! The feature `tracing`: the span of a callback, and events of a runtime.
//!
//! Ground rules. A subscriber is user code: it runs through [`ask`], which contains its panics,
//! with no lock held. Growth is told by a job of the pool, since the thread that adds threads must
//! go on. While a subscriber runs, timers that it makes keep no span: so no subscriber calls
//! itself.
//!
//! Without a subscriber, a new timer and a firing read one static variable each ([`wants`]). The
//! span of the thread that makes a timer is kept in the callback's own payload, so a timer made
//! outside of all spans has no place for one. [`super::flow`] chooses the payload.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use tracing::dispatcher::{DefaultGuard, set_default};
use tracing::field::display;
use tracing::level_filters::LevelFilter;
use tracing::span::Id;
use tracing::{Dispatch, Span, error, info, info_span, warn};

use super::label::{Label, Settings, Slow};
use super::{Engine, EntryRef, OwnedEntry, entry, ops};
use crate::queue::MissedTicks;
use crate::sync::unmodelled::{AtomicBool, AtomicI64, AtomicU64, OnceLock};
use crate::sync::{Arc, Ordering};
use crate::unwind::catch_all;

/// The limit of a slow callback, where no hook has set one.
const SLOW: Duration = Duration::from_millis(100);

thread_local! {
    /// A subscriber runs on this thread, called by this module.
    static ASKING: Cell<bool> = const { Cell::new(false) };
    /// The timer whose callback has just ended, if its panic or its length was told in its span.
    static TOLD: Cell<*const ()> = const { Cell::new(std::ptr::null()) };
}

/// Whether any subscriber may want this level: a load of a static variable.
#[inline]
fn wants(level: LevelFilter) -> bool {
    LevelFilter::current() >= level
}

/// Runs code of a subscriber, unless this thread runs such code already.
fn ask(code: impl FnOnce()) {
    if !ASKING.replace(true) {
        catch_all(code);
        ASKING.set(false);
    }
}

/// Given back through [`ask`].
struct Held(Option<Span>);

impl Drop for Held {
    fn drop(&mut self) {
        let span = self.0.take();
        ask(move || drop(span));
    }
}

/// The span in which a timer was made, with the facts of the timer for the spans of its callbacks.
pub(crate) struct Context {
    span: Held,
    label: Option<Arc<Label>>,
    limit: Duration,
}

impl Context {
    /// `None`: the thread is in no span.
    #[inline]
    pub(super) fn here(engine: &Engine) -> Option<Self> {
        if LevelFilter::current() == LevelFilter::OFF { None } else { Self::capture(engine) }
    }

    #[cold]
    #[inline(never)]
    fn capture(engine: &Engine) -> Option<Self> {
        let mut span = Held(None);
        ask(|| span.0 = Some(Span::current()));
        if span.0.as_ref().is_none_or(Span::is_disabled) {
            return None;
        }
        Some(Self { span, label: None, limit: engine.hooks.slow.as_ref().map_or(SLOW, |slow| slow.limit) })
    }

    /// For a timer with these settings. (Not an argument of [`Self::here`]: without a reference to
    /// the settings, the compiler sees that a timer without a name has none.)
    pub(super) fn of(mut self, settings: &Settings) -> Self {
        self.label.clone_from(&settings.label);
        self
    }

    /// Runs a callback in a span of its own, on the subscriber of the span in which its timer was
    /// made. `timer`: the address of the entry.
    pub(super) fn run(&self, timer: *const (), late: Option<Duration>, callback: impl FnOnce()) {
        TOLD.set(std::ptr::null());
        let mut scope = Scope::default();
        ask(|| scope.open(self, late));
        scope.with_span(|id, dispatch| dispatch.enter(id));
        let begun = Instant::now();
        let panicked = catch_unwind(AssertUnwindSafe(callback)).err();
        let took = begun.elapsed();
        if let Some(payload) = &panicked {
            tell_panic(&**payload, self.label.as_deref());
        }
        let slow = took > self.limit && wants(LevelFilter::WARN);
        if slow {
            tell_slow(took, late, self.label.as_deref());
        }
        drop(scope);
        if slow || panicked.is_some() {
            TOLD.set(timer);
        }
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }
}

/// The span of a callback that runs, and the subscriber of its thread meanwhile.
///
/// A span that closes while a panic of its subscriber unwinds would abort the process, if the
/// subscriber panics again. So each step is a call of its own, and the span outlives them all.
#[derive(Default)]
struct Scope {
    default: Option<DefaultGuard>,
    span: Option<Span>,
}

impl Scope {
    fn open(&mut self, context: &Context, late: Option<Duration>) {
        let Some(made_in) = &context.span.0 else { return };
        let of_maker = made_in.with_subscriber(|(id, dispatch)| (id.clone(), dispatch.clone()));
        let Some((id, dispatch)) = of_maker else { return };
        self.default = Some(set_default(&dispatch));
        let late_us = late.map(|late| late.as_micros() as u64);
        let (name, site) = parts(context.label.as_deref());
        let span = info_span!(
            target: "timerqueue",
            parent: None,
            "callback",
            timer.name = name,
            timer.site = site.map(display),
            timer.late_us = late_us
        );
        self.span.insert(span).follows_from(id);
    }

    fn with_span(&self, step: impl FnOnce(&Id, &Dispatch)) {
        if let Some(span) = &self.span {
            ask(|| _ = span.with_subscriber(|(id, dispatch)| step(id, dispatch)));
        }
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        self.with_span(|id, dispatch| dispatch.exit(id));
        let (default, span) = (self.default.take(), self.span.take());
        // After a panic at the end of the span, the subscriber of the thread is put back all the
        // same.
        ask(move || drop(span));
        ask(move || drop(default));
    }
}

/// Name and site, for the fields of spans and events.
fn parts(label: Option<&Label>) -> (Option<&str>, Option<&'static std::panic::Location<'static>>) {
    (label.map(|label| &*label.name), label.map(|label| label.site))
}

/// Whether the callback of this timer, which has just ended on this thread, was told of in its
/// span.
pub(super) fn was_told(timer: *const ()) -> bool {
    TOLD.replace(std::ptr::null()) == timer
}

/// The limit for a callback on a runtime without a hook.
#[inline]
pub(super) fn slow_limit() -> Option<Duration> {
    wants(LevelFilter::WARN).then_some(SLOW)
}

/// User code has panicked.
pub(super) fn tell_panic(payload: &(dyn Any + Send), label: Option<&Label>) {
    let message = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref().map(String::as_str));
    let (name, site) = parts(label);
    ask(|| {
        error!(
            target: "timerqueue",
            { panic.message = message, timer.name = name, timer.site = site.map(display) },
            "user code panicked"
        );
    });
}

fn tell_slow(took: Duration, late: Option<Duration>, label: Option<&Label>) {
    let (name, site) = parts(label);
    ask(|| {
        warn!(
            target: "timerqueue",
            {
                timer.took_us = took.as_micros() as u64,
                timer.late_us = late.map(|late| late.as_micros() as u64),
                timer.name = name,
                timer.site = site.map(display)
            },
            "a callback took long"
        );
    });
}

/// A callback took longer than the limit.
pub(super) fn slow(slow: &Slow) {
    if wants(LevelFilter::WARN) {
        tell_slow(slow.took, Some(slow.late), slow.label.as_deref());
    }
}

/// Threads that were added or refused, and not told of yet.
#[derive(Default)]
pub(super) struct Reports {
    added: AtomicU64,
    refused: AtomicU64,
    /// Of the last refusal, as the system numbers errors; zero for none.
    error: AtomicI64,
    /// A job that tells is on its way, or runs.
    busy: AtomicBool,
    /// The timer of this job, idle or due at once. Made with the first news.
    job: OnceLock<OwnedEntry>,
}

impl Reports {
    pub(super) fn added(&self, engine: &Arc<Engine>) {
        if wants(LevelFilter::INFO) {
            self.added.fetch_add(1, Ordering::Relaxed);
            self.send(engine);
        }
    }

    pub(super) fn refused(&self, engine: &Arc<Engine>, error: &io::Error) {
        if wants(LevelFilter::WARN) {
            self.error.store(error.raw_os_error().map_or(0, i64::from), Ordering::Relaxed);
            self.refused.fetch_add(1, Ordering::Relaxed);
            self.send(engine);
        }
    }

    /// A single job at a time, so that a subscriber that blocks takes a single thread: each thread
    /// that replaces a blocked thread is news again. A thread raises a number and then sets the
    /// flag; the job clears the flag and then looks at the numbers again. Both steps at the flag
    /// are read-modify-writes with acquire and release: so the job sees the number, or the thread
    /// sees the flag cleared.
    fn send(&self, engine: &Arc<Engine>) {
        if !self.busy.swap(true, Ordering::AcqRel) {
            let job = self.job.get_or_init(|| {
                let weak = Arc::downgrade(engine);
                entry::exclusive(engine, MissedTicks::default(), (Duration::MAX, Duration::MAX), move |_| {
                    if let Some(engine) = weak.upgrade() {
                        engine.reports.tell_all(&engine);
                    }
                })
            });
            let _ = ops::change(job, Duration::ZERO, Duration::MAX);
        }
    }

    /// Whether the timer is the job that tells: the pool runs it, also where callbacks are handed
    /// over to an executor of the program's.
    pub(super) fn is_own(&self, node: &EntryRef) -> bool {
        self.job.get().is_some_and(|job| job.address() == node.address())
    }

    fn tell_all(&self, engine: &Engine) {
        loop {
            self.tell(engine);
            self.busy.swap(false, Ordering::AcqRel);
            let more = self.added.load(Ordering::Relaxed) + self.refused.load(Ordering::Relaxed) > 0;
            if !more || self.busy.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }

    fn tell(&self, engine: &Engine) {
        let (added, refused) = (self.added.swap(0, Ordering::Relaxed), self.refused.swap(0, Ordering::Relaxed));
        let pool = engine.native().map(|native| native.pool.metrics()).unwrap_or_default();
        let (alive, limit) = (pool.threads, pool.limit);
        if added > 0 {
            ask(|| {
                info!(
                    target: "timerqueue",
                    { threads.added = added, threads.alive = alive, threads.limit = limit },
                    "the pool grew"
                );
            });
        }
        if refused > 0 {
            let error = match self.error.load(Ordering::Relaxed) {
                0 => None,
                code => Some(display(io::Error::from_raw_os_error(code as i32))),
            };
            ask(|| {
                warn!(
                    target: "timerqueue",
                    { threads.refused = refused, threads.alive = alive, threads.limit = limit, error },
                    "the system refused a thread"
                );
            });
        }
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use std::sync::Mutex;

    use tracing::field::{Field, Visit};
    use tracing::subscriber::with_default;
    use tracing_subscriber::layer::{Layer, SubscriberExt};
    use tracing_subscriber::registry::Registry;

    use super::*;
    use crate::runtime::{ManualClock, Runtime};

    #[derive(Clone, Default)]
    struct Lines(std::sync::Arc<Mutex<String>>);

    impl<S: tracing::Subscriber> Layer<S> for Lines {
        fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
            struct Text<'a>(&'a mut String);
            impl Visit for Text<'_> {
                fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                    *self.0 += &format!("{}={value:?} ", field.name());
                }
            }
            event.record(&mut Text(&mut self.0.lock().expect("no panic")));
        }
    }

    /// One test, since what a subscriber asks for holds for the process, and stays when it has
    /// gone.
    #[test]
    fn s77_news_of_the_pool_is_told_by_one_job_on_the_pool() {
        all_by_one_job();
        on_the_pool();
    }

    fn all_by_one_job() {
        let (lines, clock) = (Lines::default(), ManualClock::new());
        let runtime = Runtime::builder().manual_clock(&clock).start().expect("nothing to refuse");
        let engine = runtime.engine();
        engine.reports.added(engine); // no subscriber: nothing to tell
        with_default(Registry::default().with(lines.clone()), || {
            (0..2).for_each(|_| engine.reports.added(engine));
            engine.reports.refused(engine, &io::Error::from(io::ErrorKind::WouldBlock));
            assert_eq!(clock.advance(Duration::ZERO), 1);
            let text = std::mem::take(&mut *lines.0.lock().expect("no panic"));
            assert!(text.starts_with("message=the pool grew threads.added=2 "), "{text}");
            assert!(text.contains("message=the system refused a thread threads.refused=1 "), "{text}");
            // The next news makes a further job.
            engine.reports.refused(engine, &io::Error::from_raw_os_error(12));
            assert_eq!(clock.advance(Duration::ZERO), 1);
            let text = lines.0.lock().expect("no panic");
            assert!(text.contains("error=") && !text.contains("grew"), "{text}");
        });
    }

    /// An executor of the program's could drop the job, and no further news would be told.
    fn on_the_pool() {
        let runtime = Runtime::builder().callback_executor(drop).start().expect("the system has threads and timers");
        with_default(Registry::default(), || {
            for told in 1..=3 {
                runtime.engine().reports.added(runtime.engine());
                let begun = Instant::now();
                while runtime.fired() < told || runtime.engine().reports.busy.load(Ordering::Relaxed) {
                    assert!(begun.elapsed() < Duration::from_secs(60), "the job runs: {told}");
                    std::thread::yield_now();
                }
            }
        });
    }
}
