//! One interface to all contenders.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};

/// A writable filesystem. Files lie in the root directory and are identified by inode number.
pub trait Contender {
    fn create(&mut self, name: &str) -> Result<u64>;
    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> Result<()>;
    fn unlink(&mut self, name: &str) -> Result<()>;
    /// Makes everything durable on the device.
    fn sync(&mut self) -> Result<()>;
    /// Syncs and unmounts.
    fn finish(&mut self) -> Result<()>;
}

type Open = fn(&Path) -> Result<Box<dyn Contender>>;

/// Names, whether they can have a journal, and how to open each.
pub const ALL: [(&str, bool, Open); 4] = [
    ("ivers", true, Ivers::open),
    ("rust_fs_ext4", true, RustFs::open),
    ("rsext4", true, RsExt4::open),
    ("ext4plus_no_journal", false, Plus::open),
];

/// ivers as a library.
struct Ivers {
    vfs: Arc<ivers_vfs::Vfs>,
    cred: ivers_vfs::Cred,
    /// Open files: other crates take an inode number in each call, this is the equivalent.
    open: Vec<(u64, ivers_vfs::InodeRef)>,
}

impl Ivers {
    fn open(image: &Path) -> Result<Box<dyn Contender>> {
        let device = ivers_block::FileDevice::open(image, ivers_block::OpenMode::ReadWrite)?;
        // The default of an ivers mount.
        const CACHE_BYTES: u64 = 256 << 20;
        let budget = Arc::new(ivers_block::Budget::new(CACHE_BYTES));
        let common = ivers_vfs::DriverOptions { budget: budget.clone(), ..Default::default() };
        let options = ivers_ext4::OpenOptions::from(common);
        let fs = ivers_ext4::Ext4::open(Arc::new(device), options)?;
        let options =
            ivers_vfs::MountOptions { cache_bytes: CACHE_BYTES, budget: Some(budget), ..Default::default() };
        let vfs = ivers_vfs::Vfs::mount(fs, options)?;
        Ok(Box::new(Self { vfs, cred: ivers_vfs::Cred::root(), open: Vec::new() }))
    }
}

impl Contender for Ivers {
    fn create(&mut self, name: &str) -> Result<u64> {
        let spec = ivers_vfs::CreateSpec::file(0o644);
        let inode = self.vfs.create(&self.cred, &self.vfs.root()?, name.as_bytes(), &spec, false)?.0;
        let number = inode.ino.0;
        if self.open.len() < 2 {
            self.open.push((number, inode));
        }
        Ok(number)
    }

    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> Result<()> {
        let (_, inode) = self.open.iter().find(|(number, _)| *number == file).context("the file is open")?;
        self.vfs.write(&self.cred, inode, offset, data, ivers_vfs::WriteFlags::empty())?;
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        self.vfs.unlink(&self.cred, &self.vfs.root()?, name.as_bytes(), false)?;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.vfs.sync()?)
    }

    fn finish(&mut self) -> Result<()> {
        self.open.clear();
        Ok(self.vfs.unmount()?)
    }
}

struct RustFs(Option<fs_ext4::fs::Filesystem>);

const ROOT: u32 = 2;

impl RustFs {
    fn open(image: &Path) -> Result<Box<dyn Contender>> {
        let device = fs_ext4::block_io::FileDevice::open_path_rw(image).map_err(|e| anyhow!("{e:?}"))?;
        let fs = fs_ext4::fs::Filesystem::mount(Arc::new(device)).map_err(|e| anyhow!("{e:?}"))?;
        Ok(Box::new(Self(Some(fs))))
    }

    fn fs(&self) -> Result<&fs_ext4::fs::Filesystem> {
        self.0.as_ref().context("it is mounted")
    }
}

impl Contender for RustFs {
    fn create(&mut self, name: &str) -> Result<u64> {
        let number = self.fs()?.apply_create_at(ROOT, name.as_bytes(), 0o644);
        number.map(u64::from).map_err(|e| anyhow!("{e:?}"))
    }

    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> Result<()> {
        self.fs()?
            .apply_pwrite_ino(u32::try_from(file)?, offset, data)
            .map(drop)
            .map_err(|e| anyhow!("{e:?}"))
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        self.fs()?.apply_unlink_at(ROOT, name.as_bytes()).map_err(|e| anyhow!("{e:?}"))
    }

    fn sync(&mut self) -> Result<()> {
        self.fs()?.flush().map_err(|e| anyhow!("{e:?}"))
    }

    fn finish(&mut self) -> Result<()> {
        self.0.take().context("it is mounted")?.finish().map_err(|e| anyhow!("{e:?}"))
    }
}

/// The image for rsext4, in sectors of one block.
struct Sectors {
    file: File,
    blocks: u64,
}

const SECTOR: u32 = 4096;

fn device_error(_: std::io::Error) -> rsext4::Ext4Error {
    rsext4::Ext4Error::io()
}

impl rsext4::BlockIo for Sectors {
    fn write(&mut self, buffer: &[u8], sector: rsext4::SectorId, _count: u32) -> rsext4::Ext4Result<()> {
        self.file.write_all_at(buffer, sector.raw() * u64::from(SECTOR)).map_err(device_error)
    }

    fn read(&mut self, buffer: &mut [u8], sector: rsext4::SectorId, _count: u32) -> rsext4::Ext4Result<()> {
        self.file.read_exact_at(buffer, sector.raw() * u64::from(SECTOR)).map_err(device_error)
    }

