//! The operations that the VFS calls.

use crate::cluster::Cluster;
use crate::file::MAX_FILE_SIZE;
use crate::fs::{Fat, fat_inode, order_error};
use crate::ino_map::{EntryPos, ROOT};
use crate::layout::{RawEntry, SLOT_BYTES, attr};
use crate::names::encode_label;
use crate::{names, time};
use ivers_vfs::*;
use ivers_write_ordering::{Change, Stage};
use std::ops::ControlFlow;
use zerocopy::{FromZeros, IntoBytes};

/// Cursors of `readdir`: 0 is the start, 1 is after `.`, 2 is after `..`; the cursor after a slot is its
/// number plus this.
const FIRST_CURSOR: u64 = 3;

impl Fat {
    /// Returns the cluster that `..` of a subdirectory of `dir` stores: `NONE` for the root.
    fn dotdot_cluster(&self, dir: &Inode) -> Cluster {
        if dir.ino == ROOT { Cluster::NONE } else { fat_inode(dir).state.lock().chain.first() }
    }

    fn is_root_cluster(&self, cluster: Cluster) -> bool {
        cluster == Cluster::NONE || (self.geometry.bits == 32 && cluster == self.geometry.root_cluster)
    }

    /// Returns the first cluster of the parent of the directory that starts at `cluster`. The root is `NONE`.
    fn parent_cluster(&self, cluster: Cluster) -> Result<Cluster> {
        let byte = self.geometry.cluster_offset(cluster) + SLOT_BYTES;
        let entry = self.entry(byte.0 / SLOT_BYTES)?;
        let parent = entry.first_cluster(self.geometry.bits);
        let valid = self.is_root_cluster(parent) || self.geometry.is_cluster(parent);
        if &entry.dir_name != b"..         " || !valid {
            return Err(Error::corrupt(
                "the second entry of a directory is no valid ..",
                format!("{}, byte {byte}", self.options.common.place),
            ));
        }
        Ok(if self.is_root_cluster(parent) { Cluster::NONE } else { parent })
    }

    /// Checks that `..` of a directory, whose entry is at `pos` in `dir`, refers to `dir`. So no directory is
    /// in two directories or in itself.
    fn check_dotdot(&self, dir: &Inode, pos: u64) -> Result<()> {
        let entry = self.entry(pos)?;
        let first = entry.first_cluster(self.geometry.bits);
        if entry.is_directory()
            && self.geometry.is_cluster(first)
            && self.parent_cluster(first)? != self.dotdot_cluster(dir)
        {
            return Err(Error::corrupt(
                "the .. of a directory does not refer to its parent",
                format!("{}, entry at byte {}", self.options.common.place, pos * SLOT_BYTES),
            ));
        }
        Ok(())
    }

    fn new_entry(&self, new: &NewInode) -> RawEntry {
        let mut entry = RawEntry::new_zeroed();
        let offset = self.utc_offset_s();
        let (date, clock, hundredths) = time::encode(new.now, offset);
        entry.dir_crt_date.set(date);
        entry.dir_crt_time.set(clock);
        entry.dir_crt_time_tenth = hundredths;
        let (date, clock, _) = time::encode(new.mtime, offset);
        entry.dir_wrt_date.set(date);
        entry.dir_wrt_time.set(clock);
        entry.dir_lst_acc_date.set(time::encode(new.atime, offset).0);
        entry.dir_attr = if new.kind == FileType::Directory { attr::DIRECTORY } else { attr::ARCHIVE };
        entry
    }

