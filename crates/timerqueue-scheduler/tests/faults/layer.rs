//! A layer between SQLite and the system's files: one call fails, or the power is cut.
//!
//! Ground rules. The layer is the default one of the process. A folder has its own [`Faults`];
//! files of other folders, and files without a name, are those of the system. Each call is counted,
//! may fail, and goes on to the system's layer. What writes is noted in the model of the disk
//! first. The system is never asked to sync: the model says what a sync is good for. What the store
//! itself writes into the log of SQLite passes the layer by; the time of the file's last change
//! tells of it.
#![allow(unsafe_code)] // the interface of SQLite's layers is one of C

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use timerqueue_scheduler::rusqlite::ffi;

use crate::disk::{Disk, Left};

/// What SQLite calls a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Open,
    Read,
    Write,
    Sync,
    Truncate,
    Delete,
    Size,
    Lock,
    MapShared,
    LockShared,
}

impl Call {
    pub(crate) const ALL: [Self; 10] = [
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Sync,
        Self::Truncate,
        Self::Delete,
        Self::Size,
        Self::Lock,
        Self::MapShared,
        Self::LockShared,
    ];

    fn changes(self) -> bool {
        matches!(self, Self::Write | Self::Sync | Self::Truncate | Self::Delete)
    }

    /// The answer of a call that fails. Each second write finds the disk full.
    fn code(self, number: u64) -> c_int {
        match self {
            Self::Open => ffi::SQLITE_CANTOPEN,
            Self::Read => ffi::SQLITE_IOERR_READ,
            Self::Write if number % 2 == 0 => ffi::SQLITE_FULL,
            Self::Write => ffi::SQLITE_IOERR_WRITE,
            Self::Sync => ffi::SQLITE_IOERR_FSYNC,
            Self::Truncate => ffi::SQLITE_IOERR_TRUNCATE,
            Self::Delete => ffi::SQLITE_IOERR_DELETE,
            Self::Size => ffi::SQLITE_IOERR_FSTAT,
            Self::Lock => ffi::SQLITE_IOERR_LOCK,
            Self::MapShared => ffi::SQLITE_IOERR_SHMMAP,
            Self::LockShared => ffi::SQLITE_IOERR_SHMLOCK,
        }
    }
}

#[derive(Default)]
struct State {
    counts: [u64; Call::ALL.len()],
    /// Which call fails, and the number of it among its like, from 1.
    fails: Option<(Call, u64)>,
    /// How it fails, if not as usual.
    code: Option<c_int>,
    has_failed: bool,
    /// Calls that change something.
    changes: u64,
    cut_at: Option<u64>,
    is_cut: bool,
    disk: Disk,
}

/// The faults of the files of a folder.
#[derive(Default)]
pub(crate) struct Faults(Mutex<State>);

static FOLDERS: Mutex<BTreeMap<PathBuf, Arc<Faults>>> = Mutex::new(BTreeMap::new());

impl Faults {
    /// The files of the folder are on a disk of their own from now on.
    pub(crate) fn of(folder: &Path) -> Arc<Self> {
        install();
        let faults = Arc::<Self>::default();
        FOLDERS.lock().unwrap().insert(folder.to_owned(), Arc::clone(&faults));
        faults
    }

    pub(crate) fn forget(folder: &Path) {
        FOLDERS.lock().unwrap().remove(folder);
    }

    /// The call with this number fails, once.
    pub(crate) fn fail(&self, call: Call, number: u64) {
        self.0.lock().unwrap().fails = Some((call, number));
    }

    /// The call with this number fails with this code, once.
    pub(crate) fn fail_as(&self, call: Call, number: u64, code: c_int) {
        let mut state = self.0.lock().unwrap();
        (state.fails, state.code) = (Some((call, number)), Some(code));
    }

    /// From now on no call fails.
    pub(crate) fn heal(&self) {
        self.0.lock().unwrap().fails = None;
    }

    /// The power is cut before the change with this number.
    pub(crate) fn cut_at(&self, change: u64) {
        self.0.lock().unwrap().cut_at = Some(change);
    }

    pub(crate) fn cut(&self) {
        self.0.lock().unwrap().is_cut = true;
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.0.lock().unwrap().is_cut
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.0.lock().unwrap().has_failed
    }

    pub(crate) fn count(&self, call: Call) -> u64 {
        self.0.lock().unwrap().counts[call as usize]
    }

    pub(crate) fn changes(&self) -> u64 {
        self.0.lock().unwrap().changes
    }

    pub(crate) fn after_cut(&self, seed: u64) -> Left {
        self.0.lock().unwrap().disk.after_cut(seed)
    }

    /// Counts a call. `note` tells the disk of it, and whether it has failed. The answer: how the
    /// call fails, if it does.
    fn call(&self, call: Call, note: impl FnOnce(&mut Disk, bool)) -> Option<c_int> {
        let mut state = self.0.lock().unwrap();
        let state = &mut *state;
        state.counts[call as usize] += 1;
        if call.changes() {
            state.changes += 1;
            state.is_cut |= state.cut_at == Some(state.changes);
        }
        if state.is_cut {
            return Some(call.code(1));
        }
        let number = state.counts[call as usize];
        let fails = state.fails == Some((call, number));
        state.has_failed |= fails;
        note(&mut state.disk, fails);
        fails.then(|| state.code.unwrap_or(call.code(number)))
    }
}

