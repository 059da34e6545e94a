//! Others' test suites on our mounts: pjdfstest and fsx, built beside the project.

use ivers_oracle::affs::{Amitools, check};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLS: [&str; 2] = ["pjdfstest@0.2.2", "fsx@0.3.2"];

/// Two users that every Debian has stand for pjdfstest's own. It needs root; the remounts it can do are left out, because
/// they fail as busy on the kernel's ext4 too.
const PJDFSTEST: &str = r#"
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

const FSX_WEIGHTS: &str = r#"
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
const FSX_SEEDS: [&str; 3] = ["1", "2", "3"];

/// Extents and block maps, small and large blocks, and data that starts in the inode.
const IMAGES: [&[&str]; 5] = [
    &["-t", "ext4", "-b", "4096"],
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext2", "-b", "1024"],
    &["-t", "ext3", "-b", "4096"],
    &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
];

/// A filesystem of ours on a directory; detached on the way out of a failure.
struct Mount<'a> {
    ivers: &'a Path,
    dir: PathBuf,
    mounted: bool,
}

impl<'a> Mount<'a> {
    fn new(ivers: &'a Path, kind: &str, what: &Path, dir: PathBuf, options: &str) -> Option<Self> {
        fs::create_dir_all(&dir).ok()?;
        let mut command = Command::new(ivers);
        command.args(["mount", "--type", kind]).args([what, &dir]).args(["-o", options]);
        command.status().ok()?.success().then_some(Self { ivers, dir, mounted: true })
    }

    fn unmount(mut self) -> bool {
        self.mounted = false;
        Command::new(self.ivers).arg("unmount").arg(&self.dir).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        if self.mounted {
            let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(&self.dir).status();
        }
    }
}

fn make_image(image: &Path, options: &[&str]) -> bool {
    File::create(image).and_then(|file| file.set_len(300 << 20)).is_ok()
        && Command::new("mke2fs")
            .args(["-q", "-F"])
            .args(options)
            .arg(image)
            .status()
            .is_ok_and(|s| s.success())
}

fn is_clean(image: &Path) -> bool {
    Command::new("e2fsck").arg("-fn").arg(image).status().is_ok_and(|status| status.success())
}

fn pjdfstest(tools: &Path, ivers: &Path, scratch: &Path, images: Option<&[&str]>) -> Option<bool> {
    let config = scratch.join("pjdfstest.toml");
    fs::write(&config, PJDFSTEST).ok()?;
    let mut mounts = Vec::new();
    for name in ["first", "second"] {
        let image = scratch.join(name).with_extension("img");
        let kind = match images {
            Some(options) => make_image(&image, options).then_some("ext4")?,
            None => "mem",
        };
        mounts.push(Mount::new(ivers, kind, &image, scratch.join(name), "allow_other")?);
    }
    println!("== pjdfstest on {}", images.map_or("mem".to_owned(), |options| options.join(" ")));
    let passed = Command::new(tools.join("pjdfstest"))
        .arg("-c")
        .arg(&config)
        .arg("-p")
        .arg(&mounts[0].dir)
        .arg("-s")
        .arg(&mounts[1].dir)
        .status()
        .is_ok_and(|status| status.success());
    let unmounted = mounts.into_iter().all(Mount::unmount);
    Some(passed && unmounted && (images.is_none() || is_clean(&scratch.join("first.img"))))
}

/// What fsx works on.
struct Volume<'a> {
    name: String,
    /// What `--type` says.
    kind: &'a str,
    make: &'a dyn Fn(&Path) -> bool,
    is_clean: &'a dyn Fn(&Path) -> bool,
    weights: &'a str,
}

fn fsx_on_ext(tools: &Path, ivers: &Path, scratch: &Path, images: &[&str], cache: &str) -> Option<bool> {
    let volume = Volume {
        name: images.join(" "),
        kind: "ext4",
        make: &|image| make_image(image, images),
        is_clean: &is_clean,
        weights: FSX_WEIGHTS,
    };
    fsx(tools, ivers, scratch, &volume, cache)
}

/// OFS or FFS, made by xdftool; there are no holes to punch.
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
        is_clean: &|image| fs::read(image).is_ok_and(|bytes| check(&bytes, 512).closed().is_ok()),
        weights: &FSX_WEIGHTS.replace("punch_hole = 5\n", ""),
    };
    fsx(tools, ivers, scratch, &volume, cache)
}

fn fsx(tools: &Path, ivers: &Path, scratch: &Path, volume: &Volume<'_>, cache: &str) -> Option<bool> {
    let small = "flen = 1048576\n[opsize]\nmax = 131072\n";
    let large = "flen = 33554432\n[opsize]\nmax = 131072\nmin = 512\nalign = 512\n";
    for (shape, sizes) in [("small", small), ("large", large)] {
        let config = scratch.join("fsx.toml");
        fs::write(&config, format!("{sizes}{}", volume.weights)).ok()?;
        for seed in FSX_SEEDS {
            println!("== fsx on {}, {cache}, {shape} file, seed {seed}", volume.name);
            let image = scratch.join("fsx.img");
            let mounted = || Mount::new(ivers, volume.kind, &image, scratch.join("fsx"), cache);
            let mount = (volume.make)(&image).then(mounted).flatten()?;
            let passed = Command::new(tools.join("fsx"))
                .args(["-q", "-N", FSX_OPERATIONS, "-S", seed, "-P"])
                .arg(scratch)
                .arg("-f")
                .arg(&config)
                .arg(mount.dir.join("file"))
                .status()
                .is_ok_and(|status| status.success());
            if !(mount.unmount() && passed && (volume.is_clean)(&image)) {
                return Some(false);
            }
        }
    }
    Some(true)
}

fn run_all() -> Option<bool> {
    let target = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    let root = std::path::absolute(target.join("tools")).ok()?;
    let tools = root.join("bin");
    let root_word = root.to_str()?;
    let install = ["install", "--locked", "--root", root_word, TOOLS[0], TOOLS[1]];
    if !crate::run("others' suites", "cargo", &install, &[])
        || !crate::run("ivers", "cargo", &["build", "--release", "-p", "ivers"], &[])
    {
        return Some(false);
    }
    let ivers = std::path::absolute(target.join("release/ivers")).ok()?;
    let scratch = std::env::temp_dir().join(format!("ivers-suites-{}", std::process::id()));
    fs::create_dir_all(&scratch).ok()?;
    let all = || {
        Some(
            pjdfstest(&tools, &ivers, &scratch, None)?
                && pjdfstest(&tools, &ivers, &scratch, Some(IMAGES[0]))?
                && ["writeback_cache", "no_writeback_cache"].iter().all(|cache| {
                    IMAGES
                        .iter()
                        .all(|images| fsx_on_ext(&tools, &ivers, &scratch, images, cache) == Some(true))
                        && ["ofs", "ffs+intl"].iter().all(|variant| {
                            fsx_on_affs(&tools, &ivers, &scratch, variant, cache) == Some(true)
                        })
                }),
        )
    };
    let passed = all();
    // What a failure left is worth a look.
    if passed == Some(true) {
        let _ = fs::remove_dir_all(&scratch);
    } else {
        eprintln!("xtask: what is left of it lies in {}", scratch.display());
    }
    passed
}

/// pjdfstest and fsx, on `mem` and on images of several kinds.
pub(crate) fn suites() -> bool {
    run_all().unwrap_or_else(|| {
        eprintln!("xtask: the suites could not be set up");
        false
    })
}
