//! Directories: their entries, and the tree that they form.

use super::state::{Checker, DT_DIR};
use crate::layout::directory::Entry;
use crate::layout::superblock::ROOT;
use ivers_vfs::Result;
use ivers_vfs::check::{Place, unreachable};
use std::collections::HashSet;

/// Bytes that a name takes in a set, beside its own.
const NAME_OVERHEAD: usize = 48;
/// How often, in entries, the names of a directory are charged.
const CHARGE_EVERY: u64 = 1024;

impl Checker {
    /// Whether the contents of a directory can be read.
    pub(super) fn is_readable(&self, ino: u32) -> bool {
        self.seen(ino).is_some_and(|seen| !seen.damaged)
    }

    /// Checks all directories, and that the root leads to them.
    pub(super) fn check_directories(&mut self) -> Result<()> {
        match self.directories.first_mut() {
            Some(root) if root.ino == ROOT => root.parent = ROOT,
            _ => self.bad("root-invalid", Place::inode(ROOT), "there is no root directory"),
        }
        for nth in 0..self.directories.len() {
            let ino = self.directories[nth].ino;
            if self.is_readable(ino) {
                self.check_directory(nth, ino)?;
            }
        }
        for nth in 0..self.directories.len() {
            let dir = self.directories[nth];
            if dir.parent != 0 && dir.dotdot != 0 && dir.dotdot != dir.parent {
                let what =
                    format!(".. refers to inode {}, the directory is in inode {}", dir.dotdot, dir.parent);
                self.bad("dotdot-wrong", Place::inode(dir.ino), what);
            }
        }
        for (ino, is_cycle) in unreachable(&self.directories, |dir| (dir.ino, dir.parent), ROOT) {
            match is_cycle {
                true => self.bad("directory-cycle", Place::inode(ino), "the directory is inside itself"),
                false => {
                    self.bad("directory-unconnected", Place::inode(ino), "no name leads to the directory")
                }
            }
        }
        Ok(())
    }

    fn check_directory(&mut self, nth: usize, ino: u32) -> Result<()> {
        let Some(inode) = self.dinode(ino)? else { return Ok(()) };
        let (mut names, mut bytes, mut index, mut kept) = (HashSet::new(), 0, 0, Ok(()));
        let reader = self.reader.clone();
        let blocks = reader.for_each_entry(&inode, &mut |at, found| match found {
            _ if kept.is_err() => {}
            Ok(found) => {
                self.check_entry((nth, ino), index, found);
                index += 1;
                bytes += found.name.len() + NAME_OVERHEAD;
                if !names.insert(found.name.to_vec()) {
                    let what = format!("the name {} is there twice, at byte {at}", found.name.escape_ascii());
                    self.bad("name-twice", Place::inode(ino), what);
                }
                if index.is_multiple_of(CHARGE_EVERY) {
                    kept = self.charge(bytes);
                }
            }
            Err(what) => {
                self.bad("directory-entry-invalid", Place::inode(ino), format!("{what}, at byte {at}"));
            }
        })?;
        kept?;
        if blocks < inode.size.div_ceil(self.sb.block_size.into()) {
            self.bad("directory-hole", Place::inode(ino), "a block of the directory is missing");
        }
        for (name, which) in [(&b"."[..], "."), (b"..", "..")] {
            if !names.contains(name) {
                self.bad("directory-dots-wrong", Place::inode(ino), format!("there is no {which}"));
            }
        }
        Ok(())
    }

    fn check_entry(&mut self, (nth, dir): (usize, u32), index: u64, entry: Entry<'_>) {
        let Entry { ino: child, kind, name } = entry;
        let shown = name.escape_ascii();
        if !(ROOT..self.sb.inodes()).contains(&child) {
            let what = format!("{shown} refers to inode {child}, which does not exist");
            return self.bad("entry-inode-out-of-range", Place::inode(dir), what);
        }
        let found = self.seen_mut(child).filter(|seen| seen.kind != 0).map(|seen| {
            seen.names = seen.names.saturating_add(1);
            seen.kind
        });
        let Some(found) = found else {
            let what = format!("{shown} refers to inode {child}, which is free");
            return self.bad("name-of-unused-inode", Place::inode(dir), what);
        };
        if found != kind && found != 0xFF {
            let what = format!("{shown} has type {kind}, inode {child} has {found}");
            self.bad("filetype-wrong", Place::inode(dir), what);
        }
        let is_dots = match (name, index) {
            (b".", 0) => {
                if child != dir {
                    let what = format!(". refers to inode {child}");
                    self.bad("directory-dots-wrong", Place::inode(dir), what);
                }
                true
            }
            (b"..", 1) => {
                self.directories[nth].dotdot = child;
                true
            }
            (b"." | b"..", _) => {
                let what = format!("{shown} is entry {index} of the directory");
                self.bad("directory-dots-wrong", Place::inode(dir), what);
                true
            }
            _ => false,
        };
        if is_dots || found != DT_DIR {
            return;
        }
        let Ok(at) = self.directories.binary_search_by_key(&child, |dir| dir.ino) else { return };
        match self.directories[at].parent {
            0 => self.directories[at].parent = dir,
            other => {
                let what = format!("the directory has names in inodes {other} and {dir}");
                self.bad("directory-linked-twice", Place::inode(child), what);
            }
        }
    }
}
