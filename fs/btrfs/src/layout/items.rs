//! The items of trees, decoded.

use super::bytes::{read, slice};
use super::features::Incompat;
use super::key::{Key, kind};
use super::node::Node;
use super::raw::*;
use super::superblock::{MAX_LEVEL, TreeRoot};
use ivers_vfs::{FileType, Timestamp};
use std::mem::size_of;
use zerocopy::{FromZeros, IntoBytes};

/// The longest name of a file.
pub(crate) const NAME_MAX: usize = 255;
/// The type of an entry that is an extended attribute.
pub(crate) const FT_XATTR: u8 = 8;

/// Flags of an inode (`flags` of its item).
pub(crate) mod inode_flags {
    pub(crate) const NODATASUM: u64 = 0x1;
    pub(crate) const NODATACOW: u64 = 0x2;
    pub(crate) const NOCOMPRESS: u64 = 0x8;
    pub(crate) const SYNC: u64 = 0x20;
    pub(crate) const IMMUTABLE: u64 = 0x40;
    pub(crate) const APPEND: u64 = 0x80;
    pub(crate) const NODUMP: u64 = 0x100;
    pub(crate) const NOATIME: u64 = 0x200;
    pub(crate) const DIRSYNC: u64 = 0x400;
    pub(crate) const COMPRESS: u64 = 0x800;
    pub(crate) const COMPRESSION: u64 = NOCOMPRESS | COMPRESS;
    /// Data with one of these is never compressed.
    pub(crate) const PLAIN: u64 = NODATASUM | NODATACOW;
}

/// Packs a device number as `rdev` of an inode item has it, from the encoding of `stat`.
pub(crate) fn rdev_to_disk(rdev: u32) -> u64 {
    let (major, minor) = ((rdev >> 8) & 0xFFF, (rdev & 0xFF) | ((rdev >> 12) & 0xF_FF00));
    u64::from(major << 20 | minor)
}

/// The root of a tree, and of a subvolume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootItem {
    pub root: TreeRoot,
    pub refs: u32,
    pub last_snapshot: u64,
    pub read_only: bool,
}

/// The subvolume is read-only (`flags` of a root item).
pub(crate) const SUBVOLUME_READ_ONLY: u64 = 1;

impl RootItem {
    pub(crate) fn decode(data: &[u8]) -> Result<Self, String> {
        let raw: RawRootItem = read(data, 0).ok_or("a root item is too short")?;
        if raw.level >= MAX_LEVEL {
            return Err(format!("a root has level {}", raw.level));
        }
        let root = TreeRoot { bytenr: raw.bytenr.get(), generation: raw.generation.get(), level: raw.level };
        Ok(Self {
            root,
            refs: raw.refs.get(),
            last_snapshot: raw.last_snapshot.get(),
            read_only: raw.flags.get() & SUBVOLUME_READ_ONLY != 0,
        })
    }
}

/// The name of a subvolume in its parent (ROOT_REF, ROOT_BACKREF).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RootRef<'a> {
    pub dir: u64,
    /// The index of the entry in the directory.
    pub index: u64,
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    pub(crate) fn decode(data: &'a [u8]) -> Result<Self, String> {
        let raw: RawRootRef = read(data, 0).ok_or("a reference to a subvolume is too short")?;
        let name = slice(data, size_of::<RawRootRef>(), raw.name_len.get().into())
            .ok_or("the name of a subvolume is cut off")?;
        Ok(Self { dir: raw.dirid.get(), index: raw.sequence.get(), name })
    }
}

/// Whether a file can have a name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    let is_path = name.contains(&b'/') || name == b"." || name == b"..";
    !name.is_empty() && name.len() <= NAME_MAX && !name.contains(&0) && !is_path
}

/// An entry of a directory, or an extended attribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DirItem<'a> {
    pub location: Key,
    pub transid: u64,
    pub kind: u8,
    pub name: &'a [u8],
    pub value: &'a [u8],
}

impl<'a> DirItem<'a> {
    /// Decodes the entries of an item: those with the same hash are in one.
    pub(crate) fn decode_all(mut data: &'a [u8], are_xattrs: bool) -> Result<Vec<Self>, String> {
        let mut entries = Vec::new();
        while !data.is_empty() {
            let raw: RawDirItem = read(data, 0).ok_or("an entry is cut off")?;
            let (name_len, value_len) = (usize::from(raw.name_len.get()), usize::from(raw.data_len.get()));
            let name_at = size_of::<RawDirItem>();
            let name = slice(data, name_at, name_len).ok_or("the name of an entry is cut off")?;
            let value = slice(data, name_at + name_len, value_len).ok_or("a value is cut off")?;
            if name.is_empty() || name.len() > NAME_MAX {
                return Err(format!("a name has {} bytes", name.len()));
            }
            if name.contains(&0) || (!are_xattrs && !is_name(name)) {
                return Err(format!("the name {:?} is not valid", name.escape_ascii().to_string()));
            }
            if are_xattrs != (raw.kind == FT_XATTR) || (!are_xattrs && !value.is_empty()) {
                return Err(format!("an entry has type {}", raw.kind));
            }
            let (location, transid) = (Key::from(&raw.location), raw.transid.get());
            entries.push(Self { location, transid, kind: raw.kind, name, value });
            data = &data[name_at + name_len + value_len..];
        }
        Ok(entries)
    }

