//! The supported formats: how each is recognised and opened. A new driver adds one entry to [`FORMATS`].

use std::sync::Arc;
use std::time::Duration;

use ivers_block::{Budget, ByteOffset, Device};
use ivers_btrfs::DeviceId;
use ivers_btrfs::check::Scrubbed;
use ivers_vfs::check::{Findings, Memory};
use ivers_vfs::{DriverOptions, Error, FileSystem, NameError, Result, Timestamp, Vfs};

use super::open_options::{BtrfsOptions, ImageOptions, Owners};
use crate::output::failure::{FAILED, failure};

/// A supported format.
pub struct Format {
    /// The types of `-t` that select it. The first names it in errors.
    pub names: &'static [&'static str],
    /// The name of a filesystem of this format in errors.
    pub title: &'static str,
    /// The format stores owners and permissions. If not, options set them.
    pub stores_owners: bool,
    /// Files can have a `security.ima`.
    pub stores_security_xattrs: bool,
    /// The probe also recognises a disk with the partition table of this format.
    pub has_partitions: bool,
    probe: fn(head: &[u8]) -> bool,
    open: Open,
    check: Check,
    /// `None`: the format has no checksums of contents.
    check_data: Option<CheckData>,
    /// Reads and mends copies. `None`: the format has no copies with checksums.
    scrub: Option<Scrub>,
    /// Sets the label of an image that is not mounted; `None`: the driver sets that of a mount.
    pub set_label: Option<SetLabel>,
    /// `None`: filesystems of this format have one device.
    device_id: Option<ReadDeviceId>,
}

/// The devices of a filesystem.
pub struct Devices {
    /// The only one, or the first of several.
    pub first: Arc<dyn Device>,
    /// The others, of a format that has several.
    pub others: Vec<Arc<dyn Device>>,
}

impl Devices {
    fn all(self) -> Vec<Arc<dyn Device>> {
        std::iter::once(self.first).chain(self.others).collect()
    }
}

/// Opens a filesystem. `Budget` bounds its buffers; the string names the image in errors.
type Open = fn(Devices, &ImageOptions, Arc<Budget>, String) -> Result<Arc<dyn FileSystem>>;

/// Checks a filesystem. `Memory` bounds what the check keeps; the string names the image in errors.
type Check = fn(Devices, &ImageOptions, Memory, &str) -> Result<Findings>;

/// As [`Check`], and also compares the contents of files with their checksums.
type CheckData = Check;

/// Reads all copies in a filesystem. Mends bad ones, unless the options are read-only.
type Scrub = fn(Devices, &ImageOptions, Memory, &str) -> Result<Scrubbed>;

/// Sets the label of the filesystem on a device. The last string names the image in errors.
type SetLabel = fn(&dyn Device, label: &str, place: &str) -> Result<()>;

/// Reads which device of a filesystem something is, from its first bytes.
type ReadDeviceId = fn(head: &[u8]) -> Option<DeviceId>;

/// Bytes of a device that a probe sees: the superblock of UFS may lie furthest.
pub const HEAD_BYTES: u64 = ivers_ufs::PROBE_BYTES;

impl Format {
    /// Returns the name of a filesystem of this format with its article.
    pub fn in_words(&self) -> String {
        // "XFS" is spoken as letters.
        let article = if self.title.starts_with(['a', 'e', 'A', 'E', 'O', 'X']) { "an" } else { "a" };
        format!("{article} {}", self.title)
    }
}

