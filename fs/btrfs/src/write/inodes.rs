//! Inode items: writing them, and new inodes.

use super::tx::Tx;
use crate::inode::{FLAGS, Vnode, vnode_of};
use crate::layout::items::{InodeItem, inode_flags, rdev_to_disk};
use crate::layout::key::{Key, object};
use crate::layout::raw::RawTime;
use crate::numbers::{Object, pack};
use ivers_vfs::{Attr, FileType, Inode, InodeFlags, NameError, NewInode, Result, Timestamp};

fn time(time: Timestamp) -> RawTime {
    RawTime { sec: (time.sec as u64).into(), nsec: time.nsec.into() }
}

/// Flags that a new inode takes from its directory.
const INHERITED: u64 = inode_flags::NODATACOW | inode_flags::NODATASUM | inode_flags::COMPRESSION;

fn set_attributes(item: &mut InodeItem, attr: &Attr) {
    let raw = item.raw_mut();
    raw.mode = attr.mode().into();
    raw.uid = attr.uid.into();
    raw.gid = attr.gid.into();
    raw.nlink = attr.nlink.into();
    raw.atime = time(attr.atime);
    raw.mtime = time(attr.mtime);
    raw.ctime = time(attr.ctime);
    let mut flags = raw.flags.get();
    for (bit, flag) in FLAGS {
        if attr.flags.contains(flag) { flags |= bit } else { flags &= !bit }
    }
    raw.flags = flags.into();
}

/// Reduces attributes to what an inode item can have, or refuses.
pub(crate) fn prepare(old: &Attr, new: &mut Attr) -> Result<()> {
    let known = FLAGS.iter().fold(InodeFlags::empty(), |all, (_, flag)| all | *flag);
    if new.flags.difference(known).difference(old.flags) != InodeFlags::empty() {
        return Err(NameError::NotSupported.into());
    }
    Ok(())
}

impl Tx<'_> {
    /// Refuses changes of an inode that is not in a writable subvolume.
    pub(crate) fn may_change(&self, vnode: &Vnode) -> Result<()> {
        if vnode.is_placeholder() {
            return Err(NameError::NotPermitted.into());
        }
        let root = self.fs.root_of(vnode.subvolume)?.filter(|root| !root.dropped).ok_or(NameError::Stale)?;
        if root.read_only { Err(NameError::ReadOnly.into()) } else { Ok(()) }
    }

    /// Stores an inode item, if something in it changed.
    pub(crate) fn write_inode(&mut self, inode: &Inode) -> Result<()> {
        let vnode = vnode_of(inode);
        let old = vnode.item.lock().clone();
        let mut new = old.clone();
        set_attributes(&mut new, &inode.attr());
        let stored = old.sequence();
        let sequence = match old.flags() & inode_flags::NODATACOW {
            0 => inode.counter.peek(),
            // Its counter is not stored. Other drivers still see that the inode changed.
            _ => stored.wrapping_add(1),
        };
        new.raw_mut().sequence = sequence.into();
        let is_changed = old.flags() & inode_flags::NODATACOW != 0 || new.encode() != old.encode();
        if !is_changed && self.is_stored(vnode, &old)? {
            return Ok(());
        }
        self.store_item(vnode, new)
    }

    fn is_stored(&self, vnode: &Vnode, item: &InodeItem) -> Result<bool> {
        let tree = self.tree(vnode.subvolume)?;
        let stored = self.fs.inode_item(&tree, vnode.objectid)?;
        Ok(stored.is_some_and(|stored| stored.encode() == item.encode()))
    }

    /// Stores an inode item with the number of this transaction.
    pub(super) fn store_item(&mut self, vnode: &Vnode, mut item: InodeItem) -> Result<()> {
        item.raw_mut().transid = self.live.transid.into();
        self.put(vnode.subvolume, vnode.item_key(), item.encode())?;
        self.touch((vnode.subvolume, vnode.objectid));
        *vnode.item.lock() = item;
        Ok(())
    }

    /// Changes the fields of an item in memory. `write_inode` stores it.
    pub(super) fn edit_item(&self, inode: &Inode, change: impl FnOnce(&mut InodeItem)) {
        let blocks = {
            let mut item = vnode_of(inode).item.lock();
            change(&mut item);
            self.fs.blocks_of(&item)
        };
        inode.with_attr(|attr| attr.blocks_512 = blocks);
    }

    /// The number of a new inode.
    pub(super) fn new_objectid(&mut self, subvolume: u64) -> Result<u64> {
        let next = match self.live.next_objectid.get(&subvolume) {
            Some(next) => *next,
            None => {
                let tree = self.tree(subvolume)?;
                let last = Key::new(object::LAST_FREE, u8::MAX, u64::MAX);
                let found = self.fs.forest.last_at_most(&tree, last, |key, _| Ok(key.objectid))?;
                found.unwrap_or(object::FIRST_FREE).max(object::FIRST_FREE) + 1
            }
        };
        if pack(subvolume, Object::Inode(next)).is_err() {
            return Err(NameError::NoSpace.into());
        }
        self.live.next_objectid.insert(subvolume, next + 1);
        Ok(next)
    }

    /// The item of a new inode in a directory.
    pub(super) fn new_item(&self, dir: &Vnode, new: &NewInode, nlink: u32) -> InodeItem {
        let mut item = InodeItem::empty(new.kind);
        set_attributes(&mut item, &new.attr(nlink));
        let mut flags = dir.item.lock().flags() & INHERITED;
        if !matches!(new.kind, FileType::Regular | FileType::Directory) {
            flags = 0;
        } else if new.kind == FileType::Regular && flags & inode_flags::NODATACOW != 0 {
            flags |= inode_flags::NODATASUM;
        }
        if flags & inode_flags::PLAIN != 0 {
            flags &= !inode_flags::COMPRESSION;
        }
        let raw = item.raw_mut();
        raw.flags = flags.into();
        raw.otime = time(new.now);
        raw.generation = self.live.transid.into();
        raw.sequence = FIRST_SEQUENCE.into();
        raw.rdev = rdev_to_disk(new.rdev).into();
        raw.size = new.size.into();
        item
    }
}

/// The change counter of a new inode.
pub(crate) const FIRST_SEQUENCE: u64 = 1;
