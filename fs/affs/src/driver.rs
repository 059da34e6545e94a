//! The interface to the VFS.

use crate::bitmap::AllocSource;
use crate::file::FILE_MAX;
use crate::inode::{affs_inode, header_block};
use crate::layout::{
    COMMENT_MAX, NAME_MAX, OWNER_MAX, TICK_NS, cache_record, mode_to_protect, protect_to_mode, put_tail32,
    put_text, storable_date, tail, to_latin1, to_utf8,
};
use crate::mkfs::stored_label;
use crate::volume::{Affs, Kind};
use ivers_vfs::*;
use ivers_write_ordering::{Ordered, Stage};
use std::ops::ControlFlow;

const PROTECTION: &[u8] = b"user.amiga.protection";
const COMMENT: &[u8] = b"user.amiga.comment";

impl Affs {
    /// Parses a protection word: a decimal number, or a hexadecimal one with `0x`.
    fn parse_protection(text: &[u8]) -> Result<u32> {
        let text = std::str::from_utf8(text).map_err(|_| NameError::Invalid)?.trim();
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16),
            None => text.parse(),
        };
        parsed.map_err(|_| NameError::Invalid.into())
    }

    /// Returns whether the header has fields for protection and comment.
    fn stores_xattrs(inode: &Inode) -> bool {
        matches!(affs_inode(inode).kind, Kind::File | Kind::Directory)
    }

    fn set_protection(&self, inode: &Inode, protect: u32) -> Result<()> {
        let change = self.change()?;
        let mut state = affs_inode(inode).state.lock();
        state.protect = protect;
        inode.with_attr(|attr| attr.perm = protect_to_mode(protect, affs_inode(inode).kind.is_dir()));
        self.edit(&change, header_block(inode), Stage::Attach, |bytes| {
            put_tail32(bytes, tail::PROTECT, protect)
        })
    }

    fn set_comment(&self, inode: &Inode, comment: Vec<u8>) -> Result<()> {
        {
            let change = self.change()?;
            let _chains = self.chain_lock.read();
            let header = self.header(header_block(inode))?;
            // An orphan is in no directory cache.
            if inode.attr().nlink > 0 {
                let name = self.name_of(&header)?;
                let record = cache_record(header.block, &header.bytes, name, &comment);
                self.update_cache(&change, header.parent(), &[], Some(record), AllocSource::Unreserved)?;
            }
            self.edit(&change, header.block, Stage::Attach, |bytes| {
                put_text(bytes, tail::COMMENT, COMMENT_MAX, &comment);
            })?;
        }
        affs_inode(inode).state.lock().comment = comment;
        Ok(())
    }
}

impl LabelOps for Affs {
    fn set_label(&self, root: &Inode, label: &str) -> Result<()> {
        let stored = stored_label(label)?;
        let change = self.change()?;
        self.edit(&change, header_block(root), Stage::Attach, |bytes| {
            put_text(bytes, tail::NAME, NAME_MAX, &stored);
        })
    }
}

impl FileSystem for Affs {
    fn info(&self) -> FsInfo {
        FsInfo {
            fs_type: "affs",
            label: self.label.clone(),
            uuid: [0; 16],
            block_size: self.geometry.block_size,
            root: self.geometry.root.ino(),
            // A character of Latin-1 takes up to two bytes of UTF-8; `parse_name` counts characters.
            name_max: if self.geometry.variant.long_names { 220 } else { 2 * NAME_MAX as u32 },
            max_file_size: FILE_MAX,
            max_links: u32::MAX,
            time_granularity_ns: TICK_NS,
            semantics: ChangeSemantics::WITHIN_A_MOUNT,
            valid_until: ValidUntil::Unmount(None),
            projects: false,
            persistent_inos: false,
            names_alias: true,
            reserve_granularity: self.geometry.data_len(),
            io_unit: 4096,
            reserved: None,
        }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let (free, available) = self.bitmap.free_counts();
        Ok(StatFs {
            block_size: self.geometry.block_size,
            blocks: u64::from(self.geometry.blocks - self.geometry.reserved),
            blocks_free: free,
            blocks_available: available,
            // Any block can become a header.
            files: 0,
            files_free: 0,
            name_max: if self.geometry.variant.long_names { 110 } else { NAME_MAX as u32 },
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let geometry = &self.geometry;
        vec![
            ("variant".into(), geometry.variant.name()),
            ("blocks".into(), format!("{} of {} bytes", geometry.blocks, geometry.block_size)),
            ("root block".into(), geometry.root.to_string()),
        ]
    }

    fn labels(&self) -> Option<&dyn LabelOps> {
        Some(self)
    }

    fn sync(&self) -> Result<()> {
        self.ordered.as_ref().map_or(Ok(()), |_| self.wait_for_batch(Ordered::sync))
    }

    fn health(&self) -> Health {
        let stopped = self.ordered.as_ref().and_then(|ordered| ordered.stopped());
        Health { read_only: self.read_only.clone().or_else(|| stopped.clone()), no_change_attribute: stopped }
    }

    fn serves_change_attribute(&self) -> bool {
        self.ordered.as_ref().is_none_or(|ordered| ordered.stopped().is_none())
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn reclaim_space(&self) -> Result<bool> {
        self.ordered.as_ref().map_or(Ok(false), |_| self.wait_for_batch(Ordered::release))
    }

    fn abort(&self, why: &Error) {
        if let Some(ordered) = &self.ordered {
            // The bitmap may be wrong, so the volume must stay marked as dirty.
            self.bitmap.keep_dirty_mark();
            ordered.stop(why);
        }
    }

    fn unmount(&self) -> Result<()> {
        self.close()
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }
}

impl InodeOps for Affs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.fs_load_inode(ino)
    }

    fn prepare_setattr(&self, _caller: &Cred, inode: &Inode, old: &Attr, new: &mut Attr) -> Result<()> {
        let kind = affs_inode(inode).kind;
        if new.flags != old.flags {
            return Err(NameError::NotSupported.into());
        }
        if new.uid > OWNER_MAX || new.gid > OWNER_MAX {
            return Err(NameError::Invalid.into());
        }
        // In the root block, other fields are at the offsets of these attributes.
        if kind == Kind::Root && (new.uid, new.gid, new.perm) != (old.uid, old.gid, old.perm) {
            return Err(NameError::NotPermitted.into());
        }
        new.perm = match kind {
            Kind::SoftLink | Kind::LinkDirectory | Kind::Root => old.perm,
            _ => protect_to_mode(
                mode_to_protect(new.perm, affs_inode(inode).state.lock().protect, kind.is_dir()),
                kind.is_dir(),
            ),
        };
        new.mtime = storable_date(new.mtime);
        Ok(())
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.fs_log_inode(inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.fs_delete_inode(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        self.drop_reservation(inode);
        if inode.attr().nlink > 0 {
            let shrink_ticket = affs_inode(inode).state.lock().shrink_ticket;
            // The evicted inode loses its ticket. An error stops all writing, and later calls report it.
            let _ = self.settle(shrink_ticket);
        }
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        self.sync()
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(&self.header(header_block(inode))?)
    }
}

impl DirectoryOps for Affs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        Ok(self.fs_lookup(dir, name)?.map(Child::Number))
    }

    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        let variant = self.geometry.variant;
        to_latin1(a).zip(to_latin1(b)).is_some_and(|(a, b)| variant.names_equal(&a, &b))
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.fs_parent(dir)
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.fs_readdir(dir, cursor, emit)
    }

