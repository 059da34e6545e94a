//! CREATE, LINK, REMOVE, RENAME.

use ivers_nfs4::ops::v40::{CreateArgs, Created, RenameArgs, Renamed};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{ChangeInfo, CreateType, SpecData};
use ivers_vfs::{CreateSpec, Cred, Error, FileType, InodeRef, NameError, RenameFlags, SetAttr};

use super::attr::acl_given::NewAcl;
use super::attr::{self, Wanted};
use super::name;
use super::settle;
use super::status::{OrStatus, status};
use crate::compound::{Context, Held, Object, Place};
use crate::state::{Does, Step};

/// So often a name may mean something else by the time it is used; then the client comes again.
const TRIES: usize = 8;
/// Bytes of a symbolic link.
const LINK_BYTES: usize = 4095;

/// A device number as the kernel keeps it: 12 bits and 20.
fn rdev(device: SpecData) -> Res<u32> {
    let SpecData { major, minor } = device;
    if major > 0xfff || minor > 0xf_ffff {
        return Err(NfsStat::Inval);
    }
    Ok(major << 8 | minor & 0xff | (minor & 0xfff00) << 12)
}

fn spec(kind: &CreateType) -> Res<CreateSpec> {
    let of = |kind, rdev| {
        let perm = attr::set::default_mode(kind);
        Ok(CreateSpec { kind, perm, rdev, target: Vec::new(), umask: 0 })
    };
    match kind {
        CreateType::Lnk(target) if target.is_empty() || target.contains(&0) => Err(NfsStat::Inval),
        CreateType::Lnk(target) if target.len() > LINK_BYTES => Err(NfsStat::Nametoolong),
        CreateType::Lnk(target) => Ok(CreateSpec::symlink(target.clone())),
        CreateType::Blk(device) => of(FileType::BlockDevice, rdev(*device)?),
        CreateType::Chr(device) => of(FileType::CharDevice, rdev(*device)?),
        CreateType::Sock => of(FileType::Socket, 0),
        CreateType::Fifo => of(FileType::Fifo, 0),
        CreateType::Dir => of(FileType::Directory, 0),
        // [RFC8881 18.4.3]
        CreateType::Other(_) => Err(NfsStat::Badtype),
    }
}

/// CREATE.
pub fn create(context: &mut Context, args: &CreateArgs) -> Step<Created> {
    let mut spec = spec(&args.kind)?;
    let dir = context.directory()?.clone();
    let name = name::component(&args.name)?;
    let Wanted { mut set, mask, umask, acl } =
        attr::wanted(context, &Place::Object(dir.clone()), &args.attrs, Some(spec.kind))?;
    if set.size.is_some() {
        return Err(NfsStat::Inval.into());
    }
    spec.perm = set.perm.take().unwrap_or(spec.perm);
    spec.umask = umask;
    let (inode, info) = make(&dir, name, &spec, set, acl.as_ref())?;
    let cinfo = context.service.change_info(info);
    // [RFC8881 18.4.3]
    context.go(Place::Object(dir.beside(inode)));
    Ok(Created { cinfo, attrset: mask })
}

/// Make something with its attributes, or nothing.
pub(super) fn make(
    dir: &Object,
    name: &[u8],
    spec: &CreateSpec,
    mut set: SetAttr,
    acl: Option<&NewAcl>,
) -> Res<(InodeRef, Option<ivers_vfs::ChangeInfo>)> {
    let cred = dir.writer()?;
    // What it is anyway need not be set, and must not be refused.
    set.uid = set.uid.filter(|uid| *uid != cred.uid);
    if set.uid.is_some() && !cred.privileged() {
        return Err(NfsStat::Perm);
    }
    let (inode, info) = dir.vfs().create(cred, &dir.inode, name, spec, true).nfs()?;
    match finish(dir, cred, &inode, &set, acl) {
        Ok(()) => Ok((inode, info)),
        Err(status) => {
            undo(dir, name, &inode);
            Err(status)
        }
    }
}

/// What the VFS does not take with the creation itself.
fn finish(dir: &Object, cred: &Cred, inode: &InodeRef, set: &SetAttr, acl: Option<&NewAcl>) -> Res<()> {
    if *set != SetAttr::default() {
        dir.vfs().set_attr(cred, inode, set).nfs()?;
    }
    if let Some(acl) = acl {
        acl.set(dir.vfs(), cred, inode)?;
    }
    settle(dir.vfs(), &[&dir.inode, inode])
}

