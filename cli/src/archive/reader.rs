//! Reading an archive: ustar, pax, GNU and v7 headers.
//!
//! Every byte may be hostile. What is kept in memory is bounded: a pax header, a long name, and the map of a
//! sparse file. An error names the member and the byte offset.

use std::io::Read;

use ivers_vfs::acl::Acl;
use ivers_vfs::{FileType, Timestamp};
use tar::{GnuExtSparseHeader, GnuSparseHeader, Header};

use super::member::{ArchiveError, Kind, Member};
use super::pax::replace;
use super::sparse::{self, RUNS_MAX, Run};
use super::{acl_text, pax};

const BLOCK: usize = 512;
/// Longest pax header in bytes. An attribute has at most 64 KiB, and Linux lists at most 64 KiB of names.
const PAX_MAX: u64 = 16 << 20;
/// Longest name of a GNU long name header.
const NAME_MAX: u64 = 64 << 10;
/// Bytes that are read after the end of the archive, so that the program that writes them meets no closed
/// pipe. Others fill the last record with zeros.
const TRAILER_MAX: u64 = 1 << 20;
/// Bytes of contents that are passed on at a time.
const CHUNK: usize = 256 << 10;

type Result<T> = std::result::Result<T, ArchiveError>;

/// What makes an archive fail while it is read: the archive, or the program that receives its contents.
#[derive(Debug)]
pub enum DataError {
    /// The archive cannot be read.
    Archive(ArchiveError),
    /// The receiver failed. The rest of the member can still be skipped.
    Sink(anyhow::Error),
}

/// The records of pax headers that replace fields of the next header.
#[derive(Debug, Default, Clone)]
struct Overrides {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<Timestamp>,
    atime: Option<Timestamp>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// An ACL as text that cannot be used, by the name of its attribute, with the reason.
    unusable_acl: Option<(Vec<u8>, String)>,
    sparse: SparseRecords,
    is_pax: bool,
}

/// The records of the pax forms of sparse files.
#[derive(Debug, Default, Clone)]
struct SparseRecords {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    runs: Vec<Run>,
    has_map: bool,
    offset: Option<u64>,
    major: Option<u64>,
    minor: Option<u64>,
}

/// Reads an archive member by member.
pub struct Reader<R> {
    from: R,
    position: u64,
    global: Vec<u8>,
    member: Vec<u8>,
    /// What is left of the data of this member, without the bytes that fill its last block.
    left: u64,
    padding: u64,
    runs: Vec<Run>,
    buffer: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads from `from`, which should have a buffer.
    pub fn new(from: R) -> Self {
        let buffer = vec![0; CHUNK];
        let (global, member, runs) = (Vec::new(), Vec::new(), Vec::new());
        Self { from, position: 0, global, member, left: 0, padding: 0, runs, buffer }
    }

    /// Returns the number of bytes read.
    pub fn position(&self) -> u64 {
        self.position
    }

    fn error<T>(&self, what: impl Into<String>) -> Result<T> {
        Err(self.error_at(self.position, what))
    }

    fn error_at(&self, offset: u64, what: impl Into<String>) -> ArchiveError {
        ArchiveError { what: what.into(), member: self.member.clone(), offset, cause: None }
    }

