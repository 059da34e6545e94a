//! Data blocks of directories: entries and free space, one after the other.

use super::entry::{Entry, check_name};
use crate::fork::{ForkSource, Which};
use crate::inode::Dinode;
use crate::layout::bytes::{array, number};
use crate::layout::checksum::DIR_DATA;
use crate::layout::directory::{
    ADDRESS_UNIT, BLOCK_MAGICS, DATA_MAGICS, FREE_TAG, data_start, dir_unit, entry_bytes,
};
use crate::layout::superblock::Superblock;
use crate::source::Source;
use crate::unit::Unit;
use ivers_block::{BlockNo, FileBlock};
use ivers_vfs::Result;

/// A data block whose header is checked.
pub(crate) struct DataBlock {
    pub bytes: Unit,
    pub block: BlockNo,
    block_form: bool,
}

impl DataBlock {
    /// Whether the hashes are in the block as well.
    pub(super) fn is_block_form(&self) -> bool {
        self.block_form
    }

    /// Decodes the entry at an offset.
    pub(super) fn entry_at(&self, sb: &Superblock, at: usize) -> std::result::Result<Entry<'_>, String> {
        if at < data_start(sb) || number(&self.bytes, at, 2) == Some(FREE_TAG) {
            return Err(format!("there is no entry at offset {at}"));
        }
        self.next(sb, at, self.bytes.len())?.0.ok_or_else(|| format!("there is no entry at offset {at}"))
    }

    /// Decodes what is at an offset, up to `stop`: an entry or free space, and its length in bytes.
    pub(super) fn next(
        &self,
        sb: &Superblock,
        at: usize,
        stop: usize,
    ) -> std::result::Result<(Option<Entry<'_>>, usize), String> {
        item_at(sb, self.bytes.get(..stop).unwrap_or_default(), at)
    }
}

/// Returns the length in bytes of what is at an offset of a data block, and whether it is free space. `bytes`
/// end where the entries end. It reads no name.
#[inline]
pub(crate) fn item_len(
    sb: &Superblock,
    bytes: &[u8],
    at: usize,
) -> std::result::Result<(usize, bool), String> {
    // Each change of a block reads the lengths of all its items: one load tells most.
    let head = array(bytes, at).map_or(0, u64::from_be_bytes);
    let is_free = head >> 48 == FREE_TAG;
    let len = match is_free {
        true => (head >> 32) as usize & 0xFFFF,
        false => bytes.get(at + 8).map_or(0, |name_len| entry_bytes(sb, usize::from(*name_len))),
    };
    let tag = array(bytes, (at + len).wrapping_sub(2)).map(u16::from_be_bytes);
    match len > 0 && len.is_multiple_of(ADDRESS_UNIT as usize) && tag == Some(at as u16) {
        true => Ok((len, is_free)),
        false => Err(format!("an entry at offset {at} of a directory block has a wrong length or tag")),
    }
}

/// Decodes what is at an offset of a data block: an entry or free space, and its length in bytes. `bytes` end
/// where the entries end.
pub(crate) fn item_at<'a>(
    sb: &Superblock,
    bytes: &'a [u8],
    at: usize,
) -> std::result::Result<(Option<Entry<'a>>, usize), String> {
    let (len, is_free) = item_len(sb, bytes, at)?;
    if is_free {
        return Ok((None, len));
    }
    // The length of its item says that an entry is inside.
    let cut = || format!("an entry at offset {at} ends past its block");
    let ino = number(bytes, at, 8).ok_or_else(cut)?;
    let name_len = usize::from(*bytes.get(at + 8).ok_or_else(cut)?);
    let name = bytes.get(at + 9..at + 9 + name_len).ok_or_else(cut)?;
    let ftype = if sb.has_ftype() { *bytes.get(at + 9 + name_len).ok_or_else(cut)? } else { 0 };
    check_name(name)?;
    Ok((Some(Entry { ino, name, ftype, address: at as u64 / ADDRESS_UNIT }), len))
}

/// Reading of data blocks.
pub(crate) trait DataSource: Source {
    /// Reads a data block of a directory by its number.
    fn data_block(&self, dir: &Dinode, number: u64) -> Result<DataBlock> {
        let unit = dir_unit(self.sb());
        let at = FileBlock(number.saturating_mul(unit));
        let blocks = self.mapped_blocks(&dir.data, dir.unit(Which::Data, at, unit))?;
        let bytes = self.unit(&blocks, &DIR_DATA, dir.whose())?;
        let block = blocks.first();
        let version = usize::from(!self.sb().is_v5());
        let block_form = bytes.starts_with(BLOCK_MAGICS[version]);
        if !block_form && !bytes.starts_with(DATA_MAGICS[version]) {
            let what = "a data block of a directory has a wrong magic";
            return Err(self.corrupt_block(what, dir.whose(), block));
        }
        if block_form && (number != 0 || dir.size() != u64::from(self.sb().dir_block_size)) {
            let what = "a block directory has another size";
            return Err(self.corrupt_block(what, dir.whose(), block));
        }
        Ok(DataBlock { bytes, block, block_form })
    }
}

impl<S: Source> DataSource for S {}
