//! Attributes: which are supported, their values, and setting them.

pub mod acl_from_posix;
pub mod acl_to_posix;
pub mod get;
pub mod set;

use std::sync::OnceLock;

use ivers_nfs4::attr::{self, Attrs, Fattr, is_write_only};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, NfsTime};
use ivers_vfs::{FileType, Timestamp};

use crate::compound::{Context, CurrentFh};
use crate::state::Step;

pub use set::{NewAttrs, set_attr};

/// Attributes that the holder of a write delegation may have changed.
const DELEGATED: [u32; 5] =
    [attr::CHANGE, attr::SIZE, attr::TIME_MODIFY, attr::TIME_METADATA, attr::SPACE_USED];

/// Attributes that SETATTR accepts in every version.
const SETTABLE: [u32; 7] = [
    attr::SIZE,
    attr::ACL,
    attr::MODE,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::TIME_ACCESS_SET,
    attr::TIME_MODIFY_SET,
];

/// Attributes that OPEN with EXCLUSIVE4_1 also accepts.
const EXCLUSIVE: [u32; 4] = [attr::SIZE, attr::MODE, attr::OWNER, attr::OWNER_GROUP];

/// REQUIRED and RECOMMENDED attributes that every object has.
const EVERYWHERE: [u32; 44] = [
    attr::SUPPORTED_ATTRS,
    attr::TYPE,
    attr::FH_EXPIRE_TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::LINK_SUPPORT,
    attr::SYMLINK_SUPPORT,
    attr::NAMED_ATTR,
    attr::FSID,
    attr::UNIQUE_HANDLES,
    attr::LEASE_TIME,
    attr::RDATTR_ERROR,
    attr::CANSETTIME,
    attr::CASE_INSENSITIVE,
    attr::CASE_PRESERVING,
    attr::CHOWN_RESTRICTED,
    attr::FILEHANDLE,
    attr::FILEID,
    attr::FILES_AVAIL,
    attr::FILES_FREE,
    attr::FILES_TOTAL,
    attr::HOMOGENEOUS,
    attr::MAXFILESIZE,
    attr::MAXLINK,
    attr::MAXNAME,
    attr::MAXREAD,
    attr::MAXWRITE,
    attr::MODE,
    attr::NO_TRUNC,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_AVAIL,
    attr::SPACE_FREE,
    attr::SPACE_TOTAL,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_ACCESS_SET,
    attr::TIME_DELTA,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
    attr::TIME_MODIFY_SET,
    attr::MOUNTED_ON_FILEID,
];

/// The SUPPORTED_ATTRS of an object.
pub fn supported(minor: u32, fh: &CurrentFh) -> &'static Bitmap {
    // Objects differ in ACLs and birth times only.
    static ALL: [[OnceLock<Bitmap>; 4]; 3] = [const { [const { OnceLock::new() }; 4] }; 3];
    let (acls, birth) = match fh {
        CurrentFh::Pseudo(_) => (false, false),
        CurrentFh::Object(object) => (
            object.vfs().xattr_value_max() > 0 && object.inode.kind != FileType::Symlink,
            object.inode.with_attr(|attr| attr.btime.is_some()),
        ),
    };
    let minor = minor.min(2);
    let kind = usize::from(acls) | usize::from(birth) << 1;
    ALL[minor as usize][kind].get_or_init(|| {
        let later = [
            attr::SPACE_FREED,
            attr::CHANGE_ATTR_TYPE,
            attr::MODE_UMASK,
            attr::XATTR_SUPPORT,
            attr::OPEN_ARGUMENTS,
        ];
        let more = [
            (minor >= 1, &[attr::SUPPATTR_EXCLCREAT, attr::FS_CHARSET_CAP, attr::MODE_SET_MASKED][..]),
            (minor >= 2, &later),
            (acls, &[attr::ACL, attr::ACLSUPPORT]),
            (birth, &[attr::TIME_CREATE]),
        ];
        let more = more.into_iter().filter(|(there, _)| *there).flat_map(|(_, bits)| bits);
        Bitmap::of(EVERYWHERE.iter().chain(more).copied())
    })
}

fn time(time: Timestamp) -> NfsTime {
    NfsTime { seconds: time.sec, nseconds: time.nsec }
}

/// GETATTR.
pub fn get_attr(context: &mut Context, want: &Bitmap) -> Step<Fattr> {
    // [RFC8881 18.7.3]
    if want.iter().any(is_write_only) {
        return Err(NfsStat::Inval.into());
    }
    let fh = context.current_fh()?.clone();
    Ok(gather_current(context, &fh, want)?.encode())
}

/// The current values of the supported attributes in `want`. The holder of a write delegation is asked first.
pub fn gather_current(context: &mut Context, fh: &CurrentFh, want: &Bitmap) -> Step<Attrs> {
    let (mut reported, mut _guard) = (None, None);
    if let CurrentFh::Object(object) = fh {
        object.read_cred()?;
        if DELEGATED.iter().any(|&bit| want.contains(bit)) {
            (reported, _guard) = context.begin_getattr(object)?;
        }
    }
    let want = want.and(supported(context.minor, fh));
    Ok(get::gather(context, fh, &want, reported)?)
}

/// Whether the attributes have the given values, for VERIFY and NVERIFY.
fn compare(context: &mut Context, given: &Fattr) -> Step<bool> {
    let fh = context.current_fh()?.clone();
    let supported = supported(context.minor, &fh);
    // [RFC8881 18.31.3] [RFC8881 18.15.3]
    if given.mask.iter().any(|bit| is_write_only(bit) || bit == attr::RDATTR_ERROR) {
        return Err(NfsStat::Inval.into());
    }
    if given.mask.iter().any(|bit| !supported.contains(bit)) {
        return Err(NfsStat::Attrnotsupp.into());
    }
    Attrs::decode(given).map_err(NfsStat::from)?;
    Ok(gather_current(context, &fh, &given.mask)?.encode() == *given)
}

/// VERIFY.
pub fn verify(context: &mut Context, given: &Fattr) -> Step<()> {
    if compare(context, given)? { Ok(()) } else { Err(NfsStat::NotSame.into()) }
}

/// NVERIFY.
pub fn nverify(context: &mut Context, given: &Fattr) -> Step<()> {
    if compare(context, given)? { Err(NfsStat::Same.into()) } else { Ok(()) }
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
