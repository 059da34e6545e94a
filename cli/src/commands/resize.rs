//! `resize`: makes an ext2, ext3 or ext4 filesystem larger.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{ByteOffset, Device, FileDevice};
use ivers_ext4::resize::{ResizeReport, grow, plan_grow};
use ivers_vfs::{DriverOptions, Error};
use serde_json::json;

use crate::arguments::parse_size;
use crate::image::open::{Located, locate, open_image};
use crate::image::open_options::ImageOptions;
use crate::image::{foreign_formats, partitions, sandbox};
use crate::output::failure::{REFUSED, failure, usage};
use crate::output::print;

const HELP: &str = "\
Works on ext2, ext3 and ext4 that are not mounted, and only makes them larger. An image file is extended \
first, if it is smaller than SIZE. A partition keeps its size: make it larger first (sfdisk, parted). \
After a crash the filesystem has the old size or the new one; a second call completes what was left. What \
cannot be resized is refused by name and unchanged (exit code 4).

JSON: path, block_size, old_blocks, blocks, inodes, groups.

Examples:
  ivers resize disk.img 4G
  ivers resize --grow-to-fill disk.img
  ivers resize --grow-to-fill disk-with-partitions.img@2";

/// Options of `resize`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image, or a partition of one: IMAGE@PARTITION
    image: PathBuf,
    /// The new size of the filesystem, as 512M or 10G
    #[arg(required_unless_present = "grow_to_fill", conflicts_with = "grow_to_fill")]
    size: Option<String>,
    /// Use all of the file, device or partition
    #[arg(long)]
    grow_to_fill: bool,
}

/// Runs `ivers resize`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    let name = args.image.display().to_string();
    let wanted = match &args.size {
        None => None,
        Some(text) => {
            Some(parse_size(text).ok_or_else(|| usage(format!("{text}: must be a size, as 512M or 10G")))?)
        }
    };
    let options = ImageOptions { read_only: false, ..ImageOptions::default() };
    let device = Arc::new(open_image(&args.image, &options)?);
    sandbox::enter(options.sandbox);
    let found = find(&device, &args.image, &options)?;
    let report = resize(&device, wanted, found)?;
    if json {
        return print::json_line(&json!({
            "path": args.image.to_string_lossy(),
            "block_size": report.block_size,
            "old_blocks": report.old_blocks,
            "blocks": report.blocks,
            "inodes": report.inodes,
            "groups": report.groups,
        }));
    }
    if quiet {
        return Ok(());
    }
    print::line(format_args!(
        "{name}: {} blocks of {} bytes (before: {}), {} inodes, {} groups",
        report.blocks, report.block_size, report.old_blocks, report.inodes, report.groups
    ))
}

/// Returns the filesystem to resize.
fn find(file: &Arc<FileDevice>, image: &Path, options: &ImageOptions) -> Result<Located> {
    let found = match locate(file, file.clone(), image, options) {
        Ok(found) if found.format.names.contains(&"ext4") => return Ok(found),
        Ok(found) => foreign_formats::contents(&*found.device),
        Err(error) if partitions::read(&**file, &image.display().to_string())?.is_some() => {
            return Err(error);
        }
        Err(_) => foreign_formats::recognise(&**file, &image.display().to_string())
            .unwrap_or("no known filesystem".to_owned()),
    };
    // What follows a colon is a hint for mounting.
    let found = found.split(':').next().unwrap_or_default();
    let why = "only ext2, ext3 and ext4 can be resized";
    Err(failure(REFUSED, format!("{} contains {found}: {why}", image.display())))
}

fn resize(file: &Arc<FileDevice>, wanted: Option<u64>, found: Located) -> Result<ResizeReport> {
    let Located { device, is_whole, image_name: name, .. } = found;
    let old_len = device.size_bytes();
    let wanted = wanted.unwrap_or(old_len);
    if wanted > old_len && !is_whole {
        let why = format!("the partition has {old_len} bytes, fewer than {wanted}");
        let how = "make the partition larger first (sfdisk, parted), or use --grow-to-fill";
        return Err(failure(REFUSED, format!("{name}: {why}; {how}")));
    }
    plan_grow(&*device, wanted, &name)?;
    if wanted > old_len {
        file.set_len(wanted).with_context(|| format!("{name}: cannot be extended to {wanted} bytes"))?;
    }
    let options = DriverOptions { place: name.clone(), ..DriverOptions::default() };
    let grown = grow(&device, wanted, ByteOffset(old_len), options.into());
    if wanted > old_len && matches!(&grown, Err(Error::Incompatible(_))) {
        // Nothing was resized: a refused file stays as it was.
        file.set_len(old_len)?;
    }
    grown.context(name)
}
