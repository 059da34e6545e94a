//! Entries of directories, and making, linking, unlinking and renaming inodes.

use super::change::Need;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{Vnode, file_of, vnode_of};
use crate::layout::checksum::{name_hash, raw_crc};
use crate::layout::features::Incompat;
use crate::layout::items::{DirItem, InodeItem, decode_names, encode_entry, encode_name};
use crate::layout::key::{Key, kind, orphan_key};
use crate::layout::node::{HEADER_BYTES, ITEM_BYTES};
use crate::names::{FIRST_INDEX, LAST_INDEX, Target};
use crate::numbers::{FileId, Object, pack};
use ivers_vfs::*;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

/// The most names of an inode.
pub(crate) const LINKS_MAX: u32 = 65_535;

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct Name<'a> {
    pub dir: &'a Inode,
    pub name: &'a [u8],
}

/// The reference of an inode to a name.
struct FoundRef {
    key: Key,
    /// The index of the name.
    index: u64,
    /// The item, and where the reference is in it.
    data: Vec<u8>,
    range: Range<usize>,
}

fn extref_key(objectid: u64, dir: u64, name: &[u8]) -> Key {
    Key::new(objectid, kind::INODE_EXTREF, u64::from(raw_crc(dir as u32, name)))
}

/// The items that may have the reference of an inode to a name.
pub(super) fn ref_keys(objectid: u64, dir: u64, name: &[u8]) -> [Key; 2] {
    [Key::new(objectid, kind::INODE_REF, dir), extref_key(objectid, dir, name)]
}

