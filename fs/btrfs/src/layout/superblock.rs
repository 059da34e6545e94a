//! The superblock, checked once.

use super::bytes::{read, slice};
use super::checksum::ChecksumKind;
use super::features::{Incompat, RoCompat, SuperFlags};
use super::raw::RawSuperblock;
use ivers_vfs::{Error, Result};

/// Bytes of a superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Where a device has its superblock and the copies of it.
pub const SUPERBLOCK_PLACES: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
/// Where a superblock has its own place.
const PLACE: std::ops::Range<usize> = 0x30..0x38;
/// The magic.
pub(crate) const MAGIC: &[u8; 8] = b"_BHRfS_M";
/// The most bytes of a label.
pub(crate) const LABEL_MAX: usize = 255;
/// The bytes of a sector, and of a stripe, of new filesystems.
pub(crate) const SECTOR: u64 = 4096;
pub(crate) const STRIPE_LEN: u64 = 64 << 10;
/// Where the superblock has the array of system chunks, and its largest size.
pub(crate) const SYS_CHUNK_ARRAY: usize = 0x32b;
pub(crate) const SYS_CHUNK_ARRAY_BYTES: usize = 2048;
/// Levels of a tree.
pub(crate) const MAX_LEVEL: u8 = 8;
/// The largest block of a tree, and the largest sector.
const LARGEST: u32 = 64 << 10;
/// The smallest sector that is read.
const SMALLEST_SECTOR: u32 = 4096;

/// Where the root of a tree is, and what its block says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRoot {
    /// The logical address.
    pub bytenr: u64,
    /// The generation in its header.
    pub generation: u64,
    /// Its level.
    pub level: u8,
}

/// The superblock.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// The UUID that users see.
    pub fsid: [u8; 16],
    /// The UUID in blocks of trees.
    pub metadata_uuid: [u8; 16],
    /// The last transaction.
    pub generation: u64,
    /// The tree of roots.
    pub root: TreeRoot,
    /// The tree of chunks.
    pub chunk_root: TreeRoot,
    /// The log tree, without its generation. Address 0: none.
    pub log_root: TreeRoot,
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes in use, each counted once.
    pub bytes_used: u64,
    /// The object of the tree of roots that names the default subvolume.
    pub root_dir_objectid: u64,
    /// Devices.
    pub num_devices: u64,
    /// Bytes of a sector: a power of two from 4096 to 65536.
    pub sector_size: u32,
    /// Bytes of a block of a tree: a power of two from `sector_size` to 65536.
    pub node_size: u32,
    /// Features that matter for reading.
    pub incompat: Incompat,
    /// Features that matter for writing.
    pub ro_compat: RoCompat,
    /// States.
    pub flags: SuperFlags,
    /// The checksum.
    pub checksum: ChecksumKind,
    /// The number of the device that this superblock is on.
    pub devid: u64,
    /// Its UUID.
    pub device_uuid: [u8; 16],
    /// Its bytes that the filesystem uses.
    pub device_bytes: u64,
    /// The label, without padding.
    pub label: Vec<u8>,
    /// The chunks that have the tree of chunks.
    pub(crate) sys_chunks: Vec<u8>,
}

/// Why bytes are no superblock that can be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// Nothing says that this should be a superblock.
    Absent,
    /// It contradicts itself.
    Damaged(String),
    /// It needs something that this driver does not support.
    Unsupported(String),
}

impl Unusable {
    pub(crate) fn into_error(self, place: &str) -> Error {
        match self {
            Self::Absent => Error::corrupt("no btrfs superblock", format!("{place}, superblock")),
            Self::Damaged(what) => Error::corrupt(what, format!("{place}, superblock")),
            Self::Unsupported(what) => Error::Incompatible(format!("{place}: {what}")),
        }
    }
}

/// Returns a superblock with another place, and its checksum.
pub(crate) fn at_place(superblock: &[u8], place: u64, checksum: ChecksumKind) -> Vec<u8> {
    let mut bytes = superblock.to_vec();
    bytes[PLACE].copy_from_slice(&place.to_le_bytes());
    checksum.seal(&mut bytes);
    bytes
}

impl Superblock {
    /// Recognises a filesystem by the first bytes of a device, at least 68 KiB.
    pub fn probe(head: &[u8]) -> bool {
        slice(head, SUPERBLOCK_PLACES[0] as usize + 0x40, MAGIC.len()).is_some_and(|magic| magic == MAGIC)
    }

    /// Whether there is a log tree.
    pub fn has_log(&self) -> bool {
        self.log_root.bytenr != 0
    }

