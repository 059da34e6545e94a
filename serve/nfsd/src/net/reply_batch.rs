//! Batches the replies of requests that do not block.
//!
//! A client can have many requests in flight that each need no I/O and take microseconds. Then system calls
//! dominate: writing each reply, re-arming epoll, and waking a thread for the next request.
//! A *non-blocking job* avoids them. It promises to call [`about_to_block`] before it does anything that may
//! block. Until then, replies of one connection are kept and written together, the thread continues to read
//! the connection itself, and no other thread wakes unless much work waits.
//! After `about_to_block`, or when no work is left, all of this is made up for. So a reply waits only for
//! computation, never for a device or for another client.

use std::cell::RefCell;
use std::sync::Arc;

use super::connection::Connection;

/// Maximum number of replies in a batch. With larger ones the client would be idle in between.
const MAX_BATCH: u32 = 8;
/// Larger replies are written at once: copying them into the batch would cost more.
const MAX_BATCHED_BYTES: usize = 4096;

struct Batch {
    connection: Arc<Connection>,
    replies: Vec<u8>,
    count: u32,
    /// A non-blocking job is running.
    is_non_blocking: bool,
}

thread_local! {
    static BATCH: RefCell<Option<Batch>> = const { RefCell::new(None) };
}

/// Marks the running job as non-blocking until this is dropped.
pub(crate) struct NonBlocking(());

impl NonBlocking {
    /// Starts a non-blocking job for a request of this connection.
    pub fn begin(connection: &Arc<Connection>) -> Self {
        switch_to(Some(connection.id()));
        BATCH.with_borrow_mut(|batch| match batch {
            Some(batch) => batch.is_non_blocking = true,
            None => {
                let connection = connection.clone();
                *batch = Some(Batch { connection, replies: Vec::new(), count: 0, is_non_blocking: true });
            }
        });
        Self(())
    }
}

impl Drop for NonBlocking {
    fn drop(&mut self) {
        BATCH.with_borrow_mut(|batch| batch.iter_mut().for_each(|batch| batch.is_non_blocking = false));
    }
}

/// Adds a record to the batch. Returns it if no non-blocking job of this connection is running, or if it is
/// large.
pub(super) fn add(connection: &Connection, record: Vec<u8>) -> Option<Vec<u8>> {
    let full = BATCH.with_borrow_mut(|batch| {
        let is_small = record.len() <= MAX_BATCHED_BYTES;
        match batch
            .as_mut()
            .filter(|batch| batch.is_non_blocking && is_small && batch.connection.id() == connection.id())
        {
            None => Err(record),
            Some(batch) => {
                if batch.replies.is_empty() {
                    // The batch counts as a call in progress until it is written.
                    connection.call_started();
                    batch.replies = record;
                } else {
                    batch.replies.extend_from_slice(&record);
                }
                batch.count += 1;
                Ok(batch.count >= MAX_BATCH)
            }
        }
    });
    match full {
        Err(record) => return Some(record),
        Ok(true) => flush(),
        Ok(false) => {}
    }
    None
}

/// Writes the batch.
fn flush() {
    let kept = BATCH.with_borrow_mut(|batch| {
        let batch = batch.as_mut().filter(|batch| batch.count > 0)?;
        batch.count = 0;
        Some((batch.connection.clone(), std::mem::take(&mut batch.replies)))
    });
    if let Some((connection, replies)) = kept {
        connection.send_at_once(replies);
        connection.call_ended();
    }
}

/// Prepares the thread for work on another connection, or on none: writes the batch of a different
/// connection.
pub(super) fn switch_to(connection: Option<u64>) {
    let other = BATCH
        .with_borrow(|batch| batch.as_ref().is_some_and(|batch| connection != Some(batch.connection.id())));
    if other {
        flush();
        // Outside the borrow: this may be the last reference to the connection.
        drop(BATCH.take());
    }
}

/// Announces that the current job may block from here on, on I/O or on another client.
pub(crate) fn about_to_block() {
    let unblocked = BATCH.with_borrow_mut(|batch| {
        let batch = batch.as_mut().filter(|batch| batch.is_non_blocking)?;
        batch.is_non_blocking = false;
        Some(batch.connection.clone())
    });
    if let Some(connection) = unblocked {
        flush();
        connection.allow_other_readers();
        connection.shared().wake_for_waiting_jobs();
    }
}
