//! A volume that was not closed in good order: its bitmap is made anew from the tree, and what a crash left half done is completed.
//!
//! That is what the Amiga's own validator does when it meets an invalid bitmap, and for the same reason: the tree says what is in use, and the
//! order of writes sees to it that the tree is right at any time. If it is not right the volume was damaged by something else. Then nothing is changed,
//! and the volume is opened for reading only, with the damage as the reason.

use crate::layout::{Block, put_tail_block, tail};
use crate::names::Before;
use crate::space::Bits;
use crate::volume::{Affs, Header, Kind};
use ivers_vfs::*;
use ivers_write_ordering::Stage;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// What a walk through the tree finds.
struct Walk {
    used: Bits,
    /// By what they lead to: the hard links that have a place.
    links: BTreeMap<Block, Vec<Block>>,
    /// Headers that know of hard links, or should.
    known: Vec<Block>,
    /// Files whose tables name more blocks than their size needs.
    long: Vec<Block>,
    /// Last data blocks of OFS that say more than the size of their file, and what they should count.
    ends: Vec<(Block, u32)>,
    /// All directories.
    directories: Vec<Block>,
}

impl Affs {
    /// Makes the volume fit to be written to, or says in `read_only` why not.
    pub(crate) fn recover(&mut self) -> Result<()> {
        let recovered = self.walk().and_then(|walk| self.complete(walk));
        match recovered {
            Ok(()) => log::info!("{}: not closed in good order; the bitmap was made anew", self.shape.place),
            Err(error @ (Error::Corrupt { .. } | Error::Io(_))) => {
                self.ordered = None;
                self.read_only = Some(format!("not closed in good order, and damaged: {error}"));
            }
            Err(Error::Name(NameError::NoSpace)) => {
                self.ordered = None;
                self.read_only =
                    Some("not closed in good order, and too full to mend its directory caches".into());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn use_block(&self, walk: &mut Walk, block: Block) -> Result<()> {
        if walk.used.set(self.space.bit_of(block), true) {
            return Err(self.shape.damaged(block, "it belongs to two things"));
        }
        Ok(())
    }

    fn walk(&self) -> Result<Walk> {
        let mut walk = Walk {
            used: self.space.no_bits(),
            links: BTreeMap::new(),
            known: Vec::new(),
            long: Vec::new(),
            ends: Vec::new(),
            directories: Vec::new(),
        };
        for block in self.space.own() {
            walk.used.set(self.space.bit_of(block), true);
        }
        let mut directories = vec![self.shape.root];
        loop {
            while let Some(dir) = directories.pop() {
                self.walk_directory(&mut walk, dir, &mut directories)?;
            }
            // What lost its own name to a crash on the way to another one still has that of a link.
            let used = |real: Block| self.is_inside(real) && walk.used.get(self.space.bit_of(real));
            let Some(nameless) = walk.links.keys().copied().find(|&real| !used(real)) else { break };
            let header = self.header(nameless)?;
            if !matches!(header.kind, Kind::File | Kind::Directory | Kind::SoftLink) {
                return Err(self.shape.damaged(nameless, "a hard link leads to it, and it is one itself"));
            }
            self.use_block(&mut walk, nameless)?;
            self.use_entry(&mut walk, &header, &mut directories)?;
        }
        Ok(walk)
    }

    fn walk_directory(&self, walk: &mut Walk, dir: Block, directories: &mut Vec<Block>) -> Result<()> {
        walk.directories.push(dir);
        for page in self.pages(dir)? {
            self.use_block(walk, page.block)?;
        }
        for slot in 0..self.shape.table_len() {
            self.walk_chain(dir, slot, |_: Before, entry| {
                self.use_block(walk, entry.block)?;
                if self.slot_of(self.name_of(&entry)?) != slot {
                    return Err(self.shape.damaged(entry.block, "it stands in the chain of another name"));
                }
                match entry.kind {
                    Kind::LinkFile | Kind::LinkDirectory => {
                        walk.links.entry(entry.real()).or_default().push(entry.block);
                    }
                    _ => self.use_entry(walk, &entry, directories)?,
                }
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(())
    }

    /// Marks what an entry holds.
    fn use_entry(&self, walk: &mut Walk, entry: &Header, directories: &mut Vec<Block>) -> Result<()> {
        if entry.next_link() != Block::NONE {
            walk.known.push(entry.block);
        }
        match entry.kind {
            Kind::Directory => directories.push(entry.block),
            Kind::File => {
                let map = self.load_map(entry.block)?;
                for &block in map.data.iter().chain(&map.extensions) {
                    self.use_block(walk, block)?;
                }
                if !map.surplus.is_empty() {
                    walk.long.push(entry.block);
                }
                walk.ends.extend(self.loose_end(&map)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Mends what a crash may leave, and makes the bitmap anew. Each step leaves a volume that could be left so: blocks are marked as free when nothing names them
    /// any more.
    fn complete(&self, walk: Walk) -> Result<()> {
        {
            let change = self.change()?;
            for &file in &walk.long {
                self.shorten(&change, file)?;
            }
            for &(last, len) in &walk.ends {
                self.put_end(&change, last, len)?;
            }
            self.relink(&change, &walk.links, &walk.known)?;
        }
        self.sync()?;
        self.space.rebuild(&self.change()?, &walk.used)?;
        self.sync()?;
        if self.shape.flavour.cached {
            for &dir in &walk.directories {
                self.mend_cache(&self.change()?, dir)?;
            }
            self.sync()?;
        }
        for (&real, links) in &walk.links {
            let header = self.header(real)?;
            let parent_is_there = self.is_inside(header.parent()) || header.parent() == self.shape.root;
            let own = parent_is_there && self.stands(&header)?;
            if let (false, Some(&link)) = (own, links.first()) {
                self.replace_link(&self.change()?, real, &self.header(link)?)?;
                self.sync()?;
            }
        }
        Ok(())
    }

    /// Whether an entry can be found under its own name.
    fn stands(&self, entry: &Header) -> Result<bool> {
        let dir = self.header(entry.parent())?;
        if !dir.kind.is_dir() {
            return Ok(false);
        }
        let found = self.find(dir.block, self.name_of(entry)?)?;
        Ok(found.is_some_and(|found| found.entry.block == entry.block))
    }

    /// Takes names of blocks out of a file's tables that its size does not need: an append that a crash cut off.
    fn shorten(&self, change: &ivers_write_ordering::Change<'_>, file: Block) -> Result<()> {
        let map = self.load_map(file)?;
        let per = self.shape.table_len();
        let last = map.extensions.last().copied().unwrap_or(file);
        let full = map.data.len() - map.extensions.len() * per;
        let entries = map.data[map.data.len() - full..].to_vec();
        self.edit(change, last, Stage::Attach, |bytes| self.put_table(bytes, &entries, Block::NONE))
    }

    /// Lets each chain of links have those that have a place, and no others.
    fn relink(
        &self,
        change: &ivers_write_ordering::Change<'_>,
        links: &BTreeMap<Block, Vec<Block>>,
        known: &[Block],
    ) -> Result<()> {
        let none = Vec::new();
        for &real in known.iter().chain(links.keys()) {
            let placed = links.get(&real).unwrap_or(&none);
            let header = self.header(real)?;
            let chain: Option<Vec<Block>> =
                self.links_of(&header).ok().map(|chain| chain.iter().map(|link| link.block).collect());
            let same = chain.is_some_and(|mut chain| {
                let mut placed = placed.clone();
                chain.sort_unstable();
                placed.sort_unstable();
                chain == placed
            });
            if same {
                continue;
            }
            for (&at, next) in [real].iter().chain(placed).zip(placed.iter().copied().chain([Block::NONE])) {
                self.edit(change, at, Stage::Attach, |bytes| put_tail_block(bytes, tail::NEXT_LINK, next))?;
            }
        }
        Ok(())
    }
}
