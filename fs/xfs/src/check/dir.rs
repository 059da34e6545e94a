//! Directories: data blocks, the hash index, the index of free space.

use super::dir_data::DataBlock;
use super::fork::{Mapped, Which, place_in};
use super::hashtree::{HashWalk, Leaf};
use super::listing::{Listing, read_hashes};
use super::names::Reading;
use super::state::{Checker, Slot, kind};
use crate::dir::name_hash;
use crate::layout::bytes::number;
use crate::layout::checksum::{DA_BLOCK, DIR_DATA};
use crate::layout::dinode::format;
use crate::layout::directory::{
    ADDRESS_UNIT, FREE_MAGICS, FREE_OFFSET, LEAF_OFFSET, LEAF1_MAGICS, LEAFN_MAGICS, NO_BEST, SPACE_END,
    da_header_bytes, data_start, dir_unit, entry_bytes, hash_entries_start, leaf_root,
};
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeSet;

impl Checker {
    /// Checks all directories.
    pub(super) fn check_directories(&mut self) -> Result<()> {
        self.dirs.sort_unstable_by_key(|dir| dir.ino);
        let inos: Vec<u64> = self.dirs.iter().map(|dir| dir.ino).collect();
        for (nth, ino) in inos.into_iter().enumerate() {
            if let Some(slot) = self.slot(ino)?.filter(|_| self.kind(ino) & kind::UNSOUND == 0) {
                self.check_directory(&slot)?;
            }
            if nth % 256 == 0 {
                self.charge(0)?;
            }
        }
        Ok(())
    }

