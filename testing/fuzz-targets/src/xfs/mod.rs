//! XFS images: damages structures, then opens, walks and uses the filesystem, or checks it.

mod intents;
mod log;
mod place;

pub use place::Class;

use crate::base::unpack;
use crate::damage::{Sealed, damaged};
use crate::input::Flags;
use crate::place::Place;
use crate::work::{driver_options, memory, mount_twice, on_vfs};
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_vfs::Vfs;
use ivers_xfs::layout::checksum::{SelfDescription, seal_inode};
use ivers_xfs::layout::superblock::Superblock;
use ivers_xfs::{OpenOptions, Xfs};
use place::SECTOR;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

/// An image and the positions of its structures.
pub struct Base {
    /// The bytes of the image, which are never written.
    pub device: Arc<dyn Device>,
    /// The structures of the image.
    pub places: HashMap<Class, Vec<Place>>,
    inode_bytes: usize,
}

/// Made by `examples/xfs_bases.rs`: a tree of every kind of file, closed and with a dirty log; and one with
/// small blocks, shared blocks and a dirty log. The last one is the same with a record of intents that
/// recovery must finish.
pub static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let small = unpack(include_bytes!("../../bases/xfs_small_blocks.z"));
    let mut unfinished = small.clone();
    let log = place::log(&superblock(&unfinished));
    let intents = log::append(&mut unfinished, &log, &intents::unfinished());
    let closed = unpack(include_bytes!("../../bases/xfs.z"));
    let dirty = unpack(include_bytes!("../../bases/xfs_dirty.z"));
    let mut bases: Vec<Base> = [closed, dirty, small, unfinished].iter().map(|image| load(image)).collect();
    let operations = bases[UNFINISHED].places.get_mut(&Class::LogOperation);
    operations.expect("it has a log").retain(|place| place.slot == intents as u64);
    bases
});

/// The number of the base with intents.
const UNFINISHED: usize = 3;

fn superblock(image: &[u8]) -> Superblock {
    Superblock::parse(&image[..SECTOR], image.len() as u64, "base").expect("a base has a superblock")
}

fn load(image: &[u8]) -> Base {
    let sb = superblock(image);
    let places = place::places(image, &sb);
    Base { device: Arc::new(MemDevice::from_bytes(image)), places, inode_bytes: sb.inode_size as usize }
}

fn read(device: &dyn Device, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(ByteOffset(at), &mut bytes).expect("places lie in the image");
    bytes
}

impl Sealed<Class> for Base {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn places(&self) -> &HashMap<Class, Vec<Place>> {
        &self.places
    }

    fn seal(&self, device: &dyn Device, class: Class, place: &Place) {
        let put =
            |at: u64, bytes: &[u8]| device.write_at(ByteOffset(at), bytes).expect("places lie in the image");
        match class {
            Class::LogHead | Class::LogOperation => log::seal(&*self.device, device, place.slot),
            Class::Inode | Class::Forks | Class::ShortDirectory | Class::ShortAttributes => {
                let mut inode = read(device, place.slot, self.inode_bytes);
                seal_inode(&mut inode);
                put(place.slot, &inode);
            }
            _ => {
                // The magic may be damaged.
                let undamaged = read(&*self.device, place.at, place.len.min(SECTOR));
                let kind = SelfDescription::of(&undamaged).expect("a base's structures are sound");
                let mut bytes = read(device, place.at, place.len);
                let lsn = kind.lsn(&bytes).unwrap_or(0);
                kind.seal(&mut bytes, lsn);
                put(place.at, &bytes);
            }
        }
    }
}

/// Runs an input of the checker.
pub fn check(input: &[u8], classes: &[Class]) {
    let (device, ..) = damaged(&BASES, input, classes);
    let _ = ivers_xfs::check::check(device, memory(), "image");
}

/// Runs an input whose patches hit structures of `classes`.
pub fn run(input: &[u8], classes: &[Class]) {
    let (device, flags, mut rest) = damaged(&BASES, input, classes);
    let calls = rest.calls();
    mount_twice(flags, &calls, |flags| mount(&device, flags));
}

fn mount(device: &Arc<dyn Device>, flags: Flags) -> Option<Arc<Vfs>> {
    let common = driver_options(flags.read_only() || flags.no_replay());
    let budget = common.budget.clone();
    let options = OpenOptions { common, no_replay: flags.no_replay(), ..OpenOptions::default() };
    let fs = Xfs::open(device.clone(), options).ok()?;
    on_vfs(fs, flags, budget)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_block::OverlayDevice;

    #[test]
    fn bases_are_mounted_for_writing() {
        for number in 0..BASES.len() {
            let (device, ..) = damaged(&BASES, &[number as u8], Class::ALL);
            let vfs = mount(&device, Flags(0)).expect("it is not damaged");
            assert_eq!(vfs.fs().health().read_only, None, "base {number}");
            vfs.unmount().unwrap();
        }
    }

    #[test]
    fn the_bases_have_every_structure() {
        for class in Class::ALL {
            assert!(BASES.iter().any(|base| base.places.contains_key(class)), "{class:?}");
        }
    }

    /// A patch that writes what is there changes nothing: the checksums are computed as the format says.
    #[test]
    fn sealing_an_undamaged_structure_changes_nothing() {
        for base in BASES.iter() {
            for (class, places) in &base.places {
                for place in places.iter().step_by(places.len().div_ceil(50)) {
                    let device = OverlayDevice::new(base.device.clone());
                    base.seal(&device, *class, place);
                    let (at, len) =
                        if place.slot == 0 { (place.at, place.len) } else { (place.slot, SECTOR) };
                    assert_eq!(read(&device, at, len), read(&*base.device, at, len), "{class:?} at {at}");
                }
            }
        }
    }

    /// Damage in the first bytes of a sector of a log record, where the cycle is, does not make the record
    /// invalid.
    #[test]
    fn a_damaged_record_is_still_valid() {
        let base = &BASES[1];
        let places = &base.places[&Class::LogHead];
        let place =
            places.iter().find(|place| read(&*base.device, place.at + 12, 4) != [0, 0, 2, 0]).unwrap();
        let device = OverlayDevice::new(base.device.clone());
        device.write_at(ByteOffset(place.at + 2 * SECTOR as u64 - 2), &[0xA5; 5]).unwrap();
        base.seal(&device, Class::LogOperation, place);
        assert_ne!(read(&device, place.at + 32, 4), read(&*base.device, place.at + 32, 4), "the checksum");
        let cycles = |device: &dyn Device| read(device, place.at + 2 * SECTOR as u64, 3);
        assert_eq!(cycles(&device), cycles(&*base.device));
    }
}
