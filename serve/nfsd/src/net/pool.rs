//! Which job is next. Plain data behind one mutex; the threads are the poller's.
//!
//! - Jobs wait a connection, connections a client, clients in one ring: who floods waits behind himself.
//! - One thread always stays free to read (answers to callbacks come over the connections that requests come over), and at most half of the others serve one
//!   client, if there are two at least.
//! - A connection that does not read its replies is *choked*: its jobs wait, so that unread replies stay few.
//! - While a job is *brief* (`net::brief`) what waits behind it is left to the thread that works on it, unless there is much, or it is another client's: another thread takes longer
//!   to come.
//! - Urgent jobs are the continuations of what is under way: they go first, whoever they belong to, since they free what others wait for.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::budget::ClientKey;

/// Something to do.
pub type Job = Box<dyn FnOnce() + Send>;

/// What a thread does next.
pub enum Next {
    /// This; then tell whose it was, by the next [`Pool::next`].
    Run {
        /// What.
        job: Job,
        /// For whom; nobody if it was urgent.
        whose: Option<ClientKey>,
        /// And on which connection.
        connection: Option<u64>,
        /// It says when it may take long.
        brief: bool,
        /// Another thread should be woken: there is more to do.
        wake: bool,
    },
    /// Nothing: wait, and say [`Pool::awake`] afterwards.
    Wait,
    /// No more.
    Stop,
}

/// So many jobs may wait behind a brief one.
const BEHIND_BRIEF: usize = 16;

/// A job, and whether it is brief.
type Queued = (Job, bool);
/// For which client, and on which of his connections; nobody if it was urgent.
type Whose = Option<(ClientKey, u64)>;

#[derive(Default)]
struct Line {
    connection: u64,
    jobs: VecDeque<Queued>,
    choked: bool,
}

#[derive(Default)]
struct Client {
    running: usize,
    /// Those that have jobs, or are choked; whoever is served goes to the back.
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
    /// Clients that have a job that may run now.
    ring: VecDeque<ClientKey>,
    stopping: bool,
}

/// The jobs.
pub struct Pool {
    running_max: usize,
    client_running_max: usize,
    queues: Mutex<Queues>,
    /// Threads that wait. Raised under the lock, so that whoever adds a job sees everybody who has not; lowered outside, so that who was
    /// woken for something else has nothing to wait for: seen too high, it wakes one thread too many.
    idle: AtomicUsize,
}

impl Pool {
    /// For so many threads: three at least, or there is nobody to read.
    pub fn new(threads: usize) -> Self {
        let running_max = threads.max(3) - 1;
        let (queues, idle) = (Mutex::default(), AtomicUsize::new(0));
        Self { running_max, client_running_max: running_max / 2, queues, idle }
    }

    /// Add a job. Nobody need be woken: it is a thread that reads who says this, and then asks what is next.
    pub fn push(&self, client: ClientKey, connection: u64, job: Job, brief: bool) {
        let mut queues = self.queues.lock();
        if !queues.stopping {
            queues.clients.entry(client).or_default().line(connection).jobs.push_back((job, brief));
            self.enter(&mut queues, client);
        }
    }

    /// Add a job that goes before all others. Says whether a thread should be woken.
    #[must_use]
    pub fn push_urgent(&self, job: Job) -> bool {
        let mut queues = self.queues.lock();
        if queues.stopping {
            return false;
        }
        queues.urgent.push_back(job);
        self.wanted(&queues)
    }

    /// A connection does not read, or reads again. Says whether a thread should be woken.
    #[must_use]
    pub fn choke(&self, client: ClientKey, connection: u64, choked: bool) -> bool {
        let mut queues = self.queues.lock();
        let entry = queues.clients.entry(client).or_default();
        entry.line(connection).choked = choked;
        entry.lines.retain(|line| line.choked || !line.jobs.is_empty());
        self.enter(&mut queues, client);
        self.forget(&mut queues, client);
        self.wanted(&queues)
    }

    /// A connection has ended: its jobs, which the caller drops while holding no lock.
    #[must_use]
    pub fn remove(&self, client: ClientKey, connection: u64) -> Vec<Job> {
        let mut queues = self.queues.lock();
        let Some(entry) = queues.clients.get_mut(&client) else { return Vec::new() };
        let at = entry.lines.iter().position(|line| line.connection == connection);
        let line = at.and_then(|at| entry.lines.remove(at));
        self.forget(&mut queues, client);
        line.into_iter().flat_map(|line| line.jobs).map(|(job, _)| job).collect()
    }

