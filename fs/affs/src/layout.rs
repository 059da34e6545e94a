//! On-disk structures, as bytes. No I/O.
//!
//! Sources: Laurent Clévy, "The .ADF (Amiga Disk File) format FAQ" 1.12, sections 4 to 6 (called "FAQ"
//! below); Olaf Barthel, "DCFS and LNFS Low Level Data Structures" (long names); Linux,
//! Documentation/filesystems/affs.rst (owners and protection).
//!
//! All numbers are big-endian. Fields at the end of a block are named by their distance from the end, as in
//! the FAQ, because that distance is the same for every block size.

use ivers_block::BlockNo;
use ivers_vfs::{Ino, NameError, Timestamp};

/// Primary type of headers (FAQ 4.2 to 4.7).
pub const T_SHORT: u32 = 2;
/// Primary type of a data block of OFS.
pub const T_DATA: u32 = 8;
/// Primary type of a file extension block.
pub const T_LIST: u32 = 16;
/// Primary type of a directory cache block (FAQ 4.7).
pub const T_DIRCACHE: u32 = 33;

/// Secondary type of the root block (FAQ 4.2, 4.4 to 4.6).
pub const ST_ROOT: u32 = 1;
/// Secondary type of a directory.
pub const ST_USERDIR: u32 = 2;
/// Secondary type of a soft link.
pub const ST_SOFTLINK: u32 = 3;
/// Secondary type of a hard link to a directory.
pub const ST_LINKDIR: u32 = 4;
/// Secondary type of a file.
pub const ST_FILE: u32 = -3i32 as u32;
/// Secondary type of a hard link to a file.
pub const ST_LINKFILE: u32 = -4i32 as u32;

/// Offsets from the start of a header.
pub mod head {
    /// Primary type.
    pub const TYPE: usize = 0;
    /// The block's own number. In data blocks: that of the file's header.
    pub const OWN_KEY: usize = 4;
    /// Number of data blocks that this block names. In data blocks: their number in the file, from 1.
    pub const HIGH_SEQ: usize = 8;
    /// Root: number of entries of the hash table. OFS data: number of bytes in this block.
    pub const TABLE_SIZE: usize = 12;
    /// Files: the first data block. OFS data: the next data block.
    pub const FIRST_DATA: usize = 16;
    /// The sum of all words of the block, including this one, is 0.
    pub const CHECKSUM: usize = 20;
    /// The hash table; the data block table, from its end; the path of a soft link; or the data.
    pub const TABLE: usize = 24;
}

/// Offsets in a directory cache block that differ from a header (FAQ 4.7).
pub mod dirc {
    /// The header of the directory.
    pub const PARENT: usize = 8;
    /// Number of records.
    pub const RECORDS: usize = 12;
    /// The next block of the same cache.
    pub const NEXT: usize = 16;
    /// The records, without gaps.
    pub const LIST: usize = 24;
}

/// Offsets in a record of a directory cache, which is a copy of fields of the entry's header (FAQ 4.7).
pub mod record {
    /// Block number of the entry's header.
    pub const HEADER: usize = 0;
    /// Size of a file. 0 for other entries.
    pub const SIZE: usize = 4;
    /// Protection bits.
    pub const PROTECT: usize = 8;
    /// Owner and group, 16 bits each.
    pub const OWNER: usize = 12;
    /// Last change: days, minutes and ticks, 16 bits each.
    pub const DATE: usize = 16;
    /// Low byte of the secondary type.
    pub const TYPE: usize = 22;
    /// Length and text of the name, then those of the comment.
    pub const NAME: usize = 23;
}

