//! Each adapter against the real library, where its feature is on.

mod backon_1;
mod hyper_1;
mod metrics_0_24;
mod openraft_0_9;
mod quinn_0_11;
mod scheduler_metrics_0_24;
mod scheduler_opentelemetry_0_33;
mod tokio_1;
mod tokio_util_0_7;
mod tower_0_5;
