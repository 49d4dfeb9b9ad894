//! Several users of one file: what stands beside the file is for each of them.

use std::fs::{Permissions, metadata, set_permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::Duration;

use timerqueue_scheduler::Scheduler;
use timerqueue_scheduler::store::SqliteReader;

use crate::support::{Folder, Log};

/// Owner, group and mode.
fn whose(path: &Path) -> (u32, u32, u32) {
    let of = metadata(path).unwrap();
    (of.uid(), of.gid(), of.mode() & 0o7777)
}

#[test]
fn k2_what_stands_beside_the_file_has_its_owner_group_and_mode() {
    let folder = Folder::new();
    let file = folder.file();
    drop(folder.scheduler(&Log::default()));
    let beside = file.with_file_name("jobs.db-processes");
    std::fs::remove_dir_all(&beside).unwrap();
    // Root opens the file of another user, as after a restore.
    let root = chown(&file, Some(65_533), Some(65_532)).is_ok();
    let (owner, group, _) = whose(&file);
    assert!(!root || (owner, group) == (65_533, 65_532));
    for mode in [0o666, 0o660, 0o600] {
        set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let _ = std::fs::remove_dir_all(&beside);
        let scheduler = folder.scheduler(&Log::default());
        let _ = scheduler.put_to("log", &()).key("a").due(Duration::from_secs(3_600)).send().wait().unwrap();
        assert_eq!(whose(&beside), (owner, group, mode | (mode & 0o444) >> 2));
        let own = std::fs::read_dir(&beside).unwrap().next().unwrap().unwrap().path();
        assert_eq!(whose(&own), (owner, group, mode));
        let copy = file.with_file_name(format!("copy-{mode:o}"));
        SqliteReader::open(&file).unwrap().backup(&copy).unwrap();
        assert_eq!(whose(&copy), (owner, group, mode));
    }
    // The mode of a folder that was there before is an administrator's choice.
    set_permissions(&beside, Permissions::from_mode(0o2775)).unwrap();
    drop(folder.scheduler(&Log::default()));
    assert_eq!(whose(&beside).2, 0o2775);
}

#[test]
fn k7_an_error_names_what_could_not_be_made() {
    let folder = Folder::new();
    drop(folder.scheduler(&Log::default()));
    let beside = folder.file().with_file_name("jobs.db-processes");
    std::fs::remove_dir_all(&beside).unwrap();
    std::fs::write(&beside, "").unwrap(); // a file, where the folder should be
    let error = Scheduler::open(folder.file()).start().unwrap_err().to_string();
    assert!(error.contains("jobs.db-processes"), "{error}");
}
