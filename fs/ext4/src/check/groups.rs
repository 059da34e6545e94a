//! Group descriptors, and the blocks of the filesystem's own structures.

use super::state::Checker;
use crate::dir::linear::le16;
use crate::layout::features::Incompat;
use crate::layout::group::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT, desc_csum};
use ivers_block::BlockNo;
use ivers_vfs::Result;
use ivers_vfs::check::Place;

/// The offset of `bg_flags`.
const FLAGS: usize = 0x12;
/// The offset of `bg_itable_unused`.
const ITABLE_UNUSED: usize = 0x1C;

impl Checker {
    /// Reads and checks all descriptors, and claims what they and the superblock describe.
    pub(super) fn check_groups(&mut self) -> Result<()> {
        let sb = self.sb();
        let mut table: Option<(u64, Vec<u8>)> = None;
        for group in 0..sb.groups() {
            let (block, byte) = sb.desc_place(group);
            if table.as_ref().is_none_or(|(read, _)| *read != block.0) {
                let Some(bytes) = self.reader.block(block.0)? else {
                    self.bad(
                        "descriptor-out-of-range",
                        Place::group(group).at(block.0),
                        "no descriptor block",
                    );
                    self.descs.push(none());
                    self.desc_sound.push(false);
                    continue;
                };
                table = Some((block.0, bytes));
            }
            let (_, bytes) = table.as_ref().expect("it was just read");
            let mut desc = bytes[byte..byte + sb.desc_size as usize].to_vec();
            let mut sound = true;
            if sb.has_group_csum() {
                let right = desc_csum(&sb, group, &desc).to_le_bytes();
                if desc[0x1E..0x20] != right {
                    sound = false;
                    self.bad(
                        "descriptor-checksum-wrong",
                        Place::group(group).at(block.0),
                        "the checksum of the group's descriptor is wrong",
                    );
                    desc[0x1E..0x20].copy_from_slice(&right);
                }
            }
            let flags = le16(&desc, FLAGS) & (INODE_UNINIT | BLOCK_UNINIT);
            let unused = le16(&desc, ITABLE_UNUSED);
            if (flags != 0 || unused != 0) && !sb.has_group_csum() {
                let what = format!(
                    "bg_flags is {flags}, bg_itable_unused {unused}, but descriptors have no checksums"
                );
                self.bad("descriptor-flags-invalid", Place::group(group).at(block.0), what);
            }
            let decoded = GroupDesc::decode(&sb, group, &desc).unwrap_or_else(none);
            self.descs.push(decoded);
            self.desc_sound.push(sound);
        }
        self.claim_structures();
        Ok(())
    }

    fn claim_structures(&mut self) {
        let sb = self.sb();
        for group in 0..sb.groups() {
            let first = sb.group_first_block(group).0;
            let mut copies = u64::from(sb.base_meta_blocks(group));
            let in_super_block = group == 0 && sb.superblock_place().0.0 > first;
            copies += u64::from(in_super_block && copies > 0);
            let copies = copies.min(u64::from(sb.group_blocks(group)));
            if copies > 0 {
                self.claim_meta(group, "a copy of the superblock or of descriptors", first, copies);
            }
        }
        let flexible = sb.incompat.contains(Incompat::FLEX_BG);
        for group in 0..sb.groups() {
            let desc = self.descs[group as usize];
            let (first, blocks) = (sb.group_first_block(group).0, u64::from(sb.group_blocks(group)));
            for (what, code, block, len) in [
                ("the block bitmap", "block-bitmap-misplaced", desc.block_bitmap, 1),
                ("the inode bitmap", "inode-bitmap-misplaced", desc.inode_bitmap, 1),
                ("the inode table", "inode-table-misplaced", desc.inode_table, sb.inode_table_blocks.into()),
            ] {
                let inside = block.0 >= first && block.0.saturating_add(len) <= first + blocks;
                if !sb.is_valid_run(block, len) || !(flexible || inside) {
                    let why = if flexible { "outside the filesystem" } else { "outside its group" };
                    self.bad(code, Place::group(group).at(block.0), format!("{what} lies {why}"));
                } else {
                    self.claim_meta(group, what, block.0, len);
                }
            }
            if desc.itable_unused > sb.inodes_per_group {
                let what = format!("bg_itable_unused is {}", desc.itable_unused);
                self.bad("itable-unused-wrong", Place::group(group), what);
            }
        }
        if sb.incompat.contains(Incompat::MMP) {
            let block = sb.mmp_block.0;
            if self.reader.is_valid(block) {
                self.claim_meta(0, "the block of the multiple-mount protection", block, 1);
            } else {
                self.bad("mmp-block-invalid", Place::block(block), "s_mmp_block is outside the filesystem");
            }
        }
    }
}

/// A descriptor that refers to nothing.
fn none() -> GroupDesc {
    GroupDesc {
        block_bitmap: BlockNo(0),
        inode_bitmap: BlockNo(0),
        inode_table: BlockNo(0),
        free_blocks: 0,
        free_inodes: 0,
        used_dirs: 0,
        itable_unused: 0,
        flags: 0,
        block_bitmap_csum: 0,
        inode_bitmap_csum: 0,
    }
}
