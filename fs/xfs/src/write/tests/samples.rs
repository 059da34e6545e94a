//! Values for tests.

use crate::layout::superblock::Superblock;
use crate::mkfs::{MkfsOptions, mkfs};
use ivers_block::{ByteOffset, Device, MemDevice};

/// A superblock of version 5 with blocks of 4 KiB.
pub(crate) fn superblock() -> Superblock {
    let device = MemDevice::new(400 << 20);
    mkfs(&device, &MkfsOptions { uuid: [7; 16], zeroed: true, ..MkfsOptions::default() }).unwrap();
    let mut head = vec![0; 512];
    device.read_at(ByteOffset(0), &mut head).unwrap();
    Superblock::parse(&head, 400 << 20, "sample").unwrap()
}
