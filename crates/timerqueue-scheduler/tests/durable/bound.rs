//! Members on a file: schedulers of several processes.

use std::process::{Command, Stdio};

use timerqueue::Runtime;
use timerqueue_scheduler::Scheduler;
use timerqueue_scheduler::store::SqliteOptions;

use crate::members;
use crate::support::{Folder, LONG};

#[test]
fn c8_the_share_of_a_killed_process_moves() {
    let folder = Folder::new();
    let ledger = folder.file().with_file_name("ledger");
    let nodes = ["one", "two"].map(|name| members::node(Scheduler::open(folder.file()), name, &ledger, false));
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "bound::process_for_c8", "--ignored", "--nocapture"])
        .env("NODE_FILE", folder.file())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    members::the_share_of_a_killed_node_moves(&nodes, child, &ledger);
}

#[test]
#[ignore = "a process of c8"]
fn process_for_c8() {
    let Some(file) = std::env::var_os("NODE_FILE").map(std::path::PathBuf::from) else { return };
    let _node = members::node(Scheduler::open(&file), "child", &file.with_file_name("ledger"), true);
    std::thread::sleep(std::time::Duration::from_secs(3_600));
}

#[test]
fn m6_m7_limits_hold_with_eight_threads() {
    let folder = Folder::new();
    // With three writers and a slow disk, the wait for the lock can be long.
    let options = SqliteOptions::new().busy_timeout(LONG);
    let store = || options.open(Runtime::global(), folder.file()).unwrap();
    members::limits_hold_with_eight_threads(|| Scheduler::builder().store(store()), 40);
}
