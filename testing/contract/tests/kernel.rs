//! The kernel's own filesystems with ctime as the change attribute. Nothing is claimed, so failures are
//! counted. Requires root for loop mounts. `--nocapture` shows the table; docs/results keeps one.

mod common;

use common::*;
use ivers_contract::{
    ChangeSource, Mounted, Promise, Remount, Subject, Tallies, check, check_together, observe,
};
use ivers_oracle::{LoopMount, have_programs, run};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// A filesystem on a loop device; `None` during a remount.
struct OnImage {
    mount: Option<LoopMount>,
    image: PathBuf,
    _dir: TempDir,
}

impl OnImage {
    fn new(mkfs: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        // The smallest size for mkfs.xfs.
        std::fs::File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let path = image.to_str().unwrap();
        run(mkfs, args.iter().copied().chain([path])).unwrap();
        let mount = Some(LoopMount::new(&image, "").unwrap());
        Self { mount, image, _dir: dir }
    }

    fn top(&self) -> PathBuf {
        let top = self.mount.as_ref().unwrap().path().join("contract");
        std::fs::create_dir_all(&top).unwrap();
        top
    }

    fn again(&mut self) -> PathBuf {
        self.mount.take().unwrap().unmount().unwrap();
        self.mount = Some(LoopMount::new(&self.image, "").unwrap());
        self.top()
    }
}

fn on_image(name: &str, mkfs: &str, args: &[&str]) -> Box<dyn Subject> {
    let mut on = OnImage::new(mkfs, args);
    let top = on.top();
    let remount: Remount = Box::new(move || on.again());
    Box::new(Mounted::new(name, &top, ChangeSource::Ctime, Some(remount)))
}

/// A separate tmpfs.
struct Tmpfs(TempDir);

impl Tmpfs {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        run("mount", [Path::new("-t"), Path::new("tmpfs"), Path::new("none"), dir.path()]).unwrap();
        Self(dir)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        run("umount", [self.0.path()]).unwrap();
    }
}

fn tmpfs() -> Box<dyn Subject> {
    let mount = Tmpfs::new();
    Box::new(Mounted::new("tmpfs", mount.0.path(), ChangeSource::Ctime, None).keeping(mount))
}

type Named = (&'static str, Box<dyn Fn() -> Box<dyn Subject>>);

#[test]
fn ctime_is_compared_with_the_promises() {
    if !ivers_oracle::kernel::can_loop_mount() {
        return;
    }
    if !have_programs(&["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "python3"]) {
        return;
    }
    let small: &[&str] = &["-qF", "-I", "128"];
    let subjects: [Named; 5] = [
        ("ext4", Box::new(|| on_image("ext4", "mkfs.ext4", &["-qF"]))),
        ("ext4, 128-byte inodes", Box::new(move || on_image("ext4, 128-byte inodes", "mkfs.ext4", small))),
        ("xfs", Box::new(|| on_image("xfs", "mkfs.xfs", &["-q"]))),
        ("btrfs", Box::new(|| on_image("btrfs", "mkfs.btrfs", &["-q"]))),
        ("tmpfs", Box::new(tmpfs)),
    ];
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    println!("ctime as the change attribute, Linux {}", release.trim());
    println!("{}", Tallies::header());
    for (name, make) in subjects {
        // The model must match on all of them: `check` fails otherwise.
        let found = check(&mut || make(), seed(), steps(1500)).unwrap_or_else(|broken| panic!("{broken}"));
        let mut tallies = found.tallies;
        let mut subject = make();
        for pages in [1, 300] {
            let file = subject.share(&format!("shared{pages}")).unwrap();
            tallies.add(&observe(&*file, 2, pages, Duration::from_millis(500)));
        }
        // With several actors the model must match too.
        let together =
            check_together(&mut || make(), seed(), phases(100)).unwrap_or_else(|broken| panic!("{broken}"));
        tallies.add(&together.tallies);
        println!("{}", tallies.row(name));
        println!("    several actors: {:?}", together.figures);
        println!("    {}", together.tallies.row("the concurrent part"));
        for promise in Promise::ALL {
            if let Some(first) = &tallies.of(promise).first {
                println!("    {}: {first}", promise.label());
            }
        }
        for promise in [Promise::Data, Promise::Metadata, Promise::Rests, Promise::Monotonic] {
            assert!(tallies.of(promise).checked > 50, "{name}: {promise:?} was hardly put to the test");
        }
    }
}
