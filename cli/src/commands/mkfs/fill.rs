//! Filling a new filesystem: from a directory of the host, or from an archive, which the image process reads.
//!
//! One thread reads the directory, and one creates the files. The order is that of the names, and no thread
//! or clock decides what is written: equal trees give equal images.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufReader, Read};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context, Result, anyhow, bail};
use ivers_vfs::{Error, FileType, NameError, Timestamp, Vfs};

use super::super::cp::interrupt;
use super::super::cp::reader::{Host, Source};
use super::super::cp::stream::{FileId, unpacked};
use super::super::tar::exclude::Excludes;
use super::super::tar::unpack;
use super::spec::{self, SPEC_MAX};
use crate::archive::member::{Kind, Member, NewOwners};
use crate::archive::reader::Reader;
use crate::image::filler::{Created, Filler, names_of};
use crate::image::inode_handle::InodeHandle;
use crate::image::process::{FillOptions, FillOutcome};
use crate::output::failure::{FAILED, Problems, code, failure, line, say_error};
use crate::output::format;
use crate::output::progress::{self, Progress};

/// Batches on their way from the thread that reads.
const QUEUE: usize = 4;
/// A batch has so many messages at most: a message at a time would wake the other thread for each file.
const BATCH_MESSAGES: usize = 256;
/// A batch has so many bytes of contents at most, and one chunk.
const BATCH_BYTES: usize = 1 << 20;

/// Fills a filesystem from an archive.
pub fn from_archive(
    vfs: &Arc<Vfs>,
    archive: File,
    spec: &[spec::Entry],
    options: &FillOptions,
    stop: &dyn Fn() -> bool,
) -> Result<FillOutcome> {
    let excludes = Excludes::new(&options.exclude)?;
    let unpack_options = unpack::Options {
        excludes: &excludes,
        strip: 0,
        owners: options.owners,
        latest: options.latest.map(at),
        show: &|_| Ok(()),
        // Reading a directory changes them, so equal trees would give unequal images.
        no_atimes: true,
        silent: options.silent,
        stop,
        archive_bytes: options.source_bytes,
    };
    let mut archive = Reader::new(BufReader::with_capacity(256 << 10, archive));
    fill(vfs, spec, options, |filler| unpack::unpack(&mut archive, filler, &unpack_options))
}

/// Fills a filesystem from a directory of the host. `image` is left out if it is in there.
pub fn from_dir(
    vfs: &Arc<Vfs>,
    dir: &Path,
    image: Option<FileId>,
    spec: &[spec::Entry],
    options: &FillOptions,
) -> Result<FillOutcome> {
    let latest = options.latest.map(at);
    let excludes = Excludes::new(&options.exclude)?;
    fill(vfs, spec, options, |filler| {
        filler.keep_existing();
        std::thread::scope(|scope| {
            let (sender, receiver) = sync_channel(QUEUE);
            let (batch, batch_bytes, linked) = (Vec::new(), 0, HashSet::new());
            let owners = options.owners;
            let mut walker = Walker { sender, batch, batch_bytes, image, excludes, owners, latest, linked };
            let builder = std::thread::Builder::new().name("ivers-reader".into());
            builder.spawn_scoped(scope, move || walker.walk(dir))?;
            create_all(vfs, filler, receiver, options)
        })
    })
}

fn at(sec: i64) -> Timestamp {
    Timestamp { sec, nsec: 0 }
}

/// Reads a spec file.
pub fn read_spec(file: File) -> Result<Vec<spec::Entry>> {
    let mut text = Vec::new();
    file.take(SPEC_MAX + 1).read_to_end(&mut text).context("cannot read the spec file")?;
    if text.len() as u64 > SPEC_MAX {
        bail!("the spec file has more than {SPEC_MAX} bytes");
    }
    spec::parse(&text)
}

fn fill(
    vfs: &Arc<Vfs>,
    spec: &[spec::Entry],
    options: &FillOptions,
    create: impl FnOnce(&mut Filler) -> Result<(u64, Problems)>,
) -> Result<FillOutcome> {
    let mut filler = Filler::new(vfs.clone(), vfs.root()?, Some(at(options.time)))?;
    if options.keep_directory_symlinks {
        filler.keep_directory_links();
    }
    let filled = create(&mut filler).and_then(|(files, problems)| {
        spec.iter().try_for_each(|entry| {
            apply(&mut filler, entry, options)
                .with_context(|| format!("spec file: {}", format::name(&entry.path)))
        })?;
        if let Some((uid, gid)) = options.root_owner {
            filler.change(&[], None, Some(uid), Some(gid))?;
        }
        filler.set_times()?;
        // Delayed allocation needs space, too.
        vfs.sync()?;
        Ok((files, problems))
    });
    let stat = vfs.stat_fs()?;
    let free_bytes = stat.blocks_free.saturating_mul(stat.block_size.into());
    match filled {
        Ok((files, problems)) => {
            let Problems { count: problems, code } = problems;
            let inodes_used = stat.files.saturating_sub(stat.files_free);
            Ok(FillOutcome { files, problems, code, free_bytes, inodes_used, full: None })
        }
        // Without free blocks, formats that make inodes as they need them have no free inodes.
        Err(error) if is_full(&error) && stat.files > 0 && stat.files_free == 0 && stat.blocks_free > 0 => {
            Ok(FillOutcome::full("all inodes are in use: --bytes-per-inode makes more".to_owned()))
        }
        Err(error) if is_full(&error) => Ok(FillOutcome::full(line(&error))),
        // The first failed write says more than what fails after it.
        Err(error) => Err(match vfs.health().read_only {
            Some(why) => error.context(why),
            None => error,
        }),
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(Error::Name(NameError::NoSpace))))
}

