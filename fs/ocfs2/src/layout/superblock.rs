//! The superblock, which is an inode in block 2 with a `struct ocfs2_super_block`.

use super::blockcheck::{self, INODE_CHECK_AT, Verdict};
use super::bytes::{text, u8_at, u16_at, u32_at, u64_at};
use ivers_vfs::{Error, Result};

/// The block of the superblock.
pub const SUPERBLOCK: u64 = 2;
const SIGNATURE: &[u8] = b"OCFSV2\0\0";
/// Bytes of the smallest and of the largest block.
pub const BLOCK_SIZES: [u32; 2] = [512, 4096];
/// The start of the `struct ocfs2_super_block` in its inode.
const SUPER_AT: usize = 0xC0;
/// Byte of the first copy of the superblock; each of the six is four times as far as the one before.
const BACKUP_START: u64 = 1 << 30;
const SLOTS_MAX: u16 = 255;
/// Clusters of 4 KiB to 1 MiB.
const CLUSTER_BITS: std::ops::RangeInclusive<u32> = 12..=20;

/// Bits of `s_feature_incompat`.
pub mod incompat {
    /// There are no other nodes.
    pub const LOCAL_MOUNT: u32 = 0x8;
    /// The cluster is managed by a program.
    pub const USERSPACE_STACK: u32 = 0x80;
    /// Slots have their node in 32 bits.
    pub const EXTENDED_SLOT_MAP: u32 = 0x100;
    /// Directories have an index.
    pub const INDEXED_DIRS: u32 = 0x400;
    /// Structures have checksums.
    pub const META_ECC: u32 = 0x800;
    /// Files can have holes.
    pub const SPARSE: u32 = 0x10;
    /// Contents can be in the inode.
    pub const INLINE_DATA: u32 = 0x40;
    /// Groups of blocks can consist of several runs of clusters.
    pub const DISCONTIG_BG: u32 = 0x2000;
    /// The name of the cluster is stored.
    pub const CLUSTERINFO: u32 = 0x4000;
    /// The names of all bits, as mkfs.ocfs2 and debugfs.ocfs2 spell them, and which are read.
    pub const NAMES: [(u32, &str, bool); 15] = [
        (0x2, "heartbeat-device", false),
        (0x4, "resize-in-progress", false),
        (LOCAL_MOUNT, "local", true),
        (SPARSE, "sparse", true),
        (0x20, "tunefs-in-progress", false),
        (INLINE_DATA, "inline-data", true),
        (USERSPACE_STACK, "userspace-stack", true),
        (EXTENDED_SLOT_MAP, "extended-slotmap", true),
        (0x200, "xattr", true),
        (INDEXED_DIRS, "indexed-dirs", true),
        (META_ECC, "metaecc", true),
        (0x1000, "refcount", true),
        (DISCONTIG_BG, "discontig-bg", true),
        (CLUSTERINFO, "clusterinfo", true),
        (0x8000, "append-dio", true),
    ];
}

/// Bits of `s_feature_ro_compat`, and their names.
const RO_COMPAT: [(u32, &str); 3] =
    [(UNWRITTEN, "unwritten"), (USRQUOTA, "usrquota"), (GRPQUOTA, "grpquota")];
const UNWRITTEN: u32 = 0x1;
const USRQUOTA: u32 = 0x2;
const GRPQUOTA: u32 = 0x4;
/// The bit of `s_feature_compat` for copies of the superblock.
const COMPAT_BACKUP_SB: u32 = 0x1;
/// The bit of `s_state` for errors.
const ERROR_FS: u16 = 0x1;
/// The bit of `ci_stackflags` for a global heartbeat.
const GLOBAL_HEARTBEAT: u8 = 0x1;

/// The cluster stack: the programs that know which nodes are in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stack {
    /// No cluster: one machine mounts the filesystem.
    Local,
    /// o2cb of the kernel, with the heartbeat in a system file.
    O2cb,
    /// The name of a stack whose heartbeat is not in this filesystem.
    Elsewhere(String),
}

/// A superblock whose fields are in their ranges.
#[derive(Debug, Clone)]
pub struct Superblock {
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of a cluster.
    pub blocks_per_cluster: u32,
    /// Clusters of the filesystem.
    pub clusters: u32,
    /// `i_fs_generation`, which every structure has.
    pub generation: u32,
    /// The inode of the root directory.
    pub root: u64,
    /// The inode of the directory of system files.
    pub system_dir: u64,
    /// The descriptor of the first group of the bitmap of clusters.
    pub first_cluster_group: u64,
    /// Machines that can mount the filesystem at a time.
    pub max_slots: u16,
    /// The label.
    pub label: Vec<u8>,
    /// The UUID.
    pub uuid: [u8; 16],
    /// `s_feature_incompat`.
    pub incompat: u32,
    /// `s_feature_ro_compat`.
    pub ro_compat: u32,
    /// `s_feature_compat`.
    pub compat: u32,
    /// `s_uuid_hash`, with which the hashes of attributes begin.
    pub uuid_hash: u32,
    /// What the hashes of names begin with: `s_dx_seed`, and `s_uuid_hash`.
    pub dx_seed: [u32; 4],
    /// The cluster stack.
    pub stack: Stack,
    /// A kernel found errors.
    pub has_errors: bool,
    /// The checksum was wrong in one bit.
    pub corrected: bool,
}

