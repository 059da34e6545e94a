//! Opening and closing files, for observers.
//!
//! The VFS itself needs no opens: a reference keeps an inode, and front ends check permissions. Integrity
//! measurement needs them: it must know what a file contained when it was opened, who else has it open, and
//! when the last writer closed it. So front ends report every open and close, and a [`FileObserver`] is told.
//! Without an observer this costs nothing.

use crate::error::Result;
use crate::inode::Inode;
use crate::requests::Cred;
use crate::types::*;
use crate::vfs::{InodeRef, Vfs};
use bitflags::bitflags;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Deeper trees are taken for damage.
const DEPTH_MAX: usize = 4096;

bitflags! {
    /// What a file is opened for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct OpenMode: u32 {
        /// Execution.
        const EXECUTE = 1;
        /// Writing.
        const WRITE = 2;
        /// Reading.
        const READ = 4;
        /// Writing only at the end.
        const APPEND = 8;
    }
}

/// Is told of opens and closes. Called without locks of the VFS unless stated, so it may call the VFS.
pub trait FileObserver: Send + Sync {
    /// A regular file is being opened; an error refuses it. It stays open until [`FileObserver::on_close`]
    /// with the same mode.
    fn on_open(&self, vfs: &Vfs, cred: &Cred, inode: &InodeRef, mode: OpenMode) -> Result<()>;
    /// One of the opens of a file is closed. Everything its writer wrote has arrived.
    fn on_close(&self, vfs: &Vfs, inode: &InodeRef, mode: OpenMode);
    /// A regular file was created. Called under its directory's lock, before anyone can find it: must not
    /// call the VFS.
    fn on_create(&self, inode: &Inode);
    /// An inode was deleted, and its number may be reused. Must not call the VFS.
    fn on_delete(&self, ino: Ino);
    /// A report in JSON for users of the mount.
    fn report(&self) -> String;
}

impl Vfs {
    /// Opens a file. Permissions were checked; the [`FileObserver`] of this mount may refuse it. A successful
    /// open is followed by one [`Vfs::close`] with the same mode.
    pub fn open(&self, cred: &Cred, inode: &InodeRef, mode: OpenMode) -> Result<()> {
        if let Some(server) = self.fs.server().filter(|_| inode.kind == FileType::Regular) {
            // What was cached before this open may be old: close-to-open consistency.
            server.open(cred, inode, mode)?;
            server.revalidate(cred, inode).inspect_err(|_| server.close(inode, mode))?;
        }
        match self.observer() {
            Some(observer) if inode.kind == FileType::Regular => observer.on_open(self, cred, inode, mode),
            _ => Ok(()),
        }
    }

    /// Closes what [`Vfs::open`] opened.
    pub fn close(&self, inode: &InodeRef, mode: OpenMode) {
        if let Some(observer) = self.observer().filter(|_| inode.kind == FileType::Regular) {
            observer.on_close(self, inode, mode);
        }
        if let Some(server) = self.fs.server().filter(|_| inode.kind == FileType::Regular) {
            // An open on another client after this close must see the data, or recall it.
            if !self.is_close_deferred(inode)
                && mode.intersects(OpenMode::WRITE | OpenMode::APPEND)
                && let Err(error) = self.write_back_inode(inode)
            {
                log::warn!("inode {}: cannot write back at close: {error}", inode.ino);
            }
            server.close(inode, mode);
        }
    }

    /// The report of the [`FileObserver`], if there is one.
    pub fn observer_report(&self) -> Option<String> {
        self.observer().map(FileObserver::report)
    }

    /// The path from the root under which an inode was last found, listed, created or renamed. Known only on
    /// a mount with a [`FileObserver`]; `None` for an inode that was only reached by number.
    pub fn path_of(&self, inode: &Inode) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut ino = inode.ino;
        while ino != self.info.root {
            let (dir, name) = self.names.path_hints.find(ino).or_else(|| self.place_of_dir(ino))?;
            // Of several spellings, use the directory's: rules are written for that one.
            let name = if self.info.names_alias { self.name_in(&self.get(dir).ok()?, ino)? } else { name };
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

    /// The parent of a directory and its name there, found by reading the parent.
    pub fn place_of_dir(&self, ino: Ino) -> Option<(Ino, Arc<[u8]>)> {
        let dir = self.get(ino).ok().filter(|dir| dir.kind == FileType::Directory)?;
        let parent = self.lookup(&Cred::system(), &dir, b"..").ok()?;
        Some((parent.ino, self.name_in(&parent, ino)?))
    }

    /// A name of an inode in a directory, as the directory spells it. Reads the directory.
    pub fn name_in(&self, dir: &InodeRef, ino: Ino) -> Option<Arc<[u8]>> {
        let mut name = None;
        let search = self.readdir(&Cred::system(), dir, 0, &mut |entry| {
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