/// Applies an entry of a spec file.
fn apply(filler: &mut Filler, entry: &spec::Entry, options: &FillOptions) -> Result<()> {
    let names = names_of(&entry.path)?;
    let found = filler.find(&names)?;
    match found {
        Some(inode) if inode.kind == entry.kind => {
            return filler.change(&names, entry.perm, entry.uid, entry.gid);
        }
        Some(inode) => bail!("exists and is a {}", format::kind_in_words(inode.kind)),
        None if entry.kind == FileType::Regular => return Err(failure(FAILED, "no such file")),
        None => {}
    }
    let default_perm = if entry.kind == FileType::Directory { 0o755 } else { 0o644 };
    let member = Member {
        perm: entry.perm.unwrap_or(default_perm),
        uid: entry.uid.unwrap_or(0),
        gid: entry.gid.unwrap_or(0),
        mtime: at(options.time),
        rdev: entry.rdev,
        ..Member::new(entry.path.clone(), Kind::File(entry.kind))
    };
    let created = filler.create(&names, &member)?;
    filler.finish(created, &member)
}

/// What the thread that reads a directory found. Paths start below the directory.
enum Found {
    /// A file starts.
    File(Box<Member>, Option<FileId>),
    /// Another hard link to a file that was found.
    Link(Vec<u8>, FileId),
    /// Contents of that file, at a byte offset.
    Data(u64, Vec<u8>),
    /// That file is complete. Its size, if it is known only now.
    End(u64),
    /// A file cannot be read.
    Unreadable(Vec<u8>, anyhow::Error),
    /// All files were found.
    Finish,
}

/// The other thread has stopped, and says why.
struct Stopped;

struct Walker {
    sender: SyncSender<Vec<Found>>,
    /// What is not sent yet.
    batch: Vec<Found>,
    batch_bytes: usize,
    image: Option<FileId>,
    excludes: Excludes,
    owners: NewOwners,
    latest: Option<Timestamp>,
    linked: HashSet<FileId>,
}

impl Walker {
    fn send(&mut self, found: Found) -> Result<(), Stopped> {
        if let Found::Data(_, bytes) = &found {
            self.batch_bytes += bytes.len();
        }
        self.batch.push(found);
        if self.batch.len() < BATCH_MESSAGES && self.batch_bytes < BATCH_BYTES {
            return Ok(());
        }
        self.send_batch()
    }

    fn send_batch(&mut self) -> Result<(), Stopped> {
        self.batch_bytes = 0;
        self.sender.send(mem::take(&mut self.batch)).map_err(|_| Stopped)
    }

    fn walk(&mut self, root: &Path) {
        let whole = self.walk_below(root).and_then(|()| self.send(Found::Finish));
        // If the other thread has stopped, it says why.
        let _ = whole.and_then(|()| self.send_batch());
    }

    fn walk_below(&mut self, root: &Path) -> Result<(), Stopped> {
        let mut levels = vec![self.enter(root.to_owned(), Vec::new())?];
        while let Some(level) = levels.last_mut() {
            let Some(name) = level.names.pop() else {
                levels.pop();
                continue;
            };
            let mut path = level.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            if self.excludes.excludes_last(&path) {
                continue;
            }
            match Host.child(&level.dir, &name) {
                Ok(file) => {
                    if let Some(level) = self.visit(file, path)? {
                        levels.push(level);
                    }
                }
                Err(error) => self.send(Found::Unreadable(path, error))?,
            }
        }
        Ok(())
    }

    fn enter(&mut self, dir: PathBuf, path: Vec<u8>) -> Result<Level, Stopped> {
        self.visit(dir.clone(), path.clone())
            .map(|level| level.unwrap_or(Level { dir, path, names: Vec::new() }))
    }

