//! The command line: the one source of help, completions and manual pages.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ivers_nfsd::exports::config::{Address, Domain};

use crate::help;
use crate::image::How;

/// Open ext4, FAT and Amiga images, mount them in userspace, and know exactly what changed.
///
/// Every inode has a change attribute: a 64-bit number that is different, and larger, whenever anything about the inode changed
/// since somebody last looked. `ivers stat` shows it, `ivers changed` compares it.
///
/// Files in an image that is not mounted are written IMAGE:/path.
#[derive(Debug, Parser)]
#[command(name = "ivers", version, after_long_help = help::IVERS, infer_long_args = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub task: Task,
    /// Answer in JSON: one document, or one object a line where there are several answers.
    #[arg(long, global = true)]
    pub json: bool,
    /// No progress bars (there are none without a terminal either, nor with --json), and no word of mkfs that it succeeded
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// How to open the images of a command that does not mount them.
#[derive(Debug, Clone, Args)]
pub struct Image {
    /// How to open images: offset=SIZE (where a partition begins) and others
    ///
    /// Separated by commas: offset=SIZE, where in the image the filesystem begins (a partition), in bytes or as 1M; nosandbox, do not lock the process in that
    /// parses; cache=SIZE; norecovery; trust-foreign. See `ivers mount --help`.
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
    /// Serve images over NFSv4 (4.0, 4.1, 4.2) until a signal ends it
    Serve(Serve),
    /// Unmount; returns when the image is safe on disk and its process gone
    Unmount(Unmount),
    /// Show the change attribute of files, what it promises, and the usual attributes
    Stat(Stat),
    /// Which files changed since a saved state, without reading their contents
    Changed(Changed),
    /// Keep a measurement list of files, as the kernel's IMA does; only what changed is read
    Measure(Measure),
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
    /// The counters of a mount or of a server: changes, queries, bumps, inode updates by cause, journal; operations, clients
    Stats(Stats),
    /// Measure what the change attribute costs: eager (old), lazy (new) and off (none), interleaved
    Bench(Bench),
    /// Make an ext4 filesystem in a file or on a device
    Mkfs(Mkfs),
    /// Write a shell's completions to standard output
    #[command(after_long_help = help::COMPLETIONS)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a directory
    #[command(after_long_help = help::MAN)]
    Man {
        /// The directory; it is made if it is not there
        dir: PathBuf,
    },
    /// The process that parses an image for another one
    #[command(hide = true)]
    Keeper,
    /// The process outside the sandbox of a server
    #[command(hide = true)]
    Attendant,
}

/// Options of `mount`.
#[derive(Debug, Args)]
#[command(after_long_help = help::MOUNT)]
pub struct Mount {
    /// The image file or block device (with --type mem: any word)
    pub image: PathBuf,
    /// The directory to mount on
    pub dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// The filesystem: auto (told from what the image holds), ext4 (ext2 and ext3 too), fat, affs (the Amiga's OFS and FFS), or mem for one in memory
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "auto")]
    pub fs_type: String,
    /// Stay in the foreground until unmounted
    #[arg(short, long)]
    pub foreground: bool,
    /// Append messages to this file (default: ivers/ivers.log under $XDG_STATE_HOME or ~/.local/state). In the foreground they go to standard error
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    pub log: Option<PathBuf>,
    /// Whoever calls says `rw` without meaning it: mount(8).
    #[arg(long, hide = true)]
    pub rw_unasked: bool,
    /// The child that serves: says on standard output when it does.
    #[arg(long, hide = true)]
    pub serve: bool,
    /// The child of that one, which parses.
    #[arg(long, hide = true)]
    pub worker: bool,
}

