//! Intents that the log of Linux has when it stops: of parent pointers and of mappings.
//!
//! Linux changes a parent pointer in a transaction after that of the name, and the mappings of a file in
//! transactions after the one that ends copy on write. So a filesystem that stops while many threads work has
//! such intents in its log.

use crate::common::*;
use crate::volume::{superblock, writable};
use ivers_block::{Device, FaultDevice, FileDevice, OpenMode, Recorded};
use ivers_oracle::kernel::can_loop_mount;
use ivers_oracle::{LoopMount, have_programs, run};
use ivers_vfs::*;
use ivers_xfs::log::open_for_writing;
use ivers_xfs::{OpenOptions, Xfs};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const THREADS: usize = 8;
/// Filesystems that are stopped for each kind, and those with intents that are looked at.
const STOPS: usize = 60;
const WANTED: usize = 3;
/// Filesystems that are stopped at most: a slow machine seldom stops at such a moment.
const MOST_STOPS: usize = 600;
/// Power cuts while ivers recovers one of them.
const CUTS: usize = 6;

/// Changes names until the filesystem stops.
fn change_names(dir: &Path, nth: usize) -> std::io::Result<()> {
    let long = "n".repeat(30 * nth);
    std::fs::create_dir(dir.join(format!("d{nth}")))?;
    for round in 0.. {
        let name = |what: &str| dir.join(format!("{what}-{nth}-{round}-{long}"));
        std::fs::write(name("new"), "text")?;
        for link in 0..4 {
            std::fs::hard_link(name("new"), name(&format!("link {link}")))?;
        }
        std::fs::rename(name("new"), dir.join(format!("d{nth}/{round}")))?;
        std::fs::rename(name("link 1"), name("link 2"))?;
        std::fs::remove_file(name("link 3"))?;
        std::os::unix::fs::symlink("target", name("symbolic"))?;
    }
    Ok(())
}

/// Writes to files that share blocks, until the filesystem stops.
fn copy_on_write(dir: &Path, nth: usize) -> std::io::Result<()> {
    const BYTES: u64 = 256 << 10;
    let name = |what: &str| dir.join(format!("{what}-{nth}"));
    std::fs::write(name("source"), vec![nth as u8; BYTES as usize])?;
    for round in 0u64.. {
        // The kernel shares the blocks.
        std::fs::copy(name("source"), name(&format!("copy-{}", round % 3)))?;
        let file = std::fs::OpenOptions::new().write(true).open(name("source"))?;
        for part in 0..8 {
            let at = (round * 7 + part * 5) * 4096 % BYTES;
            file.write_all_at(&vec![round as u8; 8192.min((BYTES - at) as usize)], at)?;
            file.sync_data()?;
        }
    }
    Ok(())
}

/// Stops Linux while it does `work`. Returns the number of intents with this name in the log.
fn stop(
    image: &Path,
    work: fn(&Path, usize) -> std::io::Result<()>,
    intents: &str,
    random: &mut StdRng,
) -> usize {
    let mounted = LoopMount::new(image, "nouuid").unwrap();
    std::thread::scope(|scope| {
        for nth in 0..THREADS {
            let dir = mounted.path();
            scope.spawn(move || work(dir, nth).unwrap_err());
        }
        std::thread::sleep(Duration::from_millis(random.random_range(20..120)));
        run("xfs_io", ["-x", "-c", "shutdown -f", mounted.path().to_str().unwrap()]).unwrap();
    });
    mounted.unmount().unwrap();
    let copy = image.with_extension("looked-at");
    copy_image(image, &copy);
    let device = writable(&copy);
    let opened = open_for_writing(device.clone(), &superblock(&*device), "image").unwrap();
    std::fs::remove_file(&copy).unwrap();
    opened.intents.iter().filter(|intent| intent.name() == intents).count()
}

/// Compares trees, without the times of the last change: Linux gives an inode with an attribute intent the
/// time of the recovery.
fn assert_same_contents(ours: &Tree, theirs: &Tree, what: &str) {
    let without = |tree: &Tree| -> Tree {
        let cut = |line: &String| line.rfind(", (").map_or(line.clone(), |at| line[..at].to_owned());
        tree.iter().map(|(path, line)| (path.clone(), cut(line))).collect()
    };
    assert_same(&without(ours), &without(theirs), what);
}

/// The tree after Linux recovered.
fn recovered_by_linux(image: &Path) -> Tree {
    let copy = image.with_extension("linux");
    copy_image(image, &copy);
    LoopMount::new(&copy, "nouuid").unwrap().unmount().unwrap();
    assert_clean(&copy, "recovered by Linux");
    let mounted = LoopMount::new(&copy, "ro,nouuid").unwrap();
    let tree = kernel_tree(mounted.path());
    mounted.unmount().unwrap();
    std::fs::remove_file(&copy).unwrap();
    tree
}

