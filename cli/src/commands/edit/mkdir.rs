//! `mkdir`: creating directories.

use anyhow::Result;
use ivers_vfs::{CreateSpec, Cred, Error, FileType, NameError};
use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::mode::Mode;
use super::session::{Operation, Report, Session, Targets};
use crate::image::directory::owned_as;
use crate::output::failure::{FAILED, NOT_FOUND, failure};
use crate::output::format;

/// The help of the command.
pub const HELP: &str = "\
A new directory belongs to the owner and group of the directory that it is made in. Its creation with mode \
and owner is one transaction of the journal; --parents creates several directories, one after the other.

JSON, one object per operand: operation, path, dry_run, changed (number of directories created). With \
--verbose, first one per directory, without changed.

Examples:
  ivers mkdir disk.img:/srv
  ivers mkdir -p -m 700 disk.img:/home/ann/.ssh";

/// Options of `mkdir`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Mkdir {
    /// Create missing parents; no error if the directory exists
    #[arg(short, long)]
    parents: bool,
    /// The permissions, octal or as u=rwx,go=rx (default: all, less the umask)
    #[arg(short, long, value_parser = Mode::parse)]
    mode: Option<Mode>,
    /// Name each directory that is created
    #[arg(short, long)]
    verbose: bool,
}

impl Operation for Mkdir {
    fn report(&self) -> Report {
        let verbs = ("created", "would create");
        Report { operation: "mkdir", verbs, verbose: self.verbose, dry_run: false }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        for Bytes(path) in &targets.operands {
            session.one(path, |session| {
                if self.parents {
                    self.create_parents(session, path)
                } else {
                    self.create(session, path, true)
                }
            })?;
        }
        Ok(())
    }
}

impl Mkdir {
    fn create_parents(&self, session: &mut Session<'_>, path: &[u8]) -> Result<()> {
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |at| at + 1);
        let ends = (1..end).filter(|&at| path[at] == b'/' && path[at - 1] != b'/').chain([end]);
        for at in ends.filter(|at| *at > 0) {
            let part = &path[..at];
            match session.find(part, true)? {
                None => self.create(session, part, at == end)?,
                Some(found) if found.kind == FileType::Directory => {}
                Some(found) => {
                    let (name, kind) = (session.name(part), format::kind_in_words(found.kind));
                    return Err(failure(FAILED, format!("{name}: exists and is a {kind}")));
                }
            }
        }
        Ok(())
    }

    fn create(&self, session: &mut Session<'_>, path: &[u8], is_last: bool) -> Result<()> {
        let (dir, name) = session.parent(path).map_err(|error| match error.downcast_ref() {
            Some(Error::Name(NameError::NotFound)) => {
                failure(NOT_FOUND, format!("{}: the parent does not exist; use mkdir -p", session.name(path)))
            }
            _ => error,
        })?;
        let mut spec = CreateSpec { umask: session.umask, ..CreateSpec::directory(0o777) };
        if let Some(mode) = self.mode.as_ref().filter(|_| is_last) {
            (spec.perm, spec.umask) = (mode.apply(0o777, true, session.umask), 0);
        }
        let spec = owned_as(&dir, spec);
        let (inode, _) = session.at(path, session.vfs.create(&Cred::root(), &dir, &name, &spec, false))?;
        session.changed(path)?;
        let (wanted, stored) = (spec.perm & !spec.umask, inode.attr().perm);
        if self.mode.is_some() && is_last && stored & 0o777 != wanted & 0o777 {
            return Err(super::chmod::not_stored(session, path, wanted, stored));
        }
        Ok(())
    }
}
