//! Inodes: their fields, and the fragments that they own.

use super::reader::Pointer;
use super::state::{Checker, DT_DIR, Directory, Seen};
use crate::layout::dinode::Dinode;
use crate::layout::directory::UNIT_BYTES;
use crate::layout::group::Group;
use crate::layout::superblock::ROOT;
use ivers_vfs::check::Place;
use ivers_vfs::{FileType, Result};

/// Pointers of a snapshot that are marks: a block that was free, and one that another snapshot owns.
const SNAPSHOT_MARKS: u64 = 2;

impl Checker {
    /// Reads all inodes, and claims what they own.
    pub(super) fn check_inodes(&mut self) -> Result<()> {
        for group in 0..self.sb.groups {
            let descriptor = self.reader.read_block(self.sb.structure(group, 1))?;
            let count = match Group::parse(&descriptor, &self.sb, group) {
                Ok(parsed) => parsed.initialized_inodes,
                Err(_) => self.sb.inodes_per_group,
            };
            let first = group * self.sb.inodes_per_group;
            let mut seen: Option<Box<[Seen]>> = None;
            let per_block = self.sb.block_size / self.sb.inode_size();
            for start in (0..count).step_by(per_block as usize) {
                let (fragment, _) = self.sb.inode_place(first + start);
                let bytes = self.reader.read_block(fragment)?;
                let slots = bytes.chunks_exact(self.sb.inode_size() as usize);
                for (nth, slot) in (start..count).zip(slots) {
                    let ino = first + nth;
                    if ino < ROOT {
                        continue;
                    }
                    if let Some(found) = self.check_inode(slot, ino)? {
                        let all = seen.get_or_insert_with(|| {
                            vec![Seen::default(); self.sb.inodes_per_group as usize].into()
                        });
                        all[nth as usize] = found;
                    }
                }
            }
            self.inodes[group as usize] = seen;
            self.charge(0)?;
        }
        Ok(())
    }

    fn check_inode(&mut self, slot: &[u8], ino: u32) -> Result<Option<Seen>> {
        let inode = match Dinode::parse(slot, &self.sb, ino) {
            Ok(None) => return Ok(None),
            Ok(Some(inode)) => inode,
            Err(what) => {
                self.bad("inode-invalid", Place::inode(ino), what);
                return Ok(Some(Seen { kind: 0xFF, damaged: true, ..Seen::default() }));
            }
        };
        let kind = (inode.mode >> 12) as u8;
        let mut seen = Seen { names: 0, links: inode.links, kind, damaged: false };
        if inode.kind() == Some(FileType::Directory) {
            self.directories.push(Directory { ino, parent: 0, dotdot: 0 });
            let most = (self.sb.size * u64::from(self.sb.fragment_size)).min(i32::MAX as u64);
            if inode.size == 0 || !inode.size.is_multiple_of(UNIT_BYTES as u64) || inode.size > most {
                let what = format!("the directory has {} bytes", inode.size);
                self.bad("directory-size-wrong", Place::inode(ino), what);
                seen.damaged = true;
            }
        }
        let mut frags = 0;
        if inode.has_blocks() {
            let reader = self.reader.clone();
            reader.for_each_pointer(&inode, &mut |pointer| match self.claim_pointer(&inode, pointer) {
                Some(count) => {
                    frags += count;
                    count > 0
                }
                None => {
                    seen.damaged = true;
                    false
                }
            })?;
        }
        let block_size = u64::from(self.sb.block_size);
        for (nth, start) in (0..).zip(inode.attributes) {
            let bytes = u64::from(inode.attributes_size).saturating_sub(nth * block_size).min(block_size);
            let count = bytes.div_ceil(self.sb.fragment_size.into());
            if (count, start) == (0, 0) {
                continue;
            }
            seen.damaged |= !self.claim(ino, start, count.max(1));
            frags += count.max(1);
        }
        let counted = frags * u64::from(self.sb.fragment_size / 512);
        if !seen.damaged && inode.blocks_512 != counted {
            let what = format!("di_blocks is {}, the inode has {counted}", inode.blocks_512);
            self.bad("inode-block-count-wrong", Place::inode(ino), what);
            self.block_counts.push((ino, counted));
        }
        Ok(Some(seen))
    }

    /// Claims what a pointer leads to. Returns how many fragments that are: 0 for a mark of a snapshot, and
    /// `None` if the pointer is wrong.
    fn claim_pointer(&mut self, inode: &Dinode, pointer: Pointer) -> Option<u64> {
        if inode.is_snapshot() && pointer.start <= SNAPSHOT_MARKS {
            return Some(0);
        }
        let blocks = inode.size.div_ceil(self.sb.block_size.into());
        if pointer.block >= blocks {
            let what = format!("a pointer to block {} is past the end of the file", pointer.block);
            self.bad("block-past-end", Place::inode(inode.ino).at(pointer.start), what);
            if self.past_end.last() != Some(&inode.ino) {
                self.past_end.push(inode.ino);
            }
            return None;
        }
        let frags = match pointer.level {
            0 => self.sb.frags_of_block(inode.size, pointer.block),
            _ => self.sb.frags_per_block.into(),
        };
        self.claim(inode.ino, pointer.start, frags).then_some(frags)
    }

    /// Claims fragments for an inode. Returns whether that is right.
    fn claim(&mut self, ino: u32, start: u64, frags: u64) -> bool {
        let per_block = u64::from(self.sb.frags_per_block);
        let (code, what) = if start.checked_add(frags).is_none_or(|end| end > self.sb.size) {
            ("block-out-of-range", format!("fragment {start} is outside the filesystem"))
        } else if start % per_block + frags > per_block {
            ("block-misaligned", format!("{frags} fragments from {start} on cross the end of a block"))
        } else {
            match self.owned.set_run(start, frags) {
                None => return true,
                Some(taken) if self.sb.is_structure(taken) => {
                    ("block-in-metadata", format!("fragment {taken} belongs to the filesystem itself"))
                }
                Some(taken) => ("block-claimed-twice", format!("fragment {taken} has another owner, too")),
            }
        };
        self.bad(code, Place::inode(ino).at(start), what);
        false
    }

    /// Compares link counts with names, and finds inodes and directories that no name leads to.
    pub(super) fn check_links(&mut self) -> Result<()> {
        let mut orphans = 0;
        for group in 0..self.sb.groups {
            let Some(inodes) = self.inodes[group as usize].take() else { continue };
            for (ino, seen) in (group * self.sb.inodes_per_group..).zip(&inodes) {
                let is_directory = seen.kind == DT_DIR;
                let has_name = !is_directory || self.directory(ino).is_some_and(|dir| dir.parent != 0);
                match seen {
                    // What is free, or was reported as invalid, has no link count.
                    Seen { kind: 0 | 0xFF, .. } => {}
                    Seen { links: 0, names: 0, .. } => orphans += 1,
                    // Reported as unconnected.
                    _ if !has_name => {}
                    Seen { names: 0, .. } => {
                        let what = format!("the inode has {} links and no name", seen.links);
                        self.bad("inode-unattached", Place::inode(ino), what);
                    }
                    _ if u32::from(seen.links) != seen.names => {
                        let what =
                            format!("the link count is {}, the inode has {} names", seen.links, seen.names);
                        self.bad("link-count-wrong", Place::inode(ino), what);
                    }
                    _ => {}
                }
            }
            self.inodes[group as usize] = Some(inodes);
        }
        if orphans > 0 {
            let inodes = if orphans == 1 { "inode has" } else { "inodes have" };
            self.found.note(format!("{orphans} {inodes} no name and no links: removed while still open"));
        }
        Ok(())
    }
}
