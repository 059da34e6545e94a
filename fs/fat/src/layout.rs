//! On-disk structures: the boot sector, directory entries, the FSInfo sector.
//!
//! Sources:
//!
//! - Microsoft, "FAT: General Overview of On-Disk Format" (fatgen103, 2000), whose field names are used here;
//! - ECMA-107;
//! - dosfstools' manual pages and volumes that Linux writes: the state byte, which fatgen103 calls "reserved
//!   for Windows NT", and what mkfs.fat makes.

use crate::cluster::Cluster;
use ivers_block::{BlockNo, ByteOffset};
use ivers_vfs::{Error, Result, Timestamp};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The size of a directory entry.
pub(crate) const SLOT_BYTES: u64 = 32;
/// `DIR_Name[0]` of a free entry.
pub(crate) const FREE: u8 = 0xE5;
/// `DIR_Name[0]` after the last entry.
pub(crate) const END: u8 = 0;
/// `DIR_Name[0]` of a name that starts with 0xE5.
pub(crate) const KANJI: u8 = 0x05;
/// `BS_Reserved1`, bit 0: not unmounted cleanly.
pub(crate) const STATE_DIRTY: u8 = 1;
/// The most slots of a directory (2 MiB, the limit of Linux and Windows).
pub(crate) const MAX_SLOTS: u32 = 65536;

/// Bits of `DIR_Attr`.
pub(crate) mod attr {
    pub const READ_ONLY: u8 = 0x01;
    pub const VOLUME_ID: u8 = 0x08;
    pub const DIRECTORY: u8 = 0x10;
    pub const ARCHIVE: u8 = 0x20;
    pub const LONG_NAME: u8 = 0x0F;
    pub const LONG_NAME_MASK: u8 = 0x3F;
}

/// The first part of the boot sector, the same in FAT12, FAT16 and FAT32.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawBoot {
    pub bs_jmp_boot: [u8; 3],
    pub bs_oem_name: [u8; 8],
    pub bpb_byts_per_sec: U16,
    pub bpb_sec_per_clus: u8,
    pub bpb_rsvd_sec_cnt: U16,
    pub bpb_num_fats: u8,
    pub bpb_root_ent_cnt: U16,
    pub bpb_tot_sec16: U16,
    pub bpb_media: u8,
    pub bpb_fat_sz16: U16,
    pub bpb_sec_per_trk: U16,
    pub bpb_num_heads: U16,
    pub bpb_hidd_sec: U32,
    pub bpb_tot_sec32: U32,
}

/// The part of the boot sector that follows [`RawBoot`] in FAT32.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct Raw32 {
    pub bpb_fat_sz32: U32,
    pub bpb_ext_flags: U16,
    pub bpb_fs_ver: U16,
    pub bpb_root_clus: U32,
    pub bpb_fs_info: U16,
    pub bpb_bk_boot_sec: U16,
    pub bpb_reserved: [u8; 12],
}

/// The last part of the boot sector. It follows [`Raw32`] in FAT32, and [`RawBoot`] in FAT12 and FAT16.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawTail {
    pub bs_drv_num: u8,
    pub bs_reserved1: u8,
    pub bs_boot_sig: u8,
    pub bs_vol_id: U32,
    pub bs_vol_lab: [u8; 11],
    pub bs_fil_sys_type: [u8; 8],
}

/// A directory entry with a short name.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct RawEntry {
    pub dir_name: [u8; 11],
    pub dir_attr: u8,
    pub dir_nt_res: u8,
    pub dir_crt_time_tenth: u8,
    pub dir_crt_time: U16,
    pub dir_crt_date: U16,
    pub dir_lst_acc_date: U16,
    pub dir_fst_clus_hi: U16,
    pub dir_wrt_time: U16,
    pub dir_wrt_date: U16,
    pub dir_fst_clus_lo: U16,
    pub dir_file_size: U32,
}

/// A directory entry with a part of a long name.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawLong {
    pub ldir_ord: u8,
    pub ldir_name1: [U16; 5],
    pub ldir_attr: u8,
    pub ldir_type: u8,
    pub ldir_chksum: u8,
    pub ldir_name2: [U16; 6],
    pub ldir_fst_clus_lo: U16,
    pub ldir_name3: [U16; 2],
}