/// Options of `serve`.
#[derive(Debug, Args)]
#[command(after_long_help = help::SERVE)]
pub struct Serve {
    /// Images to export: IMAGE[,OPTION]...; appears as /IMAGE without its ending, unless name=/PATH is among the options
    #[arg(value_name = "IMAGE[,OPTIONS]")]
    pub images: Vec<String>,
    /// Export an image under this name
    #[arg(short, long, value_name = "NAME=IMAGE[,OPTIONS]")]
    pub export: Vec<String>,
    /// A file (TOML) that says all that can be said here, and more; what is said here counts before it
    #[arg(short, long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where to listen, port 2049 unless another is said (default: 127.0.0.1 and ::1)
    #[arg(short, long, value_name = "ADDRESS[:PORT]")]
    pub listen: Vec<Address>,
    /// The directory for what outlives the server (default: $STATE_DIRECTORY, /var/lib/ivers/serve for root, ivers/serve under $XDG_STATE_HOME or ~/.local/state for others)
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// Answer with statistics (Prometheus text over HTTP) there, as 127.0.0.1:9149
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<std::net::SocketAddr>,
    /// How long a client keeps what it holds without a word, 1 to 3600 (default 90)
    #[arg(long, value_name = "SECONDS")]
    pub lease: Option<u32>,
    /// Threads that serve, 3 to 256 (default 16)
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Microseconds that a thread looks out for a client's next request before it sleeps, up to 1000 (default 100; 0 on a
    /// single processor)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(..=1000))]
    pub linger: Option<u16>,
    /// The server's certificate, and those between it and its authority (PEM); with it RPC with TLS is offered
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_certificate: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_key: Option<PathBuf>,
    /// Authorities that sign certificates of clients (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub tls_client_authorities: Option<PathBuf>,
    /// Owners go over the wire as NAME@DOMAIN, by /etc/passwd and /etc/group; without it, and to clients that send numbers, as numbers
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<Domain>,
    /// Clients get no delegations
    #[arg(long)]
    pub no_delegations: bool,
    /// Do not lock the process in before it reads the images (for debugging)
    #[arg(long)]
    pub no_sandbox: bool,
    /// How messages on standard error look (default: text)
    #[arg(long, value_name = "FORMAT", value_parser = ["text", "json"])]
    pub log_format: Option<String>,
}

/// Options of `unmount`.
#[derive(Debug, Args)]
#[command(after_long_help = help::UNMOUNT)]
pub struct Unmount {
    /// The directory
    pub dir: PathBuf,
    /// Take it out of the tree now, though it is in use; this command still waits until the last open file is closed
    #[arg(long)]
    pub lazy: bool,
}

