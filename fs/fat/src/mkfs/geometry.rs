//! The sizes of a new volume.

use super::options::{FatType, MkfsOptions, MkfsReport};
use crate::layout::SLOT_BYTES;
use ivers_vfs::{Error, Result};

pub(super) const SECTOR_BYTES: u64 = 512;
/// Copies of the FAT.
pub(super) const FATS: u64 = 2;
/// The FSInfo sector of FAT32.
pub(super) const FS_INFO_SECTOR: u64 = 1;
/// The backup of the boot sector of FAT32; those of FSInfo and boot code follow it.
pub(super) const BACKUP_BOOT_SECTOR: u64 = 6;
/// `BPB_Media` of a disk that is not a floppy.
const FIXED_DISK: u8 = 0xF8;
/// The most clusters of FAT12 and FAT16 (fatgen103, "FAT Type Determination").
const FAT12_MAX_CLUSTERS: u64 = 4_084;
const FAT16_MAX_CLUSTERS: u64 = 65_524;
/// Cluster numbers of FAT32 have 28 bits, and the last few have special meanings.
const FAT32_MAX_CLUSTERS: u64 = 0x0FFF_FFF5;
/// From this size on, the volume is FAT32 unless another type is asked for.
const FAT32_FROM_SECTORS: u64 = (512 << 20) / SECTOR_BYTES;
/// Above this size, tables and clusters start at multiples of the cluster size.
const UNALIGNED_MAX_SECTORS: u64 = (4 << 20) / SECTOR_BYTES;
/// Largest cluster that all systems read, in sectors.
const MAX_CLUSTER_SECTORS: u8 = 64;
/// Slots of the root directory of FAT12 and FAT16.
const ROOT_ENTRIES: u16 = 512;

/// The parameters of the floppy formats: sectors, media byte, sectors per track, heads, slots of the root
/// directory, sectors per cluster.
const FLOPPIES: [(u64, u8, u16, u16, u16, u8); 8] = [
    (320, 0xFE, 8, 1, 64, 1),
    (360, 0xFC, 9, 1, 64, 1),
    (640, 0xFF, 8, 2, 112, 2),
    (720, 0xFD, 9, 2, 112, 2),
    (1440, 0xF9, 9, 2, 112, 2),
    (2400, 0xF9, 15, 2, 224, 1),
    (2880, 0xF0, 18, 2, 224, 1),
    (5760, 0xF0, 36, 2, 224, 2),
];

/// The planned sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub fat_type: FatType,
    pub sectors: u32,
    pub cluster_sectors: u8,
    pub clusters: u32,
    pub reserved_sectors: u16,
    pub fat_sectors: u32,
    pub root_entries: u16,
    pub media: u8,
    pub sectors_per_track: u16,
    pub heads: u16,
}

fn refuse(why: String) -> Error {
    Error::Incompatible(why)
}

impl Plan {
    pub fn new(size_bytes: u64, options: &MkfsOptions) -> Result<Self> {
        let sectors = u32::try_from(size_bytes / SECTOR_BYTES)
            .map_err(|_| refuse(format!("{size_bytes} bytes are too many: FAT has 32-bit sector numbers")))?;
        let wanted = match options.cluster_bytes {
            None => None,
            Some(bytes) if bytes.is_power_of_two() && (512..=65_536).contains(&bytes) => {
                Some((u64::from(bytes) / SECTOR_BYTES) as u8)
            }
            Some(bytes) => {
                return Err(refuse(format!("cluster size {bytes} is not a power of two from 512 to 65536")));
            }
        };
        let total = u64::from(sectors);
        match options.fat_type {
            Some(fat_type) => Self::of_type(sectors, fat_type, wanted),
            None if total >= FAT32_FROM_SECTORS => Self::of_type(sectors, FatType::Fat32, wanted),
            None => Self::of_type(sectors, FatType::Fat12, wanted.or(Some(starting_cluster(total))))
                .or_else(|_| Self::of_type(sectors, FatType::Fat16, wanted))
                .or_else(|_| Self::of_type(sectors, FatType::Fat12, wanted)),
        }
    }

    /// Plans a volume of a type. `wanted`: the sectors of a cluster, else the smallest that are usual.
    fn of_type(sectors: u32, fat_type: FatType, wanted: Option<u8>) -> Result<Self> {
        let total = u64::from(sectors);
        let mut cluster_sectors = wanted.unwrap_or(match fat_type {
            FatType::Fat32 => fat32_cluster(total),
            FatType::Fat12 | FatType::Fat16 => starting_cluster(total),
        });
        let (least, most) = match fat_type {
            FatType::Fat12 => (1, FAT12_MAX_CLUSTERS),
            FatType::Fat16 => (FAT12_MAX_CLUSTERS + 1, FAT16_MAX_CLUSTERS),
            FatType::Fat32 => (FAT16_MAX_CLUSTERS + 1, FAT32_MAX_CLUSTERS),
        };
        loop {
            let plan = Self::with_clusters(sectors, fat_type, cluster_sectors);
            let clusters = plan.as_ref().map_or(0, |plan| u64::from(plan.clusters));
            if clusters > most && wanted.is_none() && cluster_sectors < MAX_CLUSTER_SECTORS {
                cluster_sectors *= 2;
                continue;
            }
            return match plan {
                Some(plan) if (least..=most).contains(&clusters) => Ok(plan),
                _ => Err(refuse(format!(
                    "{sectors} sectors make {clusters} clusters of {} bytes, and {} has {least} to {most}: \
                     choose another size, type or cluster size",
                    u64::from(cluster_sectors) * SECTOR_BYTES,
                    fat_type.name().to_uppercase(),
                ))),
            };
        }
    }