/// Returns the size of blocks of the filesystem whose first bytes these are. `None`: there is none.
pub fn find(head: &[u8]) -> Option<u32> {
    (9..=12).map(|bits| 1u32 << bits).find(|size| {
        let block = head.get(2 * *size as usize..3 * *size as usize);
        block.is_some_and(is_copy)
    })
}

/// Whether a block has a superblock of a filesystem with blocks of its size.
pub fn is_copy(block: &[u8]) -> bool {
    block.starts_with(SIGNATURE) && 1usize.checked_shl(u32_at(block, SUPER_AT + 0x38)) == Some(block.len())
}

impl Superblock {
    /// Decodes the block of the superblock. `place` names the image in errors.
    pub fn parse(block: &[u8], device_bytes: u64, place: &str) -> Result<Self> {
        let corrupt = |what: String| Error::corrupt(what, format!("{place}, superblock"));
        let sup = &block[SUPER_AT..];
        check_features(u32_at(sup, 0x20), u16_at(sup, 0x42), place)?;
        let corrected = match (u32_at(sup, 0x20) & incompat::META_ECC != 0).then(|| verify(block)) {
            Some(Verdict::Bad) => return Err(corrupt("bad checksum; run fsck.ocfs2".into())),
            Some(Verdict::Corrected(bytes)) => Some(bytes),
            _ => None,
        };
        let block = corrected.as_deref().unwrap_or(block);
        let sup = &block[SUPER_AT..];
        let revision = (u16_at(sup, 0), u16_at(sup, 2));
        if revision != (0, 90) {
            let (major, minor) = revision;
            return Err(Error::Incompatible(format!(
                "{place}: OCFS2 of revision {major}.{minor} is unknown"
            )));
        }
        let cluster_bits = u32_at(sup, 0x3C);
        let block_size = block.len() as u32;
        if !CLUSTER_BITS.contains(&cluster_bits) {
            return Err(corrupt(format!("s_clustersize_bits is {cluster_bits}, not 12 to 20")));
        }
        let sb = Self {
            block_size,
            blocks_per_cluster: (1 << cluster_bits) / block_size,
            clusters: u32_at(block, 0x14),
            generation: u32_at(block, 0x60),
            root: u64_at(sup, 0x28),
            system_dir: u64_at(sup, 0x30),
            first_cluster_group: u64_at(sup, 0x48),
            max_slots: u16_at(sup, 0x40),
            label: text(&sup[0x50..0x90]).to_vec(),
            uuid: sup[0x90..0xA0].try_into().unwrap_or_default(),
            compat: u32_at(sup, 0x1C),
            incompat: u32_at(sup, 0x20),
            ro_compat: u32_at(sup, 0x24),
            uuid_hash: u32_at(sup, 0x44),
            dx_seed: [0xBC, 0xC0, 0xC4, 0x44].map(|at| u32_at(sup, at)),
            stack: stack(sup),
            has_errors: u16_at(sup, 8) & ERROR_FS != 0,
            corrected: corrected.is_some(),
        };
        if u64_at(block, 0x50) != SUPERBLOCK {
            return Err(corrupt(format!("i_blkno is {}, not 2", u64_at(block, 0x50))));
        }
        sb.check(device_bytes).map_err(corrupt)?;
        Ok(sb)
    }

    fn check(&self, device_bytes: u64) -> std::result::Result<(), String> {
        if !(1..=SLOTS_MAX).contains(&self.max_slots) {
            return Err(format!("s_max_slots is {}, not 1 to {SLOTS_MAX}", self.max_slots));
        }
        if self.bytes() > device_bytes {
            let bytes = self.bytes();
            return Err(format!(
                "the filesystem has {bytes} bytes, the device {device_bytes}: it is cut off"
            ));
        }
        for (name, block) in [
            ("s_root_blkno", self.root),
            ("s_system_dir_blkno", self.system_dir),
            ("s_first_cluster_group", self.first_cluster_group),
        ] {
            if block <= SUPERBLOCK || block >= self.blocks() {
                return Err(format!("{name} is {block}, outside the filesystem"));
            }
        }
        Ok(())
    }

    /// Bytes of the filesystem.
    pub fn bytes(&self) -> u64 {
        self.blocks() * u64::from(self.block_size)
    }

    /// Blocks of the filesystem.
    pub fn blocks(&self) -> u64 {
        u64::from(self.clusters) * u64::from(self.blocks_per_cluster)
    }

    /// Bytes of a cluster.
    pub fn cluster_size(&self) -> u32 {
        self.block_size * self.blocks_per_cluster
    }

