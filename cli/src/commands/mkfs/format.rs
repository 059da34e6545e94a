//! Making each format: its options from the arguments, its sizes, its report.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use ivers_block::Device;
use ivers_ext4::mkfs::ExtType;
use ivers_fat::mkfs::FatType;
use ivers_ufs::layout::superblock::Version;
use ivers_vfs::{Error, Timestamp};
use serde_json::json;
use uuid::Uuid;

use super::args::{Args, FsType};
use crate::arguments::{ImageName, parse_size, source_date_epoch};
use crate::output::failure::usage;
use crate::output::format::count;

/// A filesystem that is going to be made.
#[derive(Debug, Clone)]
pub enum NewFilesystem {
    /// ext2, ext3 or ext4.
    Ext(ivers_ext4::mkfs::MkfsOptions),
    /// FAT12, FAT16 or FAT32.
    Fat(ivers_fat::mkfs::MkfsOptions),
    /// An AmigaDOS volume.
    Affs {
        /// The last byte of the DOS word.
        low_byte: u8,
        /// Bytes of a block.
        block_size: u32,
        /// The label.
        label: String,
        /// The time of creation.
        time: Timestamp,
    },
    /// XFS.
    Xfs(ivers_xfs::mkfs::MkfsOptions),
    /// btrfs.
    Btrfs(ivers_btrfs::mkfs::MkfsOptions),
    /// UFS1 or UFS2.
    Ufs(ivers_ufs::mkfs::MkfsOptions),
}

/// What was made.
pub struct Made {
    /// The format, its sizes and its identity, in words.
    pub text: String,
    /// The same for `--json`.
    pub json: serde_json::Value,
}

impl NewFilesystem {
    /// Reads the arguments. An option that the format does not have is a usage error.
    pub fn new(args: &Args) -> Result<Self> {
        let seconds = timestamp(args)?;
        let time = Timestamp { sec: i64::from(seconds), nsec: 0 };
        let ext = |fs_type| ext_options(args, fs_type, seconds).map(Self::Ext);
        let fat = |fat_type| fat_options(args, fat_type, time).map(Self::Fat);
        let affs = |low_byte| {
            refuse_options("an AmigaDOS volume", &unix_only(args))?;
            refuse_options("an AmigaDOS volume", &ext_or_xfs(args))?;
            refuse_options("an AmigaDOS volume", &btrfs_only(args))?;
            refuse_options("an AmigaDOS volume", &ext_only(args))?;
            refuse_options("an AmigaDOS volume", &xfs_only(args))?;
            refuse_options("an AmigaDOS volume", &[("volume-id", args.volume_id.is_some())])?;
            let label = if args.label.is_empty() { "Empty" } else { &args.label };
            let block_size = args.block_size.unwrap_or(512);
            Ok(Self::Affs { low_byte, block_size, label: label.to_owned(), time })
        };
        match args.fs_type {
            FsType::Ext2 => ext(ExtType::Ext2),
            FsType::Ext3 => ext(ExtType::Ext3),
            FsType::Ext4 => ext(ExtType::Ext4),
            FsType::Fat => fat(None),
            FsType::Fat12 => fat(Some(FatType::Fat12)),
            FsType::Fat16 => fat(Some(FatType::Fat16)),
            FsType::Fat32 => fat(Some(FatType::Fat32)),
            FsType::Ofs => affs(0),
            FsType::Affs | FsType::Ffs => affs(3),
            FsType::Xfs => xfs_options(args, seconds).map(Self::Xfs),
            FsType::Btrfs => btrfs_options(args, seconds).map(Self::Btrfs),
            FsType::Ufs1 => ufs_options(args, Version::Ufs1, seconds).map(Self::Ufs),
            FsType::Ufs2 => ufs_options(args, Version::Ufs2, seconds).map(Self::Ufs),
        }
    }

    /// Says that the device reads as zeros, so that nothing needs zeroing.
    pub fn set_zeroed(&mut self) {
        match self {
            Self::Ext(options) => options.zeroed = true,
            Self::Fat(options) => options.zeroed = true,
            Self::Xfs(options) => options.zeroed = true,
            Self::Ufs(options) => options.zeroed = true,
            // They have no large tables of zeros.
            Self::Affs { .. } | Self::Btrfs(_) => {}
        }
    }