    /// Sends a file. Returns its names if it is a directory.
    fn visit(&mut self, file: PathBuf, path: Vec<u8>) -> Result<Option<Level>, Stopped> {
        let described = Host.header(&file).and_then(|header| Ok((header.kind()?, header)));
        let (kind, header) = match described {
            Ok(described) => described,
            Err(error) => return self.send(Found::Unreadable(path, error)).map(|()| None),
        };
        if self.image == Some(header.id) {
            return Ok(None);
        }
        let linked = header.has_links.then_some(header.id);
        if header.has_links && !self.linked.insert(header.id) {
            return self.send(Found::Link(path, header.id)).map(|()| None);
        }
        let xattrs = match Host.xattrs(&file) {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.send(Found::Unreadable(path.clone(), error))?;
                Vec::new()
            }
        };
        let mtime = unpacked(header.mtime);
        let mut member = Member {
            perm: header.perm(),
            uid: header.uid,
            gid: header.gid,
            mtime: self.latest.map_or(mtime, |latest| mtime.min(latest)),
            rdev: header.rdev,
            target: header.target,
            xattrs,
            ..Member::new(path.clone(), Kind::File(kind))
        };
        self.owners.apply(&mut member);
        self.send(Found::File(Box::new(member), linked))?;
        if kind == FileType::Directory {
            let (mut names, whole) = Host.names(&file);
            if let Err(error) = whole {
                self.send(Found::Unreadable(path.clone(), error))?;
            }
            // The last is taken first.
            names.reverse();
            self.send(Found::End(0))?;
            return Ok(Some(Level { dir: file, path, names }));
        }
        let mut size = 0;
        if kind == FileType::Regular {
            let mut stopped = false;
            let read = Host.read(&file, &mut |offset, bytes| {
                size = offset + bytes.len() as u64;
                stopped = self.send(Found::Data(offset, bytes.to_vec())).is_err();
                if stopped { Err(anyhow!("stopped")) } else { Ok(()) }
            });
            match read {
                _ if stopped => return Err(Stopped),
                Ok(all) => size = all,
                Err(error) => self.send(Found::Unreadable(path, error))?,
            }
        }
        self.send(Found::End(size)).map(|()| None)
    }
}

/// A directory that is being read.
struct Level {
    dir: PathBuf,
    path: Vec<u8>,
    /// In descending order.
    names: Vec<Vec<u8>>,
}

/// Creates another hard link to a file that was created.
fn link(vfs: &Vfs, filler: &mut Filler, file: Option<&InodeHandle>, path: &[u8]) -> Result<()> {
    let file = file.context("a hard link to a file that was not created")?.get(vfs)?;
    filler.link(&names_of(path)?, &file)
}

/// Creates what the other thread found.
fn create_all(
    vfs: &Vfs,
    filler: &mut Filler,
    found: Receiver<Vec<Found>>,
    options: &FillOptions,
) -> Result<(u64, Problems)> {
    let mut linked: HashMap<FileId, InodeHandle> = HashMap::new();
    let mut open: Option<(Created, Box<Member>, Option<FileId>)> = None;
    let mut problems = Problems::default();
    let progress = Progress::unbounded();
    let (mut files, mut bytes) = (0, 0);
    let show = |files, bytes| {
        progress.step(1, |_| {
            let part = progress::describe(bytes, options.source_bytes, progress.elapsed());
            format!("{}, {part}", format::count(files, "file"))
        });
    };
    for found in found.into_iter().flatten() {
        interrupt::check().with_context(|| {
            format!("{}, {} copied", format::count(files, "file"), progress::bytes(bytes))
        })?;
        let (path, done) = match found {
            Found::Finish => return Ok((files, problems)),
            Found::Unreadable(path, error) => (path, Err(error)),
            Found::File(member, id) => {
                let created = names_of(&member.path).and_then(|names| filler.create(&names, &member));
                let path = member.path.clone();
                (path, created.map(|created| open = Some((created, member, id))))
            }
            Found::Link(path, id) => {
                files += 1;
                let done = link(vfs, filler, linked.get(&id), &path);
                (path, done)
            }
            Found::Data(offset, data) => {
                let Some((created, member, _)) = &mut open else { continue };
                bytes += data.len() as u64;
                show(files, bytes);
                let written = filler.write(created, offset, &data);
                let path = if written.is_err() { member.path.clone() } else { Vec::new() };
                if written.is_err() {
                    open = None;
                }
                (path, written)
            }
            Found::End(size) => {
                let Some((created, mut member, id)) = open.take() else { continue };
                member.size = size;
                if let Some(id) = id {
                    linked.insert(id, InodeHandle::new(vfs, &created.inode));
                }
                files += 1;
                show(files, bytes);
                let done = filler.finish(created, &member);
                (member.path, done)
            }
        };
        match done {
            Ok(()) => {}
            Err(error) if unpack::is_fatal(&error) => return Err(error.context(format::name(&path))),
            Err(error) => progress.suspend(|| {
                let error = error.context(format::name(&path));
                problems.add(code(&error));
                if !options.silent {
                    say_error(code(&error), &line(&error));
                }
            }),
        }
    }
    bail!("the thread that reads the directory has ended early")
}
