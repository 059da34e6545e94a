//! The structures on the device, as bytes: no I/O.
//!
//! Sources: Laurent Clévy, "The .ADF (Amiga Disk File) format FAQ" 1.12, sections 4 and 6 (what is called "FAQ" below); Olaf Barthel,
//! "DCFS and LNFS Low Level Data Structures" (long names); Linux, Documentation/filesystems/affs.rst (owners and protection).
//!
//! All numbers are big-endian. Fields at the end of a block are named by their distance from its end, as in the FAQ, so that
//! they hold for every block size.

use ivers_block::BlockNo;
use ivers_vfs::{Ino, NameError, Timestamp};

/// Primary types (FAQ 4.2 to 4.7).
pub const T_SHORT: u32 = 2;
/// A data block of OFS.
pub const T_DATA: u32 = 8;
/// A file extension block.
pub const T_LIST: u32 = 16;
/// A directory cache block (FAQ 4.7).
pub const T_DIRCACHE: u32 = 33;

/// Secondary types (FAQ 4.2, 4.4 to 4.6).
pub const ST_ROOT: u32 = 1;
/// A directory.
pub const ST_USERDIR: u32 = 2;
/// A soft link.
pub const ST_SOFTLINK: u32 = 3;
/// A hard link to a directory.
pub const ST_LINKDIR: u32 = 4;
/// A file.
pub const ST_FILE: u32 = -3i32 as u32;
/// A hard link to a file.
pub const ST_LINKFILE: u32 = -4i32 as u32;

/// Where every header begins.
pub mod head {
    /// Primary type.
    pub const TYPE: usize = 0;
    /// The block's own number; data blocks: that of the file's header.
    pub const OWN_KEY: usize = 4;
    /// Data blocks named in this block; data blocks: their number in the file, from 1.
    pub const HIGH_SEQ: usize = 8;
    /// Root: entries of the hash table; OFS data: bytes in this block.
    pub const TABLE_SIZE: usize = 12;
    /// Files: the first data block; OFS data: the next one.
    pub const FIRST_DATA: usize = 16;
    /// Makes the sum of all words 0.
    pub const CHECKSUM: usize = 20;
    /// The hash table, the data block table (from its end), the path of a soft link, the data.
    pub const TABLE: usize = 24;
}

/// A directory cache block, where it differs from a header (FAQ 4.7).
pub mod dirc {
    /// The directory.
    pub const PARENT: usize = 8;
    /// How many records follow.
    pub const RECORDS: usize = 12;
    /// The next block of the same cache.
    pub const NEXT: usize = 16;
    /// The records, one behind the other.
    pub const LIST: usize = 24;
}

/// A record of a directory cache: a copy of what stands in the entry's header (FAQ 4.7).
pub mod record {
    /// The entry's header.
    pub const HEADER: usize = 0;
    /// Size of a file; 0 of anything else.
    pub const SIZE: usize = 4;
    /// Protection bits.
    pub const PROTECT: usize = 8;
    /// Owner and group, 16 bits each.
    pub const OWNER: usize = 12;
    /// Last change: days, minutes, ticks, 16 bits each.
    pub const DATE: usize = 16;
    /// Secondary type, its low byte.
    pub const TYPE: usize = 22;
    /// Length and text of the name, behind it those of the comment.
    pub const NAME: usize = 23;
}

/// Distances from the end of a block.
pub mod tail {
    /// Root: -1 if the bitmap is valid.
    pub const BM_FLAG: usize = 200;
    /// Root: the first 25 bitmap blocks.
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
    /// Length and text of the comment; with long names those of the name, and those of the comment behind them.
    pub const COMMENT: usize = 184;
    /// Last change.
    pub const DATE: usize = 92;
    /// Length and text of the name.
    pub const NAME: usize = 80;
    /// With long names: the block of a comment that found no room.
    pub const LONG_COMMENT_BLOCK: usize = 72;
    /// With long names: last change.
    pub const LONG_DATE: usize = 60;
    /// Hard links: what they lead to.
    pub const REAL_ENTRY: usize = 44;
    /// Root: last change of anything on the volume.
    pub const VOLUME_DATE: usize = 40;
    /// The next hard link to the same thing.
    pub const NEXT_LINK: usize = 40;
    /// Root: when the volume was made.
    pub const CREATION_DATE: usize = 28;
    /// The next entry of the same hash value.
    pub const HASH_CHAIN: usize = 16;
    /// The directory; extension blocks: the file's header.
    pub const PARENT: usize = 12;
    /// Files: the next extension block; directories: the first directory cache block.
    pub const EXTENSION: usize = 8;
    /// Secondary type.
    pub const SEC_TYPE: usize = 4;
}

