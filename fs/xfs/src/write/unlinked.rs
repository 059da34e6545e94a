//! Lists of unlinked inodes: 64 for each group. The AGI has the heads; each inode has the next one, which the
//! log records as a change of the cluster, not of the inode.

use super::tx::Tx;
use crate::layout::bytes::{MAGIC_INODE, NULL_AGINO, read};
use crate::layout::checksum::is_whole_inode;
use crate::layout::raw::{RawAgi, RawDinode};
use crate::unit::Whose;
use ivers_block::Unit;
use ivers_vfs::Result;
use std::mem::offset_of;

const LISTS: u32 = 64;

impl Tx<'_> {
    /// The cluster of an inode, the offset of the inode in it, and the inode.
    fn inode_in_cluster(&mut self, ino: u64) -> Result<(Unit, usize, RawDinode)> {
        let (space, whose) = (self.space(), Whose::Inode(ino));
        let place = space.sb.inode_cluster(ino);
        let (cluster, at) =
            place.ok_or_else(|| space.corrupt("an unlinked inode lies outside its group", whose))?;
        let bytes = self.read_unit(&cluster, None, whose)?;
        let inode = bytes.get(at..at + space.sb.inode_size as usize).unwrap_or_default();
        let raw = read::<RawDinode>(inode, 0).filter(|raw| {
            let is_own = raw.di_ino.get() == ino && raw.di_uuid == space.sb.meta_uuid;
            raw.di_magic.get() == MAGIC_INODE && is_own && is_whole_inode(inode)
        });
        let raw =
            raw.ok_or_else(|| space.corrupt_block("an unlinked inode is no inode", whose, cluster[0]))?;
        Ok((cluster, at, raw))
    }

    fn set_next(&mut self, ino: u64, (cluster, at): (Unit, usize), next: u32) -> Result<()> {
        let (link, crc) = (offset_of!(RawDinode, di_next_unlinked), offset_of!(RawDinode, di_crc));
        self.modify(&cluster, None, Whose::Inode(ino), |bytes| {
            bytes[at + link..][..4].copy_from_slice(&next.to_be_bytes());
            // The write in place computes it.
            bytes[at + crc..][..4].fill(0);
        })
    }

    fn list_of(&self, ino: u64) -> Result<(u32, u32, usize)> {
        let space = self.space();
        let place = space.sb.agino(ino);
        let (ag, agino) = place.ok_or_else(|| space.corrupt("there is no such inode", Whose::Inode(ino)))?;
        Ok((ag, agino, (agino % LISTS) as usize))
    }

    /// Puts an inode on its list.
    pub(crate) fn add_unlinked(&mut self, ino: u64) -> Result<()> {
        let (ag, agino, list) = self.list_of(ino)?;
        let head = self.with_agi(ag, |agi| agi.agi_unlinked[list].get())?;
        let (cluster, at, raw) = self.inode_in_cluster(ino)?;
        if raw.di_next_unlinked.get() != NULL_AGINO || head == agino {
            return Err(self.space().corrupt("an inode is unlinked twice", Whose::Inode(ino)));
        }
        if head != NULL_AGINO {
            self.set_next(ino, (cluster, at), head)?;
        }
        self.modify_agi(ag, |agi| agi.agi_unlinked[list] = agino.into())
    }

    /// Takes an inode from its list.
    pub(crate) fn remove_unlinked(&mut self, ino: u64) -> Result<()> {
        let (ag, agino, list) = self.list_of(ino)?;
        let of_agi = |agi: &RawAgi| (agi.agi_unlinked[list].get(), agi.agi_count.get());
        let (mut before, inodes) = self.with_agi(ag, of_agi)?;
        let (cluster, at, raw) = self.inode_in_cluster(ino)?;
        let next = raw.di_next_unlinked.get();
        if next != NULL_AGINO {
            self.set_next(ino, (cluster, at), NULL_AGINO)?;
        }
        if before == agino {
            return self.modify_agi(ag, |agi| agi.agi_unlinked[list] = next.into());
        }
        // No list is longer than the group has inodes.
        for _ in 0..inodes {
            if before == NULL_AGINO {
                break;
            }
            let ino = self.space().sb.ino(ag, before);
            let (cluster, at, raw) = self.inode_in_cluster(ino)?;
            let after = raw.di_next_unlinked.get();
            if after == agino {
                return self.set_next(ino, (cluster, at), next);
            }
            before = after;
        }
        Err(self.space().corrupt("an unlinked inode is not on its list", Whose::Inode(ino)))
    }
}
