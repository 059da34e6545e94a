//! `stat`, `ls`, `cat`, `tree`, `info`, `stats`.

use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_vfs::{Cred, FileType, InodeRef, NameError, Vfs};
use serde_json::{Value, json};

use crate::dirs::Dirs;
use crate::failure::{FAILED, Output, REFUSED, Tally, failure, usage};
use crate::image::{self, Images, Place};
use crate::{args, facts, serve, show};

/// What a directory of an image holds, sorted by name, without `.` and `..`. A damaged inode spoils its own name alone.
pub fn entries(vfs: &Vfs, dir: &InodeRef) -> Result<Vec<(Vec<u8>, Result<InodeRef>)>> {
    let mut names = Vec::new();
    vfs.readdir(dir, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push(entry.name.to_vec());
        }
        ControlFlow::Continue(())
    })?;
    names.sort();
    let cred = Cred::root();
    let look = |name: Vec<u8>| {
        let inode = vfs.lookup(&cred, dir, &name).with_context(|| show::name(&name));
        (name, inode)
    };
    Ok(names.into_iter().map(look).collect())
}

fn resolve(vfs: &Vfs, image: &Path, path: &[u8], follow: bool) -> Result<InodeRef> {
    vfs.resolve(&Cred::root(), path, follow).with_context(|| image::name(image, path))
}

/// An image and a path in it.
type InImage = (PathBuf, Vec<u8>);

/// What the words of a command line name, and their images.
fn in_images(words: &[PathBuf], args: &args::Image) -> Result<(Vec<InImage>, Images)> {
    let places: Vec<_> = words.iter().map(|word| in_image(word)).collect::<Result<_>>()?;
    let images = Images::open(places.iter().map(|(image, _)| image.as_path()), &args.how()?)?;
    Ok((places, images))
}

fn in_image(word: &Path) -> Result<InImage> {
    match Place::parse_image(word) {
        Place::Image { image, path } => Ok((image, path)),
        Place::Host(path) => Err(usage(format!(
            "{} is a directory: name an image or IMAGE:/path (on a mount, use the system's own command)",
            path.display()
        ))),
    }
}

/// `ivers stat`.
pub fn stat(args: &args::Stat, json: bool) -> Result<()> {
    let places: Vec<Place> = args.files.iter().map(|file| Place::parse(file)).collect();
    let how = args.image.how()?;
    // Before the sandbox, in which the system's files cannot be asked.
    let mut on_mounts = places
        .iter()
        .filter_map(|place| match place {
            Place::Host(path) => Some(facts::of_path(path, args.dereference)),
            Place::Image { .. } => None,
        })
        .collect::<Vec<_>>()
        .into_iter();
    let mut images = Images::open(places.iter().filter_map(Place::image), &how)?;
    let mut tally = Tally::default();
    for place in &places {
        let mut look = || -> Result<()> {
            let (facts, name) = match place {
                Place::Host(path) => {
                    let facts = on_mounts.next().context("a file that was not asked")??;
                    (facts, show::json_name(path.as_os_str().as_bytes()))
                }
                Place::Image { image, path } => {
                    let vfs = images.get(image)?;
                    let inode = resolve(&vfs, image, path, args.dereference)?;
                    (facts::of_inode(&vfs, &inode), image::name(image, path))
                }
            };
            if json {
                show::json_line(&facts.json(&name))
            } else {
                show::line(facts.text(&show::name(name.as_bytes())))
            }
        };
        tally.take(look())?;
    }
    tally.end()
}

fn ls_line(vfs: &Vfs, name: &[u8], inode: &InodeRef, long: bool, json: bool) -> Result<()> {
    let attr = vfs.stat(inode);
    let target = if attr.kind == FileType::Symlink { Some(vfs.read_link(inode)?) } else { None };
    if json {
        return show::json_line(&json!({
            "name": show::json_name(name),
            "ino": inode.ino.0,
            "kind": show::kind(attr.kind),
            "mode": format!("{:o}", attr.mode()),
            "uid": attr.uid,
            "gid": attr.gid,
            "nlink": attr.nlink,
            "size": attr.size,
            "mtime": { "sec": attr.mtime.sec, "nsec": attr.mtime.nsec },
            "target": target.map(|t| show::json_name(&t)),
        }));
    }
    if !long {
        return show::line(show::name(name));
    }
    let arrow = target.map(|t| format!(" -> {}", show::name(&t))).unwrap_or_default();
    let size = match attr.kind {
        FileType::CharDevice | FileType::BlockDevice => {
            let device = u64::from(attr.rdev);
            format!("{}, {}", rustix::fs::major(device), rustix::fs::minor(device))
        }
        _ => attr.size.to_string(),
    };
    show::line(format_args!(
        "{} {:>3} {:>5} {:>5} {size:>10} {} {}{arrow}",
        show::mode(attr.kind, attr.perm),
        attr.nlink,
        attr.uid,
        attr.gid,
        show::time(attr.mtime.sec),
        show::name(name),
    ))
}

