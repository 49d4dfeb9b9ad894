//! Workloads that need a process of their own: storms, whose processor time must be nobody else's, and memory.
//!
//! Ground rules. The child is this very program with `--child` and what to do; it prints one figure a line, name and
//! number, and nothing else. A child that says [`TOO_LATE`] was disturbed while it set up, and is run again with more time.

use std::process::{Command, Stdio};

use crate::{memory, storm};

/// Exit code: the set-up took longer than it was given.
pub(crate) const TOO_LATE: i32 = 42;
const TRIES: u32 = 4;

/// Named figures.
pub(crate) type Figures = Vec<(String, f64)>;

/// Runs a child, with twice the patience each time that it comes too late.
pub(crate) fn run(what: &str, party: &str, n: usize, span_us: u64) -> Figures {
    for attempt in 0..TRIES {
        let program = std::env::current_exe().expect("the path of this program");
        let output = Command::new(program)
            .args(["--child", what, party, &n.to_string(), &span_us.to_string(), &(1u64 << attempt).to_string()])
            .stderr(Stdio::inherit())
            .output()
            .expect("a child starts");
        if output.status.code() == Some(TOO_LATE) {
            continue;
        }
        assert!(output.status.success(), "{what} of {party}: {}", output.status);
        let text = String::from_utf8(output.stdout).expect("text");
        let figure = |line: &str| {
            let (name, number) = line.split_once('=').expect("a name and a number");
            (name.to_owned(), number.parse().expect("a number"))
        };
        return text.lines().map(figure).collect();
    }
    panic!("{what} of {party}: the machine is too busy to set up {n} timers in time");
}

/// The child's side: what `run` has asked for.
pub(crate) fn be(args: &[String]) {
    let [what, party, n, span_us, patience] = args else { panic!("five words after --child") };
    let number = |text: &str| text.parse::<u64>().expect("a number");
    let n = number(n) as usize;
    let figures = match what.as_str() {
        "storm" => storm::child(party, n, number(span_us), number(patience)),
        "memory" => memory::child(party, n),
        other => panic!("no such child: {other}"),
    };
    for (name, value) in figures {
        println!("{name}={value}");
    }
}
