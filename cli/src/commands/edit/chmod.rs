//! `chmod`: changing permissions.

use anyhow::Result;
use ivers_vfs::{Cred, FileType, InodeRef, SetAttr};
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::image::formats;
use crate::output::failure::{FAILED, failure};

/// The help of the command.
pub const HELP: &str = "\
MODE is octal (755, 4755) or symbolic as in chmod(1): u, g, o, a; +, -, =; r, w, x, X, s, t. An octal mode \
sets all twelve bits. A symbolic link in an operand is \
followed; with --recursive, links below a directory are skipped. The change of one file is one transaction \
of the journal, unless it has an ACL, whose mask is stored in a second one.

JSON, one object per operand: operation, path, dry_run, changed (number of files changed). With --verbose or \
--dry-run, first one per file, without changed.

Examples:
  ivers chmod 600 disk.img:/etc/shadow
  ivers chmod -R u=rwX,go=rX disk.img:/srv/www
  ivers chmod a+x 'disk.img:/usr/local/bin/*'";

/// Options of `chmod`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Chmod {
    /// The permissions: octal, or symbolic such as u+x
    #[arg(value_parser = Mode::parse, allow_hyphen_values = true)]
    mode: Mode,
    /// Change directories with their contents
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Name each file whose permissions change
    #[arg(short, long)]
    verbose: bool,
    /// Name the files, and change none
    #[arg(long)]
    pub dry_run: bool,
}

impl Operation for Chmod {
    fn report(&self) -> Report {
        let verbs = ("changed", "would change");
        Report { operation: "chmod", verbs, verbose: self.verbose, dry_run: self.dry_run }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        session.each(&targets.operands, Unmatched::Error, |session, path| {
            let inode = session.resolve(path, true)?;
            if self.recursive {
                session.walk(path, &inode, &mut |session, path, inode| self.change(session, path, inode))
            } else {
                self.change(session, path, &inode)
            }
        })
    }
}

impl Chmod {
    fn change(&self, session: &mut Session<'_>, path: &[u8], inode: &InodeRef) -> Result<()> {
        if inode.kind == FileType::Symlink {
            return Ok(());
        }
        let old = inode.attr().perm;
        let new = self.mode.apply(old, inode.kind == FileType::Directory, session.umask);
        if new == old {
            return session.check();
        }
        if !self.dry_run {
            let set = SetAttr { perm: Some(new), ..SetAttr::default() };
            let set = session.vfs.set_attr(&Cred::root(), inode, &set);
            let stored = session.stored(path, "permissions", set)?.perm;
            if stored != new {
                return Err(not_stored(session, path, new, stored));
            }
        }
        session.changed_as(path, &format!(": {old:04o} to {new:04o}"))
    }
}

/// Returns the error for permissions that the format cannot store.
pub fn not_stored(session: &Session<'_>, path: &[u8], wanted: u32, stored: u32) -> anyhow::Error {
    let format = formats::by_name(session.vfs.info().fs_type);
    let (name, title) =
        (session.name(path), format.map_or("filesystem of this format", |format| format.title));
    let hint = match format {
        Some(format) if !format.stores_owners => "; it has one bit, for writing: use a-w or u+w",
        _ => "",
    };
    let text = format!("{name}: a {title} cannot store mode {wanted:04o}; it is {stored:04o}{hint}");
    failure(FAILED, text)
}
