//! `cp`: between the system and images, and between images.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use ivers_vfs::{
    Attr, CreateSpec, Cred, FileType, InodeRef, SetAttr, TimeSet, Timestamp, Vfs, WriteFlags, XattrMode,
};

use crate::failure::usage;
use crate::image::{self, Place};
use crate::{args, files, show};

/// One side of a copy.
enum Side {
    Host(PathBuf),
    Image(Arc<Vfs>, InodeRef),
}

/// What is copied besides contents.
struct Kept {
    kind: FileType,
    perm: u32,
    uid: u32,
    gid: u32,
    atime: Timestamp,
    mtime: Timestamp,
    target: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Kept {
    fn of_attr(attr: &Attr) -> Self {
        Self {
            kind: attr.kind,
            perm: attr.perm,
            uid: attr.uid,
            gid: attr.gid,
            atime: attr.atime,
            mtime: attr.mtime,
            target: Vec::new(),
            xattrs: Vec::new(),
        }
    }
}

fn look(side: &Side) -> Result<Kept> {
    match side {
        Side::Host(path) => {
            let meta = fs::symlink_metadata(path)?;
            let kind = FileType::from_mode(meta.mode()).context("a file of no known type")?;
            let time = |sec, nsec: i64| Timestamp { sec, nsec: nsec as u32 };
            let mut kept = Kept {
                kind,
                perm: meta.mode() & 0o7777,
                uid: meta.uid(),
                gid: meta.gid(),
                atime: time(meta.atime(), meta.atime_nsec()),
                mtime: time(meta.mtime(), meta.mtime_nsec()),
                target: Vec::new(),
                xattrs: Vec::new(),
            };
            if kind == FileType::Symlink {
                kept.target = fs::read_link(path)?.into_os_string().into_vec();
            }
            for name in xattr::list(path).into_iter().flatten() {
                if let Ok(Some(value)) = xattr::get(path, &name) {
                    kept.xattrs.push((name.into_vec(), value));
                }
            }
            Ok(kept)
        }
        Side::Image(vfs, inode) => {
            let mut kept = Kept::of_attr(&vfs.stat(inode));
            if kept.kind == FileType::Symlink {
                kept.target = vfs.read_link(inode)?;
            }
            let cred = Cred::root();
            for name in vfs.list_xattr(&cred, inode)? {
                let value = vfs.get_xattr(&cred, inode, &name)?;
                kept.xattrs.push((name, value));
            }
            Ok(kept)
        }
    }
}

/// Names below a directory.
fn children(side: &Side) -> Result<Vec<(Vec<u8>, Side)>> {
    match side {
        Side::Host(path) => {
            let mut all = Vec::new();
            for entry in fs::read_dir(path)? {
                let name = entry?.file_name();
                let child = path.join(&name);
                all.push((name.into_vec(), Side::Host(child)));
            }
            Ok(all)
        }
        Side::Image(vfs, inode) => Ok(files::entries(vfs, inode)?
            .into_iter()
            .map(|(name, child)| (name, Side::Image(vfs.clone(), child)))
            .collect()),
    }
}

fn pour(side: &Side, mut sink: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
    match side {
        Side::Image(vfs, inode) => files::pour(vfs, inode, sink),
        Side::Host(path) => {
            let mut file = fs::File::open(path)?;
            let mut buffer = vec![0; 1 << 20];
            let mut offset = 0;
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(()),
                    n => {
                        sink(offset, &buffer[..n])?;
                        offset += n as u64;
                    }
                }
            }
        }
    }
}

/// Long runs of zeros become holes.
fn is_hole(bytes: &[u8]) -> bool {
    bytes.len() >= 4096 && bytes.iter().all(|&b| b == 0)
}

fn to_host(from: &Side, kept: &Kept, to: &Path) -> Result<Side> {
    match kept.kind {
        FileType::Directory => {
            if !to.is_dir() {
                fs::create_dir(to)?;
            }
        }
        FileType::Symlink => {
            if fs::symlink_metadata(to).is_ok() {
                fs::remove_file(to)?;
            }
            std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(&kept.target), to)?;
        }
        FileType::Regular => {
            let file = fs::File::create(to)?;
            let mut size = 0;
            pour(from, |offset, bytes| {
                size = offset + bytes.len() as u64;
                if is_hole(bytes) { Ok(()) } else { Ok(file.write_all_at(bytes, offset)?) }
            })?;
            file.set_len(size)?;
            // Set-id bits only with -p.
            file.set_permissions(fs::Permissions::from_mode(kept.perm & 0o777))?;
        }
        other => return Err(anyhow!("a {} is not copied out of an image", show::kind(other))),
    }
    Ok(Side::Host(to.to_owned()))
}

