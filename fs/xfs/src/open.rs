//! Opening an image: what is refused, and what can only be read.

use crate::layout::features::RoCompat;
use crate::layout::superblock::Superblock;
use crate::log::{self, Replayed};
use crate::volume::Xfs;
use ivers_block::{BufferCache, ByteOffset, Device};
use ivers_vfs::{DriverOptions, Error, FileType, NameError, Result};
use std::sync::Arc;

/// Bytes of the largest sector: the superblock's checksum is of its sector.
pub(crate) const HEAD_BYTES: u64 = 32 << 10;

/// Options of [`Xfs::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options of all drivers.
    pub common: DriverOptions,
    /// Show what is in place, without what the log contains.
    pub no_replay: bool,
}

/// Recognises XFS by the first bytes of a device.
pub fn probe(head: &[u8]) -> bool {
    Superblock::probe(head)
}

/// Reads the superblock.
pub(crate) fn read_super(device: &dyn Device, place: &str) -> Result<Superblock> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    Superblock::parse(&head, device.size_bytes(), place)
}

/// Returns why a filesystem can only be read.
fn read_only_reason(device: &dyn Device, sb: &Superblock, options: &OpenOptions) -> String {
    let unknown = sb.ro_compat.difference(RoCompat::KNOWN).feature_names();
    if options.common.read_only {
        "requested".into()
    } else if device.is_read_only() {
        "the image is read-only".into()
    } else if !unknown.is_empty() {
        format!("this driver cannot write the feature {}", unknown.join(", "))
    } else if !sb.is_v5() {
        "XFS of version 4 is only read".into()
    } else {
        "this driver reads XFS and does not write it yet".into()
    }
}

impl Xfs {
    /// Checks an image and opens it. A dirty log is replayed in memory.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = options.common.place.clone();
        let mut sb = read_super(&*device, &place)?;
        let read_only = read_only_reason(&*device, &sb, &options);
        let (device, replayed) = match options.no_replay {
            true => (device, None),
            false => {
                let (device, replayed) = log::recover(device, &sb, &place)?;
                (device, Some(replayed))
            }
        };
        let log_state = match replayed {
            None => "not replayed".to_owned(),
            Some(Replayed::Clean) => "clean".to_owned(),
            Some(Replayed::Transactions(count)) => {
                ::log::info!("{place}: {count} transactions of the log are replayed in memory");
                // The superblock may be in the log.
                sb = read_super(&*device, &place)?;
                format!("dirty: {count} transactions are replayed in memory")
            }
        };
        let cache = BufferCache::new(device, sb.block_size, options.common.budget.clone());
        let counts = sb.counts;
        let mut xfs = Self { sb, place, cache, read_only, counts, log_state };
        if replayed != Some(Replayed::Clean) {
            xfs.counts = xfs.recount()?;
        }
        let root = xfs.dinode(xfs.sb.root).map_err(|error| match error {
            Error::Name(NameError::Stale) => Error::corrupt("there is no root directory", xfs.place.clone()),
            error => error,
        })?;
        if root.attr.kind != FileType::Directory {
            return Err(xfs.corrupt("the root is no directory", root.whose()));
        }
        Ok(Arc::new(xfs))
    }
}