    /// Returns the time of creation in seconds since 1970.
    pub fn time(&self) -> i64 {
        match self {
            Self::Ext(options) => options.timestamp.into(),
            Self::Fat(options) => options.time.sec,
            Self::Affs { time, .. } => time.sec,
            Self::Xfs(options) => options.timestamp.into(),
            Self::Btrfs(options) => options.timestamp.into(),
            Self::Ufs(options) => options.timestamp.into(),
        }
    }

    /// Returns user and group of the root directory, if the format has owners.
    pub fn root_owner(&self) -> Option<(u32, u32)> {
        match self {
            Self::Ext(options) => Some(options.root_owner),
            Self::Xfs(options) => Some(options.root_owner),
            Self::Btrfs(options) => Some(options.root_owner),
            Self::Ufs(options) => Some(options.root_owner),
            Self::Fat(_) | Self::Affs { .. } => None,
        }
    }

    /// Asks for this many inodes, and a few more, in a filesystem of this size. Formats that make inodes as
    /// they need them ignore it.
    pub fn set_inodes(&mut self, bytes: u64, inodes: u64) {
        let each = bytes / (inodes + inodes / 64 + 8);
        let each = u32::try_from(each).unwrap_or(u32::MAX).clamp(1024, 4 << 20);
        match self {
            Self::Ext(options) => options.bytes_per_inode = Some(each),
            Self::Ufs(options) => options.bytes_per_inode = Some(each),
            Self::Fat(_) | Self::Affs { .. } | Self::Xfs(_) | Self::Btrfs(_) => {}
        }
    }

    /// Checks the options against the size. An option that does not fit is a usage error.
    pub fn plan(&self, bytes: u64, image_name: &str) -> Result<()> {
        let planned = match self {
            Self::Ext(options) => ivers_ext4::mkfs::plan(bytes, options),
            Self::Fat(options) => ivers_fat::mkfs::plan(bytes, options).map(drop),
            Self::Affs { low_byte, block_size, label, .. } => {
                ivers_affs::mkfs::plan(bytes, *low_byte, *block_size, label)
            }
            Self::Xfs(options) => ivers_xfs::mkfs::plan(bytes, options),
            Self::Btrfs(options) => ivers_btrfs::mkfs::plan(&[bytes], options),
            Self::Ufs(options) => ivers_ufs::mkfs::plan(bytes, options).map(drop),
        };
        planned.map_err(|error| match error {
            Error::Incompatible(why) if self.fits_without_journal(bytes) => {
                usage(format!("{image_name}: {why}; choose a larger size, --no-journal or --type ext2"))
            }
            Error::Incompatible(why) if self.fits_if_small(bytes) => {
                usage(format!("{image_name}: {why}; choose a larger size, or --small for a test"))
            }
            Error::Incompatible(why) => usage(format!("{image_name}: {why}")),
            error => error.into(),
        })
    }

    fn fits_without_journal(&self, bytes: u64) -> bool {
        let Self::Ext(options) = self else { return false };
        let without = ivers_ext4::mkfs::MkfsOptions { journal: false, ..options.clone() };
        options.journal && ivers_ext4::mkfs::plan(bytes, &without).is_ok()
    }

    fn fits_if_small(&self, bytes: u64) -> bool {
        let Self::Xfs(options) = self else { return false };
        let small = ivers_xfs::mkfs::MkfsOptions { small: true, ..options.clone() };
        ivers_xfs::mkfs::plan(bytes, &small).is_ok()
    }

    /// Erases what a checker of the new format could take for its own, away from the start of the device.
    pub fn erase_old(&self, device: &Arc<dyn Device>) -> ivers_vfs::Result<()> {
        match self {
            // xfs_repair searches the device for copies of a lost superblock.
            Self::Xfs(_) => ivers_xfs::mkfs::erase_copies(&**device),
            Self::Btrfs(_) => ivers_btrfs::mkfs::erase_superblocks(std::slice::from_ref(device)),
            Self::Ext(_) | Self::Fat(_) | Self::Affs { .. } | Self::Ufs(_) => Ok(()),
        }
    }

