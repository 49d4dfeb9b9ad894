//! A run, on the side of the worker.
//!
//! Ground rules. One thread of the pool per run. It waits for the output of the command and for the
//! guard's words at once, and never for one alone: a process that has left the group may keep the
//! output open.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::value::RawValue;
use timerqueue::CancelReason;
use timerqueue_scheduler::{Outcome, Run};

use super::guard::{GUARD, STOP};
use super::kept::{Kept, Output};
use super::{CANCELLED, stopped};
use crate::text;

/// The exit codes of a command.
const AGAIN: i32 = 75;
const DEAD: i32 = 65;

/// The command, and how it is run.
pub(super) struct Exec {
    pub(super) program: OsString,
    pub(super) arguments: Vec<OsString>,
    /// Where further jobs are put.
    pub(super) environment: Vec<(&'static str, OsString)>,
    pub(super) again: Duration,
    pub(super) grace: Duration,
    pub(super) raw: bool,
    pub(super) kept: Kept,
    pub(super) put_back: Arc<AtomicUsize>,
}

/// How a command ended, in the words of its guard.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Exit(i32),
    Signal(i32),
    /// The command could not be started, or its guard was killed.
    Lost(String),
}

impl Exec {
    /// Runs the command for a job.
    pub(super) fn run(&self, payload: &RawValue, run: &Run) -> Result<Outcome, String> {
        if run.closing().is_cancelled() && run.token().is_cancelled() {
            return Ok(stopped(self));
        }
        let mut output = self.kept.begin(run);
        let end =
            self.watched(&self.input(payload), run, &mut output).unwrap_or_else(|error| End::Lost(error.to_string()));
        let reason = run.token().reason();
        let said = output.of_error.text();
        // The end is told by mail, too.
        let with_output = |what: String| {
            self.kept.end(&output, run, Some(&what));
            if said.is_empty() { what } else { format!("{what}: {said}") }
        };
        match end {
            End::Exit(code @ (0 | AGAIN)) => {
                self.kept.end(&output, run, None);
                Ok(if code == AGAIN { Outcome::again(self.again) } else { Outcome::Done })
            }
            End::Exit(DEAD) => Ok(Outcome::Dead(with_output("exit code 65".to_owned()))),
            // The worker has ended it.
            _ if reason == Some(CancelReason::Timeout) => {
                let limit = text::rough(run.limit().unwrap_or_default());
                Err(with_output(format!("ended at the limit of {limit}")))
            }
            _ if reason.is_some() && run.closing().is_cancelled() => Ok(stopped(self)),
            _ if reason.is_some() => Err(CANCELLED.to_owned()),
            End::Exit(code) => Err(with_output(format!("exit code {code}"))),
            End::Signal(signal) => Err(with_output(format!("ended by signal {signal}"))),
            End::Lost(reason) => Err(with_output(reason)),
        }
    }

    /// What the command reads.
    fn input(&self, payload: &RawValue) -> Vec<u8> {
        match serde_json::from_str::<String>(payload.get()) {
            Ok(text) if self.raw => text.into_bytes(),
            _ => payload.get().as_bytes().to_vec(),
        }
    }

    fn guard(&self, run: &Run) -> Command {
        // The running program, also after its file was replaced.
        let itself = if cfg!(any(target_os = "linux", target_os = "android")) {
            PathBuf::from("/proc/self/exe")
        } else {
            std::env::current_exe().unwrap_or_else(|_| "timerqueue".into())
        };
        let mut guard = Command::new(itself);
        guard.arg0("timerqueue").arg(GUARD).arg(self.grace.as_millis().to_string()).arg(&self.program);
        guard.args(&self.arguments).process_group(0);
        guard.env("TIMERQUEUE_KEY", run.key()).env("TIMERQUEUE_HANDLER", run.name());
        #[cfg(feature = "postgres")]
        guard.env("TIMERQUEUE_FENCE", run.fence());
        guard.env("TIMERQUEUE_ATTEMPT", run.attempt().to_string()).env("TIMERQUEUE_TOKEN", run.run_id());
        guard.env("TIMERQUEUE_ID", run.id().0.to_string()).env("TIMERQUEUE_DUE", text::rfc3339(run.due()));
        match run.nominal() {
            Some(nominal) => guard.env("TIMERQUEUE_NOMINAL", text::rfc3339(nominal)),
            None => guard.env_remove("TIMERQUEUE_NOMINAL"),
        };
        guard.envs(self.environment.iter().map(|(name, value)| (name, value)));
        guard
    }

