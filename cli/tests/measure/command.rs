//! Which files a second run reads.

use super::*;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Instant;

fn times(path: &Path) -> Timestamps {
    let meta = fs::metadata(path).unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    Timestamps {
        last_access: time(meta.atime(), meta.atime_nsec()),
        last_modification: time(meta.mtime(), meta.mtime_nsec()),
    }
}

fn set_times(path: &Path, times: &Timestamps) {
    utimensat(CWD, path, times, AtFlags::empty()).unwrap();
}

/// Changes bytes in the middle and restores the times.
fn change_in_secret(path: &Path) {
    let before = times(path);
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"other", 3).unwrap();
    drop(file);
    set_times(path, &before);
    assert_eq!(fs::metadata(path).unwrap().mtime_nsec(), before.last_modification.tv_nsec);
}

/// Returns the number of files in the large trees, and their size in bytes: large enough that reading
/// dominates.
fn large() -> (usize, usize) {
    let files =
        std::env::var("IVERS_MEASURED_FILES").map_or(400, |text| text.parse().expect("a number of files"));
    (files, if files < 20_000 { 64 << 10 } else { 256 << 10 })
}

/// Measures `what`, changes one of its files, and measures again: the second run reads that file only, in a
/// twentieth of the time.
fn one_is_read_again(name: &str, what: impl AsRef<OsStr>, change: impl FnOnce()) {
    let (files, bytes) = large();
    let kept = Kept::new();
    let timed = |run: &str| {
        let begin = Instant::now();
        let sums = kept.measure(&what);
        println!("{name}, {run}: {} ms, {sums}", begin.elapsed().as_millis());
        (begin.elapsed(), sums)
    };
    let (first, sums) = timed("first");
    assert_eq!((sums["read"].as_u64(), sums["not_read"].as_u64()), (Some(files as u64), Some(0)));
    assert_eq!(sums["new_entries"], files as u64);
    change();
    let (second, sums) = timed("second, one changed");
    assert_eq!((sums["read"].as_u64(), sums["not_read"].as_u64()), (Some(1), Some(files as u64 - 1)));
    assert_eq!((&sums["new_entries"], &sums["read_bytes"]), (&1.into(), &bytes.into()));
    let (_, sums) = timed("third");
    assert_eq!((&sums["read"], &sums["new_entries"]), (&0.into(), &0.into()));
    println!(
        "{name}: the second took {:.1} % of the first",
        100.0 * second.as_secs_f64() / first.as_secs_f64()
    );
    // The time counts only with many files and a release build.
    if files >= 20_000 && !cfg!(debug_assertions) {
        assert!(second * 20 < first, "{name}: {second:?} against {first:?}");
    }
}

#[test]
fn only_the_changed_file_is_read() {
    if !can_mount() {
        return;
    }
    let (files, bytes) = large();
    let size = (files * (bytes + 8192)) as u64 + (64 << 20);
    let place = Place::of(ivers_oracle::Image::new("ext4", size, &[]).unwrap());
    place.mount("");
    fill(&place.dir, files, bytes);
    place.unmount();
    one_is_read_again("ext4, the image", root_of(&place), || {
        place.mount("");
        change_in_secret(&place.path("d002/f00222"));
        place.unmount();
    });
    place.mount("");
    one_is_read_again("ext4, mounted", &place.dir, || change_in_secret(&place.path("d003/f00333")));
    place.unmount();
}

#[test]
fn touched_files_without_changes_are_not_read() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fill(&place.dir, 10, 5000);
    let (kept, on_mount) = (Kept::new(), Kept::new());
    assert_eq!(on_mount.counts(&place.dir), (10, 0));
    assert_eq!(on_mount.counts(&place.dir), (0, 10));
    let touched = place.path("d000/f00003");
    let touch = || {
        // Opened and closed, also for writing; read.
        drop(OpenOptions::new().write(true).open(&touched).unwrap());
        drop(OpenOptions::new().append(true).open(&touched).unwrap());
        fs::read(&touched).unwrap();
    };
    touch();
    assert_eq!(on_mount.counts(&place.dir), (0, 10), "on the mount");
    change_in_secret(&place.path("d000/f00004"));
    assert_eq!(on_mount.counts(&place.dir), (1, 9), "put back with its old time");
    // utimes(2) changes the ctime whatever times it sets: a change, but no entry for the same contents.
    set_times(&touched, &times(&touched));
    let sums = on_mount.measure(&place.dir);
    assert_eq!((&sums["read"], &sums["new_entries"]), (&1.into(), &0.into()));
    place.unmount();
    assert_eq!(kept.counts(root_of(&place)), (10, 0));
    place.mount("");
    touch();
    place.unmount();
    assert_eq!(kept.counts(root_of(&place)), (0, 10), "in the image");
    // A measurement on the mount is valid for the image too: keys belong to the filesystem.
    assert_eq!(on_mount.counts(root_of(&place)), (0, 10), "over a remount");
}

