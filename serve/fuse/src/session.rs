//! A mount, from start to end.
//!
//! It has two halves, which may be two processes: [`Attached`] can unmount, [`Served`] parses and answers.

use crate::affinity_helper;
use crate::caller_affinity::CallerAffinity;
use crate::connection::Connection;
use crate::flusher::Flusher;
use crate::mount::{self, MountError, detach, device_of};
use crate::mountinfo;
use crate::nodes::Nodes;
use crate::ops::Ops;
use crate::options::FuseOptions;
use crate::privileged_helper::{self, MountChannels};
use fuser::SessionACL;
use ivers_vfs::Vfs;
use parking_lot::{Condvar, Mutex};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type End = std::result::Result<(), Arc<std::io::Error>>;

#[derive(Default)]
struct State {
    end: Mutex<Option<End>>,
    ended: Condvar,
}

/// What a mount reports about the process that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The process to which SIGTERM may be sent. When it ends, the image is closed.
    pub pid: u32,
    /// The sandbox of the process that parses; `None`: it has none.
    pub sandbox: Option<String>,
}

impl Default for Server {
    /// This process, without a sandbox.
    fn default() -> Self {
        Self { pid: std::process::id(), sandbox: None }
    }
}

/// The half of a mount that can detach it. Dropping it detaches the mount, even while it is in use.
#[derive(Debug)]
pub struct Attached {
    dir: PathBuf,
    device: Option<(u32, u32)>,
    left: AtomicBool,
}

/// Mounts on a directory. Programs that access it wait until [`serve`] runs for the returned channels.
pub fn attach(dir: &Path, options: &FuseOptions) -> Result<(Attached, MountChannels), MountError> {
    let dir =
        dir.canonicalize().map_err(|e| MountError::Directory { dir: dir.into(), why: e.to_string() })?;
    let device = mount::attach(&dir, options)?;
    let attached = Attached { device: device_of(&dir), dir, left: AtomicBool::new(false) };
    let helper = privileged_helper::start(&attached.dir, attached.device).map_err(MountError::Session)?;
    let affinity_helper = affinity_helper::start().map_err(MountError::Session)?;
    Ok((attached, MountChannels { device, affinity_helper, helper }))
}

impl Attached {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts. If the mount is in use, returns [`MountError::Busy`] and changes nothing.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.place().map_or(Ok(()), |dir| detach(&dir, false))
    }

    /// Detaches the mount from the tree. It serves open files until the last one is closed.
    pub fn detach(&self) -> Result<(), MountError> {
        self.place().map_or(Ok(()), |dir| detach(&dir, true))
    }

    /// Gives up the mount: `unmount` and `detach` do nothing afterwards. For a mount that is gone, whose
    /// device number another mount may have, or that must stay.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Returns the directory where this mount is, if there is one. Others may have moved it, or mounted over
    /// it.
    fn place(&self) -> Option<PathBuf> {
        if self.left.load(Ordering::Relaxed) {
            return None;
        }
        self.device.map_or_else(|| Some(self.dir.clone()), |device| mountinfo::find(&self.dir, device))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            log::warn!("{error}");
        }
    }
}

/// The half of a mount that answers. It does not own the [`Vfs`]: the caller unmounts that after
/// [`Served::wait`].
pub struct Served {
    state: Arc<State>,
}

