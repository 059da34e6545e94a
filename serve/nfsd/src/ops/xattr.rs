//! User extended attributes (RFC 8276).

use ivers_nfs4::ops::v42::{ListXattrsArgs, ListXattrsOk, SetXattrArgs, SetXattrOption};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::ChangeInfo;
use ivers_nfs4::xdr::List;
use ivers_vfs::{FileType, XattrMode};

use super::component::text;
use super::durability::commit_now;
use crate::compound::status::OrStatus;
use crate::compound::{Context, Object};
use crate::state::{Access, Step};

/// The prefix of local names, which the protocol omits (RFC 8276 section 5).
const USER: &[u8] = b"user.";
/// The length limit of a local name, in bytes.
const NAME_BYTES: usize = 255;
/// Bytes of a list besides the names: cookie, number of names, end flag.
const FRAME: usize = 8 + 4 + 4;

fn local(name: &[u8]) -> Res<Vec<u8>> {
    if text(name)?.contains('\0') {
        return Err(NfsStat::Badchar);
    }
    let local = [USER, name].concat();
    if local.len() > NAME_BYTES { Err(NfsStat::Nametoolong) } else { Ok(local) }
}

/// The current object, if it supports extended attributes.
fn bearer(context: &Context) -> Res<&Object> {
    let object = context.object(NfsStat::Notsupp)?;
    let bears = matches!(object.inode.kind, FileType::Regular | FileType::Directory);
    // [RFC8276 8.4.1.3]
    if object.vfs().xattr_value_max() == 0 {
        return Err(NfsStat::Notsupp);
    }
    if bears { Ok(object) } else { Err(NfsStat::WrongType) }
}

/// GETXATTR.
pub fn get(context: &Context, name: &[u8]) -> Res<Vec<u8>> {
    let object = bearer(context)?;
    object.vfs().get_xattr(object.read_cred()?, &object.inode, local(name)?).nfs()
}

fn change(context: &Context, name: &[u8], given: Option<(&[u8], XattrMode)>) -> Step<ChangeInfo> {
    let object = bearer(context)?;
    let name = local(name)?;
    let cred = object.write_cred()?;
    let _guard = context.begin_change(object, Access::Metadata)?;
    let (vfs, inode) = (object.vfs(), &object.inode);
    let info = vfs.change_xattr(cred, inode, name, given, true).nfs()?;
    commit_now(object, &[inode])?;
    Ok(context.service.change_info(info))
}

/// SETXATTR.
pub fn set(context: &Context, args: &SetXattrArgs) -> Step<ChangeInfo> {
    // [RFC8276 8.4.2.3]
    let mode = match args.option {
        SetXattrOption::Either => XattrMode::Any,
        SetXattrOption::Create => XattrMode::Create,
        SetXattrOption::Replace => XattrMode::Replace,
    };
    change(context, &args.name, Some((&args.value, mode)))
}

/// REMOVEXATTR.
pub fn remove(context: &Context, name: &[u8]) -> Step<ChangeInfo> {
    change(context, name, None)
}

/// LISTXATTRS. The cookie is an index into the sorted list.
pub fn list(context: &Context, args: &ListXattrsArgs) -> Res<ListXattrsOk> {
    let object = bearer(context)?;
    let all = object.vfs().list_xattr(object.read_cred()?, &object.inode).nfs()?;
    let mut names: Vec<Vec<u8>> = all
        .into_iter()
        .filter_map(|name| name.strip_prefix(USER).map(<[u8]>::to_vec))
        // Skips names that are not UTF-8.
        .filter(|name| text(name).is_ok())
        .collect();
    names.sort();
    let from = usize::try_from(args.cookie).unwrap_or(usize::MAX).min(names.len());
    let most = (args.maxcount as usize).min(context.result_bytes_max.saturating_sub(8));
    let (mut bytes, mut until) = (FRAME, from);
    while let Some(name) = names.get(until) {
        bytes += 4 + name.len().next_multiple_of(4);
        if bytes > most {
            break;
        }
        until += 1;
    }
    // [RFC8276 8.4.3.3]
    if (until == from && from < names.len()) || most < FRAME {
        return Err(NfsStat::Toosmall);
    }
    let eof = until == names.len();
    Ok(ListXattrsOk { cookie: until as u64, names: List(names[from..until].to_vec()), eof })
}