    /// The most bytes of a file.
    pub fn file_size_max(&self) -> u64 {
        u64::from(u32::MAX) * u64::from(self.cluster_size())
    }

    /// The cluster of a block.
    pub fn cluster_of(&self, block: u64) -> u64 {
        block / u64::from(self.blocks_per_cluster)
    }

    /// Whether a feature is in use.
    pub fn has(&self, bit: u32) -> bool {
        self.incompat & bit != 0
    }

    /// Whether extents can be unwritten.
    pub fn has_unwritten(&self) -> bool {
        self.ro_compat & UNWRITTEN != 0
    }

    /// Returns why a filesystem is only read, if its features are the reason.
    pub fn only_read(&self) -> Option<String> {
        if let Some(feature) = self.unknown_ro_compat() {
            return Some(format!("this driver does not know the {feature}"));
        }
        if !self.has(incompat::LOCAL_MOUNT) {
            return Some("this driver does not write filesystems of a cluster".into());
        }
        if self.block_size < 1024 {
            return Some("this driver writes no blocks of 512 bytes: its journal has larger ones".into());
        }
        if self.ro_compat & (USRQUOTA | GRPQUOTA) != 0 {
            return Some("this driver does not count for quotas (usrquota, grpquota)".into());
        }
        if !self.has(incompat::SPARSE) {
            return Some("this driver writes only with the feature sparse".into());
        }
        if self.has_errors {
            return Some("errors are recorded: run fsck.ocfs2".into());
        }
        self.corrected.then(|| "the superblock has a wrong bit: run fsck.ocfs2".into())
    }

    /// The features that other drivers must know to read, and to write, by name.
    pub fn feature_names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> =
            incompat::NAMES.iter().filter(|(bit, ..)| self.has(*bit)).map(|(_, name, _)| *name).collect();
        names.extend(RO_COMPAT.iter().filter(|(bit, _)| self.ro_compat & bit != 0).map(|(_, name)| name));
        names
    }

    /// Features that a driver must know to write, and that are unknown here.
    pub fn unknown_ro_compat(&self) -> Option<String> {
        let unknown = RO_COMPAT.iter().fold(self.ro_compat, |left, (bit, _)| left & !bit);
        (unknown != 0).then(|| format!("feature {unknown:#x} (read-only compatible)"))
    }

    /// The blocks of the copies of the superblock.
    pub fn backups(&self) -> impl Iterator<Item = u64> + '_ {
        let count = if self.compat & COMPAT_BACKUP_SB != 0 { 6 } else { 0 };
        let blocks = (0..count).map(|nth| (BACKUP_START << (2 * nth)) / u64::from(self.block_size));
        blocks.filter(|block| *block < self.blocks())
    }
}

/// The bytes at which copies of a superblock may be.
pub fn backup_places() -> impl Iterator<Item = u64> {
    (0..6).map(|nth| BACKUP_START << (2 * nth))
}

fn verify(block: &[u8]) -> Verdict {
    blockcheck::verify(block, INODE_CHECK_AT)
}

/// Refuses what cannot be read, by name.
fn check_features(bits: u32, tunefs: u16, place: &str) -> Result<()> {
    let refused = |name: &str| {
        let what = match name {
            "heartbeat-device" => "the device has heartbeats of a cluster, and no files".to_owned(),
            "resize-in-progress" => {
                "it is being resized, or that was interrupted (resize-in-progress); run fsck.ocfs2".to_owned()
            }
            "tunefs-in-progress" => format!(
                "tunefs.ocfs2 was interrupted (tunefs-in-progress, s_tunefs_flag {tunefs:#x}); run fsck.ocfs2"
            ),
            name => format!("the feature {name} is not supported"),
        };
        Err(Error::Incompatible(format!("{place}: {what}")))
    };
    let known = incompat::NAMES.iter().fold(0, |all, (bit, ..)| all | bit);
    if let Some((_, name, _)) = incompat::NAMES.iter().find(|(bit, _, read)| bits & bit != 0 && !read) {
        return refused(name);
    }
    if bits & !known != 0 {
        return refused(&format!("{:#x} (incompatible)", bits & !known));
    }
    Ok(())
}

/// Returns the cluster stack of a `struct ocfs2_super_block`.
fn stack(sup: &[u8]) -> Stack {
    let bits = u32_at(sup, 0x20);
    if bits & incompat::LOCAL_MOUNT != 0 {
        return Stack::Local;
    }
    if bits & (incompat::USERSPACE_STACK | incompat::CLUSTERINFO) == 0 {
        return Stack::O2cb;
    }
    let name = String::from_utf8_lossy(text(&sup[0xA0..0xA4])).into_owned();
    let is_global = bits & incompat::CLUSTERINFO != 0 && u8_at(sup, 0xA4) & GLOBAL_HEARTBEAT != 0;
    match (&*name, is_global) {
        ("o2cb" | "", false) => Stack::O2cb,
        (_, true) => Stack::Elsewhere(format!("{name} with a global heartbeat")),
        _ => Stack::Elsewhere(name),
    }
}
