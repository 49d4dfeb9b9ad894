//! System calls except those of the alarms, each as a safe function; memory straight from the
//! system; and prefetching.
//!
//! Ground rules. The only file of this folder with `unsafe` in it. No function here takes a lock of
//! the crate.

#![allow(unsafe_code)] // system calls, and an owned pointer

#[cfg(target_os = "linux")]
use std::ffi::CStr;
#[cfg(not(windows))]
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// The CPU that the calling thread runs on, or a large number where unknown.
#[cfg(any(target_os = "linux", target_os = "freebsd", target_os = "dragonfly"))]
#[inline]
pub(super) fn current_cpu() -> usize {
    // SAFETY: no arguments. The result is -1 where unknown, which becomes a large number.
    unsafe { libc::sched_getcpu() as usize }
}

/// The number of CPUs of the machine that are up; zero where unknown.
#[cfg(unix)]
pub(super) fn online_cpus() -> usize {
    // SAFETY: no pointers. The result is -1 where unknown.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(0)
}

/// The thread id of the calling thread.
#[cfg(target_os = "linux")]
pub(super) fn thread_id() -> i32 {
    // SAFETY: no arguments, and the call cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// Registers a function that runs in each forked child of this process. The error is the number
/// that the system gives when it has no memory left.
#[cfg(unix)]
pub(super) fn at_fork_in_child(handler: extern "C" fn()) -> Result<(), i32> {
    // SAFETY: a function lives for ever. The caller passes a handler that does only what a forked
    // child may do.
    match unsafe { libc::pthread_atfork(None, None, Some(handler)) } {
        0 => Ok(()),
        error => Err(error),
    }
}

/// The time of a clock of the system. The clock exists; for a clock that does not, the result is
/// zero.
#[cfg(not(windows))]
#[inline]
pub(crate) fn clock_time(clock: libc::clockid_t) -> libc::timespec {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel (or its vDSO) fills the structure in. If the clock does not exist, the
    // zeroes are a valid value.
    unsafe {
        libc::clock_gettime(clock, time.as_mut_ptr());
        time.assume_init()
    }
}

/// Prefetches a cache line; any address will do.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) fn fetch_line(at: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint; any address will do, and nothing is read.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
}

/// As above.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
pub(crate) fn fetch_line(at: *const u8) {
    // SAFETY: a hint; any address will do, and nothing is read.
    unsafe { core::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly)) }
}

/// No such instruction is known here.
#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
pub(crate) fn fetch_line(_: *const u8) {}

/// The number of words of an affinity mask: of 8,192 bits, the most for which a kernel can be
/// built. (The system clears the bits that the kernel does not fill, and the kernel ignores those
/// that it does not have.)
#[cfg(target_os = "linux")]
pub(super) const MASK_WORDS: usize = 8_192 / libc::c_ulong::BITS as usize;

