//! `cp -p` keeps attributes, into an image and out of it.

mod common;

use common::*;
use ivers_oracle::{Image, TreeOptions, tree};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn attributes_holes_and_links_come_back_as_they_were() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let image = Image::new("ext4", 32 << 20, &[]).unwrap();
    let (source, back) = (image.dir().join("source"), image.dir().join("back"));
    fs::create_dir_all(source.join("sub/empty")).unwrap();
    fs::write(source.join("sub/file"), "contents").unwrap();
    fs::set_permissions(source.join("sub/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    xattr::set(source.join("sub/file"), "user.note", b"kept").unwrap();
    std::os::unix::fs::symlink("sub/file", source.join("link")).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse
        .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789))
        .unwrap();
    drop(sparse);
    let inside = format!("{}:/source", image.path().display());
    for (from, to) in [(source.to_str().unwrap(), inside.as_str()), (&inside, back.to_str().unwrap())] {
        let output = ivers(["cp", "-rp", from, to]);
        assert!(output.status.success(), "{}", said(&output));
        image.check().unwrap();
    }
    // Change times are of the copy itself.
    let look = |dir| tree(dir, TreeOptions { no_times: true, ..TreeOptions::default() }).unwrap();
    assert_eq!(look(&source), look(&back));
    let [before, after] = [&source, &back].map(|dir| fs::metadata(dir.join("sparse")).unwrap());
    assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()));
    assert!(after.blocks() < 64, "the hole was filled: {} blocks", after.blocks());
    assert_eq!(xattr::get(back.join("sub/file"), "user.note").unwrap().unwrap(), b"kept");
    assert_eq!(fs::metadata(back.join("sub/file")).unwrap().mode() & 0o7777, 0o4751);
}
