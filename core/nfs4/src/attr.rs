//! `fattr4`: some attributes of a file, by number.
//!
//! On the wire they are a bitmap and the values of its bits in ascending order, as one string of bytes. A value has no length of
//! its own: whoever meets a bit that he does not know cannot find those behind it.

use crate::status::NfsStat;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, List, Xdr, XdrError};
use thiserror::Error;

/// Some attributes as they travel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fattr {
    /// Which.
    pub mask: Bitmap,
    /// Their values, one behind the other.
    pub values: Vec<u8>,
}

impl Xdr for Fattr {
    fn put(&self, to: &mut Encoder) {
        self.mask.put(to);
        self.values.put(to);
    }

    fn take(from: &mut Decoder<'_>) -> crate::xdr::Result<Self> {
        Ok(Self { mask: Xdr::take(from)?, values: Xdr::take(from)? })
    }
}

/// Why attributes cannot be taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AttrError {
    /// A bit that stands for nothing that we know.
    #[error("attribute {0} is not known")]
    Unknown(u32),
    /// The values are not those of the bits.
    #[error(transparent)]
    Xdr(#[from] XdrError),
}

impl From<AttrError> for NfsStat {
    fn from(error: AttrError) -> Self {
        match error {
            AttrError::Unknown(_) => Self::Attrnotsupp,
            AttrError::Xdr(_) => Self::Badxdr,
        }
    }
}

