//! Setting attributes.

use ivers_nfs4::attr::{self, Attrs, Fattr, is_read_only};
use ivers_nfs4::ops::v40::{SetAttrArgs, SetAttrRes};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, SetTime};
use ivers_vfs::{Attr, CreateSpec, FileType, SetAttr, TimeSet, Timestamp};

use super::acl_given::NewAcl;
use super::{SETTABLE, wanted};
use crate::compound::{Context, Names};
use crate::ops::data::is_special;
use crate::ops::settle;
use crate::ops::status::status;
use crate::state::{Does, Step};

/// What is to be set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// For the VFS.
    pub set: SetAttr,
    /// The attributes by number.
    pub mask: Bitmap,
    /// Bits that a new object shall not have, unless an ACL that it inherits decides.
    pub umask: u32,
    /// The ACL, set behind everything else.
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

impl Wanted {
    /// Take apart what is given for an object of this kind; `making`: for a new one.
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
            // [RFC8881 6.2.5] A new object has no mode of which something could be left as it is.
            if is_read_only(bit) || (umask && !making) || (masked && making) {
                return Err(NfsStat::Inval);
            }
            if !SETTABLE.contains(&bit) && !umask && !masked {
                return Err(NfsStat::Attrnotsupp);
            }
        }
        let attrs = Attrs::decode(given).map_err(NfsStat::from)?;
        let masked = attrs.mode_set_masked.as_ref();
        // [RFC8881 6.2.5] Two modes at once would be two answers to one question.
        if attrs.mode.is_some() && (attrs.mode_umask.is_some() || masked.is_some()) {
            return Err(NfsStat::Inval);
        }
        let names = context.names();
        let perm = attrs.mode.or(attrs.mode_umask.as_ref().map(|mode| mode.mode));
        let perm = perm.or(masked.map(|mode| mode.value));
        let mask = masked.map_or(0o7777, |mode| mode.mask);
        let umask = attrs.mode_umask.as_ref().map_or(0, |mode| mode.umask);
        // [RFC8881 6.2.5] Also of bits that the mask leaves out.
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

    /// What of it was done by a call that has failed: the size comes first, then the others at once, and an ACL that goes with a mode behind those.
    fn set_of(&self, before: &Attr, after: &Attr) -> Bitmap {
        let SetAttr { size, perm, uid, gid, .. } = self.set;
        let came = |wanted: Option<u32>, before: u32, after: u32| wanted == Some(after) && before != after;
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

    /// What is to be made, with all of this from the start.
    pub fn born(&self, spec: CreateSpec) -> CreateSpec {
        let SetAttr { perm, uid, gid, size, atime, mtime, .. } = self.set;
        let (perm, size) = (perm.unwrap_or(spec.perm), size.unwrap_or(0));
        CreateSpec { perm, umask: self.umask, uid, gid, size, atime, mtime, ..spec }
    }
}

/// SETATTR.
pub fn set_attr(context: &mut Context, args: &SetAttrArgs) -> Step<SetAttrRes> {
    let place = context.current()?.clone();
    let mut wanted = wanted(context, &place, &args.attrs, None)?;
    let object = place.object(NfsStat::Rofs)?;
    let cred = object.writer()?;
    let sized = wanted.set.size.is_some();
    if sized {
        object.regular(context.minor)?;
    }
    let _leave = if sized {
        let stateid = context.meant(&args.stateid)?;
        let leave = context.permit(object, &stateid, Does::Resize)?;
        // Who has opened it for writing himself may truncate it, whatever its mode says by now.
        wanted.set.opened = !is_special(&stateid) && context.is_opener(&stateid);
        Some(leave)
    } else {
        context.permit_change(object, Does::Change)?
    };
    let (vfs, inode) = (object.vfs(), &object.inode);
    let before = inode.attr();
    let plain = match wanted.set == SetAttr::default() {
        true => Ok(()),
        false => vfs.set_attr(cred, inode, &wanted.set).map(drop).map_err(|error| status(&error)),
    };
    // [RFC8881 6.4.1.3] Behind the mode: the ACL is what counts.
    let acl = plain.map(|()| wanted.acl.as_ref().map_or(Ok(()), |acl| acl.set(vfs, cred, inode)));
    // [RFC8881 18.30.4] What was set is told also where the rest was not.
    let (status, attrset) = match acl {
        Ok(Ok(())) => (NfsStat::Ok, wanted.mask),
        Ok(Err(status)) => (status, Bitmap::of(wanted.mask.iter().filter(|bit| *bit != attr::ACL))),
        Err(status) => (status, wanted.set_of(&before, &inode.attr())),
    };
    if attrset != Bitmap::default() || status == NfsStat::Ok {
        settle(object, &[inode])?;
    }
    Ok(SetAttrRes { status, attrset })
}

/// The mode of a new object whose maker does not name one.
pub fn default_mode(kind: FileType) -> u32 {
    if kind == FileType::Directory { 0o755 } else { 0o644 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [RFC8881 18.30.4]
    #[test]
    fn what_was_done_before_it_failed_is_told() {
        let fs = ivers_nfs_alone::mem();
        let before = Attr { size: 9, perm: 0o644, ..fs.root().unwrap().attr() };
        let all = [attr::SIZE, attr::MODE, attr::OWNER, attr::ACL];
        let set = SetAttr { size: Some(5), perm: Some(0o600), uid: Some(7), ..SetAttr::default() };
        let wanted = Wanted { set, mask: Bitmap::of(all), ..Wanted::default() };
        let told = |after: Attr| wanted.set_of(&before, &after);
        assert_eq!(told(before.clone()), Bitmap::default());
        assert_eq!(told(Attr { size: 5, ..before.clone() }), Bitmap::of([attr::SIZE]));
        let most = Bitmap::of([attr::SIZE, attr::MODE, attr::OWNER]);
        assert_eq!(told(Attr { size: 5, perm: 0o600, uid: 7, ..before.clone() }), most);
        // Somebody else's size is not the one that was asked for.
        assert_eq!(told(Attr { size: 6, ..before.clone() }), Bitmap::default());
    }
}
