//! The check of superblocks and their copies.

use super::chunks::Device;
use super::state::Checker;
use crate::layout::bytes::read;
use crate::layout::features::Incompat;
use crate::layout::raw::RawSuperblock;
use crate::layout::superblock::{
    MAX_LEVEL, SUPERBLOCK_BYTES, SUPERBLOCK_PLACES, SYS_CHUNK_ARRAY, SYS_CHUNK_ARRAY_BYTES, Superblock,
    Unusable, at_place,
};
use ivers_block::{ByteOffset, Device as BlockDevice};
use ivers_vfs::Result;
use ivers_vfs::check::{Findings, Place};
use std::collections::BTreeMap;

/// The bytes of a superblock that differ in its copies: checksum and place.
const OWN_BYTES: [std::ops::Range<usize>; 2] = [0..32, 0x30..0x38];

fn read_place(device: &dyn BlockDevice, at: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; SUPERBLOCK_BYTES];
    device.read_at(ByteOffset(at), &mut bytes)?;
    Ok(bytes)
}

fn why_unusable(why: Unusable) -> String {
    match why {
        Unusable::Absent => "it has no magic".into(),
        Unusable::Damaged(what) | Unusable::Unsupported(what) => what,
    }
}

/// Looks for a copy of a superblock on a device whose first one is destroyed.
pub(super) fn check_remains(device: &dyn BlockDevice) -> Result<Option<Findings>> {
    for at in &SUPERBLOCK_PLACES[1..] {
        if at + SUPERBLOCK_BYTES as u64 > device.size_bytes() {
            break;
        }
        if Superblock::parse(&read_place(device, *at)?, *at).is_ok() {
            let mut found = Findings::of("btrfs");
            let how = "\"btrfs rescue super-recover\" copies it";
            let what = format!("the superblock is destroyed; a copy is at byte {at}: {how}");
            found.add("superblock-invalid", Place::filesystem(), what);
            return Ok(Some(found));
        }
    }
    Ok(None)
}

impl Checker {
    /// Mends damaged superblocks of each device, from the newest one of that device.
    pub(super) fn mend_superblocks(&mut self) -> Result<()> {
        let members: Vec<_> = self
            .forest
            .volume
            .members()
            .map(|(devid, it)| (devid, it.device.clone(), it.superblock, it.bytes))
            .collect();
        let sum = self.forest.volume.sb.checksum;
        for (devid, device, newest, bytes) in members {
            let right = read_place(&*device, newest)?;
            let Ok(sb) = Superblock::parse(&right, newest) else { continue };
            for at in SUPERBLOCK_PLACES {
                let is_there = at.saturating_add(SUPERBLOCK_BYTES as u64) < bytes;
                if at == newest || !is_there {
                    continue;
                }
                let why = match read_place(&*device, at).map(|copy| Superblock::parse(&copy, at)) {
                    Err(error) => error.to_string(),
                    Ok(Err(why)) => why_unusable(why),
                    Ok(Ok(copy)) if copy.fsid != sb.fsid => "it belongs to another filesystem".into(),
                    // An fsync writes only the first superblock.
                    Ok(Ok(copy)) if copy.generation < sb.generation && !sb.has_log() => {
                        format!("it is of transaction {}, not {}", copy.generation, sb.generation)
                    }
                    Ok(Ok(_)) => continue,
                };
                let what = format!("the superblock at byte {at} of device {devid}");
                let Some(mending) = self.mending.as_mut().filter(|mending| mending.writes) else {
                    self.bad("superblock-copy-wrong", Place::filesystem(), format!("{what} is bad: {why}"));
                    continue;
                };
                let copy = at_place(&right, at, sum);
                if let Err(error) = device.write_at(ByteOffset(at), &copy) {
                    let what = format!("{what} is bad: {why}; it cannot be written again: {error}");
                    self.bad("superblock-copy-wrong", Place::filesystem(), what);
                    continue;
                }
                mending.mended += 1;
                let what = format!("{what} was bad and is written again: {why}");
                self.bad("superblock-copy-mended", Place::filesystem(), what);
            }
        }
        Ok(())
    }

    /// Compares the superblocks of all devices with each other, with their copies and with `devices`, the
    /// items of the chunk tree.
    pub(super) fn check_superblocks(&mut self, devices: &BTreeMap<u64, Device>) -> Result<()> {
        let members: Vec<_> =
            self.forest.volume.members().map(|(devid, it)| (devid, it.device.clone())).collect();
        let mut total = 0u64;
        for item in devices.values() {
            total = total.saturating_add(item.total_bytes);
        }
        for (devid, device) in members {
            let first = read_place(&*device, SUPERBLOCK_PLACES[0])?;
            if let Err(why) = Superblock::parse(&first, SUPERBLOCK_PLACES[0]) {
                let what = format!("the superblock of device {devid} cannot be used: {}", why_unusable(why));
                self.bad("superblock-invalid", Place::filesystem(), what);
                continue;
            }
            let Some(raw) = read::<RawSuperblock>(&first, 0) else { continue };
            self.check_copies(devid, &*device, &first, &raw)?;
            // What it says is that of the commit before. A note tells that it is behind.
            if self.forest.volume.behind().contains(&devid) {
                continue;
            }
            for (field, value) in self.odd_fields(&raw, devices.get(&devid), total, devices.len()) {
                let what = format!("{field} of the superblock of device {devid} is {value}");
                self.bad("superblock-field-wrong", Place::filesystem(), what);
            }
            if first[SYS_CHUNK_ARRAY..]
                .get(raw.sys_chunk_array_size.get() as usize..SYS_CHUNK_ARRAY_BYTES)
                .is_none()
            {
                let what = format!("the array of chunks of device {devid} is too long");
                self.bad("superblock-field-wrong", Place::filesystem(), what);
            }
        }
        Ok(())
    }

