//! Making a filesystem.

use crate::*;
use ivers_journal::jbd2;

/// Makes an empty filesystem on the whole device, or on as much of it as the bitmap covers.
pub fn format(
    device: &dyn Device,
    inodes: u32,
    log_blocks: u32,
    uuid: [u8; 16],
    now: Timestamp,
) -> Result<()> {
    let blocks = (device.size_bytes() / BLOCK as u64).min(BLOCK as u64 * 8) as u32;
    let sb = RawSuper {
        magic: MAGIC,
        blocks: blocks.into(),
        inodes: inodes.into(),
        log_blocks: log_blocks.into(),
        uuid,
        ..RawSuper::new_zeroed()
    };
    let sb = sb.with_epoch(1, false);
    sb.check(device.size_bytes()).map_err(|what| Error::Incompatible(what.to_owned()))?;
    let put = |block: BlockNo, bytes: &[u8]| device.write_at(block.offset(BLOCK as u32), bytes);
    // Old records of a log must not be taken for this one's.
    (0..=log_blocks).try_for_each(|block| put(BlockNo(block.into()), &[0; BLOCK]))?;
    let block_size = BLOCK as u32;
    let log = jbd2::FormatOptions { block_size, blocks: log_blocks, uuid, checksums: true, is_64bit: false };
    put(BlockNo(1), &jbd2::format_superblock(&log).map_err(journal_error)?)?;
    for ino in (1..=u64::from(inodes)).map(Ino) {
        let mut raw = RawInode::new_zeroed();
        if ino == ROOT {
            let root = NewInode { perm: 0o755, ..NewInode::new(FileType::Directory, now) };
            raw = RawInode { parent: (ino.0 as u32).into(), ..raw.with_attr(&root.attr(1), 1) };
        }
        put(BlockNo(u64::from(log_blocks) + ino.0), raw.sealed(ino).as_bytes())?;
    }
    let mut bitmap = [0u8; BLOCK];
    (0..sb.data().0 as usize).for_each(|block| bitmap[block / 8] |= 1 << (block % 8));
    put(sb.bitmap(), &bitmap)?;
    device.flush()?;
    device.write_at(SUPER, sb.as_bytes())?;
    Ok(device.flush()?)
}
