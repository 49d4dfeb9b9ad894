//! The standard output: texts for people, or a line of JSON for each thing.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use serde::Serialize;

use crate::exit::{Fail, PLACE};
use crate::text;

pub(crate) struct Out {
    json: bool,
    stdout: BufWriter<Stdout>,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, stdout: BufWriter::new(io::stdout()) }
    }

    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// A line for people.
    pub(crate) fn line(&mut self, line: &str) -> Result<(), Fail> {
        writeln!(self.stdout, "{}", text::tame_lines(line))?;
        Ok(())
    }

    /// One thing, in the form that was asked for.
    pub(crate) fn thing<T: Serialize>(&mut self, thing: &T, text: impl FnOnce(&T) -> String) -> Result<(), Fail> {
        if self.json {
            let line = serde_json::to_string(thing).map_err(|error| Fail::new(PLACE, error.to_string()))?;
            writeln!(self.stdout, "{line}")?;
            Ok(())
        } else {
            self.line(&text(thing))
        }
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Fail> {
        self.stdout.write_all(bytes)?;
        Ok(())
    }

    pub(crate) fn flush(&mut self) -> Result<(), Fail> {
        self.stdout.flush()?;
        Ok(())
    }
}

/// How far a long command is, on one line of a terminal.
pub(crate) struct Progress {
    shown: bool,
    pub(crate) on: bool,
    pub(crate) terminal: bool,
}

impl Progress {
    /// On a terminal, or if it was asked for.
    pub(crate) fn new(wanted: bool) -> Self {
        let terminal = io::stderr().is_terminal();
        Self { shown: false, on: wanted || terminal, terminal }
    }

    pub(crate) fn show(&mut self, text: &str) {
        if self.on {
            let (mut stderr, text) = (io::stderr(), text::tame(text));
            let _ = if self.terminal { write!(stderr, "\r\x1b[K{text}") } else { writeln!(stderr, "{text}") };
            let _ = stderr.flush();
            self.shown = true;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.terminal {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
