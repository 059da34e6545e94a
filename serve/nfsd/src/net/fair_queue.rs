//! The queue of jobs, with fair turns for clients. Plain data behind one mutex; the reactor owns the threads.
//!
//! - Each connection has a queue, each client has a ring of connections, and clients take turns. A client
//!   that floods the server delays only itself.
//! - One thread always stays free to read, because replies to callbacks arrive on the same connections as
//!   requests. At most half of the other threads, but at least one, serve the same client.
//! - A connection that does not read its replies is *choked*: its jobs wait, so that unread replies stay few.
//! - While a *non-blocking* job runs (`net::reply_batch`), the jobs after it wait for the same thread, unless
//!   there are many of them or another client waits: waking a thread takes longer.
//! - Urgent jobs continue work in progress. They run first, because other jobs wait for them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::budget::ClientKey;

/// A unit of work.
pub type Job = Box<dyn FnOnce() + Send>;

/// What a thread does next.
pub enum Next {
    /// Run `job`, then report it with the next [`FairQueue::next`].
    Run {
        /// The job.
        job: Job,
        /// The client; `None` for an urgent job.
        client: Option<ClientKey>,
        /// The connection; `None` for an urgent job.
        connection: Option<u64>,
        /// The job announces when it is about to block.
        non_blocking: bool,
        /// The caller must wake another thread: more jobs are ready.
        wake: bool,
    },
    /// No job is ready. Wait for events, then call [`FairQueue::awake`].
    Wait,
    /// End the thread.
    Stop,
}

/// Maximum number of jobs that wait for a non-blocking one.
const MAX_WAITING: usize = 16;

/// A job, and whether it is non-blocking.
type Queued = (Job, bool);
/// The client and connection of a job; `None` for an urgent job.
type Origin = Option<(ClientKey, u64)>;

#[derive(Default)]
struct Line {
    connection: u64,
    jobs: VecDeque<Queued>,
    choked: bool,
}

#[derive(Default)]
struct Client {
    running: usize,
    /// Connections that have jobs or are choked. The one that was served goes to the back.
    lines: VecDeque<Line>,
    in_ring: bool,
}

impl Client {
    fn line(&mut self, connection: u64) -> &mut Line {
        let at = self.lines.iter().position(|line| line.connection == connection).unwrap_or_else(|| {
            self.lines.push_back(Line { connection, ..Line::default() });
            self.lines.len() - 1
        });
        &mut self.lines[at]
    }

    fn ready(&self) -> bool {
        self.lines.iter().any(|line| !line.choked && !line.jobs.is_empty())
    }

    fn pop(&mut self) -> Option<(Queued, u64)> {
        let at = self.lines.iter().position(|line| !line.choked && !line.jobs.is_empty())?;
        let mut line = self.lines.remove(at)?;
        let (job, connection) = (line.jobs.pop_front()?, line.connection);
        if !line.jobs.is_empty() {
            self.lines.push_back(line);
        }
        Some((job, connection))
    }
}

#[derive(Default)]
struct Queues {
    running: usize,
    urgent: VecDeque<Job>,
    clients: HashMap<ClientKey, Client>,
    /// Clients with a job that may run now.
    ring: VecDeque<ClientKey>,
    stopping: bool,
}

/// The queue of jobs, shared by all threads.
pub struct FairQueue {
    running_max: usize,
    client_running_max: usize,
    queues: Mutex<Queues>,
    /// Number of waiting threads.
    /// Raised under the lock, so that a thread that adds a job sees every thread that found none. Lowered
    /// outside the lock: a value that is too high wakes one thread too many.
    idle: AtomicUsize,
}

impl FairQueue {
    /// Creates a queue for this many threads. There are at least three, so that one can always read.
    pub fn new(threads: usize) -> Self {
        let running_max = threads.max(3) - 1;
        let (queues, idle) = (Mutex::default(), AtomicUsize::new(0));
        Self { running_max, client_running_max: running_max / 2, queues, idle }
    }

    /// Adds a job. Does not wake a thread: the reading thread adds jobs, and then asks for the next one
    /// itself.
    pub fn push(&self, client: ClientKey, connection: u64, job: Job, non_blocking: bool) {
        let mut queues = self.queues.lock();
        if !queues.stopping {
            queues.clients.entry(client).or_default().line(connection).jobs.push_back((job, non_blocking));
            self.enter(&mut queues, client);
        }
    }

    /// Adds a job that runs before all others. Returns whether the caller must wake a thread.
    #[must_use]
    pub fn push_urgent(&self, job: Job) -> bool {
        let mut queues = self.queues.lock();
        if queues.stopping {
            return false;
        }
        queues.urgent.push_back(job);
        self.must_wake(&queues)
    }

