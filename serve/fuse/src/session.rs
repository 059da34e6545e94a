//! A mount from its beginning to its end.
//!
//! Two halves, which may be two processes: [`Attached`] is what can unmount, [`Serving`](Served) is what parses and answers.

use crate::attendant;
use crate::company::Company;
use crate::flusher::Flusher;
use crate::mounting::{self, MountError, detach, device_of};
use crate::mounts;
use crate::nodes::Nodes;
use crate::ops::Ops;
use crate::options::FuseOptions;
use crate::outside::{self, Connection};
use crate::serving::Serving;
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

/// What a mount tells of the process that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// The process whose end means that the image is closed, and which may be sent SIGTERM.
    pub pid: u32,
    /// What holds the process that parses; `None`: nothing.
    pub sandbox: Option<String>,
}

impl Default for Server {
    /// This process, free.
    fn default() -> Self {
        Self { pid: std::process::id(), sandbox: None }
    }
}

/// The half of a mount that can take it out of the tree. Dropping it does so, also while the mount is in use.
#[derive(Debug)]
pub struct Attached {
    dir: PathBuf,
    device: Option<(u32, u32)>,
    left: AtomicBool,
}

/// Mount on a directory. Whoever looks there waits until somebody [`serve`]s the connection.
pub fn attach(dir: &Path, options: &FuseOptions) -> Result<(Attached, Connection), MountError> {
    let dir =
        dir.canonicalize().map_err(|e| MountError::Directory { dir: dir.into(), why: e.to_string() })?;
    let device = mounting::attach(&dir, options)?;
    let attached = Attached { device: device_of(&dir), dir, left: AtomicBool::new(false) };
    let outside = outside::start(&attached.dir, attached.device).map_err(MountError::Session)?;
    let attendant = attendant::start().map_err(MountError::Session)?;
    Ok((attached, Connection { device, attendant, outside }))
}

impl Attached {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmount. [`MountError::Busy`] if somebody works in there: nothing has changed then.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.place().map_or(Ok(()), |dir| detach(&dir, false))
    }

    /// Take the mount out of the tree now. It serves those who still have files open there, until the last one
    /// has closed them.
    pub fn detach(&self) -> Result<(), MountError> {
        self.place().map_or(Ok(()), |dir| detach(&dir, true))
    }

    /// Do nothing about it any more: it is gone, and its number may already be another mount's, or it shall stay.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// The directory that shows this mount, if any does: others may have moved it, or put something else there.
    fn place(&self) -> Option<PathBuf> {
        if self.left.load(Ordering::Relaxed) {
            return None;
        }
        self.device.map_or_else(|| Some(self.dir.clone()), |device| mounts::find(&self.dir, device))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            log::warn!("{error}");
        }
    }
}

/// The half of a mount that answers. It does not own the [`Vfs`]: whoever mounted that unmounts it after [`Served::wait`].
pub struct Served {
    state: Arc<State>,
}

/// Answer what the kernel asks. When this returns the mount serves.
pub fn serve(
    vfs: Arc<Vfs>,
    connection: Connection,
    mut options: FuseOptions,
    server: Server,
) -> Result<Served, MountError> {
    options.read_only |= vfs.is_read_only();
    let nodes = Arc::new(Nodes::new(vfs.root()?));
    let flusher = Flusher::start(nodes.clone(), connection.outside).map_err(MountError::Session)?;
    let company = Company::new(connection.attendant, options.company);
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.thread_count());
    let serving = Arc::new(Serving::new(vfs, nodes, flusher, company, options, server));
    // The kernel has decided already who may use the mount. fuser's own filter would also refuse what the kernel does on
    // its own behalf, as handing over the times it keeps.
    let session = fuser::Session::from_fd(Ops(serving.clone()), connection.device, SessionACL::All, config)
        .map_err(MountError::Session)?;
    let _ = serving.kernel.set(session.notifier());
    let _ = serving.device.set(session.as_fd().try_clone_to_owned().map_err(MountError::Session)?);
    let state = Arc::new(State::default());
    let thread_state = state.clone();
    std::thread::Builder::new()
        .name("ivers-fuse".into())
        .spawn(move || {
            let end = match session.run() {
                // The mount went while a request was being read, a RELEASE behind the last close say: nobody waits for its answer.
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
    /// Whether it is still mounted somewhere.
    pub fn is_mounted(&self) -> bool {
        self.state.end.lock().is_none()
    }

    /// Wait until nothing is mounted any more and the last request is answered. All that programs wrote has then reached
    /// the [`Vfs`].
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

    /// Wait as [`Served::wait`], but not for ever. False: still mounted.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let mut end = self.state.end.lock();
        self.state.ended.wait_while_for(&mut end, |end| end.is_none(), timeout);
        end.is_some()
    }
}

/// Both halves in one process. Dropping it takes the mount out of the tree, also while it is in use.
pub struct Session {
    attached: Attached,
    served: Served,
}

/// Mount a VFS on a directory. When this returns the mount serves.
pub fn mount(vfs: Arc<Vfs>, dir: &Path, mut options: FuseOptions) -> Result<Session, MountError> {
    options.read_only |= vfs.is_read_only();
    // Before the mount shows: a filesystem without a root is not mounted.
    vfs.root()?;
    let (attached, connection) = attach(dir, &options)?;
    let served = serve(vfs, connection, options, Server::default())?;
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

    /// Unmount and wait. [`MountError::Busy`] if somebody works in there: nothing has changed then.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.leave_if_over();
        self.attached.unmount()?;
        self.wait()
    }

    /// See [`Attached::detach`]; then [`Session::wait`] returns once the last file is closed.
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
