//! The options of a new filesystem, and its description.

use crate::layout::checksum::ChecksumKind;
use crate::layout::chunk::{DATA, METADATA, Profile, SYSTEM};
use crate::layout::superblock::LABEL_MAX;
use ivers_vfs::{Error, Result};

/// A profile: how many copies there are, and on how many devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copies {
    /// One copy.
    Single,
    /// Two copies on one device.
    Dup,
    /// Two copies on two devices.
    Raid1,
    /// Three copies on three devices.
    Raid1c3,
    /// Four copies on four devices.
    Raid1c4,
}

impl Copies {
    /// All profiles, with the names that mkfs.btrfs has for them.
    pub const ALL: [(&'static str, Self); 5] = [
        ("single", Self::Single),
        ("dup", Self::Dup),
        ("raid1", Self::Raid1),
        ("raid1c3", Self::Raid1c3),
        ("raid1c4", Self::Raid1c4),
    ];

    /// Returns the profile with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, copies)| copies)
    }

    /// Returns its name.
    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, copies)| *copies == self).map_or("", |(name, _)| name)
    }

    /// Returns its bits in the type of a chunk.
    pub(super) fn bits(self) -> u64 {
        match self {
            Self::Single => 0,
            Self::Dup => Profile::DUP,
            Self::Raid1 => Profile::RAID1,
            Self::Raid1c3 => Profile::RAID1C3,
            Self::Raid1c4 => Profile::RAID1C4,
        }
    }

    pub(super) fn count(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Dup | Self::Raid1 => 2,
            Self::Raid1c3 => 3,
            Self::Raid1c4 => 4,
        }
    }

    pub(super) fn devices(self) -> usize {
        if self == Self::Dup { 1 } else { self.count() }
    }
}

/// Options of a new filesystem.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// Bytes of a block of a tree: a power of two from 4096 to 65536.
    pub node_size: u32,
    /// The profile of data.
    pub data: Copies,
    /// The profile of blocks of trees. `None`: RAID1 on several devices, otherwise DUP.
    pub metadata: Option<Copies>,
    /// The checksum of blocks and data.
    pub checksum: ChecksumKind,
    /// The label, at most 255 bytes.
    pub label: Vec<u8>,
    /// The UUID. The UUIDs of devices, chunks and the subvolume are computed from it.
    pub uuid: [u8; 16],
    /// Seconds since 1970: the times of the root directory.
    pub timestamp: u32,
    /// Owner of the root directory: user and group.
    pub root_owner: (u32, u32),
}

impl Default for MkfsOptions {
    fn default() -> Self {
        Self {
            node_size: 16 << 10,
            data: Copies::Single,
            metadata: None,
            checksum: ChecksumKind::Crc32c,
            label: Vec::new(),
            uuid: [0; 16],
            timestamp: 0,
            root_owner: (0, 0),
        }
    }
}

impl MkfsOptions {
    /// Returns the profile of blocks of trees on this number of devices.
    pub(super) fn metadata_on(&self, devices: usize) -> Copies {
        self.metadata.unwrap_or(if devices > 1 { Copies::Raid1 } else { Copies::Dup })
    }

    /// Refuses invalid options.
    pub(super) fn check(&self, devices: usize) -> Result<()> {
        let refuse = |what: String| Err(Error::Incompatible(what));
        if !self.node_size.is_power_of_two() || !(4096..=65536).contains(&self.node_size) {
            return refuse(format!(
                "blocks of {} bytes: must be a power of two, 4096 to 65536",
                self.node_size
            ));
        }
        if self.label.len() > LABEL_MAX || self.label.contains(&0) || self.label.contains(&b'\n') {
            return refuse(format!("the label must have at most {LABEL_MAX} bytes, on one line"));
        }
        for copies in [self.data, self.metadata_on(devices)] {
            if copies.devices() > devices {
                let (name, needed) = (copies.name(), copies.devices());
                return refuse(format!("{name} requires {needed} devices, and there are {devices}"));
            }
        }
        Ok(())
    }
}

/// A description of the new filesystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MkfsReport {
    /// Bytes of all devices.
    pub bytes: u64,
    /// Bytes of a block of a tree.
    pub node_size: u32,
    /// The number of devices.
    pub devices: usize,
    /// The profile of data.
    pub data: &'static str,
    /// The profile of blocks of trees.
    pub metadata: &'static str,
    /// The checksum.
    pub checksum: &'static str,
}

/// The types of the first chunks, in the order of their addresses.
pub(super) const CONTENTS: [u64; 3] = [SYSTEM, METADATA, DATA];
