//! The calls of the VFS.

use crate::cluster::Cluster;
use crate::fat::{Fat, node};
use crate::file::MOST_BYTES;
use crate::layout::{RawEntry, SLOT, attr};
use crate::places::{Place, ROOT};
use crate::table::order_error;
use crate::{names, time};
use ivers_vfs::*;
use ivers_write_ordering::Stage;
use std::ops::ControlFlow;
use zerocopy::{FromZeros, IntoBytes};

/// Cursors: 0 is the start, 1 stands behind `.`, 2 behind `..`, then a slot and this.
const FIRST_COOKIE: u64 = 3;

impl Fat {
    /// The first cluster that a directory's children know it by.
    fn known_as(&self, dir: &Inode) -> Cluster {
        if dir.ino == ROOT { Cluster::NONE } else { node(dir).state.lock().chain.first() }
    }

    fn is_root_cluster(&self, cluster: Cluster) -> bool {
        cluster == Cluster::NONE || (self.geometry.bits == 32 && cluster == self.geometry.root_cluster)
    }

    /// The first cluster of the directory that holds the one which begins here.
    fn up(&self, cluster: Cluster) -> Result<Cluster> {
        let byte = self.geometry.cluster_byte(cluster) + SLOT;
        let entry = self.entry(byte.0 / SLOT)?;
        let up = entry.first_cluster(self.geometry.bits);
        if &entry.dir_name != b"..         " || !(self.is_root_cluster(up) || self.geometry.is_cluster(up)) {
            return Err(Error::corrupt(
                "a directory without ..",
                format!("{}, byte {byte}", self.options.place),
            ));
        }
        Ok(if self.is_root_cluster(up) { Cluster::NONE } else { up })
    }

    /// What is where a name leads to must know where it is: so no directory is in two others, or in itself.
    fn check_up(&self, dir: &Inode, place: u64) -> Result<()> {
        let entry = self.entry(place)?;
        let first = entry.first_cluster(self.geometry.bits);
        if entry.is_directory() && self.geometry.is_cluster(first) && self.up(first)? != self.known_as(dir) {
            return Err(Error::corrupt(
                "the .. of a directory leads elsewhere",
                format!("{}, entry at byte {}", self.options.place, place * SLOT),
            ));
        }
        Ok(())
    }

