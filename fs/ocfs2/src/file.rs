//! Contents of files.

use crate::layout::dinode::{Dinode, ID2_AT, INLINE_AT};
use crate::volume::Ocfs2;
use ivers_vfs::{MappedRange, RangeKind, Result};

/// Longest target of a symbolic link.
const LINK_TARGET_MAX: u64 = 4096;

impl Ocfs2 {
    /// Fills `buf` from a byte of a file on. What is past the end is zeros.
    pub(crate) fn read_file(&self, file: &Dinode, offset: u64, buf: &mut [u8]) -> Result<()> {
        let inside = file.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (buf, past_end) = buf.split_at_mut(inside);
        past_end.fill(0);
        if file.is_inline() {
            let block = self.block_of(file)?;
            let data = &block[INLINE_AT..INLINE_AT + file.size as usize];
            let start = offset.min(file.size) as usize;
            buf.copy_from_slice(&data[start..start + buf.len()]);
            return Ok(());
        }
        self.read_mapped(offset, buf, |cluster| self.map(file, cluster))
    }

    /// Returns what is at a byte of a file, and how far.
    pub(crate) fn map_file(&self, file: &Dinode, offset: u64) -> Result<MappedRange> {
        let size = u64::from(self.sb.cluster_size());
        let (cluster, clusters) = (offset / size, file.size.div_ceil(size));
        let start = cluster * size;
        if cluster >= clusters {
            return Ok(MappedRange { start, len: u64::MAX - start, kind: RangeKind::Hole });
        }
        if file.is_inline() {
            return Ok(MappedRange { start: 0, len: size, kind: RangeKind::Data });
        }
        let run = self.map(file, cluster)?;
        let kind = match (run.start, run.unwritten) {
            (None, _) => RangeKind::Hole,
            (_, true) => RangeKind::Unwritten,
            _ => RangeKind::Data,
        };
        Ok(MappedRange { start, len: run.clusters.min(clusters - cluster) * size, kind })
    }

    /// Returns the target of a symbolic link.
    pub(crate) fn link_target(&self, link: &Dinode) -> Result<Vec<u8>> {
        if !link.is_fast_link() {
            if link.size > LINK_TARGET_MAX {
                let what = format!("its target has {} bytes, more than {LINK_TARGET_MAX}", link.size);
                return Err(self.corrupt(link.ino, what));
            }
            let mut target = vec![0; link.size as usize];
            self.read_file(link, 0, &mut target)?;
            return Ok(target);
        }
        let block = self.block_of(link)?;
        let area = &block[ID2_AT..block.len() - link.inline_xattr_bytes()];
        let target = usize::try_from(link.size).ok().and_then(|size| area.get(..size));
        let what = "its target does not fit into the inode";
        Ok(target.ok_or_else(|| self.corrupt(link.ino, what))?.to_vec())
    }
}
