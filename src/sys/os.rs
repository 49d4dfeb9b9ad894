//! The calls to the operating system outside of the alarms, each as a safe function; and memory straight from the system.
//!
//! Ground rules. The only file of this folder with `unsafe` in it. Nothing here takes a lock of the crate.

#![allow(unsafe_code)] // system calls, and a pointer that is owned

#[cfg(not(windows))]
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The CPU that the calling thread runs on, or some large number.
#[cfg(any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly"))]
#[inline]
pub(super) fn current_cpu() -> usize {
    // SAFETY: no arguments. -1 where unknown, which becomes a large number.
    unsafe { libc::sched_getcpu() as usize }
}

/// The CPUs of the machine that are up; zero where unknown.
#[cfg(unix)]
pub(super) fn online_cpus() -> usize {
    // SAFETY: no pointers. -1 where unknown.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(0)
}

/// The number by which the system knows the calling thread.
#[cfg(target_os = "linux")]
pub(super) fn thread_id() -> i32 {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Has a function called in each child that this process forks. The error number where the system has no memory for that.
#[cfg(unix)]
pub(super) fn at_fork_in_child(handler: extern "C" fn()) -> Result<(), i32> {
    // SAFETY: a function that lives for ever; what it may do in a forked child is its own matter.
    match unsafe { libc::pthread_atfork(None, None, Some(handler)) } {
        0 => Ok(()),
        error => Err(error),
    }
}

/// What a clock of the system shows. The clock exists.
#[cfg(not(windows))]
#[inline]
pub(crate) fn clock_time(clock: libc::clockid_t) -> libc::timespec {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel (or its vDSO) fills the structure in, and zeroes are a value of it where a clock does not exist.
    unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    }
}

/// The words of an affinity mask.
#[cfg(target_os = "linux")]
pub(super) const MASK_WORDS: usize = size_of::<libc::cpu_set_t>() / size_of::<libc::c_ulong>();

/// The affinity mask of a thread, or of the calling one for zero. `None`: it has ended, or the mask is refused.
#[cfg(target_os = "linux")]
pub(super) fn affinity(thread: libc::pid_t) -> Option<[libc::c_ulong; MASK_WORDS]> {
    let mut mask = [0; MASK_WORDS];
    // SAFETY: `mask` has the size that is given, and lives through the call.
    let result = unsafe { libc::sched_getaffinity(thread, size_of_val(&mask), (&raw mut mask).cast()) };
    (result == 0).then_some(mask)
}

/// Confines the calling thread to a mask. Whether the system did.
#[cfg(target_os = "linux")]
pub(super) fn set_affinity(mask: &[libc::c_ulong; MASK_WORDS]) -> bool {
    // SAFETY: `mask` has the size that is given, and lives through the call.
    unsafe { libc::sched_setaffinity(0, size_of_val(mask), std::ptr::from_ref(mask).cast()) == 0 }
}

// ---------------------------------------------------------------- memory: zeroes, and no page in memory before it is touched

/// Types of which all zeroes are a value.
///
/// # Safety
/// They are, and the type is neither empty nor aligned to more than a page.
pub(crate) unsafe trait Zeroable {}

/// A box in pages of its own. (An allocator would hand out zeroes as well, but it clears memory that it has had before, and so touches
/// all of it.)
pub(crate) struct Pages<T>(NonNull<T>);

impl<T: Zeroable> Pages<T> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>());
        size_of::<T>()
    };

    /// All zeroes. Where there is no memory left, this ends the process as allocators do.
    pub(crate) fn zeroed() -> Self {
        let Some(at) = system::take(Self::SIZE) else { std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>()) };
        Self(at.cast())
    }
}

impl<T> Deref for Pages<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: owned, and valid since it was made.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Pages<T> {
    fn drop(&mut self) {
        // SAFETY: taken with this size; nothing in it is to be dropped, and it is not used any more.
        unsafe { system::give_back(self.0.cast(), size_of::<T>()) }
    }
}

#[cfg(unix)]
mod system {
    use std::ptr::{NonNull, null_mut};

    pub(super) fn take(size: usize) -> Option<NonNull<u8>> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: asks for new pages; touches no others.
        let at = unsafe { libc::mmap(null_mut(), size, rights, kind, -1, 0) };
        if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) }
    }

    /// # Safety
    /// From [`take`] with this size; not used any more.
    pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
        // SAFETY: the contract.
        let result = unsafe { libc::munmap(at.as_ptr().cast(), size) };
        debug_assert_eq!(result, 0, "pages that were mapped");
    }
}

#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 4096).expect("a few hundred kilobytes")
    }

    pub(super) fn take(size: usize) -> Option<NonNull<u8>> {
        // SAFETY: not empty.
        NonNull::new(unsafe { alloc_zeroed(layout(size)) })
    }

    /// # Safety
    /// From [`take`] with this size; not used any more.
    pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
        // SAFETY: the contract.
        unsafe { dealloc(at.as_ptr(), layout(size)) }
    }
}
