//! From the arguments to the command.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::args::{self, Cli, Command};
use crate::exit::{self, Fail};
use crate::out::Out;
use crate::place::Place;
use crate::{change, check, crontab, look, man, put, restore, tail, text, web, worker};

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
            // Without colours, if an argument would set its own.
            let plain = error.render().to_string();
            if text::tame_lines(&plain) == plain {
                let _ = error.print();
            } else {
                exit::note(plain.trim_end());
            }
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
            ExitCode::from(fail.report())
        }
    }
}

fn run(cli: Cli, out: &mut Out) -> Result<(), Fail> {
    let place = Place::of(&cli);
    let place = || place.as_ref().map_err(Fail::clone);
    match cli.command {
        Command::Put(put) => put::put(place()?, put, out),
        Command::Cron(cron) if cron.dry_run => put::preview(&cron, out),
        Command::Cron(cron) => put::cron(place()?, cron, out),
        Command::Ls(ls) => look::ls(place()?, &ls, out),
        Command::Show(show) => look::show(place()?, &show, out),
        Command::ImportCrontab(crontab) => crontab::import(place, &crontab, out),
        Command::Cancel(jobs) => change::cancel(place()?, &jobs, out),
        Command::Edit(edit) => change::edit(place()?, edit, out),
        Command::Move(to) => change::move_to(place()?, &to, out),
        Command::Run(keys) => change::run_now(place()?, &keys, out),
        Command::Pause(what) => change::pause(place()?, &what, true, out),
        Command::Resume(what) => change::pause(place()?, &what, false, out),
        Command::Retry(dead) => change::retry(place()?, &dead, out),
        Command::Dead(dead) if dead.discard => change::discard(place()?, &dead, out),
        Command::Dead(dead) => look::dead(place()?, &dead, out),
        Command::Nodes => look::nodes(place()?, out),
        Command::Stats => look::stats(place()?, out),
        Command::Tail(tail) => tail::tail(place()?, &tail, out),
        Command::Check(check) => check::check(place()?, check.progress, out),
        Command::Backup(backup) => restore::backup(place()?, &backup, out),
        Command::Restore(how) => restore::restore(place()?, &how, out),
        Command::Web(page) => web::web(place()?, &page, out),
        Command::Worker(worker) => worker::work(place()?, worker, out),
        Command::Completions { shell } => {
            // The generator panics if its output fails.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "timerqueue", &mut script);
            out.raw(&script)
        }
        Command::Man { command, all } => man::man(command.as_deref(), all.as_deref(), out),
    }
}
