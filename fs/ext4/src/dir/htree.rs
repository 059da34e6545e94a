//! Hash trees over names: lookup, insertion with splits at every level, and conversion of a linear directory.
//!
//! A leaf holds the names whose hashes lie between its row's hash and the next row's. Names of one hash may
//! overflow a leaf: then the lowest bit of the next row's hash is set, which no name's hash has, and a search
//! continues there.
//!
//! Every split results in a valid tree, and an insertion restarts from the root after each split. So a lack
//! of blocks half-way leaves a consistent tree.

use super::hash::{NameHash, NameHasher};
use super::index::{self, Table};
use super::linear::entry_size;
use super::{FIRST, Found, corrupt, place};
use crate::fs::{Ext4, Handle, core_of};
use crate::layout::Incompat;
use crate::layout::inode::FL_INDEX;
use ivers_block::{Buffer, FileBlock};
use ivers_vfs::{FileType, Inode, NameError, Result};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Limit of the splits of one insertion: one a level and a new level, doubled for leaves with names of very
/// unequal length.
const MAX_STEPS: u32 = 24;

/// An index block on the path to a leaf, and the row that was followed.
pub(crate) struct Frame {
    buffer: Arc<Buffer>,
    table: Table,
    row: usize,
}

impl Frame {
    fn is_full(&self) -> bool {
        self.table.count >= self.table.limit
    }

    fn next_hash(&self) -> Option<u32> {
        (self.row + 1 < self.table.count).then(|| self.table.hash(&self.buffer.read(), self.row + 1))
    }

    fn target(&self) -> FileBlock {
        FileBlock(u64::from(self.table.block(&self.buffer.read(), self.row)))
    }
}

/// The path from the root to a leaf; the root comes first.
pub(crate) struct Path {
    frames: Vec<Frame>,
    pub(crate) hasher: NameHasher,
    /// The hash of the leaf's row: lower bound of the hashes in the leaf.
    pub(crate) low: u32,
}

impl Path {
    /// The leaf's file block in the directory.
    pub(crate) fn leaf(&self) -> FileBlock {
        self.frames.last().map_or(FIRST, Frame::target)
    }

    /// The hash of the next leaf's row, if there is one.
    pub(crate) fn next_hash(&self) -> Option<u32> {
        self.frames.iter().rev().find_map(Frame::next_hash)
    }
}

/// A name in a leaf with its hash.
struct Hashed {
    hash: u32,
    ino: u32,
    name: Vec<u8>,
    kind: Option<FileType>,
}

impl Ext4 {
    /// Maximum levels of inner nodes below the root.
    fn max_levels(&self) -> u8 {
        if self.sb.incompat.contains(Incompat::LARGEDIR) { 2 } else { 1 }
    }

    /// Returns the verified root of a tree.
    pub(crate) fn htree_root(&self, dir: &Inode) -> Result<(Arc<Buffer>, index::Root)> {
        let buffer = self.dir_block_at(dir, FIRST)?;
        let block = buffer.read();
        let root = index::parse_root(&self.dir_format(), &block).map_err(|what| corrupt(dir, FIRST, what))?;
        if root.levels > self.max_levels() {
            return Err(corrupt(dir, FIRST, "an index is too deep"));
        }
        self.verify_index(dir, FIRST, &buffer, &block, &root.table)?;
        drop(block);
        Ok((buffer, root))
    }

    fn htree_node(&self, dir: &Inode, lblk: FileBlock) -> Result<Frame> {
        if lblk == FIRST {
            return Err(corrupt(dir, lblk, "an index points to its own root"));
        }
        let buffer = self.dir_block_at(dir, lblk)?;
        let block = buffer.read();
        let table = index::parse_node(&self.dir_format(), &block).map_err(|what| corrupt(dir, lblk, what))?;
        self.verify_index(dir, lblk, &buffer, &block, &table)?;
        drop(block);
        Ok(Frame { buffer, table, row: 0 })
    }

    /// Descends to the first leaf that may hold a hash.
    pub(crate) fn htree_path(&self, dir: &Inode, hash: impl FnOnce(&NameHasher) -> u32) -> Result<Path> {
        let (buffer, root) = self.htree_root(dir)?;
        let hasher = self
            .hasher(root.hash_version)
            .ok_or_else(|| corrupt(dir, FIRST, "an index uses an unknown hash"))?;
        let hash = hash(&hasher);
        let mut path = Path { frames: Vec::with_capacity(3), hasher, low: 0 };
        let mut frame = Frame { buffer, table: root.table, row: 0 };
        for level in 0..=root.levels {
            {
                let block = frame.buffer.read();
                frame.row = frame.table.find(&block, hash);
                if frame.row > 0 {
                    path.low = frame.table.hash(&block, frame.row);
                }
            }
            let target = frame.target();
            path.frames.push(frame);
            if level == root.levels {
                break;
            }
            frame = self.htree_node(dir, target)?;
        }
        Ok(path)
    }