/// `bm_flag` of a volume whose bitmap may be believed.
pub const BM_VALID: u32 = u32::MAX;
/// Bitmap blocks that the root names itself.
pub const ROOT_BM_PAGES: usize = 25;
/// Longest name, in characters of one byte each.
pub const NAME_MAX: usize = 30;
/// Owners have 16 bits.
pub const OWNER_MAX: u32 = 0xffff;
/// Longest comment.
pub const COMMENT_MAX: usize = 79;
/// Name and comment of a header with long names, with their lengths.
const LONG_ROOM: usize = 112;
/// Bytes of an OFS data block's own header.
pub const DATA_HEAD: usize = 24;

/// Number of a block, in the 32 bits of the format. 0 is the boot block, so it also means "none".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u32);

impl Block {
    /// No block.
    pub const NONE: Self = Self(0);

    /// The number for the buffer cache.
    pub fn no(self) -> BlockNo {
        BlockNo(u64::from(self.0))
    }

    /// The inode number of the header in this block.
    pub fn ino(self) -> Ino {
        Ino(u64::from(self.0))
    }
}

impl std::fmt::Display for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The block number at a byte.
pub fn get_block(block: &[u8], at: usize) -> Block {
    Block(get32(block, at))
}

/// Sets the block number at a byte.
pub fn put_block(block: &mut [u8], at: usize, value: Block) {
    put32(block, at, value.0);
}

/// The block number at a distance from the end.
pub fn tail_block(block: &[u8], from_end: usize) -> Block {
    Block(tail32(block, from_end))
}

/// Sets the block number at a distance from the end.
pub fn put_tail_block(block: &mut [u8], from_end: usize, value: Block) {
    put_tail32(block, from_end, value.0);
}

/// The word at a byte.
pub fn get32(block: &[u8], at: usize) -> u32 {
    block.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]))
}