    /// Makes the filesystem.
    pub fn make(&self, device: &Arc<dyn Device>) -> ivers_vfs::Result<Made> {
        match self {
            Self::Ext(options) => {
                let made = ivers_ext4::mkfs::mkfs(device, options)?;
                let (name, uuid) = (options.fs_type.name(), Uuid::from_bytes(options.uuid));
                let journal = match made.journal_blocks {
                    0 => "no journal".to_owned(),
                    blocks => format!("journal of {blocks} blocks"),
                };
                Ok(Made {
                    text: format!(
                        "{name}, {} blocks of {} bytes, {} inodes, {}, {journal}, UUID {uuid}",
                        made.blocks,
                        made.block_size,
                        made.inodes,
                        count(made.groups.into(), "group"),
                    ),
                    json: json!({
                        "fs": name,
                        "uuid": uuid.to_string(),
                        "block_size": made.block_size,
                        "blocks": made.blocks,
                        "inodes": made.inodes,
                        "groups": made.groups,
                        "journal_blocks": made.journal_blocks,
                    }),
                })
            }
            Self::Fat(options) => {
                let made = ivers_fat::mkfs::mkfs(device.as_ref(), options)?;
                let (name, id) = (made.fat_type.name(), options.volume_id);
                let id = format!("{:04X}-{:04X}", id >> 16, id & 0xFFFF);
                Ok(Made {
                    text: format!(
                        "{name}, {} clusters of {} bytes, volume id {id}",
                        made.clusters, made.cluster_bytes
                    ),
                    json: json!({
                        "fs": name,
                        "volume_id": id,
                        "cluster_size": made.cluster_bytes,
                        "clusters": made.clusters,
                        "root_entries": made.root_entries,
                    }),
                })
            }
            Self::Affs { low_byte, block_size, label, time } => {
                ivers_affs::mkfs::format(device.as_ref(), *low_byte, *block_size, label, *time)?;
                let blocks = device.size_bytes() / u64::from(*block_size);
                let name = if low_byte & 1 == 0 { "ofs" } else { "ffs" };
                Ok(Made {
                    text: format!("{name}, {blocks} blocks of {block_size} bytes, label {label}"),
                    json: json!({ "fs": name, "block_size": block_size, "blocks": blocks }),
                })
            }
            Self::Xfs(options) => {
                let made = ivers_xfs::mkfs::mkfs(device.as_ref(), options)?;
                let uuid = Uuid::from_bytes(options.uuid);
                Ok(Made {
                    text: format!(
                        "xfs, {} blocks of {} bytes, {} groups, log of {} blocks, UUID {uuid}",
                        made.blocks, made.block_size, made.groups, made.log_blocks
                    ),
                    json: json!({
                        "fs": "xfs",
                        "uuid": uuid.to_string(),
                        "block_size": made.block_size,
                        "blocks": made.blocks,
                        "groups": made.groups,
                        "log_blocks": made.log_blocks,
                        "sector_size": made.sector_size,
                        "inode_size": made.inode_size,
                        "features": made.features,
                    }),
                })
            }
            Self::Btrfs(options) => {
                let made = ivers_btrfs::mkfs::mkfs(std::slice::from_ref(device), options)?;
                let uuid = Uuid::from_bytes(options.uuid);
                Ok(Made {
                    text: format!(
                        "btrfs, {} bytes, blocks of {} bytes, data {}, metadata {}, {}, UUID {uuid}",
                        made.bytes, made.node_size, made.data, made.metadata, made.checksum
                    ),
                    json: json!({
                        "fs": "btrfs",
                        "uuid": uuid.to_string(),
                        "block_size": made.node_size,
                        "bytes": made.bytes,
                        "devices": made.devices,
                        "data": made.data,
                        "metadata": made.metadata,
                        "checksum": made.checksum,
                    }),
                })
            }
            Self::Ufs(options) => {
                let made = ivers_ufs::mkfs::mkfs(device.as_ref(), options)?;
                let name = if options.version == Version::Ufs1 { "ufs1" } else { "ufs2" };
                let id = format!("{:08x}{:08x}", options.id[0], options.id[1]);
                Ok(Made {
                    text: format!(
                        "{name}, {} fragments of {} bytes, blocks of {} bytes, {} inodes, {}, ID {id}",
                        made.fragments,
                        made.fragment_size,
                        made.block_size,
                        made.inodes,
                        count(made.groups.into(), "group"),
                    ),
                    json: json!({
                        "fs": name,
                        "id": id,
                        "block_size": made.block_size,
                        "fragment_size": made.fragment_size,
                        "fragments": made.fragments,
                        "groups": made.groups,
                        "inodes": made.inodes,
                    }),
                })
            }
        }
    }
}

