//! Recovery: completes what a crash interrupted, and counts what is in use.
//!
//! The checker finds out what a crash left. Inodes and names are repaired first, in passes: each begins with
//! a new check of the device. When only space and counts are wrong, the groups are rebuilt. What no crash of
//! a session of this driver can leave is damage with another cause: then nothing more is written.

use crate::check::{Checker, Directory, survey};
use crate::layout::dinode::{Dinode, set_links};
use crate::layout::superblock::{ROOT, flags};
use crate::volume::{Private, Ufs};
use ivers_block::Budget;
use ivers_vfs::check::Memory;
use ivers_vfs::{Error, Result};
use ivers_write_ordering::{Ordered, Stage};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Passes of a recovery: two for each level of directories that got no name.
const PASSES_MAX: u32 = 200;

/// Findings of the checker that a crash leaves.
const AFTER_A_CRASH: [&str; 19] = [
    "block-lost",
    "inode-lost",
    "summary-wrong",
    "group-free-blocks-wrong",
    "group-free-fragments-wrong",
    "group-free-inodes-wrong",
    "group-directories-wrong",
    "fragment-runs-wrong",
    "cluster-counts-wrong",
    "cluster-map-wrong",
    "directories-count-wrong",
    "free-blocks-count-wrong",
    "free-inodes-count-wrong",
    "free-fragments-count-wrong",
    "link-count-wrong",
    "directory-linked-twice",
    "dotdot-wrong",
    "inode-block-count-wrong",
    "block-past-end",
];

/// Findings of inodes that got no name, or lost their last one. Only a writer with the order of soft updates
/// leaves them without a loss; of others, fsck_ffs gives such files a name in `lost+found`.
const UNNAMED: [&str; 2] = ["inode-unattached", "directory-unconnected"];

impl Ufs {
    /// Recovers a filesystem that was not closed. Returns why it can only be read, if so.
    pub(crate) fn recover(&self, budget: &Arc<Budget>) -> Result<Option<String>> {
        match self.recover_in_passes(budget) {
            Err(error @ (Error::Corrupt { .. } | Error::Io(_) | Error::Incompatible(_))) => {
                Ok(Some(format!("not unmounted cleanly, and not recovered: {error}")))
            }
            result => result,
        }
    }

    fn recover_in_passes(&self, budget: &Arc<Budget>) -> Result<Option<String>> {
        for _ in 0..PASSES_MAX {
            let memory = Memory::new(budget.clone(), "allow more with -o cache=");
            let found = survey(self.cache.device().clone(), &self.sb, memory)?;
            if let Some(why) = self.why_not(&found) {
                return Ok(Some(why));
            }
            if !self.repair(&found)? {
                self.rebuild_groups(&found)?;
                self.wait_for_batch(Ordered::sync)?;
                return Ok(None);
            }
            self.wait_for_batch(Ordered::sync)?;
        }
        Ok(Some("not unmounted cleanly, and directories without a name are nested too deep".into()))
    }

    fn why_not(&self, found: &Checker) -> Option<String> {
        let is_ours = self.sb.mounted_here || self.sb.flags & flags::FS_DOSOFTDEP != 0;
        let expected = |code: &&str| AFTER_A_CRASH.contains(code) || (is_ours && UNNAMED.contains(code));
        let code = found.found.counts().keys().find(|code| !expected(code))?;
        let what = match UNNAMED.contains(code) {
            true => "has files without a name",
            false => "damaged",
        };
        Some(format!("not unmounted cleanly, and {what} ({code}): see ivers check; run fsck_ffs of FreeBSD"))
    }

    /// Repairs one kind of what a crash leaves in inodes and names. Returns whether there was any.
    fn repair(&self, found: &Checker) -> Result<bool> {
        if !found.past_end.is_empty() {
            found.past_end.iter().try_for_each(|&ino| self.trim(ino))?;
            return Ok(true);
        }
        if found.found.counts().contains_key("directory-linked-twice") {
            self.remove_second_names(&found.directories)?;
            return Ok(true);
        }
        let moved = |dir: &&Directory| dir.parent != 0 && dir.dotdot != 0 && dir.dotdot != dir.parent;
        let moved: Vec<_> = found.directories.iter().filter(moved).collect();
        for dir in &moved {
            let private = Private::new(self.dinode(dir.ino.into())?);
            self.set_parent(&self.change()?, &private.state.read(), dir.parent)?;
        }
        if !moved.is_empty() {
            return Ok(true);
        }
        Ok(self.clear_unnamed(found)? || self.set_counts(found)?)
    }

