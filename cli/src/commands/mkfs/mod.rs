//! `mkfs`: makes a filesystem in a file or on a block device.

mod args;
pub mod fill;
mod format;
mod from;
mod source;
pub mod spec;

use std::fs::OpenOptions;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{ByteOffset, Device};

pub use args::Args;
use format::{Made, NewFilesystem};
use from::Filling;

use super::cp::interrupt;
use crate::arguments::{ImageName, parse_size, source_date_epoch};
use crate::image::foreign_formats;
use crate::image::open::open_to_format;
use crate::image::process::{FillOptions, FillOutcome};
use crate::output::failure::{FAILED, REFUSED, failure, line, reported, usage, warn};
use crate::output::print;
use crate::output::progress::{self, Progress};

/// Bytes at the start of a device that must be zero: ISO 9660 starts at 32 KiB and btrfs at 64 KiB, with
/// zeros before; the labels of ZFS end at 512 KiB.
const HEAD_BYTES: u64 = 512 << 10;

/// Opens a device. Without `--force` it must contain only zeros at its start. Returns also whether it does.
fn open(args: &Args) -> Result<(Arc<dyn Device>, bool)> {
    let device: Arc<dyn Device> = Arc::new(open_to_format(&args.image)?);
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    let is_empty = head.iter().all(|&byte| byte == 0);
    if !args.force && !is_empty {
        let name = args.image.display();
        let found = foreign_formats::contents(&*device);
        let mut how = "--force overwrites it".to_owned();
        if foreign_formats::has_table(&*device) && ImageName::parse(&args.image).partition.is_none() {
            how = format!("{how}; to keep the table, name a partition, as {name}@1");
        }
        return Err(failure(REFUSED, format!("{name} is not empty: it contains {found}; {how}")));
    }
    Ok((device, is_empty))
}

/// Erases what programs recognise at the start of a device, so that they do not find the old contents.
fn erase_head(device: &dyn Device) -> Result<()> {
    let len = device.size_bytes().min(HEAD_BYTES);
    device.write_at(ByteOffset(0), &vec![0; len as usize])?;
    Ok(device.flush()?)
}

/// A device that shows how much was written: inode tables and the journal take a while.
struct WithProgress {
    device: Arc<dyn Device>,
    progress: Progress,
}

impl Device for WithProgress {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset: ByteOffset, buf: &mut [u8]) -> ivers_block::Result<()> {
        self.device.read_at(offset, buf)
    }

    fn write_at(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.progress.step(buf.len() as u64, |written| format!("{} written", progress::bytes(written)));
        self.device.write_at(offset, buf)
    }

    fn write_fua(&self, offset: ByteOffset, buf: &[u8]) -> ivers_block::Result<()> {
        self.device.write_fua(offset, buf)
    }

    fn flush(&self) -> ivers_block::Result<()> {
        self.device.flush()
    }

    fn discard(&self, offset: ByteOffset, len: u64) -> ivers_block::Result<()> {
        self.device.discard(offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.device.is_read_only()
    }

    fn describe(&self) -> String {
        self.device.describe()
    }
}

/// Makes the filesystem. `new_len`: first creates the file with this length, or extends it.
fn write(args: &Args, new: &NewFilesystem, new_len: Option<u64>, has_contents: bool) -> Result<Made> {
    let name = args.image.display().to_string();
    if let Some(bytes) = new_len {
        if has_contents {
            // Checked before the file grows: a refused file stays as it was.
            open(args)?;
        }
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&args.image);
        file.and_then(|file| file.set_len(bytes)).with_context(|| format!("cannot make {name}"))?;
    }
    let (device, is_empty) = open(args)?;
    new.plan(device.size_bytes(), &name)?;
    if !is_empty {
        // It finds the old copies by the old superblock.
        new.erase_old(&*device).with_context(|| name.clone())?;
        erase_head(&*device).with_context(|| name.clone())?;
    }
    let with_progress: Arc<dyn Device> = Arc::new(WithProgress { device, progress: Progress::unbounded() });
    new.make(&with_progress).with_context(|| name)
}

/// Makes the smallest filesystem in which the files fit.
fn write_smallest(args: &Args, new: &NewFilesystem, filling: &mut Filling) -> Result<(Made, FillOutcome)> {
    let name = args.image.display().to_string();
    filling.smallest(|filling, bytes, inodes, silent| {
        let mut new = new.clone();
        new.set_zeroed();
        if let (Some(inodes), None) = (inodes, args.bytes_per_inode) {
            new.set_inodes(bytes, inodes);
        }
        if let Err(error) = new.plan(bytes, &name) {
            return Ok((None, FillOutcome::full(line(&error))));
        }
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(&args.image);
        file.with_context(|| format!("cannot make {name}"))?;
        let made = write(args, &new, Some(bytes), false)?;
        Ok((Some(made), filling.fill(&args.image, silent)?))
    })
}

