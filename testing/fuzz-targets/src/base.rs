//! The small images that inputs damage, one for each kind, made by other projects' mkfs and filled by
//! `examples/bases.rs`.

use crate::place::{Class, Place, places};
use flate2::read::DeflateDecoder;
use ivers_block::{Device, MemDevice};
use ivers_ext4::layout::Superblock;
use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, LazyLock};

/// An image and the positions of its structures.
pub struct Base {
    /// The name of the image.
    pub name: &'static str,
    /// The bytes of the image, which are never written.
    pub device: Arc<dyn Device>,
    /// The superblock of the image.
    pub superblock: Superblock,
    /// The structures of the image.
    pub places: HashMap<Class, Vec<Place>>,
}

macro_rules! bases {
    ($($name:literal)*) => {
        const PACKED: &[(&str, &[u8])] = &[$(($name, include_bytes!(concat!("../bases/", $name, ".z")))),*];
    };
}

bases! {
    "ext4_defaults"
    "ext4_1k_blocks"
    "ext4_2k_blocks"
    "ext4_small_inodes"
    "ext4_without_journal"
    "ext4_meta_bg"
    "ext4_sparse_super2"
    "ext4_uninit_bg"
    "ext4_seed_large_dir_project"
    "ext4_inline_data"
    "ext4_ea_inode"
    "ext4_orphan_file"
    "ext3"
    "ext2"
    "dirty_ext4"
    "dirty_ext3"
}

/// All images.
pub static BASES: LazyLock<Vec<Base>> =
    LazyLock::new(|| PACKED.iter().map(|(name, packed)| load(name, packed)).collect());

/// Returns an image that is stored in `bases/`.
pub(crate) fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut image = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut image).expect("a base unpacks");
    image
}

fn load(name: &'static str, packed: &[u8]) -> Base {
    let image = unpack(packed);
    let superblock =
        Superblock::parse(&image[1024..2048], image.len() as u64, name).expect("a base has a superblock");
    let places = places(&image, &superblock);
    Base { name, device: Arc::new(MemDevice::from_bytes(&image)), superblock, places }
}