/// Distances from the end of a block.
pub mod tail {
    /// Root: -1 if the bitmap is valid.
    pub const BM_FLAG: usize = 200;
    /// Root: the first of 25 bitmap blocks.
    pub const BM_PAGES: usize = 196;
    /// Root: the first bitmap extension block.
    pub const BM_EXT: usize = 96;
    /// Owner, 16 bits.
    pub const UID: usize = 196;
    /// Group, 16 bits.
    pub const GID: usize = 194;
    /// Protection bits.
    pub const PROTECT: usize = 192;
    /// Size of a file.
    pub const BYTE_SIZE: usize = 188;
    /// Length and text of the comment. With long names: those of the name, then those of the comment.
    pub const COMMENT: usize = 184;
    /// Last change.
    pub const DATE: usize = 92;
    /// Length and text of the name.
    pub const NAME: usize = 80;
    /// With long names: the block of a comment that does not fit into the header.
    pub const LONG_COMMENT_BLOCK: usize = 72;
    /// With long names: last change.
    pub const LONG_DATE: usize = 60;
    /// Hard links: the header that the link refers to.
    pub const REAL_ENTRY: usize = 44;
    /// Root: last change of the volume.
    pub const VOLUME_DATE: usize = 40;
    /// The next hard link to the same header.
    pub const NEXT_LINK: usize = 40;
    /// Root: creation date of the volume.
    pub const CREATION_DATE: usize = 28;
    /// The next entry of the same hash chain.
    pub const HASH_CHAIN: usize = 16;
    /// The directory. Extension blocks: the file's header.
    pub const PARENT: usize = 12;
    /// Files: the next extension block. Directories: the first directory cache block.
    pub const EXTENSION: usize = 8;
    /// Secondary type.
    pub const SEC_TYPE: usize = 4;
}

/// `bm_flag` of a volume whose bitmap is valid.
pub const BM_VALID: u32 = u32::MAX;
/// Number of bitmap blocks that the root block names.
pub const ROOT_BM_PAGES: usize = 25;
/// Maximum length of a name, in characters of one byte.
pub const NAME_MAX: usize = 30;
/// Maximum owner or group number: they have 16 bits.
pub const OWNER_MAX: u32 = 0xffff;
/// Maximum length of a comment.
pub const COMMENT_MAX: usize = 79;
/// Length of the field with name and comment in a header with long names, including both length bytes.
const LONG_TEXT_LEN: usize = 112;
/// Length of the header of an OFS data block.
pub const DATA_HEAD: usize = 24;

/// A block number, in the 32 bits of the format. 0 is the boot block, so it also means "none".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u32);

impl Block {
    /// No block.
    pub const NONE: Self = Self(0);

    /// Returns the number for the buffer cache.
    pub fn no(self) -> BlockNo {
        BlockNo(u64::from(self.0))
    }

