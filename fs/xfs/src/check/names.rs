//! Entries of directories: what each leads to.

use super::state::{Checker, kind};
use crate::layout::bytes::number;
use crate::layout::directory::ftype;
use ivers_vfs::check::Place;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A directory that is being read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) ino: u64,
    pub(super) generation: u32,
}

/// The number of a name or of a parent pointer: the same if both say the same.
fn parent_sum(parent: u64, generation: u32, name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (parent, generation, name).hash(&mut hasher);
    hasher.finish()
}

impl Checker {
    /// Counts an entry of a directory, and checks what it leads to.
    pub(super) fn count_entry(
        &mut self,
        dir: Reading,
        place: &Place,
        name: &[u8],
        child: u64,
        file_type: Option<u8>,
    ) {
        let place = Place { inode: Some(dir.ino), ..place.clone() };
        let shown = || String::from_utf8_lossy(name).into_owned();
        if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            self.bad("name-invalid", place.clone(), format!("the name {:?} is not allowed", shown()));
        }
        if self.sb.inode_place(child).is_none() || child == 0 {
            let what = format!("the entry {:?} refers to inode {child}", shown());
            return self.bad("entry-inode-out-of-range", place, what);
        }
        let found = self.kind(child);
        if found == 0 {
            if !self.may_exist(child) {
                let what = format!("the entry {:?} refers to inode {child}, which is free", shown());
                self.bad("name-of-unused-inode", place, what);
            }
            return;
        }
        if found & kind::HIDDEN != 0 {
            let what = format!("the entry {:?} refers to inode {child}, which may have no name", shown());
            self.bad("name-of-hidden-inode", place.clone(), what);
        }
        let real = found & kind::TYPE;
        let is_type = |stored: u8| stored == real || (stored == ftype::WHITEOUT && real == kind::CHAR);
        if let Some(stored) = file_type.filter(|stored| real != kind::UNKNOWN && !is_type(*stored)) {
            let what = format!("the entry {:?} has type {stored}, its inode has type {real}", shown());
            self.bad("filetype-wrong", place.clone(), what);
        }
        self.count_link(child);
        self.add_parent(child, parent_sum(dir.ino, dir.generation, name));
        if let Some(found) = self.dir_mut(child) {
            if found.parent == 0 {
                found.parent = dir.ino;
            } else {
                let what = format!("the entry {:?} is the second name of directory {child}", shown());
                self.bad("directory-linked-twice", place, what);
            }
        }
    }

    /// Counts a link to an inode.
    pub(super) fn count_link(&mut self, ino: u64) {
        if let Some((chunk, at)) = self.chunk_mut(ino) {
            chunk.names[at] = chunk.names[at].saturating_add(1);
        }
    }

    /// Counts the links of a directory to itself and to its parent. A removed directory that was in use when
    /// the system stopped still names its parent, whose count no longer includes it.
    pub(super) fn count_dots(&mut self, dir: u64, dotdot: u64) {
        self.count_link(dir);
        if self.kind(dir) & kind::ORPHAN == 0 {
            self.count_link(dotdot);
        }
        if let Some(found) = self.dir_mut(dir) {
            found.dotdot = dotdot;
        }
    }

    /// Counts a parent pointer: name, then inode and generation of the directory.
    pub(super) fn count_parent_pointer(&mut self, ino: u64, name: &[u8], value: &[u8]) -> bool {
        let (Some(parent), Some(generation), 12) = (number(value, 0, 8), number(value, 8, 4), value.len())
        else {
            return false;
        };
        self.add_parent(ino, parent_sum(parent, generation as u32, name).wrapping_neg());
        true
    }
}
