//! Mappings that the log of Linux promises.

use super::extent::FreeExtent;
use super::fork::owner_of;
use super::space::Space;
use super::works::{Change, Logged, Work};
use crate::inode::Dinode;
use crate::log::{FoundIntent, MappingIntent};
use ivers_vfs::{Error, NameError, Result};

impl Space {
    /// The inode of an intent. `load` returns the newest version of an inode.
    pub(super) fn inode_of_intent(
        &self,
        logged: &Logged,
        ino: u64,
        load: &dyn Fn(u64) -> Result<Dinode>,
    ) -> Result<Dinode> {
        load(ino).map_err(|error| match error {
            Error::Name(NameError::Stale) => self.bad_intent(logged.id, "its inode is free"),
            error => error,
        })
    }

    /// Does what an intent of a mapping promises. The transaction promises the change of the reverse map.
    pub(super) fn finish_map_intent(
        &self,
        intent: &FoundIntent,
        logged: Logged,
        load: &dyn Fn(u64) -> Result<Dinode>,
    ) -> Result<()> {
        let bad = |what: &str| self.bad_intent(logged.id, what);
        let MappingIntent { ino, which, extent, removes } =
            MappingIntent::decode(&intent.regions).map_err(|what| bad(&what))?;
        if self.sb.run(extent.start, extent.len).is_none() {
            return Err(bad("its blocks are not in one group"));
        }
        let mut inode = self.inode_of_intent(&logged, ino, load)?;
        let mut tx = self.finishing(logged.id, self.credits_of_attribute())?;
        let mut changed = Vec::new();
        if removes {
            while let Some(removed) = tx.cut_last(&mut inode, which, extent.file_block, extent.end())? {
                if removed.start.0 != extent.start.0 + (removed.file_block - extent.file_block) {
                    return Err(bad("the file has other blocks there"));
                }
                inode.add_blocks(-(removed.len as i64));
                changed.push(removed);
            }
        } else {
            tx.insert_extent(&mut inode, which, extent)?;
            inode.add_blocks(extent.len as i64);
            changed.push(extent);
        }
        inode.log(&mut tx)?;
        changed.retain(|_| tx.has_reverse_map());
        let works = changed.iter().map(|extent| {
            let (ag, start) = self.sb.ag_of(extent.start);
            let owner = owner_of(&inode, which, extent);
            let change = if removes { Change::Unmap(owner) } else { Change::Map(owner) };
            Work { ag, blocks: FreeExtent { start, len: extent.len as u32 }, change }
        });
        let works = works.collect();
        tx.deferred.push_from_intent(works, logged);
        tx.finish()
    }
}
