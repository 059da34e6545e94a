//! What lies where: the boot sector, directory entries, the FSInfo sector.
//!
//! Sources: Microsoft, "FAT: General Overview of On-Disk Format" (fatgen103, 2000), in its spelling of fields; ECMA-107; for
//! the state byte, which that leaves "reserved for Windows NT", and for what mkfs.fat makes: dosfstools' manual pages and what Linux writes.

use crate::cluster::Cluster;
use ivers_block::{BlockNo, ByteOffset};
use ivers_vfs::{Error, Result};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a directory entry.
pub(crate) const SLOT: u64 = 32;
/// `DIR_Name[0]` of a free entry.
pub(crate) const FREE: u8 = 0xE5;
/// `DIR_Name[0]` behind the last entry.
pub(crate) const END: u8 = 0;
/// `DIR_Name[0]` that stands for 0xE5.
pub(crate) const KANJI: u8 = 0x05;
/// `BS_Reserved1`, bit 0: not unmounted cleanly.
pub(crate) const STATE_DIRTY: u8 = 1;
/// A directory has no more entries (2 MiB, as Linux and Windows have it).
pub(crate) const MOST_SLOTS: u32 = 65536;

/// `DIR_Attr`.
pub(crate) mod attr {
    pub const READ_ONLY: u8 = 0x01;
    pub const VOLUME_ID: u8 = 0x08;
    pub const DIRECTORY: u8 = 0x10;
    pub const ARCHIVE: u8 = 0x20;
    pub const LONG_NAME: u8 = 0x0F;
    pub const LONG_NAME_MASK: u8 = 0x3F;
}

/// The boot sector up to where FAT12/16 and FAT32 part.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawBoot {
    bs_jmp_boot: [u8; 3],
    bs_oem_name: [u8; 8],
    bpb_byts_per_sec: U16,
    bpb_sec_per_clus: u8,
    bpb_rsvd_sec_cnt: U16,
    bpb_num_fats: u8,
    bpb_root_ent_cnt: U16,
    bpb_tot_sec16: U16,
    bpb_media: u8,
    bpb_fat_sz16: U16,
    bpb_sec_per_trk: U16,
    bpb_num_heads: U16,
    bpb_hidd_sec: U32,
    bpb_tot_sec32: U32,
}

/// What follows it in FAT32.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Raw32 {
    bpb_fat_sz32: U32,
    bpb_ext_flags: U16,
    bpb_fs_ver: U16,
    bpb_root_clus: U32,
    bpb_fs_info: U16,
    bpb_bk_boot_sec: U16,
    bpb_reserved: [u8; 12],
}

/// What follows that, or `RawBoot` itself in FAT12/16.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RawTail {
    bs_drv_num: u8,
    bs_reserved1: u8,
    bs_boot_sig: u8,
    bs_vol_id: U32,
    bs_vol_lab: [u8; 11],
    bs_fil_sys_type: [u8; 8],
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

/// The FSInfo sector, as far as it says anything.
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
    assert!(size_of::<RawEntry>() == SLOT as usize);
    assert!(size_of::<RawLong>() == SLOT as usize);
    assert!(size_of::<RawFsInfo>() == 512);
    assert!(std::mem::offset_of!(RawFsInfo, fsi_free_count) == 488);
    assert!(std::mem::offset_of!(RawEntry, dir_fst_clus_hi) == 20);
    assert!(std::mem::offset_of!(RawLong, ldir_chksum) == 13);
};

impl RawFsInfo {
    /// The sector, if it is one.
    pub fn parse(sector: &[u8]) -> Option<Self> {
        let (info, _) = Self::read_from_prefix(sector).ok()?;
        let signed = info.fsi_lead_sig.get() == 0x4161_5252
            && info.fsi_struc_sig.get() == 0x6141_7272
            && info.fsi_trail_sig.get() == 0xAA55_0000;
        signed.then_some(info)
    }
}

impl RawEntry {
    pub fn first_cluster(&self, bits: u32) -> Cluster {
        // Before FAT32 the upper half belonged to OS/2.
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

    /// A file or a directory: no free entry, part of a long name or label.
    pub fn is_in_use(&self) -> bool {
        !matches!(self.dir_name[0], FREE | END) && self.dir_attr & attr::VOLUME_ID == 0
    }
}

/// Where everything lies, checked: every product below fits, every divisor is nonzero, all of it lies on the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// 12, 16 or 32: how wide an entry of the FAT is.
    pub bits: u32,
    /// Bytes a sector: 512, 1024, 2048 or 4096.
    pub sector: u32,
    /// Bytes a cluster: a power of two.
    pub cluster: u32,
    /// Clusters; their numbers are `2..clusters + 2`.
    pub clusters: u32,
    /// First sector of the FAT that counts.
    pub fat: BlockNo,
    /// Sectors of one FAT.
    pub fat_sectors: u64,
    /// FATs behind that one which are kept alike.
    pub copies: u64,
    /// First byte of the root directory, where it has a place of its own.
    pub root_byte: ByteOffset,
    /// Its entries.
    pub root_entries: u32,
    /// Its first cluster, in FAT32.
    pub root_cluster: Cluster,
    /// First byte of cluster 2.
    pub data_byte: ByteOffset,
    /// Sector of the FSInfo, if there is one.
    pub fs_info: Option<BlockNo>,
    /// Byte of the boot sector that says whether it was unmounted.
    pub state_byte: usize,
    /// What that said.
    pub dirty: bool,
    /// The volume's serial number.
    pub serial: u32,
    /// The label of the boot sector.
    pub label: [u8; 11],
}

