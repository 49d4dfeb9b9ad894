//! The command line, as clap reads it.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use timerqueue_scheduler::{Catchup, Overlap, State, Until};

use crate::text::duration;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    no such job
  2    the command line is wrong
  3    refused: the key is taken, the job runs, it is of another kind, or its time has passed
  4    the store cannot be used: it does not exist, cannot be reached, is locked, read-only or full; or the address of the page
  5    the store is damaged, no database, or of a newer version
  6    the worker was stopped, and has put runs back
  7    put --wait: the job is dead, or has left without being done
  8    put --wait: the job has not ended in time
  141  the reader of the output is gone

Durations are numbers with units: 250ms, 90s, 1h30m, 2d (of 24 hours each), 1w.";

/// Jobs that survive: a durable cron and at, in one file without a server, or on PostgreSQL
///
/// Jobs wait in a store for their due time, and a worker runs them as commands. A job that was
/// accepted survives the process, the kernel and the power. Several workers, other programs and
/// this command may use the store at the same time. The store is a file, or a schema of a
/// PostgreSQL database that workers on many machines share.
#[derive(Debug, Parser)]
#[command(name = "timerqueue", version, after_help = EXIT_CODES, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// The file with the jobs, or the address of a PostgreSQL server [env: TIMERQUEUE_STORE]
    ///
    /// An address is a URL, postgres://user@host/database, or keywords and values, "host=h user=u
    /// dbname=d". Its password is not given here, where other users could read it, but in
    /// TIMERQUEUE_STORE, PGPASSWORD or a password file (PGPASSFILE, ~/.pgpass).
    #[arg(short = 'f', long, visible_alias = "file", global = true, value_name = "STORE", display_order = 900)]
    pub(crate) store: Option<OsString>,

    /// The schema of the tables on a server [env: TIMERQUEUE_SCHEMA] [default: timerqueue]
    #[arg(long, global = true, value_name = "NAME", display_order = 901)]
    pub(crate) schema: Option<String>,

    /// Writes JSON, an object on each line
    #[arg(long, global = true, display_order = 902)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Put(Put),
    Cron(Cron),
    ImportCrontab(ImportCrontab),
    Ls(Ls),
    Show(Show),
    Cancel(Cancel),
    Move(Move),
    Edit(Edit),
    /// Makes jobs due now; a recurring job runs beside its schedule
    Run(Keys),
    /// Keeps jobs, or all jobs of a handler, from starting
    ///
    /// A run goes on.
    Pause(What),
    /// Lets paused jobs go on
    Resume(What),
    Retry(Retry),
    Dead(Dead),
    /// Lists the workers and programs on the store, with their runs
    ///
    /// Each is shown with the time since which it is there, its handlers, and the runs and places
    /// of each handler. A worker that was killed is listed until its end was noticed, on a server
    /// until its lease has ended.
    Nodes,
    /// Counts the jobs, by handler and state
    Stats,
    Tail(Tail),
    Check(Check),
    Backup(Backup),
    Restore(Restore),
    Web(Web),
    Worker(Worker),
    /// Writes a script that completes commands and options in a shell
    #[command(
        after_help = "Example:\n  timerqueue completions bash > ~/.local/share/bash-completion/completions/timerqueue"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Writes the manual, of this program or of a command
    #[command(after_help = "\
Examples:
  timerqueue man worker | man -l -
  timerqueue man --all /usr/local/share/man/man1")]
    Man {
        /// The command [default: the program]
        command: Option<String>,

        /// Writes the manual pages of all commands to this folder
        #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
        all: Option<PathBuf>,
    },
}

/// A term of a job: `none` leaves it to the worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term<T>(pub(crate) Option<T>);

fn term<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Term<T>, String> {
    if text == "none" { Ok(Term(None)) } else { read(text).map(Some).map(Term) }
}

fn duration_term(text: &str) -> Result<Term<Duration>, String> {
    term(text, duration)
}

fn attempts_term(text: &str) -> Result<Term<u32>, String> {
    term(text, |text| text.parse().ok().filter(|&attempts| attempts > 0).ok_or_else(|| "a number from 1".to_owned()))
}

// The payload of a job. (No doc comment: clap would take it for the text of the command.)
#[derive(Debug, Args)]
pub(crate) struct Payload {
    /// The payload as JSON; of a new job null, if it is left out
    #[arg(value_name = "JSON", conflicts_with_all = ["text", "stdin"])]
    pub(crate) payload: Option<String>,

