//! `du`: the space that directories of an image take.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::{FileType, InodeRef, Vfs};
use serde_json::json;

use crate::arguments::{help_without_h, image_path, image_path_bytes, join};
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{entries, resolve};
use crate::image::images::Images;
use crate::image::mount_options::ImageArgs;
use crate::output::failure::Problems;
use crate::output::{format, print};

const HELP: &str = "\
Prints a line for each directory, after those below it: the space of everything in it in KiB, rounded up, \
and its path. A file with several hard links counts once. Space is what the blocks of a file take: holes \
take none, and a file of one byte takes a block.

JSON, one object per line: path, bytes.

Examples:
  ivers du disk.img
  ivers du -sh disk.img:/home disk.img:/var
  ivers du -a --apparent-size disk.img:/etc";

/// Options of `du`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP, arg(help_without_h()))]
pub struct Args {
    /// IMAGE:/path; IMAGE alone is its root
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print the sum of each operand only
    #[arg(short, long, conflicts_with = "all")]
    summarize: bool,
    /// Print files too, not only directories
    #[arg(short, long)]
    all: bool,
    /// Print sizes as 1.5K, 64M or 2.0G
    #[arg(short, long)]
    human_readable: bool,
    /// Add up the sizes of files and of the targets of symbolic links, not the space of their blocks
    #[arg(long)]
    apparent_size: bool,
    #[command(flatten)]
    image: ImageArgs,
}

/// A walk that adds up space.
struct Du<'a> {
    args: &'a Args,
    json: bool,
    vfs: &'a Vfs,
    image: &'a Path,
    entered: CycleGuard<u64>,
    /// Of each file with several hard links that was counted, the links that were not met yet. A file whose
    /// links were all met leaves the table.
    links_left: &'a mut HashMap<u64, u32>,
    problems: &'a mut Problems,
}

impl Du<'_> {
    /// Returns the bytes of a file itself; 0 if another hard link of it was counted.
    fn own_bytes(&mut self, inode: &InodeRef) -> u64 {
        let attr = self.vfs.stat(inode);
        if attr.kind != FileType::Directory && attr.nlink > 1 {
            if let Some(left) = self.links_left.get_mut(&inode.ino.0) {
                *left -= 1;
                if *left == 0 {
                    self.links_left.remove(&inode.ino.0);
                }
                return 0;
            }
            self.links_left.insert(inode.ino.0, attr.nlink - 1);
        }
        match attr.kind {
            _ if !self.args.apparent_size => attr.blocks_512.saturating_mul(512),
            FileType::Regular | FileType::Symlink => attr.size,
            _ => 0,
        }
    }

    /// Returns the bytes of a file and everything below it. `level`: directories between it and the operand.
    fn add_up(&mut self, inode: &InodeRef, path: &[u8], level: usize) -> Result<u64> {
        let name = || image_path(self.image, path);
        let is_dir = inode.kind == FileType::Directory;
        let mut bytes = self.own_bytes(inode);
        if is_dir {
            let location = || format!("{}, inode {}", name(), inode.ino.0);
            self.entered.enter(inode.ino.0, level, path.len(), location)?;
            for (child, inode) in entries(self.vfs, inode).with_context(name)? {
                let path = join(path, &child);
                match inode.with_context(name).and_then(|inode| self.add_up(&inode, &path, level + 1)) {
                    Ok(more) => bytes = bytes.saturating_add(more),
                    Err(error) => self.problems.report(Err(error))?,
                }
            }
        }
        if level == 0 || (!self.args.summarize && (is_dir || self.args.all)) {
            self.print(path, bytes)?;
        }
        Ok(bytes)
    }

    fn print(&self, path: &[u8], bytes: u64) -> Result<()> {
        if self.json {
            let path = image_path_bytes(self.image, path);
            let object = format::with_names(json!({ "bytes": bytes }), [("path", Some(&path[..]))]);
            return print::json_line(&object);
        }
        let size = match self.args.human_readable {
            true => format::human_size(bytes),
            false => bytes.div_ceil(1024).to_string(),
        };
        print::escaped_line(format_args!("{size}\t{}", image_path(self.image, path)))
    }
}

/// Runs `ivers du`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let (paths, mut images) = Images::of_operands(&args.paths, &args.image)?;
    let mut problems = Problems::default();
    let mut links_left = HashMap::new();
    let mut last = None;
    for (image, path) in &paths {
        // Inode numbers of another image are those of other files.
        if last.replace(image).is_some_and(|last| last != image) {
            links_left.clear();
        }
        let added = images.get(image).and_then(|vfs| {
            let inode = resolve(&vfs, image, path, false)?;
            let entered = CycleGuard::default();
            let (links_left, problems) = (&mut links_left, &mut problems);
            Du { args, json, vfs: &vfs, image, entered, links_left, problems }.add_up(&inode, path, 0)
        });
        problems.report(added.map(drop))?;
    }
    problems.into_result()
}
