//! The files that closes have deferred, and the cache that they are sent from.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ivers_nfs4::types::FileHandle;
use ivers_vfs::sync::{Condvar, RankedMutex, rank};
use ivers_vfs::{CacheHandle, Result};

use crate::file_open::FileOpen;
use crate::nodes::{Node, Nodes};
use crate::opens::CachedFiles;

/// The most files that are sent together.
pub(crate) const GROUP: usize = 16;
/// How long a file waits for others.
pub(crate) const DELAY: Duration = Duration::from_secs(1);
/// The most files that wait.
const FILES_MAX: usize = 1024;
/// The largest file whose close is not waited for: it is one WRITE.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;
/// The most bytes that wait.
pub(crate) const BYTES_MAX: u64 = 32 << 20;
/// So much of the free space may be used by bytes that wait. The rest is for others who write meanwhile.
pub(crate) const SPACE_SHARE: u64 = 16;

/// A file that waits.
pub(crate) struct Waiting {
    file: Arc<FileOpen>,
    since: Instant,
    bytes: u64,
}

#[derive(Default)]
pub(crate) struct Queue {
    pub(crate) files: VecDeque<Waiting>,
    /// Files that are being sent.
    pub(crate) sending: usize,
    stop: bool,
    ended: bool,
}

/// The files that wait, and what the thread must do.
#[derive(Default)]
pub struct Sender {
    pub(crate) queue: RankedMutex<rank::Leaf, Queue>,
    pub(crate) changed: Condvar,
    /// The bytes of these files, at most.
    bytes: AtomicU64,
    /// The free space of the filesystem.
    pub(crate) space: AtomicU64,
}

impl Sender {
    /// The filesystem has this much space.
    pub fn new(space: Option<u64>) -> Self {
        Self { space: AtomicU64::new(space.unwrap_or(0)), ..Self::default() }
    }

    /// Returns whether this many bytes more may wait.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let most = BYTES_MAX.min(self.space.load(Relaxed) / SPACE_SHARE);
        self.bytes.load(Relaxed).saturating_add(bytes) <= most && self.queue.lock().files.len() < FILES_MAX
    }

    pub(crate) fn push(&self, file: &Arc<FileOpen>, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        let waiting = Waiting { file: file.clone(), since: Instant::now(), bytes };
        self.queue.lock().files.push_back(waiting);
        self.changed.notify_all();
    }

    /// Takes the files to send next, when there are enough or the oldest has waited long enough. Waits until
    /// no others are being sent: see [`Sender::take_until`].
    pub(crate) fn next(&self) -> Option<Vec<Arc<FileOpen>>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stop {
                queue.ended = true;
                self.changed.notify_all();
                return None;
            }
            let waited = queue.files.front().map(|it| it.since.elapsed());
            match waited {
                _ if queue.sending > 0 => queue.wait(&self.changed),
                Some(waited) if queue.files.len() >= GROUP || waited >= DELAY => break,
                Some(waited) => {
                    queue.wait_for(&self.changed, DELAY - waited);
                }
                None => queue.wait(&self.changed),
            }
        }
        Some(self.take_until(&mut queue, Instant::now()))
    }

    /// Takes files that wait since this time or longer, to send them together. Only if no others are being
    /// sent: a file may be in both groups. The threads of one group wait for each other, so two groups could
    /// wait for each other's files.
    pub(crate) fn take_until(&self, queue: &mut Queue, until: Instant) -> Vec<Arc<FileOpen>> {
        let count = queue.files.iter().take(GROUP).take_while(|it| it.since <= until).count();
        let taken: Vec<_> = queue.files.drain(..count).collect();
        queue.sending += count;
        self.bytes.fetch_sub(taken.iter().map(|it| it.bytes).sum(), Relaxed);
        taken.into_iter().map(|it| it.file).collect()
    }

    pub(crate) fn sent(&self, count: usize) {
        self.queue.lock().sending -= count;
        self.changed.notify_all();
    }

    /// Waits before files that could not be sent are tried again.
    pub(crate) fn rest(&self) {
        let until = Instant::now() + DELAY;
        let mut queue = self.queue.lock();
        while !queue.stop && Instant::now() < until {
            queue.wait_for(&self.changed, until.saturating_duration_since(Instant::now()));
        }
    }

    /// Ends the thread after its current work.
    pub fn stop(&self) {
        self.queue.lock().stop = true;
        self.changed.notify_all();
    }

    pub(crate) fn wait_for_end(&self, until: Instant) {
        let mut queue = self.queue.lock();
        while !queue.ended && Instant::now() < until {
            queue.wait_for(&self.changed, until.saturating_duration_since(Instant::now()));
        }
    }
}

/// Sends what is cached of a file.
pub(crate) type SendCached = Box<dyn Fn(&Node, &CacheHandle) -> Result<()> + Send + Sync>;

/// The cache of the VFS, by filehandle.
pub(crate) struct CacheOf {
    pub(crate) nodes: Weak<Nodes>,
    pub(crate) cache: CacheHandle,
    pub(crate) send: SendCached,
}

impl CacheOf {
    fn node(&self, file: &FileHandle) -> Option<Arc<Node>> {
        self.nodes.upgrade()?.find(file)
    }
}

impl CachedFiles for CacheOf {
    fn write_back(&self, file: &FileHandle) -> Result<()> {
        let Some(node) = self.node(file) else { return Ok(()) };
        (self.send)(&node, &self.cache)
    }

    fn query(&self, file: &FileHandle) -> Option<(u64, u64)> {
        self.node(file).and_then(|node| self.cache.query(node.ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_nfs4::types::Opaque;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    /// [`D13`]
    #[test]
    fn one_group_is_sent_at_a_time() {
        let sender = Arc::new(Sender::new(None));
        let files: Vec<_> = (0..20_u8).map(|nth| FileOpen::new(&Opaque(vec![nth]))).collect();
        let push_all = || files.iter().for_each(|file| sender.push(file, 1));
        push_all();
        assert_eq!(sender.next().map(|files| files.len()), Some(GROUP));
        push_all();
        let (to, taken) = channel();
        let theirs = sender.clone();
        let thread = std::thread::spawn(move || to.send(theirs.next().map(|files| files.len())));
        assert_eq!(taken.recv_timeout(Duration::from_millis(100)), Err(RecvTimeoutError::Timeout));
        sender.sent(GROUP);
        assert_eq!(taken.recv(), Ok(Some(GROUP)));
        thread.join().unwrap().unwrap();
        sender.sent(GROUP);
        // A sync takes what waits since it began.
        let until = Instant::now();
        push_all();
        let mut queue = sender.queue.lock();
        assert_eq!(sender.take_until(&mut queue, until).len(), 40 - 2 * GROUP);
        assert!(sender.take_until(&mut queue, until).is_empty());
    }
}
