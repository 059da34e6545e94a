//! `ivers rm`, `mkdir`, `mv`, `ln`, `chmod`, `chown`, `touch` and `attr`, judged by the tools of each format.

use crate::common::*;
use ivers_block::{Device, FileDevice, OpenMode};
use ivers_oracle::e2fs::debugfs;
use ivers_oracle::fat::{FAT_PROGRAMS, FatImage, fsck_fat};
use ivers_oracle::{Image, have_programs};
use ivers_vfs::Timestamp;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn ext4(kind: &str) -> Option<Image> {
    have_programs(&["mkfs.ext4", "e2fsck", "debugfs"]).then(|| Image::new(kind, 32 << 20, &[]).unwrap())
}

/// Replaces `@` at the start of words by the image, and runs the words.
fn run(image: &Path, line: &str) -> Output {
    let inside = |word: &str| match word.strip_prefix('@') {
        Some(path) => format!("{}:{path}", image.display()),
        None => word.to_owned(),
    };
    ivers(line.split_whitespace().map(inside))
}

fn ok(image: &Path, line: &str) -> String {
    let output = run(image, line);
    assert!(output.status.success() && output.stderr.is_empty(), "{line}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

fn fails(image: &Path, line: &str, code: i32, parts: &[&str]) {
    let output = run(image, line);
    assert_eq!(output.status.code(), Some(code), "{line}: {}", said(&output));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for part in parts {
        assert!(text.contains(part), "{line}: {text:?} lacks {part:?}");
    }
}

fn put(image: &Path, path: &str, contents: &str) {
    let mut child = Command::new(IVERS)
        .args(["shell", "-c", &format!("touch {path}")])
        .arg(image)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    assert!(child.wait().unwrap().success());
    if !contents.is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, contents).unwrap();
        let inside = format!("{}:{path}", image.display());
        let output = ivers(["cp".as_ref(), file.as_os_str(), inside.as_ref()]);
        assert!(output.status.success(), "{}", said(&output));
    }
}

fn changed(image: &Path, path: &str) -> u64 {
    let text = ok(image, &format!("stat --json @{path}"));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    value["change"].as_str().unwrap().parse().unwrap()
}

#[test]
fn other_tools_see_every_change_of_ext4() {
    for kind in ["ext4", "ext3", "ext2"] {
        let Some(image) = ext4(kind) else { return };
        let path = image.path();
        ok(path, "mkdir @/etc @/old");
        let made = ok(path, "mkdir -p -v -m 750 @/srv/a/b");
        assert_eq!(made.lines().count(), 3, "{made}");
        put(path, "/etc/motd", "hello");
        let before = changed(path, "/etc/motd");
        ok(path, "chmod u=rw,go= @/etc/motd");
        assert!(changed(path, "/etc/motd") > before, "chmod is a change");
        ok(path, "chown 1000:70000 @/etc/motd");
        ok(path, "touch -d 2001-09-09T01:46:40Z @/etc/motd");
        ok(path, "ln @/etc/motd @/etc/hard");
        ok(path, "ln -s ../etc/motd @/old/soft");
        ok(path, &format!("ln -s {}:/etc @/to-etc", path.display()));
        ok(path, "attr set user.origin build-17 @/etc/motd");
        ok(path, "mv @/etc/hard @/srv/a/b");
        let stat = debugfs(path, "stat /etc/motd").unwrap();
        for part in
            ["Mode:  0600", "User:  1000", "Group: 70000", "Links: 2", "user.origin (8) = \"build-17\""]
        {
            assert!(stat.contains(part), "{kind}: {part}: {stat}");
        }
        assert!(stat.contains("mtime: 0x3b9aca00"), "{stat}");
        assert!(debugfs(path, "stat /srv/a/b").unwrap().contains("Mode:  0750"));
        assert!(debugfs(path, "stat /old/soft").unwrap().contains("Fast link dest: \"../etc/motd\""));
        assert!(debugfs(path, "stat /to-etc").unwrap().contains("Fast link dest: \"/etc\""));
        assert_eq!(debugfs(path, "cat /srv/a/b/hard").unwrap(), "hello");
        assert_eq!(ok(path, "attr get user.origin @/to-etc/motd"), "build-17\n");
        assert_eq!(ok(path, "attr list -l @/etc/motd"), "user.origin build-17\n");
        ok(path, "attr set --hex user.origin 0x00ff @/etc/motd");
        assert_eq!(ok(path, "attr get user.origin @/etc/motd"), "0x00ff\n");
        ok(path, "attr remove user.origin @/etc/motd");
        assert!(!debugfs(path, "stat /etc/motd").unwrap().contains("user.origin"));
        ok(path, "rm -r @/srv @/old @/to-etc");
        let left = debugfs(path, "ls -p /").unwrap();
        assert!(left.contains("/etc/") && !left.contains("/srv/") && !left.contains("/old/"), "{left}");
        image.check().unwrap();
    }
}

