//! Writing the planned filesystem.

use super::MkfsReport;
use super::geometry::{FIRST_INO, Geometry, MkfsOptions};
use super::space::Space;
use crate::layout::Superblock;
use crate::layout::csum::crc32c;
use crate::layout::group::{BLOCK_UNINIT, INODE_UNINIT, ITABLE_ZEROED, desc_csum};
use crate::layout::inode::{FL_EXTENTS, InodeImage, StoredVersion, inode_seed};
use crate::layout::raw::{RawGroupDesc, RawSuperblock};
use crate::layout::slot_body::SlotBody;
use crate::layout::superblock::SUPERBLOCK_OFFSET;
use crate::map::node::{Extent, MAX_LEN, empty_root, insert_at};
use crate::transaction::journal_error;
use ivers_block::{BlockNo, Device, FileBlock};
use ivers_journal::jbd2::{FormatOptions, format_superblock};
use ivers_vfs::{Attr, FileType, InodeFlags, Result, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

const ROOT_INO: u32 = 2;
const RESIZE_INO: u32 = 7;
const JOURNAL_INO: u32 = 8;
/// Initial size of `lost+found`, so that a repair need not allocate.
const LOST_FOUND_BYTES: u32 = 16_384;

struct Maker<'a> {
    device: &'a dyn Device,
    geometry: &'a Geometry,
    options: &'a MkfsOptions,
    sb: Superblock,
    space: Space,
    descs: Vec<RawGroupDesc>,
    table_blocks: u64,
}

pub(super) fn write(device: &dyn Device, geometry: &Geometry, options: &MkfsOptions) -> Result<MkfsReport> {
    let place = device.describe();
    let mut raw = geometry.superblock.clone();
    seal(&mut raw);
    let sb = Superblock::parse(raw.as_bytes(), device.size_bytes(), &place)?;
    let space = Space::new(sb.first_data_block, BlockNo(sb.blocks_count));
    let table_blocks = u64::from(sb.inode_table_blocks);
    let mut maker = Maker { device, geometry, options, sb, space, descs: Vec::new(), table_blocks };
    maker.place_groups()?;
    let metadata: u64 = maker.space.used_in(BlockNo(0), BlockNo(geometry.blocks)).map(|(s, e)| e - s).sum();

    if !options.zeroed {
        // Erase old superblocks, boot sectors and partition tables, which programs would still find.
        maker.zero(BlockNo(0), maker.sb.first_data_block.0 + 1)?;
    }
    maker.zero(maker.table_of(0), table_blocks)?;
    let journal = maker.make_journal()?;
    maker.make_resize_inode()?;
    maker.make_directories()?;
    let (free_blocks, free_inodes) = maker.finish_groups()?;

    let overhead = metadata + u64::from(geometry.journal_blocks);
    raw.s_overhead_blocks = (overhead as u32).into();
    raw.s_free_blocks_count_lo = (free_blocks as u32).into();
    raw.s_free_blocks_count_hi = ((free_blocks >> 32) as u32).into();
    raw.s_free_inodes_count = free_inodes.into();
    if let Some(journal) = journal {
        for (word, bytes) in raw.s_jnl_blocks.iter_mut().zip(journal.i_block.chunks_exact(4)) {
            *word = u32::from_le_bytes(bytes.try_into().expect("chunks of four")).into();
        }
        raw.s_jnl_blocks[15] = ((journal.attr.size >> 32) as u32).into();
        raw.s_jnl_blocks[16] = (journal.attr.size as u32).into();
    }
    maker.write_tables_and_copies(&mut raw)?;
    Ok(MkfsReport {
        block_size: geometry.block_size,
        blocks: geometry.blocks,
        inodes: geometry.inodes(),
        groups: geometry.groups,
        journal_blocks: geometry.journal_blocks,
    })
}

fn seal(raw: &mut RawSuperblock) {
    let bytes = raw.as_bytes();
    let csum = crc32c(!0, &bytes[..bytes.len() - 4]);
    raw.s_checksum = csum.into();
}

