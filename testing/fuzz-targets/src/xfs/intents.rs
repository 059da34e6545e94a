//! Intents: promises in the log that recovery keeps. They fit the files of `xfs_small_blocks`.

/// Types of log items.
const FREE: u16 = 0x1236;
const REVERSE_MAP: u16 = 0x1240;
const REFCOUNT: u16 = 0x1242;
/// Changes of the reverse map and of reference counts.
const MAP_SHARED: u32 = 2;
const UNMAP_SHARED: u32 = 4;
const INCREASE: u32 = 1;
const DECREASE: u32 = 2;
/// Inodes of the image.
const CLONE: u64 = 78;
const UNWRITTEN: u64 = 80;

fn intent(kind: u16, id: u64, extent: &[u8]) -> Vec<u8> {
    // One region, one extent.
    [&kind.to_le_bytes()[..], &[1, 0], &[1, 0, 0, 0], &id.to_le_bytes(), extent].concat()
}

/// An extent of an intent that frees it or changes its reference count.
fn extent(start: u64, len: u32, flags: u32) -> Vec<u8> {
    [&start.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes()].concat()
}

fn mapping(owner: u64, start: u64, file_block: u64, len: u32, change: u32) -> Vec<u8> {
    let numbers = [owner, start, file_block].map(u64::to_le_bytes).concat();
    [&numbers[..], &len.to_le_bytes(), &change.to_le_bytes()].concat()
}

/// Returns intents of each kind that recovery finishes.
pub(super) fn unfinished() -> Vec<Vec<u8>> {
    vec![
        // Blocks that only the clone has.
        intent(REVERSE_MAP, 1, &mapping(CLONE, 150, 30, 5, UNMAP_SHARED)),
        intent(REFCOUNT, 2, &extent(150, 5, DECREASE)),
        intent(REVERSE_MAP, 3, &mapping(CLONE, 160, 40, 3, UNMAP_SHARED)),
        intent(FREE, 4, &extent(160, 3, 0)),
        // Blocks that two files have.
        intent(REFCOUNT, 5, &extent(120, 4, INCREASE)),
        intent(REVERSE_MAP, 6, &mapping(UNWRITTEN, 120, 200, 4, MAP_SHARED)),
    ]
}
