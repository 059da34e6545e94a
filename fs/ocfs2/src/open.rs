//! Opening an image: what is refused, and what is replayed.
//!
//! 1. Parse the superblock and check its features.
//! 2. Find the system files. Refuse a filesystem that a node of a cluster has mounted.
//! 3. Replay the journals of all slots that hold changes: onto the device if that may be written, else onto
//!    an overlay in memory.
//! 4. Read the superblock again. Mark the journal of slot 0, which is ours from here on.
//! 5. Give back what other mounts and crashes left in all slots: see [`crate::recover`].

use crate::change::journal_error;
use crate::layout::superblock::{self, BLOCK_SIZES, SUPERBLOCK, Superblock};
use crate::volume::{Ocfs2, SystemFiles, Writer};
use ivers_block::{BlockNo, BufferCache, ByteOffset, Device, OverlayDevice};
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options, LogMap};
use ivers_journal::{Commits, Journal, JournalOptions};
use ivers_vfs::sync::RankedMutex;
use ivers_vfs::{Clock, CoarseClock, DriverOptions, Error, NameIndexes, Result};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a device that [`probe`] looks at: the superblock is the third block, of at most 4 KiB.
pub const PROBE_BYTES: u64 = 3 * BLOCK_SIZES[1] as u64;
/// The time between the two reads of the heartbeats. A living node writes one every two seconds.
const HEARTBEAT: Duration = Duration::from_millis(4500);

/// The slot that a mount uses.
const SLOT: u16 = 0;
/// The superblock of a log: its magic, the first block in use, the last byte of its incompatible features,
/// and the bits there that give it a checksum.
const LOG_SUPERBLOCK_BYTES: usize = 1024;
const LOG_MAGIC: [u8; 4] = [0xC0, 0x3B, 0x39, 0x98];
const LOG_START: std::ops::Range<usize> = 0x1C..0x20;
const LOG_INCOMPAT: usize = 0x2B;
const LOG_CHECKSUMS: u8 = 0x18;
/// Lower bound of the memory for committed blocks that are not written in place yet, in bytes.
const MIN_JOURNAL_BYTES: u64 = 4 << 20;

/// Sleeps for [`HEARTBEAT`].
pub(crate) fn wait_for_heartbeat() {
    std::thread::sleep(HEARTBEAT);
}

/// Options of [`Ocfs2::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options of all drivers.
    pub common: DriverOptions,
    /// Do not replay the journals, even in memory.
    pub no_replay: bool,
}

/// Recognises OCFS2 by the first bytes of a device.
pub fn probe(head: &[u8]) -> bool {
    superblock::find(head).is_some()
}

