//! The check of the checksum tree, and of the data that it has checksums of.

use super::state::Checker;
use super::walk::Visit;
use crate::layout::key::{Key, kind, object};
use crate::layout::node::Node;
use crate::volume::BadCopy;
use ivers_vfs::check::Place;
use ivers_vfs::{Error, Result};

/// The bytes of data that are read at once.
const READ_BYTES: u64 = 256 << 10;

/// A walk of the checksum tree.
pub(super) struct ChecksumTree {
    /// Read the data.
    pub with_data: bool,
}

impl Visit for ChecksumTree {
    fn leaf(&mut self, checker: &mut Checker, leaf: &Node) -> Result<()> {
        for index in 0..leaf.count() {
            let (key, data) = (leaf.key(index), leaf.data(index));
            if let Err(what) = checker.add_sums(key, data) {
                checker.bad(
                    "checksum-item-wrong",
                    Place::block(key.offset),
                    format!("checksum item {key}: {what}"),
                );
                continue;
            }
            if self.with_data {
                checker.check_data(key.offset, data)?;
            }
        }
        checker.charge()
    }
}

/// Successive sectors with the same defect.
struct Run {
    first: u64,
    sectors: u64,
    code: &'static str,
    what: String,
}

impl Checker {
    /// Registers the checksums of an item.
    fn add_sums(&mut self, key: Key, data: &[u8]) -> std::result::Result<(), String> {
        if (key.objectid, key.kind) != (object::EXTENT_CSUM, kind::EXTENT_CSUM) {
            return Err("no item of this type belongs here".into());
        }
        let size = self.forest.volume.sb.checksum.size();
        if data.is_empty() || !data.len().is_multiple_of(size) {
            return Err(format!("it has {} bytes", data.len()));
        }
        let (mut at, mut left) = (key.offset, (data.len() / size) as u64 * self.space.sector);
        let mut odd = None;
        while left > 0 {
            // Checksums of adjacent block groups can be in one item.
            let len = self.space.group(at).map_or(0, |group| group.chunk.end() - at).min(left);
            let (first, sectors) =
                self.space.sectors(at, len).filter(|_| len > 0).ok_or("it is in no chunk")?;
            if self.space.sums.set_run(first, sectors).is_some() {
                return Err("it overlaps the item before it".into());
            }
            if let Some(sector) = self.space.sums.find_outside(&self.space.data, first, sectors) {
                odd.get_or_insert(at + (sector - first) * self.space.sector);
            }
            at += len;
            left -= len;
        }
        if let Some(address) = odd.filter(|_| self.extents_sound) {
            let what = format!("there is a checksum of the sector at {address}, which no extent has");
            self.bad("checksum-without-extent", Place::block(address), what);
        }
        Ok(())
    }

    /// Reads all copies of the data that `sums` has checksums of.
    fn check_data(&mut self, address: u64, sums: &[u8]) -> Result<()> {
        let (size, sector) = (self.forest.volume.sb.checksum.size(), self.space.sector);
        let bytes = (sums.len() / size) as u64 * sector;
        let mut run: Option<Run> = None;
        let mut done = 0;
        while done < bytes {
            let at = address + done;
            let end = self.space.group(at).map_or(at + sector, |group| group.chunk.end());
            let len = READ_BYTES.min(bytes - done).min(end - at);
            let first = (done / sector) as usize;
            let part = &sums[first * size..(first + (len / sector) as usize) * size];
            for (index, verdict) in self.verdicts(at, len, part)?.into_iter().enumerate() {
                let Some((code, what)) = verdict else { continue };
                let here = at + index as u64 * sector;
                let continues = run.as_ref().is_some_and(|it| {
                    it.code == code && it.what == what && it.first + it.sectors * sector == here
                });
                match &mut run {
                    Some(run) if continues => run.sectors += 1,
                    _ => {
                        let before = run.replace(Run { first: here, sectors: 1, code, what });
                        self.report_run(before);
                    }
                }
            }
            done += len;
        }
        self.report_run(run);
        Ok(())
    }

    /// Finds the defect of each sector, from all its copies.
    #[allow(clippy::type_complexity)]
    fn verdicts(&mut self, at: u64, len: u64, sums: &[u8]) -> Result<Vec<Option<(&'static str, String)>>> {
        let volume = &self.forest.volume;
        let (kind, size, sector) =
            (volume.sb.checksum, volume.sb.checksum.size(), self.space.sector as usize);
        let (count, copies) = (len as usize / sector, volume.copies(at));
        let mut right = vec![false; count];
        let mut wrong: Vec<Vec<(usize, String)>> = vec![Vec::new(); count];
        let mut missing: Vec<Option<String>> = vec![None; count];
        let mut bytes = vec![0; len as usize];
        // The right bytes, if another copy may need them.
        let mut good = if copies > 1 { vec![0; len as usize] } else { Vec::new() };
        let mut compared = 0;
        let is_scrub = self.mending.is_some();
        for copy in 0..copies {
            let whole = volume.read_copy(at, copy, &mut bytes);
            for (index, part) in bytes.chunks_exact_mut(sector).enumerate() {
                let read = match whole {
                    Ok(()) => Ok(()),
                    // A device may fail for some sectors only.
                    Err(_) => volume.read_copy(at + (index * sector) as u64, copy, part),
                };
                match read {
                    Err(why @ BadCopy::Missing(_)) => {
                        missing[index] = Some(why.to_string());
                        continue;
                    }
                    Ok(()) if kind.of(part)[..size] == sums[index * size..][..size] => {
                        if copies > 1 && !right[index] {
                            good[index * sector..][..sector].copy_from_slice(part);
                        }
                        right[index] = true;
                    }
                    Ok(()) => wrong[index].push((copy, "bad checksum".into())),
                    Err(BadCopy::Io(error)) if copies == 1 && !is_scrub => return Err(Error::from(error)),
                    Err(why) => wrong[index].push((copy, why.to_string())),
                }
                compared += sector as u64;
            }
        }
        if let Some(mending) = &mut self.mending {
            mending.data_bytes += compared;
        }
        let mut verdicts = Vec::with_capacity(count);
        for (index, (is_right, wrong)) in right.into_iter().zip(wrong).enumerate() {
            let Some((first, why)) = wrong.first().cloned() else {
                let why = missing[index].take().filter(|_| !is_right);
                verdicts.push(why.map(|why| ("data-wrong", why)));
                continue;
            };
            if !is_right {
                verdicts.push(Some(("data-wrong", why)));
                continue;
            }
            let mut all_mended = true;
            for (copy, _) in &wrong {
                let address = at + (index * sector) as u64;
                all_mended &= self.mend(address, *copy, &good[index * sector..(index + 1) * sector]);
            }
            let what = format!("copy {}: {why}", first + 1);
            verdicts.push(Some(if all_mended {
                ("data-copy-mended", what)
            } else {
                ("data-copy-wrong", what)
            }));
        }
        Ok(verdicts)
    }

    fn report_run(&mut self, run: Option<Run>) {
        let Some(Run { first, sectors, code, what }) = run else { return };
        let users = self.users_of(first);
        let mut place = match users.first() {
            Some((tree, objectid)) => self.inode_place(*tree, *objectid),
            None => Place::filesystem(),
        };
        place.block = Some(first);
        let bytes = sectors * self.space.sector;
        self.bad(code, place, format!("{bytes} bytes of data from address {first} on: {what}"));
    }
}
