//! `changed` on images that Linux wrote last: values are compared until a program writes.

use crate::common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::{can_loop_mount, kernel_knows};
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// An image that another program made, with files that Linux wrote.
struct Foreign {
    dir: tempfile::TempDir,
}

const FILES: usize = 5;

impl Foreign {
    fn new(mkfs: &str, options: &[&str]) -> Self {
        let foreign = Self { dir: tempfile::tempdir().unwrap() };
        File::create(foreign.path("image")).unwrap().set_len(320 << 20).unwrap();
        ivers_oracle::run(mkfs, options.iter().copied().chain([foreign.word("image").as_str()])).unwrap();
        foreign.linux(|dir| {
            (0..FILES).for_each(|nth| fs::write(dir.join(format!("file{nth}")), "by Linux").unwrap());
        });
        foreign
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A session of Linux.
    fn linux(&self, work: impl FnOnce(&Path)) {
        let mount = LoopMount::new(&self.path("image"), "").unwrap();
        work(mount.path());
        mount.unmount().unwrap();
    }

    fn save(&self, tree: &str) {
        works(&["changed", tree, "--save", &self.word("state")]);
    }

    fn nothing_changed(&self, tree: &str) {
        let output = ivers(["changed", tree, "--since", &self.word("state")]);
        let is_silent = output.stdout.is_empty() && output.stderr.is_empty();
        assert!(output.status.success() && is_silent, "{tree}: {}", said(&output));
    }

    /// Every file counts as changed. Returns the cause and the warning.
    fn all_changed(&self) -> (Value, String) {
        let output = ivers([
            "changed",
            "--json",
            &self.word("image"),
            "--since",
            &self.word("state"),
            "--only",
            "changed",
        ]);
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), FILES + 1, "the root and its files: {text}");
        assert!(lines.iter().all(|line| line["epoch_raised"] == true), "{text}");
        let warning: Value = serde_json::from_slice(&output.stderr).unwrap();
        (lines[0]["raised_by"].clone(), warning["message"].as_str().unwrap().to_owned())
    }
}

fn states_hold_until_a_program_writes(mkfs: &str, options: &[&str]) {
    let foreign = Foreign::new(mkfs, options);
    let image = foreign.word("image");
    let linux = "another system wrote to the image";
    for round in ["ivers never wrote it", "ivers wrote it once"] {
        foreign.save(&image);
        let before = fs::read(&image).unwrap();
        foreign.nothing_changed(&image);
        // A mount for reading has the same values.
        fs::create_dir_all(foreign.path("mnt")).unwrap();
        works(&["mount", "-o", "ro", &image, &foreign.word("mnt")]);
        foreign.nothing_changed(&foreign.word("mnt"));
        foreign.save(&foreign.word("mnt"));
        works(&["unmount", &foreign.word("mnt")]);
        foreign.nothing_changed(&image);
        assert!(fs::read(&image).unwrap() == before, "{round}: the image was written to");
        foreign.linux(|dir| fs::write(dir.join("file0"), round).unwrap());
        let (cause, said) = foreign.all_changed();
        assert!(cause == "other_program" && said.contains(linux), "{round}: {cause}: {said}");
        // The new state ends with a session of ivers, and its state with one of Linux.
        foreign.save(&image);
        works(&["touch", &format!("{image}:/file0")]);
        let (cause, said) = foreign.all_changed();
        assert!(cause.is_null() && said.contains("and ivers wrote since"), "{round}: {cause}: {said}");
        foreign.save(&image);
        foreign.nothing_changed(&image);
        works(&["touch", &format!("{image}:/file1")]);
        assert_eq!(works(&["changed", &image, "--since", &foreign.word("state")]), "C file1\n");
        foreign.save(&image);
        foreign.linux(|dir| fs::write(dir.join("file0"), "again").unwrap());
        let (cause, said) = foreign.all_changed();
        assert!(cause == "other_program" && said.contains(linux), "{round}: {cause}: {said}");
    }
}

#[test]
fn states_of_xfs_hold_until_a_program_writes() {
    if can_mount() && can_loop_mount() && kernel_knows("xfs") && ivers_oracle::have_programs(&["mkfs.xfs"]) {
        states_hold_until_a_program_writes("mkfs.xfs", &["-q"]);
    }
}

#[test]
fn states_of_btrfs_hold_until_a_program_writes() {
    if can_mount()
        && can_loop_mount()
        && kernel_knows("btrfs")
        && ivers_oracle::have_programs(&["mkfs.btrfs"])
    {
        states_hold_until_a_program_writes("mkfs.btrfs", &["-q"]);
    }
}

/// Linux overwrites data in place before it logs the counter. If it stops before it logs anything, its next
/// mount writes the same bytes to the log: nothing would show that it was there.
#[test]
fn a_state_that_nothing_would_invalidate_is_refused() {
    if !can_loop_mount() || !kernel_knows("xfs") || !ivers_oracle::have_programs(&["mkfs.xfs"]) {
        return;
    }
    let foreign = Foreign::new("mkfs.xfs", &["-q"]);
    let (image, state) = (foreign.word("image"), foreign.word("state"));
    foreign.save(&image);
    foreign.linux(|_| assert!(fs::copy(&image, foreign.path("copy")).unwrap() > 0));
    fs::rename(foreign.path("copy"), &image).unwrap();
    for words in [["--save", &state], ["--since", &state]] {
        let output = ivers(["changed", &image, words[0], words[1]]);
        assert_eq!(output.status.code(), Some(4), "{words:?}: {}", said(&output));
        for part in ["did not unmount it", "mount it once for writing"] {
            assert!(said(&output).contains(part), "{words:?}: {}", said(&output));
        }
    }
    // The advice helps.
    works(&["touch", &format!("{image}:/file0")]);
    foreign.save(&image);
    foreign.nothing_changed(&image);
}