    /// Advances to the next leaf; false at the end.
    pub(crate) fn htree_next(&self, dir: &Inode, path: &mut Path) -> Result<bool> {
        let depth = path.frames.len();
        while path.frames.last().is_some_and(|frame| frame.row + 1 >= frame.table.count) {
            path.frames.pop();
        }
        let Some(frame) = path.frames.last_mut() else { return Ok(false) };
        frame.row += 1;
        path.low = frame.table.hash(&frame.buffer.read(), frame.row);
        while path.frames.len() < depth {
            let target = path.frames.last().map_or(FIRST, Frame::target);
            path.frames.push(self.htree_node(dir, target)?);
        }
        Ok(true)
    }

    /// Returns a leaf by its file block in the directory.
    pub(crate) fn htree_leaf(&self, dir: &Inode, lblk: FileBlock) -> Result<Arc<Buffer>> {
        if lblk == FIRST {
            return Err(corrupt(dir, lblk, "an index points to its own root"));
        }
        self.dir_leaf(dir, lblk)
    }

    pub(crate) fn htree_find(&self, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        let mut hash = NameHash { major: 0, minor: 0 };
        let mut path = self.htree_path(dir, |hasher| {
            hash = hasher.hash(name);
            hash.major
        })?;
        // A chain of one hash cannot be longer than the directory: repeated blocks are corruption.
        for _ in 0..=self.dir_blocks(dir) {
            let lblk = path.leaf();
            let buffer = self.htree_leaf(dir, lblk)?;
            if let Some(found) = self.find_in_leaf(dir, lblk, &buffer, name)? {
                return Ok(Some(found));
            }
            match path.next_hash() {
                Some(next) if next == hash.major | 1 => {}
                _ => return Ok(None),
            }
            if !self.htree_next(dir, &mut path)? {
                return Ok(None);
            }
        }
        Err(corrupt(dir, FIRST, "a chain of equal hashes has no end"))
    }

    pub(crate) fn htree_add(
        &self,
        h: &mut Handle,
        dir: &Inode,
        name: &[u8],
        ino: u32,
        kind: FileType,
    ) -> Result<()> {
        let format = self.dir_format();
        let usable = format.usable();
        for _ in 0..MAX_STEPS {
            let path = self.htree_path(dir, |hasher| hasher.hash(name).major)?;
            let lblk = path.leaf();
            let leaf = self.htree_leaf(dir, lblk)?;
            let room = format.room(&leaf.read()[..usable], name.len(), &|| place(dir, lblk))?;
            if let Some(offset) = room {
                return self.change_leaf(h, dir, &leaf, |block| {
                    format.insert_at(&mut block[..usable], offset, ino, name, kind)
                });
            }
            match path.frames.iter().rposition(|frame| !frame.is_full()) {
                Some(free) if free + 1 == path.frames.len() => self.split_leaf(h, dir, &path, &leaf)?,
                Some(free) => self.split_node(h, dir, &path, free)?,
                None => self.add_level(h, dir, &path)?,
            }
        }
        // Reached only if all names in the directory have one hash.
        Err(NameError::NoSpace.into())
    }

    /// Appends a block and returns its number as rows store it.
    fn append_for_index(&self, h: &mut Handle, dir: &Inode) -> Result<(u32, Arc<Buffer>)> {
        // Rows have 28 bits for a block number.
        if self.dir_blocks(dir) >= 1 << 28 {
            return Err(NameError::NoSpace.into());
        }
        let (lblk, buffer) = self.append_dir_block(h, dir)?;
        Ok((lblk.0 as u32, buffer))
    }

    /// Moves the upper half of a full leaf's names to a new leaf.
    fn split_leaf(&self, h: &mut Handle, dir: &Inode, path: &Path, leaf: &Arc<Buffer>) -> Result<()> {
        let format = self.dir_format();
        let usable = format.usable();
        let mut names = Vec::new();
        format.walk::<()>(&leaf.read()[..usable], &|| place(dir, path.leaf()), |entry| {
            if entry.ino != 0 {
                let hash = path.hasher.hash(entry.name).major;
                names.push(Hashed { hash, ino: entry.ino, name: entry.name.to_vec(), kind: entry.kind });
            }
            ControlFlow::Continue(())
        })?;
        names.sort_by_key(|name| name.hash);
        if names.len() < 2 {
            return Err(NameError::NoSpace.into());
        }
        let split = split_point(&names);
        let boundary = names[split].hash;
        let continued = u32::from(names[split - 1].hash == boundary);
        let (target, new_leaf) = self.append_for_index(h, dir)?;
        let as_entries = |names: &[Hashed], block: &mut [u8]| {
            format.fill_block(block, names.iter().map(|name| (name.ino, &name.name[..], name.kind)));
        };
        self.change_leaf(h, dir, &new_leaf, |block| {
            as_entries(&names[split..], block);
            Ok(())
        })?;
        self.change_leaf(h, dir, leaf, |block| {
            as_entries(&names[..split], block);
            Ok(())
        })?;
        let depth = path.frames.len() - 1;
        self.insert_row(h, dir, path, depth, boundary | continued, target)
    }

