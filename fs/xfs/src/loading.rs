//! Loading inodes: from the inode B-tree, the clusters, and the log.

use crate::btree::TreeSource;
use crate::inode::{Dinode, Refused};
use crate::layout::bytes::{MAGIC_INODE, read};
use crate::layout::checksum::has_valid_inode_crc;
use crate::layout::raw::RawDinode;
use crate::live::{Xfs, XfsInode};
use crate::unit::Whose;
use crate::write::inode::inode_id;
use ivers_block::BlockNo;
use ivers_journal::{Commits, LastChange};
use ivers_vfs::{InitialCounter, Ino, LoadedInode, NameError, Result, ValidUntil};

/// The bytes of an inode.
pub(crate) struct Slot {
    pub bytes: Vec<u8>,
    /// The block with the inode.
    pub block: BlockNo,
    /// The checksums of its cluster were right.
    pub verified: bool,
}

impl Xfs {
    /// Returns whether the inode B-tree says that an inode is in use.
    fn is_allocated(&self, ino: u64) -> Result<bool> {
        let Some((ag, agino)) = self.sb.agino(ino) else { return Ok(false) };
        if self.sb.inode_place(ino).is_none() {
            return Ok(false);
        }
        let agi = self.agi(ag)?;
        let chunk = self.inode_chunk(ag, agi.root, agi.level, agino)?;
        Ok(chunk.is_some_and(|chunk| chunk.has(agino)))
    }

    /// Decodes an inode. `Stale` if it is free or does not exist.
    pub(crate) fn dinode(&self, ino: u64) -> Result<Dinode> {
        if !self.is_allocated(ino)? {
            return Err(NameError::Stale.into());
        }
        let slot = self.inode_slot(ino)?.ok_or(NameError::Stale)?;
        Dinode::decode(&self.sb, &slot.bytes, ino, slot.verified).map_err(|refused| match refused {
            Refused::Free => NameError::Stale.into(),
            Refused::Damaged(what) => self.corrupt_block(what, Whose::Inode(ino), slot.block),
        })
    }

    /// Returns the bytes of an inode, of its newest version. `None` if it lies outside its group.
    pub(crate) fn inode_slot(&self, ino: u64) -> Result<Option<Slot>> {
        let alone = || self.sb.inode_place(ino).map(|(block, at)| (block.into(), at));
        let Some((blocks, at)) = self.sb.inode_cluster(ino).or_else(alone) else { return Ok(None) };
        // A version that is in the log and not in place. It is asked for first: what is put in place
        // meanwhile is in the cluster.
        let patch =
            self.session.as_ref().and_then(|session| session.space.journal.newest_patch(inode_id(ino)));
        let buffer = self.cache.get_unit(&blocks)?;
        let cluster = buffer.read();
        let size = self.sb.inode_size as usize;
        if self.sb.is_v5() && !buffer.is_verified() && cluster.chunks_exact(size).all(has_valid_inode_crc) {
            buffer.set_verified();
        }
        let mut verified = buffer.is_verified() || patch.is_some();
        if !verified && self.session.is_some() {
            // Checksums in memory are out of date after a change. What is in place has its own.
            let in_place = self.cache.read_device(buffer.unit())?;
            verified = has_valid_inode_crc(&in_place[at..at + size]);
            if in_place.chunks_exact(size).all(has_valid_inode_crc) {
                buffer.set_verified();
            }
        }
        let block = blocks[at >> self.sb.block_bits];
        let mut bytes = cluster[at..at + size].to_vec();
        if let Some(patch) = patch {
            patch.apply_to_part(at, &mut bytes);
        }
        Ok(Some(Slot { bytes, block, verified }))
    }

    /// Returns the next inode of a list of unlinked inodes.
    pub(crate) fn next_unlinked(&self, ino: u64) -> Result<u32> {
        let whose = Whose::Inode(ino);
        let slot = self
            .inode_slot(ino)?
            .ok_or_else(|| self.corrupt("an unlinked inode lies outside its group", whose))?;
        let raw = read::<RawDinode>(&slot.bytes, 0).filter(|raw| raw.di_magic.get() == MAGIC_INODE);
        raw.map(|raw| raw.di_next_unlinked.get())
            .ok_or_else(|| self.corrupt_block("an unlinked inode has no magic", whose, slot.block))
    }

    /// Loads an inode for the VFS.
    pub(crate) fn load(&self, ino: u64) -> Result<LoadedInode> {
        let loaded = self.load_any(ino)?;
        // An unlinked inode is no longer for users.
        if loaded.attr.nlink == 0 && self.session.is_some() {
            return Err(NameError::Stale.into());
        }
        Ok(loaded)
    }

    /// As [`Xfs::load`], also an unlinked inode.
    pub(crate) fn load_any(&self, ino: u64) -> Result<LoadedInode> {
        if self.sb.hidden_inos.contains(&ino) {
            return Err(NameError::Stale.into());
        }
        let inode = match &self.session {
            Some(session) => session.space.while_still(|| self.dinode(ino))?,
            None => self.dinode(ino)?,
        };
        let attr = inode.attr(&self.sb);
        let (generation, counter) = (inode.generation(), inode.change_count());
        let commits = self.session.as_ref().map(|session| &session.commits);
        let private = XfsInode::new(inode, commits.map_or_else(LastChange::default, Commits::loaded));
        let private = if ino == self.sb.root { self.share_root(private) } else { private };
        Ok(LoadedInode {
            ino: Ino(ino),
            generation,
            attr,
            // See docs/xfs.md: what the stored counter proves.
            counter: match self.valid_until {
                ValidUntil::Unmount(_) if !self.is_persistent => InitialCounter::NotStored,
                _ => InitialCounter::Stored(counter),
            },
            private: Box::new(private),
        })
    }
}
