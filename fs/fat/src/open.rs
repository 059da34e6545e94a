//! Opening a volume: checking it, and repairing what a crash left.

use crate::cluster::Cluster;
use crate::fat::AllocationTable;
use crate::fs::{Fat, order_error};
use crate::ino_map::InoMap;
use crate::layout::Geometry;
use ivers_block::{BufferCache, ByteOffset, Device};
use ivers_vfs::sync::RankedMutex;
use ivers_vfs::{DriverOptions, Error, Result};
use ivers_write_ordering::{Mirror, Ordered, OrderedOptions};
use std::sync::Arc;

/// Options of [`Fat::open`]. The format stores neither owners nor permissions, so all files have those given
/// here.
#[derive(Clone)]
pub struct OpenOptions {
    /// The options that every driver has.
    pub common: DriverOptions,
    /// The owner of all files.
    pub uid: u32,
    /// The group of all files.
    pub gid: u32,
    /// Permission bits that files do not have.
    pub fmask: u32,
    /// Permission bits that directories do not have.
    pub dmask: u32,
    /// The times on the medium minus UTC. The format stores no time zone.
    pub utc_offset_minutes: i32,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            common: DriverOptions::default(),
            uid: 0,
            gid: 0,
            fmask: 0o022,
            dmask: 0o022,
            utc_offset_minutes: 0,
        }
    }
}

impl From<DriverOptions> for OpenOptions {
    fn from(common: DriverOptions) -> Self {
        Self { common, ..Self::default() }
    }
}

impl Fat {
    /// Opens the filesystem on a device. Returns `Error::Incompatible` if the device holds no FAT filesystem.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let mut head = vec![0; 512.min(device.size_bytes()) as usize];
        device.read_at(ByteOffset(0), &mut head)?;
        let geometry = Geometry::parse(&head, device.size_bytes()).map_err(|error| match error {
            Error::Incompatible(text) => Error::Incompatible(format!("{}: {text}", options.common.place)),
            Error::Corrupt { what, place } => {
                Error::corrupt(what, format!("{}: {place}", options.common.place))
            }
            other => other,
        })?;
        let cache =
            Arc::new(BufferCache::new(device.clone(), geometry.sector_bytes, options.common.budget.clone()));
        let table = Arc::new(AllocationTable::new(geometry.clone(), cache.clone())?);
        let read_only = if options.common.read_only {
            Some("opened read-only".to_owned())
        } else {
            device.is_read_only().then(|| "the device is read-only".to_owned())
        };
        if table.was_dirty {
            log::warn!(
                "{}: the volume was not unmounted cleanly; run fsck.fat to free lost clusters",
                options.common.place
            );
        }
        let ordered = match read_only {
            Some(_) => None,
            None => {
                if table.was_dirty {
                    // A crash between the two writes may leave the other copies older than the first, and
                    // the stored count of free clusters wrong.
                    let pieces = table.align_copies()?;
                    log::info!("{}: updated {pieces} pieces of the copies of the FAT", options.common.place);
                    table.count()?;
                }
                let fat = geometry.fat_start;
                let mirror = Mirror { first: fat..fat + geometry.fat_sectors, copies: geometry.copies };
                let ordered_options = OrderedOptions {
                    interval: options.common.commit_interval,
                    mirror: Some(mirror),
                    ..OrderedOptions::default()
                };
                let ordered =
                    Ordered::new(cache.clone(), table.clone(), ordered_options).map_err(order_error)?;
                // The volume is marked dirty while it is mounted, as Linux and Windows do.
                ordered.begin().map_err(order_error)?;
                Some(ordered)
            }
        };
        let mut fat = Self {
            geometry,
            cache,
            table,
            ordered,
            options,
            read_only,
            label: String::new(),
            ino_map: RankedMutex::new(InoMap::default()),
            indexed: RankedMutex::default(),
        };
        fat.label = fat.find_label()?;
        Ok(Arc::new(fat))
    }

    /// Returns the volume label: that of the root directory, or else that of the boot sector.
    fn find_label(&self) -> Result<String> {
        let mut root = self.directory_at(Cluster::NONE);
        let mut label = None;
        self.for_each_slot(&mut root, |_, entry| {
            if entry.is_label() {
                label = Some(entry.dir_name);
                return std::ops::ControlFlow::Break(());
            }
            std::ops::ControlFlow::Continue(())
        })?;
        let label = label.unwrap_or(self.geometry.label);
        let text = crate::names::decode_label(&label);
        Ok(if text == crate::names::NO_LABEL { String::new() } else { text })
    }
}
