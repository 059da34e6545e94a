//! `chown`: changing owners.

use anyhow::Result;
use ivers_vfs::{Cred, InodeRef, SetAttr};
use serde::{Deserialize, Serialize};

use super::owner::Owner;
use super::session::{Operation, Report, Session, Targets, Unmatched};

/// The help of the command.
pub const HELP: &str = "\
OWNER is USER, USER:GROUP or :GROUP, as numbers. A name is looked up on this host, whose numbers can differ \
from those of the system in the image. Set-id bits of files are removed. A symbolic link in an operand is \
followed; with --recursive, links are changed themselves. The change of one file is one transaction of the \
journal; the removal of file capabilities is another one before.

JSON, one object per operand: operation, path, dry_run, changed (number of files changed). With --verbose or \
--dry-run, first one per file, without changed.

Examples:
  ivers chown 1000:1000 disk.img:/home/ann
  ivers chown -R :100 disk.img:/srv
  ivers chown -R --dry-run root disk.img:/etc";

/// Options of `chown`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Chown {
    /// USER, USER:GROUP or :GROUP
    #[arg(value_parser = Owner::parse)]
    owner: Owner,
    /// Change directories with their contents
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Change symbolic links instead of their targets
    #[arg(short = 'P', long)]
    no_dereference: bool,
    /// Name each file whose owner changes
    #[arg(short, long)]
    verbose: bool,
    /// Name the files, and change none
    #[arg(long)]
    pub dry_run: bool,
}

impl Operation for Chown {
    fn report(&self) -> Report {
        let verbs = ("changed", "would change");
        Report { operation: "chown", verbs, verbose: self.verbose, dry_run: self.dry_run }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let follow = !self.recursive && !self.no_dereference;
        session.each(&targets.operands, Unmatched::Error, |session, path| {
            let inode = session.resolve(path, follow)?;
            if self.recursive {
                session.walk(path, &inode, &mut |session, path, inode| self.change(session, path, inode))
            } else {
                self.change(session, path, &inode)
            }
        })
    }
}

impl Chown {
    fn change(&self, session: &mut Session<'_>, path: &[u8], inode: &InodeRef) -> Result<()> {
        let old = inode.attr();
        let new = (self.owner.uid.unwrap_or(old.uid), self.owner.gid.unwrap_or(old.gid));
        if new == (old.uid, old.gid) {
            return session.check();
        }
        if !self.dry_run {
            let set = SetAttr { uid: self.owner.uid, gid: self.owner.gid, ..SetAttr::default() };
            let set = session.vfs.set_attr(&Cred::root(), inode, &set);
            session.stored(path, "owners; set them with -o uid=,gid= when it is opened", set)?;
        }
        session.changed_as(path, &format!(": {}:{} to {}:{}", old.uid, old.gid, new.0, new.1))
    }
}
