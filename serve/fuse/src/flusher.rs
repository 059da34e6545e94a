//! Threads outside the session's pool that make the kernel hand over what it holds back of a file.
//!
//! They open the file through the mount, by a name under which the kernel looked it up, and sync it. They hold no lock while they
//! do: the requests that this causes are served by the session's own threads, which never wait for these.

use crate::mounting::device_of;
use crate::nodes::{Node, Nodes, Place, ROOT};
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Threads at most; each may wait for the write-back of a whole file.
const THREADS_MAX: usize = 8;

/// How to make the kernel hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// Data and times of the file.
    File,
    /// Whatever is dirty in the mount: for callers that come with the kernel's lock of the inode held, which fsync would
    /// wait for.
    Mount,
}

/// What to do afterwards; told whether the flush worked.
type Then = Box<dyn FnOnce(bool) + Send>;

struct Job {
    node: Arc<Node>,
    how: Flush,
    then: Then,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    idle: usize,
    closed: bool,
    threads: Vec<JoinHandle<()>>,
}

struct Inner {
    nodes: Arc<Nodes>,
    dir: PathBuf,
    device: RwLock<Option<(u32, u32)>>,
    /// The kernel's numbers of our threads, to know their requests by.
    thread_ids: RwLock<Vec<u32>>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// The pool.
pub(crate) struct Flusher(Arc<Inner>);

impl Flusher {
    pub(crate) fn new(nodes: Arc<Nodes>, dir: &Path) -> Self {
        Self(Arc::new(Inner {
            nodes,
            dir: dir.into(),
            device: RwLock::default(),
            thread_ids: RwLock::default(),
            queue: Mutex::default(),
            wake: Condvar::new(),
        }))
    }

    /// The mount answers: from now on files can be found through it.
    pub(crate) fn serves(&self, device: Option<(u32, u32)>) {
        *self.0.device.write() = device;
    }

    /// Whether a request comes from one of our threads.
    pub(crate) fn is_ours(&self, thread_id: u32) -> bool {
        self.0.thread_ids.read().contains(&thread_id)
    }

    /// Flush a file, then go on. Never blocks.
    pub(crate) fn flush(&self, node: Arc<Node>, how: Flush, then: impl FnOnce(bool) + Send + 'static) {
        let then: Then = Box::new(then);
        // Without a name there is nothing to open; that needs no thread.
        if node.inode.attr().nlink == 0 || self.0.device.read().is_none() {
            return then(false);
        }
        let mut queue = self.0.queue.lock();
        if queue.closed {
            drop(queue);
            return then(false);
        }
        queue.jobs.push_back(Job { node, how, then });
        if queue.idle < queue.jobs.len() && queue.threads.len() < THREADS_MAX {
            let inner = self.0.clone();
            match std::thread::Builder::new().name("ivers-flush".into()).spawn(move || inner.work()) {
                Ok(thread) => queue.threads.push(thread),
                Err(error) if queue.threads.is_empty() => {
                    log::warn!("no thread to flush files with: {error}");
                    let job = queue.jobs.pop_back();
                    drop(queue);
                    if let Some(job) = job {
                        (job.then)(false);
                    }
                    return;
                }
                Err(_) => {}
            }
        }
        drop(queue);
        self.0.wake.notify_one();
    }

    /// The session is over: let the threads end.
    pub(crate) fn close(&self) {
        let (threads, jobs) = {
            let mut queue = self.0.queue.lock();
            queue.closed = true;
            (std::mem::take(&mut queue.threads), std::mem::take(&mut queue.jobs))
        };
        self.0.wake.notify_all();
        for job in jobs {
            (job.then)(false);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Inner {
    fn work(&self) {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.thread_ids.write().push(id);
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                let flushed = self.flush(&job);
                (job.then)(flushed);
                queue = self.queue.lock();
            } else if queue.closed {
                break;
            } else {
                queue.idle += 1;
                self.wake.wait(&mut queue);
                queue.idle -= 1;
            }
        }
        drop(queue);
        self.thread_ids.write().retain(|other| *other != id);
    }

    fn flush(&self, job: &Job) -> bool {
        let Some(file) = self.open(&job.node) else { return false };
        let done = match job.how {
            Flush::File => rustix::fs::fsync(&file),
            Flush::Mount => rustix::fs::syncfs(&file),
        };
        if let Err(error) = done {
            log::debug!("flush of inode {}: {error}", job.node.inode.ino);
        }
        done.is_ok()
    }

    /// Open a file of ours through the mount, without following anything and without leaving it.
    fn open(&self, node: &Node) -> Option<OwnedFd> {
        let device = (*self.device.read())?;
        let root_flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &self.dir, root_flags, Mode::empty()).ok()?;
        // Something else may have been mounted over it since.
        if device_of_fd(&root)? != device {
            return None;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        node.places().into_iter().rev().find_map(|place| {
            let path = self.path(place)?;
            let file = rustix::fs::openat2(&root, path.as_slice(), flags, Mode::empty(), resolve).ok()?;
            let stat = rustix::fs::fstat(&file).ok()?;
            (stat.st_ino == node.id).then_some(file)
        })
    }

    fn path(&self, mut place: Place) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        let mut length = 0;
        loop {
            length += place.1.len() + 1;
            // PATH_MAX; it also ends a loop of outdated hints.
            if length > 4095 {
                return None;
            }
            names.push(place.1);
            if place.0 == ROOT {
                break;
            }
            place = self.nodes.get(place.0)?.place()?;
        }
        names.reverse();
        Some(names.join(&b'/'))
    }
}

fn device_of_fd(fd: &OwnedFd) -> Option<(u32, u32)> {
    use rustix::fs::{AtFlags, StatxFlags};
    let stat =
        rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    Some((stat.stx_dev_major, stat.stx_dev_minor))
}

/// The number of the mount's device, for [`Flusher::serves`].
pub(crate) fn mounted_device(dir: &Path) -> Option<(u32, u32)> {
    device_of(dir)
}
