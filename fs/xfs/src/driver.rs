//! The filesystem as a whole, and its inodes, as the VFS calls them.

use crate::geometry_facts::geometry_facts;
use crate::layout::dinode::{FILE_BLOCKS_END, LINKS_MAX};
use crate::layout::directory::NAME_MAX;
use crate::layout::features::{Features2, Incompat, RoCompat, Version};
use crate::live::Xfs;
use crate::live::{core_of, journal_error, private_of};
use crate::symlink::LinkSource;
use ivers_block::FileBlock;
use ivers_vfs::*;
use std::sync::atomic::Ordering;

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

    /// Why the journal was aborted, if it was.
    fn aborted(&self) -> Option<String> {
        let cause = self.session.as_ref()?.commits.journal().aborted()?;
        Some(format!("the journal was aborted: {cause}"))
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
            semantics: ChangeSemantics {
                persistent: self.is_persistent,
                crash_safe: self.is_persistent,
                ..ChangeSemantics::WITHIN_A_MOUNT
            },
            valid_until: self.valid_until,
            ..FsInfo::usual("xfs", self.sb.block_size)
        }
    }

    fn health(&self) -> Health {
        let aborted = self.aborted();
        Health {
            no_change_attribute: aborted.clone().or_else(|| self.epoch.missing()),
            read_only: self.read_only.clone().or(aborted),
        }
    }

    fn serves_change_attribute(&self) -> bool {
        // After an abort the state in memory may never become durable: the next mount raises the epoch.
        !self.epoch.is_missing()
            && self.session.as_ref().is_none_or(|session| !session.commits.journal().is_aborted())
    }

    fn stat_fs(&self) -> Result<StatFs> {
        let sb = &self.sb;
        let (counts, usable) = match &self.session {
            None => (self.counts, self.counts.free_blocks),
            Some(session) => (session.space.counts(), session.usable_blocks()),
        };
        let reserved = self.session.as_ref().map_or(0, |session| session.reserved.blocks());
        let unfreed = self.session.as_ref().map_or(0, |session| session.unfreed.count() as u64);
        let used = counts.inodes.saturating_sub(counts.free_inodes).saturating_sub(unfreed);
        let percent = u64::from(if sb.inode_max_percent == 0 { 100 } else { sb.inode_max_percent.min(100) });
        let most = (sb.blocks / 100).saturating_mul(percent) << sb.inopb_bits;
        let free = counts.free_blocks.min(sb.blocks);
        let files = counts.inodes.saturating_add(free << sb.inopb_bits).min(most.max(counts.inodes));
        // As Linux: blocks that no file can get do not count as free. When none is left, writes must fail.
        let available = usable.min(free).saturating_sub(reserved);
        Ok(StatFs {
            block_size: sb.block_size,
            blocks: sb.blocks - u64::from(sb.log_blocks).min(sb.blocks),
            blocks_free: available,
            blocks_available: available,
            files,
            files_free: files - used.min(files),
            name_max: NAME_MAX as u32,
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
        if self.is_persistent {
            facts.extend(self.epoch.describe());
        }
        facts
    }

    fn sync(&self) -> Result<()> {
        match &self.session {
            None => Ok(()),
            Some(session) => {
                self.free_waiting()?;
                session.commits.commit().map_err(journal_error)
            }
        }
    }

    fn evict_blocks(&self, bytes: u64) {
        self.cache.evict(bytes);
    }

    fn reclaim_space(&self) -> Result<bool> {
        // What uncommitted transactions freed is free for data after their commit.
        let Some(session) = &self.session else { return Ok(false) };
        let has_unfreed = session.unfreed.count() > 0;
        self.free_waiting()?;
        let waits = session.space.busy_blocks() > 0;
        if waits {
            session.commits.journal().commit_all().map_err(journal_error)?;
        }
        Ok(has_unfreed || waits)
    }

    fn abort(&self, why: &Error) {
        if let Some(session) = &self.session {
            session.commits.journal().abort(why);
            log::error!("{}: the journal is aborted: {why}; repair the cause and mount again", self.place);
        }
    }

    fn unmount(&self) -> Result<()> {
        match &self.session {
            Some(session) if !session.closed.swap(true, Ordering::AcqRel) => self.close(session),
            _ => Ok(()),
        }
    }

    fn xattrs(&self) -> Option<&dyn XattrOps> {
        Some(self)
    }

    fn unnamed_files(&self) -> Option<&dyn UnnamedFileOps> {
        Some(self)
    }

    fn block_map(&self) -> Option<&dyn BlockMapOps> {
        Some(self)
    }

    fn allocation(&self) -> Option<&dyn AllocateOps> {
        Some(self)
    }

    fn clones(&self) -> Option<&dyn CloneOps> {
        self.sb.ro_compat.contains(RoCompat::REFLINK).then_some(self as &dyn CloneOps)
    }

    fn epochs(&self) -> Option<&dyn EpochOps> {
        self.is_persistent.then_some(self as &dyn EpochOps)
    }

    fn journal(&self) -> Option<&dyn JournalOps> {
        Some(self)
    }
}

impl InodeOps for Xfs {
    fn load_inode(&self, ino: Ino) -> Result<LoadedInode> {
        self.load(ino.0)
    }

    fn prepare_setattr(&self, _caller: &Cred, inode: &Inode, _old: &Attr, new: &mut Attr) -> Result<()> {
        core_of(inode).round(new)
    }

    fn log_inode(&self, inode: &Inode) -> Result<()> {
        self.log_attributes(inode)
    }

    fn delete_inode(&self, inode: &Inode) -> Result<()> {
        self.free_unlinked(inode)
    }

    fn evict_inode(&self, inode: &Inode) {
        // A write past the end may have left a reservation for the block with the old end.
        if inode.kind == FileType::Regular {
            self.release_range(inode, FileBlock(0)..FileBlock(FILE_BLOCKS_END));
            self.forget_window(inode);
        }
    }

    fn fsync(&self, inode: &Inode, _data_only: bool) -> Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        // fsync of a directory covers every change so far.
        let own = (inode.kind == FileType::Regular).then(|| &private_of(inode).last_change);
        session.commits.commit_changes(own).map_err(journal_error)
    }

    fn commit_inode(&self, inode: &Inode) -> Result<()> {
        let Some(session) = &self.session else { return Ok(()) };
        session.commits.commit_logged(&private_of(inode).last_change).map_err(journal_error)
    }

    fn read_link(&self, _caller: &Cred, inode: &Inode) -> Result<Vec<u8>> {
        self.link_target(&core_of(inode))
    }
}

impl JournalOps for Xfs {
    fn written(&self) -> (u64, u64) {
        self.session.as_ref().map_or((0, 0), |session| {
            let stats = session.commits.journal().stats();
            (stats.journal_blocks, stats.journal_bytes)
        })
    }
}
