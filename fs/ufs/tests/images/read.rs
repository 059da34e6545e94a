//! Images are read as the tree that they were made of, and as sleuthkit reads them.

use crate::common::*;
use ivers_block::MemDevice;
use ivers_oracle::{have_programs, output, run};
use ivers_vfs::*;
use std::path::Path;
use std::sync::Arc;

/// A tree without times, and without the link counts of directories, which some filesystems do not keep.
pub fn comparable(tree: &Tree) -> Tree {
    let short = |line: &str| {
        let line = line.split(" times=").next().unwrap();
        let links = line.split_whitespace().find(|word| word.starts_with("links=")).unwrap();
        if line.starts_with("40") { line.replace(links, "") } else { line.to_owned() }
    };
    tree.iter().map(|(path, line)| (path.clone(), short(line))).collect()
}

#[test]
fn images_have_the_tree_that_they_were_made_of() {
    if !have_makefs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fill(&tree);
    for (name, options) in KINDS {
        makefs(&image, options, &tree);
        let vfs = mount(&image);
        assert_same(&comparable(&our_tree(&vfs, false).unwrap()), &comparable(&kernel_tree(&tree)), name);
        assert_eq!(vfs.info().fs_type, &name[..4]);
        let dated = vfs.resolve(&Cred::root(), "/dated", false).unwrap();
        assert_eq!(vfs.stat(&dated).mtime, Timestamp { sec: DATED as i64, nsec: 0 }, "{name}");
        let space = vfs.stat_fs().unwrap();
        assert!(space.blocks_free < space.blocks && space.files_free < space.files, "{name}: {space:?}");
        drop(dated);
        vfs.unmount().unwrap();
    }
}

#[test]
fn holes_read_as_zeros() {
    if !have_makefs() {
        return;
    }
    let mut image = image_of(&("", &["-s", "32m", "-o", "version=2,bsize=4096,fsize=1024"]));
    let at = slot(&image, "/large");
    let before = {
        let vfs = mount_device(memory(&image)).unwrap();
        read_all(&vfs, &vfs.resolve(&Cred::root(), "/large", false).unwrap()).unwrap()
    };
    // Block 1, and of the second level of indirect blocks the first indirect block.
    set(&mut image, at + 112 + 8, 8, 0);
    let second = get(&image, at + 208 + 8, 8) as usize * 1024;
    assert_ne!(second, 0);
    set(&mut image, second, 8, 0);
    let vfs = mount_device(memory(&image)).unwrap();
    let file = vfs.resolve(&Cred::root(), "/large", false).unwrap();
    let mut expected = before;
    expected[4096..8192].fill(0);
    let hole = (12 + 512) * 4096..(12 + 1024) * 4096;
    let hole = hole.start..hole.end.min(expected.len());
    expected[hole.clone()].fill(0);
    assert!(read_all(&vfs, &file).unwrap() == expected);
    let seek = |at: usize| (vfs.seek_data(&file, at as u64).ok(), vfs.seek_hole(&file, at as u64).unwrap());
    assert_eq!(seek(0), (Some(0), 4096));
    assert_eq!(seek(4096), (Some(8192), 4096));
    assert_eq!(seek(8192), (Some(8192), hole.start as u64));
    assert_eq!(seek(hole.start).1, hole.start as u64);
}

/// Lists what sleuthkit finds, as inode and path.
pub fn sleuthkit_names(image: &Path) -> Vec<(u64, String)> {
    let listed = run("fls", ["-r".as_ref(), "-p".as_ref(), "-u".as_ref(), image.as_os_str()]).unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = |line: &str| {
        let (kinds, rest) = line.split_once(' ')?;
        let (ino, path) = rest.split_once(":\t")?;
        // Its own directory of files without names is no file of the image.
        (!kinds.starts_with('V') && !path.starts_with("$OrphanFiles"))
            .then(|| (ino.parse().unwrap(), format!("/{path}")))
    };
    let mut names: Vec<_> = listed.lines().filter_map(line).collect();
    names.sort();
    names
}

