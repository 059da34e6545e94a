//! The checker: nothing is found on images of makefs, and one planted defect gives exactly its finding.

use crate::common::*;
use ivers_oracle::each_defect_is_found;
use ivers_ufs::check::{check, check_remains};
use ivers_vfs::check::{Findings, Memory};
use std::collections::BTreeSet;

const UFS2: &[&str] = &["-s", "16m", "-o", "version=2"];
/// The byte of the superblock.
const SB: usize = 8192;

fn findings(image: &[u8]) -> Findings {
    check(memory(image), Memory::unlimited(), "image").unwrap()
}

fn codes(image: &[u8]) -> BTreeSet<&'static str> {
    findings(image).counts().keys().copied().collect()
}

#[test]
fn images_of_makefs_are_clean() {
    if !have_makefs() {
        return;
    }
    for kind in KINDS {
        let found = findings(&image_of(kind));
        let lines: Vec<_> = found.kept().iter().take(20).map(|found| format!("{found:?}")).collect();
        assert!(found.is_clean(), "{}: {}\n{:?}", kind.0, lines.join("\n"), found.counts());
        assert_eq!(found.fs_type(), Some(&kind.0[..4]));
    }
}

/// Makes the inode of `/file` name blocks of extended attributes of so many bytes.
fn name_attributes(image: &mut [u8], bytes: u64, fragment: u64) {
    let at = slot(image, "/file");
    set(image, at + 92, 4, bytes);
    set(image, at + 96, 8, fragment);
    add(image, at + 24, 8, 2 * bytes.div_ceil(1024) as i64);
}

/// Inverts a bit of a bitmap of the first group. The descriptor of the group has the offset of the bitmap at
/// byte `offset_at`.
fn flip(image: &mut [u8], offset_at: usize, bit: u64) {
    let map = group(image) + get(image, group(image) + offset_at, 4) as usize;
    image[map + (bit / 8) as usize] ^= 1 << (bit % 8);
}

/// Adds to a 32-bit field of the descriptor of the first group.
fn add_in_group(image: &mut [u8], field_at: usize, more: i64) {
    let at = group(image) + field_at;
    add(image, at, 4, more);
}

fn ino(image: &[u8], dir: &str, name: &str) -> u64 {
    get(image, entry(image, dir, name), 4)
}