    /// Sets whether a connection is choked. Returns whether the caller must wake a thread.
    #[must_use]
    pub fn set_choked(&self, client: ClientKey, connection: u64, choked: bool) -> bool {
        let mut queues = self.queues.lock();
        let entry = queues.clients.entry(client).or_default();
        entry.line(connection).choked = choked;
        entry.lines.retain(|line| line.choked || !line.jobs.is_empty());
        self.enter(&mut queues, client);
        self.forget(&mut queues, client);
        self.must_wake(&queues)
    }

    /// Removes a closed connection. Returns its jobs, which the caller must drop without holding a lock.
    #[must_use]
    pub fn remove(&self, client: ClientKey, connection: u64) -> Vec<Job> {
        let mut queues = self.queues.lock();
        let Some(entry) = queues.clients.get_mut(&client) else { return Vec::new() };
        let at = entry.lines.iter().position(|line| line.connection == connection);
        let line = at.and_then(|at| entry.lines.remove(at));
        self.forget(&mut queues, client);
        line.into_iter().flat_map(|line| line.jobs).map(|(job, _)| job).collect()
    }

    /// Returns what the calling thread does next. `finished` is the client of the job that it ran:
    /// `Some(None)` after an urgent job, `None` if it ran no job.
    pub fn next(&self, finished: Option<Option<ClientKey>>) -> Next {
        let mut queues = self.queues.lock();
        if let Some(client) = finished {
            queues.running -= 1;
            if let Some(client) = client {
                if let Some(entry) = queues.clients.get_mut(&client) {
                    entry.running -= 1;
                }
                self.enter(&mut queues, client);
                self.forget(&mut queues, client);
            }
        }
        if queues.stopping {
            return Next::Stop;
        }
        match self.take(&mut queues) {
            Some(((job, non_blocking), origin)) => {
                let (client, connection) = origin.unzip();
                let may_wait = non_blocking && Self::are_few(&queues);
                Next::Run {
                    job,
                    client,
                    connection,
                    non_blocking,
                    wake: !may_wait && self.must_wake(&queues),
                }
            }
            None => {
                self.idle.fetch_add(1, Ordering::Relaxed);
                Next::Wait
            }
        }
    }

    /// Returns whether the caller must wake another thread for the waiting jobs.
    pub fn must_wake_another(&self) -> bool {
        self.must_wake(&self.queues.lock())
    }

    /// Returns whether the waiting jobs are few enough to wait for a non-blocking job.
    fn are_few(queues: &Queues) -> bool {
        let first = queues.ring.front().and_then(|client| queues.clients.get(client));
        let waiting: usize = first.iter().flat_map(|client| &client.lines).map(|line| line.jobs.len()).sum();
        queues.urgent.is_empty() && queues.ring.len() < 2 && waiting <= MAX_WAITING
    }

    /// Tells that the calling thread stopped waiting.
    pub fn awake(&self) {
        self.idle.fetch_sub(1, Ordering::Relaxed);
    }

    /// Stops the queue. Returns the remaining jobs, which the caller must drop without holding a lock.
    #[must_use]
    pub fn stop(&self) -> Vec<Job> {
        let mut queues = self.queues.lock();
        queues.stopping = true;
        let mut left: Vec<Job> = queues.urgent.drain(..).collect();
        for client in queues.clients.values_mut() {
            left.extend(client.lines.drain(..).flat_map(|line| line.jobs).map(|(job, _)| job));
        }
        left
    }

    fn take(&self, queues: &mut Queues) -> Option<(Queued, Origin)> {
        if queues.running == self.running_max {
            return None;
        }
        if let Some(job) = queues.urgent.pop_front() {
            queues.running += 1;
            return Some(((job, false), None));
        }
        // Skips clients that were choked or removed since they entered the ring.
        while let Some(client) = queues.ring.pop_front() {
            let Some(entry) = queues.clients.get_mut(&client) else { continue };
            entry.in_ring = false;
            let Some((job, connection)) = entry.pop() else { continue };
            entry.running += 1;
            queues.running += 1;
            self.enter(queues, client);
            return Some((job, Some((client, connection))));
        }
        None
    }

    /// Adds the client to the ring if one of its jobs may run.
    fn enter(&self, queues: &mut Queues, client: ClientKey) {
        let Some(entry) = queues.clients.get_mut(&client) else { return };
        if !entry.in_ring && entry.running < self.client_running_max && entry.ready() {
            entry.in_ring = true;
            queues.ring.push_back(client);
        }
    }

    fn forget(&self, queues: &mut Queues, client: ClientKey) {
        let unused = |entry: &Client| entry.running == 0 && entry.lines.is_empty() && !entry.in_ring;
        if queues.clients.get(&client).is_some_and(unused) {
            queues.clients.remove(&client);
        }
    }

