//! Whether `changed` tells an unclean end of ivers from what another system wrote.

use crate::common::*;
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::{can_loop_mount, kernel_knows};
use serde_json::Value;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An image that ivers made and has written to, and a state of it.
struct Desk {
    dir: tempfile::TempDir,
}

impl Desk {
    fn new(format: &[&str]) -> Self {
        let desk = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(desk.path("mnt")).unwrap();
        works(&[&["mkfs", "-q", &desk.word("image")], format].concat());
        desk.touch();
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A whole session of ivers.
    fn touch(&self) {
        works(&["touch", &format!("{}:/by-ivers", self.word("image"))]);
    }

    fn save(&self) {
        works(&["changed", &self.word("image"), "--save", &self.word("state")]);
    }

    /// Returns the cause that is printed, and the warning.
    fn compare(&self, tree: &str) -> (Value, String) {
        let output = ivers(["changed", "--json", tree, "--since", &self.word("state")]);
        assert!(output.status.success(), "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.iter().all(|line| line["epoch_raised"] == true), "{text}");
        assert!(lines.iter().all(|line| line["raised_by"] == lines[0]["raised_by"]), "{text}");
        let warning: Value = serde_json::from_slice(&output.stderr).unwrap();
        (lines[0]["raised_by"].clone(), warning["message"].as_str().unwrap().to_owned())
    }

    /// Saves a state, lets something happen and then a session of ivers, and compares.
    fn expect(&self, happens: &dyn Fn(), cause: &str, warning: &str) {
        self.save();
        happens();
        self.touch();
        let image = self.word("image");
        let (found, said) = self.compare(&image);
        assert!(found == cause && said.contains(warning), "{found}, not {cause}: {said}");
        let mount = self.mount();
        assert_eq!(self.compare(&self.word("mnt")), (found, said.replace(&image, &self.word("mnt"))));
        works(&["unmount", &self.word("mnt")]);
        mount.wait_with_output().unwrap();
    }

    fn mount(&self) -> Child {
        let dir = self.path("mnt");
        let mount = Command::new(IVERS)
            .args(["mount", "--foreground"])
            .args([self.path("image"), dir.clone()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while xattr::get(&dir, "system.ivers.mount").ok().flatten().is_none() {
            assert!(Instant::now() < deadline, "the mount did not come up");
            std::thread::sleep(Duration::from_millis(10));
        }
        mount
    }

    /// A session of ivers that is killed after it has made something durable.
    fn kill(&self) {
        let mut mount = self.mount();
        let file = File::create(self.path("mnt/by-the-killed")).unwrap();
        file.sync_all().unwrap();
        mount.kill().unwrap();
        mount.wait().unwrap();
        let output = ivers(["unmount", &self.word("mnt")]);
        assert!(output.status.success(), "{}", said(&output));
    }

    /// A session of the kernel, which replays the journal first.
    fn linux(&self) {
        let mount = LoopMount::new(&self.path("image"), "").unwrap();
        fs::write(mount.path().join("by-linux"), "x").unwrap();
        mount.unmount().unwrap();
    }
}

fn causes_are_told_apart(format: &[&str]) {
    let desk = Desk::new(format);
    let (kill, linux) = (|| desk.kill(), || desk.linux());
    let not_closed = "since the state was saved, ivers could not close the image, so";
    desk.expect(&kill, "unclean_end", not_closed);
    desk.expect(&linux, "other_program", "since the state was saved, another system wrote to the image, so");
    let both =
        "since the state was saved, ivers could not close the image, and another system wrote to it, so";
    let kill_then_linux = || {
        desk.kill();
        desk.linux();
    };
    desk.expect(&kill_then_linux, "both", both);
    let one_after_the_other = || {
        desk.linux();
        desk.touch();
        desk.kill();
    };
    desk.expect(&one_after_the_other, "both", both);
    // A kernel that replayed the journal, and stopped before it wrote anything to it, was there too.
    desk.save();
    desk.kill();
    let mount = LoopMount::new(&desk.path("image"), "").unwrap();
    fs::copy(desk.path("image"), desk.path("copy")).unwrap();
    mount.unmount().unwrap();
    fs::rename(desk.path("copy"), desk.path("image")).unwrap();
    desk.touch();
    assert_ne!(desk.compare(&desk.word("image")).0, "unclean_end");

    let too_often = || {
        for _ in 0..5 {
            desk.linux();
            desk.touch();
        }
    };
    desk.save();
    too_often();
    let (cause, warning) = desk.compare(&desk.word("image"));
    assert!(cause.is_null() && warning.contains("another system wrote to the image, or"), "{warning}");
    assert!(works(&["info", &desk.word("image")]).contains("raised by: other_program other_program "));
}

fn can_run(kind: &str) -> bool {
    can_mount() && can_loop_mount() && kernel_knows(kind)
}

#[test]
fn causes_are_told_apart_on_ext4() {
    if can_run("ext4") {
        causes_are_told_apart(&["--size", "32M"]);
    }
}

#[test]
fn causes_are_told_apart_on_xfs() {
    if can_run("xfs") {
        causes_are_told_apart(&["--type", "xfs", "--size", "300M"]);
    }
}

/// Without the session in between: a reader finds an image that was not closed.
#[test]
fn a_reader_tells_that_the_image_was_not_closed() {
    if !can_mount() {
        return;
    }
    let desk = Desk::new(&["--size", "32M"]);
    desk.save();
    desk.kill();
    let (cause, _) = desk.compare(&desk.word("image"));
    assert_eq!(cause, "unclean_end");
}
