//! The command on btrfs images, which it only reads.

mod common;

use common::*;
use ivers_oracle::{TreeOptions, have_programs, tree};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const TEXT: &[u8] = b"text of a file";
const PLAIN: TreeOptions = TreeOptions { no_times: true, no_trusted: true };

/// An image that mkfs.btrfs filled from a folder.
struct Place {
    dir: tempfile::TempDir,
    source: PathBuf,
    image: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (source, image) = (dir.path().join("source"), dir.path().join("disk.btrfs"));
        fs::create_dir_all(source.join("dir/many")).unwrap();
        for number in 0..300 {
            fs::write(source.join(format!("dir/many/{number}")), vec![number as u8; number * 30]).unwrap();
        }
        fs::write(source.join("dir/file"), TEXT).unwrap();
        fs::hard_link(source.join("dir/file"), source.join("twin")).unwrap();
        std::os::unix::fs::symlink("dir/file", source.join("link")).unwrap();
        let large: Vec<u8> = (0..2_000_000).map(|at| (at / 7) as u8).collect();
        fs::write(source.join("large"), &large).unwrap();
        xattr::set(source.join("large"), "user.short", b"value").unwrap();
        fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        let words = ["-q", "-f", "-L", "a label", "-r", source.to_str().unwrap(), image.to_str().unwrap()];
        ivers_oracle::run("mkfs.btrfs", words).unwrap();
        Self { dir, source, image }
    }

    fn name(&self) -> &str {
        self.image.to_str().unwrap()
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A path in the image.
    fn at(&self, path: &str) -> String {
        format!("{}:{path}", self.name())
    }
}

#[test]
fn an_image_is_read() {
    if !have_programs(&["mkfs.btrfs"]) {
        return;
    }
    let place = Place::new();
    let before = fs::read(&place.image).unwrap();
    let names = works(&["ls", &place.at("/")]);
    assert_eq!(names.split_whitespace().collect::<Vec<_>>(), ["dir", "large", "link", "twin"]);
    assert_eq!(works(&["cat", &place.at("/dir/file")]).as_bytes(), TEXT);
    assert!(works(&["tree", &place.at("/")]).contains("link"));
    assert!(works(&["du", "-s", &place.at("/")]).contains('/'));
    let stat: serde_json::Value =
        serde_json::from_str(&works(&["stat", "--json", &place.at("/twin")])).unwrap();
    assert_eq!((stat["nlink"].as_u64(), stat["size"].as_u64()), (Some(2), Some(TEXT.len() as u64)), "{stat}");
    let copy = place.path("copy");
    works(&["cp", "-a", &place.at("/"), &copy]);
    let [source, copy] = [place.source.clone(), copy.into()].map(|dir: PathBuf| tree(&dir, PLAIN).unwrap());
    assert!(source == copy, "{source}\n---\n{copy}");
    works(&["tar", "-c", &place.at("/dir"), "-f", &place.path("a.tar")]);
    assert!(fs::metadata(place.path("a.tar")).unwrap().len() > 1_000_000);
    let (list, store) = (place.path("list"), place.path("store"));
    works(&["measure", "--list", &list, "--store", &store, &place.at("/dir/file")]);
    let list = fs::read(list).unwrap();
    assert!(list.windows(9).any(|bytes| bytes == b"/dir/file"), "{}", list.escape_ascii());
    let facts = works(&["info", place.name()]);
    for word in ["btrfs", "a label", "crc32c", "no-holes", "subvolume"] {
        assert!(facts.contains(word), "{word}: {facts}");
    }
    assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
}

#[test]
fn changes_checks_and_wrong_options_are_refused() {
    if !have_programs(&["mkfs.btrfs"]) {
        return;
    }
    let place = Place::new();
    let before = fs::read(&place.image).unwrap();
    let (file, new) = (place.path("source/dir/file"), place.at("/new"));
    let twin = place.at("/twin");
    for (words, has) in [
        (&["cp", &file, &new][..], "ivers does not change btrfs images yet"),
        (&["rm", &twin], "ivers does not change btrfs images yet"),
        (&["mkdir", &new], "ivers does not change btrfs images yet"),
        (&["label", place.name(), "new"], "ivers does not change btrfs images yet"),
        (&["check", place.name()], "btrfs check"),
        (&["ls", "-o", "subvol=none", place.name()], "there is no subvolume"),
        (&["ls", "-o", "subvolid=300", place.name()], "there is no subvolume 300"),
        (&["ls", "-o", "subvolid=x", place.name()], "subvolid"),
        (&["changed", place.name(), "--save", &place.path("state")], "saved state would be useless"),
    ] {
        let output = ivers(words);
        assert!(!output.status.success() && said(&output).contains(has), "{words:?}: {}", said(&output));
    }
    assert!(works(&["ls", "-o", "subvolid=5,degraded", place.name()]).contains("twin"));
    let other = place.path("disk.ext4");
    works(&["mkfs", "-q", &other, "--size", "16M"]);
    let output = ivers(["ls", "-o", "subvolid=5", &other]);
    assert!(!output.status.success() && said(&output).contains("has no subvolumes"), "{}", said(&output));
    assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
    // A damaged first superblock is found by its magic, and the copy at 64 MiB is used.
    let file = fs::File::options().write(true).open(&place.image).unwrap();
    file.write_all_at(&[0xFF; 8], 0x1_0000 + 0x90).unwrap();
    assert_eq!(works(&["cat", &place.at("/dir/file")]).as_bytes(), TEXT);
}

#[test]
fn a_mount_shows_the_tree_and_the_stored_counter() {
    if !can_mount() || !have_programs(&["mkfs.btrfs"]) {
        return;
    }
    let place = Place::new();
    let dir = place.path("mnt");
    fs::create_dir(&dir).unwrap();
    works(&["mount", "-o", "ro", place.name(), &dir]);
    let [source, mounted] = [place.source.clone(), PathBuf::from(&dir)].map(|dir| tree(&dir, PLAIN));
    let stored = xattr::get(format!("{dir}/large"), "system.ivers.stored");
    let change = xattr::get(format!("{dir}/large"), "system.ivers.change");
    let refused = fs::write(format!("{dir}/new"), "x").map_err(|error| error.raw_os_error());
    works(&["unmount", &dir]);
    let (source, mounted) = (source.unwrap(), mounted.unwrap());
    assert!(source == mounted, "{source}\n---\n{mounted}");
    assert_eq!(refused, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    assert_eq!(stored.unwrap(), change.unwrap());
}