impl Tx<'_> {
    /// The largest item.
    pub(super) fn most_data(&self) -> usize {
        self.sb().node_size as usize - HEADER_BYTES - ITEM_BYTES
    }

    pub(super) fn item(&self, tree: u64, key: Key) -> Result<Option<Vec<u8>>> {
        self.fs.forest.get(&self.tree(tree)?, key, |data| Ok(data.to_vec()))
    }

    /// Adds to an item, or inserts it.
    fn append(&mut self, tree: u64, key: Key, more: &[u8]) -> Result<()> {
        let mut data = self.item(tree, key)?.unwrap_or_default();
        data.extend(more);
        self.put(tree, key, &data)
    }

    /// Stores what is left of an item.
    pub(super) fn put_rest(&mut self, tree: u64, key: Key, rest: &[u8]) -> Result<()> {
        if rest.is_empty() { self.remove(tree, key) } else { self.put(tree, key, rest) }
    }

    pub(super) fn next_index(&self, dir: &Vnode) -> Result<u64> {
        let known = dir.next_index.load(Ordering::Relaxed);
        let next = match known {
            0 => {
                let tree = self.tree(dir.subvolume)?;
                let last = Key::new(dir.objectid, kind::DIR_INDEX, u64::MAX);
                let found = self.fs.forest.last_at_most(&tree, last, |key, _| Ok(key))?;
                let found = found.filter(|key| (key.objectid, key.kind) == (dir.objectid, kind::DIR_INDEX));
                found.map_or(FIRST_INDEX, |key| key.offset.saturating_add(1))
            }
            known => known,
        };
        if next > LAST_INDEX { Err(NameError::NoSpace.into()) } else { Ok(next) }
    }

    /// Where a reference of an inode to a name is, or can be added. `TooManyLinks`: nowhere.
    fn place_for_ref(&self, objectid: u64, (subvolume, dir): FileId, name: &[u8]) -> Result<Key> {
        let key = Key::new(objectid, kind::INODE_REF, dir);
        let more = encode_name(0, name).len();
        if self.item(subvolume, key)?.map_or(0, |data| data.len()) + more <= self.most_data() {
            return Ok(key);
        }
        let key = extref_key(objectid, dir, name);
        let used = self.item(subvolume, key)?.map_or(0, |data| data.len());
        let fits = used + more + 8 <= self.most_data();
        if self.sb().incompat.contains(Incompat::EXTENDED_IREF) && fits {
            Ok(key)
        } else {
            Err(NameError::TooManyLinks.into())
        }
    }

    /// Checks that a name can be added: nothing changes.
    pub(super) fn check_name(&self, objectid: u64, at: Name<'_>, gone: Option<&[u8]>) -> Result<()> {
        let dir = vnode_of(at.dir);
        self.may_change(dir)?;
        if at.name.len() > crate::layout::items::NAME_MAX {
            return Err(NameError::NameTooLong.into());
        }
        self.place_for_ref(objectid, file_of(vnode_of(at.dir)), at.name)?;
        self.next_index(dir)?;
        let key = Key::new(dir.objectid, kind::DIR_ITEM, name_hash(at.name));
        let used = self.item(dir.subvolume, key)?.map_or(0, |data| data.len());
        let entry = encode_entry(key, 0, at.name, &[], 0).len();
        let freed = gone.map_or(0, |_| entry);
        // Names with one hash share an item.
        if used + entry - freed.min(used) > self.most_data() {
            return Err(NameError::NoSpace.into());
        }
        Ok(())
    }

    fn add_name(&mut self, objectid: u64, file_type: FileType, at: Name<'_>) -> Result<()> {
        let dir = vnode_of(at.dir);
        let index = self.next_index(dir)?;
        dir.next_index.store(index + 1, Ordering::Relaxed);
        self.touch(file_of(vnode_of(at.dir)));
        self.add_ref_of(objectid, file_of(vnode_of(at.dir)), index, at.name)?;
        self.insert_entry(file_of(vnode_of(at.dir)), index, at.name, objectid, file_type)?;
        self.resize_dir(at.dir, at.name.len() as i64);
        Ok(())
    }

    /// Adds a reference of an inode to a name.
    pub(super) fn add_ref_of(&mut self, objectid: u64, dir: FileId, index: u64, name: &[u8]) -> Result<()> {
        let key = self.place_for_ref(objectid, dir, name)?;
        let reference = match key.kind {
            kind::INODE_REF => encode_name(index, name),
            _ => [&dir.1.to_le_bytes()[..], &encode_name(index, name)].concat(),
        };
        self.append(dir.0, key, &reference)
    }

    /// Adds an entry to a directory, in both forms.
    pub(super) fn insert_entry(
        &mut self,
        (subvolume, dir): FileId,
        index: u64,
        name: &[u8],
        objectid: u64,
        file_type: FileType,
    ) -> Result<()> {
        let location = Key::new(objectid, kind::INODE_ITEM, 0);
        self.insert_entry_to((subvolume, dir), index, name, location, file_type)
    }

    /// Adds an entry that leads to an inode or to a subvolume.
    pub(super) fn insert_entry_to(
        &mut self,
        (subvolume, dir): FileId,
        index: u64,
        name: &[u8],
        location: Key,
        file_type: FileType,
    ) -> Result<()> {
        let entry = encode_entry(location, self.live.transid, name, &[], file_type.dirent_number());
        self.append(subvolume, Key::new(dir, kind::DIR_ITEM, name_hash(name)), &entry)?;
        self.insert(subvolume, Key::new(dir, kind::DIR_INDEX, index), &entry)
    }

    /// Removes an entry of a directory, in both forms.
    pub(super) fn remove_entry(&mut self, (subvolume, dir): FileId, index: u64, name: &[u8]) -> Result<()> {
        let key = Key::new(dir, kind::DIR_ITEM, name_hash(name));
        let data = self.item(subvolume, key)?.unwrap_or_default();
        let entries = DirItem::decode_all(&data, false).map_err(|what| self.broken(what))?;
        let mut rest = Vec::new();
        for entry in entries.iter().filter(|entry| entry.name != name) {
            rest.extend(encode_entry(entry.location, entry.transid, entry.name, entry.value, entry.kind));
        }
        self.put_rest(subvolume, key, &rest)?;
        self.remove(subvolume, Key::new(dir, kind::DIR_INDEX, index))
    }

    /// The size of a directory is twice that of its names.
    pub(super) fn resize_dir(&self, dir: &Inode, by: i64) {
        let size = vnode_of(dir).size().saturating_add_signed(2 * by);
        self.edit_item(dir, |item| item.raw_mut().size = size.into());
        dir.with_attr(|attr| attr.size = size);
    }

    /// Finds the reference of an inode to a name.
    fn find_ref(&self, objectid: u64, (subvolume, dir): FileId, name: &[u8]) -> Result<FoundRef> {
        for key in ref_keys(objectid, dir, name) {
            let Some(data) = self.item(subvolume, key)? else { continue };
            let names = decode_names(key, &data).map_err(|what| self.broken(what))?;
            let found = names.iter().find(|found| (found.parent, found.name) == (dir, name));
            let Some(found) = found else { continue };
            let (index, range) = (found.index, found.range.clone());
            return Ok(FoundRef { key, index, data, range });
        }
        Err(self.broken(format!("inode {objectid} has no reference to a name of it")))
    }

    /// Removes the reference of an inode to a name. Returns the name's index.
    pub(super) fn remove_ref(&mut self, objectid: u64, dir: FileId, name: &[u8]) -> Result<u64> {
        let FoundRef { key, index, data: mut rest, range } = self.find_ref(objectid, dir, name)?;
        rest.drain(range);
        self.put_rest(dir.0, key, &rest)?;
        Ok(index)
    }

    /// Copies the shared blocks that removing a name changes, if space is short.
    fn unshare_for_removal(&mut self, at: Name<'_>, inode: &Inode) -> Result<()> {
        if !self.is_short() {
            return Ok(());
        }
        let (dir, vnode) = (vnode_of(at.dir), vnode_of(inode));
        let found = self.find_ref(vnode.objectid, file_of(dir), at.name)?;
        let keys = [
            dir.item_key(),
            Key::new(dir.objectid, kind::DIR_ITEM, name_hash(at.name)),
            Key::new(dir.objectid, kind::DIR_INDEX, found.index),
            found.key,
            vnode.item_key(),
            orphan_key(vnode.objectid),
        ];
        self.unshare_paths(Need::Removal, dir.subvolume, &keys)
    }

    fn remove_name(&mut self, objectid: u64, at: Name<'_>) -> Result<()> {
        let dir = vnode_of(at.dir);
        self.needs_commit(file_of(vnode_of(at.dir)));
        self.needs_commit((dir.subvolume, objectid));
        let index = self.remove_ref(objectid, file_of(vnode_of(at.dir)), at.name)?;
        self.remove_entry(file_of(vnode_of(at.dir)), index, at.name)?;
        // The index is not used again while the directory is in memory: a cursor may name it.
        dir.next_index.fetch_max(index + 1, Ordering::Relaxed);
        self.resize_dir(at.dir, -(at.name.len() as i64));
        Ok(())
    }

    /// Checks that a name leads to an inode of this subvolume, which can lose it.
    fn check_removal(&self, at: Name<'_>, inode: &Inode) -> Result<()> {
        let (dir, vnode) = (vnode_of(at.dir), vnode_of(inode));
        self.may_change(dir)?;
        match self.fs.find_name(&self.tree(dir.subvolume)?, dir.objectid, at.name)? {
            Some(Target::Inode(objectid)) if objectid == vnode.objectid => {}
            // Subvolumes are deleted in another way.
            Some(Target::Subvolume(_) | Target::Elsewhere(_)) => return Err(NameError::NotPermitted.into()),
            _ => return Err(NameError::Stale.into()),
        }
        if vnode.subvolume != dir.subvolume {
            return Err(NameError::NotPermitted.into());
        }
        // The index of the last name stays known, so that it is not used again.
        dir.next_index.store(self.next_index(dir)?, Ordering::Relaxed);
        Ok(())
    }

    fn check_empty(&self, inode: &Inode) -> Result<()> {
        if inode.kind != FileType::Directory {
            return Ok(());
        }
        let vnode = vnode_of(inode);
        let first = Key::new(vnode.objectid, kind::DIR_INDEX, 0);
        let last = Key::new(vnode.objectid, kind::DIR_INDEX, u64::MAX);
        let tree = self.tree(vnode.subvolume)?;
        let found = self.fs.forest.scan(&tree, first, last, |_, _| Ok(ControlFlow::Break(())))?;
        if found.is_some() { Err(NameError::NotEmpty.into()) } else { Ok(()) }
    }

    /// An inode has one name less: without any it is an orphan.
    fn lose_link(&mut self, inode: &Inode) -> Result<()> {
        let vnode = vnode_of(inode);
        let left = inode.with_attr(|attr| {
            attr.nlink = if attr.kind == FileType::Directory { 0 } else { attr.nlink.saturating_sub(1) };
            attr.nlink
        });
        inode.changed(Touch::Metadata, Logged::Anyway);
        if left == 0 {
            let key = orphan_key(vnode.objectid);
            self.put(vnode.subvolume, key, &[])?;
        }
        self.write_inode(inode)
    }

    pub(super) fn dir_changed(&mut self, dir: &Inode) -> Result<()> {
        dir.changed(Touch::Data, Logged::Anyway);
        self.write_inode(dir)
    }
}

