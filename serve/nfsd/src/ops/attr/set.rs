//! Setting attributes.

use ivers_nfs4::attr::{self, Attrs, Fattr, is_read_only};
use ivers_nfs4::ops::v40::{SetAttrArgs, SetAttrRes};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, SetTime};
use ivers_vfs::{Attr, CreateSpec, FileType, SetAttr, TimeSet, Timestamp};

use super::acl_to_posix::NewAcl;
use super::supported::{SETTABLE, supported};
use crate::compound::status::status;
use crate::compound::{Context, CurrentFh, IdMap};
use crate::ops::durability::commit_now;
use crate::ops::file_io::is_special;
use crate::state::{Access, Step};

/// Attributes to set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewAttrs {
    /// The part that the VFS sets.
    pub set: SetAttr,
    /// The numbers of the attributes.
    pub mask: Bitmap,
    /// Permission bits that a new object does not get, unless it inherits an ACL.
    pub umask: u32,
    /// The ACL, which is set after all other attributes.
    pub acl: Option<NewAcl>,
}

fn time(given: &SetTime) -> Res<TimeSet> {
    match given {
        SetTime::Server => Ok(TimeSet::Now),
        // [RFC8881 18.30.3]
        SetTime::Client(time) if time.nseconds >= 1_000_000_000 => Err(NfsStat::Inval),
        SetTime::Client(time) => Ok(TimeSet::At(Timestamp { sec: time.seconds, nsec: time.nseconds })),
    }
}

impl NewAttrs {
    /// Parses attributes for an object of type `kind`. `making`: for a new one.
    pub fn of(
        context: &Context,
        supported: &Bitmap,
        given: &Fattr,
        kind: FileType,
        making: bool,
    ) -> Res<Self> {
        for bit in given.mask.iter() {
            let (umask, masked) = (bit == attr::MODE_UMASK, bit == attr::MODE_SET_MASKED);
            // [RFC8881 18.30.3]
            if !supported.contains(bit) {
                return Err(NfsStat::Attrnotsupp);
            }
            // [RFC8881 6.2.5] A new object has no mode of which a masked part could stay.
            if is_read_only(bit) || (umask && !making) || (masked && making) {
                return Err(NfsStat::Inval);
            }
            if !SETTABLE.contains(&bit) && !umask && !masked {
                return Err(NfsStat::Attrnotsupp);
            }
        }
        let attrs = Attrs::decode(given).map_err(NfsStat::from)?;
        let masked = attrs.mode_set_masked.as_ref();
        // [RFC8881 6.2.5] Only one of the mode attributes.
        if attrs.mode.is_some() && (attrs.mode_umask.is_some() || masked.is_some()) {
            return Err(NfsStat::Inval);
        }
        let names = context.id_map();
        let perm = attrs.mode.or(attrs.mode_umask.as_ref().map(|mode| mode.mode));
        let perm = perm.or(masked.map(|mode| mode.value));
        let mask = masked.map_or(0o7777, |mode| mode.mask);
        let umask = attrs.mode_umask.as_ref().map_or(0, |mode| mode.umask);
        // [RFC8881 6.2.5] Invalid bits are an error even outside the mask.
        if (perm.unwrap_or(0) | umask | mask) & !0o7777 != 0 {
            return Err(NfsStat::Inval);
        }
        // [RFC8881 14.5]
        if [&attrs.owner, &attrs.owner_group].into_iter().flatten().any(Vec::is_empty) {
            return Err(NfsStat::Inval);
        }
        // [RFC8881 5.9]
        let id = |id: Option<u32>| id.ok_or(NfsStat::Badowner);
        let set = SetAttr {
            perm,
            keep_perm: 0o7777 & !mask,
            uid: attrs.owner.map(|name| id(names.uid(&name))).transpose()?,
            gid: attrs.owner_group.map(|name| id(names.gid(&name))).transpose()?,
            size: attrs.size,
            atime: attrs.time_access_set.as_ref().map(time).transpose()?,
            mtime: attrs.time_modify_set.as_ref().map(time).transpose()?,
            ..SetAttr::default()
        };
        let acl = attrs.acl.map(|aces| NewAcl::of(&names, kind, &aces.0)).transpose()?;
        Ok(Self { set, mask: given.mask.clone(), umask, acl })
    }

    /// The attributes that a failed call has set. The order is: size, then all others at once, then the ACL.
    fn set_of(&self, before: &Attr, after: &Attr) -> Bitmap {
        let SetAttr { size, perm, uid, gid, .. } = self.set;
        let came =
            |new_attrs: Option<u32>, before: u32, after: u32| new_attrs == Some(after) && before != after;
        let sized = size == Some(after.size) && before.size != after.size;
        let moded = perm.is_some() && before.perm != after.perm;
        let others = moded || came(uid, before.uid, after.uid) || came(gid, before.gid, after.gid);
        let done = |bit: &u32| match *bit {
            attr::SIZE => sized,
            attr::ACL => false,
            _ => others,
        };
        Bitmap::of(self.mask.iter().filter(done))
    }

