//! The check of one inode: its items in the order of keys, and then whether they agree.

use super::state::Checker;
use super::subvolume::Subvolume;
use crate::layout::bytes::read;
use crate::layout::checksum::name_hash;
use crate::layout::features::Incompat;
use crate::layout::items::{BadExtent, DirItem, FileExtent, InodeItem, inode_flags};
use crate::layout::key::{Key, kind, object};
use crate::layout::raw::{RawFileExtent, RawFileExtentPlace, RawInodeItem};
use ivers_vfs::FileType;

/// The flags of an inode that Linux knows.
const KNOWN_FLAGS: u64 = 0xFFF | 1 << 31 | 1 << 32;

/// The inode that the walk is at.
pub(super) struct Current {
    pub objectid: u64,
    item: Option<InodeItem>,
    /// The number of names that the inode has.
    names: u64,
    /// The bytes of the names in a directory, those by hash and those by index.
    name_bytes: u64,
    /// Whether there is an extent, and whether there is an entry of a directory.
    extents: bool,
    entries: bool,
    /// The end of the last extent, and the start of the first hole between extents.
    end: u64,
    hole: Option<u64>,
    /// The bytes that the extents take on the devices.
    bytes: u64,
    /// The length of inline data.
    inline: Option<u64>,
    /// The first address of data that lacks its checksum, and of data that must not have one.
    without_sum: Option<u64>,
    odd_sum: Option<u64>,
    /// An item could not be read. So sums are not compared.
    unsound: bool,
}

impl Current {
    pub(super) fn new(objectid: u64) -> Self {
        Self {
            objectid,
            item: None,
            names: 0,
            name_bytes: 0,
            extents: false,
            entries: false,
            end: 0,
            hole: None,
            bytes: 0,
            inline: None,
            without_sum: None,
            odd_sum: None,
            unsound: false,
        }
    }

    /// Takes an item.
    pub(super) fn item(&mut self, walk: &mut Subvolume, checker: &mut Checker, key: Key, data: &[u8]) {
        let kind_of = self.item.as_ref().map(|item| item.kind);
        let (code, taken) = match key.kind {
            kind::INODE_ITEM => ("inode-invalid", self.take_inode(checker, key, data)),
            kind::INODE_REF | kind::INODE_EXTREF => {
                let taken = walk.take_names(checker, key, data, kind_of);
                ("inode-name-invalid", taken.map(|count| self.names += count))
            }
            kind::XATTR_ITEM => ("xattr-invalid", check_xattrs(key, data)),
            kind::DIR_ITEM | kind::DIR_INDEX => {
                self.entries = true;
                let taken = walk.take_entries(checker, key, data);
                ("directory-entry-invalid", taken.map(|bytes| self.name_bytes += bytes))
            }
            kind::EXTENT_DATA => ("file-extent-invalid", self.take_extent(walk, checker, key, data)),
            kind::VERITY_DESC | kind::VERITY_MERKLE => ("", Ok(())),
            _ => ("item-unexpected", Err("no item of this type belongs here".into())),
        };
        if let Err(what) = taken {
            self.unsound = true;
            walk.bad(checker, code, self.objectid, format!("item {key}: {what}"));
        }
    }

    fn take_inode(&mut self, checker: &Checker, key: Key, data: &[u8]) -> std::result::Result<(), String> {
        if data.len() != size_of::<RawInodeItem>() || key.offset != 0 {
            return Err(format!("it has {} bytes", data.len()));
        }
        let item = InodeItem::decode(data)?;
        let raw: RawInodeItem = read(data, 0).ok_or("it is too short")?;
        let (flags, kind, nlink) = (item.flags(), item.kind, item.nlink());
        let last = checker.forest.volume.sb.generation.saturating_add(1);
        self.item = Some(item);
        if raw.generation.get() > last || raw.transid.get() > last {
            return Err("it is newer than the last transaction".into());
        }
        if raw.mode.get() > 0o177777 {
            return Err(format!("its mode is {:o}", raw.mode.get()));
        }
        if kind == FileType::Directory && nlink > 1 {
            return Err(format!("a directory has {nlink} links"));
        }
        let is_frozen = flags & (inode_flags::IMMUTABLE | inode_flags::APPEND) != 0;
        if flags & !KNOWN_FLAGS != 0 || (kind == FileType::Symlink && is_frozen) {
            return Err(format!("its flags are {flags:#x}"));
        }
        Ok(())
    }

    fn take_extent(
        &mut self,
        walk: &mut Subvolume,
        checker: &mut Checker,
        key: Key,
        data: &[u8],
    ) -> std::result::Result<(), String> {
        self.extents = true;
        let (sector, last) = (checker.forest.volume.sb.sector_size, checker.forest.volume.sb.generation);
        let extent = FileExtent::decode(data, key.offset, sector).map_err(|bad| match bad {
            BadExtent::Damaged(what) | BadExtent::Unsupported(what) => what,
        })?;
        let raw: RawFileExtent = read(data, 0).ok_or("it is too short")?;
        let place: Option<RawFileExtentPlace> = read(data, size_of::<RawFileExtent>());
        if key.offset < self.end {
            let what = format!("the extent of byte {} overlaps the one before it", key.offset);
            walk.bad(checker, "file-extents-overlap", self.objectid, what);
        } else if key.offset > self.end {
            self.hole.get_or_insert(self.end);
        }
        self.end = self.end.max(key.offset.saturating_add(extent.len(sector)));
        if raw.generation.get() > last {
            return Err(format!("it is of transaction {}", raw.generation.get()));
        }
        if let FileExtent::Inline { ram_bytes, .. } = extent {
            self.bytes = self.bytes.saturating_add(ram_bytes);
            self.inline = Some(ram_bytes);
            return Ok(());
        }
        if data.len() != size_of::<RawFileExtent>() + size_of::<RawFileExtentPlace>() {
            return Err(format!("it has {} bytes", data.len()));
        }
        let Some(place) = place.filter(|place| place.disk_bytenr.get() != 0) else { return Ok(()) };
        self.bytes = self.bytes.saturating_add(place.num_bytes.get());
        if walk.tree != object::DATA_RELOCATION {
            self.compare_sums(checker, &extent, &raw, &place);
        }
        Ok(())
    }

