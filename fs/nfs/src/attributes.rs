//! Attributes of files, as the server sends them and as the VFS has them.

use std::borrow::Cow;

use ivers_nfs4::attr::{self, Attrs, Fattr};
use ivers_nfs4::owners::number;
use ivers_nfs4::types::{Bitmap, FileHandle, Fsid, Ftype, NfsTime, SpecData};
use ivers_vfs::{Attr, Error, FileType, InodeFlags, Result, Timestamp};

use crate::owners::Owners;

/// The owner of a file whose owner is no number: nobody.
const NOBODY: u32 = 65_534;

/// The attributes of a file that are asked for.
const OF_FILE: Bitmap = Bitmap::EMPTY.with(&[
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FSID,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_CREATE,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
]);
/// Those that READDIR is asked for.
const OF_ENTRY: Bitmap = OF_FILE.with(&[attr::RDATTR_ERROR, attr::FILEHANDLE]);

/// What the server says of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileAttributes {
    /// Its attributes.
    pub attr: Attr,
    /// Its change attribute.
    pub change: u64,
    /// The filesystem that it belongs to.
    pub fsid: Option<Fsid>,
    /// Its number in its filesystem.
    pub fileid: Option<u64>,
    /// How many names it has; 0: none, and it stays while it is open.
    pub names: u32,
    /// Owner and group, where they are no numbers. `attr` has nobody instead.
    pub owners: [Option<Vec<u8>>; 2],
}

/// What READDIR says of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryAttributes {
    /// The filehandle and the attributes, if the server could read them.
    pub file: Option<(FileHandle, FileAttributes)>,
    /// Its type, if known.
    pub kind: Option<FileType>,
    /// Its number, if known.
    pub fileid: Option<u64>,
}

/// Returns the attributes to ask for.
pub fn of_file() -> Bitmap {
    OF_FILE
}

/// Returns the attributes to ask READDIR for.
pub fn of_entry() -> Bitmap {
    OF_ENTRY
}

fn corrupt(what: &str, place: &str) -> Error {
    Error::corrupt(format!("the server sent {what}"), place)
}

/// Returns a time as it is sent.
pub fn wire_time(time: Timestamp) -> NfsTime {
    NfsTime { seconds: time.sec, nseconds: time.nsec }
}

/// Returns an owner or a group as it is sent: its number, as text (RFC 8881, 5.9).
pub fn wire_owner(id: u32) -> Vec<u8> {
    id.to_string().into_bytes()
}

/// Decodes attributes. `place` names the server in errors.
pub fn decode(fattr: &Fattr, place: &str) -> Result<Attrs> {
    Attrs::decode(fattr)
        .map_err(|error| corrupt(&format!("attributes that cannot be decoded: {error}"), place))
}

impl FileAttributes {
    /// Decodes and checks the attributes of a file.
    pub fn take(fattr: &Fattr, place: &str) -> Result<Self> {
        Self::of(&decode(fattr, place)?, place)
    }

    fn of(attrs: &Attrs, place: &str) -> Result<Self> {
        let missing = |what: &str| corrupt(&format!("no {what} of a file"), place);
        let kind = file_type(attrs.kind.ok_or_else(|| missing("type"))?, place)?;
        let change = attrs.change.ok_or_else(|| missing("change attribute"))?;
        let size = attrs.size.ok_or_else(|| missing("size"))?;
        if i64::try_from(size).is_err() {
            return Err(corrupt("a size beyond 2^63", place));
        }
        let default_perm = if kind == FileType::Directory { 0o755 } else { 0o644 };
        let time =
            |time: Option<NfsTime>| time.map_or(Ok(Timestamp::default()), |time| timestamp(time, place));
        let rdev = attrs.rawdev.map_or(Ok(0), |device| rdev(device, kind, place))?;
        let attr = Attr {
            kind,
            perm: attrs.mode.unwrap_or(default_perm) & 0o7777,
            uid: id(attrs.owner.as_deref()),
            gid: id(attrs.owner_group.as_deref()),
            project: 0,
            // 0: it was removed, and someone has it open.
            nlink: attrs.numlinks.unwrap_or(1),
            size,
            blocks_512: attrs.space_used.unwrap_or(size).div_ceil(512),
            rdev,
            atime: time(attrs.time_access)?,
            mtime: time(attrs.time_modify)?,
            ctime: time(attrs.time_metadata)?,
            btime: attrs.time_create.map(|time| timestamp(time, place)).transpose()?,
            flags: InodeFlags::empty(),
        };
        let owners =
            [&attrs.owner, &attrs.owner_group].map(|owner| owner.clone().filter(|it| number(it).is_none()));
        let names = attrs.numlinks.unwrap_or(1);
        Ok(Self { attr, change, fsid: attrs.fsid, fileid: attrs.fileid, names, owners })
    }
}

