//! Deleting inodes without a name, also those that a crash left.

use super::change::Need;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::Vnode;
use crate::layout::bytes::read;
use crate::layout::key::{Key, is_subvolume, kind, object, orphan_key};
use crate::layout::raw::RawRootItem;
use ivers_vfs::{FileType, Result};
use std::ops::ControlFlow;

/// Items of an inode that one change removes.
const ITEMS_MAX: usize = 512;
/// Orphans that are found at once.
const ORPHANS_MAX: usize = 1024;

impl Tx<'_> {
    /// Removes a part of an inode. Returns whether something is left.
    fn remove_part(&mut self, vnode: &Vnode) -> Result<bool> {
        let (subvolume, objectid) = (vnode.subvolume, vnode.objectid);
        self.unshare_for(Need::Removal, vnode, Key::new(objectid, u8::MAX, u64::MAX))?;
        if vnode.item.lock().kind == FileType::Regular {
            let dropped = self.drop_last_extents((subvolume, objectid), 0)?;
            if dropped.more {
                let mut item = vnode.item.lock().clone();
                let raw = item.raw_mut();
                raw.nbytes = raw.nbytes.get().saturating_sub(dropped.bytes).into();
                self.store_item(vnode, item)?;
                return Ok(true);
            }
        }
        let tree = self.tree(subvolume)?;
        let mut keys = Vec::new();
        let last = Key::new(objectid, u8::MAX, u64::MAX);
        self.fs.forest.scan(&tree, Key::new(objectid, 0, 0), last, |key, _| {
            keys.push(key);
            Ok(if keys.len() > ITEMS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        // The inode item is the first one, and goes last.
        let more = keys.len() > ITEMS_MAX;
        for (nth, key) in keys.into_iter().skip(usize::from(more)).rev().enumerate() {
            if nth > 0 && (self.has_many_refs() || self.must_unshare(subvolume, key)?) {
                return Ok(true);
            }
            self.remove(subvolume, key)?;
        }
        if !more {
            self.remove(subvolume, orphan_key(objectid))?;
        }
        Ok(more)
    }
}

impl Btrfs {
    /// Deletes an inode that is an orphan.
    pub(crate) fn remove_inode(&self, vnode: &Vnode) -> Result<()> {
        if self.root_of(vnode.subvolume)?.is_none() {
            // It was open in a subvolume that was deleted meanwhile, with everything in it.
            return Ok(());
        }
        while self.change(Need::Removal, |tx| tx.remove_part(vnode))? {}
        Ok(())
    }

    /// Deletes the orphans of all subvolumes, also of read-only ones, as Linux does: they are visible
    /// nowhere.
    pub(crate) fn remove_orphans(&self) -> Result<usize> {
        let mut count = 0;
        for subvolume in self.subvolumes()? {
            count += self.remove_orphans_of(subvolume)?;
        }
        Ok(count)
    }

    /// Deletes the orphans of a subvolume. Nothing may use them.
    pub(super) fn remove_orphans_of(&self, subvolume: u64) -> Result<usize> {
        let mut count = 0;
        loop {
            let found = self.orphans_of(subvolume)?;
            for objectid in &found {
                self.remove_orphan(subvolume, *objectid)?;
            }
            count += found.len();
            if found.len() < ORPHANS_MAX {
                return Ok(count);
            }
        }
    }

    /// The subvolumes that are not being deleted.
    pub(super) fn subvolumes(&self) -> Result<Vec<u64>> {
        let _trees = self.live.read();
        let mut found = vec![object::FS_TREE];
        let Some(tree) = self.tree(object::ROOT_TREE)? else { return Ok(found) };
        let first = Key::new(object::FIRST_FREE, kind::ROOT_ITEM, 0);
        let last = Key::new(object::LAST_FREE, kind::ROOT_ITEM, u64::MAX);
        self.forest.scan(&tree, first, last, |key, data| {
            // Linux deletes those without references, and has begun to.
            let is_deleted = || read::<RawRootItem>(data, 0).is_none_or(|item| item.refs.get() == 0);
            if key.kind == kind::ROOT_ITEM && is_subvolume(key.objectid) && !is_deleted() {
                found.push(key.objectid);
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(found)
    }

    pub(super) fn orphans_of(&self, subvolume: u64) -> Result<Vec<u64>> {
        let _trees = self.live.read();
        let mut found = Vec::new();
        let Some(tree) = self.tree(subvolume)? else { return Ok(found) };
        self.forest.scan(&tree, orphan_key(0), orphan_key(u64::MAX), |key, _| {
            found.push(key.offset);
            Ok(if found.len() >= ORPHANS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(found)
    }

    fn remove_orphan(&self, subvolume: u64, objectid: u64) -> Result<()> {
        let item = {
            let _trees = self.live.read();
            match self.tree(subvolume)? {
                Some(tree) => self.inode_item(&tree, objectid)?,
                None => None,
            }
        };
        match item {
            Some(item) if item.nlink() == 0 => self.remove_inode(&Vnode::new(subvolume, objectid, item)),
            // A truncation that was interrupted, or nothing: only the mark is stale.
            _ => self.change(Need::Removal, |tx| tx.remove(subvolume, orphan_key(objectid))),
        }
    }
}
