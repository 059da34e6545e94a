//! Making subvolumes and snapshots, and deleting them.

use super::attributes::TOP;
use super::change::{Need, refs_need};
use super::names::Name;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{Vnode, file_of, vnode_of};
use crate::layout::bytes::read;
use crate::layout::items::{DirItem, RootRef, SUBVOLUME_READ_ONLY, encode_name};
use crate::layout::key::{Key, is_subvolume, kind, object, orphan_key};
use crate::layout::node::Expected;
use crate::layout::raw::{RawKey, RawRootItem, RawRootRef, RawRootTail, RawTime};
use crate::layout::superblock::TreeRoot;
use crate::names::Target;
use crate::numbers::{Object, pack, unpack};
use crate::tree::Root;
use ivers_vfs::*;
use sha2::{Digest, Sha256};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use zerocopy::{FromZeros, IntoBytes};

/// Flags of the inode in a root item: Linux sets this one when it has initialised `flags` and `byte_limit`.
const INODE_ROOT_ITEM_INIT: u64 = 1 << 31;
/// The attribute of the root of the top-level subvolume with the next number of a subvolume, 64 bits little
/// endian. Users do not see it.
const NEXT_XATTR: &[u8] = b"trusted.ivers.next_subvolume";
/// Where the tail of a root item is.
const TAIL: usize = size_of::<RawRootItem>();
/// Permissions of the inode in a root item, which nothing uses.
const ROOT_ITEM_MODE: u32 = 0o40755;

fn time(time: Timestamp) -> RawTime {
    RawTime { sec: (time.sec as u64).into(), nsec: time.nsec.into() }
}

/// A root item in parts.
struct RootParts {
    raw: RawRootItem,
    tail: RawRootTail,
}

impl RootParts {
    /// Items of old kernels have no tail.
    fn decode(data: &[u8]) -> Option<Self> {
        let tail = read(data, TAIL).unwrap_or_else(RawRootTail::new_zeroed);
        Some(Self { raw: read(data, 0)?, tail })
    }

    fn encode(&self) -> Vec<u8> {
        [self.raw.as_bytes(), self.tail.as_bytes()].concat()
    }
}

