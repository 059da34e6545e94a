//! `changed`: compare change attributes with saved ones.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_fuse::MOUNT;
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};
use serde_json::json;

use crate::dirs::Dirs;
use crate::facts::{self, Identity};
use crate::failure::{self, FAILED, REFUSED, Tally, failure, usage};
use crate::image::{self, How, Place};
use crate::keeper::{Keeper, Order};
use crate::progress::Progress;
use crate::state;
use crate::{args, files, show};
use ivers::state_format::{LEN_MAX, Record, Room, State};

/// The path of the tree's own directory, which can only change: a state of another one is refused.
const ROOT: &[u8] = b".";

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

/// A tree as it was found.
struct Walked {
    state: State,
    /// What this user may not look at, and why.
    unseen: Vec<(PathBuf, anyhow::Error)>,
}

fn walk_mount(root: &Path) -> Result<Walked> {
    let mount = facts::served_json(root, MOUNT)?;
    let instance = mount["instance"].as_str().unwrap_or_default().to_owned();
    let mut unseen = Vec::new();
    // TREE may be a symbolic link to the directory, of which nothing is asked.
    let resolved = root.canonicalize().with_context(|| root.display().to_string())?;
    let meta = std::fs::metadata(&resolved).with_context(|| root.display().to_string())?;
    let device = meta.dev();
    let root_identity = facts::identity(&resolved, meta.ino())?;
    let mut state = State { instance, root: root_identity, ..State::default() };
    let progress = Progress::unbounded();
    let mut dirs = vec![PathBuf::new()];
    // What is removed while we walk is no longer there, and that is all.
    let is_gone = |error: &std::io::Error| error.kind() == ErrorKind::NotFound;
    while let Some(dir) = dirs.pop() {
        let full = root.join(&dir);
        // The directory's own number comes before its names: a name that comes in between shows in the next run.
        let names = std::fs::read_dir(&full).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let names = match names {
            Ok(names) => names,
            Err(error) if dir.as_os_str().is_empty() => {
                return Err(error).with_context(|| full.display().to_string());
            }
            Err(error) if is_gone(&error) => continue,
            Err(error) => {
                unseen.push((dir, error.into()));
                continue;
            }
        };
        for entry in names {
            let path = dir.join(entry.file_name());
            let full = root.join(&path);
            let look = || -> Result<Option<Record>> {
                let meta = match std::fs::symlink_metadata(&full) {
                    Ok(meta) if meta.dev() == device => meta,
                    Ok(_) => return Ok(None),
                    Err(error) if is_gone(&error) => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                Ok(Some(Record { identity: facts::identity(&full, meta.ino())?, is_dir: meta.is_dir() }))
            };
            match look() {
                Ok(Some(record)) => {
                    if record.is_dir {
                        dirs.push(path.clone());
                    }
                    state.files.insert(path.into_os_string().into_vec(), record);
                    progress.step(1, |files| format!("{files} files"));
                }
                Ok(None) => {}
                Err(_) if std::fs::symlink_metadata(&full).is_err_and(|error| is_gone(&error)) => {}
                Err(error) => unseen.push((path, error)),
            }
        }
    }
    Ok(Walked { state, unseen })
}

/// What cannot be seen counts as it was: it is neither new nor removed.
fn carry_over(path: &[u8], old: &State, new: &mut State) {
    let below =
        |other: &[u8]| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    let from = old.files.range(path.to_vec()..).take_while(|(other, _)| other.starts_with(path));
    for (other, record) in from.filter(|(other, _)| below(other)) {
        new.files.entry(other.clone()).or_insert(*record);
    }
}

/// Which filesystem it is: values of different ones are never compared.
pub fn instance(vfs: &Vfs) -> String {
    let info = vfs.info();
    let mut instance: String = info.uuid.iter().map(|b| format!("{b:02x}")).collect();
    if !info.semantics.persistent {
        // Nothing outlives this opening: no other value may be compared with these.
        instance += &format!("-{}", uuid::Uuid::new_v4().simple());
    }
    instance
}

/// In the keeper of an image.
pub fn walk_image(vfs: &Vfs, image: &Path, path: &[u8], to_save: bool) -> Result<State> {
    if to_save && !vfs.info().semantics.persistent {
        let (image, format) = (image.display(), vfs.info().fs_type);
        return Err(failure(
            REFUSED,
            format!(
                "{image}: {format} stores no change attributes: a state of it would vouch for nothing the next time; mount it, and save one of the mount"
            ),
        ));
    }
    let instance = instance(vfs);
    let identity = |inode: &InodeRef| Identity {
        ino: inode.ino.0,
        generation: inode.generation,
        change: vfs.change(inode),
    };
    let root = vfs.resolve(&Cred::root(), path, true).with_context(|| image::name(image, path))?;
    let mut state = State { instance, root: identity(&root), ..State::default() };
    let progress = Progress::unbounded();
    let mut been = Dirs::default();
    let mut room = Room::default();
    let mut dirs = vec![(Vec::new(), root, 0)];
    while let Some((dir, inode, depth)) = dirs.pop() {
        let place = || format!("{}, inode {}", image::name(image, &dir), inode.ino.0);
        been.enter(inode.ino.0, depth, dir.len(), place)?;
        for (name, inode) in files::entries(vfs, &inode)? {
            let inode = inode?;
            let path = image::join(&dir, &name);
            if !room.take(&path, &name) {
                return Err(state::too_long());
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

/// Have a tree of an image looked at.
fn ask_image(image: &Path, path: Vec<u8>, to_save: bool, how: &How) -> Result<State> {
    let device = image::open_image(image, how)?;
    let mut keeper = Keeper::start(&device, image, how)?;
    drop(device);
    let (from, into) = std::io::pipe()?;
    let (walked, bytes) = std::thread::scope(|scope| {
        let walk = scope.spawn(|| {
            // Held until it is answered, and no longer: the reader waits for the end.
            let into = into;
            keeper.order(&Order::Walk { path, to_save }, &[into.as_fd()])
        });
        let mut bytes = Vec::new();
        // Closed after that: a keeper that was taken over must not go on for ever.
        let read = from.take(LEN_MAX).read_to_end(&mut bytes);
        (walk.join(), read.map(|_| bytes))
    });
    walked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    keeper.finish()?;
    State::decode(&bytes?).context("the process that parses talks nonsense")
}

/// The same error; if TREE is a file on a mount, with what was probably meant.
fn with_hint(error: anyhow::Error, tree: &Path) -> anyhow::Error {
    if failure::code(&error) == REFUSED && matches!(facts::served(tree, MOUNT, true), Ok(Some(_))) {
        return failure(REFUSED, format!("{}; of a mount a directory is wanted", failure::line(&error)));
    }
    error
}

/// What differs between two states of one tree, sorted by path.
fn compare(old: &State, new: &State) -> Vec<(Vec<u8>, Status, Record)> {
    let mut found = Vec::new();
    if new.root.change.is_none() || old.root != new.root {
        found.push((ROOT.to_vec(), Status::Changed, Record { identity: new.root, is_dir: true }));
    }
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
    if args.null && json {
        return Err(usage("-0 and --json are two forms of one answer: take one of them"));
    }
    let how = args.image.how()?;
    // Before the walk: a state that cannot be used, or saved, must not cost one.
    let old = args.since.as_deref().map(state::load).transpose()?;
    args.save.as_deref().map(state::target).transpose()?;
    let Walked { state: mut new, unseen } = match Place::parse_image(&args.tree) {
        Place::Host(dir) => walk_mount(&dir)?,
        Place::Image { image, path } => {
            let asked = ask_image(&image, path, args.save.is_some(), &how);
            let state = asked.map_err(|error| with_hint(error, &args.tree))?;
            Walked { state, unseen: Vec::new() }
        }
    };
    let mut tally = Tally::default();
    for (path, error) in unseen {
        // Nearly every ext4 filesystem has one that only root may look into.
        if path != Path::new("lost+found") {
            tally.take(Err(error.context(args.tree.join(&path).display().to_string())))?;
        }
        if let Some(old) = &old {
            carry_over(path.as_os_str().as_bytes(), old, &mut new);
        }
    }
    if let Some(old) = old {
        let elsewhere = if old.instance != new.instance {
            Some("on another filesystem, or on a mount that has ended and kept nothing")
        } else if !old.root.is_same_file(&new.root) {
            Some("of another directory")
        } else {
            None
        };
        if let Some(elsewhere) = elsewhere {
            let place = args.tree.display();
            return Err(failure(
                FAILED,
                format!("{place}: the state was saved {elsewhere}: save a new one with --save"),
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
                // As find(1) does it: no name looks like an option, or like a comment (rsync's --files-from knows such).
                if path != ROOT {
                    out.write_all(b"./")?;
                }
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
    if let Some(path) = &args.save {
        state::save(&new, path)?;
    }
    tally.end()
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
        let state = |root: u64, files: &[(&str, Record)]| State {
            instance: String::new(),
            root: record(2, 0, Some(root)).identity,
            files: files.iter().map(|(path, r)| (path.as_bytes().to_vec(), *r)).collect(),
        };
        let old = state(
            8,
            &[
                ("changed", record(1, 0, Some(5))),
                ("gone", record(2, 0, Some(5))),
                ("reused", record(3, 0, Some(5))),
                ("same", record(4, 0, Some(5))),
                ("unknown", record(5, 0, None)),
            ],
        );
        let new = state(
            9,
            &[
                ("changed", record(1, 0, Some(6))),
                ("new", record(6, 0, Some(1))),
                ("reused", record(3, 1, Some(5))),
                ("same", record(4, 0, Some(5))),
                ("unknown", record(5, 0, None)),
            ],
        );
        let found: Vec<_> = compare(&old, &new)
            .into_iter()
            .map(|(p, s, _)| format!("{} {}", s.word(), show::name(&p)))
            .collect();
        assert_eq!(
            found,
            ["changed .", "changed changed", "removed gone", "new new", "changed reused", "changed unknown"]
        );
    }
}