#[test]
fn patterns_are_expanded_in_the_image() {
    let Some(image) = ext4("ext4") else { return };
    let path = image.path();
    ok(path, "mkdir @/etc @/etc/dir.conf @/to");
    for name in ["a.conf", "b.conf", ".c.conf", "d", "[x]", "x"] {
        put(path, &format!("/etc/{name}"), "");
    }
    let inside = |name: &str| format!("{}:/etc/{name}\n", path.display());
    assert_eq!(ok(path, "ls @/etc/?.conf"), inside("a.conf") + &inside("b.conf"));
    ok(path, "chmod 600 @/etc/*.conf");
    assert_eq!(ok(path, "stat --json @/e*/[ab].conf").matches("\"mode\":\"100600\"").count(), 2);
    ok(path, "rm @/etc/[x]");
    assert_eq!(ok(path, "ls -a @/etc"), ".c.conf\na.conf\nb.conf\nd\ndir.conf\nx\n");
    for line in ["ls @/etc/*.x", "rm @/etc/*.x", "cat @/etc/*.x", "chmod 600 @/*/*.x", "stat @/etc/*.x"] {
        fails(path, line, 3, &[":/", "*.x"]);
    }
    ok(path, "rm -f @/etc/*.x @/nothing @/etc/d/x");
    fails(path, "rm @/etc/*.conf", 2, &[":/etc/dir.conf: is a directory: use rm -r"]);
    assert_eq!(ok(path, "ls -a @/etc"), ".c.conf\nd\ndir.conf\nx\n");
    ok(path, "mv @/etc/[dx] @/to");
    assert_eq!(ok(path, "ls @/to"), "d\nx\n");
    let dir = image.dir().join("out");
    std::fs::create_dir(&dir).unwrap();
    ok(path, &format!("cp @/to/? {}", dir.display()));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
    fails(path, &format!("cp @/to/*.x {}", dir.display()), 3, &["/to/*.x: no file matches the pattern"]);
    image.check().unwrap();
}

#[test]
fn dry_runs_change_nothing_and_say_what_would_change() {
    let Some(image) = ext4("ext4") else { return };
    let path = image.path();
    ok(path, "mkdir -p @/a/b");
    put(path, "/a/b/file", "x");
    let before = std::fs::read(path).unwrap();
    let text = ok(path, "rm -r --dry-run @/a");
    let name = path.display();
    let expected = ["/a/b/file", "/a/b", "/a"].map(|file| format!("would remove {name}:{file}\n")).concat();
    assert_eq!(text, expected);
    assert_eq!(ok(path, "chmod -R --dry-run 711 @/a").lines().count(), 3);
    assert_eq!(ok(path, "chown -R --dry-run 7 @/a").lines().count(), 3);
    assert!(std::fs::read(path).unwrap() == before, "a dry run writes nothing");
    let json = ok(path, "rm -r --json -v @/a");
    let lines: Vec<serde_json::Value> =
        json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 4);
    assert_eq!(lines[3]["changed"], 3);
    assert_eq!(lines[3]["operation"], "rm");
    assert_eq!(lines[0]["path"], format!("{name}:/a/b/file"));
    image.check().unwrap();
}

