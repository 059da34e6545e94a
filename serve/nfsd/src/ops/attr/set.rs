//! Setting attributes.

use ivers_nfs4::attr::{self, Attrs, Fattr, is_read_only};
use ivers_nfs4::ops::v40::{SetAttrArgs, SetAttrRes};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, SetTime};
use ivers_vfs::{CreateSpec, FileType, SetAttr, TimeSet, Timestamp};

use super::acl_given::NewAcl;
use super::{SETTABLE, wanted};
use crate::compound::{Context, Names};
use crate::ops::data::is_special;
use crate::ops::settle;
use crate::ops::status::OrStatus;
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
    if wanted.set != SetAttr::default() {
        vfs.set_attr(cred, inode, &wanted.set).nfs()?;
    }
    // [RFC8881 6.4.1.3] Behind the mode: the ACL is what counts.
    let acl = wanted.acl.as_ref().map_or(Ok(()), |acl| acl.set(vfs, cred, inode));
    settle(vfs, &[inode])?;
    let mut attrset = wanted.mask;
    match acl {
        Ok(()) => Ok(SetAttrRes { status: NfsStat::Ok, attrset }),
        // [RFC8881 18.30.4] What was set is told also where the rest was not.
        Err(status) => {
            attrset.remove(attr::ACL);
            Ok(SetAttrRes { status, attrset })
        }
    }
}

/// The mode of a new object whose maker does not name one.
pub fn default_mode(kind: FileType) -> u32 {
    if kind == FileType::Directory { 0o755 } else { 0o644 }
}
