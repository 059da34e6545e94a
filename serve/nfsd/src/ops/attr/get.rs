//! Values of attributes.

use ivers_nfs4::attr::{self, Attrs, ChangeAttrType};
use ivers_nfs4::ops::v40::share;
use ivers_nfs4::status::Res;
use ivers_nfs4::types::{Bitmap, Ftype, NfsTime, OpenArguments, SpecData};
use ivers_vfs::{Attr, FileType, Timestamp};

use super::acl_from_posix;
use super::supported::{EXCLUSIVE, supported};
use crate::compound::status::OrStatus;
use crate::compound::{Context, CurrentFh, IdMap, Object, ReportedAttrs};
use crate::exports::table::PSEUDO_FSID;

/// Bits of `aclsupport`: allow and deny entries.
const ACL_SUPPORT: u32 = 3;
/// Names are UTF-8 (`FSCHARSET_CAP4_ALLOWS_ONLY_UTF8`).
const ONLY_UTF8: u32 = 2;
/// The length limit of names in the pseudo-root, in bytes.
pub const PSEUDO_NAME_MAX: u32 = 255;

/// The `nfs_ftype4` of a file type.
pub fn ftype(kind: FileType) -> Ftype {
    match kind {
        FileType::Regular => Ftype::Reg,
        FileType::Directory => Ftype::Dir,
        FileType::Symlink => Ftype::Lnk,
        FileType::CharDevice => Ftype::Chr,
        FileType::BlockDevice => Ftype::Blk,
        FileType::Fifo => Ftype::Fifo,
        FileType::Socket => Ftype::Sock,
    }
}

fn time(time: Timestamp) -> NfsTime {
    NfsTime { seconds: time.sec, nseconds: time.nsec }
}

/// The values of the attributes in `want`, which are all supported.
pub fn gather(
    context: &Context,
    fh: &CurrentFh,
    want: &Bitmap,
    reported: Option<ReportedAttrs>,
) -> Res<Attrs> {
    let mut attrs = Attrs::default();
    match fh {
        CurrentFh::Pseudo(number) => pseudo(context, *number, want, &mut attrs),
        CurrentFh::Object(object) => of_object(context, object, want, reported, &mut attrs)?,
    }
    let has = |bit: u32| want.contains(bit);
    let of = |bit: u32, answer: bool| has(bit).then_some(answer);
    let data_bytes = u64::from(context.service.limits.data_bytes_max);
    attrs.supported_attrs = has(attr::SUPPORTED_ATTRS).then(|| supported(context.minor, fh).clone());
    attrs.fh_expire_type = has(attr::FH_EXPIRE_TYPE).then_some(0);
    attrs.link_support = of(attr::LINK_SUPPORT, true);
    attrs.symlink_support = of(attr::SYMLINK_SUPPORT, true);
    attrs.named_attr = of(attr::NAMED_ATTR, false);
    attrs.unique_handles = of(attr::UNIQUE_HANDLES, true);
    attrs.lease_time = has(attr::LEASE_TIME).then_some(context.service.lease_seconds);
    attrs.rdattr_error = has(attr::RDATTR_ERROR).then_some(0);
    attrs.cansettime = of(attr::CANSETTIME, true);
    attrs.case_insensitive = attrs.case_insensitive.or(of(attr::CASE_INSENSITIVE, false));
    attrs.case_preserving = of(attr::CASE_PRESERVING, true);
    attrs.chown_restricted = of(attr::CHOWN_RESTRICTED, true);
    attrs.filehandle = has(attr::FILEHANDLE).then(|| context.service.handles.encode(fh.target()));
    attrs.homogeneous = of(attr::HOMOGENEOUS, true);
    attrs.maxread = has(attr::MAXREAD).then_some(data_bytes);
    attrs.maxwrite = has(attr::MAXWRITE).then_some(data_bytes);
    attrs.no_trunc = of(attr::NO_TRUNC, true);
    attrs.suppattr_exclcreat = has(attr::SUPPATTR_EXCLCREAT).then(|| Bitmap::of(EXCLUSIVE));
    attrs.fs_charset_cap = has(attr::FS_CHARSET_CAP).then_some(ONLY_UTF8);
    attrs.open_arguments = has(attr::OPEN_ARGUMENTS).then(open_arguments);
    Ok(attrs)
}