/// The first 512 bytes of the FSInfo sector. The rest is unused.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(crate) struct RawFsInfo {
    pub fsi_lead_sig: U32,
    pub fsi_reserved1: [u8; 480],
    pub fsi_struc_sig: U32,
    pub fsi_free_count: U32,
    pub fsi_nxt_free: U32,
    pub fsi_reserved2: [u8; 12],
    pub fsi_trail_sig: U32,
}

const _: () = {
    assert!(size_of::<RawBoot>() == 36);
    assert!(size_of::<Raw32>() == 28);
    assert!(size_of::<RawTail>() == 26);
    assert!(size_of::<RawEntry>() == SLOT_BYTES as usize);
    assert!(size_of::<RawLong>() == SLOT_BYTES as usize);
    assert!(size_of::<RawFsInfo>() == 512);
    assert!(std::mem::offset_of!(RawFsInfo, fsi_free_count) == 488);
    assert!(std::mem::offset_of!(RawEntry, dir_fst_clus_hi) == 20);
    assert!(std::mem::offset_of!(RawLong, ldir_chksum) == 13);
};

/// `FSI_LeadSig`, `FSI_StrucSig` and `FSI_TrailSig`.
const FS_INFO_MARKS: [u32; 3] = [0x4161_5252, 0x6141_7272, 0xAA55_0000];

impl RawFsInfo {
    /// Makes a sector with these counts.
    pub fn new(free_count: u32, next_free: u32) -> Self {
        let [lead, structure, trail] = FS_INFO_MARKS.map(U32::new);
        Self {
            fsi_lead_sig: lead,
            fsi_reserved1: [0; 480],
            fsi_struc_sig: structure,
            fsi_free_count: free_count.into(),
            fsi_nxt_free: next_free.into(),
            fsi_reserved2: [0; 12],
            fsi_trail_sig: trail,
        }
    }

    /// Parses a sector. Returns `None` if a signature is wrong.
    pub fn parse(sector: &[u8]) -> Option<Self> {
        let (info, _) = Self::read_from_prefix(sector).ok()?;
        let marks = [info.fsi_lead_sig, info.fsi_struc_sig, info.fsi_trail_sig].map(U32::get);
        (marks == FS_INFO_MARKS).then_some(info)
    }
}

impl RawEntry {
    /// Makes the entry of a volume label in the root directory.
    pub fn label(label: [u8; 11], time: Timestamp, offset_s: i64) -> Self {
        let (date, clock, _) = crate::time::encode(time, offset_s);
        Self {
            dir_name: label,
            dir_attr: attr::VOLUME_ID,
            dir_wrt_time: clock.into(),
            dir_wrt_date: date.into(),
            ..Self::new_zeroed()
        }
    }

    /// Returns whether this is the entry of the volume label.
    pub fn is_label(&self) -> bool {
        self.dir_attr & attr::LONG_NAME_MASK & !attr::ARCHIVE == attr::VOLUME_ID
            && !matches!(self.dir_name[0], FREE | END)
    }

    /// Returns the first cluster, or `NONE` for an empty file. `bits` is [`Geometry::bits`].
    pub fn first_cluster(&self, bits: u32) -> Cluster {
        // In FAT12 and FAT16, OS/2 uses the upper half for other data.
        let high = if bits == 32 { u32::from(self.dir_fst_clus_hi.get()) << 16 } else { 0 };
        Cluster(high | u32::from(self.dir_fst_clus_lo.get()))
    }

    pub fn set_first_cluster(&mut self, cluster: Cluster, bits: u32) {
        if bits == 32 {
            self.dir_fst_clus_hi.set((cluster.0 >> 16) as u16);
        }
        self.dir_fst_clus_lo.set(cluster.0 as u16);
    }

    pub fn is_directory(&self) -> bool {
        self.dir_attr & attr::DIRECTORY != 0
    }

    /// Whether this is the entry of a file or directory: not free, and neither a label nor a part of a long
    /// name.
    pub fn is_in_use(&self) -> bool {
        !matches!(self.dir_name[0], FREE | END) && self.dir_attr & attr::VOLUME_ID == 0
    }
}

