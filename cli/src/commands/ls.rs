//! `ls`: the names in a directory of an image.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::{Attr, Cred, FileType, InodeRef, Vfs};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{help_without_h, image_path, image_path_bytes, join};
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{child, entries, resolve};
use crate::image::images::Images;
use crate::image::mount_options::ImageArgs;
use crate::output::colours::Colours;
use crate::output::failure::Problems;
use crate::output::{format, print};

const HELP: &str = "\
With --long: type and permissions, number of links, owner, group, size (for a device: its numbers), time \
of modification in UTC, name. Owners are numbers, since the image belongs to another system. On a \
terminal, names have the colours of LS_COLORS; NO_COLOR=1 turns them off. Of several operands, or what a \
pattern matches, files come first, with whole names, and then the names in each directory.

JSON, one object per name: name, path, ino, kind, mode (octal), uid, gid, nlink, size, mtime {sec, nsec}, \
target.

Examples:
  ivers ls disk.img
  ivers ls -la disk.img:/etc
  ivers ls disk-with-partitions.img@2:/boot
  ivers ls -lhS disk.img:/var/log
  ivers ls 'disk.img:/etc/*.conf'
  ivers ls -l nfs://server/export
  ivers ls -o offset=1048576 disk-with-partitions.img:/boot";

/// Options of `ls`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
#[command(after_long_help = HELP, arg(help_without_h()), arg(one_per_line()))]
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
    /// List directories below too
    #[arg(short = 'R', long)]
    recursive: bool,
    /// With --long: show sizes as 1.5K, 64M or 2.0G
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Sort by time of modification, newest first
    #[arg(short = 't', conflicts_with = "by_size")]
    by_time: bool,
    /// Sort by size, largest first
    #[arg(short = 'S')]
    by_size: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// List a directory itself, not the names in it
    #[arg(short, long, conflicts_with = "recursive")]
    directory: bool,
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

/// An option of ls(1) that asks for what this command always does.
fn one_per_line() -> clap::Arg {
    let arg = clap::Arg::new("one_per_line").short('1').action(clap::ArgAction::SetTrue);
    arg.help("Print one name per line; always so")
}

/// Lists operands of one image.
struct Listing<'a> {
    args: &'a Args,
    json: bool,
    colours: &'a Colours,
    vfs: &'a Vfs,
    image: &'a Path,
    entered: CycleGuard<u64>,
    problems: &'a mut Problems,
    /// Something was listed before, by this or an earlier listing.
    follows: &'a mut bool,
}

/// Runs `ivers ls`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    Colours::of_stdout();
    let (paths, mut images) = Images::of_operands(&args.paths, &args.image)?;
    // A pattern can match several directories.
    let args = &args.clone().with_paths(vec![PathBuf::new(); paths.len()]);
    let (mut problems, mut follows) = (Problems::default(), false);
    let mut opened = Vec::new();
    for (image, path) in &paths {
        let vfs = images.get(image);
        problems.report(vfs.map(|vfs| opened.push((vfs, image, path))))?;
    }
    opened.sort_by_cached_key(|(vfs, _, path)| lists_names(vfs, path, args));
    for (vfs, image, path) in opened {
        let listed = list(&vfs, image, path, args, json, &mut problems, &mut follows);
        problems.report(listed)?;
    }
    problems.into_result()
}

/// Returns whether an operand is a directory whose names are listed. As with ls(1), such operands come last:
/// a file after them would look like a name in the directory.
pub fn lists_names(vfs: &Vfs, path: &[u8], args: &Args) -> bool {
    let found = vfs.resolve(&Cred::root(), path, follows_link(path, args));
    !args.directory && found.is_ok_and(|inode| inode.kind == FileType::Directory)
}

/// Returns whether an operand that is a symbolic link is followed. As with ls(1), a link is shown if it is
/// asked about, and followed if its directory is.
fn follows_link(path: &[u8], args: &Args) -> bool {
    !(args.long || args.directory) || path.ends_with(b"/")
}

/// Lists the file or directory `path`, one of the operands. `follows`: something was listed before.
pub fn list(
    vfs: &Vfs,
    image: &Path,
    path: &[u8],
    args: &Args,
    json: bool,
    problems: &mut Problems,
    follows: &mut bool,
) -> Result<()> {
    let (colours, entered) = (Colours::of_stdout(), CycleGuard::default());
    Listing { args, json, colours, vfs, image, entered, problems, follows }.operand(path)
}