macro_rules! attributes {
    ($($(#[$about:meta])* $number:literal $constant:ident $field:ident: $type:ty,)*) => {
        $($(#[$about])* pub const $constant: u32 = $number;)*

        /// Some attributes taken apart.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Attrs { $($(#[$about])* pub $field: Option<$type>,)* }

        impl Attrs {
            /// Every attribute that this knows.
            pub fn known() -> Bitmap {
                Bitmap::of([$($number),*])
            }

            /// Which of them are there.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::default();
                $(if self.$field.is_some() { mask.insert($number); })*
                mask
            }

            /// Put together.
            pub fn encode(&self) -> Fattr {
                let mut values = Encoder::default();
                $(if let Some(value) = &self.$field { value.put(&mut values); })*
                Fattr { mask: self.mask(), values: values.into_bytes() }
            }

            /// Take apart.
            pub fn decode(fattr: &Fattr) -> Result<Self, AttrError> {
                if let Some(unknown) = fattr.mask.iter().find(|&bit| !Self::known().contains(bit)) {
                    return Err(AttrError::Unknown(unknown));
                }
                let mut attrs = Self::default();
                let mut values = Decoder::new(&fattr.values);
                $(if fattr.mask.contains($number) { attrs.$field = Some(Xdr::take(&mut values)?); })*
                values.finish()?;
                Ok(attrs)
            }
        }
    };
}

// In ascending order: it is the order on the wire. RFC 7531 up to 55, RFC 5662 up to 76, RFC 7863 up to 80, RFC 8275: 81, RFC 8276: 82, RFC 9754: 83 to 86.
attributes! {
    /// What this filesystem answers.
    0 SUPPORTED_ATTRS supported_attrs: Bitmap,
    /// The type.
    1 TYPE kind: Ftype,
    /// How long handles hold.
    2 FH_EXPIRE_TYPE fh_expire_type: u32,
    /// The change attribute.
    3 CHANGE change: u64,
    /// Bytes.
    4 SIZE size: u64,
    /// Whether there are hard links.
    5 LINK_SUPPORT link_support: bool,
    /// Whether there are symbolic links.
    6 SYMLINK_SUPPORT symlink_support: bool,
    /// Whether the file has named attributes.
    7 NAMED_ATTR named_attr: bool,
    /// Which filesystem.
    8 FSID fsid: Fsid,
    /// Whether one file has one handle.
    9 UNIQUE_HANDLES unique_handles: bool,
    /// Seconds.
    10 LEASE_TIME lease_time: u32,
    /// READDIR: why there are no other attributes.
    11 RDATTR_ERROR rdattr_error: u32,
    /// Access control.
    12 ACL acl: List<Ace>,
    /// Which kinds of entries an ACL may have.
    13 ACLSUPPORT aclsupport: u32,
    /// To be archived.
    14 ARCHIVE archive: bool,
    /// Whether times can be set.
    15 CANSETTIME cansettime: bool,
    /// Whether `A` is `a`.
    16 CASE_INSENSITIVE case_insensitive: bool,
    /// Whether `A` stays `A`.
    17 CASE_PRESERVING case_preserving: bool,
    /// Whether owners cannot give files away.
    18 CHOWN_RESTRICTED chown_restricted: bool,
    /// READDIR: the handle.
    19 FILEHANDLE filehandle: FileHandle,
    /// The inode number.
    20 FILEID fileid: u64,
    /// Inodes for this user.
    21 FILES_AVAIL files_avail: u64,
    /// Inodes for anybody.
    22 FILES_FREE files_free: u64,
    /// All inodes.
    23 FILES_TOTAL files_total: u64,
    /// Not shown.
    25 HIDDEN hidden: bool,
    /// Whether all files of the filesystem have the same attributes.
    26 HOMOGENEOUS homogeneous: bool,
    /// Bytes of the largest file.
    27 MAXFILESIZE maxfilesize: u64,
    /// The most links of a file.
    28 MAXLINK maxlink: u32,
    /// Bytes of the longest name.
    29 MAXNAME maxname: u32,
    /// Bytes of the largest READ.
    30 MAXREAD maxread: u64,
    /// Bytes of the largest WRITE.
    31 MAXWRITE maxwrite: u64,
    /// What is in it.
    32 MIMETYPE mimetype: Utf8,
    /// Permission bits.
    33 MODE mode: u32,
    /// Whether names that are too long are refused.
    34 NO_TRUNC no_trunc: bool,
    /// Links.
    35 NUMLINKS numlinks: u32,
    /// The user.
    36 OWNER owner: Utf8,
    /// The group.
    37 OWNER_GROUP owner_group: Utf8,
    /// Quota: what may never be exceeded.
    38 QUOTA_AVAIL_HARD quota_avail_hard: u64,
    /// Quota: what may be exceeded for a while.
    39 QUOTA_AVAIL_SOFT quota_avail_soft: u64,
    /// Quota: what is used.
    40 QUOTA_USED quota_used: u64,
    /// Of a device: its number.
    41 RAWDEV rawdev: SpecData,
    /// Bytes for this user.
    42 SPACE_AVAIL space_avail: u64,
    /// Bytes for anybody.
    43 SPACE_FREE space_free: u64,
    /// All bytes.
    44 SPACE_TOTAL space_total: u64,
    /// Bytes of this file on the device.
    45 SPACE_USED space_used: u64,
    /// A system file.
    46 SYSTEM system: bool,
    /// Last read.
    47 TIME_ACCESS time_access: NfsTime,
    /// To be set.
    48 TIME_ACCESS_SET time_access_set: SetTime,
    /// Last archived.
    49 TIME_BACKUP time_backup: NfsTime,
    /// Made.
    50 TIME_CREATE time_create: NfsTime,
    /// The granularity of times.
    51 TIME_DELTA time_delta: NfsTime,
    /// Metadata changed.
    52 TIME_METADATA time_metadata: NfsTime,
    /// Data changed.
    53 TIME_MODIFY time_modify: NfsTime,
    /// To be set.
    54 TIME_MODIFY_SET time_modify_set: SetTime,
    /// The inode number of what another filesystem is mounted on.
    55 MOUNTED_ON_FILEID mounted_on_fileid: u64,
    /// Some bits of the mode, to be set.
    74 MODE_SET_MASKED mode_set_masked: ModeMasked,
    /// What EXCLUSIVE4_1 can set.
    75 SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap,
    /// What names are made of.
    76 FS_CHARSET_CAP fs_charset_cap: u32,
    /// CLONE: what ranges must be multiples of.
    77 CLONE_BLKSIZE clone_blksize: u32,
    /// What would be free if this file went.
    78 SPACE_FREED space_freed: u64,
    /// What the change attribute promises ([`ChangeAttrType`]).
    79 CHANGE_ATTR_TYPE change_attr_type: u32,
    /// The mode as the program asked, and its umask.
    81 MODE_UMASK mode_umask: ModeUmask,
    /// Whether there are extended attributes.
    82 XATTR_SUPPORT xattr_support: bool,
    /// Whether the data is elsewhere, on a tape say.
    83 OFFLINE offline: bool,
    /// Set by the holder of a delegation: last read.
    84 TIME_DELEG_ACCESS time_deleg_access: NfsTime,
    /// Set by the holder of a delegation: data changed.
    85 TIME_DELEG_MODIFY time_deleg_modify: NfsTime,
    /// What OPEN takes.
    86 OPEN_ARGUMENTS open_arguments: OpenArguments,
}

/// Can be set and not asked for.
const WRITE_ONLY: [u32; 6] =
    [TIME_ACCESS_SET, TIME_MODIFY_SET, MODE_SET_MASKED, MODE_UMASK, TIME_DELEG_ACCESS, TIME_DELEG_MODIFY];

/// Can be set and asked for.
const SETTABLE: [u32; 11] =
    [SIZE, ACL, ARCHIVE, HIDDEN, MIMETYPE, MODE, OWNER, OWNER_GROUP, SYSTEM, TIME_BACKUP, TIME_CREATE];

/// Whether an attribute cannot be asked for: GETATTR and READDIR answer NFS4ERR_INVAL.
pub fn is_write_only(attribute: u32) -> bool {
    WRITE_ONLY.contains(&attribute)
}

/// Whether an attribute cannot be set: SETATTR, OPEN and CREATE answer NFS4ERR_INVAL.
pub fn is_read_only(attribute: u32) -> bool {
    !WRITE_ONLY.contains(&attribute) && !SETTABLE.contains(&attribute)
}

/// The minor version that brought an attribute; it is not known to earlier ones.
pub fn since(attribute: u32) -> u32 {
    match attribute {
        ..=55 => 0,
        56..=76 => 1,
        _ => 2,
    }
}

/// `change_attr_type4` (RFC 7862 section 12.2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ChangeAttrType {
    /// It never goes back, and no more.
    MonotonicIncr = 0,
    /// It grows by one with each operation.
    VersionCounter = 1,
    /// It does, but not under pNFS.
    VersionCounterNoPnfs = 2,
    /// It is made of the time of the last change.
    TimeMetadata = 3,
    /// Who knows.
    Undefined = 4,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_go_in_the_order_of_their_numbers() {
        let attrs = Attrs { size: Some(5), change: Some(6), xattr_support: Some(true), ..Attrs::default() };
        let fattr = attrs.encode();
        assert_eq!(fattr.values, b"\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x05\0\0\0\x01");
        assert_eq!(fattr.mask, Bitmap::of([CHANGE, SIZE, XATTR_SUPPORT]));
        assert_eq!(Attrs::decode(&fattr), Ok(attrs));
        let numbers: Vec<u32> = Attrs::known().iter().collect();
        assert_eq!((numbers.len(), numbers.last()), (67, Some(&86)));
    }

    #[test]
    fn what_is_not_known_or_does_not_fit_is_refused() {
        let fattr = Fattr { mask: Bitmap::of([SIZE, 24]), values: vec![0; 8] };
        assert_eq!(Attrs::decode(&fattr), Err(AttrError::Unknown(24)));
        let fattr = Fattr { mask: Bitmap::of([SIZE]), values: vec![0; 12] };
        assert_eq!(Attrs::decode(&fattr), Err(AttrError::Xdr(XdrError::Leftover)));
        assert_eq!(NfsStat::from(AttrError::Unknown(24)), NfsStat::Attrnotsupp);
        assert!(is_write_only(MODE_UMASK) && !is_read_only(MODE_UMASK));
        assert!(is_read_only(CHANGE) && !is_write_only(CHANGE) && !is_read_only(SIZE));
        assert_eq!([since(FILEID), since(SUPPATTR_EXCLCREAT), since(CHANGE_ATTR_TYPE)], [0, 1, 2]);
    }
}