impl FileAttributes {
    /// Replaces nobody by the users and groups that the server names, where this machine has them.
    pub fn with_owners(&self, owners: &Owners) -> Cow<'_, Self> {
        let [user, group] = &self.owners;
        let uid = user.as_deref().and_then(|name| owners.user(name));
        let gid = group.as_deref().and_then(|name| owners.group(name));
        if uid.is_none() && gid.is_none() {
            return Cow::Borrowed(self);
        }
        let mut file = self.clone();
        (file.attr.uid, file.attr.gid) = (uid.unwrap_or(file.attr.uid), gid.unwrap_or(file.attr.gid));
        Cow::Owned(file)
    }
}

impl EntryAttributes {
    /// Decodes and checks the attributes of an entry. A server that cannot read them says so.
    pub fn take(fattr: &Fattr, place: &str) -> Result<Self> {
        let attrs = decode(fattr, place)?;
        let failed = attrs.rdattr_error.is_some_and(|status| status != 0);
        if failed || attrs.change.is_none() {
            let kind = attrs.kind.and_then(|kind| file_type(kind, place).ok());
            return Ok(Self { file: None, kind, fileid: attrs.fileid });
        }
        let file = FileAttributes::of(&attrs, place)?;
        let (kind, fileid) = (Some(file.attr.kind), file.fileid);
        Ok(Self { file: attrs.filehandle.map(|handle| (handle, file)), kind, fileid })
    }
}

fn file_type(kind: Ftype, place: &str) -> Result<FileType> {
    Ok(match kind {
        Ftype::Reg => FileType::Regular,
        Ftype::Dir => FileType::Directory,
        Ftype::Blk => FileType::BlockDevice,
        Ftype::Chr => FileType::CharDevice,
        Ftype::Lnk => FileType::Symlink,
        Ftype::Sock => FileType::Socket,
        Ftype::Fifo => FileType::Fifo,
        Ftype::Attrdir | Ftype::Namedattr => return Err(corrupt("a named attribute in a directory", place)),
    })
}

fn rdev(SpecData { major, minor }: SpecData, kind: FileType, place: &str) -> Result<u32> {
    if !matches!(kind, FileType::BlockDevice | FileType::CharDevice) {
        return Ok(0);
    }
    u32::try_from(rustix::fs::makedev(major, minor))
        .map_err(|_| corrupt("a device number that is too large", place))
}

/// Returns the number in an owner or group.
fn id(owner: Option<&[u8]>) -> u32 {
    owner.and_then(number).unwrap_or(NOBODY)
}

/// Decodes a time.
pub fn timestamp(time: NfsTime, place: &str) -> Result<Timestamp> {
    if time.nseconds >= 1_000_000_000 {
        return Err(corrupt("a time with too many nanoseconds", place));
    }
    Ok(Timestamp { sec: time.seconds, nsec: time.nseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complete() -> Attrs {
        Attrs {
            kind: Some(Ftype::Chr),
            change: Some(u64::MAX),
            size: Some(513),
            fileid: Some(7),
            mode: Some(0o170_644),
            owner: Some(b"1000".to_vec()),
            owner_group: Some(b"users@example.org".to_vec()),
            rawdev: Some(SpecData { major: 8, minor: 300 }),
            ..Attrs::default()
        }
    }

    fn taken(attrs: &Attrs) -> Result<FileAttributes> {
        FileAttributes::take(&attrs.encode(), "nfs://h")
    }

    #[test]
    fn attributes_become_those_of_the_vfs() {
        let found = taken(&complete()).unwrap();
        assert_eq!((found.change, found.fileid), (u64::MAX, Some(7)), "all 64 bits");
        let attr = found.attr;
        assert_eq!((attr.kind, attr.perm, attr.uid, attr.gid), (FileType::CharDevice, 0o644, 1000, NOBODY));
        assert_eq!((attr.blocks_512, attr.rdev, attr.nlink), (2, 0x0010_082c, 1));
        let owners = Owners::new("", "users:x:100:\n", "example.org");
        let found = taken(&complete()).unwrap();
        let file = found.with_owners(&owners);
        assert_eq!((file.attr.uid, file.attr.gid), (1000, 100));
        assert_eq!(found.with_owners(&Owners::default()).attr.gid, NOBODY);
    }

    #[test]
    fn attributes_that_lie_are_refused() {
        for broken in [
            Attrs { kind: None, ..complete() },
            Attrs { change: None, ..complete() },
            Attrs { size: Some(1 << 63), ..complete() },
            Attrs { kind: Some(Ftype::Namedattr), ..complete() },
            Attrs { rawdev: Some(SpecData { major: 1 << 20, minor: 1 << 30 }), ..complete() },
            Attrs { time_modify: Some(NfsTime { seconds: 0, nseconds: 1_000_000_000 }), ..complete() },
        ] {
            assert!(matches!(taken(&broken), Err(Error::Corrupt { .. })), "{broken:?}");
        }
        let unknown = Fattr { mask: Bitmap::of([24]), values: Vec::new() };
        assert!(FileAttributes::take(&unknown, "").is_err());
    }

    #[test]
    fn an_entry_without_attributes_keeps_its_name() {
        let attrs = Attrs { rdattr_error: Some(13), fileid: Some(9), ..Attrs::default() };
        let entry = EntryAttributes::take(&attrs.encode(), "").unwrap();
        assert_eq!(entry, EntryAttributes { file: None, kind: None, fileid: Some(9) });
    }
}
