//! Directory caches: `DOS\4` and `DOS\5` keep a copy of what stands in the headers of a directory's entries, record behind record in blocks of their own, so that a
//! directory can be listed without reading every header (FAQ 4.7).
//!
//! This driver lists by the headers, and keeps the caches for others. What holds of them, and when:
//!
//! - The *blocks* of a cache are as sound as a hash chain at any time: a new one is whole before anything leads to it ([`Stage::Fresh`]), one that goes is freed behind the batch in which it went. All
//!   else in a cache changes in [`Stage::Detach`], so that there is room for an entry when the entry comes.
//! - The *records* must hold where the bitmap must: on a volume that is marked as closed. What decides whether there is room (names that come and go, comments) changes its record at once, before
//!   anything else is changed. Dates, sizes, protection and owners leave a record as long as it is: their entries are noted ([`Caches::stale`]), and copied when the volume is closed.
//! - A volume that was not closed has every cache compared with its headers, and mended, before anything else is written to it.

use crate::layout::{
    Block, T_DIRCACHE, cache_record, cache_records, dirc, get_block, get32, head, put_block, put_tail_block,
    put32, record, tail, tail_block,
};
use crate::space::Claim;
use crate::volume::{Affs, Header, Hops};
use ivers_block::BufferRead;
use ivers_vfs::sync::Mutex;
use ivers_vfs::{Error, NameError, Result};
use ivers_write_ordering::{Change, Stage};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// What is known of the caches in memory.
#[derive(Default)]
pub(crate) struct Caches {
    /// Held by whoever changes a cache, under [`Affs::links`].
    changing: Mutex<()>,
    /// Headers that have changed and whose records have not.
    stale: Mutex<BTreeSet<Block>>,
}

/// A block of a cache.
pub(crate) struct Page {
    pub block: Block,
    bytes: BufferRead,
}

/// A block of a cache as it shall be.
struct Sheet<'a> {
    block: Block,
    /// `None`: it is new.
    was: Option<&'a [u8]>,
    records: Vec<Cow<'a, [u8]>>,
}

impl Sheet<'_> {
    fn len(&self) -> usize {
        self.records.iter().map(|record| record.len()).sum()
    }

    fn is_there(&self, next: Block) -> bool {
        let Some(was) = self.was else { return false };
        let mut rest = &was[dirc::LIST..];
        get32(was, dirc::RECORDS) as usize == self.records.len()
            && get_block(was, dirc::NEXT) == next
            && self.records.iter().all(|record| match rest.split_at_checked(record.len()) {
                Some((first, behind)) => {
                    rest = behind;
                    *first == **record
                }
                None => false,
            })
    }
}

/// Records by the entries' headers.
type Records = BTreeMap<Block, Vec<u8>>;

impl Affs {
    /// The blocks of a directory's cache.
    pub(crate) fn pages(&self, dir: Block) -> Result<Vec<Page>> {
        let mut pages = Vec::new();
        if !self.shape.flavour.cached {
            return Ok(pages);
        }
        let mut hops = Hops::new();
        let mut next = tail_block(&self.header(dir)?.bytes, tail::EXTENSION);
        while next != Block::NONE {
            let bytes = self.sealed(next, "a directory cache block")?.read();
            let is_one = get32(&bytes, head::TYPE) == T_DIRCACHE && get_block(&bytes, head::OWN_KEY) == next;
            if !is_one || get_block(&bytes, dirc::PARENT) != dir {
                return Err(self.shape.damaged(next, format!("no cache block of directory {dir}")));
            }
            if !hops.step(next) {
                return Err(self.shape.damaged(next, format!("the cache of directory {dir} goes round")));
            }
            let block = std::mem::replace(&mut next, get_block(&bytes, dirc::NEXT));
            pages.push(Page { block, bytes });
        }
        Ok(pages)
    }

    /// What a cache tells of an entry. `name`: that it is to have, where it has another one yet.
    pub(crate) fn record_of(&self, entry: &Header, name: Option<&[u8]>) -> Result<Vec<u8>> {
        let comment = self.comment_of(entry)?;
        let own = self.name_of(entry)?;
        Ok(cache_record(entry.block, &entry.bytes, name.unwrap_or(own), &comment))
    }

    /// The header of an entry has changed in what leaves its record as long as it is.
    pub(crate) fn is_stale(&self, block: Block) {
        if self.shape.flavour.cached && block != self.shape.root {
            self.caches.stale.lock().insert(block);
        }
    }

    /// The block is no header any more.
    pub(crate) fn is_not_stale(&self, block: Block) {
        self.caches.stale.lock().remove(&block);
    }

    /// Takes the records of these headers out of a directory's cache, and puts one in. Nothing is changed when there is no room for it.
    pub(crate) fn recache(
        &self,
        change: &Change<'_>,
        dir: Block,
        gone: &[Block],
        new: Option<Vec<u8>>,
        claim: Claim,
    ) -> Result<()> {
        let new = new.map(|record| (get_block(&record, record::HEADER), record));
        self.put_records(change, dir, new.into_iter().collect(), |entry| !gone.contains(&entry), claim)
    }

    /// The same where it is too late to turn back: without room the volume stays marked, and who opens it next mends the cache.
    pub(crate) fn recache_surely(
        &self,
        change: &Change<'_>,
        dir: Block,
        gone: &[Block],
        new: Option<Vec<u8>>,
    ) -> Result<()> {
        match self.recache(change, dir, gone, new, Claim::Kept) {
            Err(Error::Name(NameError::NoSpace)) => {
                log::warn!("{}: no room for the cache of directory {dir}", self.shape.place);
                self.space.keep_mark();
                Ok(())
            }
            done => done,
        }
    }

