//! Through FUSE: `ivers mount`, fuse2fs and the kernel's ext4, side by side on equal images.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::figures::{Samples, median, places, rate};
use super::volume::Kernel;
use super::{find_program, make_image, run};
use crate::args;
use crate::failure::{FAILED, failure};
use crate::progress::Progress;

const IVERS: &str = "ivers";
const FUSE2FS: &str = "fuse2fs";
const KERNEL: &str = "kernel_ext4";

const IMAGE_BYTES: u64 = 2 << 30;
const ROUNDS: u32 = 3;
const MOUNT_PATIENCE: Duration = Duration::from_secs(20);

/// The workloads in the order of a round, and how `--ops` scales them.
const WORKLOADS: [(&str, u64); 6] = [
    ("fuse_write_1_byte", 10),
    ("fuse_write_4k", 100),
    ("fuse_create", 50),
    ("fuse_unlink", 50),
    ("fuse_untar", 0),
    ("fuse_walk_stat", 0),
];

/// Who serves.
enum Server {
    /// A process in the foreground: unmounted, it ends.
    Process(Child),
    /// The kernel; unmounted when dropped.
    Kernel { _mount: Kernel },
}

/// One contender: an image and where it is mounted.
struct Peer {
    name: &'static str,
    image: PathBuf,
    dir: PathBuf,
    server: Option<Server>,
    seconds: [Samples; WORKLOADS.len()],
}

impl Peer {
    fn new(name: &'static str, scratch: &Path) -> Result<Self> {
        let (image, dir) = (scratch.join(format!("{name}.image")), scratch.join(name));
        make_image(&image, IMAGE_BYTES)?;
        std::fs::create_dir(&dir)?;
        let mut peer = Self { name, image, dir, server: None, seconds: Default::default() };
        peer.mount()?;
        Ok(peer)
    }

    fn mount(&mut self) -> Result<()> {
        if self.name == KERNEL {
            self.server = Some(Server::Kernel { _mount: Kernel::mount(&self.image, &self.dir)? });
            return Ok(());
        }
        let mut command = if self.name == IVERS {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["mount", "--foreground"]).arg(&self.image).arg(&self.dir);
            command
        } else {
            let mut command = Command::new(find_program(FUSE2FS).context("fuse2fs is installed")?);
            command.args(["-f", "-o", "rw"]).arg(&self.image).arg(&self.dir);
            command
        };
        let before = std::fs::metadata(&self.dir)?.dev();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot run {}", self.name))?;
        let begun = Instant::now();
        while std::fs::metadata(&self.dir).is_ok_and(|now| now.dev() == before) {
            let ended = child.try_wait()?.is_some();
            if ended || begun.elapsed() > MOUNT_PATIENCE {
                let _ = child.kill();
                let said = child.wait_with_output()?.stderr;
                let said = String::from_utf8_lossy(&said).trim().to_owned();
                return Err(failure(FAILED, format!("{} does not mount: {said}", self.name)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server = Some(Server::Process(child));
        Ok(())
    }

    /// Unmount, and wait until everything is in the image.
    fn unmount(&mut self) -> Result<()> {
        let Some(Server::Process(child)) = &mut self.server else {
            self.server = None;
            return Ok(());
        };
        detach(&self.dir)?;
        // fuse2fs has things to say about orphans; what counts is that it is gone.
        child.wait()?;
        self.server = None;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            log::warn!("{error:#}");
            if let Some(Server::Process(mut child)) = self.server.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

fn detach(dir: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty())?);
    }
    run(Command::new("fusermount3").arg("-u").arg(dir))
}

/// Sequential writes of a new file, from its creation to its last close.
fn write(dir: &Path, name: &str, bytes: usize, ops: u64) -> Result<()> {
    let data = vec![b'x'; bytes];
    let file = File::create_new(dir.join(name))?;
    for op in 0..ops {
        file.write_all_at(&data, op * bytes as u64)?;
    }
    Ok(())
}

fn walk(dir: &Path, seen: &mut u64) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        *seen += 1;
        if entry.metadata()?.is_dir() {
            walk(&entry.path(), seen)?;
        }
    }
    Ok(())
}

/// A tree as one file, and how many things are in it.
struct Packed {
    file: PathBuf,
    entries: u64,
}

impl Packed {
    fn new(tree: &Path, scratch: &Path) -> Result<Self> {
        let mut entries = 1;
        walk(tree, &mut entries).with_context(|| format!("--tree {}", tree.display()))?;
        let file = scratch.join("tree.tar");
        run(Command::new("tar").arg("-cf").arg(&file).arg("-C").arg(tree).arg("."))?;
        Ok(Self { file, entries })
    }
}

