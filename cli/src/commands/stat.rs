//! `stat`: change attribute, semantics and usual attributes of files.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::Vfs;
use serde::{Deserialize, Serialize};

use crate::arguments::{Operand, image_path_bytes};
use crate::file_info::{self, FileInfo};
use crate::image::directory::resolve;
use crate::image::glob;
use crate::image::images::Images;
use crate::image::mount_options::ImageArgs;
use crate::output::failure::Problems;
use crate::output::{format, print};

const HELP: &str = "\
`change` is the change attribute. It is larger after any change of the file since the last query. `stored` \
is the counter that the image contains after the inode is written back. `keeps` lists the promises: the \
change attribute covers changes of data and of metadata, it only grows (monotonic), and it survives an \
unmount (persistent) and a crash (crash_safe).

JSON, one object per file: path, ino, generation, change and stored (decimal strings; null without a change \
attribute), semantics {change_attribute, no_change_attribute, data, metadata, monotonic, persistent, \
crash_safe}, kind, mode (octal), uid, gid, nlink, size, blocks, atime, mtime, ctime, btime ({sec, nsec}; \
btime is null if unknown).

Examples:
  ivers stat mnt/file
  ivers stat --json disk.img:/etc/passwd";

/// Options of `stat`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Files on a mount, or IMAGE:/path
    #[arg(required = true, value_name = "FILE")]
    #[serde(skip)]
    files: Vec<PathBuf>,
    /// Follow a symbolic link at the end of the path
    #[arg(short = 'L', long)]
    dereference: bool,
    #[command(flatten)]
    #[serde(skip)]
    image: ImageArgs,
}

impl Args {
    /// Returns the operands.
    pub fn paths(&self) -> &[PathBuf] {
        &self.files
    }
}

/// Runs `ivers stat`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let operands: Vec<Operand> = args.files.iter().map(|file| Operand::parse(file)).collect();
    let options = args.image.options()?;
    // Files on mounts come first: the sandbox forbids access to files of the host.
    let mut on_mounts = operands
        .iter()
        .filter_map(|operand| match operand {
            Operand::Host(path) => Some(file_info::of_path(path, args.dereference)),
            Operand::Image { .. } => None,
        })
        .collect::<Vec<_>>()
        .into_iter();
    let mut images = Images::open(operands.iter().filter_map(Operand::image), &options)?;
    for operand in &operands {
        if let Operand::Image { image, path } = operand {
            images.note_path(image, path);
        }
    }
    let mut problems = Problems::default();
    for operand in &operands {
        let shown = match operand {
            Operand::Host(path) => {
                let info = on_mounts.next().context("a file was not read").and_then(|info| info);
                info.and_then(|info| show(&info, path.as_os_str().as_bytes(), json))
            }
            Operand::Image { image, path } => images.get(image).and_then(|vfs| {
                let paths = glob::expand(&vfs, image, path)?;
                paths.iter().try_for_each(|path| of_image(&vfs, image, path, args, json))
            }),
        };
        problems.report(shown)?;
    }
    problems.into_result()
}

/// Shows a file of an image.
pub fn of_image(vfs: &Vfs, image: &Path, path: &[u8], args: &Args, json: bool) -> Result<()> {
    let inode = resolve(vfs, image, path, args.dereference)?;
    show(&file_info::of_inode(vfs, &inode), &image_path_bytes(image, path), json)
}

fn show(info: &FileInfo, name: &[u8], json: bool) -> Result<()> {
    if json {
        print::json_line(&format::with_names(info.json(), [("path", Some(name))]))
    } else {
        print::line(info.text(&format::name(name)))
    }
}
