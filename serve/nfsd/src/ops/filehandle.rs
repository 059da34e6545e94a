//! Operations on the current filehandle: PUTFH, LOOKUP and similar; SECINFO.

use ivers_nfs4::ops::number;
use ivers_nfs4::ops::v40::SecInfoEntry;
use ivers_nfs4::ops::v41::SecInfoStyle;
use ivers_nfs4::rpc::{AUTH_NONE, AUTH_SYS};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::FileHandle;
use ivers_nfs4::xdr::List;
use ivers_vfs::{FileType, Ino};

use super::attr::get::PSEUDO_NAME_MAX;
use super::component;
use crate::compound::status::OrStatus;
use crate::compound::{Context, CurrentFh, Object};
use crate::exports::handle::Target;
use crate::exports::policy::Refusal;
use crate::exports::table::Node;
use crate::state::FileId;

/// Operations that may follow one that sets the filehandle without NFS4ERR_WRONGSEC (RFC 8881 section
/// 2.6.3.1.1). Each of them checks the object that it leads to, or asks about security itself.
const AFTER_PUT: [u32; 10] = [
    number::PUTFH,
    number::PUTPUBFH,
    number::PUTROOTFH,
    number::RESTOREFH,
    number::SAVEFH,
    number::LOOKUP,
    number::LOOKUPP,
    number::OPEN,
    number::SECINFO,
    number::SECINFO_NO_NAME,
];

fn put(context: &mut Context, fh: CurrentFh) -> Res<()> {
    // [RFC8881 2.6.3.1.1]
    if let CurrentFh::Object(object) = &fh
        && context.next_op.is_some_and(|next| !AFTER_PUT.contains(&next))
    {
        object.read_cred()?;
    }
    context.set_current_fh(fh);
    Ok(())
}

/// PUTFH.
pub fn put_fh(context: &mut Context, handle: &FileHandle) -> Res<()> {
    let fh = match context.service.handles.decode(handle)? {
        Target::Pseudo(number) if context.exports.has_directory(number) => CurrentFh::Pseudo(number),
        Target::Pseudo(_) => return Err(NfsStat::Stale),
        Target::Object { export, inode, generation } => {
            // [RFC8881 18.19.3]
            let filesystem = &context.exports.export(export).ok_or(NfsStat::Stale)?.filesystem;
            let generation = filesystem.handle_generation(inode, generation);
            find(context, FileId { export, inode, generation })?
        }
    };
    put(context, fh)
}

/// The filehandle of a file. Error: NFS4ERR_STALE if the file or its export does not exist.
pub fn find(context: &Context, file: FileId) -> Res<CurrentFh> {
    let export = context.exports.export(file.export).ok_or(NfsStat::Stale)?;
    let inode = export.filesystem.vfs.get_generation(Ino(file.inode), file.generation).nfs()?;
    context.export_object(export, inode).map(CurrentFh::Object)
}

/// PUTROOTFH, and PUTPUBFH: the public filehandle is the root.
pub fn put_root_fh(context: &mut Context) -> Res<()> {
    let fh = context.resolve_node(&context.exports.root())?;
    put(context, fh)
}

/// GETFH.
pub fn get_fh(context: &Context) -> Res<FileHandle> {
    let fh = context.current_fh()?;
    if let CurrentFh::Object(object) = fh {
        object.read_cred()?;
    }
    Ok(context.service.handles.encode(fh.target()))
}

/// SAVEFH.
pub fn save_fh(context: &mut Context) -> Res<()> {
    let fh = context.current_fh()?.clone();
    // [RFC8881 16.2.3.1.2]
    context.saved_fh = Some((fh, context.stateid));
    Ok(())
}

/// RESTOREFH.
pub fn restore_fh(context: &mut Context) -> Res<()> {
    // [RFC8881 18.27.3] NFSv4.0 has a separate error.
    let nothing = if context.minor == 0 { NfsStat::Restorefh } else { NfsStat::Nofilehandle };
    let (fh, stateid) = context.saved_fh.clone().ok_or(nothing)?;
    put(context, fh)?;
    context.stateid = stateid;
    Ok(())
}

/// Looks up a name in a directory.
pub fn child(dir: &Object, name: &[u8]) -> Res<Object> {
    match dir.inode.kind {
        FileType::Directory => {}
        // [RFC8881 18.13.3]
        FileType::Symlink => return Err(NfsStat::Symlink),
        _ => return Err(NfsStat::Notdir),
    }
    let cred = dir.read_cred()?;
    let name = component::check_in(dir, name)?;
    Ok(dir.with_inode(dir.vfs().lookup(cred, &dir.inode, name).nfs()?))
}

