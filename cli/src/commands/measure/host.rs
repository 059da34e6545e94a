//! Measuring a tree of the host: of a mount of ivers, whose files have change attributes, or of another
//! filesystem.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_fuse::{CHANGE, Child, GENERATION, MOUNT, SEMANTICS};
use ivers_ima::digest::Algorithm;
use ivers_ima::file_id::Identity;
use ivers_ima::hash::{self, MeasuredFile};
use ivers_ima::policy::{Decision, FileAccess, Func, Mask, Policy};
use ivers_ima::store::{Files, Record};
use ivers_vfs::FileType;
use serde_json::Value;
use xattr::FileExt as _;

use super::policy::{decide, has_current_algorithm, progress_message};
use super::protocol::{Event, Finding};
use crate::children::{self, Covered};
use crate::file_info;
use crate::output::failure;
use crate::output::format::Shown;
use crate::output::progress::Progress;

/// A mounted filesystem.
pub struct Mount {
    /// The name of the filesystem in the store. `None`: digests are valid for this run only.
    pub instance: Option<String>,
    /// Whether an unchanged change attribute means unchanged contents, while the filesystem is mounted.
    detects_changes: bool,
    fsname: String,
    uuid: [u8; 16],
    device: u64,
    /// The mount point.
    root: PathBuf,
    /// The directories that other mounts cover.
    covered: Covered,
}

impl Mount {
    /// Returns the filesystem of a path.
    pub fn of(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).with_context(|| path.shown())?;
        let full = path.canonicalize().with_context(|| path.shown())?;
        let device = meta.dev();
        let is_here = |dir: &&Path| std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.dev() == device);
        let root = full.ancestors().take_while(is_here).last().unwrap_or(&full).to_owned();
        let mut mount = Self {
            instance: None,
            detects_changes: false,
            fsname: String::new(),
            uuid: [0; 16],
            device,
            root,
            covered: Covered::now(),
        };
        if let Some(info) = file_info::served_json_if_any(path, MOUNT)? {
            let promises = file_info::served_json(path, SEMANTICS)?;
            let kept = |promise: &str| promises[promise] == true;
            mount.detects_changes = kept("data") && kept("metadata") && kept("monotonic");
            mount.fsname = info["fs"].as_str().unwrap_or_default().to_owned();
            mount.uuid = uuid(&info["uuid"]);
            // Values that outlive the mount must survive a crash too. Values that do not have a new instance
            // in each mount.
            let persistent = kept("persistent");
            let named = mount.uuid != [0; 16] && kept("crash_safe");
            mount.instance = (mount.detects_changes && (!persistent || named))
                .then(|| info["instance"].as_str().unwrap_or_default().to_owned())
                .filter(|instance| !instance.is_empty());
        }
        Ok(mount)
    }
}

fn uuid(value: &Value) -> [u8; 16] {
    uuid::Uuid::parse_str(value.as_str().unwrap_or_default()).map_or([0; 16], uuid::Uuid::into_bytes)
}

/// A walk over a tree.
pub struct Walk<'a> {
    /// The filesystem.
    pub mount: &'a Mount,
    /// The files to measure.
    pub policy: &'a Policy,
    /// The default algorithm of digests.
    pub algorithm: Algorithm,
    /// The known digests.
    pub known: Files,
}

/// An open file of the host.
struct HostFile<'a> {
    file: &'a File,
    ino: u64,
    detects_changes: bool,
}

fn number(file: &File, name: &str) -> std::io::Result<Option<u64>> {
    let value = match file.get_xattr(name) {
        Ok(value) => value,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => None,
        Err(error) => return Err(error),
    };
    Ok(value.and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok()))
}

