//! Threads outside the session's pool that make the kernel hand over what it holds back of a file.
//!
//! They have it opened through the mount, by a name under which the kernel looked it up, and synced (see
//! [`outside`](crate::outside)). They hold no lock while they wait for that: the requests that this causes are served by the
//! session's own threads, which never wait for these.
//!
//! Whoever waits for an answer of ours may hold the kernel's lock of an inode, and all these threads may be waiting for that very lock. What such
//! a caller needs is asked by a thread of its own, which never waits for a lock of the kernel's.

use crate::nodes::{Node, Nodes};
use crate::outside::Outside;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What to do afterwards; told whether the flush worked.
type Then = Box<dyn FnOnce(bool) + Send>;

struct Job {
    /// The file to flush first, if any.
    flush: Option<Arc<Node>>,
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
    outside: Arc<Outside>,
    most_threads: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// The threads.
pub(crate) struct Flusher {
    flushing: Arc<Inner>,
    asking: Arc<Inner>,
    outside: Arc<Outside>,
}

impl Flusher {
    /// Starts one thread of each kind; more are started by those there are. Never by a serving thread: it may be bound to a
    /// processor ([`company`](crate::company)), and what it starts would be so for ever.
    pub(crate) fn start(nodes: Arc<Nodes>, outside: Outside) -> std::io::Result<Self> {
        let outside = Arc::new(outside);
        let pool = |most_threads| {
            let (nodes, outside) = (nodes.clone(), outside.clone());
            let (queue, wake) = (Mutex::default(), Condvar::new());
            let inner = Arc::new(Inner { nodes, outside, most_threads, queue, wake });
            inner.start_thread(&mut inner.queue.lock())?;
            Ok::<_, std::io::Error>(inner)
        };
        Ok(Self { flushing: pool(outside.flush_count())?, asking: pool(1)?, outside })
    }

    /// Those who act for us.
    pub(crate) fn outside(&self) -> &Outside {
        &self.outside
    }

    /// The size of a file as the kernel knows it, for a caller that holds the kernel's lock of it. Never blocks.
    pub(crate) fn size_held_back(&self, node: Arc<Node>, then: impl FnOnce(Option<u64>) + Send + 'static) {
        let inner = self.asking.clone();
        self.asking.push(Job {
            flush: None,
            then: Box::new(move |go_on| {
                let ask = |path: Vec<u8>| inner.outside.size_of(&path, node.id);
                then(go_on.then(|| inner.nodes.paths(&node).find_map(ask)).flatten());
            }),
        });
    }

    /// Flush a file, then go on. Never blocks.
    pub(crate) fn flush(&self, node: Arc<Node>, then: impl FnOnce(bool) + Send + 'static) {
        // Without a name there is nothing to open; that needs no thread.
        if node.inode.attr().nlink == 0 {
            return then(false);
        }
        self.flushing.push(Job { flush: Some(node), then: Box::new(then) });
    }

    /// Do something on one of these threads, for which a serving thread must not wait. Not done when the session ends before.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.flushing.push(Job {
            flush: None,
            then: Box::new(move |go_on| {
                if go_on {
                    work()
                }
            }),
        });
    }

    /// The session is over: let the threads end.
    pub(crate) fn close(&self) {
        self.asking.close();
        self.flushing.close();
    }
}

impl Inner {
    fn push(&self, job: Job) {
        let mut queue = self.queue.lock();
        if queue.closed {
            drop(queue);
            return (job.then)(false);
        }
        queue.jobs.push_back(job);
        drop(queue);
        self.wake.notify_one();
    }

    fn close(&self) {
        let (threads, jobs) = {
            let mut queue = self.queue.lock();
            queue.closed = true;
            (std::mem::take(&mut queue.threads), std::mem::take(&mut queue.jobs))
        };
        self.wake.notify_all();
        for job in jobs {
            (job.then)(false);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

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
                    && queue.threads.len() < self.most_threads
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
        let Some(node) = &job.flush else { return true };
        self.nodes.paths(node).any(|path| self.outside.flush(slot, &path, node.id))
    }
}
