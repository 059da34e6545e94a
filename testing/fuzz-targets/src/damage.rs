//! Overwrites structures of an image as the patches of an input say.

use crate::input::{Flags, Input};
use crate::place::Place;
use ivers_block::{ByteOffset, Device};
use std::collections::HashMap;
use std::hash::Hash;

/// A base image whose structures have checksums.
pub(crate) trait Sealed<C> {
    /// The structures of the image by class.
    fn places(&self) -> &HashMap<C, Vec<Place>>;

    /// Corrects the checksum of the structure at `place` of a damaged copy.
    fn seal(&self, device: &dyn Device, class: C, place: &Place);
}

/// Reads the patches of an input and applies them to structures of `classes`.
pub(crate) fn damage<C: Copy + Eq + Hash>(
    base: &impl Sealed<C>,
    device: &dyn Device,
    classes: &[C],
    flags: Flags,
    rest: &mut Input<'_>,
) {
    let mut hit = Vec::new();
    for patch in rest.patches() {
        let class = classes[usize::from(patch.class) % classes.len()];
        let Some(places) = base.places().get(&class) else { continue };
        let place = places[usize::from(patch.place) % places.len()];
        let offset = usize::from(patch.offset) % place.len;
        let bytes = &patch.bytes[..patch.bytes.len().min(place.len - offset)];
        device.write_at(ByteOffset(place.at + offset as u64), bytes).expect("places lie in the image");
        hit.push((class, place));
    }
    if !flags.keep_checksums() {
        hit.iter().for_each(|(class, place)| base.seal(device, *class, place));
    }
}