#[test]
fn each_planted_defect_gives_exactly_its_finding() {
    if !have_makefs() {
        return;
    }
    let image = small_image(UFS2);
    assert!(codes(&image).is_empty(), "{:?}", codes(&image));
    type Plant = fn(&mut Vec<u8>);
    let planted: &[(&str, &[&str], Plant)] = &[
        ("a size of blocks", &["superblock-invalid"], |i| set(i, SB + 48, 4, 3)),
        ("the mark of damage", &["repair-required"], |i| i[SB + 1312] |= 4),
        ("a copy of the superblock", &["superblock-copy-wrong"], |i| {
            let sb = superblock(i);
            add(i, sb.structure(0, 0) as usize * sb.fragment_size as usize + 184, 4, 32);
        }),
        ("the magic of a group", &["group-invalid"], |i| add_in_group(i, 4, 1)),
        ("the number of a group", &["group-invalid"], |i| add_in_group(i, 12, 1)),
        ("directories of a group", &["group-directories-wrong"], |i| add_in_group(i, 24, 1)),
        ("free blocks of a group", &["group-free-blocks-wrong"], |i| add_in_group(i, 28, 1)),
        ("free inodes of a group", &["group-free-inodes-wrong"], |i| add_in_group(i, 32, -1)),
        ("free fragments of a group", &["group-free-fragments-wrong"], |i| add_in_group(i, 36, 1)),
        ("runs of fragments", &["fragment-runs-wrong"], |i| add_in_group(i, 56, 1)),
        ("counts of clusters", &["cluster-counts-wrong"], |i| {
            let at = group(i) + get(i, group(i) + 104, 4) as usize;
            add(i, at + 4, 4, 1);
        }),
        ("the map of clusters", &["cluster-map-wrong"], |i| flip(i, 108, 1900)),
        ("the summary area", &["summary-wrong"], |i| {
            let sb = superblock(i);
            add(i, sb.summary_start as usize * sb.fragment_size as usize, 4, 1);
        }),
        ("all directories", &["directories-count-wrong"], |i| add(i, SB + 1008, 8, 1)),
        ("all free blocks", &["free-blocks-count-wrong"], |i| add(i, SB + 1016, 8, 1)),
        ("all free inodes", &["free-inodes-count-wrong"], |i| add(i, SB + 1024, 8, -1)),
        ("all free fragments", &["free-fragments-count-wrong"], |i| add(i, SB + 1032, 8, 1)),
        ("a lost fragment", &["block-lost"], |i| flip(i, 96, 16_000)),
        ("a used fragment marked free", &["block-in-use-marked-free"], |i| {
            let fragment = contents(i, "/file") as u64 / 1024;
            flip(i, 96, fragment);
        }),
        ("a lost inode", &["inode-lost"], |i| flip(i, 92, 20)),
        ("a used inode marked free", &["inode-in-use-marked-free"], |i| {
            let ino = ino(i, "/", "file");
            flip(i, 92, ino);
        }),
        ("an unknown type", &["inode-invalid"], |i| {
            let at = slot(i, "/link");
            set(i, at, 2, 0xF000);
        }),
        ("a count of blocks", &["inode-block-count-wrong"], |i| {
            let at = slot(i, "/file");
            add(i, at + 24, 8, 2);
        }),
        ("a block past the end", &["block-past-end"], |i| {
            let at = slot(i, "/file");
            set(i, at + 112 + 8 * 5, 8, 9000);
        }),
        ("a block outside", &["block-out-of-range"], |i| name_attributes(i, 8, 16_384)),
        ("a block of the filesystem", &["block-in-metadata"], |i| name_attributes(i, 8, 17)),
        ("a block of another file", &["block-claimed-twice"], |i| {
            let fragment = contents(i, "/large") as u64 / 1024;
            name_attributes(i, 8, fragment);
        }),
        ("fragments of two blocks", &["block-misaligned"], |i| name_attributes(i, 2048, 16_007)),
        ("a link count", &["link-count-wrong"], |i| {
            let at = slot(i, "/file");
            add(i, at + 2, 2, 1);
        }),
        ("a type in an entry", &["filetype-wrong"], |i| {
            let at = entry(i, "/", "file");
            i[at + 6] = 4;
        }),
        ("a name of no inode", &["entry-inode-out-of-range", "link-count-wrong"], |i| {
            let at = entry(i, "/", "file");
            set(i, at, 4, 100_000);
        }),
        ("a name of a free inode", &["link-count-wrong", "name-of-unused-inode"], |i| {
            let at = entry(i, "/", "file");
            set(i, at, 4, 20);
        }),
        ("a name that is there twice", &["name-twice"], |i| {
            let at = entry(i, "/", "link");
            i[at + 8..at + 12].copy_from_slice(b"file");
        }),
        ("a file without a name", &["inode-unattached"], |i| {
            let at = entry(i, "/", "link");
            set(i, at, 4, 0);
        }),
        ("a directory without a name", &["directory-unconnected"], |i| {
            let at = entry(i, "/dir", "sub");
            set(i, at, 4, 0);
        }),
        (
            "a directory with two names",
            &["directory-linked-twice", "dotdot-wrong", "inode-unattached", "link-count-wrong"],
            |i| {
                let (at, sub) = (entry(i, "/", "link"), ino(i, "/dir", "sub"));
                set(i, at, 4, sub);
                i[at + 6] = 4;
            },
        ),
        ("the parent of a directory", &["dotdot-wrong", "link-count-wrong"], |i| {
            let at = entry(i, "/dir/sub", "..");
            set(i, at, 4, 2);
        }),
        ("the dot of a directory", &["directory-dots-wrong", "link-count-wrong"], |i| {
            let at = entry(i, "/dir/sub", ".");
            set(i, at, 4, 2);
        }),
        (
            "the length of an entry",
            &["directory-dots-wrong", "directory-entry-invalid", "link-count-wrong"],
            |i| {
                let at = entry(i, "/dir/sub", "..");
                add(i, at + 4, 2, 1);
            },
        ),
        ("the size of a directory", &["directory-size-wrong", "link-count-wrong"], |i| {
            let at = slot(i, "/dir/sub");
            add(i, at + 16, 8, -1);
        }),
        (
            "a hole in a directory",
            &[
                "block-lost",
                "directory-dots-wrong",
                "directory-hole",
                "fragment-runs-wrong",
                "free-fragments-count-wrong",
                "group-free-fragments-wrong",
                "inode-block-count-wrong",
                "link-count-wrong",
                "summary-wrong",
            ],
            |i| {
                let at = slot(i, "/dir/sub");
                set(i, at + 112, 8, 0);
            },
        ),
        ("a check hash of inodes", &["inode-invalid"], |i| {
            // The superblock says that inodes have one, and only that of the link is not right.
            let (at, end) = (slot(i, "/") - 2 * 256, superblock(i).inodes() as usize);
            let link = slot(i, "/link");
            set(i, SB + 1308, 4, 4);
            set(i, SB + 1312, 4, 0x200);
            for at in (at..at + end * 256).step_by(256) {
                if at == link || get(i, at, 2) == 0 {
                    continue;
                }
                set(i, at + 244, 4, 0);
                let hash = !crc32c::crc32c(&i[at..at + 256]);
                set(i, at + 244, 4, hash.into());
            }
        }),
    ];
    each_defect_is_found(&image, planted.iter().map(|&(name, codes, plant)| (name, codes, plant)), |image| {
        codes(image)
    });
}

