//! Damage to images: at places that btrfs-progs or our own layout finds, and at random.

use ivers_block::{ByteOffset, Device, MemDevice, OverlayDevice};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

/// Where the superblock is, and its size.
pub const SUPER: usize = 64 << 10;
pub const SUPER_BYTES: usize = 4096;
/// Where a block has what its checksum covers.
const COVERED: usize = 32;

/// Makes the CRC-32C of a superblock or a block of a tree right again.
pub fn seal(block: &mut [u8]) {
    let sum = crc32c::crc32c(&block[COVERED..]);
    block[..4].copy_from_slice(&sum.to_le_bytes());
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().unwrap()
}

pub fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(number(bytes, at))
}

pub fn node_size(image: &[u8]) -> usize {
    u32::from_le_bytes(number(image, SUPER + 0x94)) as usize
}

/// Changes the first superblock, and makes its checksum right again. The copies are erased.
pub fn change_super(image: &mut [u8], change: impl FnOnce(&mut [u8])) {
    let block = &mut image[SUPER..SUPER + SUPER_BYTES];
    change(block);
    seal(block);
    if image.len() >= (64 << 20) + SUPER_BYTES {
        image[64 << 20..(64 << 20) + SUPER_BYTES].fill(0);
    }
}

/// Offsets of all blocks of trees in an image: those that name its filesystem, and whose checksum is right.
pub fn tree_blocks(image: &[u8]) -> Vec<usize> {
    let size = node_size(image);
    let fsid: [u8; 16] = number(image, SUPER + 0x20);
    let is_block = |at: &usize| {
        let block = &image[*at..at + size];
        block[0x20..0x30] == fsid && block[..4] == crc32c::crc32c(&block[COVERED..]).to_le_bytes()
    };
    (0..=image.len() - size).step_by(4096).filter(is_block).collect()
}

/// Damages blocks of an image at random.
pub struct Damager {
    base: Arc<dyn Device>,
    blocks: Vec<usize>,
    size: usize,
    random: SmallRng,
}

impl Damager {
    pub fn new(image: &[u8], seed: u64) -> Self {
        let blocks = tree_blocks(image);
        assert!(blocks.len() > 10, "{} blocks", blocks.len());
        Self {
            base: Arc::new(MemDevice::from_bytes(image)),
            blocks,
            size: node_size(image),
            random: SmallRng::seed_from_u64(seed),
        }
    }

    /// Returns a copy of the image with some damaged blocks, perhaps with the superblock among them. Most
    /// have a right checksum.
    pub fn damage(&mut self) -> Arc<dyn Device> {
        let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(self.base.clone()));
        let random = &mut self.random;
        for _ in 0..random.random_range(1..8) {
            let is_super = random.random_bool(0.05);
            let (at, size) = match is_super {
                true => (SUPER, SUPER_BYTES),
                false => (self.blocks[random.random_range(0..self.blocks.len())], self.size),
            };
            let mut block = vec![0; size];
            device.read_at(ByteOffset(at as u64), &mut block).unwrap();
            for _ in 0..random.random_range(1..5) {
                // Much of it is in the header and the table of items, and in the data of the first ones.
                let place = match random.random_range(0..4) {
                    0 => random.random_range(0x30..0x65 + 200),
                    1 => size - random.random_range(1..1000),
                    _ => random.random_range(COVERED..size),
                };
                let flipped = block[place] ^ 1 << random.random_range(0..8);
                let values = [0, 0xFF, 0x80, random.random(), flipped, flipped];
                block[place] = values[random.random_range(0..values.len())];
            }
            if random.random_bool(0.95) {
                seal(&mut block);
            }
            device.write_at(ByteOffset(at as u64), &block).unwrap();
        }
        device
    }
}
