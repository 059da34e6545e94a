//! Setting the label of a filesystem that is not mounted.

use crate::head::read_super;
use crate::layout::FieldsMut;
use crate::layout::superblock::{LABEL_MAX, at, check_label};
use crate::open::read_only_reason;
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};

/// Sets the label, of at most [`LABEL_MAX`] bytes. An empty one removes it. As with tunefs of FreeBSD, copies
/// of the superblock keep the old label. `place` names the image in errors.
pub fn set_label(device: &dyn Device, label: &str, place: &str) -> Result<()> {
    let sb = read_super(device, place)?;
    check_label(label.as_bytes())?;
    if let Some(why) = read_only_reason(&sb) {
        return Err(Error::Incompatible(format!("{place}: cannot be written: {why}")));
    }
    let mut bytes = vec![0; sb.superblock_bytes as usize];
    device.read_at(ByteOffset(sb.at), &mut bytes)?;
    let stored = &mut bytes[at::FS_VOLNAME..=at::FS_VOLNAME + LABEL_MAX];
    stored.fill(0);
    stored[..label.len()].copy_from_slice(label.as_bytes());
    if sb.hashes_superblock() {
        FieldsMut::new(&mut bytes, sb.order).set_check_hash(at::FS_CKHASH);
    }
    device.write_at(ByteOffset(sb.at), &bytes)?;
    Ok(device.flush()?)
}
