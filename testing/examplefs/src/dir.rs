//! Names. A directory is searched in order, and a record never moves, so its position is its cursor. A call
//! first finds all records that it needs, and then changes them in one transaction.

use crate::*;
use std::ops::ControlFlow;

/// The cursors of `.` and `..` are 1 and 2; record `n` has the cursor `n` + 3.
const DOTS: [&[u8]; 2] = [b".", b".."];
const FIRST: usize = 3;

impl ExampleFs {
    /// Reads all records of a directory.
    fn records(&self, dir: &Inode) -> Result<Vec<RawName>> {
        let raw = core(dir).read().raw.clone();
        let mut records = Vec::new();
        for at in 0..raw.size.get() as usize / BLOCK {
            let bytes = self.cache.get(raw.block(at))?.read();
            records.extend(bytes.chunks_exact(size_of::<RawName>()).flat_map(RawName::read_from_bytes));
        }
        let bad = |record: &RawName| record.ino() > Ino(self.sb.inodes.get().into()) || !record.is_valid();
        match records.iter().position(bad) {
            Some(at) => Err(self.corrupt("a bad record", format_args!("directory {}, record {at}", dir.ino))),
            None => Ok(records),
        }
    }

    fn find(&self, dir: &Inode, name: &[u8]) -> Result<Option<(usize, Ino)>> {
        let records = self.records(dir)?;
        let found = records.iter().position(|record| record.ino() != FREE && record.name() == name);
        Ok(found.map(|at| (at, records[at].ino())))
    }

    /// Returns the record of a name that the VFS has found.
    fn record_of(&self, dir: &Inode, name: &[u8], inode: &Inode) -> Result<usize> {
        let found = self.find(dir, name)?.filter(|(_, ino)| *ino == inode.ino);
        Ok(found.ok_or(NameError::NotFound)?.0)
    }

    fn expect_empty(&self, inode: &Inode) -> Result<()> {
        let in_use = |record: &RawName| record.ino() != FREE;
        if inode.kind == FileType::Directory && self.records(inode)?.iter().any(in_use) {
            return Err(NameError::NotEmpty.into());
        }
        Ok(())
    }

    /// Returns a free record. Adds a block to the directory if there is none.
    fn free_record(&self, dir: &Inode) -> Result<usize> {
        let records = self.records(dir)?;
        if let Some(at) = records.iter().position(|record| record.ino() == FREE) {
            return Ok(at);
        }
        if records.len() == MAX_DIR_BLOCKS * NAMES {
            return Err(NameError::NoSpace.into());
        }
        let taken = self.space.take(1)?;
        self.change(CREDITS, |h| {
            self.mark(h, &taken, true)?;
            // In the transaction before it is let go: until then the zeros are only in the cache.
            h.modify(&self.cache.get_zeroed(taken[0])?, |_| ());
            {
                let raw = &mut core(dir).write().raw;
                raw.set_block(records.len() / NAMES, taken[0]);
                raw.size = (raw.size.get() + BLOCK as u64).into();
                dir.with_attr(|attr| attr.size = raw.size.get());
            }
            self.changed(h, dir, Touch::Data, Logged::Anyway)
        })?;
        Ok(records.len())
    }

    /// Stores a record. [`FREE`] and no name free it.
    fn put_record(&self, h: &Handle, dir: &Inode, record: usize, ino: Ino, name: &[u8]) -> Result<()> {
        let mut raw = RawName { ino: (ino.0 as u32).into(), len: name.len() as u8, name: [0; NAME_MAX] };
        raw.name[..name.len()].copy_from_slice(name);
        let buffer = self.cache.get(core(dir).read().raw.block(record / NAMES))?;
        let at = record % NAMES * size_of::<RawName>();
        h.modify_range(&buffer, at..at + size_of::<RawName>(), |bytes| bytes.copy_from_slice(raw.as_bytes()));
        Ok(())
    }

    /// An inode lost a name. Without names it is an orphan.
    fn name_lost(&self, h: &Handle, inode: &Inode) -> Result<()> {
        inode.with_attr(|attr| attr.nlink = attr.nlink.saturating_sub(1));
        self.changed(h, inode, Touch::Metadata, Logged::Anyway)
    }
}

