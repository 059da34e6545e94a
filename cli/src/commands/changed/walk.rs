//! The walk over a tree that collects its state.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers::state_format::{Identity, PathBudget, Record, State};
use ivers_fuse::MOUNT;
use ivers_vfs::{FileType, InodeRef, Vfs};

use super::saved_state;
use crate::arguments::{image_path, join};
use crate::file_info;
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{entries, resolve};
use crate::output::failure::{REFUSED, failure};
use crate::output::progress::Progress;

/// The result of a walk.
pub struct Walked {
    /// The state of the tree.
    pub state: State,
    /// The paths that this user may not read, and why.
    pub unreadable: Vec<(PathBuf, anyhow::Error)>,
}

/// Walks a tree of a mount.
pub fn walk_mount(root: &Path) -> Result<Walked> {
    let mount = file_info::served_json(root, MOUNT)?;
    let instance = mount["instance"].as_str().unwrap_or_default().to_owned();
    let mut unreadable = Vec::new();
    // If TREE is a symbolic link, the identity is that of the directory.
    let resolved = root.canonicalize().with_context(|| root.display().to_string())?;
    let meta = std::fs::metadata(&resolved).with_context(|| root.display().to_string())?;
    let device = meta.dev();
    let root_identity = file_info::identity(&resolved, meta.ino())?;
    let mut state = State { instance, root: root_identity, ..State::default() };
    let progress = Progress::unbounded();
    let mut dirs = vec![PathBuf::new()];
    // A file that is removed during the walk is omitted.
    let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    while let Some(dir) = dirs.pop() {
        let full = root.join(&dir);
        // The change attribute of the directory was read before its names: the next run reports a name that
        // is added in between.
        let names = std::fs::read_dir(&full).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let names = match names {
            Ok(names) => names,
            Err(error) if dir.as_os_str().is_empty() => {
                return Err(error).with_context(|| full.display().to_string());
            }
            Err(error) if is_gone(&error) => continue,
            Err(error) => {
                unreadable.push((dir, error.into()));
                continue;
            }
        };
        for entry in names {
            let path = dir.join(entry.file_name());
            let full = root.join(&path);
            let read = || -> Result<Option<Record>> {
                let meta = match std::fs::symlink_metadata(&full) {
                    Ok(meta) if meta.dev() == device => meta,
                    Ok(_) => return Ok(None),
                    Err(error) if is_gone(&error) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                Ok(Some(Record { identity: file_info::identity(&full, meta.ino())?, is_dir: meta.is_dir() }))
            };
            match read() {
                Ok(Some(record)) => {
                    if record.is_dir {
                        dirs.push(path.clone());
                    }
                    state.files.insert(path.into_os_string().into_vec(), record);
                    progress.step(1, |files| format!("{files} files"));
                }
                Ok(None) => {}
                Err(_) if std::fs::symlink_metadata(&full).is_err_and(|error| is_gone(&error)) => {}
                Err(error) => unreadable.push((path, error)),
            }
        }
    }
    Ok(Walked { state, unreadable })
}

/// Walks a tree of an image. Runs in the image process.
pub fn walk_image(vfs: &Vfs, image: &Path, path: &[u8], to_save: bool) -> Result<State> {
    if to_save && !vfs.info().semantics.persistent {
        let (image, format) = (image.display(), vfs.info().fs_type);
        let why =
            "does not store change attributes, so a saved state would be useless; mount it and save that";
        return Err(failure(REFUSED, format!("{image}: {format} {why}")));
    }
    let instance = file_info::instance(vfs);
    let identity = |inode: &InodeRef| Identity {
        ino: inode.ino.0,
        generation: inode.generation,
        change: vfs.change(inode),
    };
    let root = resolve(vfs, image, path, true)?;
    let mut state = State { instance, root: identity(&root), ..State::default() };
    let progress = Progress::unbounded();
    let mut entered = CycleGuard::default();
    let mut budget = PathBudget::default();
    let mut dirs = vec![(Vec::new(), root, 0)];
    while let Some((dir, inode, depth)) = dirs.pop() {
        let location = || format!("{}, inode {}", image_path(image, &dir), inode.ino.0);
        entered.enter(inode.ino.0, depth, dir.len(), location)?;
        for (name, inode) in entries(vfs, &inode)? {
            let inode = inode?;
            let path = join(&dir, &name);
            if !budget.take(&path, &name) {
                return Err(saved_state::too_long());
            }
            let is_dir = inode.kind == FileType::Directory;
            state.files.insert(path.clone(), Record { identity: identity(&inode), is_dir });
            if is_dir {
                dirs.push((path, inode, depth + 1));
            }
            progress.step(1, |files| format!("{files} files"));
        }
    }
    Ok(state)
}
