//! Cleaning up, however the test program ends.
//!
//! Ground rules. A guard is a shell that reads its input until it ends, and then runs a script. The
//! kernel closes the input when the test program ends, also by a panic or a kill. A guard that is
//! dropped has run its script.

use std::process::{Child, Command, Stdio};

pub(crate) struct Guard(Child);

impl Guard {
    pub(crate) fn new(script: &str, arguments: &[&str]) -> Self {
        let script = format!("cat >/dev/null; {script}");
        // a signal to the group of the test program is not for the guard
        let mut shell = Command::new("setsid");
        shell.args(["sh", "-c", &script, "sh"]).args(arguments).current_dir("/");
        Self(shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Runs a program to its end, which must be a good one.
#[track_caller]
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir("/").output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
