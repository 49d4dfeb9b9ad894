//! The guard of a run, and the last stage before its command: this program again.
//!
//! Ground rules. The standard input of the guard is a socket to the worker. The worker sends the
//! payload with its length, and [`STOP`] if the command is to end. The end of the socket means that
//! the worker is gone. The answers are lines: `group N` from the last stage, and then `exit N`,
//! `signal N` or `error TEXT` from the guard. The guard is in no terminal's foreground group and
//! ignores the signals that stop a worker: it ends with its command.

use std::ffi::OsString;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process_group, test_kill_process_group, waitid, waitpgid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::note;

pub(super) const GUARD: &str = "__guard";
pub(super) const EXEC: &str = "__exec";
/// The byte by which a worker ends a command.
pub(super) const STOP: u8 = b'T';

/// As shells say it.
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How long the guard waits for processes that were killed.
const BURIAL: Duration = Duration::from_millis(500);

enum Message {
    /// The command has ended.
    Ended,
    /// The worker wants it to end.
    Stop,
    /// The worker is gone.
    Alone,
}

/// `__guard GRACE COMMAND...`: starts the command, and ends its process group.
pub(super) fn guard(arguments: &[OsString]) -> ExitCode {
    let stdin = io::stdin();
    let Ok(socket) = stdin.as_fd().try_clone_to_owned().map(UnixStream::from) else { return ExitCode::FAILURE };
    let ignored = Arc::default();
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let _ = signal_hook::flag::register(signal, Arc::clone(&ignored));
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let said = match guarded(arguments, &socket) {
        Ok(end) => end,
        Err(error) => format!("error {}", error.to_string().replace('\n', " ")),
    };
    let _ = writeln!(&socket, "{said}");
    ExitCode::SUCCESS
}

fn guarded(arguments: &[OsString], mut socket: &UnixStream) -> io::Result<String> {
    let wrong = || io::Error::other("the guard was started in a wrong way");
    let [grace, command @ ..] = arguments else { return Err(wrong()) };
    let grace = grace.to_str().and_then(|millis| millis.parse().ok()).map(Duration::from_millis).ok_or_else(wrong)?;
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut payload = vec![0; u32::from_le_bytes(length) as usize];
    socket.read_exact(&mut payload)?;
    let mut child = start(command, &payload, socket)?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(wrong)?;
    let (messages, incoming) = channel();
    let (ended, words) = (messages.clone(), socket.try_clone());
    std::thread::spawn(move || await_end(group, &ended));
    match words {
        Ok(words) => _ = std::thread::spawn(move || hear(words, &messages)),
        Err(_) => _ = messages.send(Message::Alone),
    }
    let left = ended_within(&incoming, group, grace);
    // Until its parent has waited for it, the number of the command, and so of the group, is given
    // to no other process.
    let _ = kill_process_group(group, if left.is_zero() { Signal::KILL } else { Signal::TERM });
    let status = child.wait()?;
    end_rest(&incoming, group, left);
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    })
}

/// Starts the command by way of [`exec`], in a process group of its own. A file is its standard
/// input, so it may read late, or never.
fn start(command: &[OsString], payload: &[u8], socket: &UnixStream) -> io::Result<Child> {
    let mut input = nameless()?;
    input.write_all(payload)?;
    input.rewind()?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let itself = "/proc/self/exe";
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let itself = std::env::current_exe()?;
    let mut stage = Command::new(itself);
    stage.arg0("timerqueue").arg(EXEC).arg(std::process::id().to_string()).args(command);
    stage.stdin(Stdio::from(input)).stdout(OwnedFd::from(socket.try_clone()?)).process_group(0).spawn()
}

/// A file without a name.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn nameless() -> io::Result<std::fs::File> {
    let file = rustix::fs::memfd_create("payload", rustix::fs::MemfdFlags::CLOEXEC)?;
    Ok(file.into())
}

/// A file without a name.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn nameless() -> io::Result<std::fs::File> {
    let path = std::env::temp_dir().join(format!("timerqueue-payload-{}", std::process::id()));
    let file = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// `__exec GUARD COMMAND...`: tells the worker its group, and becomes the command. The kernel kills