    fn create_inode(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let is_dir = match new.kind {
            FileType::Directory => true,
            FileType::Regular => false,
            _ => return Err(NameError::NotPermitted.into()),
        };
        names::validate(name)?;
        let parent = self.dotdot_cluster(dir);
        let mut entry = self.new_entry(new);
        let allocated = self.table.allocate(
            if is_dir { 1 } else { self.geometry.clusters_for(new.size) },
            0,
            Cluster::NONE,
        )?;
        if !is_dir {
            self.zero_clusters(&allocated).inspect_err(|_| self.table.cancel_allocation(&allocated))?;
        }
        let change = self.change().inspect_err(|_| self.table.cancel_allocation(&allocated))?;
        if !is_dir && new.size > 0 {
            self.table.link_chain(&change, &allocated, None)?;
            entry.set_first_cluster(allocated[0].start, self.geometry.bits);
            entry.dir_file_size.set(new.size as u32);
        }
        if is_dir {
            let cluster = allocated[0].start;
            self.zero_directory_cluster(&change, cluster)?;
            self.table.link_chain(&change, &allocated, None)?;
            entry.set_first_cluster(cluster, self.geometry.bits);
            let byte = self.geometry.cluster_offset(cluster);
            for (nth, (name, target)) in
                [(b".          ", cluster), (b"..         ", parent)].into_iter().enumerate()
            {
                let mut dot = RawEntry { dir_name: *name, ..entry };
                dot.set_first_cluster(target, self.geometry.bits);
                self.put_entry(&change, Stage::Fresh, byte.0 / SLOT_BYTES + nth as u64, dot.as_bytes())?;
            }
        }
        let pos = match self.add_name(&change, fat_inode(dir), name, entry, None) {
            Ok(pos) => pos,
            Err(error) => {
                self.table.free(&change, allocated);
                return Err(error);
            }
        };
        let ino = self.ino_map.lock().ino_at(pos);
        let loaded = self.load_entry(ino, pos)?;
        self.names_changed(&change, dir, i32::from(is_dir))?;
        drop(change);
        Ok(loaded)
    }

    /// Runs `work`, which changes the entry of an inode, while the inode has no position. A thread that logs
    /// an inode reads the whole entry and writes it back, which would undo a concurrent change of the name.
    ///
    /// `work` gets the position of the entry and returns the new one. On error the position stays. Other
    /// threads logged nothing meanwhile, so this function logs the inode if it has an entry afterwards.
    fn with_entry_detached<T>(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        work: impl FnOnce(Option<EntryPos>) -> Result<(Option<EntryPos>, T)>,
    ) -> Result<T> {
        let from = fat_inode(inode).state.lock().entry_pos.take();
        let result = work(from);
        let mut state = fat_inode(inode).state.lock();
        state.entry_pos = result.as_ref().map_or(from, |(to, _)| *to);
        let logged = self.log_state(change, inode, &state);
        let (_, value) = result?;
        logged.map(|()| value)
    }

    /// Runs `work`, which removes the entry of an inode or gives it to another inode, and records the removal
    /// for inode numbers.
    fn with_entry_removed<T>(
        &self,
        change: &Change<'_>,
        inode: &Inode,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.with_entry_detached(change, inode, |pos| {
            let value = work()?;
            if let Some(pos) = pos {
                self.ino_map.lock().remove(inode.ino, pos);
            }
            Ok((None, value))
        })
    }

    /// Updates an inode whose name was removed.
    fn name_removed(&self, change: &Change<'_>, inode: &Inode) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = 0);
        self.changed(change, inode, Touch::Metadata, Logged::Anyway)
    }

    fn unlink_inode(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let is_dir = inode.kind == FileType::Directory;
        if is_dir {
            self.check_empty(inode)?;
        }
        let change = self.change()?;
        let slot = self.slot_of(fat_inode(dir), name)?;
        self.with_entry_removed(&change, inode, || {
            self.remove_name(&change, fat_inode(dir), slot, Stage::Detach)
        })?;
        self.name_removed(&change, inode)?;
        self.names_changed(&change, dir, -i32::from(is_dir))
    }