impl MeasuredFile for HostFile<'_> {
    type Error = std::io::Error;

    fn identity(&mut self) -> std::io::Result<Identity> {
        if !self.detects_changes {
            return Ok(Identity { ino: self.ino, ..Identity::default() });
        }
        let generation = number(self.file, GENERATION)?.and_then(|value| u32::try_from(value).ok());
        // Without a generation, a new file could reuse the inode number.
        let change = if generation.is_some() { number(self.file, CHANGE)? } else { None };
        Ok(Identity { ino: self.ino, generation: generation.unwrap_or(0), change })
    }

    fn label(&mut self) -> std::io::Result<Vec<u8>> {
        match self.file.get_xattr("security.ima") {
            Ok(value) => Ok(value.unwrap_or_default()),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => {
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read_at(buffer, offset)
    }
}

impl Walk<'_> {
    /// Measures a file, or the tree below a directory, and emits events.
    pub fn run(&mut self, path: &Path, emit: &mut dyn FnMut(Event) -> Result<()>) -> Result<()> {
        let path = path.canonicalize().with_context(|| path.shown())?;
        let progress = Progress::unbounded();
        let meta = std::fs::symlink_metadata(&path).with_context(|| path.shown())?;
        if meta.is_file() {
            return self.visit(&path, &meta, emit, &progress);
        }
        let mut dirs = vec![path];
        while let Some(dir) = dirs.pop() {
            if let Some(children) = self.children(&dir) {
                let below = self.visit_all(&dir, children, emit, &progress)?;
                dirs.extend(below.into_iter().rev());
                continue;
            }
            let names = std::fs::read_dir(&dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
            let mut names = match names {
                Ok(names) => names,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                // Nearly every ext4 filesystem has a lost+found that only root may read.
                Err(_) if dir.file_name().is_some_and(|name| name == "lost+found") => continue,
                Err(error) => {
                    emit(problem(&dir, error.into()))?;
                    continue;
                }
            };
            names.sort_by_key(std::fs::DirEntry::file_name);
            let mut below = Vec::new();
            for entry in names {
                let path = entry.path();
                match std::fs::symlink_metadata(&path) {
                    Ok(meta) if meta.dev() != self.mount.device => {}
                    Ok(meta) if meta.is_dir() => below.push(path),
                    Ok(meta) if meta.is_file() => self.visit(&path, &meta, emit, &progress)?,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => emit(problem(&path, error.into()))?,
                }
            }
            dirs.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn visit(
        &mut self,
        path: &Path,
        meta: &Metadata,
        emit: &mut dyn FnMut(Event) -> Result<()>,
        progress: &Progress,
    ) -> Result<()> {
        match self.measure(path, meta) {
            Ok(Some(finding)) => {
                let read = finding.read.unwrap_or(0);
                emit(Event::Finding(finding))?;
                progress.step(1, |files| progress_message(files, read));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => emit(problem(path, error)),
        }
    }

    /// Returns the files of a directory, sorted by name, with their change attributes: a few requests instead
    /// of several per file. `None` if the mount does not support it, or if no digest is known and each file
    /// must be read.
    fn children(&self, dir: &Path) -> Option<Vec<Child>> {
        if !self.mount.detects_changes || self.known.is_empty() {
            return None;
        }
        let mut all = Vec::new();
        children::of(dir, self.mount.device, &self.mount.covered, &mut |child| all.push(child))?;
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Some(all)
    }

    /// Measures the files among `children`. Returns the directories.
    fn visit_all(
        &mut self,
        dir: &Path,
        children: Vec<Child>,
        emit: &mut dyn FnMut(Event) -> Result<()>,
        progress: &Progress,
    ) -> Result<Vec<PathBuf>> {
        let mut below = Vec::new();
        for child in children {
            let path = dir.join(OsStr::from_bytes(&child.name));
            match FileType::from_mode(child.mode) {
                Some(FileType::Directory) => below.push(path),
                Some(FileType::Regular) => {
                    let Child { ino, generation, change, mode, uid, gid, size, .. } = child;
                    let decision = self.decision(&path, (uid, gid, mode));
                    if decision.is_empty() {
                        continue;
                    }
                    let identity = Identity { ino, generation, change };
                    match self.known_digest(&identity) {
                        Some(known) => {
                            let path = path.into_os_string().into_vec();
                            emit(Event::Finding(Finding::unread(path, decision, identity, &known, size)))?;
                            progress.step(1, |files| progress_message(files, 0));
                        }
                        None => match std::fs::symlink_metadata(&path) {
                            Ok(meta) if meta.is_file() => self.visit(&path, &meta, emit, progress)?,
                            Ok(_) => {}
                            Err(error) if error.kind() == ErrorKind::NotFound => {}
                            Err(error) => emit(problem(&path, error.into()))?,
                        },
                    }
                }
                _ => {}
            }
        }
        Ok(below)
    }

    /// Returns the decision of the policy on a file with this owner, group and mode.
    fn decision(&self, path: &Path, (fowner, fgroup, mode): (u32, u32, u32)) -> Decision {
        let inside = path.strip_prefix(&self.mount.root).unwrap_or(path);
        let inside = [b"/", inside.as_os_str().as_bytes()].concat();
        let used = FileAccess {
            func: Func::FileCheck,
            mask: Mask::READ,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            fowner,
            fgroup,
            fsuuid: self.mount.uuid,
            fsname: &self.mount.fsname,
            path: Some(&inside),
        };
        decide(self.policy, &used, mode)
    }

    /// Returns the known digest of a file that is unchanged.
    fn known_digest(&self, identity: &Identity) -> Option<Record> {
        self.known.find(identity).filter(|known| has_current_algorithm(known, self.algorithm))
    }

    fn measure(&mut self, path: &Path, meta: &Metadata) -> Result<Option<Finding>> {
        let decision = self.decision(path, (meta.uid(), meta.gid(), meta.mode()));
        if decision.is_empty() {
            return Ok(None);
        }
        if self.mount.detects_changes && !self.known.is_empty() {
            let identity = file_info::identity(path, meta.ino())?;
            if let Some(known) = self.known_digest(&identity) {
                let path = path.as_os_str().as_bytes().to_vec();
                return Ok(Some(Finding::unread(path, decision, identity, &known, meta.size())));
            }
        }
        // The path can have changed concurrently, e.g. to a FIFO, which must not block.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        let opened = file.metadata()?;
        anyhow::ensure!(opened.is_file(), "no longer a regular file");
        let mut host_file =
            HostFile { file: &file, ino: opened.ino(), detects_changes: self.mount.detects_changes };
        let hashed = hash::hash_file(&mut host_file, self.algorithm)?;
        self.known.put(&hashed.identity, &hashed.digest, &hashed.label);
        Ok(Some(Finding {
            path: path.as_os_str().as_bytes().to_vec(),
            decision,
            identity: hashed.identity,
            digest: hashed.digest,
            label: hashed.label,
            size: opened.size(),
            read: Some(hashed.bytes),
            changing: hashed.unstable,
        }))
    }
}

fn problem(path: &Path, error: anyhow::Error) -> Event {
    let error = error.context(path.shown());
    Event::Problem { code: failure::code(&error), line: failure::short_line(&error) }
}
