//! A contender: its image, its mount point and its server.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use ivers_fuse::STATS;
use serde_json::Value;

use super::WORKLOADS;
use crate::args::Args;
use crate::image::{Format, Image};
use crate::memory;
use crate::statistics::Samples;
use crate::volume::Kernel;
use crate::{find_program, run};

const MOUNT_PATIENCE: Duration = Duration::from_secs(20);

/// The kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `ivers` with this value of `-o iversion=`.
    Ivers(&'static str),
    Fuse2fs,
    /// libfuse's passthrough_ll over the kernel's ext4, with these options: the cost of FUSE itself.
    Null(&'static str),
    Kernel,
}

/// Names, servers and formats, in the order of a round.
pub(crate) const CONTENDERS: [(&str, Kind, Format); 11] = [
    ("ivers", Kind::Ivers("lazy"), Format::Ext4),
    ("ivers_eager", Kind::Ivers("eager"), Format::Ext4),
    ("ivers_off", Kind::Ivers("off"), Format::Ext4),
    // The options of a default ivers mount: write-back cache, extended attributes, caching without timeout.
    ("null_passthrough", Kind::Null("writeback,xattr,cache=always"), Format::Ext4),
    // Without attributes the kernel does not ask for security.capability before each write. This is closer to
    // the limit, but a mount with attributes cannot reach it.
    ("null_passthrough_no_xattr", Kind::Null("writeback,no_xattr,cache=always"), Format::Ext4),
    ("fuse2fs", Kind::Fuse2fs, Format::Ext4),
    ("kernel_ext4", Kind::Kernel, Format::Ext4),
    ("ivers_xfs", Kind::Ivers("lazy"), Format::Xfs),
    ("kernel_xfs", Kind::Kernel, Format::Xfs),
    ("ivers_btrfs", Kind::Ivers("lazy"), Format::Btrfs),
    ("kernel_btrfs", Kind::Kernel, Format::Btrfs),
];

impl Kind {
    /// Returns the mount options.
    pub(crate) fn options(self) -> String {
        match self {
            Self::Ivers(mode) => format!("iversion={mode}"),
            Self::Fuse2fs => "rw".to_owned(),
            Self::Null(options) => options.to_owned(),
            Self::Kernel => "loop".to_owned(),
        }
    }

    /// Returns whether this is ivers in a mode other than the default.
    pub(crate) fn is_other_mode(self) -> bool {
        matches!(self, Self::Ivers(mode) if mode != "lazy")
    }
}

/// The server of a mounted image.
enum Server {
    /// A foreground process, which ends after the unmount. It can serve from a kernel mount, which is
    /// unmounted later.
    Process { child: Child, _below: Option<Kernel> },
    /// The kernel; unmounts when dropped.
    Kernel { _mount: Kernel },
}

/// The results of a workload on one contender.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub(crate) ns_per_op: Samples,
    pub(crate) seconds: Samples,
    /// Operations in the last round.
    pub(crate) ops: u64,
    pub(crate) counts: Counts,
    /// p50, p99, p99.9 and maximum.
    pub(crate) latency_ns: [Samples; 4],
    pub(crate) queries_by_process: u64,
    /// The reason why there are no results.
    pub(crate) failed: Option<String>,
}

/// Statistics of an ivers mount.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) inode_updates: u64,
    pub(crate) journal_blocks: u64,
    pub(crate) queries: u64,
}

impl Counts {
    pub(crate) fn add(&mut self, more: Self) {
        self.inode_updates += more.inode_updates;
        self.journal_blocks += more.journal_blocks;
        self.queries += more.queries;
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            inode_updates: self.inode_updates.saturating_sub(before.inode_updates),
            journal_blocks: self.journal_blocks.saturating_sub(before.journal_blocks),
            queries: self.queries.saturating_sub(before.queries),
        }
    }
}

/// One contender.
pub(crate) struct Peer {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) dir: PathBuf,
    pub(crate) measured: [Measured; WORKLOADS.len()],
    image: PathBuf,
    format: Format,
    program: PathBuf,
    server: Option<Server>,
}

impl Peer {
    /// Makes and mounts an image; `program` is its server, unless the kernel is.
    pub(crate) fn new(
        name: &'static str,
        kind: Kind,
        program: PathBuf,
        scratch: &Path,
        contents: Image,
    ) -> Result<Self> {
        let (image, dir) = (scratch.join(format!("{name}.image")), scratch.join(name));
        contents.make(&image)?;
        std::fs::create_dir(&dir)?;
        if matches!(kind, Kind::Null(_)) {
            std::fs::create_dir(below(&dir))?;
        }
        let measured = Default::default();
        let format = contents.format;
        let mut peer = Self { name, kind, image, format, program, dir, measured, server: None };
        peer.mount()?;
        Ok(peer)
    }

    /// Returns the path of the image.
    pub(crate) fn image(&self) -> &Path {
        &self.image
    }

