//! Opening an image: what is refused, and what is only read.

use crate::alloc::{Allocator, GROUPS_MAX, order_error};
use crate::head::read_super;
use crate::layout::superblock::{ROOT, Superblock, flags};
use crate::volume::{Ufs, Writer};
use ivers_block::{BufferCache, Device};
use ivers_vfs::sync::atomic::AtomicU64;
use ivers_vfs::{DriverOptions, Error, FileType, NameError, NameIndexes, Result};
use ivers_write_ordering::{Ordered, OrderedOptions};
use std::sync::Arc;

/// Flags of filesystems that this driver writes.
const WRITABLE_FLAGS: u32 = flags::FS_UNCLEAN
    | flags::FS_DOSOFTDEP
    | flags::FS_SUJ
    | flags::FS_ACLS
    | flags::FS_MULTILABEL
    | flags::FS_GJOURNAL
    | flags::FS_FLAGS_UPDATED
    | flags::FS_METACKHASH
    | flags::FS_TRIM;

/// Options of [`Ufs::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options of all drivers.
    pub common: DriverOptions,
}

/// Returns why a filesystem can only be read, if so.
pub(crate) fn read_only_reason(sb: &Superblock) -> Option<String> {
    let unknown = sb.flags & !WRITABLE_FLAGS & !flags::FS_NEEDSFSCK;
    if sb.flags & flags::FS_NEEDSFSCK != 0 {
        return Some("marked as damaged (FS_NEEDSFSCK); run fsck_ffs of FreeBSD".into());
    }
    if unknown & flags::FS_NFS4ACLS != 0 {
        return Some(
            "writing with access control lists of NFSv4, or a log of NetBSD, is not supported".into(),
        );
    }
    if unknown != 0 {
        return Some(format!("unknown flags {unknown:#x} in fs_flags"));
    }
    if sb.flags & flags::FS_METACKHASH != 0 && !sb.has_check_hashes() {
        return Some("the flag 0x200 without check hashes: quotas of NetBSD are not supported".into());
    }
    if !sb.clean && sb.flags & (flags::FS_SUJ | flags::FS_GJOURNAL) != 0 {
        return Some(
            "not unmounted cleanly, with a journal; run fsck_ffs of FreeBSD, which replays it".into(),
        );
    }
    if sb.is_old {
        return Some(
            "UFS1 of a system before 4.4BSD, of SunOS, Solaris, HP-UX or NeXTSTEP, is only read".into(),
        );
    }
    if !sb.new_flags {
        return Some("UFS1 without FS_FLAGS_UPDATED, as 4.4BSD made it, is only read".into());
    }
    if !sb.snapshots.is_empty() {
        return Some(format!("{} snapshots: their blocks would have to be copied", sb.snapshots.len()));
    }
    if sb.groups > GROUPS_MAX {
        return Some(format!("{} cylinder groups: more than 2^20 are only read", sb.groups));
    }
    let fits = |group: u32| sb.structure(group, 3) <= sb.group_base(group) + sb.group_frags(group);
    if let Some(group) = (0..sb.groups).find(|&group| !fits(group)) {
        return Some(format!("damaged: group {group} has no space for its inodes"));
    }
    None
}

impl Ufs {
    /// Checks an image and opens it.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = options.common.place;
        let sb = read_super(&*device, &place)?;
        let read_only = match (options.common.read_only, device.is_read_only()) {
            (true, _) => Some("opened read-only".to_owned()),
            (false, true) => Some("the image is read-only".to_owned()),
            (false, false) => read_only_reason(&sb),
        };
        let budget = options.common.budget;
        let cache = Arc::new(BufferCache::new(device, sb.fragment_size, budget.clone()));
        let names = NameIndexes::new(budget.clone());
        let mut ufs = Self { sb, place, cache, names, read_only, writer: None };
        let root = ufs.dinode(ROOT.into()).map_err(|error| match error {
            Error::Name(NameError::Stale) => ufs.corrupt(ROOT, "there is no root directory"),
            error => error,
        })?;
        if root.kind() != Some(FileType::Directory) {
            return Err(ufs.corrupt(ROOT, "the root is no directory"));
        }
        ufs.check_directory(&root)?;
        if ufs.read_only.is_none() {
            let alloc = Arc::new(Allocator::load(&ufs.sb, &ufs.cache, &ufs.place)?);
            let order =
                OrderedOptions { interval: options.common.commit_interval, ..OrderedOptions::default() };
            let ordered = Ordered::new(ufs.cache.clone(), alloc.clone(), order).map_err(order_error)?;
            ufs.writer = Some(Writer { ordered, alloc, orphans: AtomicU64::new(0) });
            if !ufs.sb.clean {
                ufs.read_only = ufs.recover(&budget)?;
                // Recovery removes names without regard to indexes.
                ufs.names.evict(u64::MAX);
            }
            if ufs.read_only.is_some() {
                ufs.writer = None;
            }
        }
        Ok(Arc::new(ufs))
    }
}
