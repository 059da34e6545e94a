//! Write-back of pages to a server: several runs at a time, which the driver can send in one request.

use crate::driver::Next;
use crate::error::{Result, ServerError};
use crate::inode::Inode;
use crate::pages::{PAGE, RUN_PAGES};
use crate::run_guard::RunGuard;
use crate::sync::atomic::Ordering;
use crate::vfs::Vfs;

/// The most runs that the driver gets at a time.
const RUNS_MAX: usize = 256;
/// The driver gets no further run after this many bytes.
const BYTES_MAX: usize = RUN_PAGES * PAGE;

/// Counts a thread that makes a file of a server durable.
pub(crate) struct Syncing<'a>(&'a Inode);

impl<'a> Syncing<'a> {
    pub(crate) fn begin(inode: &'a Inode) -> Self {
        if let Some(state) = &inode.server {
            state.syncing.fetch_add(1, Ordering::Relaxed);
        }
        Self(inode)
    }
}

impl Drop for Syncing<'_> {
    fn drop(&mut self) {
        if let Some(state) = &self.0.server {
            state.syncing.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Vfs {
    /// Takes the next runs of dirty pages. Returns also where to continue, if not at the end of the range.
    fn begin_runs<'a>(&'a self, inode: &'a Inode, from: u64, to: u64) -> (Vec<RunGuard<'a>>, Option<u64>) {
        let mut runs = Vec::new();
        let (mut from, mut bytes) = (from, 0);
        while runs.len() < RUNS_MAX && bytes < BYTES_MAX {
            let Some(run) = RunGuard::begin(inode, from, to, &self.memory) else { return (runs, None) };
            let (next, is_short) = (run.next(), run.is_short());
            from = run.end();
            bytes += run.data().len();
            runs.push(run);
            // A page cannot be in two runs of a request: its write-back would be counted twice, and the
            // driver may send its older bytes last.
            if is_short {
                return (runs, next);
            }
        }
        (runs, Some(from))
    }

    /// Sends the dirty pages of a byte range to the server. The caller holds the write-back lock, and does
    /// what is `next` once it has released it.
    pub(crate) fn send_pages(&self, inode: &Inode, from: u64, to: u64, next: Next) -> Result<()> {
        // One thread at a time sends pages. If other threads wait to do the same, this one only sends its
        // pages. Then one request makes the pages of all of them durable.
        let is_alone = inode.server.as_ref().is_none_or(|it| it.syncing.load(Ordering::Relaxed) <= 1);
        let next = if is_alone { next } else { Next::Nothing };
        let mut position = Some(from);
        let mut first_error = None;
        while let Some(from) = position {
            let (mut sent, more) = self.begin_runs(inode, from, to);
            let Some(last) = sent.last().map(RunGuard::end) else { break };
            let next = if more.is_some() { Next::Nothing } else { next };
            let runs = sent.iter_mut().map(|run| (run.offset(), run.take_data())).collect();
            let results = self.fs.write_back_runs(inode, runs, next);
            // Runs without a result are dirty again, and are taken next.
            let mut done = None;
            for (run, result) in sent.into_iter().zip(results) {
                done = Some(run.end());
                if let Err(error) = self.end_write_back(run, result)? {
                    first_error.get_or_insert(error);
                }
            }
            position = match done {
                None => return Err(ServerError::Failed.into()),
                Some(end) if end == last => more,
                some => some,
            };
        }
        first_error.map_or(Ok(()), Err)
    }
}
