//! How pools of claims are filled, and how claimed blocks are allocated.

use super::claims::Claim;
use super::find::GroupRequest;
use super::tx::Tx;
use crate::layout::owner::Owner;
use crate::layout::superblock::FsBlock;
use crate::unit::Whose;
use ivers_vfs::Result;

/// A pool has at most so many bytes, and at most 1/`POOL_PART` of the free space of the group.
const POOL_BYTES: u32 = 1 << 20;
const POOL_PART: u32 = 16;

impl Tx<'_> {
    /// Fills the pool of the group with a block, as near to the block as possible.
    pub(crate) fn fill_pool(&mut self, near: FsBlock) -> Result<()> {
        let sb = &self.space().sb;
        let (ag, goal) = sb.ag_of(near);
        if ag >= sb.ag_count {
            return Ok(());
        }
        let blocks = (POOL_BYTES >> sb.block_bits).min(self.unreserved(ag)?.unwrap_or(0) / POOL_PART);
        if blocks == 0 {
            return Ok(());
        }
        // An owner that is a file: so the pool gets no busy blocks.
        let owner = Owner::data(sb.root, 0);
        let request = GroupRequest::new(owner, goal, (blocks.div_ceil(2), blocks), sb.ag_len(ag));
        if let Some((_, found)) = self.find_free(ag, request)? {
            self.space().claims.fill(ag, found);
        }
        Ok(())
    }

    /// Allocates claimed blocks. Returns false, and changes nothing, if the group has too few free blocks for
    /// its B-trees.
    pub(super) fn allocate_claim(&mut self, claim: &Claim<'_>, owner: Owner) -> Result<bool> {
        let (ag, blocks) = (claim.ag, claim.extent);
        // The claim does not count as usable.
        if self.unreserved(ag)?.is_none() {
            return Ok(false);
        }
        self.fix_free_list(ag)?;
        let extent = self.free_at_or_before(ag, blocks.start)?;
        let Some(extent) = extent.filter(|extent| extent.end() >= blocks.end()) else {
            return Err(self.space().corrupt("claimed blocks are not free", Whose::Group(ag)));
        };
        self.cut_free(ag, extent, blocks)?;
        self.map_in_group(ag, blocks, owner)?;
        Ok(true)
    }
}