    /// A text as payload: a JSON string is made of it
    #[arg(long, value_name = "TEXT", conflicts_with = "stdin", allow_hyphen_values = true)]
    pub(crate) text: Option<String>,

    /// Reads the payload as JSON from the standard input
    #[arg(long)]
    pub(crate) stdin: bool,
}

// The payload of a job, which is null if it is left out, and what happens if its key is taken.
#[derive(Debug, Args)]
pub(crate) struct NewJob {
    #[command(flatten)]
    pub(crate) payload: Payload,

    /// The key, by which the job can be cancelled and moved [default: made up]
    #[arg(short, long)]
    pub(crate) key: Option<String>,

    /// Takes the place of a job with this key
    #[arg(long, conflicts_with = "keep")]
    pub(crate) replace: bool,

    /// Leaves a job with this key as it is, and is content
    #[arg(long)]
    pub(crate) keep: bool,

    /// From -9 to 9: of due jobs the highest begins first, and each step is worth an hour
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true, hide_default_value = true)]
    pub(crate) priority: i8,

    /// Begins no later than this time after it is due, and is dead then; of a schedule, each run
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires_after: Option<Duration>,

    /// Is begun at most once: dead, instead of begun again, after a failure and after the end of
    /// its worker
    #[arg(long)]
    pub(crate) at_most_once: bool,

    /// Attempts before the job is dead, instead of those of the worker; of a schedule, for each run
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: Option<u32>,

    /// The limit of time of each run, instead of that of the worker
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) limit: Option<Duration>,

    /// Keeps the key taken for this time once the job is done, instead of as the worker says
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) unique_for: Option<Duration>,

    /// Keeps the done job for this time, at least, with its result: for show and ls --done
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) keep_for: Option<Duration>,

    /// The group, such as account-7: one worker runs all jobs of the handler with it, as many at a
    /// time as --per-group says there
    #[arg(short, long)]
    pub(crate) group: Option<String>,
}

// When a job is due.
#[derive(Debug, Args)]
pub(crate) struct Due {
    /// Due after this time
    #[arg(long = "in", value_name = "DURATION", value_parser = duration, conflicts_with = "at")]
    pub(crate) after: Option<Duration>,

    /// Due at this time: 2026-12-24T18:00, 2026-12-24, 18:00 (the next one), or with an offset; or
    /// as for at: noon, 6pm tomorrow, now + 2 hours, midnight + 3 days, monday
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,

    /// The time zone of --at [default: that of the system]
    #[arg(long, value_name = "ZONE", requires = "at")]
    pub(crate) zone: Option<String>,
}

/// What each line of the standard input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Each {
    /// A payload as JSON
    Json,
    /// A text as payload
    Text,
    /// A JSON object with any of `payload`, `key`, `in`, `at` and `after` (a list of keys)
    Job,
}

/// Puts a job that runs once, now or later
///
/// When the command ends with 0, the job is on the disk, of the server if the store is there.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  timerqueue put mail '{\"to\":\"ann\"}' --in 5m
  timerqueue put mail '\"bob\"' --key welcome/bob --at 2026-12-24T18:00 --zone Europe/Berlin
  timerqueue put sh --text 'echo hello' --at 18:00     (for: timerqueue worker sh --raw --exec sh)
  make-payload | timerqueue put report --stdin --key report --replace
  timerqueue put sum '[1, 2, 3]' --wait 1m
  timerqueue put mail --each text --in 5m < addresses
  timerqueue put report --after import/a --after import/b --until all-ended
  echo '{\"payload\":\"ann\",\"key\":\"welcome/ann\",\"at\":\"noon tomorrow\"}' | timerqueue put mail --each job")]
pub(crate) struct Put {
    /// The name of the handler: workers with this name run the job
    pub(crate) handler: String,

    #[command(flatten)]
    pub(crate) job: NewJob,

    /// Puts a job for each line of the standard input, many in one commit. Lines that are wrong or
    /// refused are told of, and keep no other from being put
    #[arg(long, value_enum, value_name = "FORM", conflicts_with_all = ["payload", "text", "stdin", "key"])]
    pub(crate) each: Option<Each>,

    #[command(flatten)]
    pub(crate) due: Due,

    /// Refuses a job whose time has passed, instead of running it now
    #[arg(long, requires = "at")]
    pub(crate) refuse_overdue: bool,

    /// Begins no later than at this time, in the zone of --at, and is dead then
    #[arg(long, value_name = "TIME", conflicts_with = "expires_after")]
    pub(crate) expires_at: Option<String>,

