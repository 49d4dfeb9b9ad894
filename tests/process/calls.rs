//! Tests that see the crate's calls of the C library, and answer in its place: cores, descriptors
//! that are refused, alarms, clocks.
//!
//! Ground rules. Each file defines the functions that it needs, but for `timerfd_settime`, which
//! two of them watch. Without a test's wish each function does what the C library does. What is
//! counted or changed for the whole process is used in child processes alone.

#![cfg(target_os = "linux")]

#[path = "../support/ledger.rs"]
#[allow(dead_code)] // this binary uses a part of it
mod ledger;
#[path = "../support/mod.rs"]
#[allow(dead_code)] // this binary uses a part of it
mod support;

#[cfg(feature = "affinity")]
mod cpu_topology;
#[cfg(feature = "affinity")]
mod refused_resources;
#[cfg(not(timerqueue_kqueue))]
mod syscalls;
mod wall_clock;

/// # Safety
/// As the function of the C library.
#[allow(unsafe_code)] // stands in for a function of the C library
#[unsafe(no_mangle)]
unsafe extern "C" fn timerfd_settime(
    fd: libc::c_int,
    flags: libc::c_int,
    new: *const libc::itimerspec,
    old: *mut libc::itimerspec,
) -> libc::c_int {
    #[cfg(not(timerqueue_kqueue))]
    // SAFETY: the caller's contract.
    syscalls::note_setting(fd, flags, unsafe { (*new).it_value });
    if !wall_clock::allow_setting(flags) {
        // SAFETY: `errno` of this thread.
        unsafe { *libc::__errno_location() = libc::EINVAL };
        return -1;
    }
    // SAFETY: the same call with the same arguments.
    unsafe { libc::syscall(libc::SYS_timerfd_settime, fd, flags, new, old) as libc::c_int }
}