    /// Compares the sectors of an extent with those that have checksums.
    fn compare_sums(
        &mut self,
        checker: &Checker,
        extent: &FileExtent<'_>,
        raw: &RawFileExtent,
        place: &RawFileExtentPlace,
    ) {
        let disk = place.disk_bytenr.get();
        let (start, len) = match raw.compression {
            0 => (disk.saturating_add(place.offset.get()), place.num_bytes.get()),
            _ => (disk, place.disk_num_bytes.get()),
        };
        let has_none = self.item.as_ref().is_some_and(|item| item.flags() & inode_flags::NODATASUM != 0);
        let space = &checker.space;
        // An extent outside all chunks has no item in the extent tree, which is reported.
        let Some((first, sectors)) = space.sectors(start, len) else { return };
        if !checker.sums_sound {
            return;
        }
        let at = |sector: u64| start + (sector - first) * space.sector;
        if has_none || matches!(extent, FileExtent::Prealloc { .. }) {
            if let Some(odd) = space.sums.find(first, sectors, true) {
                self.odd_sum.get_or_insert(at(odd));
            }
        } else if let Some(missing) = space.sums.find(first, sectors, false) {
            self.without_sum.get_or_insert(at(missing));
        }
    }

    /// Compares the items of the inode with each other.
    pub(super) fn finish(self, walk: &mut Subvolume, checker: &mut Checker) {
        let objectid = self.objectid;
        let Some(item) = &self.item else {
            if !self.unsound {
                walk.bad(
                    checker,
                    "inode-missing",
                    objectid,
                    "there are items of an inode that has none itself",
                );
            }
            return;
        };
        let mut bad = |code: &'static str, what: String| walk.bad(checker, code, objectid, what);
        let (size, nlink) = (item.size(), u64::from(item.nlink()));
        let is_dir = item.kind == FileType::Directory;
        let is_file = item.kind == FileType::Regular;
        let has_contents = is_file || item.kind == FileType::Symlink;
        if self.unsound {
            // The counts include items that could not be read, so nothing is compared.
        } else if is_dir && self.name_bytes != size {
            bad(
                "directory-size-wrong",
                format!("size is {size}, and its names have {} bytes", self.name_bytes),
            );
        } else if has_contents && self.bytes != item.nbytes() {
            bad(
                "inode-bytes-wrong",
                format!("nbytes is {}, and its extents have {} bytes", item.nbytes(), self.bytes),
            );
        } else if self.names != nlink {
            bad("link-count-wrong", format!("nlink is {nlink}, and it has {} names", self.names));
        }
        if self.entries && !is_dir {
            bad("item-unexpected", "there are entries of a directory, which it is not".into());
        }
        if self.extents && !has_contents {
            bad("item-unexpected", "there are extents of a file, which it is not".into());
        }
        if objectid == object::FIRST_FREE && !is_dir {
            bad("root-invalid", "the root is no directory".into());
        }
        // mkfs.btrfs --rootdir stores a zero byte after the target.
        let is_target = self.inline == Some(size) || self.inline == size.checked_add(1);
        if item.kind == FileType::Symlink && !self.unsound && !is_target {
            bad(
                "link-target-invalid",
                format!("size is {size}, and its target has {:?} bytes", self.inline.unwrap_or(0)),
            );
        }
        if let Some(address) = self.without_sum {
            bad("checksum-missing", format!("its data at address {address} has no checksum"));
        }
        if let Some(address) = self.odd_sum {
            bad(
                "checksum-unexpected",
                format!("its data at address {address} has a checksum, and should have none"),
            );
        }
        let sector = u64::from(checker.forest.volume.sb.sector_size);
        let no_holes = checker.forest.volume.sb.incompat.contains(Incompat::NO_HOLES);
        if is_file && nlink > 0 && !no_holes && !self.unsound {
            let end = size.checked_next_multiple_of(sector).unwrap_or(size);
            let short = (self.end < end).then_some(self.end);
            // Inline data may be shorter than the file only if the rest is a hole.
            let short = short.filter(|_| self.inline.is_none_or(|bytes| bytes < size));
            if let Some(hole) = self.hole.filter(|hole| *hole < size).or(short) {
                walk.bad(checker, "file-extents-gap", objectid, format!("no extent has byte {hole}"));
            }
        }
        if nlink == 0 && !checker.quiet {
            checker.orphans += 1;
            walk.orphans.insert(objectid);
        }
    }
}

/// Checks an item with extended attributes.
fn check_xattrs(key: Key, data: &[u8]) -> std::result::Result<(), String> {
    let entries = DirItem::decode_all(data, true)?;
    if entries.is_empty() {
        return Err("it has no attribute".into());
    }
    for (number, entry) in entries.iter().enumerate() {
        let name = entry.name.escape_ascii();
        if name_hash(entry.name) != key.offset {
            return Err(format!("the hash of the name \"{name}\" is wrong"));
        }
        if entries[..number].iter().any(|other| other.name == entry.name) {
            return Err(format!("it has the name \"{name}\" twice"));
        }
        if entry.location != Key::new(0, 0, 0) {
            return Err(format!("the attribute \"{name}\" leads to {}", entry.location));
        }
    }
    Ok(())
}
