//! Files: tables of blocks, and data.
//!
//! Files have no holes: a file that grows is filled with zeros up to the offset of the write. Data is
//! written to the device at once, in place or to blocks that nothing leads to yet. Then a change updates
//! the tables: new extension blocks ([`Stage::Fresh`]); entries of old extension blocks ([`Stage::Detach`]:
//! nothing reads entries past the size); size and table of the header ([`Stage::Attach`]). A file that
//! shrinks first loses its size, then entries of extension blocks ([`Stage::Cut`]).

use crate::bitmap::AllocSource;
use crate::inode::{BlockMap, InodeState, affs_inode, header_block};
use crate::layout::{ARCHIVED, Block, ST_FILE, get_block, put_block, put_tail_block, tail_block};
use crate::layout::{
    DATA_HEAD, T_DATA, T_LIST, checksum_is_valid, get32, head, put_tail32, put32, set_checksum, table_slot,
    tail,
};
use crate::volume::{Affs, CycleCheck};
use ivers_block::ByteOffset;
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage};
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum size of a file: the Amiga stores sizes as signed numbers.
pub(crate) const FILE_MAX: u64 = (1 << 31) - 1;
/// Maximum number of bytes in one read or write of the device.
const RUN_BYTES: usize = 1 << 20;

/// Bytes to write to a file.
struct NewData<'a> {
    offset: u64,
    data: &'a [u8],
}

impl Affs {
    /// Returns how many blocks this many data blocks take together with their extension blocks.
    fn blocks_with_tables(&self, data_blocks: u64) -> u64 {
        data_blocks + self.geometry.extensions(data_blocks)
    }

    /// Returns the blocks of a file.
    pub(crate) fn block_map(&self, inode: &Inode) -> Result<Arc<BlockMap>> {
        self.block_map_locked(&mut affs_inode(inode).state.lock(), header_block(inode))
    }

    fn block_map_locked(&self, state: &mut InodeState, block: Block) -> Result<Arc<BlockMap>> {
        if let Some(map) = &state.map {
            return Ok(map.clone());
        }
        let map = Arc::new(self.load_map(block)?);
        state.map = Some(map.clone());
        Ok(map)
    }

    /// Reads the tables of a file as far as its size requires.
    pub(crate) fn load_map(&self, block: Block) -> Result<BlockMap> {
        let header = self.header(block)?;
        let size = header.size();
        let want = self.geometry.data_blocks(size);
        if want > u64::from(self.geometry.blocks) {
            return Err(self
                .geometry
                .corrupt(block, format!("the size of a file, {size} bytes, is larger than the volume")));
        }
        let mut map = BlockMap { size, ..BlockMap::default() };
        let mut seen = HashSet::new();
        let mut table = header.bytes;
        let mut at = block;
        loop {
            for nth in 0..(want as usize - map.data.len()).min(self.geometry.table_len()) {
                let data = get_block(&table, table_slot(self.geometry.block_size, nth));
                if !self.is_inside(data) {
                    return Err(self.geometry.corrupt(
                        at,
                        format!(
                            "data block {} of file {block} refers to invalid block {data}",
                            map.data.len()
                        ),
                    ));
                }
                map.data.push(data);
            }
            if map.data.len() as u64 == want {
                let full = map.data.len() - map.extensions.len() * self.geometry.table_len();
                self.load_surplus(&mut map, block, at, full)?;
                return Ok(map);
            }
            at = tail_block(&table, tail::EXTENSION);
            if !seen.insert(at) {
                return Err(self
                    .geometry
                    .corrupt(at, format!("the extension blocks of file {block} form a cycle")));
            }
            table = self.read_extension(at, block)?;
            map.extensions.push(at);
        }
    }

