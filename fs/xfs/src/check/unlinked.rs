//! Lists of unlinked inodes: files that were open without a name when the system stopped.

use super::state::{Checker, kind};
use crate::layout::bytes::NULL_AGINO;
use crate::layout::chunk::CHUNK_INODES;
use ivers_vfs::Result;
use ivers_vfs::check::Place;

const LISTS: u32 = 64;

impl Checker {
    pub(super) fn check_unlinked(&mut self) -> Result<()> {
        for ag in 0..self.sb.ag_count {
            let Some(agi) = self.groups[ag as usize].agi.clone() else { continue };
            for (list, head) in agi.agi_unlinked.iter().enumerate() {
                self.check_list(ag, list as u32, head.get())?;
            }
        }
        if self.orphans > 0 {
            self.found.note(format!("{} unlinked inodes: the next mount frees them", self.orphans));
        }
        self.check_stray_links()
    }

    fn check_list(&mut self, ag: u32, list: u32, head: u32) -> Result<()> {
        let mut next = head;
        while next != NULL_AGINO {
            let ino = self.sb.ino(ag, next);
            let (found, links) =
                self.chunk(ino).map_or((0, 0), |(chunk, at)| (chunk.kinds[at], chunk.links[at]));
            let place = Place { inode: Some(ino), ..Place::group(ag) };
            let what = if next % LISTS != list {
                "an unlinked inode is on the wrong list"
            } else if found == 0 && self.may_exist(ino) {
                return Ok(());
            } else if found == 0 {
                "a list of unlinked inodes has one that is free"
            } else if found & kind::ORPHAN != 0 {
                "a list of unlinked inodes has one twice"
            } else if links != 0 && found & kind::TYPE != kind::UNKNOWN {
                "a list of unlinked inodes has one with links"
            } else {
                ""
            };
            if !what.is_empty() {
                self.bad("unlinked-list-invalid", place, what);
                return Ok(());
            }
            self.orphans += 1;
            self.add_flag(ino, kind::ORPHAN);
            next = match self.slot(ino)? {
                Some(slot) => slot.raw.di_next_unlinked.get(),
                None => NULL_AGINO,
            };
        }
        Ok(())
    }

    /// Inodes that are on no list have no next one.
    fn check_stray_links(&mut self) -> Result<()> {
        let mut stray = Vec::new();
        for (first, chunk) in &self.chunks {
            for at in 0..CHUNK_INODES as usize {
                if chunk.kinds[at] & (kind::HAS_NEXT | kind::ORPHAN) == kind::HAS_NEXT {
                    stray.push(first + at as u64);
                }
            }
        }
        for ino in stray {
            let what = "di_next_unlinked is set, the inode is on no list";
            self.bad("inode-field-wrong", Place::inode(ino), what);
        }
        Ok(())
    }
}
