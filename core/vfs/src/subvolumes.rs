//! Making, snapshotting and deleting subvolumes.

use crate::driver::{SubvolumeInfo, SubvolumeOps};
use crate::error::{NameError, Result};
use crate::requests::*;
use crate::types::Ino;
use crate::vfs::{InodeRef, Vfs};

impl Vfs {
    fn subvolumes(&self) -> Result<&dyn SubvolumeOps> {
        self.alive()?;
        self.fs.subvolumes().ok_or(NameError::NotSupported.into())
    }

    /// All subvolumes.
    pub fn list_subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        self.subvolumes()?.list()
    }

    /// Returns whether an inode is in the subvolume with the root directory `root`.
    pub fn is_in_subvolume(&self, root: &InodeRef, ino: Ino) -> bool {
        self.fs.subvolumes().is_some_and(|subvolumes| subvolumes.contains(root, ino))
    }

    /// Makes an empty subvolume, durably.
    pub fn create_subvolume(
        &self,
        cred: &Cred,
        dir: &InodeRef,
        name: &[u8],
        spec: &CreateSpec,
    ) -> Result<()> {
        self.reclaim();
        let subvolumes = self.subvolumes()?;
        self.check_new_name(dir, name)?;
        {
            let _names = self.exclusive(dir)?;
            self.may_add(cred, dir, name)?;
            let new = self.new_inode(cred, dir, spec)?;
            let made = self.with_space_of_dirty_data(|| subvolumes.create(dir, name, &new));
            self.names.invalidate(dir.ino, name);
            made?;
        }
        self.notify(dir, ChangeKind::Names);
        Ok(())
    }

    /// Makes a snapshot of the subvolume with the root directory `source`, durably. The snapshot contains all
    /// changes that were made before the call.
    pub fn snapshot_subvolume(
        &self,
        cred: &Cred,
        source: &InodeRef,
        dir: &InodeRef,
        name: &[u8],
        read_only: bool,
    ) -> Result<()> {
        self.reclaim();
        let subvolumes = self.subvolumes()?;
        self.check_new_name(dir, name)?;
        self.sync()?;
        {
            let _locks = self.lock_all(&[dir, source])?;
            self.may_add(cred, dir, name)?;
            let now = self.policy.now();
            let made = self.guarded(|| subvolumes.snapshot(source, dir, name, read_only, now));
            self.names.invalidate(dir.ino, name);
            made?;
        }
        self.notify(dir, ChangeKind::Names);
        Ok(())
    }

    /// Deletes the subvolume with a name in a directory, with everything in it, durably. Nothing in it may be
    /// in use.
    pub fn delete_subvolume(&self, cred: &Cred, dir: &InodeRef, name: &[u8]) -> Result<()> {
        self.reclaim();
        let subvolumes = self.subvolumes()?;
        self.check_new_name(dir, name)?;
        self.sync()?;
        {
            let victim = self.lookup(cred, dir, name)?;
            let _locks = self.lock_all(&[dir, &victim])?;
            if self.find(cred, dir, name)? != Some(victim.ino) {
                return Err(NameError::Changed.into());
            }
            self.begin_change()?;
            self.may_delete(cred, dir, &victim)?;
            let deleted = self.guarded(|| subvolumes.delete(dir, name, &victim));
            self.names.invalidate(dir.ino, name);
            deleted?;
        }
        self.notify(dir, ChangeKind::Names);
        Ok(())
    }
}
