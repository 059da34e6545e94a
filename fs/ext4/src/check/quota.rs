//! Quota files: the usage that they record, against that of the inodes.
//!
//! The layout is that of the quota tools (quotatree, version 1): blocks of 1 KiB. Block 1 is the root of a
//! tree of four levels, each indexed by one byte of the id. Its leaves are blocks of entries.

use super::map::{self, Run};
use super::state::{Checker, Slot, Usage, kind};
use crate::dir::linear::{le16, le32};
use crate::layout::features::{Compat, Incompat, RoCompat};
use crate::layout::inode::FL_EA_INODE;
use crate::layout::superblock::STATE_VALID;
use ivers_block::ByteOffset;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::BTreeSet;

/// Reserved inodes of quota files.
const USER_QUOTA_INO: u32 = 3;
const GROUP_QUOTA_INO: u32 = 4;
/// Bytes of a block of a quota file.
const BLOCK: usize = 1024;
/// Bytes of the header of a block of entries.
const HEADER: usize = 16;
/// Bytes of an entry.
const ENTRY: usize = 72;
/// Levels of the tree.
const DEPTH: u32 = 4;
/// Taken by the number of a block, with its share of a tree's node.
const NUMBER_BYTES: usize = 16;
/// Runs of a quota file that are read.
const MAX_RUNS: usize = 1 << 20;

/// Magic numbers and names, in the order of `Checker::usage`.
const KINDS: [(u32, &str); 3] = [(0xD9C0_1F11, "user"), (0xD9C0_1927, "group"), (0xD9C0_3F14, "project")];

/// A quota file: its runs of blocks, and the blocks of the tree that were visited.
struct File {
    nth: usize,
    place: Place,
    runs: Vec<Run>,
    nodes: BTreeSet<u32>,
    leaves: BTreeSet<u32>,
}

impl Checker {
    fn quota_inodes(&self) -> [u32; 3] {
        [self.raw.s_usr_quota_inum.get(), self.raw.s_grp_quota_inum.get(), self.raw.s_prj_quota_inum.get()]
    }

    /// Whether an inode is a quota file.
    pub(super) fn is_quota_file(&self, ino: u32) -> bool {
        self.sb().ro_compat.contains(RoCompat::QUOTA) && self.quota_inodes().contains(&ino)
    }

    /// Adds an inode in use, of `blocks_512` blocks of 512 bytes, to the usage of its owners.
    pub(super) fn count_usage(&mut self, inode: &Slot, blocks_512: u64) {
        let special = self.inodes.kind(inode.ino) & kind::SPECIAL != 0;
        if special || inode.flags() & FL_EA_INODE != 0 || !self.sb().ro_compat.contains(RoCompat::QUOTA) {
            return;
        }
        let raw = &inode.raw;
        let uid = u32::from(raw.i_uid.get()) | u32::from(raw.i_uid_high.get()) << 16;
        let gid = u32::from(raw.i_gid.get()) | u32::from(raw.i_gid_high.get()) << 16;
        for (usage, id) in self.usage.iter_mut().zip([uid, gid, raw.i_projid.get()]) {
            let usage = usage.entry(id).or_default();
            usage.inodes += 1;
            usage.bytes = usage.bytes.saturating_add(blocks_512.saturating_mul(512));
        }
    }

    /// Compares the quota files with the usage that the scan of the inodes counted.
    pub(super) fn check_quotas(&mut self) -> Result<()> {
        let sb = self.sb();
        if !sb.ro_compat.contains(RoCompat::QUOTA) {
            return Ok(());
        }
        for (nth, ino) in self.quota_inodes().into_iter().enumerate().filter(|(_, ino)| *ino != 0) {
            let reserved = [USER_QUOTA_INO, GROUP_QUOTA_INO].contains(&ino);
            if ino > sb.inodes_count() || ino < sb.first_ino && !reserved {
                let what = format!("the superblock names inode {ino} as a quota file");
                self.bad("quota-inode-invalid", Place::filesystem(), what);
            } else {
                self.check_quota_file(nth, ino)?;
            }
        }
        Ok(())
    }

