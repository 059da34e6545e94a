//! Writing the planned filesystem.

use super::geometry::{FIRST_INO, Geometry, MkfsOptions};
use super::space::Space;
use super::{MkfsReport, block_map};
use crate::layout::csum::crc32c;
use crate::layout::inode::{
    FL_EXTENTS, InodeImage, JOURNAL_INO, RESIZE_INO, ROOT_INO, StoredVersion, inode_seed,
};
use crate::layout::raw::RawSuperblock;
use crate::layout::slot_body::SlotBody;
use crate::layout::superblock::{SUPERBLOCK_OFFSET, seal};
use crate::layout::{Incompat, Superblock};
use crate::map::node::{Extent, MAX_LEN, empty_root, insert_at};
use crate::new_groups::{self, Places, State};
use crate::transaction::journal_error;
use ivers_block::{BlockNo, Device, FileBlock, write_zeros};
use ivers_journal::jbd2::{FormatOptions, format_superblock};
use ivers_vfs::{Attr, FileType, InodeFlags, Result, Timestamp};
use zerocopy::IntoBytes;

/// Initial size of `lost+found`, so that a repair need not allocate.
const LOST_FOUND_BYTES: u32 = 16_384;

pub(super) struct Maker<'a> {
    device: &'a dyn Device,
    pub geometry: &'a Geometry,
    options: &'a MkfsOptions,
    pub sb: Superblock,
    pub space: Space,
    places: Vec<Places>,
}

pub(super) fn write(device: &dyn Device, geometry: &Geometry, options: &MkfsOptions) -> Result<MkfsReport> {
    let place = device.describe();
    let mut raw = geometry.superblock.clone();
    seal(&mut raw);
    let sb = Superblock::parse(raw.as_bytes(), device.size_bytes(), &place)?;
    let space = Space::new(sb.first_data_block, BlockNo(sb.blocks_count()));
    let table_blocks = u64::from(sb.inode_table_blocks);
    let mut maker = Maker { device, geometry, options, sb, space, places: Vec::new() };
    maker.places = new_groups::place(&maker.sb, &mut maker.space, 0..geometry.groups)?;
    let metadata: u64 = maker.space.used_in(BlockNo(0), BlockNo(geometry.blocks)).map(|(s, e)| e - s).sum();

    if !options.zeroed {
        // Erase old superblocks, boot sectors and partition tables, which programs would still find.
        maker.zero(BlockNo(0), maker.sb.first_data_block.0 + 1)?;
    }
    // Only checksums of descriptors can say that a table was never written.
    let tables = if maker.sb.has_group_csum() { 1 } else { geometry.groups as usize };
    for group in 0..tables {
        maker.zero(maker.table_of(group), table_blocks)?;
    }
    let journal = maker.make_journal()?;
    maker.make_resize_inode()?;
    maker.make_directories()?;
    let (table, free_blocks, free_inodes) = maker.finish_groups()?;

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
    maker.write_tables_and_copies(&mut raw, &table)?;
    Ok(MkfsReport {
        block_size: geometry.block_size,
        blocks: geometry.blocks,
        inodes: geometry.inodes(),
        groups: geometry.groups,
        journal_blocks: geometry.journal_blocks,
    })
}