    fn new_entry(&self, new: &NewInode) -> RawEntry {
        let mut entry = RawEntry::new_zeroed();
        let offset = self.offset_s();
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

    fn make(&self, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        let is_dir = match new.kind {
            FileType::Directory => true,
            FileType::Regular => false,
            _ => return Err(NameError::NotPermitted.into()),
        };
        names::checked(name)?;
        let up = self.known_as(dir);
        let mut entry = self.new_entry(new);
        let picked = self.table.pick(
            if is_dir { 1 } else { self.geometry.clusters_for(new.size) },
            0,
            Cluster::NONE,
        )?;
        if !is_dir {
            self.zero_runs(&picked).inspect_err(|_| self.table.unpick(&picked))?;
        }
        let change = self.change().inspect_err(|_| self.table.unpick(&picked))?;
        if !is_dir && new.size > 0 {
            self.table.chain_up(&change, &picked, None)?;
            entry.set_first_cluster(picked[0].start, self.geometry.bits);
            entry.dir_file_size.set(new.size as u32);
        }
        if is_dir {
            let cluster = picked[0].start;
            self.zeroed(&change, cluster)?;
            self.table.chain_up(&change, &picked, None)?;
            entry.set_first_cluster(cluster, self.geometry.bits);
            let byte = self.geometry.cluster_byte(cluster);
            for (nth, (dots, to)) in [(b".          ", cluster), (b"..         ", up)].into_iter().enumerate()
            {
                let mut dot = RawEntry { dir_name: *dots, ..entry };
                dot.set_first_cluster(to, self.geometry.bits);
                self.put_entry(&change, Stage::Fresh, byte.0 / SLOT + nth as u64, dot.as_bytes())?;
            }
        }
        let place = match self.add_name(&change, node(dir), name, entry, None) {
            Ok(place) => place,
            Err(error) => {
                self.table.free(&change, picked);
                return Err(error);
            }
        };
        let ino = self.places.lock().number(place);
        let loaded = self.load_place(ino, place)?;
        self.renamed_in(&change, dir, i32::from(is_dir))?;
        drop(change);
        Ok(loaded)
    }

    /// Changes the entry of an inode with the inode out of it: whoever logs an inode reads its entry and puts all of it back, and what is
    /// done to the name in between would be undone. `work` is told where the entry was and says where it is; if it fails, it is where it was. What
    /// others have logged meanwhile went nowhere, so an inode that has an entry afterwards is logged here.
    fn with_entry_left<T>(
        &self,
        change: &ivers_write_ordering::Change<'_>,
        inode: &Inode,
        work: impl FnOnce(Option<Place>) -> Result<(Option<Place>, T)>,
    ) -> Result<T> {
        let from = node(inode).state.lock().place.take();
        let done = work(from);
        let mut state = node(inode).state.lock();
        state.place = done.as_ref().map_or(from, |(to, _)| *to);
        let logged = self.log_state(change, inode, &state);
        let (_, value) = done?;
        logged.map(|()| value)
    }

    /// Does away with the entry of an inode, as `work` does it, and with the number that it gives.
    fn without_entry<T>(
        &self,
        change: &ivers_write_ordering::Change<'_>,
        inode: &Inode,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.with_entry_left(change, inode, |place| {
            let done = work()?;
            if let Some(place) = place {
                self.places.lock().gone(inode.ino, place);
            }
            Ok((None, done))
        })
    }

    /// An inode has lost its name, for good.
    fn orphan(&self, change: &ivers_write_ordering::Change<'_>, inode: &Inode) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = 0);
        self.touched(change, inode, Touch::Metadata, Logged::Anyway)
    }

    fn take_name(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let is_dir = inode.kind == FileType::Directory;
        if is_dir {
            self.check_empty(inode)?;
        }
        let change = self.change()?;
        let slot = self.slot_of(node(dir), name)?;
        self.without_entry(&change, inode, || self.remove_name(&change, node(dir), slot, Stage::Detach))?;
        self.orphan(&change, inode)?;
        self.renamed_in(&change, dir, -i32::from(is_dir))
    }

    /// The old name goes before the new one comes, with a flush between, unless both are in one sector: see docs/fat.md.
    fn move_name(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, inode, target, exchange, .. } = rename;
        if exchange {
            return Err(NameError::NotSupported.into());
        }
        let is_dir = inode.kind == FileType::Directory;
        if let Some(target) = target.filter(|target| target.kind == FileType::Directory) {
            self.check_empty(target)?;
        }
        let crosses = old_dir.ino != new_dir.ino;
        let up = self.known_as(new_dir);
        let renamed = node(inode).state.lock().renamed;
        // The name that it has now and the one that it had before go with one write: a third must not be durable before that.
        self.settle(renamed)?;
        let change = self.change()?;
        let old_slot = self.slot_of(node(old_dir), old_name)?;
        self.with_entry_left(&change, inode, |from| {
            let from = from.ok_or(NameError::Stale)?;
            let to = self.move_entry(&change, rename, old_slot, from)?;
            Ok((Some(to), ()))
        })?;
        if let Some(target) = target {
            self.orphan(&change, target)?;
        }
        if is_dir && crosses {
            let first = node(inode).state.lock().chain.first();
            let dots = self.geometry.cluster_byte(first).0 / SLOT + 1;
            let mut entry = self.entry(dots)?;
            entry.set_first_cluster(up, self.geometry.bits);
            self.put_entry(&change, Stage::Turn, dots, entry.as_bytes())?;
        }
        self.touched(&change, inode, Touch::Metadata, Logged::IfNeeded)?;
        let replaced_dir = i32::from(target.is_some_and(|target| target.kind == FileType::Directory));
        if crosses {
            self.renamed_in(&change, old_dir, -i32::from(is_dir))?;
        }
        self.renamed_in(&change, new_dir, i32::from(is_dir && crosses) - replaced_dir)
    }

    /// The part of a rename that is about entries: says where the inode's is now.
    fn move_entry(
        &self,
        change: &ivers_write_ordering::Change<'_>,
        rename: &Rename<'_>,
        old_slot: u32,
        from: Place,
    ) -> Result<Place> {
        let &Rename { old_dir, new_dir, new_name, inode, target, .. } = rename;
        let mut entry = self.entry(from)?;
        self.fill_entry(&mut entry, &node(inode).state.lock(), &inode.attr());
        let old_sectors = self.sectors_of(node(old_dir), old_slot)?;
        let to = match target {
            Some(target) => {
                let slot = self.slot_of(node(new_dir), new_name)?;
                self.without_entry(change, target, || self.repoint(change, node(new_dir), slot, entry))?
            }
            None => {
                let instead = (old_dir.ino == new_dir.ino).then_some(old_slot);
                self.add_name(change, node(new_dir), new_name, entry, instead)?
            }
        };
        if to != from {
            let new_slot = self.slot_of(node(new_dir), new_name)?;
            let atomic =
                old_sectors.0 == old_sectors.1 && self.sectors_of(node(new_dir), new_slot)? == old_sectors;
            let stage = if atomic { Stage::Attach } else { Stage::Detach };
            if atomic {
                node(inode).state.lock().renamed = change.ticket();
            }
            self.remove_name(change, node(old_dir), old_slot, stage)?;
            self.places.lock().moves(inode.ino, from, to);
        }
        Ok(to)
    }

