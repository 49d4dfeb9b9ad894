//! Clusters of openraft in memory, with timers and clock of ours: elections and writes, in real and
//! in virtual time.
#![cfg(feature = "openraft-0_9")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use openraft::error::{InstallSnapshotError, NetworkError, RPCError, RaftError};
use openraft::network::{RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest,
    VoteResponse,
};
use openraft::storage::{LogFlushed, LogState, RaftLogStorage, RaftStateMachine, Snapshot};
use openraft::{
    AsyncRuntime, Config, Entry, EntryPayload, Instant, LogId, OptionalSend, Raft, RaftLogReader, RaftSnapshotBuilder,
    SnapshotMeta, StorageError, StoredMembership, Vote,
};
use timerqueue::{ManualClock, Runtime};
use timerqueue_adapters::openraft_0_9::{OpenraftInstant, OpenraftRuntime};

openraft::declare_raft_types!(
    /// The types of the clusters.
    pub Types:
        D = u64,
        R = u64,
        NodeId = u64,
        Node = (),
        SnapshotData = Cursor<Vec<u8>>,
        AsyncRuntime = OpenraftRuntime,
);

type Refused = StorageError<u64>;

/// The log of a node. Kept in memory, so what is written is safe at once.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    entries: BTreeMap<u64, Entry<Types>>,
    vote: Option<Vote<u64>>,
    purged: Option<LogId<u64>>,
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, Refused> {
        Ok(self.0.lock().unwrap().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Refused> {
        let log = self.0.lock().unwrap();
        let last = log.entries.values().next_back().map(|entry| entry.log_id).or(log.purged);
        Ok(LogState { last_purged_log_id: log.purged, last_log_id: last })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), Refused> {
        self.0.lock().unwrap().vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, Refused> {
        Ok(self.0.lock().unwrap().vote)
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), Refused>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        self.0.lock().unwrap().entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<u64>) -> Result<(), Refused> {
        self.0.lock().unwrap().entries.retain(|index, _| *index < from.index);
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<u64>) -> Result<(), Refused> {
        let mut log = self.0.lock().unwrap();
        log.entries.retain(|index, _| *index > upto.index);
        log.purged = Some(upto);
        Ok(())
    }
}

/// The state of a node: the sum of what was written.
#[derive(Clone, Default)]
struct Machine(Arc<Mutex<Sum>>);

#[derive(Clone, Default)]
struct Sum {
    sum: u64,
    applied: Option<LogId<u64>>,
    members: StoredMembership<u64, ()>,
}

impl RaftSnapshotBuilder<Types> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, Refused> {
        let sum = self.0.lock().unwrap().clone();
        let meta = SnapshotMeta {
            last_log_id: sum.applied,
            last_membership: sum.members,
            snapshot_id: format!("{:?}", sum.applied),
        };
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(sum.sum.to_le_bytes().to_vec())) })
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, ()>), Refused> {
        let sum = self.0.lock().unwrap();
        Ok((sum.applied, sum.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<u64>, Refused>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut sum = self.0.lock().unwrap();
        let mut answers = Vec::new();
        for entry in entries {
            sum.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(value) => sum.sum += value,
                EntryPayload::Membership(members) => sum.members = StoredMembership::new(Some(entry.log_id), members),
            }
            answers.push(sum.sum);
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>, Refused> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, ()>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<(), Refused> {
        let bytes = snapshot.into_inner().try_into().expect("eight bytes");
        let (applied, members) = (meta.last_log_id, meta.last_membership.clone());
        *self.0.lock().unwrap() = Sum { sum: u64::from_le_bytes(bytes), applied, members };
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, Refused> {
        Ok(None)
    }
}

/// All nodes that can be reached, by their numbers.
#[derive(Clone, Default)]
struct Network(Arc<Mutex<BTreeMap<u64, Raft<Types>>>>);

struct Line {
    network: Network,
    target: u64,
}

impl Line {
    #[allow(clippy::result_large_err)] // the error of the trait
    fn node<E: std::error::Error>(&self) -> Result<Raft<Types>, RPCError<u64, (), E>> {
        let found = self.network.0.lock().unwrap().get(&self.target).cloned();
        found.ok_or_else(|| RPCError::Network(NetworkError::new(&std::io::Error::other("the node is down"))))
    }
}

impl RaftNetworkFactory<Types> for Network {
    type Network = Line;

    async fn new_client(&mut self, target: u64, (): &()) -> Line {
        Line { network: self.clone(), target }
    }
}

impl RaftNetwork<Types> for Line {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<u64>, RPCError<u64, (), RaftError<u64>>> {
        let answer = self.node()?.append_entries(request).await;
        answer.map_err(|error| RPCError::Network(NetworkError::new(&error)))
    }

    async fn install_snapshot(
        &mut self,
        request: InstallSnapshotRequest<Types>,
        _: RPCOption,
    ) -> Result<InstallSnapshotResponse<u64>, RPCError<u64, (), RaftError<u64, InstallSnapshotError>>> {
        let answer = self.node()?.install_snapshot(request).await;
        answer.map_err(|error| RPCError::Network(NetworkError::new(&error)))
    }

    async fn vote(
        &mut self,
        request: VoteRequest<u64>,
        _: RPCOption,
    ) -> Result<VoteResponse<u64>, RPCError<u64, (), RaftError<u64>>> {
        let answer = self.node()?.vote(request).await;
        answer.map_err(|error| RPCError::Network(NetworkError::new(&error)))
    }
}

/// The least election timeout; the greatest is twice as long.
async fn cluster(nodes: u64, election: Duration) -> (Network, Vec<Machine>) {
    let election = election.as_millis() as u64;
    let config = Config {
        heartbeat_interval: election / 10,
        election_timeout_min: election,
        election_timeout_max: 2 * election,
        ..Config::default()
    };
    let config = Arc::new(config.validate().expect("a sound configuration"));
    let (network, mut machines) = (Network::default(), Vec::new());
    for id in 0..nodes {
        let machine = Machine::default();
        let node = Raft::new(id, Arc::clone(&config), network.clone(), Log::default(), machine.clone()).await;
        network.0.lock().unwrap().insert(id, node.expect("a new node"));
        machines.push(machine);
    }
    (network, machines)
}

impl Network {
    fn node(&self, id: u64) -> Raft<Types> {
        self.0.lock().unwrap()[&id].clone()
    }

    /// Waits until this node knows of a leader among the nodes that can be reached.
    async fn leader(&self, asked: u64, limit: Duration) -> u64 {
        let up: Vec<u64> = self.0.lock().unwrap().keys().copied().collect();
        let known = move |leader: Option<u64>| leader.is_some_and(|leader| up.contains(&leader));
        let wait = self.node(asked).wait(Some(limit));
        let metrics = wait.metrics(|metrics| known(metrics.current_leader), "a leader").await.expect("in time");
        metrics.current_leader.expect("waited for")
    }

    async fn shut_down(&self) {
        let nodes: Vec<_> = std::mem::take(&mut *self.0.lock().unwrap()).into_values().collect();
        for node in nodes {
            node.shutdown().await.expect("no panic");
        }
    }
}

/// Elects, writes, stops the leader, elects again, writes again.
async fn elects_twice(election: Duration, limit: Duration) -> Duration {
    let (network, machines) = cluster(3, election).await;
    network.node(0).initialize([0, 1, 2].into_iter().collect::<std::collections::BTreeSet<u64>>()).await.unwrap();
    let first = network.leader(0, limit).await;
    let answer = network.node(first).client_write(40).await.expect("a leader writes");
    assert_eq!(answer.data, 40);
    let fell = Runtime::current().now();
    let stopped = network.0.lock().unwrap().remove(&first).expect("is there");
    stopped.shutdown().await.expect("no panic");
    let asked = (first + 1) % 3;
    let second = network.leader(asked, limit).await;
    assert_ne!(second, first);
    let took = Runtime::current().elapsed(fell);
    let answer = network.node(second).client_write(2).await.expect("a leader writes");
    assert_eq!(answer.data, 42);
    assert_eq!(machines[second as usize].0.lock().unwrap().sum, 42);
    network.shut_down().await;
    took
}

#[tokio::test]
async fn three_nodes_elect_a_leader_on_virtual_time_and_another_when_it_falls() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    // Minutes, which would be long to wait for.
    let election = Duration::from_secs(60);
    let took = clock.run(runtime.scope(elects_twice(election, 100 * election))).await;
    // A node waits for the lease of the leader that fell, and for its own election timeout.
    assert!(took >= 2 * election, "the clock of the election is ours: {took:?}");
    assert!(runtime.metrics().created > 0 && runtime.metrics().active == 0, "{}", runtime.metrics());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_elect_a_leader_in_real_time() {
    let runtime = Runtime::builder().start().unwrap();
    runtime.scope(elects_twice(Duration::from_millis(300), Duration::from_secs(60))).await;
    assert!(runtime.metrics().wakers > 0, "their timers are ours: {}", runtime.metrics());
}

#[tokio::test]
async fn tasks_keep_the_runtime_of_the_task_that_spawned_them() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().manual_clock(&clock).start().unwrap();
    let nested = async {
        OpenraftRuntime::spawn(async { OpenraftRuntime::sleep(Duration::from_secs(3600)).await }).await.unwrap();
        let limited = OpenraftRuntime::timeout(Duration::from_secs(60), std::future::pending::<()>()).await;
        assert!(limited.is_err());
    };
    clock.run(runtime.scope(async { OpenraftRuntime::spawn(nested).await.unwrap() })).await;
    assert_eq!(clock.now().as_duration(), Duration::from_secs(3660));
}

#[test]
fn an_instant_before_the_origin_of_the_clock_is_earlier_than_the_origin() {
    let runtime = Runtime::builder().manual_clock(&ManualClock::new()).start().unwrap();
    runtime.enter(|| {
        let (minute, hour) = (Duration::from_secs(60), Duration::from_secs(3600));
        let origin = OpenraftInstant::now();
        let mut instant = origin + minute - hour;
        assert!(instant < origin && origin - instant == hour - minute && instant - origin == Duration::ZERO);
        assert!(instant - minute < instant && instant + minute > instant && origin < origin + minute);
        instant += hour;
        assert_eq!((instant, instant - origin), (origin + minute, minute));
        instant -= 2 * minute;
        assert_eq!(origin - instant, minute);
        assert_eq!(instant + minute, origin);
    });
}
