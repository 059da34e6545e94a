//! Contents of files: writing, growing, shrinking.
//!
//! A write has three steps. It takes what it needs (marked in the first stage), writes the data, and then
//! changes pointers and size: pointers of existing indirect blocks in [`Stage::Detach`], the inode in
//! [`Stage::Attach`]. A file that shrinks first loses its size and the pointers of the inode, then pointers
//! of indirect blocks ([`Stage::Cut`]).

use crate::alloc::order_error;
use crate::layout::FieldsMut;
use crate::layout::dinode::Dinode;
use crate::layout::superblock::DIRECT;
use crate::volume::{Private, State, Ufs, private_of};
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::{Error, Inode, Logged, NameError, Result, Touch};
use ivers_write_ordering::{Change, Stage};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;

/// Fragments that lose their owner. Successive ones are one range, so that a large file needs little memory.
#[derive(Default)]
pub(crate) struct Freed {
    ranges: Vec<Range<u64>>,
    frags: u64,
}

impl Freed {
    fn push(&mut self, range: Range<u64>) {
        self.frags += range.end - range.start;
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }
}

/// A file block that gets a place, or more fragments in the place that it has.
struct Placed {
    start: u64,
    frags: u64,
    /// Its old fragments, if it moves.
    old: Option<Range<u64>>,
    /// How many fragments the file gains.
    gained: u64,
}

/// What a write takes, and which blocks it places.
#[derive(Default)]
pub(crate) struct Plan {
    placed: BTreeMap<u64, Placed>,
    /// Blocks for new indirect blocks.
    nodes: Vec<u64>,
    /// All that was taken, and the reservations that it used up.
    taken: Vec<Range<u64>>,
    used: Vec<(u32, u64)>,
    /// The file blocks of the data.
    written: Range<u64>,
    /// The size of the file on the device, after the write.
    size: u64,
}

impl Plan {
    /// Whether the inode stays as it is.
    fn changes_nothing(&self, dinode: &Dinode) -> bool {
        self.placed.is_empty() && self.size == dinode.size
    }

    /// The new place of a file block, and its old one if it moved.
    pub fn place_of(&self, block: u64) -> Option<(u64, Option<Range<u64>>)> {
        self.placed.get(&block).map(|placed| (placed.start, placed.old.clone()))
    }
}

impl Ufs {
    fn full_block(&self, start: u64) -> Range<u64> {
        start..start + u64::from(self.sb.frags_per_block)
    }

    /// Returns the fragment near which the blocks of a file are taken.
    fn near(&self, dinode: &Dinode, block: u64) -> Result<u64> {
        let before = match block.checked_sub(1) {
            Some(before) => self.map(dinode, FileBlock(before))?.start,
            None => None,
        };
        let home = self.sb.structure(dinode.ino / self.sb.inodes_per_group, 3);
        Ok(before.map_or(home, |start| start + u64::from(self.sb.frags_per_block)))
    }

    /// Takes what file blocks need in a file of `size` bytes.
    pub(crate) fn plan(
        &self,
        change: &Change<'_>,
        state: &State,
        blocks: &BTreeSet<u64>,
        size: u64,
    ) -> Result<Plan> {
        let mut plan = Plan { size: size.max(state.dinode.size), ..Plan::default() };
        match self.plan_blocks(change, state, blocks, &mut plan) {
            Ok(()) => Ok(plan),
            Err(error) => {
                self.alloc()?.cancel(change, &plan.taken, plan.used.len() as u64)?;
                Err(error)
            }
        }
    }

