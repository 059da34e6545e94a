//! The command line.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::Parser;

/// Measure what the change attribute costs, in-process and through FUSE, beside other filesystems
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", version, infer_long_args = true, after_long_help = HELP)]
pub(crate) struct Args {
    /// Operations of a workload, all rounds together (of 4 KiB: fewer)
    #[arg(long, default_value_t = 1_000_000)]
    pub(crate) ops: u64,
    /// Rounds that share the operations (default 400); with --fuse: repetitions (default 3)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: Option<u32>,
    /// Repetitions of the rows through FUSE (default 3; scale_*: 5 for 10,000 files, otherwise 1)
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) fuse_rounds: Option<u32>,
    /// Only these filesystems: mem, ext4, xfs, btrfs
    #[arg(long, value_delimiter = ',', default_value = "mem,ext4")]
    pub(crate) fs: Vec<String>,
    /// Only these rows, or rows whose names begin with these words (see below)
    #[arg(long, value_name = "NAME", value_delimiter = ',', conflicts_with = "all")]
    pub(crate) only: Vec<String>,
    /// Also the rows full_*, which take long
    #[arg(long, conflicts_with = "fuse")]
    pub(crate) all: bool,
    /// Through FUSE, beside a null passthrough, fuse2fs and the kernel
    #[arg(long)]
    pub(crate) fuse: bool,
    /// Through FUSE: the tree that tar unpacks on each mount
    #[arg(long, value_name = "DIR", default_value = "/usr/include")]
    pub(crate) tree: PathBuf,
    /// Through FUSE: the program to measure (default: `ivers`, from the directory of this program)
    #[arg(long, value_name = "PROGRAM")]
    ivers: Option<PathBuf>,
    /// Through FUSE, as root on Debian: install what the peers need
    #[arg(long)]
    pub(crate) install_peers: bool,
    /// Measure in-process and through FUSE (with --fuse: only that), and write a page into this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) report: Option<PathBuf>,
    /// With --report: measure nothing; take the rows of these files (written by --json or --report)
    #[arg(long, value_name = "FILE", requires = "report")]
    pub(crate) from: Vec<PathBuf>,
    /// Print the rows as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Show no progress bars
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Internal: load the inodes of the row inode_memory
    #[arg(long, hide = true)]
    pub(crate) load_inodes: bool,
    /// Internal: query this file until standard input ends
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) ask: Option<PathBuf>,
    /// Internal: with --ask, query the change attribute instead of the times
    #[arg(long, hide = true)]
    pub(crate) ask_change: bool,
}

impl Args {
    /// Returns the program that mounts images.
    pub(crate) fn ivers(&self) -> Result<PathBuf> {
        let beside = || std::env::current_exe().map(|program| program.with_file_name("ivers"));
        let program = self.ivers.clone().map_or_else(beside, Ok)?;
        let path: &Path = &program;
        ensure!(
            path.is_file(),
            "{}: no such program; run `cargo build -p ivers` or use --ivers",
            path.display()
        );
        Ok(std::path::absolute(program)?)
    }
}

/// An error in the command line; the exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UsageError(pub(crate) String);

const HELP: &str = "\
In-process rows compare eager (old), lazy (new) and off (none), and as root the kernel's driver on an equal \
image. With --fuse: `ivers mount`, fuse2fs and, as root, \
the kernel's ext4 and a null passthrough (libfuse's passthrough_ll over the kernel's ext4: the cost of \
FUSE itself) on equal images; also `ivers mount` and the kernel on images of XFS and btrfs. All contenders \
take turns. Contenders that are missing are listed with the reason. The passthrough is compiled from \
libfuse3-dev and kept in ivers/peers under $XDG_CACHE_HOME or ~/.cache.

--report measures all of this and writes index.html (tables and plots in one file), main.svg (the main \
plot) and rows.json. --from makes the page again \
from rows.json of one or more runs.

