//! Opening and closing, for whoever wants to hear of it.
//!
//! The VFS itself needs no opens: a reference keeps an inode, and permissions are checked by those who know the caller. Integrity measurement
//! needs them: what a file contained when it was opened, who else has it open, and when the last writer is gone. So front ends say when a file is
//! opened and closed, and a [`Watch`] hears of it, whichever front end that is. Without one nothing is kept and nothing is paid.

use crate::api::Cred;
use crate::error::Result;
use crate::inode::Inode;
use crate::places::Place;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use bitflags::bitflags;
use std::ops::ControlFlow;
use std::sync::Arc;

/// No honest tree is deeper.
const DEPTH_MAX: usize = 4096;

bitflags! {
    /// What a file is opened for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenMode: u32 {
        /// To be run.
        const EXECUTE = 1;
        /// To write.
        const WRITE = 2;
        /// To read.
        const READ = 4;
        /// To write at the end alone.
        const APPEND = 8;
    }
}

/// Hears of opens and closes. Called without locks of the VFS but where another thing is said, so it may call the VFS.
pub trait Watch: Send + Sync {
    /// A regular file is being opened; an error refuses it. Afterwards it is open, until [`Watch::closes`] with the same mode.
    fn opens(&self, vfs: &Vfs, cred: &Cred, inode: &InodeRef, mode: OpenMode) -> Result<()>;
    /// It is no longer open through one of its opens; whatever its writer wrote has arrived.
    fn closes(&self, vfs: &Vfs, inode: &InodeRef, mode: OpenMode);
    /// A regular file was made. Called under its directory's lock, before anybody can find it: calls nothing of the VFS.
    fn made(&self, inode: &Inode);
    /// An inode is gone, and its number will be used again. Calls nothing of the VFS.
    fn gone(&self, ino: Ino);
    /// What it tells whoever asks the mount, in JSON.
    fn report(&self) -> String;
}

impl Vfs {
    /// Somebody opens a file. Permissions were checked; what may refuse it is the [`Watch`] of this mount. An open that succeeded is
    /// followed by one [`Vfs::close`] with the same mode.
    pub fn open(&self, cred: &Cred, inode: &InodeRef, mode: OpenMode) -> Result<()> {
        match self.watch() {
            Some(watch) if inode.kind == FileType::Regular => watch.opens(self, cred, inode, mode),
            _ => Ok(()),
        }
    }

    /// What [`Vfs::open`] opened is closed.
    pub fn close(&self, inode: &InodeRef, mode: OpenMode) {
        if let Some(watch) = self.watch().filter(|_| inode.kind == FileType::Regular) {
            watch.closes(self, inode, mode);
        }
    }

    /// What the [`Watch`] tells, if there is one.
    pub fn watch_report(&self) -> Option<String> {
        self.watch().map(Watch::report)
    }

    /// The path from the root under which an inode was found, listed, made or put last. Known only on a mount with a [`Watch`]; none for what was reached by
    /// its number alone since the mount.
    pub fn path_of(&self, inode: &Inode) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut ino = inode.ino;
        while ino != self.info.root {
            let (dir, name) = self.names.places.find(ino).or_else(|| self.place_of_dir(ino))?;
            // Of several spellings the one that the directory has: rules are written for that.
            let name = if self.fs.names_alias() { self.name_in(&self.get(dir).ok()?, ino)? } else { name };
            names.push(name);
            ino = dir;
            if names.len() > DEPTH_MAX {
                return None;
            }
        }
        let mut path = Vec::new();
        for name in names.iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Some(path)
    }

    /// Of a directory that left the cache meanwhile: it knows its parent.
    fn place_of_dir(&self, ino: Ino) -> Option<Place> {
        let dir = self.get(ino).ok().filter(|dir| dir.kind == FileType::Directory)?;
        let parent = self.lookup(&Cred::root(), &dir, b"..").ok()?;
        Some((parent.ino, self.name_in(&parent, ino)?))
    }

    /// The name of an inode as its directory spells it.
    fn name_in(&self, dir: &InodeRef, ino: Ino) -> Option<Arc<[u8]>> {
        let mut name = None;
        let search = self.readdir(dir, 0, &mut |entry| {
            if entry.ino != ino || entry.name == b"." || entry.name == b".." {
                return ControlFlow::Continue(());
            }
            name = Some(Arc::from(entry.name));
            ControlFlow::Break(())
        });
        search.ok()?;
        name
    }
}