/// The checked layout of a volume. All regions are inside the device, no divisor is zero, and no product
/// of sizes overflows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// The width of a FAT entry: 12, 16 or 32.
    pub bits: u32,
    /// 512, 1024, 2048 or 4096.
    pub sector_bytes: u32,
    /// A power of two.
    pub cluster_bytes: u32,
    /// The number of clusters. Cluster numbers are `2..clusters + 2`.
    pub clusters: u32,
    /// The first sector of the FAT that is read.
    pub fat_start: BlockNo,
    /// The size of one FAT in sectors.
    pub fat_sectors: u64,
    /// The number of further FATs, which follow that one and are equal to it.
    pub copies: u64,
    /// The start of the root directory of FAT12 and FAT16.
    pub root_offset: ByteOffset,
    /// The slots of the root directory of FAT12 and FAT16.
    pub root_entries: u32,
    /// The first cluster of the root directory of FAT32.
    pub root_cluster: Cluster,
    /// The start of cluster 2.
    pub data_offset: ByteOffset,
    /// The FSInfo sector, if the volume has one.
    pub fs_info: Option<BlockNo>,
    /// The backup of the boot sector, if the volume has one.
    pub backup_boot: Option<BlockNo>,
    /// The first byte of the label in the boot sector, if it has one.
    pub label_byte: Option<usize>,
    /// The byte of the boot sector with [`STATE_DIRTY`].
    pub state_byte: usize,
    /// Whether that bit was set.
    pub dirty: bool,
    /// The volume's serial number.
    pub serial: u32,
    /// The label in the boot sector.
    pub label: [u8; 11],
}

/// Returns whether the first bytes of a device look like a FAT boot sector, which may still be damaged.
pub fn probe(head: &[u8]) -> bool {
    let Some(boot) = head.get(..512) else { return false };
    let jumps = (boot[0] == 0xEB && boot[2] == 0x90) || boot[0] == 0xE9;
    let sector = u16::from_le_bytes([boot[11], boot[12]]);
    jumps
        && boot[510..] == [0x55, 0xAA]
        && matches!(sector, 512 | 1024 | 2048 | 4096)
        && boot[13].is_power_of_two()
        && boot[14..16] != [0, 0]
        && boot[16] != 0
        && (boot[21] == 0xF0 || boot[21] >= 0xF8)
}

