//! The checker of FAT12, FAT16 and FAT32: reads everything, believes nothing, repairs nothing.
//!
//! It shares the decoding of the boot sector, of entries and of long names with the driver. It computes
//! itself which clusters have an owner.
//!
//! Memory: one bit for each cluster, and the names of one directory.

use crate::cluster::Cluster;
use crate::fat::{Link, all_ones, clean_bit, first_end_mark};
use crate::layout::{END, FREE, Geometry, KANJI, MAX_SLOTS, RawEntry, RawFsInfo, RawLong, SLOT_BYTES, attr};
use crate::names::{LongName, checksum, decode_short};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::check::{Bits, Findings, Memory, Place, Runs};
use ivers_vfs::{Error, Result};
use std::collections::HashSet;
use std::sync::Arc;
use zerocopy::FromBytes;

/// Bytes of the table that are read at once. A multiple of 3, so that no entry of FAT12 is cut.
const WINDOW: u64 = 3 << 14;
/// Longest path in a finding, in bytes.
const PATH_MAX: usize = 4096;

/// Checks a volume; `place` names the image in errors. An error means that the check could not be done.
pub fn check(device: Arc<dyn Device>, memory: Memory, place: &str) -> Result<Findings> {
    let mut head = vec![0; 512.min(device.size_bytes()) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    let geometry = match Geometry::parse(&head, device.size_bytes()) {
        Ok(geometry) => geometry,
        Err(Error::Corrupt { what, .. }) => {
            let mut found = Findings::default();
            found.add("boot-sector-invalid", Place::block(0), what);
            return Ok(found);
        }
        Err(Error::Incompatible(what)) => return Err(Error::Incompatible(format!("{place}: {what}"))),
        Err(error) => return Err(error),
    };
    let mut checker = Checker {
        device,
        memory,
        found: Findings::of(geometry.fs_type()),
        claimed: Bits::new(geometry.end_cluster().0.into()),
        window: (u64::MAX, Vec::new()),
        label: None,
        geometry,
    };
    checker.check_boot(&head)?;
    checker.check_table()?;
    checker.check_tree()?;
    checker.check_label();
    checker.check_lost()?;
    Ok(checker.found)
}

struct Checker {
    device: Arc<dyn Device>,
    memory: Memory,
    geometry: Geometry,
    found: Findings,
    /// Clusters that have an owner.
    claimed: Bits,
    /// A part of the table: its offset, and its bytes.
    window: (u64, Vec<u8>),
    /// The label in the root directory.
    label: Option<[u8; 11]>,
}

/// A directory to read.
struct Dir {
    /// `None`: the root directory of FAT12 and FAT16, which is not in clusters.
    first: Option<Cluster>,
    /// What `..` must refer to; `None` for the root.
    parent: Option<Cluster>,
    path: Vec<u8>,
}

impl Checker {
    fn bad(&mut self, code: &'static str, place: Place, what: impl Into<String>) {
        self.found.add(code, place, what);
    }

    fn fat_bytes(&self) -> u64 {
        self.geometry.fat_sectors * u64::from(self.geometry.sector_bytes)
    }

    /// Reads an entry of the table, also the first two, which are no clusters.
    fn entry(&mut self, number: u32) -> Result<u32> {
        let bits = self.geometry.bits;
        let at = u64::from(number) * u64::from(bits) / 8;
        let start = at / WINDOW * WINDOW;
        if self.window.0 != start {
            // One byte more for an entry of FAT12 at the end.
            let len = (WINDOW + 4).min(self.fat_bytes().saturating_sub(start));
            let mut bytes = vec![0; len as usize];
            let offset = self.geometry.fat_start.offset(self.geometry.sector_bytes) + start;
            self.device.read_at(offset, &mut bytes)?;
            self.window = (start, bytes);
        }
        let at = (at - start) as usize;
        let byte = |nth: usize| u32::from(self.window.1.get(at + nth).copied().unwrap_or(0));
        Ok(match bits {
            12 => (byte(0) | byte(1) << 8) >> (number % 2 * 4) & 0xFFF,
            16 => byte(0) | byte(1) << 8,
            _ => (byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24) & 0x0FFF_FFFF,
        })
    }

    fn next(&mut self, cluster: Cluster) -> Result<Link> {
        let value = self.entry(cluster.0)?;
        Ok(Link::decode(&self.geometry, value))
    }

    /// Whether a link marks its cluster as bad.
    fn is_bad(&self, link: &Link) -> bool {
        *link == Link::Invalid(first_end_mark(self.geometry.bits) - 1)
    }

    /// Marks a cluster as owned; false if it was.
    fn claim(&mut self, cluster: Cluster) -> bool {
        self.claimed.set_run(cluster.0.into(), 1).is_none()
    }

    fn is_claimed(&self, cluster: Cluster) -> bool {
        self.claimed.get(cluster.0.into())
    }

    fn check_boot(&mut self, head: &[u8]) -> Result<()> {
        if self.geometry.dirty {
            let what = "the volume was not unmounted cleanly";
            self.bad("volume-not-clean", Place::block(0), what);
        }
        if self.geometry.bits != 32 {
            return Ok(());
        }
        let sector = u64::from(self.geometry.sector_bytes);
        let backup = u64::from(u16::from_le_bytes([head[50], head[51]]));
        let reserved = u64::from(u16::from_le_bytes([head[14], head[15]]));
        if backup != 0 && backup != 0xFFFF {
            let mut copy = vec![0; 512];
            if backup >= reserved {
                let what = format!("the copy of the boot sector is said to be sector {backup}");
                self.bad("backup-boot-sector-wrong", Place::block(backup), what);
            } else {
                self.device.read_at(ByteOffset(backup * sector), &mut copy)?;
                // The state byte changes at each mount, in the first sector alone.
                let state = self.geometry.state_byte;
                let differs = (0..512).find(|&at| at != state && head[at] != copy[at]);
                if let Some(at) = differs {
                    let what = format!("the copy of the boot sector differs at byte {at}");
                    self.bad("backup-boot-sector-wrong", Place::block(backup), what);
                }
            }
        }
        match self.geometry.fs_info {
            None => self.bad("fsinfo-invalid", Place::block(0), "the boot sector names no FSInfo sector"),
            Some(at) => {
                let mut bytes = vec![0; 512];
                self.device.read_at(at.offset(self.geometry.sector_bytes), &mut bytes)?;
                if RawFsInfo::parse(&bytes).is_none() {
                    self.bad("fsinfo-invalid", Place::block(at.0), "the FSInfo sector has wrong signatures");
                }
            }
        }
        Ok(())
    }

    /// Checks the first two entries, and compares the copies of the table.
    fn check_table(&mut self) -> Result<()> {
        let (first, second) = (self.entry(0)?, self.entry(1)?);
        let mut media = [0];
        self.device.read_at(ByteOffset(21), &mut media)?;
        let ones = all_ones(self.geometry.bits);
        let start = self.geometry.fat_start.0;
        if first != ones & !0xFF | u32::from(media[0]) {
            let what = format!("the first entry is {first:#x}, the media byte {:#x}", media[0]);
            self.bad("fat-first-entry-wrong", Place::block(start), what);
        }
        let clean = clean_bit(self.geometry.bits).unwrap_or(0);
        if second & !(clean | clean >> 1) != ones & !(clean | clean >> 1) {
            let what = format!("the second entry is {second:#x}");
            self.bad("fat-first-entry-wrong", Place::block(start), what);
        } else if second & clean != clean && !self.geometry.dirty {
            self.bad("volume-not-clean", Place::block(start), "the table says that the volume is in use");
        }
        let (bytes, sector) = (self.fat_bytes(), self.geometry.sector_bytes);
        for copy in 1..=self.geometry.copies {
            let mut at = 0;
            while at < bytes {
                let len = WINDOW.min(bytes - at) as usize;
                let (mut one, mut other) = (vec![0; len], vec![0; len]);
                let offset = self.geometry.fat_start.offset(sector) + at;
                self.device.read_at(offset, &mut one)?;
                self.device.read_at(offset + copy * bytes, &mut other)?;
                if let Some(byte) = (0..len).find(|&byte| one[byte] != other[byte]) {
                    let block = (offset + copy * bytes + byte as u64).0 / u64::from(sector);
                    let what = format!("copy {copy} of the table differs from the first");
                    self.bad("fat-copies-differ", Place::block(block), what);
                    break;
                }
                at += len as u64;
            }
        }
        Ok(())
    }

    fn check_tree(&mut self) -> Result<()> {
        let root = self.geometry.root_cluster;
        let first = (self.geometry.bits == 32).then_some(root);
        let mut todo = vec![Dir { first, parent: None, path: Vec::new() }];
        let mut paths = 0;
        while let Some(dir) = todo.pop() {
            paths -= dir.path.capacity();
            let before = todo.len();
            self.check_dir(&dir, &mut todo)?;
            paths += todo[before..].iter().map(|dir| dir.path.capacity()).sum::<usize>();
            let kept = self.claimed.bytes_kept() + paths + todo.capacity() * size_of::<Dir>();
            self.memory.keep(kept as u64)?;
        }
        Ok(())
    }

    /// Claims the chain of a file, and returns its clusters if it is a directory. `size` is in bytes.
    fn chain(&mut self, first: Cluster, path: &[u8], size: Option<u32>) -> Result<Vec<Cluster>> {
        let place = |cluster: Cluster| Place::path(path).at(cluster.0.into());
        let most = size.map_or(u64::from(MAX_SLOTS) * SLOT_BYTES, u64::from);
        let expected = self.geometry.clusters_for(most);
        let (mut at, mut count, mut clusters) = (first, 0u64, Vec::new());
        loop {
            if !self.geometry.is_cluster(at) {
                let what = format!("the chain starts at cluster {at}, outside the volume");
                self.bad("cluster-out-of-range", place(at), what);
                break;
            }
            let next = self.next(at)?;
            if next == Link::Free {
                self.bad("chain-to-free-cluster", place(at), format!("cluster {at} is marked as free"));
                break;
            }
            if self.is_bad(&next) {
                self.bad("chain-to-bad-cluster", place(at), format!("cluster {at} is marked as bad"));
                break;
            }
            if !self.claim(at) {
                let what = format!("cluster {at} is also claimed by another owner, or by this one before");
                self.bad("cluster-claimed-twice", place(at), what);
                break;
            }
            count += 1;
            if size.is_none() {
                if count > expected {
                    self.bad("directory-too-large", place(at), "the directory has more than 65536 entries");
                    break;
                }
                clusters.push(at);
            }
            match next {
                Link::Next(next) => at = next,
                Link::Invalid(value) => {
                    let what = format!("cluster {at} is followed by {value:#x}, which is no cluster");
                    self.bad("cluster-out-of-range", place(at), what);
                    break;
                }
                _ => break,
            }
        }
        if let Some(size) = size {
            if count > expected {
                let what = format!("the file has {size} bytes, its chain {count} clusters");
                self.bad("chain-too-long", place(first), what);
            } else if count < expected {
                let what = format!("the file has {size} bytes, its chain {count} clusters");
                self.bad("chain-too-short", place(first), what);
            }
        }
        Ok(clusters)
    }

    fn check_dir(&mut self, dir: &Dir, todo: &mut Vec<Dir>) -> Result<()> {
        let mut areas: Vec<(ByteOffset, u64)> = Vec::new();
        match dir.first {
            None => {
                let len = u64::from(self.geometry.root_entries) * SLOT_BYTES;
                areas.push((self.geometry.root_offset, len));
            }
            Some(first) => {
                for cluster in self.chain(first, &shown(&dir.path), None)? {
                    let len = u64::from(self.geometry.cluster_bytes);
                    areas.push((self.geometry.cluster_offset(cluster), len));
                }
            }
        }
        let mut names = Names::default();
        for (offset, len) in areas {
            let mut bytes = vec![0; len as usize];
            self.device.read_at(offset, &mut bytes)?;
            for slot in bytes.chunks_exact(SLOT_BYTES as usize) {
                if slot[0] == END || names.slot >= MAX_SLOTS {
                    self.finish_dir(dir, &mut names);
                    return Ok(());
                }
                self.check_slot(dir, slot, &mut names, todo)?;
                names.slot += 1;
            }
        }
        self.finish_dir(dir, &mut names);
        Ok(())
    }

    fn finish_dir(&mut self, dir: &Dir, names: &mut Names) {
        self.drop_long(dir, names);
        if dir.parent.is_some() && names.dots != 2 {
            self.bad("directory-dots-wrong", Place::path(shown(&dir.path)), "the directory lacks . or ..");
        }
    }

    /// Reports parts of a long name without a short entry.
    fn drop_long(&mut self, dir: &Dir, names: &mut Names) {
        if names.parts > 0 {
            let what = "parts of a long name have no short entry";
            self.bad("long-name-orphaned", Place::path(shown(&dir.path)), what);
        }
        names.parts = 0;
        names.long = LongName::default();
    }

    fn check_slot(&mut self, dir: &Dir, slot: &[u8], names: &mut Names, todo: &mut Vec<Dir>) -> Result<()> {
        let Ok(entry) = RawEntry::read_from_bytes(slot) else { return Ok(()) };
        if entry.dir_name[0] == FREE {
            self.drop_long(dir, names);
            return Ok(());
        }
        if entry.dir_attr & attr::LONG_NAME_MASK == attr::LONG_NAME {
            if let Ok(part) = RawLong::read_from_bytes(slot) {
                names.parts += 1;
                names.sum = part.ldir_chksum;
                names.long.add(names.slot, &part);
            }
            return Ok(());
        }
        if entry.dir_attr & attr::VOLUME_ID != 0 {
            self.drop_long(dir, names);
            if dir.parent.is_some() || self.label.is_some() {
                let what = "a label stands outside the root directory, or is a second one";
                self.bad("label-misplaced", Place::path(shown(&dir.path)), what);
            } else {
                self.label = Some(entry.dir_name);
            }
            return Ok(());
        }
        let parts = std::mem::take(&mut names.parts);
        let mut name = decode_short(&entry.dir_name, entry.dir_nt_res);
        let long = names.long.finish(&entry.dir_name);
        let mut path = dir.path.clone();
        if let Some((long, _)) = &long {
            name.clone_from(long);
        }
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        path.truncate(PATH_MAX);
        if parts > 0 && long.is_none() {
            let what = if names.sum == checksum(&entry.dir_name) {
                "the parts of its long name are invalid"
            } else {
                "its long name belongs to another short name"
            };
            self.bad("long-name-invalid", Place::path(path.clone()), what);
        }
        if entry.dir_name.starts_with(b".") {
            return self.check_dots(dir, &entry, names);
        }
        if is_bad_short(&entry.dir_name) {
            let what = format!("the short name is \"{}\"", entry.dir_name.escape_ascii());
            self.bad("name-invalid", Place::path(path.clone()), what);
        }
        let long_again = long.is_some_and(|(long, _)| !names.longs.insert(long.to_lowercase()));
        if !names.shorts.insert(entry.dir_name) || long_again {
            self.bad("name-twice", Place::path(path.clone()), "the name is there twice");
        }
        self.check_target(dir, &entry, path, todo)
    }

    fn check_target(
        &mut self,
        dir: &Dir,
        entry: &RawEntry,
        path: Vec<u8>,
        todo: &mut Vec<Dir>,
    ) -> Result<()> {
        let first = entry.first_cluster(self.geometry.bits);
        let size = entry.dir_file_size.get();
        if !entry.is_directory() {
            if first == Cluster::NONE {
                if size != 0 {
                    let what = format!("the file has {size} bytes and no clusters");
                    self.bad("chain-too-short", Place::path(path), what);
                }
            } else {
                self.chain(first, &path, Some(size))?;
            }
            return Ok(());
        }
        if size != 0 {
            let what = format!("the directory has a size, {size} bytes");
            self.bad("directory-size-wrong", Place::path(path.clone()), what);
        }
        if first == Cluster::NONE {
            self.bad("directory-without-clusters", Place::path(path), "the directory has no cluster");
        } else if self.geometry.is_cluster(first) && self.is_claimed(first) {
            let place = Place::path(path).at(first.0.into());
            self.bad("cluster-claimed-twice", place, "the directory is also claimed by another owner");
        } else {
            let here = dir.first.filter(|_| dir.parent.is_some()).unwrap_or(Cluster::NONE);
            todo.push(Dir { first: Some(first), parent: Some(here), path });
        }
        Ok(())
    }

    fn check_dots(&mut self, dir: &Dir, entry: &RawEntry, names: &mut Names) -> Result<()> {
        let (wanted, target): (&[u8; 11], _) = match names.slot {
            0 => (b".          ", dir.first),
            _ => (b"..         ", dir.parent),
        };
        let place = Place::path(shown(&dir.path));
        if dir.parent.is_none() || names.slot > 1 || &entry.dir_name != wanted || !entry.is_directory() {
            let what = format!("\"{}\" stands among the names", entry.dir_name.escape_ascii());
            self.bad("directory-dots-wrong", place, what);
            return Ok(());
        }
        names.dots += 1;
        let found = entry.first_cluster(self.geometry.bits);
        // The root is cluster 0 in `..`, also where it has a number.
        let is_root = target == Some(Cluster::NONE) && found == self.geometry.root_cluster;
        if Some(found) != target && !is_root {
            let name = wanted.escape_ascii().to_string();
            let what = format!("{} refers to cluster {found}", name.trim_end());
            self.bad("directory-dots-wrong", place, what);
        }
        Ok(())
    }

    /// Compares the label in the boot sector with that in the root directory.
    fn check_label(&mut self) {
        let blank = |label: &[u8; 11]| label[0] == b' ';
        if self.label.is_some_and(|label| blank(&label)) {
            let what = "the label in the root directory begins with a space";
            self.bad("label-invalid", Place::path(shown(&[])), what);
        }
        if self.geometry.label_byte.is_some() && blank(&self.geometry.label) {
            let what = "the label in the boot sector begins with a space; without a label it is \"NO NAME\"";
            self.bad("label-invalid", Place::block(0), what);
        }
        let none = |label: &[u8; 11]| label == b"NO NAME    " || label == b"           ";
        let boot = self.geometry.label;
        let root = self.label.map(|mut label| {
            if label[0] == KANJI {
                label[0] = FREE;
            }
            label
        });
        let differs = match root {
            Some(root) => root != boot && !(none(&root) && none(&boot)),
            None => !none(&boot),
        };
        if differs {
            let root = root.map_or("none".into(), |label| format!("\"{}\"", label.escape_ascii()));
            let what = format!(
                "the label is \"{}\" in the boot sector, {root} in the root directory",
                boot.escape_ascii()
            );
            self.bad("label-differs", Place::block(0), what);
        }
    }

    /// Finds clusters that are used and have no owner, and compares the count of free ones.
    fn check_lost(&mut self) -> Result<()> {
        let (mut free, mut lost) = (0u64, Runs::default());
        for number in 2..self.geometry.end_cluster().0 {
            let next = self.next(Cluster(number))?;
            free += u64::from(next == Link::Free);
            let is_used = next != Link::Free && !self.is_bad(&next);
            let is_lost = is_used && !self.is_claimed(Cluster(number));
            if let Some(run) = is_lost.then(|| lost.push(number.into())).flatten() {
                self.report_lost(run);
            }
        }
        if let Some(run) = lost.finish() {
            self.report_lost(run);
        }
        let Some(at) = self.geometry.fs_info else { return Ok(()) };
        let mut bytes = vec![0; 512];
        self.device.read_at(at.offset(self.geometry.sector_bytes), &mut bytes)?;
        let stored = RawFsInfo::parse(&bytes).map_or(u32::MAX, |info| info.fsi_free_count.get());
        // All ones: unknown.
        if stored != u32::MAX && u64::from(stored) != free && !self.geometry.dirty {
            let what = format!("the FSInfo sector counts {stored} free clusters, there are {free}");
            self.bad("free-clusters-count-wrong", Place::block(at.0), what);
        }
        Ok(())
    }

    fn report_lost(&mut self, (first, last): (u64, u64)) {
        let what = format!("clusters {first} to {last} are marked as used, but have no owner");
        self.bad("cluster-lost", Place::block(first), what);
    }
}

/// What a walk through a directory has seen.
#[derive(Default)]
struct Names {
    slot: u32,
    /// Parts of a long name directly before this slot.
    parts: u32,
    /// The checksum in the last part.
    sum: u8,
    long: LongName,
    dots: u32,
    shorts: HashSet<[u8; 11]>,
    longs: HashSet<String>,
}

fn shown(path: &[u8]) -> Vec<u8> {
    if path.is_empty() { b"/".to_vec() } else { path.to_vec() }
}

/// Whether a short name has bytes that no system stores.
fn is_bad_short(name: &[u8; 11]) -> bool {
    let special = |byte: u8| b"\"*+,./:;<=>?[\\]|".contains(&byte);
    let bad = |(nth, &byte): (usize, &u8)| {
        byte < 0x20 && !(nth == 0 && byte == KANJI) || byte == 0x7F || special(byte)
    };
    // Atari's "EA DATA. SF" has blanks inside; a name or an extension does not start with one.
    name[0] == b' ' || name.iter().enumerate().any(bad)
}
