//! `mv`: renaming files within an image.

use anyhow::{Context, Result};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, RenameFlags};
use serde::{Deserialize, Serialize};

use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::arguments::{image_path, join, last_name};
use crate::output::failure::{FAILED, failure, usage};

/// The help of the command.
pub const HELP: &str = "\
Moves files into TO if it is a directory, else renames the one file to TO. A file is replaced by a file, an \
empty directory by a directory. Each rename is one transaction of the journal: after a crash, the file has \
the old name or the new one, and a file that was replaced is whole or gone. All operands are in one image; \
between images, or between an image and the host, use ivers cp.

JSON, one object per file: operation, path, dry_run, changed. With --verbose, first one without changed.

Examples:
  ivers mv disk.img:/etc/motd disk.img:/etc/motd.old
  ivers mv 'disk.img:/*.log' disk.img:/var/log";

/// Options of `mv`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Mv {
    /// Replace no file: a name that exists is an error
    #[arg(short, long)]
    no_clobber: bool,
    /// Rename to TO itself, also if it is a directory; it must be empty
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    /// Name each file that is moved
    #[arg(short, long)]
    verbose: bool,
}

/// The name that a file gets: a directory, the name in it, the path for errors.
struct NewName {
    dir: InodeRef,
    name: Vec<u8>,
    path: Vec<u8>,
}

impl Operation for Mv {
    fn report(&self) -> Report {
        let verbs = ("moved", "would move");
        Report { operation: "mv", verbs, verbose: self.verbose, dry_run: false }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let mut from = Vec::new();
        let to = targets.to()?;
        for operand in &targets.operands {
            from.extend(session.expand(operand, Unmatched::Error)?);
        }
        let many = targets.many || from.len() > 1;
        if many && self.no_target_directory {
            return Err(usage("--no-target-directory: only one file can be renamed to TO"));
        }
        let into = session.find(to, true)?.filter(|to| to.kind == FileType::Directory);
        let into = into.filter(|_| !self.no_target_directory);
        if many && into.is_none() {
            return Err(failure(FAILED, format!("{}: not a directory", session.name(to))));
        }
        for path in from {
            session.one(&path, |session| self.rename(session, &path, to, into.as_ref()))?;
        }
        Ok(())
    }
}

impl Mv {
    fn rename(
        &self,
        session: &mut Session<'_>,
        path: &[u8],
        to: &[u8],
        into: Option<&InodeRef>,
    ) -> Result<()> {
        let (old_dir, old_name) = session.parent(path)?;
        let inode = session.at(path, session.vfs.lookup(&Cred::root(), &old_dir, &old_name))?;
        session.check_slash(path, inode.kind)?;
        let new = match into {
            Some(dir) => {
                let name = last_name(path).unwrap_or_default();
                NewName { dir: dir.clone(), name: name.to_vec(), path: join(to, name) }
            }
            None => {
                session.check_slash(to, inode.kind)?;
                let (dir, name) = session.parent(to)?;
                NewName { dir, name, path: to.to_vec() }
            }
        };
        let flags = if self.no_clobber { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        let renamed =
            session.vfs.rename(&Cred::root(), &old_dir, &old_name, &new.dir, &new.name, flags, false);
        let names = || format!("{} to {}", session.name(path), image_path(session.image, &new.path));
        match renamed {
            Ok(_) => session.changed_as(path, &format!(" to {}", image_path(session.image, &new.path))),
            Err(Error::Name(NameError::Invalid)) if inode.kind == FileType::Directory => {
                Err(usage(format!("{}: a directory cannot be moved into itself", names())))
            }
            Err(error) => Err(error).with_context(names),
        }
    }
}