    fn must_wake(&self, queues: &Queues) -> bool {
        let work = !queues.urgent.is_empty() || !queues.ring.is_empty();
        work && self.idle.load(Ordering::Relaxed) > 0 && queues.running < self.running_max
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use super::*;

    fn key(last: u8) -> ClientKey {
        IpAddr::from([192, 0, 2, last]).into()
    }

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn note(log: &Log, what: &'static str) -> Job {
        let log = log.clone();
        Box::new(move || log.lock().push(what))
    }

    /// Runs the next job without reporting its end to the queue.
    fn run(queue: &FairQueue) -> Option<Option<ClientKey>> {
        match queue.next(None) {
            Next::Run { job, client, .. } => {
                job();
                Some(client)
            }
            Next::Wait => {
                queue.awake();
                None
            }
            Next::Stop => panic!("the queue is not stopped"),
        }
    }

    #[test]
    fn clients_and_their_connections_take_turns() {
        let (queue, log) = (FairQueue::new(100), Log::default());
        for (who, connection, what) in
            [(1, 1, "a1"), (1, 1, "a1"), (1, 1, "a1"), (1, 2, "a2"), (2, 3, "b"), (2, 3, "b")]
        {
            queue.push(key(who), connection, note(&log, what), false);
        }
        assert!(!queue.push_urgent(note(&log, "urgent")));
        while run(&queue).is_some() {}
        assert_eq!(*log.lock(), ["urgent", "a1", "b", "a2", "b", "a1", "a1"]);
    }

    #[test]
    fn few_jobs_wait_for_a_non_blocking_one() {
        let (queue, log) = (FairQueue::new(10), Log::default());
        assert!(matches!(queue.next(None), Next::Wait), "a thread waits");
        for _ in 0..MAX_WAITING + 2 {
            queue.push(key(1), 1, note(&log, "x"), true);
        }
        let woken = |finished| {
            let Next::Run { wake, non_blocking: true, client, .. } = queue.next(finished) else {
                panic!("more jobs are ready")
            };
            (wake, Some(client))
        };
        let (wake, finished) = woken(None);
        assert!(wake, "many jobs wait");
        let (wake, finished) = woken(finished);
        assert!(!wake && queue.must_wake_another(), "the jobs wait until it blocks");
        queue.push(key(2), 2, note(&log, "y"), true);
        assert!(woken(finished).0, "another client does not wait for the first");
    }

    #[test]
    fn one_thread_reads_and_a_client_gets_half_of_the_others() {
        let (queue, log) = (FairQueue::new(5), Log::default());
        for who in [1, 2, 3] {
            for _ in 0..4 {
                queue.push(key(who), who.into(), note(&log, "x"), false);
            }
        }
        let running: Vec<_> = std::iter::from_fn(|| run(&queue)).flatten().collect();
        assert_eq!(running, [key(1), key(2), key(3), key(1)], "four of five");
        // Client 1 runs two of four jobs, its maximum. Client 2, which now runs none, is next.
        let Next::Run { client, .. } = queue.next(Some(Some(key(2)))) else { panic!("a job may run") };
        assert_eq!(client, Some(key(2)));
        let (queue, log) = (FairQueue::new(5), Log::default());
        for _ in 0..4 {
            queue.push(key(1), 1, note(&log, "x"), false);
        }
        assert_eq!(std::iter::from_fn(|| run(&queue)).count(), 2, "half of four");
        assert!(matches!(queue.next(Some(Some(key(1)))), Next::Run { .. }));
    }

    #[test]
    fn jobs_of_a_choked_connection_wait() {
        let (queue, log) = (FairQueue::new(10), Log::default());
        assert!(!queue.set_choked(key(1), 1, true));
        queue.push(key(1), 1, note(&log, "choked"), false);
        queue.push(key(1), 2, note(&log, "free"), false);
        while let Some(client) = run(&queue) {
            let Next::Wait = queue.next(Some(client)) else { panic!("only one may run") };
            // The thread counts as idle, so it is woken when a job is ready.
        }
        assert_eq!(*log.lock(), ["free"]);
        assert!(queue.set_choked(key(1), 1, false));
        queue.awake();
        let client = run(&queue).unwrap();
        assert_eq!(*log.lock(), ["free", "choked"]);
        let Next::Wait = queue.next(Some(client)) else { panic!("nothing is left") };
        assert!(queue.queues.lock().clients.is_empty());
    }

    #[test]
    fn removing_a_connection_returns_its_jobs() {
        let (queue, log) = (FairQueue::new(10), Log::default());
        queue.push(key(1), 1, note(&log, "gone"), false);
        queue.push(key(1), 2, note(&log, "stays"), false);
        assert_eq!(queue.remove(key(1), 1).len(), 1);
        assert_eq!(queue.remove(key(1), 1).len(), 0);
        let client = run(&queue).unwrap();
        assert!(run(&queue).is_none());
        assert_eq!(*log.lock(), ["stays"]);
        assert!(queue.stop().is_empty());
        assert!(matches!(queue.next(Some(client)), Next::Stop));
    }
}