/// `ivers ls`.
pub fn ls(args: &args::Ls, json: bool) -> Result<()> {
    let (places, mut images) = in_images(&args.paths, &args.image)?;
    let mut tally = Tally::default();
    for (image, path) in &places {
        let listed = images.get(image).and_then(|vfs| ls_one(&vfs, image, path, args, json, &mut tally));
        tally.take(listed)?;
    }
    tally.end()
}

fn ls_one(
    vfs: &Vfs,
    image: &Path,
    path: &[u8],
    args: &args::Ls,
    json: bool,
    tally: &mut Tally,
) -> Result<()> {
    let inode = resolve(vfs, image, path, true)?;
    if inode.kind != FileType::Directory {
        let name = path.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or(b"/");
        return ls_line(vfs, name, &inode, args.long, json);
    }
    if args.paths.len() > 1 && !json {
        show::line(format_args!("{}:", image::shown(image, path)))?;
    }
    for (name, inode) in entries(vfs, &inode)? {
        if args.all || !name.starts_with(b".") {
            let line = inode.and_then(|inode| ls_line(vfs, &name, &inode, args.long, json));
            tally.take(line.with_context(|| image::name(image, path)))?;
        }
    }
    Ok(())
}

/// Hand the contents of a file over, piece by piece.
fn pour(vfs: &Vfs, inode: &InodeRef, mut sink: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        match vfs.read(inode, offset, &mut buffer)? {
            0 => return Ok(()),
            n => {
                sink(&buffer[..n])?;
                offset += n as u64;
            }
        }
    }
}

/// `ivers cat`.
pub fn cat(args: &args::Cat, json: bool) -> Result<()> {
    let (places, mut images) = in_images(&args.files, &args.image)?;
    let mut out = std::io::stdout().lock();
    let mut tally = Tally::default();
    for (image, path) in &places {
        let shown = images.get(image).and_then(|vfs| cat_one(&vfs, image, path, json, &mut out));
        tally.take(shown)?;
    }
    out.flush().map_err(Output)?;
    tally.end()
}

fn cat_one(vfs: &Vfs, image: &Path, path: &[u8], json: bool, out: &mut impl Write) -> Result<()> {
    let inode = resolve(vfs, image, path, true)?;
    let name = image::name(image, path);
    if inode.kind != FileType::Regular {
        if inode.kind == FileType::Directory {
            return Err(anyhow::Error::from(ivers_vfs::Error::from(NameError::IsDirectory)).context(name));
        }
        let kind = show::kind_in_words(inode.kind);
        return Err(failure(FAILED, format!("{name}: a {kind}: it has no contents in the image")));
    }
    if !json {
        return pour(vfs, &inode, |bytes| Ok(out.write_all(bytes).map_err(Output)?)).context(name);
    }
    let mut contents = Vec::new();
    pour(vfs, &inode, |bytes| {
        contents.extend_from_slice(bytes);
        Ok(())
    })?;
    let text = String::from_utf8(contents)
        .map_err(|_| usage(format!("{name} is no text: use cat without --json")))?;
    Ok(writeln!(out, "{}", json!({ "path": name, "contents": text })).map_err(Output)?)
}

/// What a tree is drawn with.
struct Tree<'a> {
    vfs: &'a Vfs,
    image: &'a Path,
    json: bool,
    levels: u32,
    been: Dirs<u64>,
    tally: Tally,
    directories: u64,
    files: u64,
}

impl Tree<'_> {
    fn grow(&mut self, dir: &InodeRef, path: &[u8], prefix: &str, depth: u32) -> Result<()> {
        let place = || image::name(self.image, path);
        let level = (self.levels - depth) as usize;
        let numbered = || format!("{}, inode {}", place(), dir.ino.0);
        self.been.enter(dir.ino.0, level, path.len(), numbered)?;
        let entries = entries(self.vfs, dir).with_context(place)?;
        let last = entries.len().saturating_sub(1);
        for (at, (name, inode)) in entries.into_iter().enumerate() {
            let path = image::join(path, &name);
            let (branch, below) = if at == last { ("└── ", "    ") } else { ("├── ", "│   ") };
            let leaf = inode.and_then(|inode| {
                self.leaf(&inode, &path, &name, &format!("{prefix}{branch}"))?;
                Ok(inode)
            });
            let grown = leaf.and_then(|inode| match inode.kind {
                FileType::Directory if depth > 1 => {
                    self.grow(&inode, &path, &format!("{prefix}{below}"), depth - 1)
                }
                _ => Ok(()),
            });
            self.tally.take(grown)?;
        }
        Ok(())
    }

    fn leaf(&mut self, inode: &InodeRef, path: &[u8], name: &[u8], prefix: &str) -> Result<()> {
        if inode.kind == FileType::Directory {
            self.directories += 1
        } else {
            self.files += 1
        }
        if self.json {
            return show::json_line(&json!({
                "path": show::json_name(path),
                "ino": inode.ino.0,
                "kind": show::kind(inode.kind),
                "size": self.vfs.stat(inode).size,
            }));
        }
        let arrow = match inode.kind {
            FileType::Symlink => format!(" -> {}", show::name(&self.vfs.read_link(inode)?)),
            _ => String::new(),
        };
        show::line(format_args!("{prefix}{}{arrow}", show::name(name)))
    }
}

