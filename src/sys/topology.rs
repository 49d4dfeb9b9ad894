//! CPU topology: the set of cores that a process may use, and the numbers of queues and workers
//! derived from this set.
//!
//! A runtime belongs to the process, not to the thread that starts the runtime. So its set is the
//! union of the affinity masks of all live threads, and each thread of its pool widens its own mask
//! to this set. If all threads are pinned, nothing beyond the union is known: such a process looks
//! like a restricted process.
//!
//! A CPU quota of the control group lowers the number of queues and workers below the size of the
//! set: [`Cores::processors`].
//!
//! Only Linux lets a process read the masks of all its threads. Elsewhere the set is the mask of
//! the calling thread.

/// A core, by the number that the system gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CoreId {
    pub(crate) id: usize,
}

#[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
pub(crate) use linux::Mask;

/// A set of cores to which threads can be confined; this system has no such set.
#[cfg(not(all(target_os = "linux", not(all(test, timerqueue_loom)))))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Mask {}

#[cfg(not(all(target_os = "linux", not(all(test, timerqueue_loom)))))]
impl Mask {
    fn set_for_current(&self) -> bool {
        match *self {}
    }
}

/// The cores that a process may use.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    /// Ascending; not empty.
    pub(crate) ids: Vec<CoreId>,
    /// The same set as a mask, if the system has masks.
    mask: Option<Mask>,
    /// The number of these cores that the calling thread may use.
    own: usize,
}

impl Cores {
    /// The cores of this process.
    pub(crate) fn of_process() -> Self {
        #[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
        if let Some((own, all)) = linux::masks() {
            return Self { ids: all.ids().collect(), mask: Some(all), own: own.len() };
        }
        #[cfg(all(feature = "affinity", not(target_os = "linux")))]
        if let Some(ids) = core_affinity::get_core_ids().filter(|ids| !ids.is_empty()) {
            let ids: Vec<CoreId> = ids.into_iter().map(|core| CoreId { id: core.id }).collect();
            return Self { own: ids.len(), ids, mask: None };
        }
        let ids: Vec<CoreId> = (0..crate::sys::cpu::count()).map(|id| CoreId { id }).collect();
        Self { own: ids.len(), ids, mask: None }
    }

    /// The CPU time that the process gets, in processors: the number of its cores, or the quota of
    /// its control group in whole processors if the quota is smaller; at least one.
    pub(crate) fn processors(&self) -> usize {
        #[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
        let quota = linux::quota("");
        #[cfg(not(all(target_os = "linux", not(all(test, timerqueue_loom)))))]
        let quota = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
        self.ids.len().min(quota).max(1)
    }

    /// The mask that threads of the pool set, unless they inherit this mask anyway.
    pub(crate) fn mask_to_set(&self, pinned: bool) -> Option<Mask> {
        self.mask.filter(|_| pinned || self.own < self.ids.len())
    }
}

/// The queue of each core, by core id up to the highest id of the set. The cores of the set are
/// given to the queues in turn; a core outside of the set gets its id modulo the number of queues.
pub(crate) fn queues_of(cores: &[CoreId], queues: usize) -> Box<[u16]> {
    let highest = cores.iter().map(|core| core.id).max().unwrap_or(0);
    let mut queue_of: Box<[u16]> = vec![0; highest + 1].into();
    queue_of.iter_mut().enumerate().for_each(|(id, queue)| *queue = (id % queues) as u16);
    for (i, core) in cores.iter().enumerate() {
        queue_of[core.id] = (i % queues) as u16;
    }
    queue_of
}

/// Confines the calling thread to the core `pin`, or else to `mask`. If the system refuses, the
/// thread keeps its mask; the result is correct all the same, only slower.
pub(crate) fn confine(pin: Option<CoreId>, mask: Option<Mask>) {
    if !pin.is_some_and(pin_to) {
        let _ = mask.is_some_and(|mask| mask.set_for_current());
    }
}