impl Btrfs {
    /// Makes an inode, with a name or as an orphan.
    pub(crate) fn make(&self, dir: &Inode, name: Option<&[u8]>, new: &NewInode) -> Result<LoadedInode> {
        let parent = vnode_of(dir);
        self.change(Need::Items, |tx| {
            tx.may_change(parent)?;
            let at = name.map(|name| Name { dir, name });
            if let Some(at) = at {
                tx.check_name(u64::MAX, at, None)?;
            }
            if new.target.len() > tx.most_inline() {
                return Err(NameError::NameTooLong.into());
            }
            let attributes = tx.attributes_of_new(parent, new)?;
            let objectid = tx.new_objectid(parent.subvolume)?;
            let ino = pack(parent.subvolume, Object::Inode(objectid))?;
            let nlink = u32::from(name.is_some());
            let mut item = tx.new_item(parent, new, nlink);
            let vnode = Vnode::new(parent.subvolume, objectid, item.clone());
            if new.kind == FileType::Symlink {
                let len = new.target.len() as u64;
                (item.raw_mut().size, item.raw_mut().nbytes) = (len.into(), len.into());
            }
            tx.store_item(&vnode, item)?;
            tx.live.log.made.insert((parent.subvolume, objectid), parent.objectid);
            if new.kind == FileType::Symlink {
                tx.insert_inline(parent.subvolume, objectid, &new.target)?;
            } else if new.kind == FileType::Regular && new.size > 0 {
                tx.insert_holes(parent.subvolume, objectid, 0, new.size)?;
            }
            for (key, data) in attributes {
                tx.put(parent.subvolume, Key { objectid, ..key }, &data)?;
            }
            match at {
                Some(at) => {
                    tx.add_name(objectid, new.kind, at)?;
                    tx.dir_changed(dir)?;
                }
                None => {
                    let key = orphan_key(objectid);
                    tx.insert(parent.subvolume, key, &[])?;
                    tx.needs_commit((parent.subvolume, objectid));
                }
            }
            let item: InodeItem = vnode.item.lock().clone();
            let mut loaded = self.loaded(ino, parent.subvolume, objectid, item);
            if let InitialCounter::Stored(first) = loaded.counter {
                loaded.counter = InitialCounter::Fresh(first);
            }
            Ok(loaded)
        })
    }

