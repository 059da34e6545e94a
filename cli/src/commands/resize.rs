//! `resize`: makes an ext2, ext3 or ext4 filesystem larger.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{ByteOffset, Device, FileDevice};
use ivers_ext4::resize::{ResizeReport, grow, plan_grow};
use ivers_vfs::{DriverOptions, Error};
use serde_json::json;

use crate::arguments::parse_size;
use crate::image::open::open_image;
use crate::image::open_options::ImageOptions;
use crate::image::sandbox;
use crate::image::{foreign_formats, formats};
use crate::output::failure::{REFUSED, failure, usage};
use crate::output::print;

const HELP: &str = "\
Works on ext2, ext3 and ext4 that are not mounted, and only makes them larger. An image file is extended \
first, if it is smaller than SIZE. After a crash the filesystem has the old size or the new one; a second \
call completes what was left. What cannot be resized is refused by name and unchanged (exit code 4).

JSON: path, block_size, old_blocks, blocks, inodes, groups.

Examples:
  ivers resize disk.img 4G
  ivers resize --grow-to-fill disk.img";

/// Options of `resize`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image
    image: PathBuf,
    /// The new size of the filesystem, as 512M or 10G
    #[arg(required_unless_present = "grow_to_fill", conflicts_with = "grow_to_fill")]
    size: Option<String>,
    /// Use all of the file or device
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
    let report = resize(&device, wanted, &name)?;
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

fn resize(device: &Arc<FileDevice>, wanted: Option<u64>, name: &str) -> Result<ResizeReport> {
    match formats::recognise(&**device)? {
        Some(format) if format.names.contains(&"ext4") => {}
        found => {
            let found = match found {
                Some(_) => foreign_formats::contents(&**device),
                None => foreign_formats::recognise(&**device).unwrap_or("no known filesystem".to_owned()),
            };
            // What follows a colon is a hint for mounting.
            let found = found.split(':').next().unwrap_or_default();
            return Err(failure(
                REFUSED,
                format!("{name} contains {found}: only ext2, ext3 and ext4 can be resized"),
            ));
        }
    }
    let old_len = device.size_bytes();
    let wanted = wanted.unwrap_or(old_len);
    plan_grow(&**device, wanted, name)?;
    if wanted > old_len {
        device.set_len(wanted).with_context(|| format!("{name}: cannot be extended to {wanted} bytes"))?;
    }
    let shared: Arc<dyn Device> = device.clone();
    let options = DriverOptions { place: name.to_owned(), ..DriverOptions::default() };
    let grown = grow(&shared, wanted, ByteOffset(old_len), options.into());
    if wanted > old_len && matches!(&grown, Err(Error::Incompatible(_))) {
        // Nothing was resized: a refused file stays as it was.
        device.set_len(old_len)?;
    }
    grown.with_context(|| name.to_owned())
}
