//! Measuring a tree of the system: of a mount of ivers, whose files have change attributes, or of any other filesystem, whose files have none.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt as _, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_fuse::{
    CHANGE, CHILDREN, CHILDREN_MAX, Child, GENERATION, MOUNT, SEMANTICS, all_mounts, parse_children,
};
use ivers_measure::digest::Algorithm;
use ivers_measure::policy::{Decision, Func, Mask, Policy, Use};
use ivers_measure::record::Identity;
use ivers_measure::store::{Files, Known};
use ivers_measure::taking::{self, Subject};
use ivers_vfs::FileType;
use serde_json::Value;
use xattr::FileExt as _;

use super::decide;
use super::wire::{Finding, Told};
use crate::progress::Progress;
use crate::{facts, failure};

/// No honest directory holds more.
const CHILDREN_AT_MOST: usize = 50_000_000;

/// A filesystem of the system.
pub struct Mount {
    /// Under which name its files are kept; none: nothing vouches for them.
    pub instance: Option<String>,
    /// Values of this filesystem vouch for contents as long as it is mounted.
    vouches: bool,
    fsname: String,
    uuid: [u8; 16],
    device: u64,
    /// The directory that it begins at.
    root: PathBuf,
    /// Where something else is mounted over a name of it; nothing if nobody knows.
    covered: Option<HashSet<PathBuf>>,
}

impl Mount {
    /// The one that this path is on.
    pub fn of(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).with_context(|| path.display().to_string())?;
        let full = path.canonicalize().with_context(|| path.display().to_string())?;
        let device = meta.dev();
        let is_here = |dir: &&Path| std::fs::symlink_metadata(dir).is_ok_and(|meta| meta.dev() == device);
        let root = full.ancestors().take_while(is_here).last().unwrap_or(&full).to_owned();
        let mounts: HashSet<_> = all_mounts().into_iter().map(|mount| mount.dir).collect();
        let covered = (!mounts.is_empty()).then_some(mounts);
        let mut mount = Self {
            instance: None,
            vouches: false,
            fsname: String::new(),
            uuid: [0; 16],
            device,
            root,
            covered,
        };
        if let Some(told) = facts::served_json_if_any(path, MOUNT)? {
            let promises = facts::served_json(path, SEMANTICS)?;
            let kept = |promise: &str| promises[promise] == true;
            mount.vouches = kept("data") && kept("metadata") && kept("monotonic");
            mount.fsname = told["fs"].as_str().unwrap_or_default().to_owned();
            mount.uuid = uuid(&told["uuid"]);
            // What lasts beyond the mount must last beyond a crash; what does not has an instance of its own each time.
            let lasts = kept("persistent");
            let named = mount.uuid != [0; 16] && kept("crash_safe");
            mount.instance = (mount.vouches && (!lasts || named))
                .then(|| told["instance"].as_str().unwrap_or_default().to_owned())
                .filter(|instance| !instance.is_empty());
        }
        Ok(mount)
    }
}

fn uuid(told: &Value) -> [u8; 16] {
    uuid::Uuid::parse_str(told.as_str().unwrap_or_default()).map_or([0; 16], uuid::Uuid::into_bytes)
}

/// What a walk is made with.
pub struct Walk<'a> {
    /// Where.
    pub mount: &'a Mount,
    /// What is measured.
    pub policy: &'a Policy,
    /// How.
    pub algorithm: Algorithm,
    /// What need not be read.
    pub known: Files,
}

/// An open file.
struct Outside<'a> {
    file: &'a File,
    ino: u64,
    vouches: bool,
}

fn number(file: &File, name: &str) -> std::io::Result<Option<u64>> {
    let value = match file.get_xattr(name) {
        Ok(value) => value,
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => None,
        Err(error) => return Err(error),
    };
    Ok(value.and_then(|text| String::from_utf8(text).ok()?.trim().parse().ok()))
}

