//! `changed`: compare change attributes with saved ones.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_fuse::MOUNT;
use ivers_vfs::{Cred, FileType, Vfs};
use serde_json::json;

use crate::facts::{self, Identity};
use crate::failure::{FAILED, failure};
use crate::files::Walk;
use crate::image::{self, How, Place};
use crate::keeper::{Keeper, Order};
use crate::progress::Progress;
use crate::state;
use crate::{args, files, show};
use ivers::state_format::{Record, State};

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Status {
    /// It was not there.
    New,
    /// It is another file, or the same one with another change attribute.
    Changed,
    /// It is no longer there.
    Removed,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Status::New => "new",
            Status::Changed => "changed",
            Status::Removed => "removed",
        }
    }
}

fn walk_mount(root: &Path) -> Result<State> {
    let mount = facts::served_json(root, MOUNT)?;
    let instance = mount["instance"].as_str().unwrap_or_default().to_owned();
    let mut state = State { instance, ..State::default() };
    let device = std::fs::metadata(root)?.dev();
    let progress = Progress::unbounded();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let full = root.join(&dir);
        // The directory's own number comes before its names: a name that comes in between shows in the next run.
        for entry in std::fs::read_dir(&full).with_context(|| full.display().to_string())? {
            let entry = entry.with_context(|| full.display().to_string())?;
            let path = dir.join(entry.file_name());
            let full = root.join(&path);
            let look = || -> Result<Option<Record>> {
                let meta = std::fs::symlink_metadata(&full)?;
                if meta.dev() != device {
                    return Ok(None);
                }
                Ok(Some(Record { identity: facts::identity(&full, meta.ino())?, is_dir: meta.is_dir() }))
            };
            let record = match look() {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                // Removed while we walked.
                Err(_) if std::fs::symlink_metadata(&full).is_err() => continue,
                Err(error) => return Err(error),
            };
            if record.is_dir {
                dirs.push(path.clone());
            }
            state.files.insert(path.as_os_str().as_bytes().to_vec(), record);
            progress.step(1, |files| format!("{files} files"));
        }
    }
    Ok(state)
}

/// In the keeper of an image.
pub fn walk_image(vfs: &Vfs, image: &Path, path: &[u8]) -> Result<State> {
    let info = vfs.info();
    let mut instance: String = info.uuid.iter().map(|b| format!("{b:02x}")).collect();
    if !info.semantics.persistent {
        // Nothing outlives this opening: no other value may be compared with these.
        instance += &format!("-{}", uuid::Uuid::new_v4().simple());
    }
    let mut state = State { instance, ..State::default() };
    let root = vfs.resolve(&Cred::root(), path, true).with_context(|| image::name(image, path))?;
    let progress = Progress::unbounded();
    let mut dirs = vec![(Vec::new(), root)];
    let mut walk = Walk::default();
    while let Some((dir, inode)) = dirs.pop() {
        walk.enter(&inode, &dir)?;
        for (name, inode) in files::entries(vfs, &inode)? {
            let inode = inode?;
            let path = image::join(&dir, &name);
            let identity =
                Identity { ino: inode.ino.0, generation: inode.generation, change: vfs.change(&inode) };
            let is_dir = inode.kind == FileType::Directory;
            state.files.insert(path.clone(), Record { identity, is_dir });
            if is_dir {
                dirs.push((path, inode));
            }
            progress.step(1, |files| format!("{files} files"));
        }
    }
    Ok(state)
}

/// Have a tree of an image looked at.
fn ask_image(image: &Path, path: Vec<u8>, how: &How) -> Result<State> {
    let device = image::open_image(image, how)?;
    let mut keeper = Keeper::start(&device, image, how)?;
    drop(device);
    let (mut from, into) = std::io::pipe()?;
    let (walked, bytes) = std::thread::scope(|scope| {
        let walk = scope.spawn(|| {
            // Held until it is answered, and no longer: the reader waits for the end.
            let into = into;
            keeper.order(&Order::Walk { path }, &[into.as_fd()])
        });
        let mut bytes = Vec::new();
        let read = from.read_to_end(&mut bytes);
        (walk.join(), read.map(|_| bytes))
    });
    walked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    keeper.finish()?;
    State::decode(&bytes?).context("the process that parses talks nonsense")
}

