//! C8 and C21: nodes that share a store in memory, and what is bound to them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use timerqueue::Runtime;
use timerqueue_scheduler::store::MemoryStore;
use timerqueue_scheduler::{Binding, Builder, Candidate, Run, Schedule, Scheduler};

use crate::bench::{clock, secs};
use crate::members;

fn every(period: std::time::Duration) -> Schedule {
    Schedule::every(period).build().unwrap()
}

/// A node in memory whose handler writes down group and node.
fn bound_node(
    runtime: &Runtime,
    store: &MemoryStore,
    name: &'static str,
    seen: &Arc<Mutex<Vec<(String, &'static str)>>>,
) -> Builder {
    let seen = Arc::clone(seen);
    let handler = move |group: String, _: &Run| seen.lock().unwrap().push((group, name));
    Scheduler::builder().runtime(runtime).store(store.clone()).node_name(name).handler("bound", handler)
}

#[test]
fn c8_tasks_are_bound_to_workers_and_those_of_a_dead_one_are_bound_again() {
    let (clock, runtime) = clock();
    let (store, seen) = (MemoryStore::new(&runtime), Arc::default());
    let make = |name| bound_node(&runtime, &store, name, &seen).start().unwrap();
    let mut nodes = vec![make("a"), make("b"), make("c")];
    let round = |nodes: &[Scheduler]| -> BTreeMap<String, &'static str> {
        for n in 0..60 {
            let group = format!("task/{}", n % 30);
            let _ = nodes[n % nodes.len()].put_to("bound", &group).group(&group).send().wait().unwrap();
        }
        clock.advance(secs(1));
        let ran: Vec<(String, &'static str)> = std::mem::take(&mut *seen.lock().unwrap());
        assert_eq!(ran.len(), 60, "each once");
        let mut by_task = BTreeMap::new();
        for (task, node) in ran {
            assert_eq!(*by_task.entry(task).or_insert(node), node, "one node for each task");
        }
        by_task
    };
    let first = round(&nodes);
    assert_eq!(round(&nodes), first, "bindings stay");
    for name in ["a", "b", "c"] {
        assert!(first.values().any(|&node| node == name), "{name} has a share");
    }
    drop(nodes.remove(1));
    let second = round(&nodes);
    for (task, node) in &second {
        assert!(*node != "b" && (first[task] == "b" || first[task] == *node), "{task}: {} to {node}", first[task]);
    }
    // A new one takes its share, from all, and nothing else moves.
    nodes.push(make("d"));
    clock.advance(secs(1));
    let third = round(&nodes);
    assert!(third.values().any(|&node| node == "d"));
    assert!(third.iter().all(|(task, node)| *node == "d" || second[task] == *node));
}

#[test]
fn c21_nodes_that_bind_by_different_rules_agree() {
    struct Always(usize);
    impl Binding for Always {
        fn choose(&self, _: &str, nodes: &[Candidate], holder: Option<usize>) -> usize {
            holder.unwrap_or(self.0 % nodes.len())
        }
    }
    let (clock, runtime) = clock();
    let (store, seen) = (MemoryStore::new(&runtime), Arc::default());
    let make = |name, choice| bound_node(&runtime, &store, name, &seen).binding(Always(choice)).start().unwrap();
    let nodes = [make("a", 0), make("b", 1), make("c", 7)];
    for n in 0..90 {
        let group = format!("task/{}", n % 10);
        let _ = nodes[n % 3].put_to("bound", &group).group(&group).send().wait().unwrap();
        if n % 7 == 0 {
            clock.advance(secs(1));
        }
    }
    clock.advance(secs(1));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 90);
    for (task, node) in seen.iter() {
        assert!(seen.iter().all(|(other, at)| other != task || at == node), "{task} on two nodes");
    }
}

#[test]
fn c21_no_occurrence_is_missed_or_doubled_while_nodes_come_and_go() {
    let (clock, runtime) = clock();
    let (store, seen) = (MemoryStore::new(&runtime), Arc::new(Mutex::new(Vec::new())));
    let make = || {
        let seen = Arc::clone(&seen);
        let handler = move |_: (), run: &Run| seen.lock().unwrap().push(run.nominal().unwrap());
        Scheduler::builder().runtime(&runtime).store(store.clone()).handler("h", handler).start().unwrap()
    };
    let mut nodes = vec![make(), make()];
    let put = nodes[0].put_to("h", &()).key("r").group("task").schedule(every(secs(1)));
    let _ = put.send().wait().unwrap();
    for n in 0..50 {
        clock.advance(secs(3));
        nodes.push(make());
        drop(nodes.remove(n % 2));
    }
    clock.advance(secs(10));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 161);
    assert!(seen.windows(2).all(|two| two[1] == two[0] + secs(1)));
}

#[test]
fn m6_m7_limits_hold_with_eight_threads_in_memory() {
    let runtime = Runtime::global();
    let store = MemoryStore::new(runtime);
    members::limits_hold_with_eight_threads(|| Scheduler::builder().store(store.clone()), 200);
}