/// Looks up a name in the pseudo-root. A name that the caller must not see does not exist for it.
fn pseudo_child(context: &Context, number: u64, name: &[u8]) -> Res<Node<crate::compound::Filesystem>> {
    component::check(name)?;
    // [RFC8881 15.1.7]
    if name.len() > PSEUDO_NAME_MAX as usize {
        return Err(NfsStat::Nametoolong);
    }
    let name = component::text(name)?;
    let address = context.origin.address;
    context.exports.lookup(number, name, address).ok_or_else(|| {
        if let Some(export) = context.exports.hidden(number, name, address) {
            context.service.denials.record(&export.path, address, Refusal::Address);
        }
        NfsStat::Noent
    })
}

/// LOOKUP.
pub fn lookup(context: &mut Context, name: &[u8]) -> Res<()> {
    let fh = match context.current_fh()? {
        CurrentFh::Pseudo(number) => context.resolve_node(&pseudo_child(context, *number, name)?)?,
        CurrentFh::Object(dir) => CurrentFh::Object(child(dir, name)?),
    };
    // [RFC8881 2.6.3.1.1]
    if let CurrentFh::Object(object) = &fh {
        object.read_cred()?;
    }
    context.set_current_fh(fh);
    Ok(())
}

/// The parent directory.
fn above(context: &Context, fh: &CurrentFh) -> Res<CurrentFh> {
    match fh {
        // [RFC8881 18.14.3]
        CurrentFh::Pseudo(number) => {
            context.exports.parent(*number).map(CurrentFh::Pseudo).ok_or(NfsStat::Noent)
        }
        // [RFC8881 15.1.2] NFSv4.0 has no separate error for a symbolic link.
        CurrentFh::Object(object) if object.inode.kind == FileType::Symlink && context.minor > 0 => {
            Err(NfsStat::Symlink)
        }
        CurrentFh::Object(object) if object.inode.kind != FileType::Directory => Err(NfsStat::Notdir),
        CurrentFh::Object(object) if object.is_root() => {
            let above = context.exports.above(&context.service.handles, &object.export);
            above.map(CurrentFh::Pseudo).ok_or(NfsStat::Noent)
        }
        CurrentFh::Object(object) => {
            let parent = object.vfs().lookup(object.read_cred()?, &object.inode, b"..").nfs()?;
            Ok(CurrentFh::Object(object.with_inode(parent)))
        }
    }
}

/// LOOKUPP.
pub fn lookupp(context: &mut Context) -> Res<()> {
    let fh = above(context, context.current_fh()?)?;
    context.set_current_fh(fh);
    Ok(())
}

/// READLINK.
pub fn read_link(context: &Context) -> Res<Vec<u8>> {
    let wrong = if context.minor == 0 { NfsStat::Inval } else { NfsStat::WrongType };
    let object = context.object(wrong)?;
    if object.inode.kind != FileType::Symlink {
        // [RFC8881 18.24.3]
        return Err(wrong);
    }
    object.vfs().read_link(object.read_cred()?, &object.inode).nfs()
}

fn flavors(context: &Context, fh: &CurrentFh) -> List<SecInfoEntry> {
    let flavors = match fh {
        CurrentFh::Pseudo(_) => vec![AUTH_SYS, AUTH_NONE],
        CurrentFh::Object(object) => object.export.policy.flavors(context.origin.address),
    };
    List(flavors.into_iter().map(SecInfoEntry::Flavor).collect())
}

fn consumed(context: &mut Context) {
    // [RFC8881 18.29.3] [RFC8881 18.45.3]
    if context.minor > 0 {
        context.current_fh = None;
    }
}

/// SECINFO.
pub fn sec_info(context: &mut Context, name: &[u8]) -> Res<List<SecInfoEntry>> {
    let fh = match context.current_fh()? {
        CurrentFh::Pseudo(number) => context.resolve_node(&pseudo_child(context, *number, name)?)?,
        // The caller lacks the security flavor for this directory. The reply lists the flavors and does not
        // depend on whether the name exists.
        CurrentFh::Object(dir) if dir.access.as_ref().is_err_and(|why| *why == Refusal::Security) => {
            component::check(name)?;
            CurrentFh::Object(dir.clone())
        }
        CurrentFh::Object(dir) => {
            if dir.inode.kind != FileType::Directory {
                return Err(NfsStat::Notdir);
            }
            CurrentFh::Object(child(dir, name)?)
        }
    };
    let list = flavors(context, &fh);
    consumed(context);
    Ok(list)
}

/// SECINFO_NO_NAME.
pub fn sec_info_no_name(context: &mut Context, style: SecInfoStyle) -> Res<List<SecInfoEntry>> {
    let current = context.current_fh()?;
    let list = match style {
        SecInfoStyle::CurrentFh => flavors(context, current),
        // The parent belongs to the same export, except for the root.
        SecInfoStyle::Parent => match current {
            CurrentFh::Object(object) if !object.is_root() => {
                if object.inode.kind != FileType::Directory {
                    return Err(NfsStat::Notdir);
                }
                flavors(context, current)
            }
            fh => flavors(context, &above(context, fh)?),
        },
    };
    consumed(context);
    Ok(list)
}