/// All formats. The first whose probe recognises a device opens it.
pub const FORMATS: &[Format] = &[
    Format {
        names: &["ext4", "ext3", "ext2"],
        title: "ext2, ext3 or ext4 filesystem",
        stores_owners: true,
        stores_security_xattrs: true,
        has_partitions: false,
        probe: ivers_ext4::probe,
        open: open_ext4,
        check: |devices, _, memory, place| ivers_ext4::check::check(devices.first, memory, place),
        check_data: None,
        scrub: None,
        set_label: None,
        device_id: None,
    },
    Format {
        names: &["fat", "vfat", "msdos", "fat12", "fat16", "fat32"],
        title: "FAT filesystem",
        stores_owners: false,
        stores_security_xattrs: false,
        has_partitions: false,
        probe: ivers_fat::probe,
        open: open_fat,
        check: |devices, _, memory, place| ivers_fat::check::check(devices.first, memory, place),
        check_data: None,
        scrub: None,
        set_label: None,
        device_id: None,
    },
    Format {
        names: &["affs", "ofs", "ffs"],
        title: "AmigaDOS volume",
        stores_owners: true,
        stores_security_xattrs: false,
        has_partitions: true,
        probe: ivers_affs::probe,
        open: open_affs,
        check: check_affs,
        check_data: None,
        scrub: None,
        set_label: None,
        device_id: None,
    },
    Format {
        names: &["xfs"],
        title: "XFS filesystem",
        stores_owners: true,
        stores_security_xattrs: true,
        has_partitions: false,
        probe: ivers_xfs::probe,
        open: open_xfs,
        check: |devices, _, memory, place| ivers_xfs::check::check(devices.first, memory, place),
        check_data: None,
        scrub: None,
        set_label: Some(ivers_xfs::set_label),
        device_id: None,
    },
    Format {
        names: &["btrfs"],
        title: "btrfs filesystem",
        stores_owners: true,
        stores_security_xattrs: true,
        has_partitions: false,
        probe: ivers_btrfs::probe,
        open: open_btrfs,
        check: |devices, options, memory, place| check_btrfs(devices, options, memory, place, false),
        check_data: Some(|devices, options, memory, place| {
            check_btrfs(devices, options, memory, place, true)
        }),
        scrub: Some(scrub_btrfs),
        set_label: None,
        device_id: Some(ivers_btrfs::device_id),
    },
    Format {
        names: &["ocfs2"],
        title: "OCFS2 filesystem",
        stores_owners: true,
        stores_security_xattrs: true,
        has_partitions: false,
        probe: ivers_ocfs2::probe,
        open: open_ocfs2,
        check: |devices, _, memory, place| ivers_ocfs2::check::check(devices.first, memory, place),
        check_data: None,
        scrub: None,
        set_label: None,
        device_id: None,
    },
    // The last one: mkfs of another filesystem leaves old superblocks of UFS at 64 KiB and 256 KiB in place.
    Format {
        names: &["ufs", "ufs1", "ufs2"],
        title: "UFS filesystem",
        stores_owners: true,
        stores_security_xattrs: false,
        has_partitions: false,
        probe: ivers_ufs::probe,
        open: open_ufs,
        check: |devices, _, memory, place| ivers_ufs::check::check(devices.first, memory, place),
        check_data: None,
        scrub: None,
        set_label: Some(ivers_ufs::set_label),
        device_id: None,
    },
];

/// All formats, in words.
pub const SUPPORTED: &str = "ext2, ext3, ext4, FAT, OFS, FFS, XFS, btrfs, OCFS2 or UFS filesystem";

/// Returns the format that `-t` selects by `name`.
pub fn by_name(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.names.contains(&name))
}

/// Says what the format lacks, if that explains an error. Only formats with owners store `what`; all store
/// `None`.
pub fn explain_lack<T>(vfs: &Vfs, what: Option<&str>, result: Result<T>) -> anyhow::Result<T> {
    match (result, by_name(vfs.info().fs_type), what) {
        (Err(Error::Name(NameError::NotSupported | NameError::NotPermitted)), Some(format), Some(what))
            if !format.stores_owners =>
        {
            Err(failure(FAILED, format!("{} stores no {what}", format.in_words())))
        }
        (result, ..) => Ok(result?),
    }
}

/// Returns all types of `-t` that select a format, for errors.
pub fn all_names() -> String {
    FORMATS.iter().flat_map(|format| format.names).copied().collect::<Vec<_>>().join(", ")
}

/// Recognises the format of a device.
pub fn recognise(device: &dyn Device) -> Result<Option<&'static Format>> {
    let head = head(device)?;
    Ok(FORMATS.iter().find(|format| (format.probe)(&head)))
}