/// Whether the first bytes of a device are a FAT boot sector, valid or not.
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
    /// Of a boot sector on a device of so many bytes.
    pub fn parse(head: &[u8], device_bytes: u64) -> Result<Self> {
        if !probe(head) {
            return Err(Error::Incompatible("holds no FAT filesystem".into()));
        }
        let broken = |what: String| Error::corrupt(what, "boot sector");
        let cut = |_| broken("the boot sector is cut short".into());
        let (boot, rest) = RawBoot::read_from_prefix(head).map_err(|e| cut(e.to_string()))?;
        let fat_size16 = boot.bpb_fat_sz16.get();
        let is_32 = fat_size16 == 0;
        let (raw32, behind) = Raw32::read_from_prefix(rest).map_err(|e| cut(e.to_string()))?;
        let (tail, _) =
            RawTail::read_from_prefix(if is_32 { behind } else { rest }).map_err(|e| cut(e.to_string()))?;
        let sector = u32::from(boot.bpb_byts_per_sec.get());
        let sector64 = u64::from(sector);
        let fat_sectors = if is_32 { u64::from(raw32.bpb_fat_sz32.get()) } else { u64::from(fat_size16) };
        if fat_sectors == 0 {
            return Err(broken("its FAT has no sectors".into()));
        }
        let sectors = match boot.bpb_tot_sec16.get() {
            0 => u64::from(boot.bpb_tot_sec32.get()),
            few => u64::from(few),
        };
        if sectors * sector64 > device_bytes {
            return Err(broken(format!(
                "it says {sectors} sectors of {sector} bytes, and the device has {device_bytes} bytes"
            )));
        }
        let fats = u64::from(boot.bpb_num_fats);
        let first_fat = u64::from(boot.bpb_rsvd_sec_cnt.get());
        let root_entries = if is_32 { 0 } else { u32::from(boot.bpb_root_ent_cnt.get()) };
        if !is_32 && (root_entries == 0 || !(u64::from(root_entries) * SLOT).is_multiple_of(sector64)) {
            return Err(broken(format!("a root directory of {root_entries} entries fills no whole sectors")));
        }
        let root_sector = first_fat + fats * fat_sectors;
        let data_sector = root_sector + u64::from(root_entries) * SLOT / sector64;
        let per_cluster = u64::from(boot.bpb_sec_per_clus);
        let cluster = sector * u32::from(boot.bpb_sec_per_clus);
        let counted = sectors.saturating_sub(data_sector) / per_cluster;
        let bits = match counted {
            _ if is_32 => 32,
            0..=4084 => 12,
            _ => 16,
        };
        // Never more than the FAT has entries for; the numbers from here on have a meaning of their own.
        let entries = (fat_sectors * sector64 * 8 / u64::from(bits)).saturating_sub(2);
        let most = match bits {
            12 => 0xFF4,
            16 => 0xFFF4,
            _ => 0x0FFF_FFF5,
        };
        let clusters = counted.min(entries).min(most) as u32;
        if clusters == 0 {
            return Err(broken("there is no room for clusters".into()));
        }
        let mirrored = !is_32 || raw32.bpb_ext_flags.get() & 0x80 == 0;
        let active = if mirrored { 0 } else { u64::from(raw32.bpb_ext_flags.get() & 0xF) };
        if active >= fats {
            return Err(broken(format!("FAT {active} is to be used, and there are {fats}")));
        }
        if is_32 && raw32.bpb_fs_ver.get() != 0 {
            return Err(Error::Incompatible(format!("FAT32 version {:#x}", raw32.bpb_fs_ver.get())));
        }
        let root_cluster = if is_32 { Cluster(raw32.bpb_root_clus.get()) } else { Cluster::NONE };
        if is_32 && !(Cluster::FIRST..Cluster::FIRST + clusters).contains(&root_cluster) {
            return Err(broken(format!("the root directory begins at cluster {root_cluster}")));
        }
        let fs_info = u64::from(raw32.bpb_fs_info.get());
        let has_tail = matches!(tail.bs_boot_sig, 0x28 | 0x29);
        Ok(Self {
            bits,
            sector,
            cluster,
            clusters,
            fat: BlockNo(first_fat + active * fat_sectors),
            fat_sectors,
            copies: if mirrored { fats - 1 } else { 0 },
            root_byte: BlockNo(root_sector).offset(sector),
            root_entries,
            root_cluster,
            data_byte: BlockNo(data_sector).offset(sector),
            fs_info: (is_32 && fs_info != 0 && fs_info < first_fat).then_some(BlockNo(fs_info)),
            state_byte: if is_32 { 65 } else { 37 },
            dirty: tail.bs_reserved1 & STATE_DIRTY != 0,
            serial: if has_tail { tail.bs_vol_id.get() } else { 0 },
            label: if tail.bs_boot_sig == 0x29 { tail.bs_vol_lab } else { [b' '; 11] },
        })
    }

    /// First byte of a cluster, whose number is valid.
    pub fn cluster_byte(&self, cluster: Cluster) -> ByteOffset {
        self.data_byte + u64::from(cluster - Cluster::FIRST) * u64::from(self.cluster)
    }

    /// The end of the cluster numbers.
    pub fn end(&self) -> Cluster {
        Cluster::FIRST + self.clusters
    }

    pub fn is_cluster(&self, cluster: Cluster) -> bool {
        (Cluster::FIRST..self.end()).contains(&cluster)
    }

    /// How many clusters so many bytes fill.
    pub fn clusters_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(u64::from(self.cluster))
    }
}
