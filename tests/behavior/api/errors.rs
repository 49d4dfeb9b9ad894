//! Errors: what converts into what, and what they say.

use super::*;
#[cfg(target_os = "linux")]
use crate::support::process::{limit_descriptors, open_descriptors};

#[test]
fn s66_errors_convert_where_one_contains_the_other() {
    async fn work(token: &CancellationToken) -> Result<(), TimeoutError> {
        timeout(secs(1), async {}).await?;
        async {}.with_token(token).await?;
        Delay::new(Duration::ZERO).with_token(token).await?;
        token.check()?;
        timeout(secs(1), async {}).with_token(token).await
    }
    async fn io_work(token: &CancellationToken) -> io::Result<()> {
        work(token).await?;
        token.check()?;
        let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start()?;
        CancellationTokenSource::on(&runtime).try_cancel_after(secs(1))?;
        runtime.shutdown(Duration::ZERO)?;
        Ok(())
    }
    assert_eq!(block_on(work(&CancellationToken::none())), Ok(()));
    assert!(block_on(io_work(&CancellationToken::none())).is_ok());
    let cancelled = block_on(work(&CancellationToken::new_cancelled())).expect_err("cancelled");
    assert!(matches!(cancelled, TimeoutError::Cancelled(_)));
}

#[test]
fn s66_errors_become_io_errors_of_the_right_kind() {
    use io::ErrorKind;
    let kind = |error: StartError| io::Error::from(error).kind();
    let refused = Runtime::builder().queues(0).start().expect_err("zero");
    assert_eq!(kind(refused), ErrorKind::InvalidInput);
    assert_eq!(kind(StartError::Alarm(ErrorKind::PermissionDenied.into())), ErrorKind::PermissionDenied);
    assert_eq!(kind(StartError::Thread(ErrorKind::TimedOut.into())), ErrorKind::Other, "no time has passed");
    assert_eq!([StartError::ShutDown, StartError::AlreadyStarted].map(kind), [ErrorKind::Other; 2]);
    assert_eq!(io::Error::from(ShutdownError::DefaultRuntime).kind(), ErrorKind::Other);
    let runtime = native();
    let gate = Gate::new();
    let (entered, waiting) = (Count::new(), gate.clone());
    runtime.execute({
        let entered = entered.clone();
        move || {
            entered.bump();
            waiting.wait();
        }
    });
    eventually("it blocks", || entered.get() == 1);
    let late = runtime.shutdown(ms(1)).expect_err("a callback blocks");
    assert!(late.threads() > 0 && io::Error::from(late).kind() == ErrorKind::TimedOut);
    assert!(late.to_string().contains("still running callbacks"), "{late}");
    gate.open();
    runtime.shutdown(PATIENCE).expect("it has ended");
}

#[test]
fn s66_an_error_says_each_reason_once() {
    let elapsed: Elapsed = block_on(timeout(ms(1), pending::<()>())).expect_err("elapsed");
    let cancelled: Cancelled = CancellationToken::new_cancelled().check().expect_err("cancelled");
    for (error, text) in [(TimeoutError::from(elapsed), elapsed.to_string()), (cancelled.into(), cancelled.to_string())]
    {
        assert_eq!((error.to_string(), error.source().is_none()), (text, true));
    }
    let refused = RuntimeError::NotStarted(StartError::Alarm(io::ErrorKind::PermissionDenied.into()));
    let chain: Vec<_> = std::iter::successors(Some(&refused as &dyn Error), |&error| error.source()).collect();
    assert_eq!(chain.len(), 3, "each adds a reason: {chain:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn s66_plain_forms_panic_with_the_reason_when_the_default_runtime_cannot_start() {
    in_child(module_path!(), "s66_plain_forms_panic_with_the_reason_when_the_default_runtime_cannot_start", || {
        limit_descriptors(open_descriptors() as u64); // so there are no timers of the system's
        let reason = |make: &dyn Fn()| {
            let payload = catch_unwind(AssertUnwindSafe(make)).expect_err("no runtime");
            payload.downcast::<String>().map_or_else(|_| String::new(), |text| *text)
        };
        let forms: [&dyn Fn(); 5] = [
            &|| _ = Runtime::global(),
            &|| drop(Timer::new(secs(1), NEVER, |_| {})),
            &|| drop(Timer::once(secs(1), |_| {})),
            &|| drop(Timer::builder().start(|_| {})),
            &|| drop(CancellationTokenSource::after(secs(1))),
        ];
        for make in forms {
            let reason = reason(make);
            assert!(
                reason.contains("failed to start the default timer runtime") && reason.contains("os error 24"),
                "{reason}"
            );
        }
        assert!(matches!(Timer::try_new(secs(1), NEVER, |_| {}), Err(RuntimeError::NotStarted(StartError::Alarm(_)))));
        assert!(Timer::builder().try_start(|_| {}).is_err());
        limit_descriptors(u64::MAX);
        drop(Timer::new(secs(1), NEVER, |_| {})); // a later try works
    });
}
