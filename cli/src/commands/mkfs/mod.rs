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
use crate::output::format as output_format;
use crate::output::format::Shown;
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
        let name = args.image.shown();
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
    let name = args.image.shown();
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
        new.erase_old(&device).with_context(|| name.clone())?;
        erase_head(&*device).with_context(|| name.clone())?;
    }
    let with_progress: Arc<dyn Device> = Arc::new(WithProgress { device, progress: Progress::unbounded() });
    new.make(&with_progress).with_context(|| name)
}

/// Makes the smallest filesystem in which the files fit.
fn write_smallest(args: &Args, new: &NewFilesystem, filling: &mut Filling) -> Result<(Made, FillOutcome)> {
    let name = args.image.shown();
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

/// Where the filesystem is made, as the arguments and the file say.
struct Place {
    name: String,
    /// There is no file yet.
    is_new: bool,
    /// A block device or a partition.
    has_fixed_size: bool,
    /// The length of the file, in bytes.
    old_len: u64,
    /// The length that it will have, in bytes; 0 if the files decide.
    new_len: u64,
    /// As small as the files fit.
    is_auto: bool,
}

impl Place {
    /// Checks the arguments about the place.
    fn new(args: &Args) -> Result<Self> {
        let name = args.image.shown();
        let is_auto = args.size.as_deref() == Some("auto");
        let size = args.size.as_deref().filter(|_| !is_auto).map(|text| {
            parse_size(text).ok_or_else(|| usage(format!("--size {text}: must be a size, as 512M or 10G")))
        });
        let size = size.transpose()?;
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
        let is_new = found.is_none() && !args.image.is_symlink();
        Ok(Self { name, is_new, has_fixed_size, old_len, new_len: size.unwrap_or(old_len), is_auto })
    }

    /// Whether the new filesystem starts in a file without contents.
    fn is_empty_file(&self) -> bool {
        self.old_len == 0 && !self.has_fixed_size
    }
}

/// Makes the filesystem and fills it.
fn make(
    args: &Args,
    place: &Place,
    new: &NewFilesystem,
    mut filling: Option<Filling>,
) -> Result<(Made, Option<FillOutcome>)> {
    if let Some(filling) = filling.as_mut().filter(|_| place.is_auto) {
        let (made, outcome) = write_smallest(args, new, filling)?;
        return Ok((made, Some(outcome)));
    }
    let grows = place.new_len > place.old_len && !place.has_fixed_size;
    let made = write(args, new, grows.then_some(place.new_len), place.old_len > 0)?;
    let outcome = fill(args, place, filling).inspect_err(|_| {
        if !place.is_new {
            erase_incomplete(args);
        }
    })?;
    Ok((made, outcome))
}

/// Fills the filesystem. It is an error if the files do not fit.
fn fill(args: &Args, place: &Place, filling: Option<Filling>) -> Result<Option<FillOutcome>> {
    interrupt::check()?;
    let Some(mut filling) = filling else { return Ok(None) };
    let outcome = filling.fill(&args.image, false)?;
    match &outcome.full {
        Some(why) => {
            let how = if place.has_fixed_size { "the size is fixed" } else { "choose a larger --size" };
            Err(failure(FAILED, format!("{}: {why}; {how}", place.name)))
        }
        None => Ok(Some(outcome)),
    }
}

/// Erases a filesystem that has only some of the files: it must not look whole.
fn erase_incomplete(args: &Args) {
    let erased = open_to_format(&args.image).and_then(|device| {
        // Copies of a superblock must not look like the rest of a whole one.
        let _ = device.discard(ByteOffset(0), device.size_bytes());
        erase_head(&device)
    });
    if let Err(error) = erased {
        let name = args.image.shown();
        warn(format_args!("{name}: the incomplete filesystem stays: {}", line(&error)));
    }
}

/// Prints what was made.
fn print_made(args: &Args, made: Made, outcome: Option<&FillOutcome>, json: bool) -> Result<()> {
    if !json {
        let files = outcome.map_or(String::new(), |outcome| format!(", {} files", outcome.files));
        return print::line(format_args!("{}: {}{files}", args.image.shown(), made.text));
    }
    let mut report = output_format::with_paths(made.json, [("path", &*args.image)]);
    if let Some(outcome) = outcome {
        report["files"] = outcome.files.into();
        report["problems"] = outcome.problems.into();
    }
    print::json_line(&report)
}

/// Runs `ivers mkfs`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    let mut new = NewFilesystem::new(args)?;
    let latest = args.timestamp.map_or_else(source_date_epoch, |seconds| Ok(Some(seconds.into())))?;
    let root_owner = new.root_owner().filter(|_| args.root_owner.is_some());
    let place = Place::new(args)?;
    // Checked for the final size before the file is created or changed.
    if !place.has_fixed_size && !place.is_auto {
        new.plan(place.new_len, &place.name)?;
    }
    let fill_options = FillOptions { time: new.time(), latest, root_owner, ..FillOptions::default() };
    let filling = Filling::open(&args.filling, fill_options)?;
    if filling.is_some() {
        interrupt::catch_once()?;
    }
    // A new file reads as zeros, so tables and journal need no zeroing.
    if place.is_empty_file() {
        new.set_zeroed();
    }
    let (made, outcome) = make(args, &place, &new, filling).map_err(|error| {
        if place.is_new {
            // This command created the file. Half a filesystem is of no use.
            let _ = std::fs::remove_file(&args.image);
        }
        if !interrupt::is_set() {
            return error;
        }
        let left = if place.is_new { "it is removed" } else { "it contains no filesystem" };
        failure(interrupt::INTERRUPTED, format!("{}: {}; {left}", place.name, line(&error)))
    })?;
    if json || !quiet {
        print_made(args, made, outcome.as_ref(), json)?;
    }
    match &outcome {
        Some(outcome) if outcome.problems > 0 => Err(reported(outcome.code)),
        _ => Ok(()),
    }
}
