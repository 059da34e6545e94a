//! Mapping a file of a new filesystem by indirect blocks, for ext2 and ext3.

use super::write::Maker;
use crate::layout::inode::InodeImage;
use ivers_block::BlockNo;
use ivers_vfs::{Error, Result};

/// Block pointers in the inode before the indirect ones.
const DIRECT: usize = 12;

/// Maps these blocks in order. Writes the indirect blocks and returns their number.
pub(super) fn map(maker: &mut Maker<'_>, image: &mut InodeImage, blocks: &[BlockNo]) -> Result<u64> {
    let (direct, rest) = blocks.split_at(blocks.len().min(DIRECT));
    for (index, &block) in direct.iter().enumerate() {
        put_pointer(&mut image.i_block, index, block)?;
    }
    let per_block = maker.block_size() / 4;
    let goal = blocks.last().copied().unwrap_or_default();
    let (single, rest) = rest.split_at(rest.len().min(per_block));
    let mut used = 0;
    if !single.is_empty() {
        put_pointer(&mut image.i_block, DIRECT, write_pointers(maker, goal, single)?)?;
        used += 1;
    }
    if rest.len() > per_block * per_block {
        return Err(Error::Incompatible(format!("a file of {} blocks is too large", blocks.len())));
    }
    if !rest.is_empty() {
        let leaves = rest.chunks(per_block).map(|pointers| write_pointers(maker, goal, pointers));
        let leaves = leaves.collect::<Result<Vec<BlockNo>>>()?;
        put_pointer(&mut image.i_block, DIRECT + 1, write_pointers(maker, goal, &leaves)?)?;
        used += leaves.len() as u64 + 1;
    }
    Ok(used)
}

/// Allocates and writes one block of pointers.
fn write_pointers(maker: &mut Maker<'_>, goal: BlockNo, pointers: &[BlockNo]) -> Result<BlockNo> {
    let mut bytes = vec![0; maker.block_size()];
    for (index, &pointer) in pointers.iter().enumerate() {
        put_pointer(&mut bytes, index, pointer)?;
    }
    let block = maker.space.allocate(goal, 1)?;
    maker.put(block, &bytes)?;
    Ok(block)
}

fn put_pointer(bytes: &mut [u8], index: usize, block: BlockNo) -> Result<()> {
    let number = u32::try_from(block.0)
        .map_err(|_| Error::Incompatible(format!("block {block} is too large for an indirect block")))?;
    bytes[index * 4..index * 4 + 4].copy_from_slice(&number.to_le_bytes());
    Ok(())
}