#[test]
fn errors_name_the_file_and_what_to_do() {
    let Some(image) = ext4("ext4") else { return };
    let path = image.path();
    ok(path, "mkdir -p @/a/b @/c/b @/full/b/x");
    put(path, "/file", "x");
    fails(path, "rm @/", 2, &[":/: the root directory"]);
    fails(path, "rm -r @/a/..", 2, &["cannot be created, removed or renamed"]);
    fails(path, "rm @/none", 3, &[":/none: no such file or directory"]);
    fails(path, "mkdir @/x/y", 3, &[":/x/y: the parent does not exist; use mkdir -p"]);
    fails(path, "mkdir @/a", 1, &[":/a: file exists"]);
    fails(path, "mkdir -p @/file/x", 1, &[":/file: exists and is a file"]);
    fails(path, "mv @/a @/a/b", 2, &["a directory cannot be moved into itself"]);
    fails(path, "mv @/a/b @/full", 1, &["/full/b: directory not empty"]);
    fails(path, "mv @/file @/none/", 1, &[":/none/: not a directory"]);
    fails(path, "mv @/file @/a @/none", 1, &[":/none: not a directory"]);
    fails(path, "mv @/file", 2, &["the destination is missing"]);
    fails(path, "mv @/file /tmp/file", 2, &["use ivers cp"]);
    fails(path, "rm /etc/hosts", 2, &["/etc/hosts: not a file of an image", "command of the system"]);
    let root = format!("{0}: an image; its root directory is {0}:/", path.display());
    fails(path, &format!("chmod u+x {}", path.display()), 2, &[&root]);
    fails(path, "rm @etc", 2, &["a path in an image starts with a slash; did you mean", ":/etc"]);
    fails(path, "mv @/file other.img:/file", 2, &["several images", "ivers cp"]);
    fails(path, "ln @/a @/d", 1, &["a directory has one name only; use ln -s"]);
    fails(path, "ln @/file @/a/b @/c @/file", 1, &[":/file: not a directory"]);
    fails(path, "chmod 999 @/file", 2, &["octal"]);
    fails(path, "chown no-such-user @/file", 2, &["this host has no user no-such-user"]);
    for action in ["get", "remove"] {
        let line = format!("attr {action} user.x @/file");
        fails(path, &line, 3, &["attribute user.x", ":/file: no such attribute"]);
    }
    fails(path, "attr set nonsense x @/file", 2, &["attribute nonsense", "names begin with user."]);
    fails(path, "attr set --hex user.x 0x1 @/file", 2, &["even number of hexadecimal digits"]);
    fails(path, "rm -o norecovery @/file", 2, &["norecovery"]);
    // What works is done nevertheless.
    fails(path, "rm -r @/none @/a @/c/b/none", 3, &[":/none", ":/c/b/none"]);
    fails(path, "rm -r @/a", 3, &[]);
    // A directory replaces an empty one.
    ok(path, "mv @/full/b @/c");
    ok(path, "mv -T @/c @/full");
    assert_eq!(ok(path, "ls @/full/b"), "x\n");
    fails(path, "mv -n -T @/file @/full", 1, &["/full: file exists"]);
    image.check().unwrap();
}

