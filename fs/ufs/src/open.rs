//! Opening an image: what is refused, and why it is only read.

use crate::layout::superblock::{self, PLACES, ROOT, SUPERBLOCK_MAX, Superblock, Version, flags};
use crate::volume::Ufs;
use ivers_block::{BufferCache, ByteOffset, Device};
use ivers_vfs::{DriverOptions, Error, FileType, NameError, Result};
use std::sync::Arc;

/// Bytes of a device that [`probe`] looks at: the last place of a superblock is at 256 KiB.
pub const PROBE_BYTES: u64 = PLACES[3] + SUPERBLOCK_MAX;

/// Options of [`Ufs::open`].
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// The options of all drivers.
    pub common: DriverOptions,
}

/// Recognises UFS by the first bytes of a device.
pub fn probe(head: &[u8]) -> bool {
    superblock::find(head).is_some()
}

/// Reads the first bytes of a device.
pub(crate) fn read_head(device: &dyn Device) -> Result<Vec<u8>> {
    let mut head = vec![0; device.size_bytes().min(PROBE_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    Ok(head)
}

/// Reads the superblock. `image` names the image in errors.
pub(crate) fn read_super(device: &dyn Device, image: &str) -> Result<Superblock> {
    let head = read_head(device)?;
    let at = superblock::find(&head).ok_or_else(|| {
        Error::Incompatible(format!("{image}: no UFS superblock at byte 65536, 8192, 0 or 262144"))
    })?;
    Superblock::parse(&head[at as usize..], at, device.size_bytes(), image)
}

/// The type of a filesystem, as users see it.
pub(crate) fn fs_type(sb: &Superblock) -> &'static str {
    match sb.version {
        Version::Ufs1 => "ufs1",
        Version::Ufs2 => "ufs2",
    }
}

/// Returns the state of a filesystem for users: whether it was unmounted cleanly, and which journal it has.
pub(crate) fn state(sb: &Superblock) -> String {
    let journal = [
        (flags::FS_SUJ, "journaled soft updates"),
        (flags::FS_GJOURNAL, "gjournal"),
        (flags::FS_DOSOFTDEP, "soft updates"),
    ];
    let with = journal.iter().find(|(flag, _)| sb.flags & flag != 0);
    let with = with.map_or(String::new(), |(_, name)| format!(", with {name}"));
    let state = match (sb.flags & flags::FS_NEEDSFSCK != 0, sb.clean) {
        (true, _) => "marked as damaged: run fsck_ffs of FreeBSD",
        (false, true) => "unmounted cleanly",
        (false, false) => "not unmounted cleanly: what was written last may be missing",
    };
    format!("{state}{with}")
}

impl Ufs {
    /// Checks an image and opens it.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let place = options.common.place;
        let sb = read_super(&*device, &place)?;
        let read_only = match (options.common.read_only, device.is_read_only()) {
            (true, _) => "opened read-only",
            (false, true) => "the image is read-only",
            (false, false) => "this driver reads UFS and does not write it",
        };
        let cache = BufferCache::new(device, sb.fragment_size, options.common.budget);
        let ufs = Self { sb, place, cache, read_only: read_only.to_owned() };
        let root = ufs.dinode(ROOT.into()).map_err(|error| match error {
            Error::Name(NameError::Stale) => ufs.corrupt(ROOT, "there is no root directory"),
            error => error,
        })?;
        if root.kind() != Some(FileType::Directory) {
            return Err(ufs.corrupt(ROOT, "the root is no directory"));
        }
        ufs.check_directory(&root)?;
        Ok(Arc::new(ufs))
    }
}
