//! Opening the log for writing: recovery in place, and where the log continues.

use super::encode::intent_id;
use super::end::LogEnd;
use super::refusal::dirty;
use super::replay::{self, Done, FoundIntent};
use super::ring::{Lsn, Ring};
use super::scan;
use super::wire::{IN_FLIGHT, SECTOR};
use super::writer::{Continued, XfsLog};
use crate::layout::superblock::Superblock;
use ivers_block::{BlockNo, Device, OverlayDevice, Unit};
use ivers_journal::LiveLog;
use ivers_vfs::Result;
use std::sync::Arc;

/// A log that is open for writing.
pub struct Opened {
    /// The log, for a journal.
    pub log: XfsLog,
    /// Transactions that were replayed; `None` after a clean unmount.
    pub transactions: Option<u64>,
    /// Intents without a done item. The journal adopts them.
    pub intents: Vec<FoundIntent>,
    /// The end of the log as the last writer left it.
    pub(crate) end: LogEnd,
}

impl Opened {
    /// Fails if the log has an intent, for a caller that finishes none. The log stays as it is.
    pub fn check_finished(&self, place: &str) -> Result<()> {
        match self.intents.first() {
            None => Ok(()),
            Some(intent) => {
                let what = format!("it has an unfinished {} intent, which is not supported", intent.name());
                Err(dirty(place, &what))
            }
        }
    }
}

/// Puts what the log contains in place, durably, and opens it for writing.
///
/// Nothing is written before the whole log was read and replayed in memory: a damaged log leaves the image as
/// it was. After a crash the same log is replayed again.
pub fn open_for_writing(device: Arc<dyn Device>, sb: &Superblock, place: &str) -> Result<Opened> {
    if !sb.is_v5() || !sb.log_v2 {
        return Err(dirty(place, "the log of a filesystem of version 4 is not written"));
    }
    let ring = Ring::new(&*device, sb, place)?;
    let found = scan::scan(&ring)?;
    let end = LogEnd::of(&ring, &found)?;
    let mut from = Continued {
        head: found.head,
        tail: found.head,
        durable_tail: found.tail,
        is_clean: found.clean,
        longest: None,
        live: LiveLog::default(),
    };
    let (mut transactions, mut intents) = (None, Vec::new());
    if !found.clean {
        let overlay = OverlayDevice::new(device.clone());
        let done = replay::replay(&ring, &found.records, &overlay, sb, true)?;
        overlay.write_to_base()?;
        transactions = Some(done.count);
        if let Some(tail) = done.intents.iter().map(|intent| intent.lsn).min() {
            (from.tail, from.longest) = (tail, Some(found.longest));
            from.live = live(sb, &done, tail);
        }
        intents = done.intents;
    }
    let free_from = if found.clean { found.head } else { found.tail };
    mark_stale(&*device, &ring, found.head, free_from)?;
    let (start, len) = (ring.offset(0), ring.len);
    let log = XfsLog::new(device, sb, start, len, from, place)?;
    Ok(Opened { log, transactions, intents, end })
}

/// What the journal must know of records after the tail.
fn live(sb: &Superblock, done: &Done, tail: Lsn) -> LiveLog {
    let id = |intent: &FoundIntent| Some((intent_id(intent.kind, intent.id)?, intent.lsn.raw()));
    let unit = |(&(sector, sectors), lsn): (&(u64, u64), &Lsn)| {
        // Heads of groups, which are smaller than blocks, are never freed.
        let each = u64::from(sb.block_size) / SECTOR as u64;
        let is_whole = sector.is_multiple_of(each) && sectors.is_multiple_of(each) && *lsn >= tail;
        let blocks: Vec<BlockNo> = BlockNo(sector / each).run(sectors / each).collect();
        (is_whole && !blocks.is_empty()).then(|| (Unit::new(&blocks), lsn.raw()))
    };
    LiveLog {
        intents: done.intents.iter().filter_map(id).collect(),
        units: done.logged.iter().filter_map(unit).collect(),
    }
}

