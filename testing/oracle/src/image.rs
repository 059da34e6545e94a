//! Images as bytes.

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reads an image. Holes, of which most images mainly consist, are not read.
pub fn read_image(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = usize::try_from(file.metadata()?.len());
    let mut bytes = vec![0; length.map_err(|_| Error::from(ErrorKind::FileTooLarge))?];
    let mut at = 0;
    while at < bytes.len() {
        let start = match seek(&file, SeekFrom::Data(at as u64)) {
            Ok(start) => start as usize,
            // No data follows.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = (seek(&file, SeekFrom::Hole(start as u64))? as usize).min(bytes.len());
        file.read_exact_at(&mut bytes[start.min(end)..end], start as u64)?;
        at = end;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_with_holes_is_read_whole() {
        let image = tempfile::NamedTempFile::new().unwrap();
        let file = image.as_file();
        for length in [0, 1, 5000, 3 << 20] {
            file.set_len(length).unwrap();
            assert!(read_image(image.path()).unwrap() == std::fs::read(image.path()).unwrap());
        }
        for at in [0, 65536, 1_000_000, (3 << 20) - 7] {
            file.write_all_at(b"written", at).unwrap();
            assert!(read_image(image.path()).unwrap() == std::fs::read(image.path()).unwrap());
        }
    }
}
