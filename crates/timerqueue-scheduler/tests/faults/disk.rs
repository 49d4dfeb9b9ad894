//! A model of a disk with a write cache: what files hold after the power is cut.
//!
//! Ground rules. A write is in the cache until the next sync of its file, which brings it to the
//! disk. A sync that has failed leaves its writes in doubt for ever: a later sync reports nothing
//! of them, as on Linux. At a cut each sector of a write that is not on the disk is there or not,
//! by a seeded choice: so writes are torn, and later ones may be there without earlier ones. A
//! deletion without a sync of its folder may not have happened.

use std::collections::BTreeMap;

const SECTOR: usize = 512;

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Truncate(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Cached,
    Doubtful,
    Safe,
}

#[derive(Default)]
struct File {
    /// What is on the disk for sure.
    image: Vec<u8>,
    /// What came after that, in order.
    changes: Vec<(Change, Fate)>,
    /// The name of the file is on the disk.
    exists: bool,
}

fn apply(image: &mut Vec<u8>, change: &Change, keep: &mut impl FnMut() -> bool) {
    match change {
        Change::Truncate(length) => {
            if keep() {
                image.truncate(*length);
            }
        }
        Change::Write { at, bytes } => {
            let (mut from, end) = (*at, at + bytes.len());
            while from < end {
                let to = end.min((from / SECTOR + 1) * SECTOR);
                if keep() {
                    if image.len() < to {
                        image.resize(to, 0);
                    }
                    image[from..to].copy_from_slice(&bytes[from - at..to - at]);
                }
                from = to;
            }
        }
    }
}

impl File {
    fn sync(&mut self) {
        self.exists = true;
        for (_, fate) in &mut self.changes {
            if *fate == Fate::Cached {
                *fate = Fate::Safe;
            }
        }
        let safe = self.changes.iter().take_while(|(_, fate)| *fate == Fate::Safe).count();
        for (change, _) in self.changes.drain(..safe) {
            apply(&mut self.image, &change, &mut || true);
        }
    }

    /// What is there after a cut, and how many sectors were lost.
    fn after_cut(&self, random: &mut Random) -> (Vec<u8>, usize) {
        let (mut image, mut lost) = (self.image.clone(), 0);
        for (change, fate) in &self.changes {
            // Some writes are there in whole, some not at all, some in half.
            let share = if *fate == Fate::Safe { 100 } else { [0, 50, 50, 100][random.below(4)] };
            apply(&mut image, change, &mut || {
                let kept = random.below(100) < share;
                lost += usize::from(!kept);
                kept
            });
        }
        (image, lost)
    }
}

/// A linear generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// The files of a folder.
#[derive(Default)]
pub(crate) struct Disk {
    files: BTreeMap<String, File>,
    /// Deleted, but their folder was not synced.
    deleted: BTreeMap<String, File>,
}

/// What a cut has left: the bytes of each file, and how many sectors were lost.
pub(crate) struct Left {
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    pub(crate) lost: usize,
}

impl Disk {
    pub(crate) fn create(&mut self, name: &str) {
        self.files.entry(name.to_owned()).or_default();
    }

    pub(crate) fn write(&mut self, name: &str, at: usize, bytes: &[u8]) {
        let change = Change::Write { at, bytes: bytes.to_owned() };
        self.files.entry(name.to_owned()).or_default().changes.push((change, Fate::Cached));
    }

    pub(crate) fn truncate(&mut self, name: &str, length: usize) {
        self.files.entry(name.to_owned()).or_default().changes.push((Change::Truncate(length), Fate::Cached));
    }

    pub(crate) fn sync(&mut self, name: &str) {
        self.files.entry(name.to_owned()).or_default().sync();
        self.deleted.remove(name); // a file of the same name has taken its place
    }

    pub(crate) fn sync_failed(&mut self, name: &str) {
        for (_, fate) in &mut self.files.entry(name.to_owned()).or_default().changes {
            if *fate == Fate::Cached {
                *fate = Fate::Doubtful;
            }
        }
    }

    pub(crate) fn delete(&mut self, name: &str, sync_folder: bool) {
        if let Some(file) = self.files.remove(name) {
            if sync_folder {
                self.deleted.remove(name);
            } else if file.exists {
                self.deleted.insert(name.to_owned(), file);
            }
        }
    }

    pub(crate) fn after_cut(&self, seed: u64) -> Left {
        let mut random = Random(seed);
        let mut left = Left { files: BTreeMap::new(), lost: 0 };
        for (name, file) in self.deleted.iter().chain(&self.files) {
            let is_deleted = self.deleted.get(name).is_some_and(|deleted| std::ptr::eq(deleted, file));
            if (is_deleted || !file.exists) && random.below(2) == 0 {
                continue;
            }
            let (image, lost) = file.after_cut(&mut random);
            left.files.insert(name.clone(), image);
            left.lost += lost;
        }
        left
    }
}

#[test]
fn a_cut_loses_what_was_not_synced_and_nothing_else() {
    let mut disk = Disk::default();
    disk.write("a", 0, &[1; 2_000]);
    disk.sync("a");
    disk.write("a", 512, &[2; 1_024]);
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..200 {
        let image = disk.after_cut(seed).files.remove("a").unwrap();
        assert!(image.len() == 2_000 && image[..512] == [1; 512] && image[1_536..] == [1; 464]);
        seen.insert((image[512], image[1_024]));
    }
    assert_eq!(seen.len(), 4, "both sectors, either one, none: {seen:?}");
    // A sync that has failed is not made good by a later one, but what is written after it is.
    disk.sync_failed("a");
    disk.write("a", 512, &[3; 512]);
    disk.sync("a");
    let seconds: Vec<u8> = (0..200).map(|seed| disk.after_cut(seed).files["a"][1_024]).collect();
    assert!(seconds.contains(&1) && seconds.contains(&2));
    assert!((0..200).all(|seed| disk.after_cut(seed).files["a"][512] == 3));
    disk.delete("a", false);
    assert!((0..200).any(|seed| disk.after_cut(seed).files.is_empty()));
    assert!((0..200).any(|seed| !disk.after_cut(seed).files.is_empty()));
}
