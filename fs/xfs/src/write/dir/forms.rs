//! Conversions between the forms of a directory.

use super::block;
use super::data::{DataEdit, address_of};
use super::leaf::Leaf;
use super::short;
use crate::dir::{Entry, ShortForm, name_hash};
use crate::fork::{Fork, Which};
use crate::inode::Dinode;
use crate::layout::checksum::{DA_BLOCK, DIR_DATA};
use crate::layout::directory::{
    ADDRESS_UNIT, BLOCK_MAGICS, DATA_MAGICS, data_start, dir_unit, entry_bytes, ftype,
};
use crate::write::hashes::Hashes;
use crate::write::tx::Tx;
use ivers_block::FileBlock;
use ivers_vfs::Result;

impl Tx<'_> {
    pub(super) fn short_to_block(&mut self, dir: &mut Dinode) -> Result<()> {
        let Fork::Local(bytes) = std::mem::replace(&mut dir.data, Fork::Extents(Vec::new())) else {
            return Ok(());
        };
        let sb = &self.space().sb;
        let short = ShortForm::of(self, dir, &bytes)?;
        let start = data_start(sb) as u64 / ADDRESS_UNIT;
        let ftype = ftype::DIRECTORY;
        let second = start + entry_bytes(sb, 1) as u64 / ADDRESS_UNIT;
        let dots = [
            Entry { ino: dir.ino, name: b".", ftype, address: start },
            Entry { ino: short.parent, name: b"..", ftype, address: second },
        ];
        let unit = dir_unit(sb);
        let blocks = self.new_fork_unit(dir, Which::Data, (FileBlock(0), unit), &DIR_DATA)?;
        self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let no_room = "the entries of a directory do not fit in a block";
            let stop = block::stop_for(bytes.len(), short.entries.len() + dots.len()).ok_or(no_room)?;
            let mut hashes = Hashes::default();
            let mut data = DataEdit::empty(sb, bytes, stop, true);
            for entry in dots.iter().chain(&short.entries) {
                let at = (entry.address * ADDRESS_UNIT) as usize;
                if !data.add_at(at, entry.ino, entry.name, entry.ftype) {
                    return Err(no_room.into());
                }
                hashes.insert(name_hash(sb, entry.name), address_of(sb, 0, at));
            }
            block::store_hashes(bytes, &hashes);
            Ok(())
        })?;
        dir.set_size(sb.dir_block_size.into());
        Ok(())
    }

    /// Turns a block directory into the short form if that fits in the inode.
    pub(super) fn block_to_short(&mut self, dir: &mut Dinode) -> Result<()> {
        let sb = &self.space().sb;
        let blocks = self.data_unit(dir, 0)?;
        let room = dir.space(sb, Which::Data);
        let encoded = self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let (hashes, stop) = block::split(bytes)?;
            // Each entry takes at least 9 bytes.
            if hashes.live().saturating_sub(2).saturating_mul(9) > room {
                return Ok(None);
            }
            let data = DataEdit::new(sb, bytes, stop)?;
            let mut names: Vec<(u64, Vec<u8>, u8, u64)> = Vec::new();
            data.each(|entry| names.push((entry.ino, entry.name.to_vec(), entry.ftype, entry.address)))?;
            let mut short = ShortForm { parent: 0, entries: Vec::new() };
            for (ino, name, ftype, address) in &names {
                match &name[..] {
                    b"." => {}
                    b".." => short.parent = *ino,
                    name => short.entries.push(Entry { ino: *ino, name, ftype: *ftype, address: *address }),
                }
            }
            let fits = short.entries.len() <= u8::MAX.into();
            Ok(fits.then(|| short::encode(&short, sb.has_ftype())).filter(|bytes| bytes.len() <= room))
        })?;
        let Some(encoded) = encoded else { return Ok(()) };
        self.free_fork_unit(dir, Which::Data, FileBlock(0), dir_unit(sb))?;
        dir.set_size(encoded.len() as u64);
        dir.data = Fork::Local(encoded.into());
        Ok(())
    }

    pub(super) fn block_to_leaf(&mut self, dir: &mut Dinode) -> Result<()> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        let blocks = self.data_unit(dir, 0)?;
        let (mut hashes, best) = self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let (hashes, stop) = block::split(bytes)?;
            let len = bytes.len();
            let mut data = DataEdit::new(sb, bytes, stop)?;
            data.set_stop(len);
            let best = data.best();
            bytes[..4].copy_from_slice(DATA_MAGICS[0]);
            Ok((hashes, best))
        })?;
        hashes.compact();
        self.new_fork_unit(dir, Which::Data, (tree.root, tree.unit), &DA_BLOCK)?;
        let leaf = Leaf { hashes, bests: Some(vec![best]) };
        self.change_tree(dir, tree, tree.root, |bytes| leaf.encode(sb, bytes))
    }

    /// Turns a leaf directory into a block directory if one data block is left, with space for the hashes at
    /// its end.
    pub(super) fn leaf_to_block(&mut self, dir: &mut Dinode, leaf: Leaf) -> Result<()> {
        let (sb, tree) = (&self.space().sb, self.dir_tree());
        if leaf.bests.as_ref().is_none_or(|bests| bests.len() != 1) {
            return Ok(());
        }
        let mut hashes = leaf.hashes;
        hashes.compact();
        let blocks = self.data_unit(dir, 0)?;
        let fits = self.change_unit(dir.ino, &blocks, &DIR_DATA, |bytes| {
            let len = bytes.len();
            let stop = block::stop_for(len, hashes.0.len()).unwrap_or(0);
            let mut data = DataEdit::new(sb, bytes, len)?;
            if data.free_at_end() < len - stop {
                return Ok(false);
            }
            data.set_stop(stop);
            bytes[..4].copy_from_slice(BLOCK_MAGICS[0]);
            block::store_hashes(bytes, &hashes);
            Ok(true)
        })?;
        if !fits {
            return Ok(());
        }
        self.free_fork_unit(dir, tree.which, tree.root, tree.unit)?;
        self.block_to_short(dir)
    }
}
