//! kill -9 of a mounted process at random moments of a busy workload.
//!
//! Recovery runs twice: by ivers, and on a copy by another program followed by ivers. Each time the format's
//! checker must find the image clean, all data that was fsynced must be there, and no change attribute that
//! was served before the kill may vouch for other contents (contract C1, C2, C4).
//!
//! `IVERS_KILLS` sets the number of kills (default 4), `IVERS_SEED` replays a run; both are printed.

use ivers_oracle::LoopMount;
use ivers_oracle::e2fs::{e2fsck, e2fsck_repair};
use ivers_oracle::kernel::{can_loop_mount, kernel_knows};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const IVERS: &str = env!("CARGO_BIN_EXE_ivers");

/// A format, and the programs that judge it.
struct Kind {
    /// The program that makes an image, and its options.
    make: (&'static str, &'static [&'static str]),
    mib: u64,
    /// Recovers an image without ivers.
    recover: fn(&Path),
    /// Fails if the image is not clean.
    check: fn(&Path),
}

const EXT4: Kind = Kind {
    make: ("mkfs.ext4", &["-q"]),
    mib: 64,
    recover: |image| drop(e2fsck_repair(image).unwrap()),
    check: |image| e2fsck(image).unwrap(),
};

const fn xfs(program: &'static str, make: &'static [&'static str]) -> Kind {
    Kind {
        make: (program, make),
        mib: 64,
        recover: |image| LoopMount::new(image, "").unwrap().unmount().unwrap(),
        check: |image| {
            ivers_oracle::xfs::judge(image).unwrap();
            ivers_oracle::run(IVERS, ["check".as_ref(), image.as_os_str()]).unwrap();
        },
    }
}

/// Linux recovers copies, and writes to all images.
const fn btrfs(make: &'static [&'static str]) -> Kind {
    Kind {
        make: ("mkfs.btrfs", make),
        mib: 160,
        recover: |image| LoopMount::new(image, "").unwrap().unmount().unwrap(),
        check: |image| {
            ivers_oracle::btrfs::judge(image).unwrap();
            ivers_oracle::btrfs::linux_writes(image).unwrap();
        },
    }
}

/// The state of one file that the workload knows when the server dies.
#[derive(Clone, Default)]
struct Known {
    /// Contents at the last fsync that returned. Later writes may or may not be there.
    durable: Option<Vec<u8>>,
    /// Each change attribute served, with the contents at that time.
    seen: Vec<(u64, Vec<u8>)>,
    /// Whether something was written after the last fsync.
    written_since: bool,
}

struct Mount {
    daemon: Child,
    dir: PathBuf,
}

impl Mount {
    fn new(image: &Path, dir: &Path) -> Self {
        let outside = fs::metadata(dir).unwrap().dev();
        let daemon = Command::new(IVERS)
            .args(["mount", "--foreground"])
            .args([image, dir])
            .stdin(Stdio::null())
            .spawn()
            .expect("the ivers binary starts");
        let deadline = Instant::now() + Duration::from_secs(20);
        while fs::metadata(dir).map(|m| m.dev()).unwrap_or(outside) == outside {
            assert!(Instant::now() < deadline, "the mount did not come up in 20 s");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { daemon, dir: dir.to_owned() }
    }

    fn kill(&mut self) {
        self.daemon.kill().unwrap();
        self.daemon.wait().unwrap();
        // The worker process dies shortly after its supervisor.
        while rustix::fs::statfs(&self.dir).err() != Some(rustix::io::Errno::NOTCONN) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn unmount(mut self) {
        let status = Command::new(IVERS).arg("unmount").arg(&self.dir).status().unwrap();
        assert!(status.success(), "ivers unmount failed");
        assert!(self.daemon.wait().unwrap().success(), "the daemon ended with an error");
    }
}

fn detach(dir: &Path) {
    let status = Command::new("fusermount3").args(["-u", "-z"]).arg(dir).status().unwrap();
    assert!(status.success(), "cannot detach the dead mount");
}

fn change(path: &Path) -> Option<u64> {
    let value = xattr::get(path, "system.ivers.change").ok()??;
    String::from_utf8(value).ok()?.trim().parse().ok()
}

/// Changes its own few files until the server is gone. The first failed operation stops it; what it recorded
/// before stays valid.
fn work(dir: &Path, worker: usize, seed: u64, stop: &AtomicBool, known: &Mutex<HashMap<String, Known>>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut contents: HashMap<String, Vec<u8>> = HashMap::new();
    for (name, known) in known.lock().unwrap().iter() {
        if name.starts_with(&format!("w{worker}-"))
            && let Some(durable) = &known.durable
        {
            contents.insert(name.clone(), durable.clone());
        }
    }
    let mut step = || -> std::io::Result<()> {
        let name = format!("w{worker}-{}", rng.random_range(0..6));
        let path = dir.join(&name);
        match rng.random_range(0..10) {
            0..=4 => {
                // From here on the file may contain old or new bytes: the durable contents are no longer
                // required.
                known.lock().unwrap().entry(name.clone()).or_default().written_since = true;
                let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path)?;
                let len = rng.random_range(1..20_000usize);
                let offset = rng.random_range(0..30_000usize);
                let bytes: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                file.write_all_at(&bytes, offset as u64)?;
                let content = contents.entry(name.clone()).or_default();
                if content.len() < offset + len {
                    content.resize(offset + len, 0);
                }
                content[offset..offset + len].copy_from_slice(&bytes);
            }
            5..=6 => {
                if let Some(content) = contents.get(&name) {
                    File::open(&path)?.sync_all()?;
                    let mut known = known.lock().unwrap();
                    let entry = known.entry(name).or_default();
                    entry.durable = Some(content.clone());
                    entry.written_since = false;
                }
            }
            7..=8 => {
                if let Some(content) = contents.get(&name)
                    && let Some(value) = change(&path)
                {
                    known.lock().unwrap().entry(name).or_default().seen.push((value, content.clone()));
                }
            }
            _ => {
                // A new file that replaces nothing, synced: directory changes keep the journal busy.
                let extra = dir.join(format!("x{worker}-{}", rng.random_range(0..1000)));
                let mut file = File::create(&extra)?;
                file.write_all(b"extra")?;
                if rng.random_bool(0.5) {
                    fs::remove_file(&extra)?;
                }
            }
        }
        Ok(())
    };
    while !stop.load(Ordering::Relaxed) && step().is_ok() {}
}

/// Checks the promises of the contract and of fsync on the recovered files.
fn check(dir: &Path, known: &HashMap<String, Known>) {
    for (name, known) in known {
        let path = dir.join(name);
        let found = fs::read(&path).ok();
        if let Some(durable) = &known.durable {
            let found = found.as_ref().unwrap_or_else(|| panic!("{name} was fsynced and is gone"));
            if !known.written_since {
                assert!(found == durable, "{name} was fsynced and holds other bytes");
            }
        }
        let (Some(found), Some(after)) = (found, change(&path)) else { continue };
        for (value, content) in &known.seen {
            assert!(after >= *value, "{name}: the change value went back from {value} to {after}");
            assert!(after != *value || found == *content, "{name}: {value} vouches for other contents");
        }
    }
}

fn synced_data_survives(kind: &Kind) {
    let kills: u32 = std::env::var("IVERS_KILLS").ok().and_then(|v| v.parse().ok()).unwrap_or(4);
    let seed: u64 = std::env::var("IVERS_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(0x1ce5);
    println!("IVERS_KILLS={kills} IVERS_SEED={seed}");
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let copy = scratch.path().join("copy");
    let dir = scratch.path().join("mnt");
    fs::create_dir(&dir).unwrap();
    File::create(&image).unwrap().set_len(kind.mib << 20).unwrap();
    let (program, options) = kind.make;
    let words = options.iter().map(OsStr::new).chain([image.as_os_str()]);
    ivers_oracle::run(program, words).unwrap();

    let mut rng = StdRng::seed_from_u64(seed);
    let known = Arc::new(Mutex::new(HashMap::<String, Known>::new()));
    for kill in 0..kills {
        let mut mount = Mount::new(&image, &dir);
        let stop = Arc::new(AtomicBool::new(false));
        let workers: Vec<_> = (0..3)
            .map(|worker| {
                let (dir, stop, known) = (dir.clone(), stop.clone(), known.clone());
                let seed = rng.random();
                std::thread::spawn(move || work(&dir, worker, seed, &stop, &known))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(rng.random_range(30..700)));
        mount.kill();
        stop.store(true, Ordering::Relaxed);
        for worker in workers {
            worker.join().unwrap();
        }
        // Detach only after the workers have stopped: they would continue in the directory below the mount.
        detach(&dir);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "the workload ran beside the mount");
        let state = known.lock().unwrap().clone();
        println!("kill {kill}: {} files known", state.len());

        fs::copy(&image, &copy).unwrap();
        (kind.recover)(&copy);
        (kind.check)(&copy);
        let mount = Mount::new(&copy, &dir);
        check(&dir, &state);
        mount.unmount();
        (kind.check)(&copy);

        let mount = Mount::new(&image, &dir);
        check(&dir, &state);
        // The next round starts from the recovered state.
        let mut next = known.lock().unwrap();
        for (name, known) in next.iter_mut() {
            if let Ok(content) = fs::read(dir.join(name)) {
                File::open(dir.join(name)).unwrap().sync_all().unwrap();
                known.durable = Some(content);
                known.written_since = false;
            } else {
                known.durable = None;
            }
        }
        drop(next);
        mount.unmount();
        (kind.check)(&image);
    }
}

#[test]
fn synced_data_survives_kill_9() {
    synced_data_survives(&EXT4);
}

/// The kernel recovers the copies.
fn synced_data_survives_on_xfs(program: &'static str, options: &'static [&'static str]) {
    let can = can_loop_mount() && kernel_knows("xfs");
    if can && ivers_oracle::have_programs(&["mkfs.xfs", "xfs_repair"]) {
        synced_data_survives(&xfs(program, options));
    }
}

#[test]
fn synced_data_survives_kill_9_on_xfs() {
    synced_data_survives_on_xfs("mkfs.xfs", &["-q", "--unsupported"]);
}

#[test]
fn synced_data_survives_kill_9_on_xfs_with_small_blocks() {
    let options = &["-q", "--unsupported", "-b", "size=1024", "-m", "rmapbt=1"];
    synced_data_survives_on_xfs("mkfs.xfs", options);
}

#[test]
fn synced_data_survives_kill_9_on_xfs_with_parent_pointers() {
    let options = &["mkfs", "-q", "-t", "xfs", "--small", "-O", "parent,exchange"];
    synced_data_survives_on_xfs(IVERS, options);
}

fn synced_data_survives_on_btrfs(options: &'static [&'static str]) {
    let can = can_loop_mount() && kernel_knows("btrfs");
    if can && ivers_oracle::have_programs(&["mkfs.btrfs", "btrfs", "setfattr"]) {
        synced_data_survives(&btrfs(options));
    }
}

#[test]
fn synced_data_survives_kill_9_on_btrfs() {
    synced_data_survives_on_btrfs(&["-q"]);
}

#[test]
fn synced_data_survives_kill_9_on_btrfs_with_mixed_groups() {
    synced_data_survives_on_btrfs(&["-q", "-M", "-n", "4096"]);
}

#[test]
fn synced_data_survives_kill_9_on_btrfs_with_old_features() {
    let old = &["-q", "-m", "single", "-O", "^no-holes,^extref,^skinny-metadata", "-R", "^free-space-tree"];
    synced_data_survives_on_btrfs(old);
}