/// A file, as SQLite sees it. The memory after it is the file of the system's layer.
#[repr(C)]
struct File {
    head: ffi::sqlite3_file,
    opened: *mut Opened,
}

struct Opened {
    faults: Arc<Faults>,
    path: PathBuf,
    name: String,
}

impl Opened {
    /// The log, for which the system has no locks of SQLite: so it can be opened beside it. None
    /// once its folder has gone.
    fn log(&self) -> Option<std::fs::File> {
        let is_log = self.name.ends_with("-wal");
        is_log.then(|| std::fs::File::open(&self.path).ok()).flatten()
    }

    /// The last change of the log is one of this layer's.
    fn seal(&self) {
        if let Some(log) = self.log() {
            log.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
    }

    /// Tells the model of the disk what was written into the log past this layer.
    fn note_others(&self) {
        let changed = self.log().map(|log| log.metadata().unwrap().modified().unwrap());
        if changed.is_none_or(|changed| changed == SystemTime::UNIX_EPOCH) {
            return;
        }
        if let Ok(bytes) = std::fs::read(&self.path) {
            self.faults.0.lock().unwrap().disk.write(&self.name, 0, &bytes);
            self.seal();
        }
    }
}

/// The system's layer, as an address: a pointer to a static of SQLite.
static SYSTEM: OnceLock<usize> = OnceLock::new();

fn system() -> *mut ffi::sqlite3_vfs {
    *SYSTEM.get().expect("set before the layer is registered") as *mut ffi::sqlite3_vfs
}

fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: a null name asks for the default layer, a static of SQLite that is never taken
        // away. It is copied, and the copy leaked, so the copy lives as long as the registration of
        // it.
        unsafe {
            let base = ffi::sqlite3_vfs_find(std::ptr::null());
            assert!(!base.is_null());
            SYSTEM.set(base as usize).unwrap();
            let mut layer = Box::new(*base);
            layer.pNext = std::ptr::null_mut();
            layer.zName = c"faults".as_ptr();
            layer.szOsFile = size_of::<File>() as c_int + (*base).szOsFile;
            layer.xOpen = Some(open);
            layer.xDelete = Some(delete);
            assert_eq!(ffi::sqlite3_vfs_register(Box::leak(layer), 1), ffi::SQLITE_OK);
        }
    });
}

fn lookup(name: *const c_char) -> Option<Opened> {
    if name.is_null() {
        return None;
    }
    // SAFETY: SQLite passes a path that ends with a zero, and keeps it for the time of the call.
    let path = Path::new(unsafe { CStr::from_ptr(name) }.to_str().ok()?);
    let faults = FOLDERS.lock().unwrap().get(path.parent()?).cloned()?;
    Some(Opened { faults, path: path.to_owned(), name: path.file_name()?.to_str()?.to_owned() })
}

unsafe extern "C" fn open(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    let base = system();
    // SAFETY: `base` is the system's layer, which has this method.
    let open = unsafe { (*base).xOpen }.expect("a method of each layer");
    let Some(opened) = lookup(name) else {
        // SAFETY: SQLite's arguments, for the layer whose file needs less memory than ours.
        return unsafe { open(base, name, file, flags, out) };
    };
    // SAFETY: SQLite gives `szOsFile` bytes for the file, and closes it only if its methods are
    // set.
    unsafe { (*file).pMethods = std::ptr::null() };
    if let Some(code) = opened.faults.call(Call::Open, |_, _| {}) {
        return code;
    }
    // SAFETY: the memory behind our part has the size that the system's layer asked for
    // (`install`).
    let code = unsafe { open(base, name, real(file), flags, out) };
    if code == ffi::SQLITE_OK {
        opened.faults.0.lock().unwrap().disk.create(&opened.name);
        opened.seal();
        // SAFETY: the memory is ours, see above. `opened` is freed by `close`, which SQLite calls
        // once, since the methods are set.
        unsafe {
            (*file.cast::<File>()).opened = Box::into_raw(Box::new(opened));
            (*file).pMethods = &raw const METHODS;
        }
    }
    code
}

unsafe extern "C" fn delete(_: *mut ffi::sqlite3_vfs, name: *const c_char, sync_folder: c_int) -> c_int {
    if let Some(Opened { faults, name, .. }) = lookup(name) {
        let deleted = faults.call(Call::Delete, |disk, fails| {
            if !fails {
                disk.delete(&name, sync_folder != 0);
            }
        });
        if let Some(code) = deleted {
            return code;
        }
    }
    let base = system();
    // SAFETY: the system's layer, with SQLite's arguments.
    unsafe { ((*base).xDelete.expect("a method of each layer"))(base, name, sync_folder) }
}

/// The file of the system's layer.
///
/// # Safety
///
/// `file` is one that `open` was called with.
unsafe fn real(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    // SAFETY: the memory has the size of both parts (`install`).
    unsafe { file.cast::<File>().add(1).cast() }
}

