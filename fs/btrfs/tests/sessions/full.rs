//! Full filesystems: what is refused, that removals work, and that the space comes back.

use crate::common::*;
use ivers_vfs::*;
use std::sync::Arc;

const FULL: &[Kind] = &[
    DEFAULT,
    Kind { name: "mixed groups", mkfs: &["-M"], mount: "", devices: 1 },
    Kind { name: "all single, nodes of 4 KiB", mkfs: &["-m", "single", "-n", "4096"], mount: "", devices: 1 },
];

fn no_space(error: &Error) -> bool {
    matches!(error, Error::Name(NameError::NoSpace))
}

/// Makes files of so many bytes until there is no space. Returns how many.
fn fill_up(vfs: &Arc<Vfs>, name: &str, bytes: usize) -> usize {
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    for number in 0.. {
        let name = format!("{name}{number}");
        let made = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false);
        let file = match made {
            Ok((file, _)) => file,
            Err(error) => {
                assert!(no_space(&error), "{error}");
                return number;
            }
        };
        let mut at = 0;
        while at < bytes {
            let part = vec![number as u8; (bytes - at).min(1 << 20)];
            match vfs.write(&cred, &file, at as u64, &part, WriteFlags::empty()) {
                Ok(written) => at += written,
                Err(error) => {
                    assert!(no_space(&error), "{error}");
                    return number + 1;
                }
            }
        }
    }
    unreachable!("a filesystem has an end")
}

#[test]
fn a_full_filesystem_refuses_and_recovers() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for kind in FULL {
        let images = Images::make(dir.path(), kind);
        let vfs = mount_writable(&images);
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let mut counts = Vec::new();
        for round in 0..2 {
            // Large files first, then small ones, then only names.
            let all = [("large", 3_000_000), ("page", 4000), ("empty", 0)].map(|(name, bytes)| {
                let count = fill_up(&vfs, name, bytes);
                (name, count)
            });
            vfs.sync().unwrap_or_else(|error| panic!("{}, round {round}: {error}", kind.name));
            assert_clean(&images, &format!("{}, round {round}, full", kind.name));
            println!("{}: {all:?}", kind.name);
            // In another order each time.
            for (name, count) in all {
                for number in 0..count {
                    let name = format!("{name}{number}");
                    let done = vfs.unlink(&cred, &root, name.as_bytes(), false);
                    assert!(done.is_ok(), "{}, round {round}: {name}: {done:?}", kind.name);
                }
            }
            vfs.sync().unwrap();
            assert_clean(&images, &format!("{}, round {round}, empty", kind.name));
            counts.push(all[0].1);
        }
        assert!(counts[1] * 10 >= counts[0] * 8, "{}: space is lost: {counts:?}", kind.name);
        vfs.unmount().unwrap();
        drop((root, vfs));
        assert_clean(&images, kind.name);
    }
}

#[test]
fn a_full_filesystem_with_a_snapshot_can_be_emptied() {
    if !can_fill() {
        return;
    }
    let kinds = [
        Kind { name: "nodes of 4 KiB", mkfs: &["-n", "4096"], mount: "", devices: 1 },
        Kind { name: "mixed groups", mkfs: &["-M"], mount: "", devices: 1 },
    ];
    kinds.iter().for_each(fill_and_empty_with_a_snapshot);
}

fn fill_and_empty_with_a_snapshot(kind: &Kind) {
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), kind);
    images.with_kernel("", |root| {
        // Extents of one sector each, whose order on the device is not that in the files.
        let sectors = 4000u64;
        let open = |number| std::fs::File::create(root.join(format!("fragments{number}"))).unwrap();
        let files: Vec<_> = (0..4).map(open).collect();
        for step in 0..4 * sectors {
            let at = step * 7919 % (4 * sectors);
            let file = &files[(at % 4) as usize];
            std::os::unix::fs::FileExt::write_all_at(file, &[b'A'; 4096], at / 4 * 8192).unwrap();
            if step % 4000 == 0 {
                files.iter().for_each(|file| file.sync_all().unwrap());
            }
        }
        std::fs::create_dir(root.join("names")).unwrap();
        for number in 0..3000 {
            let name = format!("names/{number:05}{}", "n".repeat(100));
            std::fs::write(root.join(name), "").unwrap();
        }
        files.iter().for_each(|file| file.sync_all().unwrap());
        fill::in_dir(root, "btrfs -q subvolume snapshot . snapshot");
    });
    let vfs = mount_writable(&images);
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let large = fill_up(&vfs, "large", 8 << 20);
    let long = "q".repeat(200);
    let empty = fill_up(&vfs, &long, 0);
    vfs.sync().unwrap();
    assert_clean(&images, "full");
    let unlink = |dir: &InodeRef, name: &str| {
        let done = vfs.unlink(&cred, dir, name.as_bytes(), false);
        let why = || vfs.health().read_only;
        done.unwrap_or_else(|error| panic!("{}, {name}: {error}; {:?}", kind.name, why()));
    };
    unlink(&root, "fragments0");
    let names = vfs.lookup(&cred, &root, b"names").unwrap();
    (0..3000).for_each(|number| unlink(&names, &format!("{number:05}{}", "n".repeat(100))));
    (1..4).for_each(|number| unlink(&root, &format!("fragments{number}")));
    (0..large).for_each(|number| unlink(&root, &format!("large{number}")));
    (0..empty).for_each(|number| unlink(&root, &format!("{long}{number}")));
    vfs.sync().unwrap();
    assert!(fill_up(&vfs, "again", 1 << 20) > 1, "no space came back");
    vfs.unmount().unwrap();
    drop((names, root, vfs));
    assert_clean(&images, "empty");
}
