//! `subvolume`: subvolumes and snapshots of btrfs.

use anyhow::Result;
use ivers_vfs::{CreateSpec, Cred, Error, FileType, NameError, SubvolumeInfo};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use super::bytes::Bytes;
use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::arguments::{join, last_name};
use crate::image::directory::owned_as;
use crate::output::failure::{REFUSED, failure, usage};
use crate::output::{format, print};

/// The help of the command.
pub const HELP: &str = "\
A subvolume is a directory with a tree of its own. A snapshot is a subvolume that starts with the files of \
another subvolume, its source. Both share the space of a file until one of them changes it. A snapshot does \
not contain the subvolumes in its source: it has empty directories instead. Its files start with the change \
attributes that they have in the source. Format: btrfs. On a mount, name the paths of the mount.

Deleting a subvolume deletes all its files. A subvolume is not deleted if it contains other subvolumes, is \
the default subvolume, or is the one that is open (-o subvol=). On a mount, it is also not deleted while a \
file in it is open, and only root and the user who mounted may delete it. Each operation is durable when the \
command returns. If a deletion is interrupted, the next command that writes to the image, or Linux, \
completes it.

JSON of list, one object per subvolume: id, parent, path (from the top level), path_bytes (only if path is \
not exact), read_only, default, generation, created, uuid, parent_uuid, received_uuid. Of the others, one \
object per operand: operation, path, dry_run, changed.

Examples:
  ivers subvolume list disk.img:/
  ivers subvolume create disk.img:/home
  ivers subvolume snapshot -r disk.img:/home disk.img:/home-monday
  ivers subvolume delete disk.img:/home-monday
  ivers subvolume snapshot -r mnt/home mnt/home-tuesday";

/// Options of `subvolume list`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct List {
    /// Print UUIDs and times too
    #[arg(short, long)]
    pub(super) long: bool,
}

/// Options of `subvolume create`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Create {
    /// Name each subvolume that is created
    #[arg(short, long)]
    pub(super) verbose: bool,
}

/// Options of `subvolume snapshot`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Snapshot {
    /// Nothing in the snapshot can be changed
    #[arg(short, long)]
    pub(super) read_only: bool,
    /// Name the snapshot that is made
    #[arg(short, long)]
    pub(super) verbose: bool,
}

/// Options of `subvolume delete`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Delete {
    /// Name each subvolume that is deleted
    #[arg(short, long)]
    pub(super) verbose: bool,
}

pub(super) fn report(operation: &'static str, verb: &'static str, verbose: bool) -> Report {
    Report { operation, verbs: (verb, verb), verbose, dry_run: false }
}

pub(super) const NO_SUBVOLUMES: &str = "this format has no subvolumes";
pub(super) const NOT_ONE: &str = "is not a subvolume";
pub(super) const HAS_OTHERS: &str = "contains other subvolumes; delete them first";
pub(super) const IS_OPEN: &str = "is the default subvolume, or the one that is open";

/// Explains the errors that subvolumes have.
fn explained<T>(session: &Session<'_>, path: &[u8], done: ivers_vfs::Result<T>) -> Result<T> {
    let why = match &done {
        Err(Error::Name(NameError::NotSupported)) => NO_SUBVOLUMES,
        Err(Error::Name(NameError::Invalid)) => NOT_ONE,
        Err(Error::Name(NameError::NotEmpty)) => HAS_OTHERS,
        Err(Error::Name(NameError::Busy)) => IS_OPEN,
        _ => return session.at(path, done),
    };
    Err(failure(REFUSED, format!("{}: {why}", session.name(path))))
}

impl Operation for List {
    fn report(&self) -> Report {
        report("subvolume list", "listed", false)
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        session.each_read(&targets.operands, |session, path| {
            session.resolve(path, true)?;
            for one in explained(session, path, session.vfs.list_subvolumes())? {
                if session.json { print_json(&one)? } else { self.print(&one)? }
            }
            Ok(())
        })
    }
}

impl List {
    pub(super) fn print(&self, one: &SubvolumeInfo) -> Result<()> {
        let path = match &one.path {
            Some(path) => format::name(&[b"/", &path[..]].concat()),
            None => "(no path)".to_owned(),
        };
        let mut flags = String::new();
        for (has, word) in [(one.read_only, " read-only"), (one.is_default, " default")] {
            flags += if has { word } else { "" };
        }
        print::line(format_args!("{:>6} {path}{flags}", one.id))?;
        if !self.long {
            return Ok(());
        }
        let created = format::time(one.created.sec);
        print::line(format_args!("       created {created}, generation {}", one.generation))?;
        let uuids =
            [("UUID", one.uuid), ("snapshot of", one.parent_uuid), ("received from", one.received_uuid)];
        for (what, uuid) in uuids.into_iter().filter(|(_, uuid)| *uuid != [0; 16]) {
            print::line(format_args!("       {what} {}", Uuid::from_bytes(uuid)))?;
        }
        Ok(())
    }
}

pub(super) fn print_json(one: &SubvolumeInfo) -> Result<()> {
    let uuid = |uuid: [u8; 16]| (uuid != [0; 16]).then(|| Uuid::from_bytes(uuid).to_string());
    let object = json!({
        "id": one.id,
        "parent": one.parent,
        "read_only": one.read_only,
        "default": one.is_default,
        "generation": one.generation,
        "created": one.created.sec,
        "uuid": uuid(one.uuid),
        "parent_uuid": uuid(one.parent_uuid),
        "received_uuid": uuid(one.received_uuid),
    });
    let path = one.path.as_ref().map(|path| [b"/", &path[..]].concat());
    print::json_line(&format::with_names(object, [("path", path.as_deref())]))
}

impl Operation for Create {
    fn report(&self) -> Report {
        report("subvolume create", "created", self.verbose)
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        for Bytes(path) in &targets.operands {
            session.one(path, |session| {
                let (dir, name) = session.parent(path)?;
                let spec = CreateSpec { umask: session.umask, ..CreateSpec::directory(0o777) };
                let spec = owned_as(&dir, spec);
                let made = session.vfs.create_subvolume(&Cred::root(), &dir, &name, &spec);
                explained(session, path, made)?;
                session.changed(path)
            })?;
        }
        Ok(())
    }
}

impl Operation for Snapshot {
    fn report(&self) -> Report {
        report("subvolume snapshot", "created", self.verbose)
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let [Bytes(source)] = &targets.operands[..] else {
            return Err(usage("name one subvolume, then the snapshot"));
        };
        let mut to = targets.to()?.to_vec();
        session.one(source, |session| {
            let origin = session.resolve(source, true)?;
            // In an existing directory, the snapshot has the name of its source.
            if let Some(found) = session.find(&to, true)?
                && found.kind == FileType::Directory
                && let Some(name) = last_name(source)
            {
                to = join(&to, name);
            }
            let (dir, name) = session.parent(&to)?;
            let cred = Cred::root();
            let made = session.vfs.snapshot_subvolume(&cred, &origin, &dir, &name, self.read_only);
            match made {
                Err(Error::Name(NameError::Exists)) => session.at(&to, made)?,
                made => explained(session, source, made)?,
            }
            session.changed(&to)
        })
    }
}

impl Operation for Delete {
    fn report(&self) -> Report {
        report("subvolume delete", "deleted", self.verbose)
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        session.each(&targets.operands, Unmatched::Error, |session, path| {
            let (dir, name) = session.parent(path)?;
            let deleted = session.vfs.delete_subvolume(&Cred::root(), &dir, &name);
            explained(session, path, deleted)?;
            session.changed(path)
        })
    }
}
