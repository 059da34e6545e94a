//! Making an empty FAT12, FAT16 or FAT32 volume.
//!
//! Structures are those of fatgen103. Sizes that it leaves open are those that mkfs.fat chooses, which
//! cameras, firmware and other systems have met: see `docs/fat.md`. The same options give the same volume,
//! byte for byte.

mod geometry;
mod options;

pub use options::{FatType, MkfsOptions, MkfsReport};

use crate::layout::{Raw32, RawBoot, RawEntry, RawFsInfo, RawTail};
use crate::names::encode_label;
use geometry::{BACKUP_BOOT_SECTOR, FATS, FS_INFO_SECTOR, Plan, SECTOR_BYTES};
use ivers_block::{ByteOffset, Device, write_zeros};
use ivers_vfs::Result;
use zerocopy::IntoBytes;

/// Checks that a volume with these options fits a device of this size; writes nothing.
pub fn plan(size_bytes: u64, options: &MkfsOptions) -> Result<MkfsReport> {
    encode_label(&options.label)?;
    Plan::new(size_bytes, options).map(|plan| plan.report())
}

/// Makes a volume that fills the device. All checks pass before the first write. The boot sector is written
/// last: an incomplete volume is not recognized. The volume is durable on return.
pub fn mkfs(device: &dyn Device, options: &MkfsOptions) -> Result<MkfsReport> {
    let label = encode_label(&options.label)?;
    let plan = Plan::new(device.size_bytes(), options)?;
    let root = plan.root_sector();
    let write = |sector: u64, bytes: &[u8]| device.write_at(ByteOffset(sector * SECTOR_BYTES), bytes);
    if !options.zeroed {
        let first_cluster = if plan.is_32() { u64::from(plan.cluster_sectors) } else { 0 };
        let end = plan.data_sector() + first_cluster;
        write_zeros(device, ByteOffset(0), end * SECTOR_BYTES)?;
        device.flush()?;
    }
    for nth in 0..FATS {
        write(plan.fat_sector(nth), &first_entries(&plan))?;
    }
    if !options.label.is_empty() {
        let mut sector = [0; SECTOR_BYTES as usize];
        let entry = RawEntry::label(label, options.time, 0);
        sector[..entry.as_bytes().len()].copy_from_slice(entry.as_bytes());
        write(root, &sector)?;
    }
    let boot = boot_sector(&plan, label, options.volume_id);
    if plan.is_32() {
        // The boot record has three sectors: boot sector, FSInfo, and one for boot code.
        let info = RawFsInfo::new(plan.clusters - 1, 2);
        let mut third = [0; SECTOR_BYTES as usize];
        third[510..].copy_from_slice(&[0x55, 0xAA]);
        for first in [0, BACKUP_BOOT_SECTOR] {
            write(first + FS_INFO_SECTOR, info.as_bytes())?;
            write(first + 2, &third)?;
        }
        write(BACKUP_BOOT_SECTOR, &boot)?;
    }
    device.flush()?;
    write(0, &boot)?;
    device.flush()?;
    Ok(plan.report())
}

/// The first sector of a FAT: entry 0 repeats the media byte, entry 1 has the flags "clean" and "no errors".
/// In FAT32 the root directory has cluster 2.
fn first_entries(plan: &Plan) -> [u8; SECTOR_BYTES as usize] {
    let mut sector = [0; SECTOR_BYTES as usize];
    match plan.fat_type {
        FatType::Fat12 => sector[..3].copy_from_slice(&[plan.media, 0xFF, 0xFF]),
        FatType::Fat16 => sector[..4].copy_from_slice(&[plan.media, 0xFF, 0xFF, 0xFF]),
        FatType::Fat32 => {
            let entries = [0x0FFF_FF00 | u32::from(plan.media), 0x0FFF_FFFF, 0x0FFF_FFF8];
            for (bytes, entry) in sector.chunks_exact_mut(4).zip(entries) {
                bytes.copy_from_slice(&entry.to_le_bytes());
            }
        }
    }
    sector
}

fn boot_sector(plan: &Plan, label: [u8; 11], volume_id: u32) -> [u8; SECTOR_BYTES as usize] {
    let tail_at = size_of::<RawBoot>() + if plan.is_32() { size_of::<Raw32>() } else { 0 };
    let code_at = tail_at + size_of::<RawTail>();
    let total16 = u16::try_from(plan.sectors).unwrap_or(0);
    let boot = RawBoot {
        // A jump to the boot code, and nop.
        bs_jmp_boot: [0xEB, (code_at - 2) as u8, 0x90],
        bs_oem_name: *b"ivers   ",
        bpb_byts_per_sec: (SECTOR_BYTES as u16).into(),
        bpb_sec_per_clus: plan.cluster_sectors,
        bpb_rsvd_sec_cnt: plan.reserved_sectors.into(),
        bpb_num_fats: FATS as u8,
        bpb_root_ent_cnt: plan.root_entries.into(),
        bpb_tot_sec16: total16.into(),
        bpb_media: plan.media,
        bpb_fat_sz16: if plan.is_32() { 0 } else { plan.fat_sectors as u16 }.into(),
        bpb_sec_per_trk: plan.sectors_per_track.into(),
        bpb_num_heads: plan.heads.into(),
        bpb_hidd_sec: 0.into(),
        bpb_tot_sec32: if total16 == 0 { plan.sectors } else { 0 }.into(),
    };
    let tail = RawTail {
        bs_drv_num: if plan.is_floppy() { 0 } else { 0x80 },
        bs_reserved1: 0,
        bs_boot_sig: 0x29,
        bs_vol_id: volume_id.into(),
        bs_vol_lab: label,
        bs_fil_sys_type: plan.fat_type.stored_name(),
    };
    let mut sector = [0; SECTOR_BYTES as usize];
    sector[..size_of::<RawBoot>()].copy_from_slice(boot.as_bytes());
    if plan.is_32() {
        let raw32 = Raw32 {
            bpb_fat_sz32: plan.fat_sectors.into(),
            bpb_ext_flags: 0.into(),
            bpb_fs_ver: 0.into(),
            bpb_root_clus: 2.into(),
            bpb_fs_info: (FS_INFO_SECTOR as u16).into(),
            bpb_bk_boot_sec: (BACKUP_BOOT_SECTOR as u16).into(),
            bpb_reserved: [0; 12],
        };
        sector[size_of::<RawBoot>()..tail_at].copy_from_slice(raw32.as_bytes());
    }
    sector[tail_at..code_at].copy_from_slice(tail.as_bytes());
    // int 0x18 starts the next boot device of the BIOS; then an endless loop.
    sector[code_at..code_at + 4].copy_from_slice(&[0xCD, 0x18, 0xEB, 0xFE]);
    sector[510..].copy_from_slice(&[0x55, 0xAA]);
    sector
}

#[cfg(test)]
mod tests;