    /// Adds the blocks that are named after entry `full` of the last table that the size requires.
    fn load_surplus(&self, map: &mut BlockMap, file: Block, mut at: Block, mut full: usize) -> Result<()> {
        let mut cycle = CycleCheck::new();
        loop {
            let table = self.checked_buffer(at, "a table of blocks")?.read();
            let slots = full..self.geometry.table_len();
            let entries = slots.map(|nth| get_block(&table, table_slot(self.geometry.block_size, nth)));
            map.surplus.extend(entries.take_while(|&entry| entry != Block::NONE));
            let next = tail_block(&table, tail::EXTENSION);
            if let Some(wrong) = map.surplus.iter().find(|&&entry| !self.is_inside(entry)) {
                return Err(self.geometry.corrupt(
                    at,
                    format!("an entry past the end of file {file} refers to invalid block {wrong}"),
                ));
            }
            if next == Block::NONE {
                return Ok(());
            }
            if !cycle.step(next) {
                return Err(self
                    .geometry
                    .corrupt(next, format!("the extension blocks of file {file} form a cycle")));
            }
            self.read_extension(next, file)?;
            map.surplus.push(next);
            (at, full) = (next, 0);
        }
    }

    /// Reads and checks an extension block of a file.
    pub(crate) fn read_extension(&self, at: Block, file: Block) -> Result<ivers_block::BufferRead> {
        let table = self.checked_buffer(at, "an extension block")?.read();
        let is_extension = get32(&table, head::TYPE) == T_LIST && get_block(&table, head::OWN_KEY) == at;
        if !is_extension || tail_block(&table, tail::PARENT) != file {
            return Err(self.geometry.corrupt(at, format!("not an extension block of file {file}")));
        }
        Ok(table)
    }

    fn device_offset(&self, block: Block) -> ByteOffset {
        block.no().offset(self.geometry.block_size)
    }