    /// Waits for the job with this key, which waits or runs; may be given several times. Of --each,
    /// each job does
    #[arg(long = "after", value_name = "KEY")]
    pub(crate) predecessors: Vec<String>,

    /// Until when a job waits for others
    #[arg(long, value_parser = one_of(UNTIL), default_value = "all-done", hide_default_value = true)]
    pub(crate) until: Until,

    /// Waits for the end of the job, for this time at most, and writes its result
    ///
    /// The result is what the handler of a program has returned, as JSON. The command of a worker
    /// returns none. What was put is told on the standard error; with --json, the put and the ended
    /// job are a line each. The done job is kept for an hour, if --keep-for says no other time.
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "each")]
    pub(crate) wait: Option<Duration>,
}

fn catchup(text: &str) -> Result<Catchup, String> {
    let all = || {
        text.strip_prefix("all=").and_then(|number| number.parse().ok()).filter(|number| (1..=1_000).contains(number))
    };
    match text {
        "last" => Ok(Catchup::RunLast),
        "skip" => Ok(Catchup::Skip),
        _ => match all() {
            Some(at_most) => Ok(Catchup::RunAll { at_most }),
            None => Err("one of last, skip, all=1 to all=1000".to_owned()),
        },
    }
}

/// Words, each with its help and what it means.
type Words<T> = [(&'static str, &'static str, T)];

fn one_of<T: Copy + Send + Sync + 'static>(words: &'static Words<T>) -> impl TypedValueParser<Value = T> {
    let possible = words.iter().map(|&(word, help, _)| match help {
        "" => PossibleValue::new(word),
        help => PossibleValue::new(word).help(help),
    });
    PossibleValuesParser::new(possible).try_map(|word| {
        let found = words.iter().find(|(own, ..)| *own == word);
        found.map(|&(.., value)| value).ok_or("no such word")
    })
}

pub(crate) const OVERLAPS: &Words<Overlap> = &[
    ("skip", "The occurrence does not run", Overlap::Skip),
    ("queue", "One occurrence waits for the end of the run", Overlap::QueueOne),
    ("allow", "Both run", Overlap::Allow),
];

/// Puts a job that runs again and again, and shows its next five runs
///
/// The schedule is one argument:
///   a cron line of five fields, six with seconds first, seven with years last
///   @yearly, @monthly, @weekly, @daily, @hourly
///   @reboot, for a run after each start of the machine, when a worker for it starts (Linux)
///   every DURATION, for a fixed period
///   after DURATION, counted from the end of the run before
///   a cron line with its zone, such as 'CRON_TZ=Europe/Berlin 30 2 * * *'
///   JSON, such as '{"cron":"0 9 * * MON","zone":"Europe/Berlin","from":"2026-01-05T00:00:00Z","each":"2 weeks","except":["12-25"]}'
#[derive(Debug, Args)]
#[command(
    verbatim_doc_comment,
    after_help = "\
Examples:
  timerqueue cron backup '30 2 * * *' --zone Europe/Berlin --key backup --update
  timerqueue cron poll 'every 10s' --key poll --catchup skip
  timerqueue cron report '0 8 * * MON-FRI' --dry-run"
)]
pub(crate) struct Cron {
    /// The name of the handler: workers with this name run the job
    pub(crate) handler: String,

    /// The schedule
    pub(crate) schedule: String,

    #[command(flatten)]
    pub(crate) job: NewJob,

    /// The time zone of a cron line [default: that of the system]
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,

    /// Missed occurrences that run: last, skip, or all=N for the last N
    #[arg(long, default_value = "last", value_parser = catchup, value_name = "WHICH")]
    pub(crate) catchup: Catchup,

    /// An occurrence that is later than this does not run
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) grace: Option<Duration>,

    /// An occurrence during a run
    #[arg(long, value_parser = one_of(OVERLAPS), default_value = "skip")]
    pub(crate) overlap: Overlap,

    /// Changes the recurring job that has the key to what is said here, and lets it wait and run
    /// on: the same line changes nothing. For a crontab that is put at each start
    #[arg(long, requires = "key", conflicts_with_all = ["replace", "keep"])]
    pub(crate) update: bool,

    /// Only shows the next five runs; needs no store
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Puts the jobs of a crontab, as jobs whose payloads are shell scripts
///
/// For workers that run scripts: timerqueue worker sh --raw --exec sh. Each script sets the
/// variables that stand before its line, changes to the home directory, and gets what follows a %
/// as its standard input. SHELL and CRON_TZ count. A job has a key of its command, so the same
/// crontab may be imported again: what has another time is changed, and what is the same stays.
///
/// As for cron, missed runs do not run and runs may overlap, unless --catchup and --overlap say
/// otherwise. What cannot be carried over is told with its line. The exit code is 3 if a line was
/// left out.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crontab -l | timerqueue import-crontab - --dry-run
  timerqueue import-crontab /etc/crontab --system --prune")]
