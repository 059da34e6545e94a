//! Chunks: where the bytes of a range of logical addresses lie on the devices.

use super::bytes::read;
use super::raw::{RawChunk, RawStripe};
use std::mem::size_of;

const DUP: u64 = 0x20;
const RAID0: u64 = 0x8;
const RAID1: u64 = 0x10;
const RAID10: u64 = 0x40;
const RAID5: u64 = 0x80;
const RAID6: u64 = 0x100;
const RAID1C3: u64 = 0x200;
const RAID1C4: u64 = 0x400;
/// Data, system and metadata.
const CONTENTS: u64 = 0x7;
/// The chunk has data of files.
pub(crate) const DATA: u64 = 0x1;
/// The chunk has blocks of the tree of chunks.
pub(crate) const SYSTEM: u64 = 0x2;
/// The chunk has blocks of other trees.
pub(crate) const METADATA: u64 = 0x4;

/// Devices that a new chunk is spread over at most.
const COLUMNS_MAX: usize = 16;

/// A place on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stripe {
    pub devid: u64,
    pub device_uuid: [u8; 16],
    pub offset: u64,
}

/// How a chunk is laid out: its name, its copies, and whether addresses go around the devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Profile {
    pub name: &'static str,
    /// Copies of each byte.
    pub copies: usize,
    /// Stripes beside each other.
    columns: usize,
}

impl Profile {
    /// The bits in the type of a chunk.
    pub(crate) const DUP: u64 = DUP;
    pub(crate) const RAID1: u64 = RAID1;
    pub(crate) const RAID1C3: u64 = RAID1C3;
    pub(crate) const RAID1C4: u64 = RAID1C4;

    /// The profile that the bits of a chunk's type name, as if it had one column.
    pub(crate) fn of(kind: u64) -> Option<Self> {
        let (name, copies) = match kind & !CONTENTS {
            0 => ("single", 1),
            DUP => ("DUP", 2),
            RAID0 => ("RAID0", 1),
            RAID1 => ("RAID1", 2),
            RAID1C3 => ("RAID1C3", 3),
            RAID1C4 => ("RAID1C4", 4),
            RAID10 => ("RAID10", 2),
            _ => return None,
        };
        Some(Self { name, copies, columns: 1 })
    }

    /// Whether both copies are on one device.
    pub(crate) fn is_dup(kind: u64) -> bool {
        kind & DUP != 0
    }

    /// How many devices a new chunk gets, of those that have space; `None`: too few have.
    pub(crate) fn devices(kind: u64, available: usize) -> Option<usize> {
        let wanted = match kind & !CONTENTS {
            RAID0 => available.min(COLUMNS_MAX),
            RAID10 => (available / 2 * 2).min(COLUMNS_MAX),
            _ if Self::is_dup(kind) => 1,
            _ => Self::of(kind)?.copies,
        };
        let least = if kind & RAID10 != 0 { 2 } else { 1 };
        (wanted >= least && wanted <= available).then_some(wanted)
    }
}

/// A range of logical addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub start: u64,
    pub length: u64,
    /// Its type as stored: contents and profile.
    pub flags: u64,
    pub profile: Profile,
    stripe_len: u64,
    pub stripes: Vec<Stripe>,
}

/// Bytes that lie together on every device that has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub len: u64,
    /// Places in `stripes`, one for each copy.
    pub stripes: &'a [Stripe],
    /// Bytes after the start of each of them.
    pub skip: u64,
}

impl Piece<'_> {
    /// The device of a copy and the byte on it.
    pub(crate) fn place(&self, copy: usize) -> Option<(Stripe, u64)> {
        let stripe = self.stripes.get(copy)?;
        Some((*stripe, stripe.offset.checked_add(self.skip)?))
    }
}

/// Why a chunk cannot be used.
#[derive(Debug)]
pub(crate) enum BadChunk {
    Damaged(String),
    Unsupported(String),
}

impl Chunk {
    /// Returns what it contains, of `DATA` and others.
    pub(crate) fn contents(&self) -> u64 {
        self.flags & CONTENTS
    }