impl Geometry {
    /// Returns the name of the type.
    pub fn fs_type(&self) -> &'static str {
        match self.bits {
            12 => "fat12",
            16 => "fat16",
            _ => "fat32",
        }
    }

    /// Parses the boot sector of a device with `device_bytes` bytes.
    pub fn parse(head: &[u8], device_bytes: u64) -> Result<Self> {
        if !probe(head) {
            return Err(Error::Incompatible("holds no FAT filesystem".into()));
        }
        let corrupt = |what: String| Error::corrupt(what, "boot sector");
        let truncated = |_| corrupt("the boot sector is truncated".into());
        let (boot, rest) = RawBoot::read_from_prefix(head).map_err(|e| truncated(e.to_string()))?;
        let fat_size16 = boot.bpb_fat_sz16.get();
        let is_32 = fat_size16 == 0;
        let (raw32, after_32) = Raw32::read_from_prefix(rest).map_err(|e| truncated(e.to_string()))?;
        let (tail, _) = RawTail::read_from_prefix(if is_32 { after_32 } else { rest })
            .map_err(|e| truncated(e.to_string()))?;
        let sector_bytes = u32::from(boot.bpb_byts_per_sec.get());
        let sector64 = u64::from(sector_bytes);
        let fat_sectors = if is_32 { u64::from(raw32.bpb_fat_sz32.get()) } else { u64::from(fat_size16) };
        if fat_sectors == 0 {
            return Err(corrupt("the FAT has no sectors".into()));
        }
        let sectors = match boot.bpb_tot_sec16.get() {
            0 => u64::from(boot.bpb_tot_sec32.get()),
            sectors => u64::from(sectors),
        };
        if sectors * sector64 > device_bytes {
            return Err(corrupt(format!(
                "truncated: {device_bytes} bytes of a volume of {sectors} sectors of {sector_bytes} bytes"
            )));
        }
        let fats = u64::from(boot.bpb_num_fats);
        let first_fat = u64::from(boot.bpb_rsvd_sec_cnt.get());
        let root_entries = if is_32 { 0 } else { u32::from(boot.bpb_root_ent_cnt.get()) };
        if !is_32 && (root_entries == 0 || !(u64::from(root_entries) * SLOT_BYTES).is_multiple_of(sector64)) {
            return Err(corrupt(format!(
                "the root directory of {root_entries} entries does not fill whole sectors"
            )));
        }
        let root_sector = first_fat + fats * fat_sectors;
        let data_sector = root_sector + u64::from(root_entries) * SLOT_BYTES / sector64;
        let per_cluster = u64::from(boot.bpb_sec_per_clus);
        let cluster_bytes = sector_bytes * u32::from(boot.bpb_sec_per_clus);
        let counted = sectors.saturating_sub(data_sector) / per_cluster;
        let bits = match counted {
            _ if is_32 => 32,
            0..=4084 => 12,
            _ => 16,
        };
        // The FAT limits the number of clusters, and numbers from `max` on have special meanings.
        let entries = (fat_sectors * sector64 * 8 / u64::from(bits)).saturating_sub(2);
        let max = match bits {
            12 => 0xFF4,
            16 => 0xFFF4,
            _ => 0x0FFF_FFF5,
        };
        let clusters = counted.min(entries).min(max) as u32;
        if clusters == 0 {
            return Err(corrupt("the volume has no clusters".into()));
        }
        let mirrored = !is_32 || raw32.bpb_ext_flags.get() & 0x80 == 0;
        let active = if mirrored { 0 } else { u64::from(raw32.bpb_ext_flags.get() & 0xF) };
        if active >= fats {
            return Err(corrupt(format!("FAT {active} is active, and the volume has {fats}")));
        }
        if is_32 && raw32.bpb_fs_ver.get() != 0 {
            return Err(Error::Incompatible(format!("FAT32 version {:#x}", raw32.bpb_fs_ver.get())));
        }
        let root_cluster = if is_32 { Cluster(raw32.bpb_root_clus.get()) } else { Cluster::NONE };
        if is_32 && !(Cluster::FIRST..Cluster::FIRST + clusters).contains(&root_cluster) {
            return Err(corrupt(format!(
                "first cluster {root_cluster} of the root directory is outside the volume"
            )));
        }
        let fs_info = u64::from(raw32.bpb_fs_info.get());
        let backup = u64::from(raw32.bpb_bk_boot_sec.get());
        let state_byte = if is_32 { 65 } else { 37 };
        let has_serial = matches!(tail.bs_boot_sig, 0x28 | 0x29);
        Ok(Self {
            bits,
            sector_bytes,
            cluster_bytes,
            clusters,
            fat_start: BlockNo(first_fat + active * fat_sectors),
            fat_sectors,
            copies: if mirrored { fats - 1 } else { 0 },
            root_offset: BlockNo(root_sector).offset(sector_bytes),
            root_entries,
            root_cluster,
            data_offset: BlockNo(data_sector).offset(sector_bytes),
            fs_info: (is_32 && fs_info != 0 && fs_info < first_fat).then_some(BlockNo(fs_info)),
            backup_boot: (is_32 && backup != 0 && backup < first_fat).then_some(BlockNo(backup)),
            label_byte: (tail.bs_boot_sig == 0x29).then_some(state_byte + 6),
            state_byte,
            dirty: tail.bs_reserved1 & STATE_DIRTY != 0,
            serial: if has_serial { tail.bs_vol_id.get() } else { 0 },
            label: if tail.bs_boot_sig == 0x29 { tail.bs_vol_lab } else { [b' '; 11] },
        })
    }

    /// Returns the start of a cluster whose number is valid.
    pub fn cluster_offset(&self, cluster: Cluster) -> ByteOffset {
        self.data_offset + u64::from(cluster - Cluster::FIRST) * u64::from(self.cluster_bytes)
    }

    /// Returns the first number after the cluster numbers.
    pub fn end_cluster(&self) -> Cluster {
        Cluster::FIRST + self.clusters
    }

    /// Returns whether the volume has a cluster of this number.
    pub fn is_cluster(&self, cluster: Cluster) -> bool {
        (Cluster::FIRST..self.end_cluster()).contains(&cluster)
    }

    /// Returns the number of clusters that hold `bytes` bytes.
    pub fn clusters_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.cluster_bytes))
    }
}