/// Starts to answer requests. The mount works when this returns.
pub fn serve(
    vfs: Arc<Vfs>,
    channels: MountChannels,
    mut options: FuseOptions,
    server: Server,
) -> Result<Served, MountError> {
    options.adapt_to(&vfs);
    let nodes = Arc::new(Nodes::new(vfs.clone())?);
    let flusher = Flusher::start(nodes.clone(), channels.helper).map_err(MountError::Session)?;
    let caller_affinity = CallerAffinity::new(channels.affinity_helper, options.caller_affinity);
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.thread_count());
    let has_locks = vfs.has_locks();
    let connection = Arc::new(Connection::new(vfs, nodes, flusher, caller_affinity, options, server));
    let losing = Arc::downgrade(&connection);
    connection.vfs.on_data_loss(Box::new(move |inode, error| {
        losing.upgrade().map(|connection| connection.loses_data(inode, error)).unwrap_or_default()
    }));
    // The kernel has already decided who may use the mount. fuser's filter would also refuse requests that
    // the kernel makes itself, such as handing over the times that it keeps.
    let session = fuser::Session::from_fd(Ops(connection.clone()), channels.device, SessionACL::All, config)
        .map_err(MountError::Session)?;
    let _ = connection.kernel.set(session.notifier());
    let _ = connection.device.set(session.as_fd().try_clone_to_owned().map_err(MountError::Session)?);
    if has_locks {
        let waiting = Arc::downgrade(&connection);
        connection.vfs.on_lock_available(Box::new(move |ino| {
            if let Some(connection) = waiting.upgrade() {
                connection.lock_waits.unlocked(connection.nodes.id(ino.0));
            }
        }));
        let waits = connection.clone();
        let thread = std::thread::Builder::new().name("ivers-locks".into());
        thread.spawn(move || waits.lock_waits.run(&waits)).map_err(MountError::Session)?;
    }
    let state = Arc::new(State::default());
    let thread_state = state.clone();
    std::thread::Builder::new()
        .name("ivers-fuse".into())
        .spawn(move || {
            let end = match session.run() {
                // The mount ended while a request was read, for example a RELEASE after the last close.
                // Nobody waits for its answer.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => Ok(()),
                end => end,
            };
            *thread_state.end.lock() = Some(end.map_err(Arc::new));
            thread_state.ended.notify_all();
        })
        .map_err(MountError::Session)?;
    Ok(Served { state })
}

impl Served {
    /// Returns whether it is still mounted somewhere.
    pub fn is_mounted(&self) -> bool {
        self.state.end.lock().is_none()
    }

    /// Waits until the mount has ended and the last request is answered. All data that programs wrote has
    /// then reached the [`Vfs`].
    pub fn wait(&self) -> Result<(), MountError> {
        let mut end = self.state.end.lock();
        loop {
            match &*end {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => {
                    return Err(MountError::Session(std::io::Error::new(error.kind(), error.to_string())));
                }
                None => self.state.ended.wait(&mut end),
            }
        }
    }

    /// As [`Served::wait`], with a timeout. Returns whether the mount has ended.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let mut end = self.state.end.lock();
        self.state.ended.wait_while_for(&mut end, |end| end.is_none(), timeout);
        end.is_some()
    }
}

/// Both halves of a mount in one process. Dropping it detaches the mount, even while it is in use.
pub struct Session {
    attached: Attached,
    served: Served,
}

/// Mounts a VFS on a directory. The mount works when this returns.
pub fn mount(vfs: Arc<Vfs>, dir: &Path, mut options: FuseOptions) -> Result<Session, MountError> {
    options.adapt_to(&vfs);
    // Checked before the mount is visible: a filesystem without a root is not mounted.
    vfs.root()?;
    let (attached, channels) = attach(dir, &options)?;
    let served = serve(vfs, channels, options, Server::default())?;
    Ok(Session { attached, served })
}

impl Session {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        self.attached.dir()
    }

    /// See [`Served::is_mounted`].
    pub fn is_mounted(&self) -> bool {
        self.served.is_mounted()
    }

    /// See [`Served::wait`].
    pub fn wait(&self) -> Result<(), MountError> {
        self.served.wait()
    }

    /// See [`Served::wait_for`].
    pub fn wait_for(&self, timeout: Duration) -> bool {
        self.served.wait_for(timeout)
    }

    /// Unmounts and waits. If the mount is in use, returns [`MountError::Busy`] and changes nothing.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.leave_if_over();
        self.attached.unmount()?;
        self.wait()
    }

    /// As [`Attached::detach`]. [`Session::wait`] then returns after the last file is closed.
    pub fn detach(&self) -> Result<(), MountError> {
        self.leave_if_over();
        self.attached.detach()
    }

    fn leave_if_over(&self) {
        if !self.is_mounted() {
            self.attached.leave();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave_if_over();
    }
}
