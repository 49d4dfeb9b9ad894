//! What a disk has after a power cut: its write cache is lost, in part.
//!
//! Ground rules. The emulator logs writes and flushes in their order. All that was written before
//! the last flush is on the disk. Of what was written since then each sector is there or not, by a
//! seeded choice. The log does not tell which writes were to be on the disk when they are done
//! (FUA). Those are the blocks by which ext4 commits its journal, known by their begin; a drive
//! keeps them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::ledger::next;

const SECTOR: u64 = 512;
/// Flags of an entry. The format is that of the kernel's target `log-writes`; its first sector is
/// written late, and not read here.
const FLUSH: u64 = 1;
const DISCARD: u64 = 4;

/// The begin of a block that commits a journal of ext4: its sign, and its type. ext4 flushes the
/// drive before such a write.
const COMMIT: [u8; 8] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];

struct Write {
    /// Where on the disk.
    at: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Left {
    pub(super) safe: usize,
    /// Sectors.
    pub(super) kept: usize,
    pub(super) others: usize,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// The writes before the last flush, and those after it.
fn read(log: &Path) -> (Vec<Write>, Vec<Write>) {
    let log = std::fs::read(log).unwrap();
    let (mut safe, mut cached) = (Vec::new(), Vec::new());
    let mut at = SECTOR as usize;
    while at + (SECTOR as usize) <= log.len() {
        let [sector, sectors, flags] = [0, 8, 16].map(|field| number(&log, at + field));
        if [sector, sectors, flags] == [0; 3] {
            break;
        }
        at += SECTOR as usize;
        if flags & DISCARD == 0 {
            // The last entry may have been cut.
            let end = at + (sectors * SECTOR) as usize;
            let Some(bytes) = log.get(at..end) else { break };
            let write = Write { at: sector * SECTOR, bytes: bytes.to_owned() };
            if bytes.starts_with(&COMMIT) {
                safe.push(write)
            } else {
                cached.push(write)
            }
            at = end;
        }
        if flags & FLUSH != 0 {
            safe.append(&mut cached);
        }
    }
    (safe, cached)
}

/// Brings the disk, as it was when the machine was switched on, to what it has after the cut.
pub(super) fn after_a_cut(disk: &Path, log: &Path, seed: u64) -> Left {
    let disk: File = OpenOptions::new().write(true).open(disk).unwrap();
    let (safe, cached) = read(log);
    for write in &safe {
        disk.write_all_at(&write.bytes, write.at).unwrap();
    }
    let mut left = Left { safe: safe.len(), kept: 0, others: 0 };
    let mut random = seed;
    for write in &cached {
        // Some writes are there in whole, some not at all, some in part.
        let share = [0, 0, 50, 100][next(&mut random) as usize % 4];
        for (sector, bytes) in (0..).zip(write.bytes.chunks(SECTOR as usize)) {
            left.others += 1;
            if next(&mut random) % 100 < share {
                left.kept += 1;
                disk.write_all_at(bytes, write.at + sector * SECTOR).unwrap();
            }
        }
    }
    left
}
