//! `ls`: the names in a directory of an image.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{display_name, image_path};
use crate::image::directory::{entries, resolve};
use crate::image::mount_options::ImageArgs;
use crate::image::open::Images;
use crate::output::failure::Problems;
use crate::output::{format, print};

const HELP: &str = "\
With --long: type and permissions, number of links, owner, group, size (for a device: its numbers), time of \
modification in UTC, name. Owners are numbers, since the image belongs to another system.

JSON, one object per name: name, ino, kind, mode (octal), uid, gid, nlink, size, mtime {sec, nsec}, target.

Examples:
  ivers ls disk.img
  ivers ls -la disk.img:/etc
  ivers ls -o offset=1048576 disk-with-partitions.img:/boot";

/// Options of `ls`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// IMAGE:/path; IMAGE alone is its root
    #[arg(required = true)]
    #[serde(skip)]
    paths: Vec<PathBuf>,
    /// Show modes, owners, sizes and times
    #[arg(short, long)]
    long: bool,
    /// Show names that start with a dot
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    #[serde(skip)]
    image: ImageArgs,
}

impl Args {
    /// Returns the operands.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Replaces the operands.
    pub fn with_paths(self, paths: Vec<PathBuf>) -> Self {
        Self { paths, ..self }
    }
}

/// Runs `ivers ls`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let (paths, mut images) = Images::of_operands(&args.paths, &args.image)?;
    // A pattern can match several directories.
    let args = &args.clone().with_paths(vec![PathBuf::new(); paths.len()]);
    let mut problems = Problems::default();
    for (image, path) in &paths {
        let listed = images.get(image).and_then(|vfs| list(&vfs, image, path, args, json, &mut problems));
        problems.report(listed)?;
    }
    problems.into_result()
}

/// Lists the file or directory `path`, one of the operands.
pub fn list(
    vfs: &Vfs,
    image: &Path,
    path: &[u8],
    args: &Args,
    json: bool,
    problems: &mut Problems,
) -> Result<()> {
    let inode = resolve(vfs, image, path, true)?;
    if inode.kind != FileType::Directory {
        let name = path.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or(b"/");
        return print_file(vfs, name, &inode, args.long, json);
    }
    if args.paths.len() > 1 && !json {
        print::line(format_args!("{}:", display_name(image, path)))?;
    }
    for (name, inode) in entries(vfs, &inode)? {
        if args.all || !name.starts_with(b".") {
            let line = inode.and_then(|inode| print_file(vfs, &name, &inode, args.long, json));
            problems.report(line.with_context(|| image_path(image, path)))?;
        }
    }
    Ok(())
}

fn print_file(vfs: &Vfs, name: &[u8], inode: &InodeRef, long: bool, json: bool) -> Result<()> {
    let attr = vfs.stat(inode);
    let target =
        if attr.kind == FileType::Symlink { Some(vfs.read_link(&Cred::root(), inode)?) } else { None };
    if json {
        return print::json_line(&json!({
            "name": format::json_name(name),
            "ino": inode.ino.0,
            "kind": format::kind(attr.kind),
            "mode": format!("{:o}", attr.mode()),
            "uid": attr.uid,
            "gid": attr.gid,
            "nlink": attr.nlink,
            "size": attr.size,
            "mtime": { "sec": attr.mtime.sec, "nsec": attr.mtime.nsec },
            "target": target.map(|target| format::json_name(&target)),
        }));
    }
    if !long {
        return print::line(format::name(name));
    }
    let arrow = target.map(|target| format!(" -> {}", format::name(&target))).unwrap_or_default();
    let size = match attr.kind {
        FileType::CharDevice | FileType::BlockDevice => {
            let device = u64::from(attr.rdev);
            format!("{}, {}", rustix::fs::major(device), rustix::fs::minor(device))
        }
        _ => attr.size.to_string(),
    };
    print::line(format_args!(
        "{} {:>3} {:>5} {:>5} {size:>10} {} {}{arrow}",
        format::mode(attr.kind, attr.perm),
        attr.nlink,
        attr.uid,
        attr.gid,
        format::time(attr.mtime.sec),
        format::name(name),
    ))
}