/// What `open` has noted of a file.
///
/// # Safety
///
/// `file` was opened by `open`, and not closed.
unsafe fn opened<'a>(file: *mut ffi::sqlite3_file) -> &'a Opened {
    // SAFETY: set by `open`, and freed by `close` only.
    unsafe { &*(*file.cast::<File>()).opened }
}

/// Calls a method of the system's file.
macro_rules! pass {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        // SAFETY: SQLite calls methods of open files only, with arguments that are good for the
        // system's file as well.
        unsafe {
            let real = real($file);
            ((*(*real).pMethods).$method.expect("a method of each file"))(real $(, $argument)*)
        }
    }};
}

/// Counts a call, and ends the function if it fails.
macro_rules! counted {
    ($file:expr, $call:ident, $note:expr) => {{
        // SAFETY: SQLite calls methods of open files only.
        let opened = unsafe { opened($file) };
        if let Some(code) = opened.faults.call(Call::$call, |disk, fails| $note(disk, &*opened.name, fails)) {
            return code;
        }
    }};
    ($file:expr, $call:ident) => {
        counted!($file, $call, |_: &mut Disk, _: &str, _: bool| {})
    };
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    let code = pass!(file, xClose);
    // SAFETY: made by `open` from a box. SQLite closes a file once.
    drop(unsafe { Box::from_raw((*file.cast::<File>()).opened) });
    code
}

unsafe extern "C" fn read(file: *mut ffi::sqlite3_file, to: *mut c_void, bytes: c_int, at: i64) -> c_int {
    counted!(file, Read);
    pass!(file, xRead, to, bytes, at)
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, from: *const c_void, bytes: c_int, at: i64) -> c_int {
    // SAFETY: SQLite gives that many bytes.
    let all = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes as usize) };
    // SAFETY: SQLite calls methods of open files only.
    let opened = unsafe { opened(file) };
    opened.note_others();
    // A write that fails has written half of its bytes.
    let mut written = all.len();
    let failed = opened.faults.call(Call::Write, |disk, fails| {
        written = if fails { all.len() / 2 } else { all.len() };
        disk.write(&opened.name, at as usize, &all[..written]);
    });
    if opened.faults.is_cut() {
        return ffi::SQLITE_IOERR_WRITE;
    }
    let code = pass!(file, xWrite, from, written as c_int, at);
    opened.seal();
    failed.unwrap_or(code)
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, length: i64) -> c_int {
    counted!(file, Truncate, |disk: &mut Disk, name: &str, fails: bool| {
        if !fails {
            disk.truncate(name, length as usize);
        }
    });
    let code = pass!(file, xTruncate, length);
    // SAFETY: SQLite calls methods of open files only.
    unsafe { opened(file) }.seal();
    code
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    // SAFETY: SQLite calls methods of open files only.
    unsafe { opened(file) }.note_others();
    counted!(file, Sync, |disk: &mut Disk, name: &str, fails: bool| {
        if fails { disk.sync_failed(name) } else { disk.sync(name) }
    });
    ffi::SQLITE_OK
}

unsafe extern "C" fn size(file: *mut ffi::sqlite3_file, length: *mut i64) -> c_int {
    counted!(file, Size);
    pass!(file, xFileSize, length)
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    counted!(file, Lock);
    pass!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    pass!(file, xUnlock, level)
}

unsafe extern "C" fn check_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    pass!(file, xCheckReservedLock, out)
}

unsafe extern "C" fn control(file: *mut ffi::sqlite3_file, operation: c_int, argument: *mut c_void) -> c_int {
    pass!(file, xFileControl, operation, argument)
}

unsafe extern "C" fn sector_size(file: *mut ffi::sqlite3_file) -> c_int {
    pass!(file, xSectorSize)
}

unsafe extern "C" fn characteristics(file: *mut ffi::sqlite3_file) -> c_int {
    pass!(file, xDeviceCharacteristics)
}

unsafe extern "C" fn map_shared(
    file: *mut ffi::sqlite3_file,
    page: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    counted!(file, MapShared);
    pass!(file, xShmMap, page, size, extend, out)
}

unsafe extern "C" fn lock_shared(file: *mut ffi::sqlite3_file, from: c_int, count: c_int, flags: c_int) -> c_int {
    if flags & ffi::SQLITE_SHM_LOCK != 0 {
        counted!(file, LockShared);
    }
    pass!(file, xShmLock, from, count, flags)
}

unsafe extern "C" fn barrier(file: *mut ffi::sqlite3_file) {
    pass!(file, xShmBarrier);
}

unsafe extern "C" fn unmap_shared(file: *mut ffi::sqlite3_file, delete: c_int) -> c_int {
    pass!(file, xShmUnmap, delete)
}

/// Version 2: with shared memory, and without files that are mapped into memory, of which the layer
/// would see nothing.
static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_lock),
    xFileControl: Some(control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(map_shared),
    xShmLock: Some(lock_shared),
    xShmBarrier: Some(barrier),
    xShmUnmap: Some(unmap_shared),
    xFetch: None,
    xUnfetch: None,
};