impl Maker<'_> {
    fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    fn put(&self, block: BlockNo, bytes: &[u8]) -> Result<()> {
        Ok(self.device.write_at(block.offset(self.sb.block_size), bytes)?)
    }

    fn zero(&self, block: BlockNo, blocks: u64) -> Result<()> {
        if self.options.zeroed {
            return Ok(());
        }
        let zeros = vec![0; 1 << 20];
        let mut at = block.offset(self.sb.block_size);
        let end = (block + blocks).offset(self.sb.block_size);
        while at < end {
            let len = (end - at).min(zeros.len() as u64);
            self.device.write_at(at, &zeros[..len as usize])?;
            at += len;
        }
        Ok(())
    }

    fn table_of(&self, group: usize) -> BlockNo {
        let desc = &self.descs[group];
        BlockNo(u64::from(desc.bg_inode_table_lo.get()) | u64::from(desc.bg_inode_table_hi.get()) << 32)
    }

    fn bitmap_of(&self, group: usize) -> (BlockNo, BlockNo) {
        let desc = &self.descs[group];
        let wide = |lo: u32, hi: u32| BlockNo(u64::from(lo) | u64::from(hi) << 32);
        (
            wide(desc.bg_block_bitmap_lo.get(), desc.bg_block_bitmap_hi.get()),
            wide(desc.bg_inode_bitmap_lo.get(), desc.bg_inode_bitmap_hi.get()),
        )
    }

    /// Places copies of superblock and descriptors, then the bitmaps and tables of each flex group together.
    fn place_groups(&mut self) -> Result<()> {
        let groups = self.geometry.groups;
        self.descs = vec![RawGroupDesc::new_zeroed(); groups as usize];
        for group in 0..groups {
            let len = self.sb.base_meta_blocks(group);
            if len > 0 {
                self.space.take(self.sb.group_first_block(group), u64::from(len));
            }
        }
        let per_flex = 1 << self.sb.log_groups_per_flex;
        for first in (0..groups).step_by(per_flex) {
            let goal = self.sb.group_first_block(first);
            let members = first as usize..groups.min(first + per_flex as u32) as usize;
            for group in members.clone() {
                let block = self.space.allocate(goal, 1)?;
                self.descs[group].bg_block_bitmap_lo = (block.0 as u32).into();
                self.descs[group].bg_block_bitmap_hi = ((block.0 >> 32) as u32).into();
            }
            for group in members.clone() {
                let block = self.space.allocate(goal, 1)?;
                self.descs[group].bg_inode_bitmap_lo = (block.0 as u32).into();
                self.descs[group].bg_inode_bitmap_hi = ((block.0 >> 32) as u32).into();
            }
            for group in members {
                let block = self.space.allocate(goal, self.table_blocks)?;
                self.descs[group].bg_inode_table_lo = (block.0 as u32).into();
                self.descs[group].bg_inode_table_hi = ((block.0 >> 32) as u32).into();
            }
        }
        Ok(())
    }

    fn new_inode(&self, kind: FileType, perm: u32, nlink: u32) -> InodeImage {
        let now = Timestamp { sec: i64::from(self.options.timestamp), nsec: 0 };
        InodeImage {
            generation: 0,
            attr: Attr {
                kind,
                perm,
                uid: 0,
                gid: 0,
                project: 0,
                nlink,
                size: 0,
                blocks_512: 0,
                rdev: 0,
                atime: now,
                mtime: now,
                ctime: now,
                btime: Some(now),
                flags: InodeFlags::empty(),
            },
            version: StoredVersion::Wide(0),
            flags: FL_EXTENTS,
            i_block: [0; 60],
            file_acl: BlockNo(0),
            extra_isize: 32,
            body: SlotBody::Zeros(0),
            dtime: 0,
        }
    }

    fn put_inode(&self, ino: u32, image: &InodeImage) -> Result<()> {
        let mut slot = vec![0; self.sb.inode_size as usize];
        image.encode(&self.sb, ino, &mut slot);
        let offset = self.table_of(0).offset(self.sb.block_size) + u64::from(ino - 1) * slot.len() as u64;
        Ok(self.device.write_at(offset, &slot)?)
    }

    /// Maps a file by at most four extents in its inode; sets size and block count.
    fn map(&self, image: &mut InodeImage, runs: &[(BlockNo, u64)]) {
        image.i_block = empty_root();
        let mut file_block = FileBlock(0);
        for (index, &(start, len)) in runs.iter().enumerate() {
            let run = Extent { file_block, len: len as u32, start, unwritten: false };
            insert_at(&mut image.i_block, index, &run.encode());
            file_block = run.end();
        }
        image.attr.size = file_block.0 << self.sb.block_bits;
        image.attr.blocks_512 = image.attr.size / 512;
    }

    fn make_journal(&mut self) -> Result<Option<InodeImage>> {
        let blocks = self.geometry.journal_blocks;
        if blocks == 0 {
            return Ok(None);
        }
        let goal = self.sb.group_first_block(self.geometry.groups / 2);
        let runs = self.space.allocate_pieces(goal, u64::from(blocks), 4, u64::from(MAX_LEN))?;
        for &(start, len) in &runs {
            self.zero(start, len)?;
        }
        let mut block = vec![0; self.block_size()];
        let log = format_superblock(&FormatOptions {
            block_size: self.geometry.block_size,
            blocks,
            uuid: self.options.uuid,
            checksums: true,
            is_64bit: true,
        })
        .map_err(journal_error)?;
        block[..log.len()].copy_from_slice(&log);
        self.put(runs[0].0, &block)?;
        let mut image = self.new_inode(FileType::Regular, 0o600, 1);
        self.map(&mut image, &runs);
        self.put_inode(JOURNAL_INO, &image)?;
        Ok(Some(image))
    }

    /// Makes the resize inode, which maps the reserved descriptor blocks: its double-indirect block refers to
    /// those of group 0, and each of those to its copies in the groups that hold one.
    fn make_resize_inode(&mut self) -> Result<()> {
        let reserved = self.geometry.reserved_gdt_blocks;
        if reserved == 0 {
            return Ok(());
        }
        let size = self.block_size();
        let pointers = (size / 4) as u64;
        let first = self.sb.first_data_block + 1 + u64::from(self.geometry.desc_blocks);
        let copies: Vec<u32> = (1..self.geometry.groups).filter(|&group| self.sb.has_super(group)).collect();
        let double = self.space.allocate(self.table_of(0), 1)?;
        let mut double_block = vec![0; size];
        for index in 0..u64::from(reserved) {
            let block = first + index;
            let at = ((u64::from(self.geometry.desc_blocks) + index) % pointers) as usize * 4;
            double_block[at..at + 4].copy_from_slice(&(block.0 as u32).to_le_bytes());
            let mut names = vec![0; size];
            for (bytes, &group) in names.chunks_exact_mut(4).zip(&copies) {
                let copy = block + u64::from(group) * u64::from(self.sb.blocks_per_group);
                bytes.copy_from_slice(&(copy.0 as u32).to_le_bytes());
            }
            self.put(block, &names)?;
        }
        self.put(double, &double_block)?;
        let mut image = self.new_inode(FileType::Regular, 0o600, 1);
        image.flags = 0;
        image.i_block[13 * 4..14 * 4].copy_from_slice(&(double.0 as u32).to_le_bytes());
        image.attr.size = (pointers * pointers + pointers + 12) << self.sb.block_bits;
        let blocks = 1 + u64::from(reserved) * (1 + copies.len() as u64);
        image.attr.blocks_512 = blocks << (self.sb.block_bits - 9);
        self.put_inode(RESIZE_INO, &image)
    }

    fn dir_block(&self, ino: u32, entries: &[(u32, &[u8])]) -> Vec<u8> {
        let mut block = vec![0; self.block_size()];
        let room = block.len() - 12;
        let mut at = 0;
        for (index, (child, name)) in entries.iter().enumerate() {
            let last = index + 1 == entries.len();
            let len = if last { room - at } else { (8 + name.len()).next_multiple_of(4) };
            block[at..at + 4].copy_from_slice(&child.to_le_bytes());
            block[at + 4..at + 6].copy_from_slice(&(len as u16).to_le_bytes());
            block[at + 6] = name.len() as u8;
            // DT_DIR as the directory stores it; an unused entry has no type.
            block[at + 7] = if *child == 0 { 0 } else { 2 };
            block[at + 8..at + 8 + name.len()].copy_from_slice(name);
            at += len;
        }
        let csum = crc32c(inode_seed(&self.sb, ino, 0), &block[..room]);
        block[room + 4..room + 6].copy_from_slice(&12_u16.to_le_bytes());
        block[room + 7] = 0xDE;
        block[room + 8..].copy_from_slice(&csum.to_le_bytes());
        block
    }

    fn make_directories(&mut self) -> Result<()> {
        let goal = self.table_of(0);
        let root = self.space.allocate(goal, 1)?;
        let entries: [(u32, &[u8]); 3] = [(ROOT_INO, b"."), (ROOT_INO, b".."), (FIRST_INO, b"lost+found")];
        self.put(root, &self.dir_block(ROOT_INO, &entries))?;
        let mut image = self.new_inode(FileType::Directory, 0o755, 3);
        (image.attr.uid, image.attr.gid) = self.options.root_owner;
        self.map(&mut image, &[(root, 1)]);
        self.put_inode(ROOT_INO, &image)?;

        let blocks = u64::from(LOST_FOUND_BYTES / self.geometry.block_size).min(12);
        let start = self.space.allocate(goal, blocks)?;
        self.put(start, &self.dir_block(FIRST_INO, &[(FIRST_INO, b"."), (ROOT_INO, b"..")]))?;
        for block in (start + 1).run(blocks - 1) {
            self.put(block, &self.dir_block(FIRST_INO, &[(0, b"")]))?;
        }
        let mut image = self.new_inode(FileType::Directory, 0o700, 2);
        self.map(&mut image, &[(start, blocks)]);
        self.put_inode(FIRST_INO, &image)
    }

    /// Sets bitmaps, counts and flags; returns free blocks and free inodes.
    fn finish_groups(&mut self) -> Result<(u64, u32)> {
        let (groups, per_group) = (self.geometry.groups, self.geometry.inodes_per_group);
        let mut free_blocks = 0;
        for group in 0..groups {
            let index = group as usize;
            let start = self.sb.group_first_block(group);
            let len = u64::from(self.sb.group_blocks(group));
            let mut bitmap = vec![0_u8; self.block_size()];
            let mut used = 0;
            for (s, e) in self.space.used_in(start, start + len) {
                used += e - s;
                (s - start..e - start).for_each(|bit| set_bit(&mut bitmap, bit));
            }
            (len..bitmap.len() as u64 * 8).for_each(|bit| set_bit(&mut bitmap, bit));
            let (block_bitmap, inode_bitmap) = self.bitmap_of(index);
            let mut flags = if self.options.zeroed || group == 0 { ITABLE_ZEROED } else { 0 };
            let free = (len - used) as u32;
            free_blocks += u64::from(free);
            // With only copies of superblock and descriptors, the bitmap follows from the superblock. Always
            // write the last group's: that group may be shorter.
            let untouched = used == u64::from(self.sb.base_meta_blocks(group)) && group + 1 < groups;
            let mut csum = 0;
            if untouched {
                flags |= BLOCK_UNINIT;
            } else {
                csum = crc32c(self.sb.csum_seed, &bitmap[..self.sb.blocks_per_group as usize / 8]);
                self.put(block_bitmap, &bitmap)?;
            }
            let desc = &mut self.descs[index];
            desc.bg_block_bitmap_csum_lo = (csum as u16).into();
            desc.bg_block_bitmap_csum_hi = ((csum >> 16) as u16).into();
            desc.bg_free_blocks_count_lo = (free as u16).into();
            desc.bg_free_blocks_count_hi = ((free >> 16) as u16).into();
            let taken = if group == 0 { FIRST_INO } else { 0 };
            let free = per_group - taken;
            desc.bg_free_inodes_count_lo = (free as u16).into();
            desc.bg_free_inodes_count_hi = ((free >> 16) as u16).into();
            desc.bg_itable_unused_lo = desc.bg_free_inodes_count_lo;
            desc.bg_itable_unused_hi = desc.bg_free_inodes_count_hi;
            if group == 0 {
                desc.bg_used_dirs_count_lo = 2.into();
                let mut bitmap = vec![0_u8; self.geometry.block_size as usize];
                (0..u64::from(taken)).for_each(|bit| set_bit(&mut bitmap, bit));
                (u64::from(per_group)..bitmap.len() as u64 * 8).for_each(|bit| set_bit(&mut bitmap, bit));
                let csum = crc32c(self.sb.csum_seed, &bitmap[..per_group as usize / 8]);
                desc.bg_inode_bitmap_csum_lo = (csum as u16).into();
                desc.bg_inode_bitmap_csum_hi = ((csum >> 16) as u16).into();
                self.put(inode_bitmap, &bitmap)?;
            } else {
                flags |= INODE_UNINIT;
            }
            self.descs[index].bg_flags = flags.into();
            let csum = desc_csum(&self.sb, group, self.descs[index].as_bytes());
            self.descs[index].bg_checksum = csum.into();
        }
        Ok((free_blocks, self.geometry.inodes() - FIRST_INO))
    }

    /// Writes descriptors and superblocks, copies first. Writes the primary superblock last, after a flush:
    /// an incomplete filesystem is not recognized.
    fn write_tables_and_copies(&self, raw: &mut RawSuperblock) -> Result<()> {
        let mut table = vec![0; self.geometry.desc_blocks as usize * self.block_size()];
        for (bytes, desc) in table.chunks_exact_mut(64).zip(&self.descs) {
            bytes.copy_from_slice(desc.as_bytes());
        }
        for group in (0..self.geometry.groups).filter(|&group| self.sb.has_super(group)) {
            let block = self.sb.group_first_block(group);
            self.put(block + 1, &table)?;
            if group > 0 {
                raw.s_block_group_nr = (group as u16).into();
                seal(raw);
                self.put(block, raw.as_bytes())?;
            }
        }
        self.device.flush()?;
        raw.s_block_group_nr = 0.into();
        seal(raw);
        self.device.write_at(SUPERBLOCK_OFFSET, raw.as_bytes())?;
        self.device.flush()?;
        Ok(())
    }
}

fn set_bit(bitmap: &mut [u8], bit: u64) {
    bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
}