    /// Renames an inode. The old name is durably removed before the new name is written, unless one sector
    /// holds both: see `docs/fat.md`.
    fn rename_inode(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, inode, target, exchange, .. } = rename;
        if exchange {
            return Err(NameError::NotSupported.into());
        }
        let is_dir = inode.kind == FileType::Directory;
        if let Some(target) = target.filter(|target| target.kind == FileType::Directory) {
            self.check_empty(target)?;
        }
        let crosses = old_dir.ino != new_dir.ino;
        let parent = self.dotdot_cluster(new_dir);
        let last_rename = fat_inode(inode).state.lock().rename_ticket;
        // If the last rename added the current name and removed the one before by one write, a third name
        // must not be durable before that write.
        self.settle(last_rename)?;
        let change = self.change()?;
        let old_slot = self.slot_of(fat_inode(old_dir), old_name)?;
        self.with_entry_detached(&change, inode, |from| {
            let from = from.ok_or(NameError::Stale)?;
            let to = self.move_entry(&change, rename, old_slot, from)?;
            Ok((Some(to), ()))
        })?;
        if let Some(target) = target {
            self.name_removed(&change, target)?;
        }
        if is_dir && crosses {
            let first = fat_inode(inode).state.lock().chain.first();
            let dotdot_pos = self.geometry.cluster_offset(first).0 / SLOT_BYTES + 1;
            let mut entry = self.entry(dotdot_pos)?;
            entry.set_first_cluster(parent, self.geometry.bits);
            self.put_entry(&change, Stage::Turn, dotdot_pos, entry.as_bytes())?;
        }
        self.changed(&change, inode, Touch::Metadata, Logged::IfNeeded)?;
        let replaced_dir = i32::from(target.is_some_and(|target| target.kind == FileType::Directory));
        if crosses {
            self.names_changed(&change, old_dir, -i32::from(is_dir))?;
        }
        self.names_changed(&change, new_dir, i32::from(is_dir && crosses) - replaced_dir)
    }

    /// Changes the entries of a rename. Returns the new position of the entry of the inode.
    fn move_entry(
        &self,
        change: &Change<'_>,
        rename: &Rename<'_>,
        old_slot: u32,
        from: EntryPos,
    ) -> Result<EntryPos> {
        let &Rename { old_dir, new_dir, new_name, inode, target, .. } = rename;
        let mut entry = self.entry(from)?;
        self.fill_entry(&mut entry, &fat_inode(inode).state.lock(), &inode.attr());
        let old_sectors = self.sectors_of(fat_inode(old_dir), old_slot)?;
        let to = match target {
            Some(target) => {
                let slot = self.slot_of(fat_inode(new_dir), new_name)?;
                self.with_entry_removed(change, target, || {
                    self.set_target(change, fat_inode(new_dir), slot, entry)
                })?
            }
            None => {
                let replaced_slot = (old_dir.ino == new_dir.ino).then_some(old_slot);
                self.add_name(change, fat_inode(new_dir), new_name, entry, replaced_slot)?
            }
        };
        if to != from {
            let new_slot = self.slot_of(fat_inode(new_dir), new_name)?;
            let atomic = old_sectors.0 == old_sectors.1
                && self.sectors_of(fat_inode(new_dir), new_slot)? == old_sectors;
            let stage = if atomic { Stage::Attach } else { Stage::Detach };
            if atomic {
                fat_inode(inode).state.lock().rename_ticket = change.ticket();
            }
            self.remove_name(change, fat_inode(old_dir), old_slot, stage)?;
            self.ino_map.lock().rename(inode.ino, from, to);
        }
        Ok(to)
    }
}

impl LabelOps for Fat {
    fn set_label(&self, root: &Inode, label: &str) -> Result<()> {
        let stored = encode_label(label)?;
        let change = self.change()?;
        let now = CoarseClock.now();
        let entry = (!label.is_empty()).then(|| RawEntry::label(stored, now, self.utc_offset_s()));
        self.put_label(&change, fat_inode(root), entry)?;
        self.table.put_label(&change, stored)
    }
}

impl FileSystem for Fat {
    fn info(&self) -> FsInfo {
        let mut uuid = [0; 16];
        uuid[..4].copy_from_slice(&self.geometry.serial.to_be_bytes());
        FsInfo {
            fs_type: self.geometry.fs_type(),
            label: self.label.clone(),
            uuid,
            block_size: self.geometry.cluster_bytes.min(32 << 10),
            root: ROOT,
            // 255 units of UTF-16, each of up to three bytes in UTF-8.
            name_max: 765,
            max_file_size: MAX_FILE_SIZE,
            max_links: u32::MAX,
            time_granularity_ns: 2_000_000_000,
            semantics: ChangeSemantics::WITHIN_A_MOUNT,
            valid_until: ValidUntil::Unmount(None),
            projects: false,
            persistent_inos: false,
            names_alias: true,
            reserve_granularity: u64::from(self.geometry.cluster_bytes),
            io_unit: 4096,
            reserved: None,
        }
    }