    /// What this thread does next, having finished a job of `finished`, or of nobody, or none at all.
    pub fn next(&self, finished: Option<Option<ClientKey>>) -> Next {
        let mut queues = self.queues.lock();
        if let Some(whose) = finished {
            queues.running -= 1;
            if let Some(client) = whose {
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
            Some(((job, brief), of)) => {
                let (whose, connection) = of.unzip();
                let patient = brief && Self::is_little(&queues);
                Next::Run { job, whose, connection, brief, wake: !patient && self.wanted(&queues) }
            }
            None => {
                self.idle.fetch_add(1, Ordering::Relaxed);
                Next::Wait
            }
        }
    }

    /// Whether another thread should be woken, for what waits.
    pub fn has_work_for_others(&self) -> bool {
        self.wanted(&self.queues.lock())
    }

    /// What waits can wait for something brief.
    fn is_little(queues: &Queues) -> bool {
        let first = queues.ring.front().and_then(|client| queues.clients.get(client));
        let waiting: usize = first.iter().flat_map(|client| &client.lines).map(|line| line.jobs.len()).sum();
        queues.urgent.is_empty() && queues.ring.len() < 2 && waiting <= BEHIND_BRIEF
    }

    /// This thread waits no longer.
    pub fn awake(&self) {
        self.idle.fetch_sub(1, Ordering::Relaxed);
    }

    /// No more jobs are given out, or taken. Those that are left are for the caller to drop, while holding no lock.
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

    fn take(&self, queues: &mut Queues) -> Option<(Queued, Whose)> {
        if queues.running == self.running_max {
            return None;
        }
        if let Some(job) = queues.urgent.pop_front() {
            queues.running += 1;
            return Some(((job, false), None));
        }
        // Whoever left the ring's conditions while he was in it (choked, gone) is passed over once and is out.
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

    /// Into the ring, if a job of his may run.
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

    fn wanted(&self, queues: &Queues) -> bool {
        let work = !queues.urgent.is_empty() || !queues.ring.is_empty();
        work && self.idle.load(Ordering::Relaxed) > 0 && queues.running < self.running_max
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use super::*;

    fn client(last: u8) -> ClientKey {
        IpAddr::from([192, 0, 2, last]).into()
    }

    type Log = Arc<Mutex<Vec<&'static str>>>;

    fn note(log: &Log, what: &'static str) -> Job {
        let log = log.clone();
        Box::new(move || log.lock().push(what))
    }

    /// Run what is next, and leave it running as far as the pool knows.
    fn run(pool: &Pool) -> Option<Option<ClientKey>> {
        match pool.next(None) {
            Next::Run { job, whose, .. } => {
                job();
                Some(whose)
            }
            Next::Wait => {
                pool.awake();
                None
            }
            Next::Stop => panic!("nobody stopped it"),
        }
    }

    #[test]
    fn clients_take_turns_and_so_do_their_connections() {
        let (pool, log) = (Pool::new(100), Log::default());
        for (who, connection, what) in
            [(1, 1, "a1"), (1, 1, "a1"), (1, 1, "a1"), (1, 2, "a2"), (2, 3, "b"), (2, 3, "b")]
        {
            pool.push(client(who), connection, note(&log, what), false);
        }
        assert!(!pool.push_urgent(note(&log, "urgent")));
        while run(&pool).is_some() {}
        assert_eq!(*log.lock(), ["urgent", "a1", "b", "a2", "b", "a1", "a1"]);
    }

    #[test]
    fn what_waits_behind_something_brief_waits_for_it() {
        let (pool, log) = (Pool::new(10), Log::default());
        assert!(matches!(pool.next(None), Next::Wait), "somebody is there to be woken");
        for _ in 0..BEHIND_BRIEF + 2 {
            pool.push(client(1), 1, note(&log, "x"), true);
        }
        let woken = |finished| {
            let Next::Run { wake, brief: true, whose, .. } = pool.next(finished) else {
                panic!("there is more")
            };
            (wake, Some(whose))
        };
        let (wake, finished) = woken(None);
        assert!(wake, "there is much");
        let (wake, finished) = woken(finished);
        assert!(!wake && pool.has_work_for_others(), "until it may take long");
        pool.push(client(2), 2, note(&log, "y"), true);
        assert!(woken(finished).0, "another client does not wait for the first");
    }

    #[test]
    fn nobody_has_all_threads_and_one_reads() {
        let (pool, log) = (Pool::new(5), Log::default());
        for who in [1, 2, 3] {
            for _ in 0..4 {
                pool.push(client(who), who.into(), note(&log, "x"), false);
            }
        }
        let running: Vec<_> = std::iter::from_fn(|| run(&pool)).flatten().collect();
        assert_eq!(running, [client(1), client(2), client(3), client(1)], "four of five");
        // The first has two of four, and may have no more; who has less comes first.
        let Next::Run { whose, .. } = pool.next(Some(Some(client(2)))) else { panic!("there is room") };
        assert_eq!(whose, Some(client(2)));
        let (pool, log) = (Pool::new(5), Log::default());
        for _ in 0..4 {
            pool.push(client(1), 1, note(&log, "x"), false);
        }
        assert_eq!(std::iter::from_fn(|| run(&pool)).count(), 2, "half of four");
        assert!(matches!(pool.next(Some(Some(client(1)))), Next::Run { .. }));
    }

    #[test]
    fn who_does_not_read_waits() {
        let (pool, log) = (Pool::new(10), Log::default());
        assert!(!pool.choke(client(1), 1, true));
        pool.push(client(1), 1, note(&log, "choked"), false);
        pool.push(client(1), 2, note(&log, "free"), false);
        while let Some(whose) = run(&pool) {
            let Next::Wait = pool.next(Some(whose)) else { panic!("only one may run") };
            // Still idle: so the thread is to be woken when there is something.
        }
        assert_eq!(*log.lock(), ["free"]);
        assert!(pool.choke(client(1), 1, false));
        pool.awake();
        let whose = run(&pool).unwrap();
        assert_eq!(*log.lock(), ["free", "choked"]);
        let Next::Wait = pool.next(Some(whose)) else { panic!("nothing is left") };
        assert!(pool.queues.lock().clients.is_empty());
    }

    #[test]
    fn what_a_connection_leaves_behind_is_dropped() {
        let (pool, log) = (Pool::new(10), Log::default());
        pool.push(client(1), 1, note(&log, "gone"), false);
        pool.push(client(1), 2, note(&log, "stays"), false);
        assert_eq!(pool.remove(client(1), 1).len(), 1);
        assert_eq!(pool.remove(client(1), 1).len(), 0);
        let whose = run(&pool).unwrap();
        assert!(run(&pool).is_none());
        assert_eq!(*log.lock(), ["stays"]);
        assert!(pool.stop().is_empty());
        assert!(matches!(pool.next(Some(whose)), Next::Stop));
    }
}
