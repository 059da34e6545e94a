//! An exported filesystem.

use std::fmt;
use std::sync::Arc;

use ivers_nfs4::types::Verifier;
use ivers_vfs::Vfs;

use crate::exports::table::Table;

/// A filesystem with the values that survive a restart of the server.
#[derive(Clone)]
pub struct Filesystem {
    /// The filesystem.
    pub vfs: Arc<Vfs>,
    /// The write verifier at the start. The VFS counts what may have been lost since.
    pub write_verifier: u64,
    /// A random number for each mount if inode numbers are not persistent, which makes older filehandles
    /// stale; otherwise 0.
    pub instance: u32,
}

impl Filesystem {
    /// Converts the generation of an inode to the one in its filehandles, and back.
    pub fn handle_generation(&self, inode: u64, generation: u32) -> u32 {
        // The root directory keeps its filehandle over remounts.
        if inode == self.vfs.info().root.0 { generation } else { generation ^ self.instance }
    }

    /// The verifier of a write or flush that happens now (RFC 8881 section 18.32.3).
    pub fn verifier(&self) -> Verifier {
        self.write_verifier_now().to_be_bytes()
    }

    /// The current write verifier as a number, for stable storage.
    pub fn write_verifier_now(&self) -> u64 {
        self.write_verifier.wrapping_add(self.vfs.writeback_error_seq())
    }
}

impl fmt::Debug for Filesystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.vfs.info().fs_type, self.vfs.info().label)
    }
}

/// The table of exports.
pub type Exports = Table<Filesystem>;