    pub(crate) fn mount(&mut self) -> Result<()> {
        let mut kernel = None;
        let mut command = Command::new(&self.program);
        match self.kind {
            Kind::Kernel => {
                self.server =
                    Some(Server::Kernel { _mount: Kernel::mount(&self.image, &self.dir, self.format)? });
                return Ok(());
            }
            Kind::Ivers(_) => {
                command.args(["mount", "--foreground", "-t", self.format.name()]);
                command.args(["-o", &self.kind.options()]);
                command.arg(&self.image).arg(&self.dir)
            }
            Kind::Fuse2fs => command.args(["-f", "-o", &self.kind.options()]).arg(&self.image).arg(&self.dir),
            Kind::Null(options) => {
                let source = below(&self.dir);
                kernel = Some(Kernel::mount(&self.image, &source, self.format)?);
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
                return Err(anyhow!("{} does not mount: {said}", self.name));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.server = Some(Server::Process { child, _below: kernel });
        Ok(())
    }

    /// Unmounts and waits until everything is written to the image.
    pub(crate) fn unmount(&mut self) -> Result<()> {
        let Some(Server::Process { child, .. }) = &mut self.server else {
            self.server = None;
            return Ok(());
        };
        detach(&self.dir)?;
        // fuse2fs can report orphans and fail; only its end matters.
        child.wait()?;
        self.server = None;
        Ok(())
    }

    /// Returns the largest resident memory of the server since the mount; `None` for the kernel.
    pub(crate) fn peak_bytes(&self) -> Result<Option<u64>> {
        self.process().map(memory::largest_peak_bytes).transpose()
    }

    /// Returns the process that serves, if there is one.
    pub(crate) fn process(&self) -> Option<u32> {
        match &self.server {
            Some(Server::Process { child, .. }) => Some(child.id()),
            _ => None,
        }
    }

    /// Syncs the mount, so that each contender starts without pending work.
    pub(crate) fn sync(&self) -> Result<()> {
        match std::fs::File::open(&self.dir)?.sync_all() {
            // Not every contender implements fsync of directories.
            Err(error) if matches!(self.kind, Kind::Ivers(_)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Syncs the mount and returns the statistics if it is ivers.
    pub(crate) fn counts(&self) -> Result<Counts> {
        self.sync()?;
        if !matches!(self.kind, Kind::Ivers(_)) {
            return Ok(Counts::default());
        }
        let stats = self.statistics()?;
        Ok(Counts {
            inode_updates: stats.get("inode_updates")?,
            journal_blocks: stats.get("journal_blocks")?,
            queries: stats.get("queries")?,
        })
    }

    /// Returns how often the image was read since the mount; `None` where nobody counts.
    pub(crate) fn device_reads(&self) -> Result<Option<u64>> {
        match self.kind {
            Kind::Ivers(_) => Ok(self.statistics()?.find("device_reads")),
            Kind::Kernel => kernel_reads(&self.dir).map(Some),
            Kind::Fuse2fs | Kind::Null(_) => Ok(None),
        }
    }

    /// Returns the statistics of a mount of ivers.
    fn statistics(&self) -> Result<Statistics> {
        let stats = xattr::get(&self.dir, STATS)?.context("the mount of ivers has no statistics")?;
        Ok(Statistics(serde_json::from_slice(&stats)?))
    }
}

/// The JSON that a mount of ivers answers.
struct Statistics(Value);

impl Statistics {
    /// Returns a counter; `None` if the mount has no such counter, as `mem` has no device.
    fn find(&self, name: &str) -> Option<u64> {
        self.0[name].as_u64()
    }

    fn get(&self, name: &str) -> Result<u64> {
        self.find(name).with_context(|| format!("the statistics of the mount lack {name}"))
    }
}

/// Returns how many reads of the block device below a mount the kernel has completed.
fn kernel_reads(dir: &Path) -> Result<u64> {
    let device = std::fs::metadata(dir)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let file = format!("/sys/dev/block/{major}:{minor}/stat");
    let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
    let reads = text.split_whitespace().next().with_context(|| format!("{file} is empty"))?;
    reads.parse().with_context(|| file)
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("bench: {error:#}");
            if let Some(Server::Process { mut child, _below }) = self.server.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Returns the mount point of the filesystem below a passthrough.
fn below(dir: &Path) -> PathBuf {
    dir.with_extension("below")
}

fn detach(dir: &Path) -> Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(rustix::mount::unmount(dir, rustix::mount::UnmountFlags::empty())?);
    }
    run(Command::new("fusermount3").arg("-u").arg(dir))
}

/// Returns the server's program, or the reason why there is none.
pub(crate) fn program(kind: Kind, args: &Args) -> Result<PathBuf, String> {
    match kind {
        Kind::Ivers(_) => args.ivers().map_err(|error| format!("{error:#}")),
        Kind::Fuse2fs => find_program("fuse2fs").ok_or_else(|| super::install::missing("fuse2fs")),
        Kind::Null(_) => match Kernel::missing() {
            Some(why) => Err(why.to_owned()),
            None => super::install::passthrough().map_err(|error| format!("{error:#}")),
        },
        Kind::Kernel => Kernel::missing().map_or(Ok(PathBuf::new()), |why| Err(why.to_owned())),
    }
}