/// Set the word at a byte.
pub fn put32(block: &mut [u8], at: usize, value: u32) {
    block[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

/// The word so far from the end.
pub fn tail32(block: &[u8], from_end: usize) -> u32 {
    get32(block, block.len() - from_end)
}

/// Set the word so far from the end.
pub fn put_tail32(block: &mut [u8], from_end: usize, value: u32) {
    let at = block.len() - from_end;
    put32(block, at, value);
}

fn sum(block: &[u8]) -> u32 {
    block.chunks_exact(4).fold(0, |sum, word| sum.wrapping_add(get32(word, 0)))
}

/// Whether the checksum is right: all words add up to 0 (FAQ 4.2.3).
pub fn is_sealed(block: &[u8]) -> bool {
    sum(block) == 0
}

/// Make the checksum at a byte right.
pub fn seal(block: &mut [u8], at: usize) {
    put32(block, at, 0);
    let negative = sum(block).wrapping_neg();
    put32(block, at, negative);
}

/// Entries of a hash table, and of a table of data blocks.
pub fn table_len(block_size: u32) -> usize {
    block_size as usize / 4 - 56
}

/// Where the data block with this number in its table is named: the first stands at the end (FAQ 4.4).
pub fn table_slot(block_size: u32, nth: usize) -> usize {
    head::TABLE + (table_len(block_size) - 1 - nth) * 4
}

/// What a volume's first word says (FAQ 4.1; the last two: LNFS; `muF`: the Multi-User File System, see Linux' affs.rst).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flavour {
    /// The word.
    pub tag: u32,
    /// Data blocks are all data.
    pub ffs: bool,
    /// Upper case is formed as Latin-1 has it.
    pub international: bool,
    /// Directories keep a list of their entries.
    pub cached: bool,
    /// Names of up to 110 characters.
    pub long_names: bool,
    /// Owners are those of the Multi-User File System.
    pub multi_user: bool,
}

impl Flavour {
    /// `None`: another filesystem.
    pub fn of(tag: u32) -> Option<Self> {
        const MUFS: u32 = u32::from_be_bytes(*b"muFS");
        let [a, b, c, low] = tag.to_be_bytes();
        let multi_user = [a, b, c] == *b"muF";
        if !(multi_user || [a, b, c] == *b"DOS") {
            return None;
        }
        let low = if tag == MUFS { 3 } else { low };
        if low > 7 || (multi_user && low > 5) {
            return None;
        }
        Some(Self {
            tag,
            ffs: low & 1 != 0,
            international: low >= 2,
            cached: low & 6 == 4,
            long_names: low >= 6,
            multi_user,
        })
    }

    /// For people.
    pub fn name(self) -> String {
        let kind = if self.ffs { "FFS" } else { "OFS" };
        let more = match (self.long_names, self.cached, self.international) {
            (true, ..) => ", long names",
            (_, true, _) => ", international, directory cache",
            (_, _, true) => ", international",
            _ => "",
        };
        format!("{} ({kind}{more})", shown_tag(self.tag))
    }

    /// A character's upper case (FAQ 4.2.1 and 5.4).
    pub fn upper(self, c: u8) -> u8 {
        let latin = self.international && (224..=254).contains(&c) && c != 247;
        if c.is_ascii_lowercase() || latin { c - 32 } else { c }
    }

    /// Whether two names are the same.
    pub fn same(self, a: &[u8], b: &[u8]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| self.upper(a) == self.upper(b))
    }

    /// The chain that a name belongs to (FAQ 4.2.1).
    pub fn hash(self, name: &[u8], table_len: usize) -> usize {
        let start = name.len() as u32;
        let mixed = name
            .iter()
            .fold(start, |hash, &c| hash.wrapping_mul(13).wrapping_add(u32::from(self.upper(c))) & 0x7ff);
        mixed as usize % table_len
    }

    /// The name in a header, in Latin-1. `None`: its length is impossible.
    pub fn name_in(self, block: &[u8]) -> Option<&[u8]> {
        let (at, max) = if self.long_names { (tail::COMMENT, LONG_ROOM - 2) } else { (tail::NAME, NAME_MAX) };
        text_in(block, block.len() - at, max)
    }

    /// The comment in a header. With long names it may be in a block of its own: then it is empty here.
    pub fn comment_in(self, block: &[u8]) -> Option<&[u8]> {
        let at = block.len() - tail::COMMENT;
        if !self.long_names {
            return text_in(block, at, COMMENT_MAX);
        }
        let name = self.name_in(block)?;
        text_in(block, at + 1 + name.len(), (LONG_ROOM - 2).checked_sub(name.len())?)
    }

    /// The date of last change in a header.
    pub fn date_in(self, block: &[u8]) -> Timestamp {
        date_in(block, if self.long_names { tail::LONG_DATE } else { tail::DATE })
    }
}

/// A length and as many bytes.
fn text_in(block: &[u8], at: usize, max: usize) -> Option<&[u8]> {
    let len = usize::from(*block.get(at)?);
    if len > max { None } else { block.get(at + 1..at + 1 + len) }
}

/// Write a length and as many bytes into a field of so much room, zeros behind it.
pub fn put_text(block: &mut [u8], from_end: usize, room: usize, text: &[u8]) {
    let at = block.len() - from_end;
    let field = &mut block[at..at + 1 + room];
    field.fill(0);
    field[0] = text.len() as u8;
    field[1..1 + text.len()].copy_from_slice(text);
}

