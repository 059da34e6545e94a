//! The checker of OFS and FFS volumes, written only from the format's description (Laurent Clévy, "The .ADF
//! format FAQ"): reads everything, believes nothing, repairs nothing. Only finding the volume on the device
//! is shared with the driver.
//!
//! Memory: one bit a block, 8 bytes a lost block, the block numbers of one file, and a path of at most 256
//! bytes for each directory that is still to be read.

mod report;

pub use report::Report;

use crate::layout::{Variant, get32};
use crate::open::{OpenOptions, find_root, find_volume};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_vfs::check::{Bits, Findings, Memory, Place};
use ivers_vfs::{DriverOptions, Error, Result};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

/// Blocks that are kept in memory.
const KEPT_BLOCKS: usize = 256;
/// Longest path, in bytes.
const PATH_MAX: usize = 256;
/// Blocks before the first of a volume without a partition entry.
const RESERVED: usize = 2;

/// Checks the volume on a device, or in one of its partitions; `place` names the image in errors. An error
/// means that the check could not be done.
pub fn check(
    device: Arc<dyn Device>,
    partition: Option<&str>,
    memory: Memory,
    place: &str,
) -> Result<Findings> {
    let options = OpenOptions {
        common: DriverOptions { place: place.to_owned(), ..DriverOptions::default() },
        partition: partition.map(str::to_owned),
    };
    let (device, extent) = find_volume(device, &options)?;
    let mut first = [0; 4];
    if extent.len < 4 * 512 {
        return Err(Error::Incompatible(format!(
            "{place} is no AmigaDOS volume: it is shorter than four sectors"
        )));
    }
    device.read_at(ByteOffset(0), &mut first)?;
    let variant = Variant::from_dos_type(get32(&first, 0))
        .ok_or_else(|| Error::Incompatible(format!("{place} is no AmigaDOS volume")))?;
    if variant.long_names {
        return Err(Error::Incompatible(format!("{place}: {} cannot be checked", variant.name())));
    }
    let geometry = match find_root(&*device, &extent, variant) {
        Ok((geometry, _)) => geometry,
        Err(Error::Corrupt { what, .. }) => {
            let mut found = Findings::default();
            found.add("root-invalid", Place::filesystem(), what);
            return Ok(found);
        }
        Err(error) => return Err(error),
    };
    let mut checker = Checker::new(device, geometry.block_size as usize, geometry.blocks as usize, memory);
    checker.root = geometry.root.0 as usize;
    checker.reserved = geometry.reserved as usize;
    checker.low = variant.dos_type.to_be_bytes()[3];
    if &variant.dos_type.to_be_bytes() == b"muFS" {
        checker.low = 3;
    }
    checker.all();
    match checker.reader.error.take() {
        Some(error) => Err(error),
        None => Ok(checker.report.into_findings()),
    }
}

/// Checks an image of a volume with blocks of this size, and lists its tree. For tests.
///
/// A crash can leave lost blocks and their traces (a hard link without its original, block numbers past a
/// file's end) and directory caches that differ from the headers. These are accepted only on a volume that is
/// marked as invalid.
pub fn report(image: &[u8], block_size: usize) -> Report {
    let device = Arc::new(MemDevice::from_bytes(image));
    let mut checker = Checker::new(device, block_size, image.len() / block_size, Memory::unlimited());
    checker.low = image.get(3).copied().unwrap_or_default();
    checker.want_tree = true;
    checker.all();
    checker.report
}

/// Reads blocks; keeps a few.
struct Reader {
    device: Arc<dyn Device>,
    size: usize,
    kept: RefCell<HashMap<usize, Rc<Vec<u8>>>>,
    /// The first error.
    error: RefCell<Option<Error>>,
}

impl Reader {
    fn block(&self, block: usize) -> Rc<Vec<u8>> {
        if let Some(bytes) = self.kept.borrow().get(&block) {
            return bytes.clone();
        }
        let mut bytes = vec![0; self.size];
        if let Err(error) = self.device.read_at(ByteOffset((block * self.size) as u64), &mut bytes) {
            self.error.borrow_mut().get_or_insert(error.into());
        }
        let bytes = Rc::new(bytes);
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= KEPT_BLOCKS {
            kept.clear();
        }
        kept.insert(block, bytes.clone());
        bytes
    }
}

