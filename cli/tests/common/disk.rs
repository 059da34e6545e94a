//! Disk images with partition tables that other programs make.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ivers_oracle::{e2fsck, have_programs};

use super::{ivers, said};

pub const MIB: u64 = 1 << 20;

/// An image with a partition table.
pub struct Disk {
    pub dir: tempfile::TempDir,
}

impl Disk {
    pub fn new(mib: u64) -> Self {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        fs::File::create(disk.file()).unwrap().set_len(mib * MIB).unwrap();
        disk
    }

    pub fn file(&self) -> PathBuf {
        self.dir.path().join("disk.img")
    }

    /// Returns `disk.img` followed by `suffix`.
    pub fn name(&self, suffix: &str) -> String {
        format!("{}{suffix}", self.file().display())
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs a program of util-linux or gptfdisk on the disk.
    pub fn run(&self, program: &str, args: &[&str], input: &str) {
        let mut child = Command::new(program)
            .args(args)
            .arg(self.file())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{program}: {}", said(&output));
    }

    /// Makes a GPT with partitions `esp`, `root` and `my data`.
    pub fn with_gpt() -> Self {
        let disk = Self::new(64);
        let names = ["-c", "1:esp", "-c", "2:root", "-c", "3:my data", "-t", "1:ef00"];
        let places = ["-n", "1:2048:+8M", "-n", "2:0:+24M", "-n", "3:0:+16M"];
        disk.run("sgdisk", &[&places[..], &names[..]].concat(), "");
        disk
    }

    /// Makes an MBR with partition 1, and 5 and 6 in partition 2.
    pub fn with_mbr() -> Self {
        let disk = Self::new(64);
        let script = "label: dos\nlabel-id: 0x1234abcd\n1 : start=2048,size=16384,type=83\n\
                      2 : start=20480,size=80000,type=5\n5 : size=16384,type=83\n6 : size=16384,type=c\n";
        disk.run("sfdisk", &["-q"], script);
        disk
    }

    /// Makes a table with fdisk for sectors of 4096 bytes.
    pub fn with_large_sectors(commands: &str) -> Self {
        let disk = Self::new(64);
        disk.run("fdisk", &["-b", "4096"], commands);
        disk
    }

    pub fn json(&self) -> serde_json::Value {
        let output = ivers(["info", "--json", &self.name("")]);
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the bytes of a partition, as `info` says where it is.
    pub fn range(&self, number: u64) -> std::ops::Range<usize> {
        let json = self.json();
        let all = json["partitions"].as_array().unwrap();
        let one = all.iter().find(|one| one["number"] == number).unwrap();
        let (start, size) = (one["start"].as_u64().unwrap(), one["size"].as_u64().unwrap());
        start as usize..(start + size) as usize
    }

    /// Returns the bytes outside a partition.
    pub fn others(&self, range: &std::ops::Range<usize>) -> Vec<u8> {
        let bytes = fs::read(self.file()).unwrap();
        [&bytes[..range.start], &bytes[range.end..]].concat()
    }

    /// Copies a partition to a file of its own; returns its path.
    pub fn extract(&self, number: u64) -> PathBuf {
        let part = self.dir.path().join("part");
        fs::write(&part, &fs::read(self.file()).unwrap()[self.range(number)]).unwrap();
        part
    }

    /// Runs e2fsck on a partition.
    pub fn check(&self, number: u64) {
        e2fsck(&self.extract(number)).unwrap();
    }

    pub fn overwrite(&self, at: u64, bytes: &[u8]) {
        use std::os::unix::fs::FileExt;
        fs::OpenOptions::new().write(true).open(self.file()).unwrap().write_all_at(bytes, at).unwrap();
    }
}

/// Asserts the exit code, and one error that has all these words. It is one line, or ends with a list.
pub fn fails(words: &[&str], code: i32, has: &[&str]) {
    let output = ivers(words);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
    assert!(text.lines().skip(1).all(|line| line.starts_with("  ")) && !text.is_empty(), "{words:?}: {text}");
    for word in has {
        assert!(text.contains(word), "{words:?}: no {word:?} in {text}");
    }
}

pub fn have_tools() -> bool {
    have_programs(&["sfdisk", "sgdisk", "fdisk", "mkfs.ext4", "e2fsck"])
}
