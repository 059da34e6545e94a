//! Threads outside the session's pool that make the kernel hand over what it holds back of a file.
//!
//! They have it opened through the mount, by a name under which the kernel looked it up, and synced (see
//! [`outside`](crate::outside)). They hold no lock while they wait for that: the requests that this causes are served by the
//! session's own threads, which never wait for these.

use crate::nodes::{Node, Nodes, Place, ROOT};
use crate::outside::{Flush, Outside};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What to do afterwards; told whether the flush worked.
type Then = Box<dyn FnOnce(bool) + Send>;

struct Job {
    /// The file to flush first, if any.
    flush: Option<(Arc<Node>, Flush)>,
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
    outside: Outside,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// The pool.
pub(crate) struct Flusher(Arc<Inner>);

impl Flusher {
    /// Starts one thread; more are started by those there are. Never by a serving thread: it may be bound to a
    /// processor ([`company`](crate::company)), and what it starts would be so for ever.
    pub(crate) fn start(nodes: Arc<Nodes>, outside: Outside) -> std::io::Result<Self> {
        let inner = Arc::new(Inner { nodes, outside, queue: Mutex::default(), wake: Condvar::new() });
        inner.start_thread(&mut inner.queue.lock())?;
        Ok(Self(inner))
    }

    /// Those who act for us.
    pub(crate) fn outside(&self) -> &Outside {
        &self.0.outside
    }

    /// Flush a file, then go on. Never blocks.
    pub(crate) fn flush(&self, node: Arc<Node>, how: Flush, then: impl FnOnce(bool) + Send + 'static) {
        // Without a name there is nothing to open; that needs no thread.
        if node.inode.attr().nlink == 0 {
            return then(false);
        }
        self.push(Job { flush: Some((node, how)), then: Box::new(then) });
    }

    /// Do something on one of these threads, for which a serving thread must not wait. Not done when the session ends before.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.push(Job {
            flush: None,
            then: Box::new(move |go_on| {
                if go_on {
                    work()
                }
            }),
        });
    }

    fn push(&self, job: Job) {
        let mut queue = self.0.queue.lock();
        if queue.closed {
            drop(queue);
            return (job.then)(false);
        }
        queue.jobs.push_back(job);
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
    fn start_thread(self: &Arc<Self>, queue: &mut Queue) -> std::io::Result<()> {
        let (inner, slot) = (self.clone(), queue.threads.len());
        let thread = std::thread::Builder::new().name("ivers-flush".into());
        queue.threads.push(thread.spawn(move || inner.work(slot))?);
        Ok(())
    }

    fn work(self: &Arc<Self>, slot: usize) {
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                // Somebody has to be there for the next one while this one waits.
                if queue.idle == 0
                    && !queue.closed
                    && queue.threads.len() < self.outside.flush_count()
                    && let Err(error) = self.start_thread(&mut queue)
                {
                    log::debug!("one thread less to flush files with: {error}");
                }
                drop(queue);
                let flushed = self.flush(slot, &job);
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
    }

    fn flush(&self, slot: usize, job: &Job) -> bool {
        let Some((node, how)) = &job.flush else { return true };
        node.places()
            .into_iter()
            .rev()
            .any(|place| self.path(place).is_some_and(|path| self.outside.flush(slot, &path, node.id, *how)))
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
