//! Every size and offset that the format fixes, asserted at compile time.

use super::raw::{RawGroupDesc, RawInode, RawSuperblock};
use std::mem::{offset_of, size_of};

const _: () = {
    assert!(size_of::<RawSuperblock>() == 1024);
    assert!(offset_of!(RawSuperblock, s_mtime) == 0x2C);
    assert!(offset_of!(RawSuperblock, s_mnt_count) == 0x34);
    assert!(offset_of!(RawSuperblock, s_magic) == 0x38);
    assert!(offset_of!(RawSuperblock, s_lastcheck) == 0x40);
    assert!(offset_of!(RawSuperblock, s_first_ino) == 0x54);
    assert!(offset_of!(RawSuperblock, s_feature_compat) == 0x5C);
    assert!(offset_of!(RawSuperblock, s_uuid) == 0x68);
    assert!(offset_of!(RawSuperblock, s_volume_name) == 0x78);
    assert!(offset_of!(RawSuperblock, s_reserved_gdt_blocks) == 0xCE);
    assert!(offset_of!(RawSuperblock, s_journal_inum) == 0xE0);
    assert!(offset_of!(RawSuperblock, s_last_orphan) == 0xE8);
    assert!(offset_of!(RawSuperblock, s_hash_seed) == 0xEC);
    assert!(offset_of!(RawSuperblock, s_desc_size) == 0xFE);
    assert!(offset_of!(RawSuperblock, s_first_meta_bg) == 0x104);
    assert!(offset_of!(RawSuperblock, s_jnl_blocks) == 0x10C);
    assert!(offset_of!(RawSuperblock, s_blocks_count_hi) == 0x150);
    assert!(offset_of!(RawSuperblock, s_flags) == 0x160);
    assert!(offset_of!(RawSuperblock, s_mmp_block) == 0x168);
    assert!(offset_of!(RawSuperblock, s_log_groups_per_flex) == 0x174);
    assert!(offset_of!(RawSuperblock, s_kbytes_written) == 0x178);
    assert!(offset_of!(RawSuperblock, s_error_count) == 0x194);
    assert!(offset_of!(RawSuperblock, s_mount_opts) == 0x200);
    assert!(offset_of!(RawSuperblock, s_overhead_blocks) == 0x248);
    assert!(offset_of!(RawSuperblock, s_backup_bgs) == 0x24C);
    assert!(offset_of!(RawSuperblock, s_prj_quota_inum) == 0x26C);
    assert!(offset_of!(RawSuperblock, s_checksum_seed) == 0x270);
    assert!(offset_of!(RawSuperblock, s_wtime_hi) == 0x274);
    assert!(offset_of!(RawSuperblock, s_encoding) == 0x27C);
    assert!(offset_of!(RawSuperblock, s_orphan_file_inum) == 0x280);
    assert!(offset_of!(RawSuperblock, s_checksum) == 0x3FC);

    assert!(size_of::<RawGroupDesc>() == 64);
    assert!(offset_of!(RawGroupDesc, bg_flags) == 0x12);
    assert!(offset_of!(RawGroupDesc, bg_block_bitmap_csum_lo) == 0x18);
    assert!(offset_of!(RawGroupDesc, bg_itable_unused_lo) == 0x1C);
    assert!(offset_of!(RawGroupDesc, bg_checksum) == 0x1E);
    assert!(offset_of!(RawGroupDesc, bg_block_bitmap_hi) == 0x20);
    assert!(offset_of!(RawGroupDesc, bg_free_blocks_count_hi) == 0x2C);
    assert!(offset_of!(RawGroupDesc, bg_block_bitmap_csum_hi) == 0x38);

    assert!(size_of::<RawInode>() == 0xA0);
    assert!(offset_of!(RawInode, i_dtime) == 0x14);
    assert!(offset_of!(RawInode, i_flags) == 0x20);
    assert!(offset_of!(RawInode, i_disk_version) == 0x24);
    assert!(offset_of!(RawInode, i_block) == 0x28);
    assert!(offset_of!(RawInode, i_generation) == 0x64);
    assert!(offset_of!(RawInode, i_size_high) == 0x6C);
    assert!(offset_of!(RawInode, i_blocks_high) == 0x74);
    assert!(offset_of!(RawInode, i_checksum_lo) == 0x7C);
    assert!(offset_of!(RawInode, i_extra_isize) == 0x80);
    assert!(offset_of!(RawInode, i_checksum_hi) == 0x82);
    assert!(offset_of!(RawInode, i_ctime_extra) == 0x84);
    assert!(offset_of!(RawInode, i_version_hi) == 0x98);
    assert!(offset_of!(RawInode, i_projid) == 0x9C);
};
