//! Where a file may be: not on a network file system, whose locks and flushes cannot be relied on,
//! and not under a second name. And whether it is still there.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::UNIX_EPOCH;

use super::error::Failure;
use crate::store::Fault;

/// The numbers by which Linux tells file systems of a network: AFS, Ceph, CIFS, Coda, Lustre, NCP,
/// NFS, 9P, SMB, SMB2.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NETWORK: [u32; 10] = [
    0x5346_414f,
    0x00c3_6400,
    0xff53_4d42,
    0x7375_7245,
    0x0bd0_0bd0,
    0x0000_564c,
    0x0000_6969,
    0x0102_1997,
    0x0000_517b,
    0xfe53_4d42,
];

#[cfg(any(target_os = "linux", target_os = "android"))]
fn is_network(number: i128) -> bool {
    // The field is signed on some machines.
    NETWORK.contains(&(number as u32))
}

/// Refuses a file on a network file system, where the system tells. File systems in user space
/// (FUSE) do not say what is behind them.
pub(super) fn check(path: &Path) -> Result<(), Failure> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // A folder that does not exist is an error of the opening.
        let Ok(system) = rustix::fs::statfs(folder) else { return Ok(()) };
        if is_network(system.f_type as i128) {
            let reason = format!("{} is on a network file system", path.display());
            return Err(Failure::new(Fault::NetworkFileSystem, reason));
        }
    }
    let _ = (path, Fault::NetworkFileSystem);
    has_one_name(path)
}

/// Refuses a file with a second name. The log of SQLite stands beside the name, so two names would
/// have two logs, and the file would be damaged. In a folder that is mounted twice, both names have
/// the same log.
fn has_one_name(path: &Path) -> Result<(), Failure> {
    let links = match std::fs::metadata(path) {
        Ok(file) if file.is_file() => file.nlink(),
        _ => 1,
    };
    if links > 1 {
        let reason = format!("{} has {links} names (hard links), and each would have a log of its own", path.display());
        return Err(Failure::new(Fault::CannotOpen, reason));
    }
    if is_mounted(path) {
        let reason =
            format!("{} is mounted by itself, and its log would stand elsewhere: mount its folder", path.display());
        return Err(Failure::new(Fault::CannotOpen, reason));
    }
    Ok(())
}

/// Whether the file is a mount point, as containers mount single files.
fn is_mounted(path: &Path) -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};

        // An older kernel does not tell.
        statx(CWD, path, AtFlags::empty(), StatxFlags::TYPE)
            .is_ok_and(|file| file.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
    }
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    {
        let _ = path;
        false
    }
}

/// Whether the file exists, and this user may not write into it. Asked of the system without
/// opening the file: closing it again would release SQLite's locks.
pub(super) fn is_read_only(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    use rustix::io::Errno;

    let access = access(path, Access::WRITE_OK);
    matches!(access, Err(Errno::ACCESS | Errno::PERM | Errno::ROFS))
}

/// The file at this path is no longer this one, or there is none: what is read or written through
/// an open connection belongs to no file.
pub(super) fn is_still(path: &Path, file: (u64, u64)) -> Result<(), Failure> {
    if identity(path)? != file {
        return Err(Failure::new(Fault::CannotOpen, "another file has taken the place of the one that was opened"));
    }
    Ok(())
}

/// The file at this path among those that have had its content: by its number, and by the time at
/// which the file was made, since a file system gives numbers again. A file that was moved is the
/// same.
pub(super) fn birth(path: &Path) -> Result<i64, Failure> {
    let made = std::fs::metadata(path)?.created().ok().and_then(|made| made.duration_since(UNIX_EPOCH).ok());
    let (_, number) = identity(path)?;
    let made = made.map_or(0, |made| made.as_nanos() as u64);
    Ok((number.rotate_left(32) ^ made) as i64)
}

/// Gives `made`, which this process has made for the jobs of `file`, the owner, the group and the
/// mode of `file`, as SQLite does with its log: each user that may use the file may use the files
/// beside it. Only root can change an owner, so for other users the owner stays.
pub(super) fn take_after(made: &Path, file: &Path) {
    let (Ok(of_file), Ok(of_made)) = (std::fs::metadata(file), std::fs::metadata(made)) else { return };
    for (owner, group) in [(Some(of_file.uid()), None), (None, Some(of_file.gid()))] {
        if owner.is_some_and(|owner| owner != of_made.uid()) || group.is_some_and(|group| group != of_made.gid()) {
            let _ = chown(made, owner, group);
        }
    }
    let mode = of_file.mode() & 0o666;
    // Read permission of the file gives search permission of the folder. The bits above are
    // inherited from the folder around it.
    let mode = if of_made.is_dir() { of_made.mode() & 0o7000 | mode | (mode & 0o444) >> 2 } else { mode };
    if mode != of_made.mode() & 0o7777 {
        let _ = std::fs::set_permissions(made, Permissions::from_mode(mode));
    }
}

/// The file at this path, by device and number.
pub(super) fn identity(path: &Path) -> Result<(u64, u64), Failure> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

#[cfg(all(test, any(target_os = "linux", target_os = "android")))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_told_by_their_numbers() {
        // NFS, CIFS with and without its sign; ext4, tmpfs, overlay.
        assert!([0x6969, 0xff53_4d42, -0x00ac_b2be].map(is_network).iter().all(|&network| network));
        assert!(![0xef53, 0x0102_1994, 0x794c_7630].map(is_network).iter().any(|&network| network));
        assert!(check(Path::new("jobs.db")).is_ok());
    }
}
