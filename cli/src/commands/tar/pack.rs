//! Writing a tree of an image to an archive.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ivers_vfs::{Cred, Error, FileType, Ino, InodeRef, NameError, Timestamp, Vfs};

use super::super::cp::reader::{self, Source};
use super::exclude::Excludes;
use crate::archive::member::{Kind, Member, NewOwners};
use crate::archive::sparse::{RUNS_MAX, Run};
use crate::archive::writer::Writer;
use crate::arguments::{image_path, join, last_name};
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{child, names, resolve};
use crate::image::sorted_names::SortedNames;
use crate::output::failure::{Problems, warn};
use crate::output::progress::{self, Progress};

/// Bytes of contents that are read at a time.
const CHUNK: usize = 256 << 10;

/// How to write an archive.
pub struct Options<'a> {
    /// What is left out.
    pub excludes: &'a Excludes,
    /// Owners that replace those of the files.
    pub owners: NewOwners,
    /// Later modification times become this one.
    pub latest: Option<i64>,
    /// Called with the path of each member.
    pub show: &'a dyn Fn(&[u8]) -> Result<()>,
}

/// A directory that is being walked.
struct Level {
    dir: InodeRef,
    path_len: usize,
    names: SortedNames,
}

struct Packer<'a, W: Write> {
    vfs: &'a Arc<Vfs>,
    image: &'a Path,
    options: &'a Options<'a>,
    out: Writer<W>,
    /// The first path of each file with several hard links.
    linked: HashMap<Ino, Vec<u8>>,
    entered: CycleGuard<Ino>,
    members: u64,
    problems: Problems,
    progress: Progress,
    buffer: Vec<u8>,
}

/// Writes the file or directory `path` of an image. Returns the number of members, and what could not be
/// read. An error means that the archive is incomplete.
pub fn pack(
    vfs: &Arc<Vfs>,
    image: &Path,
    path: &[u8],
    options: &Options<'_>,
    out: impl Write,
) -> Result<(u64, Problems)> {
    let root = resolve(vfs, image, path, true)?;
    let mut packer = Packer {
        vfs,
        image,
        options,
        out: Writer::new(out),
        linked: HashMap::new(),
        entered: CycleGuard::default(),
        members: 0,
        problems: Problems::default(),
        progress: Progress::unbounded(),
        buffer: vec![0; CHUNK],
    };
    if root.kind == FileType::Directory {
        packer.tree(&root)?;
    } else {
        let name = last_name(path).context("the file has no name")?;
        packer.file(&root, name)?;
    }
    packer.out.finish().context("cannot write the archive")?;
    Ok((packer.members, packer.problems))
}

