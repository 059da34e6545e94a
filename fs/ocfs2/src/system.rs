//! System files: which there are, who has the filesystem mounted, and the journals.

use crate::layout::bytes::{u8_at, u16_at, u32_at, u64_at};
use crate::layout::dinode::Dinode;
use crate::layout::superblock::{Stack, incompat};
use crate::volume::{Ocfs2, SystemFiles};
use ivers_journal::jbd2::{LogExtent, LogMap};
use ivers_vfs::{Error, FileType, NameError, Result};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Most system files: seven, and eight for each of 255 slots. Others are not looked at.
const FILES_MAX: usize = 7 + 8 * 255 + 64;
/// Most nodes of a cluster. Each has a block of the heartbeat file.
const NODES_MAX: u64 = 255;
/// Most runs of a journal: far more than one needs.
const JOURNAL_RUNS_MAX: usize = 1 << 16;
/// The flag of a journal that holds changes.
pub(crate) const JOURNAL_DIRTY: u32 = 0x1;

impl Ocfs2 {
    /// Reads the directory of system files.
    pub(crate) fn system_files(&self) -> Result<SystemFiles> {
        let dir = self.directory(self.sb.system_dir, "the directory of system files")?;
        let mut files = BTreeMap::new();
        self.for_each_entry(&dir, 0..dir.size, |entry, _| {
            files.insert(entry.name.to_vec(), entry.ino);
            if files.len() < FILES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(SystemFiles(files))
    }

    /// Reads the inode of a directory that must exist.
    pub(crate) fn directory(&self, ino: u64, what: &str) -> Result<Dinode> {
        let dir = self.dinode(ino).map_err(|error| match error {
            Error::Name(NameError::Stale) => self.corrupt(ino, format!("{what} is not in use")),
            error => error,
        })?;
        if dir.0.kind() != Some(FileType::Directory) {
            return Err(self.corrupt(ino, format!("{what} is no directory")));
        }
        self.check_directory(&dir.0)?;
        Ok(dir.0)
    }

    /// Reads a system file that must exist.
    pub(crate) fn system_file(&self, files: &SystemFiles, name: &str) -> Result<Dinode> {
        let missing = || self.corrupt(self.sb.system_dir, format!("there is no system file {name}"));
        Ok(self.dinode(files.find(name).ok_or_else(missing)?)?.0)
    }

    /// Returns the nodes whose slots are in use, as slot and node.
    fn occupied_slots(&self, files: &SystemFiles) -> Result<Vec<(u16, u32)>> {
        let file = self.system_file(files, "slot_map")?;
        let is_extended = self.sb.has(incompat::EXTENDED_SLOT_MAP);
        let mut bytes = vec![0; usize::from(self.sb.max_slots) * if is_extended { 8 } else { 2 }];
        self.read_mapped(0, &mut bytes, |cluster| self.map(&file, cluster))?;
        let slot = |slot: u16| {
            let node = match is_extended {
                true if u8_at(&bytes, usize::from(slot) * 8) == 0 => return None,
                true => u32_at(&bytes, usize::from(slot) * 8 + 4),
                false => {
                    u32::from(Some(u16_at(&bytes, usize::from(slot) * 2)).filter(|node| *node != u16::MAX)?)
                }
            };
            Some((slot, node))
        };
        Ok((0..self.sb.max_slots).filter_map(slot).collect())
    }

    /// Reads the heartbeats of the nodes that did not leave cleanly: the node, and a number that grows.
    fn heartbeats(&self, files: &SystemFiles) -> Result<Vec<(u64, u64)>> {
        let file = self.system_file(files, "heartbeat")?;
        let size = u64::from(self.sb.block_size);
        let mut beats = Vec::new();
        for node in 0..NODES_MAX.min(file.size / size) {
            let mut bytes = [0; 32];
            self.read_mapped(node * size, &mut bytes, |cluster| self.map(&file, cluster))?;
            let (sequence, generation) = (u64_at(&bytes, 0), u64_at(&bytes, 16));
            if sequence != 0 && generation != 0 {
                beats.push((node, sequence));
            }
        }
        Ok(beats)
    }

    /// Refuses a filesystem that a node of a cluster has mounted. `wait` sleeps long enough for
    /// a living node to write its heartbeat.
    pub(crate) fn check_cluster(&self, files: &SystemFiles, wait: impl FnOnce()) -> Result<()> {
        let place = &self.place;
        match &self.sb.stack {
            Stack::Local => Ok(()),
            Stack::Elsewhere(stack) => match self.occupied_slots(files)?.first() {
                None => Ok(()),
                Some((slot, node)) => Err(Error::Incompatible(format!(
                    "{place}: node {node} of the cluster ({stack}) has it mounted in slot {slot}, or \
                     crashed: unmount it there, or run fsck.ocfs2"
                ))),
            },
            Stack::O2cb => {
                let before = self.heartbeats(files)?;
                if before.is_empty() {
                    return Ok(());
                }
                wait();
                let after = self.heartbeats(files)?;
                match after.iter().find(|beat| !before.contains(beat)) {
                    None => Ok(()),
                    Some((node, _)) => Err(Error::Incompatible(format!(
                        "{place}: node {node} of the cluster is alive: its heartbeat moves; unmount it there"
                    ))),
                }
            }
        }
    }

    /// Returns the slots whose journals hold changes, and where these journals are.
    pub(crate) fn dirty_journals(&self, files: &SystemFiles) -> Result<Vec<(u16, LogMap)>> {
        let mut dirty = Vec::new();
        for slot in 0..self.sb.max_slots {
            let file = self.system_file(files, &format!("journal:{slot:04}"))?;
            if file.id1 as u32 & JOURNAL_DIRTY != 0 {
                dirty.push((slot, self.journal_map(&file)?));
            }
        }
        Ok(dirty)
    }

    /// Returns the inode of the journal of a slot, and where it is.
    pub(crate) fn journal_of(&self, files: &SystemFiles, slot: u16) -> Result<(u64, LogMap)> {
        let file = self.system_file(files, &format!("journal:{slot:04}"))?;
        Ok((file.ino, self.journal_map(&file)?))
    }

    fn journal_map(&self, file: &Dinode) -> Result<LogMap> {
        let bad = |what: &str| self.corrupt(file.ino, format!("the journal {what}"));
        let per_cluster = self.sb.blocks_per_cluster;
        let clusters = file.size / u64::from(self.sb.cluster_size());
        let (mut cluster, mut found) = (0, Vec::new());
        while cluster < clusters {
            let run = self.map(file, cluster)?;
            let start = run.start.filter(|_| !run.unwritten).ok_or_else(|| bad("has a hole"))?;
            let count = run.clusters.min(clusters - cluster);
            let blocks = |clusters: u64| u32::try_from(clusters * u64::from(per_cluster)).ok();
            let (log_block, len) = blocks(cluster).zip(blocks(count)).ok_or_else(|| bad("is too long"))?;
            if found.len() == JOURNAL_RUNS_MAX {
                return Err(bad("has too many extents"));
            }
            found.push(LogExtent { log_block, fs_block: ivers_block::BlockNo(start), len });
            cluster += count;
        }
        Ok(LogMap::new(found))
    }
}
