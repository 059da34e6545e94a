//! Damages a FAT image, mounts and walks it, makes the calls of the input, and mounts the result.
//!
//! Inputs have the form of [`crate::input`]. A class is a region of the image, a place is a sector of it.

use crate::base::unpack;
use crate::input::{Flags, Input, Patch};
use crate::work::{driver_options, memory, mount_twice, on_vfs};
use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice};
use ivers_fat::{Fat, OpenOptions};
use ivers_vfs::{DriverOptions, Vfs};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const SECTOR: u64 = 512;

/// An image and the starts of its regions in sectors: reserved, FATs, directories and data, and the end of
/// the used part.
struct Base {
    device: Arc<dyn Device>,
    regions: [u64; 4],
}

/// Made by `examples/fat_bases.rs`.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let packed: [&[u8]; 3] = [
        include_bytes!("../bases/fat12.z"),
        include_bytes!("../bases/fat16.z"),
        include_bytes!("../bases/fat32.z"),
    ];
    packed.into_iter().map(load).collect()
});

fn load(packed: &[u8]) -> Base {
    let image = unpack(packed);
    let word = |at: usize| u64::from(u16::from_le_bytes([image[at], image[at + 1]]));
    let fat_sectors = if word(22) == 0 { word(36) } else { word(22) };
    let data = word(14) + u64::from(image[16]) * fat_sectors;
    let used = image.iter().rposition(|byte| *byte != 0).unwrap_or(0) as u64 / SECTOR + 1;
    Base { device: Arc::new(MemDevice::from_bytes(&image)), regions: [0, word(14), data, used.max(data + 1)] }
}

/// Runs an input.
pub fn run(input: &[u8]) {
    let mut rest = Input::new(input);
    let base = &BASES[usize::from(rest.byte()) % BASES.len()];
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.device.clone()));
    for patch in rest.patches() {
        let region = usize::from(patch.class) % 3;
        let sectors = base.regions[region + 1] - base.regions[region];
        let sector = base.regions[region] + u64::from(patch.place) % sectors;
        let offset = u64::from(patch.offset) % SECTOR;
        let bytes = &patch.bytes[..patch.bytes.len().min((SECTOR - offset) as usize)];
        device.write_at(ByteOffset(sector * SECTOR + offset), bytes).expect("regions lie in the image");
    }
    let _ = ivers_fat::check::check(device.clone(), memory(), "image");
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only());
    let budget = common.budget.clone();
    // No timed thread: runs must be reproducible.
    let options = OpenOptions::from(DriverOptions { commit_interval: Duration::from_secs(3600), ..common });
    let fs = Fat::open(device.clone(), options).ok()?;
    on_vfs(fs, flags, budget)
}

/// Returns the fuzz inputs: each region of each base patched with its own bytes, and all calls.
pub fn inputs() -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    for (number, base) in BASES.iter().enumerate() {
        for region in 0..3 {
            let sectors = base.regions[region + 1] - base.regions[region];
            for place in (0..sectors).step_by(sectors.div_ceil(8) as usize) {
                let mut bytes = [0; 96];
                let at = (base.regions[region] + place) * SECTOR;
                base.device.read_at(ByteOffset(at), &mut bytes).expect("regions lie in the image");
                let mut input = vec![number as u8, if place == 0 { 8 } else { 0 }, 1];
                Patch { class: region as u8, place: place as u16, offset: 0, bytes: &bytes }
                    .encode(&mut input);
                crate::inputs::all_calls(&mut input);
                inputs.push(input);
            }
        }
    }
    inputs
}
