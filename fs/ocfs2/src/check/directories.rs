//! Directories: their entries, and the tree that they form.

use super::state::Checker;
use crate::layout::dinode::{Dinode, dyn_features};
use crate::layout::directory::{Entry, check_trailer};
use crate::layout::superblock::incompat;
use ivers_vfs::check::{Place, unreachable};
use ivers_vfs::{FileType, Result};
use std::collections::HashSet;
use std::ops::ControlFlow;

/// Bytes that a name takes in a set, beside its own.
const NAME_OVERHEAD: usize = 48;
/// How often, in entries, the names of a directory are charged.
const CHARGE_EVERY: u64 = 1024;

/// A directory while it is checked.
struct Dir {
    nth: usize,
    ino: u64,
    /// It is an orphan directory of a slot.
    of_orphans: bool,
    /// It is itself an orphan: its entries do not count as names.
    orphaned: bool,
}

impl Checker {
    /// Checks all directories, and that a root leads to them.
    pub(super) fn check_directories(&mut self) -> Result<()> {
        self.directories.sort_by_key(|dir| dir.ino);
        let (root, system) = (self.fs.sb.root, self.fs.sb.system_dir);
        for (ino, parent, name) in [(root, root, "root"), (system, root, "system files")] {
            match self.directories.binary_search_by_key(&ino, |dir| dir.ino) {
                // The directory of system files has no name: it is a second root.
                Ok(nth) => self.directories[nth].parent = parent,
                Err(_) => self.bad("root-invalid", Place::inode(ino), format!("the {name} is no directory")),
            }
        }
        let of_orphans: HashSet<u64> =
            (0..self.fs.sb.max_slots).filter_map(|slot| self.files.of_slot("orphan_dir", slot)).collect();
        for nth in 0..self.directories.len() {
            let ino = self.directories[nth].ino;
            let Some(seen) = self.inodes.get(&ino).copied() else { continue };
            if seen.damaged {
                self.claim_index(ino)?;
                continue;
            }
            let dir = Dir { nth, ino, of_orphans: of_orphans.contains(&ino), orphaned: seen.orphaned };
            self.check_directory(&dir)?;
        }
        for nth in 0..self.directories.len() {
            let dir = self.directories[nth];
            let is_orphan = self.inodes.get(&dir.ino).is_some_and(|seen| seen.in_orphans);
            let parent = if dir.ino == system { system } else { dir.parent };
            if parent != 0 && dir.dotdot != 0 && dir.dotdot != parent && !is_orphan {
                let what = format!(".. refers to inode {}, the directory is in inode {parent}", dir.dotdot);
                self.bad("dotdot-wrong", Place::inode(dir.ino), what);
            }
        }
        for (ino, is_cycle) in unreachable(&self.directories, |dir| (dir.ino, dir.parent), root) {
            match is_cycle {
                true => self.bad("directory-cycle", Place::inode(ino), "the directory is inside itself"),
                false => {
                    self.bad("directory-unconnected", Place::inode(ino), "no name leads to the directory")
                }
            }
        }
        Ok(())
    }

