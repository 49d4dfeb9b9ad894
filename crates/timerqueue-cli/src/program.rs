//! From the arguments to the command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::{self, Cli, Command};
use crate::exit::{self, Fail};
use crate::out::Out;
use crate::{change, check, look, put, tail, web, worker};

pub(crate) fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if let Some(code) = worker::stage(&arguments) {
        return code;
    }
    let parsed = Cli::command()
        .try_get_matches_from(args::with_separator(arguments))
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::DONE });
        }
    };
    let mut out = Out::new(cli.json);
    let result = run(cli, &mut out).and_then(|()| out.flush());
    match result {
        Ok(()) => ExitCode::from(exit::DONE),
        Err(fail) => {
            // What was done before stands in the output.
            let _ = out.flush();
            fail.report();
            ExitCode::from(fail.code())
        }
    }
}

fn run(cli: Cli, out: &mut Out) -> Result<(), Fail> {
    let file = cli.file;
    let file = || -> Result<PathBuf, Fail> {
        file.ok_or_else(|| Fail::Usage("which file? Give it with --file, or in TIMERQUEUE_FILE".to_owned()))
    };
    match cli.command {
        Command::Put(put) => put::put(&file()?, put, out),
        Command::Cron(cron) if cron.dry_run => put::preview(&cron, out),
        Command::Cron(cron) => put::cron(&file()?, cron, out),
        Command::Ls(ls) => look::ls(&file()?, &ls, out),
        Command::Show(show) => look::show(&file()?, &show, out),
        Command::Cancel(keys) => change::cancel(&file()?, &keys, out),
        Command::Move(to) => change::move_to(&file()?, &to, out),
        Command::Run(keys) => change::run_now(&file()?, &keys, out),
        Command::Pause(what) => change::pause(&file()?, &what, true, out),
        Command::Resume(what) => change::pause(&file()?, &what, false, out),
        Command::Retry(dead) => change::retry(&file()?, &dead, out),
        Command::Dead(dead) if dead.discard => change::discard(&file()?, &dead, out),
        Command::Dead(dead) => look::dead(&file()?, &dead, out),
        Command::Stats => look::stats(&file()?, out),
        Command::Tail(tail) => tail::tail(&file()?, &tail, out),
        Command::Check(check) => check::check(&file()?, check.progress, out),
        Command::Web(page) => web::web(&file()?, &page, out),
        Command::Worker(worker) => worker::work(&file()?, worker, out),
        Command::Completions { shell } => {
            // The generator panics if its output fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "timerqueue", &mut script);
            out.raw(&script)
        }
    }
}
