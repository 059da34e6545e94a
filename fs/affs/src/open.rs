//! Opening a volume: finds the partition and the root block, and decides whether the volume is writable.

use crate::bitmap::{BLOCKS_MAX, Bitmap};
use crate::dircache::DirCaches;
use crate::layout::{
    BM_VALID, Block, ST_ROOT, T_SHORT, Variant, checksum_is_valid, format_dos_type, get32, head, table_len,
    tail, tail32, to_utf8,
};
use crate::rdb;
use crate::volume::{Affs, Geometry, to_vfs_error};
use ivers_block::{BufferCache, ByteOffset, Device, OffsetDevice};
use ivers_vfs::sync::atomic::AtomicU64;
use ivers_vfs::sync::{RankedMutex, RankedRwLock};
use ivers_vfs::{DriverOptions, Error, Result};
use ivers_write_ordering::{Ordered, OrderedOptions};
use std::sync::Arc;

/// Options of [`Affs::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options that every driver has.
    pub common: DriverOptions,
    /// The partition of a hard disk, by name or by number from 1. Required if there are several.
    pub partition: Option<String>,
}

impl From<DriverOptions> for OpenOptions {
    fn from(common: DriverOptions) -> Self {
        Self { common, ..Self::default() }
    }
}

/// Valid block sizes, in bytes.
const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Reserved blocks at the start of a volume without a partition entry.
const RESERVED_BLOCKS: u32 = 2;

/// The place of a volume on a device, before its root block is found.
pub(crate) struct VolumeExtent {
    place: String,
    pub(crate) len: u64,
    /// The block size in the partition entry.
    block_size: Option<u32>,
    reserved: u32,
}

/// Returns whether a device starts with a volume or with a partition table. `head` is the first bytes of
/// it.
pub fn probe(head: &[u8]) -> bool {
    let volume = head.len() >= 4 && Variant::from_dos_type(get32(head, 0)).is_some();
    volume || head.chunks(512).take(16).any(|block| block.starts_with(b"RDSK"))
}

impl Affs {
    /// Opens the volume in a floppy or hard disk image, or in one of its partitions.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let (device, extent) = find_volume(device, &options)?;
        let mut first = [0; 4];
        if extent.len < 4 * 512 {
            return Err(Error::Incompatible(format!(
                "{} is no AmigaDOS volume: it is shorter than four sectors",
                extent.place
            )));
        }
        device.read_at(ByteOffset(0), &mut first)?;
        let dos_type = u32::from_be_bytes(first);
        let Some(variant) = Variant::from_dos_type(dos_type) else {
            return Err(Error::Incompatible(format!(
                "{} is no AmigaDOS volume: its first word is {}",
                extent.place,
                format_dos_type(dos_type)
            )));
        };
        let (geometry, root) = find_root(&*device, &extent, variant)?;
        let cache = Arc::new(BufferCache::new(device, geometry.block_size, options.common.budget.clone()));
        let (bitmap, found) = Bitmap::locate(&geometry, &cache, &root);
        let bitmap = Arc::new(bitmap);
        let valid = tail32(&root, tail::BM_FLAG) == BM_VALID;
        let small = geometry.blocks <= BLOCKS_MAX;
        // A read-only mount uses the bitmap only to count free blocks.
        let loaded = found.and_then(|()| if valid && small { bitmap.load() } else { Ok(()) });
        let name_len = usize::from(root[root.len() - tail::NAME]).min(30);
        let name_at = root.len() - tail::NAME + 1;
        let label = String::from_utf8_lossy(&to_utf8(&root[name_at..name_at + name_len])).into_owned();
        let mut affs = Self {
            geometry,
            label,
            cache,
            bitmap: bitmap.clone(),
            ordered: None,
            read_only: None,
            chain_lock: RankedRwLock::new(()),
            last_move: RankedMutex::default(),
            caches: DirCaches::default(),
            orphans: AtomicU64::new(0),
            generations: RankedMutex::default(),
        };
        affs.read_only = affs.read_only_reason(&options, loaded);
        if affs.read_only.is_none() {
            let order =
                OrderedOptions { interval: options.common.commit_interval, ..OrderedOptions::default() };
            let ordered = Ordered::new(affs.cache.clone(), bitmap, order).map_err(to_vfs_error)?;
            affs.ordered = Some(ordered);
            if !valid {
                affs.recover()?;
            }
        }
        Ok(Arc::new(affs))
    }

    /// Returns why the volume is read-only, if it is.
    fn read_only_reason(&self, options: &OpenOptions, loaded: Result<()>) -> Option<String> {
        let variant = self.geometry.variant;
        if options.common.read_only || self.device().is_read_only() {
            return Some("opened read-only".into());
        }
        if variant.long_names {
            return Some(format!("{}: writing to volumes with long names is not supported", variant.name()));
        }
        if self.geometry.blocks > BLOCKS_MAX {
            return Some(format!(
                "{} blocks: writing to volumes of more than 2^28 blocks is not supported",
                self.geometry.blocks
            ));
        }
        loaded.err().map(|error| format!("the bitmap is damaged: {error}"))
    }
}

