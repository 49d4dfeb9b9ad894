//! The fork guard: it tells whether this process has made a runtime, or has inherited the runtime
//! by a fork.
//!
//! A forked child inherits memory and (on Linux) descriptors, but no threads. The child shares the
//! descriptors with the parent: a child that sets an inherited timer sets or stops the timer of the
//! parent. So every backend checks its [`ForkGuard`] before it uses a descriptor, and does nothing
//! in a child. (Windows has no forks.)

use std::io;

use crate::sync::Ordering;
#[cfg(unix)]
use crate::sync::unmodelled::AtomicBool;
use crate::sync::unmodelled::AtomicU32;

/// The number of forks between the first process of the program and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Registers [`count_fork`]. Fails if the system has no memory left for the registration.
#[cfg(unix)]
fn hook() -> io::Result<()> {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if HOOKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // Two threads may register at once; then each fork counts twice, which does no harm. The
    // handler touches a single atomic, which is allowed in a forked child.
    match super::os::at_fork_in_child(count_fork) {
        Ok(()) => {
            HOOKED.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The process in which an object was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard(u32);

impl ForkGuard {
    /// The guard of this process.
    ///
    /// # Errors
    /// The system has no memory left to register the fork handler.
    pub(crate) fn here() -> io::Result<Self> {
        #[cfg(unix)]
        hook()?;
        Ok(Self(FORKS.load(Ordering::Relaxed)))
    }

    /// As [`here`](Self::here). If the system does not tell of forks, each process is taken for
    /// this one.
    pub(crate) fn here_if_told() -> Self {
        Self::here().unwrap_or_else(|_| Self(FORKS.load(Ordering::Relaxed)))
    }

    /// Whether the calling process made this guard. False in a forked child.
    pub(crate) fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}