    /// Checks a data block of OFS and returns its data.
    fn ofs_payload<'a>(&self, bytes: &'a [u8], block: Block, file: Block, nth: usize) -> Result<&'a [u8]> {
        if !checksum_is_valid(bytes) || get32(bytes, head::TYPE) != T_DATA {
            return Err(self
                .geometry
                .corrupt(block, format!("not a data block, or it has a bad checksum (file {file})")));
        }
        let (key, seq) = (get_block(bytes, head::OWN_KEY), get32(bytes, head::HIGH_SEQ));
        if key != file || seq as usize != nth + 1 {
            return Err(self.geometry.corrupt(
                block,
                format!("data block {seq} of file {key} instead of data block {} of file {file}", nth + 1),
            ));
        }
        Ok(&bytes[DATA_HEAD..])
    }

    /// Reads a file from `offset`. The bytes of `buf` past the end of the file become zeros.
    fn read_mapped(&self, file: Block, map: &BlockMap, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        let len = self.geometry.data_len();
        let end = map.size.min(offset.saturating_add(buf.len() as u64));
        let block_size = self.geometry.block_size as usize;
        let mut at = offset;
        let mut raw = Vec::new();
        while at < end {
            let first = (at / len) as usize;
            let end_block = end.div_ceil(len) as usize;
            let run = map.data[first..end_block]
                .windows(2)
                .take_while(|pair| pair[0].no() + 1 == pair[1].no())
                .count()
                .min(RUN_BYTES / block_size - 1)
                + 1;
            raw.resize(run * block_size, 0);
            self.device().read_at(self.device_offset(map.data[first]), &mut raw)?;
            for (nth, bytes) in (first..).zip(raw.chunks(block_size)) {
                let data = match self.geometry.variant.ffs {
                    true => bytes,
                    false => self.ofs_payload(bytes, map.data[nth], file, nth)?,
                };
                let skip = (at - nth as u64 * len) as usize;
                let take = (data.len() - skip).min((end - at) as usize);
                let to = (at - offset) as usize;
                buf[to..to + take].copy_from_slice(&data[skip..skip + take]);
                at += take as u64;
            }
        }
        Ok(())
    }

    pub(crate) fn fs_read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let map = self.block_map(inode)?;
        self.read_mapped(header_block(inode), &map, offset, buf)
    }

    /// Writes `new` to a file whose blocks and size change from `old` to `map`. The bytes between the old
    /// end and the new bytes become zeros. Nothing on the device leads to the new blocks yet.
    fn write_data(&self, file: Block, old: &BlockMap, map: &BlockMap, new: &NewData<'_>) -> Result<()> {
        let len = self.geometry.data_len();
        let block_size = self.geometry.block_size as usize;
        let new_end = new.offset + new.data.len() as u64;
        let grows = map.size > old.size;
        let mut first = if grows { old.size.min(new.offset) / len } else { new.offset / len };
        if map.data.len() > old.data.len() && !self.geometry.variant.ffs {
            // The last block names the block that follows it.
            first = first.min((old.data.len() as u64).saturating_sub(1));
        }
        let end_block = if grows { map.data.len() } else { new_end.div_ceil(len) as usize };
        let mut raw: Vec<u8> = Vec::new();
        let mut raw_at = ByteOffset(0);
        for nth in first as usize..end_block {
            let start = nth as u64 * len;
            let mut data = vec![0; len as usize];
            let needed = (start + len).min(old.size.max(map.size));
            if nth < old.data.len() && !(new.offset <= start && new_end >= needed) {
                self.read_mapped(file, old, start, &mut data)?;
            }
            let (from, to) = (new.offset.clamp(start, start + len), new_end.clamp(start, start + len));
            if from < to {
                let bytes = &new.data[(from - new.offset) as usize..(to - new.offset) as usize];
                data[(from - start) as usize..(to - start) as usize].copy_from_slice(bytes);
            }
            let block = map.data[nth];
            let joins = raw_at + raw.len() as u64 == self.device_offset(block) && raw.len() < RUN_BYTES;
            if !joins {
                self.write_raw(raw_at, &raw)?;
                raw.clear();
                raw_at = self.device_offset(block);
            }
            if self.geometry.variant.ffs {
                raw.extend_from_slice(&data);
                continue;
            }
            let mut bytes = vec![0; DATA_HEAD];
            bytes.extend_from_slice(&data);
            put32(&mut bytes, head::TYPE, T_DATA);
            put_block(&mut bytes, head::OWN_KEY, file);
            put32(&mut bytes, head::HIGH_SEQ, nth as u32 + 1);
            put32(&mut bytes, head::TABLE_SIZE, (map.size - start).min(len) as u32);
            put_block(&mut bytes, head::FIRST_DATA, map.data.get(nth + 1).copied().unwrap_or(Block::NONE));
            set_checksum(&mut bytes, head::CHECKSUM);
            debug_assert_eq!(bytes.len(), block_size);
            raw.extend_from_slice(&bytes);
        }
        self.write_raw(raw_at, &raw)
    }

    fn write_raw(&self, byte: ByteOffset, raw: &[u8]) -> Result<()> {
        if raw.is_empty() { Ok(()) } else { self.device().write_at(byte, raw).map_err(Error::file_data) }
    }

    /// Returns the entries of an extension block, and the extension block that follows it.
    fn extension_entries<'a>(&self, map: &'a BlockMap, nth: usize) -> (&'a [Block], Block) {
        let per = self.geometry.table_len();
        let entries = &map.data[(nth + 1) * per..map.data.len().min((nth + 2) * per)];
        (entries, map.extensions.get(nth + 1).copied().unwrap_or(Block::NONE))
    }

    pub(crate) fn set_table(&self, bytes: &mut [u8], entries: &[Block], next: Block) {
        let slots =
            (0..self.geometry.table_len()).zip(entries.iter().copied().chain(std::iter::repeat(Block::NONE)));
        for (nth, entry) in slots {
            put_block(bytes, table_slot(self.geometry.block_size, nth), entry);
        }
        put32(bytes, head::HIGH_SEQ, entries.len() as u32);
        put_tail_block(bytes, tail::EXTENSION, next);
    }

    /// Changes the tables from `old` to `map`. `protect` is `None` for a new file.
    fn update_tables(
        &self,
        change: &Change<'_>,
        file: Block,
        old: &BlockMap,
        map: &BlockMap,
        protect: Option<u32>,
    ) -> Result<()> {
        let grows = map.data.len() >= old.data.len();
        for (nth, &extension) in map.extensions.iter().enumerate() {
            let part = self.extension_entries(map, nth);
            let write = |bytes: &mut [u8]| self.set_table(bytes, part.0, part.1);
            if nth >= old.extensions.len() {
                self.write_fresh(change, extension, |bytes| {
                    put32(bytes, head::TYPE, T_LIST);
                    put_block(bytes, head::OWN_KEY, extension);
                    put_tail_block(bytes, tail::PARENT, file);
                    put_tail32(bytes, tail::SEC_TYPE, ST_FILE);
                    write(bytes);
                })?;
            } else if part != self.extension_entries(old, nth) || !old.surplus.is_empty() {
                self.edit(change, extension, if grows { Stage::Detach } else { Stage::Cut }, write)?;
            }
        }
        // Nothing leads to a new file yet, so it must be complete before something does.
        let stage = if protect.is_some() { Stage::Attach } else { Stage::Fresh };
        self.mark_record_stale(file);
        let entries = &map.data[..map.data.len().min(self.geometry.table_len())];
        let next = map.extensions.first().copied().unwrap_or(Block::NONE);
        if !old.surplus.is_empty() {
            self.bitmap.free(change, &old.surplus)?;
        }
        self.edit(change, file, stage, |bytes| {
            self.set_table(bytes, entries, next);
            put_block(bytes, head::FIRST_DATA, entries.first().copied().unwrap_or(Block::NONE));
            put_tail32(bytes, tail::BYTE_SIZE, map.size as u32);
            if let Some(protect) = protect {
                put_tail32(bytes, tail::PROTECT, protect);
            }
        })
    }

    /// Returns the map for a file of `size` bytes. Allocates the new blocks, after the old ones if
    /// possible.
    fn extended_map(
        &self,
        change: &Change<'_>,
        old: &BlockMap,
        size: u64,
        goal: Block,
        source: AllocSource,
    ) -> Result<BlockMap> {
        let data = self.geometry.data_blocks(size);
        let new_data = data.saturating_sub(old.data.len() as u64);
        let new_extensions = self.geometry.extensions(data).saturating_sub(old.extensions.len() as u64);
        let goal = old.data.last().map_or(goal, |last| Block(last.0 + 1));
        let mut blocks = self.bitmap.allocate(change, goal, new_data + new_extensions, source)?;
        let mut map = BlockMap { size, surplus: Vec::new(), ..old.clone() };
        map.extensions.extend(blocks.drain(new_data as usize..));
        map.data.extend(blocks);
        Ok(map)
    }

    /// Writes to a file, and grows it to `size` if it is shorter. The caller holds the write-back lock or
    /// the exclusive lock, so that no other thread changes the map.
    fn write_file(&self, inode: &Inode, size: u64, new: &NewData<'_>) -> Result<()> {
        let file = header_block(inode);
        let this = affs_inode(inode);
        let (old, shrink_ticket, reserved) = {
            let mut state = this.state.lock();
            let (shrink_ticket, reserved) = (state.shrink_ticket, state.reserved);
            (self.block_map_locked(&mut state, file)?, shrink_ticket, reserved)
        };
        // The truncation must be durable before the same tables or the last block change again.
        self.settle(shrink_ticket)?;
        if size <= old.size {
            self.wait_for_batch(|ordered| ordered.begin())?;
            return self.write_data(file, &old, &old, new);
        }
        if size > FILE_MAX {
            return Err(NameError::TooLarge.into());
        }
        let map = self.extended_map(&self.change()?, &old, size, file, AllocSource::Reservation(reserved))?;
        if let Err(error) = self.write_data(file, &old, &map, new) {
            let change = self.change()?;
            self.bitmap.free(&change, &map.data[old.data.len()..])?;
            self.bitmap.free(&change, &map.extensions[old.extensions.len()..])?;
            let mut state = this.state.lock();
            // Allocating the blocks used up this part of the reservation.
            let used = self.blocks_with_tables(map.data.len() as u64)
                - self.blocks_with_tables(old.data.len() as u64);
            state.reserved -= state.reserved.min(used);
            self.trim_reservation(&mut state, old.data.len() as u64);
            return Err(error);
        }
        let change = self.change()?;
        let mut state = this.state.lock();
        state.protect &= !ARCHIVED;
        self.update_tables(&change, file, &old, &map, Some(state.protect))?;
        let (data, grew) = (map.data.len() as u64, map.data.len() > old.data.len());
        state.map = Some(Arc::new(map));
        state.reserved -= state
            .reserved
            .min(self.blocks_with_tables(data) - self.blocks_with_tables(old.data.len() as u64));
        self.trim_reservation(&mut state, 0);
        self.update_blocks_512(inode, data);
        drop(state);
        if grew {
            inode.logged_in_background();
        }
        Ok(())
    }

    /// Returns the 512-byte units that the inode uses, or will use when its pages are written.
    pub(crate) fn fs_blocks_512(&self, inode: &Inode) -> u64 {
        let state = affs_inode(inode).state.lock();
        let reserved = state.reserved * u64::from(self.geometry.block_size / 512);
        inode.with_attr(|attr| attr.blocks_512) + reserved
    }

    /// Updates `blocks_512`. The caller holds the lock of the reservation, so that both change together.
    fn update_blocks_512(&self, inode: &Inode, data_blocks: u64) {
        let blocks = 1 + self.blocks_with_tables(data_blocks);
        inode.with_attr(|attr| attr.blocks_512 = blocks * u64::from(self.geometry.block_size / 512));
    }

    pub(crate) fn fs_write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let end = (offset + data.len() as u64).min(inode.size());
        let Some(len) = end.checked_sub(offset).filter(|&len| len > 0) else { return Ok(()) };
        let new = NewData { offset, data: &data[..len as usize] };
        self.write_file(inode, end, &new)
    }

    /// Releases what the pages up to `reserved_end` do not need beyond the blocks of the file. If `end` is
    /// not 0, it first lowers `reserved_end` to it.
    fn trim_reservation(&self, state: &mut InodeState, end: u64) {
        let present = state.map.as_ref().map_or(0, |map| map.data.len() as u64);
        if end > 0 {
            state.reserved_end = state.reserved_end.min(end);
        }
        let need =
            self.blocks_with_tables(state.reserved_end.max(present)) - self.blocks_with_tables(present);
        let released = state.reserved.saturating_sub(need);
        state.reserved -= released;
        self.bitmap.unreserve(released);
    }

    pub(crate) fn fs_reserve(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let mut state = affs_inode(inode).state.lock();
        let present = self.block_map_locked(&mut state, header_block(inode))?.data.len() as u64;
        let end = self.geometry.data_blocks(offset.saturating_add(len)).max(state.reserved_end);
        let need = (self.blocks_with_tables(end.max(present)) - self.blocks_with_tables(present))
            .saturating_sub(state.reserved);
        self.bitmap.reserve(need)?;
        state.reserved += need;
        state.reserved_end = end;
        Ok(())
    }

    pub(crate) fn fs_unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let mut state = affs_inode(inode).state.lock();
        let end = offset.saturating_add(len);
        if self.geometry.data_blocks(end) >= state.reserved_end {
            let kept = self.geometry.data_blocks(offset);
            state.reserved_end = state.reserved_end.min(kept);
            self.trim_reservation(&mut state, 0);
        }
    }

    /// Releases the whole reservation of an inode: none of its pages will be written.
    pub(crate) fn drop_reservation(&self, inode: &Inode) {
        let mut state = affs_inode(inode).state.lock();
        self.bitmap.unreserve(std::mem::take(&mut state.reserved));
        state.reserved_end = 0;
    }

    pub(crate) fn fs_truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        let old = self.block_map(inode)?;
        if size >= old.size {
            let new = NewData { offset: size, data: &[] };
            if size > old.size {
                self.write_file(inode, size, &new)?;
            }
        } else {
            self.shrink(inode, &old, size)?;
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(inode)
    }

    fn shrink(&self, inode: &Inode, old: &BlockMap, size: u64) -> Result<()> {
        let this = affs_inode(inode);
        let file = header_block(inode);
        let shrink_ticket = this.state.lock().shrink_ticket;
        self.settle(shrink_ticket)?;
        let data = self.geometry.data_blocks(size);
        let extensions = self.geometry.extensions(data) as usize;
        let mut map = BlockMap { size, surplus: Vec::new(), ..old.clone() };
        let mut freed = map.data.split_off(data as usize);
        freed.extend(map.extensions.split_off(extensions));
        let change = self.change()?;
        let mut state = this.state.lock();
        state.protect &= !ARCHIVED;
        self.bitmap.free(&change, &freed)?;
        self.update_tables(&change, file, old, &map, Some(state.protect))?;
        if let (Some(&last), false) = (map.data.last(), self.geometry.variant.ffs) {
            // Data is written without the cache, so the cached block may be old.
            self.cache.forget(last.no());
            self.ofs_payload(
                &self.checked_buffer(last, "a data block")?.read(),
                last,
                file,
                data as usize - 1,
            )?;
            self.set_last_block(&change, last, self.last_block_len(&map))?;
        }
        state.shrink_ticket = change.ticket();
        state.map = Some(Arc::new(map));
        state.reserved_end = 0;
        self.trim_reservation(&mut state, 0);
        self.update_blocks_512(inode, data);
        Ok(())
    }

    /// Returns how many bytes the last data block of an OFS file counts.
    fn last_block_len(&self, map: &BlockMap) -> u32 {
        (map.size - (map.data.len() as u64 - 1) * self.geometry.data_len()) as u32
    }

    /// Marks a data block of OFS as the last one of its file.
    pub(crate) fn set_last_block(&self, change: &Change<'_>, last: Block, len: u32) -> Result<()> {
        self.edit(change, last, Stage::Cut, |bytes| {
            put32(bytes, head::TABLE_SIZE, len);
            put_block(bytes, head::FIRST_DATA, Block::NONE);
        })
    }

    /// Returns the last data block of an OFS file and its correct count, if the block counts more than the
    /// file's size. An append that a crash interrupted leaves it. A damaged block is left to its readers.
    pub(crate) fn stale_last_block(&self, map: &BlockMap) -> Result<Option<(Block, u32)>> {
        let (Some(&last), false) = (map.data.last(), self.geometry.variant.ffs) else { return Ok(None) };
        let len = self.last_block_len(map);
        match self.checked_buffer(last, "a data block") {
            Ok(block) => {
                let bytes = block.read();
                let is_end = (get32(&bytes, head::TABLE_SIZE), get_block(&bytes, head::FIRST_DATA))
                    == (len, Block::NONE);
                Ok((!is_end).then_some((last, len)))
            }
            Err(Error::Corrupt { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes data and tables of a new file that is filled with zeros, and returns its map. The caller
    /// writes the header.
    pub(crate) fn write_zeros(&self, file: Block, size: u64) -> Result<BlockMap> {
        let none = BlockMap::default();
        let map = self.extended_map(&self.change()?, &none, size, file, AllocSource::Unreserved)?;
        if let Err(error) = self.write_data(file, &none, &map, &NewData { offset: size, data: &[] }) {
            let change = self.change()?;
            self.bitmap.free(&change, &map.data)?;
            self.bitmap.free(&change, &map.extensions)?;
            return Err(error);
        }
        Ok(map)
    }

    /// Writes the tables of a new file.
    pub(crate) fn write_new_tables(&self, change: &Change<'_>, file: Block, map: &BlockMap) -> Result<()> {
        self.update_tables(change, file, &BlockMap::default(), map, None)
    }

    pub(crate) fn fs_map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        // A block of OFS has fewer bytes of data than its size, by which the VFS counts. No file has blocks
        // past its end.
        let end = self.block_map(inode)?.size.next_multiple_of(u64::from(self.geometry.block_size));
        Ok(match offset < end {
            true => MappedRange { start: 0, len: end, kind: RangeKind::Data },
            false => MappedRange { start: end, len: u64::MAX - end, kind: RangeKind::Hole },
        })
    }

    pub(crate) fn fs_fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        // A file has no blocks past its end and no holes.
        if !mode.is_empty() {
            return Err(NameError::NotSupported.into());
        }
        let old = self.block_map(inode)?.size;
        if end > old.max(inode.size()) {
            self.write_file(inode, end, &NewData { offset: end, data: &[] })?;
            inode.with_attr(|attr| attr.size = attr.size.max(end));
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(inode)
    }
}