/// Marks what a crash left after the head as older: a record that was written out of order must not look like
/// one that follows a new one.
fn mark_stale(device: &dyn Device, ring: &Ring<'_>, head: Lsn, tail: Lsn) -> Result<()> {
    let used = (head.sector + ring.len - tail.sector) % ring.len;
    // The head at the tail is a full log, or an empty one.
    let free = if used == 0 && head.cycle != tail.cycle { 0 } else { ring.len - used };
    let count = free.min(IN_FLIGHT);
    let mut written = false;
    for (index, cycle) in (0..).zip(ring.cycles(head.sector, count)?) {
        let at = ring.after(head, index);
        if cycle >= at.cycle && at.cycle > 0 {
            let mut stale = vec![0; SECTOR];
            stale[..4].copy_from_slice(&(at.cycle - 1).to_be_bytes());
            device.write_at(ring.offset(at.sector), &stale)?;
            written = true;
        }
    }
    if written {
        device.flush()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::{MkfsOptions, mkfs};
    use crate::open::read_super;
    use ivers_block::{FileDevice, MemDevice, OpenMode};
    use ivers_oracle::LoopMount;
    use std::path::Path;

    /// What lies after the head is marked if it has the head's cycle, up to 2 MiB and not past the tail.
    #[test]
    fn sectors_after_the_head_are_marked_as_older() {
        let device = MemDevice::new(64 << 20);
        let options = MkfsOptions { uuid: [3; 16], small: true, zeroed: true, ..MkfsOptions::default() };
        mkfs(&device, &options).unwrap();
        let sb = read_super(&device, "image").unwrap();
        let ring = Ring::new(&device, &sb, "image").unwrap();
        let len = ring.len;
        let put = |sector: u32, cycle: u32| {
            let mut bytes = [9; SECTOR];
            bytes[..4].copy_from_slice(&cycle.to_be_bytes());
            device.write_at(ring.offset(sector), &bytes).unwrap();
        };
        let head = |sector: u32| Lsn { cycle: 7, sector };
        // In the middle: a record that was written out of order, and one too far away to be one.
        (0..len).for_each(|sector| put(sector, 7));
        (1000..len).for_each(|sector| put(sector, 6));
        [1005, 1006, 1000 + IN_FLIGHT - 1, 1000 + IN_FLIGHT].iter().for_each(|&sector| put(sector, 7));
        mark_stale(&device, &ring, head(1000), Lsn { cycle: 6, sector: len - 1 }).unwrap();
        let cycles = ring.cycles(0, len).unwrap();
        for (sector, cycle) in (0..).zip(cycles) {
            let expected = if sector < 1000 || sector == 1000 + IN_FLIGHT { 7 } else { 6 };
            assert_eq!(cycle, expected, "sector {sector}");
        }
        // Around the end of the ring, up to the tail.
        (0..len).for_each(|sector| put(sector, 7));
        (0..40).for_each(|sector| put(sector, 8));
        mark_stale(&device, &ring, head(len - 10), Lsn { cycle: 7, sector: 20 }).unwrap();
        let cycles = ring.cycles(0, len).unwrap();
        for (sector, cycle) in (0..).zip(cycles) {
            let expected = match sector {
                0..20 => 7,
                20..40 => 8,
                _ if sector >= len - 10 => 6,
                _ => 7,
            };
            assert_eq!(cycle, expected, "sector {sector}");
        }
        // A full log has nothing after its head.
        mark_stale(&device, &ring, head(20), Lsn { cycle: 6, sector: 20 }).unwrap();
        assert_eq!(ring.cycle(20).unwrap(), 8);
    }

    /// Linux logs all new inodes of a chunk in one item. It then reads and logs them in clusters, which are
    /// small if the alignment of chunks is.
    #[test]
    fn replay_knows_clusters_as_the_log_that_continues_does() {
        let can_run = ivers_oracle::have_programs(&["mkfs.xfs", "xfs_db", "xfs_io"]);
        if !can_run || !ivers_oracle::kernel::can_loop_mount() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        let run = |program: &str, args: &[&str], path: &Path| {
            let args = args.iter().map(std::ffi::OsStr::new);
            ivers_oracle::run(program, args.chain([path.as_os_str()])).unwrap();
        };
        std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        run("mkfs.xfs", &["-q", "-i", "sparse=0"], &image);
        run("xfs_db", &["-x", "-c", "sb 0", "-c", "write inoalignmt 2"], &image);
        let mounted = LoopMount::new(&image, "").unwrap();
        for nth in 0..200 {
            std::fs::write(mounted.path().join(format!("file{nth}")), "text").unwrap();
        }
        run("xfs_io", &["-x", "-c", "shutdown -f"], mounted.path());
        mounted.unmount().unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(&image, OpenMode::ReadOnly).unwrap());
        let sb = read_super(&*device, "image").unwrap();
        let ring = Ring::new(&*device, &sb, "image").unwrap();
        let found = scan::scan(&ring).unwrap();
        let overlay = OverlayDevice::new(device.clone());
        let done = replay::replay(&ring, &found.records, &overlay, &sb, true).unwrap();
        let has = |sectors: u64| done.logged.keys().any(|(_, len)| *len == sectors);
        // Of 8 KiB. 32 inodes of the default size have 16 KiB.
        assert_eq!(sb.cluster_blocks(), 2);
        assert!(has(16) && !has(32), "{:?}", done.logged);
    }
}
