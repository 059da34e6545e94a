//! The command line: the one source of help, completions and manual pages.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::failure::EXIT_CODES;
use crate::image::How;

/// Open ext4 images, mount them in userspace, and know exactly what changed.
///
/// Every inode has a change attribute: a 64-bit number that is different, and larger, whenever anything about the inode changed
/// since somebody last looked. `ivers stat` shows it, `ivers changed` compares it.
///
/// Files in an image that is not mounted are written IMAGE:/path.
#[derive(Debug, Parser)]
#[command(name = "ivers", version, after_long_help = EXIT_CODES, infer_long_args = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
    /// Answer in JSON: one document, or one object a line where there are several answers.
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress bars (there are none without a terminal either, nor with --json)
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// How to open the images of a command that does not mount them.
#[derive(Debug, Clone, Args)]
pub struct Image {
    /// How to open images, separated by commas: offset=BYTES, where the filesystem begins (a partition); nosandbox, do not lock the process
    /// in that parses; cache=SIZE; norecovery; trust-foreign; all as in ivers mount --help
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
}

impl Image {
    /// What they say, for reading.
    pub fn how(&self) -> anyhow::Result<How> {
        crate::options::parse_looking(&self.options)
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Task {
    /// Mount an image on a directory; returns when the mount serves
    Mount(Mount),
    /// Unmount; returns when the image is safe on disk and its process gone
    Unmount(Unmount),
    /// Show the change attribute of files, what it promises, and the usual attributes
    Stat(Stat),
    /// Which files changed since a saved state, without reading their contents
    Changed(Changed),
    /// List a directory in an image
    Ls(Ls),
    /// Write files of an image to standard output
    Cat(Cat),
    /// Copy files out of an image, into it, or between images
    Cp(Cp),
    /// Show a directory in an image as a tree
    Tree(Tree),
    /// What an image or a mount is: format, size, features, promises
    Info(Info),
    /// The counters of a mount: changes, queries, bumps, inode updates by cause, journal
    Stats(Stats),
    /// Measure what the change attribute costs: eager (old), lazy (new) and off (none), interleaved
    Bench(Bench),
    /// Make an ext4 filesystem in a file or on a device
    Mkfs(Mkfs),
    /// Write a shell's completions to standard output
    #[command(hide = true)]
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory.
        dir: PathBuf,
    },
    /// The process that parses an image for another one
    #[command(hide = true)]
    Keeper,
}

/// Options of `mount`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Mount options (-o), separated by commas:
  ro, rw                     read-only, writable (the default)
  iversion=lazy|eager|off    when the change attribute moves; also i_version (lazy), noiversion (off)
  lazytime, nolazytime       keep pure timestamp changes in memory for up to a day
  relatime, noatime, strictatime
  cache=SIZE                 bound of all caches together, as 64M or 1G (default 256M)
  offset=BYTES               where in the image the filesystem begins (a partition)
  commit=SECONDS             longest time that a change stays out of the journal (default 5)
  trust-foreign              believe stored change attributes though another system wrote to the image
  norecovery                 with ro: do not replay the journal, not even in memory
  nonempty                   mount though there is something in the directory, which then cannot be seen
  nosandbox                  do not lock the process in that parses the image (for debugging)
  allow_other, default_permissions, no_default_permissions, fakeroot, threads=N, sync,
  writeback_cache, no_writeback_cache, suid, dev, exec (and no...), fsname=, subtype=

A mount is two processes: one that parses the image, locked in by Landlock and seccomp, and one that mounts and unmounts. SIGTERM to the second (its
number is in --json) unmounts. If either is killed, programs get errors until `ivers unmount DIR`.

Called under the name fuse2fs (by a link, say) this program takes that one's command line: fuse2fs --help.

In /etc/fstab: IMAGE DIR fuse.ivers OPTIONS 0 0
mount(8) needs mount.fuse3 (package fuse3) for that, and finds ivers in the system's directories only, as /usr/local/bin.")]
pub struct Mount {
    /// The image file or block device (with --type mem: any word)
    pub image: PathBuf,
    /// The directory to mount on
    pub dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// The filesystem: ext4 (ext2 and ext3 too), or mem for one in memory
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4")]
    pub fs_type: String,
    /// Stay in the foreground until unmounted
    #[arg(short, long)]
    pub foreground: bool,
    /// Append messages to this file (default: ivers/ivers.log under $XDG_STATE_HOME or ~/.local/state)
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// The child that serves: says on standard output when it does.
    #[arg(long, hide = true)]
    pub serve: bool,
    /// The child of that one, which parses.
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Options of `unmount`.
#[derive(Debug, Args)]
pub struct Unmount {
    /// The directory
    pub dir: PathBuf,
    /// Take it out of the tree now, and end when the last open file is closed
    #[arg(long)]
    pub lazy: bool,
}

/// Options of `stat`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
JSON, one object a file: path, ino, generation, change and stored (decimal strings; change is null where there is no cookie),
semantics {cookie, no_cookie, data, metadata, monotonic, persistent, crash_safe}, kind, mode (octal), uid, gid, nlink, size, blocks,
atime, mtime, ctime, btime ({sec, nsec}; btime is null where there is none).")]
pub struct Stat {
    /// Files on a mount, or IMAGE:/path
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Follow a symbolic link at the end of the path
    #[arg(short = 'L', long)]
    pub dereference: bool,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `changed`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Each line is a letter and a path relative to TREE: N new, C changed, R removed. With -0 there are paths alone, each ended by
a NUL, and removed ones only if --only asks for them. A path is unchanged if filesystem, inode number, generation and change
attribute are all as saved. Where there is no change attribute every file counts as changed.

JSON, one object a line: path, status (new, changed, removed), ino, generation, change (decimal strings).

