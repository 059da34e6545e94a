//! `ivers cp` with standard input and output, FIFOs and signals, and what it says and leaves behind when it
//! ends early.

use crate::common::*;
use ivers_oracle::Image;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn image() -> Option<Image> {
    ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]).then(|| Image::new("ext4", 32 << 20, &[]).unwrap())
}

fn cp(words: &[&str], input: Stdio) -> Child {
    let mut command = Command::new(IVERS);
    command.arg("cp").args(words).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs `cp` with this standard input.
fn cp_from(words: &[&str], input: &[u8]) -> Output {
    let mut child = cp(words, Stdio::piped());
    // A command that does not read its input closes it.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn cat(file: &str) -> Vec<u8> {
    ivers(["cat", file]).stdout
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn standard_input_and_output_are_operands() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let bytes: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let file = format!("{word}:/file");
    for (from, name) in [("-", "file"), ("/dev/stdin", "other"), ("/dev/fd/0", "third"), ("/dev/stdin", "")] {
        let to = format!("{word}:/{name}");
        let output = cp_from(&[from, &to], &bytes);
        assert!(output.status.success(), "{from}: {}", said(&output));
    }
    for name in ["file", "other", "third", "stdin"] {
        assert!(cat(&format!("{word}:/{name}")) == bytes, "{name}");
    }
    for to in ["-", "/dev/stdout"] {
        let output = cp_from(&[&file, to], b"");
        assert!(output.status.success() && output.stdout == bytes, "{to}: {}", errors(&output));
    }
    let twice = cp_from(&[&file, &file, "-"], b"");
    assert!(twice.status.success() && twice.stdout == [&bytes[..], &bytes[..]].concat());
    // A directory has no contents, and a stream has no name.
    for (words, code) in [(&["-r", &format!("{word}:/"), "-"][..], 2), (&["-", &format!("{word}:/")], 2)] {
        let output = cp_from(words, b"x");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", errors(&output));
        assert_eq!(errors(&output).lines().count(), 1, "{}", errors(&output));
    }
    image.check().unwrap();
}

#[test]
fn fifos_are_read_and_written_and_with_recursive_copied() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let fifo = image.dir().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let (fifo, file) = (fifo.to_str().unwrap(), format!("{word}:/file"));
    let child = cp(&[fifo, &file], Stdio::null());
    fs::write(fifo, "through a FIFO").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(cat(&file), b"through a FIFO");
    let child = cp(&[&file, fifo], Stdio::null());
    assert_eq!(fs::read(fifo).unwrap(), b"through a FIFO");
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(ivers(["cp", "-r", fifo, &format!("{word}:/node")]).status.success());
    let listed = ivers(["ls", "-l", &format!("{word}:/node")]);
    assert!(listed.stdout.starts_with(b"p"), "{}", said(&listed));
}

#[test]
fn a_shell_may_substitute_a_process() {
    let Some(image) = image() else { return };
    let script = format!("{IVERS} cp <(echo one) {0}:/one && {IVERS} cp {0}:/one >(cat) | cat", {
        image.path().display()
    });
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(cat(&format!("{}:/one", image.path().display())), b"one\n");
}

#[test]
fn a_reader_that_stops_early_is_no_error() {
    let Some(image) = image() else { return };
    let file = format!("{}:/file", image.path().display());
    let bytes = vec![b'x'; 4 << 20];
    assert!(cp_from(&["-", &file], &bytes).status.success());
    let mut child = cp(&[&file, "-"], Stdio::null());
    let mut some = [0; 1000];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", said(&output));
}

