//! Taking the digest of a file, with the change attribute that it vouches for.
//!
//! The order is the contract's (C6): ask, read, ask again. Only if both answers are the same does the second
//! vouch for what was read in between. Whoever reads first and asks afterwards would vouch for what he has
//! not seen.

use crate::digest::{Algorithm, Digest, Hasher};
use crate::file_id::Identity;
use crate::signature::{self, LABEL_MAX, SECURITY_IMA};
use ivers_vfs::{Cred, Error, InodeRef, NameError, Vfs};

/// A file that changes while it is read is read again this often.
const TRIES: u32 = 3;
/// Bytes that are read at once.
const PIECE: usize = 1 << 20;

/// A file that can be measured.
pub trait Subject {
    /// What goes wrong.
    type Error;
    /// Who it is, and its change attribute, which counts as seen from now on.
    fn identity(&mut self) -> Result<Identity, Self::Error>;
    /// Its `security.ima`; empty: it has none.
    fn label(&mut self) -> Result<Vec<u8>, Self::Error>;
    /// Bytes from an offset on; none at the end.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, Self::Error>;
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHash {
    /// The file. It has a change attribute if that vouches for the digest.
    pub identity: Identity,
    /// Of its contents.
    pub digest: Digest,
    /// Its `security.ima`.
    pub label: Vec<u8>,
    /// How much was read, all tries together.
    pub bytes: u64,
    /// It has a change attribute, which never rested: the digest may be one of contents that never were.
    pub moved: bool,
}

/// Read a file. Where its label does not say how it is hashed, it is hashed so.
pub fn hash_file<S: Subject>(subject: &mut S, otherwise: Algorithm) -> Result<FileHash, S::Error> {
    let mut buffer = vec![0; PIECE];
    let mut bytes = 0;
    let mut tries = 0;
    let mut before = subject.identity()?;
    loop {
        let label = subject.label()?;
        let mut hasher = Hasher::new(signature::algorithm(&label, otherwise));
        let mut offset = 0;
        loop {
            match subject.read(offset, &mut buffer)? {
                0 => break,
                n => {
                    hasher.update(&buffer[..n]);
                    offset += n as u64;
                }
            }
        }
        bytes += offset;
        tries += 1;
        let after = subject.identity()?;
        let rests = before == after;
        if rests || tries == TRIES || after.change.is_none() {
            let identity = Identity { change: after.change.filter(|_| rests), ..after };
            let moved = !rests && after.change.is_some();
            return Ok(FileHash { identity, digest: hasher.finish(), label, bytes, moved });
        }
        before = after;
    }
}

/// A file of a mounted filesystem, seen from within.
pub struct VfsFile<'a> {
    /// The filesystem.
    pub vfs: &'a Vfs,
    /// The file.
    pub inode: &'a InodeRef,
}

/// Whether a change attribute of this filesystem vouches for contents and labels at all.
pub fn vouches(vfs: &Vfs) -> bool {
    let promises = vfs.info().semantics;
    promises.data && promises.metadata && promises.monotonic
}

/// Whether it does so beyond the mount, a crash included. A filesystem without a number of its own is any.
pub fn lasts(vfs: &Vfs) -> bool {
    let info = vfs.info();
    vouches(vfs) && info.semantics.persistent && info.semantics.crash_safe && info.uuid != [0; 16]
}

impl Subject for VfsFile<'_> {
    type Error = Error;

    fn identity(&mut self) -> Result<Identity, Error> {
        let change = if vouches(self.vfs) { self.vfs.change(self.inode) } else { None };
        Ok(Identity { ino: self.inode.ino.0, generation: self.inode.generation, change })
    }

    fn label(&mut self) -> Result<Vec<u8>, Error> {
        match self.vfs.get_xattr(&Cred::root(), self.inode, SECURITY_IMA) {
            // One that is too long is none of ours, and says so when it is looked at: a byte more than the
            // longest.
            Ok(mut label) => {
                label.truncate(LABEL_MAX + 1);
                Ok(label)
            }
            Err(Error::Name(NameError::NoAttribute | NameError::NotSupported)) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        self.vfs.read(self.inode, offset, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes under the reader's hands so many times.
    struct Restless {
        changes: u64,
        change: u64,
        cookie: bool,
    }

    impl Subject for Restless {
        type Error = std::convert::Infallible;

        fn identity(&mut self) -> Result<Identity, Self::Error> {
            Ok(Identity { ino: 1, generation: 2, change: self.cookie.then_some(self.change) })
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
    fn nothing_vouches_for_what_changed_meanwhile() {
        let taken = |changes, cookie| {
            hash_file(&mut Restless { changes, change: 5, cookie }, Algorithm::Sha256).unwrap()
        };
        let still = taken(0, true);
        assert_eq!((still.identity.change, still.bytes, still.moved), (Some(5), 1, false));
        let once = taken(1, true);
        assert_eq!((once.identity.change, once.bytes, once.moved), (Some(6), 2, false));
        assert_eq!(once.digest, Algorithm::Sha256.digest(&[6]));
        let always = taken(u64::MAX, true);
        assert_eq!((always.identity.change, always.bytes, always.moved), (None, 3, true));
        let blind = taken(u64::MAX, false);
        assert_eq!((blind.identity.change, blind.bytes, blind.moved), (None, 1, false));
    }
}
