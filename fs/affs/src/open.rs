//! Opening a volume: where it lies, where its root is, and whether it may be written to.

use crate::dircache::Caches;
use crate::layout::{
    BM_VALID, Block, Flavour, ST_ROOT, T_SHORT, get32, head, is_sealed, shown_tag, table_len, tail, tail32,
    to_utf8,
};
use crate::rdb;
use crate::space::{BLOCKS_MAX, Space};
use crate::volume::{Affs, Shape, order_error};
use ivers_block::{Budget, BufferCache, ByteOffset, Device, OffsetDevice};
use ivers_vfs::sync::atomic::AtomicU64;
use ivers_vfs::sync::{Mutex, RwLock};
use ivers_vfs::{Error, Result};
use ivers_write_ordering::{Ordered, OrderedOptions, Ticket};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How to open a volume.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Write nothing.
    pub read_only: bool,
    /// Which partition of a hard disk: its name or its number. Not needed where there is one.
    pub partition: Option<String>,
    /// The bound of the block cache.
    pub budget: Arc<Budget>,
    /// A change goes home at the latest about this long after it was made.
    pub commit_interval: Duration,
    /// The image's name, for messages.
    pub place: String,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: true,
            partition: None,
            budget: Arc::new(Budget::new(32 << 20)),
            commit_interval: Duration::from_secs(5),
            place: "image".into(),
        }
    }
}

/// Block sizes that there are.
const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];
/// Blocks at the beginning that belong to no file where no partition says otherwise.
const RESERVED: u32 = 2;

/// A volume on a device, before its root was looked for.
struct Extent {
    place: String,
    len: u64,
    /// What a partition says.
    block_size: Option<u32>,
    reserved: u32,
}

/// Whether a device begins as a volume, or as a disk with partitions, as far as its first bytes tell.
pub fn probe(head: &[u8]) -> bool {
    let volume = head.len() >= 4 && Flavour::of(get32(head, 0)).is_some();
    volume || head.chunks(512).take(16).any(|block| block.starts_with(b"RDSK"))
}

impl Affs {
    /// Opens a floppy or hard disk image, or a partition of it.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let (device, extent) = find_volume(device, &options)?;
        let mut first = [0; 4];
        if extent.len < 4 * 512 {
            return Err(Error::Incompatible(format!(
                "{} holds no AmigaDOS volume: it is too small",
                extent.place
            )));
        }
        device.read_at(ByteOffset(0), &mut first)?;
        let tag = u32::from_be_bytes(first);
        let Some(flavour) = Flavour::of(tag) else {
            return Err(Error::Incompatible(format!(
                "{} holds no AmigaDOS volume (its first block says {})",
                extent.place,
                shown_tag(tag)
            )));
        };
        let (shape, root) = find_root(&*device, &extent, flavour)?;
        let cache = Arc::new(BufferCache::new(device, shape.block_size, options.budget.clone()));
        let (space, found) = Space::find(&shape, &cache, &root);
        let space = Arc::new(space);
        let valid = tail32(&root, tail::BM_FLAG) == BM_VALID;
        let small = shape.blocks <= BLOCKS_MAX;
        // Nobody asks for the bitmap of what is only read, but for the figures of free space.
        let bitmap = found.and_then(|()| if valid && small { space.load() } else { Ok(()) });
        let name_len = usize::from(root[root.len() - tail::NAME]).min(30);
        let name_at = root.len() - tail::NAME + 1;
        let label = String::from_utf8_lossy(&to_utf8(&root[name_at..name_at + name_len])).into_owned();
        let mut affs = Self {
            shape,
            label,
            cache,
            space: space.clone(),
            ordered: None,
            read_only: None,
            links: RwLock::new(()),
            moved: Mutex::new(Ticket::default()),
            caches: Caches::default(),
            orphans: AtomicU64::new(0),
            lives: Mutex::new(HashMap::new()),
        };
        affs.read_only = affs.why_read_only(&options, bitmap);
        if affs.read_only.is_none() {
            let order = OrderedOptions { interval: options.commit_interval, ..OrderedOptions::default() };
            let ordered = Ordered::new(affs.cache.clone(), space, order).map_err(order_error)?;
            affs.ordered = Some(ordered);
            if !valid {
                affs.recover()?;
            }
        }
        Ok(Arc::new(affs))
    }

    /// Why the volume cannot be written to, if so.
    fn why_read_only(&self, options: &OpenOptions, bitmap: Result<()>) -> Option<String> {
        let flavour = self.shape.flavour;
        if options.read_only || self.device().is_read_only() {
            return Some("opened for reading only".into());
        }
        if flavour.long_names {
            return Some(format!("{}: long names are not written", flavour.name()));
        }
        if self.shape.blocks > BLOCKS_MAX {
            return Some(format!("{} blocks are more than are written to", self.shape.blocks));
        }
        bitmap.err().map(|error| format!("the bitmap cannot be used: {error}"))
    }
}

fn find_volume(device: Arc<dyn Device>, options: &OpenOptions) -> Result<(Arc<dyn Device>, Extent)> {
    let place = &options.place;
    let Some(partitions) = rdb::partitions(&*device, place)? else {
        if options.partition.is_some() {
            return Err(Error::Incompatible(format!(
                "{place} has no list of partitions (no Rigid Disk Block)"
            )));
        }
        let extent =
            Extent { place: place.clone(), len: device.size_bytes(), block_size: None, reserved: RESERVED };
        return Ok((device, extent));
    };
    let chosen = rdb::choose(&partitions, options.partition.as_deref(), place)?;
    let place = format!("{place}, partition {}", chosen.name);
    if !BLOCK_SIZES.contains(&chosen.block_size) {
        return Err(Error::Incompatible(format!("{place}: blocks of {} bytes", chosen.block_size)));
    }
    let extent =
        Extent { place, len: chosen.len, block_size: Some(chosen.block_size), reserved: chosen.reserved };
    let device = match chosen.start {
        0 => device,
        start => Arc::new(OffsetDevice::new(device, ByteOffset(start))?),
    };
    Ok((device, extent))
}

/// The root lies in the middle (FAQ 4.2). What is no root there is asked for its size in blocks another way.
fn find_root(device: &dyn Device, extent: &Extent, flavour: Flavour) -> Result<(Shape, Vec<u8>)> {
    let sizes = extent.block_size.map_or(BLOCK_SIZES.to_vec(), |size| vec![size]);
    let mut damaged = None;
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
            let shape = Shape {
                place: extent.place.clone(),
                flavour,
                block_size,
                blocks,
                reserved: extent.reserved,
                root: Block(root as u32),
            };
            match (is_root, is_sealed(&bytes)) {
                (true, true) => return Ok((shape, bytes)),
                (true, false) => {
                    damaged =
                        Some(shape.damaged(Block(root as u32), "the checksum of the root block is wrong"))
                }
                (false, _) => {}
            }
        }
    }
    Err(damaged.unwrap_or_else(|| {
        Error::corrupt(
            format!("{}, but there is no root block in the middle", flavour.name()),
            extent.place.clone(),
        )
    }))
}
