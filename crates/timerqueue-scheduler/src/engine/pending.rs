//! The answer to an operation: awaited, or waited for.
//!
//! Ground rules. The operation is under way when the value is made; dropping the value does not
//! undo it. The store is told only that no caller waits for a look any more. No thread polls: the
//! store completes the value, which wakes the task or the thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;
use timerqueue::{CancellationTokenSource, Runtime};

use crate::debug::debug_of;
use crate::store::Error;
use crate::unwind::quietly;

/// The answer to an operation of a [`Scheduler`](crate::Scheduler): `.await` it in any task, or
/// [`wait`](Self::wait) for it on any thread.
///
/// The operation has begun when the method returns. Dropping the answer does not undo the
/// operation; a look, which changes nothing, is given up. On a
/// [`MemoryStore`](crate::store::MemoryStore) the answer of every operation but
/// [`close`](crate::Scheduler::close) is there at once, and neither form blocks.
///
/// # Examples
///
/// Both forms:
///
/// ```
/// use std::time::Duration;
/// use timerqueue::{ManualClock, Runtime};
/// use timerqueue_scheduler::{Cancel, Scheduler};
///
/// let clock = ManualClock::new();
/// let runtime = Runtime::builder().manual_clock(&clock).start()?;
/// let scheduler = Scheduler::builder().runtime(&runtime).handler("mail", |_: u32, _| {}).start()?;
/// let hour = Duration::from_secs(3600);
/// let _ = scheduler.put_to("mail", &1).key("a").due(hour).send().wait()?;
/// clock.block_on(async {
///     let _ = scheduler.put_to("mail", &2).key("b").due(hour).send().await?;
///     assert_eq!(scheduler.cancel("a").await?, Cancel::Cancelled);
///     Ok::<(), timerqueue_scheduler::Error>(())
/// })?;
/// assert_eq!(scheduler.cancel("b").wait()?, Cancel::Cancelled);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the answer may be an error; the operation is under way in any case"]
pub struct Pending<T> {
    slot: Arc<Mutex<Slot<T>>>,
    runtime: Option<Runtime>,
}

struct Slot<T> {
    answer: Option<Result<T, Error>>,
    waker: Option<Waker>,
}

/// Completes a [`Pending`], once. Dropped before: [`Error::Closed`].
pub(crate) struct Completer<T> {
    slot: Option<Arc<Mutex<Slot<T>>>>,
}

impl<T> Pending<T> {
    /// An answer to come.
    pub(crate) fn new(runtime: &Runtime) -> (Completer<T>, Self) {
        let slot = Arc::new(Mutex::new(Slot { answer: None, waker: None }));
        (Completer { slot: Some(Arc::clone(&slot)) }, Self { slot, runtime: Some(runtime.clone()) })
    }

    /// An answer that is there.
    pub(crate) fn ready(answer: Result<T, Error>) -> Self {
        Self { slot: Arc::new(Mutex::new(Slot { answer: Some(answer), waker: None })), runtime: None }
    }

    /// The answer to what was begun, or why it was not.
    pub(crate) fn begun(begun: Result<Self, impl Into<Error>>) -> Self {
        begun.unwrap_or_else(|error| Self::ready(Err(error.into())))
    }

    /// Blocks the thread until the answer is there. If the scheduler's runtime is on a manual
    /// clock, the call moves the clock, as
    /// [`ManualClock::block_on`](timerqueue::ManualClock::block_on) does, unless the answer is
    /// there already.
    ///
    /// # Errors
    ///
    /// Those of the operation.
    pub fn wait(mut self) -> Result<T, Error> {
        let Some(runtime) = self.runtime.take() else { return self.taken().unwrap_or(Err(Error::Closed)) };
        if let Some(answer) = self.taken() {
            return answer;
        }
        block_on(&runtime, Pin::new(&mut self))
    }

    fn taken(&self) -> Option<Result<T, Error>> {
        self.slot.lock().answer.take()
    }
}

/// Blocks the thread until the future is ready. On a manual clock the call moves the clock.
pub(crate) fn block_on<F: Future + ?Sized>(runtime: &Runtime, mut future: Pin<&mut F>) -> F::Output {
    runtime.enter(|| {
        loop {
            let signal = Arc::new(Signal { source: CancellationTokenSource::on(runtime) });
            let token = signal.source.token();
            let waker = Waker::from(signal);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            token.wait();
        }
    })
}

/// Wakes a thread that waits for a token.
struct Signal {
    source: CancellationTokenSource,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.source.cancel();
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T, Error>;

    /// Ready once. Afterwards pending for good.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut replaced = None; // a waker is dropped after unlocking
        let mut waker = Some(context.waker().clone());
        let mut slot = self.slot.lock();
        match slot.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                std::mem::swap(&mut replaced, &mut slot.waker);
                slot.waker = waker.take();
                drop(slot);
                Poll::Pending
            }
        }
    }
}

debug_of!(Pending<T> of T);

impl<T: Send + 'static> Completer<T> {
    /// Whether the answer is still awaited.
    pub(crate) fn watch(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let slot = self.slot.as_ref().map(Arc::downgrade);
        // One is the completer's.
        move || slot.as_ref().is_some_and(|slot| slot.strong_count() > 1)
    }
}

impl<T> Completer<T> {
    /// Whether the answer is still awaited.
    pub(crate) fn is_awaited(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1)
    }

    pub(crate) fn complete(mut self, answer: Result<T, Error>) {
        self.put(answer);
    }

    fn put(&mut self, answer: Result<T, Error>) {
        let Some(slot) = self.slot.take() else { return };
        let waker = {
            let mut slot = slot.lock();
            slot.answer = Some(answer);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            quietly(|| waker.wake());
        }
    }
}

impl<T> Drop for Completer<T> {
    fn drop(&mut self) {
        self.put(Err(Error::Closed));
    }
}
