//! Where the clusters of a file are: trees of extents.

use crate::layout::dinode::{Dinode, ID2_AT};
use crate::layout::extents::{BLOCK_LIST_AT, ExtentList, Keys, UNWRITTEN};
use crate::layout::shape::EXTENT_BLOCK;
use crate::volume::Ocfs2;
use ivers_vfs::{Error, Result};

/// Clusters of a file that follow each other on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first block. `None` is a hole.
    pub start: Option<u64>,
    /// They are allocated and read as zeros.
    pub unwritten: bool,
    pub clusters: u64,
}

/// The owner of a tree, for errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner {
    pub ino: u64,
    pub keys: Keys,
}

impl Ocfs2 {
    /// Returns the root of the tree of an inode.
    pub(crate) fn extents(&self, inode: &Dinode) -> Result<ExtentList> {
        let block = self.block_of(inode)?;
        let end = block.len() - inode.inline_xattr_bytes();
        self.parse_list(&block[ID2_AT..end.max(ID2_AT)], Owner { ino: inode.ino, keys: Keys::Clusters })
    }

    /// Decodes the list of extents at the start of `bytes`.
    pub(crate) fn parse_list(&self, bytes: &[u8], owner: Owner) -> Result<ExtentList> {
        ExtentList::parse(bytes, &self.sb, owner.keys).map_err(|what| self.corrupt(owner.ino, what))
    }

    /// Reads a node of a tree, `depth` levels above the leaves.
    pub(crate) fn extent_block(&self, number: u64, depth: u16, owner: Owner) -> Result<ExtentList> {
        let block = self.structure(number, &EXTENT_BLOCK)?;
        let list = ExtentList::parse(&block[BLOCK_LIST_AT..], &self.sb, owner.keys);
        let list = list.map_err(|what| self.corrupt_block(number, what))?;
        if list.depth != depth {
            let what = format!("l_tree_depth of the extent block is {}, not {depth}", list.depth);
            return Err(self.corrupt_block(number, what));
        }
        Ok(list)
    }

    /// Returns the run of clusters that contains `cpos`.
    pub(crate) fn find_run(&self, root: ExtentList, owner: Owner, cpos: u32) -> Result<Run> {
        let (mut list, mut end) = (root, 1u64 << 32);
        loop {
            let (found, next) = list.find(cpos);
            end = next.map_or(end, |next| end.min(next.into()));
            let hole = Run { start: None, unwritten: false, clusters: end - u64::from(cpos) };
            let Some(found) = found else { return Ok(hole) };
            if list.depth > 0 {
                list = self.extent_block(found.start, list.depth - 1, owner)?;
                continue;
            }
            let behind = cpos - found.cpos;
            return Ok(match found.clusters.checked_sub(behind).filter(|left| *left > 0) {
                None => hole,
                Some(left) => Run {
                    start: Some(found.start + u64::from(behind) * u64::from(self.sb.blocks_per_cluster)),
                    unwritten: found.flags & UNWRITTEN != 0,
                    clusters: left.into(),
                },
            });
        }
    }

    /// Returns the run of clusters at a cluster of a file.
    pub(crate) fn map(&self, file: &Dinode, cluster: u64) -> Result<Run> {
        let cluster = u32::try_from(cluster).map_err(|_| self.corrupt(file.ino, "it is too large"))?;
        let owner = Owner { ino: file.ino, keys: Keys::Clusters };
        self.find_run(self.extents(file)?, owner, cluster)
    }

    /// Reads from a byte of what a tree maps. Holes and unwritten extents read as zeros. `map` finds the run
    /// of a cluster.
    pub(crate) fn read_mapped(
        &self,
        offset: u64,
        buf: &mut [u8],
        map: impl Fn(u64) -> Result<Run>,
    ) -> Result<()> {
        let size = u64::from(self.sb.cluster_size());
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let run = map(at / size)?;
            let mapped = run.clusters.saturating_mul(size).saturating_sub(at % size);
            let len = mapped.min((buf.len() - done) as u64) as usize;
            let part = &mut buf[done..done + len];
            match run.start {
                Some(start) if !run.unwritten => {
                    let byte = ivers_block::BlockNo(start).offset(self.sb.block_size) + at % size;
                    self.cache.device().read_at(byte, part).map_err(Error::file_data)?;
                }
                _ => part.fill(0),
            }
            done += len;
        }
        Ok(())
    }
}
