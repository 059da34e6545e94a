//! Standard error that cannot be written: messages are lost, but the command does its work and the exit code
//! is the same.

use crate::common::*;
use ivers_oracle::Image;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, Stdio};

/// Returns a full device, and a pipe without a reader.
fn deaf() -> Vec<(&'static str, Stdio)> {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let (reader, pipe) = std::io::pipe().unwrap();
    drop(reader);
    vec![("full", full.into()), ("a closed pipe", pipe.into())]
}

fn untold(words: &[&str], stderr: Stdio) -> Output {
    Command::new(IVERS).args(words).stdin(Stdio::null()).stderr(stderr).output().unwrap()
}

#[test]
fn exit_codes_are_the_same_without_standard_error() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    let image = Image::new("ext4", 32 << 20, &[]).unwrap();
    let word = image.path().to_str().unwrap();
    let missing = format!("{word}:/missing");
    for (words, code) in [
        (&["ls", &missing][..], 3),
        (&["cat", &missing, word], 1),
        (&["stat", &missing], 3),
        (&["cp", &missing, image.dir().to_str().unwrap()], 3),
        (&["nonsense"], 2),
        (&["mkfs", word], 4),
    ] {
        for (what, stderr) in deaf() {
            let output = untold(words, stderr);
            assert_eq!(output.status.code(), Some(code), "{words:?}, {what}: {}", output.status);
        }
    }
}

/// One problem in the middle of a copy affects one file only.
#[test]
fn a_copy_continues_without_standard_error() {
    if !ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck"]) {
        return;
    }
    for (what, stderr) in deaf() {
        let image = Image::new("ext4", 32 << 20, &[]).unwrap();
        let [source, back] = ["source", "back"].map(|name| image.dir().join(name));
        for name in ["a", "b", "c"] {
            fs::create_dir_all(source.join(name)).unwrap();
            fs::write(source.join(name).join("f"), name).unwrap();
        }
        let root = format!("{}:/", image.path().display());
        // A directory in the destination where the source has a file.
        let way = image.dir().join("way/b/f/x");
        fs::create_dir_all(&way).unwrap();
        let put = ivers(["cp", "-r", &format!("{}/way/.", image.dir().display()), &root]);
        assert!(put.status.success(), "{}", said(&put));
        let output = untold(&["cp", "-a", &format!("{}/.", source.display()), &root], stderr);
        assert_eq!((output.status.code(), output.status.signal()), (Some(1), None), "{what}");
        image.check().unwrap();
        let got = ivers(["cp", "-r", &root, back.to_str().unwrap()]);
        assert!(got.status.success(), "{}", said(&got));
        assert_eq!(fs::read(back.join("a/f")).unwrap(), b"a", "{what}");
        assert_eq!(fs::read(back.join("c/f")).unwrap(), b"c", "{what}");
    }
}