impl Listing<'_> {
    fn operand(&mut self, path: &[u8]) -> Result<()> {
        let inode = resolve(self.vfs, self.image, path, follows_link(path, self.args))?;
        if inode.kind == FileType::Directory && !self.args.directory {
            return self.directory(&inode, path, 0);
        }
        // Of several files, the last names can be equal.
        let whole = (self.args.paths.len() > 1 && !self.json).then(|| image_path_bytes(self.image, path));
        let last = path.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or(b"/");
        *self.follows = true;
        self.print_file(whole.as_deref().unwrap_or(last), path, &inode)
    }

    /// Lists a directory, `level` levels below the operand, and with --recursive those below it.
    fn directory(&mut self, dir: &InodeRef, path: &[u8], level: usize) -> Result<()> {
        let name = || image_path(self.image, path);
        let location = || format!("{}, inode {}", name(), dir.ino.0);
        self.entered.enter(dir.ino.0, level, path.len(), location)?;
        if (self.args.paths.len() > 1 || self.args.recursive) && !self.json {
            if *self.follows {
                print::line("")?;
            }
            print::line(format_args!("{}:", image_path(self.image, path)))?;
        }
        *self.follows = true;
        // Only the names of directories are kept, and only while their parent is listed.
        let mut below = Vec::new();
        if self.args.by_time || self.args.by_size || self.args.reverse {
            for name in self.sorted(dir, path)? {
                let inode = child(self.vfs, dir, &name);
                self.entry(&name, inode, path, &mut below)?;
            }
        } else {
            for (name, inode) in entries(self.vfs, dir).with_context(name)? {
                self.entry(&name, inode, path, &mut below)?;
            }
        }
        for name in below {
            let path = join(path, &name);
            let inode = child(self.vfs, dir, &name);
            let listed = inode.and_then(|inode| self.directory(&inode, &path, level + 1));
            self.problems.report(listed)?;
        }
        Ok(())
    }

    /// Returns the names in a directory in the order that the options ask for.
    fn sorted(&mut self, dir: &InodeRef, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        for (name, inode) in entries(self.vfs, dir).with_context(|| image_path(self.image, path))? {
            // A name whose inode cannot be read is reported when it is printed.
            let attr = inode.ok().map(|inode| self.vfs.stat(&inode));
            let key = |key: fn(&Attr) -> (i64, u64)| Reverse(attr.as_ref().map(key));
            let key = if self.args.by_time {
                key(|attr| (attr.mtime.sec, attr.mtime.nsec.into()))
            } else if self.args.by_size {
                key(|attr| (0, attr.size))
            } else {
                Reverse(None)
            };
            names.push((key, name));
        }
        names.sort();
        if self.args.reverse {
            names.reverse();
        }
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    fn entry(
        &mut self,
        name: &[u8],
        inode: Result<InodeRef>,
        dir: &[u8],
        below: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        if !self.args.all && name.starts_with(b".") {
            return Ok(());
        }
        let printed = inode.and_then(|inode| {
            if self.args.recursive && inode.kind == FileType::Directory {
                below.push(name.to_vec());
            }
            self.print_file(name, &join(dir, name), &inode)
        });
        self.problems.report(printed.with_context(|| image_path(self.image, dir)))
    }

    fn print_file(&self, name: &[u8], path: &[u8], inode: &InodeRef) -> Result<()> {
        let attr = self.vfs.stat(inode);
        let target = match attr.kind {
            FileType::Symlink => Some(self.vfs.read_link(&Cred::root(), inode)?),
            _ => None,
        };
        if self.json {
            let object = json!({
                "ino": inode.ino.0,
                "kind": format::kind(attr.kind),
                "mode": format!("{:o}", attr.mode()),
                "uid": attr.uid,
                "gid": attr.gid,
                "nlink": attr.nlink,
                "size": attr.size,
                "mtime": { "sec": attr.mtime.sec, "nsec": attr.mtime.nsec },
            });
            let names = [("name", Some(name)), ("path", Some(path)), ("target", target.as_deref())];
            return print::json_line(&format::with_names(object, names));
        }
        let name = self.colours.paint(name, &attr);
        if !self.args.long {
            return print::escaped_line(name);
        }
        let arrow = target.map(|target| format!(" -> {}", format::name(&target))).unwrap_or_default();
        let size = match attr.kind {
            FileType::CharDevice | FileType::BlockDevice => {
                let device = u64::from(attr.rdev);
                format!("{}, {}", rustix::fs::major(device), rustix::fs::minor(device))
            }
            _ if self.args.human_readable => format::human_size(attr.size),
            _ => attr.size.to_string(),
        };
        print::escaped_line(format_args!(
            "{} {:>3} {:>5} {:>5} {size:>10} {} {name}{arrow}",
            format::mode(attr.kind, attr.perm),
            attr.nlink,
            attr.uid,
            attr.gid,
            format::time(attr.mtime.sec),
        ))
    }
}