  ivers changed TREE --save STATE                   remember how things are
  ivers changed TREE --since STATE                  what changed since
  ivers changed TREE --since STATE --save STATE     both: the new state replaces the old one")]
pub struct Changed {
    /// A directory on a mount, or IMAGE:/path
    pub tree: PathBuf,
    /// Compare with this saved state
    #[arg(long, value_name = "STATE", required_unless_present = "save")]
    pub since: Option<PathBuf>,
    /// Save the state as it is now
    #[arg(long, value_name = "STATE")]
    pub save: Option<PathBuf>,
    /// Paths alone, each ended by a NUL
    #[arg(short = '0', long)]
    pub null: bool,
    /// Leave directories out
    #[arg(long)]
    pub files_only: bool,
    /// Report only these
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    pub only: Vec<crate::changed::Status>,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `ls`.
#[derive(Debug, Args)]
pub struct Ls {
    /// IMAGE:/path; IMAGE alone is its root
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Modes, owners, sizes and times
    #[arg(short, long)]
    pub long: bool,
    /// Names that begin with a dot too
    #[arg(short, long)]
    pub all: bool,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `cat`.
#[derive(Debug, Args)]
pub struct Cat {
    /// IMAGE:/path
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `cp`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = "\
Directories with --recursive, hard links as hard links, holes as holes. Symbolic links are copied as links, but followed where the command line
names them without --recursive. FIFOs and sockets are made anew, device nodes too where that is allowed. SRC/. means what is in SRC.

With --preserve: owners (as far as this user may give files away: else without set-id bits), permissions, times to the nanosecond, ACLs and extended
attributes (those that this user may not set are left out). Without: permissions less the umask; in an image all belongs to root.

What cannot be copied is named on standard error and the rest is copied; the exit code says so. A name in the way is replaced, a symbolic link
too, but no directory. -o goes for all images of the command line.

JSON: copied (how many words of the command line were looked at), files (files, directories and links that are there now), problems.")]
pub struct Cp {
    /// Files, IMAGE:/path ones among them
    #[arg(required = true)]
    pub from: Vec<PathBuf>,
    /// Where to: a path, or IMAGE:/path
    pub to: PathBuf,
    /// Directories with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Keep modes, owners, times, ACLs and extended attributes where that is allowed
    #[arg(short, long)]
    pub preserve: bool,
    /// Both: --recursive --preserve
    #[arg(short, long)]
    pub archive: bool,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `tree`.
#[derive(Debug, Args)]
pub struct Tree {
    /// IMAGE:/path; IMAGE alone is its root
    pub path: PathBuf,
    /// At most this deep
    #[arg(short = 'L', long, default_value_t = u32::MAX, hide_default_value = true)]
    pub depth: u32,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `info`.
#[derive(Debug, Args)]
pub struct Info {
    /// An image, or a directory on a mount
    pub target: PathBuf,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `stats`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
JSON: changes, queries, bumps, bumps_avoided, inode_updates and its parts (inode_updates_times, _version, _allocation,
_metadata), inode_updates_avoided, journal_blocks, journal_bytes, data_bytes, written_back_bytes.")]
pub struct Stats {
    /// A directory on a mount
    pub dir: PathBuf,
    /// Prometheus text
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

/// Options of `mkfs`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
The features are those that e2fsprogs 1.47 enables by default. Given --uuid, --hash-seed and --timestamp, equal calls make
equal images, byte for byte. Nothing is written before all checks have passed.

JSON: path, fs, uuid, block_size, blocks, inodes, groups, journal_blocks.")]
pub struct Mkfs {
    /// The image file or block device
    pub image: PathBuf,
    /// The format
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4")]
    pub fs_type: String,
    /// Make or grow the file to this size, as 512M or 10G
    #[arg(short, long)]
    pub size: Option<String>,
    /// 1024, 2048 or 4096 (default: 1024 below 512 MiB, else 4096)
    #[arg(short, long, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Bytes an inode: 256 or a larger power of two up to the block size
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 256)]
    pub inode_size: u32,
    /// One inode for each so many bytes (default: by size)
    #[arg(short = 'i', long, value_name = "BYTES")]
    pub bytes_per_inode: Option<u32>,
    /// Blocks kept for the superuser
    #[arg(short = 'm', long, value_name = "PERCENT", default_value_t = 5)]
    pub reserved_percent: u32,
    /// The label, at most 16 bytes
    #[arg(short = 'L', long, default_value = "", hide_default_value = true)]
    pub label: String,
    /// The UUID (default: a random one)
    #[arg(short = 'U', long)]
    pub uuid: Option<String>,
    /// The seed of hashed directories, as a UUID (default: a random one)
    #[arg(long, value_name = "UUID")]
    pub hash_seed: Option<String>,
    /// The time of creation, seconds since 1970 (default: now)
    #[arg(long, value_name = "SECONDS")]
    pub timestamp: Option<u32>,
    /// The owner of the root directory (default: 0:0; without a value: whoever calls)
    #[arg(long, value_name = "UID:GID", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub root_owner: Option<String>,
    /// Without a journal
    #[arg(long)]
    pub no_journal: bool,
    /// Overwrite what is there
    #[arg(short = 'F', long)]
    pub force: bool,
}

/// Options of `bench`.
#[derive(Debug, Args)]
#[command(after_long_help = "\
In-process: eager (old), lazy (new) and off (none), and as root the kernel's ext4 on an equal image, all interleaved.
With --fuse: `ivers mount`, fuse2fs and, as root, the kernel's ext4 on equal images.

JSON: {rows: [...]}. Each row has name, fs, unit (ops/s), ops and rounds; old, new and none (medians in that unit), new_over_old and
new_over_none (above 1: new is better) and their spread (quartiles of the rounds' own ratios); ns_per_op, inode_updates and
journal_blocks, each {old, new, none}; peers {NAME: {value, ns_per_op}}, new_over_peer {NAME: ratio}, and peers_missing {NAME: why}.
With --fuse the rows are named fuse_*; new is the default mount, and seconds has the medians of each.")]
pub struct Bench {
    /// Operations of a workload, all rounds together (of 4 KiB: fewer)
    #[arg(long, default_value_t = 1_000_000)]
    pub ops: u64,
    /// Rounds that the operations are spread over (default 400); with --fuse: times that everything is done (default 3)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Only these filesystems
    #[arg(long, value_delimiter = ',', default_value = "mem,ext4")]
    pub fs: Vec<String>,
    /// Through FUSE, against fuse2fs
    #[arg(long)]
    pub fuse: bool,
    /// With --fuse: the tree that is packed by tar and unpacked on each mount
    #[arg(long, value_name = "DIR", default_value = "/usr/include")]
    pub tree: PathBuf,
}
