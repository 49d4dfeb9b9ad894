//! The output of runs: what is kept for an error, in files, and mailed.
//!
//! Ground rules. A file or a mail that fails is told of, and changes nothing of its run.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use timerqueue_scheduler::Run;

use crate::exit::note;
use crate::text;

/// The most bytes of the output that a mail has.
const LONGEST_MAIL: usize = 1024 * 1024;
/// How long the program may take that mails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The end of the output.
#[derive(Default)]
pub(super) struct Tail {
    bytes: VecDeque<u8>,
    most: usize,
    cut: bool,
}

impl Tail {
    pub(super) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(self.most);
        self.cut |= over > 0;
        self.bytes.drain(..over);
    }

    /// Texts of a file have no NUL.
    pub(super) fn text(&self) -> String {
        let bytes: Vec<u8> = self.bytes.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
        let text = text.trim();
        if self.cut { format!("...{text}") } else { text.to_owned() }
    }
}

/// What becomes of outputs.
pub(super) struct Kept {
    /// The bytes of the error of a failed attempt.
    pub(super) of_error: usize,
    pub(super) folder: Option<PathBuf>,
    pub(super) mail: Option<Mail>,
    pub(super) echo: bool,
}

/// The output of a run.
pub(super) struct Output {
    pub(super) of_error: Tail,
    mailed: Tail,
    file: Option<File>,
    echo: bool,
}

impl Kept {
    pub(super) fn begin(&self, run: &Run) -> Output {
        let file = self.folder.as_ref().and_then(|folder| {
            let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
            let key: String = run.key().chars().take(100).map(plain).collect();
            let file = folder.join(format!("{key}.{}.{}", run.id().0, run.attempt()));
            let opened = OpenOptions::new().create(true).append(true).open(&file);
            opened.map_err(|error| note(&format!("timerqueue: {}: {error}", file.display()))).ok()
        });
        let mailed = Tail::new(if self.mail.is_some() { LONGEST_MAIL } else { 0 });
        Output { of_error: Tail::new(self.of_error), mailed, file, echo: self.echo }
    }

    /// A run has ended by itself: `how`, unless it went well.
    pub(super) fn end(&self, output: &Output, run: &Run, how: Option<&str>) {
        let Some(mail) = &self.mail else { return };
        let said = output.mailed.text();
        if said.is_empty() && how.is_none() {
            return;
        }
        if let Err(error) = mail.send(&mail.text(run, how, &said)) {
            note(&format!("timerqueue: the output of {} was not mailed: {error}", text::tame(run.key())));
        }
    }
}

impl Output {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.of_error.add(bytes);
        self.mailed.add(bytes);
        if self.echo {
            let _ = io::stderr().write_all(bytes);
        }
        if let Some(Err(error)) = self.file.as_mut().map(|file| file.write_all(bytes)) {
            self.file = None;
            note(&format!("timerqueue: an output was not written: {error}"));
        }
    }
}

/// A program that mails, as cron calls it: the mail with its headers is its standard input.
pub(super) struct Mail {
    pub(super) to: String,
    pub(super) program: Vec<String>,
}

impl Mail {
    fn text(&self, run: &Run, how: Option<&str>, said: &str) -> String {
        let (to, key, handler) = (text::tame(&self.to), text::short(run.key(), 200), text::short(run.name(), 100));
        let how = how.unwrap_or("done");
        format!(
            "To: {to}\nSubject: timerqueue: {key} ({handler}), attempt {}: {how}\nAuto-Submitted: auto-generated\n\
             MIME-Version: 1.0\nContent-Type: text/plain; charset=UTF-8\nContent-Transfer-Encoding: 8bit\n\n{said}\n",
            run.attempt()
        )
    }

    fn send(&self, mail: &str) -> io::Result<()> {
        let [program, arguments @ ..] = &self.program[..] else { return Ok(()) };
        let mut child = Command::new(program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let input = child.stdin.take();
        std::thread::scope(|scope| {
            // A program that does not read keeps the writer until it is killed.
            scope.spawn(move || input.map(|mut input| input.write_all(mail.as_bytes())));
            let begin = Instant::now();
            loop {
                match child.try_wait()? {
                    Some(status) if status.success() => return Ok(()),
                    Some(status) => return Err(io::Error::other(format!("{program}: {status}"))),
                    None if begin.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(20)),
                    None => {
                        child.kill()?;
                        child.wait()?;
                        return Err(io::Error::other(format!("{program} took longer than {PATIENCE:?}")));
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_output_is_kept() {
        let mut tail = Tail::new(4);
        tail.add(b"ab");
        assert_eq!(tail.text(), "ab");
        tail.add(b"c\0ef\n");
        assert_eq!(tail.text(), "...\u{fffd}ef");
        let mut none = Tail::new(0);
        none.add(b"abc");
        assert_eq!(none.text(), "...");
    }

    #[test]
    fn a_program_that_does_not_mail_is_an_error() {
        let mail = |program: &[&str]| {
            let program = program.iter().map(|&word| word.to_owned()).collect();
            Mail { to: "ann".to_owned(), program }.send(&"x".repeat(1 << 20))
        };
        assert!(mail(&["sh", "-c", "cat > /dev/null"]).is_ok());
        assert!(mail(&["sh", "-c", "exit 3"]).is_err());
        assert!(mail(&["/nonexistent"]).is_err());
    }
}
