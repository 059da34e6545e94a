//! The checker: one planted defect gives exactly its own finding.

use crate::common;
use crate::common::{find, fresh, link, mount, pattern, put};
use ivers_affs::check::check;
use ivers_block::{ByteOffset, Device, MemDevice};
use ivers_oracle::each_defect_is_found;
use ivers_vfs::CreateSpec;
use ivers_vfs::check::Memory;
use std::collections::BTreeSet;
use std::sync::Arc;

const BLOCK: usize = 512;
const ROOT: usize = 880;

fn codes(image: &[u8]) -> BTreeSet<&'static str> {
    let found = check(Arc::new(MemDevice::from_bytes(image)), None, Memory::unlimited(), "image").unwrap();
    found.counts().keys().copied().collect()
}

fn get(image: &[u8], block: usize, nth: usize) -> u32 {
    let at = block * BLOCK + nth * 4;
    u32::from_be_bytes(image[at..at + 4].try_into().unwrap())
}

/// Sets a word of a block, and its checksum in word 5.
fn set(image: &mut [u8], block: usize, nth: usize, value: u32) {
    let at = block * BLOCK + nth * 4;
    image[at..at + 4].copy_from_slice(&value.to_be_bytes());
    seal(image, block, 5);
}

fn seal(image: &mut [u8], block: usize, sum_at: usize) {
    let at = block * BLOCK + sum_at * 4;
    image[at..at + 4].fill(0);
    let sum = (0..BLOCK / 4).fold(0u32, |sum, nth| sum.wrapping_add(get(image, block, nth)));
    image[at..at + 4].copy_from_slice(&sum.wrapping_neg().to_be_bytes());
}

/// The header of a name in the root.
fn header(image: &[u8], name: &str) -> usize {
    let headers = (6..78).map(|slot| get(image, ROOT, slot) as usize).filter(|&block| block != 0);
    let named = |block: &usize| {
        let at = block * BLOCK + BLOCK - 80;
        &image[at + 1..at + 1 + usize::from(image[at])] == name.as_bytes()
    };
    headers.into_iter().find(named).unwrap()
}

#[test]
fn each_planted_defect_gives_exactly_its_finding() {
    let device = fresh(1, 512, common::DD);
    let vfs = mount(&device);
    put(&vfs, "/File", &pattern(1, 5000));
    put(&vfs, "/Other", &pattern(2, 700));
    common::make(&vfs, "/Dir", &CreateSpec::directory(0o700));
    link(&vfs, "/Other", "/Link");
    drop(find(&vfs, "/Dir"));
    vfs.unmount().unwrap();
    let image = device.to_bytes();
    assert!(codes(&image).is_empty(), "{:?}", codes(&image));
    type Plant = fn(&mut Vec<u8>);
    let planted: &[(&str, &[&str], Plant)] = &[
        ("the root", &["root-invalid"], |i| i[ROOT * BLOCK + 3] = 9),
        ("the bitmap is invalid", &["bitmap-invalid"], |i| set(i, ROOT, 128 - 50, 0)),
        ("a lost block", &["block-lost"], |i| {
            let page = get(i, ROOT, 128 - 49) as usize;
            let byte_of = |bit: usize| page * BLOCK + 4 + bit / 32 * 4 + 3 - bit % 32 / 8;
            let at = byte_of(1700);
            i[at] &= !(1 << (1700 % 8));
            seal(i, page, 0);
        }),
        ("a used block marked free", &["block-in-use-marked-free"], |i| {
            let (page, bit) = (get(i, ROOT, 128 - 49) as usize, header(i, "File") - 2);
            i[page * BLOCK + 4 + bit / 32 * 4 + 3 - bit % 32 / 8] |= 1 << (bit % 8);
            seal(i, page, 0);
        }),
        ("a parent", &["parent-wrong"], |i| {
            let file = header(i, "File");
            set(i, file, 128 - 3, 3);
        }),
        ("a name", &["hash-chain-wrong"], |i| {
            let file = header(i, "File");
            i[file * BLOCK + BLOCK - 79] = b'G';
            seal(i, file, 5);
        }),
        ("a first block", &["file-table-invalid"], |i| {
            let file = header(i, "File");
            set(i, file, 4, 3);
        }),
        ("a size", &["file-size-wrong"], |i| {
            let file = header(i, "File");
            set(i, file, 128 - 47, 1);
        }),
        ("a table", &["file-table-invalid"], |i| {
            let file = header(i, "File");
            set(i, file, 2, 3);
        }),
        ("a chain of links", &["link-chain-wrong"], |i| {
            let other = header(i, "Other");
            set(i, other, 128 - 10, 0);
        }),
    ];
    each_defect_is_found(&image, planted.iter().copied(), |image| codes(image));
}

#[test]
fn mutated_volumes_end_in_findings() {
    let device = fresh(5, 512, common::DD);
    let vfs = mount(&device);
    for nth in 0..20 {
        put(&vfs, &format!("/file{nth}"), &pattern(nth, 3000));
    }
    vfs.unmount().unwrap();
    let image = device.to_bytes();
    let mut state = 1u64;
    for _ in 0..2000 {
        let damaged = MemDevice::from_bytes(&image);
        for _ in 0..4 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (ROOT - 8) * BLOCK + (state >> 33) as usize % (250 * BLOCK);
            damaged.write_at(ByteOffset(at as u64), &[(state >> 56) as u8]).unwrap();
        }
        let _ = check(Arc::new(damaged), None, Memory::unlimited(), "image");
    }
}