impl Subject for Outside<'_> {
    type Error = std::io::Error;

    fn identity(&mut self) -> std::io::Result<Identity> {
        if !self.vouches {
            return Ok(Identity { ino: self.ino, ..Identity::default() });
        }
        let generation = number(self.file, GENERATION)?.and_then(|value| u32::try_from(value).ok());
        // Without a generation another life of the number would look the same.
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
    /// Measure what is below a path, or what it names, and tell of it.
    pub fn run(&mut self, path: &Path, tell: &mut dyn FnMut(Told) -> Result<()>) -> Result<()> {
        let path = path.canonicalize().with_context(|| path.display().to_string())?;
        let progress = Progress::unbounded();
        let meta = std::fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
        if meta.is_file() {
            return self.look(&path, &meta, tell, &progress);
        }
        let mut dirs = vec![path];
        while let Some(dir) = dirs.pop() {
            if let Some(children) = self.children(&dir) {
                let below = self.look_at_all(&dir, children, tell, &progress)?;
                dirs.extend(below.into_iter().rev());
                continue;
            }
            let names = std::fs::read_dir(&dir).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
            let mut names = match names {
                Ok(names) => names,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                // Nearly every ext4 filesystem has one that only root may look into.
                Err(_) if dir.file_name().is_some_and(|name| name == "lost+found") => continue,
                Err(error) => {
                    tell(problem(&dir, error.into()))?;
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
                    Ok(meta) if meta.is_file() => self.look(&path, &meta, tell, &progress)?,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => tell(problem(&path, error.into()))?,
                }
            }
            dirs.extend(below.into_iter().rev());
        }
        Ok(())
    }

    fn look(
        &mut self,
        path: &Path,
        meta: &Metadata,
        tell: &mut dyn FnMut(Told) -> Result<()>,
        progress: &Progress,
    ) -> Result<()> {
        match self.find(path, meta) {
            Ok(Some(finding)) => {
                let read = finding.read.unwrap_or(0);
                tell(Told::Finding(finding))?;
                progress.step(1, |files| super::progress_of(files, read));
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(error) => tell(problem(path, error)),
        }
    }

    /// What a directory holds, by name, with the change attributes: a few requests for all its files, and nothing about them that a
    /// walk by names would not have found. `None` where the mount does not say it, and where it is not worth the question.
    fn children(&self, dir: &Path) -> Option<Vec<Child>> {
        if !self.mount.vouches || self.known.is_empty() {
            return None;
        }
        // The mount does not know what is mounted over its names.
        let is_covered = |child: &Child| {
            let covered = self.mount.covered.as_ref();
            covered.is_none_or(|covered| covered.contains(&dir.join(OsStr::from_bytes(&child.name))))
        };
        let (mut all, mut name) = (Vec::new(), CHILDREN.to_owned());
        let mut value = vec![0; CHILDREN_MAX];
        let mut last = 0;
        loop {
            let len = rustix::fs::getxattr(dir, &name, &mut value).ok()?;
            let (children, next) = parse_children(value.get(..len)?)?;
            if children.iter().any(is_covered) {
                return None;
            }
            all.extend(children);
            let Some(next) = next else { break };
            // Whoever serves this may be anybody.
            if next == last || all.len() > CHILDREN_AT_MOST {
                return None;
            }
            last = next;
            name = format!("{CHILDREN}.{next}");
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Some(all)
    }

    /// Measure the files among what a directory holds; the directories.
    fn look_at_all(
        &mut self,
        dir: &Path,
        children: Vec<Child>,
        tell: &mut dyn FnMut(Told) -> Result<()>,
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
                    if decision.is_idle() {
                        continue;
                    }
                    let identity = Identity { ino, generation, change };
                    match self.vouched(&identity) {
                        Some(known) => {
                            let path = path.into_os_string().into_vec();
                            tell(Told::Finding(Finding::unread(path, decision, identity, known, size)))?;
                            progress.step(1, |files| super::progress_of(files, 0));
                        }
                        None => match std::fs::symlink_metadata(&path) {
                            Ok(meta) if meta.is_file() => self.look(&path, &meta, tell, progress)?,
                            Ok(_) => {}
                            Err(error) if error.kind() == ErrorKind::NotFound => {}
                            Err(error) => tell(problem(&path, error.into()))?,
                        },
                    }
                }
                _ => {}
            }
        }
        Ok(below)
    }

    /// What the policy says of a file with this owner, group and mode.
    fn decision(&self, path: &Path, (fowner, fgroup, mode): (u32, u32, u32)) -> Decision {
        let inside = path.strip_prefix(&self.mount.root).unwrap_or(path);
        let inside = [b"/", inside.as_os_str().as_bytes()].concat();
        let used = Use {
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

    /// What need not be taken again.
    fn vouched(&self, identity: &Identity) -> Option<&Known> {
        self.known.find(identity).filter(|known| super::is_of(known, self.algorithm))
    }

    fn find(&mut self, path: &Path, meta: &Metadata) -> Result<Option<Finding>> {
        let decision = self.decision(path, (meta.uid(), meta.gid(), meta.mode()));
        if decision.is_idle() {
            return Ok(None);
        }
        if self.mount.vouches && !self.known.is_empty() {
            let identity = facts::identity(path, meta.ino())?;
            if let Some(known) = self.vouched(&identity) {
                let path = path.as_os_str().as_bytes().to_vec();
                return Ok(Some(Finding::unread(path, decision, identity, known, meta.size())));
            }
        }
        // What was there when it was looked at may be a FIFO now: that must not be waited for.
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        let opened = file.metadata()?;
        anyhow::ensure!(opened.is_file(), "no longer a file");
        let mut outside = Outside { file: &file, ino: opened.ino(), vouches: self.mount.vouches };
        let taken = taking::take(&mut outside, self.algorithm)?;
        self.known.put(&taken.identity, &taken.digest, &taken.label);
        Ok(Some(Finding {
            path: path.as_os_str().as_bytes().to_vec(),
            decision,
            identity: taken.identity,
            digest: taken.digest,
            label: taken.label,
            size: opened.size(),
            read: Some(taken.bytes),
            moved: taken.moved,
        }))
    }
}

fn problem(path: &Path, error: anyhow::Error) -> Told {
    let error = error.context(path.display().to_string());
    Told::Problem { code: failure::code(&error), line: failure::short_line(&error) }
}
