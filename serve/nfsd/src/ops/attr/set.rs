//! Setting attributes.

use ivers_nfs4::attr::{self, Attrs, Fattr, is_read_only};
use ivers_nfs4::ops::v40::{SetAttrArgs, SetAttrRes};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, SetTime};
use ivers_vfs::{Cred, FileType, SetAttr, TimeSet, Timestamp};

use super::acl_given::NewAcl;
use super::{SETTABLE, wanted};
use crate::compound::Context;
use crate::ops::data::is_special;
use crate::ops::settle;
use crate::ops::status::OrStatus;
use crate::state::{Does, Step, Stop};

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
            let umask = bit == attr::MODE_UMASK;
            // [RFC8881 18.30.3]
            if !supported.contains(bit) {
                return Err(NfsStat::Attrnotsupp);
            }
            if is_read_only(bit) || (umask && !making) {
                return Err(NfsStat::Inval);
            }
            if !SETTABLE.contains(&bit) && !umask {
                return Err(NfsStat::Attrnotsupp);
            }
        }
        let attrs = Attrs::decode(given).map_err(NfsStat::from)?;
        // Two modes at once would be two answers to one question.
        if attrs.mode.is_some() && attrs.mode_umask.is_some() {
            return Err(NfsStat::Inval);
        }
        let names = &context.service.names;
        let perm = attrs.mode.or(attrs.mode_umask.as_ref().map(|mode| mode.mode));
        let umask = attrs.mode_umask.as_ref().map_or(0, |mode| mode.umask);
        if (perm.unwrap_or(0) | umask) & !0o7777 != 0 {
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
            uid: attrs.owner.map(|name| id(names.uid(&name))).transpose()?,
            gid: attrs.owner_group.map(|name| id(names.gid(&name))).transpose()?,
            size: attrs.size,
            atime: attrs.time_access_set.as_ref().map(time).transpose()?,
            mtime: attrs.time_modify_set.as_ref().map(time).transpose()?,
            ..SetAttr::default()
        };
        let acl = attrs.acl.map(|aces| NewAcl::of(&**names, kind, &aces.0)).transpose()?;
        Ok(Self { set, mask: given.mask.clone(), umask, acl })
    }
}

/// SETATTR.
pub fn set_attr(context: &mut Context, args: &SetAttrArgs) -> Step<SetAttrRes> {
    let place = context.current()?.clone();
    let mut wanted = wanted(context, &place, &args.attrs, None)?;
    let object = place.object(NfsStat::Rofs)?;
    let cred = object.writer()?.clone();
    let sized = wanted.set.size.is_some();
    if sized {
        object.regular(context.minor)?;
    }
    let (_leave, special) = if sized {
        let stateid = context.meant(&args.stateid)?;
        let special = is_special(&stateid);
        let leave = context.permit(object, &stateid, Does::Resize)?;
        (Some(leave), special || !context.is_opener(&stateid))
    } else {
        (context.permit_change(object, Does::Change)?, true)
    };
    let (vfs, inode) = (object.vfs(), &object.inode);
    let mut done = Bitmap::default();
    if let Some(size) = wanted.set.size.filter(|_| !special) {
        // Who has it open for writing may truncate it, whatever its mode says by now; the VFS is told that this was checked.
        let set = SetAttr { size: Some(size), kill_priv: cred.uid != 0, ..SetAttr::default() };
        vfs.set_attr(&Cred { checked: true, ..cred.clone() }, inode, &set).nfs()?;
        wanted.set.size = None;
        done.insert(attr::SIZE);
    }
    let mut rest = match &wanted.set {
        set if *set == SetAttr::default() => Ok(()),
        set => vfs.set_attr(&cred, inode, set).nfs().map(|_| ()),
    };
    // [RFC8881 6.4.1.3] Behind the mode: the ACL is what counts.
    if let (Ok(()), Some(acl)) = (rest, &wanted.acl) {
        rest = acl.set(vfs, &cred, inode);
        if rest.is_err() {
            done = wanted.mask.clone();
            done.remove(attr::ACL);
        }
    }
    let settled = settle(vfs, &[inode]);
    match rest.and(settled) {
        Ok(()) => Ok(SetAttrRes { status: NfsStat::Ok, attrset: wanted.mask }),
        // [RFC8881 18.30.4] What was set is told also where the rest was not.
        Err(status) if !done.is_empty() => Ok(SetAttrRes { status, attrset: done }),
        Err(status) => Err(Stop::Fail(status)),
    }
}

/// The mode of a new object whose maker does not name one.
pub fn default_mode(kind: FileType) -> u32 {
    if kind == FileType::Directory { 0o755 } else { 0o644 }
}