/// Options of ext, XFS, btrfs and UFS that were given.
fn unix_only(args: &Args) -> [(&'static str, bool); 2] {
    [("uuid", args.uuid.is_some()), ("root-owner", args.root_owner.is_some())]
}

/// Options of ext and XFS that were given.
fn ext_or_xfs(args: &Args) -> [(&'static str, bool); 2] {
    [("features", args.features.is_some()), ("inode-size", args.inode_size.is_some())]
}

/// Options of btrfs alone that were given.
fn btrfs_only(args: &Args) -> [(&'static str, bool); 3] {
    [
        ("data", args.data.is_some()),
        ("metadata", args.metadata.is_some()),
        ("checksum", args.checksum.is_some()),
    ]
}

/// Options of ext alone that were given.
fn ext_only(args: &Args) -> [(&'static str, bool); 4] {
    [
        ("bytes-per-inode", args.bytes_per_inode.is_some()),
        ("reserved-percent", args.reserved_percent.is_some()),
        ("hash-seed", args.hash_seed.is_some()),
        ("no-journal", args.no_journal),
    ]
}

/// Options of XFS alone that were given.
fn xfs_only(args: &Args) -> [(&'static str, bool); 4] {
    [
        ("agcount", args.agcount.is_some()),
        ("log-size", args.log_size.is_some()),
        ("sector-size", args.sector_size.is_some()),
        ("small", args.small),
    ]
}

fn refuse_options(format: &str, given: &[(&str, bool)]) -> Result<()> {
    match given.iter().find(|(_, given)| *given) {
        Some((name, _)) => Err(usage(format!("--{name}: {format} has no such property; remove it"))),
        None => Ok(()),
    }
}

fn ext_options(args: &Args, fs_type: ExtType, timestamp: u32) -> Result<ivers_ext4::mkfs::MkfsOptions> {
    refuse_options("ext", &[("volume-id", args.volume_id.is_some())])?;
    refuse_options("ext", &xfs_only(args))?;
    refuse_options("ext", &btrfs_only(args))?;
    let uuid = uuid_or_random(args)?;
    let list = args.features.as_deref().unwrap_or_default();
    let refuse = |why: String| usage(format!("--features {list}: {why}"));
    let features = ivers_ext4::mkfs::FeatureChanges::parse(list).map_err(refuse)?;
    if features.asks("has_journal") == Some(true) && args.no_journal {
        return Err(refuse("--no-journal says the opposite; remove one".into()));
    }
    Ok(ivers_ext4::mkfs::MkfsOptions {
        fs_type,
        block_size: args.block_size,
        inode_size: args.inode_size.unwrap_or(256),
        bytes_per_inode: args.bytes_per_inode,
        reserved_percent: args.reserved_percent.unwrap_or(5),
        label: args.label.clone().into_bytes(),
        uuid,
        hash_seed: uuid_of(args.hash_seed.as_deref(), "hash-seed")?,
        timestamp,
        root_owner: owner_of(args.root_owner.as_deref())?,
        journal: !args.no_journal,
        features,
        zeroed: false,
    })
}

fn fat_options(
    args: &Args,
    fat_type: Option<FatType>,
    time: Timestamp,
) -> Result<ivers_fat::mkfs::MkfsOptions> {
    if args.uuid.is_some() {
        return Err(usage("--uuid: FAT has none; choose its serial number with --volume-id"));
    }
    refuse_options("FAT", &unix_only(args))?;
    refuse_options("FAT", &ext_or_xfs(args))?;
    refuse_options("FAT", &btrfs_only(args))?;
    refuse_options("FAT", &ext_only(args))?;
    refuse_options("FAT", &xfs_only(args))?;
    let volume_id = match &args.volume_id {
        None => Uuid::new_v4().as_fields().0,
        Some(text) => volume_id_of(text)
            .ok_or_else(|| usage(format!("--volume-id {text}: must be eight hexadecimal digits")))?,
    };
    Ok(ivers_fat::mkfs::MkfsOptions {
        fat_type,
        cluster_bytes: args.block_size,
        label: args.label.clone(),
        volume_id,
        time,
        zeroed: false,
    })
}

fn xfs_options(args: &Args, timestamp: u32) -> Result<ivers_xfs::mkfs::MkfsOptions> {
    refuse_options("XFS", &[("volume-id", args.volume_id.is_some())])?;
    refuse_options("XFS", &ext_only(args))?;
    refuse_options("XFS", &btrfs_only(args))?;
    let list = args.features.as_deref().unwrap_or_default();
    let features =
        ivers_xfs::mkfs::Features::parse(list).map_err(|why| usage(format!("--features {list}: {why}")))?;
    let log_bytes = match &args.log_size {
        None => None,
        Some(text) => Some(
            parse_size(text)
                .ok_or_else(|| usage(format!("--log-size {text}: must be a size, as 128M or 1G")))?,
        ),
    };
    let block_size = args.block_size.unwrap_or(4096);
    Ok(ivers_xfs::mkfs::MkfsOptions {
        block_size,
        sector_size: args.sector_size.or_else(|| device_sector(args, block_size)).unwrap_or(512),
        inode_size: args.inode_size.unwrap_or(512),
        groups: args.agcount,
        log_bytes,
        features,
        label: args.label.clone(),
        uuid: uuid_or_random(args)?,
        timestamp,
        root_owner: owner_of(args.root_owner.as_deref())?,
        small: args.small,
        zeroed: false,
    })
}

fn btrfs_options(args: &Args, timestamp: u32) -> Result<ivers_btrfs::mkfs::MkfsOptions> {
    use ivers_btrfs::layout::checksum::ChecksumKind;
    use ivers_btrfs::mkfs::{Copies, MkfsOptions};
    refuse_options("btrfs", &[("volume-id", args.volume_id.is_some())])?;
    refuse_options("btrfs", &ext_or_xfs(args))?;
    refuse_options("btrfs", &ext_only(args))?;
    refuse_options("btrfs", &xfs_only(args))?;
    let copies = |option: &str, name: &Option<String>| match name {
        None => Ok(None),
        Some(name) => Copies::parse(name).map(Some).ok_or_else(|| {
            let names = Copies::ALL.map(|(name, _)| name).join(", ");
            usage(format!("--{option} {name}: must be one of {names}"))
        }),
    };
    let checksum = match &args.checksum {
        None => ChecksumKind::Crc32c,
        Some(name) => ChecksumKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = ChecksumKind::ALL.map(ChecksumKind::name).join(", ");
            usage(format!("--checksum {name}: must be one of {names}"))
        })?,
    };
    Ok(MkfsOptions {
        node_size: args.block_size.unwrap_or(16 << 10),
        data: copies("data", &args.data)?.unwrap_or(Copies::Single),
        metadata: copies("metadata", &args.metadata)?,
        checksum,
        label: args.label.clone().into_bytes(),
        uuid: uuid_or_random(args)?,
        timestamp,
        root_owner: owner_of(args.root_owner.as_deref())?,
    })
}

fn ufs_options(args: &Args, version: Version, timestamp: u32) -> Result<ivers_ufs::mkfs::MkfsOptions> {
    refuse_options("UFS", &[("volume-id", args.volume_id.is_some())])?;
    refuse_options("UFS", &ext_or_xfs(args))?;
    refuse_options("UFS", &btrfs_only(args))?;
    refuse_options("UFS", &xfs_only(args))?;
    let journal = [("hash-seed", args.hash_seed.is_some()), ("no-journal", args.no_journal)];
    refuse_options("UFS", &journal)?;
    let usual = ivers_ufs::mkfs::MkfsOptions::default();
    let (id, _) = Uuid::from_bytes(uuid_or_random(args)?).as_u64_pair();
    Ok(ivers_ufs::mkfs::MkfsOptions {
        version,
        block_size: args.block_size.unwrap_or(usual.block_size),
        bytes_per_inode: args.bytes_per_inode,
        reserved_percent: args.reserved_percent.unwrap_or(usual.reserved_percent),
        label: args.label.clone().into_bytes(),
        id: [(id >> 32) as u32, id as u32],
        timestamp,
        root_owner: owner_of(args.root_owner.as_deref())?,
        zeroed: false,
    })
}

/// Returns the sector size for a block device: what it writes at once, if a block has that much, or else what
/// it writes at all.
fn device_sector(args: &Args, block_size: u32) -> Option<u32> {
    let meta = fs::metadata(ImageName::parse(&args.image).file).ok()?;
    if !meta.file_type().is_block_device() {
        return None;
    }
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let device = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    // The queue of a partition is that of its disk.
    let queue = [device.join("queue"), device.join("../queue")].into_iter().find(|queue| queue.exists())?;
    let size = |name: &str| fs::read_to_string(queue.join(name)).ok()?.trim().parse::<u32>().ok();
    size("physical_block_size").filter(|size| *size <= block_size).or_else(|| size("logical_block_size"))
}

fn uuid_or_random(args: &Args) -> Result<[u8; 16]> {
    Ok(uuid_of(args.uuid.as_deref(), "uuid")?.unwrap_or_else(|| Uuid::new_v4().into_bytes()))
}

fn uuid_of(text: Option<&str>, what: &str) -> Result<Option<[u8; 16]>> {
    let Some(text) = text else { return Ok(None) };
    let uuid = Uuid::parse_str(text).map_err(|error| usage(format!("--{what} {text}: {error}")))?;
    Ok(Some(uuid.into_bytes()))
}

/// Parses `1234-ABCD` or `1234ABCD`.
fn volume_id_of(text: &str) -> Option<u32> {
    let digits = match text.split_once('-') {
        Some((high, low)) if high.len() == 4 => format!("{high}{low}"),
        Some(_) => return None,
        None => text.to_owned(),
    };
    let valid = digits.len() == 8 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    valid.then(|| u32::from_str_radix(&digits, 16).ok()).flatten()
}

/// Parses `UID:GID`. Without a value: those of this process.
fn owner_of(text: Option<&str>) -> Result<(u32, u32)> {
    match text {
        None => Ok((0, 0)),
        Some("") => {
            use rustix::process::{getegid, geteuid};
            Ok((geteuid().as_raw(), getegid().as_raw()))
        }
        Some(text) => {
            let numbers =
                text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
            numbers.ok_or_else(|| usage(format!("--root-owner {text}: must be two numbers, as 1000:1000")))
        }
    }
}

/// The time of creation: `--timestamp`, else that of the environment (reproducible-builds.org), else now.
fn timestamp(args: &Args) -> Result<u32> {
    if let Some(seconds) = args.timestamp {
        return Ok(seconds);
    }
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let seconds = source_date_epoch()?.map_or_else(now, |seconds| seconds.max(0).unsigned_abs());
    Ok(u32::try_from(seconds).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_ids_parse() {
        assert_eq!(volume_id_of("1234-abCD"), Some(0x1234_ABCD));
        assert_eq!(volume_id_of("00000001"), Some(1));
        for bad in ["", "1", "123-45678", "1234-567", "1234567g", "+1234567"] {
            assert_eq!(volume_id_of(bad), None, "{bad}");
        }
    }
}