    /// The type of the inode that an entry names.
    pub(crate) fn file_type(&self) -> Option<FileType> {
        FileType::from_dirent_number(self.kind)
    }
}

/// Encodes an entry of a directory, or an extended attribute.
pub(crate) fn encode_entry(location: Key, transid: u64, name: &[u8], value: &[u8], kind: u8) -> Vec<u8> {
    let raw = RawDirItem {
        location: location.into(),
        transid: transid.into(),
        data_len: (value.len() as u16).into(),
        name_len: (name.len() as u16).into(),
        kind,
    };
    [raw.as_bytes(), name, value].concat()
}

/// Encodes a name of an inode (INODE_REF). An INODE_EXTREF has the parent before it.
pub(crate) fn encode_name(index: u64, name: &[u8]) -> Vec<u8> {
    let raw = RawInodeRef { index: index.into(), name_len: (name.len() as u16).into() };
    [raw.as_bytes(), name].concat()
}

/// A name in an INODE_REF or INODE_EXTREF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundName<'a> {
    /// The directory.
    pub parent: u64,
    pub index: u64,
    pub name: &'a [u8],
    /// The bytes of the item that have it.
    pub range: std::ops::Range<usize>,
}

/// Decodes the names of an INODE_REF or an INODE_EXTREF. The parent of the names is in the key of an
/// INODE_REF, and before each name in an INODE_EXTREF.
pub(crate) fn decode_names(key: Key, data: &[u8]) -> Result<Vec<FoundName<'_>>, String> {
    let head = if key.kind == kind::INODE_EXTREF { size_of::<u64>() } else { 0 };
    let mut names = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let cut = || "a name of an inode is cut off".to_owned();
        let parent: Option<zerocopy::little_endian::U64> = if head > 0 { read(data, at) } else { None };
        let raw: RawInodeRef = read(data, at + head).ok_or_else(cut)?;
        let name_at = at + head + size_of::<RawInodeRef>();
        let name = slice(data, name_at, raw.name_len.get().into()).ok_or_else(cut)?;
        let end = name_at + name.len();
        let parent = parent.map_or(key.offset, |parent| parent.get());
        names.push(FoundName { parent, index: raw.index.get(), name, range: at..end });
        at = end;
    }
    Ok(names)
}

/// An inode.
#[derive(Debug, Clone)]
pub(crate) struct InodeItem {
    raw: RawInodeItem,
    pub kind: FileType,
}

impl InodeItem {
    pub(crate) fn decode(data: &[u8]) -> Result<Self, String> {
        let raw: RawInodeItem = read(data, 0).ok_or("an inode item is too short")?;
        let mode = raw.mode.get();
        let kind = FileType::from_mode(mode).ok_or_else(|| format!("mode is {mode:o}"))?;
        if raw.size.get() > i64::MAX as u64 {
            return Err(format!("size is {}", raw.size.get()));
        }
        let times = [&raw.atime, &raw.mtime, &raw.ctime, &raw.otime];
        if let Some(bad) = times.into_iter().find(|time| time.nsec.get() >= 1_000_000_000) {
            return Err(format!("a time has {} nanoseconds", bad.nsec.get()));
        }
        Ok(Self { raw, kind })
    }

    /// An item with nothing in it.
    pub(crate) fn empty(kind: FileType) -> Self {
        let mut raw = RawInodeItem::new_zeroed();
        raw.mode = kind.mode_bits().into();
        raw.nlink = 1.into();
        Self { raw, kind }
    }

    /// The bytes to store.
    pub(crate) fn encode(&self) -> &[u8] {
        self.raw.as_bytes()
    }

    /// The fields, to be changed.
    pub(crate) fn raw_mut(&mut self) -> &mut RawInodeItem {
        &mut self.raw
    }

    pub(crate) fn size(&self) -> u64 {
        self.raw.size.get()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.raw.generation.get()
    }

    pub(crate) fn flags(&self) -> u64 {
        self.raw.flags.get()
    }

    /// The change counter.
    pub(crate) fn sequence(&self) -> u64 {
        self.raw.sequence.get()
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.raw.nlink.get()
    }