    /// Returns the inode number of the header in this block.
    pub fn ino(self) -> Ino {
        Ino(u64::from(self.0))
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Reads the block number at an offset.
pub fn get_block(block: &[u8], at: usize) -> Block {
    Block(get32(block, at))
}

/// Writes the block number at an offset.
pub fn put_block(block: &mut [u8], at: usize, value: Block) {
    put32(block, at, value.0);
}

/// Reads the block number at a distance from the end.
pub fn tail_block(block: &[u8], from_end: usize) -> Block {
    Block(tail32(block, from_end))
}

/// Writes the block number at a distance from the end.
pub fn put_tail_block(block: &mut [u8], from_end: usize, value: Block) {
    put_tail32(block, from_end, value.0);
}

/// Reads the word at an offset. Returns 0 past the end of the block.
pub fn get32(block: &[u8], at: usize) -> u32 {
    block.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

/// Writes the word at an offset.
pub fn put32(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// Reads the word at a distance from the end.
pub fn tail32(block: &[u8], from_end: usize) -> u32 {
    get32(block, block.len() - from_end)
}

/// Writes the word at a distance from the end.
pub fn put_tail32(block: &mut [u8], from_end: usize, value: u32) {
    let at = block.len() - from_end;
    put32(block, at, value);
}

fn sum(block: &[u8]) -> u32 {
    block.chunks_exact(4).fold(0, |sum, word| sum.wrapping_add(get32(word, 0)))
}

/// Returns whether the checksum is valid: the sum of all words is 0 (FAQ 4.2.3).
pub fn checksum_is_valid(block: &[u8]) -> bool {
    sum(block) == 0
}

/// Writes the checksum at an offset.
pub fn set_checksum(block: &mut [u8], at: usize) {
    put32(block, at, 0);
    let negative = sum(block).wrapping_neg();
    put32(block, at, negative);
}

/// Returns the number of entries of a hash table, or of a table of data blocks.
pub fn table_len(block_size: u32) -> usize {
    block_size as usize / 4 - 56
}

/// Returns the offset of entry `nth` of a table of data blocks. The first entry is at the end of the table
/// (FAQ 4.4).
pub fn table_slot(block_size: u32, nth: usize) -> usize {
    head::TABLE + (table_len(block_size) - 1 - nth) * 4
}

/// The variant of a volume, from its first word (FAQ 4.1; LNFS for `DOS\6` and `DOS\7`; Linux' affs.rst for
/// the Multi-User File System, `muF`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Variant {
    /// The first word of the volume.
    pub dos_type: u32,
    /// FFS: data blocks contain only data.
    pub ffs: bool,
    /// Upper case follows Latin-1.
    pub international: bool,
    /// Directories have caches.
    pub cached: bool,
    /// Names have up to 110 characters.
    pub long_names: bool,
    /// Owners are stored as in the Multi-User File System.
    pub multi_user: bool,
}

impl Variant {
    /// Decodes the first word of a volume. `None`: another filesystem.
    pub fn from_dos_type(dos_type: u32) -> Option<Self> {
        const MUFS: u32 = u32::from_be_bytes(*b"muFS");
        let [a, b, c, low_byte] = dos_type.to_be_bytes();
        let multi_user = [a, b, c] == *b"muF";
        if !(multi_user || [a, b, c] == *b"DOS") {
            return None;
        }
        let low_byte = if dos_type == MUFS { 3 } else { low_byte };
        if low_byte > 7 || (multi_user && low_byte > 5) {
            return None;
        }
        Some(Self {
            dos_type,
            ffs: low_byte & 1 != 0,
            international: low_byte >= 2,
            cached: low_byte & 6 == 4,
            long_names: low_byte >= 6,
            multi_user,
        })
    }

    /// Returns the variant as text for users.
    pub fn name(self) -> String {
        let kind = if self.ffs { "FFS" } else { "OFS" };
        let more = match (self.long_names, self.cached, self.international) {
            (true, ..) => ", long names",
            (_, true, _) => ", international, directory cache",
            (_, _, true) => ", international",
            _ => "",
        };
        format!("{} ({kind}{more})", format_dos_type(self.dos_type))
    }

    /// Returns the upper case of a character (FAQ 4.2.1 and 5.4).
    pub fn to_upper(self, c: u8) -> u8 {
        let latin = self.international && (224..=254).contains(&c) && c != 247;
        if c.is_ascii_lowercase() || latin { c - 32 } else { c }
    }

    /// Returns whether two names are the same except for case.
    pub fn names_equal(self, a: &[u8], b: &[u8]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| self.to_upper(a) == self.to_upper(b))
    }

    /// Returns the number of the hash chain of a name (FAQ 4.2.1).
    pub fn hash(self, name: &[u8], table_len: usize) -> usize {
        let start = name.len() as u32;
        let mixed = name
            .iter()
            .fold(start, |hash, &c| hash.wrapping_mul(13).wrapping_add(u32::from(self.to_upper(c))) & 0x7ff);
        mixed as usize % table_len
    }

    /// Returns the name in a header, in Latin-1. `None`: its length is invalid.
    pub fn name_in(self, block: &[u8]) -> Option<&[u8]> {
        let (at, max) =
            if self.long_names { (tail::COMMENT, LONG_TEXT_LEN - 2) } else { (tail::NAME, NAME_MAX) };
        text_in(block, block.len() - at, max)
    }

    /// Returns the comment in a header, or `None` if its length is invalid. With long names the comment may
    /// be in a block of its own; then this is empty.
    pub fn comment_in(self, block: &[u8]) -> Option<&[u8]> {
        let at = block.len() - tail::COMMENT;
        if !self.long_names {
            return text_in(block, at, COMMENT_MAX);
        }
        let name = self.name_in(block)?;
        text_in(block, at + 1 + name.len(), (LONG_TEXT_LEN - 2).checked_sub(name.len())?)
    }

    /// Returns the date of the last change in a header.
    pub fn date_in(self, block: &[u8]) -> Timestamp {
        date_in(block, if self.long_names { tail::LONG_DATE } else { tail::DATE })
    }
}

/// Returns a text of at most `max` bytes that follows its length.
fn text_in(block: &[u8], at: usize, max: usize) -> Option<&[u8]> {
    let len = usize::from(*block.get(at)?);
    if len > max { None } else { block.get(at + 1..at + 1 + len) }
}

/// Writes the length and the text into a field for `max` bytes of text. Fills the rest with zeros.
pub fn put_text(block: &mut [u8], from_end: usize, max: usize, text: &[u8]) {
    let at = block.len() - from_end;
    let field = &mut block[at..at + 1 + max];
    field.fill(0);
    field[0] = text.len() as u8;
    field[1..1 + text.len()].copy_from_slice(text);
}

/// Encodes the record of an entry with this name and comment. The other fields come from its header.
pub fn cache_record(block: Block, header: &[u8], name: &[u8], comment: &[u8]) -> Vec<u8> {
    let sec_type = tail32(header, tail::SEC_TYPE);
    let mut bytes = vec![0; record::NAME];
    put32(&mut bytes, record::HEADER, block.0);
    put32(&mut bytes, record::SIZE, if sec_type == ST_FILE { tail32(header, tail::BYTE_SIZE) } else { 0 });
    put32(&mut bytes, record::PROTECT, tail32(header, tail::PROTECT));
    put32(&mut bytes, record::OWNER, tail32(header, tail::UID));
    for nth in 0..3 {
        // A header can store later days than a record, whose days end in 2157.
        let value = tail32(header, tail::DATE - nth * 4).min(u32::from(u16::MAX)) as u16;
        let at = record::DATE + nth * 2;
        bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
    }
    bytes[record::TYPE] = sec_type as u8;
    for text in [name, comment] {
        bytes.push(text.len() as u8);
        bytes.extend_from_slice(text);
    }
    bytes.resize(bytes.len().next_multiple_of(2), 0);
    bytes
}

/// Returns the records in a directory cache block. `None`: they are damaged.
pub fn cache_records(block: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = block.get(dirc::LIST..)?;
    let mut records = Vec::new();
    for _ in 0..get32(block, dirc::RECORDS) {
        let name = usize::from(*rest.get(record::NAME).filter(|&&len| len > 0)?);
        let comment = usize::from(*rest.get(record::NAME + 1 + name)?);
        let len = (record::NAME + 2 + name + comment).next_multiple_of(2);
        records.push(rest.get(..len)?);
        rest = &rest[len..];
    }
    Some(records)
}

/// Formats the first word of a volume as Amiga programs show it.
pub fn format_dos_type(dos_type: u32) -> String {
    let [a, b, c, low_byte] = dos_type.to_be_bytes();
    let shown = |byte: u8| if byte.is_ascii_graphic() { char::from(byte) } else { '?' };
    let last = if low_byte < 10 { format!("\\{low_byte}") } else { shown(low_byte).to_string() };
    format!("{}{}{}{last}", shown(a), shown(b), shown(c))
}

/// Days from 1970-01-01 to 1978-01-01, the first day of the Amiga's calendar.
const EPOCH_DAYS: i64 = 8 * 365 + 2;
const DAY_S: i64 = 86_400;
/// A tick is 1/50 s (FAQ 4.2).
pub const TICK_NS: u32 = 20_000_000;

/// Decodes the days, minutes and ticks at a distance from the end. The Amiga has no time zones, so the date
/// is taken as UTC.
pub fn date_in(block: &[u8], from_end: usize) -> Timestamp {
    let [days, mins, ticks] = [0, 4, 8].map(|at| i64::from(tail32(block, from_end - at)));
    Timestamp {
        sec: (days + EPOCH_DAYS) * DAY_S + mins * 60 + ticks / 50,
        nsec: (ticks % 50) as u32 * TICK_NS,
    }
}

/// Returns the date as a header stores it. A date outside the range becomes the first or last one in it.
pub fn storable_date(time: Timestamp) -> Timestamp {
    let first = Timestamp { sec: EPOCH_DAYS * DAY_S, nsec: 0 };
    let last = Timestamp { sec: (i64::from(u32::MAX) + EPOCH_DAYS) * DAY_S, nsec: 0 };
    time.clamp(first, last).truncate(TICK_NS)
}

/// Writes a date at a distance from the end.
pub fn put_date(block: &mut [u8], from_end: usize, time: Timestamp) {
    let time = storable_date(time);
    let rest = time.sec % DAY_S;
    put_tail32(block, from_end, (time.sec / DAY_S - EPOCH_DAYS) as u32);
    put_tail32(block, from_end - 4, (rest / 60) as u32);
    put_tail32(block, from_end - 8, (rest % 60 * 50) as u32 + time.nsec / TICK_NS);
}

/// The archive bit: cleared when a file is written (Linux' affs.rst).
pub const ARCHIVED: u32 = 0x10;
/// The protection bits that correspond to permission bits. A set bit *forbids* for the owner, and *allows*
/// for the group and others.
const MODE_BITS: [(u32, u32, bool); 9] = [
    (0x8, 0o400, false),
    (0x4, 0o200, false),
    (0x2, 0o100, false),
    (0x800, 0o040, true),
    (0x400, 0o020, true),
    (0x200, 0o010, true),
    (0x8000, 0o004, true),
    (0x4000, 0o002, true),
    (0x2000, 0o001, true),
];
/// The bits that concern deletion, for the owner, the group and others.
const DELETE: [u32; 3] = [0x1, 0x100, 0x1000];

/// Returns the permission bits for protection bits, as Linux' affs does.
pub fn protect_to_mode(protect: u32, is_dir: bool) -> u32 {
    let bits = MODE_BITS.iter().filter(|(bit, _, allows)| (protect & bit != 0) == *allows);
    let mode = bits.fold(0, |mode, (_, perm, _)| mode | perm);
    // Permission to read a directory includes searching it.
    if is_dir { mode | (mode & 0o444) >> 2 } else { mode }
}

/// Returns protection bits for permission bits. Bits without a corresponding permission bit stay. If the
/// old bits correspond to `perm` already, nothing changes.
pub fn mode_to_protect(perm: u32, old: u32, is_dir: bool) -> u32 {
    if protect_to_mode(old, is_dir) == perm & 0o777 {
        return old;
    }
    let mut protect = old & !DELETE[0];
    for (bit, perm_bit, allows) in MODE_BITS {
        let set = (perm & perm_bit != 0) == allows;
        protect = if set { protect | bit } else { protect & !bit };
    }
    // In the Multi-User File System, a class with any permission may delete.
    for (bit, class) in [(DELETE[1], 0o070), (DELETE[2], 0o007)] {
        protect = if perm & class != 0 { protect | bit } else { protect & !bit };
    }
    protect
}

/// Converts Latin-1 to UTF-8.
pub fn to_utf8(latin: &[u8]) -> Vec<u8> {
    latin.iter().map(|&byte| char::from(byte)).collect::<String>().into_bytes()
}

/// Converts UTF-8 to Latin-1. `None`: it is not UTF-8, or has characters outside Latin-1.
pub fn to_latin1(utf8: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(utf8).ok()?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

/// Converts a user's name to Latin-1. A name has at most 30 characters, no control characters and no `:`
/// (FAQ 4.2).
pub fn parse_name(utf8: &[u8]) -> Result<Vec<u8>, NameError> {
    let name = to_latin1(utf8).ok_or(NameError::Invalid)?;
    if name.len() > NAME_MAX {
        return Err(NameError::NameTooLong);
    }
    let forbidden = |&c: &u8| c & 0x7f < 0x20 || c == b':' || c == b'/';
    if name.is_empty() || name.iter().any(forbidden) { Err(NameError::Invalid) } else { Ok(name) }
}

/// Converts the path in a soft link to POSIX: an empty component is the parent directory, and text before a
/// colon is a volume.
pub fn amiga_to_posix(amiga: &[u8]) -> Vec<u8> {
    let (volume, rest) = match amiga.iter().position(|&c| c == b':') {
        Some(colon) => (Some(&amiga[..colon]), &amiga[colon + 1..]),
        None => (None, amiga),
    };
    let mut parts: Vec<&[u8]> = rest.split(|&c| c == b'/').collect();
    if parts.last().is_some_and(|last| last.is_empty()) {
        parts.pop();
    }
    let parts: Vec<&[u8]> =
        parts.into_iter().map(|part| if part.is_empty() { b"..".as_slice() } else { part }).collect();
    let mut path = match volume {
        Some([]) => b"/".to_vec(),
        Some(volume) => [b"/", volume, b"/"].concat(),
        None => Vec::new(),
    };
    path.extend(parts.join(&b'/'));
    if path.is_empty() {
        path.push(b'.');
    }
    to_utf8(&path)
}

/// Converts a POSIX path to the form of a soft link. Leaves out `.` and doubled slashes. `None`: the Amiga
/// cannot express the path.
pub fn posix_to_amiga(posix: &[u8]) -> Option<Vec<u8>> {
    let path = to_latin1(posix)?;
    if path.contains(&b':') {
        return None;
    }
    let mut parts: Vec<&[u8]> = path
        .split(|&c| c == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(|part| if part == b".." { b"".as_slice() } else { part })
        .collect();
    if parts.last().is_some_and(|last| last.is_empty()) {
        parts.push(b"");
    }
    let rest = parts.join(&b'/');
    Some(if path.starts_with(b"/") { [b":".as_slice(), &rest].concat() } else { rest })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variant(low_byte: u8) -> Variant {
        Variant::from_dos_type(u32::from_be_bytes([b'D', b'O', b'S', low_byte])).unwrap()
    }

    #[test]
    fn hash_values_match_the_faq() {
        // "'file_1a', 'file_24' and 'file_5u' have the same hash value" (4.2.1).
        let hashes = ["file_1a", "file_24", "file_5u"].map(|name| variant(0).hash(name.as_bytes(), 72));
        assert!(hashes.iter().all(|&hash| hash == hashes[0]));
        // Upper case of Latin-1 counts only on an international volume.
        assert_eq!(variant(3).hash(b"\xe4", 72), variant(3).hash(b"\xc4", 72));
        assert_ne!(variant(1).hash(b"\xe4", 72), variant(1).hash(b"\xc4", 72));
        assert!(!variant(3).names_equal(b"\xf7", b"\xd7"));
        assert!(variant(4).international && variant(4).cached && !variant(4).ffs);
        assert!(variant(7).long_names && variant(7).ffs && !variant(7).cached);
        assert_eq!(variant(5).name(), "DOS\\5 (FFS, international, directory cache)");
        assert!(Variant::from_dos_type(u32::from_be_bytes(*b"PFS\x03")).is_none());
        assert!(Variant::from_dos_type(u32::from_be_bytes(*b"muFS")).unwrap().multi_user);
    }

    #[test]
    fn modes_round_trip() {
        assert_eq!(protect_to_mode(0, false), 0o700);
        assert_eq!(protect_to_mode(0xf, false), 0);
        for perm in 0..0o1000 {
            let protect = mode_to_protect(perm, 0xffff_0070, false);
            assert_eq!(protect_to_mode(protect, false), perm);
            assert_eq!(protect & 0xffff_0070, 0xffff_0070);
            assert_eq!(protect & 1, 0);
        }
        // A bit that no mode shows stays while the mode stays.
        assert_eq!(mode_to_protect(0o700, 1, false), 1);
        assert_eq!(protect_to_mode(mode_to_protect(0o744, 0, true), true), 0o755);
    }

    #[test]
    fn cache_records_round_trip_and_damage_is_detected() {
        let mut header = vec![0; 512];
        put_tail32(&mut header, tail::BYTE_SIZE, 77);
        put_tail32(&mut header, tail::SEC_TYPE, ST_FILE);
        put_tail32(&mut header, tail::DATE, u32::MAX);
        let records = [(9, &b"a"[..], &b""[..]), (10, b"bc", b"why"), (11, &[b'x'; 30], &[b'y'; 79])]
            .map(|(block, name, comment)| cache_record(Block(block), &header, name, comment));
        assert_eq!(records.each_ref().map(Vec::len), [26, 30, 134]);
        assert_eq!((get32(&records[1], record::SIZE), records[1][record::TYPE]), (77, 0xfd));
        assert_eq!(records[1][record::DATE..record::DATE + 2], [0xff; 2]);
        let mut block = vec![0; 512];
        put32(&mut block, dirc::RECORDS, 3);
        let list = records.concat();
        block[dirc::LIST..dirc::LIST + list.len()].copy_from_slice(&list);
        assert_eq!(cache_records(&block).unwrap(), records);
        for wrong in [14, u32::MAX] {
            put32(&mut block, dirc::RECORDS, wrong);
            assert_eq!(cache_records(&block), None);
        }
        put32(&mut block, dirc::RECORDS, 1);
        block[dirc::LIST + record::NAME] = 255;
        block[dirc::LIST + record::NAME + 256] = 255;
        assert_eq!(cache_records(&block), None);
    }

    #[test]
    fn dates_round_trip() {
        let mut block = [0; 512];
        let now = Timestamp { sec: 1_763_766_075, nsec: 999_999_999 };
        put_date(&mut block, tail::DATE, now);
        assert_eq!(date_in(&block, tail::DATE), now.truncate(TICK_NS));
        put_date(&mut block, tail::DATE, Timestamp::default());
        assert_eq!(date_in(&block, tail::DATE).sec, 252_460_800);
        put_date(&mut block, tail::DATE, Timestamp { sec: i64::MAX, nsec: 0 });
        assert_eq!(tail32(&block, tail::DATE), u32::MAX);
        block.fill(0xff);
        date_in(&block, tail::DATE);
    }

    #[test]
    fn soft_link_paths_are_converted_both_ways() {
        for (posix, amiga) in [
            ("a/b", "a/b"),
            ("..", "/"),
            ("../x", "/x"),
            ("../../x", "//x"),
            ("a/../b", "a//b"),
            ("a/..", "a//"),
            ("/a/b", ":a/b"),
            ("/", ":"),
        ] {
            assert_eq!(posix_to_amiga(posix.as_bytes()).unwrap(), amiga.as_bytes(), "{posix}");
            assert_eq!(amiga_to_posix(amiga.as_bytes()), posix.as_bytes(), "{amiga}");
        }
        assert_eq!(amiga_to_posix(b"Work:a\xe4"), "/Work/aä".as_bytes());
        assert_eq!(posix_to_amiga(b"./a//b/"), Some(b"a/b".to_vec()));
        assert_eq!((posix_to_amiga(b"a:b"), posix_to_amiga("a\u{20ac}".as_bytes())), (None, None));
    }

    #[test]
    fn invalid_names_are_refused() {
        assert_eq!(parse_name("\u{e4}bc".as_bytes()), Ok(b"\xe4bc".to_vec()));
        assert_eq!(parse_name("\u{e4}".repeat(30).as_bytes()).unwrap().len(), 30);
        assert_eq!(parse_name(&[b'a'; 31]), Err(NameError::NameTooLong));
        for bad in ["a:b", "a\u{20ac}", "a\n", "a\u{85}"] {
            assert_eq!(parse_name(bad.as_bytes()), Err(NameError::Invalid), "{bad:?}");
        }
    }
}
