//! Directory blocks: entries, `.` and `..`, file types, duplicate names, checksums.

use super::htree::Tree;
use super::map;
use super::state::{Checker, Dir, Slot, kind};
use crate::dir::index;
use crate::dir::linear::{ENTRY_HEADER, Format, TAIL_SIZE, le16, le32};
use crate::layout::csum::crc32c;
use crate::layout::features::Incompat;
use crate::layout::inode::{FL_CASEFOLD, FL_ENCRYPT, FL_INDEX, FL_INLINE_DATA, ROOT_INO};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// The smallest entry.
const MIN_REC_LEN: usize = 12;

/// The shortest encrypted name: one block of the cipher.
const ENCRYPTED_NAME_MIN: usize = 16;

/// What an entry must satisfy, by its position.
#[derive(Clone, Copy, PartialEq)]
enum Expect {
    Dot,
    DotDot,
    Name,
}

/// A directory under check.
struct Walk<'a> {
    dir: Dir,
    slot: &'a Slot,
    format: Format,
    block: u64,
    expect: Expect,
    /// Hashes of the names, to find duplicates.
    names: Vec<u64>,
    hashes: RandomState,
}

/// Visits the entries of an area without checks other than those that keep the walk inside: number, name.
pub(super) fn quiet_entries(format: &Format, area: &[u8], visit: &mut dyn FnMut(u32, &[u8])) {
    let mut at = 0;
    while at + ENTRY_HEADER <= area.len() {
        let rec_len = rec_len(format, area, at);
        let name_len = usize::from(area[at + 6]);
        if rec_len < ENTRY_HEADER || at + rec_len > area.len() {
            return;
        }
        let ino = le32(area, at);
        if let Some(name) = area.get(at + ENTRY_HEADER..at + ENTRY_HEADER + name_len)
            && ino != 0
        {
            visit(ino, name);
        }
        at += rec_len;
    }
}

fn rec_len(format: &Format, area: &[u8], at: usize) -> usize {
    match le16(area, at + 4) {
        0 | u16::MAX if format.block_size >= 1 << 16 => format.block_size,
        stored => usize::from(stored),
    }
}

impl Checker {
    pub(super) fn format(&self) -> Format {
        let sb = self.sb();
        Format {
            block_size: sb.block_size as usize,
            filetype: sb.incompat.contains(Incompat::FILETYPE),
            checksum: sb.has_csum(),
        }
    }

    /// Checks all directories.
    pub(super) fn check_directories(&mut self) -> Result<()> {
        for nth in 0..self.dirs.len() {
            let dir = self.dirs[nth];
            let Some(slot) = self.slot(dir.ino)? else { continue };
            let mut walk = Walk {
                dir,
                slot: &slot,
                format: self.format(),
                block: 0,
                expect: Expect::Dot,
                names: Vec::new(),
                hashes: RandomState::new(),
            };
            if slot.flags() & FL_INLINE_DATA != 0 {
                self.check_inline_dir(&mut walk)?;
            } else {
                self.check_blocks(&mut walk)?;
            }
            self.charge(walk.names.capacity() * size_of::<u64>())?;
            self.check_duplicates(&mut walk)?;
        }
        Ok(())
    }

    fn check_inline_dir(&mut self, walk: &mut Walk<'_>) -> Result<()> {
        let parent = le32(&walk.slot.raw.i_block, 0);
        // Neither . nor .. is stored, but both count.
        self.inodes.count_name(walk.dir.ino);
        self.note_dotdot(walk.dir.ino, parent);
        walk.expect = Expect::Name;
        for area in inline_areas(walk.slot) {
            self.check_area(walk, area, None);
        }
        Ok(())
    }

    fn check_blocks(&mut self, walk: &mut Walk<'_>) -> Result<()> {
        let sb = self.sb();
        let size = walk.slot.size();
        let blocks = size >> sb.block_bits;
        let mut runs = map::run_list(&self.reader, walk.slot, usize::MAX)?;
        runs.sort_unstable();
        let tree = if walk.slot.flags() & FL_INDEX != 0 && blocks > 0 {
            self.check_tree(walk.slot, &runs, blocks)?
        } else {
            None
        };
        let mut next = 0;
        for (logical, block, len) in runs {
            if logical > next && next < blocks {
                self.hole(walk, next);
            }
            for nth in 0..len {
                let logical = logical + nth;
                if logical < next || logical >= blocks {
                    continue;
                }
                next = logical + 1;
                walk.block = block + nth;
                if let Some(bytes) = self.reader.block(block + nth)? {
                    self.check_dir_block(walk, &bytes, logical, tree.as_ref());
                }
            }
        }
        if next < blocks {
            self.hole(walk, next);
        }
        if walk.expect != Expect::Name {
            let what = "the directory lacks . or ..";
            self.bad("directory-dots-wrong", Place::inode(walk.dir.ino), what);
        }
        if let Some(tree) = tree {
            self.check_unreferenced(walk.slot, tree, blocks);
        }
        Ok(())
    }

