//! Opening: what is checked, and what a session that did not end has left.

use crate::cluster::Cluster;
use crate::fat::Fat;
use crate::layout::{Geometry, attr};
use crate::places::Places;
use crate::table::{Table, order_error};
use ivers_block::{Budget, BufferCache, ByteOffset, Device};
use ivers_vfs::sync::Mutex;
use ivers_vfs::{Error, Result};
use ivers_write_ordering::{Mirror, Ordered, OrderedOptions};
use std::sync::Arc;
use std::time::Duration;

/// How to open a FAT filesystem. The format keeps neither owners nor permissions: all files have the ones given here.
#[derive(Clone)]
pub struct OpenOptions {
    /// Write nothing.
    pub read_only: bool,
    /// Whose all files are.
    pub uid: u32,
    /// Their group.
    pub gid: u32,
    /// Permission bits that files do not have.
    pub fmask: u32,
    /// Permission bits that directories do not have.
    pub dmask: u32,
    /// How far the times on the medium are ahead of UTC, as they have no time zone.
    pub utc_offset_minutes: i32,
    /// The memory bound that buffers count against.
    pub budget: Arc<Budget>,
    /// A change goes home at the latest about this long after it was made.
    pub commit_interval: Duration,
    /// What error messages call the device.
    pub place: String,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            uid: 0,
            gid: 0,
            fmask: 0o022,
            dmask: 0o022,
            utc_offset_minutes: 0,
            budget: Arc::new(Budget::new(64 << 20)),
            commit_interval: Duration::from_secs(5),
            place: "device".into(),
        }
    }
}

impl Fat {
    /// Open the filesystem on a device.
    pub fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Arc<Self>> {
        let mut head = vec![0; 512.min(device.size_bytes()) as usize];
        device.read_at(ByteOffset(0), &mut head)?;
        let geometry = Geometry::parse(&head, device.size_bytes()).map_err(|error| match error {
            Error::Incompatible(text) => Error::Incompatible(format!("{}: {text}", options.place)),
            Error::Corrupt { what, place } => Error::corrupt(what, format!("{}: {place}", options.place)),
            other => other,
        })?;
        let cache = Arc::new(BufferCache::new(device.clone(), geometry.sector, options.budget.clone()));
        let table = Arc::new(Table::new(geometry.clone(), cache.clone())?);
        let read_only = if options.read_only {
            Some("opened for reading only".to_owned())
        } else {
            device.is_read_only().then(|| "the device is read-only".to_owned())
        };
        if table.was_dirty {
            log::warn!("{}: not unmounted cleanly: fsck.fat gives lost clusters back", options.place);
        }
        let ordered = match read_only {
            Some(_) => None,
            None => {
                if table.was_dirty {
                    // A crash between the two may have left the copies behind the first; and the count of free clusters is not to be believed.
                    let pieces = table.align_copies()?;
                    log::info!("{}: {pieces} pieces of the FAT's copies made like the first", options.place);
                    table.count()?;
                }
                let fat = geometry.fat;
                let mirror = Mirror { first: fat..fat + geometry.fat_sectors, copies: geometry.copies };
                let ordered_options = OrderedOptions {
                    interval: options.commit_interval,
                    mirror: Some(mirror),
                    ..OrderedOptions::default()
                };
                let ordered =
                    Ordered::new(cache.clone(), table.clone(), ordered_options).map_err(order_error)?;
                // As long as it is mounted, as Linux and Windows do.
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
            places: Mutex::new(Places::default()),
            indexed: Mutex::default(),
        };
        fat.label = fat.find_label()?;
        Ok(Arc::new(fat))
    }

    /// The label is an entry of the root directory; what the boot sector says is a copy.
    fn find_label(&self) -> Result<String> {
        let mut root = self.directory_at(Cluster::NONE);
        let mut label = None;
        self.each_slot(&mut root, |_, entry| {
            let is_label = entry.dir_attr & attr::LONG_NAME_MASK & !attr::ARCHIVE == attr::VOLUME_ID;
            if is_label && entry.dir_name[0] != crate::layout::FREE {
                label = Some(entry.dir_name);
                return std::ops::ControlFlow::Break(());
            }
            std::ops::ControlFlow::Continue(())
        })?;
        let label = label.unwrap_or(self.geometry.label);
        let text = crate::names::label(&label);
        Ok(if text == "NO NAME" { String::new() } else { text })
    }
}
