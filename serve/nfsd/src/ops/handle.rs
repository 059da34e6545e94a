//! Which file is the current one: PUTFH, LOOKUP and their like; SECINFO.

use ivers_nfs4::ops::number;
use ivers_nfs4::ops::v40::SecInfoEntry;
use ivers_nfs4::ops::v41::SecInfoStyle;
use ivers_nfs4::rpc::{AUTH_NONE, AUTH_SYS};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::FileHandle;
use ivers_nfs4::xdr::List;
use ivers_vfs::{FileType, Ino};

use super::attr::get::PSEUDO_NAME_MAX;
use super::name;
use super::status::OrStatus;
use crate::compound::{Context, Object, Place};
use crate::exports::handle::Target;
use crate::exports::policy::Refusal;
use crate::exports::table::Node;
use crate::state::File;

/// What may follow an operation that puts a filehandle, without that one saying NFS4ERR_WRONGSEC (RFC 8881 section 2.6.3.1.1): each of these is asked about the
/// object that it leads to, or about security itself.
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

fn put(context: &mut Context, place: Place) -> Res<()> {
    // [RFC8881 2.6.3.1.1]
    if let Place::Object(object) = &place
        && context.next.is_some_and(|next| !AFTER_PUT.contains(&next))
    {
        object.reader()?;
    }
    context.go(place);
    Ok(())
}

/// PUTFH.
pub fn put_fh(context: &mut Context, handle: &FileHandle) -> Res<()> {
    let place = match context.service.handles.decode(handle)? {
        Target::Pseudo(number) if context.exports.has_directory(number) => Place::Pseudo(number),
        Target::Pseudo(_) => return Err(NfsStat::Stale),
        Target::Object { export, inode, generation } => {
            // [RFC8881 18.19.3]
            let filesystem = &context.exports.export(export).ok_or(NfsStat::Stale)?.filesystem;
            let generation = filesystem.in_handles(inode, generation);
            find(context, File { export, inode, generation })?
        }
    };
    put(context, place)
}

/// A file by its number.
pub fn find(context: &Context, file: File) -> Res<Place> {
    let export = context.exports.export(file.export).ok_or(NfsStat::Stale)?;
    let inode = export.filesystem.vfs.get_generation(Ino(file.inode), file.generation).nfs()?;
    context.enter(export, inode).map(Place::Object)
}

/// PUTROOTFH, and PUTPUBFH: there is no public filehandle but the root.
pub fn put_root_fh(context: &mut Context) -> Res<()> {
    let place = context.node(&context.exports.root())?;
    put(context, place)
}

/// GETFH.
pub fn get_fh(context: &Context) -> Res<FileHandle> {
    let place = context.current()?;
    if let Place::Object(object) = place {
        object.reader()?;
    }
    Ok(context.service.handles.encode(place.target()))
}

/// SAVEFH.
pub fn save_fh(context: &mut Context) -> Res<()> {
    let place = context.current()?.clone();
    // [RFC8881 16.2.3.1.2]
    context.saved = Some((place, context.stateid));
    Ok(())
}

/// RESTOREFH.
pub fn restore_fh(context: &mut Context) -> Res<()> {
    // [RFC8881 18.27.3] Version 0 has an error of its own for that.
    let nothing = if context.minor == 0 { NfsStat::Restorefh } else { NfsStat::Nofilehandle };
    let (place, stateid) = context.saved.clone().ok_or(nothing)?;
    put(context, place)?;
    context.stateid = stateid;
    Ok(())
}

/// The object that a name in a directory stands for.
pub fn child(dir: &Object, name: &[u8]) -> Res<Object> {
    match dir.inode.kind {
        FileType::Directory => {}
        // [RFC8881 18.13.3]
        FileType::Symlink => return Err(NfsStat::Symlink),
        _ => return Err(NfsStat::Notdir),
    }
    let cred = dir.reader()?;
    let name = name::within(dir, name)?;
    Ok(dir.beside(dir.vfs().lookup(cred, &dir.inode, name).nfs()?))
}

