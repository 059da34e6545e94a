//! Writing an archive: ustar headers, with a pax header before where a field does not fit. Equal members give
//! equal bytes.

use std::io::{self, Write};

use ivers_vfs::FileType;
use ivers_vfs::acl::{ACCESS, Acl, DEFAULT};
use tar::{EntryType, Header};

use super::member::{Kind, Member};
use super::sparse::{self, Run};
use super::{acl_text, pax};

const BLOCK: usize = 512;
/// Programs read and write archives in records of this many bytes.
const RECORD: u64 = 20 * BLOCK as u64;
/// Largest numbers of fields of 7 and 11 octal digits.
const ID_MAX: u32 = 0o777_7777;
const SIZE_MAX: u64 = 0o777_7777_7777;
/// Longest name of a ustar header without its prefix.
const NAME_LEN: usize = 100;

/// Writes an archive member by member.
pub struct Writer<W> {
    out: W,
    position: u64,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`, which should have a buffer.
    pub fn new(out: W) -> Self {
        Self { out, position: 0 }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.position += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Fills the last block of a member with zeros.
    pub fn fill_block(&mut self) -> io::Result<()> {
        let missing = self.position.next_multiple_of(BLOCK as u64) - self.position;
        self.put(&[0; BLOCK][..missing as usize])
    }

    /// Writes the header of a member. The contents of the ranges `runs` follow with [`Writer::data`], and
    /// then [`Writer::fill_block`]. Of a file without holes, the one range is all of it.
    pub fn header(&mut self, member: &Member, runs: &[Run]) -> io::Result<()> {
        let is_regular = member.kind == Kind::File(FileType::Regular);
        let data: u64 = runs.iter().map(|run| run.len).sum();
        let map = if is_regular && data < member.size { sparse::encode(runs) } else { Vec::new() };
        let stored = data + map.len() as u64;
        let records = records(member, stored, !map.is_empty());
        if !records.is_empty() {
            let mut header = Header::new_ustar();
            set_name(&mut header, &tagged(b"PaxHeaders", &member.path));
            header.set_entry_type(EntryType::XHeader);
            header.set_mode(0o644);
            header.set_size(records.len() as u64);
            self.seal(header)?;
            self.put(&records)?;
            self.fill_block()?;
        }
        let mut header = Header::new_ustar();
        let name =
            if map.is_empty() { member.path.clone() } else { tagged(b"GNUSparseFile.0", &member.path) };
        set_name(&mut header, &name);
        header.set_entry_type(entry_type(member.kind)?);
        header.set_mode(member.perm);
        header.set_uid(member.uid.min(ID_MAX).into());
        header.set_gid(member.gid.min(ID_MAX).into());
        header.set_mtime(u64::try_from(member.mtime.sec).unwrap_or(0).min(SIZE_MAX));
        header.set_size(if is_regular { stored.min(SIZE_MAX) } else { 0 });
        if !member.target.is_empty()
            && let Some(ustar) = header.as_ustar_mut()
        {
            let len = member.target.len().min(NAME_LEN);
            ustar.linkname[..len].copy_from_slice(&member.target[..len]);
        }
        let (major, minor) = match member.kind {
            Kind::File(FileType::CharDevice | FileType::BlockDevice) => {
                (member.rdev >> 8 & 0xFFF, member.rdev & 0xFF | member.rdev >> 12 & 0xF_FF00)
            }
            _ => (0, 0),
        };
        header.set_device_major(major)?;
        header.set_device_minor(minor)?;
        self.seal(header)?;
        self.put(&map)
    }

    fn seal(&mut self, mut header: Header) -> io::Result<()> {
        header.set_cksum();
        self.put(header.as_bytes())
    }

    /// Writes contents.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes)
    }

    /// Writes zeros instead of contents that cannot be read.
    pub fn zeros(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let len = count.min(BLOCK as u64) as usize;
            self.put(&[0; BLOCK][..len])?;
            count -= len as u64;
        }
        Ok(())
    }

    /// Writes the end of the archive.
    pub fn finish(mut self) -> io::Result<u64> {
        let end = (self.position + 2 * BLOCK as u64).next_multiple_of(RECORD);
        self.zeros(end - self.position)?;
        self.out.flush()?;
        Ok(self.position)
    }
}

fn entry_type(kind: Kind) -> io::Result<EntryType> {
    Ok(match kind {
        Kind::HardLink => EntryType::Link,
        Kind::File(FileType::Regular) => EntryType::Regular,
        Kind::File(FileType::Directory) => EntryType::Directory,
        Kind::File(FileType::Symlink) => EntryType::Symlink,
        Kind::File(FileType::CharDevice) => EntryType::Char,
        Kind::File(FileType::BlockDevice) => EntryType::Block,
        Kind::File(FileType::Fifo) => EntryType::Fifo,
        Kind::File(FileType::Socket) | Kind::Unknown(_) => {
            return Err(io::Error::other("an archive has no members of this type"));
        }
    })
}

fn set_name(header: &mut Header, name: &[u8]) {
    if let Some(ustar) = header.as_ustar_mut() {
        let len = name.len().min(NAME_LEN);
        ustar.name[..len].copy_from_slice(&name[..len]);
    }
}

/// Returns a name for programs that do not know pax: `dir/TAG/name`, and no longer than a header holds.
fn tagged(tag: &[u8], path: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let cut = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let (dir, name) = path.split_at(cut);
    let name = &name[..name.len().min(NAME_LEN / 2)];
    let dir = &dir[..dir.len().min(NAME_LEN / 2 - tag.len() - 2)];
    let dir = dir.strip_suffix(b"/").unwrap_or(dir);
    let parts: Vec<&[u8]> = [dir, tag, name].into_iter().filter(|part| !part.is_empty()).collect();
    parts.join(&b'/')
}

/// Returns the pax records of a member: what a ustar header cannot hold.
fn records(member: &Member, stored: u64, is_sparse: bool) -> Vec<u8> {
    let mut records = Vec::new();
    let mut push = |key: &[u8], value: &[u8]| pax::push(&mut records, key, value);
    let names = [&member.path, &member.target];
    if names.iter().any(|name| std::str::from_utf8(name).is_err()) {
        push(b"hdrcharset", b"BINARY");
    }
    if is_sparse {
        push(b"GNU.sparse.major", b"1");
        push(b"GNU.sparse.minor", b"0");
        push(b"GNU.sparse.name", &member.path);
        push(b"GNU.sparse.realsize", member.size.to_string().as_bytes());
    } else if member.path.len() > NAME_LEN {
        push(b"path", &member.path);
    }
    if member.target.len() > NAME_LEN {
        push(b"linkpath", &member.target);
    }
    if stored > SIZE_MAX {
        push(b"size", stored.to_string().as_bytes());
    }
    for (key, id) in [(&b"uid"[..], member.uid), (b"gid", member.gid)] {
        if id > ID_MAX {
            push(key, id.to_string().as_bytes());
        }
    }
    let time = member.mtime;
    let fits = time.nsec == 0 && u64::try_from(time.sec).is_ok_and(|sec| sec <= SIZE_MAX);
    if !fits {
        push(b"mtime", pax::format_time(time).as_bytes());
    }
    let mut xattrs: Vec<_> = member.xattrs.iter().collect();
    xattrs.sort();
    for (name, value) in xattrs {
        let key = match name.as_slice() {
            ACCESS => &b"SCHILY.acl.access"[..],
            DEFAULT => b"SCHILY.acl.default",
            _ => b"",
        };
        match Acl::parse(value) {
            Ok(Some(acl)) if !key.is_empty() => push(key, acl_text::format(&acl).as_bytes()),
            _ => {
                let name = pax::replace(&pax::replace(name, b"%", b"%25"), b"=", b"%3D");
                push(&[b"SCHILY.xattr.", name.as_slice()].concat(), value);
            }
        }
    }
    records
}