pub(crate) struct ImportCrontab {
    /// The crontab; - for the standard input
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// The name of the handler: workers with this name run the scripts
    #[arg(long, value_name = "NAME", default_value = "sh")]
    pub(crate) handler: String,

    /// What the keys begin with
    #[arg(long, value_name = "TEXT", default_value = "crontab/")]
    pub(crate) prefix: String,

    /// The lines have the name of a user before the command, as in /etc/crontab
    #[arg(long)]
    pub(crate) system: bool,

    /// The time zone of lines without CRON_TZ before them [default: that of the system]
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,

    /// Missed occurrences that run: last, skip, or all=N for the last N
    #[arg(long, default_value = "skip", value_parser = catchup, value_name = "WHICH")]
    pub(crate) catchup: Catchup,

    /// An occurrence during a run
    #[arg(long, value_parser = one_of(OVERLAPS), default_value = "allow")]
    pub(crate) overlap: Overlap,

    /// Cancels recurring jobs of the handler whose keys begin as these and are not in the crontab
    #[arg(long)]
    pub(crate) prune: bool,

    /// Only shows what would be put; needs no store
    #[arg(long, conflicts_with = "prune")]
    pub(crate) dry_run: bool,
}

const UNTIL: &Words<Until> = &[
    ("all-done", "All are done; dead, if one was cancelled or discarded (the default)", Until::AllDone),
    ("all-done-or-dead", "All are done; dead, if one is dead, was cancelled or discarded", Until::AllDoneOrDead),
    ("all-ended", "All have ended, done or not", Until::AllEnded),
    ("any-dead", "One is dead, was cancelled or discarded; leaves, if all are done", Until::AnyDead),
];

const STATES: &Words<State> = &[
    ("waiting", "", State::Waiting),
    ("queued", "", State::Queued),
    ("running", "", State::Running),
    ("dead", "", State::Dead),
    ("recurring", "", State::Recurring),
];

/// Lists jobs, those that are due first at the beginning
#[derive(Debug, Args)]
#[command(
    visible_alias = "list",
    after_help = "\
Examples:
  timerqueue ls --state waiting --prefix welcome/
  timerqueue ls --done --handler mail -n 20
  timerqueue ls --json | jq -r 'select(.attempt > 1) | .key'"
)]
pub(crate) struct Ls {
    /// Only jobs in this state; several times for several states
    #[arg(short, long, value_parser = one_of(STATES))]
    pub(crate) state: Vec<State>,

    /// Only jobs of this handler
    #[arg(long)]
    pub(crate) handler: Option<String>,

    /// Only keys that begin with this text
    #[arg(short, long)]
    pub(crate) prefix: Option<String>,

    /// Only jobs that are due, or will be within this time: 0s for those that are due
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) due_within: Option<Duration>,

    /// Only jobs that are paused by their key
    #[arg(long)]
    pub(crate) paused: bool,

    /// Only jobs with greater numbers than this, in the order of their numbers
    #[arg(long, value_name = "NUMBER")]
    pub(crate) after: Option<u64>,

    /// The done jobs that workers keep (--keep-finished) instead, the last ones to end first
    #[arg(long, conflicts_with_all = ["state", "due_within", "paused", "after"])]
    pub(crate) done: bool,

    /// At most this number of jobs
    #[arg(short = 'n', long, value_name = "JOBS")]
    pub(crate) limit: Option<usize>,
}

/// Shows all that is known of a job
///
/// Of a recurring job it shows the next five runs. A done job is shown if a worker keeps it
/// (--keep-finished).
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["key", "id"]))]
pub(crate) struct Show {
    /// The key
    pub(crate) key: Option<String>,

    /// The number
    #[arg(long, value_name = "NUMBER")]
    pub(crate) id: Option<u64>,
}

/// Cancels jobs
///
/// No attempt follows. A command that runs for the job is ended, also that of another worker. Dead
/// jobs stay. The exit code is 1 if there is no such job.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).args(["keys", "prefix"]), after_help = "\
Examples:
  timerqueue cancel welcome/ann
  timerqueue cancel --prefix welcome/ --handler mail")]
