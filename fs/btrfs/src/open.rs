//! Opening: what is refused, how the trees are found, and which subvolume is mounted.

use crate::chunks::open_chunks;
use crate::compressor::CompressWith;
use crate::decompressed::Decompressed;
use crate::filesystem::Btrfs;
use crate::interrupted_commit::find_devices;
use crate::layout::key::object;
use crate::layout::superblock::Superblock;
use crate::live::Session;
use crate::numbers::{Object, pack};
use crate::subvolume::Subvolume;
use crate::volume::Volume;
use ivers_block::Device;
use ivers_vfs::sync::RankedRwLock;
use ivers_vfs::{DriverOptions, Error, Result, ServedEpoch, ValidUntil};
use std::sync::Arc;

/// Options of [`Btrfs::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options of all drivers.
    pub common: DriverOptions,
    /// Show the last commit, without what the log tree contains.
    pub no_replay: bool,
    /// Read what is left if devices are missing.
    pub degraded: bool,
    /// The subvolume to mount.
    pub subvolume: Subvolume,
    /// Serve the change attribute as if no other program wrote meanwhile.
    pub trust_foreign: bool,
    /// Compress new data of files that do not say otherwise.
    pub compress: Option<CompressWith>,
}

/// Bytes at the start of a device that [`probe`] needs.
pub const PROBE_BYTES: u64 = 68 << 10;

/// Recognises btrfs by the first bytes of a device.
pub fn probe(head: &[u8]) -> bool {
    Superblock::probe(head)
}

impl Btrfs {
    /// Checks a filesystem on one or several devices and opens it.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = options.common.place.clone();
        let devices = find_devices(&devices, &place, options.degraded)?;
        let mut notes = devices.notes.clone();
        let missing = devices.missing_in_words();
        let is_degraded = missing.is_some();
        notes.extend(missing);
        let sb = &devices.sb;
        let replays = sb.has_log() && !options.no_replay;
        if sb.has_log() && options.no_replay {
            notes.push("files that were written by fsync before a crash are not shown".into());
        }
        for note in &notes {
            log::warn!("{place}: {note}");
        }
        let forest = open_chunks(Volume::new(devices, place.clone()), options.common.budget.clone())?;
        let mut btrfs = Self {
            forest,
            root: pack(object::FS_TREE, Object::Inode(object::FIRST_FREE))?,
            decompressed: Decompressed::new(),
            compress: options.compress,
            live: RankedRwLock::new(None),
            session: Session::default(),
            epoch: ServedEpoch::default(),
            is_persistent: false,
            valid_until: ValidUntil::Unmount(None),
            read_only: None,
            notes,
        };
        btrfs.read_only = if options.common.read_only {
            Some("requested".into())
        } else {
            btrfs.why_not_writable(is_degraded, options.no_replay)?
        };
        if btrfs.read_only.is_none() {
            btrfs.complete_last_commit()?;
        }
        if replays {
            btrfs.replay(btrfs.read_only.is_none())?;
        }
        let chosen = btrfs.chosen_subvolume(&options.subvolume)?;
        btrfs.root = pack(chosen, Object::Inode(object::FIRST_FREE))?;
        if let Some(tree) = btrfs.subvolume(chosen)? {
            let has_root = btrfs.is_directory(&tree, object::FIRST_FREE)?;
            if !has_root {
                return Err(Error::corrupt(format!("subvolume {chosen} has no root directory"), place));
            }
        }
        match btrfs.read_only {
            None => {
                btrfs.forest.volume.mend_copies();
                btrfs.start_writing(options.trust_foreign)?;
            }
            Some(_) => btrfs.read_epoch(options.trust_foreign),
        }
        let btrfs = Arc::new(btrfs);
        if btrfs.read_only.is_none() {
            btrfs.start_timer(options.common.commit_interval)?;
        }
        Ok(btrfs)
    }
}
