//! A mount from its beginning to its end.

use crate::flusher::{Flusher, mounted_device};
use crate::mounting::{MountError, attach, detach};
use crate::nodes::Nodes;
use crate::ops::Ops;
use crate::options::FuseOptions;
use crate::serving::Serving;
use fuser::SessionACL;
use ivers_vfs::Vfs;
use parking_lot::{Condvar, Mutex};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

type End = std::result::Result<(), Arc<std::io::Error>>;

#[derive(Default)]
struct State {
    end: Mutex<Option<End>>,
    ended: Condvar,
}

/// A filesystem that is mounted. Dropping it takes the mount out of the tree, also while it is in use.
///
/// The session does not own the [`Vfs`]: whoever mounted that unmounts it after [`Session::wait`].
pub struct Session {
    dir: PathBuf,
    device: Option<(u32, u32)>,
    state: Arc<State>,
}

/// Mount a VFS on a directory. When this returns the mount serves.
pub fn mount(vfs: Arc<Vfs>, dir: &Path, mut options: FuseOptions) -> Result<Session, MountError> {
    let dir =
        dir.canonicalize().map_err(|e| MountError::Directory { dir: dir.into(), why: e.to_string() })?;
    options.read_only |= vfs.is_read_only();
    let root = vfs.root()?;
    let device = attach(&dir, &options)?;
    let mut started = Starting { dir: Some(dir.clone()) };

    let nodes = Arc::new(Nodes::new(root));
    let flusher = Flusher::new(nodes.clone(), &dir);
    let mut config = fuser::Config::default();
    config.n_threads = Some(options.thread_count());
    let serving = Arc::new(Serving::new(vfs, nodes, flusher, options));
    // The kernel has decided already who may use the mount. fuser's own filter would also refuse what the kernel does on
    // its own behalf, as handing over the times it keeps.
    let session = fuser::Session::from_fd(Ops(serving.clone()), device, SessionACL::All, config)
        .map_err(MountError::Session)?;
    let state = Arc::new(State::default());
    let thread_state = state.clone();
    std::thread::Builder::new()
        .name("ivers-fuse".into())
        .spawn(move || {
            let end = session.run();
            *thread_state.end.lock() = Some(end.map_err(Arc::new));
            thread_state.ended.notify_all();
        })
        .map_err(MountError::Session)?;
    let device = mounted_device(&dir);
    serving.flusher.serves(device);
    started.dir = None;
    Ok(Session { dir, device, state })
}

/// Takes a half-made mount away again.
struct Starting {
    dir: Option<PathBuf>,
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(dir) = self.dir.take()
            && let Err(error) = detach(&dir, true)
        {
            log::warn!("{error}");
        }
    }
}

impl Session {
    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether it is still mounted somewhere.
    pub fn is_mounted(&self) -> bool {
        self.state.end.lock().is_none()
    }

    /// Wait until nothing is mounted any more (somebody called [`Session::unmount`], umount or fusermount3) and the last request is
    /// answered. All that programs wrote has then reached the [`Vfs`].
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

    /// Wait as [`Session::wait`], but not for ever. False: still mounted.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let mut end = self.state.end.lock();
        self.state.ended.wait_while_for(&mut end, |end| end.is_none(), timeout);
        end.is_some()
    }

    /// Unmount and wait. [`MountError::Busy`] if somebody works in there: nothing has changed then.
    pub fn unmount(&self) -> Result<(), MountError> {
        if self.is_attached() {
            detach(&self.dir, false)?;
        }
        self.wait()
    }

    /// Take the mount out of the tree now. It serves those who still have files open there, until the last one
    /// has closed them; then [`Session::wait`] returns.
    pub fn detach(&self) -> Result<(), MountError> {
        if self.is_attached() { detach(&self.dir, true) } else { Ok(()) }
    }

    /// Whether the directory still shows this mount, and not what somebody else put there.
    fn is_attached(&self) -> bool {
        self.is_mounted() && (self.device.is_none() || mounted_device(&self.dir) == self.device)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            log::warn!("{error}");
        }
    }
}