    /// Frees the blocks of an inode past its size.
    fn trim(&self, ino: u32) -> Result<()> {
        let mut dinode = self.dinode(ino.into())?;
        let change = self.change()?;
        let size = dinode.size;
        // The groups are rebuilt later, so nothing is marked as free.
        self.cut_pointers(&change, &mut dinode, size)?;
        self.put_dinode(&change, Stage::Attach, &dinode)
    }

    /// Leaves each directory one name: that in the directory to which its `..` leads, if there is one.
    fn remove_second_names(&self, dirs: &[Directory]) -> Result<()> {
        let place = |ino: u32| dirs.binary_search_by_key(&ino, |dir| dir.ino).ok();
        let (mut in_parent, mut kept) = (vec![false; dirs.len()], vec![false; dirs.len()]);
        for removes in [false, true] {
            for dir in dirs {
                let dinode = self.dinode(dir.ino.into())?;
                let mut second = Vec::new();
                self.for_each_entry(&dinode, 0..dinode.size, |entry, bytes| {
                    let is_name = !matches!(entry.name, b"." | b"..");
                    if let Some(nth) = place(entry.ino).filter(|_| is_name) {
                        let is_parent = dirs[nth].dotdot == dir.ino;
                        match removes {
                            false => in_parent[nth] |= is_parent,
                            true if kept[nth] || (in_parent[nth] && !is_parent) => second.push(bytes.start),
                            true => kept[nth] = true,
                        }
                    }
                    ControlFlow::Continue(())
                })?;
                for at in second {
                    self.clear_entry(&self.change()?, Stage::Attach, &dinode, at)?;
                }
            }
        }
        Ok(())
    }

    /// Clears inodes that no name leads to. Returns whether there were any.
    fn clear_unnamed(&self, found: &Checker) -> Result<bool> {
        let mut any = false;
        for (ino, seen) in found.seen_inodes() {
            let is_named = match found.directory(ino) {
                Some(dir) => dir.parent != 0 || ino == ROOT,
                None => seen.names > 0,
            };
            if !is_named {
                let generation = self.dinode(ino.into())?.generation;
                self.put_dinode(&self.change()?, Stage::Attach, &Dinode::free(ino, generation))?;
                any = true;
            }
        }
        Ok(any)
    }

    /// Sets link counts and counts of blocks. Returns whether some were wrong.
    fn set_counts(&self, found: &Checker) -> Result<bool> {
        let mut any = !found.block_counts.is_empty();
        for &(ino, blocks_512) in &found.block_counts {
            let mut dinode = self.dinode(ino.into())?;
            dinode.blocks_512 = blocks_512;
            self.put_dinode(&self.change()?, Stage::Attach, &dinode)?;
        }
        for (ino, seen) in found.seen_inodes().filter(|(_, seen)| u32::from(seen.links) != seen.names) {
            let links = seen.names.min(u16::MAX.into()) as u16;
            let change = self.change()?;
            self.put_slot(&change, Stage::Attach, ino, |bytes| set_links(bytes, &self.sb, links))?;
            any = true;
        }
        Ok(any)
    }

    /// Marks what is in use in all groups, and counts it.
    fn rebuild_groups(&self, found: &Checker) -> Result<()> {
        for group in 0..self.sb.groups {
            let base = self.sb.group_base(group);
            let first = group * self.sb.inodes_per_group;
            let is_free = |nth: u64| !found.owned.get(base + nth);
            let is_used = |nth: u32| match found.seen(first + nth) {
                Some(seen) if seen.kind != 0 => Some(found.directory(first + nth).is_some()),
                _ => (first + nth < ROOT).then_some(false),
            };
            self.alloc()?.rebuild(&self.change()?, group, is_free, is_used)?;
        }
        self.alloc()?.rebuilt();
        Ok(())
    }
}