impl<W: Write> Packer<'_, W> {
    /// Writes a directory and what is below it, sorted by name. All paths start with `./`.
    fn tree(&mut self, root: &InodeRef) -> Result<()> {
        let mut path = b"./".to_vec();
        let mut levels = Vec::new();
        self.directory(root.clone(), &path, &mut levels)?;
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path_len);
            let Some(name) = level.names.remove_first() else {
                levels.pop();
                continue;
            };
            let found = child(self.vfs, &level.dir, &name);
            path = join(&path, &name);
            if self.options.excludes.excludes_last(&path[2..]) {
                continue;
            }
            match found {
                Ok(inode) if inode.kind == FileType::Directory => {
                    self.directory(inode, &path, &mut levels)?
                }
                Ok(inode) => self.file(&inode, &path)?,
                Err(error) => self.report(&path, error)?,
            }
        }
        Ok(())
    }

    fn report(&mut self, path: &[u8], error: anyhow::Error) -> Result<()> {
        let path = image_path(self.image, path);
        self.progress.suspend(|| self.problems.report(Err(error.context(path))))
    }

    fn directory(&mut self, dir: InodeRef, path: &[u8], levels: &mut Vec<Level>) -> Result<()> {
        let entered = self.entered.enter(dir.ino, levels.len(), path.len(), || image_path(self.image, path));
        let listed =
            entered.map_err(Into::into).and_then(|()| Ok((self.member(&dir, path)?, names(self.vfs, &dir)?)));
        let (mut member, names) = match listed {
            Ok(listed) => listed,
            Err(error) => return self.report(path, error),
        };
        if !member.path.ends_with(b"/") {
            member.path.push(b'/');
        }
        self.header(&member, &[])?;
        levels.push(Level { dir, path_len: path.len(), names });
        Ok(())
    }

    fn member(&self, inode: &InodeRef, path: &[u8]) -> Result<Member> {
        let source = reader::Image(self.vfs.clone());
        let header = source.header(inode)?;
        let (sec, nsec) = header.mtime;
        let latest = self
            .options
            .latest
            .map_or(Timestamp { sec: i64::MAX, nsec: 0 }, |sec| Timestamp { sec, nsec: 0 });
        let attr = self.vfs.stat(inode);
        let mut member = Member {
            perm: header.perm(),
            uid: header.uid,
            gid: header.gid,
            mtime: Timestamp { sec, nsec }.min(latest),
            rdev: header.rdev,
            target: header.target,
            xattrs: source.xattrs(inode)?,
            size: if inode.kind == FileType::Regular { attr.size } else { 0 },
            ..Member::new(path, Kind::File(inode.kind))
        };
        self.options.owners.apply(&mut member);
        Ok(member)
    }

    fn header(&mut self, member: &Member, runs: &[Run]) -> Result<()> {
        (self.options.show)(&member.path)?;
        self.members += 1;
        let members = self.members;
        self.progress.step(0, |written| format!("{members} files, {}", progress::bytes(written)));
        self.out.header(member, runs).context("cannot write the archive")
    }

    fn file(&mut self, inode: &InodeRef, path: &[u8]) -> Result<()> {
        if inode.kind == FileType::Socket {
            let path = image_path(self.image, path);
            self.progress.suspend(|| warn(format_args!("{path}: left out: an archive has no sockets")));
            return Ok(());
        }
        let described = self.member(inode, path).and_then(|member| {
            let regular = inode.kind == FileType::Regular;
            Ok((member, if regular { self.runs(inode)? } else { Vec::new() }))
        });
        let (mut member, runs) = match described {
            Ok(described) => described,
            Err(error) => return self.report(path, error),
        };
        if self.vfs.stat(inode).nlink > 1 {
            if let Some(first) = self.linked.get(&inode.ino) {
                member = Member {
                    kind: Kind::HardLink,
                    target: first.clone(),
                    xattrs: Vec::new(),
                    size: 0,
                    ..member
                };
                return self.header(&member, &[]);
            }
            self.linked.insert(inode.ino, path.to_vec());
        }
        self.header(&member, &runs)?;
        for run in runs {
            self.contents(inode, path, run)?;
        }
        self.out.fill_block().context("cannot write the archive")
    }

    fn contents(&mut self, inode: &InodeRef, path: &[u8], run: Run) -> Result<()> {
        let mut done = 0;
        while done < run.len {
            let room = (run.len - done).min(CHUNK as u64) as usize;
            let read = self.vfs.read(&Cred::root(), inode, run.offset + done, &mut self.buffer[..room]);
            match read {
                Ok(count) if count > 0 => {
                    self.out.data(&self.buffer[..count]).context("cannot write the archive")?;
                    done += count as u64;
                    let members = self.members;
                    self.progress.step(count as u64, |written| {
                        format!("{members} files, {}", progress::bytes(written))
                    });
                }
                short => {
                    // The header has promised the size.
                    self.out.zeros(run.len - done).context("cannot write the archive")?;
                    let cause =
                        short.err().map_or(anyhow::anyhow!("the file is shorter than its size"), Into::into);
                    let what = format!("the archive has zeros from byte {} on", run.offset + done);
                    return self.report(path, cause.context(what));
                }
            }
        }
        Ok(())
    }

    /// Returns the ranges of a file that contain data.
    fn runs(&self, inode: &InodeRef) -> Result<Vec<Run>> {
        let size = self.vfs.stat(inode).size;
        let mut runs = Vec::new();
        let mut at = 0;
        while at < size {
            let offset = match self.vfs.seek_data(inode, at) {
                Ok(offset) => offset,
                Err(Error::Name(NameError::NoSuchOffset)) => break,
                Err(error) => return Err(error.into()),
            };
            let end = self.vfs.seek_hole(inode, offset)?.min(size);
            if end <= offset {
                break;
            }
            if runs.len() == RUNS_MAX {
                bail!("the file has more than {RUNS_MAX} holes");
            }
            runs.push(Run { offset, len: end - offset });
            at = end;
        }
        if at < size {
            // The end of the last hole.
            runs.push(Run { offset: size, len: 0 });
        }
        Ok(runs)
    }
}