    fn check_quota_file(&mut self, nth: usize, ino: u32) -> Result<()> {
        let sb = self.sb();
        let place = Place::inode(ino);
        let (magic, name) = KINDS[nth];
        let Some(slot) = self.slot(ino)?.filter(Slot::is_regular) else {
            let what = format!("the {name} quota file is no regular file");
            self.bad("quota-file-invalid", place, what);
            return Ok(());
        };
        let mut runs = map::run_list(&self.reader, &slot, MAX_RUNS)?;
        runs.sort_unstable();
        let mut file =
            File { nth, place: place.clone(), runs, nodes: BTreeSet::new(), leaves: BTreeSet::new() };
        let header = self.quota_block(&file, 0)?;
        if header.as_ref().is_none_or(|head| le32(head, 0) != magic || le32(head, 4) != 1) {
            let what = format!("the {name} quota file has no header of version 1");
            self.bad("quota-file-invalid", place, what);
            return Ok(());
        }
        self.quota_node(&mut file, 1, 0)?;
        if sb.incompat.contains(Incompat::EA_INODE) {
            self.found.note("quota usage is not compared: values of attributes count for several owners");
            return Ok(());
        }
        if self.raw.s_state.get() & STATE_VALID == 0 && !sb.compat.contains(Compat::HAS_JOURNAL) {
            self.found.note("quota usage is not compared: the filesystem was not unmounted");
            return Ok(());
        }
        let mut counted = std::mem::take(&mut self.usage[nth]);
        for leaf in std::mem::take(&mut file.leaves) {
            let Some(bytes) = self.quota_block(&file, leaf)? else { continue };
            for entry in bytes[HEADER..].chunks_exact(ENTRY).filter(|entry| entry.iter().any(|&b| b != 0)) {
                let stored = Usage { inodes: le64(entry, 24), bytes: le64(entry, 48) };
                let id = le32(entry, 0);
                self.compare_usage(&file, id, stored, counted.remove(&id).unwrap_or_default());
            }
        }
        for (id, usage) in counted {
            self.compare_usage(&file, id, Usage::default(), usage);
        }
        Ok(())
    }

    fn compare_usage(&mut self, file: &File, id: u32, stored: Usage, counted: Usage) {
        if stored != counted {
            let what = format!(
                "{} {id} has {} inodes and {} bytes in the quota file, counted {} and {}",
                KINDS[file.nth].1, stored.inodes, stored.bytes, counted.inodes, counted.bytes
            );
            self.bad("quota-usage-wrong", file.place.clone(), what);
        }
    }

    /// Visits a block of the tree and those below it.
    fn quota_node(&mut self, file: &mut File, block: u32, depth: u32) -> Result<()> {
        let Some(bytes) = self.quota_block(file, block)? else {
            let what = format!("the quota file has no block {block}, to which its tree refers");
            self.bad("quota-file-invalid", file.place.clone(), what);
            return Ok(());
        };
        if depth == DEPTH {
            if usize::from(le16(&bytes, 8)) > (BLOCK - HEADER) / ENTRY {
                let what = format!("block {block} of the quota file has too many entries");
                self.bad("quota-file-invalid", file.place.clone(), what);
            }
            file.leaves.insert(block);
            return Ok(());
        }
        if !file.nodes.insert(block) {
            let what = format!("two references in the quota file lead to its block {block}");
            self.bad("quota-file-invalid", file.place.clone(), what);
            return Ok(());
        }
        self.charge((file.nodes.len() + file.leaves.len()) * NUMBER_BYTES)?;
        for below in bytes.chunks_exact(4).map(|word| le32(word, 0)).filter(|&below| below != 0) {
            self.quota_node(file, below, depth + 1)?;
        }
        Ok(())
    }

    /// Reads a block of a quota file; `None` for a hole.
    fn quota_block(&self, file: &File, block: u32) -> Result<Option<Vec<u8>>> {
        let block_bytes = u64::from(self.reader.sb.block_size);
        let at = u64::from(block) * BLOCK as u64;
        let Some(found) = map::find(&file.runs, at / block_bytes) else { return Ok(None) };
        let mut bytes = vec![0; BLOCK];
        let offset = found * block_bytes + at % block_bytes;
        self.reader.dev.read_at(ByteOffset(offset), &mut bytes)?;
        Ok(Some(bytes))
    }
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from(le32(bytes, at)) | u64::from(le32(bytes, at + 4)) << 32
}