    fn hole(&mut self, walk: &Walk<'_>, logical: u64) {
        let what = format!("the directory has no block for its block {logical}");
        self.bad("directory-hole", Place::inode(walk.dir.ino), what);
    }

    fn check_dir_block(&mut self, walk: &mut Walk<'_>, bytes: &[u8], logical: u64, tree: Option<&Tree>) {
        let format = walk.format;
        let place = Place::inode(walk.dir.ino).at(walk.block);
        if tree.is_some_and(|tree| tree.is_index(logical)) {
            if logical == 0 {
                // `.` and `..`; the latter covers the rest of the block.
                self.check_area(walk, bytes, None);
            }
            return;
        }
        let empty_node = format.checksum && index::looks_like_node(&format, bytes);
        let mut area = bytes;
        if format.checksum && !empty_node {
            let usable = format.block_size - TAIL_SIZE;
            if !format.has_tail(bytes) {
                self.bad("directory-block-without-checksum", place, "a directory block has no checksum");
            } else {
                area = &bytes[..usable];
                let right = crc32c(self.reader.seed(walk.slot), area);
                if right != le32(bytes, usable + 8) {
                    let what = "the checksum of a directory block is wrong";
                    self.bad("directory-block-checksum-wrong", place, what);
                }
            }
        } else if empty_node {
            self.bad("directory-block-without-checksum", place, "a directory block has no checksum");
        }
        let range = tree.and_then(|tree| tree.leaf(logical));
        self.check_area(walk, area, tree.zip(range));
    }

    /// Checks the entries of a block or of inline data. `leaf`: the hashes that the tree allows here.
    fn check_area(&mut self, walk: &mut Walk<'_>, area: &[u8], leaf: Option<(&Tree, (u32, u32))>) {
        let mut at = 0;
        while at < area.len() {
            let place = Place { block: Some(walk.block).filter(|&b| b != 0), ..Place::inode(walk.dir.ino) };
            let header = area.len() - at >= ENTRY_HEADER;
            let rec_len = if header { rec_len(&walk.format, area, at) } else { 0 };
            let name_len = if header { usize::from(area[at + 6]) } else { 0 };
            if rec_len < MIN_REC_LEN
                || rec_len % 4 != 0
                || at + rec_len > area.len()
                || ENTRY_HEADER + name_len > rec_len
            {
                let what = format!("a directory entry at byte {at} has an invalid length");
                self.bad("directory-entry-invalid", place, what);
                return;
            }
            let ino = le32(area, at);
            let name = &area[at + ENTRY_HEADER..at + ENTRY_HEADER + name_len];
            match walk.expect {
                Expect::Name if ino == 0 => {}
                Expect::Dot | Expect::DotDot => self.check_dots(walk, ino, name, area[at + 7], place),
                Expect::Name => self.check_entry(walk, ino, name, area[at + 7], place, leaf),
            }
            at += rec_len;
        }
    }

    fn check_dots(&mut self, walk: &mut Walk<'_>, ino: u32, name: &[u8], stored: u8, place: Place) {
        let (wanted, next): (&[u8], _) = match walk.expect {
            Expect::Dot => (&b"."[..], Expect::DotDot),
            _ => (&b".."[..], Expect::Name),
        };
        walk.expect = next;
        if name != wanted || ino == 0 {
            let what = "a directory does not begin with . and ..";
            return self.bad("directory-dots-wrong", place, what);
        }
        if wanted == b"." && ino != walk.dir.ino {
            let what = format!(". refers to inode {ino}");
            return self.bad("directory-dots-wrong", place, what);
        }
        if self.is_wrong_type(stored, kind::DIRECTORY) {
            self.bad("filetype-wrong", place.clone(), format!("the type of {} is {stored}", show(wanted)));
        }
        if ino > self.sb().inodes_count() {
            return self.bad("entry-inode-out-of-range", place, format!(".. refers to inode {ino}"));
        }
        if wanted == b".." {
            self.note_dotdot(walk.dir.ino, ino);
        } else {
            self.inodes.count_name(ino);
        }
    }

    /// Whether an entry has another type than its inode. The Hurd stores none.
    fn is_wrong_type(&self, stored: u8, actual: u8) -> bool {
        let sb = self.sb();
        let stores = sb.incompat.contains(Incompat::FILETYPE);
        if stores { stored != actual && !(sb.hurd && stored == 0) } else { stored != 0 }
    }

    fn note_dotdot(&mut self, ino: u32, parent: u32) {
        if let Some(dir) = self.dir_mut(ino) {
            dir.dotdot = parent;
        }
        // The parent's count of links fell when the name was removed.
        let (links, _) = self.inodes.links(ino);
        if links == 0 && self.inodes.kind(ino) & kind::ORPHAN != 0 {
            return;
        }
        if parent != 0 && parent <= self.sb().inodes_count() && self.inodes.kind(parent) != 0 {
            self.inodes.count_name(parent);
        }
    }

