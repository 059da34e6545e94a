//! References that contradict each other end the session, and nothing more is written.

use super::*;

/// Makes an image with a deleted subvolume. The extent tree lacks the item of a block of its tree.
fn with_a_lost_reference() -> Option<Arc<MemDevice>> {
    let device = new_image()?;
    let (fs, vfs) = mount(device.clone());
    fill_subvolume(&vfs, b"s", 800);
    let root = vfs.root().unwrap();
    let (kept, _) = vfs.create(&Cred::root(), &root, b"kept", &CreateSpec::file(0o644), false).unwrap();
    vfs.write(&Cred::root(), &kept, 0, &[3; 9000], WriteFlags::empty()).unwrap();
    vfs.sync().unwrap();
    let id = vnode_of(&vfs.lookup(&Cred::root(), &root, b"s").unwrap()).subvolume;
    let expected = Expected::root_of(id, fs.root_of(id).unwrap().unwrap().root);
    let node = fs.forest.node(&expected).unwrap();
    assert!(node.level > 0);
    let lost = node.pointer(node.count() / 2).bytenr;
    fs.change(Need::Removal, |tx| {
        tx.remove(object::EXTENT_TREE, Key::new(lost, kind::METADATA_ITEM, u64::from(node.level) - 1))?;
        tx.unname_subvolume(id, Name { dir: &root, name: b"s" })?;
        tx.dir_changed(&root)
    })
    .unwrap();
    fs.commit().unwrap();
    let image = device.to_bytes();
    drop((root, kept, fs, vfs));
    Some(Arc::new(MemDevice::from_bytes(&image)))
}

#[test]
fn the_mount_is_read_only_and_shows_the_last_commit() {
    let Some(device) = with_a_lost_reference() else { return };
    for round in 0..2 {
        let (fs, vfs) = mount(device.clone());
        let why = fs.health().read_only.unwrap_or_else(|| panic!("round {round}: it is writable"));
        assert!(fs.health().no_change_attribute.is_some(), "{why}");
        let stored = device.to_bytes();
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let kept = vfs.lookup(&cred, &root, b"kept").unwrap();
        let mut bytes = vec![0; 9000];
        assert_eq!(vfs.read(&cred, &kept, 0, &mut bytes).unwrap(), 9000);
        assert!(bytes.iter().all(|byte| *byte == 3));
        let made = vfs.create(&cred, &root, b"new", &CreateSpec::file(0o644), false);
        assert!(matches!(made, Err(Error::Name(NameError::ReadOnly))), "{:?}", made.err());
        let written = vfs.write(&cred, &kept, 0, b"new", WriteFlags::empty());
        assert!(matches!(written, Err(Error::Name(NameError::ReadOnly))), "{:?}", written.err());
        assert!(vfs.unlink(&cred, &root, b"kept", false).is_err());
        assert!(vfs.delete_subvolume(&cred, &root, b"s").is_err());
        drop((kept, root));
        // It may say that the session failed, but stores nothing.
        let _ = vfs.unmount();
        assert!(device.to_bytes() == stored, "round {round}: something was written");
    }
}