    fn check_directory(&mut self, slot: &Slot) -> Result<()> {
        let reading = Reading { ino: slot.ino, generation: slot.raw.di_gen.get() };
        match slot.format(Which::Data) {
            format::LOCAL => self.check_short_form(slot, reading),
            format::EXTENTS | format::BTREE => {
                let mapped = self.mapped(slot, Which::Data)?;
                self.check_long_form(slot, reading, &mapped)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn check_short_form(&mut self, slot: &Slot, reading: Reading) {
        let (ino, place) = (slot.ino, slot.place());
        let size = slot.raw.di_size.get() as usize;
        let bytes = slot.space(Which::Data);
        let bytes = bytes.get(..size).unwrap_or(bytes);
        let byte = |at: usize| bytes.get(at).copied();
        let (Some(count), Some(large)) = (byte(0), byte(1)) else { return };
        let each = if large > 0 { 8 } else { 4 };
        let Some(parent) = number(bytes, 2, each) else { return };
        let has_type = self.sb.has_ftype();
        let start = data_start(&self.sb) as u64;
        let (mut at, mut least, mut names) = (2 + each, start + 2 * 16, BTreeSet::new());
        let mut wide = u64::from(parent > u64::from(u32::MAX));
        let mut is_cut = false;
        for _ in 0..count {
            let name_len = usize::from(byte(at).unwrap_or(0));
            let after = at + 3 + name_len;
            let child = number(bytes, after + usize::from(has_type), each);
            let (Some(name), Some(child), Some(offset)) =
                (bytes.get(at + 3..after), child, number(bytes, at + 1, 2))
            else {
                (self.names_unsound, is_cut) = (true, true);
                let what = "the entries end past the directory";
                self.bad("directory-entry-invalid", place.clone(), what);
                break;
            };
            if offset % ADDRESS_UNIT != 0 || offset < least {
                let what = format!("an entry has the offset {offset}, which is out of order");
                self.bad("directory-entry-invalid", place.clone(), what);
            }
            least = offset + entry_bytes(&self.sb, name_len) as u64;
            wide += u64::from(child > u64::from(u32::MAX));
            let file_type = if has_type { byte(after) } else { None };
            if !names.insert(name) || matches!(name, b"." | b"..") {
                let what = format!("the name {:?} is there twice", String::from_utf8_lossy(name));
                self.bad("name-twice", place.clone(), what);
            }
            self.count_entry(reading, &place, name, child, file_type);
            at = after + usize::from(has_type) + each;
        }
        // It must fit in a block, with a hash for each entry and a tail.
        if least + (u64::from(count) + 3) * 8 > u64::from(self.sb.dir_block_size) {
            let what = "the offsets of the entries do not fit in a block";
            self.bad("directory-entry-invalid", place.clone(), what);
        }
        if at != size && !is_cut {
            let what = format!("di_size is {size}, the entries take {at} bytes");
            self.bad("directory-size-wrong", place.clone(), what);
        }
        if wide != u64::from(large) {
            let what = format!("{large} inode numbers have 64 bits, counted {wide}");
            self.bad("directory-entry-invalid", place, what);
        }
        self.count_dots(ino, parent);
    }

    fn check_long_form(&mut self, slot: &Slot, reading: Reading, mapped: &Mapped) -> Result<()> {
        let (unit, size) = (dir_unit(&self.sb), u64::from(self.sb.dir_block_size));
        let block_of = |byte: u64| byte / u64::from(self.sb.block_size);
        let (leaf_at, free_at, end) = (block_of(LEAF_OFFSET), block_of(FREE_OFFSET), block_of(SPACE_END));
        let data_end = mapped.extents.iter().rfind(|extent| extent.file_block.0 < leaf_at);
        let data_end = data_end.map_or(0, |extent| extent.file_block.0 + extent.len);
        let last_end = mapped.extents.last().map_or(0, |extent| extent.file_block.0 + extent.len);
        let place = slot.place();
        self.names_unsound |= !mapped.sound;
        let blocks = data_end.div_ceil(unit);
        if mapped.sound && (data_end > leaf_at || last_end > end || blocks * size != slot.raw.di_size.get()) {
            let what =
                format!("di_size is {}, the data blocks end at {}", slot.raw.di_size.get(), blocks * size);
            self.bad("directory-size-wrong", place.clone(), what);
        }
        let mut listing = Listing {
            reading,
            entries: Vec::new(),
            index: Vec::new(),
            bests: Vec::new(),
            dotdot: 0,
            sound: mapped.sound,
        };
        let mut is_block_form = false;
        let mut number = 0;
        while number < blocks.min(leaf_at / unit) {
            match mapped.blocks(self, number * unit, unit) {
                Some(blocks) => {
                    let block = self.check_data_block(mapped, &mut listing, number, &blocks)?;
                    if let Some((true, index)) = block.map(|block| (block.is_block_form, block.index)) {
                        is_block_form = true;
                        listing.index = index;
                    }
                }
                None => {
                    listing.bests.resize(number as usize + 1, NO_BEST);
                    // Holes are whole blocks. A long one is skipped.
                    let after = mapped.extents.partition_point(|extent| extent.file_block.0 <= number * unit);
                    let next = mapped.extents.get(after).map(|extent| extent.file_block.0);
                    let partial = mapped.blocks(self, number * unit, 1).is_some();
                    if (number == 0 || partial) && mapped.sound {
                        let what = format!("block {number} of the directory is missing");
                        self.bad("directory-hole", place.clone(), what);
                    }
                    let next = next.unwrap_or(data_end) / unit;
                    number = next.max(number + 1) - 1;
                }
            }
            number += 1;
            if number % 64 == 0 {
                self.charge(listing.bytes())?;
            }
        }
        self.names_unsound |= !listing.sound;
        if listing.dotdot != 0 {
            self.count_dots(slot.ino, listing.dotdot);
        } else {
            self.count_link(slot.ino);
        }
        let mut index_sound = true;
        if !is_block_form {
            index_sound = self.check_index(mapped, &mut listing, leaf_at, free_at)?;
        }
        if listing.sound && index_sound {
            self.compare_index(&mut listing, &place);
        }
        self.check_repeated_names(mapped, &mut listing)
    }

    /// Checks the hashes and the index of free space of a leaf or node directory.
    fn check_index(
        &mut self,
        mapped: &Mapped,
        listing: &mut Listing,
        leaf_at: u64,
        free_at: u64,
    ) -> Result<bool> {
        let (unit, version) = (dir_unit(&self.sb), usize::from(!self.sb.is_v5()));
        let ino = mapped.ino;
        let Some(blocks) = mapped.blocks(self, leaf_at, unit) else {
            if mapped.sound && listing.sound {
                self.bad("directory-hole", Place::inode(ino), "the directory has no hashes");
            }
            return Ok(false);
        };
        let root = self.blocks(&blocks)?;
        if number(&root, 8, 2) == Some(LEAF1_MAGICS[version].into()) {
            let block = blocks.first().copied().unwrap_or_default();
            let place = place_in(ino, block);
            self.check_identity(&root, &DA_BLOCK, "the leaf of the directory", &place, ino);
            if number(&root, 0, 8) != Some(0) {
                let what = "the only leaf of the directory has a neighbour";
                self.bad("hash-sibling-wrong", place.clone(), what);
            }
            let bests = root.len() - 4;
            let count = number(&root, bests, 4).unwrap_or(0) as usize;
            let start = bests.checked_sub(count.saturating_mul(2)).filter(|start| *start >= 64);
            let stop = start.unwrap_or(bests);
            let leaf = Leaf { bytes: &root[..stop], block };
            self.read_leaf(listing, &leaf, ino)?;
            let stored = (0..count).map(|index| number(&root, stop + index * 2, 2).unwrap_or(0) as u16);
            if start.is_none() {
                let what = format!("the leaf of the directory has {count} data blocks");
                self.bad("directory-free-index-wrong", place, what);
            } else {
                let stored: Vec<u16> = stored.collect();
                self.compare_bests(listing, &stored, &place);
            }
            return Ok(true);
        }
        let mut walk = HashWalk::new(mapped, unit, LEAFN_MAGICS, "the hash tree of the directory");
        walk.walk(self, leaf_at, &mut |checker, leaf| checker.read_leaf(listing, leaf, ino))?;
        let sound = walk.sound;
        self.check_free_index(mapped, listing, free_at)?;
        Ok(sound)
    }

    /// Collects the entries of a leaf.
    fn read_leaf(&mut self, listing: &mut Listing, leaf: &Leaf<'_>, ino: u64) -> Result<Option<u32>> {
        let (header, entries) = (da_header_bytes(&self.sb), hash_entries_start(&self.sb));
        let field = |at, len| number(leaf.bytes, at, len).unwrap_or(0);
        let (count, stale) = (field(header, 2) as usize, field(header + 2, 2));
        let place = place_in(ino, leaf.block);
        if entries + count * 8 > leaf.bytes.len() {
            let what = format!("a leaf of the directory has {count} entries");
            self.bad("hash-block-invalid", place, what);
            listing.sound = false;
            return Ok(None);
        }
        let before = listing.index.len();
        let last = read_hashes(&leaf.bytes[entries..], count, &mut listing.index);
        let removed = count - (listing.index.len() - before);
        if last.is_none() && count > 0 {
            self.bad("hash-order-wrong", place.clone(), "hashes in a leaf of the directory are out of order");
        }
        if removed as u64 != stale {
            let what = format!("a leaf of the directory has {stale} removed entries, counted {removed}");
            self.bad("hash-block-invalid", place, what);
        }
        self.charge(listing.bytes())?;
        Ok(if count == 0 { None } else { Some(field(entries + (count - 1) * 8, 4) as u32) })
    }

    /// Compares what the index says of free space with the data blocks.
    fn compare_bests(&mut self, listing: &Listing, stored: &[u16], place: &Place) {
        if !listing.sound {
            return;
        }
        if listing.bests != stored {
            let what = "the index of free space differs from the data blocks";
            self.bad("directory-free-index-wrong", place.clone(), what);
        }
    }

    fn check_free_index(&mut self, mapped: &Mapped, listing: &Listing, free_at: u64) -> Result<()> {
        let (unit, v5) = (dir_unit(&self.sb), self.sb.is_v5());
        let (first, header) = if v5 { (48, 64) } else { (4, 16) };
        let magic = FREE_MAGICS[usize::from(!v5)];
        let most = (self.sb.dir_block_size as usize - header) / 2;
        let mut stored = Vec::new();
        let needed = (listing.bests.len() as u64).div_ceil(most as u64);
        let place = Place::inode(mapped.ino);
        for index in 0..needed {
            let Some(blocks) = mapped.blocks(self, free_at + index * unit, unit) else {
                // A block of the index that would be empty need not exist.
                stored.resize((index as usize + 1) * most, NO_BEST);
                continue;
            };
            let bytes = self.blocks(&blocks)?;
            let place = place_in(mapped.ino, blocks.first().copied().unwrap_or_default());
            let field = |at, len| number(&bytes, at, len).unwrap_or(0);
            let (start, valid, used) = (field(first, 4), field(first + 4, 4) as usize, field(first + 8, 4));
            if !bytes.starts_with(magic) || start != index * most as u64 || valid > most {
                let what = "a block of the index of free space has a wrong magic, number or length";
                self.bad("directory-free-index-wrong", place, what);
                return Ok(());
            }
            self.check_identity(&bytes, &DIR_DATA, "a block of the index of free space", &place, mapped.ino);
            let bests: Vec<u16> = (0..valid).map(|at| field(header + at * 2, 2) as u16).collect();
            let counted = bests.iter().filter(|best| **best != NO_BEST).count() as u64;
            if counted != used {
                let what = format!("the index of free space has {used} blocks, counted {counted}");
                self.bad("directory-free-index-wrong", place, what);
            }
            stored.resize(index as usize * most, NO_BEST);
            stored.extend(bests);
        }
        // Data blocks at the end that do not exist need no place in the index.
        stored.resize(listing.bests.len().max(stored.len()), NO_BEST);
        while stored.len() > listing.bests.len() && stored.last() == Some(&NO_BEST) {
            stored.pop();
        }
        self.compare_bests(listing, &stored, &place);
        Ok(())
    }

    /// Compares the entries of the data blocks with the index.
    fn compare_index(&mut self, listing: &mut Listing, place: &Place) {
        listing.entries.sort_unstable();
        listing.index.sort_unstable();
        if listing.entries != listing.index {
            let both = listing.entries.iter().zip(&listing.index);
            let same = both.take_while(|(entry, index)| entry == index).count();
            let what = format!(
                "the hashes of the directory differ from its {} entries, the first time at hash {:#010x}",
                listing.entries.len(),
                listing.entries.get(same).or(listing.index.get(same)).map_or(0, |(hash, _)| *hash)
            );
            self.bad("directory-hashes-wrong", place.clone(), what);
        }
    }

    /// Looks for names that are there twice, among those with one hash.
    fn check_repeated_names(&mut self, mapped: &Mapped, listing: &mut Listing) -> Result<()> {
        listing.entries.sort_unstable();
        let (unit, size) = (dir_unit(&self.sb), u64::from(self.sb.dir_block_size));
        let mut kept: Option<(u64, Vec<u8>)> = None;
        for same in listing.entries.chunk_by(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            let mut names = BTreeSet::new();
            for (_, address) in same {
                let byte = u64::from(*address) * ADDRESS_UNIT;
                let number = byte / size;
                if kept.as_ref().is_none_or(|(kept, _)| *kept != number) {
                    let Some(blocks) = mapped.blocks(self, number * unit, unit) else { continue };
                    kept = Some((number, self.blocks(&blocks)?));
                }
                let Some((_, bytes)) = &kept else { continue };
                let at = (byte % size) as usize;
                let name_len = usize::from(bytes.get(at + 8).copied().unwrap_or(0));
                let Some(name) = bytes.get(at + 9..at + 9 + name_len) else { continue };
                if !names.insert(name.to_vec()) {
                    let what = format!("the name {:?} is there twice", String::from_utf8_lossy(name));
                    self.bad("name-twice", Place::inode(mapped.ino), what);
                }
            }
        }
        Ok(())
    }

    /// The hash under which a name is found.
    pub(super) fn hash_of(&self, name: &[u8]) -> u32 {
        name_hash(&self.sb, name)
    }

    /// Calls `visit` with child and name of each entry of a directory, without checks.
    pub(super) fn each_entry(&mut self, ino: u64, visit: &mut dyn FnMut(u64, &[u8])) -> Result<()> {
        let Some(slot) = self.slot(ino)?.filter(|_| self.kind(ino) & kind::UNSOUND == 0) else {
            return Ok(());
        };
        let has_type = usize::from(self.sb.has_ftype());
        if slot.format(Which::Data) == format::LOCAL {
            let bytes = slot.space(Which::Data);
            let count = bytes.first().copied().unwrap_or(0);
            let each = if bytes.get(1).is_some_and(|large| *large > 0) { 8 } else { 4 };
            let mut at = 2 + each;
            for _ in 0..count {
                let after = at + 3 + usize::from(bytes.get(at).copied().unwrap_or(0));
                let child = number(bytes, after + has_type, each);
                let (Some(name), Some(child)) = (bytes.get(at + 3..after), child) else { break };
                visit(child, name);
                at = after + has_type + each;
            }
            return Ok(());
        }
        let mapped = self.mapped(&slot, Which::Data)?;
        let unit = dir_unit(&self.sb);
        let leaf_at = leaf_root(&self.sb);
        for extent in mapped.extents.iter().filter(|extent| extent.file_block < leaf_at) {
            for at in (extent.file_block.0..extent.file_block.0 + extent.len).step_by(unit as usize) {
                let Some(blocks) = mapped.blocks(self, at, unit) else { continue };
                let bytes = self.blocks(&blocks)?;
                let data = DataBlock::of(self, &bytes);
                data.each(self, &mut |entry| visit(entry.child, entry.name));
            }
        }
        Ok(())
    }
}
