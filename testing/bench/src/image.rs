//! Images for filesystems under test.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::{find_program, run};

const UUID: &str = "1ac8e3ee-7e0e-4d3c-8f4a-0f2017121315";

/// The format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Btrfs,
    Ext4,
    Fat,
    Xfs,
    /// In memory: there is no image.
    Mem,
}

impl Format {
    /// The name for rows, which `ivers mount -t` takes too.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "btrfs",
            Self::Ext4 => "ext4",
            Self::Fat => "fat",
            Self::Xfs => "xfs",
            Self::Mem => "mem",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let all = [Self::Btrfs, Self::Ext4, Self::Fat, Self::Xfs, Self::Mem];
        all.into_iter().find(|format| format.name() == name)
    }

    /// The kernel's driver as a contender: its name in rows.
    pub(crate) fn kernel_peer(self) -> &'static str {
        match self {
            Self::Btrfs => "kernel_btrfs",
            Self::Ext4 => "kernel_ext4",
            Self::Fat => "kernel_vfat",
            Self::Xfs => "kernel_xfs",
            Self::Mem => "kernel",
        }
    }

    /// The kernel's name, if it has the format.
    pub(crate) fn kernel_name(self) -> &'static str {
        if self == Self::Fat { "vfat" } else { self.name() }
    }
}

/// What to make.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    pub(crate) format: Format,
    pub(crate) bytes: u64,
}

impl Image {
    /// Makes an image. The images of one run are equal in all bytes except timestamps, and UUIDs of btrfs.
    pub(crate) fn make(self, path: &Path) -> Result<()> {
        if self.format == Format::Mem {
            return Ok(());
        }
        let _ = std::fs::remove_file(path);
        std::fs::File::create(path)?.set_len(self.bytes)?;
        match self.format {
            Format::Mem => Ok(()),
            Format::Btrfs => {
                let mkfs = find_program("mkfs.btrfs").context(
                    "mkfs.btrfs is not installed: the btrfs rows need it; install package btrfs-progs",
                )?;
                // The kernel cannot mount two filesystems with one UUID at the same time.
                run(Command::new(mkfs).args(["-q", "-f", "-K"]).arg(path))
            }
            Format::Ext4 => {
                let mkfs = find_program("mkfs.ext4").context(
                    "mkfs.ext4 is not installed: the ext4 rows need it; install package e2fsprogs or use \
                     --fs mem",
                )?;
                // Without these the kernel initializes the image in the background while it is measured.
                let extended = format!("hash_seed={UUID},lazy_itable_init=0,lazy_journal_init=0");
                run(Command::new(mkfs).args(["-q", "-F", "-U", UUID, "-E", &extended]).arg(path))
            }
            Format::Xfs => {
                let mkfs = find_program("mkfs.xfs")
                    .context("mkfs.xfs is not installed: the XFS rows need it; install package xfsprogs")?;
                run(Command::new(mkfs).args(["-q", "-f", "-m", &format!("uuid={UUID}")]).arg(path))
            }
            Format::Fat => {
                let mkfs = find_program("mkfs.fat")
                    .context("mkfs.fat is not installed: the FAT rows need it; install package dosfstools")?;
                run(Command::new(mkfs).args(["-F", "32", "-i", "20171213"]).arg(path))
            }
        }
    }
}

/// Makes an ext4 image.
pub(crate) fn make_ext4(path: &Path, bytes: u64) -> Result<()> {
    Image { format: Format::Ext4, bytes }.make(path)
}