/// The supported arguments of OPEN (RFC 9754 section 3). Timestamps with a delegation, and a delegation
/// instead of an open, are not supported: a client that requests them gets neither.
fn open_arguments() -> OpenArguments {
    const ANY_DELEG: u32 = 3;
    const NO_DELEG: u32 = 4;
    const CANCEL: u32 = 5;
    OpenArguments {
        access: Bitmap::of([share::READ, share::WRITE, share::BOTH]),
        deny: Bitmap::of([0, share::READ, share::WRITE, share::BOTH]),
        want: Bitmap::of([ANY_DELEG, NO_DELEG, CANCEL]),
        // CLAIM_NULL, CLAIM_PREVIOUS, CLAIM_DELEGATE_CUR, CLAIM_FH, CLAIM_DELEG_CUR_FH.
        claim: Bitmap::of([0, 1, 2, 4, 5]),
        // UNCHECKED4, GUARDED4, EXCLUSIVE4, EXCLUSIVE4_1.
        create: Bitmap::of(0..4),
    }
}

/// Attributes of a directory of the pseudo-root. It changes only with the table of exports.
fn pseudo(context: &Context, number: u64, want: &Bitmap, attrs: &mut Attrs) {
    let has = |bit: u32| want.contains(bit);
    let none = |bit: u32| has(bit).then_some(0u64);
    let never = |bit: u32| has(bit).then_some(NfsTime { seconds: 0, nseconds: 0 });
    attrs.kind = has(attr::TYPE).then_some(Ftype::Dir);
    attrs.change = has(attr::CHANGE).then(|| context.exports.change());
    attrs.size = none(attr::SIZE);
    attrs.fsid = has(attr::FSID).then_some(PSEUDO_FSID);
    attrs.fileid = has(attr::FILEID).then_some(number);
    attrs.mounted_on_fileid = has(attr::MOUNTED_ON_FILEID).then_some(number);
    attrs.files_avail = none(attr::FILES_AVAIL);
    attrs.files_free = none(attr::FILES_FREE);
    attrs.files_total = none(attr::FILES_TOTAL);
    attrs.maxfilesize = none(attr::MAXFILESIZE);
    attrs.maxlink = has(attr::MAXLINK).then_some(1);
    attrs.maxname = has(attr::MAXNAME).then_some(PSEUDO_NAME_MAX);
    attrs.mode = has(attr::MODE).then_some(0o555);
    attrs.numlinks = has(attr::NUMLINKS).then_some(2);
    attrs.owner = has(attr::OWNER).then(|| context.id_map().user(0));
    attrs.owner_group = has(attr::OWNER_GROUP).then(|| context.id_map().group(0));
    attrs.rawdev = has(attr::RAWDEV).then_some(SpecData { major: 0, minor: 0 });
    attrs.space_avail = none(attr::SPACE_AVAIL);
    attrs.space_free = none(attr::SPACE_FREE);
    attrs.space_total = none(attr::SPACE_TOTAL);
    attrs.space_used = none(attr::SPACE_USED);
    attrs.space_freed = none(attr::SPACE_FREED);
    attrs.time_access = never(attr::TIME_ACCESS);
    attrs.time_metadata = never(attr::TIME_METADATA);
    attrs.time_modify = never(attr::TIME_MODIFY);
    attrs.time_delta = has(attr::TIME_DELTA).then_some(NfsTime { seconds: 1, nseconds: 0 });
    // The value is a digest of the exports: it differs for other exports, and has no order.
    attrs.change_attr_type = has(attr::CHANGE_ATTR_TYPE).then_some(ChangeAttrType::Undefined as u32);
    attrs.xattr_support = has(attr::XATTR_SUPPORT).then_some(false);
}

