//! Files that share extents.

use super::change::Need;
use super::tx::Tx;
use crate::filesystem::Btrfs;
use crate::inode::{file_of, vnode_of};
use crate::numbers::FileId;
use ivers_vfs::*;

/// Extents that one change shares at most.
const EXTENTS_A_CHANGE: usize = 32;

/// A range of a file, and where it goes in another one.
#[derive(Clone, Copy)]
struct Move {
    source: FileId,
    target: FileId,
    from: u64,
    to: u64,
    len: u64,
}

impl Btrfs {
    fn share(&self, source: &Inode, target: &Inode, (from, to): (u64, u64), len: u64) -> Result<()> {
        let sector = self.sector();
        let (origin, goal) = (vnode_of(source), vnode_of(target));
        self.with_tx(|tx| tx.may_change(goal))?;
        let has_inline = {
            let _trees = self.live.read();
            self.has_inline(origin)?
        };
        // The VFS copies inline contents, and ranges between a file with checksums and one without.
        if has_inline || origin.has_checksums() != goal.has_checksums() {
            return Err(NameError::NotSupported.into());
        }
        self.expand_inline(target)?;
        let (end, old) = (to + len, goal.size());
        if end > old && !old.is_multiple_of(sector) && to > old / sector * sector {
            self.rewrite_sector(target, old / sector * sector, old)?;
        }
        let whole = len.next_multiple_of(sector);
        let mut done = 0;
        while done < whole {
            let rest = Move {
                source: file_of(origin),
                target: file_of(goal),
                from: from + done,
                to: to + done,
                len: whole - done,
            };
            done += self.change(Need::Items, |tx| {
                let (shared, more) = tx.share_some(rest)?;
                let size = (to + done + shared).min(end);
                tx.edit_item(target, |item| {
                    let raw = item.raw_mut();
                    let bytes = raw.nbytes.get().saturating_add_signed(more);
                    raw.nbytes = bytes.into();
                });
                tx.raise_size(target, size, size)?;
                target.with_attr(|attr| attr.size = attr.size.max(size));
                target.changed(Touch::Data, Logged::Anyway);
                tx.write_inode(target)?;
                Ok(shared)
            })?;
        }
        Ok(())
    }
}

impl Tx<'_> {
    /// Shares the start of a range. Returns its length, and how many more bytes the target has.
    fn share_some(&mut self, range: Move) -> Result<(u64, i64)> {
        let Move { source, target, from, to, len } = range;
        let found = self.extents_in(source, from, from + len, EXTENTS_A_CHANGE)?;
        let done = match found.last() {
            Some((key, data)) if found.len() == EXTENTS_A_CHANGE => {
                (key.offset + self.extent_len(source, *key, data)? - from).min(len)
            }
            _ => len,
        };
        self.needs_commit(target);
        // A change drops so many extents only: the range ends there.
        let dropped = self.drop_extents(target, to, to + done)?;
        let done = dropped.stopped_at - to;
        let mut more = -(dropped.bytes as i64);
        for (key, data) in found {
            if key.offset >= from + done {
                break;
            }
            let stop = (key.offset + self.extent_len(source, key, &data)?).min(from + done);
            let start = key.offset.max(from);
            let part = (start - key.offset, stop - start);
            more += self.insert_shared(target, to + (start - from), &data, part)? as i64;
        }
        // Where the source has nothing, the target has a hole.
        self.insert_holes(target.0, target.1, to, to + done)?;
        Ok((done, more))
    }
}

impl CloneOps for Btrfs {
    fn clone_range(
        &self,
        _caller: &Cred,
        (source, from): (&Inode, u64),
        (target, to): (&Inode, u64),
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        self.share(source, target, (from, to), len)
    }
}
