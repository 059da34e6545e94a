//! Measuring a tree of an image, in the process that parses it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use ivers_measure::digest::Algorithm;
use ivers_measure::policy::{Func, Mask, Policy, Use};
use ivers_measure::record::Identity;
use ivers_measure::store::Files;
use ivers_measure::taking::{self, Inside, Subject};
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};

use super::decide;
use super::wire::{self, Finding, Told};
use crate::dirs::Dirs;
use crate::image;
use crate::progress::Progress;
use crate::{changed, failure, files};

struct Walk<'a> {
    vfs: &'a Vfs,
    policy: Policy,
    known: Files,
    algorithm: Algorithm,
    out: BufWriter<File>,
    progress: Progress,
}

/// In the keeper of an image: do the job that comes out of the socket.
pub fn measure(vfs: &Vfs, image: &Path, path: &[u8], mut socket: File) -> Result<()> {
    let root = vfs.resolve(&Cred::root(), path, true).with_context(|| image::name(image, path))?;
    let instance = if taking::lasts(vfs) { changed::instance(vfs) } else { String::new() };
    wire::send(&mut socket, instance.as_bytes())?;
    let policy = String::from_utf8(wire::receive(&mut socket, wire::KNOWN_MAX)?)?;
    let known = wire::receive(&mut socket, wire::KNOWN_MAX)?;
    let algorithm = wire::receive(&mut socket, 1)?.first().and_then(|&id| Algorithm::by_id(id));
    let mut walk = Walk {
        vfs,
        policy: policy.parse()?,
        known: Files::decode(&known).context("the store came in parts")?,
        algorithm: algorithm.context("no algorithm")?,
        out: BufWriter::new(socket),
        progress: Progress::unbounded(),
    };
    walk.tree(root, image, path)?;
    wire::send(&mut walk.out, &[])?;
    Ok(walk.out.flush()?)
}

impl Walk<'_> {
    fn tree(&mut self, root: InodeRef, image: &Path, path: &[u8]) -> Result<()> {
        let path = [b"/", path.strip_prefix(b"/").unwrap_or(path)].concat();
        if root.kind != FileType::Directory {
            return self.look(&root, image, path);
        }
        let mut been = Dirs::default();
        let mut dirs = vec![(path, root, 0)];
        while let Some((dir, inode, depth)) = dirs.pop() {
            let place = || format!("{}, inode {}", image::name(image, &dir), inode.ino.0);
            let entries = been.enter(inode.ino.0, depth, dir.len(), place).map_err(anyhow::Error::from);
            let entries = match entries.and_then(|()| files::entries(self.vfs, &inode)) {
                Ok(entries) => entries,
                Err(error) => {
                    self.problem(&error.context(image::name(image, &dir)))?;
                    continue;
                }
            };
            let mut below = Vec::new();
            for (name, inode) in entries {
                let path = image::join(&dir, &name);
                match inode {
                    Ok(inode) if inode.kind == FileType::Directory => below.push((path, inode, depth + 1)),
                    Ok(inode) => self.look(&inode, image, path)?,
                    Err(error) => self.problem(&error.context(image::name(image, &dir)))?,
                }
            }
            // In the order of names.
            dirs.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn problem(&mut self, error: &anyhow::Error) -> Result<()> {
        let told = Told::Problem { code: failure::code(error), line: failure::short_line(error) };
        wire::send(&mut self.out, &told.encode())
    }

    fn look(&mut self, inode: &InodeRef, image: &Path, path: Vec<u8>) -> Result<()> {
        if inode.kind != FileType::Regular {
            return Ok(());
        }
        match self.find(inode, path.clone()) {
            Ok(Some(finding)) => {
                let read = finding.read.unwrap_or(0);
                wire::send(&mut self.out, &Told::Finding(finding).encode())?;
                self.progress.step(1, |files| super::progress_of(files, read));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.problem(&error.context(image::name(image, &path))),
        }
    }

    fn find(&mut self, inode: &InodeRef, path: Vec<u8>) -> Result<Option<Finding>> {
        let attr = self.vfs.stat(inode);
        let info = self.vfs.info();
        let used = Use {
            func: Func::FileCheck,
            mask: Mask::READ,
            uid: 0,
            gid: 0,
            fowner: attr.uid,
            fgroup: attr.gid,
            fsuuid: info.uuid,
            fsname: info.fs_type,
            path: Some(&path),
        };
        let decision = decide(&self.policy, &used, attr.perm);
        if decision.is_idle() {
            return Ok(None);
        }
        let mut inside = Inside { vfs: self.vfs, inode };
        let identity: Identity = inside.identity()?;
        let found = match self.known.find(&identity) {
            Some(known) if super::is_of(known, self.algorithm) => {
                Finding::unread(path, decision, identity, known, attr.size)
            }
            _ => {
                let taken = taking::take(&mut inside, self.algorithm)?;
                // Another name of the same file is not read again.
                self.known.put(&taken.identity, &taken.digest, &taken.label);
                Finding {
                    path,
                    decision,
                    identity: taken.identity,
                    digest: taken.digest,
                    label: taken.label,
                    size: attr.size,
                    read: Some(taken.bytes),
                    moved: taken.moved,
                }
            }
        };
        Ok(Some(found))
    }
}
