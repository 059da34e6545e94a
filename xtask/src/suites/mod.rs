//! Other projects' test suites on our mounts: pjdfstest and fsx, installed into the target directory.

use anyhow::Result;
use ivers_affs::check::report;
use ivers_oracle::affs::Amitools;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::target_dir;

mod btrfs;
mod full;
mod kinds;
pub(crate) mod trees;
mod xfs;

pub(crate) use btrfs::suites_btrfs;
pub(crate) use xfs::suites_xfs;

const TOOLS: [&str; 2] = ["pjdfstest@0.2.2", "fsx@0.3.2"];

/// pjdfstest's configuration. Two users that every Debian has replace its own. It requires root. Its remounts
/// are disabled, because they fail as busy on the kernel's ext4 too.
pub(crate) const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

pub(crate) const FSX_WEIGHTS: &str = r#"
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 1
copy_file_range = 5
"#;

const FSX_OPERATIONS: &str = "100000";
/// Operations of fsx for kinds of image of which there are many.
const FSX_FEWER_OPERATIONS: &str = "10000";
const FSX_SEEDS: [&str; 3] = ["1", "2", "3"];

/// FAT stores times in steps of two seconds: the tests must wait longer.
const FAT_NAP: (&str, &str) = ("naptime = 0.02", "naptime = 2.1");

/// Tests of pjdfstest that a format cannot pass, by reason. Patterns are parts of test names; `^` and `$`
/// mark the beginning and the end.
pub(crate) type Exclusions = [(&'static str, &'static [&'static str])];

const FAT_EXCLUDED: &Exclusions = &[
    (
        "files of other kinds than files and directories",
        &[
            "::block$",
            "::char$",
            "::fifo$",
            "::socket$",
            "::symlink$",
            "^mkfifo::",
            "^mknod::",
            "^symlink::",
            "::fifo_nonblock_wronly$",
            "::socket_error$",
            "::preserve_metadata_symlink$",
        ],
    ),
    ("symbolic links on the way", &["::eloop", "::enoent_symlink$", "::open_nofollow$", "::follow_symlink$"]),
    (
        "several names of one file",
        &[
            "^link::",
            "::to_multiply_linked::",
            "^unlink::unchanged_ctime_failed::",
            "^unlink::update_ctime_success::",
        ],
    ),
    (
        "owners of a file's own",
        &["^chown::", "::uid_gid_eq_euid_egid$", "::clear_isgid_bit$", "::preserve_metadata::"],
    ),
    (
        "permission bits of a file's own",
        &[
            "::permission_bits_from_mode$",
            "::change_perm::",
            "::affected_create_flags_only$",
            "::affected_only_create_flags$",
            "::write_access_required_subdir$",
        ],
    ),
    (
        "access times finer than a day, and times before 1980",
        &["::changes_timestamps::", "::utime_omit$", "::utime_now$", "::y2038$", "::subsecond$"],
    ),
    ("a hole of 2 GiB", &["::interact_2gb$"]),
];

/// Extents and block maps, small and large blocks, and data in the inode.
const IMAGES: [&[&str]; 5] = [
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
];

/// Prints the error of work that failed, and returns whether it succeeded.
fn told(done: Result<()>) -> Option<bool> {
    if let Err(error) = &done {
        eprintln!("xtask: {error:#}");
    }
    Some(done.is_ok())
}

/// A mount of ours; detached when dropped after a failure.
pub(crate) struct Mount<'a> {
    ivers: &'a Path,
    pub(crate) dir: PathBuf,
    mounted: bool,
}

impl<'a> Mount<'a> {
    fn new(ivers: &'a Path, kind: &str, what: &Path, dir: PathBuf, options: &str) -> Option<Self> {
        Self::with(ivers, &["--type", kind], what, dir, options)
    }

    /// Mounts with these words before the image or server.
    pub(crate) fn with(
        ivers: &'a Path,
        words: &[&str],
        what: &Path,
        dir: PathBuf,
        options: &str,
    ) -> Option<Self> {
        fs::create_dir_all(&dir).ok()?;
        let mut command = Command::new(ivers);
        command.arg("mount").args(words).args([what, &dir]).args(["-o", options]);
        command.status().ok()?.success().then_some(Self { ivers, dir, mounted: true })
    }

    pub(crate) fn unmount(mut self) -> bool {
        self.mounted = false;
        succeeds(Command::new(self.ivers).arg("unmount").arg(&self.dir))
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.dir).status();
        }
    }
}

