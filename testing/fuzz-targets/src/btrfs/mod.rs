//! Targets on btrfs images: they damage structures, then open, walk and change the filesystem.

mod place;

pub use place::Class;

use crate::base::unpack;
use crate::damage::{Sealed, damaged};
use crate::input::Flags;
use crate::place::Place;
use crate::work::{driver_options, mount_twice, on_vfs};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_btrfs::{Btrfs, OpenOptions};
use ivers_vfs::Vfs;
use place::{SECTOR_BYTES, SUPER, SUPER_BYTES, Sums};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// An image and the positions of its structures.
pub struct Base {
    /// The bytes of the image, which are never written.
    pub device: Arc<dyn Device>,
    /// The structures of the image.
    pub places: HashMap<Class, Vec<Place>>,
    node_size: usize,
    sums: Sums,
}

/// The images of `examples/btrfs_bases.rs`: a tree with every kind of file and snapshots, and the same tree
/// with mixed groups and the features of an old mkfs.btrfs.
pub static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let packed: [&[u8]; 2] =
        [include_bytes!("../../bases/btrfs.z"), include_bytes!("../../bases/btrfs_old.z")];
    packed.map(load).into()
});

/// The same images with another tree, and a log tree of Linux.
pub static LOG_BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let packed: [&[u8]; 2] =
        [include_bytes!("../../bases/btrfs_log.z"), include_bytes!("../../bases/btrfs_old_log.z")];
    packed.map(load).into()
});

/// Returns the images for these classes.
pub fn bases(classes: &[Class]) -> &'static [Base] {
    if classes.iter().any(|class| Class::OF_LOGS.contains(class)) { &LOG_BASES } else { &BASES }
}

fn load(packed: &[u8]) -> Base {
    let image = unpack(packed);
    let node_size = crate::place::le32(&image, SUPER + 0x94) as usize;
    let (places, sums) = place::places(&image);
    Base { device: Arc::new(MemDevice::from_bytes(&image)), places, node_size, sums }
}

impl Sealed<Class> for Base {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn places(&self) -> &HashMap<Class, Vec<Place>> {
        &self.places
    }

    fn seal(&self, device: &dyn Device, class: Class, place: &Place) {
        if class == Class::Compressed {
            self.seal_data(device, place);
            return;
        }
        self.seal_block(device, place.slot);
    }
}

impl Base {
    /// Corrects the checksum of the superblock or of a block of a tree.
    fn seal_block(&self, device: &dyn Device, at: u64) {
        let size = if at == SUPER as u64 { SUPER_BYTES } else { self.node_size };
        let mut block = vec![0; size];
        device.read_at(ByteOffset(at), &mut block).expect("places lie in the image");
        let sum = crc32c::crc32c(&block[32..]);
        device.write_at(ByteOffset(at), &sum.to_le_bytes()).expect("places lie in the image");
    }

    /// Corrects the checksums of the sectors of an extent.
    fn seal_data(&self, device: &dyn Device, place: &Place) {
        for sector in (place.at..place.at + place.len as u64).step_by(SECTOR_BYTES) {
            let (sum_at, leaf) = self.sums[&sector];
            let mut bytes = [0; SECTOR_BYTES];
            device.read_at(ByteOffset(sector), &mut bytes).expect("places lie in the image");
            let sum = crc32c::crc32c(&bytes);
            device.write_at(ByteOffset(sum_at), &sum.to_le_bytes()).expect("places lie in the image");
            self.seal_block(device, leaf);
        }
    }
}

/// Runs an input whose patches damage structures of `classes`.
pub fn run(input: &[u8], classes: &[Class]) {
    let (device, flags, mut rest) = damaged(bases(classes), input, classes);
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only());
    let budget = common.budget.clone();
    let options = OpenOptions {
        common,
        no_replay: flags.no_replay(),
        degraded: flags.no_replay(),
        ..OpenOptions::default()
    };
    let fs = Btrfs::open(vec![device.clone()], options).ok()?;
    on_vfs(fs, flags, budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_block::OverlayDevice;

    #[test]
    fn bases_are_mounted_for_writing() {
        for classes in [Class::ALL, Class::OF_LOGS] {
            for number in 0..bases(classes).len() {
                let (device, ..) = damaged(bases(classes), &[number as u8], classes);
                let vfs = mount(&device, Flags(0)).expect("it is not damaged");
                assert_eq!(vfs.fs().health().read_only, None, "base {number}");
                vfs.unmount().unwrap();
            }
        }
    }

    #[test]
    fn the_bases_have_every_structure() {
        for class in Class::ALL {
            assert!(BASES.iter().any(|base| base.places.contains_key(class)), "{class:?}");
        }
        for class in Class::OF_LOGS {
            assert!(LOG_BASES.iter().all(|base| base.places.contains_key(class)), "{class:?}");
        }
    }

    /// Sealing recomputes the checksum of a structure as the format defines it.
    #[test]
    fn sealing_an_undamaged_structure_changes_nothing() {
        for base in BASES.iter().chain(LOG_BASES.iter()) {
            for (class, places) in &base.places {
                for place in places.iter().step_by(places.len().div_ceil(50)) {
                    let device = OverlayDevice::new(base.device.clone());
                    base.seal(&device, *class, place);
                    let sum = |device: &dyn Device| {
                        let mut bytes = [0; 32];
                        device.read_at(ByteOffset(place.slot), &mut bytes).unwrap();
                        bytes
                    };
                    assert_eq!(sum(&device), sum(&*base.device), "{class:?} at {}", place.at);
                }
            }
        }
    }
}
