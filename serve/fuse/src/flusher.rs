//! Threads outside the session's pool that make the kernel hand over what it holds back of a file.
//!
//! They have it opened through the mount, by a name under which the kernel looked it up, and synced (see
//! [`outside`](crate::outside)). They hold no lock while they wait for that: the requests that this causes are served by the
//! session's own threads, which never wait for these.
//!
//! A flush may take for ever: the lock that it waits for may be held by a program that waits for a server which somebody has stopped, or for
//! the answer to the very query that the flush is for. So whoever asks for one says until when it is worth waiting for, and is told then that it
//! did not work. The thread stays with it; as all of them may be staying, those that do so look after the time of those who wait in line.
//!
//! Whoever waits for an answer of ours may hold the kernel's lock of an inode, and all these threads may be waiting for that very lock. What such
//! a caller needs is asked by a thread of its own, which never waits for a lock of the kernel's.

use crate::nodes::{Node, Nodes};
use crate::outside::Outside;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// What to do afterwards; told whether the flush worked.
type Then = Box<dyn FnOnce(bool) + Send>;

struct Job {
    /// The file to flush first, if any, and until when somebody waits for that.
    flush: Option<(Arc<Node>, Instant)>,
    then: Then,
}

impl Job {
    fn only(work: impl FnOnce() + Send + 'static) -> Self {
        let then = move |go_on| {
            if go_on {
                work()
            }
        };
        Self { flush: None, then: Box::new(then) }
    }

    fn is_late(&self, now: Instant) -> bool {
        self.flush.as_ref().is_some_and(|(_, until)| *until <= now)
    }
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

    /// Flush a file, then go on, at the latest some [`WAITING`] behind `until`. Never blocks.
    pub(crate) fn flush(&self, node: Arc<Node>, until: Instant, then: impl FnOnce(bool) + Send + 'static) {
        // Without a name there is nothing to open; that needs no thread.
        if node.inode.attr().nlink == 0 {
            return then(false);
        }
        self.flushing.push(Job { flush: Some((node, until)), then: Box::new(then) });
    }

    /// Do something on one of these threads, for which a serving thread must not wait. Not done when the session ends before.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.flushing.push(Job::only(work));
    }

    /// The same, for a caller that holds a lock of the kernel's and waits for it: it must not wait for such a lock itself.
    pub(crate) fn soon(&self, work: impl FnOnce() + Send + 'static) {
        self.asking.push(Job::only(work));
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
                self.do_job(slot, job);
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

    fn do_job(&self, slot: usize, job: Job) {
        let Some((node, until)) = job.flush else { return (job.then)(true) };
        let then = Cell::new(Some(job.then));
        let meanwhile = || {
            let now = Instant::now();
            if until <= now
                && let Some(then) = then.take()
            {
                log::debug!("inode {} cannot be flushed in time", node.id);
                then(false);
            }
            self.refuse_late(now);
        };
        let flush =
            |path: Vec<u8>| Instant::now() < until && self.outside.flush(slot, &path, node.id, meanwhile);
        let flushed = self.nodes.paths(&node).any(flush);
        if let Some(then) = then.take() {
            then(flushed);
        }
    }

    /// Those in line whose time is over.
    fn refuse_late(&self, now: Instant) {
        let late = {
            let mut queue = self.queue.lock();
            let (late, in_time) = std::mem::take(&mut queue.jobs)
                .into_iter()
                .partition::<VecDeque<_>, _>(|job| job.is_late(now));
            queue.jobs = in_time;
            late
        };
        late.into_iter().for_each(|job| (job.then)(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outside::{NO, YES, not_answering};
    use ivers_vfs::{MountOptions, Vfs};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(300);
    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_flush_that_does_not_end_holds_up_nobody_for_ever() {
        let vfs = Vfs::mount(Arc::new(ivers_mem::Mem::new(1 << 20)), MountOptions::default()).unwrap();
        let nodes = Arc::new(Nodes::new(vfs.root().unwrap()));
        let root = nodes.get(crate::nodes::ROOT).unwrap();
        let (outside, others) = not_answering();
        let flusher = Flusher::start(nodes, outside).unwrap();
        let flush = |patience: Duration| -> Receiver<bool> {
            let (told, hears) = channel();
            flusher
                .flush(root.clone(), Instant::now() + patience, move |flushed| told.send(flushed).unwrap());
            hears
        };
        let begin = Instant::now();
        let (first, in_line, patient) = (flush(SOON), flush(SOON), flush(NEVER));
        assert_eq!((first.recv(), in_line.recv()), (Ok(false), Ok(false)));
        assert!(begin.elapsed() >= SOON, "there was time to be had");
        assert_eq!(patient.recv_timeout(SOON), Err(RecvTimeoutError::Timeout));
        // The first one ends after all: nobody is told twice, and the thread is there for who still waits.
        let answer =
            |answer| rustix::net::send(&others, &[answer], rustix::net::SendFlags::NOSIGNAL).unwrap();
        answer(NO);
        answer(YES);
        assert_eq!(patient.recv(), Ok(true));
        drop(others);
        flusher.close();
    }
}
