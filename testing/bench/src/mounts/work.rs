//! Workloads on a mount.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, anyhow};

use super::peer::{Counts, Kind, Peer};
use super::{build, fio};
use crate::run;

/// A workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Job {
    /// Sequential writes of this number of bytes to a new file.
    Write(usize),
    /// Reads a file sequentially, [`READ_BYTES`] an operation, after a remount and with all caches of the
    /// kernel dropped.
    ReadCold,
    /// One-byte writes while another process queries the file's times, or its change attribute where there is
    /// one.
    Queried {
        change: bool,
    },
    Create,
    /// Removes the files of `Create`.
    Unlink,
    Untar,
    /// Walks the tree of `Untar` after a remount.
    WalkStat,
    /// The first build ([`build`]).
    Build,
    /// A second make in the tree of `Build`.
    BuildAgain,
    Fio(fio::Job),
}

impl Job {
    /// Returns whether the next workload uses the files of this one.
    pub(crate) fn leaves_work(self) -> bool {
        matches!(self, Self::Create | Self::Untar | Self::Build)
    }
}

/// The results of one round of one contender.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) seconds: f64,
    pub(crate) ops: u64,
    pub(crate) counts: Counts,
    pub(crate) latency_ns: Option<[f64; 4]>,
    pub(crate) queries: u64,
}

/// A tree in a tar file, and its number of entries.
pub(crate) struct Packed {
    file: PathBuf,
    pub(crate) entries: u64,
}

impl Packed {
    fn new(tree: &Path, file: PathBuf) -> Result<Self> {
        let mut entries = 1;
        walk(tree, &mut entries)?;
        run(Command::new("tar").arg("-cf").arg(&file).arg("-C").arg(tree).arg("."))?;
        Ok(Self { file, entries })
    }

    fn unpack(&self, dir: &Path) -> Result<()> {
        run(Command::new("tar").arg("-xf").arg(&self.file).arg("-C").arg(dir))
    }
}

/// The trees to unpack on each mount.
pub(crate) struct Trees {
    pub(crate) user_tree: Packed,
    /// The generated tree for builds.
    sources: Packed,
    units: u64,
}

impl Trees {
    pub(crate) fn new(given: &Path, units: u64, scratch: &Path) -> Result<Self> {
        let sources = scratch.join("sources");
        std::fs::create_dir(&sources)?;
        build::lay_out(&sources, units)?;
        Ok(Self {
            user_tree: Packed::new(given, scratch.join("tree.tar"))
                .with_context(|| format!("--tree {}", given.display()))?,
            sources: Packed::new(&sources, scratch.join("sources.tar"))?,
            units,
        })
    }
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

/// Bytes of one operation of [`Job::ReadCold`].
const READ_BYTES: usize = 128 << 10;

fn append(file: &File, bytes: usize, ops: u64) -> Result<()> {
    let data = vec![b'x'; bytes];
    (0..ops).try_for_each(|op| Ok(file.write_all_at(&data, op * bytes as u64)?))
}

/// A process that queries a file without pause until its standard input ends.
struct Querier {
    child: Child,
    stdin: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Querier {
    /// Starts the process and waits for its first query.
    fn start(file: &Path, change: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--ask").arg(file);
        if change {
            command.arg("--ask-change");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let output =
            BufReader::new(child.stdout.take().context("standard output of the process is not a pipe")?);
        let mut querier = Self { child, stdin, output };
        querier.output.read_line(&mut String::new())?;
        Ok(querier)
    }

    /// Stops the process and returns its number of queries.
    fn stop(mut self) -> Result<u64> {
        drop(self.stdin.take());
        let mut count = String::new();
        self.output.read_to_string(&mut count)?;
        let ended = self.child.wait()?;
        count.trim().parse().with_context(|| format!("the querying process failed: {ended}"))
    }
}

impl Drop for Querier {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// Returns the reason why caches cannot be dropped.
pub(crate) fn cold_reads_missing() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| "only root can drop the kernel's caches".to_owned())
}

/// Makes a file and drops it from all caches.
fn cold_file(peer: &mut Peer, file: &Path, ops: u64) -> Result<()> {
    append(&File::create_new(file)?, READ_BYTES, ops)?;
    peer.unmount()?;
    peer.mount()?;
    // Dirty pages of the image cannot be dropped.
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("cannot drop the kernel's caches")
}

/// Reads a file to its end; returns the number of bytes.
fn read_all(file: &Path) -> Result<u64> {
    let (mut file, mut buffer, mut total) = (File::open(file)?, vec![0; READ_BYTES], 0);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(total),
            some => total += some as u64,
        }
    }
}

