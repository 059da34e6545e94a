//! `mkfs --from`: fills the new filesystem, and finds the smallest size that fits.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ivers_vfs::MountOptions;

use super::super::edit::Interrupts;
use super::super::tar::exclude::Excludes;
use super::args::FromArgs;
use super::fill::{from_dir, read_spec};
use super::source::Source;
use crate::arguments::ImageName;
use crate::image::image_files::ImageFiles;
use crate::image::open::{open_on, open_to_format};
use crate::image::open_options::ImageOptions;
use crate::image::process::{FillOptions, FillOutcome, ImageProcess, Request};
use crate::output::failure::usage;
use crate::output::format::Shown;

/// The source of a new filesystem.
pub struct Filling {
    source: Source,
    spec: Option<PathBuf>,
    options: FillOptions,
}

impl Filling {
    /// Opens the source. `None`: the filesystem stays empty.
    pub fn open(args: &FromArgs, options: FillOptions) -> Result<Option<Self>> {
        let Some(from) = &args.from else {
            return match args.owners.given() {
                Some(option) => Err(usage(format!("{option}: only with --from"))),
                None => Ok(None),
            };
        };
        // Errors in patterns come before anything is written, as those in the spec file.
        Excludes::new(&args.exclude)?;
        let source = Source::open(from)?;
        // Errors in the spec file come before anything is written.
        if let Some(spec) = &args.spec {
            read_spec(open_spec(spec)?).with_context(|| spec.shown())?;
        }
        let options = FillOptions {
            source_bytes: source.bytes(),
            owners: args.owners.owners(),
            exclude: args.exclude.clone(),
            keep_directory_symlinks: args.keep_directory_symlink,
            ..options
        };
        Ok(Some(Self { source, spec: args.spec.clone(), options }))
    }

    /// Fills the filesystem in `image`. It must be new.
    pub fn fill(&mut self, image: &Path, silent: bool) -> Result<FillOutcome> {
        let fill_options = FillOptions { silent, ..self.options.clone() };
        let stopped_clock = Some(self.options.time);
        let options =
            ImageOptions { read_only: false, filling: true, stopped_clock, ..ImageOptions::default() };
        let files = ImageFiles::one(image, open_to_format(image)?);
        self.source.rewind()?;
        let spec = self.spec.as_deref().map(open_spec).transpose()?;
        let archive = match (&self.source, self.source.archive()) {
            (Source::Dir(dir), _) => {
                let file = ImageName::parse(image).file;
                let id = std::fs::metadata(file).ok().map(|meta| (meta.dev(), meta.ino()));
                let spec = spec.map(read_spec).transpose()?.unwrap_or_default();
                let vfs = open_on(Some(files), image, &options, MountOptions::default())?;
                let outcome = from_dir(&vfs, dir, id, &spec, &fill_options)?;
                return close(vfs.unmount().map_err(Into::into), outcome, image);
            }
            (Source::Archive(..), Some(archive)) => archive,
            (Source::Archive(..), None) => bail!("the archive is not open"),
        };
        let mut process = ImageProcess::start(&files, image, &options)?;
        let _interrupts = Interrupts::watch(&process)?;
        if let Some(spec) = &spec {
            process.request(&Request::Spec, spec.as_fd())?;
        }
        let outcome = process.fill(fill_options, archive)?;
        close(process.finish(), outcome, image)
    }

    /// Finds a size at which the files fit, with little free space. `attempt` makes the filesystem with a
    /// size in bytes, and fills it; the number of inodes that are needed is known after the first success.
    /// The last attempt has the size that is returned.
    pub fn smallest<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self, u64, Option<u64>, bool) -> Result<(Option<T>, FillOutcome)>,
    ) -> Result<(T, FillOutcome)> {
        self.source.make_repeatable()?;
        let guess = self.source.first_guess()?;
        let mut size = round(guess + guess / 8 + (1 << 20));
        let mut too_small = 0;
        let mut shown = false;
        let mut growths = 0;
        let mut best = loop {
            let (made, outcome) = attempt(self, size, None, shown)?;
            shown |= outcome.problems > 0;
            match (made, &outcome.full) {
                (Some(made), None) => break (made, outcome),
                (_, Some(why)) if growths == GROWTHS_MAX => bail!("{why} (with {size} bytes)"),
                _ => {}
            }
            growths += 1;
            too_small = size;
            size = round(size + size / 2);
        };
        let inodes = Some(best.1.inodes_used);
        let (mut inodes_used, mut failed, mut is_current) = (None, false, true);
        for _ in 0..ATTEMPTS_MAX {
            let spare = best.1.free_bytes.min(size - too_small);
            let is_tight = spare <= (size / 128).max(128 << 10);
            if is_tight && (failed || inodes_used.is_some()) {
                break;
            }
            // Less metadata is needed for a smaller size, so the first try usually fits. After a failure,
            // bisect. If nothing is spare, there are at least too many inodes.
            let cut = match (is_tight, failed) {
                (true, _) => 0,
                (_, true) => spare / 2,
                (_, false) => spare - spare / 16,
            };
            let smaller = round(size - cut);
            if smaller <= too_small || smaller > size || (smaller == size && !is_tight) {
                break;
            }
            match attempt(self, smaller, inodes, true)? {
                (Some(made), outcome) if outcome.full.is_none() => {
                    best = (made, outcome);
                    size = smaller;
                    inodes_used = inodes;
                    is_current = true;
                }
                _ => {
                    too_small = smaller.min(size - 1);
                    failed = true;
                    is_current = false;
                }
            }
        }
        if !is_current {
            match attempt(self, size, inodes_used, true)? {
                (Some(made), outcome) if outcome.full.is_none() => best = (made, outcome),
                (_, outcome) => bail!("{}: it did fit before", outcome.full.unwrap_or_default()),
            }
        }
        Ok(best)
    }
}

/// Most attempts with a larger size, each half as large again.
const GROWTHS_MAX: u32 = 24;
/// Most attempts with a smaller size.
const ATTEMPTS_MAX: u32 = 8;

fn round(size: u64) -> u64 {
    size.next_multiple_of(4096)
}

fn open_spec(spec: &Path) -> Result<File> {
    File::open(spec).with_context(|| format!("cannot open {}", spec.shown()))
}

/// A filesystem that is full cannot always be closed, and is of no use.
fn close(closed: Result<()>, outcome: FillOutcome, image: &Path) -> Result<FillOutcome> {
    match closed {
        Err(error) if outcome.full.is_none() => {
            Err(error.context(format!("{}: cannot close the image", image.shown())))
        }
        _ => Ok(outcome),
    }
}
