//! `scrub`: reads all copies of everything with a checksum, and mends bad copies.

use std::path::PathBuf;

use anyhow::Result;
use ivers_btrfs::check::Scrubbed;
use serde_json::json;

use crate::image::mount_options::ImageArgs;
use crate::image::open;
use crate::image::open_options::ImageOptions;
use crate::output::failure::{is_broken_pipe, reported, reported_as};
use crate::output::{findings, format, print};

/// Exit code: bad copies were mended, and nothing else is wrong.
const MENDED: u8 = 1;
/// Exit code: something is wrong.
const LEFT: u8 = 4;
/// Exit code: the scrub could not be done.
const OPERATIONAL: u8 = 8;

const HELP: &str = "\
Reads all copies of superblocks, blocks of trees, and data with checksums. If a copy is bad and another one \
is right (superblocks, DUP, RAID1, RAID10), the bad one is mended: overwritten with the right one. If all \
copies are bad, the place is reported, with the file. Data without checksums (nodatasum, nodatacow, \
preallocated) is not read, because it is unknown whether it is right. The image must not be mounted; a \
writable mount mends bad copies that it reads. Format: btrfs. A scrub does not find trees that contradict \
each other: use ivers check.

JSON: one object a finding, as with ivers check, then a summary (image, blocks, data_bytes, unknown_bytes, \
mended, left, codes with their counts, notes).

Exit codes are those of fsck(8):
  0   all copies are right
  1   bad copies were mended; nothing else is wrong
  4   something is wrong that was not mended
  8   the scrub could not be done: I/O error, unsupported format or
      feature, image in use
  16  the command line is wrong

Examples:
  ivers scrub disk.img
  ivers scrub --read-only disk.img";

/// Options of `scrub`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// An image or a device; several of one filesystem: IMAGE,IMAGE
    image: PathBuf,
    /// Only report bad copies
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    options: ImageArgs,
}

/// Runs `ivers scrub`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    let options = args.options.options().map_err(|error| reported_as(&error, super::check::USAGE))?;
    let options = ImageOptions { read_only: args.read_only, ..options };
    let done = open::scrub_image(&args.image, &options).map_err(|error| reported_as(&error, OPERATIONAL))?;
    let printed = if json { print_json(args, &done) } else { print_text(args, &done, quiet) };
    match printed {
        // The exit code still reports what was found.
        Err(error) if !is_broken_pipe(&error) => return Err(reported_as(&error, OPERATIONAL)),
        _ => {}
    }
    match (done.left, done.mended) {
        (0, 0) => Ok(()),
        (0, _) => Err(reported(MENDED)),
        _ => Err(reported(LEFT)),
    }
}

fn print_json(args: &Args, done: &Scrubbed) -> Result<()> {
    findings::print_json(&done.found)?;
    let end = json!({
        "blocks": done.blocks,
        "data_bytes": done.data_bytes,
        "unknown_bytes": done.unknown_bytes,
        "mended": done.mended,
        "left": done.left,
        "codes": findings::json_counts(&done.found),
        "notes": done.found.notes(),
    });
    print::json_line(&format::with_paths(end, [("image", &*args.image)]))
}

fn print_text(args: &Args, done: &Scrubbed, quiet: bool) -> Result<()> {
    let image = format::name(args.image.as_os_str().as_encoded_bytes());
    findings::print(&image, &done.found)?;
    if quiet && done.found.is_clean() {
        return Ok(());
    }
    let Scrubbed { blocks, data_bytes, unknown_bytes, mended, left, .. } = done;
    let unknown = match unknown_bytes {
        0 => String::new(),
        bytes => format!("; {bytes} bytes have no checksum"),
    };
    print::line(format_args!(
        "{image}: {blocks} copies of blocks and {data_bytes} bytes of data read{unknown}; {mended} copies \
         mended, {left} defects left"
    ))
}