    /// Fills `self.buffer[..len]`; returns how much there was.
    fn fill(&mut self, len: usize) -> Result<usize> {
        let mut done = 0;
        while done < len {
            match self.from.read(&mut self.buffer[done..len]) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let what = "cannot read it".to_owned();
                    let (member, offset) = (self.member.clone(), self.position + done as u64);
                    return Err(ArchiveError { what, member, offset, cause: Some(error) });
                }
            }
        }
        self.position += done as u64;
        Ok(done)
    }

    fn fill_exactly(&mut self, len: usize) -> Result<()> {
        if self.fill(len)? < len { self.error("the archive is truncated") } else { Ok(()) }
    }

    /// Reads a block. `None`: the input ended before it.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        match self.fill(BLOCK)? {
            0 => Ok(None),
            BLOCK => {
                let mut block = [0; BLOCK];
                block.copy_from_slice(&self.buffer[..BLOCK]);
                Ok(Some(block))
            }
            _ => self.error("the archive is truncated"),
        }
    }

    /// Reads the contents of an extension header.
    fn small(&mut self, size: u64, most: u64, what: &str) -> Result<Vec<u8>> {
        if size > most {
            return self.error(format!("{what} of {size} bytes, more than {most}"));
        }
        let mut bytes = Vec::new();
        let mut left = size;
        while left > 0 {
            let len = left.min(CHUNK as u64) as usize;
            self.fill_exactly(len)?;
            bytes.extend_from_slice(&self.buffer[..len]);
            left -= len as u64;
        }
        self.skip(size.next_multiple_of(BLOCK as u64) - size)?;
        Ok(bytes)
    }

    fn skip(&mut self, mut bytes: u64) -> Result<()> {
        while bytes > 0 {
            let len = bytes.min(CHUNK as u64) as usize;
            self.fill_exactly(len)?;
            bytes -= len as u64;
        }
        Ok(())
    }

    /// Reads what follows the first block of zeros.
    fn end(&mut self) -> Result<()> {
        if let Some(block) = self.block()?
            && block.iter().any(|&byte| byte != 0)
        {
            return self.error("a block of zeros in the middle of the archive");
        }
        let most = self.position + TRAILER_MAX;
        while self.position < most && self.fill(CHUNK)? > 0 {}
        Ok(())
    }

    /// Returns the next member, after the contents of the one before. `None` at the end of the archive.
    pub fn next(&mut self) -> Result<Option<Member>> {
        self.skip(self.left.saturating_add(self.padding))?;
        (self.left, self.padding) = (0, 0);
        self.runs.clear();
        self.member.clear();
        let mut overrides = Overrides::default();
        if !self.global.is_empty() {
            let global = std::mem::take(&mut self.global);
            self.apply(&mut overrides, &global, self.position)?;
            self.global = global;
        }
        let mut extended = false;
        loop {
            let start = self.position;
            let Some(block) = self.block()? else {
                return self.error(if start == 0 {
                    "the input is empty"
                } else if extended {
                    "the archive is truncated after an extension header"
                } else {
                    "the archive is truncated: it has no end mark"
                });
            };
            if block.iter().all(|&byte| byte == 0) {
                if extended {
                    return Err(self.error_at(start, "the archive ends after an extension header"));
                }
                self.end()?;
                return Ok(None);
            }
            let header = Header::from_byte_slice(&block);
            if !has_valid_sum(header) {
                return Err(self.error_at(start, refusal(&block, start)));
            }
            let bad = |field: &str| format!("bad header: {field} is no number");
            let size = header.entry_size().map_err(|_| self.error_at(start, bad("the size")))?;
            match block[156] {
                b'x' | b'X' => {
                    let bytes = self.small(size, PAX_MAX, "a pax header")?;
                    self.apply(&mut overrides, &bytes, start + BLOCK as u64)?;
                    overrides.is_pax = true;
                }
                b'g' => self.global = self.small(size, PAX_MAX, "a pax header")?,
                b'L' => overrides.path = Some(without_zeros(self.small(size, NAME_MAX, "a name")?)),
                b'K' => overrides.target = Some(without_zeros(self.small(size, NAME_MAX, "a name")?)),
                // A label of the volume.
                b'V' => self.skip(size.checked_next_multiple_of(BLOCK as u64).unwrap_or(u64::MAX))?,
                _ => return self.member(header, &block, start, size, overrides).map(Some),
            }
            extended = !matches!(block[156], b'g' | b'V');
        }
    }

    fn apply(&self, overrides: &mut Overrides, bytes: &[u8], start: u64) -> Result<()> {
        let records =
            pax::parse(bytes).map_err(|(what, at)| self.error_at(start.saturating_add(at as u64), what))?;
        for (key, value) in records {
            if !overrides.set(key, value) {
                let key = String::from_utf8_lossy(key).into_owned();
                return Err(self.error_at(start, format!("bad pax header: the value of {key} is invalid")));
            }
        }
        Ok(())
    }

    fn member(
        &mut self,
        header: &Header,
        block: &[u8; BLOCK],
        start: u64,
        stored: u64,
        mut overrides: Overrides,
    ) -> Result<Member> {
        let mut path = overrides.path.take().unwrap_or_else(|| header.path_bytes().into_owned());
        self.member.clone_from(overrides.sparse.name.as_ref().unwrap_or(&path));
        let was_directory = path.ends_with(b"/");
        let kind = match block[156] {
            b'0' | 0 | b'7' if was_directory && block[156] != b'7' => Kind::File(FileType::Directory),
            b'0' | 0 | b'7' | b'S' => Kind::File(FileType::Regular),
            b'1' => Kind::HardLink,
            b'2' => Kind::File(FileType::Symlink),
            b'3' => Kind::File(FileType::CharDevice),
            b'4' => Kind::File(FileType::BlockDevice),
            b'5' | b'D' => Kind::File(FileType::Directory),
            b'6' => Kind::File(FileType::Fifo),
            b'M' => return Err(self.error_at(start, "the archive continues another: join the volumes first")),
            other => Kind::Unknown(other),
        };
        let mut member = self.fields(header, start, kind, &overrides)?;
        let size = overrides.size.unwrap_or(stored);
        // Only these types have data. The size of a directory is a hint, and that of a hard link counts only
        // in a pax archive, which may contain the data again.
        self.left = match kind {
            Kind::File(FileType::Regular) | Kind::Unknown(_) => size,
            Kind::HardLink if overrides.is_pax => size,
            Kind::File(FileType::Directory) if block[156] == b'D' => size,
            _ => 0,
        };
        let blocks = self.left.checked_next_multiple_of(BLOCK as u64);
        self.padding =
            blocks.ok_or_else(|| self.error_at(start, "bad header: the size is too large"))? - self.left;
        member.size = self.left;
        if kind == Kind::File(FileType::Regular) {
            let (real_size, name) = self.sparse_map(header, block, overrides.sparse)?;
            member.size = real_size.unwrap_or(member.size);
            path = name.unwrap_or(path);
            if real_size.is_none() {
                self.runs.push(Run { offset: 0, len: self.left });
            }
            let sum = sparse::check(&self.runs, member.size).map_err(|what| self.error_at(start, what))?;
            if sum != self.left {
                return Err(self.error_at(start, "the map of a sparse file does not match its data"));
            }
        }
        member.path = path;
        Ok(member)
    }

    /// Decodes the fields of a header that need no data after it.
    fn fields(&self, header: &Header, start: u64, kind: Kind, overrides: &Overrides) -> Result<Member> {
        let bad = |field: &str| self.error_at(start, format!("bad header: {field} is no number"));
        let id = |found: Option<u64>, field: std::io::Result<u64>, what: &str| -> Result<u32> {
            let id = found.map_or(field, Ok).map_err(|_| bad(what))?;
            u32::try_from(id).map_err(|_| self.error_at(start, format!("{what} {id} is too large")))
        };
        // The crate returns the low 64 bits of a negative number as they are.
        let mtime = || header.mtime().map(|sec| Timestamp { sec: sec.cast_signed(), nsec: 0 });
        let target = || header.link_name_bytes().map(|name| name.into_owned()).unwrap_or_default();
        let mut member = Member {
            perm: header.mode().map_err(|_| bad("the mode"))? & 0o7777,
            uid: id(overrides.uid, header.uid(), "the user")?,
            gid: id(overrides.gid, header.gid(), "the group")?,
            mtime: overrides.mtime.map_or_else(mtime, Ok).map_err(|_| bad("the time"))?,
            atime: overrides.atime,
            target: overrides.target.clone().unwrap_or_else(target),
            xattrs: overrides.xattrs.clone(),
            // GNU tar also writes the attribute itself, which has numbers.
            unusable: overrides
                .unusable_acl
                .as_ref()
                .filter(|(name, _)| overrides.xattrs.iter().all(|(other, _)| other != name))
                .map(|(_, why)| why.clone()),
            ..Member::new(Vec::new(), kind)
        };
        // bsdtar writes the bits of the owning group, where the kernel has those of the mask.
        let acl = member.xattrs.iter().find(|(name, _)| name == ivers_vfs::acl::ACCESS);
        if let Some(acl) = acl.and_then(|(_, value)| Acl::parse(value).ok().flatten()) {
            member.perm = member.perm & !0o777 | acl.mode();
        }
        if let Kind::File(FileType::CharDevice | FileType::BlockDevice) = kind {
            let number =
                |field: std::io::Result<Option<u32>>| Ok(field.map_err(|_| bad("the device"))?.unwrap_or(0));
            let (major, minor) = (number(header.device_major())?, number(header.device_minor())?);
            if major > 0xFFF || minor > 0xF_FFFF {
                return Err(self.error_at(start, format!("the device {major}, {minor} does not fit 32 bits")));
            }
            member.rdev = minor & 0xFF | major << 8 | (minor & !0xFF) << 12;
        }
        Ok(member)
    }

    /// Reads the map of a sparse file into `self.runs`. Returns the size of the file and its name if the
    /// records have them.
    fn sparse_map(
        &mut self,
        header: &Header,
        block: &[u8; BLOCK],
        records: SparseRecords,
    ) -> Result<(Option<u64>, Option<Vec<u8>>)> {
        if block[156] == b'S' {
            let Some(gnu) = header.as_gnu() else { return self.error("a sparse file without a GNU header") };
            let size = gnu.real_size().or_else(|_| self.error("bad header: the real size is no number"))?;
            self.push_runs(&gnu.sparse)?;
            let mut more = gnu.is_extended();
            while more {
                let Some(block) = self.block()? else { return self.error("the archive is truncated") };
                let mut extended = GnuExtSparseHeader::new();
                extended.as_mut_bytes().copy_from_slice(&block);
                self.push_runs(extended.sparse())?;
                more = extended.is_extended();
            }
            return Ok((Some(size), None));
        }
        match (records.major, records.minor) {
            (None, None) if records.has_map => {
                self.runs = records.runs;
                if records.size.is_none() {
                    return self.error("a sparse file without a size");
                }
                Ok((records.size, records.name))
            }
            (None, None) => Ok((None, records.name)),
            (Some(1), Some(0)) => {
                if records.size.is_none() {
                    return self.error("a sparse file without a size");
                }
                self.map_before_data()?;
                Ok((records.size, records.name))
            }
            (major, minor) => {
                let version = format!("{}.{}", major.unwrap_or(0), minor.unwrap_or(0));
                self.error(format!("sparse files of version {version} are not supported"))
            }
        }
    }

    fn push_runs(&mut self, entries: &[GnuSparseHeader]) -> Result<()> {
        for entry in entries.iter().filter(|entry| !entry.is_empty()) {
            let (Ok(offset), Ok(len)) = (entry.offset(), entry.length()) else {
                return self.error("bad map of a sparse file");
            };
            self.push_run(Run { offset, len })?;
        }
        Ok(())
    }

    fn push_run(&mut self, run: Run) -> Result<()> {
        if self.runs.len() == RUNS_MAX {
            return self.error(format!("a sparse file of more than {RUNS_MAX} ranges"));
        }
        self.runs.push(run);
        Ok(())
    }

    /// Reads the map of version 1.0, which is at the start of the data.
    fn map_before_data(&mut self) -> Result<()> {
        let mut numbers = Vec::new();
        let mut digits = Vec::new();
        let mut wanted = None;
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            if self.left < BLOCK as u64 {
                return self.error("the map of a sparse file is longer than its data");
            }
            self.fill_exactly(BLOCK)?;
            self.left -= BLOCK as u64;
            for at in 0..BLOCK {
                let byte = self.buffer[at];
                if byte != b'\n' {
                    digits.push(byte);
                    if digits.len() > 20 {
                        return self.error("bad map of a sparse file");
                    }
                    continue;
                }
                let Some(number) = pax::number(&digits) else {
                    return self.error("bad map of a sparse file");
                };
                digits.clear();
                if wanted.is_some() {
                    numbers.push(number);
                } else if number > RUNS_MAX as u64 {
                    return self.error(format!("a sparse file of more than {RUNS_MAX} ranges"));
                } else {
                    wanted = Some(2 * number as usize);
                }
                if wanted == Some(numbers.len()) {
                    break;
                }
            }
        }
        self.runs = numbers.chunks_exact(2).map(|pair| Run { offset: pair[0], len: pair[1] }).collect();
        Ok(())
    }

    /// Passes the contents of this member to `sink`, with byte offsets in the file. What is not passed is a
    /// hole.
    pub fn data(
        &mut self,
        sink: &mut dyn FnMut(u64, &[u8]) -> anyhow::Result<()>,
    ) -> std::result::Result<(), DataError> {
        for run in std::mem::take(&mut self.runs) {
            let (mut at, mut left) = (run.offset, run.len);
            while left > 0 {
                let len = left.min(CHUNK as u64) as usize;
                self.fill_exactly(len).map_err(DataError::Archive)?;
                self.left -= len as u64;
                sink(at, &self.buffer[..len]).map_err(DataError::Sink)?;
                at += len as u64;
                left -= len as u64;
            }
        }
        Ok(())
    }
}

