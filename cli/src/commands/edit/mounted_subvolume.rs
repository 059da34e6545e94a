//! `subvolume` on a mount: the process of the mount does the work (see [`ivers_fuse::SubvolumeCall`]).

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ivers_fuse::{MOUNT, SUBVOLUME, SUBVOLUME_FLUSH, SUBVOLUMES, SubvolumeCall, parse_subvolumes};
use rustix::io::Errno;
use serde_json::json;

use super::session::Report;
use super::subvolume::{
    Create, Delete, HAS_OTHERS, IS_OPEN, List, NO_SUBVOLUMES, NOT_ONE, Snapshot, print_json, report,
};
use crate::arguments::{Operand, last_name};
use crate::file_info::served_json_if_any;
use crate::output::failure::{Problems, REFUSED, failure, usage};
use crate::output::format::Shown;
use crate::output::{format, print};

/// Returns the operands as paths, if none of them is in an image, and one of them is on a mount of ivers.
pub fn paths_on_mounts(operands: &[PathBuf]) -> Result<Option<Vec<PathBuf>>> {
    let mut paths = Vec::new();
    let mut is_on_mount = false;
    for operand in operands {
        let Operand::Host(path) = Operand::parse(operand) else { return Ok(None) };
        let dir = if path.is_dir() { &*path } else { parent(&path) };
        is_on_mount |= dir.is_dir() && served_json_if_any(dir, MOUNT)?.is_some();
        paths.push(path);
    }
    Ok(Some(paths).filter(|_| is_on_mount))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(dir) if dir.as_os_str().is_empty() => Path::new("."),
        Some(dir) => dir,
        None => path,
    }
}

/// A command of subvolumes on mounts.
pub trait OnMount {
    /// Returns how it reports. `None`: it prints what it reads.
    fn report(&self) -> Option<Report>;
    /// Runs it on an operand, or on an operand and its destination. Returns the path that changed.
    fn run(&self, path: &Path, to: Option<&Path>, json: bool) -> Result<PathBuf>;
    /// The last operand is a destination.
    const HAS_DESTINATION: bool = false;
}

/// Runs a command. An error that concerns one operand is reported, and the rest is done.
pub fn run<O: OnMount>(options: &O, paths: &[PathBuf], json: bool) -> Result<()> {
    let (operands, to) = match paths {
        [operand, to] if O::HAS_DESTINATION => (std::slice::from_ref(operand), Some(&**to)),
        _ if O::HAS_DESTINATION => return Err(usage("name one subvolume, then the snapshot")),
        _ => (paths, None),
    };
    let mut problems = Problems::default();
    for path in operands {
        let done = options.run(path, to, json);
        if let Some(report) = options.report() {
            print_done(&report, path, &done, json)?;
        }
        problems.report(done.map(drop))?;
    }
    problems.into_result()
}

fn print_done(report: &Report, path: &Path, done: &Result<PathBuf>, json: bool) -> Result<()> {
    if json {
        let object = json!({
            "operation": report.operation,
            "dry_run": false,
            "changed": u8::from(done.is_ok()),
        });
        return print::json_line(&format::with_paths(object, [("path", path)]));
    }
    match done {
        Ok(path) if report.verbose => print::line(format_args!("{} {}", report.verbs.0, path.shown())),
        _ => Ok(()),
    }
}

/// Splits a path into a directory and a name in it.
fn split(path: &Path) -> Result<(&Path, &[u8])> {
    let name = last_name(path.as_os_str().as_bytes());
    let name = name.ok_or_else(|| usage(format!("{}: not the name of a subvolume", path.shown())))?;
    Ok((parent(path), name))
}

/// Announces the next call in `dir`, and makes it.
fn call(
    dir: &Path,
    name: &[u8],
    call: SubvolumeCall,
    make: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    xattr::set(dir, SUBVOLUME, &call.encode(name))?;
    make()
}

fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o777).create(path)
}