/// What a directory's cache tells of an entry that shall have this name and comment, and the rest from its header.
pub fn cache_record(block: Block, header: &[u8], name: &[u8], comment: &[u8]) -> Vec<u8> {
    let sec_type = tail32(header, tail::SEC_TYPE);
    let mut bytes = vec![0; record::NAME];
    put32(&mut bytes, record::HEADER, block.0);
    put32(&mut bytes, record::SIZE, if sec_type == ST_FILE { tail32(header, tail::BYTE_SIZE) } else { 0 });
    put32(&mut bytes, record::PROTECT, tail32(header, tail::PROTECT));
    put32(&mut bytes, record::OWNER, tail32(header, tail::UID));
    for nth in 0..3 {
        // A header has room for days that a record has not: from 2157 on.
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

/// The records in a directory cache block. `None`: they are damaged.
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

/// The four characters of a type word, as the Amiga writes them.
pub fn shown_tag(tag: u32) -> String {
    let [a, b, c, low] = tag.to_be_bytes();
    let shown = |byte: u8| if byte.is_ascii_graphic() { char::from(byte) } else { '?' };
    let last = if low < 10 { format!("\\{low}") } else { shown(low).to_string() };
    format!("{}{}{}{last}", shown(a), shown(b), shown(c))
}

/// Days from 1970-01-01 to 1978-01-01, where the Amiga's days begin.
const EPOCH_DAYS: i64 = 8 * 365 + 2;
const DAY_S: i64 = 86_400;
/// A tick is 1/50 s (FAQ 4.2).
pub const TICK_NS: u32 = 20_000_000;

/// The date so far from the end: days, minutes, ticks. The Amiga knows no time zones: taken as UTC.
pub fn date_in(block: &[u8], from_end: usize) -> Timestamp {
    let [days, mins, ticks] = [0, 4, 8].map(|at| i64::from(tail32(block, from_end - at)));
    Timestamp {
        sec: (days + EPOCH_DAYS) * DAY_S + mins * 60 + ticks / 50,
        nsec: (ticks % 50) as u32 * TICK_NS,
    }
}

/// A date as a header keeps it: what lies outside of the range is brought to its border.
pub fn kept_date(time: Timestamp) -> Timestamp {
    let first = Timestamp { sec: EPOCH_DAYS * DAY_S, nsec: 0 };
    let last = Timestamp { sec: (i64::from(u32::MAX) + EPOCH_DAYS) * DAY_S, nsec: 0 };
    time.clamp(first, last).truncate(TICK_NS)
}

/// Write a date.
pub fn put_date(block: &mut [u8], from_end: usize, time: Timestamp) {
    let time = kept_date(time);
    let rest = time.sec % DAY_S;
    put_tail32(block, from_end, (time.sec / DAY_S - EPOCH_DAYS) as u32);
    put_tail32(block, from_end - 4, (rest / 60) as u32);
    put_tail32(block, from_end - 8, (rest % 60 * 50) as u32 + time.nsec / TICK_NS);
}

/// Cleared when a file is written to (Linux' affs.rst).
pub const ARCHIVED: u32 = 0x10;
/// The bits that say the same as a mode: a set bit *forbids* to the owner, and *allows* to the group and to others.
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
/// "May not be deleted", of the owner, the group and others.
const DELETE: [u32; 3] = [0x1, 0x100, 0x1000];

/// The permission bits that protection bits mean, as Linux' affs shows them.
pub fn mode_of(protect: u32, is_dir: bool) -> u32 {
    let bits = MODE_BITS.iter().filter(|(bit, _, allows)| (protect & bit != 0) == *allows);
    let mode = bits.fold(0, |mode, (_, perm, _)| mode | perm);
    // Who may read a directory may search it.
    if is_dir { mode | (mode & 0o444) >> 2 } else { mode }
}

/// Protection bits for these permission bits; what no permission bit speaks of stays. Nothing changes that means these already.
pub fn protect_of(perm: u32, old: u32, is_dir: bool) -> u32 {
    if mode_of(old, is_dir) == perm & 0o777 {
        return old;
    }
    let mut protect = old & !DELETE[0];
    for (bit, perm_bit, allows) in MODE_BITS {
        let set = (perm & perm_bit != 0) == allows;
        protect = if set { protect | bit } else { protect & !bit };
    }
    // The Multi-User File System's: groups that may do anything may delete too.
    for (bit, class) in [(DELETE[1], 0o070), (DELETE[2], 0o007)] {
        protect = if perm & class != 0 { protect | bit } else { protect & !bit };
    }
    protect
}

/// A name for users, in UTF-8.
pub fn to_utf8(latin: &[u8]) -> Vec<u8> {
    latin.iter().map(|&byte| char::from(byte)).collect::<String>().into_bytes()
}

/// Text of users in Latin-1. `None`: it has characters that Latin-1 lacks, or is no UTF-8.
pub fn to_latin(utf8: &[u8]) -> Option<Vec<u8>> {
    std::str::from_utf8(utf8).ok()?.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect()
}

/// A name that users give, in Latin-1, if it may stand in a directory: at most 30 characters, no control characters, no `:`
/// (FAQ 4.2).
pub fn name_from(utf8: &[u8]) -> Result<Vec<u8>, NameError> {
    let name = to_latin(utf8).ok_or(NameError::Invalid)?;
    if name.len() > NAME_MAX {
        return Err(NameError::NameTooLong);
    }
    let forbidden = |&c: &u8| c & 0x7f < 0x20 || c == b':' || c == b'/';
    if name.is_empty() || name.iter().any(forbidden) { Err(NameError::Invalid) } else { Ok(name) }
}

/// The path in a soft link, as POSIX writes it: an empty component is the directory above, and what stands before a colon is a volume.
pub fn posix_path(amiga: &[u8]) -> Vec<u8> {
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

/// The other way. `.` and doubled slashes are left out: they say nothing. `None`: the Amiga has no way to write it.
pub fn amiga_path(posix: &[u8]) -> Option<Vec<u8>> {
    let path = to_latin(posix)?;
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

    fn flavour(low: u8) -> Flavour {
        Flavour::of(u32::from_be_bytes([b'D', b'O', b'S', low])).unwrap()
    }

    #[test]
    fn hashes_are_those_of_the_faq() {
        // "'file_1a', 'file_24' and 'file_5u' have the same hash value" (4.2.1).
        let hashes = ["file_1a", "file_24", "file_5u"].map(|name| flavour(0).hash(name.as_bytes(), 72));
        assert!(hashes.iter().all(|&hash| hash == hashes[0]));
        // Upper case of Latin-1 counts where the volume is international alone.
        assert_eq!(flavour(3).hash(b"\xe4", 72), flavour(3).hash(b"\xc4", 72));
        assert_ne!(flavour(1).hash(b"\xe4", 72), flavour(1).hash(b"\xc4", 72));
        assert!(!flavour(3).same(b"\xf7", b"\xd7"));
        assert!(flavour(4).international && flavour(4).cached && !flavour(4).ffs);
        assert!(flavour(7).long_names && flavour(7).ffs && !flavour(7).cached);
        assert_eq!(flavour(5).name(), "DOS\\5 (FFS, international, directory cache)");
        assert!(Flavour::of(u32::from_be_bytes(*b"PFS\x03")).is_none());
        assert!(Flavour::of(u32::from_be_bytes(*b"muFS")).unwrap().multi_user);
    }

    #[test]
    fn modes_come_back() {
        assert_eq!(mode_of(0, false), 0o700);
        assert_eq!(mode_of(0xf, false), 0);
        for perm in 0..0o1000 {
            let protect = protect_of(perm, 0xffff_0070, false);
            assert_eq!(mode_of(protect, false), perm);
            assert_eq!(protect & 0xffff_0070, 0xffff_0070);
            assert_eq!(protect & 1, 0);
        }
        // A bit that no mode shows stays while the mode stays.
        assert_eq!(protect_of(0o700, 1, false), 1);
        assert_eq!(mode_of(protect_of(0o744, 0, true), true), 0o755);
    }

    #[test]
    fn records_are_told_apart() {
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
    fn dates_come_back() {
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
    fn soft_links_are_paths_of_the_amiga() {
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
            assert_eq!(amiga_path(posix.as_bytes()).unwrap(), amiga.as_bytes(), "{posix}");
            assert_eq!(posix_path(amiga.as_bytes()), posix.as_bytes(), "{amiga}");
        }
        assert_eq!(posix_path(b"Work:a\xe4"), "/Work/aä".as_bytes());
        assert_eq!(amiga_path(b"./a//b/"), Some(b"a/b".to_vec()));
        assert_eq!((amiga_path(b"a:b"), amiga_path("a\u{20ac}".as_bytes())), (None, None));
    }

    #[test]
    fn names_are_checked() {
        assert_eq!(name_from("\u{e4}bc".as_bytes()), Ok(b"\xe4bc".to_vec()));
        assert_eq!(name_from("\u{e4}".repeat(30).as_bytes()).unwrap().len(), 30);
        assert_eq!(name_from(&[b'a'; 31]), Err(NameError::NameTooLong));
        for bad in ["a:b", "a\u{20ac}", "a\n", "a\u{85}"] {
            assert_eq!(name_from(bad.as_bytes()), Err(NameError::Invalid), "{bad:?}");
        }
    }
}
