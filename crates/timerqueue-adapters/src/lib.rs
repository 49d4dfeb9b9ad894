//! Adapters: libraries that take a timer run on the timers of [`timerqueue`].
//!
//! Each adapter is a module behind a feature of its own, named with the version of the library. No
//! feature is on by default.
//!
//! | feature | module | content |
//! |---|---|---|
//! | `hyper-1` | `hyper_1` | `HyperTimer`, a `hyper::rt::Timer`: header-read and keep-alive timeouts of servers and clients |
//! | `backon-1` | `backon_1` | `BackonSleeper`: the pauses of retries, for futures and for blocking functions |
//! | `metrics-0_24` | `metrics_0_24` | `Reporter`: the figures of a runtime, for recorders of the crate metrics |
//! | `openraft-0_9` | `openraft_0_9` | `OpenraftRuntime`: openraft's runtime for tokio, with these timers and their clock |
//! | `quinn-0_11` | `quinn_0_11` | `QuinnRuntime`: quinn's runtime for tokio or smol, with these timers and their clock |
//! | `scheduler-metrics-0_24` | `scheduler_metrics_0_24` | `SchedulerReporter`: the figures of a scheduler and its store, for recorders of the crate metrics |
//! | `scheduler-opentelemetry-0_33` | `scheduler_opentelemetry_0_33` | `SchedulerMeter`: the figures of a scheduler for OpenTelemetry; `traced`: the span of a run follows that of the put, over nodes |
//! | `tokio-1` | `tokio_1` | `spawn`: tasks that stay on the virtual time of the test that spawns them |
//! | `tokio-util-0_7` | `tokio_util_0_7` | links between cancellation tokens: one cancels the other |
//! | `tower-0_5` | `tower_0_5` | `TimeoutLayer`: a limit for each call of a service; `HedgeLayer`: a second request when the answer takes long |
//! | `tower-retry-0_5` | `tower_retry_0_5` | `DelayBackoffMaker`: the pauses of a retry policy |
//! | `tracing-0_1` | `tracing_0_1` | `TracingObserver`: spans of callbacks and events of a runtime, for subscribers of the crate tracing |
//!
//! # Which runtime
//!
//! An adapter keeps a [`Runtime`](timerqueue::Runtime), so the runtime does not end by itself
//! before the adapter is dropped. The plain constructors keep the [current
//! runtime](timerqueue::Runtime::current) of the calling thread: as a rule the default runtime. The
//! constructors named `on` take a runtime: one of the program's own, or one on virtual time in a
//! test.
//!
//! # Which thread runs what
//!
//! An adapter starts no thread and no task. Its timers wake the tasks that wait: the waker is
//! called on a thread of the runtime's pool, or on a manual clock on the thread that advances the
//! clock. The task then runs where its own executor runs it.
//!
//! # When the runtime ends, and when it cannot be started
//!
//! On a runtime that has been shut down, time stands still: sleeps stay pending, and limits never
//! elapse. What they limit goes on without a limit. If the default runtime cannot be started, the
//! plain constructors panic with the reason; a program that goes on without timers calls
//! [`Runtime::try_global`](timerqueue::Runtime::try_global) first.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "backon-1")]
pub mod backon_1;
#[cfg(feature = "hyper-1")]
pub mod hyper_1;
#[cfg(feature = "metrics-0_24")]
pub mod metrics_0_24;
#[cfg(feature = "openraft-0_9")]
pub mod openraft_0_9;
#[cfg(feature = "quinn-0_11")]
pub mod quinn_0_11;
#[cfg(feature = "scheduler-metrics-0_24")]
pub mod scheduler_metrics_0_24;
#[cfg(feature = "scheduler-opentelemetry-0_33")]
pub mod scheduler_opentelemetry_0_33;
#[cfg(feature = "tokio-1")]
pub mod tokio_1;
#[cfg(feature = "tokio-util-0_7")]
pub mod tokio_util_0_7;
#[cfg(feature = "tower-0_5")]
pub mod tower_0_5;
#[cfg(feature = "tower-retry-0_5")]
pub mod tower_retry_0_5;
#[cfg(feature = "tracing-0_1")]
pub mod tracing_0_1;

#[cfg(any(feature = "hyper-1", feature = "quinn-0_11"))]
mod instant;

/// The examples of the README are tests.
#[cfg(all(doctest, feature = "hyper-1"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
