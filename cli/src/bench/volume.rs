//! What a workload works on: a VFS in this process, or a directory on a mount.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::Device;
use ivers_vfs::{CreateSpec, Cred, FallocateMode, InodeRef, MountOptions, SetAttr, Vfs, WriteFlags};

use super::device::{Counting, Writes};
use super::run;
use crate::image::{self, How};

/// Through the cache or past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Cached,
    Direct,
}

/// A filesystem that can be worked on by several threads.
pub(super) trait Volume: Sync {
    /// An open file.
    type File: Sync;
    /// Make a file in the root.
    fn create(&self, name: &str, access: Access) -> Result<Self::File>;
    /// Write all of it.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;
    /// Fill the buffer.
    fn read(&self, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Give the file its blocks and its size.
    fn allocate(&self, file: &Self::File, bytes: u64) -> Result<()>;
    /// Give the file its size and no blocks.
    fn extend(&self, file: &Self::File, bytes: u64) -> Result<()>;
    /// Make the file durable.
    fn fsync(&self, file: &Self::File) -> Result<()>;
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
    /// None where there is no device.
    pub(super) writes: Option<Writes>,
}

impl Counts {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            inode_updates: self.inode_updates - before.inode_updates,
            journal_blocks: self.journal_blocks - before.journal_blocks,
            queries: self.queries - before.queries,
            writes: self.writes.zip(before.writes).map(|(now, before)| now.since(before)),
        }
    }
}

/// The library, in this process.
pub(super) struct InProcess {
    pub(super) vfs: Arc<Vfs>,
    device: Option<Arc<Counting>>,
    cred: Cred,
}

impl InProcess {
    /// Mount an image, or a filesystem in memory.
    pub(super) fn open(fs: &str, path: &Path, how: &How, options: MountOptions) -> Result<Self> {
        let device = image::open_device(fs, path, how)?.map(|device| Arc::new(Counting::new(device)));
        let shown = device.clone().map(|device| device as Arc<dyn Device>);
        Ok(Self { vfs: image::mount_on(shown, path, how, options)?, device, cred: Cred::root() })
    }
}

/// A file of the library.
pub(super) struct Opened {
    inode: InodeRef,
    access: Access,
}

impl Volume for InProcess {
    type File = Opened;

    fn create(&self, name: &str, access: Access) -> Result<Opened> {
        let root = self.vfs.root()?;
        let made = self.vfs.create(&self.cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false)?;
        Ok(Opened { inode: made.0, access })
    }

    fn write(&self, file: &Opened, offset: u64, data: &[u8]) -> Result<()> {
        let flags = match file.access {
            Access::Cached => WriteFlags::empty(),
            Access::Direct => WriteFlags::DIRECT,
        };
        self.vfs.write(&self.cred, &file.inode, offset, data, flags)?;
        Ok(())
    }

    fn read(&self, file: &Opened, offset: u64, buf: &mut [u8]) -> Result<()> {
        let got = match file.access {
            Access::Cached => self.vfs.read(&file.inode, offset, buf)?,
            Access::Direct => self.vfs.read_direct(&file.inode, offset, buf)?,
        };
        anyhow::ensure!(got == buf.len(), "{got} of {} bytes came back", buf.len());
        Ok(())
    }

    fn allocate(&self, file: &Opened, bytes: u64) -> Result<()> {
        Ok(self.vfs.fallocate(&self.cred, &file.inode, FallocateMode::empty(), 0, bytes)?)
    }

    fn extend(&self, file: &Opened, bytes: u64) -> Result<()> {
        self.vfs.set_attr(&self.cred, &file.inode, &SetAttr { size: Some(bytes), ..SetAttr::default() })?;
        Ok(())
    }

    fn fsync(&self, file: &Opened) -> Result<()> {
        Ok(self.vfs.fsync(&file.inode, false)?)
    }

    fn sync(&self, _file: &Opened) -> Result<()> {
        Ok(self.vfs.sync()?)
    }

    fn remove(&self, name: &str, file: Opened) -> Result<()> {
        drop(file);
        self.vfs.unlink(&self.cred, &self.vfs.root()?, name.as_bytes(), false)?;
        Ok(())
    }

    fn query(&self, file: &Opened) {
        std::hint::black_box(self.vfs.change(&file.inode));
    }

    fn counts(&self) -> Counts {
        let stats = self.vfs.stats();
        Counts {
            inode_updates: stats.inode_updates,
            journal_blocks: self.vfs.fs().journal_stats().0,
            queries: stats.queries,
            writes: self.device.as_ref().map(|device| device.writes()),
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

    /// The block layer's own counts of the loop device, by Documentation/block/stat.rst: after merging.
    fn writes(&self) -> Result<Writes> {
        let device = std::fs::metadata(&self.dir)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
        let field = |nth: usize| -> Result<u64> {
            Ok(text.split_whitespace().nth(nth).context("a device has its counts")?.parse()?)
        };
        Ok(Writes { calls: field(4)?, bytes: field(6)? * 512, flushes: field(15)? })
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

    fn create(&self, name: &str, access: Access) -> Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        if access == Access::Direct {
            options.custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32);
        }
        Ok(options.open(self.dir.join(name))?)
    }

    fn write(&self, file: &File, offset: u64, data: &[u8]) -> Result<()> {
        Ok(file.write_all_at(data, offset)?)
    }

    fn read(&self, file: &File, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(file.read_exact_at(buf, offset)?)
    }

    fn allocate(&self, file: &File, bytes: u64) -> Result<()> {
        Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes)?)
    }

    fn extend(&self, file: &File, bytes: u64) -> Result<()> {
        Ok(file.set_len(bytes)?)
    }

    fn fsync(&self, file: &File) -> Result<()> {
        Ok(file.sync_all()?)
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
        Counts { writes: self.writes().ok(), ..Counts::default() }
    }
}