/// The number of descriptors that the process may have open; a large number where the system does
/// not say.
#[cfg(target_os = "linux")]
pub(crate) fn descriptor_limit() -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` lives through the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    if result == 0 { usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX) } else { usize::MAX }
}

/// The affinity mask of a thread; zero names the calling thread. `None`: the thread has ended, or
/// the system refuses the mask.
#[cfg(target_os = "linux")]
pub(super) fn affinity(thread: libc::pid_t) -> Option<[libc::c_ulong; MASK_WORDS]> {
    let mut mask = [0; MASK_WORDS];
    // SAFETY: `mask` has the given size, and lives through the call.
    let result = unsafe { libc::sched_getaffinity(thread, size_of_val(&mask), (&raw mut mask).cast()) };
    (result == 0).then_some(mask)
}

/// Confines the calling thread to a mask. Returns whether the system accepted the mask.
#[cfg(target_os = "linux")]
pub(super) fn set_affinity(mask: &[libc::c_ulong; MASK_WORDS]) -> bool {
    // SAFETY: `mask` has the given size, and lives through the call.
    unsafe { libc::sched_setaffinity(0, size_of_val(mask), std::ptr::from_ref(mask).cast()) == 0 }
}

// ---------------------------------------------------------------- files of the kernel: std's functions for them are ten times this

/// Reads the beginning of a file, as much as there is room for.
#[cfg(target_os = "linux")]
pub(super) fn read<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path ends with a zero byte, and lives through the call.
    let file = unsafe { libc::open64(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let mut filled = 0;
    while filled < room.len() {
        let rest = &mut room[filled..];
        // SAFETY: `rest` has the given size, and lives through the call.
        match unsafe { libc::read(file, rest.as_mut_ptr().cast(), rest.len()) } {
            more @ 1.. => filled += more as usize,
            _ => break, // the end of the file, or an error: what is there stands
        }
    }
    // SAFETY: opened above, and used by no other code.
    unsafe { libc::close(file) };
    Some(&room[..filled])
}

/// The path to which a link leads.
#[cfg(target_os = "linux")]
pub(super) fn read_link<'a>(path: &CStr, room: &'a mut [u8]) -> Option<&'a [u8]> {
    // SAFETY: the path ends with a zero byte; `room` has the given size; both live through the
    // call.
    let filled = unsafe { libc::readlink(path.as_ptr(), room.as_mut_ptr().cast(), room.len()) };
    room.get(..usize::try_from(filled).ok()?)
}

/// Gives the names in a folder to `each`, until it returns false.
#[cfg(target_os = "linux")]
pub(super) fn read_folder(path: &CStr, each: &mut dyn FnMut(&[u8]) -> bool) {
    // SAFETY: the path ends with a zero byte, and lives through the call.
    let Some(folder) = NonNull::new(unsafe { libc::opendir(path.as_ptr()) }) else { return };
    // SAFETY: the folder is open. An entry is valid until the next call, and its name ends with a
    // zero byte.
    while let Some(entry) = NonNull::new(unsafe { libc::readdir64(folder.as_ptr()) }) {
        // SAFETY: as said above.
        let name = unsafe { CStr::from_ptr((&raw const (*entry.as_ptr()).d_name).cast()) };
        if !each(name.to_bytes()) {
            break;
        }
    }
    // SAFETY: opened above, and used by no other code.
    unsafe { libc::closedir(folder.as_ptr()) };
}

// ---------------------------------------------------------------- memory: zeroed; a page takes memory once it is touched

/// Types for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes are a valid value, and the type is neither empty nor aligned to more than a page.
pub(crate) unsafe trait Zeroable {}

/// A box in pages of its own, straight from the system.
///
/// An allocator hands out zeroed memory as well, but clears a block that it uses again, and so
/// touches all its pages. Measured with glibc, tables of 64 queues of 393 kB each, at rest: no
/// resident memory here; with `alloc_zeroed` 0.3 MB in a fresh process, 8.7 MB once earlier tables
/// had been freed. (A table that is made, used and freed takes less time there: 25 us for 115 us.)
pub(crate) struct Pages<T>(NonNull<T>);

impl<T: Zeroable> Pages<T> {
    const SIZE: usize = {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 4096 && !std::mem::needs_drop::<T>());
        size_of::<T>()
    };

    /// A zeroed value. If no memory is left, the process ends, as it does for an allocator.
    pub(crate) fn zeroed() -> Self {
        let Some(at) = system::take(Self::SIZE) else { std::alloc::handle_alloc_error(std::alloc::Layout::new::<T>()) };
        Self(at.cast())
    }
}

impl<T> Deref for Pages<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `self` owns the pages, and `zeroed` made a valid value in them (`Zeroable`).
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for Pages<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `self` owns the pages, and `zeroed` made a valid value in them; `&mut self` makes
        // the access exclusive.
        unsafe { self.0.as_mut() }
    }
}

impl<T> Drop for Pages<T> {
    fn drop(&mut self) {
        // SAFETY: `take` gave the pages with this size. `T` needs no drop (`SIZE`), and the pages
        // are not used any more.
        unsafe { system::give_back(self.0.cast(), size_of::<T>()) }
    }
}

#[cfg(unix)]
mod system {
    use std::ptr::{NonNull, null_mut};

    pub(super) fn take(size: usize) -> Option<NonNull<u8>> {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
        // SAFETY: asks for new pages at an address of the system's choice, so no existing page is
        // touched.
        let at = unsafe { libc::mmap(null_mut(), size, rights, kind, -1, 0) };
        if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) }
    }

    /// # Safety
    /// [`take`] returned `at` for this size; the memory is not used any more.
    pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
        // SAFETY: the caller promises pages of `take` with this size, which are not used any more.
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
        // SAFETY: the size of the layout is not zero: no `Zeroable` type is empty.
        NonNull::new(unsafe { alloc_zeroed(layout(size)) })
    }

    /// # Safety
    /// [`take`] returned `at` for this size; the memory is not used any more.
    pub(super) unsafe fn give_back(at: NonNull<u8>, size: usize) {
        // SAFETY: the caller promises memory of `take` with this size, so the layout is the same.
        unsafe { dealloc(at.as_ptr(), layout(size)) }
    }
}
