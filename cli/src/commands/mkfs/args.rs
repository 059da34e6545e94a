//! The arguments of `mkfs`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueEnum;

use super::super::tar::owners::OwnerArgs;
use crate::arguments::Completed;

/// The features of ext and XFS that shells complete.
const FEATURES: &[&str] = &[
    "has_journal",
    "ext_attr",
    "resize_inode",
    "dir_index",
    "extent",
    "64bit",
    "large_dir",
    "inline_data",
    "huge_file",
    "dir_nlink",
    "metadata_csum",
    "project",
    "finobt",
    "rmapbt",
    "reflink",
    "inobtcount",
    "sparse",
    "bigtime",
    "nrext64",
    "exchange",
    "parent",
];

const HELP: &str = "\
ext2, ext3 and ext4 have the features that e2fsprogs 1.47 enables by default. FAT has the sizes of mkfs.fat; \
type \"fat\" chooses FAT12, FAT16 or FAT32 by size. Types \"ffs\" and \"affs\" make the international FFS \
(DOS\\3), \"ofs\" the first format of the Amiga (DOS\\0). XFS has the geometry of mkfs.xfs, and the features \
that mkfs.xfs 6.6 to 6.12 enables by default, which Linux 5.19 and later mount. btrfs has the features and \
sizes of mkfs.btrfs 6.2; Linux 5.15 and later mount it. UFS1 and UFS2 have the sizes of newfs of FreeBSD, \
little-endian, without soft updates.

Equal calls on equal files make equal images, byte for byte, with --timestamp and, for ext, XFS, btrfs and \
UFS, --uuid, for FAT, --volume-id. The environment variable SOURCE_DATE_EPOCH replaces --timestamp. (A \
sparse file reads as zeros; the image records that.) Nothing is written before all checks have passed. An \
image that is not empty is refused (exit code 4), and so is a filesystem that has no space for its journal.

--from fills the filesystem in one pass, without root: owners, modes, times, hard links, holes, ACLs and \
extended attributes are those of the directory or the archive. Times after --timestamp become that time. \
--spec names a device table, as genext2fs and Buildroot read it: lines of path, type (f, d, c, b or p), \
mode, uid, gid, major, minor, start, increment and count, with - for what is not used. --owner, --group and \
--all-root replace the owners of the source, before --spec and --root-owner apply. --exclude takes the \
patterns of GNU tar: *.o, .git or usr/share/doc. With --size auto the \
filesystem is made several times, until less than about 2 % of it is free, and has about as many inodes as \
are used. What cannot be created is named on standard error; the rest is created, and the command fails. \
After a signal (Ctrl-C), or if the files do not fit, a file that the command created is removed; in a file \
or device that existed it leaves no filesystem. After a signal the exit code is 130.

--features changes the features of ext and XFS: a name adds one, ^ before it removes one, and commas \
separate, as large_dir,^metadata_csum. ext has has_journal, ext_attr, resize_inode, dir_index, extent, \
64bit, large_dir, inline_data, huge_file, dir_nlink, metadata_csum and project. XFS has finobt, rmapbt, \
reflink, inobtcount, sparse, bigtime, nrext64, exchange and parent. The last two need Linux 6.10.

JSON: path, fs. For ext: uuid, block_size, blocks, inodes, groups, journal_blocks. For FAT: volume_id, \
cluster_size, clusters, root_entries. For the Amiga: block_size, blocks. For XFS: uuid, block_size, blocks, \
groups, log_blocks, sector_size, inode_size, features. For btrfs: uuid, block_size, bytes, devices, data, \
metadata, checksum. For UFS: id, block_size, fragment_size, fragments, groups, inodes. With --from: files, \
problems.

Examples:
  ivers mkfs disk.img --size 1G --root-owner
  ivers mkfs --type fat32 --label BOOT --size 64M boot.img
  ivers mkfs disk-with-partitions.img@2
  ivers mkfs rootfs.img --from rootfs.tar --size auto
  ivers mkfs disk.img --from tree --spec devices.txt --size 64M --timestamp 0
  ivers mkfs rootfs.img --from tree --all-root --exclude .git --size auto
  ivers mkfs -L data -m 0 /dev/sdx1
  ivers mkfs disk.img --size 1G -O ^metadata_csum,^64bit
  ivers mkfs --type xfs disk.img --size 10G --features parent,exchange
  ivers mkfs --type btrfs disk.img --size 1G --data dup --checksum xxhash64";

/// A format that `mkfs` makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FsType {
    Ext2,
    Ext3,
    Ext4,
    #[value(aliases = ["vfat", "msdos"])]
    Fat,
    Fat12,
    Fat16,
    Fat32,
    Affs,
    Ofs,
    Ffs,
    Xfs,
    Btrfs,
    Ufs1,
    #[value(alias = "ufs")]
    Ufs2,
}

