//! Several schedulers on a store: what must hold on each store that has members.
#![allow(dead_code)] // each test file uses a part of it

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timerqueue_scheduler::{Builder, Handler, Run, Scheduler, State};

const GROUPS: usize = 24;
const JOBS: usize = 4;

/// A node whose runs are lines of a file: group, key, attempt, node. `stays`: its runs do not
/// end.
pub(crate) fn node(builder: Builder, name: &'static str, ledger: &Path, stays: bool) -> Scheduler {
    let ledger = ledger.to_owned();
    let handler = move |group: String, run: &Run| {
        let line = format!("{group} {} {} {name}\n", run.key(), run.attempt());
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&ledger).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        if stays {
            std::thread::sleep(Duration::from_secs(3_600));
        }
    };
    let handler = Handler::new("bound", handler).parallel_per_group(1);
    builder.node_name(name).register(handler).start().unwrap()
}

/// Group, key, attempt, node.
fn lines(ledger: &Path) -> Vec<[String; 4]> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>().try_into().unwrap();
    text.lines().map(words).collect()
}

#[track_caller]
fn until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_true() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Three nodes, of which one is killed: its share moves, the others keep theirs, and no attempt
/// runs twice.
pub(crate) fn the_share_of_a_killed_node_moves(nodes: &[Scheduler; 2], mut child: Child, ledger: &Path) {
    until("three nodes", || nodes[0].nodes().wait().unwrap().len() == 3);
    for n in 0..JOBS {
        for group in 0..GROUPS {
            let group = format!("group/{group:02}");
            let put = nodes[n % 2].put_to("bound", &group).group(&group).key(&format!("{group}/{n}"));
            assert!(put.send().wait().unwrap().added().is_some());
        }
    }
    let by_child = || lines(ledger).into_iter().filter(|line| line[3] == "child").collect::<Vec<_>>();
    until("each group is on a node", || {
        let held = by_child().len();
        held + (lines(ledger).len() - held) / JOBS == GROUPS
    });
    let held: BTreeSet<String> = by_child().into_iter().map(|[group, ..]| group).collect();
    assert!(!held.is_empty() && held.len() < GROUPS, "each node has a share: {held:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    until("all jobs are done", || {
        let jobs = nodes[0].stats().wait().unwrap().jobs;
        jobs.of(State::Waiting) + jobs.of(State::Running) == 0
    });
    let lines = lines(ledger);
    let attempts: BTreeSet<_> = lines.iter().map(|[_, key, attempt, _]| (key, attempt)).collect();
    assert_eq!(attempts.len(), lines.len(), "no attempt runs twice");
    assert_eq!(lines.len(), GROUPS * JOBS + held.len(), "what the child had begun runs again");
    let mut runs: BTreeMap<&str, Vec<&[String; 4]>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line[3] != "child") {
        runs.entry(&line[0]).or_default().push(line);
    }
    for (group, runs) in runs {
        assert!(runs.iter().all(|run| run[3] == runs[0][3]), "on one node: {runs:?}");
        let keys: Vec<&str> = runs.iter().map(|run| run[1].as_str()).collect();
        assert_eq!(keys, (0..JOBS).map(|n| format!("{group}/{n}")).collect::<Vec<_>>(), "in order");
        assert_eq!(runs[0][2], if held.contains(group) { "2" } else { "1" });
    }
    until("the dead node is gone", || nodes[1].nodes().wait().unwrap().len() == 2);
}

/// The greatest number of handlers that were in a place at a time.
#[derive(Default)]
struct Gauge {
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl Gauge {
    fn visit(&self, time: Duration) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        std::thread::sleep(time);
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Eight threads put jobs, and three nodes run them: a counter outside never shows more than the
/// limits.
pub(crate) fn limits_hold_with_eight_threads(mut builder: impl FnMut() -> Builder, jobs: usize) {
    const EVERYWHERE: usize = 3;
    let all = Arc::new(Gauge::default());
    let each: Arc<Vec<Gauge>> = Arc::new((0..4).map(|_| Gauge::default()).collect());
    let done = Arc::new(AtomicUsize::new(0));
    let nodes: Vec<Scheduler> = (0..3)
        .map(|_| {
            let (everywhere, per_group, done) = (Arc::clone(&all), Arc::clone(&each), Arc::clone(&done));
            let ended = Arc::clone(&done);
            let limited = Handler::new("limited", move |_: usize, _: &Run| {
                everywhere.visit(Duration::from_micros(500));
                done.fetch_add(1, Ordering::SeqCst);
            });
            let bound = Handler::new("bound", move |group: usize, _: &Run| {
                per_group[group].visit(Duration::from_micros(500));
                ended.fetch_add(1, Ordering::SeqCst);
            });
            let builder = builder().register(limited.parallel_everywhere(EVERYWHERE as u64));
            builder.register(bound.parallel_per_group(1)).start().unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let node = &nodes[thread % 3];
            scope.spawn(move || {
                for n in 0..jobs {
                    let put = if n % 2 == 0 {
                        node.put_to("limited", &n)
                    } else {
                        let group = n / 2 % 4;
                        node.put_to("bound", &group).group(&format!("group/{group}"))
                    };
                    let _ = put.send().wait().unwrap();
                }
            });
        }
    });
    until("all jobs are done", || done.load(Ordering::SeqCst) >= 8 * jobs);
    assert_eq!(done.load(Ordering::SeqCst), 8 * jobs);
    let most = |gauge: &Gauge| gauge.most.load(Ordering::SeqCst);
    assert!(most(&all) <= EVERYWHERE, "{} runs at a time", most(&all));
    assert_eq!(each.iter().map(most).collect::<Vec<_>>(), [1; 4]);
}