struct Checker {
    reader: Reader,
    memory: Memory,
    size: usize,
    blocks: usize,
    root: usize,
    reserved: usize,
    low: u8,
    want_tree: bool,
    /// Whether to accept incomplete operations of a crash.
    lenient: bool,
    used: Bits,
    report: Report,
    /// Links and what they refer to.
    links: Vec<(usize, usize)>,
    known_links: Vec<usize>,
}

impl Checker {
    fn new(device: Arc<dyn Device>, size: usize, blocks: usize, memory: Memory) -> Self {
        Self {
            reader: Reader { device, size, kept: RefCell::default(), error: RefCell::default() },
            memory,
            size,
            blocks,
            root: (RESERVED + blocks - 1) / 2,
            reserved: RESERVED,
            low: 0,
            want_tree: false,
            lenient: false,
            used: Bits::new(blocks as u64),
            report: Report::default(),
            links: Vec::new(),
            known_links: Vec::new(),
        }
    }

    /// Charges what the check keeps; false if that is too much, which ends the check.
    fn charge(&mut self, directories: usize) -> bool {
        let words = self.report.lost.len() + self.report.caches.len();
        let links =
            self.links.len() * size_of::<(usize, usize)>() + self.known_links.len() * size_of::<usize>();
        let bytes = self.used.bytes_kept()
            + words * size_of::<u64>()
            + links
            + directories * (PATH_MAX + size_of::<(usize, String)>());
        match self.memory.keep(bytes as u64) {
            Ok(()) => true,
            Err(error) => {
                self.reader.error.borrow_mut().get_or_insert(error);
                false
            }
        }
    }

    fn is_used(&self, block: usize) -> bool {
        self.used.get(block as u64)
    }

    fn byte(&self, at: usize) -> u8 {
        self.reader.block(at / self.size)[at % self.size]
    }

    /// A string after its length, within a block.
    fn text(&self, at: usize) -> Vec<u8> {
        let block = self.reader.block(at / self.size);
        let at = at % self.size;
        let end = (at + 1 + usize::from(block[at])).min(self.size);
        block[at + 1..end].to_vec()
    }

    fn word(&self, block: usize, nth: usize) -> usize {
        self.long(block * self.size + nth * 4)
    }

