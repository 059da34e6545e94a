//! Damaged images: an error that names what is damaged, or success; never a panic or a loop.

use crate::common::*;
use ivers_block::MemDevice;
use ivers_examplefs::layout::*;
use ivers_vfs::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashSet;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

const BLOCKS: usize = 600;

/// Makes files of every type. `closed`: the log is empty; otherwise it holds changes and an orphan.
fn image(closed: bool) -> Vec<u8> {
    let device = Arc::new(fresh(BLOCKS));
    let vfs = mount(device.clone()).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let create = |dir: &InodeRef, name: &str, spec: CreateSpec| {
        vfs.create(&cred, dir, name.as_bytes(), &spec, false).unwrap().0
    };
    let dir = create(&root, "dir", CreateSpec::directory(0o755));
    let deep = create(&dir, "deep", CreateSpec::directory(0o755));
    for (dir, name, len) in [(&root, "a", 9000), (&dir, "b", 100), (&deep, "c", 70_000)] {
        let file = create(dir, name, CreateSpec::file(0o644));
        vfs.write(&cred, &file, 0, &vec![1; len], WriteFlags::empty()).unwrap();
    }
    (0..70).for_each(|nth| drop(create(&deep, &format!("{nth}"), CreateSpec::file(0o600))));
    create(&dir, "link", CreateSpec::symlink("../a"));
    create(&dir, "fifo", CreateSpec::of(FileType::Fifo, 0o600));
    vfs.sync().unwrap();
    let orphan = vfs.resolve(&cred, "/dir/deep/c", false).unwrap();
    vfs.unlink(&cred, &deep, b"c", false).unwrap();
    vfs.sync().unwrap();
    let crashed = device.to_bytes();
    drop((orphan, root, dir, deep));
    vfs.unmount().unwrap();
    if closed { device.to_bytes() } else { crashed }
}

/// The errors of a damaged image, and of what comes after them. A failing device is none of them.
fn is_expected(error: &Error) -> bool {
    match error {
        Error::Corrupt { .. } | Error::Incompatible(_) | Error::Name(_) => true,
        // A deletion in the background found it and reports to no caller.
        error => error.to_string().contains("the journal was aborted, open the filesystem again: corrupt"),
    }
}

/// Reads everything, then changes every directory and file that it finds, until the filesystem stops.
fn use_all(vfs: &Arc<Vfs>) -> Result<()> {
    let cred = Cred::root();
    let mut left = vec![vfs.root()?];
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    while let Some(inode) = left.pop() {
        if !seen.insert(inode.ino) {
            continue;
        }
        match inode.kind {
            FileType::Directory => {
                for entry in vfs.list(&cred, &inode, 0, usize::MAX)? {
                    left.extend(vfs.lookup(&cred, &inode, &entry.name));
                }
            }
            FileType::Regular => {
                vfs.read(&cred, &inode, 0, &mut vec![0; inode.size() as usize])?;
            }
            FileType::Symlink => drop(vfs.read_link(&cred, &inode)?),
            _ => {}
        }
        found.push(inode);
    }
    for inode in found {
        let changed = match inode.kind {
            FileType::Regular => vfs
                .write(&cred, &inode, 5000, &[9; 20_000], WriteFlags::empty())
                .and_then(|_| vfs.fsync(&inode, false))
                .and_then(|()| vfs.set_attr(&cred, &inode, &SetAttr { size: Some(10), ..SetAttr::default() }))
                .map(drop),
            FileType::Directory => (|| {
                let entries = vfs.list(&cred, &inode, 0, usize::MAX)?;
                vfs.create(&cred, &inode, b"new", &CreateSpec::directory(0o755), false)?;
                for (nth, entry) in entries.iter().filter(|entry| entry.name[0] != b'.').enumerate() {
                    let (name, to) = (&entry.name, format!("moved{nth}"));
                    let none = RenameFlags::empty();
                    let moved = match nth % 3 {
                        0 => vfs.rename(&cred, &inode, name, &inode, to.as_bytes(), none, false).map(drop),
                        1 => vfs.unlink(&cred, &inode, name, false).map(drop),
                        _ => vfs
                            .rename(&cred, &inode, name, &vfs.root()?, to.as_bytes(), none, false)
                            .map(drop),
                    };
                    match moved {
                        Ok(()) | Err(Error::Name(_)) => {}
                        other => return other,
                    }
                }
                Ok(())
            })(),
            _ => Ok(()),
        };
        match changed {
            Ok(()) | Err(Error::Name(_)) => {}
            other => return other,
        }
    }
    vfs.sync()
}

