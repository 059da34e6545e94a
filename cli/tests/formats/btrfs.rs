//! The command on btrfs images, judged by `btrfs check` and Linux.

use crate::common::image_place::*;
use crate::common::*;
use ivers_oracle::kernel::{kernel_knows, may_loop_mount};
use ivers_oracle::{have_programs, tree};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// An image that mkfs.btrfs filled from the directory `source` beside it.
fn image(options: &[&str]) -> ImagePlace {
    let place = ImagePlace::new("disk.btrfs", ivers_oracle::btrfs::judge);
    let source = source(&place);
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
    fs::File::create(&place.image).unwrap().set_len(128 << 20).unwrap();
    let words = ["-q", "-f", "-L", "a label", "-r", source.to_str().unwrap(), place.name()];
    ivers_oracle::run("mkfs.btrfs", words.iter().chain(options)).unwrap();
    place
}

fn source(place: &ImagePlace) -> PathBuf {
    place.path("source").into()
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
    let place = image(&[]);
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
    let [source, copy] = [source(&place), copy.into()].map(|dir: PathBuf| tree(&dir, PLAIN).unwrap());
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
    let place = image(&[]);
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
    let place = image(&[]);
    let dir = place.mount("ro");
    let [source, mounted] = [&source(&place), &dir].map(|dir| tree(dir, PLAIN));
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
        change_by_commands(&image(options), "source", "/dir/many", "twin");
    }
}

#[test]
fn a_mount_is_written_and_linux_reads_it() {
    if !can_mount() || !have_tools() {
        return;
    }
    for place in [image(&[]), image(&["-n", "4096", "-m", "single"])] {
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
        fs::hard_link(dir.join("twin"), dir.join("dir/twin")).unwrap();
        xattr::set(dir.join("large"), "user.long", &[b'v'; 2000]).unwrap();
        change_in_a_mount(&place, &dir, "dir", linux_mounts());
        if linux_mounts() {
            ivers_oracle::btrfs::linux_writes(&place.image).unwrap();
        }
    }
}

/// An image that ivers cannot write is mounted read-only, and the message says why.
#[test]
fn what_is_not_written_is_named() {
    if !can_mount() || !have_tools() {
        return;
    }
    let place = image(&["-R", "quota"]);
    let before = fs::read(&place.image).unwrap();
    fs::create_dir(place.path("mnt")).unwrap();
    let refused = ivers(["mount", "-o", "rw", place.name(), &place.path("mnt")]);
    assert!(!refused.status.success() && said(&refused).contains("quotas"), "{}", said(&refused));
    let refused = ivers(["rm", &place.at("/twin")]);
    assert!(!refused.status.success() && said(&refused).contains("quotas"), "{}", said(&refused));
    assert!(fs::read(&place.image).unwrap() == before, "the image was written to");
}

/// New data is compressed as the option says, and as the property says.
#[test]
fn data_is_compressed() {
    if !can_mount() || !have_tools() {
        return;
    }
    let place = image(&[]);
    let text: Vec<u8> = (0u32..200_000).flat_map(|number| format!("{number}\n").into_bytes()).collect();
    let dir = place.mount("compress=zstd");
    fs::write(dir.join("of-option"), &text).unwrap();
    xattr::set(dir.join("dir"), "btrfs.compression", b"zlib").unwrap();
    fs::write(dir.join("dir/of-property"), &text).unwrap();
    let shown = xattr::get(dir.join("dir/of-property"), "btrfs.compression").unwrap();
    place.unmount();
    assert_eq!(shown.as_deref(), Some(&b"zlib"[..]));
    fs::write(place.path("text"), &text).unwrap();
    works(&["cp", "-o", "compress=lzo", &place.path("text"), &place.at("/of-cp")]);
    works(&["attr", "set", "btrfs.compression", "none", &place.at("/of-cp")]);
    place.is_clean();
    let dump =
        ivers_oracle::run("btrfs", ["inspect-internal", "dump-tree", "-t", "5", place.name()]).unwrap();
    let dump = String::from_utf8_lossy(&dump.stdout);
    for method in ["zlib", "lzo", "zstd"] {
        assert!(dump.matches(&format!("({method})")).count() > 5, "{method}");
    }
    for path in ["/of-option", "/dir/of-property", "/of-cp"] {
        assert!(works(&["cat", &place.at(path)]).as_bytes() == text, "{path}");
    }
    let refused = ivers(["mount", "-o", "compress=gzip", place.name(), &place.path("mnt")]);
    assert!(!refused.status.success() && said(&refused).contains("compress zlib"), "{}", said(&refused));
}

#[test]
fn subvolumes_are_made_and_deleted() {
    if !have_tools() {
        return;
    }
    let place = image(&[]);
    let list = || works(&["subvolume", "list", &place.at("/")]);
    let refused = |words: &[&str], has: &str| {
        let output = ivers(words);
        assert!(!output.status.success() && said(&output).contains(has), "{words:?}: {}", said(&output));
    };
    works(&["subvolume", "create", &place.at("/home"), &place.at("/dir/other")]);
    fs::write(place.path("text"), TEXT).unwrap();
    works(&["cp", &place.path("text"), &place.at("/home/file")]);
    works(&["subvolume", "snapshot", "-r", &place.at("/home"), &place.at("/monday")]);
    works(&["subvolume", "snapshot", &place.at("/home"), &place.at("/dir")]);
    place.is_clean();
    assert_eq!(works(&["cat", &place.at("/monday/file")]).as_bytes(), TEXT);
    assert_eq!(works(&["cat", &place.at("/dir/home/file")]).as_bytes(), TEXT);
    let lines = list();
    for line in ["5 / default", "/home", "/dir/other", "/monday read-only", "/dir/home"] {
        assert!(lines.lines().any(|found| found.ends_with(line)), "{line}: {lines}");
    }
    assert!(works(&["subvolume", "list", "-l", &place.at("/")]).contains("snapshot of"));
    let json = works(&["subvolume", "list", "--json", &place.at("/")]);
    let fixed = json.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let fixed: Vec<_> = fixed.filter(|one| one["read_only"] == true).collect();
    assert!(fixed.len() == 1 && fixed[0]["path"] == "/monday" && fixed[0]["parent"] == 5, "{json}");
    refused(&["rm", &place.at("/monday/file")], "read-only");
    refused(&["subvolume", "delete", &place.at("/dir")], "is not a subvolume");
    refused(&["subvolume", "snapshot", &place.at("/dir"), &place.at("/x")], "is not a subvolume");
    refused(&["subvolume", "create", &place.at("/home")], "exists");
    works(&["subvolume", "create", &place.at("/home/below")]);
    refused(&["subvolume", "delete", &place.at("/home")], "contains other subvolumes");
    works(&["subvolume", "delete", "-v", &place.at("/home/below"), &place.at("/home"), &place.at("/monday")]);
    assert!(!list().contains("monday"));
    place.is_clean();
    if linux_mounts() {
        ivers_oracle::btrfs::linux_writes(&place.image).unwrap();
    }
    let other = place.path("disk.ext4");
    works(&["mkfs", "-q", &other, "--size", "16M"]);
    refused(&["subvolume", "list", &format!("{other}:/")], "has no subvolumes");
    refused(&["subvolume", "create", &format!("{other}:/x")], "has no subvolumes");
}