/// What Linux does when it is stopped, and how the result is judged.
struct Stopped {
    work: fn(&Path, usize) -> std::io::Result<()>,
    /// The name of the intents that must be in the log.
    intents: &'static str,
    /// Looks at the image before anyone recovers it. The tree is that after Linux's recovery.
    before: fn(&Path, &Tree, &str),
    same: fn(&Tree, &Tree, &str),
    judge: fn(&Path, &str),
}

impl Stopped {
    /// Cuts the power while ivers recovers, and lets ivers or Linux recover after that.
    fn cut_recovery(&self, image: &Path, expected: &Tree, random: &mut StdRng, what: &str) {
        let base = Arc::new(FileDevice::open(image, OpenMode::ReadOnly).unwrap());
        let device = Arc::new(FaultDevice::new(base));
        Xfs::open(device.clone(), OpenOptions::default()).unwrap().unmount().unwrap();
        let record = device.record();
        for nth in 0..CUTS {
            let prefix = random.random_range(0..record.len());
            let what = format!("{what}, recovery cut at {prefix} of {}", record.len());
            let copy = image.with_extension("cut");
            copy_image(image, &copy);
            let cut = FileDevice::open(&copy, OpenMode::ReadWrite).unwrap();
            for done in &record[..prefix] {
                if let Recorded::Write { offset, data, .. } = done {
                    cut.write_at(*offset, data).unwrap();
                }
            }
            drop(cut);
            match nth % 2 {
                0 => mount_writable(&copy).unmount().unwrap(),
                _ => LoopMount::new(&copy, "nouuid").unwrap().unmount().unwrap(),
            }
            (self.same)(&our_tree(&mount(&copy), true).unwrap(), expected, &what);
            (self.judge)(&copy, &what);
            std::fs::remove_file(&copy).unwrap();
        }
    }

    /// Stops Linux on images that `make` makes, and lets ivers recover those with intents.
    fn complete(&self, name: &str, image: &Path, make: &dyn Fn(&Path)) {
        let mut random = StdRng::seed_from_u64(7);
        let mut found = 0;
        for nth in 0..MOST_STOPS {
            if found == WANTED || (found > 0 && nth >= STOPS) {
                break;
            }
            make(image);
            let intents = stop(image, self.work, self.intents, &mut random);
            if intents == 0 {
                continue;
            }
            let what = format!("{name}, {intents} intents");
            println!("{what}");
            let expected = recovered_by_linux(image);
            (self.before)(image, &expected, &what);
            if found == 0 {
                self.cut_recovery(image, &expected, &mut random, &what);
            }
            mount_writable(image).unmount().unwrap();
            (self.same)(&our_tree(&mount(image), true).unwrap(), &expected, &what);
            (self.judge)(image, &what);
            found += 1;
        }
        assert!(found > 0, "{name}: no log has {} intents", self.intents);
    }
}

#[test]
fn parent_pointers_that_linux_left_are_completed() {
    if !can_loop_mount() || !have_programs(&["xfs_io"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let stopped = Stopped {
        work: change_names,
        intents: "attribute",
        // A reader completes nothing: users do not see parent pointers.
        before: |image, expected, what| {
            assert_clean(image, &format!("{what}, before recovery"));
            assert_same_contents(&our_tree(&mount(image), true).unwrap(), expected, what);
        },
        same: assert_same_contents,
        judge: crate::common::parents::judge,
    };
    for kind in &crate::common::parents::KINDS[..3] {
        stopped.complete(kind.name, &image, &|path| kind.make(path));
    }
}

#[test]
fn mappings_that_linux_left_are_completed() {
    if !can_loop_mount() || !have_programs(&["xfs_io"]) || !have_xfsprogs() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let kinds: [Kind; 3] = [
        ("default", &[]),
        ("rmapbt", &["-m", "rmapbt=1"]),
        ("rmapbt, blocks of 1 KiB", &["-m", "rmapbt=1", "-b", "size=1024"]),
    ];
    let stopped = Stopped {
        work: copy_on_write,
        intents: "mapping",
        // A reader would show blocks that are not the file's.
        before: |image, _, what| {
            let device = Arc::new(FileDevice::open(image, OpenMode::ReadOnly).unwrap());
            let refused = Xfs::open(device, OpenOptions::default()).map(drop).unwrap_err().to_string();
            assert!(refused.contains("unfinished mapping intent"), "{what}: {refused}");
        },
        same: assert_same,
        judge: |image, what| {
            assert_clean(image, what);
            repair_finds_nothing(image, what);
        },
    };
    for (name, args) in kinds {
        stopped.complete(name, &image, &|path| mkfs(path, args, None));
    }
}