    fn check_directory(&mut self, dir: &Dir) -> Result<()> {
        let place = Place::inode(dir.ino);
        let read = self.fs.dinode(dir.ino);
        let Some((inode, _)) = self.caught("inode-invalid", place.clone(), read)? else { return Ok(()) };
        let (mut names, mut bytes, mut index, mut kept) = (HashSet::new(), 0, 0, Ok(()));
        let fs = self.fs.clone();
        let read = fs.for_each_entry(&inode, 0..inode.size, |entry, _| {
            self.check_entry(dir, index, entry);
            index += 1;
            bytes += entry.name.len() + NAME_OVERHEAD;
            if !names.insert(entry.name.to_vec()) {
                let what = format!("the name {} is there twice", entry.name.escape_ascii());
                self.bad("name-twice", Place::inode(dir.ino), what);
            }
            if index.is_multiple_of(CHARGE_EVERY) {
                kept = self.charge(bytes);
            }
            if kept.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        kept?;
        if self.caught("directory-invalid", place.clone(), read)?.is_none() {
            return self.claim_index(dir.ino);
        }
        for (name, which) in [(&b"."[..], "."), (b"..", "..")] {
            if !names.contains(name) {
                self.bad("directory-dots-wrong", place.clone(), format!("there is no {which}"));
            }
        }
        drop(names);
        let is_indexed = inode.dyn_features & dyn_features::INDEXED_DIR != 0 && !inode.is_inline();
        if is_indexed || (self.fs.sb.has(incompat::META_ECC) && !inode.is_inline()) {
            self.check_trailers(&inode)?;
        }
        if is_indexed {
            let read = self.names_by_block(&inode);
            let names = self.caught("directory-invalid", place, read)?;
            self.check_index(&inode, names.as_ref())?;
        }
        Ok(())
    }

    /// Marks the blocks of an index as owned, if the entries of its directory cannot be read.
    fn claim_index(&mut self, ino: u64) -> Result<()> {
        let Ok((inode, _)) = self.fs.dinode(ino) else { return Ok(()) };
        if inode.dyn_features & dyn_features::INDEXED_DIR != 0 && !inode.is_inline() {
            self.check_index(&inode, None)?;
        }
        Ok(())
    }

    fn check_trailers(&mut self, dir: &Dinode) -> Result<()> {
        for nth in 0..dir.size / u64::from(self.fs.sb.block_size) {
            let read = self.fs.directory_block(dir, nth);
            let place = Place::inode(dir.ino);
            let Some((number, block)) = self.caught("directory-invalid", place.clone(), read)? else {
                continue;
            };
            if let Err(what) = check_trailer(&block, number, dir.ino) {
                self.bad("directory-trailer-wrong", place.at(number), what);
            }
        }
        Ok(())
    }

    fn check_entry(&mut self, dir: &Dir, index: u64, entry: Entry<'_>) {
        let Entry { ino: child, name, .. } = entry;
        let shown = name.escape_ascii();
        if !self.fs.is_ino(child) {
            let what = format!("{shown} refers to inode {child}, which does not exist");
            return self.bad("entry-inode-out-of-range", Place::inode(dir.ino), what);
        }
        let is_dots = matches!(name, b"." | b"..");
        let Some(seen) = self.inodes.get_mut(&child) else {
            let what = format!("{shown} refers to inode {child}, which is free");
            return self.bad("name-of-unused-inode", Place::inode(dir.ino), what);
        };
        let found = seen.kind;
        if dir.of_orphans && !is_dots {
            // Also a file with an unfinished append by direct I/O, which keeps its own names.
            seen.in_orphans |= !name.starts_with(b"dio-");
        } else if !dir.orphaned {
            seen.names = seen.names.saturating_add(1);
        }
        if found.is_some() && found != entry.file_type() {
            let what = format!("{shown} has type {}, inode {child} is a {found:?}", entry.kind);
            self.bad("filetype-wrong", Place::inode(dir.ino), what);
        }
        match (name, index) {
            (b".", 0) if child == dir.ino => {}
            (b".", 0) => {
                let what = format!(". refers to inode {child}");
                self.bad("directory-dots-wrong", Place::inode(dir.ino), what);
            }
            (b"..", 1) => self.directories[dir.nth].dotdot = child,
            _ if is_dots => {
                let what = format!("{shown} is entry {index} of the directory");
                self.bad("directory-dots-wrong", Place::inode(dir.ino), what);
            }
            _ if found == Some(FileType::Directory) => self.note_parent(dir, child),
            _ => {}
        }
    }

    /// Notes that a directory has a name for another one.
    fn note_parent(&mut self, dir: &Dir, child: u64) {
        if dir.of_orphans {
            // Linux counts it as a link of the directory of orphans.
            if let Some(seen) = self.inodes.get_mut(&dir.ino) {
                seen.names = seen.names.saturating_add(1);
            }
        }
        let Ok(at) = self.directories.binary_search_by_key(&child, |dir| dir.ino) else { return };
        match self.directories[at].parent {
            0 => self.directories[at].parent = dir.ino,
            other => {
                let what = format!("the directory has names in inodes {other} and {}", dir.ino);
                self.bad("directory-linked-twice", Place::inode(child), what);
            }
        }
    }
}
