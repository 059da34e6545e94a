//! First inputs: for each target a few that reach every structure of every base unchanged, and some with damage.

use crate::Target;
use crate::base::BASES;
use crate::input::Patch;
use crate::journal;
use ivers_block::Device;
use ivers_vfs::epoch::EpochRecord;

/// Calls of every sort, each on another inode.
pub(crate) fn all_calls(out: &mut Vec<u8>) {
    for what in 0..24u8 {
        out.extend_from_slice(&[what, what.wrapping_mul(7), 0x13, 0x04]);
    }
}

fn read(device: &dyn Device, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).expect("places lie in the image");
    bytes
}

/// Inputs that patch each structure with its own first bytes: the mutator starts from what is there.
fn of_images(target: &Target, seeds: &mut Vec<Vec<u8>>) {
    for (number, base) in BASES.iter().enumerate() {
        for (class_number, class) in target.classes.iter().enumerate() {
            let Some(places) = base.places.get(class) else { continue };
            let step = places.len().div_ceil(6);
            for (index, place) in places.iter().enumerate().step_by(step) {
                let mut seed = vec![number as u8, if index == 0 { 8 } else { 0 }, 1];
                let bytes = read(&*base.device, place.at, place.len.min(96));
                let patch =
                    Patch { class: class_number as u8, place: index as u16, offset: 0, bytes: &bytes };
                patch.encode(&mut seed);
                all_calls(&mut seed);
                seeds.push(seed);
            }
        }
    }
}

/// The first inputs of a target.
pub fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    if !target.classes.is_empty() {
        of_images(target, &mut seeds);
    }
    match target.name {
        // The first byte says which of the two forms follows.
        "superblock" => {
            seeds.iter_mut().for_each(|seed| seed.insert(0, 0));
            for base in BASES.iter() {
                let mut seed = vec![1, 24];
                seed.extend(read(&*base.device, 1024, 1024));
                seeds.push(seed);
            }
        }
        "fat" => seeds.extend(crate::fat::seeds()),
        "journal" => {
            seeds.iter_mut().for_each(|seed| seed.insert(0, journal::ON_IMAGES));
            seeds.extend(journal::seeds());
        }
        "epoch" => {
            for open in [false, true] {
                let record = EpochRecord { open, uuid: [7; 16], epoch: 41, foreign: [1, 2, 3, 4] }.encode();
                for flags in [2, 6, 14] {
                    let head = [flags, 7, 1, 0, 2, 0, 3, 0, 4, 0];
                    seeds.push([&head[..], &record[..]].concat());
                }
            }
        }
        "affs" => seeds.extend(crate::affs::seeds()),
        "saved_state" => seeds.extend(crate::plain::states()),
        "measure" => seeds.extend(crate::measure::seeds()),
        "nfs_wire" => seeds.extend(crate::nfs::wire::seeds()),
        "nfs_session" => seeds.extend(crate::nfs::session::seeds()),
        "nfs_compound" => seeds.extend(crate::nfs::compound::seeds()),
        _ => {}
    }
    seeds
}
