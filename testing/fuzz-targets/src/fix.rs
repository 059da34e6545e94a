//! Corrects checksums of damaged structures, so that the damage gets past them.

use crate::base::Base;
use crate::damage::Sealed;
use crate::place::{Class, Place, le16, le32};
use ivers_block::{ByteOffset, Device};
use ivers_ext4::layout::csum::crc32c;
use ivers_ext4::layout::group::desc_csum;
use ivers_ext4::layout::inode::{inode_seed, seal_slot};
use std::collections::HashMap;
use std::sync::Arc;

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
        fix(self, device, class, place);
    }
}

fn fix(base: &Base, device: &dyn Device, class: Class, place: &Place) {
    let sb = &base.superblock;
    let put =
        |at: u64, bytes: &[u8]| device.write_at(ByteOffset(at), bytes).expect("places lie in the image");
    let word = |at: u64, sum: u32| put(at, &sum.to_le_bytes());
    if class == Class::GroupDescriptor && sb.has_group_csum() {
        let bytes = read(device, place.at, place.len);
        return put(place.at + 0x1E, &desc_csum(sb, place.owner, &bytes).to_le_bytes());
    }
    if !sb.has_csum() {
        return;
    }
    if class == Class::Superblock {
        let bytes = read(device, 1024, 1020);
        return word(1024 + 1020, crc32c(!0, &bytes));
    }
    if place.slot == 0 {
        return;
    }
    let size = sb.block_size as usize;
    let slot = read(device, place.slot, sb.inode_size as usize);
    let seed = inode_seed(sb, place.owner, le32(&slot, 0x64));
    let whole = place.len == size;
    match class {
        Class::MapNode => {
            let bytes = read(device, place.at, size);
            let tail = 12 + 12 * usize::from(le16(&bytes, 4));
            if tail + 4 <= size {
                word(place.at + tail as u64, crc32c(seed, &bytes[..tail]));
            }
        }
        Class::DirBlock => fix_names(device, place, seed, size),
        Class::XattrBlock => {
            let mut bytes = read(device, place.at, size);
            bytes[0x10..0x14].fill(0);
            let number = place.at / size as u64;
            word(place.at + 0x10, crc32c(crc32c(sb.csum_seed, &number.to_le_bytes()), &bytes));
        }
        _ if whole => {}
        _ => {
            let mut slot = slot;
            seal_slot(sb, place.owner, &mut slot);
            put(place.slot, &slot);
        }
    }
}

/// Corrects the checksum of a directory block. A leaf ends with a fake entry of 12 bytes that holds the
/// checksum; an index block with 8 bytes after the space for its rows.
fn fix_names(device: &dyn Device, place: &Place, seed: u32, size: usize) {
    let bytes = read(device, place.at, size);
    let put = |at: usize, sum: u32| {
        device
            .write_at(ByteOffset(place.at + at as u64), &sum.to_le_bytes())
            .expect("places lie in the image");
    };
    if bytes[size - 12..size - 4] == [0, 0, 0, 0, 12, 0, 0, 0xDE] {
        return put(size - 4, crc32c(seed, &bytes[..size - 12]));
    }
    // Inner nodes start with one empty entry over the whole block; the root with `.`, `..` and its header.
    let rows = if usize::from(le16(&bytes, 4)) == size { 8 } else { 0x20 };
    let (limit, count) = (usize::from(le16(&bytes, rows)), usize::from(le16(&bytes, rows + 2)));
    let tail = rows + limit * 8;
    if tail + 8 <= size && count <= limit {
        let sum = crc32c(seed, &bytes[..rows + count * 8]);
        put(tail + 4, crc32c(crc32c(sum, &bytes[tail..tail + 4]), &[0; 4]));
    }
}
