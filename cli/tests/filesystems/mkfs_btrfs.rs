//! `ivers mkfs --type btrfs --from`: equal trees make equal images, which `btrfs check` and Linux accept.

use crate::common::source_tree::*;
use crate::common::*;
use std::fs;
use std::path::{Path, PathBuf};

const UUID: &str = "12345678-9abc-4def-8123-456789abcdef";

fn makes(image: &Path, words: &[&str]) {
    let output = ivers([&["mkfs", "-t", "btrfs", "-q", image.to_str().unwrap()], words].concat());
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    if ivers_oracle::have_programs(&["btrfs"]) {
        ivers_oracle::btrfs::judge(image).unwrap();
    }
}

#[test]
fn equal_trees_fill_equal_images() {
    let dir = tempfile::tempdir().unwrap();
    let (source, archive) = (dir.path().join("tree"), dir.path().join("tree.tar"));
    tree_to_copy(&source, 3000, 40_000_000);
    archive_tree(&source, &archive);
    let from = ["--uuid", UUID, "--timestamp", "1500000000", "--from"];
    let images: [PathBuf; 3] = ["one", "other", "packed"].map(|name| dir.path().join(name));
    for (image, from_here) in images.iter().zip([&source, &source, &archive]) {
        makes(image, &[&["--size", "256M"], &from[..], &[from_here.to_str().unwrap()]].concat());
    }
    let [one, other, packed] = images.each_ref().map(|image| fs::read(image).unwrap());
    assert!(one == other, "equal calls make equal images");
    assert!(one == packed, "a directory and its archive make equal images");
    let plain = ivers_oracle::TreeOptions { no_times: true, no_trusted: true };
    let expected = ivers_oracle::tree(&source, plain).unwrap();
    if ivers_oracle::kernel::may_loop_mount() && ivers_oracle::kernel::kernel_knows("btrfs") {
        let linux = ivers_oracle::kernel::LoopMount::new(&images[0], "ro").unwrap();
        let found = ivers_oracle::tree(linux.path(), plain).unwrap();
        assert!(found == expected, "{found}\n---\n{expected}");
        linux.unmount().unwrap();
    }
    // Files that do not fit leave no image.
    fs::write(source.join("more"), vec![1; 200 << 20]).unwrap();
    let image = dir.path().join("full");
    let words = [&["--size", "128M"], &from[..], &[source.to_str().unwrap()]].concat();
    let output = ivers([&["mkfs", "-t", "btrfs", "-q", image.to_str().unwrap()], &words[..]].concat());
    assert!(!output.status.success() && said(&output).contains("--size"), "{}", said(&output));
    assert!(!image.exists());
    makes(&image, &[&["--size", "auto"], &from[..], &[source.to_str().unwrap()]].concat());
    let len = fs::metadata(&image).unwrap().len();
    assert!((240 << 20..400 << 20).contains(&len), "{len} bytes");
}
