//! Power cuts of an emulated machine.
//!
//! Ground rules. The test program itself runs inside of the machine, on a disk with ext4; what it
//! says on the console is the ledger. The power is cut at a random moment after the machine has
//! begun its work: what its kernel has not written to the disk is gone, and of what the disk was
//! given since the last flush some writes are lost, in any order ([`disk`]). The next start goes on
//! with that disk. After the last one all jobs run, and the ledger is judged. Two controls show
//! that the test can fail: the same program, with connections that sync less, loses accepted jobs.
//!
//! `.ci/power` has the emulator and a kernel; without `TIMERQUEUE_KERNEL` nothing is tested here.

mod disk;
#[path = "../support/lowered.rs"]
mod lowered;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, Timespec, clock_settime};
use timerqueue::Runtime;
use timerqueue_scheduler::store::SqliteStore;
use timerqueue_scheduler::{Handler, Run, Schedule, Scheduler};

use crate::ledger::{self, Ledger, micros, next, number};

/// Longer than any start and any end of a machine takes, also on a busy one.
const LIMIT: Duration = Duration::from_secs(300);
const HOUR: i64 = 3_600;

/// Prints, and waits until the console has it.
fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes()).unwrap();
    output.flush().unwrap();
    let _ = rustix::termios::tcdrain(&output);
}

/// The folder of the file, inside of the machine.
fn folder() -> PathBuf {
    Path::new("/data").join(std::env::var("FOLDER").unwrap_or_default())
}

/// The runs of the recurring job.
static TICKS: AtomicU64 = AtomicU64::new(0);

/// A scheduler inside of the machine.
///
/// The folder of its file sets how safe its connections are ([`lowered`]).
fn worker(start: u64) -> Scheduler {
    lowered::install();
    std::fs::create_dir_all(folder()).unwrap();
    let handler = ledger::handler(start, |line| say(&line));
    let tick = Handler::new("tick", |_: (), _: &Run| _ = TICKS.fetch_add(1, Ordering::Relaxed));
    Scheduler::open(folder().join("jobs.db")).register(handler).register(tick).start().unwrap()
}

/// Not a test: the program inside of the machine.
#[test]
#[ignore = "a part of other tests"]
fn inside() {
    let Ok(mode) = std::env::var("MODE") else { return };
    let start = number("START", 0);
    let scheduler = worker(start);
    say("ready\n");
    match &*mode {
        "puts" => puts(&scheduler, start),
        "steps" => steps(&scheduler, start),
        _ => {
            ledger::drain(&scheduler);
            drop(scheduler);
            SqliteStore::open(Runtime::global(), folder().join("jobs.db")).unwrap().check().unwrap();
            say("all is well\n");
        }
    }
}

/// Puts jobs until the power is cut.
fn puts(scheduler: &Scheduler, start: u64) {
    let mut random = start;
    for n in 0.. {
        put(scheduler, &format!("{start}-{n}"), Duration::from_millis(next(&mut random) % 1_000));
    }
}

fn put(scheduler: &Scheduler, key: &str, due: Duration) {
    let _ = scheduler.put_to("h", &1).key(key).due(due).send().wait().unwrap();
    say(&format!("accepted {key}\n"));
}