    /// Starts the guard, and waits for its end.
    fn watched(&self, input: &[u8], run: &Run, output: &mut Output) -> io::Result<End> {
        let (mut socket, theirs) = UnixStream::pair()?;
        let (printed, print) = pipe()?;
        ioctl_fionbio(&printed, true)?;
        let mut guard = self.guard(run);
        guard.stdin(OwnedFd::from(theirs)).stdout(print.try_clone()?).stderr(Stdio::from(print));
        let mut child = guard.spawn()?;
        // With it go the copies of the other ends.
        drop(guard);
        let length = u32::try_from(input.len()).unwrap_or(u32::MAX).to_le_bytes();
        let sent = socket.write_all(&length).and_then(|()| socket.write_all(input));
        let stop = socket.try_clone()?;
        // Called on another thread, or here if the token is cancelled already.
        let stopping = run.token().register(move || _ = (&stop).write_all(&[STOP]));
        let words = sent.and_then(|()| self.listen(&mut socket, &printed, output));
        drop(stopping);
        drop(socket); // a guard that still lives ends its group now
        let _ = child.wait();
        let words = words?;
        self.read(&printed, output);
        Ok(judged(&words))
    }

    /// The words of the guard, until it has ended. Takes the output meanwhile.
    fn listen(&self, socket: &mut UnixStream, printed: &OwnedFd, output: &mut Output) -> io::Result<String> {
        let mut words = Vec::new();
        let mut prints = true;
        loop {
            let mut wait = vec![PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)];
            if prints {
                wait.push(PollFd::from_borrowed_fd(printed.as_fd(), PollFlags::IN));
            }
            match poll(&mut wait, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let (said, printed_now) =
                (!wait[0].revents().is_empty(), wait.get(1).is_some_and(|fd| !fd.revents().is_empty()));
            if printed_now {
                prints = self.read(printed, output);
            }
            if said {
                let mut bytes = [0; 256];
                match socket.read(&mut bytes) {
                    Ok(0) => return Ok(String::from_utf8_lossy(&words).into_owned()),
                    Ok(read) => words.extend_from_slice(&bytes[..read]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    // The guard was killed.
                    Err(_) => return Ok(String::from_utf8_lossy(&words).into_owned()),
                }
            }
        }
    }

    /// Takes what was printed, up to some chunks: further output waits its turn. False: there will
    /// be no more.
    fn read(&self, printed: &OwnedFd, output: &mut Output) -> bool {
        const CHUNKS: usize = 16;
        let mut bytes = [0; 8_192];
        for _ in 0..CHUNKS {
            match rustix::io::read(printed, &mut bytes) {
                Ok(0) => return false,
                Ok(read) => output.add(&bytes[..read]),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// A pipe that no command inherits by chance.
#[cfg(not(target_vendor = "apple"))]
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// A pipe. A command that is started at the same instant may inherit it: no end of a run waits for
/// the end of the pipe.
#[cfg(target_vendor = "apple")]
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = rustix::pipe::pipe()?;
    for end in [&read, &write] {
        rustix::io::fcntl_setfd(end, rustix::io::FdFlags::CLOEXEC)?;
    }
    Ok((read, write))
}

/// What the guard has said, a word and its value on each line.
fn judged(words: &str) -> End {
    let mut group = None;
    for line in words.lines() {
        let (word, value) = line.split_once(' ').unwrap_or((line, ""));
        let number = value.parse::<i32>().ok();
        match (word, number) {
            ("group", number) => group = number,
            ("exit", Some(code)) => return End::Exit(code),
            ("signal", Some(signal)) => return End::Signal(signal),
            ("error", _) => return End::Lost(value.to_owned()),
            _ => {}
        }
    }
    // The guard was killed before it could say how the command ended: its group is ended from here.
    if let Some(group) = group.and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    End::Lost("the process that guards the command was killed".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_the_guard_are_understood() {
        assert_eq!(judged("group 2147483646\nexit 75\n"), End::Exit(75));
        assert_eq!(judged("group 2147483646\nsignal 9\n"), End::Signal(9));
        assert_eq!(judged("error no such file\n"), End::Lost("no such file".to_owned()));
        assert!(matches!(judged(""), End::Lost(_)));
    }
}
