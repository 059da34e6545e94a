//! Trees that the kernel wrote, on every kind of image. Needs root and loop devices; without them, prints a
//! note and passes.

use crate::common::fill::{fill, in_dir};
use crate::common::*;
use ivers_btrfs::{OpenOptions, Subvolume};
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[test]
fn the_kernel_and_ivers_see_the_same_tree() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for kind in KINDS {
        let images = Images::make(dir.path(), kind);
        images.with_kernel(kind.mount, fill);
        let theirs = images.with_kernel("ro", kernel_tree);
        assert!(theirs.len() > 1300, "{}: {} files", kind.name, theirs.len());
        let vfs = mount(&images);
        let ours = our_tree(&vfs, true).unwrap_or_else(|error| panic!("{}: {error}", kind.name));
        assert_same(&comparable(ours), &comparable(theirs), kind.name);
        holes_are_known(&vfs, kind.name);
        counters_are_those_stored(&vfs, &images, kind.name);
        assert_eq!(fact(&vfs, "bad copies"), "0 found since the mount", "{}", kind.name);
        vfs.unmount().unwrap();
    }
}

fn holes_are_known(vfs: &Arc<Vfs>, what: &str) {
    let cred = Cred::root();
    let sparse = vfs.resolve(&cred, "/sparse", false).unwrap();
    let data = vfs.seek_data(&sparse, 0).unwrap();
    assert!(data > 2_860_000 && data <= 3_000_000, "{what}: {data}");
    let fragments = vfs.resolve(&cred, "/fragments", false).unwrap();
    let (mut at, mut runs) = (0, 0);
    while let Ok(data) = vfs.seek_data(&fragments, at) {
        at = vfs.seek_hole(&fragments, data).unwrap();
        runs += 1;
    }
    assert_eq!(runs, 101, "{what}");
}

/// The `sequence` of each inode of the top-level subvolume, as btrfs-progs prints it.
fn stored_sequences(images: &Images) -> BTreeMap<u64, u64> {
    let dump =
        |device: &str| ivers_oracle::run("btrfs", ["inspect-internal", "dump-tree", "-t", "5", device]);
    let output = match &images.paths[..] {
        [path] => dump(path.to_str().unwrap()),
        _ => images.with_loops(|loops| dump(&loops[0])),
    };
    let output = output.unwrap();
    let (mut found, mut inode) = (BTreeMap::new(), None);
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Some((_, key)) = line.split_once(" key (") {
            let words: Vec<_> = key.split_whitespace().collect();
            inode = (words[1] == "INODE_ITEM").then(|| words[0].parse().unwrap());
        }
        let words: Vec<_> = line.split_whitespace().collect();
        if let (Some(ino), ["sequence", value, ..]) = (inode, &words[..]) {
            found.insert(ino, value.parse().unwrap());
        }
    }
    found
}

fn counters_are_those_stored(vfs: &Arc<Vfs>, images: &Images, what: &str) {
    let stored = stored_sequences(images);
    assert!(stored.len() > 900, "{what}: {}", stored.len());
    let in_place = KINDS.iter().any(|kind| kind.name == what && kind.mount == "nodatacow");
    let mut changed_often = 0;
    for path in ["/", "/d", "/big", "/sparse", "/many", "/fragments", "/tiny", "/s1", "/null", "/text"] {
        let inode = vfs.resolve(&Cred::root(), path, false).unwrap();
        let is_file = inode.kind == FileType::Regular;
        if in_place && is_file {
            continue;
        }
        assert_eq!(vfs.stored_counter(&inode), stored[&inode.ino.0], "{what}: {path}");
        assert_eq!(vfs.change(&inode), Some(stored[&inode.ino.0]), "{what}: {path}");
        changed_often += u32::from(stored[&inode.ino.0] > 10);
    }
    assert!(changed_often > 0 || in_place, "{what}");
}

#[test]
fn subvolumes_are_mounted_by_number_by_path_and_by_default() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    images.with_kernel("", |root| {
        fill(root);
        in_dir(root, "btrfs -q subvolume set-default snapshot");
    });
    let with = |subvolume| open(images.devices(), OpenOptions { subvolume, ..reading() });
    let tree = |subvolume| our_tree(&with(subvolume).unwrap(), true).unwrap();
    let theirs = |options: &str| images.with_kernel(&format!("ro,{options}"), kernel_tree);
    assert_same(&tree(Subvolume::Path(b"sub".into())), &theirs("subvol=sub"), "sub");
    let nested = Subvolume::Path(b"/sub/nested/".into());
    assert_same(&tree(nested), &theirs("subvol=sub/nested"), "sub/nested");
    assert_same(&comparable(tree(Subvolume::Id(5))), &comparable(theirs("subvolid=5")), "top level");
    let default = with(Subvolume::Default).unwrap();
    assert_eq!(
        our_tree(&default, false).unwrap().keys().cloned().collect::<Vec<_>>(),
        ["/dir", "/file", "/nested"]
    );
    let root = default.root().unwrap();
    let id: u64 = fact(&default, "subvolume").parse().unwrap();
    assert_eq!(root.ino.0, id << 40 | 256);
    for (subvolume, word) in [
        (Subvolume::Id(4), "4"),
        (Subvolume::Id(9999), "9999"),
        (Subvolume::Path(b"none".into()), "none"),
        (Subvolume::Path(b"many".into()), "many"),
        (Subvolume::Path(b"tiny/x".into()), "tiny/x"),
    ] {
        let error = with(subvolume).err().unwrap();
        assert!(matches!(&error, Error::Incompatible(what) if what.contains(word)), "{error}");
    }
    // Parents across subvolumes.
    let vfs = with(Subvolume::Id(5)).unwrap();
    let cred = Cred::root();
    for (path, parent) in
        [("/sub/nested", "/sub"), ("/sub", "/"), ("/d/fixed", "/d"), ("/d/fixed/nested", "/d/fixed")]
    {
        let up = vfs.resolve(&cred, format!("{path}/.."), false).unwrap();
        assert_eq!(up.ino, vfs.resolve(&cred, parent, false).unwrap().ino, "{path}");
    }
}

#[test]
fn a_directory_of_100_000_names_is_listed_from_any_cursor() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    images.with_kernel("", |root| {
        in_dir(root, "mkdir large; cd large; seq 1 100000 | xargs touch; seq 1 7 100000 | xargs rm");
    });
    let vfs = mount(&images);
    let cred = Cred::root();
    let large = vfs.resolve(&cred, "/large", false).unwrap();
    let (mut names, mut cursors) = (std::collections::BTreeSet::new(), Vec::new());
    vfs.readdir(&cred, &large, 0, &mut |entry| {
        assert!(names.insert(entry.name.to_vec()));
        cursors.push(entry.next);
        std::ops::ControlFlow::Continue(())
    })
    .unwrap();
    let expected = 100_000 - 100_000usize.div_ceil(7) + 2;
    assert_eq!(names.len(), expected);
    assert!(cursors.is_sorted());
    for index in [0, 1, 2, 700, expected / 2, expected - 2] {
        let mut rest = 0;
        vfs.readdir(&cred, &large, cursors[index], &mut |_| {
            rest += 1;
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(rest, expected - index - 1);
    }
    for (name, exists) in [("2", true), ("1", false), ("99999", true), ("100001", false)] {
        assert_eq!(vfs.lookup(&cred, &large, name.as_bytes()).is_ok(), exists, "{name}");
    }
}
