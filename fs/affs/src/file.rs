//! Files: the tables of their blocks, and data.
//!
//! There are no holes: a file that grows is filled with zeros up to where it is written. Data goes to the device at once, to blocks that nothing leads to yet
//! or in place; then the tables follow by a change: new extension blocks ([`Stage::Fresh`]), entries of old ones ([`Stage::Detach`]: they name more than the
//! size says, which nobody reads), then size and table of the header ([`Stage::Attach`]). A shrinking file loses its size first and entries of
//! extension blocks then ([`Stage::Cut`]).

use crate::layout::{ARCHIVED, Block, ST_FILE, get_block, put_block, put_tail_block, tail_block};
use crate::layout::{
    DATA_HEAD, T_DATA, T_LIST, get32, head, is_sealed, put_tail32, put32, seal, table_slot, tail,
};
use crate::node::{Map, State, block_of, node};
use crate::space::Claim;
use crate::volume::{Affs, Hops};
use ivers_block::ByteOffset;
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage};
use std::collections::HashSet;
use std::sync::Arc;

/// Files are written up to here: the Amiga takes sizes as signed.
pub(crate) const FILE_MAX: u64 = (1 << 31) - 1;
/// As much is read or written at once.
const RUN_BYTES: usize = 1 << 20;

/// New bytes of a file.
struct Bytes<'a> {
    offset: u64,
    data: &'a [u8],
}

impl Affs {
    /// Blocks that so many data blocks take with their tables.
    fn cost(&self, data_blocks: u64) -> u64 {
        data_blocks + self.shape.extensions(data_blocks)
    }

    /// Where a file lies.
    pub(crate) fn map_of(&self, inode: &Inode) -> Result<Arc<Map>> {
        self.map_in(&mut node(inode).state.lock(), block_of(inode))
    }

    fn map_in(&self, state: &mut State, block: Block) -> Result<Arc<Map>> {
        if let Some(map) = &state.map {
            return Ok(map.clone());
        }
        let map = Arc::new(self.load_map(block)?);
        state.map = Some(map.clone());
        Ok(map)
    }

    /// Reads the tables of a file, as far as its size needs them.
    pub(crate) fn load_map(&self, block: Block) -> Result<Map> {
        let header = self.header(block)?;
        let size = header.size();
        let want = self.shape.data_blocks(size);
        if want > u64::from(self.shape.blocks) {
            return Err(self.shape.damaged(block, format!("a file of {size} bytes on a smaller volume")));
        }
        let mut map = Map { size, ..Map::default() };
        let mut seen = HashSet::new();
        let mut table = header.bytes;
        let mut at = block;
        loop {
            for nth in 0..(want as usize - map.data.len()).min(self.shape.table_len()) {
                let data = get_block(&table, table_slot(self.shape.block_size, nth));
                if !self.is_inside(data) {
                    return Err(self.shape.damaged(
                        at,
                        format!("data block {} of file {block} cannot be block {data}", map.data.len()),
                    ));
                }
                map.data.push(data);
            }
            if map.data.len() as u64 == want {
                let full = map.data.len() - map.extensions.len() * self.shape.table_len();
                self.load_surplus(&mut map, block, at, full)?;
                return Ok(map);
            }
            at = tail_block(&table, tail::EXTENSION);
            if !seen.insert(at) {
                return Err(self.shape.damaged(at, format!("the extension blocks of file {block} go round")));
            }
            table = self.extension(at, block)?;
            map.extensions.push(at);
        }
    }

    /// Blocks that are named behind entry `full` of the last table that the size needs.
    fn load_surplus(&self, map: &mut Map, file: Block, mut at: Block, mut full: usize) -> Result<()> {
        let mut hops = Hops::new();
        loop {
            let table = self.sealed(at, "a table of blocks")?.read();
            let slots = full..self.shape.table_len();
            let entries = slots.map(|nth| get_block(&table, table_slot(self.shape.block_size, nth)));
            map.surplus.extend(entries.take_while(|&entry| entry != Block::NONE));
            let next = tail_block(&table, tail::EXTENSION);
            if let Some(wrong) = map.surplus.iter().find(|&&entry| !self.is_inside(entry)) {
                return Err(self
                    .shape
                    .damaged(at, format!("a block behind the end of file {file} cannot be block {wrong}")));
            }
            if next == Block::NONE {
                return Ok(());
            }
            if !hops.step(next) {
                return Err(self
                    .shape
                    .damaged(next, format!("the extension blocks of file {file} go round")));
            }
            self.extension(next, file)?;
            map.surplus.push(next);
            (at, full) = (next, 0);
        }
    }