/// What differs, sorted by path.
fn compare(old: &State, new: &State) -> Vec<(Vec<u8>, Status, Record)> {
    let mut found = Vec::new();
    for (path, record) in &new.files {
        match old.files.get(path) {
            None => found.push((path.clone(), Status::New, *record)),
            Some(before) if record.identity.change.is_none() || before != record => {
                found.push((path.clone(), Status::Changed, *record));
            }
            Some(_) => {}
        }
    }
    let removed = old.files.iter().filter(|(path, _)| !new.files.contains_key(*path));
    found.extend(removed.map(|(path, record)| (path.clone(), Status::Removed, *record)));
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// `ivers changed`.
pub fn changed(args: &args::Changed, json: bool) -> Result<()> {
    let how = args.image.how()?;
    // Before the walk: a state that cannot be used must not cost one.
    let old = args.since.as_deref().map(state::load).transpose()?;
    let new = match Place::parse_image(&args.tree) {
        Place::Host(dir) => walk_mount(&dir)?,
        Place::Image { image, path } => ask_image(&image, path, &how)?,
    };
    if let Some(old) = old {
        if old.instance != new.instance {
            let place = args.tree.display();
            return Err(failure(
                FAILED,
                format!(
                    "{place}: the state was saved on another filesystem, or on a mount that has ended and kept nothing: save a new one with --save"
                ),
            ));
        }
        let wanted: &[Status] = match args.only.as_slice() {
            [] if args.null => &[Status::New, Status::Changed],
            [] => &[Status::New, Status::Changed, Status::Removed],
            only => only,
        };
        let mut out = std::io::BufWriter::new(std::io::stdout().lock());
        for (path, status, record) in compare(&old, &new) {
            if !wanted.contains(&status) || (args.files_only && record.is_dir) {
                continue;
            }
            if args.null {
                out.write_all(&path)?;
                out.write_all(b"\0")?;
            } else if json {
                let change = record.identity.change.filter(|_| status != Status::Removed);
                let line = json!({
                    "path": show::json_name(&path),
                    "status": status.word(),
                    "ino": record.identity.ino,
                    "generation": record.identity.generation,
                    "change": change.map(|v| v.to_string()),
                });
                writeln!(out, "{line}")?;
            } else {
                let letter = status.word().as_bytes()[0].to_ascii_uppercase() as char;
                writeln!(out, "{letter} {}", show::name(&path))?;
            }
        }
        out.flush()?;
    }
    match &args.save {
        Some(path) => state::save(&new, path),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_unchanged_only_if_all_of_its_identity_is() {
        let record = |ino, generation, change| Record {
            identity: Identity { ino, generation, change },
            is_dir: false,
        };
        let state = |files: &[(&str, Record)]| State {
            instance: String::new(),
            files: files.iter().map(|(path, r)| (path.as_bytes().to_vec(), *r)).collect(),
        };
        let old = state(&[
            ("changed", record(1, 0, Some(5))),
            ("gone", record(2, 0, Some(5))),
            ("reused", record(3, 0, Some(5))),
            ("same", record(4, 0, Some(5))),
            ("unknown", record(5, 0, None)),
        ]);
        let new = state(&[
            ("changed", record(1, 0, Some(6))),
            ("new", record(6, 0, Some(1))),
            ("reused", record(3, 1, Some(5))),
            ("same", record(4, 0, Some(5))),
            ("unknown", record(5, 0, None)),
        ]);
        let found: Vec<_> = compare(&old, &new)
            .into_iter()
            .map(|(p, s, _)| format!("{} {}", s.word(), show::name(&p)))
            .collect();
        assert_eq!(
            found,
            ["changed changed", "removed gone", "new new", "changed reused", "changed unknown"]
        );
    }
}
