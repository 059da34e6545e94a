//! Compressing data that is written: extents as Linux makes them.

use crate::layout::items::{COMPRESSED_MAX, Compression};
use flate2::{Compress, FlushCompress, Status};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

/// The level of zlib that Linux uses by default.
const ZLIB_LEVEL: u32 = 3;
/// The highest levels that Linux knows.
const ZLIB_LEVEL_MAX: u32 = 9;
const ZSTD_LEVEL_MAX: u32 = 15;
/// The bytes of a length in LZO data.
const LENGTH: usize = size_of::<u32>();
/// Names of methods, in mount options and properties.
const METHODS: [(&str, Compression, u32); 3] = [
    ("zlib", Compression::Zlib, ZLIB_LEVEL_MAX),
    ("lzo", Compression::Lzo, 0),
    ("zstd", Compression::Zstd, ZSTD_LEVEL_MAX),
];

/// How data is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompressWith {
    pub(crate) method: Compression,
    level: u32,
}

/// What Linux uses if a file only has the flag.
impl Default for CompressWith {
    fn default() -> Self {
        Self { method: Compression::Zlib, level: ZLIB_LEVEL }
    }
}

impl CompressWith {
    /// Parses `zlib`, `lzo` or `zstd`, with `:level` for zlib (1 to 9) and zstd (1 to 15). All levels of zstd
    /// compress alike.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, Some(level.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let (_, method, most) = METHODS.into_iter().find(|(other, ..)| *other == name)?;
        if level.is_some_and(|level| !(1..=most).contains(&level)) {
            return None;
        }
        Some(Self { method, level: level.unwrap_or(ZLIB_LEVEL) })
    }

    /// Parses the value of a property that is stored. As on Linux, what follows a name does not matter.
    pub(crate) fn of_property(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?;
        let named = METHODS.into_iter().find(|(name, ..)| text.starts_with(name));
        Self::parse(text).or(named.map(|(_, method, _)| Self { method, level: ZLIB_LEVEL }))
    }

    /// Compresses the data of an extent, and fills the last sector with zeros. `None`: that saves no sector.
    pub(crate) fn compress(self, input: &[u8], sector_size: usize) -> Option<Vec<u8>> {
        // The result has at least one sector.
        if input.len() <= sector_size {
            return None;
        }
        let mut output = self.compress_to(input, input.len() - sector_size, sector_size)?;
        output.resize(output.len().next_multiple_of(sector_size), 0);
        Some(output)
    }

    /// Compresses data to at most `most` bytes. `None`: it needs more.
    pub(crate) fn compress_to(self, input: &[u8], most: usize, sector_size: usize) -> Option<Vec<u8>> {
        debug_assert!(input.len() as u64 <= COMPRESSED_MAX);
        let output = match self.method {
            Compression::None => return None,
            Compression::Zlib => zlib(input, self.level, most)?,
            Compression::Lzo => lzo(input, sector_size, most)?,
            Compression::Zstd => compress_to_vec(input, CompressionLevel::Fastest),
        };
        (output.len() <= most).then_some(output)
    }
}

fn zlib(input: &[u8], level: u32, most: usize) -> Option<Vec<u8>> {
    let mut output = Vec::with_capacity(most);
    let mut stream = Compress::new(flate2::Compression::new(level), true);
    // It ends when the capacity is used.
    let status = stream.compress_vec(input, &mut output, FlushCompress::Finish).ok()?;
    (status == Status::StreamEnd).then_some(output)
}

/// The form that `crate::compress` reads.
fn lzo(input: &[u8], sector_size: usize, most: usize) -> Option<Vec<u8>> {
    let mut output = vec![0; LENGTH];
    for sector in input.chunks(sector_size) {
        let left = sector_size - output.len() % sector_size;
        if left < LENGTH {
            output.resize(output.len() + left, 0);
        }
        let segment = lzokay::compress::compress(sector).ok()?;
        output.extend((segment.len() as u32).to_le_bytes());
        output.extend(segment);
        if output.len() > most {
            return None;
        }
    }
    let total = output.len() as u32;
    output[..LENGTH].copy_from_slice(&total.to_le_bytes());
    Some(output)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::decompress;
    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    const SECTOR: usize = 4096;

    #[test]
    fn what_is_compressed_is_decompressed() {
        let mut random = SmallRng::seed_from_u64(1);
        for text in ["zlib", "zlib:9", "lzo", "zstd", "zstd:15"] {
            let with = CompressWith::parse(text).unwrap();
            let mut smaller = 0;
            for round in 0..60 {
                let len = random.random_range(1..=32) * SECTOR;
                // From one byte to noise.
                let kinds = 1 << (round % 9);
                let input: Vec<u8> = (0..len).map(|_| random.random_range(0..kinds) as u8).collect();
                let Some(output) = with.compress(&input, SECTOR) else { continue };
                smaller += 1;
                assert!(output.len() < len && output.len().is_multiple_of(SECTOR), "{text}");
                let back = decompress(with.method, &output, len, SECTOR).unwrap();
                assert!(back == input, "{text}, {len} bytes, round {round}");
            }
            assert!(smaller > 20, "{text}: {smaller}");
        }
    }

    #[test]
    fn what_does_not_shrink_is_not_compressed() {
        let mut random = SmallRng::seed_from_u64(2);
        let noise: Vec<u8> = (0..100_000).map(|_| random.random()).collect();
        for text in ["zlib", "lzo", "zstd"] {
            let with = CompressWith::parse(text).unwrap();
            assert_eq!(with.compress(&noise, SECTOR), None, "{text}");
            assert_eq!(with.compress(&[7; SECTOR], SECTOR), None, "{text}");
            let small = with.compress_to(&[7; 3000], 2048, SECTOR).unwrap();
            assert_eq!(decompress(with.method, &small, 3000, SECTOR).unwrap(), [7; 3000], "{text}");
            assert_eq!(with.compress_to(&noise[..3000], 2048, SECTOR), None, "{text}");
        }
    }

    #[test]
    fn options_and_properties_are_those_of_linux() {
        for text in ["", "none", "zlib:0", "zlib:10", "lzo:1", "zstd:16", "zstd:", "zlib:x", "zlibx"] {
            assert_eq!(CompressWith::parse(text), None, "{text}");
        }
        for (text, method) in [("zlib", Compression::Zlib), ("zstd:99", Compression::Zstd)] {
            assert_eq!(CompressWith::of_property(text.as_bytes()).unwrap().method, method, "{text}");
        }
        for text in ["", "no", "none", "zl"] {
            assert_eq!(CompressWith::of_property(text.as_bytes()), None, "{text}");
        }
    }
}
