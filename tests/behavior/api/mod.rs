//! The use of the interface: instants (S60), short words, jobs (S61), the default runtime and scopes, errors that convert.
//!
//! Ground rules. Tests run on virtual time; the default runtime of the process is used where it is the subject.

mod instants;

use std::time::{Duration, Instant};

use crate::support::{block_on, manual, ms, native, ns, secs};
use timerqueue::{Delay, ManualClock, Runtime, RuntimeClock, timeout_at};
