//! Measuring a tree of an image, in the image process.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use ivers_ima::digest::Algorithm;
use ivers_ima::file_id::Identity;
use ivers_ima::hash::{self, MeasuredFile, VfsFile};
use ivers_ima::policy::{FileAccess, Func, Mask, Policy};
use ivers_ima::store::Files;
use ivers_vfs::{Cred, FileType, InodeRef, Vfs};

use super::policy::{decide, has_current_algorithm, progress_message};
use super::protocol::{self, Event, Finding};
use crate::arguments::{image_path, join};
use crate::file_info;
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::{entries, resolve};
use crate::output::failure;
use crate::output::progress::Progress;

struct Walk<'a> {
    vfs: &'a Vfs,
    policy: Policy,
    known: Files,
    algorithm: Algorithm,
    out: BufWriter<File>,
    progress: Progress,
}

/// Runs the job that is read from the socket.
pub fn measure(vfs: &Vfs, image: &Path, path: &[u8], mut socket: File) -> Result<()> {
    let root = resolve(vfs, image, path, true)?;
    let instance =
        if hash::detects_changes_across_mounts(vfs) { file_info::instance(vfs) } else { String::new() };
    protocol::send(&mut socket, instance.as_bytes())?;
    let policy = String::from_utf8(protocol::receive(&mut socket, protocol::JOB_MAX)?)?;
    let known = Files::decode(&protocol::receive(&mut socket, protocol::JOB_MAX)?);
    let known = known.context("invalid digests in the job")?;
    if let Some(budget) = &vfs.options().budget {
        // The caches keep less for it, until this process ends.
        budget.charge(known.memory_bytes().min(budget.limit() / 2));
    }
    let algorithm = protocol::receive(&mut socket, 1)?.first().and_then(|&id| Algorithm::by_id(id));
    let mut walk = Walk {
        vfs,
        policy: policy.parse()?,
        known,
        algorithm: algorithm.context("unknown algorithm in the job")?,
        out: BufWriter::new(socket),
        progress: Progress::unbounded(),
    };
    walk.tree(root, image, path)?;
    protocol::send(&mut walk.out, &[])?;
    Ok(walk.out.flush()?)
}

impl Walk<'_> {
    fn tree(&mut self, root: InodeRef, image: &Path, path: &[u8]) -> Result<()> {
        let path = [b"/", path.strip_prefix(b"/").unwrap_or(path)].concat();
        if root.kind != FileType::Directory {
            return self.visit(&root, image, path);
        }
        drop(root);
        let mut guard = CycleGuard::default();
        // Paths and not inodes: a directory can have many directories, and these must not stay in memory.
        let mut dirs = vec![(path, 0)];
        while let Some((dir, depth)) = dirs.pop() {
            let inode = match self.enter(image, &dir, depth, &mut guard) {
                Ok(inode) => inode,
                Err(error) => {
                    self.problem(&error.context(image_path(image, &dir)))?;
                    continue;
                }
            };
            let entries = match entries(self.vfs, &inode) {
                Ok(entries) => entries,
                Err(error) => {
                    self.problem(&error.context(image_path(image, &dir)))?;
                    continue;
                }
            };
            let mut below = Vec::new();
            for (name, inode) in entries {
                let path = join(&dir, &name);
                match inode {
                    Ok(inode) if inode.kind == FileType::Directory => below.push((path, depth + 1)),
                    Ok(inode) => self.visit(&inode, image, path)?,
                    Err(error) => self.problem(&error.context(image_path(image, &dir)))?,
                }
            }
            // The last one is popped first.
            dirs.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// Enters a directory.
    fn enter(&self, image: &Path, dir: &[u8], depth: usize, guard: &mut CycleGuard<u64>) -> Result<InodeRef> {
        let inode = self.vfs.resolve(&Cred::root(), dir, true)?;
        let location = || format!("{}, inode {}", image_path(image, dir), inode.ino.0);
        guard.enter(inode.ino.0, depth, dir.len(), location)?;
        Ok(inode)
    }

    fn problem(&mut self, error: &anyhow::Error) -> Result<()> {
        let event = Event::Problem { code: failure::code(error), line: failure::short_line(error) };
        protocol::send(&mut self.out, &event.encode())
    }

    fn visit(&mut self, inode: &InodeRef, image: &Path, path: Vec<u8>) -> Result<()> {
        if inode.kind != FileType::Regular {
            return Ok(());
        }
        match self.measure(inode, path.clone()) {
            Ok(Some(finding)) => {
                let read = finding.read.unwrap_or(0);
                protocol::send(&mut self.out, &Event::Finding(finding).encode())?;
                self.progress.step(1, |files| progress_message(files, read));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => self.problem(&error.context(image_path(image, &path))),
        }
    }

    fn measure(&mut self, inode: &InodeRef, path: Vec<u8>) -> Result<Option<Finding>> {
        let attr = self.vfs.stat(inode);
        let info = self.vfs.info();
        let used = FileAccess {
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
        if decision.is_empty() {
            return Ok(None);
        }
        let mut file = VfsFile { vfs: self.vfs, inode };
        let identity: Identity = file.identity()?;
        let found = match self.known.find(&identity) {
            Some(known) if has_current_algorithm(&known, self.algorithm) => {
                Finding::unread(path, decision, identity, &known, attr.size)
            }
            _ => {
                let hashed = hash::hash_file(&mut file, self.algorithm)?;
                if attr.nlink > 1 {
                    // Another hard link to the file is not read again.
                    self.known.put(&hashed.identity, &hashed.digest, &hashed.label);
                }
                Finding {
                    path,
                    decision,
                    identity: hashed.identity,
                    digest: hashed.digest,
                    label: hashed.label,
                    size: attr.size,
                    read: Some(hashed.bytes),
                    changing: hashed.unstable,
                }
            }
        };
        Ok(Some(found))
    }
}
