//! XFS images: damages structures, then opens, walks and uses the filesystem, or checks it.
//!
//! Inputs have the form of [`crate::input`]. The class of a patch is ignored, a place is one of the used
//! sectors. Checksums are corrected according to the type of the damaged structure.

use crate::input::{Flags, Input, Patch};
use crate::work::{CACHE_BYTES, memory, mount_twice, on_vfs};
use flate2::read::DeflateDecoder;
use ivers_block::{Budget, ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_vfs::{DriverOptions, Vfs};
use ivers_xfs::layout::checksum::{SelfDescription, seal_inode};
use ivers_xfs::{OpenOptions, Xfs};
use std::io::Read;
use std::sync::{Arc, LazyLock};

const SECTOR: usize = 512;
/// Blocks of the images.
const BLOCK: usize = 4096;

/// An image and its used sectors.
struct Base {
    device: Arc<MemDevice>,
    sectors: Vec<usize>,
}

/// Made by `examples/xfs_bases.rs`: a tree of every kind of file, closed, and with a dirty log.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let packed: [&[u8]; 2] = [include_bytes!("../bases/xfs.z"), include_bytes!("../bases/xfs_dirty.z")];
    packed.into_iter().map(load).collect()
});

fn load(packed: &[u8]) -> Base {
    let mut image = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut image).expect("a base unpacks");
    let used = |sector: &usize| image[sector * SECTOR..][..SECTOR].iter().any(|byte| *byte != 0);
    let sectors = (0..image.len() / SECTOR).filter(used).collect();
    Base { device: Arc::new(MemDevice::from_bytes(&image)), sectors }
}

/// The damaged image of an input, its flags, and what follows.
fn damaged<'a>(input: &'a [u8]) -> (Arc<dyn Device>, Flags, Input<'a>) {
    let mut rest = Input::new(input);
    let base = &BASES[usize::from(rest.byte()) % BASES.len()];
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.device.clone()));
    for patch in rest.patches() {
        damage(&*device, base, &patch, !flags.keep_checksums());
    }
    (device, flags, rest)
}

/// Runs an input of the checker.
pub fn check(input: &[u8]) {
    let (device, ..) = damaged(input);
    let _ = ivers_xfs::check::check(device, memory(), "image");
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let (device, flags, mut rest) = damaged(input);
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

fn damage(device: &dyn Device, base: &Base, patch: &Patch<'_>, sealed: bool) {
    let place = base.sectors[usize::from(patch.place) % base.sectors.len()] * SECTOR;
    // The heads of groups have a sector each, everything else blocks.
    let mut sector = [0; 4];
    device.read_at(ByteOffset(place as u64), &mut sector).expect("places lie in the image");
    let head = matches!(&sector, b"XFSB" | b"XAGF" | b"XAGI" | b"XAFL");
    let unit = if head { SECTOR } else { BLOCK };
    let start = place / unit * unit;
    let mut bytes = vec![0; unit];
    device.read_at(ByteOffset(start as u64), &mut bytes).expect("places lie in the image");
    let kind = SelfDescription::of(&bytes);
    let lsn = kind.and_then(|kind| kind.lsn(&bytes)).unwrap_or(0);
    let at = place - start + usize::from(patch.offset) % SECTOR;
    let len = patch.bytes.len().min(unit - at);
    bytes[at..at + len].copy_from_slice(&patch.bytes[..len]);
    if sealed {
        match kind {
            Some(kind) => kind.seal(&mut bytes, lsn),
            None => bytes.chunks_mut(SECTOR).filter(|inode| inode.starts_with(b"IN")).for_each(seal_inode),
        }
    }
    device.write_at(ByteOffset(start as u64), &bytes).expect("places lie in the image");
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let budget = Arc::new(Budget::new(CACHE_BYTES));
    let read_only = flags.read_only() || flags.no_replay();
    let common = DriverOptions { read_only, budget: budget.clone(), ..DriverOptions::default() };
    let options = OpenOptions { common, no_replay: flags.no_replay(), ..OpenOptions::default() };
    let fs = Xfs::open(device.clone(), options).ok()?;
    on_vfs(fs, flags, budget)
}

/// Returns the fuzz inputs: some sectors of each image patched with their own first bytes, and all calls.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (number, base) in BASES.iter().enumerate() {
        for (index, sector) in base.sectors.iter().enumerate().step_by(base.sectors.len().div_ceil(40)) {
            let mut bytes = vec![0; 96];
            let at = ByteOffset((sector * SECTOR) as u64);
            base.device.read_at(at, &mut bytes).expect("places lie in the image");
            let mut input = vec![number as u8, [0, 4, 8, 12][index % 4], 1];
            Patch { class: 0, place: index as u16, offset: 0, bytes: &bytes }.encode(&mut input);
            crate::inputs::all_calls(&mut input);
            inputs.push(input);
        }
    }
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_are_mounted_for_writing() {
        for number in 0..BASES.len() {
            let (device, ..) = damaged(&[number as u8]);
            let vfs = mount(&device, Flags(0)).expect("it is not damaged");
            assert_eq!(vfs.fs().health().read_only, None, "base {number}");
            vfs.unmount().unwrap();
        }
    }
}
