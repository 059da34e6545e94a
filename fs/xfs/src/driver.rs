//! The interface to the VFS.

use crate::dir::same_name;
use crate::geometry_facts::geometry_facts;
use crate::inode::private_of;
use crate::layout::attribute::VALUE_MAX;
use crate::layout::dinode::LINKS_MAX;
use crate::layout::features::{Features2, Incompat, Version};
use crate::volume::Xfs;
use ivers_vfs::*;
use std::ops::ControlFlow;

fn read_only<T>() -> Result<T> {
    Err(NameError::ReadOnly.into())
}

impl Xfs {
    /// The names of all features, as xfs_info shows them.
    fn feature_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        let sb = &self.sb;
        if sb.is_v5() {
            names.push("crc".to_owned());
            names.extend(sb.ro_compat.feature_names());
            names.extend(sb.incompat.feature_names());
        } else {
            let known = [
                (Features2::ATTR2, "attr2"),
                (Features2::PROJID32, "projid32bit"),
                (Features2::FTYPE, "ftype"),
            ];
            let found = known.iter().filter(|(flag, _)| sb.features2.contains(*flag));
            names.extend(found.map(|(_, name)| (*name).to_owned()));
        }
        if sb.flags.contains(Version::ASCII_CI) {
            names.push("ascii-ci".to_owned());
        }
        names
    }

    /// Inodes that are on lists of unlinked inodes.
    fn count_unlinked(&self) -> Result<usize> {
        (0..self.sb.ag_count).map(|ag| Ok(self.unlinked_inodes(ag)?.len())).sum()
    }
}

impl FileSystem for Xfs {
    fn info(&self) -> FsInfo {
        FsInfo {
            label: String::from_utf8_lossy(&self.sb.label).into_owned(),
            uuid: self.sb.uuid,
            root: Ino(self.sb.root),
            max_links: LINKS_MAX,
            time_granularity_ns: 1,
            projects: true,
            persistent_inos: true,
            names_alias: self.sb.ignores_case(),
            ..FsInfo::usual("xfs", self.sb.block_size)
        }
    }

    fn health(&self) -> Health {
        Health { read_only: Some(self.read_only.clone()), no_change_attribute: None }
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let (sb, counts) = (&self.sb, self.counts);
        let percent = u64::from(if sb.inode_max_percent == 0 { 100 } else { sb.inode_max_percent.min(100) });
        let most = (sb.blocks / 100).saturating_mul(percent) << sb.inopb_bits;
        let free = counts.free_blocks.min(sb.blocks);
        let files = counts.inodes.saturating_add(free << sb.inopb_bits).min(most.max(counts.inodes));
        Ok(StatFs {
            block_size: sb.block_size,
            blocks: sb.blocks - u64::from(sb.log_blocks).min(sb.blocks),
            blocks_free: free,
            blocks_available: free,
            files,
            files_free: files - counts.inodes.saturating_sub(counts.free_inodes),
            name_max: 255,
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let sb = &self.sb;
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let unlinked =
            self.count_unlinked().map_or_else(|error| error.to_string(), |count| count.to_string());
        let stripe = match sb.log_stripe_unit {
            0 | 1 => String::new(),
            bytes => format!(", records aligned to {bytes} bytes"),
        };
        let mut facts = vec![
            fact("version", sb.version.to_string()),
            fact("features", self.feature_names().join(" ")),
            fact("blocks", format!("{} of {} bytes", sb.blocks, sb.block_size)),
            fact("groups", format!("{} of {} blocks", sb.ag_count, sb.ag_blocks)),
            fact("sector size", sb.sector_size.to_string()),
            fact("directory block size", sb.dir_block_size.to_string()),
            fact("inodes", format!("{}, {} of them free", self.counts.inodes, self.counts.free_inodes)),
            fact("inode size", sb.inode_size.to_string()),
            fact("log", format!("inside, {} blocks{stripe}; {}", sb.log_blocks, self.log_state)),
            fact("checksums", if sb.is_v5() { "crc32c" } else { "none" }.to_owned()),
            fact("unlinked inodes", unlinked),
        ];
        facts.extend(geometry_facts(sb));
        if sb.incompat.contains(Incompat::META_UUID) {
            let digits: String = sb.meta_uuid.iter().map(|byte| format!("{byte:02x}")).collect();
            facts.push(fact("UUID in structures", digits));
        }
        if sb.realtime_blocks > 0 {
            let what = format!("{} blocks on another device; its files cannot be read", sb.realtime_blocks);
            facts.push(fact("realtime", what));
        }
        facts
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }
}

impl InodeOps for Xfs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(ino.0)
    }

    fn log_inode(&self, _inode: &Inode) -> Result<()> {
        read_only()
    }

    fn delete_inode(&self, _inode: &Inode) -> Result<()> {
        read_only()
    }

    fn fsync(&self, _inode: &Inode, _data_only: bool) -> Result<()> {
        Ok(())
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(private_of(inode))
    }
}

impl DirectoryOps for Xfs {
    fn lookup(&self, _caller: &Cred, dir: &Inode, name: &[u8]) -> Result<Option<Child>> {
        Ok(self.find_name(private_of(dir), name)?.map(|ino| Child::Number(Ino(ino))))
    }

    fn same_name(&self, a: &[u8], b: &[u8]) -> bool {
        if self.sb.ignores_case() { same_name(a, b) } else { a == b }
    }

    fn parent(&self, _caller: &Cred, dir: &Inode) -> Result<Ino> {
        self.parent_of(private_of(dir)).map(Ino)
    }

    fn readdir(
        &self,
        _caller: &Cred,
        dir: &Inode,
        cursor: u64,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.list(private_of(dir), cursor, emit)
    }

    fn create(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _new: &NewInode) -> Result<LoadedInode> {
        read_only()
    }

    fn unlink(&self, _caller: &Cred, _dir: &Inode, _name: &[u8], _inode: &Inode) -> Result<()> {
        read_only()
    }

    fn rename(&self, _rename: &Rename<'_>) -> Result<()> {
        read_only()
    }
}

impl FileOps for Xfs {
    fn read(&self, _caller: &Cred, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_file(private_of(inode), offset, buf)
    }

    fn reserve(&self, _inode: &Inode, _offset: u64, _len: u64, _pool: BlockPool) -> Result<()> {
        read_only()
    }

    fn write_back(&self, _inode: &Inode, _offset: u64, _data: &[u8]) -> Result<Written> {
        read_only()
    }

    fn truncate(&self, _caller: &Cred, _inode: &Inode, _size: u64) -> Result<()> {
        read_only()
    }
}

impl BlockMapOps for Xfs {
    fn map(&self, inode: &Inode, offset: u64) -> Result<MappedRange> {
        self.map_file(private_of(inode), offset)
    }
}

impl XattrOps for Xfs {
    fn value_max(&self) -> u32 {
        VALUE_MAX
    }

    fn get_xattr(&self, _caller: &Cred, inode: &Inode, name: &[u8]) -> Result<Vec<u8>> {
        self.xattr(private_of(inode), name)
    }

    fn list_xattr(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<Vec<u8>>> {
        self.xattr_names(private_of(inode))
    }

    fn set_xattr(
        &self,
        _caller: &Cred,
        _inode: &Inode,
        _name: &[u8],
        _value: Option<&[u8]>,
        _mode: XattrMode,
    ) -> Result<()> {
        read_only()
    }
}
