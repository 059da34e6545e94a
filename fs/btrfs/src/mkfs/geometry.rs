//! The sizes and places of the first chunks.

use super::options::{CONTENTS, Copies, MkfsOptions};
use crate::layout::chunk::{DATA, METADATA, SYSTEM};
use crate::layout::superblock::{SECTOR, STRIPE_LEN};
use ivers_vfs::{Error, Result};

/// The first byte of a device that chunks may use. The superblock and boot loaders lie before it.
const FIRST_BYTE: u64 = 1 << 20;
const SYSTEM_BYTES: u64 = 8 << 20;
const DATA_BYTES: u64 = 8 << 20;
/// The size of the largest metadata chunk, on filesystems below and above 50 GiB.
const METADATA_BYTES: (u64, u64) = (256 << 20, 1 << 30);
const LARGE: u64 = 50 << 30;
/// The smallest size of a device, that of mkfs.btrfs.
const DEVICE_BYTES_MIN: u64 = 109 << 20;

/// A part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    /// The index of the device, from 0.
    pub device: usize,
    pub offset: u64,
}

/// A chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewChunk {
    pub start: u64,
    pub length: u64,
    pub flags: u64,
    pub copies: Copies,
    pub parts: Vec<Part>,
}

/// All sizes and places.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// The used bytes of each device.
    pub devices: Vec<u64>,
    pub chunks: Vec<NewChunk>,
}

impl Plan {
    pub(super) fn new(sizes: &[u64], options: &MkfsOptions) -> Result<Self> {
        options.check(sizes.len())?;
        let devices: Vec<u64> = sizes.iter().map(|size| size / SECTOR * SECTOR).collect();
        if let Some(small) = devices.iter().find(|size| **size < DEVICE_BYTES_MIN) {
            let (small, least) = (small >> 20, DEVICE_BYTES_MIN >> 20);
            return Err(Error::Incompatible(format!("{small} MiB are too little: btrfs needs {least} MiB")));
        }
        let total: u64 = devices.iter().fold(0, |sum, size| sum.saturating_add(*size));
        let metadata = options.metadata_on(devices.len());
        let mut used = vec![FIRST_BYTE; devices.len()];
        let (mut chunks, mut start) = (Vec::new(), FIRST_BYTE);
        for contents in CONTENTS {
            let copies = if contents == DATA { options.data } else { metadata };
            let length = match contents {
                SYSTEM => SYSTEM_BYTES,
                METADATA => metadata_bytes(total, copies),
                _ => DATA_BYTES,
            };
            let mut parts = Vec::new();
            for copy in 0..copies.count() {
                let device = if copies == Copies::Dup { 0 } else { copy };
                parts.push(Part { device, offset: used[device] });
                used[device] += length;
            }
            chunks.push(NewChunk { start, length, flags: contents | copies.bits(), copies, parts });
            start += length;
        }
        if let Some(device) = (0..devices.len()).find(|device| used[*device] > devices[*device]) {
            return Err(Error::Incompatible(format!("device {} is too small for its chunks", device + 1)));
        }
        Ok(Self { devices, chunks })
    }

    /// Returns the bytes of all devices.
    pub(super) fn bytes(&self) -> u64 {
        self.devices.iter().sum()
    }

    /// Returns the bytes of chunks on a device.
    pub(super) fn used(&self, device: usize) -> u64 {
        let on_it = |chunk: &NewChunk| {
            chunk.parts.iter().filter(|part| part.device == device).count() as u64 * chunk.length
        };
        self.chunks.iter().map(on_it).sum()
    }

    /// Returns the chunk with these contents.
    pub(super) fn chunk(&self, contents: u64) -> &NewChunk {
        self.chunks.iter().find(|chunk| chunk.flags & contents != 0).expect("there is one of each")
    }
}

/// Returns the size of the metadata chunk. Its copies on one device take a tenth of all bytes, unless the
/// chunk would be larger than the largest one.
fn metadata_bytes(total: u64, copies: Copies) -> u64 {
    let most = if total > LARGE { METADATA_BYTES.1 } else { METADATA_BYTES.0 };
    let per_device = copies.count().div_ceil(copies.devices()) as u64;
    (total / 10 / per_device).min(most) / STRIPE_LEN * STRIPE_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fit_and_do_not_overlap() {
        for (sizes, metadata) in [
            (vec![109 << 20], Copies::Dup),
            (vec![1 << 30], Copies::Dup),
            (vec![1 << 40], Copies::Single),
            (vec![300 << 20, 200 << 20], Copies::Raid1),
            (vec![1 << 30; 4], Copies::Raid1c4),
        ] {
            let options = MkfsOptions { metadata: Some(metadata), ..MkfsOptions::default() };
            let plan = Plan::new(&sizes, &options).unwrap();
            let mut parts: Vec<_> = plan
                .chunks
                .iter()
                .flat_map(|chunk| chunk.parts.iter().map(|part| (part.device, part.offset, chunk.length)))
                .collect();
            parts.sort_unstable();
            for pair in parts.windows(2) {
                assert!(pair[0].0 != pair[1].0 || pair[0].1 + pair[0].2 <= pair[1].1, "{sizes:?}");
            }
            assert!(parts.iter().all(|(device, start, len)| start + len <= sizes[*device]));
        }
        // The geometry of mkfs.btrfs for 1 GiB.
        assert_eq!(metadata_bytes(1 << 30, Copies::Dup), 53_673_984);
        let refuse = |sizes: &[u64], data| {
            Plan::new(sizes, &MkfsOptions { data, ..MkfsOptions::default() }).unwrap_err().to_string()
        };
        assert!(refuse(&[100 << 20], Copies::Single).contains("109 MiB"));
        assert!(refuse(&[1 << 30], Copies::Raid1).contains("2 devices"));
    }
}
