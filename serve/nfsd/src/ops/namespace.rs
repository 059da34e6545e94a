//! CREATE, LINK, REMOVE, RENAME.

use ivers_nfs4::ops::v40::{CreateArgs, Created, RenameArgs, Renamed};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{ChangeInfo, CreateType, SpecData};
use ivers_vfs::{CreateSpec, Cred, Error, Expected, FileType, InodeRef, NameError};

use super::attr;
use super::attr::acl_to_posix::NewAcl;
use super::component;
use super::durability::commit_now;
use crate::compound::status::{OrStatus, status};
use crate::compound::{Context, CurrentFh, Object, PermitGuard};
use crate::state::{Access, Step};

/// Attempts to use a name that changes concurrently, before NFS4ERR_DELAY.
const ATTEMPTS: usize = 8;
/// The length limit of a symbolic link's target, in bytes.
const LINK_BYTES: usize = 4095;

/// A device number in the kernel's encoding: 12 bits major, 20 bits minor.
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
    let name = component::check(&args.name)?;
    let new_attrs =
        attr::parse_new_attrs(context, &CurrentFh::Object(dir.clone()), &args.attrs, Some(spec.kind))?;
    if new_attrs.set.size.is_some() {
        return Err(NfsStat::Inval.into());
    }
    let (inode, info) =
        create_object(&dir, name, &new_attrs.create_spec(spec), new_attrs.acl.as_ref(), &mut |_| {})?;
    let cinfo = context.service.change_info(info);
    // [RFC8881 18.4.3]
    context.set_current_fh(CurrentFh::Object(dir.with_inode(inode)));
    Ok(Created { cinfo, attrset: new_attrs.mask })
}

/// Creates an object. `claim` runs before another request can find it.
pub(super) fn create_object(
    dir: &Object,
    name: &[u8],
    spec: &CreateSpec,
    acl: Option<&NewAcl>,
    claim: &mut dyn FnMut(&InodeRef),
) -> Res<(InodeRef, Option<ivers_vfs::ChangeInfo>)> {
    let vfs = dir.vfs();
    let cred = dir.write_cred()?;
    let (inode, info) = vfs.create_with(cred, &dir.inode, name, spec, true, claim).nfs()?;
    if let Some(acl) = acl
        && let Err(status) = acl.set(vfs, cred, &inode)
    {
        undo_create(dir, name, &inode);
        return Err(status);
    }
    commit_now(dir, &[&dir.inode, &inode])?;
    Ok((inode, info))
}

/// Removes a new object that could not be completed, unless the name refers to another object meanwhile.
pub(super) fn undo_create(dir: &Object, name: &[u8], inode: &InodeRef) {
    match dir.vfs().remove(&Cred::trusted(), &dir.inode, name, inode, false) {
        Ok(_) | Err(Error::Name(NameError::Changed)) => {}
        Err(error) => log::warn!("cannot remove a new object whose creation failed: {error}"),
    }
}

/// LINK.
pub fn link(context: &mut Context, name: &[u8]) -> Step<ChangeInfo> {
    let source = context.saved_object(NfsStat::Isdir)?.clone();
    let dir = context.directory()?;
    // [RFC8881 18.9.3]
    if source.inode.kind == FileType::Directory {
        return Err(NfsStat::Isdir.into());
    }
    if source.export.identity != dir.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let name = component::check(name)?;
    let _guard = context.begin_change(&source, Access::Namespace)?;
    let info = dir.vfs().link(dir.write_cred()?, &source.inode, &dir.inode, name, true).nfs()?;
    commit_now(dir, &[&dir.inode, &source.inode])?;
    Ok(context.service.change_info(info))
}

/// Looks up a name that is about to be removed or replaced, and begins the change of its object.
fn entry_to_unlink(
    context: &Context,
    dir: &Object,
    name: &[u8],
) -> Step<Option<(Object, Option<PermitGuard>)>> {
    let object = match dir.vfs().lookup(dir.read_cred()?, &dir.inode, name) {
        Ok(inode) => dir.with_inode(inode),
        Err(Error::Name(NameError::NotFound)) => return Ok(None),
        Err(error) => return Err(status(&error).into()),
    };
    let guard = context.begin_change(&object, Access::Namespace)?;
    Ok(Some((object, guard)))
}

/// REMOVE.
pub fn remove(context: &mut Context, name: &[u8]) -> Step<ChangeInfo> {
    let dir = context.directory()?;
    let name = component::check(name)?;
    let (vfs, cred) = (dir.vfs(), dir.write_cred()?);
    for _ in 0..ATTEMPTS {
        let Some((object, _guard)) = entry_to_unlink(context, dir, name)? else {
            return Err(NfsStat::Noent.into());
        };
        let info = match vfs.remove(cred, &dir.inode, name, &object.inode, true) {
            // The name changed concurrently: the guard is for another file.
            Err(Error::Name(NameError::Changed)) => continue,
            removed => removed.nfs()?,
        };
        commit_now(dir, &[&dir.inode, &object.inode])?;
        return Ok(context.service.change_info(info));
    }
    Err(NfsStat::Delay.into())
}

/// RENAME.
pub fn rename(context: &mut Context, args: &RenameArgs) -> Step<Renamed> {
    let source = context.saved_object(NfsStat::Rofs)?;
    let target = context.directory()?;
    // [RFC8881 18.26.3]
    if source.inode.kind != FileType::Directory {
        return Err(NfsStat::Notdir.into());
    }
    if source.export.identity != target.export.identity {
        return Err(NfsStat::Xdev.into());
    }
    let (old, new) = (component::check(&args.old)?, component::check(&args.new)?);
    let (vfs, cred) = (target.vfs(), target.write_cred()?);
    let (from, to) = (&source.inode, &target.inode);
    for _ in 0..ATTEMPTS {
        let Some((moved, _guard)) = entry_to_unlink(context, source, old)? else {
            return Err(NfsStat::Noent.into());
        };
        let there = entry_to_unlink(context, target, new)?;
        let replaced = there.as_ref().map(|(object, _guard)| &object.inode);
        if let Some(replaced) = replaced {
            let directory = |inode: &InodeRef| inode.kind == FileType::Directory;
            // [RFC8881 18.26.3]
            if directory(&moved.inode) != directory(replaced) {
                return Err(NfsStat::Exist.into());
            }
        }
        let expected = Expected { moved: &moved.inode, replaced };
        let infos = match vfs.rename_expected(cred, (from, old), (to, new), expected, true) {
            Err(Error::Name(NameError::Changed)) => continue,
            Err(Error::Name(NameError::NotEmpty)) => return Err(NfsStat::Exist.into()),
            renamed => renamed.nfs()?,
        };
        commit_now(target, &[from, to, &moved.inode])?;
        let (before, after) = infos.map_or((None, None), |(source, target)| (Some(source), Some(target)));
        return Ok(Renamed {
            source: context.service.change_info(before),
            target: context.service.change_info(after),
        });
    }
    Err(NfsStat::Delay.into())
}