#[test]
fn a_crash_invalidates_all_measurements() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fill(&place.dir, 20, 3000);
    place.unmount();
    let kept = Kept::new();
    assert_eq!(kept.counts(root_of(&place)), (20, 0));
    // A clean mount that changes nothing invalidates nothing.
    place.mount("");
    place.unmount();
    assert_eq!(kept.counts(root_of(&place)), (0, 20));
    let supervisor = place.mount("");
    let file = File::options().write(true).open(place.path("d000/f00007")).unwrap();
    file.write_all_at(b"before the crash", 9).unwrap();
    file.sync_all().unwrap();
    // Measured while mounted, at values that the crash may lose.
    fs::write(place.path("d000/f00008"), "not yet durable").unwrap();
    assert_eq!(kept.counts(&place.dir), (2, 18), "on the mount, before the crash");
    let all: Vec<i32> = children(supervisor).into_iter().chain([supervisor]).collect();
    for pid in &all {
        signal(*pid, rustix::process::Signal::KILL);
    }
    wait_until("they are gone", || all.iter().all(|&pid| !runs(pid)));
    drop(file);
    let output = ivers([OsStr::new("unmount"), "--lazy".as_ref(), place.dir.as_os_str()]);
    assert!(place.path("d000").symlink_metadata().is_err(), "{}", said(&output));
    // Recovery raises the epoch: no earlier value vouches for anything.
    place.mount("");
    place.unmount();
    let (read, not_read) = kept.counts(root_of(&place));
    assert_eq!((read, not_read), (20, 0), "all values may have changed");
    assert_eq!(kept.counts(root_of(&place)), (0, 20), "all values are stored");
}

#[test]
fn filesystems_without_stored_counters_are_read_after_each_mount() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    let mount = |dir: &Path| {
        let output = ivers([
            OsStr::new("mount"),
            "-t".as_ref(),
            "mem".as_ref(),
            "--log".as_ref(),
            place.image.dir().join("log").as_os_str(),
            "none".as_ref(),
            dir.as_os_str(),
        ]);
        assert!(output.status.success(), "{}", said(&output));
    };
    let kept = Kept::new();
    for round in 0..2 {
        mount(&place.dir);
        fill(&place.dir, 5, 100);
        assert_eq!(kept.counts(&place.dir), (5, 0), "round {round}: the same inode numbers in another mount");
        assert_eq!(kept.counts(&place.dir), (0, 5), "round {round}: within the mount");
        place.unmount();
    }
    // Without a change attribute everything is read each time, on an image and on another filesystem.
    place.mount("noiversion");
    fill(&place.dir, 5, 100);
    assert_eq!((kept.counts(&place.dir), kept.counts(&place.dir)), ((5, 0), (5, 0)));
    let plain = tempfile::tempdir().unwrap();
    fill(plain.path(), 5, 100);
    assert_eq!((kept.counts(plain.path()), kept.counts(plain.path())), ((5, 0), (5, 0)));
}

#[test]
fn a_reused_inode_number_is_another_file() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fill(&place.dir, 3, 100);
    let kept = Kept::new();
    assert_eq!(kept.counts(&place.dir), (3, 0));
    let path = place.path("d000/f00001");
    let ino = fs::metadata(&path).unwrap().ino();
    fs::remove_file(&path).unwrap();
    // After the mount has ended, nothing keeps the inode number in use.
    place.unmount();
    place.mount("");
    fs::write(&path, "another one").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), ino, "ext4 takes the first free number");
    assert_eq!(kept.counts(&place.dir), (1, 2));
    // Another name of a file is not read again, and has its own entry.
    fs::hard_link(&path, place.path("d000/link")).unwrap();
    fs::remove_file(kept.path("store")).unwrap();
    let sums = kept.measure(&place.dir);
    assert_eq!((&sums["read"], &sums["not_read"], &sums["new_entries"]), (&3.into(), &1.into(), &1.into()));
}

