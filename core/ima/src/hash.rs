//! The digest of a file, with the change attribute that it is valid for.
//!
//! The order is that of promise C6: query, read, query again. If both queries return the same value, that
//! value stands for exactly the bytes that were read. A single query after reading would also cover a change
//! that happened during the read.

use crate::digest::{Algorithm, Digest, Hasher};
use crate::file_id::Identity;
use crate::signature::{self, LABEL_MAX, SECURITY_IMA};
use ivers_vfs::{Cred, Error, InodeRef, NameError, Vfs};

/// How many times a file is read if it changes while it is read.
const ATTEMPTS_MAX: u32 = 3;
/// Bytes per read.
const CHUNK_LEN: usize = 1 << 20;

/// A file that can be measured.
pub trait MeasuredFile {
    /// The error of a failed read.
    type Error;
    /// Queries the change attribute, and returns it with the file's identity.
    fn identity(&mut self) -> Result<Identity, Self::Error>;
    /// Returns `security.ima`; empty if the file has none.
    fn label(&mut self) -> Result<Vec<u8>, Self::Error>;
    /// Reads at `offset`, and returns the number of bytes read; 0 at the end of the file.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error>;
}

/// The result of [`hash_file`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHash {
    /// The file. Its change attribute is present if the digest is valid for it.
    pub identity: Identity,
    /// The digest of the contents.
    pub digest: Digest,
    /// Its `security.ima`.
    pub label: Vec<u8>,
    /// Bytes read in all attempts.
    pub bytes: u64,
    /// The change attribute moved during every attempt: the file may never have had contents of this digest.
    pub unstable: bool,
}

/// Reads and hashes a file, with the algorithm that its label names, otherwise with `default`.
pub fn hash_file<F: MeasuredFile>(file: &mut F, default: Algorithm) -> Result<FileHash, F::Error> {
    let mut buffer = vec![0; CHUNK_LEN];
    let mut bytes = 0;
    let mut attempts = 0;
    let mut before = file.identity()?;
    loop {
        let label = file.label()?;
        let mut hasher = Hasher::new(signature::algorithm(&label, default));
        let mut offset = 0;
        loop {
            match file.read(offset, &mut buffer)? {
                0 => break,
                n => {
                    hasher.update(&buffer[..n]);
                    offset += n as u64;
                }
            }
        }
        bytes += offset;
        attempts += 1;
        let after = file.identity()?;
        let is_unchanged = before == after;
        if is_unchanged || attempts == ATTEMPTS_MAX || after.change.is_none() {
            let identity = Identity { change: after.change.filter(|_| is_unchanged), ..after };
            let unstable = !is_unchanged && after.change.is_some();
            return Ok(FileHash { identity, digest: hasher.finish(), label, bytes, unstable });
        }
        before = after;
    }
}

/// A file that is read through the VFS of this process.
pub struct VfsFile<'a> {
    /// The filesystem.
    pub vfs: &'a Vfs,
    /// The file.
    pub inode: &'a InodeRef,
}

/// Returns whether the change attribute of this filesystem covers contents and labels.
pub fn detects_changes(vfs: &Vfs) -> bool {
    let semantics = vfs.info().semantics;
    semantics.data && semantics.metadata && semantics.monotonic
}

/// Returns whether it also does so across mounts and crashes. This requires a UUID: without one, another
/// filesystem could be mistaken for this one.
pub fn detects_changes_across_mounts(vfs: &Vfs) -> bool {
    let info = vfs.info();
    detects_changes(vfs) && info.semantics.persistent && info.semantics.crash_safe && info.uuid != [0; 16]
}

impl MeasuredFile for VfsFile<'_> {
    type Error = Error;

    fn identity(&mut self) -> Result<Identity, Error> {
        let change = if detects_changes(self.vfs) { self.vfs.change(self.inode) } else { None };
        Ok(Identity { ino: self.inode.ino.0, generation: self.inode.generation, change })
    }

    fn label(&mut self) -> Result<Vec<u8>, Error> {
        match self.vfs.get_xattr(&Cred::root(), self.inode, SECURITY_IMA) {
            // Decoding refuses a label that is too long. One byte more than the maximum suffices for that.
            Ok(mut label) => {
                label.truncate(LABEL_MAX + 1);
                Ok(label)
            }
            Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        self.vfs.read(&Cred::system(), self.inode, offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that changes during each of the next `changes` reads.
    struct ChangingFile {
        changes: u64,
        change: u64,
        has_change: bool,
    }

    impl MeasuredFile for ChangingFile {
        type Error = std::convert::Infallible;

        fn identity(&mut self) -> Result<Identity, Self::Error> {
            Ok(Identity { ino: 1, generation: 2, change: self.has_change.then_some(self.change) })
        }

        fn label(&mut self) -> Result<Vec<u8>, Self::Error> {
            Ok(Vec::new())
        }

        fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error> {
            if offset > 0 {
                return Ok(0);
            }
            buffer[0] = self.change as u8;
            if self.changes > 0 {
                self.changes -= 1;
                self.change += 1;
            }
            Ok(1)
        }
    }

    #[test]
    fn a_digest_is_valid_only_if_the_file_did_not_change() {
        let hashed = |changes, has_change| {
            hash_file(&mut ChangingFile { changes, change: 5, has_change }, Algorithm::Sha256).unwrap()
        };
        let still = hashed(0, true);
        assert_eq!((still.identity.change, still.bytes, still.unstable), (Some(5), 1, false));
        let once = hashed(1, true);
        assert_eq!((once.identity.change, once.bytes, once.unstable), (Some(6), 2, false));
        assert_eq!(once.digest, Algorithm::Sha256.digest(&[6]));
        let always = hashed(u64::MAX, true);
        assert_eq!((always.identity.change, always.bytes, always.unstable), (None, 3, true));
        let unknown = hashed(u64::MAX, false);
        assert_eq!((unknown.identity.change, unknown.bytes, unknown.unstable), (None, 1, false));
    }
}