Rows:
  overwrite_1_byte, append_1_byte (dd bs=1), append_4k, sequential_4k_8_jobs (fio), on mem too; \
  on ext4 and, with --fs xfs or --fs btrfs, on XFS or btrfs:
  sequential_4k_8_jobs_queried: the same while a thread queries the change attribute in a loop, each time \
  with a system call, as a process would
  query_hammer_1, _2, _8: overwrites while 1, 2 or 8 threads query without pause
  query_curve: overwrites, by the number of queries per million writes
  nolazyversion_8_jobs_queried, nolazyversion_query_curve: the same rows, mounted with -o nolazyversion
  by_query_overwrite_1_byte, by_query_append_1_byte, by_query_4k_8_jobs: on btrfs, with a mode `new` in \
  which each store of an inode counts as a query, as in the patch series
  write_sizes: 1 byte to 1 MiB
  scaling_own_files, scaling_one_file: one and two threads
  updates_by_tick: inode updates per million writes, by the clock's tick
  inode_memory: bytes of cache per inode, on ext4 only (for a tenth as many inodes as --ops)
  tiobench_write, tiobench_randwrite, tiobench_read, tiobench_randread: fio's example, four jobs, direct I/O
  msync_pages: threads touch the pages of a sparse file, then fsync
  latency_1_byte, latency_4k_8_jobs, latency_4k_fsync: latency percentiles and device writes
  full_append_1_byte, full_sequential_4k_8_jobs, full_sequential_4k_8_jobs_queried, full_tiobench_write \
  (_randwrite, _read, _randread): close to the size of \
the originals; minutes each and up to 10 GB of temporary files, so only by name or with --all
  Through FUSE (with --fuse, --report or by name):
  fuse_write_1_byte, fuse_write_4k; fuse_write_1_byte_stat, fuse_write_1_byte_asked: while another process \
  reads the file's times or its change attribute
  fuse_read_cold: sequential reads of 128 KiB with all caches dropped, as root
  fuse_create, fuse_unlink; fuse_untar, fuse_walk_stat (of --tree)
  fuse_build, fuse_build_again: make -j and cc over a generated tree of C files (200 of them; --ops / \
  5000); the program that they build is run and checked; \
then a second make, which finds nothing to do. It is not the kernel's tree
  fuse_fio_4k_8_jobs, fuse_msync: fio's jobs, where fio is installed
  Through FUSE, only by name, because they take minutes (a page without --only leaves them out):
  scale_10k, scale_100k, scale_300k: 10,000, 100,000 and 300,000 empty files (at most --ops) in directories \
  of 1,000: create, cold walk with stat (after a new mount), warm walk, 100,000 random stats, readdir \
  without stat, remove; `ivers mount` beside the kernel's ext4, with the peak memory of ivers
  scale_xfs_10k, _100k, scale_fat_10k, _100k and scale_mem_10k, _100k: the same on XFS and FAT, beside the \
  kernel's drivers, and in memory
  scale_nfs_10k, _100k: `ivers serve` on such a tree, and one NFSv4 client: READDIR with attributes, GETATTR \
  and LOOKUP of each file, up to 100,000 opens that are held
  scale_commands_10k, _100k: ivers changed (--save, and --since after one change), tree, measure and cp -a \
  on an image that is not mounted
  --only scale selects all of these
  long_scale_1m, _3m, _10m, long_scale_xfs_1m, long_scale_nfs_1m, long_scale_commands_1m, _3m: the \
  same with millions of files (--ops must be at least as large)
  Only with a DIR (`cargo xtask bench DIR`), which builds one page of everything: nfs_* (`ivers serve` \
  with a lazy counter beside an eager one and nfs-ganesha) \
and peers_* (other libraries).

JSON: {rows: [...]}. Each row has name, fs, unit (ops/s), ops and rounds; old, new and none (medians in \
that unit), new_over_old and \
new_over_none (above 1: new is better) and their spread (quartiles of the ratio of each round); ns_per_op, \
inode_updates and journal_blocks, \
each {old, new, none}; peers {NAME: {value, ns_per_op}}, new_over_peer {NAME: ratio}, and peers_missing \
{NAME: why}; points if it is a curve, patch_series \
if the patch series of 2017 measured it. docs/json.md lists all names. With --fuse the rows are named \
fuse_*; new is the default mount, and seconds has the medians.

Examples:
  cargo xtask bench --fs mem --ops 100000
  cargo xtask bench --only query_hammer,write_sizes
  cargo xtask bench --only fuse_build --fuse-rounds 5
  cargo xtask bench --only scale,long_scale_1m
  cargo xtask bench --fuse --json
  cargo xtask bench --report out";
