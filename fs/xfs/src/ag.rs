//! The heads of allocation groups: checked when they are read, which is once.

use crate::heads::check_heads;
use crate::layout::bytes::{MAGIC_AGF, MAGIC_AGI, NULL_AGINO, read};
use crate::layout::checksum::{AGF, AGI, Expected, SelfDescription};
use crate::layout::raw::{RawAgf, RawAgi};
use crate::layout::superblock::Counts;
use crate::live::Xfs;
use crate::unit::Whose;
use ivers_vfs::Result;
use std::collections::BTreeSet;

/// The head of an allocation group's inodes.
pub(crate) struct Agi {
    /// The block of the inode B-tree's root, in the group.
    pub root: u32,
    /// Its height.
    pub level: u32,
    /// The first inode of each list of unlinked inodes.
    pub unlinked: [u32; 64],
    pub count: u32,
    pub free_count: u32,
}

impl Xfs {
    /// The sector `number` of an allocation group.
    fn ag_sector(&self, ag: u32, number: u32, kind: &SelfDescription) -> Result<Vec<u8>> {
        let whose = Whose::Group(ag);
        let (block, at) =
            self.sb.head_place(ag, number).ok_or_else(|| self.corrupt("the group has no header", whose))?;
        let buffer = self.cache.get(block)?;
        let sector = buffer.read()[at..at + self.sb.sector_size as usize].to_vec();
        if self.sb.is_v5() {
            check_heads(&self.sb, &buffer).map_err(|what| self.corrupt_block(what, whose, block))?;
            let expected = Expected { uuid: self.sb.meta_uuid, blkno: 0, owner: 0 };
            kind.check_place(&sector, &expected).map_err(|what| self.corrupt_block(what, whose, block))?;
        }
        Ok(sector)
    }

    /// Checks the fields that AGF and AGI share.
    fn check_ag_head(&self, ag: u32, name: &str, magic: [u32; 2], seqno: u32, length: u32) -> Result<()> {
        if magic[0] != magic[1] || seqno != ag || length != self.sb.ag_len(ag) {
            let what = format!("the {name} has a wrong magic, number or length");
            return Err(self.corrupt(what, Whose::Group(ag)));
        }
        Ok(())
    }

    /// Reads the head of a group's space.
    fn agf(&self, ag: u32) -> Result<RawAgf> {
        let sector = self.ag_sector(ag, 1, &AGF)?;
        let raw: RawAgf =
            read(&sector, 0).ok_or_else(|| self.corrupt("the AGF is too short", Whose::Group(ag)))?;
        let magic = [raw.agf_magicnum.get(), MAGIC_AGF];
        self.check_ag_head(ag, "AGF", magic, raw.agf_seqno.get(), raw.agf_length.get())?;
        Ok(raw)
    }

    /// Returns the root of a group's B-tree of reference counts, and its levels.
    pub(crate) fn refcount_root(&self, ag: u32) -> Result<(u32, u32)> {
        let agf = self.agf(ag)?;
        Ok((agf.agf_refcount_root.get(), agf.agf_refcount_level.get()))
    }

    /// Reads the head of a group's inodes.
    pub(crate) fn agi(&self, ag: u32) -> Result<Agi> {
        let sector = self.ag_sector(ag, 2, &AGI)?;
        let raw: RawAgi =
            read(&sector, 0).ok_or_else(|| self.corrupt("the AGI is too short", Whose::Group(ag)))?;
        let magic = [raw.agi_magicnum.get(), MAGIC_AGI];
        self.check_ag_head(ag, "AGI", magic, raw.agi_seqno.get(), raw.agi_length.get())?;
        Ok(Agi {
            root: raw.agi_root.get(),
            level: raw.agi_level.get(),
            unlinked: raw.agi_unlinked.map(|agino| agino.get()),
            count: raw.agi_count.get(),
            free_count: raw.agi_freecount.get(),
        })
    }

    /// Adds up the groups: in the log, the superblock's counts are not kept.
    pub(crate) fn recount(&self) -> Result<Counts> {
        let mut counts = Counts::default();
        for ag in 0..self.sb.ag_count {
            let agi = self.agi(ag)?;
            counts.inodes += u64::from(agi.count);
            counts.free_inodes += u64::from(agi.free_count);
            counts.free_blocks += self.agf(ag)?.all_free();
        }
        Ok(counts)
    }

    /// Returns the unlinked inodes of an allocation group: files that were open without a name when the
    /// system stopped.
    pub(crate) fn unlinked_inodes(&self, ag: u32) -> Result<BTreeSet<u64>> {
        let mut found = BTreeSet::new();
        for head in self.agi(ag)?.unlinked {
            let mut next = head;
            while next != NULL_AGINO {
                let ino = self.sb.ino(ag, next);
                if !found.insert(ino) {
                    return Err(self.corrupt("a list of unlinked inodes has a cycle", Whose::Inode(ino)));
                }
                next = self.next_unlinked(ino)?;
            }
        }
        Ok(found)
    }
}