    fn settle_all(&self) -> Result<()> {
        self.ordered.as_ref().map_or(Ok(()), |ordered| ordered.sync().map_err(order_error))
    }
}

impl FileSystem for Fat {
    fn info(&self) -> FsInfo {
        let mut uuid = [0; 16];
        uuid[..4].copy_from_slice(&self.geometry.serial.to_be_bytes());
        FsInfo {
            fs_type: match self.geometry.bits {
                12 => "fat12",
                16 => "fat16",
                _ => "fat32",
            },
            label: self.label.clone(),
            uuid,
            block_size: self.geometry.cluster.min(32 << 10),
            root: ROOT,
            // 255 units of UTF-16, of which each takes up to three bytes here.
            name_max: 765,
            max_file_size: MOST_BYTES,
            max_links: u32::MAX,
            time_granularity_ns: 2_000_000_000,
            semantics: ChangeSemantics::WITHIN_A_MOUNT,
            projects: false,
            persistent_inos: false,
            names_alias: true,
            reserve_granularity: u64::from(self.geometry.cluster),
            io_unit: 4096,
            reserved: None,
        }
    }

    fn serves_change_attribute(&self) -> bool {
        self.ordered.as_ref().is_none_or(|ordered| ordered.stopped().is_none())
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let free = self.table.free_count()?;
        let per_cluster = u64::from(self.geometry.cluster / self.geometry.cluster.min(32 << 10));
        Ok(StatFs {
            block_size: self.geometry.cluster.min(32 << 10),
            blocks: u64::from(self.geometry.clusters) * per_cluster,
            blocks_free: free * per_cluster,
            blocks_available: free * per_cluster,
            files: 0,
            files_free: 0,
            // What programs make of it: so many letters fit.
            name_max: 255,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let geometry = &self.geometry;
        vec![
            fact("FAT entries", format!("{} bits", geometry.bits)),
            fact("sector size", geometry.sector.to_string()),
            fact("cluster size", geometry.cluster.to_string()),
            fact("clusters", geometry.clusters.to_string()),
            fact("FATs kept", (geometry.copies + 1).to_string()),
            fact("serial number", format!("{:04X}-{:04X}", geometry.serial >> 16, geometry.serial & 0xFFFF)),
            fact(
                "unmounted cleanly",
                if self.table.was_dirty { "no: run fsck.fat" } else { "yes" }.to_owned(),
            ),
        ]
    }

    fn sync(&self) -> Result<()> {
        self.settle_all()
    }

    fn health(&self) -> Health {
        let stopped = self.ordered.as_ref().and_then(|ordered| ordered.stopped());
        Health { read_only: self.read_only.clone().or_else(|| stopped.clone()), no_change_attribute: stopped }
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
        // What is freed by the first is counted by what follows.
        ordered.sync().map_err(order_error)?;
        if self.table.has_counted() {
            let change = self.change()?;
            self.table.put_fs_info(&change)?;
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
        let place = self.places.lock().find(ino).ok_or(NameError::Stale)?;
        self.load_place(ino, place)
    }

    fn prepare_setattr(&self, _caller: &Cred, inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        if (new.uid, new.gid, new.flags) != (old.uid, old.gid, old.flags) {
            return Err(NameError::NotPermitted.into());
        }
        // All that the masks leave, or the same without writing: whether the owner may write is the one permission that can be kept.
        let is_dir = inode.kind == FileType::Directory;
        let full = self.permissions(if is_dir { attr::DIRECTORY } else { 0 });
        if new.perm != old.perm {
            new.perm = if is_dir || new.perm & 0o200 != 0 { full } else { full & !0o222 };
        }
        if inode.ino != ROOT {
            new.mtime = time::kept(new.mtime, self.offset_s());
        }
        Ok(())
    }

    fn stored_atime(&self, atime: Timestamp) -> Timestamp {
        time::day(atime, self.offset_s())
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        let change = self.change()?;
        self.log_in(&change, inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.free_file(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        let (promised, last) = {
            let mut state = node(inode).state.lock();
            (std::mem::take(&mut state.promised), state.cut.max(state.renamed))
        };
        self.table.unpromise(promised);
        if inode.attr().nlink > 0 {
            // Who loads it again does not know what its next change has to wait for. An error stops all writing, which is how everybody learns of it.
            let _ = self.settle(last);
        }
        self.places.lock().forget(inode.ino);
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        self.settle_all()
    }
}

impl DirectoryOps for Fat {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        if names::is_too_long(name) {
            return Err(NameError::NameTooLong.into());
        }
        let place = {
            let mut state = node(dir).state.lock();
            self.find_name(node(dir), &mut state, name)?
        };
        let Some(place) = place else { return Ok(None) };
        self.check_up(dir, place)?;
        Ok(Some(Child::Number(self.places.lock().number(place))))
    }

    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        names::folded(a).is_some_and(|a| Some(a) == names::folded(b))
    }

    fn parent(&self, dir: &Inode) -> Result<Ino> {
        let first = self.known_as(dir);
        let up = if first == Cluster::NONE { first } else { self.up(first)? };
        if up == Cluster::NONE {
            return Ok(ROOT);
        }
        // Its number is that of its entry, which is in the directory above it.
        let mut above = self.directory_at(self.up(up)?);
        match self.find_directory(&mut above, up)? {
            Some(place) => Ok(self.places.lock().number(place)),
            None => Err(Error::corrupt(
                "a directory whose parent does not name it",
                format!("{}, cluster {up}", self.options.place),
            )),
        }
    }

    fn readdir(
        &self,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        if cursor < 2 {
            // A listing need not fail for it.
            let parent = self.parent(dir).unwrap_or(dir.ino);
            let dots: [(&[u8], Ino); 2] = [(b".", dir.ino), (b"..", parent)];
            for (next, (name, ino)) in (1..).zip(dots) {
                let entry = DirEntry { ino, name, kind: Some(FileType::Directory), next };
                if cursor < next && emit(&entry).is_break() {
                    return Ok(());
                }
            }
        }
        let from = u32::try_from((cursor + 1).saturating_sub(FIRST_COOKIE)).unwrap_or(u32::MAX);
        let mut state = node(dir).state.lock();
        self.each_name(node(dir), &mut state, from, |slot, place, named| {
            let kind = if named.is_dir { FileType::Directory } else { FileType::Regular };
            let ino = self.places.lock().number(place);
            let next = u64::from(slot) + FIRST_COOKIE;
            emit(&DirEntry { ino, name: named.name.as_bytes(), kind: Some(kind), next })
        })
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.make(dir, name, new)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.take_name(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.move_name(rename)
    }
}

impl FileOps for Fat {
    fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(inode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        self.reserve_bytes(inode, offset.saturating_add(len))
    }

    fn unreserve(&self, inode: &Inode, offset: u64, _len: u64) {
        self.unreserve_bytes(inode, offset);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<()> {
        self.write_file(inode, offset, data)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.shown_blocks_512(inode)
    }

    fn truncate(&self, inode: &Inode, size: u64) -> Result<()> {
        self.resize(inode, size)
    }
}

impl BlockMapOps for Fat {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        let mut state = node(inode).state.lock();
        state.chain.know_all(&self.table)?;
        let has = state.chain.len() * u64::from(self.geometry.cluster);
        Ok(if offset < has {
            MappedRange { start: 0, len: has, kind: RangeKind::Data }
        } else {
            MappedRange { start: has, len: u64::MAX - has, kind: RangeKind::Hole }
        })
    }
}

impl AllocateOps for Fat {
    fn fallocate(
        &self,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        let end = offset.checked_add(len).ok_or(NameError::TooLarge)?;
        let size = inode.size();
        if !(mode - FallocateMode::KEEP_SIZE).is_empty()
            || (mode.contains(FallocateMode::KEEP_SIZE) && end > size)
        {
            return Err(NameError::NotSupported.into());
        }
        if end > MOST_BYTES {
            return Err(NameError::TooLarge.into());
        }
        if end > size {
            inode.with_attr(|attr| attr.size = end);
            return self.resize(inode, end).inspect_err(|_| inode.with_attr(|attr| attr.size = size));
        }
        let change = self.change()?;
        self.touched(&change, inode, Touch::Data, Logged::Anyway)
    }
}