#[test]
fn fat_says_what_it_cannot_store() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let image = FatImage::mkfs(16 << 20, &[]).unwrap();
    let path = &image.path();
    ok(path, "mkdir -p @/Dir/sub");
    put(path, "/Dir/Long_name.txt", "hello");
    ok(path, "mv @/dir/*.TXT @/Dir/sub/moved");
    assert_eq!(image.mtools("mtype", &["::/Dir/sub/moved"]).unwrap(), b"hello");
    ok(path, "touch -d 2020-02-29T12:00:00Z @/Dir/sub/moved");
    assert!(ok(path, "ls -l @/Dir/sub").contains("2020-02-29 12:00:00"));
    ok(path, "chmod a-w @/Dir/sub/moved");
    fails(path, "chmod 640 @/Dir/sub/moved", 1, &["FAT filesystem cannot store mode 0640"]);
    fails(path, "chown 7 @/Dir/sub/moved", 1, &["a FAT filesystem stores no owners"]);
    fails(path, "ln -s x @/link", 1, &[":/link: a FAT filesystem stores no symbolic links"]);
    fails(path, "ln @/Dir/sub/moved @/link", 1, &[":/link: a FAT filesystem stores no hard links"]);
    fails(path, "attr set user.x y @/Dir/sub/moved", 1, &["a FAT filesystem stores no extended attributes"]);
    ok(path, "rm -r @/Dir/sub");
    assert_eq!(ok(path, "ls @/Dir"), "");

    // What is copied or unpacked: the rest is created.
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("a"), "hello").unwrap();
    std::fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    std::os::unix::fs::symlink("a", tree.join("soft")).unwrap();
    let tar = dir.path().join("tree.tar");
    let [tree, tar, path_text] = [&tree, &tar, path].map(|path| path.to_str().unwrap());
    assert!(
        ivers_oracle::output("tar", ["--sort=name", "-cf", tar, "-C", tree, "."]).unwrap().status.success()
    );
    let lacks = ["a FAT filesystem stores no symbolic links", "a FAT filesystem stores no hard links"];
    fails(path, &format!("cp -a {tree} @/copied"), 1, &lacks);
    ok(path, "mkdir @/unpacked");
    fails(path, &format!("tar -x -f {tar} @/unpacked"), 1, &lacks);
    for place in ["copied", "unpacked"] {
        assert_eq!(ok(path, &format!("ls @/{place}")), "a\n");
    }
    let owned = dir.path().join("owned.img");
    ok(&owned, &format!("mkfs -q --size 8M {}", owned.display()));
    ok(&owned, "touch @/file");
    ok(&owned, "chown 7 @/file");
    let from = owned.to_str().unwrap();
    fails(path, &format!("cp -a {from}:/file @/file"), 1, &["a FAT filesystem stores no owners"]);
    fails(path, &format!("mkfs -q --type fat16 --force {path_text} --from {tree}"), 1, &lacks);
    fsck_fat(path).unwrap();
}

#[test]
fn affs_is_changed_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = &dir.path().join("image");
    std::fs::File::create(path).unwrap().set_len(8 << 20).unwrap();
    let device = FileDevice::open(path, OpenMode::ReadWrite).unwrap();
    ivers_affs::mkfs::format(&device, 3, 512, "Edited", Timestamp { sec: 1 << 30, nsec: 0 }).unwrap();
    device.flush().unwrap();
    drop(device);
    ok(path, "mkdir -p @/Devs/Keymaps");
    put(path, "/Devs/file", "hello");
    ok(path, "ln @/Devs/file @/hard");
    ok(path, "ln -s Devs/file @/soft");
    ok(path, "chmod 700 @/Devs/file");
    ok(path, "chown 7:8 @/Devs/file");
    ok(path, "mv @/devs/FILE @/Devs/Keymaps/other");
    let stat = ok(path, "ls -l @/Devs/Keymaps");
    assert!(stat.starts_with("-rwx------") && stat.contains("    7     8 "), "{stat}");
    assert_eq!(ok(path, "cat @/hard"), "hello");
    ok(path, "rm -r @/Devs @/soft");
    assert_eq!(ok(path, "ls @/"), "hard\n");
    ivers_affs::check::report(&std::fs::read(path).unwrap(), 512).closed().unwrap();
}