pub(crate) struct Cancel {
    /// The keys
    #[arg(value_name = "KEY")]
    pub(crate) keys: Vec<String>,

    /// All jobs whose keys begin with this text
    #[arg(short, long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) prefix: Option<String>,

    /// Of --prefix: only jobs of this handler
    #[arg(long, value_name = "NAME", requires = "prefix")]
    pub(crate) handler: Option<String>,
}

/// How long ago a dead job ran last.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Age {
    /// Only jobs that died longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older: Option<Duration>,

    /// Only jobs that died within this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) newer: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Keys {
    /// The keys
    #[arg(required = true, value_name = "KEY")]
    pub(crate) keys: Vec<String>,
}

/// Changes payload, priority, due time or terms of a job that waits
///
/// Of a recurring job, all but the due time, as those of its runs to come. A job that runs is left
/// as it is. Terms may be none: as the worker says.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("parts").required(true).multiple(true).args([
    "payload", "text", "stdin", "after", "at", "priority", "expires_after", "expires_at", "at_most_once", "attempts",
    "limit", "unique_for", "keep_for",
]), after_help = "\
Examples:
  timerqueue edit welcome/ann '{\"to\":\"ann@example.com\"}'
  timerqueue edit report --priority 5 --in 10m
  timerqueue edit report --attempts 3 --limit none")]
pub(crate) struct Edit {
    /// The key
    pub(crate) key: String,

    #[command(flatten)]
    pub(crate) payload: Payload,

    /// From -9 to 9, as for put
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true)]
    pub(crate) priority: Option<i8>,

    /// Begins no later than this time after it is due; of a schedule, each run
    #[arg(long, value_name = "DURATION", value_parser = duration_term)]
    pub(crate) expires_after: Option<Term<Duration>>,

    /// Begins no later than at this time, in the zone of --at
    #[arg(long, value_name = "TIME", conflicts_with = "expires_after")]
    pub(crate) expires_at: Option<String>,

    /// Whether it is begun at most once; if so, a job that has failed before is dead
    #[arg(long, value_name = "true|false")]
    pub(crate) at_most_once: Option<bool>,

    /// Attempts before the job is dead, with those that it has had
    #[arg(long, value_name = "NUMBER", value_parser = attempts_term)]
    pub(crate) attempts: Option<Term<u32>>,

    /// The limit of time of each run
    #[arg(long, value_name = "DURATION", value_parser = duration_term)]
    pub(crate) limit: Option<Term<Duration>>,

    /// Keeps the key taken for this time once the job is done
    #[arg(long, value_name = "DURATION", value_parser = duration_term)]
    pub(crate) unique_for: Option<Term<Duration>>,

    /// Keeps the done job for this time, at least
    #[arg(long, value_name = "DURATION", value_parser = duration_term)]
    pub(crate) keep_for: Option<Term<Duration>>,

    #[command(flatten)]
    pub(crate) due: Due,
}

/// Gives a job another due time, or a recurring job another schedule
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("when").required(true).args(["after", "at", "schedule", "realign"]), after_help = "\
Examples:
  timerqueue move welcome/bob --in 2h
  timerqueue move backup --schedule '30 4 * * *' --zone Europe/Berlin")]
pub(crate) struct Move {
    /// The key
    pub(crate) key: String,

    /// Due after this time
    #[arg(long = "in", value_name = "DURATION", value_parser = duration)]
    pub(crate) after: Option<Duration>,

    /// Due at this time, as for put
    #[arg(long, value_name = "TIME")]
    pub(crate) at: Option<String>,

    /// The schedule of a recurring job, as for cron; occurrences up to now do not run, and the same
    /// schedule changes nothing
    #[arg(long)]
    pub(crate) schedule: Option<String>,

    /// Lets a recurring job go on from now: it skips what it has missed, and waits for no instant
    /// of a clock that was ahead
    #[arg(long)]
    pub(crate) realign: bool,

    /// The time zone [default: that of the system]
    #[arg(long, value_name = "ZONE")]
    pub(crate) zone: Option<String>,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("what").required(true).args(["keys", "handler"]))]
pub(crate) struct What {
    /// The keys
    #[arg(value_name = "KEY")]
    pub(crate) keys: Vec<String>,

    /// All jobs of this handler, also those to come
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<String>,
}

