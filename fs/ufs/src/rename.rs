//! Renames.
//!
//! The new name is added, or takes the place of the replaced file, before the old one is removed. So a file
//! has at least one of them at any time. Its link count is raised while it may have both: it falls when the
//! batch is durable.
//!
//! - In one unit of a directory, one write removes the old name and adds the new one.
//! - Otherwise the new name is written in [`Stage::Attach`], and the old one is removed in [`Stage::Cut`].
//! - `..` of a directory that moves changes in [`Stage::Turn`].
//!
//! A later change that needs the result completes it first: see [`crate::volume::Pending`].

use crate::layout::directory::{UNIT_BYTES, entry_bytes};
use crate::names::{NameGoes, NewName, check_name};
use crate::volume::{Ufs, private_of};
use ivers_vfs::{FileType, Logged, NameError, Rename, Result, Touch};
use ivers_write_ordering::{Change, Stage};

impl Ufs {
    pub(crate) fn fs_rename(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, new_dir, new_name, inode, target, exchange, .. } = rename;
        check_name(new_name)?;
        if exchange {
            return Err(NameError::NotSupported.into());
        }
        for other in target.into_iter().chain([inode]) {
            self.settle(other)?;
        }
        let is_dir = inode.kind == FileType::Directory;
        let moves = is_dir && old_dir.ino != new_dir.ino;
        match target {
            Some(target) => self.check_removable(target)?,
            None if moves && new_dir.with_attr(|attr| attr.nlink) >= super::inode::LINKS_MAX => {
                return Err(NameError::TooManyLinks.into());
            }
            None => self.prepare_add(new_dir, new_name)?,
        }
        let change = self.change()?;
        if self.rename_in_unit(&change, rename)? {
            private_of(inode).state.write().ticket = change.ticket();
            self.log_changed(&change, inode, Touch::Metadata, Logged::IfNeeded)?;
            return self.names_changed(&change, new_dir, 0, false);
        }
        let new = NewName { name: new_name, ino: Self::ino_of(inode), kind: inode.kind };
        let grew = {
            let mut state = private_of(new_dir).state.write();
            match target {
                Some(_) => self.replace_name(&change, &mut state, new).map(|()| false)?,
                None => self.add_name(&change, &mut state, new)?,
            }
        };
        self.leave(&change, rename)?;
        if let Some(target) = target {
            self.forget_name(target)?;
            self.log_with_links(&change, target, NameGoes::BeforeCut)?;
        }
        let replaces_dir = is_dir && target.is_some();
        if moves {
            self.set_parent(&change, &private_of(inode).state.read(), Self::ino_of(new_dir))?;
            if !replaces_dir {
                self.raise_links(&change, new_dir)?;
            }
            self.names_changed(&change, old_dir, -1, false)?;
            return self.names_changed(&change, new_dir, i32::from(!replaces_dir), grew);
        }
        if old_dir.ino != new_dir.ino {
            self.names_changed(&change, old_dir, 0, false)?;
        }
        self.names_changed(&change, new_dir, if replaces_dir { -1 } else { 0 }, grew)
    }

    /// Renames by one write, if both names fit into the unit of the old one. Returns whether they did.
    fn rename_in_unit(&self, change: &Change<'_>, rename: &Rename<'_>) -> Result<bool> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, .. } = rename;
        if old_dir.ino != new_dir.ino || target.is_some() {
            return Ok(false);
        }
        let mut state = private_of(old_dir).state.write();
        state.pending.of_batch(change);
        let (_, old) = self.find_existing(&state, old_name)?;
        let unit = old.start - old.start % UNIT_BYTES as u64;
        let units = unit..unit + UNIT_BYTES as u64;
        let need = entry_bytes(new_name.len());
        let Some(space) = self.find_space(&state, units, need, &state.pending.cut, Some(old.start))? else {
            return Ok(false);
        };
        self.remove_name(change, &mut state, (old_name, Self::ino_of(inode)), Stage::Attach)?;
        let new = NewName { name: new_name, ino: Self::ino_of(inode), kind: inode.kind };
        self.put_name(change, &mut state, &space, new)?;
        Ok(true)
    }

    /// Removes the old name of an inode, after its new name exists. The link count is higher by one until
    /// the old name is gone.
    fn leave(&self, change: &Change<'_>, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, inode, .. } = rename;
        self.raise_links(change, inode)?;
        {
            let mut state = private_of(old_dir).state.write();
            self.remove_name(change, &mut state, (old_name, Self::ino_of(inode)), Stage::Cut)?;
            state.ticket = change.ticket();
        }
        self.log_with_links(change, inode, NameGoes::InCut)
    }
}
