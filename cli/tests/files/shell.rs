//! `ivers shell`: scripts through a pipe, a file and options, errors with line numbers, durability.

use crate::common::*;
use ivers_oracle::e2fs::{debugfs, e2fsck, e2fsck_repair};
use ivers_oracle::fat::{FAT_PROGRAMS, FatImage, fsck_fat};
use ivers_oracle::{Image, have_programs};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn image() -> Option<Image> {
    have_programs(&["mkfs.ext4", "e2fsck", "debugfs"]).then(|| Image::new("ext4", 32 << 20, &[]).unwrap())
}

/// Runs a shell in a directory, with `script` on standard input.
fn shell(dir: &Path, image: &Path, options: &[&str], script: &str) -> Output {
    let mut child = Command::new(IVERS)
        .arg("shell")
        .args(options)
        .arg(image)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A shell that has stopped at an error does not read the rest.
    let _ = child.stdin.take().unwrap().write_all(script.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn a_script_through_a_pipe_changes_the_image() {
    let Some(image) = image() else { return };
    let dir = image.dir().join("host");
    std::fs::create_dir_all(dir.join("tree/sub")).unwrap();
    std::fs::write(dir.join("tree/sub/file"), "from the host").unwrap();
    let script = "\
# A comment, then an empty line.

mkdir -p /srv/www 'a directory'
cd srv
pwd
put -r tree www
cp -r www/tree copy
mv copy/sub/file 'copy/another name'
ln -s ../www /srv/copy/link
chmod -R go= copy
chown 7:8 'copy/another name'
touch -d @0 \"copy/another name\"
attr set user.x y copy/another\\ name
cat copy/ano*
ls copy
get copy/another*
get -r www here
rm -rf www nothing
cd ../srv/./copy
cd ..
ls
stat --dereference copy
sync
quit
nonsense
";
    let output = shell(&dir, image.path(), &[], script);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("/srv\nfrom the hostanother name\nlink\nsub\ncopy\n"), "{text}");
    assert!(text.contains("/srv/copy"), "{text}");
    assert_eq!(std::fs::read_to_string(dir.join("another name")).unwrap(), "from the host");
    assert_eq!(std::fs::read_to_string(dir.join("here/tree/sub/file")).unwrap(), "from the host");
    image.check().unwrap();
    let stat = debugfs(image.path(), "stat \"/srv/copy/another name\"").unwrap();
    for part in ["Mode:  0600", "User:     7", "user.x (1) = \"y\"", "mtime: 0x00000000"] {
        assert!(stat.contains(part), "{part}: {stat}");
    }
    assert!(debugfs(image.path(), "ls -p /").unwrap().contains("/a directory/"));
}

#[test]
fn an_error_stops_a_script_at_its_line() {
    let Some(image) = image() else { return };
    let dir = image.dir();
    let run = |script: &str, options: &[&str]| shell(dir, image.path(), options, script);
    let output = run("mkdir /one\n-rm /none\n-nonsense\nrmdir\nmkdir /two\n", &[]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains(":/none: no such file"), "{text}");
    assert!(text.contains("standard input, line 4: rmdir: this line failed"), "{text}");
    let output = run("mkdir /three\nrm /none\nmkdir /four\n", &[]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("line 2: rm /none"), "{}", said(&output));
    let output = run("", &["-c", "ls", "-c", "cd /none", "-c", "mkdir /five"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("-c, line 2: cd /none"), "{}", said(&output));
    std::fs::write(dir.join("script"), "mkdir /six\nput missing /\n").unwrap();
    let output = run("", &["-f", "script"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("script, line 2: put missing /"), "{}", said(&output));
    for bad in ["rm 'a", "chmod 9 /one", "mv /one", "ls -o offset=1", "cp /one"] {
        assert_eq!(run(bad, &[]).status.code(), Some(2), "{bad}");
    }
    assert_eq!(run("mkdir /seven", &["--read-only"]).status.code(), Some(1));
    // A shell with a copy that fails can copy again.
    let output = run("-cp /none /x\n-put missing /y\n-get /none\nput script /eight\nget /eight nine\n", &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(std::fs::read(dir.join("nine")).unwrap(), std::fs::read(dir.join("script")).unwrap());
    image.check().unwrap();
    let names = debugfs(image.path(), "ls -p /").unwrap();
    for (name, there) in [
        ("one", true),
        ("two", false),
        ("three", true),
        ("four", false),
        ("five", false),
        ("six", true),
        ("seven", false),
        ("eight", true),
    ] {
        assert_eq!(names.contains(&format!("/{name}/")), there, "{name}: {names}");
    }
}

#[test]
fn json_and_help_are_printed() {
    let Some(image) = image() else { return };
    let output = shell(image.dir(), image.path(), &["--json"], "mkdir /a\nls /\nhelp\n");
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!((&first["operation"], &first["changed"]), (&"mkdir".into(), &1.into()));
    assert!(text.contains("\"name\":\"a\"") && text.contains("Copy files of the host"), "{text}");
}

#[test]
fn a_script_changes_fat() {
    if !have_programs(FAT_PROGRAMS) {
        return;
    }
    let image = FatImage::mkfs(16 << 20, &[]).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "hello").unwrap();
    let script = "mkdir -p Dir/sub\nput file Dir/sub\nmv dir/SUB/file /moved\n-ln -s x /link\nrm -r Dir\n";
    let output = shell(dir.path(), &image.path(), &[], script);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains(":/link: a FAT filesystem stores no symbolic links"), "{}", said(&output));
    fsck_fat(&image.path()).unwrap();
    assert_eq!(image.mtools("mtype", &["::/moved"]).unwrap(), b"hello");
    assert!(image.mtools("mtype", &["::/Dir/sub/file"]).is_err());
}

/// Starts a shell that has run `lines` and waits for the next.
fn waiting_shell(image: &Image, lines: &str) -> std::process::Child {
    let mut child = Command::new(IVERS)
        .arg("shell")
        .arg(image.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.as_mut().unwrap().write_all(format!("{lines}pwd\n").as_bytes()).unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "/\n");
    child
}

fn pid(child: &std::process::Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

const LINES: &str = "mkdir -p /a/b\ntouch /a/b/file\nmv /a/b/file /a/moved\nln -s /a /link\nrm -r /a/b\n";

fn has_the_lines(image: &Path) {
    let names = debugfs(image, "ls -p /a").unwrap();
    assert!(names.contains("/moved/") && !names.contains("/b/"), "{names}");
    assert!(debugfs(image, "stat /link").unwrap().contains("Fast link dest: \"/a\""));
}

/// The image process and the shell are killed, as by a power failure.
#[test]
fn kill_9_between_lines_loses_no_line_after_sync() {
    let Some(image) = image() else { return };
    let mut child = waiting_shell(&image, &format!("{LINES}sync\n"));
    let [process] = children(pid(&child))[..] else { panic!("one image process") };
    signal(process, Signal::KILL);
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the image process is gone", || !runs(process));
    let copy = image.copy().unwrap();
    let output = ivers(["ls", &format!("{}:/a", image.path().display())]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "moved\n", "{}", said(&output));
    e2fsck_repair(copy.path()).unwrap();
    e2fsck(copy.path()).unwrap();
    has_the_lines(copy.path());
}

/// If only the shell is killed, its image process closes the image.
#[test]
fn kill_9_of_the_shell_loses_no_line() {
    let Some(image) = image() else { return };
    let mut child = waiting_shell(&image, LINES);
    let [process] = children(pid(&child))[..] else { panic!("one image process") };
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until("the image process is gone", || !runs(process));
    image.check().unwrap();
    has_the_lines(image.path());
}

#[test]
fn a_signal_ends_a_script_and_closes_the_image() {
    let Some(image) = image() else { return };
    for sent in [Signal::INT, Signal::TERM] {
        let mut child = waiting_shell(&image, "mkdir -p /dir\n");
        signal(pid(&child), sent);
        // The shell waits for a line; standard input stays open.
        let stdin = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("standard input: interrupted after line 2"), "{}", said(&output));
        image.check().unwrap();
        assert!(debugfs(image.path(), "ls -p /").unwrap().contains("/dir/"));
    }
}

#[test]
fn the_image_is_sandboxed_and_locked_while_a_shell_has_it_open() {
    let Some(image) = image() else { return };
    let mut child = waiting_shell(&image, "");
    let [process] = children(pid(&child))[..] else { panic!("one image process") };
    assert_eq!((&*status(process, "Seccomp"), &*status(process, "NoNewPrivs")), ("2", "1"));
    assert_eq!(status(process, "CapEff"), "0000000000000000");
    let output = ivers(["mkdir", &format!("{}:/x", image.path().display())]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