    fn geometry(&self) -> rsext4::DeviceGeometry {
        rsext4::DeviceGeometry::new(SECTOR, self.blocks)
    }

    fn capabilities(&self) -> rsext4::DeviceCapabilities {
        rsext4::DeviceCapabilities { flush: true, ..Default::default() }
    }

    fn flush(&mut self) -> rsext4::Ext4Result<()> {
        self.file.sync_data().map_err(device_error)
    }
}

struct Now;

impl rsext4::Clock for Now {
    fn now(&self) -> rsext4::Ext4Result<rsext4::Ext4Timestamp> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(rsext4::Ext4Timestamp::new(since.as_secs() as i64, since.subsec_nanos()))
    }
}

type Mounted = rsext4::Ext4<Sectors, rsext4::MountedServices<(), rsext4::NoopObserver>>;

struct RsExt4(Mounted);

fn rs_error(error: rsext4::Ext4Error) -> anyhow::Error {
    anyhow!("{error:?}")
}

impl RsExt4 {
    fn open(image: &Path) -> Result<Box<dyn Contender>> {
        let file = File::options().read(true).write(true).open(image)?;
        let blocks = file.metadata()?.len() / u64::from(SECTOR);
        let services = rsext4::MountServices::new(Now, (), rsext4::NoopObserver);
        let options = rsext4::MountOptions::read_write();
        let mounted = rsext4::Ext4::mount(Sectors { file, blocks }, services, options).map_err(rs_error)?;
        Ok(Box::new(Self(mounted)))
    }
}

impl Contender for RsExt4 {
    fn create(&mut self, name: &str) -> Result<u64> {
        let context = rsext4::MutationContext::new(0, 0, 0, 0);
        let name = rsext4::FileName::new(name.as_bytes()).map_err(rs_error)?;
        let permissions = rsext4::FilePermissions::new(0o644).map_err(rs_error)?;
        let root = self.0.root_inode();
        let made = self.0.create_regular_file(context, root, name, permissions).map_err(rs_error)?;
        Ok(u64::from(made.number.raw()))
    }

    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> Result<()> {
        let number = rsext4::InodeNumber::from_u64(file).map_err(rs_error)?;
        self.0.write_inode(number, offset, data).map_err(rs_error)
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        let name = rsext4::FileName::new(name.as_bytes()).map_err(rs_error)?;
        let gone = self.0.unlink(self.0.root_inode(), name).map_err(rs_error)?;
        if gone.requires_reap() {
            self.0.reap_unlinked_inode(gone.inode).map_err(rs_error)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.0.sync().map_err(rs_error)
    }

    fn finish(&mut self) -> Result<()> {
        self.0.unmount().map_err(rs_error)
    }
}

/// ext4plus has no sync of its own: its writes go to the file at once, and the file is synced.
struct Plus {
    fs: ext4plus::Ext4,
    file: File,
    /// Inodes that ext4plus expects the caller to keep, without those that are only created.
    open: Vec<(u64, ext4plus::inode::Inode)>,
}

impl Plus {
    fn open(image: &Path) -> Result<Box<dyn Contender>> {
        let file = File::options().read(true).write(true).open(image)?;
        let fs =
            ext4plus::Ext4::load_with_writer(Box::new(file.try_clone()?), Some(Box::new(file.try_clone()?)))?;
        Ok(Box::new(Self { fs, file, open: Vec::new() }))
    }

    fn root(&self) -> Result<ext4plus::dir::Dir> {
        Ok(ext4plus::dir::Dir::open_inode(&self.fs, self.fs.read_root_inode()?)?)
    }
}

impl Contender for Plus {
    fn create(&mut self, name: &str) -> Result<u64> {
        use ext4plus::inode::{InodeCreationOptions, InodeFlags, InodeMode};
        let mut inode = self.fs.create_inode(InodeCreationOptions {
            file_type: ext4plus::FileType::Regular,
            mode: InodeMode::S_IFREG | InodeMode::S_IRUSR | InodeMode::S_IWUSR,
            uid: 0,
            gid: 0,
            time: SystemTime::now().duration_since(UNIX_EPOCH)?,
            flags: InodeFlags::empty(),
        })?;
        self.root()?.link(ext4plus::DirEntryName::try_from(name.as_bytes())?, &mut inode)?;
        let number = u64::from(inode.index.get());
        if self.open.len() < 2 {
            self.open.push((number, inode));
        }
        Ok(number)
    }

    fn write(&mut self, file: u64, offset: u64, data: &[u8]) -> Result<()> {
        let open = self.open.iter_mut().find(|(number, _)| *number == file);
        let (_, inode) = open.context("the file is open")?;
        let mut written = 0;
        while written < data.len() {
            let more = ext4plus::file::write_at(&self.fs, inode, &data[written..], offset + written as u64)?;
            anyhow::ensure!(more > 0, "nothing was written");
            written += more;
        }
        Ok(())
    }

    fn unlink(&mut self, name: &str) -> Result<()> {
        let mut root = self.root()?;
        let name = ext4plus::DirEntryName::try_from(name.as_bytes())?;
        let inode = root.get_entry(name)?;
        root.unlink(name, inode)?;
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.file.sync_data()?)
    }

    fn finish(&mut self) -> Result<()> {
        self.sync()
    }
}
