//! File attributes by number: `fattr4` (RFC 7530 section 2.2.8).
//!
//! On the wire they are a bitmap, and a byte string with the values of its bits in ascending order. Values
//! have no length prefix, so a decoder that does not know an attribute cannot find the ones after it.

use crate::status::NfsStat;
use crate::types::*;
use crate::xdr::{Decoder, Encoder, List, Xdr, XdrError};
use thiserror::Error;

/// `fattr4` (RFC 7530 section 2.2.8): encoded attributes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fattr {
    /// The attributes that are present.
    pub mask: Bitmap,
    /// Their values in ascending order of number.
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

/// The reason why attributes cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AttrError {
    /// An unknown attribute.
    #[error("unknown attribute {0}")]
    Unknown(u32),
    /// The values do not match the bitmap.
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

        /// Decoded attributes (RFC 7530 section 5, RFC 8881 section 5).
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Attrs { $($(#[$about])* pub $field: Option<$type>,)* }

        impl Attrs {
            /// Returns all known attributes.
            pub fn known() -> &'static Bitmap {
                static KNOWN: Bitmap = Bitmap::EMPTY.with(&[$($number),*]);
                &KNOWN
            }

            /// Returns the attributes that are present.
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::default();
                $(if self.$field.is_some() { mask.insert($number); })*
                mask
            }

            /// Encodes the attributes.
            pub fn encode(&self) -> Fattr {
                let mut values = Encoder::default();
                $(if let Some(value) = &self.$field { value.put(&mut values); })*
                Fattr { mask: self.mask(), values: values.into_bytes() }
            }

            /// Decodes attributes.
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

// In ascending order, as on the wire. Sources: RFC 7531 up to 55, RFC 5662 up to 76, RFC 7863 up to 80, RFC
// 8275: 81, RFC 8276: 82, RFC 9754: 83 to 86.
attributes! {
    /// Supported attributes.
    0 SUPPORTED_ATTRS supported_attrs: Bitmap,
    /// File type.
    1 TYPE kind: Ftype,
    /// Whether and when filehandles expire.
    2 FH_EXPIRE_TYPE fh_expire_type: u32,
    /// The change attribute.
    3 CHANGE change: u64,
    /// Size in bytes.
    4 SIZE size: u64,
    /// Whether hard links are supported.
    5 LINK_SUPPORT link_support: bool,
    /// Whether symbolic links are supported.
    6 SYMLINK_SUPPORT symlink_support: bool,
    /// Whether the file has named attributes.
    7 NAMED_ATTR named_attr: bool,
    /// Filesystem ID.
    8 FSID fsid: Fsid,
    /// Whether distinct filehandles mean distinct files.
    9 UNIQUE_HANDLES unique_handles: bool,
    /// Lease time in seconds.
    10 LEASE_TIME lease_time: u32,
    /// READDIR: error that prevented other attributes.
    11 RDATTR_ERROR rdattr_error: u32,
    /// ACL.
    12 ACL acl: List<Ace>,
    /// Supported types of ACL entries.
    13 ACLSUPPORT aclsupport: u32,
    /// Whether the file was archived.
    14 ARCHIVE archive: bool,
    /// Whether times can be set.
    15 CANSETTIME cansettime: bool,
    /// Whether names are case-insensitive.
    16 CASE_INSENSITIVE case_insensitive: bool,
    /// Whether names preserve case.
    17 CASE_PRESERVING case_preserving: bool,
    /// Whether only root may change the owner.
    18 CHOWN_RESTRICTED chown_restricted: bool,
    /// Filehandle, for READDIR.
    19 FILEHANDLE filehandle: FileHandle,
    /// Inode number.
    20 FILEID fileid: u64,
    /// Free inodes for this user.
    21 FILES_AVAIL files_avail: u64,
    /// Free inodes.
    22 FILES_FREE files_free: u64,
    /// Total inodes.
    23 FILES_TOTAL files_total: u64,
    /// Hidden file.
    25 HIDDEN hidden: bool,
    /// Whether all files of the filesystem have the same attributes.
    26 HOMOGENEOUS homogeneous: bool,
    /// Maximum file size in bytes.
    27 MAXFILESIZE maxfilesize: u64,
    /// Maximum number of links.
    28 MAXLINK maxlink: u32,
    /// Maximum length of a name in bytes.
    29 MAXNAME maxname: u32,
    /// Maximum size of a READ in bytes.
    30 MAXREAD maxread: u64,
    /// Maximum size of a WRITE in bytes.
    31 MAXWRITE maxwrite: u64,
    /// MIME type.
    32 MIMETYPE mimetype: Utf8,
    /// Mode bits.
    33 MODE mode: u32,
    /// Whether names that are too long are refused instead of truncated.
    34 NO_TRUNC no_trunc: bool,
    /// Number of links.
    35 NUMLINKS numlinks: u32,
    /// Owner.
    36 OWNER owner: Utf8,
    /// Group.
    37 OWNER_GROUP owner_group: Utf8,
    /// Hard limit of the quota.
    38 QUOTA_AVAIL_HARD quota_avail_hard: u64,
    /// Soft limit of the quota.
    39 QUOTA_AVAIL_SOFT quota_avail_soft: u64,
    /// Used quota.
    40 QUOTA_USED quota_used: u64,
    /// Device number.
    41 RAWDEV rawdev: SpecData,
    /// Free bytes for this user.
    42 SPACE_AVAIL space_avail: u64,
    /// Free bytes.
    43 SPACE_FREE space_free: u64,
    /// Total bytes.
    44 SPACE_TOTAL space_total: u64,
    /// Allocated bytes of the file.
    45 SPACE_USED space_used: u64,
    /// A system file.
    46 SYSTEM system: bool,
    /// Access time.
    47 TIME_ACCESS time_access: NfsTime,
    /// New time, for SETATTR.
    48 TIME_ACCESS_SET time_access_set: SetTime,
    /// Backup time.
    49 TIME_BACKUP time_backup: NfsTime,
    /// Creation time.
    50 TIME_CREATE time_create: NfsTime,
    /// Granularity of times.
    51 TIME_DELTA time_delta: NfsTime,
    /// Time of the last metadata change.
    52 TIME_METADATA time_metadata: NfsTime,
    /// Time of the last data change.
    53 TIME_MODIFY time_modify: NfsTime,
    /// New time, for SETATTR.
    54 TIME_MODIFY_SET time_modify_set: SetTime,
    /// Inode number of the directory that the filesystem is mounted on.
    55 MOUNTED_ON_FILEID mounted_on_fileid: u64,
    /// Some bits of the mode, for SETATTR.
    74 MODE_SET_MASKED mode_set_masked: ModeMasked,
    /// Attributes that EXCLUSIVE4_1 can set.
    75 SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap,
    /// Character set capabilities.
    76 FS_CHARSET_CAP fs_charset_cap: u32,
    /// Block size for CLONE: ranges must be multiples of it.
    77 CLONE_BLKSIZE clone_blksize: u32,
    /// Bytes that removing the file would free.
    78 SPACE_FREED space_freed: u64,
    /// Type of change attribute ([`ChangeAttrType`]).
    79 CHANGE_ATTR_TYPE change_attr_type: u32,
    /// Mode and umask for a new file.
    81 MODE_UMASK mode_umask: ModeUmask,
    /// Whether extended attributes are supported.
    82 XATTR_SUPPORT xattr_support: bool,
    /// Whether the data is offline, for example on tape.
    83 OFFLINE offline: bool,
    /// Access time set by the holder of a delegation.
    84 TIME_DELEG_ACCESS time_deleg_access: NfsTime,
    /// Modification time set by the holder of a delegation.
    85 TIME_DELEG_MODIFY time_deleg_modify: NfsTime,
    /// Supported arguments of OPEN.
    86 OPEN_ARGUMENTS open_arguments: OpenArguments,
}

/// Attributes that can be set but not read.
const WRITE_ONLY: [u32; 6] =
    [TIME_ACCESS_SET, TIME_MODIFY_SET, MODE_SET_MASKED, MODE_UMASK, TIME_DELEG_ACCESS, TIME_DELEG_MODIFY];

/// Attributes that can be set and read.
const SETTABLE: [u32; 11] =
    [SIZE, ACL, ARCHIVE, HIDDEN, MIMETYPE, MODE, OWNER, OWNER_GROUP, SYSTEM, TIME_BACKUP, TIME_CREATE];

/// Returns whether an attribute cannot be read. GETATTR and READDIR answer NFS4ERR_INVAL.
pub fn is_write_only(attribute: u32) -> bool {
    WRITE_ONLY.contains(&attribute)
}

/// Returns whether an attribute cannot be set. SETATTR, OPEN and CREATE answer NFS4ERR_INVAL.
pub fn is_read_only(attribute: u32) -> bool {
    !WRITE_ONLY.contains(&attribute) && !SETTABLE.contains(&attribute)
}

/// Returns the minor version that introduced an attribute.
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
    /// The value never decreases.
    MonotonicIncr = 0,
    /// The value grows by one per change.
    VersionCounter = 1,
    /// The value grows by one per change, except under pNFS.
    VersionCounterNoPnfs = 2,
    /// The value is derived from the time of the last metadata change.
    TimeMetadata = 3,
    /// No guarantee.
    Undefined = 4,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_encoded_in_ascending_order() {
        let attrs = Attrs { size: Some(5), change: Some(6), xattr_support: Some(true), ..Attrs::default() };
        let fattr = attrs.encode();
        assert_eq!(fattr.values, b"\0\0\0\0\0\0\0\x06\0\0\0\0\0\0\0\x05\0\0\0\x01");
        assert_eq!(fattr.mask, Bitmap::of([CHANGE, SIZE, XATTR_SUPPORT]));
        assert_eq!(Attrs::decode(&fattr), Ok(attrs));
        let numbers: Vec<u32> = Attrs::known().iter().collect();
        assert_eq!((numbers.len(), numbers.last()), (67, Some(&86)));
    }

    #[test]
    fn unknown_attributes_and_wrong_values_are_refused() {
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
