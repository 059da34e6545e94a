//! `resize`: makes an ext2, ext3 or ext4 filesystem larger or smaller.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{ByteOffset, Device, FileDevice};
use ivers_ext4::OpenOptions;
use ivers_ext4::resize::{ResizeReport, Smaller, filesystem_bytes, grow, plan_grow, shrink};
use ivers_fuse::{MOUNT, RESIZE};
use ivers_vfs::{DriverOptions, Error};
use serde_json::{Value, json};

use crate::arguments::parse_size;
use crate::file_info;
use crate::image::formats::Devices;
use crate::image::open::{Located, locate, open_image};
use crate::image::open_options::ImageOptions;
use crate::image::{foreign_formats, partitions, sandbox};
use crate::output::failure::{REFUSED, failure, usage};
use crate::output::format::Shown;
use crate::output::{format, print};

const HELP: &str = "\
Works on ext2, ext3 and ext4: on images that are not mounted, and on a directory of a mount, which only \
grows. After a crash the filesystem has the old size or the new one, with all files; a second call \
completes what was left. What cannot be resized is refused by name and unchanged (exit code 4).

Larger: an image file is extended first, if it is smaller than SIZE. A partition keeps its size: make it \
larger first (sfdisk, parted).

+SIZE grows by SIZE, -SIZE shrinks by SIZE. SIZE alone is the new size, larger or smaller.

Smaller: what lies beyond the new end is moved first. Files keep everything except their inode numbers. An \
image file is cut at the new end once the filesystem is durable, as resize2fs does. A size that is too small \
is refused with the smallest possible one. --minimum shrinks as far as the contents allow and prints what it \
reached.

JSON: path, block_size, old_blocks, blocks, inodes, groups.

Examples:
  ivers resize disk.img 4G
  ivers resize disk.img +500M
  ivers resize --grow-to-fill disk.img
  ivers resize --grow-to-fill disk-with-partitions.img@2
  ivers resize --minimum disk.img
  ivers resize mnt 8G";

/// Options of `resize`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image, a partition of one (IMAGE@PARTITION), or a directory of a mount
    image: PathBuf,
    /// The new size of the filesystem, as 512M or 10G; +SIZE grows by SIZE, -SIZE shrinks by SIZE
    #[arg(conflicts_with_all = ["grow_to_fill", "minimum"])]
    size: Option<String>,
    /// Use all of the file, device or partition
    #[arg(long)]
    grow_to_fill: bool,
    /// Make it as small as its contents allow
    #[arg(long, conflicts_with = "grow_to_fill")]
    minimum: bool,
}

/// Runs `ivers resize`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    let name = args.image.shown();
    let size = match &args.size {
        None if args.minimum => Wanted::Minimum,
        None if args.grow_to_fill => Wanted::Fill,
        None => {
            let ways = "SIZE (512M), +SIZE, -SIZE, --grow-to-fill or --minimum";
            return Err(usage(format!("{name}: no new size: give {ways}")));
        }
        Some(text) => parse_wanted(text).ok_or_else(|| {
            usage(format!("{text}: must be a size, as 512M or 10G, or a change of it, as +512M or -512M"))
        })?,
    };
    if args.image.is_dir() {
        let report = grow_mount(&args.image, size, &name)?;
        return show(args, &name, &report, json, quiet);
    }
    let is_file = std::fs::metadata(&args.image).is_ok_and(|found| found.is_file());
    let options = ImageOptions { read_only: false, ..ImageOptions::default() };
    // Only formats with one device are resized.
    let device = open_image(&args.image, &options)?.first.device;
    sandbox::enter(options.sandbox);
    let found = find(&device, &args.image, &options)?;
    let name = found.image_name.clone();
    let report = resize(&device, size, found, is_file)?;
    show(args, &name, &report, json, quiet)
}

fn show(args: &Args, name: &str, report: &ResizeReport, json: bool, quiet: bool) -> Result<()> {
    if json {
        let object = json!({
            "block_size": report.block_size,
            "old_blocks": report.old_blocks,
            "blocks": report.blocks,
            "inodes": report.inodes,
            "groups": report.groups,
        });
        return print::json_line(&format::with_paths(object, [("path", &*args.image)]));
    }
    if quiet {
        return Ok(());
    }
    print::line(format_args!(
        "{name}: {} blocks of {} bytes (before: {}), {} inodes, {}",
        report.blocks,
        report.block_size,
        report.old_blocks,
        report.inodes,
        format::count(report.groups.into(), "group")
    ))
}

/// The new size.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Wanted {
    Bytes(u64),
    More(u64),
    Less(u64),
    Fill,
    Minimum,
}

/// Parses `SIZE`, `+SIZE` or `-SIZE`.
fn parse_wanted(text: &str) -> Option<Wanted> {
    Some(match text.as_bytes().first()? {
        b'+' => Wanted::More(parse_size(&text[1..])?),
        b'-' => Wanted::Less(parse_size(&text[1..])?),
        _ => Wanted::Bytes(parse_size(text)?),
    })
}

impl Wanted {
    /// Adds a change of the size to the old size.
    fn from(self, old_bytes: u64, name: &str) -> Result<Self> {
        let bytes = match self {
            Self::More(bytes) => old_bytes.checked_add(bytes),
            Self::Less(bytes) => old_bytes.checked_sub(bytes),
            absolute => return Ok(absolute),
        };
        let why = || failure(REFUSED, format!("{name}: has {old_bytes} bytes: the change is too large"));
        bytes.map(Self::Bytes).ok_or_else(why)
    }
}