/// Runs and times one round. Removes all files except those that the next workload needs.
pub(crate) fn work(peer: &mut Peer, job: Job, ops: u64, round: u32, trees: &Trees) -> Result<Round> {
    let many = peer.dir.join(format!("many-{round}"));
    let unpacked = peer.dir.join(format!("tree-{round}"));
    let built = peer.dir.join(format!("build-{round}"));
    let file = peer.dir.join(format!("file-{round}"));
    let mut result = Round { ops, ..Round::default() };
    // Prepares files before the clock starts.
    match job {
        Job::Create => std::fs::create_dir(&many)?,
        Job::ReadCold => cold_file(peer, &file, ops)?,
        Job::Untar => std::fs::create_dir(&unpacked)?,
        Job::WalkStat => {
            peer.unmount()?;
            peer.mount()?;
        }
        Job::Build => {
            std::fs::create_dir(&built)?;
            trees.sources.unpack(&built)?;
        }
        _ => {}
    }
    let before = peer.counts()?;
    let begin = Instant::now();
    match job {
        // Times the file from its creation to its last close.
        Job::Write(bytes) => append(&File::create_new(&file)?, bytes, ops)?,
        Job::Queried { change } => {
            let open = File::create_new(&file)?;
            let querier = Querier::start(&file, change && matches!(peer.kind, Kind::Ivers(_)))?;
            let begin = Instant::now();
            append(&open, 1, ops)?;
            result.seconds = begin.elapsed().as_secs_f64();
            result.queries = querier.stop()?;
        }
        Job::ReadCold => {
            let (read, wanted) = (read_all(&file)?, ops * READ_BYTES as u64);
            if read != wanted {
                return Err(anyhow!("read {read} of {wanted} bytes"));
            }
        }
        Job::Create => (0..ops).try_for_each(|n| File::create_new(many.join(format!("f{n}"))).map(drop))?,
        Job::Unlink => (0..ops).try_for_each(|n| std::fs::remove_file(many.join(format!("f{n}"))))?,
        Job::Untar => trees.user_tree.unpack(&unpacked)?,
        Job::WalkStat => {
            let mut seen = 1;
            walk(&unpacked, &mut seen)?;
            if seen != trees.user_tree.entries {
                return Err(anyhow!("the walk found {seen} of {} entries", trees.user_tree.entries));
            }
        }
        Job::Build => build::all(&built)?,
        Job::BuildAgain => build::again(&built)?,
        Job::Fio(job) => {
            let ran = fio::run(job, &peer.dir, &file, ops)?;
            (result.seconds, result.ops, result.latency_ns) = (ran.seconds, ran.ops, Some(ran.latency_ns));
        }
    }
    if result.seconds == 0.0 {
        result.seconds = begin.elapsed().as_secs_f64();
    }
    result.counts = peer.counts()?.since(before);
    match job {
        Job::Write(_) | Job::ReadCold | Job::Queried { .. } | Job::Fio(_) => std::fs::remove_file(&file)?,
        Job::Unlink => std::fs::remove_dir(&many)?,
        Job::WalkStat => match std::fs::remove_dir_all(&unpacked) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        },
        Job::Build => build::check(&built, trees.units)?,
        Job::BuildAgain => std::fs::remove_dir_all(&built)?,
        Job::Create | Job::Untar => {}
    }
    Ok(result)
}
