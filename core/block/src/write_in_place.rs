//! Writing blocks in place.

use crate::{BlockNo, Device, Result, Unit};

/// Longest write, in bytes.
pub(crate) const RUN_BYTES: usize = 1 << 20;

/// Writes units with their bytes. Joins blocks that are neighbours: those of a unit may be anywhere.
pub fn write_units_in_place<'a>(
    device: &dyn Device,
    block_size: u32,
    units: impl IntoIterator<Item = (&'a Unit, &'a [u8])>,
) -> Result<()> {
    let mut blocks: Vec<_> = units.into_iter().flat_map(|(unit, bytes)| unit.split(bytes)).collect();
    blocks.sort_by_key(|(block, _)| *block);
    write_in_place(device, block_size, &blocks)
}

/// Writes blocks of `block_size` bytes, sorted by number. Joins neighbours into one write.
pub fn write_in_place(
    device: &dyn Device,
    block_size: u32,
    blocks: &[(BlockNo, impl AsRef<[u8]>)],
) -> Result<()> {
    let size = block_size as usize;
    let mut rest = blocks;
    let mut bytes = Vec::with_capacity((blocks.len() * size).min(RUN_BYTES));
    while let Some((first, _)) = rest.first() {
        let mut run = 1;
        while run < rest.len() && rest[run].0 == *first + run as u64 && run * size < RUN_BYTES {
            run += 1;
        }
        let (adjacent, later) = rest.split_at(run);
        let offset = first.offset(block_size);
        if let [(_, data)] = adjacent {
            device.write_at(offset, data.as_ref())?;
        } else {
            bytes.clear();
            adjacent.iter().for_each(|(_, data)| bytes.extend_from_slice(data.as_ref()));
            device.write_at(offset, &bytes)?;
        }
        rest = later;
    }
    Ok(())
}