pub(crate) fn find_volume(
    device: Arc<dyn Device>,
    options: &OpenOptions,
) -> Result<(Arc<dyn Device>, VolumeExtent)> {
    let place = &options.common.place;
    let Some(partitions) = rdb::partitions(&*device, place)? else {
        if options.partition.is_some() {
            return Err(Error::Incompatible(format!(
                "{place} has no partition table (no Rigid Disk Block); omit -o partition"
            )));
        }
        let extent = VolumeExtent {
            place: place.clone(),
            len: device.size_bytes(),
            block_size: None,
            reserved: RESERVED_BLOCKS,
        };
        return Ok((device, extent));
    };
    let chosen = rdb::choose(&partitions, options.partition.as_deref(), place)?;
    let place = format!("{place}, partition {}", chosen.name);
    if !BLOCK_SIZES.contains(&chosen.block_size) {
        return Err(Error::Incompatible(format!(
            "{place}: a block size of {} bytes is not supported",
            chosen.block_size
        )));
    }
    let extent = VolumeExtent {
        place,
        len: chosen.len,
        block_size: Some(chosen.block_size),
        reserved: chosen.reserved,
    };
    let device = Arc::new(OffsetDevice::with_len(device, ByteOffset(chosen.start), chosen.len)?);
    Ok((device, extent))
}

/// Finds the root block, which is in the middle of the volume (FAQ 4.2). Tries all block sizes if no
/// partition entry gives one.
pub(crate) fn find_root(
    device: &dyn Device,
    extent: &VolumeExtent,
    variant: Variant,
) -> Result<(Geometry, Vec<u8>)> {
    let sizes = extent.block_size.map_or(BLOCK_SIZES.to_vec(), |size| vec![size]);
    let mut corrupt_root = None;
    for block_size in sizes {
        let blocks = (extent.len / u64::from(block_size)).min(u64::from(u32::MAX - 1)) as u32;
        if blocks <= extent.reserved.saturating_add(2) || extent.reserved == 0 {
            continue;
        }
        let middles = [(u64::from(extent.reserved) + u64::from(blocks) - 1) / 2, u64::from(blocks) / 2];
        for (nth, root) in middles.into_iter().enumerate() {
            if nth == 1 && root == middles[0]
                || root < u64::from(extent.reserved)
                || root >= u64::from(blocks)
            {
                continue;
            }
            let mut bytes = vec![0; block_size as usize];
            device.read_at(ByteOffset(root * u64::from(block_size)), &mut bytes)?;
            let is_root = get32(&bytes, head::TYPE) == T_SHORT
                && tail32(&bytes, tail::SEC_TYPE) == ST_ROOT
                && get32(&bytes, head::TABLE_SIZE) as usize == table_len(block_size);
            let geometry = Geometry {
                place: extent.place.clone(),
                variant,
                block_size,
                blocks,
                reserved: extent.reserved,
                root: Block(root as u32),
            };
            match (is_root, checksum_is_valid(&bytes)) {
                (true, true) => return Ok((geometry, bytes)),
                (true, false) => {
                    corrupt_root =
                        Some(geometry.corrupt(Block(root as u32), "the root block has a bad checksum"))
                }
                (false, _) => {}
            }
        }
    }
    Err(corrupt_root.unwrap_or_else(|| {
        Error::corrupt(
            format!(
                "{} without a root block in the middle of the volume (an image that is truncated has none)",
                variant.name()
            ),
            extent.place.clone(),
        )
    }))
}