fn of_object(
    context: &Context,
    object: &Object,
    want: &Bitmap,
    reported: Option<ReportedAttrs>,
    attrs: &mut Attrs,
) -> Res<()> {
    let has = |bit: u32| want.contains(bit);
    let (vfs, inode) = (object.vfs(), &object.inode);
    let info = vfs.info();
    // Query the change attribute only if the client wants it, and before the other attributes: otherwise an
    // old size could be sent with a new change attribute.
    let (change, stat) = match reported {
        None if has(attr::CHANGE) => vfs.observe(inode),
        reported => (reported.map(|reported| reported.change), vfs.stat(inode)),
    };
    attrs.change = has(attr::CHANGE).then(|| change.unwrap_or_else(|| context.service.unique_change()));
    of_stat(context, &stat, want, attrs);
    if let (Some(size), Some(reported)) = (&mut attrs.size, reported) {
        *size = reported.size;
    }
    let fileid = inode.ino.0;
    let mounted_on = if object.is_root() { object.export.mounted_on } else { fileid };
    attrs.fsid = has(attr::FSID).then(|| object.export.fsid());
    attrs.fileid = has(attr::FILEID).then_some(fileid);
    attrs.mounted_on_fileid = has(attr::MOUNTED_ON_FILEID).then_some(mounted_on);
    attrs.maxfilesize = has(attr::MAXFILESIZE).then_some(info.max_file_size);
    attrs.maxlink = has(attr::MAXLINK).then_some(info.max_links);
    attrs.maxname = has(attr::MAXNAME).then_some(info.name_max);
    attrs.case_insensitive = has(attr::CASE_INSENSITIVE).then_some(info.names_alias);
    let granularity = info.time_granularity_ns.max(1);
    attrs.time_delta = has(attr::TIME_DELTA).then_some(NfsTime {
        seconds: i64::from(granularity / 1_000_000_000),
        nseconds: granularity % 1_000_000_000,
    });
    attrs.change_attr_type = has(attr::CHANGE_ATTR_TYPE).then(|| {
        // Not VERSION_COUNTER: changes without a query between them share one value.
        let monotonic = vfs.no_change_attribute().is_none() && info.semantics.monotonic;
        (if monotonic { ChangeAttrType::MonotonicIncr } else { ChangeAttrType::Undefined }) as u32
    });
    let takes_xattrs = matches!(inode.kind, FileType::Regular | FileType::Directory);
    attrs.xattr_support = has(attr::XATTR_SUPPORT).then_some(vfs.xattr_value_max() > 0 && takes_xattrs);
    attrs.aclsupport = has(attr::ACLSUPPORT).then_some(ACL_SUPPORT);
    if has(attr::ACL) {
        attrs.acl = Some(acl_from_posix::nfs4_acl(context, object, &stat)?);
    }
    of_filesystem(object, want, attrs)
}

fn of_stat(context: &Context, stat: &Attr, want: &Bitmap, attrs: &mut Attrs) {
    let has = |bit: u32| want.contains(bit);
    let used = stat.blocks_512.saturating_mul(512);
    let rdev =
        SpecData { major: stat.rdev >> 8 & 0xfff, minor: stat.rdev & 0xff | stat.rdev >> 12 & 0xfff00 };
    attrs.kind = has(attr::TYPE).then(|| ftype(stat.kind));
    attrs.size = has(attr::SIZE).then_some(stat.size);
    attrs.mode = has(attr::MODE).then_some(stat.perm & 0o7777);
    attrs.numlinks = has(attr::NUMLINKS).then_some(stat.nlink);
    attrs.owner = has(attr::OWNER).then(|| context.id_map().user(stat.uid));
    attrs.owner_group = has(attr::OWNER_GROUP).then(|| context.id_map().group(stat.gid));
    attrs.rawdev = has(attr::RAWDEV).then_some(rdev);
    attrs.space_used = has(attr::SPACE_USED).then_some(used);
    attrs.space_freed = has(attr::SPACE_FREED).then_some(if stat.nlink <= 1 { used } else { 0 });
    attrs.time_access = has(attr::TIME_ACCESS).then(|| time(stat.atime));
    attrs.time_metadata = has(attr::TIME_METADATA).then(|| time(stat.ctime));
    attrs.time_modify = has(attr::TIME_MODIFY).then(|| time(stat.mtime));
    attrs.time_create = stat.btime.filter(|_| has(attr::TIME_CREATE)).map(time);
}

fn of_filesystem(object: &Object, want: &Bitmap, attrs: &mut Attrs) -> Res<()> {
    const FIGURES: [u32; 6] = [
        attr::FILES_AVAIL,
        attr::FILES_FREE,
        attr::FILES_TOTAL,
        attr::SPACE_AVAIL,
        attr::SPACE_FREE,
        attr::SPACE_TOTAL,
    ];
    let has = |bit: u32| want.contains(bit);
    if !FIGURES.into_iter().any(has) {
        return Ok(());
    }
    let figures = object.vfs().stat_fs().nfs()?;
    let bytes = |blocks: u64| blocks.saturating_mul(u64::from(figures.block_size));
    attrs.files_avail = has(attr::FILES_AVAIL).then_some(figures.files_free);
    attrs.files_free = has(attr::FILES_FREE).then_some(figures.files_free);
    attrs.files_total = has(attr::FILES_TOTAL).then_some(figures.files);
    attrs.space_avail = has(attr::SPACE_AVAIL).then(|| bytes(figures.blocks_available));
    attrs.space_free = has(attr::SPACE_FREE).then(|| bytes(figures.blocks_free));
    attrs.space_total = has(attr::SPACE_TOTAL).then(|| bytes(figures.blocks));
    Ok(())
}
