//! The scrub: reads all copies of everything that has a checksum, and mends bad copies.

use super::checksums::ChecksumTree;
use super::extents::ExtentTree;
use super::start::{open, root_of};
use super::state::{Checker, Mending, Root};
use super::walk::Nothing;
use crate::layout::key::object;
use ivers_block::Device;
use ivers_vfs::Result;
use ivers_vfs::check::{Findings, Memory};
use std::sync::Arc;

/// The result of a scrub.
#[derive(Debug)]
pub struct Scrubbed {
    /// Bad copies that were mended, and defects that were not.
    pub found: Findings,
    /// Copies of blocks of trees that were read.
    pub blocks: u64,
    /// Bytes of data, in all copies, that were compared with their checksums.
    pub data_bytes: u64,
    /// Bytes of data without a checksum, which were not read: it is unknown whether they are right.
    pub unknown_bytes: u64,
    /// Copies that were mended.
    pub mended: u64,
    /// Findings that are not mended copies.
    pub left: u64,
}

/// Reads all copies of all superblocks, blocks of trees, and data with checksums. If `writes`, mends bad
/// copies. `place` names the image in errors.
pub fn scrub(
    devices: Vec<Arc<dyn Device>>,
    writes: bool,
    degraded: bool,
    memory: Memory,
    place: &str,
) -> Result<Scrubbed> {
    let mut checker = match open(devices, degraded, memory, place)? {
        Ok(checker) => checker,
        Err(found) => {
            let left = found.total();
            return Ok(Scrubbed { found, blocks: 0, data_bytes: 0, unknown_bytes: 0, mended: 0, left });
        }
    };
    checker.mending = Some(Mending { writes, ..Mending::default() });
    checker.skip_references = Some("a scrub only reads copies");
    checker.scrub()?;
    checker.add_paths()?;
    let unknown_bytes = checker.space.data_without_sums();
    let Checker { found, mending, .. } = checker;
    let Mending { blocks, data_bytes, mended, .. } = mending.unwrap_or_default();
    let done = found.counts().iter().filter(|(code, _)| code.ends_with("-mended"));
    let left = found.total() - done.map(|(_, count)| count).sum::<u64>();
    Ok(Scrubbed { found, blocks, data_bytes, unknown_bytes, mended, left })
}

impl Checker {
    fn scrub(&mut self) -> Result<()> {
        self.mend_superblocks()?;
        let sb = &self.forest.volume.sb;
        let first = [root_of(object::ROOT_TREE, sb.root), root_of(object::CHUNK_TREE, sb.chunk_root)];
        self.walk(&first[1], &mut Nothing, false)?;
        self.check_root_tree(&first[0])?;
        let roots: Vec<Root> = self.roots.values().copied().collect();
        for root in roots {
            match root.tree.id {
                object::RELOCATION | object::CSUM_TREE => {}
                // The extent tree says which data exists. The part without checksums is reported.
                object::EXTENT_TREE => {
                    self.extents_sound = self.walk(&root, &mut ExtentTree::default(), false)?;
                }
                _ => _ = self.walk(&root, &mut Nothing, false)?,
            }
        }
        self.walk_by_id(object::CSUM_TREE, &mut ChecksumTree { with_data: true })?;
        if self.forest.volume.sb.has_log() {
            self.found.note("the log tree, which fsync leaves before a crash, is not read");
        }
        if self.mending.is_some_and(|mending| mending.mended > 0) {
            self.forest.volume.flush()?;
        }
        Ok(())
    }
}