    fn insert_row(
        &self,
        h: &mut Handle,
        dir: &Inode,
        path: &Path,
        depth: usize,
        hash: u32,
        target: u32,
    ) -> Result<()> {
        let frame = &path.frames[depth];
        self.change_index(h, dir, &frame.buffer, depth == 0, |block| {
            frame.table.insert_after(block, frame.row, hash, target);
        })
    }

    /// Splits the node below frame `free`, which has space for a row.
    fn split_node(&self, h: &mut Handle, dir: &Inode, path: &Path, free: usize) -> Result<()> {
        let full = &path.frames[free + 1];
        let rows = full.table.rows(&full.buffer.read());
        let (lower, upper) = rows.split_at(rows.len() / 2);
        let boundary = upper.first().ok_or_else(|| corrupt(dir, FIRST, "an index node is too small"))?.0;
        let (target, new_node) = self.append_for_index(h, dir)?;
        let format = self.dir_format();
        self.change_index(h, dir, &new_node, false, |block| index::init_node(&format, block, upper))?;
        self.change_index(h, dir, &full.buffer, false, |block| full.table.store(block, lower))?;
        self.insert_row(h, dir, path, free, boundary, target)
    }

    /// Adds a level to a full tree: moves the root's rows to a new node.
    fn add_level(&self, h: &mut Handle, dir: &Inode, path: &Path) -> Result<()> {
        let levels = path.frames.len() as u8 - 1;
        if levels >= self.max_levels() {
            return Err(NameError::NoSpace.into());
        }
        let root = &path.frames[0];
        let rows = root.table.rows(&root.buffer.read());
        let (target, node) = self.append_for_index(h, dir)?;
        let format = self.dir_format();
        self.change_index(h, dir, &node, false, |block| index::init_node(&format, block, &rows))?;
        self.change_index(h, dir, &root.buffer, true, |block| {
            index::set_levels(block, levels + 1);
            root.table.store(block, &[(0, target)]);
        })
    }

    /// Converts a directory of one block to a tree: its names move to a new leaf. False if the block does not
    /// begin with `.` and `..`, as a tree must; then the directory stays linear.
    pub(crate) fn htree_convert(&self, h: &mut Handle, dir: &Inode) -> Result<bool> {
        let format = self.dir_format();
        let usable = format.usable();
        let first = self.dir_leaf(dir, FIRST)?;
        let mut entries = Vec::new();
        format.walk::<()>(&first.read()[..usable], &|| place(dir, FIRST), |entry| {
            if entry.ino != 0 {
                entries.push((entry.ino, entry.name.to_vec(), entry.kind));
            }
            ControlFlow::Continue(())
        })?;
        let dots = entries.len() >= 2 && entries[0].1 == b"." && entries[1].1 == b"..";
        let dotdot_at = {
            let block = first.read();
            format.entry(&block, 0).map(|dot| dot.rec_len).unwrap_or_default()
        };
        if !dots || dotdot_at != entry_size(1) {
            return Ok(false);
        }
        let (target, leaf) = self.append_for_index(h, dir)?;
        self.change_leaf(h, dir, &leaf, |block| {
            format.fill_block(block, entries[2..].iter().map(|(ino, name, kind)| (*ino, &name[..], *kind)));
            Ok(())
        })?;
        let version = self.default_hasher().stored_version();
        self.change_index(h, dir, &first, true, |block| index::init_root(&format, block, version, target))?;
        core_of(dir).write().flags |= FL_INDEX;
        Ok(true)
    }
}

/// The index at which sorted names are split: between different hashes if possible, as near the middle of the
/// bytes as possible.
fn split_point(names: &[Hashed]) -> usize {
    let total: usize = names.iter().map(|name| entry_size(name.name.len())).sum();
    let mut before = 0;
    let mut best = None;
    let mut middle = 1;
    for at in 1..names.len() {
        before += entry_size(names[at - 1].name.len());
        let distance = (2 * before).abs_diff(total);
        if names[at].hash != names[at - 1].hash && best.is_none_or(|(nearest, _)| distance < nearest) {
            best = Some((distance, at));
        }
        if 2 * before <= total {
            middle = at;
        }
    }
    best.map_or(middle, |(_, at)| at)
}