    pub(crate) fn owner(&self) -> (u32, u32) {
        (self.raw.uid.get(), self.raw.gid.get())
    }

    pub(crate) fn perm(&self) -> u32 {
        self.raw.mode.get() & 0o7777
    }

    /// Bytes on the devices, each counted once.
    pub(crate) fn nbytes(&self) -> u64 {
        self.raw.nbytes.get()
    }

    /// The device number of a device node, in the encoding of `stat`.
    pub(crate) fn rdev(&self) -> u32 {
        let rdev = self.raw.rdev.get() as u32;
        let (major, minor) = (rdev >> 20, rdev & 0xF_FFFF);
        (minor & 0xFF) | (major << 8) | ((minor & !0xFF) << 12)
    }

    /// Access, modification, change and creation.
    pub(crate) fn times(&self) -> [Timestamp; 4] {
        [&self.raw.atime, &self.raw.mtime, &self.raw.ctime, &self.raw.otime]
            .map(|time| Timestamp { sec: time.sec.get() as i64, nsec: time.nsec.get() })
    }
}

/// How the bytes of an extent are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    None,
    Zlib,
    Lzo,
    Zstd,
}

impl Compression {
    /// The number in a file extent.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Zlib => 1,
            Self::Lzo => 2,
            Self::Zstd => 3,
        }
    }

    /// The feature that a filesystem with such extents has.
    pub(crate) fn feature(self) -> Incompat {
        match self {
            Self::Lzo => Incompat::COMPRESS_LZO,
            Self::Zstd => Incompat::COMPRESS_ZSTD,
            Self::Zlib | Self::None => Incompat::empty(),
        }
    }
}

/// Where the data of a part of a file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileExtent<'a> {
    /// In the item.
    Inline { compression: Compression, ram_bytes: u64, data: &'a [u8] },
    /// Nowhere: zeros.
    Hole { len: u64 },
    /// Allocated, and zeros.
    Prealloc { len: u64 },
    /// In an extent.
    Regular(Regular),
}

/// A part of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Regular {
    pub compression: Compression,
    pub disk_bytenr: u64,
    pub disk_num_bytes: u64,
    /// Bytes of the whole extent, decompressed.
    pub ram_bytes: u64,
    /// Where the part starts in the decompressed extent.
    pub offset: u64,
    pub len: u64,
}

/// An extent that an item of a leaf refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReferredExtent {
    pub objectid: u64,
    /// Where the extent would start in the file.
    pub offset: u64,
    pub bytenr: u64,
    pub bytes: u64,
}

/// Decodes what an EXTENT_DATA item refers to, if it is not a hole or inline.
pub(crate) fn referred_extent(key: Key, data: &[u8]) -> Result<Option<ReferredExtent>, String> {
    let short = || format!("the file extent {key} is too short");
    let raw: RawFileExtent = read(data, 0).ok_or_else(short)?;
    if raw.kind == 0 {
        return Ok(None);
    }
    let place: RawFileExtentPlace = read(data, size_of::<RawFileExtent>()).ok_or_else(short)?;
    let (bytenr, bytes) = (place.disk_bytenr.get(), place.disk_num_bytes.get());
    if bytenr.checked_add(bytes).is_none() || (bytenr != 0 && bytes == 0) {
        return Err(format!("the file extent {key} leads to {bytes} bytes at {bytenr}"));
    }
    let offset = key.offset.wrapping_sub(place.offset.get());
    Ok((bytenr != 0).then_some(ReferredExtent { objectid: key.objectid, offset, bytenr, bytes }))
}

/// How an EXTENT_DATA item stores its part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// Bytes in the item.
    Inline(u64),
    Hole,
    /// A part of an extent: bytes of the file, and the addresses that have the checksums of its data.
    Extent {
        bytes: u64,
        summed: (u64, u64),
    },
}

/// Decodes how an EXTENT_DATA item stores its part of a file.
pub(crate) fn stored_of(key: Key, data: &[u8]) -> Result<Stored, String> {
    let short = || format!("the file extent {key} is too short");
    let raw: RawFileExtent = read(data, 0).ok_or_else(short)?;
    if raw.kind == 0 {
        return Ok(Stored::Inline(raw.ram_bytes.get()));
    }
    let Some(extent) = referred_extent(key, data)? else { return Ok(Stored::Hole) };
    let place: RawFileExtentPlace = read(data, size_of::<RawFileExtent>()).ok_or_else(short)?;
    let bytes = place.num_bytes.get();
    let whole = (extent.bytenr, extent.bytenr + extent.bytes);
    let part =
        extent.bytenr.checked_add(place.offset.get()).and_then(|from| Some((from, from.checked_add(bytes)?)));
    let summed = match part {
        Some(part) if raw.compression == 0 && part.1 <= whole.1 => part,
        _ => whole,
    };
    Ok(Stored::Extent { bytes, summed })
}