impl Maker<'_> {
    pub fn block_size(&self) -> usize {
        self.geometry.block_size as usize
    }

    pub fn put(&self, block: BlockNo, bytes: &[u8]) -> Result<()> {
        Ok(self.device.write_at(block.offset(self.sb.block_size), bytes)?)
    }

    fn zero(&self, block: BlockNo, blocks: u64) -> Result<()> {
        if self.options.zeroed {
            return Ok(());
        }
        let size = self.sb.block_size;
        Ok(write_zeros(self.device, block.offset(size), blocks * u64::from(size))?)
    }

    fn table_of(&self, group: usize) -> BlockNo {
        self.places[group].inode_table
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
            flags: if self.uses_extents() { FL_EXTENTS } else { 0 },
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

    fn uses_extents(&self) -> bool {
        self.sb.incompat.contains(Incompat::EXTENTS)
    }

    /// Maps a file by at most four extents in its inode, or by indirect blocks; sets size and block count.
    fn map(&mut self, image: &mut InodeImage, runs: &[(BlockNo, u64)]) -> Result<()> {
        let blocks: u64 = runs.iter().map(|&(_, len)| len).sum();
        image.attr.size = blocks << self.sb.block_bits;
        let mut indirect = 0;
        if self.uses_extents() {
            image.i_block = empty_root();
            let mut file_block = FileBlock(0);
            for (index, &(start, len)) in runs.iter().enumerate() {
                let run = Extent { file_block, len: len as u32, start, unwritten: false };
                insert_at(&mut image.i_block, index, &run.encode());
                file_block = run.end();
            }
        } else {
            let all: Vec<BlockNo> = runs.iter().flat_map(|&(start, len)| start.run(len)).collect();
            indirect = block_map::map(self, image, &all)?;
        }
        image.attr.blocks_512 = (blocks + indirect) << (self.sb.block_bits - 9);
        Ok(())
    }

    fn make_journal(&mut self) -> Result<Option<InodeImage>> {
        let blocks = self.geometry.journal_blocks;
        if blocks == 0 {
            return Ok(None);
        }
        let goal = self.sb.group_first_block(self.geometry.groups / 2);
        // Extents must fit into the inode; indirect blocks map any number of runs.
        let pieces = if self.uses_extents() { 4 } else { usize::MAX };
        let runs = self.space.allocate_pieces(goal, u64::from(blocks), pieces, u64::from(MAX_LEN))?;
        for &(start, len) in &runs {
            self.zero(start, len)?;
        }
        let mut block = vec![0; self.block_size()];
        let log = format_superblock(&FormatOptions {
            block_size: self.geometry.block_size,
            blocks,
            uuid: self.options.uuid,
            checksums: self.sb.has_csum(),
            is_64bit: self.sb.incompat.contains(Incompat::BIT64),
        })
        .map_err(journal_error)?;
        block[..log.len()].copy_from_slice(&log);
        self.put(runs[0].0, &block)?;
        let mut image = self.new_inode(FileType::Regular, 0o600, 1);
        self.map(&mut image, &runs)?;
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
        // A checksum is stored in an unused entry at the end.
        let has_csum = self.sb.has_csum();
        let room = block.len() - if has_csum { 12 } else { 0 };
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
        if !has_csum {
            return block;
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
        self.map(&mut image, &[(root, 1)])?;
        self.put_inode(ROOT_INO, &image)?;

        let blocks = u64::from(LOST_FOUND_BYTES / self.geometry.block_size).min(12);
        let start = self.space.allocate(goal, blocks)?;
        self.put(start, &self.dir_block(FIRST_INO, &[(FIRST_INO, b"."), (ROOT_INO, b"..")]))?;
        for block in (start + 1).run(blocks - 1) {
            self.put(block, &self.dir_block(FIRST_INO, &[(0, b"")]))?;
        }
        let mut image = self.new_inode(FileType::Directory, 0o700, 2);
        // The owner of the root directory must be able to read the whole tree.
        (image.attr.uid, image.attr.gid) = self.options.root_owner;
        self.map(&mut image, &[(start, blocks)])?;
        self.put_inode(FIRST_INO, &image)
    }

    /// Writes the bitmaps; returns the table of descriptors, the free blocks and the free inodes.
    fn finish_groups(&mut self) -> Result<(Vec<u8>, u64, u32)> {
        let mut table = vec![0; self.geometry.desc_blocks as usize * self.block_size()];
        let mut free_blocks = 0;
        for (group, bytes) in (0..).zip(table.chunks_exact_mut(self.sb.desc_size as usize)) {
            let Some(&places) = self.places.get(group as usize) else { break };
            let first = group == 0;
            let new = new_groups::describe(
                &self.sb,
                &self.space,
                group,
                &State {
                    places,
                    used_inodes: if first { FIRST_INO } else { 0 },
                    directories: if first { 2 } else { 0 },
                    table_zeroed: self.options.zeroed || first,
                },
            );
            if let Some(bits) = &new.block_bitmap {
                self.put(places.block_bitmap, bits)?;
            }
            if let Some(bits) = &new.inode_bitmap {
                self.put(places.inode_bitmap, bits)?;
            }
            bytes.copy_from_slice(&new.desc);
            free_blocks += u64::from(new.free_blocks);
        }
        Ok((table, free_blocks, self.geometry.inodes() - FIRST_INO))
    }

    /// Writes descriptors and superblocks, copies first. Writes the primary superblock last, after a flush:
    /// an incomplete filesystem is not recognized.
    fn write_tables_and_copies(&self, raw: &mut RawSuperblock, table: &[u8]) -> Result<()> {
        for group in (0..self.geometry.groups).filter(|&group| self.sb.has_super(group)) {
            let block = self.sb.group_first_block(group);
            self.put(block + 1, table)?;
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
