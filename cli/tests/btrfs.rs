//! The command on btrfs images, judged by `btrfs check` and Linux.

mod common;

use common::*;
use ivers_oracle::kernel::{LoopMount, kernel_knows, may_loop_mount};
use ivers_oracle::{TreeOptions, have_programs, tree};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
        Self::with(&[])
    }

    fn with(options: &[&str]) -> Self {
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
        ivers_oracle::run("mkfs.btrfs", words.iter().chain(options)).unwrap();
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

    fn is_clean(&self) {
        ivers_oracle::btrfs::judge(&self.image).unwrap();
    }

    fn mount(&self, options: &str) -> PathBuf {
        let dir = self.dir.path().join("mnt");
        let _ = fs::create_dir(&dir);
        works(&["mount", "-o", options, self.name(), dir.to_str().unwrap()]);
        dir
    }

    fn unmount(&self) {
        works(&["unmount", &self.path("mnt")]);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.dir.path().join("mnt"), rustix::mount::UnmountFlags::DETACH);
    }
}

fn have_tools() -> bool {
    have_programs(&["mkfs.btrfs", "btrfs"])
}

fn linux_mounts() -> bool {
    may_loop_mount() && kernel_knows("btrfs")
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
fn a_check_is_clean_and_wrong_options_are_refused() {
    if !have_programs(&["mkfs.btrfs"]) {
        return;
    }
    let place = Place::new();
    let before = fs::read(&place.image).unwrap();
    works(&["check", "--data", place.name()]);
    for (words, has) in [
        (&["ls", "-o", "subvol=none", place.name()][..], "there is no subvolume"),
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
    let dir = place.mount("ro");
    let [source, mounted] = [&place.source, &dir].map(|dir| tree(dir, PLAIN));
    let stored = xattr::get(dir.join("large"), "system.ivers.stored");
    let change = xattr::get(dir.join("large"), "system.ivers.change");
    let refused = fs::write(dir.join("new"), "x").map_err(|error| error.raw_os_error());
    place.unmount();
    let (source, mounted) = (source.unwrap(), mounted.unwrap());
    assert!(source == mounted, "{source}\n---\n{mounted}");
    assert_eq!(refused, Err(Some(rustix::io::Errno::ROFS.raw_os_error())));
    assert_eq!(stored.unwrap(), change.unwrap());
}

#[test]
fn commands_change_images() {
    if !have_tools() {
        return;
    }
    for options in [&[][..], &["-n", "4096", "-M"], &["--csum", "sha256"]] {
        change_by_commands(&Place::with(options));
    }
}

fn change_by_commands(place: &Place) {
    let source = place.path("source");
    works(&["cp", "-a", &source, &place.at("/")]);
    works(&["tar", "-c", &place.at("/source"), "-f", &place.path("a.tar")]);
    works(&["mkdir", "-p", &place.at("/made/below")]);
    works(&["tar", "-x", &place.at("/made"), "-f", &place.path("a.tar")]);
    place.is_clean();

    let state = place.path("state");
    works(&["changed", place.name(), "--save", &state]);
    works(&["touch", &place.at("/made/below/new")]);
    works(&["mv", &place.at("/made/large"), &place.at("/made/below")]);
    works(&["ln", &place.at("/made/below/new"), &place.at("/hard")]);
    works(&["ln", "-s", "hard", &place.at("/soft")]);
    works(&["chmod", "600", &place.at("/source/large")]);
    works(&["chown", "7:70000", &place.at("/hard")]);
    works(&["attr", "set", "user.x", "y", &place.at("/hard")]);
    works(&["rm", "-r", &place.at("/source/dir/many")]);
    works(&["shell", place.name(), "-c", "mkdir /shell", "-c", "cp /hard /shell", "-c", "rm /soft"]);
    let changed = works(&["changed", place.name(), "--since", &state]);
    for line in ["N hard", "N shell/hard", "N made/below/new", "M made/large -> made/below/large"] {
        assert!(changed.lines().any(|found| found == line), "no {line:?}: {changed}");
    }
    assert!(!changed.contains("twin"), "it did not change: {changed}");
    let stat: serde_json::Value =
        serde_json::from_str(&works(&["stat", "--json", &place.at("/hard")])).unwrap();
    assert_eq!((stat["nlink"].as_u64(), stat["gid"].as_u64()), (Some(2), Some(70000)), "{stat}");
    place.is_clean();

    works(&["mv", &place.at("/made/below/large"), &place.at("/made/large")]);
    works(&["rm", "-r", &place.at("/made/below"), &place.at("/hard"), &place.at("/source")]);
    let back = place.path("back");
    works(&["cp", "-a", &place.at("/made"), &back]);
    let [source, back] = [source, back].map(|dir| tree(Path::new(&dir), PLAIN).unwrap());
    assert!(source == back, "{source}\n---\n{back}");
    place.is_clean();
}

#[test]
fn a_mount_is_written_and_linux_reads_it() {
    if !can_mount() || !have_tools() {
        return;
    }
    for place in [Place::new(), Place::with(&["-n", "4096", "-m", "single"])] {
        let dir = place.mount("rw");
        let semantics = xattr::get(&dir, "system.ivers.semantics").unwrap().unwrap();
        let semantics: serde_json::Value = serde_json::from_slice(&semantics).unwrap();
        for promise in ["persistent", "crash_safe"] {
            assert_eq!(semantics[promise].as_bool(), Some(true), "{semantics}");
        }
        for nth in 0..400 {
            let name = format!("dir/file with a long name {nth}");
            fs::write(dir.join(name), vec![nth as u8; nth * 5]).unwrap();
        }
        let mut appended = fs::OpenOptions::new().append(true).create(true).open(dir.join("log")).unwrap();
        (0..200).for_each(|_| appended.write_all(TEXT).unwrap());
        appended.sync_all().unwrap();
        drop(appended);
        fs::remove_file(dir.join("dir/file with a long name 7")).unwrap();
        fs::rename(dir.join("dir"), dir.join("moved")).unwrap();
        fs::File::options().write(true).open(dir.join("large")).unwrap().set_len(1_234_567).unwrap();
        xattr::set(dir.join("large"), "user.long", &[b'v'; 2000]).unwrap();
        let names = ["", "log", "large", "moved", "moved/file"];
        let values = || names.map(|name| change(&dir.join(name)));
        let (before, shown) = (values(), tree(&dir, PLAIN).unwrap());
        place.unmount();
        place.is_clean();
        if linux_mounts() {
            let linux = LoopMount::new(&place.image, "ro").unwrap();
            let found = tree(linux.path(), PLAIN).unwrap();
            assert!(found == shown, "{found}\n---\n{shown}");
            linux.unmount().unwrap();
            ivers_oracle::btrfs::linux_writes(&place.image).unwrap();
        }

        // The values are stored. A change raises the value of one inode. Writes by Linux raise all values.
        place.mount("rw");
        assert!(values() == before, "{before:?} {:?}", values());
        fs::write(dir.join("log"), "new").unwrap();
        let after = values();
        assert!(after[1] > before[1] && after[3..] == before[3..], "{before:?} {after:?}");
        place.unmount();
        if !linux_mounts() {
            continue;
        }
        let linux = LoopMount::new(&place.image, "").unwrap();
        fs::write(linux.path().join("from-linux"), TEXT).unwrap();
        linux.unmount().unwrap();
        place.mount("rw");
        assert_eq!(fs::read(dir.join("from-linux")).unwrap(), TEXT);
        let raised = values();
        assert!(raised.iter().zip(&after).all(|(new, old)| new > old), "{after:?} {raised:?}");
        place.unmount();
        place.is_clean();
    }
}

/// An image that ivers cannot write is mounted read-only, and the message says why.
#[test]
fn what_is_not_written_is_named() {
    if !can_mount() || !have_tools() {
        return;
    }
    let place = Place::with(&["-R", "quota"]);
    let before = fs::read(&place.image).unwrap();
    fs::create_dir(place.path("mnt")).unwrap();
    let refused = ivers(["mount", "-o", "rw", place.name(), &place.path("mnt")]);
    assert!(!refused.status.success() && said(&refused).contains("quotas"), "{}", said(&refused));
    let refused = ivers(["rm", &place.at("/twin")]);
    assert!(!refused.status.success() && said(&refused).contains("quotas"), "{}", said(&refused));
    assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
}