impl DirectoryOps for ExampleFs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        Ok(self.find(dir, name)?.map(|(_, ino)| Child::Number(ino)))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        Ok(Ino(core(dir).read().raw.parent.get().into()))
    }

    fn readdir(
        &self,
        caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        for (next, (name, ino)) in (1..).zip(DOTS.into_iter().zip([dir.ino, self.parent(caller, dir)?])) {
            let entry = DirEntry { ino, name, kind: Some(FileType::Directory), next };
            if cursor < next && emit(&entry).is_break() {
                return Ok(());
            }
        }
        let first = (cursor as usize).saturating_add(1).saturating_sub(FIRST);
        for (at, record) in self.records(dir)?.iter().enumerate().skip(first) {
            let next = (at + FIRST) as u64;
            let entry = DirEntry { ino: record.ino(), name: record.name(), kind: None, next };
            if record.ino() != FREE && emit(&entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        if new.target.len() > MAX_BLOCKS * 4 {
            return Err(NameError::NameTooLong.into());
        }
        let record = self.free_record(dir)?;
        let ino = self.free_inodes.lock().pop_first().ok_or(NameError::NoSpace)?;
        let mut raw = self.raw_inode(ino)?;
        // The epoch is part of it: a crash may have lost an inode with the next generation.
        let step = (self.epoch as u32).wrapping_mul(0x9E37_79B8).wrapping_add(1);
        let generation = raw.generation.get().wrapping_add(step);
        let counter = raw.counter.get().wrapping_add(1) & (u64::MAX >> 1);
        let mut attr = new.attr(1);
        attr.size = new.size.max(new.target.len() as u64);
        raw.map.zero();
        raw.map.as_mut_bytes()[..new.target.len()].copy_from_slice(&new.target);
        (raw.generation, raw.size, raw.parent) =
            (generation.into(), attr.size.into(), (dir.ino.0 as u32).into());
        let raw = raw.with_attr(&attr, counter);
        self.change(CREDITS, |h| {
            self.put_inode(h, ino, || raw.clone())?;
            self.put_record(h, dir, record, ino, name)?;
            self.changed(h, dir, Touch::Data, Logged::IfNeeded)
        })?;
        Ok(loaded(ino, raw, attr, InitialCounter::Fresh(counter)))
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let record = self.free_record(dir)?;
        self.change(CREDITS, |h| {
            self.put_record(h, dir, record, inode.ino, name)?;
            inode.with_attr(|attr| attr.nlink += 1);
            self.changed(h, inode, Touch::Metadata, Logged::Anyway)?;
            self.changed(h, dir, Touch::Data, Logged::IfNeeded)
        })
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        let record = self.record_of(dir, name, inode)?;
        self.expect_empty(inode)?;
        self.change(CREDITS, |h| {
            self.put_record(h, dir, record, FREE, b"")?;
            self.name_lost(h, inode)?;
            self.changed(h, dir, Touch::Data, Logged::IfNeeded)
        })
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        let &Rename { old_dir, old_name, new_dir, new_name, inode, target, exchange, .. } = rename;
        let (swapped, replaced) = if exchange { (target, None) } else { (None, target) };
        replaced.map_or(Ok(()), |replaced| self.expect_empty(replaced))?;
        let old_record = self.record_of(old_dir, old_name, inode)?;
        let new_record = match target {
            Some(target) => self.record_of(new_dir, new_name, target)?,
            None => self.free_record(new_dir)?,
        };
        let crosses = old_dir.ino != new_dir.ino;
        self.change(CREDITS, |h| {
            self.put_record(h, new_dir, new_record, inode.ino, new_name)?;
            let (left, left_name) = swapped.map_or((FREE, &b""[..]), |swapped| (swapped.ino, old_name));
            self.put_record(h, old_dir, old_record, left, left_name)?;
            for (moved, to) in [(Some(inode), new_dir), (swapped, old_dir)] {
                let Some(moved) = moved else { continue };
                let stores_parent = crosses && moved.kind == FileType::Directory;
                if stores_parent {
                    core(moved).write().raw.parent = (to.ino.0 as u32).into();
                }
                let logged = if stores_parent { Logged::Anyway } else { Logged::IfNeeded };
                self.changed(h, moved, Touch::Metadata, logged)?;
            }
            replaced.map_or(Ok(()), |replaced| self.name_lost(h, replaced))?;
            if crosses {
                self.changed(h, old_dir, Touch::Data, Logged::IfNeeded)?;
            }
            self.changed(h, new_dir, Touch::Data, Logged::IfNeeded)
        })
    }
}
