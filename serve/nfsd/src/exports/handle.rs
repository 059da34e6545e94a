//! Filehandles.
//!
//! | bytes | contents |
//! |---|---|
//! | 1 | version: 1 |
//! | 1 | kind: 1 object of an export, 2 directory of the pseudo-root |
//! | 4 | identity of the export; 0 for the pseudo-root |
//! | 8 | inode number, or number of the directory ([`Handles::pseudo`]) |
//! | 4 | generation of the inode; 0 for the pseudo-root |
//! | 8 | tag: SipHash-2-4 of the bytes before it, keyed with a secret |
//!
//! Numbers are big-endian. A handle that this server did not create is NFS4ERR_BADHANDLE. Whether the object
//! of a valid handle still exists is checked by the table of exports and the filesystem. A client cannot turn
//! a handle into one of another export, because the tag covers the identity.

use std::hash::Hasher;

use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, Opaque};
use siphasher::sip::SipHasher24;

const VERSION: u8 = 1;
const OBJECT: u8 = 1;
const PSEUDO: u8 = 2;
/// Bytes that the tag covers.
const TAGGED_BYTES: usize = 18;
/// Size of a handle in bytes.
pub const HANDLE_BYTES: usize = TAGGED_BYTES + 8;

/// The target of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// An object of an export.
    Object {
        /// Identity of the export.
        export: u32,
        /// Inode number.
        inode: u64,
        /// Generation of the inode.
        generation: u32,
    },
    /// A directory of the pseudo-root.
    Pseudo(u64),
}

/// Creates and verifies handles.
#[derive(Clone)]
pub struct Handles {
    secret: [u8; 16],
}

impl Handles {
    /// Creates the codec. The secret must stay the same across restarts.
    pub fn new(secret: [u8; 16]) -> Self {
        Self { secret }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.secret);
        hasher.write(bytes);
        hasher.finish()
    }

    /// Encodes a handle.
    pub fn encode(&self, target: Target) -> FileHandle {
        let (kind, export, inode, generation) = match target {
            Target::Object { export, inode, generation } => (OBJECT, export, inode, generation),
            Target::Pseudo(number) => (PSEUDO, 0, number, 0),
        };
        let mut bytes = Vec::with_capacity(HANDLE_BYTES);
        bytes.extend([VERSION, kind]);
        bytes.extend(export.to_be_bytes());
        bytes.extend(inode.to_be_bytes());
        bytes.extend(generation.to_be_bytes());
        bytes.extend(self.hash(&bytes).to_be_bytes());
        Opaque(bytes)
    }

    /// Decodes a handle. Returns NFS4ERR_BADHANDLE for a handle that this server did not create.
    pub fn decode(&self, handle: &FileHandle) -> Result<Target, NfsStat> {
        let bytes: &[u8; HANDLE_BYTES] = handle.0.as_slice().try_into().map_err(|_| NfsStat::Badhandle)?;
        let (named, tag) = bytes.split_at(TAGGED_BYTES);
        if self.hash(named).to_be_bytes() != tag {
            return Err(NfsStat::Badhandle);
        }
        let four = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let inode = u64::from(four(6)) << 32 | u64::from(four(10));
        match (bytes[0], bytes[1]) {
            (VERSION, OBJECT) => Ok(Target::Object { export: four(2), inode, generation: four(14) }),
            (VERSION, PSEUDO) => Ok(Target::Pseudo(inode)),
            _ => Err(NfsStat::Badhandle),
        }
    }

    /// Returns the number of a directory of the pseudo-root. It depends on the path alone, so it survives
    /// restarts and changes of other exports.
    pub fn pseudo(&self, path: &str) -> u64 {
        // This input cannot collide with a tagged handle: its first byte '/' is not a version.
        self.hash(path.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_have_the_documented_format() {
        let handles = Handles::new(*b"sixteen bytes...");
        let target =
            Target::Object { export: 0x0102_0304, inode: 0x1112_1314_1516_1718, generation: 0x2122_2324 };
        let handle = handles.encode(target);
        let named =
            [1, 1, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(handle.0[..18], named);
        // Computed with another implementation of SipHash-2-4, which matches the vector of the paper.
        assert_eq!(handle.0[18..], 0xaded_043a_1de7_a54cu64.to_be_bytes());
        assert_eq!(handles.decode(&handle), Ok(target));
        let pseudo = Target::Pseudo(handles.pseudo("/data"));
        assert_eq!(handles.decode(&handles.encode(pseudo)), Ok(pseudo));
    }

    #[test]
    fn a_modified_or_foreign_handle_is_refused() {
        let handles = Handles::new([1; 16]);
        let good = handles.encode(Target::Object { export: 7, inode: 2, generation: 0 });
        let bad = |bytes: Vec<u8>| assert_eq!(handles.decode(&Opaque(bytes)), Err(NfsStat::Badhandle));
        for bit in 0..good.0.len() * 8 {
            let mut bytes = good.0.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            bad(bytes);
        }
        for len in 0..good.0.len() {
            bad(good.0[..len].to_vec());
        }
        bad([&good.0[..], &[0]].concat());
        // A handle of another server, and one of another version with our secret.
        bad(Handles::new([2; 16]).encode(Target::Pseudo(1)).0);
        let mut future = good.0[..18].to_vec();
        future[0] = 2;
        let tag = handles.hash(&future);
        bad([&future[..], &tag.to_be_bytes()].concat());
    }
}