/// Reads the superblock. `image` names the image in errors.
pub(crate) fn read_super(device: &dyn Device, image: &str) -> Result<Superblock> {
    let mut head = vec![0; device.size_bytes().min(PROBE_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    let size = superblock::find(&head).ok_or_else(|| {
        Error::Incompatible(format!("{image}: no OCFS2 superblock in block 2 of 512 to 4096 bytes"))
    })?;
    let start = BlockNo(SUPERBLOCK).offset(size).0 as usize;
    Superblock::parse(&head[start..start + size as usize], device.size_bytes(), image)
}

/// An open filesystem, its system files, and the slots whose journals were replayed.
pub(crate) struct Opened {
    pub fs: Ocfs2,
    pub files: SystemFiles,
    pub replayed: Vec<u16>,
}

impl Ocfs2 {
    /// Checks an image and opens it.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let Opened { mut fs, files, replayed } = Self::open_with(device, &options, wait_for_heartbeat)?;
        fs.directory(fs.sb.root, "the root")?;
        if fs.read_only.is_none() {
            fs.start_writing(files, &replayed, &options)?;
        }
        Ok(Arc::new(fs))
    }

    /// As [`open`](Self::open), but does not check the root directory. `wait` sleeps long enough for a living
    /// node to write its heartbeat.
    pub(crate) fn open_with(
        mut device: Arc<dyn Device>,
        options: &OpenOptions,
        wait: impl FnOnce(),
    ) -> Result<Opened> {
        let place = &options.common.place;
        let sb = read_super(&*device, place)?;
        let look = Self::assemble(device.clone(), &sb, options);
        let files = look.system_files()?;
        look.check_cluster(&files, wait)?;
        let dirty = look.dirty_journals(&files)?;
        let mut read_only = look.read_only.clone();
        if options.no_replay && !dirty.is_empty() && read_only.is_none() {
            read_only = Some("the journal was not replayed".into());
        }
        drop(look);
        let mut replayed = Vec::new();
        if !dirty.is_empty() && !options.no_replay {
            if read_only.is_some() {
                device = Arc::new(OverlayDevice::new(device));
            }
            let jbd2 = Jbd2Options { block_size: sb.block_size, fs_blocks: sb.blocks(), uuid: None };
            for (slot, map) in &dirty {
                let mut log =
                    Jbd2Log::open(device.clone(), map.clone(), jbd2.clone()).map_err(journal_error)?;
                let done = log.recover().map_err(journal_error)?;
                let (transactions, blocks) = (done.transactions, done.blocks);
                log::info!("{place}: journal of slot {slot}: {transactions} transactions, {blocks} blocks");
                if let Some(damage) = &done.damaged {
                    let sequence = damage.sequence;
                    log::warn!("{place}: journal of slot {slot}: bad checksum in transaction {sequence}");
                }
                replayed.push(*slot);
            }
        }
        let sb = read_super(&*device, place)?;
        let mut fs = Self::assemble(device, &sb, options);
        let files = fs.system_files()?;
        fs.global_bitmap = fs.system_file(&files, "global_bitmap")?.ino;
        fs.state = state(&sb, dirty.len(), replayed.len(), read_only.is_some());
        fs.read_only = fs.read_only.or(read_only);
        Ok(Opened { fs, files, replayed })
    }

    /// Prepares an opened filesystem for changes.
    fn start_writing(&mut self, files: SystemFiles, replayed: &[u16], options: &OpenOptions) -> Result<()> {
        let (journal, map) = self.journal_of(&files, SLOT)?;
        let device = self.cache.device().clone();
        let jbd2 = Jbd2Options { block_size: self.sb.block_size, fs_blocks: self.sb.blocks(), uuid: None };
        let is_large = self.sb.blocks() > u64::from(u32::MAX);
        let open_log = |map: LogMap| {
            self.empty_log(&*device, &map)?;
            let mut log = Jbd2Log::open(device.clone(), map, jbd2.clone()).map_err(journal_error)?;
            if log.needs_recovery() {
                log.recover().map_err(journal_error)?;
            }
            log.prepare(false, is_large).map_err(journal_error)?;
            Ok::<_, Error>(log)
        };
        let log = open_log(map)?;
        if log.recorded_error() != 0 {
            self.read_only = Some("the journal records an error: run fsck.ocfs2".into());
            return Ok(());
        }
        // fsck.ocfs2 expects the same features of all journals.
        for slot in SLOT + 1..self.sb.max_slots {
            open_log(self.journal_of(&files, slot)?.1)?;
        }
        let find = |name: &str| Ok::<_, Error>(self.system_file(&files, &format!("{name}:{SLOT:04}"))?.ino);
        let mut space = self.read_space(find("inode_alloc")?, find("extent_alloc")?)?;
        let now = CoarseClock.now();
        space.generation = (now.sec as u32).wrapping_mul(0x9E37_79B9) ^ now.nsec;
        // The first change needs the mark: from here on the log is in use.
        self.mark_journal(&*device, journal, true)?;
        let usual = JournalOptions::default();
        let kept = (options.common.budget.limit() / 4).clamp(MIN_JOURNAL_BYTES, usual.checkpoint_bytes);
        let settled = usual.with_commit_interval(options.common.commit_interval).with_checkpoint_bytes(kept);
        let opened = Journal::open(Box::new(log), self.cache.clone(), settled).map_err(journal_error)?;
        let commits = Commits::new(opened);
        self.writer = Some(Writer {
            data: commits.loaded(),
            commits,
            space: RankedMutex::new(space),
            released: Arc::default(),
            files,
            journal,
            closed: false.into(),
        });
        let writer = self.writer()?;
        self.take_over(&writer.files)?;
        writer.commits.commit().map_err(journal_error)?;
        for &slot in replayed.iter().filter(|slot| **slot != SLOT) {
            let (journal, _) = self.journal_of(&writer.files, slot)?;
            self.mark_journal(&*device, journal, false)?;
        }
        Ok(())
    }

    /// Marks a log as empty whose changes are in place: it was replayed, or its mark says so. mkfs.ocfs2
    /// makes logs with a start that have no transactions.
    fn empty_log(&self, device: &dyn Device, map: &LogMap) -> Result<()> {
        let Some(block) = map.fs_block(0) else { return Ok(()) };
        let at = block.offset(self.sb.block_size);
        let mut bytes = vec![0; LOG_SUPERBLOCK_BYTES];
        device.read_at(at, &mut bytes)?;
        let is_magic = bytes.starts_with(&LOG_MAGIC) && bytes[LOG_START] != [0; 4];
        // One with a checksum, which Linux does not make, is replayed instead.
        if is_magic && bytes[LOG_INCOMPAT] & LOG_CHECKSUMS == 0 {
            bytes[LOG_START].fill(0);
            device.write_fua(at, &bytes)?;
        }
        Ok(())
    }

    fn assemble(device: Arc<dyn Device>, sb: &Superblock, options: &OpenOptions) -> Self {
        let read_only = match (options.common.read_only, device.is_read_only()) {
            (true, _) => Some("opened read-only".to_owned()),
            (_, true) => Some("the image is read-only".to_owned()),
            _ => sb.only_read(),
        };
        let budget = &options.common.budget;
        let cache = BufferCache::new(device, sb.block_size, budget.clone());
        Self {
            sb: sb.clone(),
            place: options.common.place.clone(),
            cache: Arc::new(cache),
            names: NameIndexes::new(budget.clone()),
            read_only,
            writer: None,
            state: String::new(),
            global_bitmap: 0,
            corrected: u64::from(sb.corrected).into(),
        }
    }
}

/// Returns how a filesystem was closed, for users.
fn state(sb: &Superblock, dirty: usize, replayed: usize, in_memory: bool) -> String {
    let closed = match (dirty, replayed) {
        (0, _) => "unmounted cleanly",
        (_, 0) => "not unmounted cleanly; the journal was not replayed",
        _ if in_memory => "not unmounted cleanly; the journal was replayed in memory",
        _ => "not unmounted cleanly; the journal was replayed",
    };
    let errors = if sb.has_errors { "; errors are recorded: run fsck.ocfs2" } else { "" };
    format!("{closed}{errors}")
}
