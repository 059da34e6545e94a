//! Overwrites structures of an image as the patches of an input say.

use crate::input::{Flags, Input};
use crate::place::Place;
use ivers_block::{ByteOffset, Device, OverlayDevice};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// A base image whose structures have checksums.
pub(crate) trait Sealed<C> {
    /// The bytes of the image, which are never written.
    fn device(&self) -> &Arc<dyn Device>;

    /// The structures of the image by class.
    fn places(&self) -> &HashMap<C, Vec<Place>>;

    /// Corrects the checksum of the structure at `place` of a damaged copy.
    fn seal(&self, device: &dyn Device, class: C, place: &Place);
}

/// Returns a copy of one of `bases` as an input damages it, the flags of the input, and what follows.
pub(crate) fn damaged<'a, C: Copy + Eq + Hash>(
    bases: &[impl Sealed<C>],
    input: &'a [u8],
    classes: &[C],
) -> (Arc<dyn Device>, Flags, Input<'a>) {
    let mut rest = Input::new(input);
    let base = &bases[usize::from(rest.byte()) % bases.len()];
    let flags = Flags(rest.byte());
    let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(base.device().clone()));
    damage(base, &*device, classes, flags, &mut rest);
    (device, flags, rest)
}

/// Reads the patches of an input and applies them to structures of `classes`.
fn damage<C: Copy + Eq + Hash>(
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
