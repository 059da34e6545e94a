//! Recovery: rebuilds the bitmap of a volume that was not closed cleanly, and completes what a crash
//! interrupted.
//!
//! The Amiga's validator does the same when it finds an invalid bitmap. The tree says which blocks are in
//! use, and the order of writes keeps the tree valid at any time. So a damaged tree has another cause than
//! a crash. Then nothing is written, and the volume is read-only with the damage as the reason.

use crate::bitmap::Bits;
use crate::layout::{Block, put_tail_block, tail};
use crate::names::Predecessor;
use crate::volume::{Affs, Header, Kind};
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// What a walk through the tree finds.
struct Walk {
    used: Bits,
    /// The hard links that are in a hash chain, by the entries that they refer to.
    links: BTreeMap<Block, Vec<Block>>,
    /// Headers with a chain of hard links.
    link_heads: Vec<Block>,
    /// Files whose tables name more blocks than their size requires.
    long_tables: Vec<Block>,
    /// Last data blocks of OFS that count more than the size of their file, with the correct count.
    stale_ends: Vec<(Block, u32)>,
    /// All directories.
    directories: Vec<Block>,
}

impl Affs {
    /// Repairs the volume so that it is writable, or makes it read-only with the reason.
    pub(crate) fn recover(&mut self) -> Result<()> {
        let recovered = self.walk().and_then(|walk| self.repair(walk));
        match recovered {
            Ok(()) => log::info!("{}: not closed cleanly; rebuilt the bitmap", self.geometry.place),
            Err(error @ (Error::Corrupt { .. } | Error::Io(_))) => {
                self.ordered = None;
                self.read_only = Some(format!("not closed cleanly, and damaged: {error}"));
            }
            Err(Error::Name(NameError::NoSpace)) => {
                self.ordered = None;
                self.read_only =
                    Some("not closed cleanly, and too full to repair its directory caches".into());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn mark_used(&self, walk: &mut Walk, block: Block) -> Result<()> {
        if walk.used.set(self.bitmap.bit_of(block), true) {
            return Err(self.geometry.corrupt(block, "the block belongs to two owners"));
        }
        Ok(())
    }

    fn walk(&self) -> Result<Walk> {
        let mut walk = Walk {
            used: self.bitmap.empty_bits(),
            links: BTreeMap::new(),
            link_heads: Vec::new(),
            long_tables: Vec::new(),
            stale_ends: Vec::new(),
            directories: Vec::new(),
        };
        for block in self.bitmap.system_blocks() {
            walk.used.set(self.bitmap.bit_of(block), true);
        }
        let mut directories = vec![self.geometry.root];
        loop {
            while let Some(dir) = directories.pop() {
                self.walk_directory(&mut walk, dir, &mut directories)?;
            }
            // If a crash interrupted a rename, the entry may be in no hash chain, but a link refers to it.
            let used = |real: Block| self.is_inside(real) && walk.used.get(self.bitmap.bit_of(real));
            let Some(unnamed) = walk.links.keys().copied().find(|&real| !used(real)) else { break };
            let header = self.header(unnamed)?;
            if !matches!(header.kind, Kind::File | Kind::Directory | Kind::SoftLink) {
                return Err(self
                    .geometry
                    .corrupt(unnamed, "a hard link refers to another hard link or to the root"));
            }
            self.mark_used(&mut walk, unnamed)?;
            self.mark_entry(&mut walk, &header, &mut directories)?;
        }
        Ok(walk)
    }

    fn walk_directory(&self, walk: &mut Walk, dir: Block, directories: &mut Vec<Block>) -> Result<()> {
        walk.directories.push(dir);
        for cache_block in self.cache_blocks(dir)? {
            self.mark_used(walk, cache_block.block)?;
        }
        for slot in 0..self.geometry.table_len() {
            self.walk_chain(dir, slot, |_: Predecessor, entry| {
                self.mark_used(walk, entry.block)?;
                if self.hash_slot(self.name_of(&entry)?) != slot {
                    return Err(self
                        .geometry
                        .corrupt(entry.block, "an entry is in the hash chain of another name"));
                }
                match entry.kind {
                    Kind::LinkFile | Kind::LinkDirectory => {
                        walk.links.entry(entry.real()).or_default().push(entry.block);
                    }
                    _ => self.mark_entry(walk, &entry, directories)?,
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(())
    }

    /// Marks the blocks of an entry as used.
    fn mark_entry(&self, walk: &mut Walk, entry: &Header, directories: &mut Vec<Block>) -> Result<()> {
        if entry.next_link() != Block::NONE {
            walk.link_heads.push(entry.block);
        }
        match entry.kind {
            Kind::Directory => directories.push(entry.block),
            Kind::File => {
                let map = self.load_map(entry.block)?;
                for &block in map.data.iter().chain(&map.extensions) {
                    self.mark_used(walk, block)?;
                }
                if !map.surplus.is_empty() {
                    walk.long_tables.push(entry.block);
                }
                walk.stale_ends.extend(self.stale_last_block(&map)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Repairs what a crash may leave, and rebuilds the bitmap. A crash between two steps leaves a volume
    /// that can be repaired again: a block is marked as free only when nothing names it.
    fn repair(&self, walk: Walk) -> Result<()> {
        {
            let change = self.change()?;
            for &file in &walk.long_tables {
                self.trim_tables(&change, file)?;
            }
            for &(last, len) in &walk.stale_ends {
                self.set_last_block(&change, last, len)?;
            }
            self.rebuild_link_chains(&change, &walk.links, &walk.link_heads)?;
        }
        self.sync()?;
        self.bitmap.rebuild(&self.change()?, &walk.used)?;
        self.sync()?;
        if self.geometry.variant.cached {
            for &dir in &walk.directories {
                self.repair_cache(&self.change()?, dir)?;
            }
            self.sync()?;
        }
        for (&real, links) in &walk.links {
            let header = self.header(real)?;
            let parent_exists = self.is_inside(header.parent()) || header.parent() == self.geometry.root;
            let has_own_name = parent_exists && self.has_own_name(&header)?;
            if let (false, Some(&link)) = (has_own_name, links.first()) {
                self.take_over_link(&self.change()?, real, &self.header(link)?)?;
                self.sync()?;
            }
        }
        Ok(())
    }

    /// Returns whether an entry is found under its own name.
    fn has_own_name(&self, entry: &Header) -> Result<bool> {
        let dir = self.header(entry.parent())?;
        if !dir.kind.is_dir() {
            return Ok(false);
        }
        let found = self.find(dir.block, self.name_of(entry)?)?;
        Ok(found.is_some_and(|found| found.entry.block == entry.block))
    }

    /// Clears the entries of a file's tables that its size does not require. An append that a crash
    /// interrupted leaves them.
    fn trim_tables(&self, change: &Change<'_>, file: Block) -> Result<()> {
        let map = self.load_map(file)?;
        let per = self.geometry.table_len();
        let last = map.extensions.last().copied().unwrap_or(file);
        let full = map.data.len() - map.extensions.len() * per;
        let entries = map.data[map.data.len() - full..].to_vec();
        self.edit(change, last, Stage::Attach, |bytes| self.set_table(bytes, &entries, Block::NONE))
    }

    /// Makes each chain of links contain exactly the links that are in a hash chain.
    fn rebuild_link_chains(
        &self,
        change: &Change<'_>,
        links: &BTreeMap<Block, Vec<Block>>,
        link_heads: &[Block],
    ) -> Result<()> {
        let none = Vec::new();
        for &real in link_heads.iter().chain(links.keys()) {
            let named = links.get(&real).unwrap_or(&none);
            let header = self.header(real)?;
            let chain: Option<Vec<Block>> =
                self.hard_links(&header).ok().map(|chain| chain.iter().map(|link| link.block).collect());
            let same = chain.is_some_and(|mut chain| {
                let mut named = named.clone();
                chain.sort_unstable();
                named.sort_unstable();
                chain == named
            });
            if same {
                continue;
            }
            for (&at, next) in [real].iter().chain(named).zip(named.iter().copied().chain([Block::NONE])) {
                self.edit(change, at, Stage::Attach, |bytes| put_tail_block(bytes, tail::NEXT_LINK, next))?;
            }
        }
        Ok(())
    }
}
