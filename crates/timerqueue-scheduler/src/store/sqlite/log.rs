//! The log after a flush that has failed.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use super::error::Failure;

const SECTION: usize = 64 << 10;

/// Writes all bytes of the log again as they are, so that the next flush brings them to the disk.
/// After a flush that has failed, file systems take its pages for written all the same: the flush
/// after it would succeed without them, and leave a hole before the commits that follow. Called
/// under the lock of writers, so no other thread or process writes into the log; readers of the log
/// find the same bytes at each moment. SQLite holds no lock of the system on this file, so to close
/// it again releases none.
pub(super) fn write_again(path: &Path) -> Result<(), Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    let mut log = match OpenOptions::new().read(true).write(true).open(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        log => log?,
    };
    let mut section = vec![0; SECTION];
    let mut at = 0;
    loop {
        log.seek(SeekFrom::Start(at))?;
        let length = log.read(&mut section)?;
        if length == 0 {
            return Ok(());
        }
        log.seek(SeekFrom::Start(at))?;
        log.write_all(&section[..length])?;
        at += length as u64;
    }
}