/// Returns which device of a filesystem something is, by its first [`HEAD_BYTES`]. `None` if its format has
/// one device.
pub fn device_id(head: &[u8]) -> Option<DeviceId> {
    FORMATS.iter().find_map(|format| (format.device_id?)(head))
}

/// Checks a device that [`recognise`] does not recognise because its first bytes are destroyed. Returns the
/// format and what is wrong, or `None` if no filesystem was there.
pub fn check_remains(device: &dyn Device) -> Result<Option<(&'static str, Findings)>> {
    let found = ivers_ext4::check::check_remains(device)?.map(|found| ("ext4", found));
    let found = found.or(ivers_xfs::check::check_remains(device)?.map(|found| ("xfs", found)));
    let found = found.or(ivers_btrfs::check::check_remains(device)?.map(|found| ("btrfs", found)));
    let found = found.or(ivers_ocfs2::check::check_remains(device)?.map(|found| ("ocfs2", found)));
    Ok(found.or(ivers_ufs::check::check_remains(device)?.map(|found| ("ufs", found))))
}

/// Reads what a probe sees of a device.
pub fn head(device: &dyn Device) -> Result<Vec<u8>> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(ByteOffset(0), &mut head)?;
    Ok(head)
}

impl Format {
    /// Returns whether a device is of this format.
    pub fn is_on(&self, device: &dyn Device) -> Result<bool> {
        Ok((self.probe)(&head(device)?))
    }

    /// Returns whether filesystems of this format can have several devices.
    pub fn has_devices(&self) -> bool {
        self.device_id.is_some()
    }

    /// Checks a filesystem of this format, and the contents of files if `with_data`. `image_name` is for
    /// errors.
    pub fn check(
        &self,
        devices: Devices,
        options: &ImageOptions,
        memory: Memory,
        image_name: &str,
        with_data: bool,
    ) -> Result<Findings> {
        let check = if with_data { self.check_data } else { Some(self.check) };
        let check = check.ok_or_else(|| {
            let why = "has no checksums of data; remove --data";
            Error::Incompatible(format!("{image_name}: {} {why}", self.in_words()))
        })?;
        check(devices, options, memory, image_name)
    }

    /// Reads all copies in a filesystem of this format. `image_name` is for errors.
    pub fn scrub(
        &self,
        devices: Devices,
        options: &ImageOptions,
        memory: Memory,
        image_name: &str,
    ) -> Result<Scrubbed> {
        let scrub = self.scrub.ok_or_else(|| {
            let why = "keeps no copies with checksums: there is nothing to scrub";
            Error::Incompatible(format!("{image_name}: {} {why}", self.in_words()))
        })?;
        scrub(devices, options, memory, image_name)
    }

    /// Opens a filesystem of this format. `image_name` is for errors.
    pub fn open(
        &self,
        devices: Devices,
        options: &ImageOptions,
        budget: Arc<Budget>,
        image_name: String,
    ) -> Result<Arc<dyn FileSystem>> {
        (self.open)(devices, options, budget, image_name)
    }
}

/// The interval of a commit thread that never commits.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

fn common_options(options: &ImageOptions, budget: Arc<Budget>, place: String) -> DriverOptions {
    // With SOURCE_DATE_EPOCH no thread decides when to commit, so equal commands leave equal images.
    let commit_interval = options.stopped_clock.map_or(Duration::from_secs(options.commit_s), |_| NEVER);
    DriverOptions { read_only: options.read_only, budget, commit_interval, place }
}

fn open_ext4(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let options = ivers_ext4::OpenOptions {
        common: common_options(options, budget, image_name),
        trust_foreign: options.trust_foreign,
        no_replay: options.no_replay,
        filling: options.filling,
        short_session: options.short_session,
        stopped_clock: options.stopped_clock.map(|sec| Timestamp { sec, nsec: 0 }),
        ..ivers_ext4::OpenOptions::default()
    };
    Ok(ivers_ext4::Ext4::open(devices.first, options)?)
}