    fn create(&self, _caller: &Cred, dir: &Inode, name: &[u8], new: &NewInode) -> Result<LoadedInode> {
        self.fs_create(dir, name, new)
    }

    fn link(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.fs_link(dir, name, inode)
    }

    fn unlink(&self, _caller: &Cred, dir: &Inode, name: &[u8], inode: &Inode) -> Result<()> {
        self.fs_unlink(dir, name, inode)
    }

    fn rename(&self, rename: &Rename<'_>) -> Result<()> {
        self.fs_rename(rename)
    }
}

impl FileOps for Affs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.fs_read(inode, offset, buf)
    }

    fn reserve(&self, inode: &Inode, offset: u64, len: u64, _pool: BlockPool) -> Result<()> {
        self.fs_reserve(inode, offset, len)
    }

    fn unreserve(&self, inode: &Inode, offset: u64, len: u64) {
        self.fs_unreserve(inode, offset, len);
    }

    fn write_back(&self, inode: &Inode, offset: u64, data: &[u8]) -> Result<Written> {
        self.fs_write_back(inode, offset, data).map(|()| Written::Durable)
    }

    fn blocks_512(&self, inode: &Inode) -> u64 {
        self.fs_blocks_512(inode)
    }

    fn truncate(&self, _caller: &Cred, inode: &Inode, size: u64) -> Result<()> {
        self.fs_truncate(inode, size)
    }
}

impl XattrOps for Affs {
    fn value_max(&self) -> u32 {
        2 * COMMENT_MAX as u32
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        if !Self::stores_xattrs(inode) {
            return Err(NameError::NoAttribute.into());
        }
        let state = affs_inode(inode).state.lock();
        match name {
            PROTECTION => Ok(format!("{:#010x}", state.protect).into_bytes()),
            COMMENT if !state.comment.is_empty() => Ok(to_utf8(&state.comment)),
            _ => Err(NameError::NoAttribute.into()),
        }
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        if !Self::stores_xattrs(inode) {
            return Ok(Vec::new());
        }
        let mut names = vec![PROTECTION.to_vec()];
        if !affs_inode(inode).state.lock().comment.is_empty() {
            names.push(COMMENT.to_vec());
        }
        Ok(names)
    }

    fn set_xattr(
        &self,
        caller: &Cred,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let exists = match self.get_xattr(caller, inode, name) {
            Ok(_) => true,
            Err(Error::Name(NameError::NoAttribute)) => false,
            Err(error) => return Err(error),
        };
        if !Self::stores_xattrs(inode) || !matches!(name, PROTECTION | COMMENT) {
            // No other attribute exists.
            return Err(if value.is_some() { NameError::NotSupported } else { NameError::NoAttribute }.into());
        }
        mode.check(exists, value.is_none())?;
        let result = match (name, value) {
            // Every header has a protection word.
            (PROTECTION, None) => return Err(NameError::NotPermitted.into()),
            (PROTECTION, Some(value)) => self.set_protection(inode, Self::parse_protection(value)?),
            (_, value) => {
                let comment = to_latin1(value.unwrap_or_default()).ok_or(NameError::Invalid)?;
                if comment.len() > COMMENT_MAX {
                    return Err(NameError::AttributeTooLarge.into());
                }
                self.set_comment(inode, comment)
            }
        };
        result?;
        inode.changed(Touch::Metadata, Logged::Anyway);
        self.log_inode(inode)
    }
}

impl BlockMapOps for Affs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.fs_map(inode, offset)
    }
}

impl AllocateOps for Affs {
    fn fallocate(
        &self,
        _caller: &Cred,
        inode: &Inode,
        mode: FallocateMode,
        offset: u64,
        len: u64,
        _pool: BlockPool,
    ) -> Result<()> {
        self.fs_fallocate(inode, mode, offset, len)
    }
}
