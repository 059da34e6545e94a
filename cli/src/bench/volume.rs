//! What a workload writes to: a VFS in this process, or a directory on a mount.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Result;
use ivers_vfs::{CreateSpec, Cred, FallocateMode, InodeRef, Vfs, WriteFlags};

use super::run;

/// A filesystem that can be written to by several threads.
pub(super) trait Volume: Sync {
    /// An open file.
    type File: Sync;
    /// Make a file in the root.
    fn create(&self, name: &str) -> Result<Self::File>;
    /// Write all of it.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;
    /// Give the file its blocks and its size.
    fn allocate(&self, file: &Self::File, bytes: u64) -> Result<()>;
    /// Make all durable.
    fn sync(&self, file: &Self::File) -> Result<()>;
    /// Take the file away.
    fn remove(&self, name: &str, file: Self::File) -> Result<()>;
    /// Ask for the change attribute, where that can be done.
    fn query(&self, file: &Self::File);
    /// What has been counted so far.
    fn counts(&self) -> Counts;
}

/// What a mount has counted.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    pub(super) inode_updates: u64,
    pub(super) journal_blocks: u64,
    pub(super) queries: u64,
}

/// The library, in this process.
pub(super) struct InProcess {
    pub(super) vfs: Arc<Vfs>,
    cred: Cred,
}

impl InProcess {
    pub(super) fn new(vfs: Arc<Vfs>) -> Self {
        Self { vfs, cred: Cred::root() }
    }
}

impl Volume for InProcess {
    type File = InodeRef;

    fn create(&self, name: &str) -> Result<InodeRef> {
        let root = self.vfs.root()?;
        Ok(self.vfs.create(&self.cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false)?.0)
    }

    fn write(&self, file: &InodeRef, offset: u64, data: &[u8]) -> Result<()> {
        self.vfs.write(&self.cred, file, offset, data, WriteFlags::empty())?;
        Ok(())
    }

    fn allocate(&self, file: &InodeRef, bytes: u64) -> Result<()> {
        Ok(self.vfs.fallocate(&self.cred, file, FallocateMode::empty(), 0, bytes)?)
    }

    fn sync(&self, _file: &InodeRef) -> Result<()> {
        Ok(self.vfs.sync()?)
    }

    fn remove(&self, name: &str, file: InodeRef) -> Result<()> {
        drop(file);
        self.vfs.unlink(&self.cred, &self.vfs.root()?, name.as_bytes(), false)?;
        Ok(())
    }

    fn query(&self, file: &InodeRef) {
        std::hint::black_box(self.vfs.change(file));
    }

    fn counts(&self) -> Counts {
        let stats = self.vfs.stats();
        Counts {
            inode_updates: stats.inode_updates,
            journal_blocks: self.vfs.fs().journal_stats().0,
            queries: stats.queries,
        }
    }
}

/// The kernel's ext4 on an image, by a loop mount: system calls.
pub(super) struct Kernel {
    dir: PathBuf,
}

impl Kernel {
    /// Why there can be none.
    pub(super) fn missing() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            Some("a loop mount needs root")
        } else if !Path::new("/dev/loop-control").exists() {
            Some("there are no loop devices here")
        } else {
            None
        }
    }

    /// Mount it on a directory that is there.
    pub(super) fn mount(image: &Path, dir: &Path) -> Result<Self> {
        run(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(image).arg(dir))?;
        Ok(Self { dir: dir.to_owned() })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.dir)) {
            log::warn!("{error:#}");
        }
    }
}

impl Volume for Kernel {
    type File = File;

    fn create(&self, name: &str) -> Result<File> {
        Ok(File::create_new(self.dir.join(name))?)
    }

    fn write(&self, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        Ok(file.write_all_at(data, offset)?)
    }

    fn allocate(&self, file: &File, bytes: u64) -> Result<()> {
        Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
    }

    fn sync(&self, file: &File) -> Result<()> {
        Ok(rustix::fs::syncfs(file)?)
    }

    fn remove(&self, name: &str, file: File) -> Result<()> {
        drop(file);
        Ok(std::fs::remove_file(self.dir.join(name))?)
    }

    /// Programs cannot ask the kernel for it.
    fn query(&self, _file: &File) {}

    fn counts(&self) -> Counts {
        Counts::default()
    }
}
