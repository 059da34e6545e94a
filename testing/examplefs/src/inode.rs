//! Transactions; loading, logging and deleting inodes.

use crate::*;

/// What the driver keeps with an inode in memory.
pub(crate) struct Core {
    /// The inode as it was loaded. Generation, size, parent and map are current, the rest is in [`Inode`].
    /// They change only inside a transaction.
    pub(crate) raw: RawInode,
    /// The blocks that are taken for file blocks with a dirty page and no block.
    pub(crate) taken: BTreeMap<usize, BlockNo>,
}

/// Its lock. Nothing takes two of them.
pub(crate) type CoreLock = RankedRwLock<rank::Driver<0>, Core>;

pub(crate) fn core(inode: &Inode) -> &CoreLock {
    inode.private()
}

/// Returns an inode for the VFS.
pub(crate) fn loaded(ino: Ino, raw: RawInode, attr: Attr, counter: InitialCounter) -> LoadedInode {
    let generation = raw.generation.get();
    let private = Box::new(CoreLock::new(Core { raw, taken: BTreeMap::new() }));
    LoadedInode { ino, generation, attr, counter, private }
}

pub(crate) fn journal_error(error: JournalError) -> Error {
    use JournalError::{Corrupt, External, Incompatible};
    match error {
        Corrupt { what, log_block } => Error::corrupt(what, format!("block {log_block} of the log")),
        Incompatible { .. } | External { .. } => Error::Incompatible(error.to_string()),
        error => Error::io(error),
    }
}

impl ExampleFs {
    /// Runs `f` in a transaction. An error stops the filesystem: what `f` did until then must not commit.
    pub(crate) fn change<T>(&self, credits: u32, f: impl FnOnce(&Handle) -> Result<T>) -> Result<T> {
        let handle = self.journal.begin(credits).map_err(journal_error)?;
        // While the handle is open: a commit may be waiting for its end.
        f(&handle).inspect_err(|error| self.journal.abort(error))
    }

    pub(crate) fn corrupt(&self, what: &str, place: impl std::fmt::Display) -> Error {
        Error::corrupt(what, format!("{}, {place}", self.place))
    }

    /// Reads an inode, in use or free.
    pub(crate) fn raw_inode(&self, ino: Ino) -> Result<RawInode> {
        let buffer = self.cache.get(self.sb.inode_block(ino).ok_or(NameError::Stale)?)?;
        let raw = RawInode::read_from_bytes(&buffer.read()).expect("it fills a block");
        if raw.checksum(ino) == raw.crc32c.get() {
            Ok(raw)
        } else {
            Err(self.corrupt("bad checksum", format_args!("inode {ino}")))
        }
    }

    /// Stores an inode. `raw` runs under the buffer's lock.
    pub(crate) fn put_inode(&self, h: &Handle, ino: Ino, raw: impl FnOnce() -> RawInode) -> Result<()> {
        let buffer = self.cache.get(self.sb.inode_block(ino).ok_or(NameError::Stale)?)?;
        h.modify(&buffer, |bytes| bytes.copy_from_slice(raw().sealed(ino).as_bytes()));
        Ok(())
    }

    /// Logs an inode. Write-back and a request may do so at the same time: each reads attributes and counter
    /// when the other has stored its own.
    pub(crate) fn log(&self, h: &Handle, inode: &Inode) -> Result<()> {
        let core = core(inode).read();
        self.put_inode(h, inode.ino, || core.raw.clone().with_attr(&inode.attr(), inode.counter.peek()))
    }

    /// Reports a change that is visible, and logs the inode if necessary.
    pub(crate) fn changed(&self, h: &Handle, inode: &Inode, touch: Touch, logged: Logged) -> Result<()> {
        if inode.changed(touch, logged).must_log() { self.log(h, inode) } else { Ok(()) }
    }

    /// Frees the blocks from file block `keep` on. `logged`: they were written through the journal.
    pub(crate) fn cut(&self, h: &Handle, raw: &mut RawInode, keep: usize, logged: bool) -> Result<()> {
        let blocks = (keep..MAX_BLOCKS).map(|at| raw.block(at)).filter(|block| *block != HOLE).collect();
        raw.map[keep..].zero();
        self.free(h, blocks, logged)
    }

    /// Frees an inode and its blocks.
    pub(crate) fn delete(&self, ino: Ino, mut raw: RawInode) -> Result<()> {
        self.change(CREDITS + MAX_DIR_BLOCKS as u32, |h| {
            if raw.has_blocks() {
                let logged = raw.kind() == Some(FileType::Directory);
                self.cut(h, &mut raw, 0, logged)?;
            }
            raw.mode = 0.into();
            self.put_inode(h, ino, || raw)
        })?;
        self.free_inodes.lock().insert(ino);
        Ok(())
    }
}

impl InodeOps for ExampleFs {
    /// Also accepts orphans.
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        let raw = self.raw_inode(ino)?;
        if raw.mode.get() == 0 {
            return Err(NameError::Stale.into());
        }
        let corrupt = |what| self.corrupt(what, format_args!("inode {ino}"));
        let attr = raw.attr().ok_or_else(|| corrupt("unknown type"))?;
        let (least, most) = match attr.kind {
            FileType::Regular => (0, MAX_BLOCKS * BLOCK),
            FileType::Directory => (0, MAX_DIR_BLOCKS * BLOCK),
            FileType::Symlink => (1, MAX_BLOCKS * 4),
            _ => (0, 0),
        };
        if !(least as u64..=most as u64).contains(&attr.size)
            || (ino == ROOT && attr.kind != FileType::Directory)
        {
            return Err(corrupt("size and type do not match"));
        }
        let data = self.sb.data()..BlockNo(self.sb.blocks.get().into());
        let blocks = attr.size as usize / BLOCK;
        let may_be_hole = |at| attr.kind == FileType::Regular || at >= blocks;
        let is_sound = |at| data.contains(&raw.block(at)) || (raw.block(at) == HOLE && may_be_hole(at));
        if raw.has_blocks() && !(0..MAX_BLOCKS).all(is_sound) {
            return Err(corrupt("a block is missing or not one of the data blocks"));
        }
        let counter = InitialCounter::Stored(raw.counter.get() & (u64::MAX >> 1));
        Ok(loaded(ino, raw, attr, counter))
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.change(CREDITS, |h| self.log(h, inode))
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.unreserve(inode, 0, u64::MAX);
        let raw = core(inode).read().raw.clone();
        self.delete(inode.ino, raw.with_attr(&inode.attr(), inode.counter.peek()))
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        self.sync()
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        let raw = &core(inode).read().raw;
        Ok(raw.map.as_bytes()[..raw.size.get() as usize].to_vec())
    }
}