    fn plan_blocks(
        &self,
        change: &Change<'_>,
        state: &State,
        blocks: &BTreeSet<u64>,
        plan: &mut Plan,
    ) -> Result<()> {
        let (alloc, full) = (self.alloc()?, u64::from(self.sb.frags_per_block));
        let Some(&first) = blocks.first() else { return Ok(()) };
        let mut near = self.near(&state.dinode, first)?;
        let (mut whole, mut nodes) = (Vec::new(), BTreeSet::new());
        for &block in blocks {
            let start = self.map(&state.dinode, FileBlock(block))?.start;
            let want = self.sb.frags_of_block(plan.size, block);
            let have = if start.is_some() { self.sb.frags_of_block(state.dinode.size, block) } else { 0 };
            near = start.map_or(near, |start| start + full);
            if have >= want {
                continue;
            }
            if let Some(start) = start
                && have > 0
                && start % full + want <= full
                && alloc.extend(change, start + have..start + want)?
            {
                plan.taken.push(start + have..start + want);
                let placed = Placed { start, frags: want, old: None, gained: want - have };
                plan.placed.insert(block, placed);
                continue;
            }
            let old = start.filter(|_| have > 0).map(|start| start..start + have);
            if want == full {
                self.missing_nodes(state, block, |node| {
                    nodes.insert(node);
                })?;
                whole.push((block, old, full - have));
                continue;
            }
            let reserved = state.reserved.contains(&(0, block));
            let start = alloc.frags(change, near, want, reserved.into())?;
            plan.used.extend(reserved.then_some((0, block)));
            plan.taken.push(start..start + want);
            plan.placed.insert(block, Placed { start, frags: want, old, gained: want - have });
        }
        let keys = whole.iter().map(|&(block, ..)| (0, block)).chain(nodes.iter().copied());
        let used: Vec<_> = keys.filter(|key| state.reserved.contains(key)).collect();
        let count = (whole.len() + nodes.len()) as u64;
        let mut found = alloc.blocks(change, near, count, used.len() as u64)?;
        plan.used.extend(used);
        plan.taken.extend(found.iter().map(|&start| self.full_block(start)));
        plan.nodes = found.split_off(whole.len());
        for ((block, old, gained), start) in whole.into_iter().zip(found) {
            plan.placed.insert(block, Placed { start, frags: full, old, gained });
        }
        Ok(())
    }

    /// Takes what a write needs, and writes the data. Nothing leads to new blocks yet. `offset` is a
    /// multiple of the size of a block. If `size` is past the data, the gap is a hole, and the last block is
    /// zeros: files of the BSDs do not end in holes.
    pub(crate) fn write_data(&self, private: &Private, offset: u64, data: &[u8], size: u64) -> Result<Plan> {
        let block_size = u64::from(self.sb.block_size);
        let written = offset / block_size..(offset + data.len() as u64).div_ceil(block_size);
        let written = if data.is_empty() { 0..0 } else { written };
        let (plan, dinode) = {
            let change = self.change()?;
            let state = private.state.read();
            let mut blocks: BTreeSet<u64> = written.clone().collect();
            if size > state.dinode.size {
                let has_blocks = |tail: &u64| state.dinode.pointers[*tail as usize] != 0;
                blocks.extend(self.short_tail(&state).filter(has_blocks));
                blocks.insert((size - 1) / block_size);
            }
            let plan = self.plan(&change, &state, &blocks, size)?;
            (Plan { written, ..plan }, state.dinode.clone())
        };
        // The caller has the file to itself: its blocks stay where they are.
        if let Err(error) = self.write_planned(&dinode, &plan, offset, data) {
            self.alloc()?.cancel(&self.change()?, &plan.taken, plan.used.len() as u64)?;
            return Err(error);
        }
        Ok(plan)
    }

    fn write_planned(&self, dinode: &Dinode, plan: &Plan, offset: u64, data: &[u8]) -> Result<()> {
        let size = self.sb.block_size as usize;
        let place = |block: u64| match plan.placed.get(&block) {
            Some(placed) => Ok(placed.start),
            None => {
                let start = self.map(dinode, FileBlock(block))?.start;
                start.ok_or_else(|| {
                    self.corrupt(dinode.ino, "a block that is written has no place; run ivers check")
                })
            }
        };
        self.write_rest(dinode, plan)?;
        let (mut block, mut rest) = (offset / size as u64, data);
        while !rest.is_empty() {
            let start = place(block)?;
            let mut count = 1;
            while rest.len() > count * size
                && place(block + count as u64)? == start + (count * size) as u64 / self.fragment_bytes()
            {
                count += 1;
            }
            let (run, later) = rest.split_at(rest.len().min(count * size));
            self.write_frags(dinode.ino, start, run)?;
            // What is past the end of a file must be zeros when the file grows.
            if later.is_empty() && offset + data.len() as u64 >= dinode.size {
                let last = block + count as u64 - 1;
                let in_last = run.len() - (count - 1) * size;
                let end = self.sb.frags_of_block(plan.size, last) * self.fragment_bytes();
                self.write_zeros(dinode.ino, place(last)?, in_last as u64..end)?;
            }
            (block, rest) = (block + count as u64, later);
        }
        Ok(())
    }