/// Sets the clock of the machine back and forth, with jobs before and after each step.
fn steps(scheduler: &Scheduler, start: u64) {
    let schedule = Schedule::every(Duration::from_millis(300)).build().unwrap();
    let _ = scheduler.put_to("tick", &()).key("tick").schedule(schedule).send().wait().unwrap();
    for (step, by) in [2 * HOUR, -2 * HOUR, 100_000, -2 * HOUR].into_iter().enumerate() {
        for n in 0..20 {
            // Half of them are hours ahead: after a step forth these are due at once.
            let due = if n % 2 == 0 { Duration::from_millis(n * 10) } else { Duration::from_secs(5_000) };
            put(scheduler, &format!("{start}-{step}-{n}"), due);
        }
        // No run begins while the clock is set, so that each sees one clock.
        std::thread::sleep(Duration::from_secs(1));
        let now = i64::try_from(micros(SystemTime::now()) / 1_000_000).unwrap();
        clock_settime(ClockId::Realtime, Timespec { tv_sec: now + by, tv_nsec: 0 }).unwrap();
        say(&format!("the clock was set by {by} s\n"));
        // The recurring job goes on, also after a step back.
        let (ticks, set) = (TICKS.load(Ordering::Relaxed), Instant::now());
        while TICKS.load(Ordering::Relaxed) < ticks + 3 {
            assert!(set.elapsed() < Duration::from_secs(60), "the recurring job has stopped");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    let _ = scheduler.cancel("tick").wait().unwrap();
    say("all is well\n");
}

/// What a machine starts from.
struct Machine {
    folder: PathBuf,
    kernel: PathBuf,
}

/// Said before the disk is touched.
const BOOTED: &str = "booted";

const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS0 2>&1
/bin/busybox stty -F /dev/ttyS0 -opost
echo booted
/bin/busybox mount -t ext4 /dev/nvme0n1 /data || echo "no disk"
export MODE START FOLDER
/inside power::inside --exact --ignored --nocapture --test-threads=1
/bin/busybox sync
/bin/busybox poweroff -f
"#;

fn run(program: &str, arguments: &[&str], folder: &Path) -> String {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

impl Machine {
    fn new(name: &str) -> Option<Self> {
        let Some(kernel) = std::env::var_os("TIMERQUEUE_KERNEL").map(PathBuf::from) else {
            eprintln!("NOT RUN: no emulated machine (`.ci/power` has one). Nothing was tested.");
            return None;
        };
        let folder = std::env::temp_dir().join(format!("timerqueue-power-{}-{name}", std::process::id()));
        let root = folder.join("root");
        for inside in ["bin", "proc", "dev", "data", "tmp"] {
            fs::create_dir_all(root.join(inside)).unwrap();
        }
        let program = std::env::current_exe().unwrap();
        let program = program.to_str().unwrap();
        run("strip", &["-o", "inside", program], &root);
        // The loader and the libraries, at the places where the program looks for them.
        for word in run("ldd", &[program], &root).split_whitespace().filter(|word| word.starts_with('/')) {
            let inside = root.join(&word[1..]);
            fs::create_dir_all(inside.parent().unwrap()).unwrap();
            fs::copy(word, inside).unwrap();
        }
        fs::write(root.join("init"), INIT).unwrap();
        run("chmod", &["755", "init"], &root);
        run("cp", &["/bin/busybox", "bin/busybox"], &root);
        run("sh", &["-c", "find . | busybox cpio -o -H newc > ../root.cpio"], &root);
        run("mke2fs", &["-q", "-t", "ext4", "disk", "256M"], &folder);
        Some(Self { folder, kernel })
    }

    /// Switches the machine on. `date`: of its clock, else that of this machine. On a busy machine
    /// the emulator's kernel may not find its timers, and end before the disk is touched: then it
    /// starts again.
    fn start(&self, start: u64, mode: &str, inside: &str, date: Option<&str>) -> Running {
        let mut running = self.try_start(start, mode, inside, date);
        for _ in 0..3 {
            if running.read(&mut Ledger::default(), BOOTED, LIMIT) {
                break;
            }
            println!("the machine did not start:\n{}", running.said);
            let _ = running.child.kill();
            running.child.wait().unwrap();
            running = self.try_start(start, mode, inside, date);
        }
        running
    }

    fn try_start(&self, start: u64, mode: &str, inside: &str, date: Option<&str>) -> Running {
        // One queue of one command: two writes under way could be logged in another order than they
        // are done in, or with a hole.
        let words = format!(
            "console=ttyS0 quiet loglevel=0 panic=-1 nvme.io_queue_depth=2 MODE={mode} START={start} FOLDER={inside}"
        );
        let mut machine = Command::new("qemu-system-x86_64");
        machine.args(["-accel", "tcg", "-smp", "2", "-m", "384", "-nographic", "-no-reboot", "-nic", "none"]);
        machine.args(["-monitor", "none", "-serial", "stdio", "-initrd", "root.cpio", "-append", &words]);
        fs::copy(self.folder.join("disk"), self.folder.join("before")).unwrap();
        fs::write(self.folder.join("log"), []).unwrap();
        machine.args(["-blockdev", "driver=file,node-name=file,filename=disk"]);
        machine.args(["-blockdev", "driver=file,node-name=log,filename=log"]);
        machine.args(["-blockdev", "driver=blklogwrites,node-name=logged,file=file,log=log,log-sector-size=512"]);
        // A write that must be on the disk before it is said to be done is a write and a flush. The
        // emulator takes that flush for needless at the layer that tells the two apart, right after
        // another flush; that must not be the one that logs.
        machine.args(["-blockdev", "driver=raw,node-name=disk,file=logged"]);
        machine.args(["-device", "nvme,serial=1,drive=disk,max_ioqpairs=1"]);
        machine.args(["-rtc", &format!("base={}", date.unwrap_or("utc"))]).arg("-kernel").arg(&self.kernel);
        machine.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = machine.spawn().expect("the emulator starts");
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while output.by_ref().read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                let _ = send.send(String::from_utf8_lossy(&line).into_owned());
                line.clear();
            }
        });
        Running { child, lines, said: String::new(), folder: self.folder.clone() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

struct Running {
    child: Child,
    lines: Receiver<String>,
    said: String,
    folder: PathBuf,
}

impl Running {
    /// Takes lines into the ledger until one has these words, the time is over, or the machine is
    /// off. Whether the words were said.
    fn read(&mut self, ledger: &mut Ledger, words: &str, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    ledger.read(&line);
                    self.said.push_str(&line);
                    if !words.is_empty() && line.contains(words) {
                        return true;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return false,
            }
        }
    }

    #[track_caller]
    fn wait_for(&mut self, ledger: &mut Ledger, words: &str) {
        assert!(self.read(ledger, words, LIMIT), "the machine did not say {words:?} but:\n{}", self.said);
    }

    fn cut(mut self, ledger: &mut Ledger) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.read(ledger, "", LIMIT);
        let left = disk::after_a_cut(&self.folder.join("before"), &self.folder.join("log"), u64::from(self.child.id()));
        fs::rename(self.folder.join("before"), self.folder.join("disk")).unwrap();
        println!(
            "the disk had {} writes before its last flush, and keeps {} of {} others",
            left.safe, left.kept, left.others
        );
    }
}

/// Starts the machine and cuts its power, again and again; then all jobs run.
fn cuts(machine: &Machine, cuts: u64, inside: &str) -> (Ledger, String) {
    let mut ledger = Ledger::default();
    ledger.after_cut = true;
    let mut random = u64::from(std::process::id());
    for start in 1..=cuts {
        let mut running = machine.start(start, "puts", inside, None);
        if !running.read(&mut ledger, "ready", LIMIT) {
            return (ledger, running.said);
        }
        let before = ledger.accepted.len();
        running.read(&mut ledger, "", Duration::from_millis(1_500 + next(&mut random) % 3_000));
        running.cut(&mut ledger);
        println!("start {start}: {} jobs accepted", ledger.accepted.len() - before);
    }
    let mut running = machine.start(cuts + 1, "drain", inside, None);
    running.read(&mut ledger, "all is well", LIMIT);
    let said = std::mem::take(&mut running.said);
    running.cut(&mut ledger);
    (ledger, said)
}

#[test]
fn k1_every_accepted_job_survives_a_power_cut() {
    let Some(machine) = Machine::new("cuts") else { return };
    let count = number("TIMERQUEUE_CUTS", 2);
    let (ledger, said) = cuts(&machine, count, "");
    assert!(said.contains("all is well"), "{said}");
    ledger.judge(count);
}

/// Cuts until accepted jobs are lost, or the file is damaged. Nearly each cut does it.
fn control(level: &str) {
    let Some(machine) = Machine::new(level) else { return };
    for _ in 0..3 {
        let (ledger, said) = cuts(&machine, 1, level);
        let faults = ledger.faults();
        println!("{level}: {} accepted; {faults:?}", ledger.accepted.len());
        if !faults.is_empty() || !said.contains("all is well") {
            return;
        }
    }
    panic!("the test of power cuts cannot fail");
}

#[test]
fn with_synchronous_off_a_power_cut_loses_jobs() {
    control("synchronous-off");
}

#[test]
fn with_synchronous_normal_a_power_cut_loses_jobs() {
    control("synchronous-normal");
}

/// Steps of two hours and of 100,000 seconds, a power cut, and a machine with another clock:
/// nothing is lost, nothing is early.
#[test]
fn k1_every_accepted_job_survives_steps_of_the_clock() {
    let Some(machine) = Machine::new("clock") else { return };
    let mut ledger = Ledger::default();
    for (start, date) in [(1, None), (2, Some("2001-03-04T05:06:07"))] {
        let mut running = machine.start(start, "steps", "", date);
        running.wait_for(&mut ledger, "all is well");
        running.cut(&mut ledger);
    }
    // Late enough for all that was put ahead of a step back.
    let mut running = machine.start(3, "drain", "", Some("2037-01-01T00:00:00"));
    running.wait_for(&mut ledger, "all is well");
    running.cut(&mut ledger);
    ledger.judge(2);
}
