//! Opening an image: what is refused, and what is replayed.
//!
//! 1. Parse the superblock and check its features.
//! 2. Find the system files. Refuse a filesystem that a node of a cluster has mounted.
//! 3. Replay the journals of all slots that hold changes, onto an overlay in memory.
//! 4. Read the superblock again.

use crate::layout::superblock::{self, BLOCK_SIZES, SUPERBLOCK, Superblock};
use crate::system::{SystemFiles, journal_error};
use crate::volume::Ocfs2;
use ivers_block::{BlockNo, BufferCache, ByteOffset, Device, OverlayDevice};
use ivers_journal::jbd2::{Jbd2Log, Jbd2Options};
use ivers_vfs::{DriverOptions, Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of a device that [`probe`] looks at: the superblock is the third block, of at most 4 KiB.
pub const PROBE_BYTES: u64 = 3 * BLOCK_SIZES[1] as u64;
/// The time between the two reads of the heartbeats. A living node writes one every two seconds.
const HEARTBEAT: Duration = Duration::from_millis(4500);

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
        let opened = Self::open_with(device, &options, wait_for_heartbeat)?;
        opened.fs.directory(opened.fs.sb.root, "the root")?;
        Ok(Arc::new(opened.fs))
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
        drop(look);
        let mut replayed = Vec::new();
        if !dirty.is_empty() && !options.no_replay {
            device = Arc::new(OverlayDevice::new(device));
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
        fs.state = state(&sb, dirty.len(), replayed.len());
        Ok(Opened { fs, files, replayed })
    }

    fn assemble(device: Arc<dyn Device>, sb: &Superblock, options: &OpenOptions) -> Self {
        let read_only = match (options.common.read_only, device.is_read_only(), sb.unknown_ro_compat()) {
            (true, ..) => "opened read-only".to_owned(),
            (_, true, _) => "the image is read-only".to_owned(),
            (_, _, Some(feature)) => format!("this driver does not know the {feature}"),
            _ => "this driver reads OCFS2 and does not write it".to_owned(),
        };
        let cache = BufferCache::new(device, sb.block_size, options.common.budget.clone());
        Self {
            sb: sb.clone(),
            place: options.common.place.clone(),
            cache: Arc::new(cache),
            read_only,
            state: String::new(),
            global_bitmap: 0,
            corrected: u64::from(sb.corrected).into(),
        }
    }
}

/// Returns how a filesystem was closed, for users.
fn state(sb: &Superblock, dirty: usize, replayed: usize) -> String {
    let closed = match (dirty, replayed) {
        (0, _) => "unmounted cleanly",
        (_, 0) => "not unmounted cleanly; the journal was not replayed",
        _ => "not unmounted cleanly; the journal was replayed in memory",
    };
    let errors = if sb.has_errors { "; errors are recorded: run fsck.ocfs2" } else { "" };
    format!("{closed}{errors}")
}
