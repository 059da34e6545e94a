//! The checker: nothing is found on images of Linux, one planted defect gives exactly its finding, and what
//! fsck.ocfs2 finds is found.

use crate::common::*;
use ivers_ocfs2::check::{check, check_remains};
use ivers_oracle::{OCFS2_PROGRAMS, each_defect_is_found, fsck_ocfs2, have_programs};
use ivers_vfs::check::{Findings, Memory};
use std::collections::BTreeSet;

/// The byte of the superblock, with blocks of 1 KiB.
const SB: usize = 2048;

fn findings(image: &[u8]) -> Findings {
    check(memory(image), Memory::unlimited(), "image").unwrap()
}

fn codes(image: &[u8]) -> BTreeSet<&'static str> {
    findings(image).counts().keys().copied().collect()
}

#[test]
fn images_of_linux_are_clean() {
    for (name, packed) in [("plain", PLAIN), ("sums", SUMS), ("dirty", DIRTY)] {
        let found = findings(&unpack(packed));
        assert!(found.is_clean(), "{name}: {:#?}", found.kept());
        assert_eq!(found.fs_type(), Some("ocfs2"));
        let has = |word: &str| found.notes().iter().any(|note| note.contains(word));
        assert_eq!(
            (has("replayed in memory"), has("removed while still open")),
            (name == "dirty", name == "dirty")
        );
    }
}

/// The byte of the first list with entries of the index of `/many`.
fn index_list(image: &[u8]) -> usize {
    let root = byte_of(image, get(image, slot(image, "/many") + 0x88, 8));
    if image[root + 0x2C] & 1 != 0 {
        return root + 0xC0;
    }
    let first = byte_of(image, get(image, root + 0xC0 + 24, 8));
    let mut leaves = (0..4).map(|nth| first + nth * 1024 + 0x28);
    leaves.find(|&list| get(image, list + 6, 2) > 0).expect("a leaf has entries")
}

fn set_in(image: &mut [u8], path: &str, at: usize, len: usize, value: u64) {
    let slot = slot(image, path);
    set(image, slot + at, len, value);
}

fn add_in(image: &mut [u8], path: &str, at: usize, len: usize, more: i64) {
    let slot = slot(image, path);
    add(image, slot + at, len, more);
}