    /// Compares the cache of a directory with the headers, and mends it.
    pub(crate) fn mend_cache(&self, change: &Change<'_>, dir: Block) -> Result<()> {
        let wanted = self.all_records(dir)?;
        self.put_records(change, dir, wanted, |_| false, Claim::Kept)
    }

    fn all_records(&self, dir: Block) -> Result<Records> {
        let mut wanted = Records::new();
        for slot in 0..self.shape.table_len() {
            self.walk_chain(dir, slot, |_, entry| {
                wanted.insert(entry.block, self.record_of(&entry, None)?);
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(wanted)
    }

    /// Copies what was noted: the last thing before the volume is marked as closed.
    pub(crate) fn copy_stale(&self) -> Result<()> {
        let stale = std::mem::take(&mut *self.caches.stale.lock());
        let mut by_directory: BTreeMap<Block, Records> = BTreeMap::new();
        for block in stale {
            let header = self.header(block)?;
            let record = self.record_of(&header, None)?;
            by_directory.entry(header.parent()).or_default().insert(block, record);
        }
        for (dir, wanted) in by_directory {
            self.put_records(&self.change()?, dir, wanted, |_| true, Claim::Kept)?;
        }
        Ok(())
    }

    /// Sees to it that a directory's cache has the records that are wanted, and of the others those that stay.
    fn put_records(
        &self,
        change: &Change<'_>,
        dir: Block,
        mut wanted: Records,
        mut stays: impl FnMut(Block) -> bool,
        claim: Claim,
    ) -> Result<()> {
        if !self.shape.flavour.cached {
            return Ok(());
        }
        let _changing = self.caches.changing.lock();
        let pages = self.pages(dir)?;
        let is_whole = pages.iter().all(|page| cache_records(&page.bytes).is_some());
        let mut others = if is_whole { Records::new() } else { self.all_records(dir)? };
        let mut come = Vec::new();
        let mut sheets: Vec<Sheet<'_>> = Vec::new();
        for page in &pages {
            let mut sheet = Sheet { block: page.block, was: Some(&page.bytes), records: Vec::new() };
            // A page that is damaged is filled anew: nothing else depends on it.
            for old in if is_whole { cache_records(&page.bytes).unwrap_or_default() } else { Vec::new() } {
                let entry = get_block(old, record::HEADER);
                match wanted.remove(&entry) {
                    Some(new) if new.len() <= old.len() => sheet.records.push(Cow::Owned(new)),
                    Some(longer) => come.push(longer),
                    None if stays(entry) => sheet.records.push(Cow::Borrowed(old)),
                    None => {}
                }
            }
            sheets.push(sheet);
        }
        others.retain(|entry, _| !wanted.contains_key(entry) && stays(*entry));
        come.extend(others.into_values().chain(wanted.into_values()));
        self.place(&mut sheets, come);
        let mut gone: Vec<Block> =
            sheets.iter().filter(|sheet| sheet.records.is_empty()).map(|sheet| sheet.block).collect();
        if gone.len() == sheets.len() {
            // A directory has one at least.
            gone.remove(0);
        }
        sheets.retain(|sheet| !gone.contains(&sheet.block));
        let new: Vec<&mut Sheet<'_>> = sheets.iter_mut().filter(|sheet| sheet.was.is_none()).collect();
        let blocks = self.space.take(change, dir, new.len() as u64, claim)?;
        for (sheet, &block) in new.into_iter().zip(&blocks) {
            sheet.block = block;
            self.make_page(change, block, dir)?;
        }
        self.put_sheets(change, dir, &sheets)?;
        self.space.give_up(change, &gone)
    }

    /// Puts records where there is room, each behind the one before it, so that it takes one way through a cache however many they are.
    fn place<'a>(&self, sheets: &mut Vec<Sheet<'a>>, records: Vec<Vec<u8>>) {
        let room = self.shape.block_size as usize - dirc::LIST;
        let new = || Sheet { block: Block::NONE, was: None, records: Vec::new() };
        if sheets.is_empty() {
            sheets.push(new());
        }
        let (mut at, mut len) = (0, sheets[0].len());
        for record in records {
            while len + record.len() > room {
                at += 1;
                if at == sheets.len() {
                    sheets.push(new());
                }
                len = sheets[at].len();
            }
            len += record.len();
            sheets[at].records.push(Cow::Owned(record));
        }
    }

    /// A page without records, that nothing leads to yet.
    pub(crate) fn make_page(&self, change: &Change<'_>, block: Block, dir: Block) -> Result<()> {
        self.write_fresh(change, block, |bytes| {
            put32(bytes, head::TYPE, T_DIRCACHE);
            put_block(bytes, head::OWN_KEY, block);
            put_block(bytes, dirc::PARENT, dir);
        })
    }

    fn put_sheets(&self, change: &Change<'_>, dir: Block, sheets: &[Sheet<'_>]) -> Result<()> {
        let behind = sheets.iter().skip(1).map(|sheet| sheet.block).chain([Block::NONE]);
        for (sheet, next) in sheets.iter().zip(behind) {
            if sheet.is_there(next) {
                continue;
            }
            let list = sheet.records.concat();
            self.edit(change, sheet.block, Stage::Detach, |bytes| {
                put32(bytes, dirc::RECORDS, sheet.records.len() as u32);
                put_block(bytes, dirc::NEXT, next);
                bytes[dirc::LIST..].fill(0);
                bytes[dirc::LIST..dirc::LIST + list.len()].copy_from_slice(&list);
            })?;
        }
        let first = sheets.first().map_or(Block::NONE, |sheet| sheet.block);
        if tail_block(&self.header(dir)?.bytes, tail::EXTENSION) == first {
            return Ok(());
        }
        self.edit(change, dir, Stage::Detach, |bytes| put_tail_block(bytes, tail::EXTENSION, first))
    }
}
