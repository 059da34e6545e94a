//! Attaches to a directory and detaches from it: by mount(2) where that is allowed, by fusermount3 otherwise.

use crate::options::FuseOptions;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use thiserror::Error;

/// Why mounting or unmounting failed.
#[derive(Debug, Error)]
pub enum MountError {
    /// The kernel has no FUSE, or this environment hides it.
    #[error(
        "/dev/fuse: {0}: load the module (modprobe fuse) or give the container the device \
         (--device /dev/fuse); without a mount, ivers ls, cat, cp and serve work on the image"
    )]
    NoDevice(std::io::Error),
    /// The directory cannot be mounted on.
    #[error("{dir}: {why}")]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// An ordinary user needs fusermount3.
    #[error(
        "fusermount3: {0}: mounting without root needs it (package fuse3); without a mount, ivers ls, cat, \
         cp and serve work on the image"
    )]
    NoHelper(std::io::Error),
    /// fusermount3 refused.
    #[error("{0}")]
    Helper(String),
    /// The mount is in use.
    #[error("{0}: busy: a process has a file open or its working directory there")]
    Busy(PathBuf),
    /// The FUSE session could not start, or ended with an error.
    #[error("FUSE session: {0}")]
    Session(std::io::Error),
    /// The filesystem could not read its root.
    #[error(transparent)]
    Filesystem(#[from] ivers_vfs::Error),
}

/// Mounts and returns the open device. `dir` is absolute.
pub(crate) fn attach(dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let bad_dir = |why: String| MountError::Directory { dir: dir.into(), why };
    let meta = std::fs::metadata(dir).map_err(|e| bad_dir(e.to_string()))?;
    // The kernel would accept a file as a directory, and then refuse everything in it.
    if !meta.is_dir() {
        return Err(bad_dir("not a directory".into()));
    }
    let device = match rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        // Some systems reserve the device for root; the helper runs as root.
        Err(Errno::ACCESS) => return attach_by_helper(dir, options),
        Err(error) => return Err(MountError::NoDevice(error.into())),
    };
    use std::os::fd::AsRawFd;
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        meta.mode() & 0o170000,
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw()
    );
    if options.kernel_checks() {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    for (on, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (!options.suid, MountFlags::NOSUID),
        (!options.dev, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
        (options.sync, MountFlags::SYNCHRONOUS),
    ] {
        if on {
            flags |= flag;
        }
    }
    let data = CString::new(data).map_err(|e| bad_dir(e.to_string()))?;
    let fs_type = format!("fuse.{}", options.subtype);
    match rustix::mount::mount(options.fsname.as_str(), dir, fs_type.as_str(), flags, data.as_c_str()) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) => {
            drop(device);
            attach_by_helper(dir, options)
        }
        Err(error) => Err(bad_dir(format!("mount: {error}"))),
    }
}

/// fusermount3 sends the device over the socket whose number is in `_FUSE_COMMFD`. Standard input serves as
/// that socket, so no other descriptor can be inherited by accident.
fn attach_by_helper(dir: &Path, options: &FuseOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(MountError::NoHelper)?;
    let escape = |text: &str| text.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![
        format!("fsname={}", escape(&options.fsname)),
        format!("subtype={}", escape(&options.subtype)),
        if options.read_only { "ro" } else { "rw" }.to_string(),
    ];
    for (on, word) in [
        (options.kernel_checks(), "default_permissions"),
        (options.allow_other, "allow_other"),
        (!options.exec, "noexec"),
        (options.sync, "sync"),
    ] {
        if on {
            words.push(word.into());
        }
    }
    let child = Command::new("fusermount3")
        .arg("-o")
        .arg(words.join(","))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(MountError::NoHelper)?;
    let received = receive_file(&ours);
    let output = child.wait_with_output().map_err(MountError::NoHelper)?;
    match received {
        Some(device) if output.status.success() => Ok(device),
        _ => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            let said = if said.is_empty() { format!("fusermount3: {}", output.status) } else { said };
            // Not if only this directory is refused.
            let forbidden = said.contains("/dev/fuse") || said.contains("mount failed");
            let instead = "; without a mount, ivers ls, cat, cp and serve work on the image";
            Err(MountError::Helper(said + if forbidden { instead } else { "" }))
        }
    }
}

/// Receives one byte with a descriptor. `None`: it came without one, or the other end is closed.
pub(crate) fn receive_file(socket: impl AsFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(
            &socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    });
    received.ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    })
}

/// Unmounts. `lazily`: detaches it from the tree now, even if it is in use.
pub(crate) fn detach(dir: &Path, lazily: bool) -> Result<(), MountError> {
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() } | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(dir, flags) {
        // INVAL: no longer a mount point, so it was unmounted concurrently.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy(dir.into())),
        Err(Errno::PERM) => {
            let output = Command::new("fusermount3")
                .args(if lazily { ["-u", "-z"].as_slice() } else { ["-u"].as_slice() })
                .arg("--")
                .arg(dir)
                .stdin(Stdio::null())
                .output()
                .map_err(MountError::NoHelper)?;
            if output.status.success() {
                return Ok(());
            }
            let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
            Err(if said.contains("busy") { MountError::Busy(dir.into()) } else { MountError::Helper(said) })
        }
        Err(error) => Err(MountError::Directory { dir: dir.into(), why: format!("unmount: {error}") }),
    }
}

/// Returns the device number of the filesystem at a path.
pub(crate) fn device_of(dir: &Path) -> Option<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
    let stat = rustix::fs::statx(CWD, dir, flags, StatxFlags::TYPE).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}
