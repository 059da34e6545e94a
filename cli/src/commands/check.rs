//! `check`: reads an image whole and reports what is wrong in it.

use std::path::PathBuf;

use anyhow::Result;
use ivers_vfs::check::Findings;
use serde_json::json;

use crate::image::mount_options::ImageArgs;
use crate::image::open;
use crate::output::failure::{is_broken_pipe, reported, reported_as};
use crate::output::{findings, format, print};

/// Exit code: findings were reported.
const UNCORRECTED: u8 = 4;
/// Exit code: the check could not be done.
const OPERATIONAL: u8 = 8;
/// Exit code: the command line is wrong.
pub const USAGE: u8 = 16;

const HELP: &str = "\
Reads all structures of the filesystem, trusts none of them, and writes nothing. A journal that must be \
replayed is replayed in memory; the result is checked, and a note says so. A note also says if a filesystem \
without a journal was not unmounted cleanly; alone, that is no finding. An image that the kernel has mounted \
for writing is in use. Formats: ext2, ext3, ext4, FAT12, FAT16, FAT32, OFS, FFS, XFS, btrfs, OCFS2 and \
UFS. To repair an image, use the format's own tool: e2fsck, fsck.fat, xfs_repair, fsck.ocfs2, \
fsck_ffs; for btrfs, ask its developers before you use btrfs check --repair. A check that needs more memory \
than -o cache= (by default 256M) ends with an error.

With --data, the check also reads all copies of the contents of files, and compares them with their \
checksums. Only btrfs has such checksums.

Each finding has its place (group, inode, path, block, as far as known) and a code such as \
block-claimed-twice, which does not change between versions; docs/check.md lists them.

JSON: one object a finding (code, group, inode, path, block, what), then a summary (image, format, clean, \
findings, codes with their counts, notes).

Exit codes differ from those of the other commands. They are those of fsck(8):
  0   nothing is wrong
  4   something is wrong; nothing was changed
  8   the check could not be done: I/O error, unsupported format or
      feature, image in use
  16  the command line is wrong

Examples:
  ivers check disk.img
  ivers check --data disk.img
  ivers check --json -o offset=1M disk.img";

/// Options of `check`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// An image or a device; several of one btrfs: IMAGE,IMAGE
    image: PathBuf,
    /// Compare the contents of files with their checksums, too (btrfs)
    #[arg(long)]
    data: bool,
    #[command(flatten)]
    options: ImageArgs,
}

/// Runs `ivers check`.
pub fn run(args: &Args, json: bool, quiet: bool) -> Result<()> {
    let options = args.options.options().map_err(|error| reported_as(&error, USAGE))?;
    let checked = open::check_image(&args.image, &options, args.data);
    let (name, found) = checked.map_err(|error| reported_as(&error, OPERATIONAL))?;
    let printed = if json { print_json(args, name, &found) } else { print_text(args, name, &found, quiet) };
    match printed {
        // The exit code still says what was found.
        Err(error) if !is_broken_pipe(&error) => return Err(reported_as(&error, OPERATIONAL)),
        _ => {}
    }
    if found.is_clean() { Ok(()) } else { Err(reported(UNCORRECTED)) }
}

fn print_json(args: &Args, name: &str, found: &Findings) -> Result<()> {
    findings::print_json(found)?;
    let end = json!({
        "format": name,
        "clean": found.is_clean(),
        "findings": found.total(),
        "codes": findings::json_counts(found),
        "notes": found.notes(),
    });
    print::json_line(&format::with_paths(end, [("image", &*args.image)]))
}

fn print_text(args: &Args, name: &str, found: &Findings, quiet: bool) -> Result<()> {
    let image = format::name(args.image.as_os_str().as_encoded_bytes());
    findings::print(&image, found)?;
    if found.is_clean() {
        return if quiet { Ok(()) } else { print::line(format_args!("{image}: {name}: clean")) };
    }
    let in_words = findings::in_words(found);
    print::line(format_args!("{image}: {name}: {in_words}; nothing was changed"))
}