/// Lets dead jobs run again, now and with all their attempts
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["keys", "id", "all"]))]
pub(crate) struct Retry {
    /// The keys: of each the job that died last
    #[arg(value_name = "KEY", conflicts_with = "all")]
    pub(crate) keys: Vec<String>,

    /// A number, as `dead` shows it
    #[arg(long, value_name = "NUMBER", conflicts_with = "all")]
    pub(crate) id: Vec<u64>,

    /// All dead jobs
    #[arg(long)]
    pub(crate) all: bool,

    /// Of --all: only those of this handler
    #[arg(long, value_name = "NAME", requires = "all")]
    pub(crate) handler: Option<String>,

    #[command(flatten)]
    pub(crate) age: Age,
}

/// Lists dead jobs with their errors, or removes them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  timerqueue dead
  timerqueue dead --discard --id 17
  timerqueue dead --discard --all --handler mail --older 30d")]
pub(crate) struct Dead {
    /// Only those of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<String>,

    #[command(flatten)]
    pub(crate) age: Age,

    /// At most this number of jobs
    #[arg(short = 'n', long, value_name = "JOBS")]
    pub(crate) limit: Option<usize>,

    /// Removes dead jobs
    #[arg(long, requires = "removed")]
    pub(crate) discard: bool,

    /// Removes the dead job with this number
    #[arg(long, value_name = "NUMBER", requires = "discard", group = "removed")]
    pub(crate) id: Vec<u64>,

    /// Removes all dead jobs
    #[arg(long, requires = "discard", group = "removed")]
    pub(crate) all: bool,
}

/// Shows what happens, as it happens: jobs put, begun, done, failed, dead
///
/// Ends at Ctrl-C. The store is looked at in short intervals while this command runs. Done jobs
/// that are kept (worker --keep-finished) are told of, all of them. Another job that comes and goes
/// between two looks is not named; in a file it is counted.
#[derive(Debug, Args)]
pub(crate) struct Tail {
    /// Only jobs of this handler
    #[arg(long, value_name = "NAME")]
    pub(crate) handler: Option<String>,

    /// Only keys that begin with this text
    #[arg(short, long)]
    pub(crate) prefix: Option<String>,

    /// The time between two looks
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    pub(crate) interval: Duration,
}

/// Reads the whole store, and compares indexes and counts with the rows
///
/// On a server it also shows the version of the tables, clocks, sizes and replication. Writes
/// nothing. The exit code is 5 if the store is damaged, or has rows that cannot be read.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Shows the progress also where the standard error is no terminal
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Copies the file while it is in use
///
/// The copy is on the disk when the command ends with 0, and it is held: put in the place of the
/// file, none of its jobs runs until `timerqueue restore --release`. A server is backed up by its
/// own programs.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  timerqueue backup /backup/jobs-$(date +%F).db")]
pub(crate) struct Backup {
    /// The file of the copy, which does not exist yet
    #[arg(value_name = "COPY")]
    pub(crate) to: PathBuf,
}

/// Keeps a restored store from running its past again
///
/// A backup knows jobs as waiting that have run since. With --hold, all handlers are paused in one
/// commit. Then the overdue jobs can be looked at, cancelled and moved by the other commands, or
/// all skipped at once. With --release, the handlers that the hold has paused go on; jobs that are
/// begun at most once and are overdue are dead then. Without an option, it tells whether the store
/// is held.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("how").args(["hold", "skip_overdue", "release"]),
    after_help = "\
Example, with all workers stopped:
  timerqueue restore --hold            pauses all handlers, and lists what is overdue
  timerqueue cancel welcome/ann        what has run already
  timerqueue restore --skip-overdue    or: cancels all that is overdue; recurring jobs go on from now
  timerqueue restore --release         the rest runs"
)]
pub(crate) struct Restore {
    /// Pauses all handlers
    #[arg(long)]
    pub(crate) hold: bool,

    /// Cancels the overdue jobs of a held store; recurring jobs go on from now
    #[arg(long)]
    pub(crate) skip_overdue: bool,

    /// Of --skip-overdue: only jobs of this handler
    #[arg(long, value_name = "NAME", requires = "skip_overdue")]
    pub(crate) handler: Option<String>,

    /// Resumes the handlers that the hold has paused
    #[arg(long)]
    pub(crate) release: bool,

    /// Shows the progress also where the standard error is no terminal
    #[arg(long)]
    pub(crate) progress: bool,
}

