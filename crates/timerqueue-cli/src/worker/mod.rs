//! `worker`: runs jobs as commands.
//!
//! Ground rules. Three processes take part in a run. The worker claims the job and settles it
//! ([`run`]). It starts a guard ([`guard`]): this program again, in a process group of its own, at
//! the other end of a socket. The guard starts the command in a further group, and ends this group
//! when the command has ended, when the worker says so, and when the socket is closed, which the
//! kernel does for a worker that was killed. On Linux the kernel also kills the command if its
//! guard is killed.

mod boot;
mod guard;
mod kept;
mod run;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use timerqueue::{OnceTimer, Runtime};
use timerqueue_scheduler::store::SqliteStore;
use timerqueue_scheduler::{Handler, History, Outcome, Retry, Run, RunEnd, RunRecord, Scheduler, StartError};

use self::kept::{Kept, Mail};
use self::run::Exec;
use crate::args;
use crate::exit::{Fail, PLACE, STOPPED, note};
use crate::out::Out;
use crate::place::Place;
use crate::store::Scheduling;
use crate::text;

/// The error of an attempt whose job was cancelled. The job has left the file then.
const CANCELLED: &str = "cancelled";

/// The stages of a run that are this program again: `timerqueue __guard ...`.
pub(crate) fn stage(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments.get(1)?.to_str()? {
        guard::GUARD => Some(guard::guard(&arguments[2..])),
        guard::EXEC => Some(guard::exec(&arguments[2..])),
        _ => None,
    }
}

/// The end of a run, for the log.
#[derive(Serialize)]
struct Ended<'a> {
    at: String,
    end: String,
    id: u64,
    key: &'a str,
    handler: &'a str,
    attempt: u32,
    late_seconds: f64,
    seconds: f64,
    error: Option<&'a str>,
}

/// Writes a line about each run: for people on the standard error, for programs on the standard
/// output. A closed output stops no worker.
fn log(record: &RunRecord, json: bool, quiet: bool) {
    let last = &record.run;
    if quiet && matches!(last.end, RunEnd::Done | RunEnd::Again) {
        return;
    }
    let late = last.started.duration_since(last.due).unwrap_or_default();
    let ended = Ended {
        at: text::rfc3339(std::time::SystemTime::now()),
        end: if last.error.as_deref() == Some(CANCELLED) { CANCELLED.to_owned() } else { last.end.to_string() },
        id: record.id.0,
        key: &record.key,
        handler: &record.name,
        attempt: last.attempt,
        late_seconds: late.as_secs_f64(),
        seconds: last.duration.as_secs_f64(),
        error: last.error.as_deref(),
    };
    if json {
        let mut out = Out::new(true);
        let _ = out.thing(&ended, |_| String::new()).and_then(|()| out.flush());
    } else {
        let error = ended.error.map(|error| format!(": {}", text::tame(error))).unwrap_or_default();
        let (name, key) = (text::tame(ended.handler), text::tame(ended.key));
        let seconds = ended.seconds;
        note(&format!(
            "{} {name} {key}: {} after {seconds:.3} s, attempt {}{error}",
            ended.at, ended.end, ended.attempt
        ));
    }
}

/// The file of a command, as the system finds it.
fn find(command: &OsStr) -> Result<(), Fail> {
    let runs = |path: &Path| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    let named = Path::new(command);
    let found = if named.components().count() > 1 || command.as_encoded_bytes().contains(&b'/') {
        runs(named)
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        std::env::split_paths(&path).any(|folder| runs(&folder.join(named)))
    };
    if found {
        Ok(())
    } else {
        Err(Fail::usage(format!("there is no command {}", text::tame(&command.to_string_lossy()))))
    }
}

/// What becomes of the output of runs.
fn kept(worker: &args::Worker) -> Result<Kept, Fail> {
    if let Some(folder) = worker.output.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Fail::usage(format!("{} is no folder", text::tame(&folder.to_string_lossy()))));
    }
    let program: Vec<String> = worker.mailer.split_whitespace().map(str::to_owned).collect();
    let mail = match worker.mail_to.as_deref().map(str::trim).filter(|to| !to.is_empty()) {
        Some(to) => {
            find(program.first().map_or("", |program| program).as_ref())?;
            Some(Mail { to: to.to_owned(), program })
        }
        None => None,
    };
    Ok(Kept { of_error: worker.keep_output, folder: worker.output.clone(), mail, echo: worker.echo })
}

enum Message {
    Signal,
    /// The close is complete, and so many runs go on.
    Closed(usize),
    /// The timer runtime has ended: no further job would run.
    Ended,
}

/// No worker runs for so long.
const LIFETIME: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Tells when the runtime ends, which drops the timers that are left with all that they own.
struct TellsOfEnd(Sender<Message>);

impl Drop for TellsOfEnd {
    fn drop(&mut self) {
        let _ = self.0.send(Message::Ended);
    }
}

/// Calls `hears` at each signal that asks to stop, until it returns `false`.
pub(crate) fn listen(mut hears: impl FnMut() -> bool + Send + 'static) -> Result<(), Fail> {
    let failed = |error| Fail::new(PLACE, format!("signals cannot be received: {error}"));
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let listening = move || _ = signals.forever().take_while(|_| hears()).last();
    std::thread::Builder::new().name("signals".to_owned()).spawn(listening).map_err(failed)?;
    Ok(())
}

