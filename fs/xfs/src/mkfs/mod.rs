//! Making an empty filesystem of version 5.
//!
//! Geometry, places of all structures and most features are those of mkfs.xfs: `docs/xfs.md` lists what
//! differs. The same options give the same filesystem, byte for byte.
//!
//! | module | contents |
//! |---|---|
//! | `features`, `options` | what a caller asks for, and what it gets |
//! | `geometry` | sizes of blocks, groups and log |
//! | `space` | which blocks of a group are used |
//! | `headers`, `trees`, `inodes`, `empty_log` | the structures as bytes |

mod empty_log;
mod features;
mod geometry;
mod headers;
mod inodes;
mod options;
mod space;
mod trees;

pub use features::Features;
pub use options::{MkfsOptions, MkfsReport};

use crate::layout::features::Incompat;
use crate::layout::superblock::Superblock;
use geometry::{MIN_GROUP_BYTES, Plan};
use headers::Totals;
use ivers_block::{ByteOffset, Device, write_zeros};
use ivers_vfs::Result;
use space::Group;
use trees::{Chunk, Contents};

/// Bytes at the end of a device in which other formats have structures, for example RAID.
const TAIL_BYTES: u64 = 128 << 10;

/// The largest sector.
const SECTOR_BYTES_MAX: u64 = 32 << 10;

/// Checks that a filesystem with these options fits a device of this size; writes nothing.
pub fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<()> {
    Plan::new(size_bytes, options).map(drop)
}

/// Makes a filesystem that fills the device. All checks pass before the first write. The superblock is
/// written last: an incomplete filesystem is not recognized. The filesystem is durable on return.
pub fn mkfs(device: &dyn Device, options: &MkfsOptions) -> Result<MkfsReport> {
    let plan = Plan::new(device.size_bytes(), options)?;
    let maker = Maker::new(device, &plan, options)?;
    maker.write()?;
    Ok(plan.report(options))
}

/// Erases the copies of an old superblock, if the device has one. A tool that repairs the new filesystem
/// could take them for its own.
pub fn erase_copies(device: &dyn Device) -> Result<()> {
    let mut head = vec![0; device.size_bytes().min(SECTOR_BYTES_MAX) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    // One that is damaged, or from a larger device, does not say reliably where its copies are.
    let Ok(old) = Superblock::parse(&head, device.size_bytes(), "") else { return Ok(()) };
    if u64::from(old.ag_blocks) * u64::from(old.block_size) < MIN_GROUP_BYTES {
        // No tool made these groups. There could be millions of them.
        return Ok(());
    }
    let zeros = vec![0; old.sector_size as usize];
    for group in 1..old.ag_count {
        if let Some(block) = old.ag_block(group, 0) {
            device.write_at(block.offset(old.block_size), &zeros)?;
        }
    }
    Ok(())
}

struct Maker<'a> {
    device: &'a dyn Device,
    plan: &'a Plan,
    options: &'a MkfsOptions,
    /// The superblock of all groups.
    superblock: Vec<u8>,
    /// The first inode of the chunk of the first group.
    root: u32,
}

impl<'a> Maker<'a> {
    fn new(device: &'a dyn Device, plan: &'a Plan, options: &'a MkfsOptions) -> Result<Self> {
        let groups = (0..plan.groups).map(|number| Group::new(plan, options, number));
        let free_blocks = groups.map(|group| group.usable_blocks()).sum();
        let chunk = Group::new(plan, options, 0).chunk.map_or(0, |chunk| chunk.start);
        let root = chunk * (plan.block_size / plan.inode_size);
        let totals = Totals { root: root.into(), used_inodes: inodes::USED, free_blocks };
        let superblock = headers::superblock(plan, options, &totals);
        // What cannot be read is not written.
        Superblock::parse(&superblock, device.size_bytes(), &device.describe())?;
        Ok(Self { device, plan, options, superblock, root })
    }

    fn write(&self) -> Result<()> {
        let first_sector = vec![0; self.plan.sector_size as usize];
        self.device.write_at(ByteOffset(0), &first_sector)?;
        if !self.options.zeroed {
            let tail = self.device.size_bytes() - TAIL_BYTES;
            self.zero(ByteOffset(tail), TAIL_BYTES)?;
            self.device.flush()?;
        }
        for number in (0..self.plan.groups).rev() {
            self.write_group(&Group::new(self.plan, self.options, number))?;
        }
        self.device.flush()?;
        self.device.write_at(ByteOffset(0), &self.superblock)?;
        Ok(self.device.flush()?)
    }

    fn place(&self, group: &Group, block: u32) -> ByteOffset {
        let block = u64::from(group.number) * u64::from(self.plan.group_blocks) + u64::from(block);
        ByteOffset(block * u64::from(self.plan.block_size))
    }

    fn write_group(&self, group: &Group) -> Result<()> {
        let (plan, options) = (self.plan, self.options);
        if let Some(log) = &group.log {
            let at = self.place(group, log.start);
            self.zero(at, u64::from(log.end - log.start) * u64::from(plan.block_size))?;
            self.device.write_at(at, &empty_log::record(plan, options.uuid))?;
        }
        if let Some(chunk) = &group.chunk {
            let bytes = inodes::chunk(plan, options, self.root.into());
            self.device.write_at(self.place(group, chunk.start), &bytes)?;
        }
        // Headers and roots are the first blocks.
        let mut bytes = self.headers(group);
        bytes.resize((plan.header_blocks() * plan.block_size) as usize, 0);
        let chunks = self.chunks(group);
        let contents = Contents {
            uuid: &options.uuid,
            chunks: &chunks,
            sparse: options.features.has_incompat(Incompat::SPARSE),
        };
        for tree in &plan.trees {
            bytes.extend(tree.root(plan, group, &contents));
        }
        // The first superblock is written when everything else is durable.
        let skipped = if group.number == 0 { plan.sector_size as usize } else { 0 };
        Ok(self.device.write_at(self.place(group, 0) + skipped as u64, &bytes[skipped..])?)
    }

    /// Superblock, AGF, AGI and AGFL.
    fn headers(&self, group: &Group) -> Vec<u8> {
        let (plan, options) = (self.plan, self.options);
        let inodes = plan.chunk_inodes();
        let chunk = group.chunk.is_some().then(|| (self.root, inodes, inodes - inodes::USED));
        let agi = headers::agi(plan, options, group, chunk);
        let (agf, agfl) = (headers::agf(plan, options, group), headers::agfl(plan, options, group));
        [&self.superblock[..], &agf, &agi, &agfl].concat()
    }

    /// The chunks of inodes of a group: of the first group one, or several if a block has more inodes.
    fn chunks(&self, group: &Group) -> Vec<Chunk> {
        if group.chunk.is_none() {
            return Vec::new();
        }
        let chunk =
            |index| Chunk { first: self.root + index, used: if index == 0 { inodes::USED } else { 0 } };
        (0..self.plan.chunk_inodes()).step_by(64).map(chunk).collect()
    }

    fn zero(&self, start: ByteOffset, bytes: u64) -> Result<()> {
        if self.options.zeroed {
            return Ok(());
        }
        Ok(write_zeros(self.device, start, bytes)?)
    }
}
