//! Whether a process is the one that made a runtime.
//!
//! A forked child inherits memory and (on Linux) descriptors, but no threads. Descriptors are shared with the parent: a
//! child that set an inherited timer would set, or silence, the parent's. So every backend asks [`ForkGuard`] before it touches
//! anything, and in a child does nothing. (Windows has no forks.)

use std::io;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the process that the program began as and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

#[cfg(unix)]
extern "C" fn count_fork() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Has forks counted. The system may have no memory left for that.
#[cfg(unix)]
fn hook() -> io::Result<()> {
    static HOOKED: AtomicBool = AtomicBool::new(false);
    if HOOKED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // Two threads may come here at once; each fork counts twice then, which is as good.
    // The handler touches one atomic, which is allowed in a forked child.
    match super::os::at_fork_in_child(count_fork) {
        Ok(()) => {
            HOOKED.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(io::Error::from_raw_os_error(error)),
    }
}

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForkGuard(u32);

impl ForkGuard {
    /// This process.
    pub(crate) fn here() -> io::Result<Self> {
        #[cfg(unix)]
        hook()?;
        Ok(Self(FORKS.load(Ordering::Relaxed)))
    }

    /// Whether this is still that process, and not a child of it.
    pub(crate) fn is_here(self) -> bool {
        FORKS.load(Ordering::Relaxed) == self.0
    }
}