#[test]
fn sleuthkit_finds_the_same_names_and_contents() {
    if !have_makefs() || !have_programs(&["fls", "icat"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fill(&tree);
    // Sleuthkit looks for the superblock of UFS2 at 64 KiB only. With blocks of 64 KiB its first copy is
    // there.
    let readable = KINDS.iter().filter(|(name, _)| name.starts_with("ufs1") || name.ends_with("65536/8192"));
    for (name, options) in readable {
        makefs(&image, options, &tree);
        let vfs = mount(&image);
        let theirs = sleuthkit_names(&image);
        let find = |path: &str| vfs.resolve(&Cred::root(), path, false).unwrap();
        let mut ours: Vec<_> =
            our_tree(&vfs, false).unwrap().into_keys().map(|path| (find(&path).ino.0, path)).collect();
        ours.sort();
        assert!(ours.len() > 400, "{name}");
        assert_eq!(ours, theirs, "{name}");
        for path in ["/large", "/size49152", "/size786437", "/size513"] {
            let inode = find(path);
            let words = [image.as_os_str(), inode.ino.to_string().as_ref()].map(std::ffi::OsStr::to_owned);
            assert!(
                output("icat", words).unwrap().stdout == read_all(&vfs, &inode).unwrap(),
                "{name}: {path}"
            );
        }
        vfs.unmount().unwrap();
    }
}

/// Moves the superblock to another place, as other systems have it.
fn moved(image: &[u8], to: usize) -> Vec<u8> {
    let mut image = image.to_vec();
    image.copy_within(8192..16384, to);
    image[8192..8192 + 1376].fill(0);
    image[to + 1000..to + 1008].copy_from_slice(&(to as u64).to_le_bytes());
    image
}

#[test]
fn the_superblock_is_found_at_all_its_places() {
    if !have_makefs() {
        return;
    }
    // With blocks of 64 KiB the first copy is at 64 KiB.
    let large = small_image(&["-s", "64m", "-o", "version=2,bsize=65536,fsize=8192"]);
    for place in [0, 64 << 10] {
        let vfs = mount_device(memory(&moved(&large, place))).unwrap();
        assert_eq!(our_tree(&vfs, false).unwrap().len(), 6);
    }
    let old = small_image(&["-s", "16m", "-o", "version=1"]);
    assert_eq!(our_tree(&mount_device(memory(&moved(&old, 0))).unwrap(), false).unwrap().len(), 6);
    // A filesystem at 256 KiB starts with a longer boot area. The place is in the area of unused inodes here.
    let far = small_image(&["-s", "64m", "-o", "version=2", "-f", "20000"]);
    let far = moved(&far, 256 << 10);
    assert!(ivers_ufs::probe(&far[..ivers_ufs::PROBE_BYTES as usize]));
    assert_eq!(our_tree(&mount_device(memory(&far)).unwrap(), false).unwrap().len(), 6);
    // A copy is not taken for the superblock.
    let mut copy_only = large;
    copy_only[8192..8192 + 1376].fill(0);
    assert!(!ivers_ufs::probe(&copy_only));
    let error = open(memory(&copy_only)).err().unwrap().to_string();
    assert!(error.contains("no UFS superblock at byte 65536, 8192, 0 or 262144"), "{error}");
}

#[test]
fn listings_continue_from_any_cursor() {
    if !have_makefs() {
        return;
    }
    let vfs = mount_device(memory(&image_of(&KINDS[1]))).unwrap();
    let dir = vfs.resolve(&Cred::root(), "/dir", false).unwrap();
    assert_listed_from_any_cursor(&vfs, &dir, 404, 9, 300);
}

#[test]
fn a_filesystem_that_is_only_read_stays_as_it_is() {
    if !have_makefs() {
        return;
    }
    let mut image = small_image(&["-s", "8m", "-o", "version=2"]);
    // Access control lists of NFSv4.
    image[8192 + 1313] |= 1;
    let device = Arc::new(MemDevice::from_bytes(&image));
    let vfs = Vfs::mount(open(device.clone()).unwrap(), MountOptions::default()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let file = vfs.lookup(&cred, &root, b"file").unwrap();
    let refused = [
        vfs.create(&cred, &root, b"new", &CreateSpec::file(0o644), false).err(),
        vfs.unlink(&cred, &root, b"file", false).err(),
        vfs.write(&cred, &file, 0, b"x", WriteFlags::empty()).err(),
        vfs.set_xattr(&cred, &file, "user.x", b"x", XattrMode::Any).err(),
    ];
    for error in refused {
        assert!(matches!(error, Some(Error::Name(NameError::ReadOnly))), "{error:?}");
    }
    assert!(vfs.health().read_only.unwrap().contains("access control lists of NFSv4"));
    // The change attribute is valid in the mount.
    let before = vfs.change(&file).unwrap();
    read_all(&vfs, &file).unwrap();
    assert_eq!(vfs.change(&file), Some(before));
    drop((root, file));
    vfs.unmount().unwrap();
    assert!(device.to_bytes() == image, "the image was written to");
}

/// A record of an attribute, as ffs(7) of FreeBSD describes it.
fn record(namespace: u8, name: &str, value: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0, 0, 0, namespace, (value.len().next_multiple_of(8) - value.len()) as u8];
    record.push(name.len() as u8);
    record.extend(name.as_bytes());
    record.resize(record.len().next_multiple_of(8), 0);
    record.extend(value);
    record.resize(record.len().next_multiple_of(8), 0);
    let len = record.len() as u32;
    record[..4].copy_from_slice(&len.to_le_bytes());
    record
}

#[test]
fn extended_attributes_and_times_of_birth_are_read() {
    if !have_makefs() {
        return;
    }
    let mut image = small_image(&["-s", "16m", "-o", "version=2"]);
    let (sb, at) = (superblock(&image), slot(&image, "/file"));
    let mut acl = 4u32.to_le_bytes().to_vec();
    // Unordered, with padding after the 16-bit permissions: owner, mask, others, group.
    for (tag, perm) in [(1u32, 6u16), (0x10, 5), (0x20, 0), (4, 4)] {
        acl.extend(tag.to_le_bytes());
        acl.extend(u32::MAX.to_le_bytes());
        acl.extend(perm.to_le_bytes());
        acl.extend([0xAA; 2]);
    }
    acl.resize(4 + 32 * 12, 0);
    let area = [
        record(1, "color", b"blue"),
        record(1, "aligned.", b"12345678"),
        record(2, "secret", b""),
        record(2, "posix1e.acl_access", &acl),
        record(9, "unknown namespace", b"x"),
    ]
    .concat();
    // The last block of the image is free.
    let block = (sb.size - u64::from(sb.frags_per_block)) as usize;
    let start = block * sb.fragment_size as usize;
    image[start..start + area.len()].copy_from_slice(&area);
    image[at + 92..at + 96].copy_from_slice(&(area.len() as u32).to_le_bytes());
    image[at + 96..at + 104].copy_from_slice(&(block as u64).to_le_bytes());
    // The times of birth, which makefs leaves out.
    set(&mut image, at + 56, 8, DATED);
    set(&mut image, at + 76, 4, 500);
    let vfs = mount_device(memory(&image)).unwrap();
    let birth = |path| vfs.stat(&vfs.resolve(&Cred::root(), path, false).unwrap()).btime;
    assert_eq!(birth("/file"), Some(Timestamp { sec: DATED as i64, nsec: 500 }));
    assert_eq!(birth("/large"), None);
    let read = |image: &[u8]| {
        let vfs = mount_device(memory(image)).unwrap();
        let file = vfs.resolve(&Cred::root(), "/file", false).unwrap();
        let names = vfs.list_xattr(&Cred::root(), &file)?;
        let value = |name: Vec<u8>| Ok((vfs.get_xattr(&Cred::root(), &file, &name)?, name));
        names.into_iter().map(value).collect::<ivers_vfs::Result<Vec<_>>>()
    };
    let found = read(&image).unwrap();
    let named =
        |name: &str| found.iter().find(|(_, found)| found == name.as_bytes()).map(|(value, _)| &**value);
    assert_eq!(found.len(), 4);
    assert_eq!((named("user.color"), named("user.aligned.")), (Some(&b"blue"[..]), Some(&b"12345678"[..])));
    assert_eq!((named("trusted.secret"), named("trusted.posix1e.acl_access")), (Some(&b""[..]), Some(&*acl)));
    // With access control lists in use, it is one.
    image[8192 + 1312] |= 0x10;
    image[at..at + 2].copy_from_slice(&0o100_714u16.to_le_bytes());
    let found = read(&image).unwrap();
    let acl = found.iter().find(|(_, name)| name == acl::ACCESS).map(|(value, _)| acl::Acl::parse(value));
    let entries = acl.unwrap().unwrap().unwrap();
    // FreeBSD keeps the entries of owner, mask and others in the mode.
    assert_eq!(entries.entries().iter().map(|entry| entry.perm).collect::<Vec<_>>(), [7, 4, 1, 4]);
    // A record that reaches past the end is damage.
    image[start] = 0xF8;
    image[start + 1] = 0xFF;
    let error = read(&image).unwrap_err().to_string();
    assert!(error.contains("extended attributes are damaged") && error.contains("inode "), "{error}");
}