fn start(
    runtime: &Runtime,
    place: &Place,
    worker: &args::Worker,
    exec: Arc<Exec>,
    json: bool,
) -> Result<Scheduling, Fail> {
    let quiet = worker.quiet;
    let mut builder = Scheduler::builder()
        .runtime(runtime)
        .parallel(worker.parallel)
        .on_run_end(move |record| log(record, json, quiet))
        .on_store_error(|error| note(&format!("timerqueue: the store has failed, and is asked again: {error}")));
    if worker.keep_finished.is_some() || worker.remember_keys.is_some() {
        let history = History::new(worker.keep_finished.unwrap_or_default()).rows(worker.keep_last);
        builder = builder.history(history.keys(worker.remember_keys.unwrap_or_default()));
    }
    let names: BTreeSet<&String> = worker.handlers.iter().collect();
    for name in names {
        let exec = Arc::clone(&exec);
        let retry = match &worker.waits[..] {
            [] => Retry::new(worker.attempts).first(worker.wait).longest(worker.longest_wait),
            waits => Retry::waits(waits.iter().copied()),
        };
        let call = move |payload: Box<RawValue>, run: &Run| exec.run(&payload, run);
        let mut handler = Handler::new(name, call).parallel(worker.parallel).retry(retry);
        if let Some(limit) = worker.limit {
            handler = handler.limit(limit);
        }
        if let Some(runs) = worker.per_group {
            handler = handler.parallel_per_group(runs);
        }
        builder = builder.register(handler);
    }
    let started = match place {
        Place::File(_) if worker.lease.is_some() => Err(Fail::usage("--lease is for servers")),
        Place::File(file) => {
            SqliteStore::open(runtime, file).map_err(Fail::from).and_then(|store| Scheduling::on(builder, &store))
        }
        #[cfg(feature = "postgres")]
        Place::Server(server) => {
            let options = worker.lease.map_or_else(|| server.options(), |lease| server.options().lease(lease));
            let store = options.connect(runtime, &server.address).map_err(Fail::from);
            store.and_then(|store| Scheduling::on(builder, &store))
        }
    };
    started.map_err(|fail| place.named(fail))
}

/// Runs jobs until a signal.
pub(crate) fn work(place: &Place, worker: args::Worker, out: &mut Out) -> Result<(), Fail> {
    let Some((program, arguments)) = worker.command.split_first() else {
        return Err(Fail::usage("--exec needs a command"));
    };
    find(program)?;
    let (messages, incoming) = channel();
    // Before the first run, so that no signal ends the worker without its runs.
    let signals = messages.clone();
    listen(move || signals.send(Message::Signal).is_ok())?;
    let put_back = Arc::new(AtomicUsize::new(0));
    let exec = Arc::new(Exec {
        program: program.clone(),
        arguments: arguments.to_vec(),
        environment: place.environment(),
        again: worker.again,
        grace: worker.grace,
        raw: worker.raw,
        kept: kept(&worker)?,
        put_back: Arc::clone(&put_back),
    });
    let runtime = Runtime::try_current().map_err(StartError::Runtime)?;
    let scheduler = start(&runtime, place, &worker, exec, out.is_json())?;
    match boot::time() {
        Some(booted) => boot::run_jobs(&scheduler, &worker.handlers, booted)?,
        None if boot::has_jobs(&scheduler, &worker.handlers)? => {
            note("timerqueue: this system does not tell when it has started: no job of @reboot runs here")
        }
        None => {}
    }
    let tells = TellsOfEnd(messages.clone());
    // Of a timer that waits: an idle one keeps what it owns.
    let _never = OnceTimer::on(&runtime, LIFETIME, move |_| drop(tells));
    if !worker.quiet {
        note(&format!("timerqueue: worker {} waits for jobs in {place}", std::process::id()));
    }
    let mut signals = 0;
    let running = loop {
        match incoming.recv() {
            Ok(Message::Signal) => signals += 1,
            Ok(Message::Closed(running)) => break running,
            Ok(Message::Ended) => {
                return Err(Fail::new(STOPPED, "the timer runtime has ended; the runs under way are being ended"));
            }
            Err(_) => break 0,
        }
        match signals {
            1 => close(&scheduler, &worker, messages.clone()),
            // Ends the runs now: the close under way then ends as well.
            2 => drop(scheduler.close(Duration::ZERO)),
            _ => return Err(Fail::new(STOPPED, "stopped at once; the runs under way are being ended")),
        }
    };
    let put_back = put_back.load(Ordering::Acquire) + running;
    drop(scheduler);
    match put_back {
        0 => Ok(()),
        1 => Err(Fail::new(STOPPED, "stopped, and 1 run was put back")),
        runs => Err(Fail::new(STOPPED, format!("stopped, and {runs} runs were put back"))),
    }
}

/// Closes the scheduler, on a thread of its own: further signals are heard meanwhile.
fn close(scheduler: &Scheduler, worker: &args::Worker, messages: Sender<Message>) {
    /// For the settles, behind the grace.
    const MORE: Duration = Duration::from_secs(5);
    let (scheduler, finish, grace) = (scheduler.clone(), worker.finish, worker.grace);
    std::thread::spawn(move || {
        let runs = |limit| scheduler.close(limit).wait().map_or(0, |report| report.running.len());
        let mut running = runs(finish);
        if running > 0 {
            // Their tokens are cancelled, so the commands are being ended.
            running = runs(grace.saturating_mul(2).saturating_add(MORE));
        }
        drop(scheduler);
        let _ = messages.send(Message::Closed(running));
    });
}

/// What a run answers if the worker stops.
fn stopped(exec: &Exec) -> Outcome {
    exec.put_back.fetch_add(1, Ordering::AcqRel);
    Outcome::PutBack
}
