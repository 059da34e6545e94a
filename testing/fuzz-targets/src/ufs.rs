//! Damages a UFS image, checks it, mounts it (which recovers it if it is not clean), walks it, and makes the
//! calls of the input, which write.
//!
//! Inputs have the form of [`crate::input`]. A class is a region of the image, a place is a piece of it.

use crate::base::unpack;
use crate::input::{Flags, Input, Patch};
use crate::work::{driver_options, memory, mount_twice, on_vfs};
use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_ufs::layout::superblock::{Superblock, find};
use ivers_ufs::{OpenOptions, Ufs};
use ivers_vfs::Vfs;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Bytes of a piece.
const PIECE: u64 = 128;

/// An image and its regions in bytes: the superblock, the descriptor of the first group, inodes, data.
struct Base {
    device: Arc<dyn Device>,
    regions: [Range<u64>; 4],
}

/// Made by `examples/ufs_bases.rs`.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let packed: [&[u8]; 3] = [
        include_bytes!("../bases/ufs1.z"),
        include_bytes!("../bases/ufs2.z"),
        include_bytes!("../bases/ufs2_big_endian.z"),
    ];
    packed.into_iter().map(load).collect()
});

fn load(packed: &[u8]) -> Base {
    let image = unpack(packed);
    let at = find(&image).expect("a base has a superblock");
    let sb = Superblock::parse(&image[at as usize..], at, image.len() as u64, "base");
    let sb = sb.expect("a base has a superblock");
    let byte = |nth: usize| sb.structure(0, nth) * u64::from(sb.fragment_size);
    let used = |range: Range<u64>| {
        let bytes = &image[range.start as usize..range.end as usize];
        let len = bytes.iter().rposition(|byte| *byte != 0).map_or(PIECE, |last| last as u64 + 1);
        range.start..range.start + len.next_multiple_of(PIECE)
    };
    let regions = [
        at..at + 11 * PIECE,
        used(byte(1)..byte(1) + u64::from(sb.block_size)),
        used(byte(2)..byte(3)),
        used(byte(3)..image.len() as u64),
    ];
    Base { device: Arc::new(MemDevice::from_bytes(&image)), regions }
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let base = &BASES[usize::from(rest.byte()) % BASES.len()];
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.device.clone()));
    for patch in rest.patches() {
        let region = &base.regions[usize::from(patch.class) % base.regions.len()];
        let pieces = (region.end - region.start) / PIECE;
        let at = region.start + u64::from(patch.place) % pieces * PIECE + u64::from(patch.offset) % PIECE;
        let bytes = &patch.bytes[..patch.bytes.len().min((region.end - at) as usize)];
        device.write_at(ByteOffset(at), bytes).expect("regions lie in the image");
    }
    let _ = ivers_ufs::check::check(device.clone(), memory(), "image");
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only());
    let budget = common.budget.clone();
    let fs = Ufs::open(device.clone(), OpenOptions { common }).ok()?;
    on_vfs(fs, flags, budget)
}

/// Returns the fuzz inputs: pieces of each region of each base patched with their own bytes, and all calls.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (number, base) in BASES.iter().enumerate() {
        for (class, region) in base.regions.iter().enumerate() {
            let pieces = (region.end - region.start) / PIECE;
            for place in (0..pieces).step_by(pieces.div_ceil(8) as usize) {
                let mut bytes = vec![0; PIECE as usize];
                let at = ByteOffset(region.start + place * PIECE);
                base.device.read_at(at, &mut bytes).expect("regions lie in the image");
                let mut input = vec![number as u8, if place == 0 { 8 } else { 0 }, 1];
                let patch = Patch { class: class as u8, place: place as u16, offset: 0, bytes: &bytes };
                patch.encode(&mut input);
                crate::inputs::all_calls(&mut input);
                inputs.push(input);
            }
        }
    }
    inputs
}