/// Returns the filesystem to resize.
fn find(file: &Arc<FileDevice>, image: &Path, options: &ImageOptions) -> Result<Located> {
    let found = match locate(file, file.clone(), image, options) {
        Ok(found) if found.format.names.contains(&"ext4") => return Ok(found),
        Ok(found) => foreign_formats::contents(&*found.devices.first),
        Err(error) if partitions::read(&**file, &image.shown())?.is_some() => {
            return Err(error);
        }
        Err(_) => {
            foreign_formats::recognise(&**file, &image.shown()).unwrap_or("no known filesystem".to_owned())
        }
    };
    // What follows a colon is a hint for mounting.
    let found = found.split(':').next().unwrap_or_default();
    let why = "only ext2, ext3 and ext4 can be resized";
    Err(failure(REFUSED, format!("{} contains {found}: {why}", image.shown())))
}

fn resize(file: &Arc<FileDevice>, wanted: Wanted, found: Located, is_file: bool) -> Result<ResizeReport> {
    let old_bytes = filesystem_bytes(&*found.devices.first, &found.image_name)?;
    match wanted.from(old_bytes, &found.image_name)? {
        Wanted::Minimum => smaller(file, Smaller::Minimum, &found, is_file),
        Wanted::Bytes(bytes) if bytes < old_bytes => smaller(file, Smaller::Bytes(bytes), &found, is_file),
        Wanted::Bytes(bytes) => larger(file, bytes, &found),
        _ => larger(file, found.devices.first.size_bytes(), &found),
    }
}

/// Grows a filesystem that is mounted: its server does it.
fn grow_mount(dir: &Path, wanted: Wanted, name: &str) -> Result<ResizeReport> {
    if file_info::served_json_if_any(dir, MOUNT)?.is_none() {
        return Err(failure(REFUSED, format!("{name}: a directory, and not on an ivers mount")));
    }
    let plan_of = |attribute: &str| {
        let plan = file_info::served_json(dir, attribute)?;
        match plan["refused"].as_str() {
            Some(why) => Err(failure(REFUSED, format!("{name}: {why}"))),
            None => Ok(plan),
        }
    };
    let number_in =
        |plan: &Value, field: &str| plan[field].as_u64().with_context(|| format!("{name}: no {field}"));
    let fill = format!("{RESIZE}.fill");
    let attribute = match wanted {
        Wanted::Minimum | Wanted::Less(_) => {
            return Err(failure(
                REFUSED,
                format!("{name}: a mounted filesystem only grows: unmount it first"),
            ));
        }
        Wanted::Fill => fill,
        Wanted::Bytes(bytes) => format!("{RESIZE}.{bytes}"),
        Wanted::More(_) => {
            let plan = plan_of(&fill)?;
            let old_bytes = number_in(&plan, "old_blocks")?.saturating_mul(number_in(&plan, "block_size")?);
            match wanted.from(old_bytes, name)? {
                Wanted::Bytes(bytes) => format!("{RESIZE}.{bytes}"),
                _ => fill,
            }
        }
    };
    let plan = plan_of(&attribute)?;
    let number = |field: &str| number_in(&plan, field);
    let report = ResizeReport {
        block_size: number("block_size")? as u32,
        old_blocks: number("old_blocks")?,
        blocks: number("blocks")?,
        inodes: number("inodes")?,
        groups: number("groups")? as u32,
    };
    xattr::set(dir, &attribute, b"1").map_err(|error| match error.raw_os_error() {
        Some(1) => failure(REFUSED, format!("{name}: only root and the owner of the mount may resize it")),
        _ => anyhow::Error::new(error).context(format!("{name}: cannot grow; the log of the mount says why")),
    })?;
    Ok(report)
}

fn options(name: &str) -> OpenOptions {
    DriverOptions { place: name.to_owned(), ..DriverOptions::default() }.into()
}

fn larger(file: &Arc<FileDevice>, wanted: u64, found: &Located) -> Result<ResizeReport> {
    let Located { devices: Devices { first: device, .. }, is_whole, image_name: name, .. } = found;
    let old_len = device.size_bytes();
    if wanted > old_len && !is_whole {
        let why = format!("the partition has {old_len} bytes, fewer than {wanted}");
        let how = "make the partition larger first (sfdisk, parted), or use --grow-to-fill";
        return Err(failure(REFUSED, format!("{name}: {why}; {how}")));
    }
    plan_grow(&**device, wanted, name)?;
    if wanted > old_len {
        file.set_len(wanted).with_context(|| format!("{name}: cannot be extended to {wanted} bytes"))?;
    }
    let grown = grow(device, wanted, ByteOffset(old_len), options(name));
    if wanted > old_len && matches!(&grown, Err(Error::Incompatible(_))) {
        // Nothing was resized: a refused file stays as it was.
        file.set_len(old_len)?;
    }
    grown.with_context(|| name.clone())
}

fn smaller(file: &Arc<FileDevice>, to: Smaller, found: &Located, is_file: bool) -> Result<ResizeReport> {
    let name = &found.image_name;
    let report = shrink(&found.devices.first, to, &options(name)).with_context(|| name.clone())?;
    let end = report.blocks * u64::from(report.block_size);
    if is_file && found.is_whole && report.blocks < report.old_blocks && end < file.size_bytes() {
        file.set_len(end).with_context(|| format!("{name}: cannot be cut to {end} bytes"))?;
        file.flush()?;
    }
    Ok(report)
}
