//! `label`: shows or sets the label of a filesystem.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::MountOptions;
use serde_json::json;

use crate::image::image_files::ImageFiles;
use crate::image::mount_options::ImageArgs;
use crate::image::open::{locate, open_image, open_on};
use crate::image::open_options::ImageOptions;
use crate::image::sandbox;
use crate::output::failure::{REFUSED, failure};
use crate::output::format::Shown;
use crate::output::{format, print};

const HELP: &str = "\
A label has at most 16 bytes on ext2, ext3 and ext4, 11 characters on FAT (stored in upper case), 30 \
characters on Amiga volumes, 12 bytes on XFS, and 31 bytes on UFS. An empty NEW removes the label, except on \
Amiga volumes, which must have one. After a crash the image has the old label or the new one.

JSON: path, label.

Examples:
  ivers label disk.img
  ivers label disk.img backup
  ivers label disk-with-partitions.img@2 root";

/// Options of `label`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image, or a partition of one: IMAGE@PARTITION
    image: PathBuf,
    /// The new label
    new: Option<String>,
    #[command(flatten)]
    options: ImageArgs,
}

/// Runs `ivers label`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let image = args.image.as_path();
    let name = image.shown();
    let options = ImageOptions { read_only: args.new.is_none(), ..args.options.options()? };
    let files = open_image(image, &options)?;
    sandbox::enter(options.sandbox);
    if let Some(new) = &args.new
        && set_unmounted(&files, image, &options, new)?
    {
        return report(image, new, json);
    }
    let mount_options = MountOptions { background: false, ..MountOptions::default() };
    let vfs = open_on(Some(files), image, &options, mount_options)?;
    let Some(new) = &args.new else {
        let label = vfs.info().label.clone();
        return if json { report(image, &label, json) } else { print::line(format::name(label.as_bytes())) };
    };
    if let Some(why) = vfs.health().read_only {
        return Err(failure(REFUSED, format!("{name}: cannot be written: {why}")));
    }
    let set = vfs.set_label(new);
    // Closed also after a refused label: an image that is left open counts as crashed.
    let closed = vfs.unmount();
    set.and(closed).with_context(|| name)?;
    report(image, new, json)
}

fn report(image: &Path, new: &str, json: bool) -> Result<()> {
    if !json {
        return Ok(());
    }
    print::json_line(&format::with_paths(json!({ "label": new }), [("path", image)]))
}

/// Sets the label in the image, for a format whose labels are not set through a mount. Returns false, and
/// does nothing, for other formats.
fn set_unmounted(files: &ImageFiles, image: &Path, options: &ImageOptions, new: &str) -> Result<bool> {
    let file = &files.first.device;
    let located = locate(file, file.clone(), image, options)?;
    let Some(set_label) = located.format.set_label else { return Ok(false) };
    let name = located.image_name;
    set_label(&*located.devices.first, new, &name).with_context(|| name.clone())?;
    Ok(true)
}