    fn check_copies(
        &mut self,
        devid: u64,
        device: &dyn BlockDevice,
        first: &[u8],
        raw: &RawSuperblock,
    ) -> Result<()> {
        let bytes = raw.dev_item.total_bytes.get().min(device.size_bytes());
        for at in &SUPERBLOCK_PLACES[1..] {
            if at.saturating_add(SUPERBLOCK_BYTES as u64) >= bytes {
                break;
            }
            let copy = read_place(device, *at)?;
            let why = match Superblock::parse(&copy, *at) {
                Err(why) => why_unusable(why),
                Ok(old)
                    if old.fsid == raw.fsid
                        && old.generation.checked_add(1) == Some(raw.generation.get()) =>
                {
                    let what = "is one transaction old: a crash came before it was written";
                    self.found.note(format!("the copy of the superblock at byte {at} {what}"));
                    continue;
                }
                // An fsync writes only the first superblock.
                Ok(_) if raw.log_root.get() != 0 => continue,
                Ok(_) => {
                    let own = |place: &usize| OWN_BYTES.iter().any(|range| range.contains(place));
                    let other = (0..SUPERBLOCK_BYTES).filter(|place| !own(place));
                    match other.into_iter().find(|place| copy[*place] != first[*place]) {
                        Some(place) => format!("it differs from the first one at byte {place}"),
                        None => continue,
                    }
                }
            };
            let what = format!("the copy of the superblock at byte {at} of device {devid} is wrong: {why}");
            self.bad("superblock-copy-wrong", Place::filesystem(), what);
        }
        Ok(())
    }

    /// Returns the fields that contradict others.
    fn odd_fields(
        &self,
        raw: &RawSuperblock,
        item: Option<&Device>,
        total: u64,
        devices: usize,
    ) -> Vec<(&'static str, String)> {
        let mut odd: Vec<(&'static str, String)> = Vec::new();
        let mut expect = |field: &'static str, stored: u64, wanted: u64| {
            if stored != wanted {
                odd.push((field, format!("{stored}, not {wanted}")));
            }
        };
        let used: u64 = self.space.groups.values().fold(0, |sum, group| sum.saturating_add(group.used));
        if self.extents_sound {
            expect("bytes_used", raw.bytes_used.get(), used);
        }
        expect("total_bytes", raw.total_bytes.get(), total);
        expect("num_devices", raw.num_devices.get(), devices as u64);
        expect("leafsize", raw.leafsize.get().into(), raw.nodesize.get().into());
        expect("stripesize", raw.stripesize.get().into(), raw.sectorsize.get().into());
        let dev = &raw.dev_item;
        if let Some(item) = item {
            expect("dev_item.total_bytes", dev.total_bytes.get(), item.total_bytes);
            expect("dev_item.bytes_used", dev.bytes_used.get(), item.bytes_used);
            expect("dev_item.io_align", dev.io_align.get().into(), item.io_align.into());
            expect("dev_item.io_width", dev.io_width.get().into(), item.io_width.into());
            expect("dev_item.sector_size", dev.sector_size.get().into(), item.sector_size.into());
            expect("dev_item.type", dev.kind.get(), item.kind);
        }
        if item.is_some_and(|item| item.uuid != dev.uuid) {
            odd.push(("dev_item.uuid", "not that of its item".into()));
        }
        let incompat = Incompat::from_bits_retain(raw.incompat_flags.get());
        let metadata = if incompat.contains(Incompat::METADATA_UUID) { raw.metadata_uuid } else { raw.fsid };
        if dev.fsid != metadata {
            odd.push(("dev_item.fsid", "that of another filesystem".into()));
        }
        if !incompat.contains(Incompat::MIXED_BACKREF) {
            odd.push(("incompat_flags", "without mixed-backref".into()));
        }
        let generation = raw.generation.get();
        let log = (raw.log_root.get(), raw.log_root_level);
        if !log.0.is_multiple_of(u64::from(raw.sectorsize.get())) || log.1 >= MAX_LEVEL {
            odd.push(("log_root", format!("{} with level {}", log.0, log.1)));
        }
        if raw.chunk_root_generation.get() > generation {
            odd.push((
                "chunk_root_generation",
                format!("{}, after the last one", raw.chunk_root_generation.get()),
            ));
        }
        for (field, value) in
            [("cache_generation", &raw.cache_generation), ("uuid_tree_generation", &raw.uuid_tree_generation)]
        {
            if value.get() > generation && value.get() != u64::MAX {
                odd.push((field, format!("{}, after the last one", value.get())));
            }
        }
        odd
    }
}