/// Pins the calling thread. False: the system refuses.
#[cfg(feature = "affinity")]
fn pin_to(core: CoreId) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: core.id })
}

#[cfg(not(feature = "affinity"))]
fn pin_to(_: CoreId) -> bool {
    false // no builder asks for this
}

#[cfg(all(target_os = "linux", not(all(test, timerqueue_loom))))]
mod linux {
    use std::ffi::CStr;
    use std::process;

    use libc::{c_ulong, pid_t};

    use super::super::os::{self, MASK_WORDS as WORDS};
    use super::CoreId;

    /// The masks of at most this many threads are read, oldest first. Each read takes about a
    /// microsecond.
    const MOST_THREADS: usize = 4_096;
    const WORD_BITS: usize = c_ulong::BITS as usize;

    /// An affinity mask, with more bits than the 1,024 of a `cpu_set_t`: a kernel built for more
    /// cores fills no smaller mask.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Mask([c_ulong; WORDS]);

    impl Mask {
        /// The mask of a thread; zero names the calling thread. `None`: the thread has ended, or
        /// the system refuses the mask.
        fn of(thread: pid_t) -> Option<Self> {
            os::affinity(thread).map(Self).filter(|mask| mask.len() > 0)
        }

        pub(super) fn set_for_current(&self) -> bool {
            os::set_affinity(&self.0)
        }

        #[inline(never)] // a loop over vectors of words is long
        pub(super) fn len(&self) -> usize {
            self.0.iter().map(|word| word.count_ones() as usize).sum()
        }

        pub(super) fn ids(&self) -> impl Iterator<Item = CoreId> {
            let has = |&id: &usize| self.0[id / WORD_BITS] >> (id % WORD_BITS) & 1 == 1;
            (0..WORDS * WORD_BITS).filter(has).map(|id| CoreId { id })
        }

        #[cfg(test)]
        pub(super) fn with(ids: &[usize]) -> Self {
            let mut mask = Self([0; WORDS]);
            ids.iter().for_each(|id| mask.0[id / WORD_BITS] |= 1 << (id % WORD_BITS));
            mask
        }
    }

    /// The mask of the calling thread, and the union of the masks of all threads of the process.
    pub(super) fn masks() -> Option<(Mask, Mask)> {
        let own = Mask::of(0)?;
        let all = os::online_cpus();
        // The main thread can be asked without `/proc`.
        let mut union = own;
        add(&mut union, &[process::id() as pid_t], &mut Mask::of, all);
        if union.len() < all {
            add(&mut union, &threads(), &mut Mask::of, all);
        }
        Some((own, union))
    }

    /// Adds the masks of threads to a union. Reads no further mask once the union has `all` cores.
    #[inline(never)] // one copy
    pub(super) fn add(union: &mut Mask, threads: &[pid_t], of: &mut dyn FnMut(pid_t) -> Option<Mask>, all: usize) {
        for &thread in threads {
            if union.len() >= all {
                break;
            }
            if let Some(mask) = of(thread) {
                union.0.iter_mut().zip(mask.0).for_each(|(word, more)| *word |= more);
            }
        }
    }