    /// Adds a name.
    pub(crate) fn link_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let (parent, vnode) = (vnode_of(dir), vnode_of(inode));
        self.change(Need::Items, |tx| {
            if parent.subvolume != vnode.subvolume {
                return Err(NameError::CrossDevice.into());
            }
            let at = Name { dir, name };
            tx.check_name(vnode.objectid, at, None)?;
            let links = inode.attr().nlink;
            if links >= LINKS_MAX {
                return Err(NameError::TooManyLinks.into());
            }
            tx.needs_commit(file_of(vnode_of(inode)));
            tx.add_name(vnode.objectid, inode.kind, at)?;
            if links == 0 {
                tx.remove(vnode.subvolume, orphan_key(vnode.objectid))?;
            }
            inode.with_attr(|attr| attr.nlink += 1);
            inode.changed(Touch::Metadata, Logged::Anyway);
            tx.write_inode(inode)?;
            tx.dir_changed(dir)
        })
    }

    /// Removes a name.
    pub(crate) fn unlink_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.change(Need::Removal, |tx| {
            let at = Name { dir, name };
            tx.check_removal(at, inode)?;
            tx.check_empty(inode)?;
            tx.unshare_for_removal(at, inode)?;
            tx.remove_name(vnode_of(inode).objectid, at)?;
            tx.lose_link(inode)?;
            tx.dir_changed(dir)
        })
    }

    /// Renames an inode. Removes the target, or exchanges both names.
    pub(crate) fn rename_name(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = rename;
        let (old, new) = (Name { dir: old_dir, name: old_name }, Name { dir: new_dir, name: new_name });
        let objectid = vnode_of(inode).objectid;
        self.change(Need::Items, |tx| {
            if vnode_of(old_dir).subvolume != vnode_of(new_dir).subvolume {
                return Err(NameError::CrossDevice.into());
            }
            tx.check_removal(old, inode)?;
            if let Some(target) = target {
                tx.check_removal(new, target)?;
                if !exchange {
                    tx.check_empty(target)?;
                }
            }
            tx.check_name(objectid, new, target.map(|_| new_name))?;
            if let Some(target) = target.filter(|_| exchange) {
                tx.check_name(vnode_of(target).objectid, old, Some(old_name))?;
            }
            tx.remove_name(objectid, old)?;
            if let Some(target) = target {
                tx.remove_name(vnode_of(target).objectid, new)?;
            }
            tx.add_name(objectid, inode.kind, new)?;
            inode.changed(Touch::Metadata, Logged::Anyway);
            tx.write_inode(inode)?;
            match target {
                Some(target) if exchange => {
                    tx.add_name(vnode_of(target).objectid, target.kind, old)?;
                    target.changed(Touch::Metadata, Logged::Anyway);
                    tx.write_inode(target)?;
                }
                Some(target) => tx.lose_link(target)?,
                None => {}
            }
            if old_dir.ino != new_dir.ino {
                tx.dir_changed(old_dir)?;
            }
            tx.dir_changed(new_dir)
        })
    }
}