/// Damages an image: bits, words or whole ranges, mostly of the filesystem's own structures.
fn damage(bytes: &mut [u8], rng: &mut StdRng) {
    let sb = superblock(bytes);
    let (table, data) = (1 + sb.log_blocks.get(), sb.data().0 as u32);
    let mut inodes = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let (first, end) = match rng.random_range(0..10) {
            0 => (0, size_of::<RawSuper>()),
            1 => (BLOCK, BLOCK * 30),
            2..=5 => {
                let ino = rng.random_range(1..90);
                inodes.push(ino);
                let inode = (table + ino - 1) as usize * BLOCK;
                // Attributes, and the blocks of small files.
                (inode, inode + if rng.random_bool(0.9) { 160 } else { BLOCK })
            }
            6 => (sb.bitmap().0 as usize * BLOCK, sb.bitmap().0 as usize * BLOCK + BLOCKS / 8),
            _ => (sb.data().0 as usize * BLOCK, bytes.len().min((sb.data().0 as usize + 40) * BLOCK)),
        };
        let at = rng.random_range(first..end);
        match rng.random_range(0..4) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => {
                // A number that is nearly right.
                let near = [0, 1, 2, 30, data, data + 3, sb.blocks.get() - 1, sb.blocks.get(), u32::MAX];
                let at = at / 4 * 4;
                bytes[at..at + 4].copy_from_slice(&near[rng.random_range(0..near.len())].to_le_bytes());
            }
            _ => {
                let end = (at + rng.random_range(1..600)).min(bytes.len());
                bytes[at..end].fill(rng.random());
            }
        }
    }
    if rng.random_bool(0.8) {
        seal(bytes, &sb, inodes);
    }
}

#[test]
fn damaged_images_cause_errors_and_no_panic() {
    let images = [image(true), image(false)];
    let seed = std::env::var("IVERS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let count = std::env::var("IVERS_STEPS").ok().and_then(|count| count.parse().ok()).unwrap_or(1500);
    let (mut opened, mut corrupt) = (0, 0);
    for nth in 0..count {
        let mut rng = StdRng::seed_from_u64(seed + nth);
        let mut bytes = images[nth as usize % 2].clone();
        damage(&mut bytes, &mut rng);
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let result = mount(device).and_then(|vfs| {
            opened += 1;
            let used = use_all(&vfs);
            // After damage it ends without becoming clean.
            let closed = vfs.unmount();
            if used.is_ok() { closed } else { used }
        });
        if let Err(error) = result {
            assert!(is_expected(&error), "seed {}: {error}", seed + nth);
            corrupt += u64::from(matches!(error, Error::Corrupt { .. }));
        }
    }
    println!("{count} images: {opened} opened, {corrupt} found corrupt");
    assert!(opened > count / 4 && corrupt > count / 10, "{opened} opened, {corrupt} corrupt");
}

/// The error of the first call that finds the damage.
fn error_of(bytes: &[u8]) -> String {
    let used = mount(Arc::new(MemDevice::from_bytes(bytes))).and_then(|vfs| use_all(&vfs));
    match used {
        Err(error @ Error::Corrupt { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_damage_is_reported_with_its_location() {
    let sound = image(true);
    check(&sound).unwrap();
    let sb = superblock(&sound);
    let find = |path: &str| {
        let vfs = mount(Arc::new(MemDevice::from_bytes(&sound))).unwrap();
        vfs.resolve(&Cred::root(), path, false).unwrap().ino
    };
    let damaged = |path: &str, change: &dyn Fn(&mut RawInode), sealed: bool| {
        let (mut bytes, ino) = (sound.clone(), find(path));
        let place = sb.inode_block(ino).unwrap().0 as usize * BLOCK;
        let mut raw = RawInode::read_from_bytes(&bytes[place..place + BLOCK]).unwrap();
        change(&mut raw);
        let raw = if sealed { raw.sealed(ino) } else { raw };
        bytes[place..place + BLOCK].copy_from_slice(raw.as_bytes());
        assert!(check(&bytes).is_err(), "the checker finds it too");
        (error_of(&bytes), ino)
    };
    let names = |(text, ino): (String, Ino), what: &str| {
        assert!(text.contains(what) && text.contains(&format!("inode {ino}")), "{text}");
    };
    names(damaged("/a", &|raw| raw.uid = 7.into(), false), "bad checksum");
    names(damaged("/a", &|raw| raw.mode = 0o700.into(), true), "unknown type");
    names(
        damaged("/a", &|raw| raw.map[0] = 1.into(), true),
        "a block is missing or not one of the data blocks",
    );
    names(damaged("/dir", &|raw| raw.map.zero(), true), "a block is missing");
    names(damaged("/dir/link", &|raw| raw.size = u64::MAX.into(), true), "size and type do not match");

    let mut bytes = sound.clone();
    bytes[20] ^= 1;
    assert!(error_of(&bytes).contains("superblock"));

    let dir = find("/dir");
    let place = sb.inode_block(dir).unwrap().0 as usize * BLOCK;
    let block = RawInode::read_from_bytes(&sound[place..place + BLOCK]).unwrap().block(0).0;
    let mut bytes = sound.clone();
    bytes[block as usize * BLOCK + 4] = 200;
    assert!(error_of(&bytes).contains(&format!("directory {dir}, record 0")));

    let mut bytes = sound.clone();
    bytes[sb.bitmap().0 as usize * BLOCK..][..BLOCK].fill(0);
    assert!(error_of(&bytes).contains("used twice, or free and used"));
}
