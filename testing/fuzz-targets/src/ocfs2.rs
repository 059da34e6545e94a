//! Damages an OCFS2 image, checks it, and mounts it. The mount replays journals and deletes orphans. Then it
//! walks the tree and makes the calls of the input. They write, except to the image with blocks of 512 bytes,
//! which is read-only.
//!
//! Inputs have the form of [`crate::input`]. A class is a region of the image, a place is a piece of it. With
//! the highest bit of the class, the checksum of the structure is made right after the patch.

use crate::base::unpack;
use crate::input::{Flags, Input, Patch};
use crate::work::{driver_options, memory, mount_twice, on_vfs};
use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_ocfs2::layout::blockcheck;
use ivers_ocfs2::layout::directory::{TRAILER_BYTES, TRAILER_CHECK_AT};
use ivers_ocfs2::layout::shape::Shape;
use ivers_ocfs2::layout::superblock::{Superblock, find};
use ivers_ocfs2::{Ocfs2, OpenOptions};
use ivers_vfs::Vfs;
use std::sync::{Arc, LazyLock};

/// Bytes of a piece.
const PIECE: u64 = 128;
/// The offset of the checksum of a superblock, which is an inode.
const SUPER_CHECK_AT: usize = 0x80;
/// The bit of a class for a right checksum.
const RIGHT_SUM: u8 = 0x80;

/// An image, and the bytes at which the pieces of its regions start: the superblock, structures, the rest
/// that is not zeros.
struct Base {
    device: Arc<dyn Device>,
    block_size: u64,
    regions: [Vec<u64>; 3],
}

/// Made by `examples/ocfs2_bases.rs` and `examples/ocfs2_written_bases.rs`.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let packed: [&[u8]; 5] = [
        include_bytes!("../bases/ocfs2.z"),
        include_bytes!("../bases/ocfs2_sums.z"),
        include_bytes!("../bases/ocfs2_dirty.z"),
        include_bytes!("../bases/ocfs2_written_sums.z"),
        include_bytes!("../bases/ocfs2_written_linear.z"),
    ];
    packed.into_iter().map(load).collect()
});

fn load(packed: &[u8]) -> Base {
    let image = unpack(packed);
    let size = find(&image).expect("a base has a superblock") as usize;
    let bytes = image.len() as u64;
    Superblock::parse(&image[2 * size..3 * size], bytes, "base").expect("a base has a superblock");
    let mut regions = [Vec::new(), Vec::new(), Vec::new()];
    for (nth, block) in image.chunks(size).enumerate() {
        let region = match nth {
            2 => 0,
            _ if Shape::of(block).is_some() || is_directory(block) => 1,
            _ => 2,
        };
        for (at, piece) in (0..).step_by(PIECE as usize).zip(block.chunks(PIECE as usize)) {
            if piece.iter().any(|byte| *byte != 0) {
                regions[region].push((nth * size) as u64 + at);
            }
        }
    }
    Base { device: Arc::new(MemDevice::from_bytes(&image)), block_size: size as u64, regions }
}

/// Whether a block ends with the trailer of a directory, whatever its place.
fn is_directory(block: &[u8]) -> bool {
    block[block.len() - TRAILER_BYTES + 0x10..].starts_with(b"DIRTRL1")
}

/// Overwrites a part of an image.
fn patch(device: &dyn Device, base: &Base, patch: &Patch<'_>) {
    let region = &base.regions[usize::from(patch.class & !RIGHT_SUM) % base.regions.len()];
    let piece = region[usize::from(patch.place) % region.len()];
    let at = piece + u64::from(patch.offset) % PIECE;
    let block = at - at % base.block_size;
    let mut bytes = vec![0; base.block_size as usize];
    device.read_at(ByteOffset(block), &mut bytes).expect("regions lie in the image");
    let start = (at - block) as usize;
    let len = patch.bytes.len().min(bytes.len() - start);
    bytes[start..start + len].copy_from_slice(&patch.bytes[..len]);
    if patch.class & RIGHT_SUM != 0 {
        let check_at = match Shape::of(&bytes) {
            Some(shape) => shape.check_at,
            None if is_directory(&bytes) => bytes.len() - TRAILER_BYTES + TRAILER_CHECK_AT,
            None => SUPER_CHECK_AT,
        };
        let check = blockcheck::compute(&bytes, check_at);
        bytes[check_at..check_at + check.len()].copy_from_slice(&check);
    }
    device.write_at(ByteOffset(block), &bytes).expect("regions lie in the image");
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let base = &BASES[usize::from(rest.byte()) % BASES.len()];
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.device.clone()));
    rest.patches().iter().for_each(|found| patch(&*device, base, found));
    let _ = ivers_ocfs2::check::check(device.clone(), memory(), "image");
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only());
    let budget = common.budget.clone();
    let fs = Ocfs2::open(device.clone(), OpenOptions { common, no_replay: false }).ok()?;
    on_vfs(fs, flags, budget)
}

/// Returns the fuzz inputs: pieces of each region of each base patched with their own bytes, and all calls.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (number, base) in BASES.iter().enumerate() {
        for (class, region) in base.regions.iter().enumerate() {
            for place in (0..region.len()).step_by(region.len().div_ceil(10)) {
                let mut bytes = vec![0; PIECE as usize];
                base.device.read_at(ByteOffset(region[place]), &mut bytes).expect("regions lie in the image");
                let sum = if class < 2 { RIGHT_SUM } else { 0 };
                let mut input = vec![number as u8, if place == 0 { 8 } else { 0 }, 1];
                let patch = Patch { class: class as u8 | sum, place: place as u16, offset: 0, bytes: &bytes };
                patch.encode(&mut input);
                crate::inputs::all_calls(&mut input);
                inputs.push(input);
            }
        }
    }
    inputs
}
