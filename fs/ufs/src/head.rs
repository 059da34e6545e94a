//! The superblock of a device: where it is, and what it says of the filesystem's state.

use crate::layout::superblock::{self, PLACES, SUPERBLOCK_MAX, Superblock, Version, flags};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};

/// Bytes of a device that [`probe`] looks at: the last place of a superblock is at 256 KiB.
pub const PROBE_BYTES: u64 = PLACES[3] + SUPERBLOCK_MAX;

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
