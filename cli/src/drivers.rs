//! The formats that can be opened: how each is told from its first bytes, and what opens it. A driver more is an entry more.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ivers_block::{Budget, Device};
use ivers_vfs::{FileSystem, Result};
use serde::{Deserialize, Serialize};

use crate::image::How;

/// What `-t` says for "find out".
pub const AUTO: &str = "auto";

/// A format.
pub struct Format {
    /// What `-t` calls it, and its relatives.
    pub names: &'static [&'static str],
    /// Whether it keeps owners and permissions: if it does not, options say whose files are.
    pub keeps_owners: bool,
    /// Whether files can have a `security.ima`.
    pub keeps_labels: bool,
    /// Whether it lies in partitions that have names.
    pub has_partitions: bool,
    probe: fn(head: &[u8]) -> bool,
    open: Open,
}

/// Opens a device, with the bound of its buffers and what messages call it.
type Open = fn(Arc<dyn Device>, &How, Arc<Budget>, String) -> Result<Arc<dyn FileSystem>>;

/// As much of a device as a probe gets.
const HEAD_BYTES: u64 = 4096;

/// All of them. The first whose probe says yes opens a device.
pub const FORMATS: &[Format] = &[
    Format {
        names: &["ext4", "ext3", "ext2"],
        keeps_owners: true,
        keeps_labels: true,
        has_partitions: false,
        probe: is_ext,
        open: open_ext4,
    },
    Format {
        names: &["fat", "vfat", "msdos", "fat12", "fat16", "fat32"],
        keeps_owners: false,
        keeps_labels: false,
        has_partitions: false,
        probe: ivers_fat::probe,
        open: open_fat,
    },
    Format {
        names: &["affs", "ofs", "ffs"],
        keeps_owners: true,
        keeps_labels: false,
        has_partitions: true,
        probe: ivers_affs::probe,
        open: open_affs,
    },
];

/// What they are, in words.
pub const KNOWN: &str = "ext2, ext3, ext4, FAT, OFS or FFS";

/// Whose files are, and what may be done with them, where the format does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owners {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Permission bits that files do not have.
    pub fmask: u32,
    /// Permission bits that directories do not have.
    pub dmask: u32,
    /// How far the times on the medium are ahead of UTC.
    pub utc_offset_minutes: i32,
}

impl Default for Owners {
    /// Of this process.
    fn default() -> Self {
        // Asked for once, before the process locks itself in and starts threads: a server looks at its options again later, and asking sets it for a moment.
        static UMASK: OnceLock<rustix::fs::Mode> = OnceLock::new();
        let umask = *UMASK.get_or_init(|| {
            let umask = rustix::process::umask(rustix::fs::Mode::empty());
            rustix::process::umask(umask);
            umask
        });
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            fmask: umask.as_raw_mode() & 0o777,
            dmask: umask.as_raw_mode() & 0o777,
            utc_offset_minutes: 0,
        }
    }
}

impl Owners {
    /// Takes an option of a mount. None: it makes no sense.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Option<()> {
        let mask = || u32::from_str_radix(value?, 8).ok().filter(|mask| *mask <= 0o777);
        match name {
            "uid" => self.uid = value?.parse().ok()?,
            "gid" => self.gid = value?.parse().ok()?,
            "umask" => (self.fmask, self.dmask) = (mask()?, mask()?),
            "fmask" => self.fmask = mask()?,
            "dmask" => self.dmask = mask()?,
            "utc_offset" => {
                self.utc_offset_minutes = value?.parse().ok().filter(|m| (-1440..=1440).contains(m))?;
            }
            _ => return None,
        }
        Some(())
    }

    /// The options of a mount that are these.
    pub const OPTIONS: [&str; 6] = ["uid", "gid", "umask", "fmask", "dmask", "utc_offset"];

    /// Whether an option of a mount is one of these.
    pub fn has(name: &str) -> bool {
        Self::OPTIONS.contains(&name)
    }
}

/// The format of a name that `-t` takes.
pub fn named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.names.contains(&name))
}

/// All names, for messages.
pub fn all_names() -> String {
    FORMATS.iter().flat_map(|format| format.names).copied().collect::<Vec<_>>().join(", ")
}

/// The format of a device, told from what it holds.
pub fn of(device: &dyn Device) -> Result<Option<&'static Format>> {
    let mut head = vec![0; device.size_bytes().min(HEAD_BYTES) as usize];
    device.read_at(0, &mut head)?;
    Ok(FORMATS.iter().find(|format| (format.probe)(&head)))
}

impl Format {
    /// Open a device of this format.
    pub fn open(
        &self,
        device: Arc<dyn Device>,
        how: &How,
        budget: Arc<Budget>,
        place: String,
    ) -> Result<Arc<dyn FileSystem>> {
        (self.open)(device, how, budget, place)
    }
}

/// `s_magic`.
fn is_ext(head: &[u8]) -> bool {
    head.get(1024 + 56..1024 + 58) == Some(&[0x53, 0xEF])
}

fn open_ext4(
    device: Arc<dyn Device>,
    how: &How,
    budget: Arc<Budget>,
    place: String,
) -> Result<Arc<dyn FileSystem>> {
    let options = ivers_ext4::OpenOptions {
        read_only: how.read_only,
        trust_foreign: how.trust_foreign,
        no_replay: how.no_replay,
        budget,
        commit_interval: Duration::from_secs(how.commit_s),
        place,
    };
    Ok(ivers_ext4::Ext4::open(device, options)?)
}

fn open_fat(
    device: Arc<dyn Device>,
    how: &How,
    budget: Arc<Budget>,
    place: String,
) -> Result<Arc<dyn FileSystem>> {
    let Owners { uid, gid, fmask, dmask, utc_offset_minutes } = how.owners;
    let options = ivers_fat::OpenOptions {
        read_only: how.read_only,
        uid,
        gid,
        fmask,
        dmask,
        utc_offset_minutes,
        budget,
        commit_interval: Duration::from_secs(how.commit_s),
        place,
    };
    Ok(ivers_fat::Fat::open(device, options)?)
}

fn open_affs(
    device: Arc<dyn Device>,
    how: &How,
    budget: Arc<Budget>,
    place: String,
) -> Result<Arc<dyn FileSystem>> {
    let options = ivers_affs::OpenOptions {
        read_only: how.read_only,
        partition: how.partition.clone(),
        budget,
        commit_interval: Duration::from_secs(how.commit_s),
        place,
    };
    Ok(ivers_affs::Affs::open(device, options)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_owners_are_taken() {
        let mut owners = Owners::default();
        for (name, value) in
            [("uid", "7"), ("gid", "8"), ("umask", "027"), ("dmask", "2"), ("utc_offset", "-90")]
        {
            assert!(Owners::has(name) && owners.set(name, Some(value)).is_some());
        }
        let expected = Owners { uid: 7, gid: 8, fmask: 0o27, dmask: 2, utc_offset_minutes: -90 };
        assert_eq!(owners, expected);
        assert_eq!(owners.set("fmask", Some("8")), None);
        assert_eq!(owners.set("uid", None), None);
        assert!(!Owners::has("noatime") && owners.set("noatime", None).is_none());
    }

    #[test]
    fn names_are_one_formats_each() {
        let mut names: Vec<_> = FORMATS.iter().flat_map(|format| format.names).collect();
        let all = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(named("vfat").is_some() && named(AUTO).is_none() && all_names().contains("ext4"));
    }
}