    fn labels(&self) -> Option<&dyn LabelOps> {
        Some(self)
    }

    fn serves_change_attribute(&self) -> bool {
        self.ordered.as_ref().is_none_or(|ordered| ordered.stopped().is_none())
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let free = self.table.free_count()?;
        let per_cluster = u64::from(self.geometry.cluster_bytes / self.geometry.cluster_bytes.min(32 << 10));
        Ok(StatFs {
            block_size: self.geometry.cluster_bytes.min(32 << 10),
            blocks: u64::from(self.geometry.clusters) * per_cluster,
            blocks_free: free * per_cluster,
            blocks_available: free * per_cluster,
            files: 0,
            files_free: 0,
            // In characters, because programs compare it with the length of names.
            name_max: 255,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let geometry = &self.geometry;
        vec![
            fact("FAT entries", format!("{} bits", geometry.bits)),
            fact("sector size", format!("{} bytes", geometry.sector_bytes)),
            fact("cluster size", format!("{} bytes", geometry.cluster_bytes)),
            fact("clusters", geometry.clusters.to_string()),
            fact("copies of the FAT", (geometry.copies + 1).to_string()),
            fact("serial number", format!("{:04X}-{:04X}", geometry.serial >> 16, geometry.serial & 0xFFFF)),
            fact(
                "state",
                if self.table.was_dirty { "not closed cleanly: run fsck.fat" } else { "closed cleanly" }
                    .to_owned(),
            ),
        ]
    }

    fn sync(&self) -> Result<()> {
        self.sync_changes()
    }

    fn health(&self) -> Health {
        let stopped = self.ordered.as_ref().and_then(|ordered| ordered.stopped());
        Health { read_only: self.read_only.clone().or_else(|| stopped.clone()), no_change_attribute: stopped }
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn reclaim_space(&self) -> Result<bool> {
        self.ordered.as_ref().map_or(Ok(false), |ordered| ordered.release().map_err(order_error))
    }

    fn abort(&self, why: &Error) {
        if let Some(ordered) = &self.ordered {
            ordered.stop(why);
        }
    }

    fn unmount(&self) -> Result<()> {
        let Some(ordered) = &self.ordered else { return Ok(()) };
        // Clusters that this frees are counted in the FSInfo sector below.
        self.sync_changes()?;
        if let Some(new) = self.table.changed_fs_info()? {
            let change = self.change()?;
            new.put(&change);
        }
        ordered.close().map_err(order_error)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }
}

impl InodeOps for Fat {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        if ino == ROOT {
            return self.load_root();
        }
        let pos = self.ino_map.lock().pos_of(ino).ok_or(NameError::Stale)?;
        self.load_entry(ino, pos)
    }

    fn prepare_setattr(&self, _caller: &Cred, inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        if (new.uid, new.gid, new.flags) != (old.uid, old.gid, old.flags) {
            return Err(NameError::NotPermitted.into());
        }
        // The format stores one permission: whether the owner may write. The mount determines the others.
        let is_dir = inode.kind == FileType::Directory;
        let full = self.permissions(if is_dir { attr::DIRECTORY } else { 0 });
        if new.perm != old.perm {
            new.perm = if is_dir || new.perm & 0o200 != 0 { full } else { full & !0o222 };
        }
        if inode.ino != ROOT {
            new.mtime = time::round_mtime(new.mtime, self.utc_offset_s());
        }
        Ok(())
    }

    fn stored_atime(&self, atime: Timestamp) -> Timestamp {
        time::round_atime(atime, self.utc_offset_s())
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        let change = self.change()?;
        self.log_in(&change, inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.free_file(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        let (reserved, last_change) = {
            let mut state = fat_inode(inode).state.lock();
            (std::mem::take(&mut state.reserved), state.truncate_ticket.max(state.rename_ticket))
        };
        self.table.unreserve(reserved);
        if inode.attr().nlink > 0 {
            // The tickets are lost with the inode, so their changes must be durable. An error stops all
            // writing, and later calls report it.
            let _ = self.settle(last_change);
        }
    }

    fn release_ino(&self, ino: Ino) {
        self.ino_map.lock().release(ino);
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        self.sync_changes()
    }
}

impl DirectoryOps for Fat {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        if names::is_too_long(name) {
            return Err(NameError::NameTooLong.into());
        }
        let pos = {
            let mut state = fat_inode(dir).state.lock();
            self.find_name(fat_inode(dir), &mut state, name)?
        };
        let Some(pos) = pos else { return Ok(None) };
        self.check_dotdot(dir, pos)?;
        Ok(Some(Child::Number(self.ino_map.lock().ino_at(pos))))
    }

    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        names::folded(a).is_some_and(|a| Some(a) == names::folded(b))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        let first = self.dotdot_cluster(dir);
        let parent = if first == Cluster::NONE { first } else { self.parent_cluster(first)? };
        if parent == Cluster::NONE {
            return Ok(ROOT);
        }
        // The inode number of the parent is the position of its entry in the grandparent.
        let mut grandparent = self.directory_at(self.parent_cluster(parent)?);
        match self.find_directory(&mut grandparent, parent)? {
            Some(pos) => Ok(self.ino_map.lock().ino_at(pos)),
            None => Err(Error::corrupt(
                "the parent of a directory has no entry in its own parent",
                format!("{}, cluster {parent}", self.options.common.place),
            )),
        }
    }

    fn readdir(
        &self,
        caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if cursor < 2 {
            // A listing does not fail because of a damaged parent.
            let parent = self.parent(caller, dir).unwrap_or(dir.ino);
            let dots: [(&[u8], Ino); 2] = [(b".", dir.ino), (b"..", parent)];
            for (next, (name, ino)) in (1..).zip(dots) {
                let entry = DirEntry { ino, name, kind: Some(FileType::Directory), next };
                if cursor < next && emit(&entry).is_break() {
                    return Ok(());
                }
            }
        }
        let from = u32::try_from((cursor + 1).saturating_sub(FIRST_CURSOR)).unwrap_or(u32::MAX);
        let mut state = fat_inode(dir).state.lock();
        self.for_each_name(fat_inode(dir), &mut state, from, |slot, pos, named| {
            let kind = if named.is_dir { FileType::Directory } else { FileType::Regular };
            let ino = self.ino_map.lock().ino_at(pos);
            let next = u64::from(slot) + FIRST_CURSOR;
            emit(&DirEntry { ino, name: named.name.as_bytes(), kind: Some(kind), next })
        })
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.create_inode(dir, name, new)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.unlink_inode(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.rename_inode(rename)
    }
}

impl FileOps for Fat {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(inode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        self.reserve_bytes(inode, offset.saturating_add(len))
    }

    fn unreserve(&self, inode: &Inode, offset: u64, _len: u64) {
        self.unreserve_bytes(inode, offset);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.write_file(inode, offset, data).map(|()| Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.used_and_reserved_512(inode)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.resize(inode, size)
    }
}

impl BlockMapOps for Fat {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let mut state = fat_inode(inode).state.lock();
        state.chain.load_all(&self.table)?;
        let has = state.chain.len() * u64::from(self.geometry.cluster_bytes);
        Ok(if offset < has {
            MappedRange { start: 0, len: has, kind: RangeKind::Data }
        } else {
            MappedRange { start: has, len: u64::MAX - has, kind: RangeKind::Hole }
        })
    }
}

impl AllocateOps for Fat {
    fn kinds(&self) -> FallocateMode {
        FallocateMode::empty()
    }

    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        let size = inode.size();
        if mode.contains(FallocateMode::KEEP_SIZE) && end > size {
            return Err(NameError::NotSupported.into());
        }
        if end > MAX_FILE_SIZE {
            return Err(NameError::TooLarge.into());
        }
        if end > size {
            inode.with_attr(|attr| attr.size = end);
            return self.resize(inode, end).inspect_err(|_| inode.with_attr(|attr| attr.size = size));
        }
        let change = self.change()?;
        self.changed(&change, inode, Touch::Data, Logged::Anyway)
    }
}