    /// Bytes of a chunk item with this head.
    pub(crate) fn item_bytes(head: &[u8]) -> Option<usize> {
        let raw: RawChunk = read(head, 0)?;
        Some(size_of::<RawChunk>() + usize::from(raw.num_stripes.get()) * size_of::<RawStripe>())
    }

    /// Decodes a chunk item. `start` is the offset of its key.
    pub(crate) fn decode(start: u64, item: &[u8], sector_size: u32) -> Result<Self, BadChunk> {
        let damaged = |what: String| BadChunk::Damaged(format!("the chunk at {start}: {what}"));
        let raw: RawChunk = read(item, 0).ok_or_else(|| damaged("its item is too short".into()))?;
        if Self::item_bytes(item) != Some(item.len()) {
            return Err(damaged("its item has the wrong size".into()));
        }
        let (length, kind) = (raw.length.get(), raw.kind.get());
        let (count, sub) = (usize::from(raw.num_stripes.get()), usize::from(raw.sub_stripes.get()));
        let profile = match (kind & !CONTENTS, Profile::of(kind)) {
            (RAID10, Some(_)) if sub != 2 => return Err(damaged(format!("RAID10 with {sub} copies"))),
            (RAID0 | RAID10, Some(profile)) => Profile { columns: count / profile.copies, ..profile },
            (_, Some(profile)) => profile,
            (RAID5 | RAID6, None) => {
                return Err(BadChunk::Unsupported("RAID5 and RAID6 are not supported".into()));
            }
            (other, None) => {
                return Err(damaged(format!("its type is {other:#x}")));
            }
        };
        if count == 0 || profile.copies * profile.columns != count {
            return Err(damaged(format!("{} with {count} stripes", profile.name)));
        }
        let sector = u64::from(sector_size);
        let stripe_len = raw.stripe_len.get();
        let is_whole = length.is_multiple_of(sector) && start.is_multiple_of(sector);
        if length == 0 || !is_whole || start.checked_add(length).is_none() {
            return Err(damaged(format!("it has {length} bytes")));
        }
        if !stripe_len.is_power_of_two() || stripe_len < sector {
            return Err(damaged(format!("stripes of {stripe_len} bytes")));
        }
        let stripe = |index: usize| -> Option<Stripe> {
            let raw: RawStripe = read(item, size_of::<RawChunk>() + index * size_of::<RawStripe>())?;
            Some(Stripe { devid: raw.devid.get(), device_uuid: raw.dev_uuid, offset: raw.offset.get() })
        };
        let stripes: Option<Vec<_>> = (0..count).map(stripe).collect();
        let stripes = stripes.ok_or_else(|| damaged("its item is too short".into()))?;
        let chunk = Self { start, length, flags: kind, profile, stripe_len, stripes };
        let per_device = chunk.bytes_per_device();
        if chunk.stripes.iter().any(|stripe| stripe.offset.checked_add(per_device).is_none()) {
            return Err(damaged("a stripe ends past all addresses".into()));
        }
        Ok(chunk)
    }