fn work(peer: &mut Peer, workload: usize, ops: u64, round: u32, packed: &Packed) -> Result<f64> {
    let name = WORKLOADS[workload].0;
    let dir = peer.dir.clone();
    let many = dir.join(format!("many-{round}"));
    let unpacked = dir.join(format!("tree-{round}"));
    // Made before the clock starts.
    match name {
        "fuse_create" => std::fs::create_dir(&many)?,
        "fuse_untar" => std::fs::create_dir(&unpacked)?,
        "fuse_walk_stat" => {
            peer.unmount()?;
            peer.mount()?;
        }
        _ => {}
    }
    let begin = Instant::now();
    match name {
        "fuse_write_1_byte" => write(&dir, &format!("bytes-{round}"), 1, ops)?,
        "fuse_write_4k" => write(&dir, &format!("blocks-{round}"), 4096, ops)?,
        "fuse_create" => (0..ops).try_for_each(|n| File::create_new(many.join(format!("f{n}"))).map(drop))?,
        "fuse_unlink" => (0..ops).try_for_each(|n| std::fs::remove_file(many.join(format!("f{n}"))))?,
        "fuse_untar" => run(Command::new("tar").arg("-xf").arg(&packed.file).arg("-C").arg(&unpacked))?,
        "fuse_walk_stat" => {
            let mut seen = 1;
            walk(&unpacked, &mut seen)?;
            if seen != packed.entries {
                return Err(failure(
                    FAILED,
                    format!("{}: {seen} of {} entries came back", peer.name, packed.entries),
                ));
            }
        }
        _ => unreachable!("every workload is named above"),
    }
    let seconds = begin.elapsed().as_secs_f64();
    // Each round begins on an empty filesystem.
    match name {
        "fuse_write_1_byte" => std::fs::remove_file(dir.join(format!("bytes-{round}")))?,
        "fuse_write_4k" => std::fs::remove_file(dir.join(format!("blocks-{round}")))?,
        "fuse_unlink" => std::fs::remove_dir(&many)?,
        "fuse_walk_stat" => match std::fs::remove_dir_all(&unpacked) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        },
        _ => {}
    }
    Ok(seconds)
}

fn ops_of(workload: usize, args: &args::Bench, packed: &Packed) -> u64 {
    match WORKLOADS[workload].1 {
        0 => packed.entries,
        divisor => (args.ops / divisor).max(1),
    }
}

fn report(workload: usize, ops: u64, rounds: u32, peers: &[Peer], missing: &Map<String, Value>) -> Value {
    let median_of = |peer: &Peer| median(&peer.seconds[workload]);
    let ns = |seconds: f64| seconds * 1e9 / ops as f64;
    let ours = peers.first().map_or(0.0, median_of);
    let mut row = json!({
        "name": WORKLOADS[workload].0,
        "fs": "ext4",
        "unit": "ops/s",
        "ops": ops,
        "rounds": rounds,
        "new": rate(ns(ours)),
        "ns_per_op": { "new": places(ns(ours), 1) },
        "seconds": {},
        "peers": {},
        "new_over_peer": {},
    });
    for peer in peers {
        let seconds = median_of(peer);
        row["seconds"][peer.name] = json!(places(seconds, 4));
        if peer.name != IVERS {
            row["peers"][peer.name] =
                json!({ "value": rate(ns(seconds)), "ns_per_op": places(ns(seconds), 1) });
            row["new_over_peer"][peer.name] = json!(places(seconds / ours.max(1e-9), 3));
        }
    }
    if !missing.is_empty() {
        row["peers_missing"] = missing.clone().into();
    }
    row
}

/// All rows.
pub(super) fn rows(args: &args::Bench) -> Result<Vec<Value>> {
    if std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        return Err(failure(FAILED, "bench --fuse: /dev/fuse cannot be used here"));
    }
    let rounds = args.rounds.unwrap_or(ROUNDS);
    let scratch = tempfile::Builder::new().prefix("ivers-bench-").tempdir()?;
    let packed = Packed::new(&args.tree, scratch.path())?;
    let mut missing = Map::new();
    let mut peers = vec![Peer::new(IVERS, scratch.path())?];
    if find_program(FUSE2FS).is_none() {
        missing.insert(FUSE2FS.into(), "not installed (package fuse2fs)".into());
    } else {
        peers.push(Peer::new(FUSE2FS, scratch.path())?);
    }
    match Kernel::missing() {
        Some(why) => _ = missing.insert(KERNEL.into(), why.into()),
        None => match Peer::new(KERNEL, scratch.path()) {
            Ok(peer) => peers.push(peer),
            Err(why) => _ = missing.insert(KERNEL.into(), format!("{why:#}").into()),
        },
    }
    let bar = Progress::of(u64::from(rounds) * (WORKLOADS.len() * peers.len()) as u64);
    for round in 0..rounds {
        for (workload, (name, _)) in WORKLOADS.iter().enumerate() {
            let ops = ops_of(workload, args, &packed);
            for peer in &mut peers {
                let what = format!("{name} {}", peer.name);
                let seconds = work(peer, workload, ops, round, &packed).with_context(|| what.clone())?;
                peer.seconds[workload].push(seconds);
                bar.step(1, |_| what.clone());
            }
        }
    }
    for peer in &mut peers {
        peer.unmount()?;
    }
    Ok((0..WORKLOADS.len())
        .map(|workload| report(workload, ops_of(workload, args, &packed), rounds, &peers, &missing))
        .collect())
}
