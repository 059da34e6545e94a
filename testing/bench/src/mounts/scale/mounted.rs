//! Trees on a mount: `ivers mount`, the kernel and fuse2fs on equal images.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Error, Result};

use super::Contender;
use super::tree::{Step, Tree};
use crate::args::Args;
use crate::image::{Format, Image};
use crate::mounts::IVERS;
use crate::mounts::peer::{self, Kind, Peer};
use crate::processes;
use crate::volume::Kernel;

pub(super) const FUSE2FS: &str = "fuse2fs";

const RANDOM_STATS: u64 = 100_000;
/// fuse2fs takes a millisecond for a file: it measures no larger tree.
const FUSE2FS_FILES_MAX: u64 = 100_000;

/// In the order of a round, with the end of the row's name.
const STEPS: [(&str, Step); 6] = [
    ("create", Step::Create),
    ("cold_walk", Step::ColdWalk),
    ("warm_walk", Step::WarmWalk),
    ("random_stats", Step::RandomStats),
    ("readdir", Step::Readdir),
    ("remove", Step::Remove),
];

/// What lives in memory ends with its mount, so there is no cold walk.
const STEPS_IN_MEMORY: [(&str, Step); 5] = [STEPS[0], STEPS[2], STEPS[3], STEPS[4], STEPS[5]];

pub(super) fn steps(format: Format) -> &'static [(&'static str, Step)] {
    if format == Format::Mem { &STEPS_IN_MEMORY } else { &STEPS }
}

/// The contenders for a format.
pub(super) fn kinds(format: Format, files: u64) -> impl Iterator<Item = (&'static str, Kind)> {
    let kernel = (format != Format::Mem).then_some((format.kernel_peer(), Kind::Kernel));
    let has_fuse2fs = format == Format::Ext4 && files <= FUSE2FS_FILES_MAX;
    let fuse2fs = has_fuse2fs.then_some((FUSE2FS, Kind::Fuse2fs));
    std::iter::once((IVERS, Kind::Ivers("lazy"))).chain(kernel).chain(fuse2fs)
}

pub(super) struct Mounted {
    peer: Peer,
    tree: Tree,
    steps: &'static [(&'static str, Step)],
}

impl Mounted {
    pub(super) fn new(
        name: &'static str,
        kind: Kind,
        image: Image,
        files: u64,
        args: &Args,
        scratch: &Path,
    ) -> Result<Self> {
        let program = peer::program(kind, args).map_err(Error::msg)?;
        let peer = Peer::new(name, kind, program, scratch, image)?;
        let tree = Tree { root: peer.dir.join("many"), files, stats: RANDOM_STATS.min(args.ops) };
        Ok(Self { peer, tree, steps: steps(image.format) })
    }
}

impl Contender for Mounted {
    fn options(&self) -> String {
        self.peer.kind.options()
    }

    fn prepare(&mut self, step: usize) -> Result<()> {
        if self.steps[step].1 == Step::ColdWalk {
            self.peer.unmount()?;
            self.peer.mount()?;
        }
        self.peer.sync()
    }

    fn run(&mut self, step: usize) -> Result<f64> {
        let step = self.steps[step].1;
        let begun = Instant::now();
        self.tree.run(step)?;
        Ok(begun.elapsed().as_nanos() as f64 / self.tree.ops(step) as f64)
    }

    fn ops(&self, step: usize) -> u64 {
        self.tree.ops(self.steps[step].1)
    }

    fn peak_bytes(&self) -> Result<Option<u64>> {
        self.peer.peak_bytes()
    }

    fn processor_ns(&self) -> Result<Option<u64>> {
        processes::processor_ns(self.peer.process())
    }

    fn device_reads(&self) -> Result<Option<u64>> {
        self.peer.device_reads()
    }

    fn end(&mut self) -> Result<()> {
        self.peer.unmount()
    }
}

/// Makes an image and fills it with a tree: by the kernel, which is faster, or where that cannot mount it, by
/// ivers.
pub(super) fn make_filled(
    name: &'static str,
    image: Image,
    files: u64,
    args: &Args,
    scratch: &Path,
) -> Result<PathBuf> {
    let kind = if Kernel::missing().is_none() { Kind::Kernel } else { Kind::Ivers("lazy") };
    let program = peer::program(kind, args).map_err(Error::msg)?;
    let mut peer = Peer::new(name, kind, program, scratch, image)?;
    Tree { root: peer.dir.join("many"), files, stats: 0 }.run(Step::Create)?;
    peer.unmount()?;
    Ok(peer.image().to_owned())
}
