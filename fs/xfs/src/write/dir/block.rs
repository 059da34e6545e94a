//! Editing of block directories: one data block with the hashes at its end.

use super::data::{DataEdit, address_of};
use crate::layout::bytes::number;
use crate::layout::directory::entry_bytes;
use crate::layout::raw::RawDirBlockTail;
use crate::layout::superblock::Superblock;
use crate::write::hashes::{ENTRY_BYTES, Hashes};
use std::mem::size_of;

const TAIL_BYTES: usize = size_of::<RawDirBlockTail>();

/// Returns the hashes of a block directory, and where its entries end.
pub(super) fn split(bytes: &[u8]) -> Result<(Hashes, usize), String> {
    let tail = bytes.len() - TAIL_BYTES;
    let count = number(bytes, tail, 4).unwrap_or(0) as usize;
    let stop =
        count.checked_mul(ENTRY_BYTES).and_then(|len| tail.checked_sub(len)).filter(|stop| *stop >= 64);
    let found = stop.and_then(|stop| Some((Hashes::decode(bytes, stop, count)?, stop)));
    found.ok_or_else(|| format!("the {count} hashes of a block directory are invalid"))
}

/// Writes the hashes at the end of the block.
pub(super) fn store_hashes(bytes: &mut [u8], hashes: &Hashes) {
    let tail = bytes.len() - TAIL_BYTES;
    let start = tail - hashes.0.len() * ENTRY_BYTES;
    hashes.encode(&mut bytes[start..tail]);
    bytes[tail..tail + 4].copy_from_slice(&(hashes.0.len() as u32).to_be_bytes());
    bytes[tail + 4..].copy_from_slice(&(hashes.stale() as u32).to_be_bytes());
}

/// Where the entries end if there are so many hashes.
pub(super) fn stop_for(size: usize, hashes: usize) -> Option<usize> {
    (size - TAIL_BYTES).checked_sub(hashes * ENTRY_BYTES)
}

/// Adds an entry; returns `false` if it does not fit. Then it may have lost places of removed hashes, and
/// nothing else.
pub(super) fn add(
    sb: &Superblock,
    bytes: &mut [u8],
    (name, hash): (&[u8], u32),
    ino: u64,
    ftype: u8,
) -> Result<bool, String> {
    let (mut hashes, mut stop) = split(bytes)?;
    let len = entry_bytes(sb, name.len());
    let size = bytes.len();
    for attempt in 0..2 {
        let mut data = DataEdit::new(sb, bytes, stop)?;
        if hashes.stale() == 0 && data.free_at_end() < ENTRY_BYTES {
            return Ok(false);
        }
        if hashes.stale() == 0 {
            data.set_stop(stop - ENTRY_BYTES);
        }
        if usize::from(data.best()) >= len {
            let at = data.add(ino, name, ftype).ok_or("the free space of a block directory is wrong")?;
            hashes.insert(hash, address_of(sb, 0, at));
            store_hashes(bytes, &hashes);
            return Ok(true);
        }
        if hashes.stale() == 0 {
            data.set_stop(stop);
        }
        if attempt == 1 || hashes.stale() == 0 {
            return Ok(false);
        }
        // The places of removed hashes become free space.
        hashes.compact();
        stop = stop_for(size, hashes.0.len()).ok_or("a block directory has too many hashes")?;
        data.set_stop(stop);
        store_hashes(bytes, &hashes);
    }
    Ok(false)
}

/// Removes the entry at an offset.
pub(super) fn remove(sb: &Superblock, bytes: &mut [u8], hash: u32, at: usize) -> Result<(), String> {
    let (mut hashes, stop) = split(bytes)?;
    DataEdit::new(sb, bytes, stop)?.remove(at)?;
    if !hashes.remove(hash, address_of(sb, 0, at)) {
        return Err("an entry of a block directory has no hash".into());
    }
    store_hashes(bytes, &hashes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::da::hash_name;
    use crate::write::tests::samples::superblock;
    use rand::seq::IndexedRandom;
    use rand::{Rng, SeedableRng};

    #[test]
    fn random_changes_leave_a_valid_block() {
        let sb = superblock();
        let mut random = rand::rngs::StdRng::seed_from_u64(7);
        let mut bytes = vec![0; 4096];
        DataEdit::empty(&sb, &mut bytes, 4088, true);
        store_hashes(&mut bytes, &Hashes::default());
        let (mut names, mut next): (Vec<Vec<u8>>, _) = (Vec::new(), 0u64);
        let (mut full, mut before) = (0, bytes.clone());
        for _ in 0..4000 {
            if random.random_bool(0.55) {
                next += 1;
                let name = format!("{next}{}", "n".repeat(random.random_range(0..60))).into_bytes();
                let fits = add(&sb, &mut bytes, (&name, hash_name(&name)), next, 1).unwrap();
                if fits {
                    names.push(name);
                } else {
                    full += 1;
                }
            } else if let Some(name) = names.choose(&mut random).cloned() {
                let (hashes, stop) = split(&bytes).unwrap();
                let same = hashes.pairs().into_iter().filter(|(hash, _)| *hash == hash_name(&name));
                let mut address = same.map(|(_, address)| address as usize * 8);
                let data = DataEdit::new(&sb, &mut bytes, stop).unwrap();
                let at = address.find(|at| *at > 0 && data.entry(*at).unwrap().name == name).unwrap();
                remove(&sb, &mut bytes, hash_name(&name), at).unwrap();
                names.retain(|other| *other != name);
            }
            let (hashes, stop) = split(&bytes).unwrap();
            let data = DataEdit::new(&sb, &mut bytes, stop).unwrap();
            let mut found = Vec::new();
            data.each(|entry| found.push((hash_name(entry.name), entry.address as u32))).unwrap();
            let mut index = hashes.pairs();
            index.retain(|(_, address)| *address != 0);
            found.sort_unstable();
            index.sort_unstable();
            assert_eq!(found, index);
            assert_eq!(found.len(), names.len());
            before.clone_from(&bytes);
        }
        assert!(full > 10);
    }
}
