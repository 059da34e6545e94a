//! Making an empty volume (FAQ 5).

use crate::layout::{BM_VALID, NAME_MAX, ROOT_BM_PAGES, ST_ROOT, T_DIRCACHE, T_SHORT, Variant};
use crate::layout::{
    dirc, head, parse_name, put_date, put_tail32, put_text, put32, set_checksum, table_len, tail,
};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, NameError, Result, Timestamp};

const RESERVED_BLOCKS: u32 = 2;
/// A volume needs more.
const MIN_BLOCKS: u32 = RESERVED_BLOCKS + 8;
const BLOCK_SIZES: [u32; 4] = [512, 1024, 2048, 4096];

/// Checks that a volume with these options fits a device of this size; writes nothing.
pub fn plan(size_bytes: u64, low_byte: u8, block_size: u32, label: &str) -> Result<()> {
    let refuse = |why: String| Err(Error::Incompatible(why));
    if variant_of(low_byte).is_none() {
        return refuse(format!("volumes of type DOS\\{low_byte} cannot be made"));
    }
    if !BLOCK_SIZES.contains(&block_size) {
        return refuse(format!("block size {block_size} is not 512, 1024, 2048 or 4096"));
    }
    let blocks = size_bytes / u64::from(block_size);
    if blocks <= MIN_BLOCKS.into() || blocks > u32::MAX.into() {
        return refuse(format!("{blocks} blocks are not between {MIN_BLOCKS} and {}", u32::MAX));
    }
    stored_label(label).map(drop)
}

fn variant_of(low_byte: u8) -> Option<Variant> {
    let dos_type = u32::from_be_bytes([b'D', b'O', b'S', low_byte]);
    Variant::from_dos_type(dos_type).filter(|variant| !variant.long_names)
}

/// The label as stored. A path can start with a label, so the rules are those of names.
pub(crate) fn stored_label(label: &str) -> Result<Vec<u8>> {
    parse_name(label.as_bytes()).map_err(|_| {
        Error::Incompatible(format!(
            "label {label:?}: must have 1 to {NAME_MAX} characters of Latin-1, none of them \":\" or \"/\""
        ))
    })
}

/// Makes an empty volume that fills the device. `low_byte` is the last byte of its `DOS` word, 0 to 5.
pub fn format(device: &dyn Device, low_byte: u8, block_size: u32, label: &str, now: Timestamp) -> Result<()> {
    plan(device.size_bytes(), low_byte, block_size, label)?;
    let label = stored_label(label)?;
    let variant = variant_of(low_byte).ok_or(NameError::Invalid)?;
    let dos_type = u32::from_be_bytes([b'D', b'O', b'S', low_byte]);
    let blocks = (device.size_bytes() / u64::from(block_size)) as u32;
    let size = block_size as usize;
    let root = (RESERVED_BLOCKS + blocks - 1) / 2;
    let per_page = (size / 4 - 1) * 32;
    let pages = ((blocks - RESERVED_BLOCKS) as usize).div_ceil(per_page);
    let per_extension = size / 4 - 1;
    let extensions = pages.saturating_sub(ROOT_BM_PAGES).div_ceil(per_extension);
    // The root's directory cache is after these. Every directory has one.
    let cache = root + 1 + (pages + extensions) as u32;
    let system = root..cache + u32::from(variant.cached);
    if system.end > blocks {
        return Err(NameError::NoSpace.into());
    }
    let page = |nth: usize| root + 1 + nth as u32;
    let extension = |nth: usize| if nth < extensions { root + 1 + (pages + nth) as u32 } else { 0 };
    let write = |block: u32, bytes: &[u8]| {
        device.write_at(ByteOffset(u64::from(block) * u64::from(block_size)), bytes)
    };
    for nth in 0..pages {
        let mut bytes = vec![0xff; size];
        let first = RESERVED_BLOCKS as usize + nth * per_page;
        for block in system.clone().filter(|&block| (first..first + per_page).contains(&(block as usize))) {
            let at = block as usize - first;
            bytes[4 + at / 32 * 4 + 3 - at % 32 / 8] &= !(1 << (at % 8));
        }
        set_checksum(&mut bytes, 0);
        write(page(nth), &bytes)?;
    }
    for nth in 0..extensions {
        let mut bytes = vec![0; size];
        let first = ROOT_BM_PAGES + nth * per_extension;
        (first..pages.min(first + per_extension))
            .for_each(|at| put32(&mut bytes, (at - first) * 4, page(at)));
        put32(&mut bytes, per_extension * 4, extension(nth + 1));
        write(extension(nth), &bytes)?;
    }
    let mut bytes = vec![0; size];
    put32(&mut bytes, head::TYPE, T_SHORT);
    put32(&mut bytes, head::TABLE_SIZE, table_len(block_size) as u32);
    put_tail32(&mut bytes, tail::BM_FLAG, BM_VALID);
    (0..pages.min(ROOT_BM_PAGES)).for_each(|nth| put_tail32(&mut bytes, tail::BM_PAGES - nth * 4, page(nth)));
    put_tail32(&mut bytes, tail::BM_EXT, extension(0));
    for at in [tail::DATE, tail::VOLUME_DATE, tail::CREATION_DATE] {
        put_date(&mut bytes, at, now);
    }
    put_text(&mut bytes, tail::NAME, NAME_MAX, &label);
    if variant.cached {
        put_tail32(&mut bytes, tail::EXTENSION, cache);
        let mut empty = vec![0; size];
        put32(&mut empty, head::TYPE, T_DIRCACHE);
        put32(&mut empty, head::OWN_KEY, cache);
        put32(&mut empty, dirc::PARENT, root);
        set_checksum(&mut empty, head::CHECKSUM);
        write(cache, &empty)?;
    }
    put_tail32(&mut bytes, tail::SEC_TYPE, ST_ROOT);
    set_checksum(&mut bytes, head::CHECKSUM);
    write(root, &bytes)?;
    let mut boot = vec![0; size];
    put32(&mut boot, 0, dos_type);
    write(0, &boot)?;
    write(1, &vec![0; size])?;
    Ok(device.flush()?)
}
