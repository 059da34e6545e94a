//! Replay of a log tree: brings what fsync wrote before a crash into the subvolumes.
//!
//! A log has items of a subvolume as they were at an fsync. Its blocks, and the extents of data that it adds,
//! are in use without being in the extent tree. All changes are made in one transaction, whose commit drops
//! the log: a crash before it leaves the log as it was.
//!
//! What each item does is in `docs/btrfs.md`, "The log tree".

use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::layout::features::Incompat;
use crate::layout::items::{DirItem, InodeItem, RootItem, Stored, decode_names, referred_extent, stored_of};
use crate::layout::key::{Key, is_subvolume, kind, object, orphan_key};
use crate::layout::node::Expected;
use crate::layout::superblock::TreeRoot;
use crate::live::groups::Use;
use crate::numbers::FileId;
use ivers_vfs::{Error, FileType, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

/// Bytes of the blocks of all logs, whose items are in memory during the replay.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// The first part of each error message.
const CANNOT: &str = "the log tree, which fsync leaves before a crash, cannot be replayed";
/// What a user can do then.
const HOW: &str = "mount it once with Linux, or show the last commit without the log with -o ro,norecovery";

/// The log of a subvolume.
pub(super) struct Log {
    pub subvolume: u64,
    items: BTreeMap<Key, Vec<u8>>,
    /// Inodes whose counts must be brought up to date.
    pub touched: BTreeSet<u64>,
}

impl Log {
    pub(super) fn get(&self, key: Key) -> Option<&[u8]> {
        self.items.get(&key).map(Vec::as_slice)
    }

    /// The items of one type.
    pub(super) fn of_kind(&self, kind: u8) -> Vec<(Key, Vec<u8>)> {
        let own = self.items.iter().filter(|(key, _)| key.kind == kind);
        own.map(|(key, data)| (*key, data.clone())).collect()
    }

    /// The items of one type that an inode has.
    pub(super) fn of_inode(&self, objectid: u64, kind: u8) -> Vec<(Key, Vec<u8>)> {
        let own = self.items.range(Key::new(objectid, kind, 0)..=Key::new(objectid, kind, u64::MAX));
        own.map(|(key, data)| (*key, data.clone())).collect()
    }

    /// Drops all items of files that had no name when they were logged: a crash deletes such a file.
    fn forget_unnamed(&mut self) {
        let is_unnamed = |data: &[u8]| InodeItem::decode(data).is_ok_and(|item| item.nlink() == 0);
        let items = self.items.iter().filter(|(key, data)| key.kind == kind::INODE_ITEM && is_unnamed(data));
        let unnamed: BTreeSet<u64> = items.map(|(key, _)| key.objectid).collect();
        self.items.retain(|key, _| !unnamed.contains(&key.objectid));
    }
}

/// The addresses of the blocks of logs.
type Blocks = Vec<u64>;

impl Tx<'_> {
    /// An error of a log.
    pub(super) fn bad_log(&self, what: impl Into<String>) -> Error {
        Error::corrupt(what, format!("{}, log tree", self.fs.forest.volume.place))
    }

    fn read_log(&self, root: TreeRoot, blocks: &mut Blocks) -> Result<BTreeMap<Key, Vec<u8>>> {
        let most = (LOG_BYTES_MAX / u64::from(self.sb().node_size)) as usize;
        let mut items = BTreeMap::new();
        let mut left = vec![Expected::root_of(object::TREE_LOG, root)];
        while let Some(expected) = left.pop() {
            if blocks.len() >= most {
                return Err(Error::Incompatible("it is too large".into()));
            }
            let node = self.fs.forest.node(&expected)?;
            blocks.push(expected.bytenr);
            for index in 0..node.count() {
                match node.level {
                    0 => {
                        items.insert(node.key(index), node.data(index).to_vec());
                    }
                    _ => left.push(node.expected_below(index, &expected)),
                }
            }
        }
        Ok(items)
    }

    /// Removes a range from the free space: the log uses it, but the extent tree does not have it.
    fn claim(&mut self, purpose: Use, start: u64, len: u64) -> Result<()> {
        let end = start.saturating_add(len);
        let group = self.live.groups.at(start);
        let group = group.filter(|group| end <= group.end() && group.flags & purpose.bit() != 0);
        let taken = group.map_or(0, |group| group.free.remove(start, end));
        if taken == len { Ok(()) } else { Err(self.bad_log(format!("what it uses at {start} is not free"))) }
    }

    fn read_logs(&mut self) -> Result<Vec<Log>> {
        let sb = self.sb();
        let mut blocks = Blocks::new();
        let root = TreeRoot { generation: self.live.transid, ..sb.log_root };
        let mut logs = Vec::new();
        for (key, data) in self.read_log(root, &mut blocks)? {
            if key.kind != kind::ROOT_ITEM || !is_subvolume(key.offset) {
                continue;
            }
            let item = RootItem::decode(&data).map_err(|what| self.bad_log(what))?;
            let items = self.read_log(item.root, &mut blocks)?;
            // The log of a subvolume that was deleted since does nothing.
            if self.fs.subvolume(key.offset)?.is_some() {
                logs.push(Log { subvolume: key.offset, items, touched: BTreeSet::new() });
            }
        }
        for bytenr in blocks {
            let len = u64::from(sb.node_size);
            self.claim(Use::Metadata, bytenr, len)?;
            self.live.groups.pin(bytenr, len);
        }
        Ok(logs)
    }

    /// Takes the extents that the logs add. Returns their addresses.
    fn claim_extents(&mut self, logs: &[Log]) -> Result<BTreeSet<u64>> {
        let mut added: BTreeMap<u64, u64> = BTreeMap::new();
        for (key, data) in logs.iter().flat_map(|log| log.of_kind(kind::EXTENT_DATA)) {
            let Some(extent) = referred_extent(key, &data).map_err(|what| self.bad_log(what))? else {
                continue;
            };
            let (bytenr, bytes) = (extent.bytenr, extent.bytes);
            match added.get(&bytenr) {
                Some(known) if *known == bytes => {}
                None if self.has_extent(bytenr, bytes)? => {}
                _ => {
                    self.claim(Use::Data, bytenr, bytes)?;
                    added.insert(bytenr, bytes);
                }
            }
        }
        Ok(added.into_keys().collect())
    }

    /// Changes the subvolumes as the logs say. The commit that stores this drops the logs.
    pub(super) fn replay_log(&mut self) -> Result<()> {
        let mut logs = self.read_logs()?;
        logs.iter_mut().for_each(Log::forget_unnamed);
        let added = self.claim_extents(&logs)?;
        for log in &mut logs {
            for (key, data) in log.of_kind(kind::INODE_ITEM) {
                self.replay_inode(log, key.objectid, &data)?;
            }
            self.replay_entries(log)?;
            self.replay_names(log)?;
            for (key, data) in log.of_kind(kind::XATTR_ITEM) {
                self.put(log.subvolume, key, &data)?;
            }
            for (key, data) in log.of_kind(kind::EXTENT_DATA) {
                self.replay_extent(log, key, &data, &added)?;
            }
            while let Some(objectid) = log.touched.pop_first() {
                self.settle_inode(log, objectid)?;
            }
        }
        Ok(())
    }

    pub(super) fn logged_inode(&self, subvolume: u64, objectid: u64) -> Result<Option<InodeItem>> {
        let tree = self.tree(subvolume)?;
        self.fs.inode_item(&tree, objectid)
    }

    fn store_logged(&mut self, subvolume: u64, objectid: u64, item: &InodeItem) -> Result<()> {
        self.put(subvolume, Key::new(objectid, kind::INODE_ITEM, 0), item.encode())
    }

    fn replay_inode(&mut self, log: &mut Log, objectid: u64, data: &[u8]) -> Result<()> {
        let subvolume = log.subvolume;
        let mut item = InodeItem::decode(data).map_err(|what| self.bad_log(what))?;
        if !(object::FIRST_FREE..=object::LAST_FREE).contains(&objectid) {
            return Err(self.bad_log(format!("it has inode {objectid}")));
        }
        log.touched.insert(objectid);
        let old = self.logged_inode(subvolume, objectid)?;
        if let Some(old) = &old {
            if old.kind != item.kind {
                return Err(self.bad_log(format!("inode {objectid} is of another type")));
            }
            self.remove_attributes_not_in(log, objectid)?;
            if item.kind == FileType::Directory {
                self.remove_entries_not_in(log, objectid)?;
            }
        }
        // Generation 0 says only that the inode exists, and how large a file is.
        if item.generation() == 0 {
            match old {
                Some(mut old) => {
                    if item.kind == FileType::Regular && item.size() > 0 {
                        old.raw_mut().size = item.size().into();
                    }
                    item = old;
                }
                None => item.raw_mut().generation = self.live.transid.into(),
            }
        }
        self.store_logged(subvolume, objectid, &item)?;
        if item.kind == FileType::Regular {
            let end = item.size().next_multiple_of(self.sb().sector_size.into());
            self.drop_whole_range((subvolume, objectid), end, u64::MAX)?;
        }
        Ok(())
    }

    fn remove_attributes_not_in(&mut self, log: &Log, objectid: u64) -> Result<()> {
        let key = |offset| Key::new(objectid, kind::XATTR_ITEM, offset);
        for (key, _) in self.items_between(log.subvolume, key(0), key(u64::MAX))? {
            if log.get(key).is_none() {
                self.remove(log.subvolume, key)?;
            }
        }
        Ok(())
    }

    fn replay_extent(&mut self, log: &mut Log, key: Key, data: &[u8], added: &BTreeSet<u64>) -> Result<()> {
        let file: FileId = (log.subvolume, key.objectid);
        log.touched.insert(key.objectid);
        let inode = self.logged_inode(file.0, key.objectid)?;
        if inode.is_none_or(|item| item.kind == FileType::Directory) {
            return Err(self.bad_log(format!("inode {} has an extent", key.objectid)));
        }
        if self.item(file.0, key)?.is_some_and(|stored| stored == data) {
            return Ok(());
        }
        let len = self.extent_len(file, key, data)?;
        let end = key.offset.checked_add(len).ok_or_else(|| self.bad_log("an extent is too long"))?;
        self.drop_whole_range(file, key.offset, end)?;
        let extent = referred_extent(key, data).map_err(|what| self.bad_log(what))?;
        let stored = stored_of(key, data).map_err(|what| self.bad_log(what))?;
        if stored == Stored::Hole && self.sb().incompat.contains(Incompat::NO_HOLES) {
            return Ok(());
        }
        let is_new = extent.is_some_and(|extent| added.contains(&extent.bytenr));
        self.insert_logged(file, key, data, is_new)?;
        match stored {
            Stored::Extent { summed: (start, end), .. } => self.replay_checksums(log, start, end),
            _ => Ok(()),
        }
    }

    /// Stores the checksums that the log has for a range of addresses.
    fn replay_checksums(&mut self, log: &Log, start: u64, end: u64) -> Result<()> {
        let (size, sector) = (self.sb().checksum.size() as u64, u64::from(self.sb().sector_size));
        let key = |address| Key::new(object::EXTENT_CSUM, kind::EXTENT_CSUM, address);
        // An item that begins before the range is not larger than a leaf.
        let longest = u64::from(self.sb().node_size) / size * sector;
        let mut found = Vec::new();
        for (key, sums) in log.items.range(key(start.saturating_sub(longest))..key(end)) {
            if !key.offset.is_multiple_of(sector) {
                return Err(self.bad_log(format!("it has checksums of address {}", key.offset)));
            }
            let stop = key.offset.saturating_add(sums.len() as u64 / size * sector);
            let (from, to) = (key.offset.max(start), stop.min(end));
            if from < to {
                let bytes = |at: u64| ((at - key.offset) / sector * size) as usize;
                found.push((from, to, sums[bytes(from)..bytes(to)].to_vec()));
            }
        }
        for (from, to, sums) in found {
            self.remove_checksums(from, to - from)?;
            self.insert_checksums(from, &sums)?;
        }
        Ok(())
    }

    /// Brings the counts of an inode up to date: its names, and the bytes of its contents or entries.
    fn settle_inode(&mut self, log: &mut Log, objectid: u64) -> Result<()> {
        let subvolume = log.subvolume;
        let Some(mut item) = self.logged_inode(subvolume, objectid)? else { return Ok(()) };
        let mut names = 0u32;
        let key = |kind, offset| Key::new(objectid, kind, offset);
        let (first, last) = (key(kind::INODE_REF, 0), key(kind::INODE_EXTREF, u64::MAX));
        for (key, data) in self.items_between(subvolume, first, last)? {
            let found = decode_names(key, &data).map_err(|what| self.bad_log(what))?;
            names = names.saturating_add(found.len() as u32);
        }
        let is_directory = item.kind == FileType::Directory;
        if is_directory && names == 0 {
            self.remove_all_entries(log, objectid)?;
        }
        let (mut size, mut bytes) = (0u64, 0u64);
        let (first, last) = (key(kind::DIR_INDEX, 0), key(kind::EXTENT_DATA, u64::MAX));
        self.fs.forest.scan(&self.tree(subvolume)?, first, last, |key, data| {
            match key.kind {
                kind::DIR_INDEX => {
                    let entries = DirItem::decode_all(data, false).map_err(|what| self.bad_log(what))?;
                    size += entries.iter().map(|entry| 2 * entry.name.len() as u64).sum::<u64>();
                }
                kind::EXTENT_DATA => match stored_of(key, data).map_err(|what| self.bad_log(what))? {
                    Stored::Inline(more) | Stored::Extent { bytes: more, .. } => {
                        bytes = bytes.saturating_add(more);
                    }
                    Stored::Hole => {}
                },
                _ => {}
            }
            Ok(ControlFlow::<()>::Continue(()))
        })?;
        let raw = item.raw_mut();
        raw.nlink = names.into();
        raw.nbytes = bytes.into();
        if is_directory {
            raw.size = size.into();
        }
        self.store_logged(subvolume, objectid, &item)?;
        let orphan = orphan_key(objectid);
        match (names, self.item(subvolume, orphan)?.is_some()) {
            (0, false) => self.insert(subvolume, orphan, &[]),
            (0, true) | (_, false) => Ok(()),
            (_, true) => self.remove(subvolume, orphan),
        }
    }
}

impl Btrfs {
    /// Replays the log tree in memory. With `keeps`, the next commit stores the result. Otherwise none does.
    pub(crate) fn replay(&self, keeps: bool) -> Result<()> {
        let place = &self.forest.volume.place;
        if let Some(reason) = self.why_not_changed()? {
            return Err(Error::Incompatible(format!("{place}: {CANNOT}: {reason}; {HOW}")));
        }
        let run = || {
            let mut live = self.load_live()?;
            let mut tx = Tx { fs: self, live: &mut live };
            tx.replay_log()?;
            tx.check_trees()?;
            Ok(live)
        };
        let live = run().map_err(|error| match error {
            Error::Corrupt { what, place } => Error::corrupt(format!("{CANNOT}: {what}; {HOW}"), place),
            Error::Incompatible(what) => Error::Incompatible(format!("{place}: {CANNOT}: {what}; {HOW}")),
            Error::Name(error) => Error::corrupt(format!("{CANNOT}: {error}; {HOW}"), place.clone()),
            other => other,
        })?;
        if keeps {
            *self.live.write() = Some(live);
        }
        Ok(())
    }
}
