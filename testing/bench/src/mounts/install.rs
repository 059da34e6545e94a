//! The programs of the peers: detection, installation, and the null passthrough, which is built from
//! libfuse's example.
//!
//! None of them is part of ivers. Packages are installed by the system's package manager; the compiled
//! example is kept in the user's cache.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{find_program, run};

/// Debian packages, and files that show whether each is installed.
const PACKAGES: [(&str, &[&str]); 7] = [
    ("e2fsprogs", &["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"]),
    ("fuse2fs", &["/usr/bin/fuse2fs"]),
    ("fio", &["/usr/bin/fio"]),
    ("gcc", &["/usr/bin/gcc", "/usr/bin/cc"]),
    ("make", &["/usr/bin/make"]),
    ("libc6-dev", &["/usr/include/unistd.h"]),
    ("libfuse3-dev", &["/usr/include/fuse3/fuse_lowlevel.h"]),
];

/// The example's path in the package, relative to the root or to the directory where the package was
/// unpacked.
const EXAMPLE: &str = "usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

fn packages_missing() -> Vec<&'static str> {
    let there = |files: &[&str]| files.iter().any(|file| Path::new(file).exists());
    PACKAGES.iter().filter(|(_, files)| !there(files)).map(|(package, _)| *package).collect()
}

/// Returns the message for a missing program.
pub(crate) fn missing(package: &str) -> String {
    format!("not installed; install package {package} or, as root, use --install-peers")
}

/// Installs missing packages if this process may; otherwise prints one message that lists them.
pub(crate) fn install(may_install: bool) -> Result<()> {
    let missing = packages_missing();
    if missing.is_empty() {
        return Ok(());
    }
    let apt = find_program("apt-get").filter(|_| rustix::process::geteuid().is_root());
    if let Some(apt) = apt.filter(|_| may_install) {
        let apt = |words: &[&str]| {
            run(Command::new(&apt).env("DEBIAN_FRONTEND", "noninteractive").args(words))
                .with_context(|| format!("cannot install {}", missing.join(" ")))
        };
        apt(&["update", "-q"])?;
        return apt(&[&["install", "-y", "-q", "--no-install-recommends"], missing.as_slice()].concat());
    }
    eprintln!(
        "bench: peers are missing; run `apt-get install {}` or, as root, use --install-peers",
        missing.join(" ")
    );
    Ok(())
}

fn cache() -> Result<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(home).context("neither XDG_CACHE_HOME nor HOME is set")?.join("ivers/peers");
    std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
    Ok(cache)
}

/// Returns the path of the example. Small installations omit documentation: then the package is downloaded
/// and unpacked in the cache.
fn example(cache: &Path) -> Result<PathBuf> {
    let installed = Path::new("/").join(EXAMPLE);
    if installed.exists() {
        return Ok(installed);
    }
    let unpacked = cache.join("libfuse3-dev");
    if !unpacked.join(EXAMPLE).exists() {
        let place = tempfile::tempdir_in(cache)?;
        let fetched = run(Command::new("apt-get")
            .args(["download", "-q", "-o", "APT::Sandbox::User=root", "libfuse3-dev"])
            .current_dir(place.path()));
        fetched.context("cannot fetch the package libfuse3-dev for its example")?;
        let package = std::fs::read_dir(place.path())?.next().context("apt-get download left no file")??;
        run(Command::new("dpkg-deb").arg("-x").arg(package.path()).arg(&unpacked))?;
    }
    let file = unpacked.join(EXAMPLE);
    if file.exists() { Ok(file) } else { bail!("libfuse3-dev has no passthrough_ll.c") }
}

/// Returns libfuse's passthrough_ll, compiled once and cached.
pub(crate) fn passthrough() -> Result<PathBuf> {
    let missing: Vec<_> = packages_missing()
        .into_iter()
        .filter(|package| ["gcc", "libc6-dev", "libfuse3-dev"].contains(package))
        .collect();
    if !missing.is_empty() {
        bail!(self::missing(&missing.join(" ")));
    }
    let cache = cache()?;
    let source = example(&cache)?;
    let program = cache.join("passthrough_ll");
    // ctime is the time of installation: packages keep an old mtime.
    let installed = |path: &Path| std::fs::metadata(path).map(|meta| meta.ctime());
    let library = installed(Path::new("/usr/include/fuse3/fuse_lowlevel.h"))?.max(installed(&source)?);
    if installed(&program).is_ok_and(|built| built > library) {
        return Ok(program);
    }
    let flags = Command::new("pkg-config").args(["fuse3", "--cflags", "--libs"]).output();
    let flags = match flags {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => "-I/usr/include/fuse3 -lfuse3 -lpthread".to_owned(),
    };
    let place = tempfile::tempdir_in(&cache)?;
    let built = place.path().join("passthrough_ll");
    run(Command::new("gcc")
        .args(["-O2", "-w", "-o"])
        .arg(&built)
        .arg(&source)
        .args(flags.split_whitespace()))
    .context("cannot compile passthrough_ll")?;
    std::fs::rename(&built, &program)?;
    Ok(program)
}

/// Raises the limit of open files for child processes, because the passthrough keeps a descriptor for each
/// file that the kernel knows. Returns the limit.
pub(crate) fn raise_descriptor_limit() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 1 << 20;
    let now = getrlimit(Resource::Nofile);
    let all = Rlimit { current: Some(WANTED), maximum: Some(WANTED) };
    if setrlimit(Resource::Nofile, all).is_err() {
        // Without the right to raise the hard limit, use all of it.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: now.maximum, maximum: now.maximum });
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}