/// `ivers tree`.
pub fn tree(args: &args::Tree, json: bool) -> Result<()> {
    let (image, path) = in_image(&args.path)?;
    let vfs = Images::open([image.as_path()], &args.image.how()?)?.get(&image)?;
    let root = resolve(&vfs, &image, &path, true)?;
    if !json {
        show::line(image::shown(&image, &path))?;
    }
    let mut tree = Tree {
        vfs: &vfs,
        image: &image,
        json,
        levels: args.depth.max(1),
        been: Dirs::default(),
        tally: Tally::default(),
        directories: 0,
        files: 0,
    };
    tree.grow(&root, &path, "", tree.levels)?;
    if !json {
        show::line(format_args!("\n{} directories, {} files", tree.directories, tree.files))?;
    }
    tree.tally.end()
}

/// `ivers info`.
pub fn info(args: &args::Info, json: bool) -> Result<()> {
    let mut facts: Value = if args.target.is_dir() {
        let mut mount = facts::served_json(&args.target, ivers_fuse::MOUNT)?;
        mount["semantics"] = facts::served_json(&args.target, ivers_fuse::SEMANTICS)?;
        let space = rustix::fs::statvfs(&args.target).with_context(|| args.target.display().to_string())?;
        let space = [
            ("block_size", space.f_frsize),
            ("blocks", space.f_blocks),
            ("blocks_free", space.f_bfree),
            ("files", space.f_files),
            ("files_free", space.f_ffree),
        ];
        for (name, value) in space {
            mount[name] = value.into();
        }
        mount
    } else {
        let image = args.target.as_path();
        let vfs = Images::open([image], &args.image.how()?)?.get(image)?;
        let info = vfs.info();
        let space = vfs.stat_fs()?;
        json!({
            "fs": info.fs_type,
            "uuid": uuid::Uuid::from_bytes(info.uuid).to_string(),
            "label": info.label,
            "block_size": info.block_size,
            "blocks": space.blocks,
            "blocks_free": space.blocks_free,
            "files": space.files,
            "files_free": space.files_free,
            "semantics": ivers_fuse::semantics(&vfs),
            "details": vfs.fs().describe().into_iter().map(|(k, v)| (k, Value::from(v))).collect::<serde_json::Map<_, _>>(),
        })
    };
    // AFFS has none.
    if facts["uuid"] == uuid::Uuid::nil().to_string() {
        facts["uuid"] = Value::Null;
    }
    if json {
        return show::json_line(&facts);
    }
    fn print(value: &Value, indent: usize) -> Result<()> {
        let mut facts: Vec<_> = value.as_object().into_iter().flatten().collect();
        // What it is comes first, and what has parts last.
        facts.sort_by_key(|(key, value)| (value.is_object(), *key != "fs"));
        for (key, value) in facts {
            let pad = " ".repeat(indent);
            match value {
                Value::Null => {}
                Value::String(text) if text.is_empty() => {}
                Value::Object(parts) if parts.is_empty() => {}
                Value::Object(_) => {
                    show::line(format_args!("{pad}{key}:"))?;
                    print(value, indent + 2)?;
                }
                Value::String(text) => {
                    show::line(format_args!("{pad}{key}: {}", show::name(text.as_bytes())))?;
                }
                other => show::line(format_args!("{pad}{key}: {other}"))?,
            }
        }
        Ok(())
    }
    print(&facts, 0)
}

/// `ivers stats`.
pub fn stats(args: &args::Stats, json: bool) -> Result<()> {
    if let Some(stats) = serve::ask(&args.dir)? {
        return server_stats(&stats, args.prometheus, json);
    }
    let Some(stats) = facts::served_json_if_any(&args.dir, ivers_fuse::STATS)? else {
        let dir = args.dir.display();
        let what = format!("{dir}: not on an ivers mount, and no `ivers serve` keeps its state there now");
        return Err(failure(REFUSED, what));
    };
    if json {
        return show::json_line(&stats);
    }
    // The same label wherever it is asked from.
    let dir = args.dir.canonicalize().unwrap_or_else(|_| args.dir.clone());
    let dir = serve::label(&dir.display().to_string());
    for (name, value) in stats.as_object().into_iter().flatten() {
        if args.prometheus {
            show::line(format_args!(
                "# TYPE ivers_{name}_total counter\nivers_{name}_total{{mount=\"{dir}\"}} {value}"
            ))?;
        } else {
            show::line(format_args!("{name:<28}{value:>16}"))?;
        }
    }
    Ok(())
}

/// The same of a server, which is known by its state directory.
fn server_stats(stats: &Value, prometheus: bool, json: bool) -> Result<()> {
    if json {
        return show::json_line(stats);
    }
    if prometheus {
        return show::line(serve::prometheus(stats).trim_end());
    }
    serve::lines(stats).iter().try_for_each(show::line)
}