    /// Parses the superblock that is at byte `at` of its device.
    pub(crate) fn parse(bytes: &[u8], at: u64) -> std::result::Result<Self, Unusable> {
        let damaged = |what: String| Unusable::Damaged(what);
        let raw: RawSuperblock = read(bytes, 0).ok_or(Unusable::Absent)?;
        if raw.magic != *MAGIC || bytes.len() != SUPERBLOCK_BYTES {
            return Err(Unusable::Absent);
        }
        let csum_type = raw.csum_type.get();
        let Some(checksum) = ChecksumKind::from_disk(csum_type) else {
            return Err(Unusable::Unsupported(format!("checksums of type {csum_type} are not supported")));
        };
        if !checksum.is_valid(bytes) {
            return Err(damaged("bad checksum; run btrfs rescue super-recover".into()));
        }
        if raw.bytenr.get() != at {
            return Err(damaged(format!("it names {} as its place", raw.bytenr.get())));
        }
        let (sector_size, node_size) = (raw.sectorsize.get(), raw.nodesize.get());
        if !sector_size.is_power_of_two() || sector_size > LARGEST {
            return Err(damaged(format!("sectorsize is {sector_size}")));
        }
        if sector_size < SMALLEST_SECTOR {
            return Err(Unusable::Unsupported(format!("sectors of {sector_size} bytes are not supported")));
        }
        if !node_size.is_power_of_two() || !(sector_size..=LARGEST).contains(&node_size) {
            return Err(damaged(format!("nodesize is {node_size}")));
        }
        let root = |bytenr: u64, generation: u64, level: u8| TreeRoot { bytenr, generation, level };
        let generation = raw.generation.get();
        let roots = [
            root(raw.root.get(), generation, raw.root_level),
            root(raw.chunk_root.get(), raw.chunk_root_generation.get(), raw.chunk_root_level),
            root(raw.log_root.get(), 0, raw.log_root_level),
        ];
        for root in roots {
            if root.level >= MAX_LEVEL || !root.bytenr.is_multiple_of(sector_size.into()) {
                return Err(damaged(format!("a root is at {} with level {}", root.bytenr, root.level)));
            }
        }
        let array_bytes = raw.sys_chunk_array_size.get() as usize;
        let sys_chunks = (array_bytes <= SYS_CHUNK_ARRAY_BYTES)
            .then(|| slice(bytes, SYS_CHUNK_ARRAY, array_bytes))
            .flatten()
            .ok_or_else(|| damaged(format!("sys_chunk_array_size is {array_bytes}")))?;
        if raw.num_devices.get() == 0 {
            return Err(damaged("num_devices is 0".into()));
        }
        let incompat = Incompat::from_bits_retain(raw.incompat_flags.get());
        let has_metadata_uuid = incompat.contains(Incompat::METADATA_UUID);
        Ok(Self {
            fsid: raw.fsid,
            metadata_uuid: if has_metadata_uuid { raw.metadata_uuid } else { raw.fsid },
            generation,
            root: roots[0],
            chunk_root: roots[1],
            log_root: roots[2],
            total_bytes: raw.total_bytes.get(),
            bytes_used: raw.bytes_used.get(),
            root_dir_objectid: raw.root_dir_objectid.get(),
            num_devices: raw.num_devices.get(),
            sector_size,
            node_size,
            incompat,
            ro_compat: RoCompat::from_bits_retain(raw.compat_ro_flags.get()),
            flags: SuperFlags::from_bits_retain(raw.flags.get()),
            checksum,
            devid: raw.dev_item.devid.get(),
            device_uuid: raw.dev_item.uuid,
            device_bytes: raw.dev_item.total_bytes.get(),
            label: raw.label.split(|&byte| byte == 0).next().unwrap_or_default().to_vec(),
            sys_chunks: sys_chunks.to_vec(),
        })
    }

    /// Refuses what this driver cannot read, by name.
    pub(crate) fn check_supported(&self, place: &str) -> Result<()> {
        let refuse = |what: String| Err(Error::Incompatible(format!("{place}: {what}")));
        let unknown = self.incompat.difference(Incompat::KNOWN).feature_names();
        if !unknown.is_empty() {
            return refuse(format!("the feature {} is not supported", unknown.join(", ")));
        }
        let state = self.flags.difference(SuperFlags::KNOWN).feature_names();
        if !state.is_empty() {
            return refuse(format!("the state {} is not supported", state.join(", ")));
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) fn test_superblock() -> Superblock {
    let root = TreeRoot { bytenr: 1 << 20, generation: 7, level: 0 };
    Superblock {
        fsid: [1; 16],
        metadata_uuid: [1; 16],
        generation: 7,
        root,
        chunk_root: root,
        log_root: TreeRoot { bytenr: 0, generation: 0, level: 0 },
        total_bytes: 1 << 30,
        bytes_used: 1 << 20,
        root_dir_objectid: 6,
        num_devices: 1,
        sector_size: 4096,
        node_size: 4096,
        incompat: Incompat::KNOWN,
        ro_compat: RoCompat::empty(),
        flags: SuperFlags::WRITTEN,
        checksum: ChecksumKind::Crc32c,
        devid: 1,
        device_uuid: [2; 16],
        device_bytes: 1 << 30,
        label: Vec::new(),
        sys_chunks: Vec::new(),
    }
}