/// Options of `mkfs`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The image file or block device, or a partition of one: IMAGE@PARTITION
    pub image: PathBuf,
    /// The format
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4")]
    pub fs_type: FsType,
    /// Create the file with this size or grow it to this size, as 512M or 10G; auto, with --from: about as
    /// small as the files fit
    #[arg(short, long)]
    pub size: Option<String>,
    /// Block size; of FAT: cluster size; of btrfs: size of the blocks of trees. ext: 1024, 2048 or 4096
    /// (default: 1024 below 512 MiB, else 4096); FAT: 512 to 65536 (default: by size); Amiga: 512 to 4096
    /// (default: 512); XFS: 1024 to 65536 (default: 4096); btrfs: 4096 to 65536 (default: 16384); UFS: 4096
    /// to 65536 (default: 32768), a fragment is an eighth of it
    #[arg(short, long, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Inode size. ext: 256 or a larger power of two up to the block size (default: 256); XFS: 512, 1024 or
    /// 2048 (default: 512)
    #[arg(short = 'I', long, value_name = "BYTES")]
    pub inode_size: Option<u32>,
    /// ext, UFS: create one inode per this many bytes (default: ext by size, UFS 8192)
    #[arg(short = 'i', long, value_name = "BYTES")]
    pub bytes_per_inode: Option<u32>,
    /// ext, UFS: reserve this part of the blocks for the superuser (default: 5, UFS 8)
    #[arg(short = 'm', long, value_name = "PERCENT")]
    pub reserved_percent: Option<u32>,
    /// The label: at most 16 bytes (ext), 11 characters (FAT), 30 characters (Amiga), 12 bytes (XFS), 255
    /// bytes (btrfs) or 31 bytes (UFS)
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    pub label: String,
    /// ext, XFS, btrfs: the UUID (default: random); UFS: its first half is the ID
    #[arg(short = 'U', long)]
    pub uuid: Option<String>,
    /// FAT: the serial number, as 1234-ABCD (default: random)
    #[arg(long, value_name = "ID")]
    pub volume_id: Option<String>,
    /// ext: the seed of hashed directories, as a UUID (default: derived from the UUID)
    #[arg(long, value_name = "UUID")]
    pub hash_seed: Option<String>,
    /// The time of creation in seconds since 1970 (default: $SOURCE_DATE_EPOCH, else now)
    #[arg(long, value_name = "SECONDS")]
    pub timestamp: Option<u32>,
    /// ext, XFS, btrfs: the owner of the root directory and of lost+found (default: 0:0; without a value: the
    /// calling user)
    #[arg(long, value_name = "UID:GID", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub root_owner: Option<String>,
    /// ext3, ext4: make no journal
    #[arg(long)]
    pub no_journal: bool,
    /// ext, XFS: features to add, or with ^ to remove, as large_dir,^metadata_csum
    #[arg(
        short = 'O',
        long,
        value_name = "LIST",
        value_parser = Completed(FEATURES),
        hide_possible_values = true
    )]
    pub features: Option<String>,
    /// XFS: the number of allocation groups (default: 4; from 4 TiB on, one for each TiB)
    #[arg(long, value_name = "NUMBER")]
    pub agcount: Option<u32>,
    /// XFS: the size of the log, as 128M (default: 1/2048 of the size, 64 MiB to 2038 MiB)
    #[arg(long, value_name = "SIZE")]
    pub log_size: Option<String>,
    /// XFS: sector size, 512 to 32768 (default: that of the device; 512 for a file)
    #[arg(long, value_name = "BYTES")]
    pub sector_size: Option<u32>,
    /// XFS: allow less than 300 MiB, and a log of less than 64 MiB, as for tests
    #[arg(long)]
    pub small: bool,
    /// btrfs: copies of data: single or dup (default: single)
    #[arg(long, value_name = "PROFILE")]
    pub data: Option<String>,
    /// btrfs: copies of the blocks of trees: single or dup (default: dup)
    #[arg(long, value_name = "PROFILE")]
    pub metadata: Option<String>,
    /// btrfs: the checksum: crc32c, xxhash64, sha256 or blake2b (default: crc32c)
    #[arg(long, value_name = "NAME")]
    pub checksum: Option<String>,
    /// Overwrite existing contents
    #[arg(short = 'F', long)]
    pub force: bool,
    #[command(flatten)]
    pub filling: FromArgs,
}

/// Options for filling.
#[derive(Debug, clap::Args)]
pub struct FromArgs {
    /// Fill the filesystem with the files of a directory, or of a tar archive (-: standard input)
    #[arg(long, value_name = "DIR|TAR|-")]
    pub from: Option<PathBuf>,
    /// With --from: set owners and modes and create device nodes as a device table says
    #[arg(long, value_name = "FILE", requires = "from")]
    pub spec: Option<PathBuf>,
    /// With --from: leave out files that match a pattern, and what is below them
    #[arg(long, value_name = "PATTERN", requires = "from")]
    pub exclude: Vec<OsString>,
    /// With --from: follow and keep symbolic links to directories, such as lib -> usr/lib, in the paths of an
    /// archive and of --spec
    #[arg(long, requires = "from")]
    pub keep_directory_symlink: bool,
    #[command(flatten)]
    pub owners: OwnerArgs,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_complete_features_that_exist() {
        for name in FEATURES {
            let ext = ivers_ext4::mkfs::FeatureChanges::parse(name).is_ok();
            assert!(ext || ivers_xfs::mkfs::Features::parse(name).is_ok(), "{name}");
        }
    }
}