    fn long(&self, at: usize) -> usize {
        let (block, at) = (self.reader.block(at / self.size), at % self.size);
        match block.get(at..at + 4) {
            Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]) as usize,
            _ => 0,
        }
    }

    /// Returns a word counted from the end of the block: 1 is the last.
    fn last(&self, block: usize, nth: usize) -> usize {
        self.word(block, self.size / 4 - nth)
    }

    fn wrong(&mut self, code: &'static str, block: usize, what: impl Into<String>) {
        self.report.found.add(code, Place::block(block as u64), what);
    }

    fn sums_up(&self, block: usize) -> bool {
        let words = (0..self.size / 4).map(|nth| self.word(block, nth) as u32);
        words.fold(0u32, |sum, word| sum.wrapping_add(word)) == 0
    }

    /// Marks a block as used by the volume; a block has only one use.
    fn claim(&mut self, block: usize, by: &str) -> bool {
        if block < self.reserved || block >= self.blocks {
            self.wrong("block-out-of-range", block, format!("{by} lies outside of the volume"));
            return false;
        }
        if self.used.set_run(block as u64, 1).is_some() {
            self.wrong("block-claimed-twice", block, format!("{by} lies where something else does"));
            return false;
        }
        true
    }

    fn claim_sealed(&mut self, block: usize, by: &str) -> bool {
        if !self.claim(block, by) {
            return false;
        }
        if !self.sums_up(block) {
            self.wrong("checksum-wrong", block, format!("the checksum of {by} is wrong"));
            return false;
        }
        true
    }

    fn table_len(&self) -> usize {
        self.size / 4 - 56
    }

    fn name(&self, block: usize) -> Vec<u8> {
        let at = block * self.size + self.size - 80;
        let mut name = self.text(at);
        name.truncate(30);
        name
    }

    fn upper(&self, c: u8) -> u8 {
        match c {
            b'a'..=b'z' => c - 32,
            0xe0..=0xfe if self.low >= 2 && c != 0xf7 => c - 32,
            _ => c,
        }
    }

    fn hash(&self, name: &[u8]) -> usize {
        let mut hash = name.len();
        for &c in name {
            hash = (hash * 13 + usize::from(self.upper(c))) & 0x7ff;
        }
        hash % self.table_len()
    }

    fn all(&mut self) {
        let root = self.root;
        if self.word(root, 0) != 2 || self.last(root, 1) != 1 || self.word(root, 3) != self.table_len() {
            return self.wrong("root-invalid", root, "no root block");
        }
        self.report.valid = self.last(root, 50) == 0xffff_ffff;
        self.lenient = !self.report.valid;
        self.claim_sealed(root, "the root");
        let pages = self.bitmap_pages();
        let mut directories = vec![(root, String::new())];
        let mut seen = 0;
        loop {
            while let Some((dir, path)) = directories.pop() {
                if !self.charge(directories.len()) {
                    return;
                }
                self.directory(dir, &path, &mut directories);
            }
            // The original of a hard link that has lost its own name.
            let nameless = self.links[seen..].iter().position(|&(_, real)| !self.is_used(real));
            let Some(nth) = nameless else { break };
            seen += nth;
            let (link, real) = self.links[seen];
            if !self.lenient {
                let what = format!("the link leads to block {real}, which has no name");
                return self.wrong("link-target-invalid", link, what);
            }
            if !self.entry(real, "(without a name)", &mut directories) {
                return;
            }
        }
        self.check_links();
        self.check_bitmap(&pages);
    }

    fn bitmap_pages(&mut self) -> Vec<usize> {
        let per = (self.size / 4 - 1) * 32;
        let want = (self.blocks - self.reserved).div_ceil(per);
        let mut pages: Vec<usize> = (0..25).map(|nth| self.last(self.root, 49 - nth)).collect();
        let mut next = self.last(self.root, 24);
        while pages.len() < want && self.claim(next, "a bitmap extension block") {
            pages.extend((0..self.size / 4 - 1).map(|nth| self.word(next, nth)));
            next = self.last(next, 1);
        }
        pages.truncate(want);
        for &page in &pages {
            self.claim_sealed(page, "a bitmap block");
        }
        pages
    }

    fn directory(&mut self, dir: usize, path: &str, directories: &mut Vec<(usize, String)>) {
        let mut entries = BTreeSet::new();
        for slot in 0..self.table_len() {
            let mut names: Vec<Vec<u8>> = Vec::new();
            let mut at = self.word(dir, 6 + slot);
            while at != 0 {
                if at >= self.blocks {
                    return self.wrong("block-out-of-range", at, "a hash chain leads out of the volume");
                }
                let name = self.name(at);
                let shown: String = name.iter().map(|&c| char::from(c)).collect();
                let mut below = format!("{path}/{shown}");
                while below.len() > PATH_MAX {
                    below.pop();
                }
                if !self.entry(at, &below, directories) {
                    return;
                }
                if self.last(at, 3) != dir {
                    self.wrong(
                        "parent-wrong",
                        at,
                        format!("{below}: wrong parent block {}", self.last(at, 3)),
                    );
                }
                if self.hash(&name) != slot {
                    self.wrong("hash-chain-wrong", at, format!("{below} stands in chain {slot}"));
                }
                let folded: Vec<u8> = name.iter().map(|&c| self.upper(c)).collect();
                if name.is_empty() || names.contains(&folded) {
                    self.wrong("name-twice", at, format!("{below} is there twice, or has no name"));
                }
                names.push(folded);
                entries.insert(at);
                at = self.last(at, 4);
            }
        }
        if matches!(self.low, 4 | 5) {
            self.cache(dir, path, entries);
        }
    }

    /// Checks the cache of a directory: a record for each entry, equal to its header.
    fn cache(&mut self, dir: usize, path: &str, mut entries: BTreeSet<usize>) {
        let mut block = self.last(dir, 2);
        if block == 0 {
            return self.wrong("cache-wrong", dir, format!("{path}/ has no cache"));
        }
        while block != 0 {
            if !self.claim_sealed(block, &format!("a cache of {path}/")) {
                return;
            }
            if self.word(block, 0) != 33 || self.word(block, 1) != block || self.word(block, 2) != dir {
                return self.wrong("cache-wrong", block, format!("no cache of {path}/"));
            }
            self.report.caches.push(block);
            if !self.lenient {
                self.cache_records(block, path, &mut entries);
            }
            block = self.word(block, 4);
        }
        if let (false, Some(first)) = (self.lenient, entries.first()) {
            self.wrong(
                "cache-wrong",
                *first,
                format!("{} entries of {path}/ are not in its cache", entries.len()),
            );
        }
    }

    fn cache_records(&mut self, block: usize, path: &str, entries: &mut BTreeSet<usize>) {
        let (mut at, end) = (block * self.size + 24, (block + 1) * self.size);
        for nth in 0..self.word(block, 3) {
            let byte = |at: usize| if at < end { usize::from(self.byte(at)) } else { usize::MAX };
            let name_len = byte(at + 23);
            let comment_len = if name_len == usize::MAX { name_len } else { byte(at + 24 + name_len) };
            if comment_len == usize::MAX || at + 25 + name_len + comment_len > end {
                return self.wrong(
                    "cache-wrong",
                    block,
                    format!("record {nth} of a cache of {path}/ has no end"),
                );
            }
            let entry = self.long(at);
            if !entries.remove(&entry) {
                return self.wrong(
                    "cache-wrong",
                    block,
                    format!("{path}/ has no entry {entry}, or its cache has it twice"),
                );
            }
            let short = |at: usize| usize::from(self.byte(at)) * 256 + usize::from(self.byte(at + 1));
            let text = |at: usize| self.text(at);
            let header_end = (entry + 1) * self.size;
            let is_file = self.last(entry, 1) == 0xffff_fffd;
            let mut same = self.long(at + 4) == if is_file { self.last(entry, 47) } else { 0 };
            same &= self.long(at + 8) == self.last(entry, 48);
            same &= self.long(at + 12) == self.last(entry, 49);
            same &= (0..3).all(|nth| short(at + 16 + nth * 2) == self.last(entry, 23 - nth).min(0xffff));
            same &= usize::from(self.byte(at + 22)) == self.last(entry, 1) & 0xff;
            same &= text(at + 23) == text(header_end - 80);
            same &= text(at + 24 + name_len) == text(header_end - 184);
            if !same {
                self.wrong(
                    "cache-wrong",
                    block,
                    format!("record {nth} of a cache of {path}/: differs from block {entry}"),
                );
            }
            at += (25 + name_len + comment_len).next_multiple_of(2);
        }
    }

    /// Checks an entry and its contents.
    fn entry(&mut self, block: usize, path: &str, directories: &mut Vec<(usize, String)>) -> bool {
        if !self.claim_sealed(block, path) {
            return false;
        }
        if self.word(block, 0) != 2 || self.word(block, 1) != block {
            self.wrong("header-invalid", block, format!("{path} has no header"));
            return false;
        }
        let shown = match self.last(block, 1) as u32 as i32 {
            2 => {
                directories.push((block, path.to_owned()));
                "d".to_owned()
            }
            -3 => {
                self.file(block, path);
                format!("f {}", self.last(block, 47))
            }
            3 => "l".to_owned(),
            kind @ (4 | -4) => {
                let real = self.last(block, 11);
                if real < self.reserved || real >= self.blocks {
                    self.wrong("link-target-invalid", block, format!("{path} leads out of the volume"));
                    return false;
                }
                self.links.push((block, real));
                let shown = if kind == 4 { "hd" } else { "h" };
                if self.want_tree {
                    self.report.tree.insert(path.to_owned(), format!("{shown} {real}"));
                }
                return true;
            }
            other => {
                self.wrong("entry-type-invalid", block, format!("{path} is of type {other}"));
                return false;
            }
        };
        if self.last(block, 10) != 0 {
            self.known_links.push(block);
        }
        if self.want_tree {
            self.report.tree.insert(path.to_owned(), shown);
        }
        true
    }

    fn file(&mut self, header: usize, path: &str) {
        let bytes = self.last(header, 47);
        let per_block = if self.low & 1 == 1 { self.size } else { self.size - 24 };
        let want = bytes.div_ceil(per_block);
        let mut data = Vec::new();
        let mut table = header;
        loop {
            let entries: Vec<usize> = (0..self.table_len())
                .map(|nth| self.word(table, 5 + self.table_len() - nth))
                .take_while(|&entry| entry != 0)
                .collect();
            if self.word(table, 2) != entries.len() {
                let said = self.word(table, 2);
                self.wrong(
                    "file-table-invalid",
                    table,
                    format!("{path}: {} entries, and it says {said}", entries.len()),
                );
            }
            let full = entries.len() == self.table_len();
            data.extend(entries);
            if data.len() > self.blocks {
                return self.wrong(
                    "file-size-wrong",
                    table,
                    format!("{path}: more blocks than the volume has"),
                );
            }
            let next = self.last(table, 2);
            if next == 0 {
                break;
            }
            if !full || !self.claim_sealed(next, &format!("a table of {path}")) {
                return self.wrong(
                    "file-table-invalid",
                    next,
                    format!("{path}: a table after one that is not full, or a damaged table"),
                );
            }
            if self.word(next, 0) != 16 || self.word(next, 1) != next || self.last(next, 3) != header {
                return self.wrong("file-table-invalid", next, format!("{path}: no table of this file"));
            }
            table = next;
        }
        if data.len() != want && !(self.lenient && data.len() > want) {
            self.wrong("file-size-wrong", header, format!("{path}: {} blocks for {bytes} bytes", data.len()));
        }
        if self.word(header, 4) != data.first().copied().unwrap_or(0) {
            self.wrong(
                "file-table-invalid",
                header,
                format!("{path}: another first block than in its table"),
            );
        }
        for (nth, &block) in data.iter().enumerate() {
            if !self.claim(block, &format!("data of {path}")) || self.low & 1 == 1 || nth >= want {
                continue;
            }
            let sound = self.sums_up(block)
                && self.word(block, 0) == 8
                && self.word(block, 1) == header
                && self.word(block, 2) == nth + 1;
            if !sound {
                self.wrong("data-block-invalid", block, format!("{path}: not its data block {}", nth + 1));
            }
            // A crash can leave data past the last valid pointer, and a partly valid last block.
            let is_last = nth + 1 == want;
            let (len, next) = (self.word(block, 3), self.word(block, 4));
            let want_len = if is_last { bytes - nth * per_block } else { per_block };
            let want_next = data.get(nth + 1).copied().unwrap_or(0);
            if (len, next) != (want_len, want_next) && !(self.lenient && is_last) {
                self.wrong(
                    "data-block-invalid",
                    block,
                    format!("{path}: {len} bytes and then block {next}, not {want_len} and {want_next}"),
                );
            }
        }
    }

    /// Checks that the target of each link knows the link.
    fn check_links(&mut self) {
        let mut by_real: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for (link, real) in &self.links {
            by_real.entry(*real).or_default().insert(*link);
        }
        for &real in &self.known_links {
            by_real.entry(real).or_default();
        }
        for (real, named) in by_real {
            let mut chain = BTreeSet::new();
            let mut at = self.last(real, 10);
            while at != 0 && at < self.blocks && chain.insert(at) {
                if self.last(at, 11) != real || ![4, -4].contains(&(self.last(at, 1) as u32 as i32)) {
                    self.wrong(
                        "link-chain-wrong",
                        at,
                        format!("in the chain of links of block {real}, and no such link"),
                    );
                }
                at = self.last(at, 10);
            }
            let sound = if self.lenient { named.is_subset(&chain) } else { named == chain };
            if !sound || at != 0 {
                self.wrong("link-chain-wrong", real, format!("links {named:?}, and a chain of {chain:?}"));
            }
        }
    }

    fn check_bitmap(&mut self, pages: &[usize]) {
        let per = (self.size / 4 - 1) * 32;
        for block in self.reserved..self.blocks {
            let bit = block - self.reserved;
            let Some(&page) = pages.get(bit / per) else { return };
            if bit.is_multiple_of(per) && !self.charge(0) {
                return;
            }
            if page < self.reserved || page >= self.blocks {
                continue;
            }
            let free = self.word(page, 1 + bit % per / 32) >> (bit % 32) & 1 != 0;
            match (self.is_used(block), free) {
                (true, true) => self.wrong("block-in-use-marked-free", block, "in use, and marked as free"),
                (false, false) => self.report.lost.push(block),
                _ => {}
            }
        }
    }
}
