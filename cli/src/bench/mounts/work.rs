//! What is done on each mount.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result};

use super::super::run;
use super::peer::{Counts, Kind, Peer};
use super::{build, fio};
use crate::failure::{FAILED, failure};

/// What a round does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// Sequential writes of so many bytes each to a new file.
    Write(usize),
    /// The same of one byte, while another process asks for the file's times, or for the change attribute where there is one.
    Asked {
        change: bool,
    },
    Create,
    /// Of what `Create` made.
    Unlink,
    Untar,
    /// Over what `Untar` made, after a remount.
    WalkStat,
    /// What [`build`] does first.
    Build,
    /// Over what `Build` made.
    BuildAgain,
    Fio(fio::Job),
}

impl Job {
    /// Whether the next job works on what it leaves behind.
    pub(super) fn leaves_work(self) -> bool {
        matches!(self, Self::Create | Self::Untar | Self::Build)
    }
}

/// One round of one contender.
#[derive(Debug, Default)]
pub(super) struct Round {
    pub(super) seconds: f64,
    pub(super) ops: u64,
    pub(super) counts: Counts,
    pub(super) latency_ns: Option<[f64; 4]>,
    pub(super) asked: u64,
}

/// A tree as one file, and how many things are in it.
pub(super) struct Packed {
    file: PathBuf,
    pub(super) entries: u64,
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

/// What is unpacked on each mount.
pub(super) struct Trees {
    pub(super) given: Packed,
    /// Of a build of so many units.
    sources: Packed,
    units: u64,
}

impl Trees {
    pub(super) fn new(given: &Path, units: u64, scratch: &Path) -> Result<Self> {
        let sources = scratch.join("sources");
        std::fs::create_dir(&sources)?;
        build::lay_out(&sources, units)?;
        Ok(Self {
            given: Packed::new(given, scratch.join("tree.tar"))
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

fn append(file: &File, bytes: usize, ops: u64) -> Result<()> {
    let data = vec![b'x'; bytes];
    (0..ops).try_for_each(|op| Ok(file.write_all_at(&data, op * bytes as u64)?))
}

/// Another process that asks about a file as fast as it can, until its standard input ends.
struct Asker {
    child: Child,
    stdin: Option<ChildStdin>,
    said: BufReader<std::process::ChildStdout>,
}

impl Asker {
    /// It has asked once when this returns.
    fn start(file: &Path, change: bool) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("bench").arg("--ask").arg(file);
        if change {
            command.arg("--ask-change");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdin = child.stdin.take();
        let said = BufReader::new(child.stdout.take().context("standard output is a pipe")?);
        let mut asker = Self { child, stdin, said };
        asker.said.read_line(&mut String::new())?;
        Ok(asker)
    }

    /// How often it asked.
    fn stop(mut self) -> Result<u64> {
        drop(self.stdin.take());
        let mut count = String::new();
        self.said.read_to_string(&mut count)?;
        let ended = self.child.wait()?;
        count.trim().parse().with_context(|| format!("whoever asks about the file has failed: {ended}"))
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// One round, timed; what it leaves behind is gone before the next one, but for what the next job needs.
pub(super) fn work(peer: &mut Peer, job: Job, ops: u64, round: u32, trees: &Trees) -> Result<Round> {
    let many = peer.dir.join(format!("many-{round}"));
    let unpacked = peer.dir.join(format!("tree-{round}"));
    let built = peer.dir.join(format!("build-{round}"));
    let file = peer.dir.join(format!("file-{round}"));
    let mut result = Round { ops, ..Round::default() };
    // Made before the clock starts.
    match job {
        Job::Create => std::fs::create_dir(&many)?,
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
        // From its creation to its last close.
        Job::Write(bytes) => append(&File::create_new(&file)?, bytes, ops)?,
        Job::Asked { change } => {
            let open = File::create_new(&file)?;
            let asker = Asker::start(&file, change && matches!(peer.kind, Kind::Ivers(_)))?;
            let begin = Instant::now();
            append(&open, 1, ops)?;
            result.seconds = begin.elapsed().as_secs_f64();
            result.asked = asker.stop()?;
        }
        Job::Create => (0..ops).try_for_each(|n| File::create_new(many.join(format!("f{n}"))).map(drop))?,
        Job::Unlink => (0..ops).try_for_each(|n| std::fs::remove_file(many.join(format!("f{n}"))))?,
        Job::Untar => trees.given.unpack(&unpacked)?,
        Job::WalkStat => {
            let mut seen = 1;
            walk(&unpacked, &mut seen)?;
            if seen != trees.given.entries {
                return Err(failure(FAILED, format!("{seen} of {} entries came back", trees.given.entries)));
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
        Job::Write(_) | Job::Asked { .. } | Job::Fio(_) => std::fs::remove_file(&file)?,
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
