//! Write-back of pages to a server: several runs at a time, which the driver can send in one request.

use crate::driver::{Next, Written};
use crate::error::{Error, Result, ServerError};
use crate::inode::Inode;
use crate::memory::Memory;
use crate::pages::{PAGE, RUN_PAGES, Run};
use crate::sync::atomic::Ordering;
use crate::vfs::Vfs;
use std::collections::VecDeque;

/// The most runs that the driver gets at a time.
const RUNS_MAX: usize = 256;
/// The driver gets no further run after this many bytes.
const BYTES_MAX: usize = RUN_PAGES * PAGE;

/// Runs under write-back. The pages of those that are left when it is dropped become dirty again.
struct Sent<'a> {
    inode: &'a Inode,
    memory: &'a Memory,
    runs: VecDeque<Run>,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        self.runs.iter().for_each(|run| self.inode.pages.end_run(run, None, self.memory));
    }
}

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
    fn begin_runs<'a>(&'a self, inode: &'a Inode, from: u64, to: u64) -> (Sent<'a>, Option<u64>) {
        let mut sent = Sent { inode, memory: &self.memory, runs: VecDeque::new() };
        let (mut from, mut bytes) = (from, 0);
        while sent.runs.len() < RUNS_MAX && bytes < BYTES_MAX {
            let Some(run) = inode.pages.begin_run(from, to, &self.memory, || inode.size()) else {
                return (sent, None);
            };
            from = run.offset + run.data.len() as u64;
            bytes += run.data.len();
            sent.runs.push_back(run);
        }
        (sent, Some(from))
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
            if sent.runs.is_empty() {
                break;
            }
            let next = if more.is_some() { Next::Nothing } else { next };
            let runs: Vec<_> =
                sent.runs.iter_mut().map(|run| (run.offset, std::mem::take(&mut run.data))).collect();
            let ends: Vec<u64> = runs.iter().map(|(offset, data)| offset + data.len() as u64).collect();
            let results = self.fs.write_back_runs(inode, runs, next);
            let done = results.len();
            for (result, end) in results.into_iter().zip(&ends) {
                if let Err(error) = self.run_sent(inode, &mut sent, *end, result)? {
                    first_error.get_or_insert(error);
                }
            }
            // Runs without a result are dirty again, and are taken next.
            position = match done.checked_sub(1).and_then(|last| ends.get(last)) {
                None => return Err(ServerError::Failed.into()),
                Some(_) if done == ends.len() => more,
                Some(end) => Some(*end),
            };
        }
        first_error.map_or(Ok(()), Err)
    }

    /// Ends the write-back of the first run that was sent, which ends at `end`. Returns the error if its data
    /// is lost. Fails if its pages stay dirty.
    fn run_sent(
        &self,
        inode: &Inode,
        sent: &mut Sent<'_>,
        end: u64,
        result: Result<Written>,
    ) -> Result<Result<()>> {
        let Some(run) = sent.runs.front() else { return Ok(Ok(())) };
        let ended = match result {
            Ok(written) => {
                inode.pages.end_run(run, Some(written), &self.memory);
                if written == Written::Unstable {
                    self.list_dirty(inode);
                }
                let bytes = &self.policy.stats.mine().written_back_bytes;
                bytes.fetch_add(end - run.offset, Ordering::Relaxed);
                Ok(())
            }
            Err(error @ (Error::FileData(_) | Error::DataRefused(_))) => {
                let lost = inode.pages.lose_run(run, &self.memory);
                self.note_data_loss(inode, lost, &error);
                Err(error)
            }
            // Nothing is lost: the pages are written later.
            Err(error @ Error::Server(_)) => {
                self.list_dirty(inode);
                return Err(error);
            }
            Err(error) => {
                self.note_writeback_error(inode, &error);
                self.list_dirty(inode);
                return self.guarded(|| Err(error));
            }
        };
        sent.runs.pop_front();
        Ok(ended)
    }
}
