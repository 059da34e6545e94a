//! Attributes of the VFS in inodes, as far as the format stores them.

use crate::inode::{Dinode, inode_flags, stored_flags};
use crate::layout::superblock::Superblock;
use ivers_vfs::{Attr, NameError, Result, Timestamp};

impl Dinode {
    /// Takes over what the VFS decides: permissions, owner, project, times, flags.
    pub(crate) fn apply(&mut self, attr: &Attr) {
        let times = [attr.atime, attr.mtime, attr.ctime].map(|time| self.stored_time(time));
        let raw = &mut self.raw;
        raw.di_mode = ((raw.di_mode.get() & !0o7777) | (attr.perm & 0o7777) as u16).into();
        (raw.di_uid, raw.di_gid) = (attr.uid.into(), attr.gid.into());
        raw.di_projid = (attr.project as u16).into();
        raw.di_projid_hi = ((attr.project >> 16) as u16).into();
        (raw.di_atime, raw.di_mtime, raw.di_ctime) = (times[0].into(), times[1].into(), times[2].into());
        raw.di_flags = stored_flags(raw.di_flags.get(), attr.flags).into();
    }

    /// Takes over what the VFS decides from another version of the inode. The larger counter stays.
    pub(super) fn keep_attributes_of(&mut self, other: &Self) {
        // An inode that was freed has none.
        if self.raw.di_mode.get() == 0 {
            return;
        }
        let count = self.change_count().max(other.change_count());
        let (raw, other) = (&mut self.raw, &other.raw);
        raw.di_mode = ((raw.di_mode.get() & !0o7777) | (other.di_mode.get() & 0o7777)).into();
        (raw.di_uid, raw.di_gid) = (other.di_uid, other.di_gid);
        (raw.di_projid, raw.di_projid_hi) = (other.di_projid, other.di_projid_hi);
        (raw.di_atime, raw.di_mtime, raw.di_ctime) = (other.di_atime, other.di_mtime, other.di_ctime);
        raw.di_flags = other.di_flags;
        self.set_change_count(count);
    }

    /// Reduces attributes to what is stored.
    pub(crate) fn round(&self, new: &mut Attr) -> Result<()> {
        let stored = |time: Timestamp| self.time(self.stored_time(time));
        (new.atime, new.mtime, new.ctime) = (stored(new.atime), stored(new.mtime), stored(new.ctime));
        if inode_flags(stored_flags(0, new.flags)) != new.flags {
            return Err(NameError::NotSupported.into());
        }
        Ok(())
    }

    pub(crate) fn change_count(&self) -> u64 {
        self.raw.di_changecount.get() & (u64::MAX >> 1)
    }

    pub(crate) fn set_change_count(&mut self, count: u64) {
        self.raw.di_changecount = count.into();
    }

    /// Space in units of 512 bytes.
    pub(crate) fn blocks_512(&self, sb: &Superblock) -> u64 {
        self.raw.di_nblocks.get().saturating_mul(u64::from(sb.block_size / 512))
    }
}
