//! What a thread puts off while all that it does is brief: writing replies, having others read, waking others.
//!
//! A client with many requests under way, each answered out of memory within microseconds, costs system calls above all: to write each reply, to have the poller tell again, to wake a
//! thread for the next request. So there are *brief* jobs: who works on one promises to say when that ends ([`may_take_long`]). Until then replies of one connection are kept and written together, the
//! thread that has read goes on reading, and nobody is woken unless much waits. With that word, or when there is nothing more to do, it is all made up for: a reply
//! waits for what the processor does meanwhile, never for a device or for somebody else.

use std::cell::RefCell;
use std::sync::Arc;

use super::connection::Connection;

/// So many replies are written together: more, and the client would have nothing to do meanwhile.
const TOGETHER: u32 = 8;
/// Larger replies are written at once: copying them would cost more.
const SMALL_BYTES: usize = 4096;

struct Held {
    connection: Arc<Connection>,
    replies: Vec<u8>,
    count: u32,
    /// A brief job is worked on.
    brief: bool,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// A brief job is worked on while this lives.
pub(crate) struct Brief(());

impl Brief {
    /// Of a request that came over this connection.
    pub fn begin(connection: &Arc<Connection>) -> Self {
        keep_for(Some(connection.id()));
        HELD.with_borrow_mut(|held| match held {
            Some(held) => held.brief = true,
            None => {
                let connection = connection.clone();
                *held = Some(Held { connection, replies: Vec::new(), count: 0, brief: true });
            }
        });
        Self(())
    }
}

impl Drop for Brief {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| held.iter_mut().for_each(|held| held.brief = false));
    }
}

/// Keep a record for later, if this thread is at something brief of this connection; otherwise it comes back.
pub(super) fn keep(connection: &Connection, record: Vec<u8>) -> Option<Vec<u8>> {
    let full = HELD.with_borrow_mut(|held| {
        let small = record.len() <= SMALL_BYTES;
        match held.as_mut().filter(|held| held.brief && small && held.connection.id() == connection.id()) {
            None => Err(record),
            Some(held) => {
                if held.replies.is_empty() {
                    // Nobody is to take it for answered.
                    connection.begin();
                    held.replies = record;
                } else {
                    held.replies.extend_from_slice(&record);
                }
                held.count += 1;
                Ok(held.count >= TOGETHER)
            }
        }
    });
    match full {
        Err(record) => return Some(record),
        Ok(true) => write(),
        Ok(false) => {}
    }
    None
}

/// Write what is kept.
fn write() {
    let kept = HELD.with_borrow_mut(|held| {
        let held = held.as_mut().filter(|held| held.count > 0)?;
        held.count = 0;
        Some((held.connection.clone(), std::mem::take(&mut held.replies)))
    });
    if let Some((connection, replies)) = kept {
        connection.send_at_once(replies);
        connection.end();
    }
}

/// What this thread does next is for this connection, or for none: what is kept for another one is written.
pub(super) fn keep_for(connection: Option<u64>) {
    let other =
        HELD.with_borrow(|held| held.as_ref().is_some_and(|held| connection != Some(held.connection.id())));
    if other {
        write();
        // Not under the borrow: it may be the last to know the connection.
        drop(HELD.take());
    }
}

/// What this thread does from here on may take long: it goes by disks, or by somebody else.
pub(crate) fn may_take_long() {
    let was_brief = HELD.with_borrow_mut(|held| {
        let held = held.as_mut().filter(|held| held.brief)?;
        held.brief = false;
        Some(held.connection.clone())
    });
    if let Some(connection) = was_brief {
        write();
        connection.let_others_read();
        connection.hub().let_others_work();
    }
}