#[test]
fn an_interrupted_run_stores_only_listed_files() {
    if !can_mount() {
        return;
    }
    let place = Place::new();
    place.mount("");
    fill(&place.dir, 60, 200_000);
    place.unmount();
    let kept = Kept::new();
    let (list, store) = (kept.path("list"), kept.path("store"));
    for delay_ms in [2, 20, 60, 150] {
        let mut child = std::process::Command::new(IVERS)
            .args([
                "measure".as_ref(),
                "--list".as_ref(),
                list.as_os_str(),
                "--store".as_ref(),
                store.as_os_str(),
            ])
            .arg(root_of(&place))
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay_ms));
        let _ = child.kill();
        child.wait().unwrap();
        // The image process notices and releases the image.
        wait_until("the image is free", || {
            let (sums, well) = Kept::new().run(&[root_of(&place).as_ref()]);
            well && sums["files"] == 60
        });
        let known = if store.exists() { 60 } else { 0 };
        let in_list = fs::read(&list).map_or(0, |bytes| ivers_ima::reader::Reader::new(&bytes).count());
        assert!(known == 0 || in_list == 61, "{known} known and {in_list} in the list");
    }
    let sums = kept.measure(root_of(&place));
    assert_eq!((&sums["files"], &sums["entries"]), (&60.into(), &61.into()));
}

#[test]
fn invalid_policies_and_files_are_refused() {
    let kept = Kept::new();
    let dir = kept.path("tree");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "x").unwrap();
    fs::write(kept.path("policy"), "measure\nmeasure func=MODULE_CHECK\n").unwrap();
    let refused = |words: &[&OsStr], code: i32, part: &str| {
        let (list, store) = (kept.path("list"), kept.path("store"));
        let fixed: [&OsStr; 5] =
            ["measure".as_ref(), "--list".as_ref(), list.as_ref(), "--store".as_ref(), store.as_ref()];
        let output = ivers(fixed.iter().chain(words));
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(text.contains(part), "{words:?}: no {part:?}: {text}");
    };
    let (policy, dir) = (kept.path("policy"), dir.as_os_str());
    refused(&["--policy".as_ref(), policy.as_os_str(), dir], 2, "policy: line 2: func=MODULE_CHECK");
    refused(&["--key".as_ref(), policy.as_os_str(), dir], 2, "policy: key 1");
    refused(&["--hash".as_ref(), "md5".as_ref(), dir], 2, "choose sha1");
    let output = ivers([OsStr::new("measure"), "--of".as_ref(), dir]);
    assert_eq!(output.status.code(), Some(4), "{}", said(&output));
    kept.measure(dir);
    let store = fs::read(kept.path("store")).unwrap();
    fs::write(kept.path("store"), &store[1..]).unwrap();
    refused(&[dir], 5, "move it away");
    fs::remove_file(kept.path("store")).unwrap();
    let mut list = fs::read(kept.path("list")).unwrap();
    list[30] ^= 1;
    fs::write(kept.path("list"), list).unwrap();
    refused(&[dir], 5, "entry 1 of the measurement list");
}

/// A mount of this image, on a directory next to it.
struct Elsewhere<'a> {
    image: &'a Path,
    dir: PathBuf,
}

impl Elsewhere<'_> {
    fn mount(&self) {
        let log = self.dir.with_extension("log");
        let words: [&OsStr; 3] = ["mount".as_ref(), "--log".as_ref(), log.as_ref()];
        let output = ivers(words.into_iter().chain([self.image.as_os_str(), self.dir.as_os_str()]));
        assert!(output.status.success(), "{}", said(&output));
    }

    fn unmount(&self) {
        wait_until("the mount is no longer busy", || {
            let output = ivers([OsStr::new("unmount"), self.dir.as_os_str()]);
            assert!(matches!(output.status.code(), Some(0 | 6)), "{}", said(&output));
            output.status.success()
        });
    }
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("fusermount3").args(["-q", "-u", "-z"]).arg(&self.dir).output();
    }
}

