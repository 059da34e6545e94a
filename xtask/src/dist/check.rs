//! Installs the package in a clean Debian, uses it there, and removes it again.

use super::{Release, call};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Programs that the check needs, with their packages.
pub const PROGRAMS: [(&str, &str); 3] =
    [("mmdebstrap", "mmdebstrap"), ("lintian", "lintian"), ("unshare", "util-linux")];

/// Packages of the clean Debian beside the smallest set: those that the package requires, and readers of what
/// it installs.
const PACKAGES: &str = "fuse3,mount,e2fsprogs,man-db,bash-completion";

/// What a user does after the installation, as root of the clean Debian. It fails at the first surprise.
const USE: &str = r#"
set -eu
dpkg -i /package.deb
dpkg --verify ivers
ivers --version
cd /tmp
mkdir -p site/css; echo hello > site/index.html
ivers mkfs disk.img --size 64M
ivers cp -a site disk.img:/
test "$(ivers cat disk.img:/site/index.html)" = hello
e2fsck -fn disk.img
man ivers-mount | grep -q 'EXIT STATUS'
bash -c '. /usr/share/bash-completion/completions/ivers; complete -p ivers'
test -f /usr/share/zsh/vendor-completions/_ivers
test -f /usr/share/fish/vendor_completions.d/ivers.fish
test -f /usr/lib/systemd/system/ivers-serve@.service
test -f /usr/share/doc/ivers/docs/limits.md
test -f /usr/share/doc/ivers/docs/examples/serve.toml
/usr/libexec/ivers/fuse2fs --help > /dev/null 2>&1
if [ -c /dev/fuse ]; then
    mkdir /tmp/mnt
    echo '/tmp/disk.img /tmp/mnt fuse.ivers noauto 0 0' > fstab
    mount -T /tmp/fstab /tmp/mnt
    ivers changed /tmp/mnt --save state
    echo more >> /tmp/mnt/site/index.html
    test "$(ivers changed /tmp/mnt --since state)" = 'C site/index.html'
    ivers unmount /tmp/mnt
    e2fsck -fn disk.img
    echo 'mounted by a line of fstab'
fi
sed -e 's|/srv/[a-z]*.img|/tmp/disk.img|; /^state/d; /^metrics/d' -e '/^# Every user of/,$d' \
    /usr/share/doc/ivers/examples/serve.toml > serve.toml
ivers serve --config serve.toml --state /tmp/served --listen 127.0.0.1:0 2> log & server=$!
while ! grep -q 'INFO: serving' log; do kill -0 $server || { cat log; exit 1; }; sleep 0.1; done
kill $server; wait $server
rm -rf /tmp/* /root/.local
dpkg --purge ivers
"#;

/// Complaints of lintian about a package, with what it overrides.
fn lint(package: &Path) -> Result<()> {
    let mut lintian = Command::new("lintian");
    let words = ["--fail-on", "error,warning", "--allow-root", "--profile", "debian"];
    let output = lintian.args(words).arg(package).stdin(Stdio::null()).output().context("lintian")?;
    print!("{}", String::from_utf8_lossy(&output.stdout));
    ensure!(output.status.success(), "lintian has complaints: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Returns the names below a root directory, without what dpkg and the readers of manual pages keep.
fn names(root: &Path) -> Result<BTreeSet<String>> {
    let found =
        call("find", [root.as_os_str(), OsStr::new("-xdev"), OsStr::new("-printf"), OsStr::new("%P\n")])?;
    let kept = ["var/lib/dpkg", "var/log", "var/cache", "tmp", "proc", "dev", "run"];
    Ok(found
        .lines()
        .filter(|name| !kept.iter().any(|dir| name.starts_with(dir)))
        .map(str::to_owned)
        .collect())
}

/// Checks the package of a release. Requires root and a mirror of Debian.
pub fn check(release: &Release) -> Result<()> {
    let is_root = rustix::process::geteuid().is_root();
    ensure!(is_root, "the check installs the package in a clean Debian: run it as root");
    ensure!(crate::ensure(&PROGRAMS), "the check needs these programs");
    let name = format!("ivers_{}_{}.deb", release.version, release.architecture);
    let package = release.dir.join(&name);
    lint(&package)?;
    sums(release)?;

    let place = release.dir.join("clean");
    let _ = fs::remove_dir_all(&place);
    let include = format!("--include={PACKAGES}");
    let codename = codename()?;
    println!("xtask: a clean Debian ({codename}) for the package");
    let root = place.as_os_str();
    let words = ["--quiet", "--variant=minbase", "--mode=root", &include, &codename].map(OsStr::new);
    call("mmdebstrap", words.into_iter().chain([root]))?;
    let used = use_it(&place, &package);
    let removed = fs::remove_dir_all(&place);
    used?;
    removed.with_context(|| place.display().to_string())?;
    println!("xtask: {name} was installed, used and removed");
    Ok(())
}

fn codename() -> Result<String> {
    let release = fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
    let name = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    Ok(name.context("/etc/os-release: no VERSION_CODENAME")?.trim_matches('"').to_owned())
}

fn use_it(root: &Path, package: &Path) -> Result<()> {
    let before = names(root)?;
    fs::copy(package, root.join("package.deb"))?;
    fs::write(root.join("use.sh"), USE)?;
    // A namespace of mounts and processes: whatever the script leaves behind ends with it.
    let script = r#"
        mount --bind "$ROOT" "$ROOT"; mount -t proc proc "$ROOT/proc"
        mount -t tmpfs tmpfs "$ROOT/dev"
        # No source of random numbers: a program that needs one in its sandbox must use the system call.
        for name in null zero tty; do
            touch "$ROOT/dev/$name"; mount --bind "/dev/$name" "$ROOT/dev/$name"
        done
        if [ -c /dev/fuse ]; then touch "$ROOT/dev/fuse"; mount --bind /dev/fuse "$ROOT/dev/fuse"; fi
        exec chroot "$ROOT" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root sh /use.sh
    "#;
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-ec", script])
        .env("ROOT", root.canonicalize()?)
        .stdin(Stdio::null())
        .status()
        .context("unshare")?;
    ensure!(status.success(), "the use of the package failed: {status}");
    for name in ["package.deb", "use.sh"] {
        fs::remove_file(root.join(name))?;
    }
    let after = names(root)?;
    let left: Vec<&String> = after.symmetric_difference(&before).collect();
    if !left.is_empty() {
        bail!("the package left behind or removed: {left:?}");
    }
    Ok(())
}

/// Checks the checksums, and that the archive contains the program of the package.
fn sums(release: &Release) -> Result<()> {
    let dir = release.dir.display().to_string();
    call("env", ["-C", &dir, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"])?;
    let listed = call("env", ["-C", &dir, "sh", "-c", "tar -tzf ivers-*.tar.gz"])?;
    for name in ["/bin/ivers", "/LICENSE-MIT", "/third-party-licenses.txt", "/share/man/man1/ivers-cp.1.gz"] {
        ensure!(listed.lines().any(|line| line.ends_with(name)), "the archive has no {name}");
    }
    Ok(())
}