    /// The quota of this process in whole processors: the smallest of its control groups and of the
    /// groups above them. `usize::MAX` without a quota. `root` is `/`, except in tests.
    ///
    /// (Std's `available_parallelism` looks at the mask of the calling thread too, and, where a
    /// kernel is built for more cores than its mask has bits, at no quota.)
    pub(super) fn quota(root: &str) -> usize {
        if cfg!(miri) {
            return usize::MAX; // which opens no files
        }
        // `number:controllers:path`; the second version of control groups names no controllers. A
        // container may see the path that its group has outside, and its group as the root.
        let mut room = [0; 16_384];
        let groups = read(root.as_bytes(), b"/proc/self/cgroup\0", &mut room).unwrap_or_default();
        let mut least = usize::MAX;
        for line in groups.split(|&byte| byte == b'\n') {
            let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
            let (Some(names), Some(group)) = (parts.next(), parts.next()) else { continue };
            let mounts: &[&[u8]] = match names {
                b"" => &[b""],
                names if names.split(|&byte| byte == b',').any(|name| name == b"cpu") => &[b"cpu", names],
                _ => continue,
            };
            for mount in mounts {
                let mut folder = [root.as_bytes(), b"/sys/fs/cgroup/", mount].concat();
                let mount = folder.len();
                folder.push(b'/');
                folder.extend(group.strip_prefix(b"/").unwrap_or(group));
                loop {
                    least = least.min(quota_of(&folder).unwrap_or(usize::MAX));
                    match folder.iter().rposition(|&byte| byte == b'/').filter(|&end| end >= mount) {
                        Some(end) => folder.truncate(end),
                        None => break,
                    }
                }
            }
        }
        least
    }

    /// The quota of the control group with this folder.
    fn quota_of(folder: &[u8]) -> Option<usize> {
        let room = &mut [0; 64];
        if let Some(max) = read(folder, b"/cpu.max\0", room) {
            let mut parts = max.splitn(2, |&byte| byte == b' ');
            return number(parts.next()?)?.checked_div(number(parts.next()?)?);
        }
        let quota = number(read(folder, b"/cpu.cfs_quota_us\0", room)?)?;
        quota.checked_div(number(read(folder, b"/cpu.cfs_period_us\0", room)?)?)
    }

    /// `file` ends with a zero byte.
    #[inline(never)] // one copy
    fn read<'a>(folder: &[u8], file: &[u8], room: &'a mut [u8]) -> Option<&'a [u8]> {
        os::read(CStr::from_bytes_with_nul(&[folder, file].concat()).ok()?, room)
    }

    #[inline(never)] // one copy
    fn number(text: &[u8]) -> Option<usize> {
        std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok() // no number: no quota
    }

    /// The ids of the threads of this process according to `/proc`; empty without `/proc`.
    fn threads() -> Vec<pid_t> {
        let mut ids = Vec::new();
        // A `/proc` of a foreign PID namespace has ids of that namespace, which may belong to
        // foreign processes here.
        let own = os::read_link(c"/proc/self", &mut [0; 16]).and_then(number);
        if own == Some(process::id() as usize) {
            os::read_folder(c"/proc/self/task", &mut |name| {
                ids.extend(number(name).map(|id| id as pid_t));
                ids.len() < MOST_THREADS
            });
        }
        ids
    }
}

#[cfg(all(test, not(timerqueue_loom)))]
mod tests {
    use super::*;

    fn cores(ids: impl IntoIterator<Item = usize>) -> Vec<CoreId> {
        ids.into_iter().map(|id| CoreId { id }).collect()
    }

