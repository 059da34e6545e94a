//! Who takes part: an image, where it is mounted, and who serves it.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ivers_fuse::STATS;
use serde_json::Value;

use super::super::figures::Samples;
use super::super::volume::Kernel;
use super::super::{find_program, make_image, run};
use super::WORKLOADS;
use crate::failure::{FAILED, failure};

const IMAGE_BYTES: u64 = 2 << 30;
const MOUNT_PATIENCE: Duration = Duration::from_secs(20);

/// Who serves an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// This program, with `-o iversion=` this.
    Ivers(&'static str),
    Fuse2fs,
    /// libfuse's passthrough_ll over the kernel's ext4, with these options: what FUSE itself costs.
    Null(&'static str),
    Kernel,
}

/// A contender's name and server, in the order of a round.
pub(super) const CONTENDERS: [(&str, Kind); 7] = [
    ("ivers", Kind::Ivers("lazy")),
    ("ivers_eager", Kind::Ivers("eager")),
    ("ivers_off", Kind::Ivers("off")),
    // As ivers mounts by default: write-back cache, attributes answered, names and attributes cached until told otherwise.
    ("null_passthrough", Kind::Null("writeback,xattr,cache=always")),
    // Spares itself the question for security.capability that the kernel asks before each write: nearer to the ceiling, but
    // it is no longer what a mount with attributes can reach.
    ("null_passthrough_no_xattr", Kind::Null("writeback,no_xattr,cache=always")),
    ("fuse2fs", Kind::Fuse2fs),
    ("kernel_ext4", Kind::Kernel),
];

impl Kind {
    /// What it is mounted with.
    pub(super) fn options(self) -> String {
        match self {
            Self::Ivers(mode) => format!("iversion={mode}"),
            Self::Fuse2fs => "rw".to_owned(),
            Self::Null(options) => options.to_owned(),
            Self::Kernel => "loop".to_owned(),
        }
    }

    /// One of our modes other than the default one.
    pub(super) fn is_other_mode(self) -> bool {
        matches!(self, Self::Ivers(mode) if mode != "lazy")
    }
}

/// Who serves a mount at present.
enum Server {
    /// A process in the foreground: unmounted, it ends. What it serves from may be a mount of the kernel's, which goes after it.
    Process { child: Child, _below: Option<Kernel> },
    /// The kernel; unmounted when dropped.
    Kernel { _mount: Kernel },
}

/// What a workload measured on one contender.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) ns_per_op: Samples,
    pub(super) seconds: Samples,
    /// Of the last round.
    pub(super) ops: u64,
    pub(super) counts: Counts,
    /// p50, p99, p99.9 and the longest.
    pub(super) latency_ns: [Samples; 4],
    pub(super) asked: u64,
    /// Why there is nothing.
    pub(super) failed: Option<String>,
}

/// What a mount of ours has counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) inode_updates: u64,
    pub(super) journal_blocks: u64,
    pub(super) queries: u64,
}

impl Counts {
    pub(super) fn add(&mut self, more: Self) {
        self.inode_updates += more.inode_updates;
        self.journal_blocks += more.journal_blocks;
        self.queries += more.queries;
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self {
            inode_updates: self.inode_updates.saturating_sub(before.inode_updates),
            journal_blocks: self.journal_blocks.saturating_sub(before.journal_blocks),
            queries: self.queries.saturating_sub(before.queries),
        }
    }
}

/// One contender.
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) dir: PathBuf,
    pub(super) measured: [Measured; WORKLOADS.len()],
    image: PathBuf,
    program: PathBuf,
    server: Option<Server>,
}

impl Peer {
    /// `program` serves it, where it is not the kernel.
    pub(super) fn new(name: &'static str, kind: Kind, program: PathBuf, scratch: &Path) -> Result<Self> {
        let (image, dir) = (scratch.join(format!("{name}.image")), scratch.join(name));
        make_image(&image, IMAGE_BYTES)?;
        std::fs::create_dir(&dir)?;
        if matches!(kind, Kind::Null(_)) {
            std::fs::create_dir(below(&dir))?;
        }
        let measured = Default::default();
        let mut peer = Self { name, kind, image, program, dir, measured, server: None };
        peer.mount()?;
        Ok(peer)
    }

    pub(super) fn mount(&mut self) -> Result<()> {
        let mut kernel = None;
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Kernel => {
                self.server = Some(Server::Kernel { _mount: Kernel::mount(&self.image, &self.dir)? });
                return Ok(());
            }
            Kind::Ivers(_) => {
                command.args(["mount", "--foreground", "-o", &self.kind.options()]);
                command.arg(&self.image).arg(&self.dir)
            }
            Kind::Fuse2fs => command.args(["-f", "-o", &self.kind.options()]).arg(&self.image).arg(&self.dir),
            Kind::Null(options) => {
                let source = below(&self.dir);
                kernel = Some(Kernel::mount(&self.image, &source)?);
                let options = format!("{options},source={}", source.display());
                command.args(["-f", "-o", &options]).arg(&self.dir)
            }
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
        self.server = Some(Server::Process { child, _below: kernel });
        Ok(())
    }

    /// Unmount, and wait until everything is in the image.
    pub(super) fn unmount(&mut self) -> Result<()> {
        let Some(Server::Process { child, .. }) = &mut self.server else {
            self.server = None;
            return Ok(());
        };
        detach(&self.dir)?;
        // fuse2fs has things to say about orphans; what counts is that it is gone.
        child.wait()?;
        self.server = None;
        Ok(())
    }

    /// What it has counted, if it is ours. Everybody commits first, so that nobody begins with what is left of the round before.
    pub(super) fn counts(&self) -> Result<Counts> {
        let synced = std::fs::File::open(&self.dir)?.sync_all();
        if !matches!(self.kind, Kind::Ivers(_)) {
            // Not everybody has fsync for directories.
            return Ok(Counts::default());
        }
        synced?;
        let stats = xattr::get(&self.dir, STATS)?.context("a mount of ours has statistics")?;
        let stats: Value = serde_json::from_slice(&stats)?;
        let of = |name: &str| stats[name].as_u64().with_context(|| format!("{name} is counted"));
        Ok(Counts {
            inode_updates: of("inode_updates")?,
            journal_blocks: of("journal_blocks")?,
            queries: of("queries")?,
        })
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            log::warn!("{error:#}");
            if let Some(Server::Process { mut child, _below }) = self.server.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Where the filesystem is mounted that a passthrough serves.
fn below(dir: &Path) -> PathBuf {
    dir.with_extension("below")
}

fn detach(dir: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty())?);
    }
    run(Command::new("fusermount3").arg("-u").arg(dir))
}

/// The program that serves, or why this contender cannot be had.
pub(super) fn program(kind: Kind) -> Result<PathBuf, String> {
    match kind {
        Kind::Ivers(_) => std::env::current_exe().map_err(|error| error.to_string()),
        Kind::Fuse2fs => find_program("fuse2fs").ok_or_else(|| super::install::missing("fuse2fs")),
        Kind::Null(_) => match Kernel::missing() {
            Some(why) => Err(why.to_owned()),
            None => super::install::passthrough().map_err(|error| format!("{error:#}")),
        },
        Kind::Kernel => Kernel::missing().map_or(Ok(PathBuf::new()), |why| Err(why.to_owned())),
    }
}
