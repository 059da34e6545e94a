//! Orphans: the list that starts in the superblock, and the orphan file. Their inodes are in use, but have no
//! name, or an unfinished truncation.

use super::map;
use super::state::{Checker, Slot, kind};
use crate::dir::linear::le32;
use crate::layout::csum::crc32c;
use crate::layout::features::{Compat, RoCompat};
use crate::layout::group::INODE_UNINIT;
use ivers_vfs::Result;
use ivers_vfs::check::Place;
use std::collections::HashSet;

/// Magic number at the end of each block of the orphan file.
const FILE_MAGIC: u32 = 0x0B10_CA04;
/// Orphans that are followed.
const MAX_ORPHANS: usize = 1 << 20;

impl Checker {
    /// Marks all orphans.
    pub(super) fn check_orphans(&mut self) -> Result<()> {
        let sb = self.sb();
        let mut seen = HashSet::new();
        let mut ino = self.raw.s_last_orphan.get();
        while ino != 0 {
            let known = ino >= sb.first_ino && ino <= sb.inodes_count();
            if !known || !seen.insert(ino) || seen.len() > MAX_ORPHANS {
                let what = format!("the list of orphans leads to inode {ino}");
                self.bad("orphan-list-invalid", Place::filesystem(), what);
                return Ok(());
            }
            let Some(slot) = self.slot(ino)? else { return Ok(()) };
            if slot.mode() == 0 {
                let what = format!("inode {ino} on the list of orphans is not in use");
                self.bad("orphan-list-invalid", Place::filesystem(), what);
                return Ok(());
            }
            self.inodes.add_flag(ino, kind::ORPHAN);
            ino = slot.raw.i_dtime.get();
        }
        if !seen.is_empty() {
            self.found.note(format!("orphans on the list: {}; the next mount removes them", seen.len()));
        }
        if sb.compat.contains(Compat::ORPHAN_FILE) && sb.orphan_file_inum != 0 {
            self.check_orphan_file()?;
        }
        Ok(())
    }

    /// Whether the bitmap says that an inode is in use.
    fn is_marked_used(&self, ino: u32) -> Result<bool> {
        let (group, index) = self.reader.sb.group_of_inode(ino);
        let Some(desc) = self.descs.get(group as usize) else { return Ok(false) };
        if desc.flags & INODE_UNINIT != 0 {
            return Ok(false);
        }
        let bitmap = self.reader.block(desc.inode_bitmap.0)?.unwrap_or_default();
        Ok(bitmap.get(index as usize / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1))
    }

    fn check_orphan_file(&mut self) -> Result<()> {
        let sb = self.sb();
        let ino = sb.orphan_file_inum;
        let place = Place::inode(ino);
        let Some(slot) = self.slot(ino)?.filter(Slot::is_regular) else {
            self.bad("orphan-file-invalid", place, "the orphan file is no regular file");
            return Ok(());
        };
        let present = sb.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
        let seed = self.reader.seed(&slot);
        let mut count = 0;
        for (_, first, len) in map::run_list(&self.reader, &slot, 1 << 16)? {
            for block in first..first + len {
                let Some(bytes) = self.reader.block(block)? else { continue };
                let tail = bytes.len() - 8;
                let place = place.clone().at(block);
                if le32(&bytes, tail) != FILE_MAGIC {
                    self.bad("orphan-file-invalid", place, "a block of the orphan file has no magic number");
                    continue;
                }
                if sb.has_csum() {
                    let start = crc32c(seed, &block.to_le_bytes());
                    if crc32c(start, &bytes[..tail]) != le32(&bytes, tail + 4) {
                        let what = "the checksum of a block of the orphan file is wrong";
                        self.bad("orphan-file-checksum-wrong", place.clone(), what);
                    }
                }
                for at in (0..tail).step_by(4) {
                    let orphan = le32(&bytes, at);
                    if orphan == 0 {
                        continue;
                    }
                    let known = orphan >= sb.first_ino && orphan <= sb.inodes_count();
                    if known && !self.is_marked_used(orphan)? {
                        // e2fsck 1.47.0 -p frees an orphan and leaves its entry.
                        continue;
                    }
                    count += 1;
                    if !known {
                        let what = format!("the orphan file names inode {orphan}");
                        self.bad("orphan-file-invalid", place.clone(), what);
                    } else {
                        self.inodes.add_flag(orphan, kind::ORPHAN);
                    }
                }
            }
        }
        if count > 0 && !present {
            let what = format!("the orphan file has {count} orphans, but orphan_present is not set");
            self.bad("orphan-file-invalid", place, what);
        } else if count > 0 {
            self.found.note(format!("orphans in the orphan file: {count}; the next mount removes them"));
        }
        Ok(())
    }
}