impl Tx<'_> {
    /// The next number of a subvolume: above those that are or were in use. The VFS may still have inodes of
    /// a deleted subvolume, and programs its change attributes: a file in a snapshot with the same number
    /// could have the same inode number, generation and change attribute with other contents.
    fn next_subvolume(&self) -> Result<u64> {
        if let Some(next) = self.live.next_objectid.get(&object::ROOT_TREE) {
            return Ok(*next);
        }
        let tree = self.tree(object::ROOT_TREE)?;
        let last = Key::new(object::LAST_FREE, u8::MAX, u64::MAX);
        let found = self.fs.forest.last_at_most(&tree, last, |key, _| Ok(key.objectid))?;
        let unused = (found.unwrap_or_default() + 1).max(object::FIRST_FREE);
        Ok(unused.max(self.stored_next_subvolume()?))
    }

    /// The number that [`Tx::store_next_subvolume`] stored, or 0.
    fn stored_next_subvolume(&self) -> Result<u64> {
        let stored = self.fs.top_attribute(NEXT_XATTR)?;
        Ok(stored.and_then(|value| value.try_into().ok()).map_or(0, u64::from_le_bytes))
    }

    /// Stores the next number if a subvolume is deleted that has the highest one: nothing else shows later
    /// that it was in use. A read-only top level has no epoch record either, so no value of this session is
    /// valid later.
    fn store_next_subvolume(&mut self, deleted: u64) -> Result<()> {
        let next = self.next_subvolume()?;
        self.live.next_objectid.insert(object::ROOT_TREE, next);
        let is_highest = deleted + 1 == next;
        if !is_highest || self.fs.root_of(TOP.0)?.is_some_and(|root| root.read_only) {
            return Ok(());
        }
        self.store_attribute(TOP, NEXT_XATTR, Some(&next.to_le_bytes()), XattrMode::Any)
    }

    /// The number of a new subvolume.
    fn new_subvolume(&mut self) -> Result<u64> {
        let next = self.next_subvolume()?;
        if pack(next, Object::Inode(object::FIRST_FREE)).is_err() {
            return Err(NameError::NoSpace.into());
        }
        self.live.next_objectid.insert(object::ROOT_TREE, next + 1);
        Ok(next)
    }

    /// Makes a unique UUID from the UUID of the filesystem, the transaction, the new number and the time.
    fn new_uuid(&self, id: u64, now: Timestamp) -> [u8; 16] {
        let mut hash = Sha256::new();
        hash.update(self.sb().fsid);
        for number in [self.live.transid, id, now.sec as u64, now.nsec.into()] {
            hash.update(number.to_le_bytes());
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&hash.finalize()[..16]);
        // Version 4.
        uuid[6] = uuid[6] & 0x0F | 0x40;
        uuid[8] = uuid[8] & 0x3F | 0x80;
        uuid
    }

    /// Gives a subvolume its name, in the directory and in the tree of roots.
    fn name_subvolume(&mut self, id: u64, at: Name<'_>) -> Result<()> {
        let dir = vnode_of(at.dir);
        let index = self.next_index(dir)?;
        dir.next_index.store(index + 1, Ordering::Relaxed);
        self.needs_commit(file_of(dir));
        let location = Key::new(id, kind::ROOT_ITEM, u64::MAX);
        self.insert_entry_to(file_of(dir), index, at.name, location, FileType::Directory)?;
        self.resize_dir(at.dir, at.name.len() as i64);
        let raw = RawRootRef {
            dirid: dir.objectid.into(),
            sequence: index.into(),
            name_len: (at.name.len() as u16).into(),
        };
        let reference = [raw.as_bytes(), at.name].concat();
        self.insert(object::ROOT_TREE, Key::new(dir.subvolume, kind::ROOT_REF, id), &reference)?;
        self.insert(object::ROOT_TREE, Key::new(id, kind::ROOT_BACKREF, dir.subvolume), &reference)
    }

    /// Stores the root item of a new tree, and remembers its root.
    fn insert_root(&mut self, key: Key, parts: &RootParts, root: Root) -> Result<()> {
        self.insert(object::ROOT_TREE, key, &parts.encode())?;
        self.fs.forest.roots.lock().insert(key.objectid, root);
        self.live.changed_roots.insert(key.objectid);
        Ok(())
    }

    fn root_parts(&self, key: Key) -> Result<RootParts> {
        let data = self.item(object::ROOT_TREE, key)?;
        let parts = data.and_then(|data| RootParts::decode(&data));
        parts.ok_or_else(|| self.broken(format!("the root item {key} is missing or too short")))
    }

    fn add_subvolume(&mut self, at: Name<'_>, new: &NewInode) -> Result<()> {
        let dir = vnode_of(at.dir);
        let attributes = self.attributes_of_new(dir, new)?;
        let id = self.new_subvolume()?;
        let bytenr = self.new_root(id)?;
        let generation = self.live.transid;
        let mut raw = RawRootItem::new_zeroed();
        let mut tail = RawRootTail::new_zeroed();
        raw.inode.generation = 1.into();
        raw.inode.size = 3.into();
        raw.inode.nlink = 1.into();
        raw.inode.nbytes = u64::from(self.sb().node_size).into();
        raw.inode.mode = ROOT_ITEM_MODE.into();
        raw.inode.flags = INODE_ROOT_ITEM_INIT.into();
        raw.generation = generation.into();
        raw.root_dirid = object::FIRST_FREE.into();
        raw.bytenr = bytenr.into();
        raw.refs = 1.into();
        tail.generation_v2 = generation.into();
        tail.uuid = self.new_uuid(id, new.now);
        (tail.ctransid, tail.otransid) = (generation.into(), generation.into());
        (tail.ctime, tail.otime) = (time(new.now), time(new.now));
        let key = Key::new(id, kind::ROOT_ITEM, 0);
        let root = TreeRoot { bytenr, generation, level: 0 };
        let known = Root { root, key: Some(key), last_snapshot: 0, read_only: false, dropped: false };
        self.insert_root(key, &RootParts { raw, tail }, known)?;
        let top = object::FIRST_FREE;
        let mut item = self.new_item(dir, new, 1);
        item.raw_mut().transid = generation.into();
        self.insert(id, Key::new(top, kind::INODE_ITEM, 0), item.encode())?;
        self.insert(id, Key::new(top, kind::INODE_REF, top), &encode_name(0, b".."))?;
        for (key, data) in attributes {
            self.put(id, Key { objectid: top, ..key }, &data)?;
        }
        self.name_subvolume(id, at)
    }

    /// Copies the root of a tree, so that both trees share all other blocks. Everything is committed. Returns
    /// the number of the snapshot.
    pub(super) fn add_snapshot(
        &mut self,
        source: u64,
        at: Name<'_>,
        read_only: bool,
        now: Timestamp,
    ) -> Result<u64> {
        let stale = || Error::from(NameError::Stale);
        let mut origin = self.fs.root_of(source)?.ok_or_else(stale)?;
        let key = origin.key.ok_or_else(stale)?;
        let node = self.fs.forest.node(&Expected::root_of(source, origin.root))?;
        self.make_room(Need::Items, refs_need(node.count()))?;
        let id = self.new_subvolume()?;
        let copy = self.copy_root(id, &node)?;
        // From now on, each block of the source may be shared.
        let transid = self.live.transid;
        let mut parts = self.root_parts(key)?;
        parts.raw.last_snapshot = transid.into();
        self.put(object::ROOT_TREE, key, &parts.encode())?;
        origin.last_snapshot = transid;
        self.fs.forest.roots.lock().insert(source, origin);
        let RootParts { raw, tail } = &mut parts;
        raw.bytenr = copy.into();
        raw.generation = transid.into();
        raw.level = node.level;
        raw.refs = 1.into();
        (raw.drop_progress, raw.drop_level) = (RawKey::from(Key::new(0, 0, 0)), 0);
        // Without the mark, `flags` and `byte_limit` may have any value, and Linux resets them.
        if raw.inode.flags.get() & INODE_ROOT_ITEM_INIT == 0 {
            raw.inode.flags = (raw.inode.flags.get() | INODE_ROOT_ITEM_INIT).into();
            (raw.flags, raw.byte_limit) = (0.into(), 0.into());
        }
        let other = raw.flags.get() & !SUBVOLUME_READ_ONLY;
        raw.flags = (other | if read_only { SUBVOLUME_READ_ONLY } else { 0 }).into();
        tail.generation_v2 = transid.into();
        tail.parent_uuid = tail.uuid;
        tail.uuid = self.new_uuid(id, now);
        (tail.otransid, tail.otime) = (transid.into(), time(now));
        if !read_only {
            // It may change, and is then no longer what was received.
            tail.received_uuid = [0; 16];
            (tail.stransid, tail.rtransid) = (0.into(), 0.into());
            (tail.stime, tail.rtime) = (time(Timestamp::default()), time(Timestamp::default()));
        }
        let key = Key::new(id, kind::ROOT_ITEM, transid);
        let root = TreeRoot { bytenr: copy, generation: transid, level: node.level };
        let known = Root { root, key: Some(key), last_snapshot: transid, read_only, dropped: false };
        self.insert_root(key, &parts, known)?;
        self.name_subvolume(id, at)?;
        Ok(id)
    }

    /// The index of the name of a subvolume in its directory.
    fn index_of_subvolume(&self, id: u64, dir: &Vnode) -> Result<u64> {
        let reference = self.item(object::ROOT_TREE, Key::new(dir.subvolume, kind::ROOT_REF, id))?;
        let reference = reference.unwrap_or_default();
        Ok(RootRef::decode(&reference).map_err(|what| self.broken(what))?.index)
    }

    /// Checks that the name of a subvolume can be removed, and returns the number of the subvolume.
    fn check_deletion(&self, at: Name<'_>, victim: &Vnode) -> Result<u64> {
        let dir = vnode_of(at.dir);
        let id = victim.subvolume;
        self.may_change(dir)?;
        match self.fs.find_name(&self.tree(dir.subvolume)?, dir.objectid, at.name)? {
            Some(Target::Subvolume(found)) if found == id && victim.objectid == object::FIRST_FREE => {}
            _ => return Err(NameError::Invalid.into()),
        }
        if id == self.fs.default_subvolume()? || pack(id, Object::Inode(object::FIRST_FREE))? == self.fs.root
        {
            return Err(NameError::Busy.into());
        }
        let key = |offset| Key::new(id, kind::ROOT_REF, offset);
        let tree = self.tree(object::ROOT_TREE)?;
        let nested = self.fs.forest.scan(&tree, key(0), key(u64::MAX), |_, _| Ok(ControlFlow::Break(())))?;
        if nested.is_some() {
            return Err(NameError::NotEmpty.into());
        }
        let key = Key::new(dir.objectid, kind::DIR_INDEX, self.index_of_subvolume(id, dir)?);
        let entries = self.item(dir.subvolume, key)?.unwrap_or_default();
        let entries = DirItem::decode_all(&entries, false).map_err(|what| self.broken(what))?;
        let is_it = |entry: &DirItem<'_>| {
            entry.name == at.name && (entry.location.objectid, entry.location.kind) == (id, kind::ROOT_ITEM)
        };
        if !entries.iter().any(is_it) {
            return Err(self.broken(format!("the index of the directory has no name of subvolume {id}")));
        }
        // The index of the last name stays known, so that it is not used again.
        dir.next_index.store(self.next_index(dir)?, Ordering::Relaxed);
        Ok(id)
    }

    pub(super) fn unname_subvolume(&mut self, id: u64, at: Name<'_>) -> Result<()> {
        let dir = vnode_of(at.dir);
        let index = self.index_of_subvolume(id, dir)?;
        self.store_next_subvolume(id)?;
        self.remove(object::ROOT_TREE, Key::new(dir.subvolume, kind::ROOT_REF, id))?;
        self.remove(object::ROOT_TREE, Key::new(id, kind::ROOT_BACKREF, dir.subvolume))?;
        self.remove_entry(file_of(dir), index, at.name)?;
        dir.next_index.fetch_max(index.saturating_add(1), Ordering::Relaxed);
        self.needs_commit(file_of(dir));
        self.resize_dir(at.dir, -(at.name.len() as i64));
        let key = self.fs.root_of(id)?.and_then(|root| root.key);
        self.fs.forest.roots.lock().remove(&id);
        let key = key.ok_or_else(|| self.broken(format!("subvolume {id} has no root item")))?;
        let mut parts = self.root_parts(key)?;
        parts.raw.refs = 0.into();
        (parts.raw.drop_progress, parts.raw.drop_level) = (RawKey::from(Key::new(0, 0, 0)), 0);
        self.put(object::ROOT_TREE, key, &parts.encode())?;
        self.live.next_objectid.remove(&id);
        // Linux, too, finds it by this mark.
        self.put(object::ROOT_TREE, orphan_key(id), &[])
    }
}