/// Explains the errors that subvolumes have.
fn explained(path: &Path, done: io::Result<()>) -> Result<()> {
    let Err(error) = done else { return Ok(()) };
    let why = match Errno::from_io_error(&error) {
        Some(Errno::OPNOTSUPP) => NO_SUBVOLUMES,
        Some(Errno::INVAL) => NOT_ONE,
        Some(Errno::NOTEMPTY) => HAS_OTHERS,
        Some(Errno::BUSY) => IS_OPEN,
        Some(Errno::TXTBSY) => "a file in it is open; close it first",
        _ => return Err(error).with_context(|| path.shown()),
    };
    Err(failure(REFUSED, format!("{}: {why}", path.shown())))
}

impl OnMount for List {
    fn report(&self) -> Option<Report> {
        None
    }

    fn run(&self, path: &Path, _to: Option<&Path>, json: bool) -> Result<PathBuf> {
        let mut attribute = SUBVOLUMES.to_owned();
        loop {
            let value = xattr::get_deref(path, &attribute);
            let value = match value {
                Ok(value) => value.with_context(|| format!("{}: not on a mount", path.shown()))?,
                Err(error) => return explained(path, Err(error)).map(|()| path.to_owned()),
            };
            let part = parse_subvolumes(&value);
            let (all, next) = part.with_context(|| format!("{}: a wrong list", path.shown()))?;
            for one in &all {
                if json { print_json(one)? } else { self.print(one)? }
            }
            match next {
                Some(next) => attribute = format!("{SUBVOLUMES}.{next}"),
                None => return Ok(path.to_owned()),
            }
        }
    }
}

impl OnMount for Create {
    fn report(&self) -> Option<Report> {
        Some(report("subvolume create", "created", self.verbose))
    }

    fn run(&self, path: &Path, _to: Option<&Path>, _json: bool) -> Result<PathBuf> {
        let (dir, name) = split(path)?;
        explained(path, call(dir, name, SubvolumeCall::Create, || make_dir(path)))?;
        Ok(path.to_owned())
    }
}

impl OnMount for Snapshot {
    const HAS_DESTINATION: bool = true;

    fn report(&self) -> Option<Report> {
        Some(report("subvolume snapshot", "created", self.verbose))
    }

    fn run(&self, path: &Path, to: Option<&Path>, _json: bool) -> Result<PathBuf> {
        let mut to = to.context("no destination")?.to_owned();
        // In an existing directory, the snapshot has the name of its source.
        if to.is_dir()
            && let Some(name) = path.file_name()
        {
            to.push(name);
        }
        let (dir, name) = split(&to)?;
        let meta = fs::metadata(path).with_context(|| path.shown())?;
        if fs::metadata(dir).with_context(|| dir.shown())?.dev() != meta.dev() {
            return Err(failure(REFUSED, format!("{}: on another mount than its source", to.shown())));
        }
        // The kernel may forget an inode that is not in use, and its number with it.
        let _source = fs::File::open(path).with_context(|| path.shown())?;
        let flushed = xattr::get_deref(path, SUBVOLUME_FLUSH);
        flushed.with_context(|| format!("{}: a file in it cannot be flushed", path.shown()))?;
        let snapshot = SubvolumeCall::Snapshot { source: meta.ino(), read_only: self.read_only };
        let made = call(dir, name, snapshot, || make_dir(&to));
        explained(if to.exists() { &to } else { path }, made)?;
        Ok(to)
    }
}

impl OnMount for Delete {
    fn report(&self) -> Option<Report> {
        Some(report("subvolume delete", "deleted", self.verbose))
    }

    fn run(&self, path: &Path, _to: Option<&Path>, _json: bool) -> Result<PathBuf> {
        let (dir, name) = split(path)?;
        explained(path, call(dir, name, SubvolumeCall::Delete, || fs::remove_dir(path)))?;
        Ok(path.to_owned())
    }
}
