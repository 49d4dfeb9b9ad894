//! Child processes that run the body of a test.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{PATIENCE, ms};

/// Reports a skipped test on the real standard error, which the test harness does not capture.
#[allow(dead_code)] // for tests/process alone
pub(crate) fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {why}");
}

const CHILD: &str = "TIMERQUEUE_TEST_CHILD";
const CHILD_RAN: &str = "the child ran this body to its end";

/// The name of a test in the test harness: its path without the crate.
pub(crate) fn full_name(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    }
}

/// Runs `body` in a child process, since limits, affinity and system call filters hold for a whole
/// process and often cannot be undone. The child runs the same test again, found by `module` (the
/// `module_path!()` of the calling test) and `test` (its name). The child has one thread. Its
/// output is shown if the child fails, skips a test, or reports lateness.
pub(crate) fn in_child(module: &str, test: &str, body: impl FnOnce()) {
    let name = full_name(module, test);
    if std::env::var_os(CHILD).is_some_and(|child| child == *name) {
        body();
        println!("\n{CHILD_RAN}");
        return;
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let mut child = Command::new(own)
        .args([&name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, &name)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test binary starts again");
    let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let out = std::thread::spawn(move || std::io::read_to_string(&mut out).unwrap_or_default());
    let err = std::thread::spawn(move || std::io::read_to_string(&mut err).unwrap_or_default());
    let deadline = Instant::now() + 2 * PATIENCE;
    let status = loop {
        match child.try_wait().expect("our own child") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
            None => std::thread::sleep(ms(1)),
        }
    };
    let (out, err) = (out.join().unwrap_or_default(), err.join().unwrap_or_default());
    let status = status.map_or_else(|| String::from("killed: no end"), |status| status.to_string());
    let ran = status == "exit status: 0" && out.contains(CHILD_RAN);
    assert!(ran, "{name} in a process of its own: {status}\n--- stdout\n{out}\n--- stderr\n{err}");
    let said = |line: &&str| line.starts_with("SKIPPED") || line.starts_with("LATENESS");
    for line in err.lines().filter(said) {
        let _ = writeln!(std::io::stderr(), "\n{line}");
    }
}