/// Decodes what all items of a leaf refer to.
pub(crate) fn extents_of_leaf(leaf: &Node) -> Result<Vec<ReferredExtent>, String> {
    let mut found = Vec::new();
    for index in 0..leaf.count() {
        let key = leaf.key(index);
        if key.kind == kind::EXTENT_DATA {
            found.extend(referred_extent(key, leaf.data(index))?);
        }
    }
    Ok(found)
}

/// The most bytes of an extent that is compressed, before and after.
pub(crate) const COMPRESSED_MAX: u64 = 128 << 10;

/// What a file extent item needs that is not supported, or contradicts.
#[derive(Debug)]
pub(crate) enum BadExtent {
    Damaged(String),
    Unsupported(String),
}

impl<'a> FileExtent<'a> {
    /// Decodes the extent whose key has `start` as its offset.
    pub(crate) fn decode(data: &'a [u8], start: u64, sector_size: u32) -> Result<Self, BadExtent> {
        let damaged = |what: &str| BadExtent::Damaged(format!("the extent of byte {start}: {what}"));
        let unsupported = |what: String| BadExtent::Unsupported(what);
        let raw: RawFileExtent = read(data, 0).ok_or_else(|| damaged("its item is too short"))?;
        if raw.encryption != 0 {
            return Err(unsupported(format!("encryption of type {} is not supported", raw.encryption)));
        }
        let encoding = raw.other_encoding.get();
        if encoding != 0 {
            return Err(unsupported(format!("encoding of type {encoding} is not supported")));
        }
        let compression = match raw.compression {
            0 => Compression::None,
            1 => Compression::Zlib,
            2 => Compression::Lzo,
            3 => Compression::Zstd,
            other => return Err(unsupported(format!("compression of type {other} is not supported"))),
        };
        let ram_bytes = raw.ram_bytes.get();
        if raw.kind == 0 {
            let data = &data[size_of::<RawFileExtent>()..];
            let stored = compression == Compression::None && ram_bytes != data.len() as u64;
            if start != 0 || ram_bytes > u64::from(sector_size) || stored {
                return Err(damaged(&format!("{ram_bytes} bytes in an item with {}", data.len())));
            }
            return Ok(Self::Inline { compression, ram_bytes, data });
        }
        let place: RawFileExtentPlace =
            read(data, size_of::<RawFileExtent>()).ok_or_else(|| damaged("its item is too short"))?;
        let regular = Regular {
            compression,
            disk_bytenr: place.disk_bytenr.get(),
            disk_num_bytes: place.disk_num_bytes.get(),
            ram_bytes,
            offset: place.offset.get(),
            len: place.num_bytes.get(),
        };
        let sector = u64::from(sector_size);
        let Regular { disk_bytenr, disk_num_bytes, offset, len, .. } = regular;
        let unaligned = |number: &u64| !number.is_multiple_of(sector);
        if len == 0 || [start, len, offset, disk_bytenr, disk_num_bytes].iter().any(unaligned) {
            return Err(damaged("it does not consist of sectors"));
        }
        let (Some(end), Some(_), Some(_)) =
            (offset.checked_add(len), start.checked_add(len), disk_bytenr.checked_add(disk_num_bytes))
        else {
            return Err(damaged("it ends past all addresses"));
        };
        match raw.kind {
            1 if disk_bytenr == 0 => Ok(Self::Hole { len }),
            1 if disk_num_bytes == 0 => Err(damaged("it has no bytes on a device")),
            2 if compression == Compression::None => Ok(Self::Prealloc { len }),
            1 if compression == Compression::None && end > disk_num_bytes => {
                Err(damaged("it is longer than what it refers to"))
            }
            1 if compression != Compression::None
                && (end > ram_bytes || ram_bytes > COMPRESSED_MAX || disk_num_bytes > COMPRESSED_MAX) =>
            {
                Err(damaged(&format!("{ram_bytes} bytes compressed to {disk_num_bytes}")))
            }
            1 => Ok(Self::Regular(regular)),
            other => Err(damaged(&format!("its type is {other}"))),
        }
    }

    /// Bytes of the file that it covers: whole sectors.
    pub(crate) fn len(&self, sector_size: u32) -> u64 {
        match self {
            Self::Inline { ram_bytes, .. } => ram_bytes.next_multiple_of(sector_size.into()),
            Self::Hole { len } | Self::Prealloc { len } => *len,
            Self::Regular(regular) => regular.len,
        }
    }
}