/// Nothing is left of what could not be made as it was asked for, unless somebody has put another thing in its place.
pub(super) fn undo(dir: &Object, name: &[u8], inode: &InodeRef) {
    let vfs = dir.vfs();
    let cred = Cred::trusted();
    let still = vfs.lookup(&cred, &dir.inode, name).is_ok_and(|now| now.ino == inode.ino);
    let undone = match inode.kind {
        _ if !still => Ok(None),
        FileType::Directory => vfs.rmdir(&cred, &dir.inode, name, false),
        _ => vfs.unlink(&cred, &dir.inode, name, false),
    };
    if let Err(error) = undone {
        log::warn!("a new object whose attributes were refused stays: {error}");
    }
}

/// LINK.
pub fn link(context: &mut Context, name: &[u8]) -> Step<ChangeInfo> {
    let source = context.saved(NfsStat::Isdir)?.clone();
    let dir = context.directory()?;
    // [RFC8881 18.9.3]
    if source.inode.kind == FileType::Directory {
        return Err(NfsStat::Isdir.into());
    }
    if source.export.identity != dir.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let name = name::component(name)?;
    let _leave = context.permit_change(&source, Does::Name)?;
    let info = dir.vfs().link(dir.writer()?, &source.inode, &dir.inode, name, true).nfs()?;
    settle(dir.vfs(), &[&dir.inode, &source.inode])?;
    Ok(context.service.change_info(info))
}

/// What a name stands for, if anything, with leave to take it away.
fn victim(context: &Context, dir: &Object, name: &[u8]) -> Step<Option<(Object, Option<Held>)>> {
    let cred = dir.reader()?;
    let find = || match dir.vfs().lookup(cred, &dir.inode, name) {
        Ok(inode) => Ok(Some(inode)),
        Err(Error::Name(NameError::NotFound)) => Ok(None),
        Err(error) => Err(status(&error)),
    };
    for _ in 0..TRIES {
        let Some(inode) = find()? else { return Ok(None) };
        let object = dir.beside(inode);
        let leave = context.permit_change(&object, Does::Name)?;
        // The leave is for this file: the name must not have come to mean another one.
        if find()?.is_some_and(|now| now.ino == object.inode.ino) {
            return Ok(Some((object, leave)));
        }
    }
    Err(NfsStat::Delay.into())
}

/// REMOVE.
pub fn remove(context: &mut Context, name: &[u8]) -> Step<ChangeInfo> {
    let dir = context.directory()?;
    let name = name::component(name)?;
    let (vfs, cred) = (dir.vfs(), dir.writer()?);
    for _ in 0..TRIES {
        let Some((object, _leave)) = victim(context, dir, name)? else { return Err(NfsStat::Noent.into()) };
        let removed = match object.inode.kind {
            FileType::Directory => vfs.rmdir(cred, &dir.inode, name, true),
            _ => vfs.unlink(cred, &dir.inode, name, true),
        };
        match removed {
            // It was of the other kind by then.
            Err(Error::Name(NameError::NotDirectory | NameError::IsDirectory)) => continue,
            removed => {
                let info = removed.nfs()?;
                settle(vfs, &[&dir.inode, &object.inode])?;
                return Ok(context.service.change_info(info));
            }
        }
    }
    Err(NfsStat::Delay.into())
}

/// RENAME.
pub fn rename(context: &mut Context, args: &RenameArgs) -> Step<Renamed> {
    let source = context.saved(NfsStat::Rofs)?;
    let target = context.directory()?;
    // [RFC8881 18.26.3]
    if source.inode.kind != FileType::Directory {
        return Err(NfsStat::Notdir.into());
    }
    if source.export.identity != target.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let (old, new) = (name::component(&args.old)?, name::component(&args.new)?);
    let Some((moved, _leave)) = victim(context, source, old)? else { return Err(NfsStat::Noent.into()) };
    let replaced = victim(context, target, new)?;
    if let Some((there, _)) = &replaced {
        let directory = |object: &Object| object.inode.kind == FileType::Directory;
        // [RFC8881 18.26.3]
        if directory(&moved) != directory(there) {
            return Err(NfsStat::Exist.into());
        }
    }
    let vfs = target.vfs();
    let (from, to) = (&source.inode, &target.inode);
    let renamed = vfs.rename(target.writer()?, from, old, to, new, RenameFlags::empty(), true);
    let infos = match renamed {
        Err(Error::Name(NameError::NotEmpty)) => return Err(NfsStat::Exist.into()),
        renamed => renamed.nfs()?,
    };
    settle(vfs, &[from, to, &moved.inode])?;
    let (before, after) = infos.map_or((None, None), |(source, target)| (Some(source), Some(target)));
    Ok(Renamed { source: context.service.change_info(before), target: context.service.change_info(after) })
}