#[test]
fn counts_of_ufs1_are_in_the_wider_fields_if_they_are_in_use() {
    if !have_makefs() {
        return;
    }
    let image = small_image(KINDS[0].1);
    let (old, max_block_size, wide) = (SB + 192, SB + 860, SB + 1008);
    // fsck_ffs of FreeBSD leaves the old fields as they are.
    let mut repaired = image.clone();
    add(&mut repaired, old + 4, 4, -7);
    assert!(codes(&repaired).is_empty());
    let mut wrong = image.clone();
    add(&mut wrong, wide + 8, 8, -7);
    assert_eq!(codes(&wrong), ["free-blocks-count-wrong"].into());
    // Systems without the wider fields do not set them.
    let mut older = image;
    set(&mut older, max_block_size, 4, 0);
    add(&mut older, wide + 8, 8, -7);
    assert!(codes(&older).is_empty());
}

#[test]
fn findings_have_paths_and_notes() {
    if !have_makefs() {
        return;
    }
    let mut image = small_image(UFS2);
    let at = slot(&image, "/dir/hard");
    add(&mut image, at + 2, 2, 1);
    image[SB + 209] = 0;
    image[SB + 1312] |= 8;
    let found = findings(&image);
    let path = found.kept()[0].place.path.clone().unwrap();
    assert!([&b"/file"[..], b"/dir/hard"].contains(&&*path), "{}", path.escape_ascii());
    assert!(found.notes()[0].contains("not unmounted cleanly"), "{:?}", found.notes());
    assert!(found.notes()[1].contains("soft updates"), "{:?}", found.notes());
    // If the superblock is destroyed, its copy shows what the filesystem is.
    image[SB..SB + 1376].fill(0);
    let found = check_remains(&*memory(&image)).unwrap().unwrap();
    assert_eq!(found.counts().keys().copied().collect::<Vec<_>>(), ["superblock-invalid"]);
    assert!(found.notes()[0].contains("a copy of the superblock is at byte 16384"), "{:?}", found.notes());
    assert!(check_remains(&*memory(&[0; 1 << 20])).unwrap().is_none());
}