    fn check_entry(
        &mut self,
        walk: &mut Walk<'_>,
        ino: u32,
        name: &[u8],
        stored: u8,
        place: Place,
        leaf: Option<(&Tree, (u32, u32))>,
    ) {
        let sb = self.sb();
        let shown = show(name);
        let encrypted = walk.slot.flags() & FL_ENCRYPT != 0;
        if name.is_empty() {
            return self.bad("name-empty", place, format!("an entry for inode {ino} has no name"));
        }
        if ino > sb.inodes_count() || (ino < sb.first_ino && ino != ROOT_INO) {
            let what = format!("{shown} refers to inode {ino}, which cannot have a name");
            return self.bad("entry-inode-out-of-range", place, what);
        }
        if name == b"." || name == b".." {
            return self.bad("directory-dots-repeated", place, format!("{shown} stands among the names"));
        }
        if !encrypted && (name.contains(&b'/') || name.contains(&0)) {
            self.bad("name-invalid", place.clone(), format!("the name {shown} has a slash or a zero byte"));
        }
        if encrypted && name.len() < ENCRYPTED_NAME_MIN {
            let what = format!("the encrypted name {shown} has {} bytes", name.len());
            self.bad("name-invalid", place.clone(), what);
        }
        let found = self.inodes.kind(ino);
        if ino == ROOT_INO {
            let what = format!("{shown} is a second name of the root");
            return self.bad("directory-linked-twice", place, what);
        }
        if found & !kind::ORPHAN == 0 {
            let what = format!("{shown} refers to inode {ino}, which is not in use");
            return self.bad("name-of-unused-inode", place, what);
        }
        if found & kind::EA_INODE != 0 && found & kind::TYPE == kind::REGULAR {
            let what = format!("{shown} refers to inode {ino}, which holds an attribute");
            return self.bad("name-of-ea-inode", place, what);
        }
        let actual = found & kind::TYPE;
        if actual != kind::UNKNOWN && self.is_wrong_type(stored, actual) {
            let what = format!("the type of {shown} is {stored}, that of inode {ino} is {actual}");
            self.bad("filetype-wrong", place.clone(), what);
        }
        let can_be_encrypted = [kind::REGULAR, kind::DIRECTORY, kind::SYMLINK].contains(&actual);
        if encrypted && can_be_encrypted && found & kind::ENCRYPTED == 0 {
            let what = format!("{shown} refers to inode {ino}, which is not encrypted as its directory is");
            self.bad("encryption-missing", place.clone(), what);
        }
        self.inodes.count_name(ino);
        if actual == kind::DIRECTORY
            && let Some(child) = self.dir_mut(ino)
        {
            if child.parent != 0 {
                let what = format!("{shown} is a second name of directory {ino}");
                self.bad("directory-linked-twice", place.clone(), what);
            } else {
                child.parent = walk.dir.ino;
            }
        }
        walk.names.push(walk.hashes.hash_one(name));
        if let Some((tree, (low, high))) = leaf
            && !encrypted
            && walk.slot.flags() & FL_CASEFOLD == 0
        {
            let hash = tree.hash(name);
            if hash < low || hash > high {
                let what = format!("{shown} is in a leaf for other hashes");
                self.bad("htree-hash-wrong", place, what);
            }
        }
    }

    fn check_duplicates(&mut self, walk: &mut Walk<'_>) -> Result<()> {
        walk.names.sort_unstable();
        let twice: HashSet<u64> =
            walk.names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
        if twice.is_empty() {
            return Ok(());
        }
        let mut seen: HashSet<Vec<u8>> = HashSet::new();
        let mut doubled = Vec::new();
        let hashes = walk.hashes.clone();
        self.each_entry(walk.slot, &mut |_, name| {
            if twice.contains(&hashes.hash_one(name)) && !seen.insert(name.to_vec()) && doubled.len() < 1000 {
                doubled.push(name.to_vec());
            }
        })?;
        for name in doubled {
            let what = format!("the name {} is there twice", show(&name));
            self.bad("name-twice", Place::inode(walk.dir.ino), what);
        }
        Ok(())
    }

    /// Visits the entries of a directory without findings: inode number and name.
    pub(super) fn each_entry(&self, slot: &Slot, visit: &mut dyn FnMut(u32, &[u8])) -> Result<()> {
        let format = self.format();
        if slot.flags() & FL_INLINE_DATA != 0 {
            inline_areas(slot).into_iter().for_each(|area| quiet_entries(&format, area, visit));
            return Ok(());
        }
        let runs = map::run_list(&self.reader, slot, usize::MAX)?;
        for block in runs.into_iter().flat_map(|(_, block, len)| block..block + len) {
            if let Some(bytes) = self.reader.block(block)? {
                quiet_entries(&format, &bytes, visit);
            }
        }
        Ok(())
    }
}

/// The parts of an inode that hold the names of an inline directory, the number of `..` left out.
fn inline_areas(slot: &Slot) -> [&[u8]; 2] {
    let body = slot.body();
    let range = crate::xattr::body::inline_data_range(body).ok().flatten();
    [&slot.raw.i_block[4..], range.and_then(|range| body.get(range)).unwrap_or_default()]
}

/// A name for a message.
pub(super) fn show(name: &[u8]) -> String {
    format!("\"{}\"", name.escape_ascii())
}