    /// Adds the attributes to the description of a new object.
    pub fn create_spec(&self, spec: CreateSpec) -> CreateSpec {
        let SetAttr { perm, uid, gid, size, atime, mtime, .. } = self.set;
        let (perm, size) = (perm.unwrap_or(spec.perm), size.unwrap_or(0));
        CreateSpec { perm, umask: self.umask, uid, gid, size, atime, mtime, ..spec }
    }
}

/// Parses attributes that a client sets on an object, or on a new object of the type `made` in it.
pub fn parse_new_attrs(
    context: &Context,
    fh: &CurrentFh,
    given: &Fattr,
    made: Option<FileType>,
) -> Res<NewAttrs> {
    let kind = made.unwrap_or(match fh {
        CurrentFh::Pseudo(_) => FileType::Directory,
        CurrentFh::Object(object) => object.inode.kind,
    });
    NewAttrs::of(context, supported(context.minor, fh), given, kind, made.is_some())
}

/// SETATTR.
pub fn set_attr(context: &mut Context, args: &SetAttrArgs) -> Step<SetAttrRes> {
    let fh = context.current_fh()?.clone();
    let mut new_attrs = parse_new_attrs(context, &fh, &args.attrs, None)?;
    let object = fh.object(NfsStat::Rofs)?;
    let cred = object.write_cred()?;
    let sized = new_attrs.set.size.is_some();
    if sized {
        object.regular(context.minor)?;
    }
    let _guard = if sized {
        let stateid = context.resolve_stateid(&args.stateid)?;
        let guard = context.begin_access(object, &stateid, Access::Resize)?;
        // A caller that opened the file for writing may truncate it even if the mode has changed since.
        new_attrs.set.opened = !is_special(&stateid) && context.is_opener(&stateid);
        Some(guard)
    } else {
        context.begin_change(object, Access::Metadata)?
    };
    let (vfs, inode) = (object.vfs(), &object.inode);
    let before = inode.attr();
    let plain = match new_attrs.set == SetAttr::default() {
        true => Ok(()),
        false => vfs.set_attr(cred, inode, &new_attrs.set).map(drop).map_err(|error| status(&error)),
    };
    // [RFC8881 6.4.1.3] The ACL overrides the mode, so it is set last.
    let acl = plain.map(|()| new_attrs.acl.as_ref().map_or(Ok(()), |acl| acl.set(vfs, cred, inode)));
    // [RFC8881 18.30.4] The reply names the attributes that were set, even if another one failed.
    let (status, attrset) = match acl {
        Ok(Ok(())) => (NfsStat::Ok, new_attrs.mask),
        Ok(Err(status)) => (status, Bitmap::of(new_attrs.mask.iter().filter(|bit| *bit != attr::ACL))),
        Err(status) => (status, new_attrs.set_of(&before, &inode.attr())),
    };
    if attrset != Bitmap::default() || status == NfsStat::Ok {
        commit_now(object, &[inode])?;
    }
    Ok(SetAttrRes { status, attrset })
}

/// The permission bits of a new object if the client sends none.
pub fn default_mode(kind: FileType) -> u32 {
    if kind == FileType::Directory { 0o755 } else { 0o644 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [RFC8881 18.30.4]
    #[test]
    fn failed_call_reports_attributes_already_set() {
        let fs = ivers_nfs_test::harness::mem();
        let before = Attr { size: 9, perm: 0o644, ..fs.root().unwrap().attr() };
        let all = [attr::SIZE, attr::MODE, attr::OWNER, attr::ACL];
        let set = SetAttr { size: Some(5), perm: Some(0o600), uid: Some(7), ..SetAttr::default() };
        let new_attrs = NewAttrs { set, mask: Bitmap::of(all), ..NewAttrs::default() };
        let reported = |after: Attr| new_attrs.set_of(&before, &after);
        assert_eq!(reported(before.clone()), Bitmap::default());
        assert_eq!(reported(Attr { size: 5, ..before.clone() }), Bitmap::of([attr::SIZE]));
        let most = Bitmap::of([attr::SIZE, attr::MODE, attr::OWNER]);
        assert_eq!(reported(Attr { size: 5, perm: 0o600, uid: 7, ..before.clone() }), most);
        // The size was changed by another client.
        assert_eq!(reported(Attr { size: 6, ..before.clone() }), Bitmap::default());
    }
}
