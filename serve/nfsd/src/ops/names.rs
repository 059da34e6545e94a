//! CREATE, LINK, REMOVE, RENAME.

use ivers_nfs4::ops::v40::{CreateArgs, Created, RenameArgs, Renamed};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{ChangeInfo, CreateType, SpecData};
use ivers_vfs::{CreateSpec, Cred, Error, FileType, InodeRef, Meant, NameError};

use super::attr;
use super::attr::acl_given::NewAcl;
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
    let of = |kind, rdev| Ok(CreateSpec { rdev, ..CreateSpec::of(kind, attr::set::default_mode(kind)) });
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
    let spec = spec(&args.kind)?;
    let dir = context.directory()?.clone();
    let name = name::component(&args.name)?;
    let wanted = attr::wanted(context, &Place::Object(dir.clone()), &args.attrs, Some(spec.kind))?;
    if wanted.set.size.is_some() {
        return Err(NfsStat::Inval.into());
    }
    let (inode, info) = make(&dir, name, &wanted.born(spec), wanted.acl.as_ref(), &mut |_| {})?;
    let cinfo = context.service.change_info(info);
    // [RFC8881 18.4.3]
    context.go(Place::Object(dir.beside(inode)));
    Ok(Created { cinfo, attrset: wanted.mask })
}

/// Make something, and have it claimed before anybody else can find it.
pub(super) fn make(
    dir: &Object,
    name: &[u8],
    spec: &CreateSpec,
    acl: Option<&NewAcl>,
    claim: &mut dyn FnMut(&InodeRef),
) -> Res<(InodeRef, Option<ivers_vfs::ChangeInfo>)> {
    let vfs = dir.vfs();
    let cred = dir.writer()?;
    let (inode, info) = vfs.create_claimed(cred, &dir.inode, name, spec, true, claim).nfs()?;
    if let Some(acl) = acl
        && let Err(status) = acl.set(vfs, cred, &inode)
    {
        undo(dir, name, &inode);
        return Err(status);
    }
    settle(dir, &[&dir.inode, &inode])?;
    Ok((inode, info))
}

/// Nothing is left of what cannot be had as it was asked for, unless somebody has put another thing in its place.
pub(super) fn undo(dir: &Object, name: &[u8], inode: &InodeRef) {
    match dir.vfs().remove(&Cred::trusted(), &dir.inode, name, inode, false) {
        Ok(_) | Err(Error::Name(NameError::Changed)) => {}
        Err(error) => log::warn!("a new object that was refused stays: {error}"),
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
    settle(dir, &[&dir.inode, &source.inode])?;
    Ok(context.service.change_info(info))
}

/// What a name stands for, if anything, with leave to take it away from that.
fn victim(context: &Context, dir: &Object, name: &[u8]) -> Step<Option<(Object, Option<Held>)>> {
    let object = match dir.vfs().lookup(dir.reader()?, &dir.inode, name) {
        Ok(inode) => dir.beside(inode),
        Err(Error::Name(NameError::NotFound)) => return Ok(None),
        Err(error) => return Err(status(&error).into()),
    };
    let leave = context.permit_change(&object, Does::Name)?;
    Ok(Some((object, leave)))
}

/// REMOVE.
pub fn remove(context: &mut Context, name: &[u8]) -> Step<ChangeInfo> {
    let dir = context.directory()?;
    let name = name::component(name)?;
    let (vfs, cred) = (dir.vfs(), dir.writer()?);
    for _ in 0..TRIES {
        let Some((object, _leave)) = victim(context, dir, name)? else { return Err(NfsStat::Noent.into()) };
        let info = match vfs.remove(cred, &dir.inode, name, &object.inode, true) {
            // The leave is for that file: on to the one that the name means by now.
            Err(Error::Name(NameError::Changed)) => continue,
            removed => removed.nfs()?,
        };
        settle(dir, &[&dir.inode, &object.inode])?;
        return Ok(context.service.change_info(info));
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
    let (vfs, cred) = (target.vfs(), target.writer()?);
    let (from, to) = (&source.inode, &target.inode);
    for _ in 0..TRIES {
        let Some((moved, _leave)) = victim(context, source, old)? else { return Err(NfsStat::Noent.into()) };
        let there = victim(context, target, new)?;
        let replaced = there.as_ref().map(|(object, _leave)| &object.inode);
        if let Some(replaced) = replaced {
            let directory = |inode: &InodeRef| inode.kind == FileType::Directory;
            // [RFC8881 18.26.3]
            if directory(&moved.inode) != directory(replaced) {
                return Err(NfsStat::Exist.into());
            }
        }
        let meant = Meant { moved: &moved.inode, replaced };
        let infos = match vfs.rename_meant(cred, (from, old), (to, new), meant, true) {
            Err(Error::Name(NameError::Changed)) => continue,
            Err(Error::Name(NameError::NotEmpty)) => return Err(NfsStat::Exist.into()),
            renamed => renamed.nfs()?,
        };
        settle(target, &[from, to, &moved.inode])?;
        let (before, after) = infos.map_or((None, None), |(source, target)| (Some(source), Some(target)));
        return Ok(Renamed {
            source: context.service.change_info(before),
            target: context.service.change_info(after),
        });
    }
    Err(NfsStat::Delay.into())
}
