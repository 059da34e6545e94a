//! Full filesystems. A test fills one until no file fits, removes half of the files, fills it again, and
//! empties it.

use super::{Mount, Volume, told};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The sizes of the files in bytes, used in turns: inline, one sector, many sectors.
const SIZES: [usize; 6] = [40, 2_000, 5_000, 70_000, 300_000, 2_000_000];
/// How many files do not fit before the filesystem counts as full.
const FAILURES: usize = 40;
/// The least number of files that must fit into the empty filesystem.
const LEAST: usize = 100;

/// Returns the contents of a file, by its number.
fn contents(number: usize) -> Vec<u8> {
    let len = SIZES[number % SIZES.len()];
    (0..len).map(|at| (at / 512 * 7 + number) as u8).collect()
}

type Files = BTreeMap<usize, PathBuf>;

fn is_full(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::StorageFull
}

/// Writes files until there is no space. Removes files that do not fit. Returns how many fit.
fn fill(root: &Path, files: &mut Files) -> Result<usize> {
    let first = files.keys().next_back().map_or(0, |last| last + 1);
    let mut failures = 0;
    let mut number = first;
    // A small file may still fit when a large one does not.
    while failures < FAILURES {
        let path = root.join(format!("file-{number}"));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&path)?;
            file.write_all(&contents(number))?;
            file.sync_all()
        };
        match write() {
            Ok(()) => {
                files.insert(number, path);
            }
            Err(error) if is_full(&error) => {
                failures += 1;
                match fs::remove_file(&path) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => bail!("a file of a full filesystem is not removed: {error}"),
                }
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        }
        number += 1;
    }
    Ok(files.range(first..).count())
}

fn compare(files: &Files) -> Result<()> {
    for (number, path) in files {
        let found = fs::read(path).with_context(|| path.display().to_string())?;
        if found != contents(*number) {
            bail!("{}: other contents than what was synced", path.display());
        }
    }
    Ok(())
}

fn work(ivers: &Path, scratch: &Path, volume: &Volume<'_>) -> Result<()> {
    let image = scratch.join("full.img");
    if !(volume.make)(&image) {
        bail!("the image cannot be made");
    }
    let mount = || {
        Mount::new(ivers, volume.kind, &image, scratch.join("full"), "writeback_cache")
            .context("the mount fails")
    };
    let unmount = |mounted: Mount<'_>, is_clean: &dyn Fn(&Path) -> bool| {
        if mounted.unmount() && is_clean(&image) { Ok(()) } else { bail!("the unmounted image is not clean") }
    };
    let mut files = Files::new();
    let mounted = mount()?;
    let made = fill(&mounted.dir, &mut files)?;
    compare(&files)?;
    unmount(mounted, volume.is_clean_full)?;
    let mounted = mount()?;
    compare(&files)?;
    for number in files.keys().copied().step_by(2).collect::<Vec<_>>() {
        let path = files.remove(&number).context("it is a file")?;
        fs::remove_file(&path).with_context(|| format!("{} is removed", path.display()))?;
    }
    let again = fill(&mounted.dir, &mut files)?;
    compare(&files)?;
    println!("{made} files, and {again} after half of them were removed");
    if made < LEAST || again < made / 4 {
        bail!("too few files");
    }
    unmount(mounted, volume.is_clean_full)?;
    let mounted = mount()?;
    for path in files.values() {
        fs::remove_file(path).with_context(|| format!("{} is removed", path.display()))?;
    }
    files.clear();
    unmount(mounted, volume.is_clean)?;
    // All of the space is free again.
    let mounted = mount()?;
    let last = fill(&mounted.dir, &mut files)?;
    println!("{last} files in the empty filesystem");
    if last < made / 10 * 9 {
        bail!("space is lost");
    }
    for path in files.values() {
        fs::remove_file(path)?;
    }
    unmount(mounted, volume.is_clean)
}

/// Runs the work on a volume, and then lets other tools judge the volume.
pub(super) fn run(ivers: &Path, scratch: &Path, volume: &Volume<'_>) -> Option<bool> {
    println!("== full: {}", volume.name);
    told(work(ivers, scratch, volume))
}