/// What a name in the pseudo-root stands for; whoever may not see it learns nothing.
fn pseudo_child(context: &Context, number: u64, name: &[u8]) -> Res<Node<crate::compound::Filesystem>> {
    name::component(name)?;
    // [RFC8881 15.1.7]
    if name.len() > PSEUDO_NAME_MAX as usize {
        return Err(NfsStat::Nametoolong);
    }
    let name = name::text(name)?;
    let address = context.origin.address;
    context.exports.lookup(number, name, address).ok_or_else(|| {
        if let Some(export) = context.exports.hidden(number, name, address) {
            context.service.refusals.note(&export.path, address, Refusal::Address);
        }
        NfsStat::Noent
    })
}

/// LOOKUP.
pub fn lookup(context: &mut Context, name: &[u8]) -> Res<()> {
    let place = match context.current()? {
        Place::Pseudo(number) => context.node(&pseudo_child(context, *number, name)?)?,
        Place::Object(dir) => Place::Object(child(dir, name)?),
    };
    // [RFC8881 2.6.3.1.1]
    if let Place::Object(object) = &place {
        object.reader()?;
    }
    context.go(place);
    Ok(())
}

/// The directory above a place.
fn above(context: &Context, place: &Place) -> Res<Place> {
    match place {
        // [RFC8881 18.14.3]
        Place::Pseudo(number) => context.exports.parent(*number).map(Place::Pseudo).ok_or(NfsStat::Noent),
        // [RFC8881 15.1.2] The first version knows no other word for it.
        Place::Object(object) if object.inode.kind == FileType::Symlink && context.minor > 0 => {
            Err(NfsStat::Symlink)
        }
        Place::Object(object) if object.inode.kind != FileType::Directory => Err(NfsStat::Notdir),
        Place::Object(object) if object.is_root() => {
            let above = context.exports.above(&context.service.handles, &object.export);
            above.map(Place::Pseudo).ok_or(NfsStat::Noent)
        }
        Place::Object(object) => {
            let parent = object.vfs().lookup(object.reader()?, &object.inode, b"..").nfs()?;
            Ok(Place::Object(object.beside(parent)))
        }
    }
}

/// LOOKUPP.
pub fn lookupp(context: &mut Context) -> Res<()> {
    let place = above(context, context.current()?)?;
    context.go(place);
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
    object.vfs().read_link(&object.inode).nfs()
}

fn flavors(context: &Context, place: &Place) -> List<SecInfoEntry> {
    let flavors = match place {
        Place::Pseudo(_) => vec![AUTH_SYS, AUTH_NONE],
        Place::Object(object) => object.export.policy.flavors(context.origin.address),
    };
    List(flavors.into_iter().map(SecInfoEntry::Flavor).collect())
}

fn consumed(context: &mut Context) {
    // [RFC8881 18.29.3] [RFC8881 18.45.3]
    if context.minor > 0 {
        context.current = None;
    }
}

/// SECINFO.
pub fn sec_info(context: &mut Context, name: &[u8]) -> Res<List<SecInfoEntry>> {
    let place = match context.current()? {
        Place::Pseudo(number) => context.node(&pseudo_child(context, *number, name)?)?,
        // He asks because he may not come in like that: he learns how, and not which names there are.
        Place::Object(dir) if dir.access.as_ref().is_err_and(|why| *why == Refusal::Security) => {
            name::component(name)?;
            Place::Object(dir.clone())
        }
        Place::Object(dir) => {
            if dir.inode.kind != FileType::Directory {
                return Err(NfsStat::Notdir);
            }
            Place::Object(child(dir, name)?)
        }
    };
    let list = flavors(context, &place);
    consumed(context);
    Ok(list)
}

/// SECINFO_NO_NAME.
pub fn sec_info_no_name(context: &mut Context, style: SecInfoStyle) -> Res<List<SecInfoEntry>> {
    let current = context.current()?;
    let list = match style {
        SecInfoStyle::CurrentFh => flavors(context, current),
        // What is above is in the same export, but for its root.
        SecInfoStyle::Parent => match current {
            Place::Object(object) if !object.is_root() => {
                if object.inode.kind != FileType::Directory {
                    return Err(NfsStat::Notdir);
                }
                flavors(context, current)
            }
            place => flavors(context, &above(context, place)?),
        },
    };
    consumed(context);
    Ok(list)
}