impl SubvolumeOps for Btrfs {
    fn list(&self) -> Result<Vec<SubvolumeInfo>> {
        self.list_subvolumes()
    }

    fn contains(&self, root: &Inode, ino: Ino) -> bool {
        unpack(ino).0 == vnode_of(root).subvolume
    }

    fn create(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<()> {
        self.change(Need::Items, |tx| {
            let at = Name { dir, name };
            tx.check_name(u64::MAX, at, None)?;
            tx.add_subvolume(at, new)?;
            tx.dir_changed(dir)
        })?;
        self.commit()
    }

    fn snapshot(
        &self,
        source: &Inode,
        dir: &Inode,
        name: &[u8],
        read_only: bool,
        now: Timestamp,
    ) -> Result<()> {
        let origin = vnode_of(source);
        let is_top = origin.objectid == object::FIRST_FREE && is_subvolume(origin.subvolume);
        if !is_top || origin.is_placeholder() {
            return Err(NameError::Invalid.into());
        }
        let id = self.change(Need::Items, |tx| {
            let at = Name { dir, name };
            tx.check_name(u64::MAX, at, None)?;
            // A snapshot must not share blocks of the running transaction: these still change in memory.
            tx.commit()?;
            let id = tx.add_snapshot(origin.subvolume, at, read_only, now)?;
            tx.dir_changed(dir)?;
            Ok(id)
        })?;
        // Files that are open in the source and have no name: nothing uses them in the snapshot.
        match self.remove_orphans_of(id) {
            // The next writable mount deletes them.
            Err(Error::Name(error)) => {
                log::warn!("{}: orphans of a snapshot stay: {error}", self.forest.volume.place);
            }
            removed => drop(removed?),
        }
        self.commit()
    }

    fn delete(&self, dir: &Inode, name: &[u8], victim: &Inode) -> Result<()> {
        self.change(Need::Removal, |tx| {
            let at = Name { dir, name };
            let id = tx.check_deletion(at, vnode_of(victim))?;
            // This commit stores the current root of the tree in the root item: nothing does that later.
            tx.commit()?;
            tx.unname_subvolume(id, at)?;
            tx.dir_changed(dir)
        })?;
        // The name is gone first: a crash leaves no subvolume with a part of its files.
        self.commit()?;
        self.drop_deleted_subvolumes()?;
        self.commit()
    }
}
