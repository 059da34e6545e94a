//! Finding the chunks, which lead from logical addresses to devices.

use crate::layout::chunk::Chunk;
use crate::layout::key::{Key, kind, object};
use crate::layout::raw::RawKey;
use crate::tree::{Forest, Tree};
use crate::volume::{CHUNKS_MAX, Volume};
use ivers_block::Budget;
use ivers_vfs::{Error, Result};
use std::mem::size_of;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Finds all chunks: those in the superblock lead to the tree of chunks, which has the others.
pub(crate) fn open_chunks(volume: Volume, budget: Arc<Budget>) -> Result<Forest> {
    let sb = volume.sb.clone();
    let place = volume.place.clone();
    let cut = || Error::corrupt("the array of system chunks is cut off", format!("{place}, superblock"));
    let mut array = &sb.sys_chunks[..];
    while !array.is_empty() {
        let (head, rest) = array.split_at_checked(size_of::<RawKey>()).ok_or_else(cut)?;
        let key: RawKey = crate::layout::bytes::read(head, 0).ok_or_else(cut)?;
        let len = Chunk::item_bytes(rest).ok_or_else(cut)?;
        let (item, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        volume.add_chunk(key.offset.get(), item)?;
        array = rest;
    }
    let forest = Forest::new(volume, budget);
    let tree = Tree { id: object::CHUNK_TREE, root: sb.chunk_root };
    let key = |offset| Key::new(object::FIRST_CHUNK_TREE, kind::CHUNK_ITEM, offset);
    let mut found = Vec::new();
    forest.scan(&tree, key(0), key(u64::MAX), |key, data| {
        found.push((key.offset, data.to_vec()));
        // `add_chunk` refuses one more than it keeps.
        Ok(if found.len() > CHUNKS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    for (start, item) in found {
        forest.volume.add_chunk(start, &item)?;
    }
    Ok(forest)
}
