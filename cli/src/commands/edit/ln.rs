//! `ln`: creating links.

use anyhow::Result;
use ivers_vfs::{CreateSpec, Cred, FileType};
use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::session::{Operation, Report, Session, Targets};
use crate::arguments::{image_path, join, last_name};
use crate::image::directory::owned_as;
use crate::output::failure::{FAILED, failure, usage};
use crate::output::format;

/// The help of the command.
pub const HELP: &str = "\
Without --symbolic, LINK becomes another name of the file TARGET, which is in the same image. With it, LINK \
becomes a symbolic link that contains TARGET as it is written; of IMAGE:/path, it contains /path. If LINK is \
a directory, the links are created in it. The creation of a link is one transaction of the journal; --force \
removes the old file in another one before. A symbolic link belongs to the owner and group of its directory.

JSON, one object per link: operation, path, dry_run, changed. With --verbose, first one without changed.

Examples:
  ivers ln disk.img:/bin/gunzip disk.img:/bin/zcat
  ivers ln -s /usr/lib disk.img:/lib
  ivers ln -sf ../usr/share/zoneinfo/UTC disk.img:/etc/localtime";

/// Options of `ln`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Ln {
    /// Create symbolic links
    #[arg(short, long)]
    pub symbolic: bool,
    /// Remove a file, but no directory, that has the name of the link
    #[arg(short, long)]
    force: bool,
    /// If LINK is a symbolic link to a directory, treat it as a file
    #[arg(short, long)]
    no_dereference: bool,
    /// Name each link that is created
    #[arg(short, long)]
    verbose: bool,
}

impl Operation for Ln {
    fn report(&self) -> Report {
        let verbs = ("linked", "would link");
        Report { operation: "ln", verbs, verbose: self.verbose, dry_run: false }
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let (link, many) = (targets.to()?, targets.many);
        let follow = !self.no_dereference;
        let into = session.find(link, follow)?.filter(|found| found.kind == FileType::Directory);
        if many && into.is_none() {
            return Err(failure(FAILED, format!("{}: not a directory", session.name(link))));
        }
        for Bytes(target) in &targets.operands {
            let path = match (&into, last_name(target)) {
                (Some(_), Some(name)) => join(link, name),
                (Some(_), None) => {
                    let target = format::name(target);
                    return Err(usage(format!("{target} has no name for a link in {}", session.name(link))));
                }
                (None, _) => link.to_vec(),
            };
            session.one(&path, |session| self.link(session, target, &path))?;
        }
        Ok(())
    }
}

impl Ln {
    fn link(&self, session: &mut Session<'_>, target: &[u8], path: &[u8]) -> Result<()> {
        let (dir, name) = session.parent(path)?;
        let cred = Cred::root();
        // Found before anything is removed.
        let file = if self.symbolic { None } else { Some(session.resolve(target, false)?) };
        if file.as_ref().is_some_and(|file| file.kind == FileType::Directory) {
            let why = "a directory has one name only; use ln -s";
            return Err(failure(FAILED, format!("{}: {why}", session.name(target))));
        }
        if self.force
            && let Some(old) = session.find_in(&dir, &name, path)?
        {
            if file.as_ref().is_some_and(|file| file.ino == old.ino) {
                return Ok(());
            }
            session.at(path, session.vfs.unlink(&cred, &dir, &name, false))?;
        }
        match &file {
            None => {
                let spec = owned_as(&dir, CreateSpec::symlink(target));
                let made = session.vfs.create(&cred, &dir, &name, &spec, false);
                session.stored(path, "symbolic links", made)?;
            }
            Some(file) => {
                let made = session.vfs.link(&cred, file, &dir, &name, false);
                session.stored(path, "hard links", made)?;
            }
        }
        let shown = if self.symbolic { format::name(target) } else { image_path(session.image, target) };
        session.changed_as(path, &format!(" -> {shown}"))
    }
}