#[test]
fn many_operands_open_the_image_once() {
    let Some(image) = ext4("ext4") else { return };
    let path = image.path();
    let opens = |path: &Path| debugfs(path, "show_super_stats -h").unwrap();
    let mounts = |text: &str| -> u64 {
        let line = text.lines().find(|line| line.starts_with("Mount count:")).unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let before = mounts(&opens(path));
    let long = "n".repeat(200);
    let words: Vec<String> = (0..300).map(|at| format!("@/{long}-{at}")).collect();
    ok(path, &format!("mkdir {}", words.join(" ")));
    ok(path, &format!("rm -r {}", words.join(" ")));
    assert_eq!(mounts(&opens(path)), before + 2, "one mount for each command");
    assert_eq!(ok(path, "ls @/"), "lost+found\n");
    image.check().unwrap();
}

/// SIGINT in the middle of a long removal.
#[test]
fn an_interruption_closes_the_image_and_says_what_was_done() {
    let Some(image) = ext4("ext4") else { return };
    let path = image.path();
    let script: String = (0..2000).map(|at| format!("touch /dir/a-long-name-of-a-file-{at}\n")).collect();
    std::fs::write(image.dir().join("script"), format!("mkdir /dir\n{script}")).unwrap();
    ok(path, &format!("shell -f {} {}", image.dir().join("script").display(), path.display()));
    let mut child = Command::new(IVERS)
        .args(["rm", "-rv", &format!("{}:/dir", path.display())])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The pipe holds fewer lines than there are files, so the removal is under way.
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0; 1]).unwrap();
    // As a terminal does: to the image process, which handles it before the next file, and to the command.
    let pid = i32::try_from(child.id()).unwrap();
    let [process] = children(pid)[..] else { panic!("one image process") };
    for pid in [process, pid] {
        signal(pid, rustix::process::Signal::INT);
    }
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    image.check().unwrap();
    let removed = rest.lines().count();
    assert_eq!(output.status.code(), Some(1), "{text}, {removed} removed");
    assert!(text.contains("interrupted; files removed: "), "{text}");
    let left = ok(path, "ls @/dir").lines().count();
    assert_eq!(left + removed, 2000, "each file that is gone was named: {text}");
}

/// What is made in the directory of a user is for that user.
#[test]
fn new_entries_belong_to_the_owner_of_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let word = image.to_str().unwrap();
    works(&["mkfs", "-q", "--size", "16M", "--root-owner=1234:567", word]);
    let at = |path: &str| format!("{word}:{path}");
    works(&["mkdir", "-p", &at("/a/b")]);
    works(&["touch", &at("/a/file")]);
    works(&["ln", "-s", "file", &at("/a/link")]);
    works(&["cp", "-r", concat!(env!("CARGO_MANIFEST_DIR"), "/src/archive"), &at("/a/b")]);
    let host = dir.path().join("host");
    fs::write(&host, "x").unwrap();
    works(&["shell", "-c", "mkdir /c", "-c", &format!("put {} /c/d", host.display()), word]);
    let listed = works(&["ls", "-lR", &at("/")]);
    let mut seen = 0;
    for line in listed.lines().filter(|line| line.starts_with(['d', '-', 'l'])) {
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words[2..4], ["1234", "567"], "{line}");
        seen += 1;
    }
    assert!(seen > 10, "lost+found too: {listed}");
    works(&["chown", "0:0", &at("/c")]);
    works(&["touch", &at("/c/of-root")]);
    let owner = works(&["stat", "--json", &at("/c/of-root")]);
    let owner: serde_json::Value = serde_json::from_str(&owner).unwrap();
    assert_eq!((owner["uid"].as_u64(), owner["gid"].as_u64()), (Some(0), Some(0)), "{owner}");
    if ivers_oracle::have_programs(&["e2fsck"]) {
        ivers_oracle::e2fsck(&image).unwrap();
    }
}
