//! Directories: finding and listing names.
//!
//! | item | key | used for |
//! |---|---|---|
//! | DIR_ITEM | hash of the name | finding; names with the same hash share an item |
//! | DIR_INDEX | a number that only grows | listing: the number is the cursor |

use crate::filesystem::Btrfs;
use crate::inode::Vnode;
use crate::layout::checksum::name_hash;
use crate::layout::items::{DirItem, decode_names};
use crate::layout::key::{Key, kind, object};
use crate::numbers::{Object, pack};
use crate::tree::Tree;
use ivers_vfs::{DirEntry, FileType, Ino, Result};
use std::ops::ControlFlow;

/// The first index of a name. Below are `.` and `..`, which are not stored.
pub(crate) const FIRST_INDEX: u64 = 2;
/// Cursors stay below 2^63.
pub(crate) const LAST_INDEX: u64 = (1 << 63) - 2;

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Inode(u64),
    Subvolume(u64),
    /// A subvolume that is in another one than this.
    Elsewhere(u64),
}

impl Target {
    /// The subvolume and the inode in it, for a name in a subvolume.
    pub(crate) fn place(self, subvolume: u64) -> Option<(u64, u64)> {
        match self {
            Self::Inode(objectid) => Some((subvolume, objectid)),
            Self::Subvolume(id) => Some((id, object::FIRST_FREE)),
            Self::Elsewhere(_) => None,
        }
    }

    fn ino(self, subvolume: u64) -> Result<Ino> {
        match self {
            Self::Inode(objectid) => pack(subvolume, Object::Inode(objectid)),
            Self::Subvolume(id) => pack(id, Object::Inode(object::FIRST_FREE)),
            Self::Elsewhere(id) => pack(subvolume, Object::Placeholder(id)),
        }
    }
}

impl Btrfs {
    fn target(&self, tree: &Tree, dir: u64, key: Key, entry: &DirItem<'_>) -> Result<Target> {
        let location = entry.location;
        match location.kind {
            kind::INODE_ITEM => Ok(Target::Inode(location.objectid)),
            kind::ROOT_ITEM => {
                let id = location.objectid;
                let is_here =
                    self.is_named_in(id, tree.id, dir, entry.name)? && self.subvolume(id)?.is_some();
                Ok(if is_here { Target::Subvolume(id) } else { Target::Elsewhere(id) })
            }
            other => {
                Err(self.forest.corrupt(format!("an entry leads to an item of type {other}"), tree, key))
            }
        }
    }

    /// Returns what a directory has for a name.
    pub(crate) fn find_name(&self, tree: &Tree, dir: u64, name: &[u8]) -> Result<Option<Target>> {
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name));
        let found = self.forest.last_at_most(tree, key, |found, data| {
            if found != key {
                return Ok(None);
            }
            let entries =
                DirItem::decode_all(data, false).map_err(|what| self.forest.corrupt(what, tree, key))?;
            let entry = entries.iter().find(|entry| entry.name == name);
            entry.map(|entry| self.target(tree, dir, key, entry)).transpose()
        })?;
        Ok(found.flatten())
    }

    /// Returns the number of the inode that a directory has for a name.
    pub(crate) fn look_up(&self, dir: &Vnode, name: &[u8]) -> Result<Option<Ino>> {
        if dir.is_placeholder() {
            return Ok(None);
        }
        let found = self.find_name(&self.tree_of(dir)?, dir.objectid, name)?;
        found.map(|target| target.ino(dir.subvolume)).transpose()
    }

    /// Returns the parent of a directory.
    pub(crate) fn parent_of(&self, dir: &Vnode) -> Result<Ino> {
        let own = pack(dir.subvolume, Object::Inode(object::FIRST_FREE))?;
        if let Some(nested) = dir.placeholder {
            // The entry is a copy of one that has, or had, the same directory.
            let parent = self.parent_of_subvolume(nested)?.map(|(_, dir)| dir);
            let tree = self.tree_of(dir)?;
            let is_dir = |objectid: u64| self.is_directory(&tree, objectid);
            return match parent {
                Some(parent) if is_dir(parent)? => pack(dir.subvolume, Object::Inode(parent)),
                _ => Ok(own),
            };
        }
        if own == self.root {
            if dir.objectid == object::FIRST_FREE {
                return Ok(own);
            }
        } else if dir.objectid == object::FIRST_FREE {
            return match self.parent_of_subvolume(dir.subvolume)? {
                Some((parent, at)) => pack(parent, Object::Inode(at)),
                None => Ok(own),
            };
        }
        let tree = &self.tree_of(dir)?;
        match self.first_name(tree, dir.objectid)? {
            Some((parent, _)) => pack(dir.subvolume, Object::Inode(parent)),
            None => {
                let first = Key::new(dir.objectid, kind::INODE_REF, 0);
                Err(self.forest.corrupt("the directory has no parent", tree, first))
            }
        }
    }

    /// Returns the first name of an inode, and the directory that has it.
    pub(crate) fn first_name(&self, tree: &Tree, objectid: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let first = Key::new(objectid, kind::INODE_REF, 0);
        let last = Key::new(objectid, kind::INODE_EXTREF, u64::MAX);
        self.forest.scan(tree, first, last, |key, data| {
            let corrupt = |what: String| self.forest.corrupt(what, tree, key);
            let names = decode_names(key, data).map_err(corrupt)?;
            let Some(name) = names.first() else { return Ok(ControlFlow::Continue(())) };
            Ok(ControlFlow::Break((name.parent, name.name.to_vec())))
        })
    }

    /// Emits the entries from a cursor on.
    pub(crate) fn list(
        &self,
        dir: &Vnode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let kind = Some(FileType::Directory);
        if cursor == 0 {
            let own = DirEntry { ino: dir.ino()?, name: b".", kind, next: 1 };
            if emit(&own).is_break() {
                return Ok(());
            }
        }
        if cursor < FIRST_INDEX {
            let parent = DirEntry { ino: self.parent_of(dir)?, name: b"..", kind, next: FIRST_INDEX };
            if emit(&parent).is_break() {
                return Ok(());
            }
        }
        if dir.is_placeholder() {
            return Ok(());
        }
        let (tree, objectid) = (&self.tree_of(dir)?, dir.objectid);
        let first = Key::new(objectid, kind::DIR_INDEX, cursor.max(FIRST_INDEX));
        let last = Key::new(objectid, kind::DIR_INDEX, u64::MAX);
        self.forest.scan(tree, first, last, |key, data| {
            let bad = |what: String| self.forest.corrupt(what, tree, key);
            let entries = DirItem::decode_all(data, false).map_err(bad)?;
            let [entry] = &entries[..] else {
                return Err(bad(format!("{} names with one index", entries.len())));
            };
            if key.offset > LAST_INDEX {
                return Err(bad("its index is too large".into()));
            }
            let target = self.target(tree, objectid, key, entry)?;
            let ino = target.ino(tree.id)?;
            let entry = DirEntry { ino, name: entry.name, kind: entry.file_type(), next: key.offset + 1 };
            Ok(emit(&entry))
        })?;
        Ok(())
    }
}
