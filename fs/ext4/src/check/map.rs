//! Walks of a block map, by extents or by indirect blocks.
//!
//! A walk ends on every image: each node is entered only if the visitor agrees, and the visitor agrees once
//! for each block.

use super::state::{Reader, Slot};
use crate::layout::csum::crc32c;
use crate::layout::inode::FL_EXTENTS;
use crate::map::node::{self, Extent};
use ivers_vfs::Result;

/// What a walk meets.
pub(super) enum Met {
    /// A block of the map itself. The visitor returns whether to enter it.
    Node(u64),
    /// A run of file blocks.
    Run {
        /// The first file block.
        logical: u64,
        block: u64,
        len: u64,
        unwritten: bool,
    },
    /// A defect: code, block if known, text.
    Bad(&'static str, Option<u64>, String),
}

/// A run: its first file block, its first block and its length.
pub(super) type Run = (u64, u64, u64);

type Visit<'a> = &'a mut dyn FnMut(Met) -> bool;

/// Walks the map of an inode.
pub(super) fn walk(reader: &Reader, inode: &Slot, visit: Visit<'_>) -> Result<()> {
    let i_block = inode.raw.i_block;
    if inode.flags() & FL_EXTENTS != 0 {
        extents(reader, inode, &i_block, None, (0, 1 << 32), visit).map(drop)
    } else {
        indirect(reader, &i_block, visit)
    }
}

/// Checks a node and walks below it. `level` is the depth that its parent requires. Returns the end of the
/// last extent.
fn extents(
    reader: &Reader,
    inode: &Slot,
    bytes: &[u8],
    place: Option<(u64, u16)>,
    (low, high): (u64, u64),
    visit: Visit<'_>,
) -> Result<u64> {
    let block = place.map(|(block, _)| block);
    macro_rules! bad {
        ($code:expr, $what:expr) => {
            visit(Met::Bad($code, block, $what))
        };
    }
    let room = (bytes.len() - node::HEADER) / node::ENTRY;
    let (count, capacity, depth) = (node::entries(bytes), node::capacity(bytes), node::depth(bytes));
    if node::u16_at(bytes, 0) != node::MAGIC {
        bad!("extent-header-invalid", "an extent node has no magic number".into());
        return Ok(low);
    }
    if depth > node::MAX_DEPTH || place.is_some_and(|(_, wanted)| depth != wanted) {
        bad!("extent-depth-wrong", format!("an extent node has depth {depth}"));
        return Ok(low);
    }
    if capacity == 0 || capacity > room || count > capacity {
        let what = format!("an extent node has {count} entries of {capacity}, in space for {room}");
        bad!("extent-header-invalid", what);
        return Ok(low);
    }
    if block.is_some() && reader.sb.has_csum() {
        let tail = node::HEADER + capacity * node::ENTRY;
        let right = crc32c(reader.seed(inode), &bytes[..tail]);
        if tail + 4 > bytes.len() || node::u32_at(bytes, tail) != right {
            bad!("extent-node-checksum-wrong", "an extent node has a wrong checksum".into());
        }
    }
    if count == 0 && (block.is_some() || depth > 0) {
        bad!("extent-node-empty", "an extent node has no entries".into());
    }
    let mut next = low;
    for index in 0..count {
        if depth == 0 {
            let extent = Extent::decode(node::entry(bytes, index));
            let (start, len) = (extent.file_block.0, u64::from(extent.len));
            let end = start + len;
            let run = || format!("the extent of file blocks {start} to {}", end.wrapping_sub(1));
            if len == 0 {
                bad!("extent-length-invalid", format!("an extent at file block {start} has no length"));
            } else if start < next {
                bad!("extent-order-wrong", format!("{} overlaps or precedes the one before", run()));
            } else if end > high {
                bad!("extent-outside-parent", format!("{} exceeds the range of its node", run()));
            } else if !reader.sb.is_valid_run(extent.start, len) {
                let what = format!("{} lies at block {}, outside the filesystem", run(), extent.start.0);
                visit(Met::Bad("block-out-of-range", Some(extent.start.0), what));
            } else {
                visit(Met::Run { logical: start, block: extent.start.0, len, unwritten: extent.unwritten });
            }
            next = next.max(end);
            continue;
        }
        let (key, child) = (node::key(bytes, index).0, node::child(bytes, index).0);
        if key < next || key >= high {
            bad!("extent-order-wrong", format!("index entry {index} of file block {key} is out of order"));
            continue;
        }
        if !reader.is_valid(child) {
            let what = format!("an extent index of file block {key} refers outside the filesystem");
            visit(Met::Bad("block-out-of-range", Some(child), what));
            continue;
        }
        let until = if index + 1 < count { node::key(bytes, index + 1).0.clamp(key, high) } else { high };
        if visit(Met::Node(child))
            && let Some(below) = reader.block(child)?
        {
            if node::u16_at(&below, 0) == node::MAGIC && node::entries(&below) > 0 {
                let first = node::key(&below, 0).0;
                if first != key {
                    let what = format!("an extent index says file block {key}, its node starts at {first}");
                    visit(Met::Bad("extent-index-start-wrong", Some(child), what));
                }
            }
            next = extents(reader, inode, &below, Some((child, depth - 1)), (next.max(key), until), visit)?;
        }
        next = next.max(key);
    }
    Ok(next)
}

/// Walks the pointers of `i_block`: 12 direct ones, then maps of one, two and three levels.
fn indirect(reader: &Reader, i_block: &[u8; 60], visit: Visit<'_>) -> Result<()> {
    let pointers = u64::from(reader.sb.block_size / 4);
    let mut logical = 0;
    for slot in 0..15 {
        let pointer = u64::from(node::u32_at(i_block, slot * 4));
        let level = (slot.saturating_sub(11)) as u32;
        pointer_at(reader, pointer, level, logical, visit)?;
        logical += pointers.pow(level);
    }
    Ok(())
}

fn pointer_at(reader: &Reader, pointer: u64, level: u32, logical: u64, visit: Visit<'_>) -> Result<()> {
    if pointer == 0 {
        return Ok(());
    }
    if !reader.is_valid(pointer) {
        let what = format!("file block {logical} is mapped to block {pointer}, outside the filesystem");
        visit(Met::Bad("block-out-of-range", Some(pointer), what));
        return Ok(());
    }
    if level == 0 {
        visit(Met::Run { logical, block: pointer, len: 1, unwritten: false });
        return Ok(());
    }
    if !visit(Met::Node(pointer)) {
        return Ok(());
    }
    let Some(bytes) = reader.block(pointer)? else { return Ok(()) };
    let span = u64::from(reader.sb.block_size / 4).pow(level - 1);
    for (index, word) in bytes.chunks_exact(4).enumerate() {
        let below = u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        pointer_at(reader, below, level - 1, logical + index as u64 * span, visit)?;
    }
    Ok(())
}

/// Walks the runs of an inode whose map was checked before, without findings.
pub(super) fn runs(reader: &Reader, inode: &Slot, visit: &mut dyn FnMut(u64, u64, u64)) -> Result<()> {
    let mut nodes = std::collections::HashSet::new();
    walk(reader, inode, &mut |met| match met {
        Met::Node(block) => nodes.insert(block),
        Met::Run { logical, block, len, .. } => {
            visit(logical, block, len);
            true
        }
        Met::Bad(..) => false,
    })
}

/// The runs of an inode as a list, at most `limit`.
pub(super) fn run_list(reader: &Reader, inode: &Slot, limit: usize) -> Result<Vec<Run>> {
    let mut list = Vec::new();
    runs(reader, inode, &mut |logical, block, len| {
        if list.len() < limit {
            list.push((logical, block, len));
        }
    })?;
    Ok(list)
}

/// The block that holds a file block, by a sorted list of runs.
pub(super) fn find(runs: &[Run], logical: u64) -> Option<u64> {
    let at = runs.partition_point(|&(start, ..)| start <= logical);
    let &(start, block, len) = runs.get(at.checked_sub(1)?)?;
    (logical - start < len).then(|| block + (logical - start))
}
