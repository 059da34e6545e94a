//! The check of names: in directories, by hash and by index, and in inodes.

use super::ledger::mix_name;
use super::state::{Checker, Naming};
use super::subvolume::{Name, Said, Subvolume};
use crate::layout::checksum::{name_hash, raw_crc};
use crate::layout::features::Incompat;
use crate::layout::items::{DirItem, FoundName, NAME_MAX, decode_names};
use crate::layout::key::{Key, kind, object};
use ivers_vfs::FileType;

/// The first index of a directory.
const FIRST_INDEX: u64 = 2;

/// A name in a directory.
struct Place<'a> {
    dir: u64,
    index: u64,
    name: &'a [u8],
}

impl Subvolume {
    fn say_inode(&mut self, at: &Place<'_>, child: u64, kind: u8, count: i64) {
        let Place { dir, index, name } = *at;
        let hash = mix_name(&[1, dir, index, child, kind.into()], name);
        self.names.add(dir, hash, count, || Name { by: Said::Inode, dir, child, name: name.into() });
    }

    fn say_hash(&mut self, dir: u64, entry: &DirItem<'_>, count: i64) {
        let DirItem { location, kind, name, .. } = *entry;
        let child = location.objectid;
        let hash = mix_name(&[2, dir, child, location.kind.into(), location.offset, kind.into()], name);
        self.names.add(dir, hash, count, || Name { by: Said::Hash, dir, child, name: name.into() });
    }

    /// Takes an item with names of an inode. Returns how many there are.
    pub(super) fn take_names(
        &mut self,
        checker: &mut Checker,
        key: Key,
        data: &[u8],
        of: Option<FileType>,
    ) -> std::result::Result<u64, String> {
        let is_extended = key.kind == kind::INODE_EXTREF;
        let names = decode_names(key, data)?;
        if names.is_empty() {
            return Err("it has no name".into());
        }
        if is_extended && !checker.forest.volume.sb.incompat.contains(Incompat::EXTENDED_IREF) {
            return Err("the feature extended-iref is not set".into());
        }
        for found in &names {
            let FoundName { parent: dir, index, name, .. } = *found;
            if key.objectid == object::FIRST_FREE {
                if (dir, index, name) != (key.objectid, 0, b"..") {
                    return Err(format!("the root directory is \"{}\" in {dir}", name.escape_ascii()));
                }
                self.dirs.push((dir, dir));
                continue;
            }
            let is_path = name.contains(&b'/') || name.contains(&0) || name == b"." || name == b"..";
            if name.is_empty() || name.len() > NAME_MAX || is_path {
                return Err(format!("the name \"{}\" is not valid", name.escape_ascii()));
            }
            if is_extended && key.offset != u64::from(raw_crc(dir as u32, name)) {
                return Err(format!("the hash of the name \"{}\" is wrong", name.escape_ascii()));
            }
            if of == Some(FileType::Directory) {
                self.dirs.push((key.objectid, dir));
            }
            let kind = of.map_or(0, FileType::dirent_number);
            self.say_inode(&Place { dir, index, name }, key.objectid, kind, 1);
        }
        Ok(names.len() as u64)
    }

    /// Takes an item with entries of a directory. Returns the bytes of their names.
    pub(super) fn take_entries(
        &mut self,
        checker: &mut Checker,
        key: Key,
        data: &[u8],
    ) -> std::result::Result<u64, String> {
        let entries = DirItem::decode_all(data, false)?;
        let is_index = key.kind == kind::DIR_INDEX;
        if entries.is_empty() || (is_index && entries.len() > 1) {
            return Err(format!("it has {} names", entries.len()));
        }
        if is_index && key.offset < FIRST_INDEX {
            return Err(format!("its index is {}", key.offset));
        }
        let mut bytes = 0;
        for (number, entry) in entries.iter().enumerate() {
            let name = entry.name.escape_ascii();
            if !is_index && name_hash(entry.name) != key.offset {
                return Err(format!("the hash of the name \"{name}\" is wrong"));
            }
            if entries[..number].iter().any(|other| other.name == entry.name) {
                return Err(format!("it has the name \"{name}\" twice"));
            }
            let is_file = entry.location.kind == kind::INODE_ITEM && entry.location.offset == 0;
            if !is_file && (entry.location.kind, entry.kind) != (kind::ROOT_ITEM, 2) {
                return Err(format!("the name \"{name}\" leads to {}", entry.location));
            }
            // The transaction of an entry is not checked: mkfs.btrfs does not set it when it copies a
            // directory (`--rootdir`), and it then has any value. Nobody reads it.
            bytes += entry.name.len() as u64;
            self.say_hash(key.objectid, entry, if is_index { -1 } else { 1 });
            if is_index && is_file {
                let place = Place { dir: key.objectid, index: key.offset, name: entry.name };
                self.say_inode(&place, entry.location.objectid, entry.kind, -1);
            }
            if !is_file && !checker.quiet {
                self.count_subvolume(checker, key, entry);
            }
        }
        Ok(bytes)
    }

    /// Counts the entries that lead to a subvolume. A snapshot has the entries, too, but the root tree has no
    /// reference of the snapshot.
    fn count_subvolume(&self, checker: &mut Checker, key: Key, entry: &DirItem<'_>) {
        let pair = (self.tree, entry.location.objectid);
        let Some(naming) = checker.namings.get_mut(&pair) else { return };
        let Naming { forward: Some((dir, index, name)), .. } = *naming else { return };
        if dir != key.objectid || name != mix_name(&[], entry.name) {
            return;
        }
        if key.kind == kind::DIR_ITEM {
            naming.entries += 1;
        } else if key.offset == index {
            naming.indexes += 1;
        }
    }
}

impl Checker {
    /// Reports a name that the index of the directory does not have (`count` is positive), or that only the
    /// index has.
    pub(super) fn report_name(&mut self, walk: &Subvolume, name: &Name, count: i64) {
        let Name { by, dir, child, name } = name;
        let name = name.escape_ascii();
        let (code, at, what) = match (by, count > 0) {
            (Said::Inode, true) => {
                let what = format!("its name \"{name}\" is not so in the index of directory {dir}");
                ("inode-name-unmatched", *child, what)
            }
            (Said::Inode, false) => {
                let what =
                    format!("the index has the name \"{name}\" of inode {child}, which does not have it so");
                ("directory-index-unmatched", *dir, what)
            }
            (Said::Hash, true) => {
                let what = format!("the entry \"{name}\" of inode {child} is not so in the index");
                ("directory-entry-unmatched", *dir, what)
            }
            (Said::Hash, false) => {
                let what = format!("the index has the name \"{name}\" of inode {child}, and no entry is so");
                ("directory-entry-missing", *dir, what)
            }
        };
        walk.bad(self, code, at, what);
    }
}
