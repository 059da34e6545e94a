//! Decompressing extents. The result is never longer than asked for; what is missing are zeros, as in Linux.

use crate::layout::bytes::slice;
use crate::layout::items::{COMPRESSED_MAX, Compression};
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::Read;

/// Decompresses the bytes of an extent to `len` bytes.
pub(crate) fn decompress(
    compression: Compression,
    input: &[u8],
    len: usize,
    sector_size: usize,
) -> Result<Vec<u8>, String> {
    let mut output = vec![0; len];
    match compression {
        Compression::None => {
            let stored = input.len().min(len);
            output[..stored].copy_from_slice(&input[..stored]);
        }
        Compression::Zlib => zlib(input, &mut output)?,
        Compression::Lzo => lzo(input, &mut output, sector_size)?,
        Compression::Zstd => zstd(input, &mut output)?,
    }
    Ok(output)
}

fn zlib(input: &[u8], output: &mut [u8]) -> Result<(), String> {
    let mut stream = Decompress::new(true);
    match stream.decompress(input, output, FlushDecompress::Finish) {
        Ok(Status::StreamEnd) => Ok(()),
        // What follows is not asked for.
        Ok(_) if stream.total_out() == output.len() as u64 => Ok(()),
        Ok(_) => Err("zlib: the compressed data is cut off".into()),
        Err(error) => Err(format!("zlib: {error}")),
    }
}

fn zstd(input: &[u8], output: &mut [u8]) -> Result<(), String> {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(COMPRESSED_MAX);
    let mut stream =
        StreamingDecoder::new_with_decoder(input, decoder).map_err(|error| format!("zstd: {error}"))?;
    let mut done = 0;
    while done < output.len() {
        match stream.read(&mut output[done..]).map_err(|error| format!("zstd: {error}"))? {
            0 => break,
            count => done += count,
        }
    }
    Ok(())
}

/// A length of all bytes, then segments of up to a sector, each after its own length. No length crosses the
/// end of a sector: what is left of the sector is skipped instead.
fn lzo(input: &[u8], output: &mut [u8], sector_size: usize) -> Result<(), String> {
    const LENGTH: usize = size_of::<u32>();
    let number = |at: usize| {
        let bytes = slice(input, at, LENGTH)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    let total = number(0).filter(|total| *total <= input.len()).ok_or("lzo: the data is cut off")?;
    let (mut at, mut done) = (LENGTH, 0);
    while at < total && done < output.len() {
        let left = sector_size - at % sector_size;
        if left < LENGTH {
            at += left;
            continue;
        }
        let len = number(at).ok_or("lzo: a segment is cut off")?;
        let segment = slice(input, at + LENGTH, len).ok_or("lzo: a segment is cut off")?;
        let end = output.len().min(done + sector_size);
        let count = lzokay::decompress::decompress(segment, &mut output[done..end])
            .map_err(|error| format!("lzo: {error}"))?;
        done += count;
        at += LENGTH + len;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_input_is_an_error() {
        let zeros = [0; 100];
        for compression in [Compression::Zlib, Compression::Zstd] {
            assert!(decompress(compression, &zeros, 4096, 4096).is_err(), "{compression:?}");
            assert!(decompress(compression, &[], 4096, 4096).is_err(), "{compression:?}");
        }
        assert!(decompress(Compression::Lzo, &[], 4096, 4096).is_err());
        assert!(decompress(Compression::Lzo, &[200, 0, 0, 0], 4096, 4096).is_err());
        assert!(decompress(Compression::Lzo, &[12, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4], 4096, 4096).is_err());
    }

    #[test]
    fn a_large_window_is_refused() {
        // A frame of one raw block of a byte, whose header asks for a window of 128 MiB.
        let frame = [0x28, 0xB5, 0x2F, 0xFD, 0x00, 17 << 3, 0x09, 0, 0, 7];
        let error = decompress(Compression::Zstd, &frame, 4096, 4096).unwrap_err();
        assert!(error.starts_with("zstd"), "{error}");
        let mut small = frame;
        small[5] = 7 << 3;
        assert_eq!(decompress(Compression::Zstd, &small, 2, 4096).unwrap(), [7, 0]);
    }
}