/// Options of `stat`.
#[derive(Debug, Args)]
#[command(after_long_help = help::STAT)]
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
#[command(after_long_help = help::CHANGED)]
#[command(group(clap::ArgGroup::new("state").args(["since", "save"]).required(true).multiple(true)))]
pub struct Changed {
    /// A directory on a mount, or IMAGE:/path
    pub tree: PathBuf,
    /// Compare with this saved state
    #[arg(long, value_name = "STATE")]
    pub since: Option<PathBuf>,
    /// Save the state as it is now: a file is replaced as a whole, a device or FIFO written into
    #[arg(long, value_name = "STATE")]
    pub save: Option<PathBuf>,
    /// Paths alone, with ./ in front, each ended by a NUL
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

/// Options of `measure`.
#[derive(Debug, Args)]
#[command(after_long_help = help::MEASURE)]
pub struct Measure {
    /// Files and directories of the system, or IMAGE:/path
    #[arg(required_unless_present = "of", value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Which files are measured and appraised, in the kernel's syntax (see below; default: all are measured)
    #[arg(short, long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The measurement list, in binary, which grows (default: ivers/measure/list under $XDG_STATE_HOME or ~/.local/state); with --of: put a copy there
    #[arg(short, long, value_name = "FILE")]
    pub list: Option<PathBuf>,
    /// What was measured, and when it was the same (default: beside the default list)
    #[arg(short, long, value_name = "FILE", conflicts_with = "of")]
    pub store: Option<PathBuf>,
    /// Write the whole list in ascii too
    #[arg(long, value_name = "FILE")]
    pub ascii: Option<PathBuf>,
    /// Write the registers of each bank into files in this directory, as evmctl ima_measurement --pcrs reads them
    #[arg(long, value_name = "DIR")]
    pub pcrs: Option<PathBuf>,
    /// Keys to check signatures in security.ima with: certificates or public keys, PEM or DER
    #[arg(short, long = "key", value_name = "FILE", conflicts_with = "of")]
    pub keys: Vec<PathBuf>,
    /// How files are hashed whose security.ima does not say: sha1, sha256, sha384 or sha512
    #[arg(long, value_name = "NAME", default_value = "sha256", conflicts_with = "of")]
    pub hash: String,
    /// The template of entries, where no policy says: ima-ng or ima-sig
    #[arg(long, value_name = "NAME", default_value = "ima-ng", conflicts_with_all = ["of", "policy"])]
    pub template: String,
    /// Show the list of a mount that measures (mount -o measure=POLICY), checked against the mount's own registers
    #[arg(long, value_name = "DIR", conflicts_with_all = ["paths", "policy"])]
    pub of: Option<PathBuf>,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `ls`.
#[derive(Debug, Args)]
#[command(after_long_help = help::LS)]
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
#[command(after_long_help = help::CAT)]
pub struct Cat {
    /// IMAGE:/path
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `cp`.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = help::CP)]
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
    /// Overwrite a file of the system though it holds a filesystem itself
    #[arg(short = 'F', long)]
    pub force: bool,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `tree`.
#[derive(Debug, Args)]
#[command(after_long_help = help::TREE)]
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
#[command(after_long_help = help::INFO)]
pub struct Info {
    /// An image, or a directory on a mount
    pub target: PathBuf,
    #[command(flatten)]
    pub image: Image,
}

/// Options of `stats`.
#[derive(Debug, Args)]
#[command(after_long_help = help::STATS)]
pub struct Stats {
    /// A directory on a mount, or the state directory of a server
    pub dir: PathBuf,
    /// Prometheus text
    #[arg(long, conflicts_with = "json")]
    pub prometheus: bool,
}

/// Options of `mkfs`.
#[derive(Debug, Args)]
#[command(after_long_help = help::MKFS)]
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
#[command(after_long_help = help::BENCH)]
pub struct Bench {
    /// Operations of a workload, all rounds together (of 4 KiB: fewer)
    #[arg(long, default_value_t = 1_000_000)]
    pub ops: u64,
    /// Rounds that the operations are spread over (default 400); with --fuse: times that everything is done (default 3)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Times that everything is done through FUSE (default 3)
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub fuse_rounds: Option<u32>,
    /// Only these filesystems
    #[arg(long, value_delimiter = ',', default_value = "mem,ext4")]
    pub fs: Vec<String>,
    /// Only these rows, or those whose names begin so (see below): those of the library, and fuse_* through FUSE
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "all")]
    pub only: Vec<String>,
    /// Also the rows full_*, which take long
    #[arg(long, conflicts_with = "fuse")]
    pub all: bool,
    /// The process that loads inodes for the row inode_memory
    #[arg(long, hide = true)]
    pub load_inodes: bool,
    /// Through FUSE, against a null passthrough, fuse2fs and the kernel
    #[arg(long)]
    pub fuse: bool,
    /// Through FUSE: the tree that is packed by tar and unpacked on each mount
    #[arg(long, value_name = "DIR", default_value = "/usr/include")]
    pub tree: PathBuf,
    /// Through FUSE, as root on Debian: install what the peers need
    #[arg(long)]
    pub install_peers: bool,
    /// Measure both halves, in-process and through FUSE (with --fuse: that alone), and write a page into this directory
    #[arg(long, value_name = "DIR")]
    pub report: Option<PathBuf>,
    /// With --report: measure nothing, take the rows of these files (as --json or a report left them)
    #[arg(long, value_name = "FILE", requires = "report")]
    pub from: Vec<PathBuf>,
    /// The process that asks about this file while another one writes to it.
    #[arg(long, value_name = "FILE", hide = true)]
    pub ask: Option<PathBuf>,
    /// It asks for the change attribute.
    #[arg(long, hide = true)]
    pub ask_change: bool,
}
