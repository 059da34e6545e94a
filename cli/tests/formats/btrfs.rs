//! The command on btrfs images, judged by `btrfs check` and Linux.

use crate::common::image_place::*;
use crate::common::*;
use ivers_oracle::kernel::{kernel_knows, may_loop_mount};
use ivers_oracle::{have_programs, tree};
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// An image that mkfs.btrfs filled from the directory `source` beside it.
fn image(options: &[&str]) -> ImagePlace {
    let place = ImagePlace::new("disk.btrfs", ivers_oracle::btrfs::judge);
    let source = place.fill_source();
    let large: Vec<u8> = (0..2_000_000).map(|at| (at / 7) as u8).collect();
    fs::write(source.join("large"), &large).unwrap();
    xattr::set(source.join("large"), "user.short", b"value").unwrap();
    fs::File::create(&place.image).unwrap().set_len(128 << 20).unwrap();
    let words = ["-q", "-f", "-L", "a label", "-r", source.to_str().unwrap(), place.name()];
    ivers_oracle::run("mkfs.btrfs", words.iter().chain(options)).unwrap();
    place
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
    let [source, copy] = [place.source(), copy.into()].map(|dir: PathBuf| tree(&dir, PLAIN).unwrap());
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
    works(&["changed", place.name(), "--save", &place.path("state")]);
    for (words, has) in [
        (&["ls", "-o", "subvol=none", place.name()][..], "there is no subvolume"),
        (&["ls", "-o", "subvolid=300", place.name()], "there is no subvolume 300"),
        (&["ls", "-o", "subvolid=x", place.name()], "subvolid"),
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
    let [source, mounted] = [&place.source(), &dir].map(|dir| tree(dir, PLAIN));
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

/// The same on a mount, where the kernel has caches of names and of data.
#[test]
fn subvolumes_of_a_mount_are_made_and_deleted() {
    if !can_mount() || !have_tools() {
        return;
    }
    let place = image(&[]);
    let dir = place.mount("rw");
    let at = |path: &str| dir.join(path).to_str().unwrap().to_owned();
    let refused = |words: &[&str], has: &str| {
        let output = ivers(words);
        assert!(!output.status.success() && said(&output).contains(has), "{words:?}: {}", said(&output));
    };
    // The kernel remembers that a name does not exist.
    assert!(!dir.join("home").exists() && !dir.join("monday").exists());
    let made = works(&["subvolume", "create", "-v", &at("home"), &at("dir/other")]);
    assert_eq!(made, format!("created {}\ncreated {}\n", at("home"), at("dir/other")));
    // Data of an open file that the kernel holds back is in a snapshot.
    let mut open = fs::File::create(dir.join("home/file")).unwrap();
    open.write_all(TEXT).unwrap();
    works(&["subvolume", "snapshot", "-r", &at("home"), &at("monday")]);
    open.write_all(b" and more").unwrap();
    works(&["subvolume", "snapshot", &at("home"), &at("dir")]);
    works(&["subvolume", "snapshot", &at("."), &at("all")]);
    assert_eq!(fs::read(dir.join("monday/file")).unwrap(), TEXT);
    assert_eq!(fs::read(dir.join("dir/home/file")).unwrap(), [TEXT, b" and more"].concat());
    assert_eq!(fs::read(dir.join("all/dir/file")).unwrap(), TEXT);
    let denied = fs::remove_file(dir.join("monday/file")).unwrap_err();
    assert_eq!(denied.raw_os_error(), Some(rustix::io::Errno::ROFS.raw_os_error()));
    let lines = works(&["subvolume", "list", &at("dir")]);
    for line in ["5 / default", "/home", "/dir/other", "/monday read-only", "/dir/home", "/all"] {
        assert!(lines.lines().any(|found| found.ends_with(line)), "{line}: {lines}");
    }
    let listed = works(&["subvolume", "list", "--json", &at("")]);
    refused(&["subvolume", "delete", &at("home")], "a file in it is open");
    drop(open);
    refused(&["subvolume", "delete", &at("dir")], "is not a subvolume");
    refused(&["subvolume", "delete", &at("dir/many")], "is not a subvolume");
    refused(&["subvolume", "snapshot", &at("dir"), &at("x")], "is not a subvolume");
    refused(&["subvolume", "create", &at("home")], "exists");
    refused(&["subvolume", "create", "-o", "subvolid=5", &at("x")], "a mount has its own options");
    works(&["subvolume", "create", &at("home/below")]);
    refused(&["subvolume", "delete", &at("home")], "contains other subvolumes");
    let json = works(&["subvolume", "delete", "--json", &at("home/below"), &at("home")]);
    let json: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(json.len() == 2 && json.iter().all(|one| one["changed"] == 1), "{json:?}");
    assert!(!dir.join("home").exists());
    // Its name is free, and what was in it is gone.
    works(&["subvolume", "create", &at("home")]);
    assert!(fs::read_dir(dir.join("home")).unwrap().next().is_none());
    fs::write(dir.join("home/new"), TEXT).unwrap();
    // Other directories are made as before.
    fs::create_dir(dir.join("plain")).unwrap();
    fs::remove_dir(dir.join("plain")).unwrap();
    // On Linux, its inodes have the numbers of those in its source, and look like hard links.
    works(&["subvolume", "delete", &at("all")]);
    let shown = tree(&dir, PLAIN).unwrap();
    place.unmount();
    place.is_clean();
    let of_image = works(&["subvolume", "list", "--json", &place.at("/")]);
    let fields = |text: &str| -> Vec<_> {
        let all = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        all.map(|one| (one["path"].to_string(), one["uuid"].to_string())).collect()
    };
    let (before, after) = (fields(&listed), fields(&of_image));
    let is_kept = |one: &&(String, String)| !one.0.contains("/home") && !one.0.contains("/all");
    assert!(before.iter().filter(is_kept).all(|one| after.contains(one)), "{after:?}");
    if linux_mounts() {
        place.linux_reads(&shown);
        ivers_oracle::btrfs::linux_writes(&place.image).unwrap();
    }
    // Another subvolume as the root.
    for options in ["subvol=home", "subvol=/dir/other", "subvol=monday"] {
        let dir = place.mount(options);
        let expected = usize::from(options != "subvol=/dir/other");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), expected, "{options}");
        assert!(works(&["subvolume", "list", dir.to_str().unwrap()]).contains("/monday read-only"));
        place.unmount();
    }
}