/// Makes an image of 300 MiB, the least that mkfs.xfs takes.
fn make_image(mkfs: &str, always: &[&str], options: &[&str], image: &Path) -> bool {
    File::create(image).and_then(|file| file.set_len(300 << 20)).is_ok()
        && succeeds(Command::new(mkfs).args(always).args(options).arg(image))
}

fn succeeds(command: &mut Command) -> bool {
    command.status().is_ok_and(|status| status.success())
}

fn is_clean(image: &Path) -> bool {
    succeeds(Command::new("e2fsck").arg("-fn").arg(image))
}

/// The filesystem under test.
struct Volume<'a> {
    name: String,
    /// The value of `--type`.
    kind: &'a str,
    make: &'a dyn Fn(&Path) -> bool,
    is_clean: &'a dyn Fn(&Path) -> bool,
    /// The same for a full filesystem, which Linux cannot write to.
    is_clean_full: &'a dyn Fn(&Path) -> bool,
    has_holes: bool,
    /// What pjdfstest cannot pass.
    excluded: &'a Exclusions,
    /// The length of a run of fsx.
    operations: &'a str,
    /// Bytes of the largest value of an attribute.
    value_max: usize,
}

fn ext<'a>(make: &'a dyn Fn(&Path) -> bool, options: &[&str]) -> Volume<'a> {
    Volume {
        name: options.join(" "),
        kind: "ext4",
        make,
        is_clean: &is_clean,
        is_clean_full: &is_clean,
        has_holes: true,
        excluded: &[],
        operations: FSX_OPERATIONS,
        value_max: trees::VALUE_MAX,
    }
}

/// Makes a FAT filesystem with one sector per cluster, for the longest cluster chains.
fn make_fat(image: &Path) -> bool {
    make_image("mkfs.fat", &["-F", "32", "-s", "1"], &[], image)
}

fn is_clean_fat(image: &Path) -> bool {
    succeeds(Command::new("fsck.fat").arg("-n").arg(image))
}

fn fat() -> Volume<'static> {
    Volume {
        name: "FAT32".to_owned(),
        kind: "fat",
        make: &make_fat,
        is_clean: &is_clean_fat,
        is_clean_full: &is_clean_fat,
        has_holes: false,
        excluded: FAT_EXCLUDED,
        operations: FSX_OPERATIONS,
        value_max: trees::VALUE_MAX,
    }
}

/// Returns the reason why a test is excluded.
pub(crate) fn excluded(test: &str, exclusions: &Exclusions) -> Option<&'static str> {
    let is_meant = |pattern: &&str| match (pattern.strip_prefix('^'), pattern.strip_suffix('$')) {
        (Some(begin), _) => test.starts_with(begin),
        (_, Some(end)) => test.ends_with(end),
        _ => test.contains(*pattern),
    };
    exclusions.iter().find(|(_, patterns)| patterns.iter().any(is_meant)).map(|(reason, _)| *reason)
}

