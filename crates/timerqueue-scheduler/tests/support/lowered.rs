//! Connections that are less safe than they were asked to be: controls, which must lose jobs.
//!
//! Ground rules. SQLite calls an extension for each new connection. If a folder of its file is
//! named `synchronous-off` or `synchronous-normal`, the connection gets that level, and a later
//! `PRAGMA synchronous = ...` does nothing.
#![allow(unsafe_code)] // extensions and authorizers of SQLite have an interface of C

use std::ffi::{CStr, c_char, c_int, c_void};

use timerqueue_scheduler::rusqlite::ffi;

/// From now on connections in such folders are less safe.
pub(crate) fn install() {
    // SAFETY: the function has the form that SQLite asks for.
    let done = unsafe { ffi::sqlite3_auto_extension(Some(lower)) };
    assert_eq!(done, ffi::SQLITE_OK);
}

/// The text of a failure is `*mut c_char`, or `*const c_char` in older versions of rusqlite.
unsafe extern "C" fn lower<T>(db: *mut ffi::sqlite3, _: *mut T, _: *const ffi::sqlite3_api_routines) -> c_int {
    // SAFETY: an open connection. The name is null or a text that ends with a zero, and lives as
    // long as the connection.
    let file = unsafe {
        let name = ffi::sqlite3_db_filename(db, c"main".as_ptr());
        if name.is_null() { "" } else { CStr::from_ptr(name).to_str().unwrap_or_default() }
    };
    let level = if file.contains("/synchronous-off/") {
        c"PRAGMA synchronous = OFF"
    } else if file.contains("/synchronous-normal/") {
        c"PRAGMA synchronous = NORMAL"
    } else {
        return ffi::SQLITE_OK;
    };
    let null = std::ptr::null_mut();
    // SAFETY: an open connection, and texts that end with a zero. The authorizer needs no data of
    // its own.
    unsafe {
        let done = ffi::sqlite3_exec(db, level.as_ptr(), None, null, std::ptr::null_mut());
        ffi::sqlite3_set_authorizer(db, Some(ignore_levels), null);
        done
    }
}

unsafe extern "C" fn ignore_levels(
    _: *mut c_void,
    action: c_int,
    name: *const c_char,
    value: *const c_char,
    _: *const c_char,
    _: *const c_char,
) -> c_int {
    // SAFETY: of a pragma the first text is its name, which ends with a zero.
    let sets = action == ffi::SQLITE_PRAGMA && !value.is_null() && unsafe { CStr::from_ptr(name) } == c"synchronous";
    if sets { ffi::SQLITE_IGNORE } else { ffi::SQLITE_OK }
}
