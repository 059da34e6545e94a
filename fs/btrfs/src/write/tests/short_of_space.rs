//! Changes of trees that snapshots share, with little free space. They must be refused, or divided by
//! commits, and must not end the session.

use super::*;

/// The names of small files. The others are `fragments-0` to `fragments-2`.
fn names() -> Vec<String> {
    (0..2000).map(|number| format!("{number:05}{}", "n".repeat(100))).collect()
}

/// Makes a filesystem with a subvolume `s`, and a snapshot `t` of it. Neighbours in the files `fragments-*`
/// are far apart on the device, so their items are in many leaves of the extent tree. `None`: there is no
/// mkfs.btrfs.
fn shared_image() -> Option<Vec<u8>> {
    let device = new_image()?;
    let (_, vfs) = mount(device.clone());
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    vfs.create_subvolume(&cred, &root, b"s", &CreateSpec::directory(0o755)).unwrap();
    let dir = vfs.lookup(&cred, &root, b"s").unwrap();
    for name in names() {
        vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
    }
    for part in 0..3 {
        scattered(&vfs, &dir, format!("fragments-{part}").as_bytes(), 2500, 60);
    }
    vfs.snapshot_subvolume(&cred, &dir, &root, b"t", false).unwrap();
    vfs.sync().unwrap();
    let image = device.to_bytes();
    drop((root, dir));
    vfs.unmount().unwrap();
    Some(image)
}

/// Takes all free space for trees but for some blocks. Returns what it took.
fn leave_free(fs: &Btrfs, blocks: usize, random: &mut SmallRng) -> Vec<u64> {
    fs.with_tx(|tx| {
        let size = u64::from(tx.sb().node_size);
        let mut taken = Vec::new();
        loop {
            match tx.live.groups.take_block(Use::Metadata, size) {
                Some(bytenr) => taken.push(bytenr),
                None if tx.add_chunk(Use::Metadata)? => {}
                None => break,
            }
        }
        for _ in 0..blocks {
            let bytenr = taken.swap_remove(random.random_range(0..taken.len()));
            tx.live.groups.give_back(bytenr, size);
        }
        Ok(taken)
    })
    .unwrap()
}

/// Runs something on a mount of an image that has so many free blocks for trees. Then gives it all space,
/// drops what is left of deleted subvolumes, and lets `btrfs check` look at the image.
fn with_free_blocks(image: &[u8], blocks: usize, run: impl FnOnce(&Btrfs, &Arc<Vfs>, &mut SmallRng)) {
    let mut random = SmallRng::seed_from_u64(blocks as u64);
    let device = Arc::new(MemDevice::from_bytes(image));
    let (fs, vfs) = mount(device.clone());
    let taken = leave_free(&fs, blocks, &mut random);
    run(&fs, &vfs, &mut random);
    assert_eq!(fs.health().read_only, None, "{blocks} blocks");
    let size = u64::from(fs.forest.volume.sb.node_size);
    fs.with_tx(|tx| {
        taken.into_iter().for_each(|bytenr| tx.live.groups.give_back(bytenr, size));
        Ok(())
    })
    .unwrap();
    fs.drop_deleted_subvolumes().unwrap();
    vfs.unmount().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, device.to_bytes()).unwrap();
    ivers_oracle::btrfs::judge(&path).unwrap_or_else(|error| panic!("{blocks} blocks: {error}"));
}

#[test]
fn removals_from_shared_trees_never_end_the_session() {
    let Some(image) = shared_image() else { return };
    let names = names();
    for blocks in (60..132).step_by(6).chain((140..400).step_by(40)) {
        with_free_blocks(&image, blocks, |fs, vfs, random| {
            let (cred, root) = (Cred::root(), vfs.root().unwrap());
            let dir = vfs.lookup(&cred, &root, b"s").unwrap();
            let (mut removed, mut refused) = (0, 0);
            for step in 0..40 {
                let name = if step % 8 == 0 {
                    format!("fragments-{}", step / 8)
                } else {
                    names[random.random_range(0..names.len())].clone()
                };
                match vfs.unlink(&cred, &dir, name.as_bytes(), false) {
                    Ok(_) => removed += 1,
                    Err(Error::Name(NameError::NoSpace)) => refused += 1,
                    Err(Error::Name(NameError::NotFound)) => {}
                    Err(error) => panic!("{blocks} blocks, step {step}: {error}"),
                }
                assert_eq!(fs.health().read_only, None, "{blocks} blocks, step {step}, {name}");
            }
            // A full filesystem keeps more than 300 blocks here.
            assert!(removed > 30 || blocks < 300, "{blocks} blocks: {removed} removed, {refused} refused");
            assert!(refused > 30 || blocks > 60, "{blocks} blocks: {removed} removed, {refused} refused");
        });
    }
}

/// The subvolume made the blocks, and the snapshot has them. So dropping the tree of the subvolume copies
/// them, which adds references.
#[test]
fn deleting_a_subvolume_with_a_snapshot_never_ends_the_session() {
    let Some(image) = shared_image() else { return };
    for blocks in (62..140).step_by(6).chain([200, 300]) {
        with_free_blocks(&image, blocks, |fs, vfs, _| {
            let (cred, root) = (Cred::root(), vfs.root().unwrap());
            for name in [&b"s"[..], b"t"] {
                match vfs.delete_subvolume(&cred, &root, name) {
                    Ok(()) | Err(Error::Name(NameError::NoSpace)) => {}
                    Err(error) => panic!("{blocks} blocks, {}: {error}", name.escape_ascii()),
                }
                assert_eq!(fs.health().read_only, None, "{blocks} blocks, {}", name.escape_ascii());
            }
            // As above.
            let left = fs.deleted_subvolumes().unwrap().len();
            assert!(left == 0 || blocks < 300, "{blocks} blocks: {left} are left");
        });
    }
}