/// Compares pjdfstest's results with the exclusions. A reason that excludes no failing test is a failure too.
fn fails_only_where_excluded(said: &str, exclusions: &Exclusions) -> bool {
    let ended = |how: &str| -> Vec<&str> {
        said.lines().filter_map(|line| line.strip_suffix(how)).map(str::trim_end).collect()
    };
    let failed = ended(" FAILED");
    let wrong: Vec<_> = failed.iter().filter(|test| excluded(test, exclusions).is_none()).collect();
    let passed = ended(" ok").len();
    println!("{passed} passed, {} failed", failed.len());
    let mut needed = true;
    for &(reason, _) in exclusions {
        let count = failed.iter().filter(|test| excluded(test, exclusions) == Some(reason)).count();
        println!("{count:4} excluded: {reason}");
        needed &= count > 0;
    }
    for test in &wrong {
        println!("FAILED {test}");
    }
    passed > 100 && wrong.is_empty() && needed
}

fn pjdfstest(tools: &Path, ivers: &Path, scratch: &Path, volume: &Volume<'_>) -> Option<bool> {
    let is_fat = volume.kind == "fat";
    let config = scratch.join("pjdfstest.toml");
    fs::write(&config, if is_fat { PJDFSTEST.replace(FAT_NAP.0, FAT_NAP.1) } else { PJDFSTEST.to_owned() })
        .ok()?;
    let mut mounts = Vec::new();
    for name in ["first", "second"] {
        let image = scratch.join(name).with_extension("img");
        (volume.make)(&image).then_some(())?;
        mounts.push(Mount::new(ivers, volume.kind, &image, scratch.join(name), "allow_other")?);
    }
    println!("== pjdfstest on {}", volume.name);
    let mut suite = Command::new(tools.join("pjdfstest"));
    suite.arg("-c").arg(&config).arg("-p").arg(&mounts[0].dir).arg("-s").arg(&mounts[1].dir);
    let passed = if volume.excluded.is_empty() {
        succeeds(&mut suite)
    } else {
        fails_only_where_excluded(&String::from_utf8_lossy(&suite.output().ok()?.stdout), volume.excluded)
    };
    let unmounted = mounts.into_iter().all(Mount::unmount);
    Some(passed && unmounted && (volume.is_clean)(&scratch.join("first.img")))
}

fn is_clean_affs(image: &Path) -> bool {
    fs::read(image).is_ok_and(|bytes| report(&bytes, 512).closed().is_ok())
}

/// Runs fsx on OFS or FFS, also with directory caches, made by xdftool. AFFS has no holes to punch.
fn fsx_on_affs(tools: &Path, ivers: &Path, scratch: &Path, variant: &str, cache: &str) -> Option<bool> {
    let amitools = Amitools::new(&tools.join("../../oracles/amitools")).ok()?;
    let volume = Volume {
        name: variant.to_owned(),
        kind: "affs",
        make: &|image| {
            let image = image.with_extension("hdf");
            let _ = fs::remove_file(&image);
            let words = ["create", "size=64Mi", "+", "format", "Fsx", variant];
            amitools.xdftool(&image, &words).is_ok()
                && fs::rename(&image, image.with_extension("img")).is_ok()
        },
        is_clean: &is_clean_affs,
        is_clean_full: &is_clean_affs,
        has_holes: false,
        excluded: &[],
        operations: FSX_OPERATIONS,
        value_max: trees::VALUE_MAX,
    };
    fsx(tools, ivers, scratch, &volume, cache)
}

fn fsx(tools: &Path, ivers: &Path, scratch: &Path, volume: &Volume<'_>, cache: &str) -> Option<bool> {
    let weights = if volume.has_holes { FSX_WEIGHTS } else { &FSX_WEIGHTS.replace("punch_hole = 5\n", "") };
    let small = "flen = 1048576\n[opsize]\nmax = 131072\n";
    let large = "flen = 33554432\n[opsize]\nmax = 131072\nmin = 512\nalign = 512\n";
    for (shape, sizes) in [("small", small), ("large", large)] {
        let config = scratch.join("fsx.toml");
        fs::write(&config, format!("{sizes}{weights}")).ok()?;
        for seed in FSX_SEEDS {
            println!("== fsx on {}, {cache}, {shape} file, seed {seed}", volume.name);
            let image = scratch.join("fsx.img");
            let mounted = || Mount::new(ivers, volume.kind, &image, scratch.join("fsx"), cache);
            let mount = (volume.make)(&image).then(mounted).flatten()?;
            let passed = succeeds(
                Command::new(tools.join("fsx"))
                    .args(["-q", "-N", volume.operations, "-S", seed, "-P"])
                    .arg(scratch)
                    .arg("-f")
                    .arg(&config)
                    .arg(mount.dir.join("file")),
            );
            if !(mount.unmount() && passed && (volume.is_clean)(&image)) {
                return Some(false);
            }
        }
    }
    Some(true)
}

