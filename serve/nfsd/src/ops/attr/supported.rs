//! Which attributes are supported.

use std::sync::OnceLock;

use ivers_nfs4::attr;
use ivers_nfs4::types::Bitmap;
use ivers_vfs::FileType;

use crate::compound::CurrentFh;

/// Attributes that SETATTR accepts in every version.
pub(super) const SETTABLE: [u32; 7] = [
    attr::SIZE,
    attr::ACL,
    attr::MODE,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::TIME_ACCESS_SET,
    attr::TIME_MODIFY_SET,
];

/// Attributes that OPEN with EXCLUSIVE4_1 also accepts.
pub(super) const EXCLUSIVE: [u32; 4] = [attr::SIZE, attr::MODE, attr::OWNER, attr::OWNER_GROUP];

/// REQUIRED and RECOMMENDED attributes that every object has.
pub(super) const EVERYWHERE: [u32; 44] = [
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
