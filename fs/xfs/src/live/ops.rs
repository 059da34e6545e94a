//! Names, data and attributes, as the VFS calls them.

use super::change::Edited;
use super::vnode::core_of;
use super::volume::Xfs;
use crate::attr::AttrSource;
use crate::dir::{DirSource, same_name};
use ivers_block::FileBlock;
use ivers_vfs::*;
use std::ops::ControlFlow;

impl DirectoryOps for Xfs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        Ok(self.find_name(&core_of(dir), name)?.map(|ino| Child::Number(Ino(ino))))
    }

    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        if self.sb.ignores_case() { same_name(a, b) } else { a == b }
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.parent_of(&core_of(dir)).map(Ino)
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(&core_of(dir), cursor, emit)
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.make(dir, Some(name), new)
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.link_name(dir, name, inode)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.unlink_name(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.rename_name(rename)
    }
}

impl UnnamedFileOps for Xfs {
    fn create_unnamed(&self, _caller: &Cred, dir: &Inode, new: &NewInode) -> Result<LoadedInode> {
        self.make(dir, None, new)
    }
}

impl FileOps for Xfs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(&core_of(inode), offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        if len == 0 { Ok(()) } else { self.reserve_range(inode, offset, len) }
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        let bits = self.sb.block_bits;
        let end = offset.saturating_add(len).div_ceil(1 << bits);
        self.release_range(inode, FileBlock(offset >> bits)..FileBlock(end));
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.write_back_data(inode, offset, data).map(|()| Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.shown_blocks(inode)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.truncate_data(inode, size)
    }
}

impl BlockMapOps for Xfs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(&core_of(inode), offset)
    }
}

impl AllocateOps for Xfs {
    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        self.allocate_range(inode, mode, offset, len)
    }
}

impl XattrOps for Xfs {
    fn value_max(&self) -> u32 {
        crate::layout::attribute::VALUE_MAX
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr(&core_of(inode), name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.xattr_names(&core_of(inode))
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let mut change = self.change()?;
        let mut edited = Edited::new(inode).touched(Touch::Metadata);
        change.tx.set_attribute(&mut edited.core, name, value, mode)?;
        change.finish(vec![edited])
    }
}
