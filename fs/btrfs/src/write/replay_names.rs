//! Replay of a log tree: names.
//!
//! A directory stores each name in two forms, and the inode stores a reference to it. A log may have any of
//! the three. The log wins: an entry that already uses the name or the index is removed first.

use super::replay::Log;
use super::tx::Tx;
use crate::layout::bytes::read;
use crate::layout::items::{DirItem, decode_names, is_name};
use crate::layout::key::{Key, kind, object};
use crate::names::Target;
use ivers_vfs::{FileType, Result};
use std::ops::ControlFlow;
use zerocopy::little_endian::U64;

/// A name in a directory of the log's subvolume.
#[derive(Clone, Copy)]
struct Name<'a> {
    dir: u64,
    index: u64,
    name: &'a [u8],
}

impl Tx<'_> {
    /// The items with keys from `first` to `last`.
    pub(super) fn items_between(&self, tree: u64, first: Key, last: Key) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut found = Vec::new();
        self.fs.forest.scan(&self.tree(tree)?, first, last, |key, data| {
            found.push((key, data.to_vec()));
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        Ok(found)
    }

    /// The inode and the name that an item of a directory index has; `None`: it is a subvolume's.
    fn entry_of(&self, data: &[u8]) -> Result<Option<(u64, Vec<u8>)>> {
        let entries = DirItem::decode_all(data, false).map_err(|what| self.bad_log(what))?;
        let [entry] = &entries[..] else { return Err(self.bad_log("several names have one index")) };
        let is_inode = entry.location.kind == kind::INODE_ITEM;
        Ok(is_inode.then(|| (entry.location.objectid, entry.name.to_vec())))
    }

    /// Removes a name that leads to an inode.
    fn unlink_logged(&mut self, log: &mut Log, dir: u64, name: &[u8]) -> Result<()> {
        let tree = self.tree(log.subvolume)?;
        let objectid = match self.fs.find_name(&tree, dir, name)? {
            None => return Ok(()),
            Some(Target::Inode(objectid)) => objectid,
            // Linux commits when it makes, moves or deletes a subvolume.
            Some(_) => return Err(self.bad_log("it has the name of a subvolume")),
        };
        let index = self.remove_ref(objectid, (log.subvolume, dir), name)?;
        self.remove_entry((log.subvolume, dir), index, name)?;
        log.touched.extend([objectid, dir]);
        Ok(())
    }

    /// Removes names of a directory that the log lacks, in the ranges of indexes that the log covers.
    pub(super) fn remove_entries_not_in(&mut self, log: &mut Log, dir: u64) -> Result<()> {
        let key = |offset| Key::new(dir, kind::DIR_INDEX, offset);
        for (range, data) in log.of_inode(dir, kind::DIR_LOG_INDEX) {
            let end: U64 = read(&data, 0).ok_or_else(|| self.bad_log("a range of names is too short"))?;
            let mut gone = Vec::new();
            let (first, last) = (key(range.offset), key(end.get()));
            self.fs.forest.scan(&self.tree(log.subvolume)?, first, last, |at, data| {
                if let Some((_, name)) = self.entry_of(data)? {
                    let logged = log.get(at).map(|data| self.entry_of(data)).transpose()?.flatten();
                    if logged.is_none_or(|(_, logged)| logged != name) {
                        gone.push(name);
                    }
                }
                Ok(ControlFlow::<()>::Continue(()))
            })?;
            for name in gone {
                self.unlink_logged(log, dir, &name)?;
            }
        }
        Ok(())
    }

    /// Empties a directory that has no name.
    pub(super) fn remove_all_entries(&mut self, log: &mut Log, dir: u64) -> Result<()> {
        let key = |offset| Key::new(dir, kind::DIR_INDEX, offset);
        for (_, data) in self.items_between(log.subvolume, key(0), key(u64::MAX))? {
            if let Some((_, name)) = self.entry_of(&data)? {
                self.unlink_logged(log, dir, &name)?;
            }
        }
        Ok(())
    }

    /// Whether a directory has a name, in both forms, for an inode. Both forms must have its index.
    fn has_entry(&self, log: &Log, at: Name<'_>, objectid: u64) -> Result<bool> {
        let tree = self.tree(log.subvolume)?;
        let by_name = self.fs.find_name(&tree, at.dir, at.name)?;
        let by_index = match self.item(log.subvolume, Key::new(at.dir, kind::DIR_INDEX, at.index))? {
            Some(data) => self.entry_of(&data)?,
            None => None,
        };
        Ok(by_name == Some(Target::Inode(objectid))
            && by_index.is_some_and(|(found, name)| found == objectid && name == at.name))
    }

    /// Adds a name. Removes what has the name, or its index.
    fn link_logged(&mut self, log: &mut Log, at: Name<'_>, objectid: u64, kind: FileType) -> Result<()> {
        self.unlink_logged(log, at.dir, at.name)?;
        let key = Key::new(at.dir, kind::DIR_INDEX, at.index);
        if let Some(data) = self.item(log.subvolume, key)?
            && let Some((_, name)) = self.entry_of(&data)?
        {
            self.unlink_logged(log, at.dir, &name)?;
        }
        log.touched.extend([objectid, at.dir]);
        self.insert_entry((log.subvolume, at.dir), at.index, at.name, objectid, kind)
    }

    /// Adds the names that logged directories have. Those that an inode of the log refers to come later.
    pub(super) fn replay_entries(&mut self, log: &mut Log) -> Result<()> {
        for (key, data) in log.of_kind(kind::DIR_INDEX) {
            let Some((objectid, name)) = self.entry_of(&data)? else { continue };
            let at = Name { dir: key.objectid, index: key.offset, name: &name };
            let Some(inode) = self.logged_inode(log.subvolume, objectid)? else { continue };
            if self.logged_inode(log.subvolume, at.dir)?.is_none_or(|dir| dir.kind != FileType::Directory) {
                return Err(self.bad_log(format!("it has names of inode {}, which is no directory", at.dir)));
            }
            if self.has_entry(log, at, objectid)? || self.log_refers(log, objectid, at)? {
                continue;
            }
            self.link_logged(log, at, objectid, inode.kind)?;
            self.add_ref_of(objectid, (log.subvolume, at.dir), at.index, at.name)?;
        }
        Ok(())
    }

    /// Whether the log has a reference of an inode to a name.
    fn log_refers(&self, log: &Log, objectid: u64, at: Name<'_>) -> Result<bool> {
        for key in super::names::ref_keys(objectid, at.dir, at.name) {
            let Some(data) = log.get(key) else { continue };
            let names = decode_names(key, data).map_err(|what| self.bad_log(what))?;
            if names.iter().any(|found| (found.parent, found.name) == (at.dir, at.name)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Replaces the references of inodes by those of the log, and updates the directories to match.
    pub(super) fn replay_names(&mut self, log: &mut Log) -> Result<()> {
        for kind in [kind::INODE_REF, kind::INODE_EXTREF] {
            for (key, data) in log.of_kind(kind) {
                self.replay_ref(log, key, &data)?;
            }
        }
        Ok(())
    }

    fn replay_ref(&mut self, log: &mut Log, key: Key, data: &[u8]) -> Result<()> {
        let (subvolume, objectid) = (log.subvolume, key.objectid);
        let inode = self.logged_inode(subvolume, objectid)?;
        let inode =
            inode.ok_or_else(|| self.bad_log(format!("it names inode {objectid}, which does not exist")))?;
        let names = decode_names(key, data).map_err(|what| self.bad_log(what))?;
        // The root of a subvolume refers to itself.
        let is_root = key == Key::new(object::FIRST_FREE, kind::INODE_REF, object::FIRST_FREE);
        if let Some(bad) = names.iter().find(|found| !is_root && !is_name(found.name)) {
            return Err(self.bad_log(format!("it has the name {:?}", bad.name.escape_ascii().to_string())));
        }
        log.touched.insert(objectid);
        let old = self.item(subvolume, key)?.unwrap_or_default();
        let gone: Vec<(u64, Vec<u8>)> = decode_names(key, &old)
            .map_err(|what| self.bad_log(what))?
            .iter()
            .filter(|old| !names.iter().any(|new| (new.parent, new.name) == (old.parent, old.name)))
            .map(|old| (old.parent, old.name.to_vec()))
            .collect();
        for (dir, name) in gone {
            self.unlink_logged(log, dir, &name)?;
        }
        let mut kept = Vec::new();
        for found in &names {
            let at = Name { dir: found.parent, index: found.index, name: found.name };
            // The directory may be gone.
            let dir = self.logged_inode(subvolume, at.dir)?.filter(|dir| dir.kind == FileType::Directory);
            if dir.is_none() {
                continue;
            }
            kept.extend_from_slice(&data[found.range.clone()]);
            if !is_root && !self.has_entry(log, at, objectid)? {
                self.link_logged(log, at, objectid, inode.kind)?;
            }
        }
        match (kept.is_empty(), self.item(subvolume, key)?.is_some()) {
            (true, false) => Ok(()),
            _ => self.put_rest(subvolume, key, &kept),
        }
    }
}