fn without_zeros(mut name: Vec<u8>) -> Vec<u8> {
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    name.truncate(end);
    name
}

/// Checks the sum of a header. Old programs added signed bytes.
fn has_valid_sum(header: &Header) -> bool {
    let bytes = header.as_bytes();
    let Ok(stored) = header.cksum() else { return false };
    let others = || bytes[..148].iter().chain(&bytes[156..]);
    let unsigned: u32 = others().map(|&byte| u32::from(byte)).sum::<u32>() + 8 * 32;
    let signed: i32 = others().map(|&byte| i32::from(byte.cast_signed())).sum::<i32>() + 8 * 32;
    stored == unsigned || i64::from(stored) == i64::from(signed)
}

/// Says what a block that is no header is.
fn refusal(block: &[u8; BLOCK], start: u64) -> String {
    let compressed: [(&[u8], &str); 6] = [
        (b"\x1f\x8b", "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"LZIP", "lzip"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    match compressed.iter().find(|(magic, _)| start == 0 && block.starts_with(magic)) {
        Some((_, program)) => {
            format!(
                "compressed: decompress it in a pipe, as \"{program} -dc FILE | ivers tar -x IMAGE:/\" or \
                 \"{program} -dc FILE | ivers mkfs IMAGE --from -\""
            )
        }
        None if start == 0 => "no tar archive".to_owned(),
        None => "bad header: the checksum is wrong".to_owned(),
    }
}

impl Overrides {
    /// Applies a record. Returns whether its value is valid. An empty value removes the record, as POSIX
    /// says.
    fn set(&mut self, key: &[u8], value: &[u8]) -> bool {
        if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            // As GNU tar does, since a key ends at the first equals sign.
            let name = replace(&replace(name, b"%3D", b"="), b"%25", b"%");
            self.set_xattr(&name, value);
            return !name.is_empty() && !name.contains(&0);
        }
        let path = || (!value.is_empty()).then(|| value.to_vec());
        let number = |target: &mut Option<u64>| {
            *target = pax::number(value);
            target.is_some() || value.is_empty()
        };
        let time = |target: &mut Option<Timestamp>| {
            *target = pax::time(value);
            target.is_some() || value.is_empty()
        };
        match key {
            b"path" => self.path = path(),
            b"linkpath" => self.target = path(),
            b"size" => return number(&mut self.size),
            b"uid" => return number(&mut self.uid),
            b"gid" => return number(&mut self.gid),
            b"mtime" => return time(&mut self.mtime),
            b"atime" => return time(&mut self.atime),
            // GNU tar writes the label with its zero at the end.
            b"RHT.security.selinux" => self.set_xattr(b"security.selinux", value),
            b"SCHILY.acl.access" => return self.set_acl(ivers_vfs::acl::ACCESS, value),
            b"SCHILY.acl.default" => return self.set_acl(ivers_vfs::acl::DEFAULT, value),
            _ => {
                if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    return self.sparse.set(key, value);
                }
            }
        }
        true
    }

    fn set_xattr(&mut self, name: &[u8], value: &[u8]) {
        self.xattrs.retain(|(other, _)| other != name);
        self.xattrs.push((name.to_vec(), value.to_vec()));
    }

    fn set_acl(&mut self, name: &[u8], text: &[u8]) -> bool {
        match acl_text::parse(text) {
            Some(Some(acl)) => self.set_xattr(name, &acl.encode()),
            Some(None) => {}
            // The names of users and groups belong to another system.
            None => {
                let text = String::from_utf8_lossy(text);
                let why = format!("an ACL that names users without numbers is left out: {text}");
                self.unusable_acl = Some((name.to_vec(), why));
            }
        }
        true
    }
}

impl SparseRecords {
    fn set(&mut self, key: &[u8], value: &[u8]) -> bool {
        let number = pax::number(value);
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = number,
            b"major" => self.major = number,
            b"minor" => self.minor = number,
            b"numblocks" => {
                self.has_map = true;
                return number.is_some();
            }
            b"offset" => self.offset = number,
            b"numbytes" => {
                let run = self.offset.take().zip(number).map(|(offset, len)| Run { offset, len });
                self.has_map = true;
                self.runs.extend(run);
                return run.is_some() && self.runs.len() <= RUNS_MAX;
            }
            b"map" => {
                self.has_map = true;
                let numbers: Option<Vec<u64>> = value.split(|&byte| byte == b',').map(pax::number).collect();
                let Some(numbers) = numbers.filter(|numbers| numbers.len().is_multiple_of(2)) else {
                    return value.is_empty();
                };
                self.runs =
                    numbers.chunks_exact(2).map(|pair| Run { offset: pair[0], len: pair[1] }).collect();
                return self.runs.len() <= RUNS_MAX;
            }
            _ => return true,
        }
        key == b"name" || number.is_some()
    }
}