/// it if its guard is killed. Its standard output is the socket at first.
pub(super) fn exec(arguments: &[OsString]) -> ExitCode {
    let [guard, program, rest @ ..] = arguments else { return ExitCode::from(CANNOT_RUN) };
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        // The guard may have been killed before that.
        let parent = rustix::process::getppid().map(|parent| parent.as_raw_nonzero().to_string());
        if parent.as_deref() != guard.to_str() {
            return ExitCode::from(CANNOT_RUN);
        }
    }
    let _ = guard;
    // The worker knows the group before any process of it can have children. Then the output of the
    // command goes where its errors go.
    let told = writeln!(io::stdout(), "group {}", std::process::id()).and_then(|()| io::stdout().flush());
    if told.is_err() || rustix::stdio::dup2_stdout(rustix::stdio::stderr()).is_err() {
        return ExitCode::from(CANNOT_RUN);
    }
    let error = Command::new(program).args(rest).exec();
    note(&format!("{}: {error}", program.to_string_lossy()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN })
}

/// Tells that the command has ended. It stays a zombie.
fn await_end(command: Pid, messages: &Sender<Message>) {
    let end = || waitid(WaitId::Pid(command), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    while end().is_err_and(|error| error == rustix::io::Errno::INTR) {}
    let _ = messages.send(Message::Ended);
}

/// Tells what the worker says.
fn hear(mut words: UnixStream, messages: &Sender<Message>) {
    let mut byte = [0];
    loop {
        let message = match words.read(&mut byte) {
            Ok(1) => Message::Stop,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            _ => Message::Alone,
        };
        let last = matches!(message, Message::Alone);
        if messages.send(message).is_err() || last {
            return;
        }
    }
}

/// Waits until the command has ended, and ends it if it has to. The time that is left to the other
/// processes of the group.
fn ended_within(incoming: &Receiver<Message>, group: Pid, grace: Duration) -> Duration {
    let mut deadline: Option<Instant> = None;
    let mut killed = false;
    loop {
        let wait = match deadline {
            Some(deadline) if !killed => deadline.saturating_duration_since(Instant::now()),
            _ => Duration::MAX,
        };
        // A wait without end is one of a year, over and over.
        match incoming.recv_timeout(wait.min(Duration::from_secs(365 * 86_400))) {
            Ok(Message::Ended) if killed => return Duration::ZERO,
            Ok(Message::Ended) => {
                return deadline.map_or(grace, |deadline| deadline.saturating_duration_since(Instant::now()));
            }
            Ok(Message::Stop) if deadline.is_none() => {
                let _ = kill_process_group(group, Signal::TERM);
                deadline = Some(Instant::now() + grace.min(Duration::from_secs(365 * 86_400)));
            }
            Ok(Message::Stop) => {}
            Ok(Message::Alone) | Err(RecvTimeoutError::Disconnected) => {
                let _ = kill_process_group(group, Signal::KILL);
                killed = true;
            }
            Err(RecvTimeoutError::Timeout) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                let _ = kill_process_group(group, Signal::KILL);
                killed = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Ends the processes of the group that the command has left behind. They were told to end; what
/// lives on after this time is killed.
fn end_rest(incoming: &Receiver<Message>, group: Pid, left: Duration) {
    let mut kill_at = Instant::now() + left.min(Duration::from_secs(365 * 86_400));
    let mut pause = Duration::from_millis(1);
    let mut killed_at = left.is_zero().then(Instant::now);
    loop {
        // Processes without a parent are this one's children: the system's init may be slow to wait
        // for them.
        while matches!(waitpgid(group, WaitOptions::NOHANG), Ok(Some(_))) {}
        if test_kill_process_group(group) == Err(rustix::io::Errno::SRCH) {
            return;
        }
        if killed_at.is_none() && Instant::now() >= kill_at {
            let _ = kill_process_group(group, Signal::KILL);
            killed_at = Some(Instant::now());
        }
        if killed_at.is_some_and(|at| at.elapsed() > BURIAL) {
            return;
        }
        match incoming.recv_timeout(pause) {
            Ok(Message::Alone) => kill_at = Instant::now(),
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(pause),
            _ => {}
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
