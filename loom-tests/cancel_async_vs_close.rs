//! Models of a cancel that leaves its callbacks to the pool: the pool, an unregistering thread and
//! the end of the runtime meanwhile (S87).
//!
//! ```text
//!   cancels                              ends the runtime
//!     marks
//!                                          drops all jobs
//!     gives its job to the pool: the job is dropped, and its callbacks with it
//! ```

use super::*;

/// S87, S44. A callback is called once or unregistered, and the future becomes ready, also when the
/// runtime ends before the job, or before it is given to the pool.
///
/// Seen to fail with: a `Rest` without a destructor whose job does the work; a `Rest` that does not
/// cancel `ended`.
#[test]
fn a_cancel_on_the_pool_calls_each_callback_once() {
    for closes in [false, true] {
        explore_bounded(move || {
            let manual = Arc::new(Manual::new());
            let source = CancellationTokenSource::of(manual.source());
            let (traces, below) = (Traces::new(), Traces::new());
            below.register(&source.token()).detach();
            let registration = traces.register(&source.token());
            let other = {
                let manual = Arc::clone(&manual);
                thread::spawn(move || if closes { manual.engine.close() } else { manual.run(manual.sweep_at(0)) })
            };
            let mut ended = source.cancel_async();
            assert!(source.is_cancelled());
            let in_time = registration.unregister();
            let task = Task::new();
            let polled = task.poll(&mut ended);
            other.join().unwrap();
            manual.run(manual.sweep_at(0));
            assert_eq!((traces.called(), traces.dropped()), (usize::from(!in_time), 1));
            assert_eq!((below.called(), below.dropped()), (1, 1));
            assert!(polled.is_ready() || task.woken() == 1);
            assert_eq!(task.poll(&mut ended), Poll::Ready(true));
            drop((source, ended));
            manual.end();
        });
    }
}
