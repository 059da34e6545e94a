//! `rm`: removing files.

use anyhow::Result;
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError};
use serde::{Deserialize, Serialize};

use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::arguments::join;
use crate::image::cycle_guard::CycleGuard;
use crate::image::directory::entries;
use crate::output::failure::usage;

/// The help of the command.
pub const HELP: &str = "\
A symbolic link is removed, not its target. What cannot be removed is named on standard error, the rest is \
removed, and the exit code is not 0. Each removal of a name is one transaction of the journal; --recursive \
removes many names, and after a crash some of them can be left.

JSON, one object per operand: operation, path, dry_run, changed (number of files removed). With --verbose or \
--dry-run, first one per file, without changed.

Examples:
  ivers rm disk.img:/etc/motd
  ivers rm 'disk.img:/var/log/*.gz'
  ivers rm -r --dry-run disk.img:/home/old";

/// Options of `rm`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Rm {
    /// Remove directories with their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Ignore files that do not exist, and patterns that match nothing
    #[arg(short, long)]
    force: bool,
    /// Name each file that is removed
    #[arg(short, long)]
    verbose: bool,
    /// Name the files, and remove none
    #[arg(long)]
    pub dry_run: bool,
}

impl Operation for Rm {
    fn report(&self) -> Report {
        let verbs = ("removed", "would remove");
        Report { operation: "rm", verbs, verbose: self.verbose, dry_run: self.dry_run }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let unmatched = if self.force { Unmatched::Nothing } else { Unmatched::Error };
        session.each(&targets.operands, unmatched, |session, path| self.remove(session, path))
    }
}

impl Rm {
    fn remove(&self, session: &mut Session<'_>, path: &[u8]) -> Result<()> {
        let found = session.parent(path).and_then(|(dir, name)| {
            let inode = session.at(path, session.vfs.lookup(&Cred::root(), &dir, &name))?;
            Ok((dir, name, inode))
        });
        let (dir, name, inode) = match found {
            Err(error) if self.force && is_missing(&error) => return Ok(()),
            found => found?,
        };
        session.check_slash(path, inode.kind)?;
        if inode.kind == FileType::Directory && !self.recursive {
            return Err(usage(format!("{}: is a directory: use rm -r", session.name(path))));
        }
        self.remove_tree(session, path, (&dir, name.as_slice(), &inode), &mut CycleGuard::default(), 0)
            .map(drop)
    }

    /// Removes a file or a tree. Returns whether all of it is gone.
    fn remove_tree(
        &self,
        session: &mut Session<'_>,
        path: &[u8],
        (dir, name, inode): (&InodeRef, &[u8], &InodeRef),
        entered: &mut CycleGuard<u64>,
        depth: usize,
    ) -> Result<bool> {
        let mut empty = true;
        if inode.kind == FileType::Directory {
            entered.enter(inode.ino.0, depth, path.len(), || session.name(path))?;
            let vfs = session.vfs;
            for (name, child) in session.at(path, entries(vfs, inode))? {
                let path = join(path, &name);
                let gone = session.at(&path, child).and_then(|child| {
                    self.remove_tree(session, &path, (inode, name.as_slice(), &child), entered, depth + 1)
                });
                let (gone, done) = gone.map_or_else(|error| (false, Err(error)), |gone| (gone, Ok(())));
                empty &= gone;
                session.report(done)?;
            }
        }
        if empty {
            if !self.dry_run {
                let removed = session.vfs.remove(&Cred::root(), dir, name, inode, false);
                session.at(path, removed)?;
            }
            session.changed(path)?;
        }
        Ok(empty)
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Name(NameError::NotFound | NameError::NotDirectory)))
}