/// Serves a page with the jobs, until it is stopped
///
/// Shows what waits, runs, fails and is dead, plots, schedules, and each job with its attempts and
/// errors. Jobs are retried, cancelled, run now, paused and resumed there. Writes the URL of the
/// page, which has a token that is made up for this start.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  timerqueue web
  TIMERQUEUE_WEB_TOKEN=$(openssl rand -hex 16) timerqueue web --listen 0.0.0.0:8787 --host jobs.example.com")]
pub(crate) struct Web {
    /// The address and port; port 0 is any free one
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:8787")]
    pub(crate) listen: SocketAddr,

    /// Callers need this token, of 16 bytes at least [default: random]; better given in the
    /// environment, which other users cannot read
    #[arg(long, value_name = "TOKEN", env = "TIMERQUEUE_WEB_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,

    /// All programs and users of this machine see and change the jobs, without a token
    #[arg(long, conflicts_with_all = ["token", "host"])]
    pub(crate) no_token: bool,

    /// A name by which the page may be asked for, beside localhost and addresses; several times for
    /// several names
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,

    /// Without actions
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// Runs jobs as commands, until it is stopped
///
/// Each run starts the command, without a shell, in a process group of its own. The payload is its
/// standard input. In its environment are TIMERQUEUE_KEY, TIMERQUEUE_HANDLER, TIMERQUEUE_ATTEMPT
/// (from 1), TIMERQUEUE_TOKEN (the same for all attempts at a run, and for no other run),
/// TIMERQUEUE_FENCE (for the SQL function done of a server), TIMERQUEUE_ID, TIMERQUEUE_DUE and, of
/// a recurring job, TIMERQUEUE_NOMINAL (RFC 3339), and TIMERQUEUE_STORE.
///
/// Exit code 0: done. 75: again, after --again, as a new run. 65: dead, without further attempts.
/// All else, and an end by a signal: a failed attempt; the end of the command's output is kept as
/// its error.
///
/// When the command has ended, when its job is cancelled, at its limit of time and if the worker is
/// killed, all processes of its group are ended: SIGTERM, and SIGKILL after --grace; SIGKILL at
/// once if the worker was killed.
///
/// SIGTERM, SIGINT and SIGHUP stop the worker: it begins no run, waits for those under way up to
/// --finish, ends them then, and puts their jobs back: the attempt does not count. A second signal
/// ends the runs now, a third one the worker. Exit code 6 says that runs did not finish.
#[derive(Debug, Args)]
#[command(
    override_usage = "timerqueue worker [OPTIONS] <HANDLER>... --exec <COMMAND>...",
    after_help = "\
Examples:
  timerqueue worker mail --exec ./send-mail
  timerqueue worker sh --raw --exec sh                 (payloads are shell scripts)
  timerqueue worker backup report --parallel 4 --limit 1h --attempts 3 --exec ./job.sh --verbose"
)]
pub(crate) struct Worker {
    /// The names of the handlers whose jobs the worker runs
    #[arg(required = true, value_name = "HANDLER")]
    pub(crate) handlers: Vec<String>,

    /// All that follows is the command with its arguments
    #[arg(long, required = true)]
    pub(crate) exec: bool,

    /// The command with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", hide = true)]
    pub(crate) command: Vec<OsString>,

    /// Runs at a time
    #[arg(short, long, value_name = "RUNS", default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub(crate) parallel: usize,

