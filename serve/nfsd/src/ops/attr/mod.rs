//! Attributes: which there are, what they say, what may be set.

pub mod acl;
pub mod acl_given;
pub mod get;
pub mod set;

use std::sync::OnceLock;

use ivers_nfs4::attr::{self, Attrs, Fattr, is_write_only};
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, NfsTime};
use ivers_vfs::{FileType, Timestamp};

use crate::compound::{Context, Place};
use crate::state::Step;

pub use set::{Wanted, set_attr};

/// What a file says of itself when somebody else may have written it: asked of him.
const DELEGATED: [u32; 5] =
    [attr::CHANGE, attr::SIZE, attr::TIME_MODIFY, attr::TIME_METADATA, attr::SPACE_USED];

/// What may be set where the file is already, in every version.
const SETTABLE: [u32; 7] = [
    attr::SIZE,
    attr::ACL,
    attr::MODE,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::TIME_ACCESS_SET,
    attr::TIME_MODIFY_SET,
];

/// What an OPEN that makes a file exclusively may set beside (EXCLUSIVE4_1).
const EXCLUSIVE: [u32; 4] = [attr::SIZE, attr::MODE, attr::OWNER, attr::OWNER_GROUP];

/// REQUIRED and RECOMMENDED attributes that every object answers.
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

/// What SUPPORTED_ATTRS says of a place.
pub fn supported(minor: u32, place: &Place) -> &'static Bitmap {
    // Whether there are ACLs and births: all that differs from object to object.
    static ALL: [[OnceLock<Bitmap>; 4]; 3] = [const { [const { OnceLock::new() }; 4] }; 3];
    let (acls, birth) = match place {
        Place::Pseudo(_) => (false, false),
        Place::Object(object) => (
            object.vfs().info().xattr_value_max > 0 && object.inode.kind != FileType::Symlink,
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
    let place = context.current()?.clone();
    Ok(of_place(context, &place, want)?.encode())
}

/// Those of the wanted attributes that there are. Behind a write delegation its holder is asked.
pub fn of_place(context: &mut Context, place: &Place, want: &Bitmap) -> Step<Attrs> {
    let (mut shown, mut _leave) = (None, None);
    if let Place::Object(object) = place {
        object.reader()?;
        if DELEGATED.iter().any(|&bit| want.contains(bit)) {
            (shown, _leave) = context.look(object)?;
        }
    }
    let want = want.and(supported(context.minor, place));
    Ok(get::gather(context, place, &want, shown)?)
}

/// VERIFY and NVERIFY: whether the attributes are these.
fn compare(context: &mut Context, given: &Fattr) -> Step<bool> {
    let place = context.current()?.clone();
    let supported = supported(context.minor, &place);
    // [RFC8881 18.31.3] [RFC8881 18.15.3]
    if given.mask.iter().any(|bit| is_write_only(bit) || bit == attr::RDATTR_ERROR) {
        return Err(NfsStat::Inval.into());
    }
    if given.mask.iter().any(|bit| !supported.contains(bit)) {
        return Err(NfsStat::Attrnotsupp.into());
    }
    Attrs::decode(given).map_err(NfsStat::from)?;
    Ok(of_place(context, &place, &given.mask)?.encode() == *given)
}

/// VERIFY.
pub fn verify(context: &mut Context, given: &Fattr) -> Step<()> {
    if compare(context, given)? { Ok(()) } else { Err(NfsStat::NotSame.into()) }
}

/// NVERIFY.
pub fn nverify(context: &mut Context, given: &Fattr) -> Step<()> {
    if compare(context, given)? { Err(NfsStat::Same.into()) } else { Ok(()) }
}

/// The attributes that are given for an object that is there, or with one of a kind that is `made` in it.
pub fn wanted(context: &Context, place: &Place, given: &Fattr, made: Option<FileType>) -> Res<Wanted> {
    let kind = made.unwrap_or(match place {
        Place::Pseudo(_) => FileType::Directory,
        Place::Object(object) => object.inode.kind,
    });
    Wanted::of(context, supported(context.minor, place), given, kind, made.is_some())
}
