//! The devices of a filesystem: which superblock counts, and which devices are there.

use crate::layout::bytes::read;
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_PLACES, Superblock, Unusable};
use ivers_block::{ByteOffset, Device};
use ivers_vfs::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// The most devices that are opened.
const DEVICES_MAX: usize = 1024;

/// Which device of which filesystem a device says it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceId {
    /// The UUID of the filesystem.
    pub fsid: [u8; 16],
    /// The number of the device.
    pub devid: u64,
    /// Devices of the filesystem.
    pub num_devices: u64,
}

/// Reads the numbers of a device from its first [`PROBE_BYTES`](crate::PROBE_BYTES). They are at fixed places
/// of the first superblock; nothing else is read, and nothing is checked but the magic.
pub fn device_id(head: &[u8]) -> Option<DeviceId> {
    let raw: RawSuperblock = read(head, SUPERBLOCK_PLACES[0] as usize)?;
    let (devid, num_devices) = (raw.dev_item.devid.get(), raw.num_devices.get());
    Superblock::probe(head).then_some(DeviceId { fsid: raw.fsid, devid, num_devices })
}

/// A device whose superblock names the filesystem.
#[derive(Clone)]
pub(crate) struct Member {
    pub device: Arc<dyn Device>,
    pub uuid: [u8; 16],
    /// Bytes of it that the filesystem uses.
    pub bytes: u64,
    /// Where its newest superblock is.
    pub superblock: u64,
}

/// The devices that were given, by number, and the newest superblock of them.
#[derive(Clone)]
pub(crate) struct Devices {
    pub sb: Superblock,
    pub members: HashMap<u64, Member>,
    /// The members whose superblock is one commit behind.
    pub behind: Vec<u64>,
    /// How many devices the superblock counts beside these.
    missing: u64,
    /// What is wrong with some of them, in words.
    pub notes: Vec<String>,
}

/// Returns the newest superblock of a device. Copies count only if they name the filesystem of the first one,
/// because an older filesystem may have left some. If the first one is damaged, the newest copy counts.
fn newest_superblock(device: &dyn Device, place: &str, notes: &mut Vec<String>) -> Result<(Superblock, u64)> {
    let mut newest: Option<(Superblock, u64)> = None;
    let mut refused = None;
    for at in SUPERBLOCK_PLACES {
        if at + SUPERBLOCK_BYTES as u64 > device.size_bytes() {
            break;
        }
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        device.read_at(ByteOffset(at), &mut bytes)?;
        match Superblock::parse(&bytes, at) {
            Ok(found) => {
                let is_newer = newest
                    .as_ref()
                    .is_none_or(|(sb, _)| sb.fsid == found.fsid && sb.generation < found.generation);
                if is_newer {
                    newest = Some((found, at));
                }
            }
            Err(why) if at == SUPERBLOCK_PLACES[0] => refused = Some(why),
            Err(_) => {}
        }
    }
    match (newest, refused) {
        (Some(sb), None) => Ok(sb),
        (Some(sb), Some(Unusable::Damaged(what))) => {
            notes.push(format!("{place}: the first superblock is damaged ({what}); a copy of it is used"));
            Ok(sb)
        }
        (_, refused) => Err(refused.unwrap_or(Unusable::Absent).into_error(place)),
    }
}

impl Devices {
    /// Reads the superblocks of all devices. `place` names the first one. With `takes_behind`, devices that
    /// are one commit behind are members.
    pub(crate) fn find(
        devices: &[Arc<dyn Device>],
        place: &str,
        degraded: bool,
        takes_behind: bool,
    ) -> Result<Self> {
        let incompatible = |what: String| Error::Incompatible(format!("{place}: {what}"));
        if devices.len() > DEVICES_MAX {
            return Err(incompatible(format!("{} devices are too many", devices.len())));
        }
        let mut notes = Vec::new();
        let mut found = Vec::new();
        for device in devices {
            let (sb, at) = newest_superblock(device, place, &mut notes)?;
            sb.check_supported(place)?;
            if device.size_bytes() < sb.device_bytes {
                let what = format!(
                    "device {} has {} bytes, and the filesystem uses {} of it: it is cut off",
                    sb.devid,
                    device.size_bytes(),
                    sb.device_bytes
                );
                return Err(Error::corrupt(what, place));
            }
            found.push((sb, at, device.clone()));
        }
        // An fsync writes only the first superblock of each device. So of one generation, one with a log is
        // newer.
        let newest = found.iter().map(|(sb, ..)| sb).max_by_key(|sb| (sb.generation, sb.has_log()));
        let Some(newest) = newest.cloned() else {
            return Err(incompatible("no device is given".into()));
        };
        let mut members = HashMap::new();
        let mut behind = Vec::new();
        for (sb, superblock, device) in found {
            if sb.fsid != newest.fsid {
                return Err(incompatible("the devices belong to different filesystems".into()));
            }
            if sb.devid == 0 {
                let what = "a replacement of a device is running; let Linux finish it";
                return Err(incompatible(what.into()));
            }
            // A device that was left out of later transactions has old contents.
            let is_behind = sb.generation < newest.generation;
            if is_behind && !(takes_behind && sb.generation.checked_add(1) == Some(newest.generation)) {
                notes.push(format!("device {} is not used: it is older than the others", sb.devid));
                continue;
            }
            let same_layout = (sb.sector_size, sb.node_size, sb.checksum)
                == (newest.sector_size, newest.node_size, newest.checksum);
            if !same_layout {
                return Err(Error::corrupt("the superblocks of the devices contradict each other", place));
            }
            if is_behind {
                behind.push(sb.devid);
            }
            let member = Member { device, uuid: sb.device_uuid, bytes: sb.device_bytes, superblock };
            if members.insert(sb.devid, member).is_some() {
                return Err(incompatible(format!("device {} is given twice", sb.devid)));
            }
        }
        let missing = newest.num_devices.saturating_sub(members.len() as u64);
        let found = Self { sb: newest, members, behind, missing, notes };
        if let Some(what) = found.missing_in_words().filter(|_| !degraded) {
            let stale = found.notes.iter().map(|note| format!("; {note}")).collect::<String>();
            let how = "name the images of all devices, or read what is left with -o degraded";
            return Err(incompatible(format!("{what}; {how}{stale}")));
        }
        Ok(found)
    }

    /// Says how many devices are missing, if some are.
    pub(crate) fn missing_in_words(&self) -> Option<String> {
        let all = self.sb.num_devices;
        (self.missing > 0).then(|| format!("{} of {all} devices are missing", self.missing))
    }
}