    /// Runs of one group at a time; with 1, one after another
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) per_group: Option<u64>,

    /// The limit of time of each run
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) limit: Option<Duration>,

    /// Attempts at a job before it is dead. The default and the waits below are three weeks
    #[arg(long, value_name = "NUMBER", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) attempts: u32,

    /// The wait after the first failed attempt; each further wait is twice as long
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    pub(crate) wait: Duration,

    /// The longest wait after a failed attempt
    #[arg(long, value_name = "DURATION", default_value = "3d", value_parser = duration)]
    pub(crate) longest_wait: Duration,

    /// The waits after failed attempts, one after another, such as 1m,10m,1h: then the job is dead
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',', value_parser = duration,
        conflicts_with_all = ["attempts", "wait", "longest_wait"])]
    pub(crate) waits: Vec<Duration>,

    /// When a job whose command ends with 75 runs again
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration)]
    pub(crate) again: Duration,

    /// How long runs may finish when the worker is stopped
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration)]
    pub(crate) finish: Duration,

    /// The time between SIGTERM and SIGKILL
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub(crate) grace: Duration,

    /// A payload that is a JSON string is given without its quotes
    #[arg(short, long)]
    pub(crate) raw: bool,

    /// Copies the output of the commands to the standard error
    #[arg(long)]
    pub(crate) echo: bool,

    /// Writes the output of each run to a file of this folder, KEY.NUMBER.ATTEMPT; what of a key is
    /// no letter, digit, `-` or `_` is a `_`
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,

    /// Mails the output of each run that has some, and each failed attempt, as cron does
    #[arg(long, value_name = "ADDRESS", env = "MAILTO")]
    pub(crate) mail_to: Option<String>,

    /// The program that mails, with its arguments: it gets the mail with its headers
    #[arg(long, value_name = "COMMAND", default_value = "/usr/sbin/sendmail -i -t")]
    pub(crate) mailer: String,

    /// How many bytes of the end of the output are kept for the error of a failed attempt
    #[arg(long, value_name = "BYTES", default_value_t = 4_096, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=65_536))]
    pub(crate) keep_output: usize,

    /// Keeps done jobs for this time, for ls --done, show and tail
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) keep_finished: Option<Duration>,

    /// Keeps at most this number of done jobs of each handler: the last ones
    #[arg(long, value_name = "JOBS", default_value_t = timerqueue_scheduler::History::ROWS, requires = "keep_finished")]
    pub(crate) keep_last: u64,

    /// Keeps the keys of done jobs taken for this time
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) remember_keys: Option<Duration>,

    /// How long a run stays this worker's when the worker is not heard of; on a server only
    /// [default: 30s]
    ///
    /// A worker that was killed or cut off loses its runs to other workers after this time. On a
    /// file that is seen at once.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) lease: Option<Duration>,

    /// Says nothing about runs that went well
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// Puts the separator that clap needs behind the `--exec` of a worker: what follows is the command,
/// also if it begins with a dash.
pub(crate) fn with_separator(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let place = |word: &str| arguments.iter().position(|argument| argument == word);
    if let (Some(worker), Some(exec)) = (place("worker"), place("--exec")) {
        let ended = place("--").is_some_and(|separator| separator <= exec + 1);
        if worker < exec && !ended {
            arguments.insert(exec + 1, "--".into());
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parsed(arguments: &[&str]) -> Result<Cli, clap::Error> {
        let all = ["timerqueue"].iter().chain(arguments).map(OsString::from).collect();
        Cli::try_parse_from(with_separator(all))
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn all_behind_exec_is_the_command() {
        let command = |arguments: &[&str]| match parsed(arguments).unwrap().command {
            Command::Worker(worker) => (worker.handlers, worker.command),
            other => panic!("{other:?}"),
        };
        let found = command(&["worker", "a", "b", "--raw", "--exec", "prog", "--raw", "-x", "--", "--json"]);
        assert_eq!(found.0, ["a", "b"]);
        assert_eq!(found.1, ["prog", "--raw", "-x", "--", "--json"]);
        assert_eq!(command(&["worker", "a", "--exec", "--", "--odd"]).1, ["--odd"]);
        assert!(parsed(&["worker", "a"]).is_err());
        assert!(parsed(&["worker", "a", "--exec"]).is_err());
        assert!(parsed(&["worker", "--exec", "prog"]).is_err());
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for wrong in [
            &["put", "h", "--in", "5m", "--at", "18:00"][..],
            &["put", "h", "--zone", "UTC"],
            &["put", "h", "1", "--text", "x"],
            &["put", "h", "--key", "k", "--replace", "--keep"],
            &["show"],
            &["show", "k", "--id", "1"],
            &["cancel"],
            &["cancel", "k", "--prefix", "p"],
            &["cancel", "--prefix", ""],
            &["put", "h", "--each", "text", "--text", "x"],
            &["put", "h", "--each", "text", "--wait", "1s"],
            &["import-crontab", "-", "--prune", "--dry-run"],
            &["move", "k"],
            &["pause"],
            &["pause", "k", "--handler", "h"],
            &["retry"],
            &["retry", "k", "--all"],
            &["dead", "--discard"],
            &["dead", "--all"],
            &["cron", "h", "@daily", "--catchup", "all=0"],
            &["worker", "h", "--parallel", "0", "--exec", "x"],
            &["web", "--no-token", "--host", "jobs.example.com"],
            &["web", "--no-token", "--token", "0123456789abcdef"],
            &["web", "--listen", "nowhere"],
        ] {
            assert!(parsed(wrong).is_err(), "{wrong:?}");
        }
    }
}