    fn fragment_bytes(&self) -> u64 {
        self.sb.fragment_size.into()
    }

    /// Writes the changed blocks that the data does not cover: tails that move, and zeros.
    fn write_rest(&self, dinode: &Dinode, plan: &Plan) -> Result<()> {
        let block_size = u64::from(self.sb.block_size);
        let tail = (plan.size > dinode.size).then_some(dinode.size / block_size);
        let blocks: BTreeSet<u64> = plan.placed.keys().copied().chain(tail).collect();
        for block in blocks.into_iter().filter(|block| !plan.written.contains(block)) {
            let old = self.map(dinode, FileBlock(block))?.start;
            let placed = plan.placed.get(&block);
            let Some(start) = placed.map(|placed| placed.start).or(old) else { continue };
            let frags = placed.map_or(self.sb.frags_of_block(dinode.size, block), |placed| placed.frags);
            let used = dinode.size.saturating_sub(block * block_size).min(block_size);
            if let Some(old) = old.filter(|&old| old != start) {
                let mut kept = vec![0; used as usize];
                self.check_frags(dinode.ino, old, used.div_ceil(self.fragment_bytes()))?;
                let byte = BlockNo(old).offset(self.sb.fragment_size);
                self.cache.device().read_at(byte, &mut kept).map_err(Error::file_data)?;
                self.write_frags(dinode.ino, start, &kept)?;
            }
            let kept = if old.is_some() { used } else { 0 };
            self.write_zeros(dinode.ino, start, kept..frags * self.fragment_bytes())?;
        }
        Ok(())
    }

    fn write_frags(&self, ino: u32, start: u64, data: &[u8]) -> Result<()> {
        self.write_at(ino, start, 0, data)
    }

