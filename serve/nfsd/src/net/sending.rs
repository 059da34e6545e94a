//! What a connection sends: records at once, queued, or in a batch.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::MutexGuard;

use super::connection::{Connection, Wire};
use super::limits::Limits;
use super::reply_batch;
use super::tls::encrypted;

impl Connection {
    /// Sends a record that includes its mark. Queues it until the peer accepts it. If the connection ends,
    /// the record is lost.
    pub fn send(self: &Arc<Self>, record: Vec<u8>) {
        if let Some(record) = reply_batch::add(self, record) {
            self.send_at_once(record);
        }
    }

    /// Sends one or more records without batching them.
    pub(super) fn send_at_once(self: &Arc<Self>, record: Vec<u8>) {
        if self.is_closed() {
            return;
        }
        let mut wire = self.wire.lock();
        let bytes = match &mut wire.tls {
            None => Ok(record),
            Some(tls) => tls.writer().write_all(&record).and_then(|()| encrypted(tls)),
        };
        match bytes {
            Ok(bytes) => self.write_or_queue(wire, bytes),
            Err(error) => {
                drop(wire);
                self.close(&format!("cannot encrypt: {error}"));
            }
        }
    }

    /// Writes as much as possible and queues the rest.
    pub(super) fn write_or_queue(self: &Arc<Self>, mut wire: MutexGuard<'_, Wire>, bytes: Vec<u8>) {
        let mut written = 0;
        if wire.queue.is_empty() && !wire.connecting {
            match self.write(&bytes) {
                Ok(len) => written = len,
                Err(error) => {
                    drop(wire);
                    return self.close(&format!("cannot send: {error}"));
                }
            }
        }
        if written < bytes.len() {
            if wire.queue.is_empty() {
                wire.sent = written;
                wire.stuck = Some(Instant::now());
            }
            let more = bytes.len() - written;
            wire.unsent += more;
            wire.charge.grow_anyway(more);
            wire.queue.push_back(bytes);
        }
        self.update_limits(wire);
    }

    /// Writes until the socket accepts no more bytes. Returns the number of bytes written.
    fn write(&self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut written = 0;
        while written < bytes.len() {
            match (&self.stream).write(&bytes[written..]) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(len) => written += len,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.shared.counters.bytes_out.fetch_add(written as u64, Ordering::Relaxed);
        Ok(written)
    }

    /// Writes queued bytes: the socket is writable.
    pub(super) fn flush(self: &Arc<Self>) {
        let mut wire = self.wire.lock();
        if wire.connecting {
            match self.stream.take_error() {
                Ok(None) => wire.connecting = false,
                Ok(Some(error)) | Err(error) => {
                    drop(wire);
                    return self.close(&format!("cannot connect: {error}"));
                }
            }
        }
        while let Some(first) = wire.queue.front() {
            let (left, len) = (first.len() - wire.sent, self.write(&first[wire.sent..]));
            match len {
                Ok(0) => break,
                Ok(len) => {
                    wire.unsent -= len;
                    wire.charge.shrink(len);
                    wire.stuck = Some(Instant::now());
                    if len < left {
                        wire.sent += len;
                        break;
                    }
                    wire.queue.pop_front();
                    wire.sent = 0;
                }
                Err(error) => {
                    drop(wire);
                    return self.close(&format!("cannot send: {error}"));
                }
            }
        }
        if wire.queue.is_empty() {
            wire.stuck = None;
        }
        self.update_limits(wire);
    }

    /// Updates choking and events after the number of unsent bytes changed.
    fn update_limits(self: &Arc<Self>, mut wire: MutexGuard<'_, Wire>) {
        let Limits { choke_bytes, unsent_bytes, .. } = self.shared.limits;
        let choked = wire.unsent > if wire.choked { choke_bytes / 2 } else { choke_bytes };
        if choked != wire.choked {
            wire.choked = choked;
            if self.shared.queue.set_choked(self.client(), self.id, choked) {
                self.shared.wake();
            }
            if self.is_closed() {
                drop(self.shared.queue.remove(self.client(), self.id));
            }
        }
        let out = !wire.queue.is_empty() || wire.connecting;
        {
            let mut state = self.poll_state.lock();
            if state.out != out {
                state.out = out;
                // The reading thread re-arms when it is done, but replies must not wait for that.
                if out {
                    self.rearm(&state);
                }
            }
        }
        let too_much = wire.unsent > unsent_bytes;
        drop(wire);
        if too_much {
            self.close("the peer does not read its replies");
        }
    }
}