fn open_fat(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let Owners { uid, gid, fmask, dmask, utc_offset_minutes } = options.owners;
    let options = ivers_fat::OpenOptions {
        common: common_options(options, budget, image_name),
        uid,
        gid,
        fmask,
        dmask,
        utc_offset_minutes,
    };
    Ok(ivers_fat::Fat::open(devices.first, options)?)
}

fn open_affs(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let options = ivers_affs::OpenOptions {
        common: common_options(options, budget, image_name),
        partition: options.partition.clone(),
    };
    Ok(ivers_affs::Affs::open(devices.first, options)?)
}

fn check_affs(
    devices: Devices,
    options: &ImageOptions,
    memory: Memory,
    image_name: &str,
) -> Result<Findings> {
    ivers_affs::check::check(devices.first, options.partition.as_deref(), memory, image_name)
}

fn open_xfs(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let options = ivers_xfs::OpenOptions {
        common: common_options(options, budget, image_name),
        no_replay: options.no_replay,
        trust_foreign: options.trust_foreign,
        ..ivers_xfs::OpenOptions::default()
    };
    Ok(ivers_xfs::Xfs::open(devices.first, options)?)
}

fn open_btrfs(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let BtrfsOptions { subvol, subvolid, degraded, compress } = options.btrfs.clone();
    let subvolume = match (subvol, subvolid) {
        (Some(path), _) => ivers_btrfs::Subvolume::Path(path.into_bytes()),
        (None, Some(id)) => ivers_btrfs::Subvolume::Id(id),
        (None, None) => ivers_btrfs::Subvolume::Default,
    };
    let options = ivers_btrfs::OpenOptions {
        common: common_options(options, budget, image_name),
        no_replay: options.no_replay,
        degraded,
        subvolume,
        trust_foreign: options.trust_foreign,
        compress: compress.as_deref().and_then(ivers_btrfs::CompressWith::parse),
    };
    Ok(ivers_btrfs::Btrfs::open(devices.all(), options)?)
}

fn open_ocfs2(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let common = common_options(options, budget, image_name);
    let options = ivers_ocfs2::OpenOptions { common, no_replay: options.no_replay };
    Ok(ivers_ocfs2::Ocfs2::open(devices.first, options)?)
}

fn open_ufs(
    devices: Devices,
    options: &ImageOptions,
    budget: Arc<Budget>,
    image_name: String,
) -> Result<Arc<dyn FileSystem>> {
    let options = ivers_ufs::OpenOptions { common: common_options(options, budget, image_name) };
    Ok(ivers_ufs::Ufs::open(devices.first, options)?)
}

fn check_btrfs(
    devices: Devices,
    options: &ImageOptions,
    memory: Memory,
    image_name: &str,
    data: bool,
) -> Result<Findings> {
    let options = ivers_btrfs::check::Options { data, degraded: options.btrfs.degraded };
    ivers_btrfs::check::check(devices.all(), &options, memory, image_name)
}

fn scrub_btrfs(
    devices: Devices,
    options: &ImageOptions,
    memory: Memory,
    image_name: &str,
) -> Result<Scrubbed> {
    let (writes, degraded) = (!options.read_only, options.btrfs.degraded);
    ivers_btrfs::check::scrub(devices.all(), writes, degraded, memory, image_name)
}

#[cfg(test)]
mod tests {
    use super::super::open_options::AUTO;
    use super::*;

    #[test]
    fn each_name_selects_one_format() {
        let mut names: Vec<_> = FORMATS.iter().flat_map(|format| format.names).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(by_name("vfat").is_some() && by_name(AUTO).is_none() && all_names().contains("ext4"));
        let in_words = |name| by_name(name).unwrap().in_words();
        let words = ["fat", "affs", "xfs", "btrfs", "ocfs2", "ufs"].map(in_words);
        assert_eq!(
            words,
            [
                "a FAT filesystem",
                "an AmigaDOS volume",
                "an XFS filesystem",
                "a btrfs filesystem",
                "an OCFS2 filesystem",
                "a UFS filesystem"
            ]
        );
    }
}