    /// Files of a system with these contents, in a folder that goes with the test.
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "files")]
    #[test]
    fn s25_the_quota_is_the_smallest_of_the_group_and_those_above() {
        let quota = |files: &[(&str, &str)]| {
            let root = std::env::temp_dir().join(format!("timerqueue-quota-{}", std::process::id()));
            for (name, content) in files {
                let path = root.join(name);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("room for some files");
                std::fs::write(path, content).expect("room for some files");
            }
            let quota = linux::quota(root.to_str().expect("a path of letters"));
            let _ = std::fs::remove_dir_all(&root);
            quota
        };
        const MAX: usize = usize::MAX;
        assert_eq!(quota(&[]), MAX, "no control groups");
        let v2 = ("proc/self/cgroup", "0::/a/b\n");
        let max = |at, text| (at, text);
        assert_eq!(quota(&[v2, max("sys/fs/cgroup/a/b/cpu.max", "max 100000\n")]), MAX);
        assert_eq!(quota(&[v2, max("sys/fs/cgroup/a/b/cpu.max", "250000 100000\n")]), 2);
        assert_eq!(
            quota(&[v2, ("sys/fs/cgroup/a/b/cpu.max", "900000 100000"), ("sys/fs/cgroup/a/cpu.max", "300000 100000")]),
            3
        );
        assert_eq!(
            quota(&[v2, max("sys/fs/cgroup/cpu.max", "20000 10000\n")]),
            2,
            "a container sees its group as the root"
        );
        assert_eq!(quota(&[v2, max("sys/fs/cgroup/a/b/cpu.max", "10000 100000\n")]), 0, "a tenth");
        assert_eq!(quota(&[v2, max("sys/fs/cgroup/a/b/cpu.max", "1000 0\n")]), MAX, "no period");
        let v1 = ("proc/self/cgroup", "5:memory:/m\n4:cpuacct,cpu:/docker/x\n0::/\n");
        let period = ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota(&[v1, period, ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "400000\n")]), 4);
        assert_eq!(quota(&[v1, period, ("sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "-1\n")]), MAX);
        let root = "sys/fs/cgroup/cpuacct,cpu/cpu.cfs_period_us";
        assert_eq!(quota(&[v1, (root, "50000"), ("sys/fs/cgroup/cpuacct,cpu/cpu.cfs_quota_us", "100000")]), 2);
    }

    #[test]
    fn s25_there_is_one_processor_at_least_and_no_more_than_cores() {
        let of = |n| Cores { ids: cores(0..n), mask: None, own: n }.processors();
        assert!(of(1) == 1 && of(0) == 1 && (1..=3).contains(&of(3)));
    }

    #[test]
    fn s25_cores_spread_evenly_over_fewer_queues() {
        for (set, queues) in
            [((0..128).collect::<Vec<_>>(), 2), ((0..128).step_by(2).collect(), 2), (vec![3, 64, 700, 1_023], 2)]
        {
            let map = queues_of(&cores(set.iter().copied()), queues);
            for queue in 0..queues {
                let of_queue = set.iter().filter(|&&core| usize::from(map[core]) == queue).count();
                assert_eq!(of_queue, set.len() / queues, "{set:?}");
            }
            assert!(map.iter().all(|&queue| usize::from(queue) < queues));
        }
        assert_eq!(*queues_of(&[], 3), [0]);
        assert_eq!(*queues_of(&cores([1, 3]), 5), [0, 0, 2, 1]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn s25_the_union_of_masks_is_looked_for_until_it_is_the_whole() {
        use linux::add;
        let union_of = |own: &[usize], all| {
            let (mut union, mut looked) = (Mask::with(own), 0);
            let mut of = |thread: i32| {
                looked += 1;
                [&[2, 3][..], &[3], &[], &[700], &[4]]
                    .get(thread as usize)
                    .filter(|ids| !ids.is_empty())
                    .map(|ids| Mask::with(ids))
            };
            add(&mut union, &[0, 1, 2, 3, 4], &mut of, all);
            (union.ids().map(|core| core.id).collect::<Vec<_>>(), looked)
        };
        assert_eq!(union_of(&[0], 64), (vec![0, 2, 3, 4, 700], 5));
        assert_eq!(union_of(&[0], 3), (vec![0, 2, 3], 1));
        assert_eq!(union_of(&[0, 1, 2], 3), (vec![0, 1, 2], 0));
        assert_eq!(union_of(&[0, 1, 2, 3], 3), (vec![0, 1, 2, 3], 0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn s25_masks_are_set_only_where_threads_would_inherit_others() {
        let mask = Some(Mask::with(&[0, 1]));
        let of = |own| Cores { ids: cores([0, 1]), mask, own };
        assert_eq!(of(2).mask_to_set(false), None);
        assert_eq!(of(2).mask_to_set(true), mask, "threads beyond the workers inherit the mask of a pinned thread");
        assert_eq!(of(1).mask_to_set(false), mask);
    }
}
