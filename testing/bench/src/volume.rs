//! The filesystem that a workload uses: a VFS in this process, or a mounted directory.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::{Budget, FileDevice, OpenMode};
use ivers_btrfs::Btrfs;
use ivers_crash::hooked_fs::{HookedFs, Hooks};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_mem::Mem;
use ivers_vfs::{
    CreateSpec, Cred, DriverOptions, FallocateMode, FileSystem, Inode, InodeRef, MountOptions, SetAttr, Vfs,
    WriteFlags,
};
use ivers_xfs::Xfs;

use super::device::{Counting, Writes};
use super::image::Format;
use super::run;

/// Cached or direct I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Cached,
    Direct,
}

/// A filesystem that several threads can use at once.
pub(crate) trait Volume: Sync {
    /// An open file.
    type File: Sync;
    /// Creates a file in the root directory.
    fn create(&self, name: &str, access: Access) -> Result<Self::File>;
    /// Writes all data.
    fn write(&self, file: &Self::File, offset: u64, data: &[u8]) -> Result<()>;
    /// Fills the buffer.
    fn read(&self, file: &Self::File, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Allocates blocks and sets the size.
    fn allocate(&self, file: &Self::File, bytes: u64) -> Result<()>;
    /// Sets the size without allocating blocks.
    fn extend(&self, file: &Self::File, bytes: u64) -> Result<()>;
    /// Makes the file durable.
    fn fsync(&self, file: &Self::File) -> Result<()>;
    /// Makes everything durable.
    fn sync(&self, file: &Self::File) -> Result<()>;
    /// Removes the file.
    fn remove(&self, name: &str, file: Self::File) -> Result<()>;
    /// Queries the change attribute, where that is possible.
    fn query(&self, file: &Self::File);
    /// Returns the counts so far.
    fn counts(&self) -> Counts;
}

/// Counts of a mount.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) inode_updates: u64,
    pub(crate) journal_blocks: u64,
    pub(crate) queries: u64,
    /// `None` without a device.
    pub(crate) writes: Option<Writes>,
}

impl Counts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            inode_updates: self.inode_updates - before.inode_updates,
            journal_blocks: self.journal_blocks - before.journal_blocks,
            queries: self.queries - before.queries,
            writes: self.writes.zip(before.writes).map(|(now, before)| now.since(before)),
        }
    }
}

/// The library, in this process.
pub(crate) struct InProcess {
    pub(crate) vfs: Arc<Vfs>,
    device: Option<Arc<Counting>>,
    cred: Cred,
}

impl InProcess {
    /// Mounts an image, or a filesystem in memory.
    pub(crate) fn open(format: Format, path: &Path, options: MountOptions) -> Result<Self> {
        Self::open_wrapped(format, path, options, |driver| driver)
    }

    /// As [`Self::open`], but each store of an inode counts as a query of its change attribute.
    pub(crate) fn open_storing_by_query(format: Format, path: &Path, options: MountOptions) -> Result<Self> {
        Self::open_wrapped(format, path, options, |driver| HookedFs::with(driver, StoredByQuery))
    }

    fn open_wrapped(
        format: Format,
        path: &Path,
        mut options: MountOptions,
        wrap: impl FnOnce(Arc<dyn FileSystem>) -> Arc<dyn FileSystem>,
    ) -> Result<Self> {
        let budget = Arc::new(Budget::new(options.cache_bytes));
        let driver_options = DriverOptions {
            read_only: options.read_only,
            budget: budget.clone(),
            place: path.display().to_string(),
            ..DriverOptions::default()
        };
        let image = || -> Result<_> {
            let mode = if options.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
            Ok(Arc::new(Counting::new(FileDevice::open(path, mode)?)))
        };
        let (fs, device): (Arc<dyn FileSystem>, _) = match format {
            Format::Mem => (Arc::new(Mem::new(options.cache_bytes)), None),
            Format::Btrfs => {
                let device = image()?;
                let options = ivers_btrfs::OpenOptions { common: driver_options, ..Default::default() };
                (Btrfs::open(vec![device.clone()], options)?, Some(device))
            }
            Format::Ext4 => {
                let device = image()?;
                (Ext4::open(device.clone(), OpenOptions::from(driver_options))?, Some(device))
            }
            Format::Xfs => {
                let device = image()?;
                let options = ivers_xfs::OpenOptions { common: driver_options, ..Default::default() };
                (Xfs::open(device.clone(), options)?, Some(device))
            }
            Format::Fat => anyhow::bail!("no row measures FAT in this process"),
        };
        options.budget = Some(budget);
        Ok(Self { vfs: Vfs::mount(wrap(fs), options)?, device, cred: Cred::root() })
    }
}

/// Makes each store of an inode a query: the next change must bump its counter again.
struct StoredByQuery;

impl Hooks for StoredByQuery {
    fn stored(&self, inode: &Inode) {
        let _handed_out = inode.with_attr(|_| inode.counter.query_under_lock());
    }
}

/// An open file of the library.
pub(crate) struct Opened {
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
            Access::Cached => self.vfs.read(&Cred::root(), &file.inode, offset, buf)?,
            Access::Direct => self.vfs.read_direct(&Cred::root(), &file.inode, offset, buf)?,
        };
        anyhow::ensure!(got == buf.len(), "read {got} of {} bytes", buf.len());
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
            journal_blocks: self.vfs.journal_written().0,
            queries: stats.queries,
            writes: self.device.as_ref().map(|device| device.writes()),
        }
    }
}

/// The kernel's driver on a loop-mounted image, through system calls.
pub(crate) struct Kernel {
    dir: PathBuf,
}

impl Kernel {
    /// Returns the reason why the kernel cannot mount images here.
    pub(crate) fn missing() -> Option<&'static str> {
        if !rustix::process::geteuid().is_root() {
            Some("a loop mount needs root")
        } else if !Path::new("/dev/loop-control").exists() {
            Some("no loop devices")
        } else {
            None
        }
    }

    /// Mounts an image on an existing directory.
    pub(crate) fn mount(image: &Path, dir: &Path, format: Format) -> Result<Self> {
        let arguments = ["-t", format.kernel_name(), "-o", "loop"];
        run(Command::new("mount").args(arguments).arg(image).arg(dir))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Returns the block layer's counts of the loop device after merging (Documentation/block/stat.rst).
    fn writes(&self) -> Result<Writes> {
        let device = std::fs::metadata(&self.dir)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat"))?;
        let field = |nth: usize| -> Result<u64> {
            Ok(text
                .split_whitespace()
                .nth(nth)
                .context("the stat file of the loop device has too few counts")?
                .parse()?)
        };
        Ok(Writes { calls: field(4)?, bytes: field(6)? * 512, flushes: field(15)? })
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.dir)) {
            eprintln!("bench: {error:#}");
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

    /// Does nothing: the kernel does not show its change attribute to programs.
    fn query(&self, _file: &File) {}

    fn counts(&self) -> Counts {
        Counts { writes: self.writes().ok(), ..Counts::default() }
    }
}
