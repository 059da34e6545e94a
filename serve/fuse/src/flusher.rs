//! Threads outside the session's pool that make the kernel hand over what it holds back of a file.
//!
//! They have the file opened through the mount, by a name under which the kernel looked it up, and synced
//! (see [`privileged_helper`](crate::privileged_helper)). They hold no lock while they wait: the session's
//! own threads serve the requests that this causes, and never wait for a flusher.
//!
//! A flush may never end. The lock that it waits for may be held by a program that waits for a stopped
//! server, or for the answer to the query that caused the flush. So each flush has a deadline, at which its
//! caller is told that it failed. The thread keeps waiting. Since all threads may be waiting, they also check
//! the deadlines of queued flushes.
//!
//! A thread that waits for an answer may hold the kernel's lock of an inode, and all flushers may be waiting
//! for that lock. What such a caller needs runs on a separate thread, which never waits for a lock of the
//! kernel.

use crate::nodes::{Node, Nodes};
use crate::privileged_helper::PrivilegedHelper;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// What to do afterwards; the argument says whether the flush worked.
type Then = Box<dyn FnOnce(bool) + Send>;

struct Job {
    /// The file to flush first, if any, and the deadline.
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
    helper: Arc<PrivilegedHelper>,
    most_threads: usize,
    queue: Mutex<Queue>,
    wake: Condvar,
}

/// The threads.
pub(crate) struct Flusher {
    flushing: Arc<Inner>,
    asking: Arc<Inner>,
    helper: Arc<PrivilegedHelper>,
}

impl Flusher {
    /// Starts one thread of each kind, which start more as needed. A serving thread never starts one: it may
    /// be bound to a processor ([`caller_affinity`](crate::caller_affinity)), and a new thread would inherit
    /// that.
    pub(crate) fn start(nodes: Arc<Nodes>, helper: PrivilegedHelper) -> std::io::Result<Self> {
        let helper = Arc::new(helper);
        let pool = |most_threads| {
            let (nodes, helper) = (nodes.clone(), helper.clone());
            let (queue, wake) = (Mutex::default(), Condvar::new());
            let inner = Arc::new(Inner { nodes, helper, most_threads, queue, wake });
            inner.start_thread(&mut inner.queue.lock())?;
            Ok::<_, std::io::Error>(inner)
        };
        Ok(Self { flushing: pool(helper.flush_count())?, asking: pool(1)?, helper })
    }

    /// The helper that flushes.
    pub(crate) fn helper(&self) -> &PrivilegedHelper {
        &self.helper
    }

    /// Finds the size that the kernel has for a file, for a caller that holds the kernel's lock of it. Never
    /// blocks.
    pub(crate) fn size_held_back(&self, node: Arc<Node>, then: impl FnOnce(Option<u64>) + Send + 'static) {
        let inner = self.asking.clone();
        self.asking.push(Job {
            flush: None,
            then: Box::new(move |go_on| {
                let ask = |path: Vec<u8>| inner.helper.size_of(&path, node.id);
                then(go_on.then(|| inner.nodes.paths(&node).find_map(ask)).flatten());
            }),
        });
    }

    /// Flushes a file, then runs `then`, at most about one [`WAITING`] after `until`. Never blocks.
    pub(crate) fn flush(&self, node: Arc<Node>, until: Instant, then: impl FnOnce(bool) + Send + 'static) {
        // Without a name the file cannot be opened, and no thread is needed.
        if node.inode.attr().nlink == 0 {
            return then(false);
        }
        self.flushing.push(Job { flush: Some((node, until)), then: Box::new(then) });
    }

    /// Runs `then` on one of these threads because a serving thread must not wait for it. Dropped if the
    /// session ends before.
    pub(crate) fn later(&self, work: impl FnOnce() + Send + 'static) {
        self.flushing.push(Job::only(work));
    }

    /// As [`Flusher::later`], for a caller that holds a lock of the kernel while it waits: `then` must not
    /// wait for such a lock.
    pub(crate) fn soon(&self, work: impl FnOnce() + Send + 'static) {
        self.asking.push(Job::only(work));
    }

    /// Ends the threads when the session is over.
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
                // Another thread must serve the queue while this one waits.
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
            |path: Vec<u8>| Instant::now() < until && self.helper.flush(slot, &path, node.id, meanwhile);
        let flushed = self.nodes.paths(&node).any(flush);
        if let Some(then) = then.take() {
            then(flushed);
        }
    }

    /// Takes queued jobs whose deadline has passed.
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
    use crate::privileged_helper::{NO, YES, not_answering};
    use ivers_vfs::{MountOptions, Vfs};
    use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(300);
    const NEVER: Duration = Duration::from_secs(3600);

    #[test]
    fn a_flush_that_never_ends_does_not_block_others() {
        let vfs = Vfs::mount(Arc::new(ivers_mem::Mem::new(1 << 20)), MountOptions::default()).unwrap();
        let nodes = Arc::new(Nodes::new(vfs).unwrap());
        let root = nodes.get(crate::nodes::ROOT).unwrap();
        let (helper, others) = not_answering();
        let flusher = Flusher::start(nodes, helper).unwrap();
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
        // The first flush ends after its deadline: its caller is not told again, and the thread serves the
        // next job.
        let answer =
            |answer| rustix::net::send(&others, &[answer], rustix::net::SendFlags::NOSIGNAL).unwrap();
        answer(NO);
        answer(YES);
        assert_eq!(patient.recv(), Ok(true));
        drop(others);
        flusher.close();
    }
}