fn keep_on_host(kept: &Kept, to: &Path) -> Result<()> {
    for (name, value) in &kept.xattrs {
        // Namespaces that this user may not write are left out, as cp -p does.
        let _ = xattr::set(to, std::ffi::OsStr::from_bytes(name), value);
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(to, Some(kept.uid), Some(kept.gid))?;
    }
    if kept.kind != FileType::Symlink {
        fs::set_permissions(to, fs::Permissions::from_mode(kept.perm))?;
    }
    let spec = |t: Timestamp| rustix::fs::Timespec { tv_sec: t.sec, tv_nsec: t.nsec.into() };
    let times = rustix::fs::Timestamps { last_access: spec(kept.atime), last_modification: spec(kept.mtime) };
    rustix::fs::utimensat(rustix::fs::CWD, to, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

fn to_image(from: &Side, kept: &Kept, vfs: &Arc<Vfs>, dir: &InodeRef, name: &[u8]) -> Result<InodeRef> {
    let cred = Cred::root();
    let found = match vfs.lookup(&cred, dir, name) {
        Ok(inode) => Some(inode),
        Err(ivers_vfs::Error::Name(ivers_vfs::NameError::NotFound)) => None,
        Err(error) => return Err(error.into()),
    };
    let inode = match found {
        Some(inode) if inode.kind == kept.kind && kept.kind != FileType::Symlink => inode,
        Some(inode) if inode.kind == FileType::Directory || kept.kind == FileType::Directory => {
            return Err(anyhow!("exists and is a {}", show::kind(inode.kind)));
        }
        found => {
            if found.is_some() {
                vfs.unlink(&cred, dir, name, false)?;
            }
            let spec = match kept.kind {
                FileType::Regular => CreateSpec::file(kept.perm & 0o777),
                FileType::Directory => CreateSpec::directory(kept.perm & 0o777),
                FileType::Symlink => CreateSpec::symlink(kept.target.clone()),
                other => return Err(anyhow!("a {} is not copied into an image", show::kind(other))),
            };
            vfs.create(&cred, dir, name, &spec, false)?.0
        }
    };
    if kept.kind == FileType::Regular {
        vfs.set_attr(&cred, &inode, &SetAttr { size: Some(0), ..SetAttr::default() })?;
        let mut size = 0;
        pour(from, |offset, bytes| {
            size = offset + bytes.len() as u64;
            if is_hole(bytes) {
                return Ok(());
            }
            let mut done = 0;
            while done < bytes.len() {
                done +=
                    vfs.write(&cred, &inode, offset + done as u64, &bytes[done..], WriteFlags::empty())?;
            }
            Ok(())
        })?;
        vfs.set_attr(&cred, &inode, &SetAttr { size: Some(size), ..SetAttr::default() })?;
    }
    Ok(inode)
}

fn keep_in_image(kept: &Kept, vfs: &Vfs, inode: &InodeRef) -> Result<()> {
    let cred = Cred::root();
    for (name, value) in &kept.xattrs {
        // Another filesystem's own namespaces (system.*, say) mean nothing here.
        let _ = vfs.set_xattr(&cred, inode, name, value, XattrMode::Any);
    }
    let set = SetAttr {
        perm: (kept.kind != FileType::Symlink).then_some(kept.perm),
        uid: Some(kept.uid),
        gid: Some(kept.gid),
        ..SetAttr::default()
    };
    vfs.set_attr(&cred, inode, &set)?;
    let times = SetAttr {
        atime: Some(TimeSet::At(kept.atime)),
        mtime: Some(TimeSet::At(kept.mtime)),
        ..SetAttr::default()
    };
    vfs.set_attr(&cred, inode, &times)?;
    Ok(())
}

/// Where a copy goes: a directory of a side, and the name in it.
enum Goal<'a> {
    Host(&'a Path),
    Image(&'a Arc<Vfs>, &'a InodeRef, &'a [u8]),
}

fn copy(from: &Side, goal: &Goal<'_>, args: &args::Cp, depth: u32) -> Result<()> {
    let kept = look(from)?;
    if kept.kind == FileType::Directory && !args.recursive {
        return Err(usage("is a directory: copy it with --recursive"));
    }
    // A damaged image can hold loops of directories.
    if depth > 4096 {
        return Err(ivers_vfs::Error::corrupt("directories without end", "the source").into());
    }
    match goal {
        Goal::Host(to) => {
            to_host(from, &kept, to)?;
            if kept.kind == FileType::Directory {
                for (name, child) in children(from)? {
                    let below = to.join(std::ffi::OsStr::from_bytes(&name));
                    copy(&child, &Goal::Host(&below), args, depth + 1).with_context(|| show::name(&name))?;
                }
            }
            if args.preserve { keep_on_host(&kept, to) } else { Ok(()) }
        }
        Goal::Image(vfs, dir, name) => {
            let inode = to_image(from, &kept, vfs, dir, name)?;
            if kept.kind == FileType::Directory {
                for (name, child) in children(from)? {
                    copy(&child, &Goal::Image(vfs, &inode, &name), args, depth + 1)
                        .with_context(|| show::name(&name))?;
                }
            }
            if args.preserve { keep_in_image(&kept, vfs, &inode) } else { Ok(()) }
        }
    }
}

fn last_name(path: &[u8]) -> Option<&[u8]> {
    path.rsplit(|&b| b == b'/').find(|part| !part.is_empty())
}

/// `ivers cp`.
pub fn cp(args: &args::Cp, json: bool) -> Result<()> {
    let to = Place::parse(&args.to);
    // The image that is written is opened once, and read from too if it is also a source.
    let written = match &to {
        Place::Image { image, .. } => Some((image.clone(), image::open_to_write(image)?)),
        Place::Host(_) => None,
    };
    let result = copy_all(args, &to, written.as_ref());
    if let Some((image, vfs)) = written {
        let closed = vfs.unmount().with_context(|| image.display().to_string());
        result?;
        closed?;
    } else {
        result?;
    }
    if json {
        show::json_line(&serde_json::json!({ "copied": args.from.len() }))?;
    }
    Ok(())
}

fn copy_all(args: &args::Cp, to: &Place, written: Option<&(PathBuf, Arc<Vfs>)>) -> Result<()> {
    let cred = Cred::root();
    let mut images = files::Images::default();
    for word in &args.from {
        let shown = || word.display().to_string();
        let (from, name) = match Place::parse(word) {
            Place::Host(path) => {
                let name =
                    path.canonicalize().with_context(shown)?.file_name().map(|n| n.as_bytes().to_vec());
                let name = path.file_name().map(|n| n.as_bytes().to_vec()).or(name);
                (Side::Host(path), name)
            }
            Place::Image { image, path } => {
                let vfs = match written {
                    Some((open, vfs)) if *open == image => vfs.clone(),
                    _ => images.open(&image)?,
                };
                let inode = vfs.resolve(&cred, &path, false).with_context(shown)?;
                (Side::Image(vfs, inode), last_name(&path).map(<[u8]>::to_vec))
            }
        };
        match (to, written) {
            (Place::Image { path, image }, Some((_, vfs))) => {
                let shown_to = || image::name(image, path);
                match vfs.resolve(&cred, path, true) {
                    Ok(dir) if dir.kind == FileType::Directory => {
                        let name =
                            name.ok_or_else(|| usage(format!("{}: has no name to copy under", shown())))?;
                        copy(&from, &Goal::Image(vfs, &dir, &name), args, 0).with_context(shown)?;
                    }
                    _ if args.from.len() > 1 => {
                        return Err(usage(format!("{}: not a directory", shown_to())));
                    }
                    _ => {
                        let name =
                            last_name(path).ok_or_else(|| usage(format!("{}: not a name", shown_to())))?;
                        let cut = path.windows(name.len()).rposition(|w| w == name).unwrap_or(0);
                        let dir = vfs.resolve(&cred, &path[..cut], true).with_context(shown_to)?;
                        copy(&from, &Goal::Image(vfs, &dir, name), args, 0).with_context(shown)?;
                    }
                }
            }
            (Place::Host(path), _) => {
                let goal = match name {
                    Some(name) if path.is_dir() => path.join(std::ffi::OsStr::from_bytes(&name)),
                    _ if args.from.len() > 1 => {
                        return Err(usage(format!("{}: not a directory", path.display())));
                    }
                    _ => path.clone(),
                };
                copy(&from, &Goal::Host(&goal), args, 0).with_context(shown)?;
            }
            (Place::Image { .. }, None) => return Err(anyhow!("the image to write is not open")),
        }
    }
    Ok(())
}