#[test]
fn subvolumes_are_made_by_who_may() {
    if !can_mount() || !is_root() || !have_tools() || !have_programs(&["setpriv"]) {
        return;
    }
    let place = image(&[]);
    let dir = place.mount("rw,allow_other");
    fs::create_dir(dir.join("of user")).unwrap();
    std::os::unix::fs::chown(dir.join("of user"), Some(1234), Some(1234)).unwrap();
    let as_user = |words: &[&str]| {
        let ids = ["--reuid", "1234", "--regid", "1234", "--clear-groups", IVERS];
        ivers_oracle::output("setpriv", ids.iter().chain(words)).unwrap()
    };
    let at = |path: &str| dir.join(path).to_str().unwrap().to_owned();
    // The program must be in a directory that the user may enter.
    if !as_user(&["--version"]).status.success() {
        println!("skipped: another user cannot run {IVERS}");
        place.unmount();
        return;
    }
    let works_as_user = |words: &[&str]| {
        let output = as_user(words);
        assert!(output.status.success(), "{words:?}: {}", said(&output));
    };
    let refused = |words: &[&str]| {
        let output = as_user(words);
        assert!(!output.status.success(), "{words:?}: {}", said(&output));
    };
    fs::set_permissions(place.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    works(&["subvolume", "create", &at("of root")]);
    works_as_user(&["subvolume", "create", &at("of user/own")]);
    works_as_user(&["subvolume", "snapshot", &at("of user/own"), &at("of user/snapshot")]);
    refused(&["subvolume", "create", &at("other")]);
    refused(&["subvolume", "snapshot", &at("of root"), &at("of user/x")]);
    refused(&["subvolume", "delete", &at("of user/own")]);
    refused(&["subvolume", "list", &at("of user")]);
    works(&["subvolume", "delete", &at("of user/own")]);
    place.unmount();
    place.is_clean();
}

#[test]
fn a_full_disk_stops_a_writing_program() {
    if !can_mount() || !have_tools() {
        return;
    }
    let place = image(&[]);
    let dir = place.mount("rw");
    full_disk::stops_a_writing_program(&dir, "btrfs");
    place.unmount();
    place.is_clean();
}