/// What a run needs.
pub(crate) struct Setup {
    pub(crate) tools: PathBuf,
    pub(crate) ivers: PathBuf,
    pub(crate) scratch: PathBuf,
}

/// Installs the suites, builds the command, and runs `all`. Keeps the files of a failure.
pub(crate) fn with_setup(all: impl FnOnce(&Setup) -> Option<bool>) -> bool {
    let prepared = || {
        let target = target_dir();
        let root = target.join("tools");
        let install = ["install", "--locked", "--root", root.to_str()?, TOOLS[0], TOOLS[1]];
        // A program that exists already saves the release build.
        let given = std::env::var_os("IVERS_PROGRAM").map(PathBuf::from);
        let built = crate::run("test suites", "cargo", &install, &[])
            && (given.is_some() || crate::run("ivers", "cargo", &["build", "--release", "-p", "ivers"], &[]));
        let ivers = given.unwrap_or_else(|| target.join("release/ivers"));
        let scratch = std::env::temp_dir().join(format!("ivers-suites-{}", std::process::id()));
        fs::create_dir_all(&scratch).ok()?;
        built.then_some(Setup { tools: root.join("bin"), ivers, scratch })
    };
    let Some(setup) = prepared() else {
        eprintln!("xtask: cannot set up the test suites");
        return false;
    };
    let passed = all(&setup) == Some(true);
    if passed {
        let _ = fs::remove_dir_all(&setup.scratch);
    } else {
        eprintln!("xtask: the files of the failure are in {}", setup.scratch.display());
    }
    passed
}

const CACHES: [&str; 2] = ["writeback_cache", "no_writeback_cache"];

/// Runs pjdfstest and fsx on `mem` and on several kinds of images, and the applicable part on FAT.
pub(crate) fn suites() -> bool {
    with_setup(|Setup { tools, ivers, scratch }| {
        let nothing = |_: &Path| true;
        let mem = Volume {
            name: "mem".to_owned(),
            kind: "mem",
            make: &nothing,
            is_clean: &nothing,
            is_clean_full: &nothing,
            has_holes: true,
            excluded: &[],
            operations: FSX_OPERATIONS,
            value_max: trees::VALUE_MAX,
        };
        let on_ext = |options: &'static [&'static str], cache: Option<&str>| {
            let make = |image: &Path| make_image("mke2fs", &["-q", "-F"], options, image);
            let volume = ext(&make, options);
            match cache {
                Some(cache) => fsx(tools, ivers, scratch, &volume, cache),
                None => pjdfstest(tools, ivers, scratch, &volume),
            }
        };
        Some(
            pjdfstest(tools, ivers, scratch, &mem)?
                && on_ext(IMAGES[0], None)?
                && pjdfstest(tools, ivers, scratch, &fat())?
                && CACHES.iter().all(|cache| {
                    IMAGES.iter().all(|options| on_ext(options, Some(cache)) == Some(true))
                        && ["ofs", "ffs+intl", "ffs+dc"]
                            .iter()
                            .all(|variant| fsx_on_affs(tools, ivers, scratch, variant, cache) == Some(true))
                        && fsx(tools, ivers, scratch, &fat(), cache) == Some(true)
                }),
        )
    })
}