    /// The address after the last one.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.length
    }

    /// Bytes that the chunk takes of each device.
    pub(crate) fn bytes_per_device(&self) -> u64 {
        match self.profile.columns as u64 {
            1 => self.length,
            columns => {
                self.length.div_ceil(columns).div_ceil(self.stripe_len).saturating_mul(self.stripe_len)
            }
        }
    }

    /// The ranges of addresses that have a copy in the `len` bytes at `place` of any of its devices.
    pub(crate) fn addresses_of(&self, place: u64, len: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let per_device = self.bytes_per_device();
        for (number, stripe) in self.stripes.iter().enumerate() {
            let (first, last) = (stripe.offset, stripe.offset.saturating_add(per_device));
            if place + len <= first || place >= last {
                continue;
            }
            let (from, to) = (place.max(first) - first, (place + len).min(last) - first);
            let columns = self.profile.columns as u64;
            if columns == 1 {
                found.push((self.start + from, (self.start + to).min(self.end())));
                continue;
            }
            let column = (number / self.profile.copies) as u64;
            for row in from / self.stripe_len..to.div_ceil(self.stripe_len) {
                let start = self.start + (row * columns + column) * self.stripe_len;
                if start < self.end() {
                    found.push((start, (start + self.stripe_len).min(self.end())));
                }
            }
        }
        found
    }

    /// Returns where the bytes from an address of the chunk on lie, up to `len` of them.
    pub(crate) fn piece(&self, address: u64, len: u64) -> Option<Piece<'_>> {
        let offset = address.checked_sub(self.start).filter(|offset| *offset < self.length)?;
        let len = len.min(self.length - offset);
        let Profile { copies, columns, .. } = self.profile;
        if columns == 1 {
            return Some(Piece { len, stripes: &self.stripes, skip: offset });
        }
        let (row, within) = (offset / self.stripe_len, offset % self.stripe_len);
        let first = (row % columns as u64) as usize * copies;
        Some(Piece {
            len: len.min(self.stripe_len - within),
            stripes: self.stripes.get(first..first + copies)?,
            skip: row / columns as u64 * self.stripe_len + within,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const KIB64: u64 = 64 << 10;

    fn item(kind: u64, sub: u16, stripes: u16) -> Vec<u8> {
        let raw = RawChunk {
            length: (12 * KIB64).into(),
            owner: 2.into(),
            stripe_len: KIB64.into(),
            kind: (kind | DATA).into(),
            io_align: 65536.into(),
            io_width: 65536.into(),
            sector_size: 4096.into(),
            num_stripes: stripes.into(),
            sub_stripes: sub.into(),
        };
        let mut bytes = raw.as_bytes().to_vec();
        for number in 0..u64::from(stripes) {
            let stripe = RawStripe {
                devid: (number + 1).into(),
                offset: ((number + 1) << 20).into(),
                dev_uuid: [number as u8; 16],
            };
            bytes.extend(stripe.as_bytes());
        }
        bytes
    }

    fn places(chunk: &Chunk, address: u64) -> (u64, Vec<(u64, u64)>) {
        let piece = chunk.piece(address, u64::MAX).unwrap();
        let place = |copy| piece.place(copy).map(|(stripe, at)| (stripe.devid, at)).unwrap();
        (piece.len, (0..chunk.profile.copies).map(place).collect())
    }

    #[test]
    fn addresses_go_around_the_devices() {
        let raid0 = Chunk::decode(1 << 30, &item(RAID0, 1, 3), 4096).unwrap();
        let at = (1 << 30) + 4 * KIB64 + 4096;
        assert_eq!(places(&raid0, at), (KIB64 - 4096, vec![(2, (2 << 20) + KIB64 + 4096)]));
        assert_eq!(raid0.bytes_per_device(), 4 * KIB64);
        let raid10 = Chunk::decode(0, &item(RAID10, 2, 4), 4096).unwrap();
        let second = vec![(3, (3 << 20) + KIB64), (4, (4 << 20) + KIB64)];
        assert_eq!(places(&raid10, 3 * KIB64), (KIB64, second));
        let dup = Chunk::decode(0, &item(DUP, 1, 2), 4096).unwrap();
        assert_eq!(
            places(&dup, 4096),
            (12 * KIB64 - 4096, vec![(1, (1 << 20) + 4096), (2, (2 << 20) + 4096)])
        );
        assert!(dup.piece(12 * KIB64, 1).is_none());
    }

    #[test]
    fn impossible_chunks_are_refused() {
        for (kind, sub, stripes) in [(DUP, 1, 1), (RAID1, 1, 3), (RAID10, 2, 3), (RAID10, 1, 4), (0, 1, 2)] {
            let bad = Chunk::decode(0, &item(kind, sub, stripes), 4096);
            assert!(matches!(bad, Err(BadChunk::Damaged(_))), "{kind:#x} {sub} {stripes}: {bad:?}");
        }
        assert!(matches!(Chunk::decode(0, &item(1 << 20, 1, 3), 4096), Err(BadChunk::Damaged(_))));
        for kind in [RAID5, RAID6] {
            assert!(matches!(Chunk::decode(0, &item(kind, 1, 3), 4096), Err(BadChunk::Unsupported(_))));
        }
        assert!(Chunk::decode(0, &item(0, 1, 1)[..70], 4096).is_err());
    }
}