/// Runs `ivers mkfs`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    let name = args.image.display().to_string();
    let mut new = NewFilesystem::new(args)?;
    let latest = args.timestamp.map_or_else(source_date_epoch, |seconds| Ok(Some(seconds.into())))?;
    let root_owner = new.root_owner().filter(|_| args.root_owner.is_some());
    let fill_options = FillOptions { time: new.time(), latest, root_owner, silent: false, source_bytes: 0 };
    let is_auto = args.size.as_deref() == Some("auto");
    let size = match &args.size {
        None => None,
        Some(_) if is_auto => None,
        Some(text) => Some(
            parse_size(text)
                .ok_or_else(|| usage(format!("--size {text}: must be a size, as 512M or 10G")))?,
        ),
    };
    let image = ImageName::parse(&args.image);
    let found = std::fs::metadata(&image.file).ok();
    if found.as_ref().is_some_and(std::fs::Metadata::is_dir) {
        return Err(usage(format!("{name} is a directory")));
    }
    let is_device = found.as_ref().is_some_and(|meta| meta.file_type().is_block_device());
    let has_fixed_size = is_device || image.partition.is_some();
    // Opening a FIFO would wait for its other end.
    if found.as_ref().is_some_and(|meta| !meta.is_file()) && !is_device {
        return Err(usage(format!("{name} is neither a file nor a block device")));
    }
    let old_len = found.as_ref().map_or(0, std::fs::Metadata::len);
    let is_new = found.is_none() && !args.image.is_symlink();
    if is_auto && args.filling.from.is_none() {
        return Err(usage("--size auto: only with --from"));
    }
    if args.size.is_some() && has_fixed_size {
        return Err(usage(format!("{name} has a fixed size; remove --size")));
    }
    if is_auto && old_len > 0 {
        return Err(usage(format!(
            "{name} is not empty, and --size auto creates a file; remove {name} first"
        )));
    }
    match (&found, size) {
        (None, None) if is_auto => {}
        (None, None) => return Err(usage(format!("{name} does not exist; --size SIZE creates it"))),
        (Some(_), Some(size)) if size < old_len => {
            return Err(usage(format!("{name} has {old_len} bytes: --size cannot shrink a file")));
        }
        _ => {}
    }
    // Checked for the final size before the file is created or changed.
    let bytes = size.unwrap_or(old_len);
    if !has_fixed_size && !is_auto {
        new.plan(bytes, &name)?;
    }
    let mut filling = Filling::open(&args.filling, fill_options)?;
    if filling.is_some() {
        interrupt::catch_once()?;
    }
    // A new file reads as zeros, so tables and journal need no zeroing.
    if old_len == 0 && !has_fixed_size {
        new.set_zeroed();
    }
    let new_len = (bytes > old_len && !has_fixed_size).then_some(bytes);
    let make = || -> Result<(Made, Option<FillOutcome>)> {
        match &mut filling {
            Some(filling) if is_auto => {
                let (made, outcome) = write_smallest(args, &new, filling)?;
                Ok((made, Some(outcome)))
            }
            filling => {
                let made = write(args, &new, new_len, old_len > 0)?;
                let fill = || -> Result<Option<FillOutcome>> {
                    interrupt::check()?;
                    let filled = filling.as_mut().map(|filling| filling.fill(&args.image, false));
                    let outcome = filled.transpose()?;
                    match outcome.as_ref().and_then(|outcome| outcome.full.as_ref()) {
                        Some(why) => {
                            let how =
                                if has_fixed_size { "the size is fixed" } else { "choose a larger --size" };
                            Err(failure(FAILED, format!("{name}: {why}; {how}")))
                        }
                        None => Ok(outcome),
                    }
                };
                let outcome = { fill }().inspect_err(|_| {
                    if !is_new {
                        // A filesystem without some of the files must not look whole.
                        let erased = open_to_format(&args.image).and_then(|device| {
                            // Copies of a superblock must not look like the rest of a whole one.
                            let _ = device.discard(ByteOffset(0), device.size_bytes());
                            erase_head(&device)
                        });
                        if let Err(error) = erased {
                            warn(format_args!("{name}: the incomplete filesystem stays: {}", line(&error)));
                        }
                    }
                })?;
                Ok((made, outcome))
            }
        }
    };
    let (made, outcome) = { make }().map_err(|error| {
        if is_new {
            // This command created the file. Half a filesystem is of no use.
            let _ = std::fs::remove_file(&args.image);
        }
        if !interrupt::is_set() {
            return error;
        }
        let left = if is_new { "it is removed" } else { "it contains no filesystem" };
        failure(interrupt::INTERRUPTED, format!("{name}: {}; {left}", line(&error)))
    })?;
    let result = match &outcome {
        Some(outcome) if outcome.problems > 0 => Err(reported(outcome.code)),
        _ => Ok(()),
    };
    if quiet && !json {
        return result;
    }
    if json {
        let mut report = made.json;
        report["path"] = args.image.to_string_lossy().into();
        if let Some(outcome) = &outcome {
            report["files"] = outcome.files.into();
            report["problems"] = outcome.problems.into();
        }
        print::json_line(&report)?;
    } else {
        let files = outcome.map_or(String::new(), |outcome| format!(", {} files", outcome.files));
        print::line(format_args!("{name}: {}{files}", made.text))?;
    }
    result
}
