//! A mounted in-memory filesystem for tests, and ways to look at it.
#![allow(dead_code)]

use ivers_fuse::{FuseOptions, Session};
use ivers_vfs::{MountOptions, Vfs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

/// A mount that ends with the test.
pub struct Mounted {
    // Before the directory: fields are dropped in order.
    pub session: Session,
    pub vfs: Arc<Vfs>,
    pub dir: tempfile::TempDir,
}

/// False where these tests cannot run. On CI that is a failure, elsewhere a message.
pub fn can_mount() -> bool {
    let missing = if !Path::new("/dev/fuse").exists() {
        Some("/dev/fuse is missing (modprobe fuse, or run the container with --device /dev/fuse)")
    } else if !is_root() && Command::new("fusermount3").arg("-V").output().is_err() {
        Some("fusermount3 is missing (package fuse3)")
    } else {
        None
    };
    if let Some(why) = missing {
        assert!(std::env::var_os("CI").is_none(), "the FUSE tests cannot run: {why}");
        eprintln!("the FUSE tests cannot run: {why}");
    }
    missing.is_none()
}

pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn mem_vfs(capacity: u64) -> Arc<Vfs> {
    Vfs::mount(Arc::new(ivers_mem::Mem::new(capacity)), MountOptions::default()).expect("mem mounts")
}

pub fn mount_with(options: FuseOptions) -> Mounted {
    mount_vfs(mem_vfs(1 << 30), options)
}

pub fn mount_vfs(vfs: Arc<Vfs>, options: FuseOptions) -> Mounted {
    let dir = tempfile::tempdir().expect("a directory to mount on");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let session = ivers_fuse::mount(vfs.clone(), dir.path(), options).expect("the mount succeeds");
    Mounted { session, vfs, dir }
}

pub fn mounted() -> Mounted {
    mount_with(FuseOptions { allow_other: is_root(), ..FuseOptions::default() })
}

impl Mounted {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// Returns the change attribute of a path, symbolic links not followed.
pub fn change(path: &Path) -> u64 {
    attribute(path, ivers_fuse::CHANGE).parse().expect("a decimal number")
}

pub fn attribute(path: &Path, name: &str) -> String {
    let value = xattr::get(path, name).unwrap_or_else(|e| panic!("{name} of {}: {e}", path.display()));
    String::from_utf8(value.unwrap_or_else(|| panic!("{} has no {name}", path.display()))).expect("UTF-8")
}

/// A command run as nobody; only root can ask for that.
pub fn as_nobody(program: &str, args: &[&str]) -> Output {
    Command::new("setpriv")
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", program])
        .args(args)
        .output()
        .expect("setpriv (package util-linux) runs")
}

pub fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().size()
}
