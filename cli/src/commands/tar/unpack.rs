//! Reading an archive into a directory of an image.

use std::io::Read;

use anyhow::{Context, Result, anyhow, bail};
use ivers_vfs::{Error, FileType, NameError, Timestamp};

use super::exclude::Excludes;
use crate::archive::member::{ArchiveError, Kind, Member, NewOwners};
use crate::archive::reader::{DataError, Reader};
use crate::image::filler::{Filler, names_of};
use crate::output::failure::{Problems, code, line, say_error};
use crate::output::format;
use crate::output::progress::{self, Progress};

/// A signal asked to stop.
#[derive(Debug)]
pub struct Interrupted;

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// How to read an archive.
pub struct Options<'a> {
    /// What is left out.
    pub excludes: &'a Excludes,
    /// The number of names to remove from the start of each path. A path without more names is left out.
    pub strip: usize,
    /// Owners that replace those of the archive.
    pub owners: NewOwners,
    /// Later times become this one.
    pub latest: Option<Timestamp>,
    /// Called with each member.
    pub show: &'a dyn Fn(&Member) -> Result<()>,
    /// Access times become modification times, also if the archive has them.
    pub no_atimes: bool,
    /// Problems are counted and not shown.
    pub silent: bool,
    /// Returns whether a signal asks to stop.
    pub stop: &'a dyn Fn() -> bool,
    /// The length of the archive in bytes, for the progress. 0 if unknown.
    pub archive_bytes: u64,
}

/// Reads all members. Returns their number, and what could not be created. An error means that the rest of
/// the archive was not read.
pub fn unpack(
    archive: &mut Reader<impl Read>,
    filler: &mut Filler,
    options: &Options<'_>,
) -> Result<(u64, Problems)> {
    let mut problems = Problems::default();
    let progress = Progress::unbounded();
    let mut count = 0;
    while let Some(mut member) = archive.next()? {
        if (options.stop)() {
            return Err(Interrupted).with_context(|| format!("{count} members are complete"));
        }
        let path = format::name(&member.path);
        let done = match destination(&member, options) {
            Ok(None) => continue,
            Ok(Some(names)) => {
                let names: Vec<_> = names.iter().map(Vec::as_slice).collect();
                (options.show)(&member)?;
                options.owners.apply(&mut member);
                if options.no_atimes {
                    member.atime = None;
                }
                if let Some(latest) = options.latest {
                    member.mtime = member.mtime.min(latest);
                    member.atime = member.atime.map(|atime| atime.min(latest));
                }
                one(archive, filler, &member, &names, options)
            }
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => count += 1,
            Err(error) if is_fatal(&error) => return Err(error.context(path)),
            Err(error) => {
                let error = error.context(path);
                problems.add(code(&error));
                if !options.silent {
                    progress.suspend(|| say_error(code(&error), &line(&error)));
                }
            }
        }
        let read = archive.position();
        progress.step(1, |members| {
            let part = progress::describe(read, options.archive_bytes, progress.elapsed());
            format!("{}, {part}", format::count(members, "file"))
        });
    }
    Ok((count, problems))
}

/// Returns whether no later member can succeed.
pub fn is_fatal(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<ArchiveError>()
            || cause.is::<Interrupted>()
            || cause.downcast_ref::<Error>().is_some_and(|error| match error {
                Error::Name(name) => matches!(name, NameError::NoSpace),
                _ => true,
            })
    })
}

/// Returns the names of the path to create, without those that are stripped. `None`: the member is left out.
fn destination(member: &Member, options: &Options<'_>) -> Result<Option<Vec<Vec<u8>>>> {
    let names = names_of(&member.path)?;
    if options.excludes.excludes(&names) || (options.strip > 0 && names.len() <= options.strip) {
        return Ok(None);
    }
    Ok(Some(names[options.strip..].iter().map(|name| name.to_vec()).collect()))
}

fn one(
    archive: &mut Reader<impl Read>,
    filler: &mut Filler,
    member: &Member,
    names: &[&[u8]],
    options: &Options<'_>,
) -> Result<()> {
    match member.kind {
        Kind::Unknown(kind) => bail!("left out: members of type {:?} are not supported", char::from(kind)),
        Kind::HardLink => {
            let target = names_of(&member.target)?;
            let target = target.get(options.strip..).unwrap_or_default();
            let found = filler.find(target)?;
            let shown = || format!("hard link to {}", format::name(&member.target));
            let found = found.with_context(|| anyhow!("{}: no such file", shown()))?;
            return filler.link(names, &found).with_context(shown);
        }
        Kind::File(_) => {}
    }
    let mut created = filler.create(names, member)?;
    if member.kind == Kind::File(FileType::Regular) {
        let stop = options.stop;
        let read = archive.data(&mut |offset, bytes| {
            if stop() {
                return Err(Interrupted.into());
            }
            filler.write(&mut created, offset, bytes)
        });
        match read {
            Ok(()) => {}
            Err(DataError::Archive(error)) => return Err(error.into()),
            Err(DataError::Sink(error)) => return Err(error),
        }
    }
    filler.finish(created, member)?;
    member.unusable.clone().map_or(Ok(()), |what| Err(anyhow!(what)))
}