#[test]
fn verbose_and_dry_run_print_each_file_and_no_clobber_leaves_existing_ones() {
    let Some(image) = image() else { return };
    let word = image.path().to_str().unwrap();
    let tree = image.dir().join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    fs::write(tree.join("a"), "new a").unwrap();
    fs::write(tree.join("sub/b"), "new b").unwrap();
    fs::write(image.dir().join("old"), "old").unwrap();
    let old = image.dir().join("old");
    assert!(ivers(["cp", old.to_str().unwrap(), &format!("{word}:/a")]).status.success());
    let (from, to) = (format!("{}/.", tree.display()), format!("{word}:/"));
    let lines = |output: &Output| -> Vec<String> {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        text.lines().map(|line| line.replace(word, "IMG").replace(&from, "TREE")).collect()
    };
    let run = |words: &[&str]| {
        let output = ivers(["cp", "-r"].iter().chain(words).chain(&[&from[..], &to[..]]));
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        output
    };
    let dry = run(&["--dry-run"]);
    assert_eq!(
        lines(&dry),
        ["TREE -> IMG:/", "TREE/a -> IMG:/a (replaced)", "TREE/sub -> IMG:/sub", "TREE/sub/b -> IMG:/sub/b"]
    );
    assert_eq!(cat(&format!("{word}:/a")), b"old");
    assert_eq!(ivers(["ls", &to]).stdout, b"a\nlost+found\n");
    let kept = run(&["-nv"]);
    let mut said = lines(&kept);
    said.sort();
    assert_eq!(
        said,
        [
            "TREE -> IMG:/",
            "TREE/a: skipped, IMG:/a exists",
            "TREE/sub -> IMG:/sub",
            "TREE/sub/b -> IMG:/sub/b"
        ]
    );
    assert_eq!(
        (cat(&format!("{word}:/a")), cat(&format!("{word}:/sub/b"))),
        (b"old".into(), b"new b".into())
    );
    let json = run(&["-v", "--json"]);
    let text = String::from_utf8(json.stdout).unwrap();
    let objects: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let replaced = objects.iter().find(|object| object["to"] == format!("{word}:/a")).expect(&text);
    assert_eq!(replaced["action"], "replace");
    assert_eq!(objects.last().unwrap()["files"], 4);
    // The same onto the host.
    let back = image.dir().join("back");
    fs::create_dir(&back).unwrap();
    fs::write(back.join("a"), "kept").unwrap();
    let output = ivers(["cp", "-rn", &format!("{word}:/."), back.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read(back.join("a")).unwrap(), b"kept");
    assert_eq!(fs::read(back.join("sub/b")).unwrap(), b"new b");
    image.check().unwrap();
}

#[test]
fn a_signal_ends_a_copy_and_the_command_says_what_was_copied() {
    let Some(image) = image() else { return };
    let file = format!("{}:/partial", image.path().display());
    let mut child = cp(&["-", &file], Stdio::piped());
    let mut input = child.stdin.take().unwrap();
    // More than a pipe takes: when it is written, the command is reading.
    input.write_all(&vec![b'x'; 2 << 20]).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(input);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let text = errors(&output);
    assert!(text.contains("ended early: 0 files copied") && text.contains("is removed"), "{text}");
    assert!(text.contains(&file) && text.lines().count() == 1, "{text}");
    assert_eq!(ivers(["cat", &file]).status.code(), Some(3), "the partial file is gone");
    image.check().unwrap();
}

/// A small filesystem in memory of the host, which fills up.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        let mounted = rustix::mount::mount("none", dir.path(), "tmpfs", flags, Some(c"size=1m"));
        mounted.is_ok().then_some(Self(dir))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_leaves_no_partial_file_or_names_it() {
    let (Some(image), Some(disk)) = (image(), is_root().then(SmallDisk::mount).flatten()) else { return };
    let file = format!("{}:/big", image.path().display());
    assert!(cp_from(&["-", &file], &vec![b'x'; 4 << 20]).status.success());
    let refused = |to: &Path, what: &str| {
        let output = ivers(["cp", &file, to.to_str().unwrap()]);
        let text = errors(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains(&format!("{}: incomplete after byte ", to.display())) && text.contains(what),
            "{text}"
        );
        assert!(text.contains("No space left") && !text.contains("os error"), "{text}");
    };
    let new = disk.path("new");
    refused(&new, ", removed: ");
    assert!(!new.exists());
    let old = disk.path("old");
    fs::write(&old, "before").unwrap();
    refused(&old, ": incomplete after byte ");
    assert!(old.exists());
}