    /// An extension block of a file, checked.
    pub(crate) fn extension(&self, at: Block, file: Block) -> Result<ivers_block::BufferRead> {
        let table = self.sealed(at, "an extension block")?.read();
        let is_one = get32(&table, head::TYPE) == T_LIST && get_block(&table, head::OWN_KEY) == at;
        if !is_one || tail_block(&table, tail::PARENT) != file {
            return Err(self.shape.damaged(at, format!("no extension block of file {file}")));
        }
        Ok(table)
    }

    fn byte_of(&self, block: Block) -> ByteOffset {
        block.no().offset(self.shape.block_size)
    }

    /// The data of an OFS block, checked.
    fn unwrap<'a>(&self, bytes: &'a [u8], block: Block, file: Block, nth: usize) -> Result<&'a [u8]> {
        if !is_sealed(bytes) || get32(bytes, head::TYPE) != T_DATA {
            return Err(self
                .shape
                .damaged(block, format!("no data block, or its checksum is wrong (file {file})")));
        }
        let (key, seq) = (get_block(bytes, head::OWN_KEY), get32(bytes, head::HIGH_SEQ));
        if key != file || seq as usize != nth + 1 {
            return Err(self
                .shape
                .damaged(block, format!("block {seq} of file {key}, not {} of file {file}", nth + 1)));
        }
        Ok(&bytes[DATA_HEAD..])
    }

    /// Fills `buf` with what the file holds from `offset` on; zeros behind its end.
    fn read_file(&self, file: Block, map: &Map, offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        let len = self.shape.data_len();
        let end = map.size.min(offset.saturating_add(buf.len() as u64));
        let block_size = self.shape.block_size as usize;
        let mut at = offset;
        let mut raw = Vec::new();
        while at < end {
            let first = (at / len) as usize;
            let behind = end.div_ceil(len) as usize;
            let run = map.data[first..behind]
                .windows(2)
                .take_while(|pair| pair[0].no() + 1 == pair[1].no())
                .count()
                .min(RUN_BYTES / block_size - 1)
                + 1;
            raw.resize(run * block_size, 0);
            self.device().read_at(self.byte_of(map.data[first]), &mut raw)?;
            for (nth, bytes) in (first..).zip(raw.chunks(block_size)) {
                let data = match self.shape.flavour.ffs {
                    true => bytes,
                    false => self.unwrap(bytes, map.data[nth], file, nth)?,
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
        let map = self.map_of(inode)?;
        self.read_file(block_of(inode), &map, offset, buf)
    }

    /// Writes `new` into a file that had the blocks and the size of `old` and now has those of `map`; what lies between the old end and the new bytes becomes
    /// zeros. Nothing on the device leads to blocks that are new.
    fn store(&self, file: Block, old: &Map, map: &Map, new: &Bytes<'_>) -> Result<()> {
        let len = self.shape.data_len();
        let block_size = self.shape.block_size as usize;
        let new_end = new.offset + new.data.len() as u64;
        let grows = map.size > old.size;
        let mut first = if grows { old.size.min(new.offset) / len } else { new.offset / len };
        if map.data.len() > old.data.len() && !self.shape.flavour.ffs {
            // The last block names the one that follows it.
            first = first.min((old.data.len() as u64).saturating_sub(1));
        }
        let behind = if grows { map.data.len() } else { new_end.div_ceil(len) as usize };
        let mut raw: Vec<u8> = Vec::new();
        let mut raw_at = ByteOffset(0);
        for nth in first as usize..behind {
            let start = nth as u64 * len;
            let mut data = vec![0; len as usize];
            let needed = (start + len).min(old.size.max(map.size));
            if nth < old.data.len() && !(new.offset <= start && new_end >= needed) {
                self.read_file(file, old, start, &mut data)?;
            }
            let (from, to) = (new.offset.clamp(start, start + len), new_end.clamp(start, start + len));
            if from < to {
                let bytes = &new.data[(from - new.offset) as usize..(to - new.offset) as usize];
                data[(from - start) as usize..(to - start) as usize].copy_from_slice(bytes);
            }
            let block = map.data[nth];
            let joins = raw_at + raw.len() as u64 == self.byte_of(block) && raw.len() < RUN_BYTES;
            if !joins {
                self.write_raw(raw_at, &raw)?;
                raw.clear();
                raw_at = self.byte_of(block);
            }
            if self.shape.flavour.ffs {
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
            seal(&mut bytes, head::CHECKSUM);
            debug_assert_eq!(bytes.len(), block_size);
            raw.extend_from_slice(&bytes);
        }
        self.write_raw(raw_at, &raw)
    }

    fn write_raw(&self, byte: ByteOffset, raw: &[u8]) -> Result<()> {
        if raw.is_empty() { Ok(()) } else { self.device().write_at(byte, raw).map_err(Error::file_data) }
    }

    /// The entries of an extension block, and the block that follows it.
    fn part_of<'a>(&self, map: &'a Map, nth: usize) -> (&'a [Block], Block) {
        let per = self.shape.table_len();
        let entries = &map.data[(nth + 1) * per..map.data.len().min((nth + 2) * per)];
        (entries, map.extensions.get(nth + 1).copied().unwrap_or(Block::NONE))
    }

    pub(crate) fn put_table(&self, bytes: &mut [u8], entries: &[Block], next: Block) {
        let slots =
            (0..self.shape.table_len()).zip(entries.iter().copied().chain(std::iter::repeat(Block::NONE)));
        for (nth, entry) in slots {
            put_block(bytes, table_slot(self.shape.block_size, nth), entry);
        }
        put32(bytes, head::HIGH_SEQ, entries.len() as u32);
        put_tail_block(bytes, tail::EXTENSION, next);
    }

    /// Brings the tables from `old` to `map`, by a change.
    fn put_map(
        &self,
        change: &Change<'_>,
        file: Block,
        old: &Map,
        map: &Map,
        protect: Option<u32>,
    ) -> Result<()> {
        let grows = map.data.len() >= old.data.len();
        for (nth, &extension) in map.extensions.iter().enumerate() {
            let part = self.part_of(map, nth);
            let write = |bytes: &mut [u8]| self.put_table(bytes, part.0, part.1);
            if nth >= old.extensions.len() {
                self.write_fresh(change, extension, |bytes| {
                    put32(bytes, head::TYPE, T_LIST);
                    put_block(bytes, head::OWN_KEY, extension);
                    put_tail_block(bytes, tail::PARENT, file);
                    put_tail32(bytes, tail::SEC_TYPE, ST_FILE);
                    write(bytes);
                })?;
            } else if part != self.part_of(old, nth) || !old.surplus.is_empty() {
                self.edit(change, extension, if grows { Stage::Detach } else { Stage::Cut }, write)?;
            }
        }
        // Nothing leads to a new file yet: it is whole when something does.
        let stage = if protect.is_some() { Stage::Attach } else { Stage::Fresh };
        self.is_stale(file);
        let entries = &map.data[..map.data.len().min(self.shape.table_len())];
        let next = map.extensions.first().copied().unwrap_or(Block::NONE);
        if !old.surplus.is_empty() {
            self.space.give_up(change, &old.surplus)?;
        }
        self.edit(change, file, stage, |bytes| {
            self.put_table(bytes, entries, next);
            put_block(bytes, head::FIRST_DATA, entries.first().copied().unwrap_or(Block::NONE));
            put_tail32(bytes, tail::BYTE_SIZE, map.size as u32);
            if let Some(protect) = protect {
                put_tail32(bytes, tail::PROTECT, protect);
            }
        })
    }

    /// The map with so many more bytes: new blocks are taken and lie behind those that are there.
    fn longer(&self, change: &Change<'_>, old: &Map, size: u64, goal: Block, claim: Claim) -> Result<Map> {
        let data = self.shape.data_blocks(size);
        let new_data = data.saturating_sub(old.data.len() as u64);
        let new_extensions = self.shape.extensions(data).saturating_sub(old.extensions.len() as u64);
        let goal = old.data.last().map_or(goal, |last| Block(last.0 + 1));
        let mut blocks = self.space.take(change, goal, new_data + new_extensions, claim)?;
        let mut map = Map { size, surplus: Vec::new(), ..old.clone() };
        map.extensions.extend(blocks.drain(new_data as usize..));
        map.data.extend(blocks);
        Ok(map)
    }

    /// Writes, and grows the file to `size` if it is shorter. Under the write-back or the exclusive lock, so that nobody else changes the map.
    fn write_file(&self, inode: &Inode, size: u64, new: &Bytes<'_>) -> Result<()> {
        let file = block_of(inode);
        let this = node(inode);
        let (old, shrunk, promised) = {
            let mut state = this.state.lock();
            let (shrunk, promised) = (state.shrunk, state.promised);
            (self.map_in(&mut state, file)?, shrunk, promised)
        };
        // What was cut off goes home before the same blocks' tables, or the last block, change again.
        self.settle(shrunk)?;
        if size <= old.size {
            self.ordered()?.begin().map_err(crate::volume::order_error)?;
            return self.store(file, &old, &old, new);
        }
        if size > FILE_MAX {
            return Err(NameError::TooLarge.into());
        }
        let map = self.longer(&self.change()?, &old, size, file, Claim::Promised(promised))?;
        if let Err(error) = self.store(file, &old, &map, new) {
            let change = self.change()?;
            self.space.give_up(&change, &map.data[old.data.len()..])?;
            self.space.give_up(&change, &map.extensions[old.extensions.len()..])?;
            self.break_promises(&mut this.state.lock(), old.data.len() as u64);
            return Err(error);
        }
        let change = self.change()?;
        let mut state = this.state.lock();
        state.protect &= !ARCHIVED;
        self.put_map(&change, file, &old, &map, Some(state.protect))?;
        let (data, grew) = (map.data.len() as u64, map.data.len() > old.data.len());
        state.map = Some(Arc::new(map));
        state.promised -= state.promised.min(self.cost(data) - self.cost(old.data.len() as u64));
        self.break_promises(&mut state, 0);
        self.show_blocks(inode, data);
        drop(state);
        if grew {
            inode.logged_in_background();
        }
        Ok(())
    }

    /// 512-byte units that the inode takes, or will take when its pages are written.
    pub(crate) fn fs_blocks_512(&self, inode: &Inode) -> u64 {
        let state = node(inode).state.lock();
        let promised = state.promised * u64::from(self.shape.block_size / 512);
        inode.with_attr(|attr| attr.blocks_512) + promised
    }

    /// Under the lock under which promises are kept: what is shown of both goes together.
    fn show_blocks(&self, inode: &Inode, data_blocks: u64) {
        let blocks = 1 + self.cost(data_blocks);
        inode.with_attr(|attr| attr.blocks_512 = blocks * u64::from(self.shape.block_size / 512));
    }

    pub(crate) fn fs_write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let end = (offset + data.len() as u64).min(inode.size());
        let Some(len) = end.checked_sub(offset).filter(|&len| len > 0) else { return Ok(()) };
        let new = Bytes { offset, data: &data[..len as usize] };
        self.write_file(inode, end, &new)
    }

    /// Promised is what the pages up to `promised_end` need beyond what the file has. Brings it down to that; `end`: pages reach no further.
    fn break_promises(&self, state: &mut State, end: u64) {
        let have = state.map.as_ref().map_or(0, |map| map.data.len() as u64);
        if end > 0 {
            state.promised_end = state.promised_end.min(end);
        }
        let need = self.cost(state.promised_end.max(have)) - self.cost(have);
        let broken = state.promised.saturating_sub(need);
        state.promised -= broken;
        self.space.unpromise(broken);
    }

    pub(crate) fn fs_reserve(&self, inode: &Inode, offset: u64, len: u64) -> Result<()> {
        let mut state = node(inode).state.lock();
        let have = self.map_in(&mut state, block_of(inode))?.data.len() as u64;
        let end = self.shape.data_blocks(offset.saturating_add(len)).max(state.promised_end);
        let need = (self.cost(end.max(have)) - self.cost(have)).saturating_sub(state.promised);
        self.space.promise(need)?;
        state.promised += need;
        state.promised_end = end;
        Ok(())
    }

    pub(crate) fn fs_unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let mut state = node(inode).state.lock();
        let end = offset.saturating_add(len);
        if self.shape.data_blocks(end) >= state.promised_end {
            let kept = self.shape.data_blocks(offset);
            state.promised_end = state.promised_end.min(kept);
            self.break_promises(&mut state, 0);
        }
    }

    /// The inode goes: nothing of it will be written.
    pub(crate) fn forget_promises(&self, inode: &Inode) {
        let mut state = node(inode).state.lock();
        self.space.unpromise(std::mem::take(&mut state.promised));
        state.promised_end = 0;
    }

    pub(crate) fn fs_truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        let old = self.map_of(inode)?;
        if size >= old.size {
            let new = Bytes { offset: size, data: &[] };
            if size > old.size {
                self.write_file(inode, size, &new)?;
            }
        } else {
            self.cut(inode, &old, size)?;
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(inode)
    }

    fn cut(&self, inode: &Inode, old: &Map, size: u64) -> Result<()> {
        let this = node(inode);
        let file = block_of(inode);
        let shrunk = this.state.lock().shrunk;
        self.settle(shrunk)?;
        let data = self.shape.data_blocks(size);
        let extensions = self.shape.extensions(data) as usize;
        let mut map = Map { size, surplus: Vec::new(), ..old.clone() };
        let mut freed = map.data.split_off(data as usize);
        freed.extend(map.extensions.split_off(extensions));
        let change = self.change()?;
        let mut state = this.state.lock();
        state.protect &= !ARCHIVED;
        self.space.give_up(&change, &freed)?;
        self.put_map(&change, file, old, &map, Some(state.protect))?;
        if let (Some(&last), false) = (map.data.last(), self.shape.flavour.ffs) {
            // Data goes past the cache: what is there may be old.
            self.cache.forget(last.no());
            self.unwrap(&self.sealed(last, "a data block")?.read(), last, file, data as usize - 1)?;
            self.put_end(&change, last, self.last_len(&map))?;
        }
        state.shrunk = change.ticket();
        state.map = Some(Arc::new(map));
        state.promised_end = 0;
        self.break_promises(&mut state, 0);
        self.show_blocks(inode, data);
        Ok(())
    }

    /// How many bytes the last data block of OFS counts.
    fn last_len(&self, map: &Map) -> u32 {
        (map.size - (map.data.len() as u64 - 1) * self.shape.data_len()) as u32
    }

    /// Lets a data block of OFS be the last one.
    pub(crate) fn put_end(&self, change: &Change<'_>, last: Block, len: u32) -> Result<()> {
        self.edit(change, last, Stage::Cut, |bytes| {
            put32(bytes, head::TABLE_SIZE, len);
            put_block(bytes, head::FIRST_DATA, Block::NONE);
        })
    }

    /// The last data block of a file of OFS that says more than the file's size, and what it should count: what an append wrote that a crash cut off. One that is damaged is left to
    /// whoever reads it.
    pub(crate) fn loose_end(&self, map: &Map) -> Result<Option<(Block, u32)>> {
        let (Some(&last), false) = (map.data.last(), self.shape.flavour.ffs) else { return Ok(None) };
        let len = self.last_len(map);
        match self.sealed(last, "a data block") {
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

    /// Data and tables of a file that is being made with zeros; gives its map. The header is the caller's.
    pub(crate) fn make_zeros(&self, file: Block, size: u64) -> Result<Map> {
        let none = Map::default();
        let map = self.longer(&self.change()?, &none, size, file, Claim::Plain)?;
        self.store(file, &none, &map, &Bytes { offset: size, data: &[] })?;
        Ok(map)
    }

    /// Writes the tables of a new file.
    pub(crate) fn put_new_map(&self, change: &Change<'_>, file: Block, map: &Map) -> Result<()> {
        self.put_map(change, file, &Map::default(), map, None)
    }

    pub(crate) fn fs_map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let map = self.map_of(inode)?;
        let end = map.data.len() as u64 * self.shape.data_len();
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
        // Nothing lies behind the end of a file, and nothing inside it is missing.
        if !mode.is_empty() {
            return Err(NameError::NotSupported.into());
        }
        let old = self.map_of(inode)?.size;
        if end > old.max(inode.size()) {
            self.write_file(inode, end, &Bytes { offset: end, data: &[] })?;
            inode.with_attr(|attr| attr.size = attr.size.max(end));
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.fs_log_inode(inode)
    }
}
