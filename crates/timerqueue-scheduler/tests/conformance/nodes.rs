//! Members: which schedulers are alive, and what they run.

use timerqueue_scheduler::store::{Entry, EntryHandler, Limits, Node};

use super::*;

impl<R: Rig> Bench<R> {
    /// A scheduler with the handler `h` starts.
    pub(super) fn enter(&self, owner: u64) {
        self.enter_with(owner, Limits::default());
    }

    pub(super) fn enter_with(&self, owner: u64, limits: Limits) {
        let handlers = vec![EntryHandler { name: "h".into(), parallel: 8, limits }];
        self.rig.store().enter(Arc::new(Entry { owner, name: format!("node {owner}").into(), handlers }));
        self.settled();
    }

    /// What was asked for before has been done.
    fn settled(&self) {
        let _ = self.claim_as(u64::MAX, &[], 0);
    }

    pub(super) fn leave(&self, owner: u64) {
        self.rig.store().leave(owner);
        self.settled();
    }

    pub(super) fn nodes(&self) -> Vec<Node> {
        match self.scan(Scan::Nodes { owner: 1 }) {
            Scanned::Nodes(nodes) => nodes,
            _ => panic!("nodes"),
        }
    }
}

pub(crate) fn m1_a_node_lives_from_its_start_to_its_end<R: Rig>() {
    let store = Bench::<R>::new();
    assert!(store.nodes().is_empty());
    store.enter(1);
    store.clock(5);
    store.enter(2);
    let nodes = store.nodes();
    let seen = |node: &Node| (node.name.to_string(), node.is_this, node.since, node.running());
    assert_eq!(seen(&nodes[0]), ("node 1".into(), true, at(0).to_system(), 0));
    assert_eq!(seen(&nodes[1]), ("node 2".into(), false, at(5).to_system(), 0));
    assert!(nodes[0].id < nodes[1].id);
    assert_eq!((nodes.len(), &*nodes[0].handlers[0].name, nodes[0].handlers[0].parallel), (2, "h", 8));
    // Runs, by node.
    for key in ["a", "b", "c"] {
        let _ = store.put(key, When::At(at(0)));
    }
    let mut jobs = store.claim_as(1, &[("h", 9)], 2).jobs;
    let other = store.claim_as(2, &[("h", 9)], 2).jobs.remove(0);
    let running = || store.nodes().iter().map(Node::running).collect::<Vec<_>>();
    assert_eq!(running(), [2, 1]);
    let _ = store.settle(&jobs.remove(0), Verdict::Done);
    let _ = store.settle(&other, Verdict::Retry(secs(5)));
    assert_eq!(running(), [1, 0]);
    // One leaves; its run goes on. It comes back with another number.
    store.leave(1);
    assert_eq!(store.nodes(), nodes[1..]);
    assert_eq!(store.settle(&jobs[0], Verdict::Done), Applied::Held(true));
    store.enter(1);
    let back = store.nodes();
    assert_eq!((back.len(), back[1].is_this, back[1].id > nodes[1].id), (2, true, true));
}
