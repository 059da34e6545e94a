//! `ivers cp`: what it preserves, what it reports, and what a hostile image cannot do.

use crate::common::*;
use ivers_oracle::{Image, TreeOptions, tree};
use rustix::fs::{CWD, FileType, Mode};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, UNIX_EPOCH};

fn image() -> Option<Image> {
    ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck", "debugfs"])
        .then(|| Image::new("ext4", 32 << 20, &[]).unwrap())
}

fn cp(words: &[&str]) -> Output {
    ivers(["cp"].iter().chain(words))
}

fn copies(words: &[&str]) {
    let output = cp(words);
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates every kind of file and metadata that this user may create.
fn fill(source: &Path) {
    fs::create_dir_all(source.join("sub/empty")).unwrap();
    fs::write(source.join("sub/file"), "contents").unwrap();
    fs::set_permissions(source.join("sub/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    xattr::set(source.join("sub/file"), "user.note", b"kept").unwrap();
    // A POSIX ACL: version 2, then entries for the owner, user 7, the group, the mask and others.
    let acl = [
        [2, 0, 0, 0].as_slice(),
        &[1, 0, 7, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 7, 0, 0, 0],
        &[4, 0, 5, 0, 255, 255, 255, 255],
        &[16, 0, 5, 0, 255, 255, 255, 255],
        &[32, 0, 1, 0, 255, 255, 255, 255],
    ]
    .concat();
    let _ = xattr::set(source.join("sub/file"), "system.posix_acl_access", &acl);
    fs::hard_link(source.join("sub/file"), source.join("twin")).unwrap();
    std::os::unix::fs::symlink("sub/file", source.join("link")).unwrap();
    fs::set_permissions(source.join("sub"), fs::Permissions::from_mode(0o1500)).unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", 3 << 20).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.set_modified(UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789)).unwrap();
    let special = |name, kind, rdev| {
        rustix::fs::mknodat(CWD, source.join(name), kind, Mode::from_raw_mode(0o640), rdev)
    };
    special("pipe", FileType::Fifo, 0).unwrap();
    special("socket", FileType::Socket, 0).unwrap();
    if is_root() {
        special("null", FileType::CharacterDevice, 0x103).unwrap();
        special("disk", FileType::BlockDevice, (0x12 << 20) | (7 << 8) | 0x34).unwrap();
        xattr::set(source.join("pipe"), "trusted.note", b"kept too").unwrap();
        std::os::unix::fs::lchown(source.join("link"), Some(7), Some(8)).unwrap();
        std::os::unix::fs::lchown(source.join("pipe"), Some(70_000), Some(80_000)).unwrap();
    }
}

#[test]
fn a_tree_round_trips() {
    let Some(image) = image() else { return };
    let other = Image::new("ext4", 32 << 20, &["-b", "4096"]).unwrap();
    let (source, back) = (image.dir().join("source"), image.dir().join("back"));
    fill(&source);
    let [inside, copied, third] = [
        format!("{}:/source", image.path().display()),
        format!("{}:/copied", image.path().display()),
        format!("{}:/third", other.path().display()),
    ];
    copies(&["-a", text(&source), &inside]);
    copies(&["-rp", &inside, &copied]);
    copies(&["-a", &copied, &third]);
    copies(&["-a", &third, text(&back)]);
    image.check().unwrap();
    other.check().unwrap();
    // The copy has its own change times, and sparse files are too long to hash.
    let [before, after] = [&source, &back].map(|dir| fs::metadata(dir.join("sparse")).unwrap());
    assert_eq!(
        (before.len(), before.mtime(), before.mtime_nsec()),
        (after.len(), after.mtime(), after.mtime_nsec())
    );
    assert!(after.blocks() < 64, "the hole was filled: {} blocks", after.blocks());
    let mut island = [0; 6];
    let sparse = fs::File::open(back.join("sparse")).unwrap();
    std::os::unix::fs::FileExt::read_exact_at(&sparse, &mut island, 3 << 20).unwrap();
    assert_eq!(&island, b"island");
    for dir in [&source, &back] {
        fs::remove_file(dir.join("sparse")).unwrap();
    }
    let number = |name| fs::metadata(back.join(name)).unwrap().ino();
    assert_eq!(number("sub/file"), number("twin"));
    let look = |dir| tree(dir, TreeOptions { no_times: true, ..TreeOptions::default() }).unwrap();
    assert_eq!(look(&source), look(&back));
    for name in ["sub", "pipe", "socket", "link", "twin"] {
        let [before, after] = [&source, &back].map(|dir| fs::symlink_metadata(dir.join(name)).unwrap());
        assert_eq!((before.mtime(), before.mtime_nsec()), (after.mtime(), after.mtime_nsec()), "{name}");
        assert_eq!((before.mode(), before.rdev()), (after.mode(), after.rdev()), "{name}");
    }
    let acl = |dir: &Path| xattr::get(dir.join("twin"), "system.posix_acl_access").unwrap();
    assert_eq!(acl(&source), acl(&back));

    // A second copy over the first: still one file with two names.
    copies(&["-a", &format!("{third}/."), text(&back)]);
    assert_eq!(number("sub/file"), number("twin"));
    assert_eq!(fs::metadata(back.join("twin")).unwrap().nlink(), 2);
}

#[test]
fn uncopied_files_are_named_and_the_others_are_copied() {
    let Some(image) = image() else { return };
    let (source, out) = (image.dir().join("source"), image.dir().join("out"));
    for name in ["a", "b", "c"] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::write(source.join(name).join("f"), name).unwrap();
    }
    fs::hard_link(source.join("b/f"), source.join("c/twin")).unwrap();
    let inside = |path: &str| format!("{}:{path}", image.path().display());
    // The destination has a directory where the source has a file.
    let before = cp(&["-r", text(&source.join("a")), &inside("/b")]);
    assert!(before.status.success(), "{}", said(&before));
    fs::create_dir_all(out.join("b/f")).unwrap();
    copies(&["-r", &format!("{}/.", text(&source)), &inside("/")]);
    let back =
        cp(&["-a", "--json", &inside("/a"), &inside("/missing"), &inside("/b"), &inside("/c"), text(&out)]);
    assert_eq!(back.status.code(), Some(1), "{}", said(&back));
    let said_of_it = String::from_utf8(back.stderr).unwrap();
    let lines: Vec<&str> = said_of_it.lines().collect();
    assert_eq!(lines.len(), 3, "{said_of_it}");
    assert!(lines[0].contains("/missing: no such file"), "{said_of_it}");
    assert!(lines[1].contains("/b/f: exists and is a directory"), "{said_of_it}");
    assert!(lines[2].contains("/c/twin: a hard link to a file that was not copied"), "{said_of_it}");
    let told: serde_json::Value = serde_json::from_slice(&back.stdout).unwrap();
    assert_eq!(told["problems"], 3);
    assert_eq!(fs::read(out.join("c/f")).unwrap(), b"c");
    assert_eq!(
        fs::read(out.join("b/f")).map_err(|e| e.kind()).unwrap_err(),
        std::io::ErrorKind::IsADirectory
    );

    // The error names the missing target.
    let nowhere = cp(&[&inside("/a/f"), text(&image.dir().join("nowhere/f"))]);
    assert_eq!(nowhere.status.code(), Some(3));
    assert!(said(&nowhere).contains("nowhere/f: No such file"), "{}", said(&nowhere));
    let outside = format!("{}/", image.dir().join("new").display());
    for (from, place) in [(text(&source.join("a")), inside("/new/")), (&inside("/a"), outside)] {
        let file = cp(&[&format!("{from}/f"), &place]);
        assert_eq!(file.status.code(), Some(3), "{place} is no directory");
        assert!(said(&file).contains(&format!("{place}: no such")), "{}", said(&file));
        copies(&["-r", from, &place]);
    }

    // If all errors are of one kind, the exit code is theirs.
    assert_eq!(cp(&[&inside("/missing"), &inside("/nor"), text(&out)]).status.code(), Some(3));
    assert_eq!(cp(&[&inside("/a"), text(&out)]).status.code(), Some(2), "without --recursive");
    assert_eq!(cp(&[&inside("/a/f"), &inside("/b"), &inside("/c/f")]).status.code(), Some(2));
    image.check().unwrap();
}

/// A full image keeps the part that fitted, as with cp(1), and the error says where the rest begins.
#[test]
fn a_copy_to_a_full_image_names_the_missing_files() {
    let Some(image) = image() else { return };
    let (big, small) = (image.dir().join("big"), image.dir().join("small"));
    let contents: Vec<u8> = (0..40u32 << 20).map(|at| (at / 4096) as u8 | 1).collect();
    fs::write(&big, &contents).unwrap();
    fs::write(&small, "x").unwrap();
    let inside = |path: &str| format!("{}:{path}", image.path().display());
    let copied = cp(&[text(&big), text(&small), &inside("/")]);
    let line = said(&copied);
    assert_eq!(copied.status.code(), Some(1), "{line}");
    let (_, rest) = line.split_once("big: incomplete after byte ").expect(&line);
    let (at, why) = rest.split_once(": ").expect(&line);
    assert!(why.starts_with("no space left"), "{line}");
    let back = image.dir().join("back");
    copies(&[&inside("/big"), text(&back)]);
    let back = fs::read(back).unwrap();
    assert!(back.len() >= at.parse().unwrap() && contents.starts_with(&back), "{} bytes, {line}", back.len());
    image.check().unwrap();
}

#[test]
fn copying_onto_or_into_itself_is_refused() {
    let Some(image) = image() else { return };
    let source = image.dir().join("source");
    fs::create_dir_all(source.join("d")).unwrap();
    fs::write(source.join("f"), "whole").unwrap();
    let inside = format!("{}:/source", image.path().display());
    copies(&["-r", text(&source), &inside]);
    let file = cp(&[&format!("{inside}/f"), &format!("{inside}/f")]);
    assert_eq!(file.status.code(), Some(1), "{}", said(&file));
    for into in ["d", "new"] {
        let into = cp(&["-r", &inside, &format!("{inside}/{into}")]);
        assert_eq!(into.status.code(), Some(2), "{}", said(&into));
    }
    // The second source is in the image and is copied.
    let (host, other) = (text(&source), format!("{inside}/d"));
    let file = cp(&["-r", &other, text(&source.join("f")), host]);
    assert_eq!(file.status.code(), Some(1), "{}", said(&file));
    let into = cp(&["-r", &other, host, text(&source.join("d"))]);
    assert_eq!(into.status.code(), Some(2), "{}", said(&into));
    assert_eq!(fs::read(source.join("f")).unwrap(), b"whole");
    assert_eq!(ivers(["cat", &format!("{inside}/f")]).stdout, b"whole");
    image.check().unwrap();
}

#[test]
fn copying_out_follows_no_symbolic_link() {
    let Some(image) = image() else { return };
    let (source, outside) = (image.dir().join("source"), image.dir().join("outside"));
    let out = image.dir().join("out");
    fs::create_dir_all(source.join("bbb")).unwrap();
    fs::create_dir(&outside).unwrap();
    fs::write(source.join("bbb/file"), "hostile").unwrap();
    std::os::unix::fs::symlink(&outside, source.join("aaa")).unwrap();
    let inside = format!("{}:/source", image.path().display());
    copies(&["-r", text(&source), &inside]);
    fs::create_dir(&out).unwrap();
    // A symbolic link that exists before the copy starts.
    std::os::unix::fs::symlink(&outside, out.join("bbb")).unwrap();
    let output = cp(&["-r", &format!("{inside}/."), text(&out)]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("bbb: exists and is a symlink"), "{}", said(&output));
    fs::remove_file(out.join("bbb")).unwrap();
    std::os::unix::fs::symlink(outside.join("victim"), out.join("file")).unwrap();
    copies(&["-r", &format!("{inside}/bbb/."), text(&out)]);
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(fs::symlink_metadata(out.join("file")).unwrap().is_file());
}

#[test]
fn without_preserve_the_umask_applies_and_set_id_bits_are_removed() {
    let Some(image) = image() else { return };
    let (source, out) = (image.dir().join("source"), image.dir().join("out"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("f"), "").unwrap();
    fs::set_permissions(source.join("f"), fs::Permissions::from_mode(0o6777)).unwrap();
    fs::create_dir(source.join("d")).unwrap();
    fs::write(source.join("d/inner"), "x").unwrap();
    fs::set_permissions(source.join("d"), fs::Permissions::from_mode(0o577)).unwrap();
    let inside = format!("{}:/source", image.path().display());
    copies(&["-a", text(&source), &inside]);
    let script = "umask 027; exec \"$@\"";
    let output = std::process::Command::new("sh")
        .args(["-c", script, "sh", IVERS, "cp", "-r", &inside, text(&out)])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let mode = |name: &str| fs::metadata(out.join(name)).unwrap().mode() & 0o7777;
    assert_eq!((mode("f"), mode("d"), mode("d/inner")), (0o750, 0o550, 0o640));
}

/// As on Linux when root copies: overwriting removes file capabilities; set-id bits stay.
#[test]
fn overwriting_a_file_removes_its_capabilities() {
    let Some(image) = image() else { return };
    let (program, empty) = (image.dir().join("program"), image.dir().join("empty"));
    fs::write(&program, "program").unwrap();
    fs::write(&empty, "").unwrap();
    let inside = |name: &str| format!("{}:/{name}", image.path().display());
    let value = image.dir().join("capability");
    // Version 2, CAP_NET_RAW permitted and effective.
    fs::write(&value, [[1, 0, 0, 2], [0, 32, 0, 0], [0; 4], [0; 4], [0; 4]].concat()).unwrap();
    let debugfs = |command: &str| {
        let words = ["-w", "-R", command, text(image.path())];
        let output = std::process::Command::new("debugfs").args(words).output().unwrap();
        assert!(output.status.success(), "{command}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    copies(&[text(&program), &inside("other")]);
    for options in ["", "-p"] {
        for source in [text(&program), text(&empty), &inside("other")] {
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
            copies(&[text(&program), &inside("f")]);
            debugfs("sif /f mode 0106755");
            debugfs(&format!("ea_set -f {} /f security.capability", text(&value)));
            assert!(debugfs("ea_list /f").contains("security.capability"));
            let words: Vec<&str> = [options, source].into_iter().filter(|word| !word.is_empty()).collect();
            let target = inside("f");
            copies(&[words.as_slice(), &[&target]].concat());
            let left = debugfs("ea_list /f");
            assert!(!left.contains("security.capability"), "{options} {source}: {left}");
            let set_id = debugfs("stat /f").contains("06755");
            assert_eq!(set_id, options.is_empty(), "{options} {source}");
        }
    }
    image.check().unwrap();
}

/// Returns an ACL: owner, user 7, group, mask, others.
fn acl(user: u8) -> Vec<u8> {
    let entry = |tag: u8, perm: u8, id: u32| [[tag, 0, perm, 0], id.to_le_bytes()].concat();
    let none = u32::MAX;
    [
        vec![2, 0, 0, 0],
        entry(1, 7, none),
        entry(2, user, 7),
        entry(4, 5, none),
        entry(16, 7, none),
        entry(32, 0, none),
    ]
    .concat()
}

#[test]
fn acls_inherited_from_a_directory_are_removed() {
    let Some(image) = image() else { return };
    let (source, out) = (image.dir().join("source"), image.dir().join("out"));
    for dir in [&source, &out] {
        fs::create_dir(dir).unwrap();
    }
    if xattr::set(&out, "system.posix_acl_default", &acl(7)).is_err() {
        return;
    }
    fs::write(source.join("f"), "").unwrap();
    fs::create_dir(source.join("d")).unwrap();
    for (name, mode) in [("f", 0o640), ("d", 0o750)] {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let inside = format!("{}:/out", image.path().display());
    copies(&["-a", text(&out), &inside]);
    copies(&["-a", text(&source), &inside]);
    copies(&["-a", &format!("{inside}/source"), text(&out)]);
    for name in ["f", "d"] {
        let path = out.join("source").join(name);
        for kind in ["access", "default"] {
            assert_eq!(xattr::get(&path, format!("system.posix_acl_{kind}")).unwrap(), None, "{name} {kind}");
        }
        assert_eq!(fs::metadata(&path).unwrap().mode(), fs::metadata(source.join(name)).unwrap().mode());
    }
    // The image contains what was copied in.
    let again = image.dir().join("again");
    copies(&["-a", &inside, text(&again)]);
    assert_eq!(xattr::get(again.join("source/d"), "system.posix_acl_default").unwrap(), None);
    assert_eq!(xattr::get(again, "system.posix_acl_default").unwrap().unwrap(), acl(7));
    image.check().unwrap();
}

/// IMAGE without `:/` is a file of the host, so `cp` would overwrite the image itself.
#[test]
fn mistyped_paths_do_not_overwrite_an_image() {
    let Some(image) = image() else { return };
    let (source, word) = (image.dir().join("source"), text(image.path()).to_owned());
    let name = image.path().file_name().unwrap().to_str().unwrap().to_owned();
    fs::write(&source, "contents").unwrap();
    let (inside, root) = (format!("{word}:/copy"), format!("{word}:/"));
    copies(&[text(&source), &inside]);
    let other = Image::new("ext4", 16 << 20, &[]).unwrap();
    let from_other = format!("{}:/{name}", other.path().display());
    copies(&[text(&source), &from_other]);
    let before = fs::read(image.path()).unwrap();
    let refused = |words: &[&str], hint: &str| {
        let output = cp(words);
        let told = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(told.lines().count() == 1 && told.contains(hint), "{words:?}: {told}");
        assert!(fs::read(image.path()).unwrap() == before, "{words:?} overwrote the image");
    };
    refused(&[text(&source), &word], &root);
    refused(&["-F", text(&source), &word], &root);
    refused(&[&word, text(&image.dir().join("copy"))], &root);
    refused(&[text(&source), text(&image.dir().join("copy"))], "IMAGE:/path");
    refused(&[&from_other, &word], "--force");
    refused(&[&from_other, text(image.dir())], "--force");
    for (slip, meant) in [(":", ":/"), (":srv/x", ":/srv/x")] {
        let slip = format!("{word}{slip}");
        refused(&[text(&source), &slip], &format!("{word}{meant}"));
        refused(&[&from_other, &slip], &format!("{word}{meant}"));
        assert!(!Path::new(&slip).exists(), "{slip}");
        let listed = ivers(["ls", &slip]);
        assert_eq!(listed.status.code(), Some(3));
        assert!(said(&listed).contains(&format!("{word}{meant}")), "{}", said(&listed));
    }
    copies(&["--force", &from_other, &word]);
    assert_eq!(fs::read(image.path()).unwrap(), b"contents");
}

/// A dry run announces nothing that the copy refuses.
#[test]
fn a_dry_run_refuses_what_the_copy_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let image = path("disk.img");
    works(&["mkfs", "-q", &image, "--size", "8M"]);
    works(&["mkdir", "-p", &format!("{image}:/usr/lib"), &format!("{image}:/file")]);
    works(&["ln", "-s", "usr/lib", &format!("{image}:/lib")]);
    std::fs::create_dir_all(dir.path().join("tree/lib/modules")).unwrap();
    for file in ["tree/lib/modules/one", "tree/file", "tree/other"] {
        std::fs::write(dir.path().join(file), "x").unwrap();
    }
    let (tree, root) = (format!("{}/.", path("tree")), format!("{image}:/"));
    let messages = |words: &[&str]| {
        let output = ivers([&["cp", "-a"], words, &[&tree, &root]].concat());
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let mut lines: Vec<_> =
            String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect();
        lines.sort();
        (lines, String::from_utf8(output.stdout).unwrap())
    };
    let (refused, announced) = messages(&["--dry-run"]);
    assert!(announced.contains("tree/./other") && !announced.contains("modules"), "{announced}");
    assert_eq!(messages(&[]).0, refused);
    assert_eq!(refused.len(), 2, "{refused:?}");
}

/// The disk of the host is full, not the filesystem in the image.
#[test]
fn a_copy_to_an_image_on_a_full_disk_names_that_disk() {
    if !is_root() || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let small = dir.path().join("small");
    fs::create_dir(&small).unwrap();
    let mount = |words: &[&str]| Command::new("mount").args(words).arg(&small).status().unwrap();
    assert!(mount(&["-t", "tmpfs", "-osize=8M", "none"]).success());
    let image = small.join("image");
    works(&["mkfs", "-q", "--size", "200M", image.to_str().unwrap()]);
    let source = dir.path().join("source");
    fs::write(&source, vec![7; 32 << 20]).unwrap();
    let to = format!("{}:/f", image.display());
    let output = ivers(["cp", "-o", "cache=8M", source.to_str().unwrap(), &to]);
    let unmounted = Command::new("umount").args(["-l"]).arg(&small).status().unwrap();
    assert!(unmounted.success());
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let first = String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or_default().to_owned();
    assert!(first.contains("the disk that holds the image is full"), "{text}");
    assert!(!text.contains("no space left in the filesystem"), "{text}");
}
