//! `tree`: a directory of an image as a tree.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{image_path, join};
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{entries, resolve};
use crate::image::glob;
use crate::image::images::Images;
use crate::image::mount_options::ImageArgs;
use crate::image::open::parse_image_path;
use crate::output::colours::Colours;
use crate::output::failure::Problems;
use crate::output::{format, print};

const HELP: &str = "\
JSON, one object per file: path, ino, kind, size.

Examples:
  ivers tree disk.img:/etc
  ivers tree -L 2 disk.img";

/// Options of `tree`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// IMAGE:/path; IMAGE alone is its root
    #[serde(skip)]
    path: PathBuf,
    /// Show at most this many levels; 0 shows IMAGE:/path alone
    #[arg(short = 'L', long, default_value_t = u32::MAX, hide_default_value = true)]
    depth: u32,
    #[command(flatten)]
    #[serde(skip)]
    image: ImageArgs,
}

impl Args {
    /// Returns the operands.
    pub fn paths(&self) -> &[PathBuf] {
        std::slice::from_ref(&self.path)
    }
}

/// The state of a walk that prints a tree.
struct Tree<'a> {
    vfs: &'a Vfs,
    image: &'a Path,
    json: bool,
    colours: &'a Colours,
    levels: u32,
    entered: CycleGuard<u64>,
    problems: &'a mut Problems,
    directories: u64,
    files: u64,
}

impl Tree<'_> {
    /// Prints the contents of a directory, `depth` levels deep.
    fn print_below(&mut self, dir: &InodeRef, path: &[u8], prefix: &str, depth: u32) -> Result<()> {
        let name = || image_path(self.image, path);
        let level = (self.levels - depth) as usize;
        let location = || format!("{}, inode {}", name(), dir.ino.0);
        self.entered.enter(dir.ino.0, level, path.len(), location)?;
        let mut entries = entries(self.vfs, dir).with_context(name)?;
        while let Some((name, inode)) = entries.next() {
            let path = join(path, &name);
            let (branch, below) =
                if entries.len() == 0 { ("└── ", "    ") } else { ("├── ", "│   ") };
            let printed = inode.and_then(|inode| {
                self.print_file(&inode, &path, &name, &format!("{prefix}{branch}"))?;
                match inode.kind {
                    FileType::Directory if depth > 1 => {
                        self.print_below(&inode, &path, &format!("{prefix}{below}"), depth - 1)
                    }
                    _ => Ok(()),
                }
            });
            self.problems.report(printed)?;
        }
        Ok(())
    }

    fn print_file(&mut self, inode: &InodeRef, path: &[u8], name: &[u8], prefix: &str) -> Result<()> {
        if inode.kind == FileType::Directory {
            self.directories += 1
        } else {
            self.files += 1
        }
        if self.json {
            let object = json!({
                "ino": inode.ino.0,
                "kind": format::kind(inode.kind),
                "size": self.vfs.stat(inode).size,
            });
            return print::json_line(&format::with_names(object, [("path", Some(path))]));
        }
        let arrow = match inode.kind {
            FileType::Symlink => format!(" -> {}", format::name(&self.vfs.read_link(&Cred::root(), inode)?)),
            _ => String::new(),
        };
        let name = self.colours.paint(name, &self.vfs.stat(inode));
        print::escaped_line(format_args!("{prefix}{name}{arrow}"))
    }
}

/// Runs `ivers tree`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    Colours::of_stdout();
    let (image, path) = parse_image_path(&args.path)?;
    let mut images = Images::open([image.as_path()], &args.image.options()?)?;
    images.note_path(&image, &path);
    let vfs = images.get(&image)?;
    let mut problems = Problems::default();
    for path in glob::expand(&vfs, &image, &path)? {
        show(&vfs, &image, &path, args, json, &mut problems)?;
    }
    problems.into_result()
}

/// Shows the directory `path`.
pub fn show(
    vfs: &Vfs,
    image: &Path,
    path: &[u8],
    args: &Args,
    json: bool,
    problems: &mut Problems,
) -> Result<()> {
    let root = resolve(vfs, image, path, true)?;
    if !json {
        print::line(image_path(image, path))?;
    }
    let mut tree = Tree {
        vfs,
        image,
        json,
        colours: Colours::of_stdout(),
        levels: args.depth,
        entered: CycleGuard::default(),
        problems,
        directories: 0,
        files: 0,
    };
    if tree.levels > 0 {
        tree.print_below(&root, path, "", tree.levels)?;
    }
    if !json {
        let directories = format::count(tree.directories, "directory");
        print::line(format_args!("\n{directories}, {}", format::count(tree.files, "file")))?;
    }
    Ok(())
}