/// A defect, the findings that it gives, whether fsck.ocfs2 finds it, and how to plant it.
type Planted = (&'static str, &'static [&'static str], bool, fn(&mut Vec<u8>));

const PLANTED: &[Planted] = &[
    ("the size of clusters", &["superblock-invalid"], true, |i| set(i, SB + 0xFC, 4, 3)),
    ("the mark of damage", &["repair-required"], false, |i| i[SB + 0xC8] |= 1),
    ("a signature of an inode", &["inode-invalid"], true, |i| set_in(i, "/small", 0, 1, 0)),
    ("a generation", &["inode-invalid"], true, |i| add_in(i, "/small", 0x60, 4, 1)),
    ("an inode of another place", &["inode-invalid"], true, |i| add_in(i, "/small", 0x50, 8, 1)),
    ("a free inode with a name", &["inode-lost", "name-of-unused-inode"], true, |i| {
        set_in(i, "/small", 0x2C, 4, 0)
    }),
    ("a bit of an allocator", &["inode-suballoc-wrong"], false, |i| add_in(i, "/small", 0x0E, 2, 1)),
    ("a time of deletion", &["inode-dtime-wrong"], true, |i| set_in(i, "/small", 0x48, 8, 77)),
    ("a link count", &["link-count-wrong"], true, |i| add_in(i, "/small", 0x2A, 2, 1)),
    ("a count of clusters", &["inode-cluster-count-wrong"], true, |i| add_in(i, "/holes", 0x14, 4, 1)),
    ("an orphan in no directory of orphans", &["orphan-wrong"], false, |i| {
        let at = slot(i, "/small");
        i[at + 0x2C] |= 4;
    }),
    (
        "the size of a directory",
        &["directory-size-wrong", "inode-unattached", "link-count-wrong"],
        false,
        |i| add_in(i, "/many", 0x20, 8, -1),
    ),
    ("a lost cluster", &["cluster-lost"], true, |i| {
        let last = u64::from(superblock(i).clusters) - 1;
        flip(i, "//global_bitmap", last, 1);
    }),
    ("a used cluster marked free", &["cluster-in-use-marked-free"], true, |i| {
        let cluster = first_extent(i, slot(i, "/large")) as u64 / 4096;
        flip(i, "//global_bitmap", cluster, -1);
    }),
    (
        "free bits of a group",
        &["chain-counts-wrong", "allocator-counts-wrong", "group-free-wrong"],
        true,
        |i| {
            let at = first_group(i, "//global_bitmap");
            add(i, at + 0x0C, 2, 1);
        },
    ),
    ("free bits of a chain", &["chain-counts-wrong"], true, |i| add_in(i, "//global_bitmap", 0xD0, 4, 1)),
    ("used bits of an allocator", &["allocator-counts-wrong"], true, |i| {
        add_in(i, "//inode_alloc:0000", 0xB8, 4, 1)
    }),
    ("clusters of an allocator", &["allocator-size-wrong"], true, |i| {
        add_in(i, "//inode_alloc:0000", 0x14, 4, 1)
    }),
    (
        "the chain of a group",
        &[
            "allocator-counts-wrong",
            "allocator-size-wrong",
            "block-in-use-marked-free",
            "chain-counts-wrong",
            "cluster-lost",
            "group-invalid",
        ],
        true,
        |i| {
            let at = first_group(i, "//extent_alloc:0000");
            add(i, at + 0x0E, 2, 1);
        },
    ),
    ("a loop of groups", &["group-claimed-twice"], true, |i| {
        let at = first_group(i, "//extent_alloc:0000");
        let own = get(i, at + 0x28, 8);
        set(i, at + 0x18, 8, own);
    }),
    ("a lost block of extents", &["block-lost"], false, |i| {
        let at = first_group(i, "//extent_alloc:0000");
        let last = get(i, at + 0x0A, 2) - 1;
        flip(i, "//extent_alloc:0000", last, 1);
    }),
    ("an extent outside", &["cluster-lost", "extents-invalid"], true, |i| {
        set_in(i, "/prefix", 0xD8, 8, 1 << 40)
    }),
    (
        "an extent of another file",
        &["cluster-claimed-twice", "cluster-in-use-marked-free", "cluster-lost"],
        true,
        |i| {
            let (prefix, ahead) = (slot(i, "/prefix"), slot(i, "/ahead"));
            let start = get(i, ahead + 0xD8, 8);
            set(i, prefix + 0xD8, 8, start);
        },
    ),
    ("a record too many", &["cluster-lost", "extents-invalid"], true, |i| {
        set_in(i, "/prefix", 0xC4, 2, 60_000)
    }),
    (
        "a depth",
        &["block-claimed-twice", "cluster-lost", "extent-block-invalid", "index-invalid"],
        true,
        |i| {
            // Its only record leads to the root of the index of a directory.
            let (prefix, many) = (slot(i, "/prefix"), slot(i, "/many"));
            let root = get(i, many + 0x88, 8);
            set(i, prefix + 0xC0, 2, 1);
            set(i, prefix + 0xD8, 8, root);
        },
    ),
    ("a type in an entry", &["filetype-wrong"], true, |i| {
        let at = entry(i, "/", "small");
        i[at + 11] = 2;
    }),
    ("a name of no inode", &["entry-inode-out-of-range", "inode-unattached"], true, |i| {
        let at = entry(i, "/", "small");
        set(i, at, 8, 1 << 40);
    }),
    ("a file without a name", &["inode-unattached"], true, |i| {
        let at = entry(i, "/", "small");
        set(i, at, 8, 0);
    }),
    ("a name that is there twice", &["name-twice"], true, |i| {
        let at = entry(i, "/", "short");
        i[at + 12..at + 17].copy_from_slice(b"small");
    }),
    ("a directory without a name", &["directory-unconnected"], true, |i| {
        let at = entry(i, "/few", "below");
        set(i, at, 8, 0);
    }),
    ("the parent of a directory", &["dotdot-wrong", "link-count-wrong"], true, |i| {
        let (at, root) = (entry(i, "/few/below", ".."), superblock(i).root);
        set(i, at, 8, root);
    }),
    ("the length of an entry", &["directory-invalid", "link-count-wrong"], true, |i| {
        let at = entry(i, "/few/below", "..");
        add(i, at + 8, 2, 1);
    }),
    ("a trailer", &["directory-trailer-wrong"], true, |i| {
        let at = first_extent(i, slot(i, "/many")) + 1024 - 64;
        add(i, at + 0x30, 8, 1);
    }),
    ("a hash of an index", &["index-wrong"], false, |i| {
        let list = index_list(i);
        add(i, list + 8, 4, 1);
    }),
    ("a hash in another leaf", &["index-wrong"], true, |i| {
        let list = index_list(i);
        let last = list + 8 + 16 * (get(i, list + 6, 2) as usize - 1);
        // The second half of a hash selects the block of a cluster.
        add(i, last + 4, 4, 1);
    }),
    ("an entry of an index", &["index-wrong"], false, |i| {
        let root = byte_of(i, get(i, slot(i, "/many") + 0x88, 8));
        add(i, root + 0x38, 4, 1);
    }),
    ("a count of references", &["refcount-wrong"], true, |i| {
        let root = byte_of(i, get(i, slot(i, "/large") + 0x90, 8));
        add(i, root + 0x90 + 12, 4, 1);
    }),
    ("an attribute outside its area", &["xattr-invalid"], true, |i| {
        let at = slot(i, "/small");
        set(i, at + 1024 - 256 + 16 + 8, 8, 5000);
    }),
    ("clusters that wait twice to be freed", &["cluster-claimed-twice"], true, |i| {
        let (log, cluster) =
            (slot(i, "//truncate_log:0000"), first_extent(i, slot(i, "/large")) as u64 / 4096);
        set(i, log + 0xC2, 2, 1);
        set(i, log + 0xC8, 4, cluster);
        set(i, log + 0xCC, 4, 1);
    }),
    ("a window of an allocator", &["local-alloc-invalid"], true, |i| {
        let at = slot(i, "//local_alloc:0000");
        set(i, at + 0xBC, 4, 1 << 20);
    }),
];

#[test]
fn each_planted_defect_gives_exactly_its_finding() {
    let image = unpack(PLAIN);
    assert!(codes(&image).is_empty(), "{:?}", findings(&image).kept());
    let defects = PLANTED.iter().map(|&(name, codes, _, plant)| (name, codes, plant));
    each_defect_is_found(&image, defects, |image| codes(image));
}

#[test]
fn a_defect_that_fsck_finds_is_found() {
    if !have_programs(OCFS2_PROGRAMS) {
        return;
    }
    let (image, dir) = (unpack(PLAIN), tempfile::tempdir().unwrap());
    let path = dir.path().join("image");
    let fsck = |image: &[u8]| {
        std::fs::write(&path, image).unwrap();
        fsck_ocfs2(&path).unwrap()
    };
    assert!(fsck(&image).is_empty());
    let mut wrong = Vec::new();
    for &(name, _, theirs, plant) in PLANTED {
        let mut damaged = image.clone();
        plant(&mut damaged);
        let found = fsck(&damaged);
        assert!(!codes(&damaged).is_empty(), "{name}: {found:?}");
        if found.is_empty() == theirs {
            wrong.push(format!("{name}: {found:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn one_wrong_bit_of_a_checksum_is_a_finding() {
    let image = unpack(SUMS);
    let mut wrong = image.clone();
    let at = slot(&image, "/few/file");
    wrong[at + 0x40] ^= 1;
    assert_eq!(codes(&wrong), BTreeSet::from(["checksum-corrected"]));
    wrong[at + 0x41] ^= 1;
    assert!(codes(&wrong).contains("inode-invalid"));
}

#[test]
fn findings_have_paths_and_a_lost_superblock_is_reported() {
    let mut image = unpack(PLAIN);
    let at = slot(&image, "/few/below");
    add(&mut image, at + 0x2A, 2, 1);
    let found = findings(&image);
    assert_eq!(found.kept()[0].place.path.as_deref(), Some(&b"/few/below"[..]));
    assert!(check_remains(&*memory(&[0; 1 << 20])).unwrap().is_none());
}