/// Formats without a stored counter vouch within one mount only: between mounts any program may have changed
/// their files and set any times.
fn valid_within_a_mount_only(image: &Path) {
    let kept = Kept::new();
    let place = Elsewhere { image, dir: kept.path("mnt") };
    fs::create_dir(&place.dir).unwrap();
    place.mount();
    fill(&place.dir, 250, 20_000);
    assert_eq!(kept.counts(&place.dir), (250, 0));
    assert_eq!(kept.counts(&place.dir), (0, 250));
    change_in_secret(&place.dir.join("d001/f00111"));
    drop(OpenOptions::new().write(true).open(place.dir.join("d001/f00112")).unwrap());
    let sums = kept.measure(&place.dir);
    assert_eq!((&sums["read"], &sums["not_read"]), (&1.into(), &249.into()));
    assert_eq!((&sums["read_bytes"], &sums["new_entries"]), (&20_000.into(), &1.into()));
    place.unmount();
    let root = format!("{}:/", image.display());
    assert_eq!((kept.counts(&root), kept.counts(&root)), ((250, 0), (250, 0)), "an image by itself");
    place.mount();
    assert_eq!(kept.counts(&place.dir), (250, 0), "over a remount");
    assert_eq!(kept.counts(&place.dir), (0, 250));
    place.unmount();
}

/// Checks that one changed file of many is read, on formats whose values end with the mount.
fn one_changed_file_of_many_is_read_within_a_mount(name: &str, image: &Path) {
    let (files, bytes) = large();
    let dir = image.with_extension("mnt");
    fs::create_dir(&dir).unwrap();
    let place = Elsewhere { image, dir };
    place.mount();
    fill(&place.dir, files, bytes);
    place.unmount();
    place.mount();
    one_is_read_again(name, &place.dir, || change_in_secret(&place.dir.join("d002/f00222")));
    place.unmount();
}

#[test]
fn only_the_changed_file_is_read_on_fat_and_affs() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.fat", "python3"]) {
        return;
    }
    let (files, bytes) = large();
    let size = (files * (bytes + 16384)) as u64 + (64 << 20);
    let image = ivers_oracle::fat::FatImage::mkfs(size, &["-F", "32"]).unwrap();
    one_changed_file_of_many_is_read_within_a_mount("FAT, mounted", &image.path());
    drop(image);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image.hdf");
    let words = ["create".to_owned(), format!("size={}Mi", size >> 20)];
    let words: Vec<_> = words.iter().map(String::as_str).chain(["+", "format", "Measured", "DOS3"]).collect();
    amitools().xdftool(&image, &words).unwrap();
    one_changed_file_of_many_is_read_within_a_mount("AFFS, mounted", &image);
}

fn amitools() -> ivers_oracle::affs::Amitools {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../oracles/amitools");
    ivers_oracle::affs::Amitools::new(&work).unwrap()
}

#[test]
fn measurements_on_fat_are_valid_within_a_mount() {
    if !can_mount() || !ivers_oracle::have_programs(&["mkfs.fat"]) {
        return;
    }
    let image = ivers_oracle::fat::FatImage::mkfs(32 << 20, &[]).unwrap();
    valid_within_a_mount_only(&image.path());
}

#[test]
fn measurements_on_affs_are_valid_within_a_mount() {
    if !can_mount() || !ivers_oracle::have_programs(&["python3"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image.hdf");
    amitools().xdftool(&image, &["create", "size=24Mi", "+", "format", "Measured", "DOS3"]).unwrap();
    valid_within_a_mount_only(&image);
}

#[test]
fn the_example_policy_measures_what_it_says() {
    let kept = Kept::new();
    let (tree, image) = (kept.path("tree"), kept.path("disk.img"));
    for (dir, name) in [("var/cache", "left out"), ("etc", "measured")] {
        fs::create_dir_all(tree.join(dir)).unwrap();
        fs::write(tree.join(dir).join(name), name).unwrap();
    }
    let root = format!("{}:/", image.display());
    let tree = format!("{}/.", tree.display());
    for words in [&["mkfs", "--size", "32M", image.to_str().unwrap()][..], &["cp", "-a", &tree, &root]] {
        let output = ivers(words);
        assert!(output.status.success(), "{}", said(&output));
    }
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/measure.policy");
    let (sums, well) = kept.run(&["--policy".as_ref(), policy.as_os_str(), root.as_ref()]);
    assert!(well, "{sums}");
    assert_eq!((&sums["files"], &sums["read_bytes"]), (&1.into(), &"measured".len().into()), "{sums}");
}