    fn write_zeros(&self, ino: u32, start: u64, bytes: Range<u64>) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.write_at(ino, start, bytes.start, &vec![0; (bytes.end - bytes.start) as usize])
    }

    fn write_at(&self, ino: u32, start: u64, at: u64, data: &[u8]) -> Result<()> {
        self.check_writable(ino, start, (at + data.len() as u64).div_ceil(self.fragment_bytes()))?;
        let byte = BlockNo(start).offset(self.sb.fragment_size) + at;
        self.cache.device().write_at(byte, data).map_err(Error::file_data)
    }

    /// Sets the pointers of an inode to what a plan placed. The caller puts the inode into the batch.
    pub(crate) fn attach(&self, change: &Change<'_>, state: &mut State, plan: Plan) -> Result<()> {
        let unit = u64::from(self.sb.fragment_size / 512);
        let (mut nodes, mut fresh, mut gained) = (plan.nodes, HashSet::new(), 0);
        for (block, placed) in plan.placed {
            self.set_pointer(change, &mut state.dinode, block, placed.start, (&mut nodes, &mut fresh))?;
            gained += placed.gained;
            if let Some(old) = placed.old {
                self.alloc()?.free(change, old)?;
            }
        }
        gained += fresh.len() as u64 * u64::from(self.sb.frags_per_block);
        state.dinode.blocks_512 = state.dinode.blocks_512.saturating_add(gained * unit);
        state.dinode.size = plan.size;
        for key in plan.used {
            state.reserved.remove(&key);
        }
        self.release_reserved(state, plan.written);
        Ok(())
    }

    /// Sets the pointer to a file block. Indirect blocks that are missing are made of `nodes`.
    fn set_pointer(
        &self,
        change: &Change<'_>,
        dinode: &mut Dinode,
        block: u64,
        to: u64,
        (nodes, fresh): (&mut Vec<u64>, &mut HashSet<u64>),
    ) -> Result<()> {
        let Some(path) = self.path(block) else {
            let pointer = dinode.pointers[..DIRECT as usize].get_mut(block as usize);
            *pointer.ok_or(NameError::TooLarge)? = to;
            return Ok(());
        };
        let (ino, per_block) = (dinode.ino, self.sb.pointers_per_block());
        let mut new_node = || -> Result<u64> {
            let node = nodes.pop().ok_or_else(|| {
                self.corrupt(ino, "an indirect block vanished while a block was added; run ivers check")
            })?;
            for fragment in self.full_block(node) {
                change.fresh(BlockNo(fragment)).map_err(order_error)?;
            }
            fresh.insert(node);
            Ok(node)
        };
        let mut node = dinode.pointers[path.root()];
        if node == 0 {
            node = new_node()?;
            dinode.pointers[path.root()] = node;
        }
        let mut way = Vec::new();
        for height in (2..=path.level).rev() {
            let slot = path.slot(height, per_block);
            let mut next = self.pointer_in(ino, node, slot)?;
            if next == 0 {
                next = new_node()?;
                way.push((node, slot, next));
            }
            node = next;
        }
        way.push((node, path.slot(1, per_block), to));
        for (node, slot, to) in way {
            let stage = if fresh.contains(&node) { Stage::Fresh } else { Stage::Detach };
            self.put_pointer(change, stage, (ino, node), slot, to)?;
        }
        Ok(())
    }

    /// Sets a pointer of an indirect block.
    fn put_pointer(
        &self,
        change: &Change<'_>,
        stage: Stage,
        (ino, node): (u32, u64),
        slot: u64,
        to: u64,
    ) -> Result<()> {
        let byte = slot * u64::from(self.sb.pointer_size());
        self.check_frags(ino, node, self.sb.frags_per_block.into())?;
        let fragment = node + byte / self.fragment_bytes();
        self.check_writable(ino, fragment, 1)?;
        let (buffer, at) = (self.cache.get(BlockNo(fragment))?, (byte % self.fragment_bytes()) as usize);
        change.put(&buffer, stage, |bytes| {
            let mut fields = FieldsMut::new(bytes, self.sb.order);
            match self.sb.pointer_size() {
                4 => fields.u32(at, to as u32),
                _ => fields.u64(at, to),
            }
        });
        Ok(())
    }

    pub(crate) fn fs_write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        let end = (offset + data.len() as u64).min(inode.size());
        let Some(len) = end.checked_sub(offset).filter(|&len| len > 0) else { return Ok(()) };
        self.write_and_attach(inode, offset, &data[..len as usize], end)
    }

    pub(crate) fn write_and_attach(&self, inode: &Inode, offset: u64, data: &[u8], size: u64) -> Result<()> {
        self.settle(inode)?;
        let private = private_of(inode);
        let plan = self.write_data(private, offset, data, size)?;
        if plan.changes_nothing(&private.state.read().dinode) {
            self.release_reserved(&mut private.state.write(), plan.written);
            return Ok(());
        }
        let change = self.change()?;
        let mut state = private.state.write();
        self.attach(&change, &mut state, plan)?;
        inode.with_attr(|attr| attr.blocks_512 = state.dinode.blocks_512);
        self.log_state(&change, inode, &mut state)?;
        drop(state);
        inode.logged_in_background();
        Ok(())
    }

    pub(crate) fn fs_truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        let private = private_of(inode);
        if size > private.state.read().dinode.size {
            self.write_and_attach(inode, size, &[], size)?;
        }
        self.fill_last_block(inode, size)?;
        self.settle(inode)?;
        let change = self.change()?;
        {
            let mut state = private.state.write();
            if size < state.dinode.size {
                self.cut(&change, &mut state, size)?;
                state.ticket = change.ticket();
            }
            inode.with_attr(|attr| attr.blocks_512 = state.dinode.blocks_512);
        }
        inode.changed(Touch::Data, Logged::Anyway);
        self.log_state(&change, inode, &mut private.state.write())
    }

    /// Fills the hole in which a file that is cut would end: files of the BSDs do not end in holes. Without
    /// space the hole stays, so that a full filesystem does not keep a file from becoming shorter.
    fn fill_last_block(&self, inode: &Inode, size: u64) -> Result<()> {
        let block_size = u64::from(self.sb.block_size);
        let Some(last) = size.checked_sub(1).map(|byte| byte / block_size) else { return Ok(()) };
        let old = {
            let state = private_of(inode).state.read();
            let is_hole =
                size < state.dinode.size && self.map(&state.dinode, FileBlock(last))?.start.is_none();
            is_hole.then_some(state.dinode.size)
        };
        let Some(old) = old else { return Ok(()) };
        let start = last * block_size;
        let zeros = vec![0; (old - start).min(block_size) as usize];
        match self.write_and_attach(inode, start, &zeros, old) {
            Err(Error::Name(NameError::NoSpace)) => Ok(()),
            filled => filled,
        }
    }

    /// Frees the blocks of an inode past a size. The caller puts the inode into the batch.
    pub(crate) fn cut(&self, change: &Change<'_>, state: &mut State, size: u64) -> Result<()> {
        let freed = self.cut_pointers(change, &mut state.dinode, size)?;
        freed.ranges.into_iter().try_for_each(|range| self.alloc()?.free(change, range))
    }

    /// Removes pointers past a size. Returns the fragments to which they led.
    pub(crate) fn cut_pointers(&self, change: &Change<'_>, dinode: &mut Dinode, size: u64) -> Result<Freed> {
        let keep = size.div_ceil(self.sb.block_size.into());
        let mut freed = Freed::default();
        for block in 0..DIRECT {
            let start = dinode.pointers[block as usize];
            let have = self.sb.frags_of_block(dinode.size, block);
            let want = self.sb.frags_of_block(size, block).min(have);
            if start != 0 && want < have {
                self.check_frags(dinode.ino, start, have)?;
                freed.push(start + want..start + have);
            }
            if block >= keep {
                dinode.pointers[block as usize] = 0;
            }
        }
        let mut first = DIRECT;
        for level in 1..=3 {
            let node = dinode.pointers[DIRECT as usize + level as usize - 1];
            if node != 0 && self.cut_node(change, (dinode.ino, node), (level, first), keep, &mut freed)? {
                dinode.pointers[DIRECT as usize + level as usize - 1] = 0;
            }
            first += self.sb.pointers_per_block().pow(level);
        }
        let units = freed.frags * u64::from(self.sb.fragment_size / 512);
        dinode.blocks_512 = dinode.blocks_512.saturating_sub(units);
        dinode.size = size;
        Ok(freed)
    }

    /// Frees what is below an indirect block from a file block on. Returns whether that is all of it: then
    /// the block itself is freed, too.
    fn cut_node(
        &self,
        change: &Change<'_>,
        (ino, node): (u32, u64),
        (height, first): (u32, u64),
        keep: u64,
        freed: &mut Freed,
    ) -> Result<bool> {
        let per_block = self.sb.pointers_per_block();
        if keep >= first + per_block.pow(height) {
            return Ok(false);
        }
        self.check_frags(ino, node, self.sb.frags_per_block.into())?;
        let span = per_block.pow(height - 1);
        for slot in keep.saturating_sub(first) / span..per_block {
            let (pointer, below) = (self.pointer_in(ino, node, slot)?, first + slot * span);
            let is_cut = match height {
                _ if pointer == 0 => false,
                1 => {
                    self.check_frags(ino, pointer, self.sb.frags_per_block.into())?;
                    freed.push(self.full_block(pointer));
                    true
                }
                _ => self.cut_node(change, (ino, pointer), (height - 1, below), keep, freed)?,
            };
            if is_cut && first < keep {
                self.put_pointer(change, Stage::Cut, (ino, node), slot, 0)?;
            }
            if freed.frags > self.sb.size {
                return Err(self.corrupt(ino, "its indirect blocks lead to each other"));
            }
        }
        if first >= keep {
            freed.push(self.full_block(node));
        }
        Ok(first >= keep)
    }
}
