//! Generated fuzz inputs: for each target some that reach every structure of every base unchanged, and some
//! with damage.

use crate::base::BASES;
use crate::input::Patch;
use crate::place::Place;
use crate::{Structures, Target, btrfs, journal, xfs};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::epoch::EpochRecord;
use ivers_vfs::raises::Raises;
use std::collections::HashMap;
use std::hash::Hash;

/// Appends calls of every kind, each on another inode.
pub(crate) fn all_calls(out: &mut Vec<u8>) {
    for what in 0..24u8 {
        out.extend_from_slice(&[what, what.wrapping_mul(7), 0x13, 0x04]);
    }
}

fn read(device: &dyn Device, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(ByteOffset(at), &mut bytes).expect("places lie in the image");
    bytes
}

/// Adds inputs that patch each structure with its own first bytes, as a start for the mutator.
fn of_images<'a, C: Copy + Eq + Hash + 'a>(
    bases: impl Iterator<Item = (&'a dyn Device, &'a HashMap<C, Vec<Place>>)>,
    classes: &[C],
    inputs: &mut Vec<Vec<u8>>,
) {
    for (number, (device, all)) in bases.enumerate() {
        for (class_number, class) in classes.iter().enumerate() {
            let Some(places) = all.get(class) else { continue };
            let step = places.len().div_ceil(6);
            for (index, place) in places.iter().enumerate().step_by(step) {
                let mut input = vec![number as u8, if index == 0 { 8 } else { 0 }, 1];
                let bytes = read(device, place.at, place.len.min(96));
                let patch =
                    Patch { class: class_number as u8, place: index as u16, offset: 0, bytes: &bytes };
                patch.encode(&mut input);
                all_calls(&mut input);
                inputs.push(input);
            }
        }
    }
}

/// Returns the generated inputs of a target.
pub fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = Vec::new();
    match target.structures {
        Structures::Ext4(classes) => {
            of_images(BASES.iter().map(|base| (&*base.device, &base.places)), classes, &mut inputs);
        }
        Structures::Xfs(classes) => {
            let bases = xfs::BASES.iter().map(|base| (&*base.device, &base.places));
            of_images(bases, classes, &mut inputs);
        }
        Structures::Btrfs(classes) => {
            let bases = btrfs::bases(classes).iter().map(|base| (&*base.device, &base.places));
            of_images(bases, classes, &mut inputs);
        }
        Structures::None => {}
    }
    match target.name {
        // The first byte selects one of the two forms.
        "superblock" => {
            inputs.iter_mut().for_each(|input| input.insert(0, 0));
            for base in BASES.iter() {
                let mut input = vec![1, 24];
                input.extend(read(&*base.device, 1024, 1024));
                inputs.push(input);
            }
        }
        "fat" => inputs.extend(crate::fat::inputs()),
        "journal" => {
            inputs.iter_mut().for_each(|input| input.insert(0, journal::ON_IMAGES));
            inputs.extend(journal::inputs());
        }
        "epoch" => {
            for open in [false, true] {
                let fingerprint = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0];
                let (uuid, raises) = ([7; 16], Raises::from_bits(0b10_0111));
                let record = EpochRecord { open, uuid, epoch: 41, fingerprint, raises }.encode();
                for flags in [2, 6, 14, 38, 70, 102] {
                    let head = [flags, 7, 1, 0, 2, 0, 3, 0, 4, 0];
                    inputs.push([&head[..], &record[..]].concat());
                }
            }
        }
        "affs" => inputs.extend(crate::affs::inputs()),
        "ufs" => inputs.extend(crate::ufs::inputs()),
        "ocfs2" => inputs.extend(crate::ocfs2::inputs()),
        "partitions" => inputs.extend(crate::partitions::inputs()),
        "saved_state" => inputs.extend(crate::plain::states()),
        "measure" => inputs.extend(crate::measure::inputs()),
        "nfs_wire" => inputs.extend(crate::nfs::wire::inputs()),
        "nfs_client" => inputs.extend(crate::nfs::client::inputs()),
        "nfs_callbacks" => inputs.extend(crate::nfs::callbacks::inputs()),
        "nfs_session" => inputs.extend(crate::nfs::session::inputs()),
        "nfs_compound" => inputs.extend(crate::nfs::compound::inputs()),
        _ => {}
    }
    inputs
}