    /// Plans a volume with clusters of this size; `None` if it has no space for a cluster.
    fn with_clusters(sectors: u32, fat_type: FatType, cluster_sectors: u8) -> Option<Self> {
        let total = u64::from(sectors);
        let per_cluster = u64::from(cluster_sectors);
        let align = if total > UNALIGNED_MAX_SECTORS { per_cluster } else { 1 };
        let floppy = FLOPPIES.iter().find(|floppy| floppy.0 == total && fat_type == FatType::Fat12);
        let (media, sectors_per_track, heads, root_entries) = match floppy {
            Some(&(_, media, track, heads, entries, _)) => (media, track, heads, entries),
            None => {
                let (track, heads) = disk_geometry(total);
                (FIXED_DISK, track, heads, ROOT_ENTRIES)
            }
        };
        let (reserved, root_sectors) = match fat_type {
            FatType::Fat32 => (32_u64.next_multiple_of(align), 0),
            FatType::Fat12 | FatType::Fat16 => {
                let sectors = (u64::from(root_entries) * SLOT_BYTES).div_ceil(SECTOR_BYTES);
                (align, sectors.next_multiple_of(align))
            }
        };
        let clusters_with =
            |fat: u64| total.saturating_sub(reserved + FATS * fat + root_sectors) / per_cluster;
        let fat_for = |clusters: u64| {
            ((clusters + 2) * fat_type.bits()).div_ceil(8 * SECTOR_BYTES).next_multiple_of(align)
        };
        // Without tables there is space for most clusters: their table is too large. The clusters beside it
        // are too few, so their table is too small. Grow that one until it fits.
        let mut fat = fat_for(clusters_with(fat_for(clusters_with(0))));
        while fat_for(clusters_with(fat)) > fat {
            fat += align;
        }
        let clusters = clusters_with(fat);
        if clusters == 0 || (fat_type != FatType::Fat32 && fat > u64::from(u16::MAX)) {
            return None;
        }
        Some(Self {
            fat_type,
            sectors,
            cluster_sectors,
            clusters: clusters as u32,
            reserved_sectors: reserved as u16,
            fat_sectors: fat as u32,
            root_entries: (root_sectors * SECTOR_BYTES / SLOT_BYTES) as u16,
            media,
            sectors_per_track,
            heads,
        })
    }

    pub fn is_32(&self) -> bool {
        self.fat_type == FatType::Fat32
    }

    pub fn is_floppy(&self) -> bool {
        self.media != FIXED_DISK
    }

    pub fn fat_sector(&self, nth: u64) -> u64 {
        u64::from(self.reserved_sectors) + nth * u64::from(self.fat_sectors)
    }

    /// The first sector of the root directory: in FAT32 that of cluster 2.
    pub fn root_sector(&self) -> u64 {
        self.fat_sector(FATS)
    }

    pub fn data_sector(&self) -> u64 {
        self.root_sector() + u64::from(self.root_entries) * SLOT_BYTES / SECTOR_BYTES
    }

    pub fn report(&self) -> MkfsReport {
        MkfsReport {
            fat_type: self.fat_type,
            cluster_bytes: u32::from(self.cluster_sectors) * SECTOR_BYTES as u32,
            clusters: self.clusters,
            root_entries: self.root_entries.into(),
        }
    }
}

/// The cluster size at which the search for one of FAT12 or FAT16 starts, in sectors.
fn starting_cluster(sectors: u64) -> u8 {
    FLOPPIES.iter().find(|floppy| floppy.0 == sectors).map_or(4, |floppy| floppy.5)
}

/// The cluster size of a FAT32 volume in sectors (fatgen103, `DskTableFAT32`).
fn fat32_cluster(sectors: u64) -> u8 {
    const MIB: u64 = (1 << 20) / SECTOR_BYTES;
    match sectors {
        s if s <= 260 * MIB => 1,
        s if s <= 8_192 * MIB => 8,
        s if s <= 16_384 * MIB => 16,
        s if s <= 32_768 * MIB => 32,
        _ => 64,
    }
}

/// Sectors per track and heads, which only old BIOSes need: those that the SD specification recommends for
/// cards up to 2 GiB, and the limits of a BIOS above.
fn disk_geometry(sectors: u64) -> (u16, u16) {
    const MIB: u64 = (1 << 20) / SECTOR_BYTES;
    match sectors {
        s if s <= 2 * MIB => (16, 2),
        s if s <= 16 * MIB => (32, 2),
        s if s <= 32 * MIB => (32, 4),
        s if s <= 128 * MIB => (32, 8),
        s if s <= 256 * MIB => (32, 16),
        s if s <= 504 * MIB => (63, 16),
        s if s <= 1_008 * MIB => (63, 32),
        s if s <= 2_016 * MIB => (63, 64),
        s if s <= 4_032 * MIB => (63, 128),
        _ => (63, 255),
    }
}
