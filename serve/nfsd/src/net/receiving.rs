//! What arrives on a connection: bytes, records, and the start of TLS.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;

use super::busy_poll::{BusyPoll, MIN_TURNS};
use super::connection::{Action, Connection, Inbound, PollId, Round};
use super::record_reader::{InvalidRecord, Message, RecordReader};
use super::tls::{TlsPeer, encrypted};

/// After this many bytes other connections get their turn, and another thread may read here while this one
/// executes requests.
const ROUND_BYTES: usize = 256 << 10;

impl Connection {
    /// Handles events. If it returns a [`BusyPoll`], the calling thread executes the queued jobs, and then
    /// calls [`BusyPoll::poll_next`].
    pub(super) fn ready(self: &Arc<Self>, flags: EventFlags, buffer: &mut [u8]) -> Option<BusyPoll> {
        if flags.contains(EventFlags::OUT) {
            self.flush();
        }
        let readable =
            flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
        {
            let mut state = self.poll_state.lock();
            match (readable, state.reading) {
                // The reading thread sees the end and re-arms then. Re-arming now would report the event over
                // and over.
                (true, true) => return None,
                (true, false) => {
                    state.reading = true;
                    if state.out {
                        self.rearm(&state);
                    }
                }
                (false, _) => {
                    self.rearm(&state);
                    return None;
                }
            }
        }
        let read = self.read(buffer);
        let mut state = self.poll_state.lock();
        if (self.turns.load(Ordering::Relaxed) >= MIN_TURNS || read == Round::NonBlocking)
            && !self.is_closed()
        {
            let number = state.busy_polls;
            state.busy_polls += 1;
            state.busy_poll = Some(PollId { number, ticks: 0 });
            return Some(BusyPoll::new(self.clone(), number));
        }
        state.reading = false;
        self.rearm(&state);
        None
    }

    pub(super) fn read(self: &Arc<Self>, buffer: &mut [u8]) -> Round {
        let mut inbound = self.inbound.lock();
        (inbound.jobs, inbound.all_non_blocking) = (0, true);
        let ended = self.read_round(&mut inbound, buffer);
        let start = inbound.reader.started().map_or(0, |start| self.shared.ms(start).max(1));
        self.message_start_ms.store(start, Ordering::Relaxed);
        if ended.is_err() || self.is_closed() {
            inbound.reader = RecordReader::new(self.account.clone(), 0);
        }
        let round = match (inbound.jobs, inbound.all_non_blocking) {
            (0, _) => Round::Nothing,
            (_, true) => Round::NonBlocking,
            (_, false) => Round::Other,
        };
        drop(inbound);
        if let Err(why) = ended {
            self.close(&why);
        }
        round
    }

    fn read_round(self: &Arc<Self>, inbound: &mut Inbound, buffer: &mut [u8]) -> Result<(), String> {
        let mut taken = 0;
        while taken < ROUND_BYTES && !self.is_closed() {
            let direct = if inbound.tls { None } else { inbound.reader.read_buffer() };
            let (direct, asked, len) = match direct {
                Some(room) => {
                    let asked = room.capacity() - room.len();
                    (true, asked, rustix::io::read(&self.stream, spare_capacity(room)))
                }
                None => (false, buffer.len(), rustix::io::read(&self.stream, &mut *buffer)),
            };
            let len = match len {
                Ok(0) => return Err("the peer closed it".into()),
                Ok(len) => len,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(format!("cannot receive: {error}")),
            };
            self.shared.counters.bytes_in.fetch_add(len as u64, Ordering::Relaxed);
            if direct {
                if let Some(message) = inbound.reader.bytes_read(len) {
                    self.deliver(inbound, message, &[])?;
                }
            } else if inbound.tls {
                let plain = self.decrypt(&buffer[..len])?;
                self.feed(inbound, &plain)?;
            } else {
                self.feed(inbound, &buffer[..len])?;
            }
            taken += len;
            if len < asked {
                return Ok(());
            }
        }
        Ok(())
    }

    fn feed(self: &Arc<Self>, inbound: &mut Inbound, mut bytes: &[u8]) -> Result<(), String> {
        loop {
            match inbound.reader.feed(&mut bytes) {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => self.deliver(inbound, message, bytes)?,
                Err(InvalidRecord) => return Err("invalid or oversized record".into()),
            }
        }
    }

    fn deliver(self: &Arc<Self>, inbound: &mut Inbound, message: Message, rest: &[u8]) -> Result<(), String> {
        self.last_message_ms.store(self.shared.now_ms(), Ordering::Relaxed);
        let overlaps = self.calls_in_progress.load(Ordering::Relaxed) > 0;
        let turns = if overlaps { 0 } else { self.turns.load(Ordering::Relaxed) + 1 };
        self.turns.store(turns.min(MIN_TURNS), Ordering::Relaxed);
        let action = self.others.handler.message(self, message);
        inbound.jobs += 1;
        inbound.all_non_blocking &= matches!(action, Action::Done | Action::NonBlocking(_));
        match action {
            Action::Done => {}
            Action::Work(job) => self.shared.push(self.client(), self.id, job, false),
            Action::NonBlocking(job) => self.shared.push(self.client(), self.id, job, true),
            Action::Urgent(job) => self.shared.push_urgent_read(job),
            Action::Close(why) => return Err(why.into()),
            Action::StartTls(reply) => {
                // [RFC9289 4.1] Bytes after the request were not protected, but would be taken for protected
                // ones: an attacker may have added them.
                if !rest.is_empty() {
                    return Err("unencrypted bytes after the request for TLS".into());
                }
                let Some(tls) = &self.shared.tls else { return Err("TLS is not configured".into()) };
                let connection = tls.connection().map_err(|error| format!("cannot start TLS: {error}"))?;
                let _ = self.tls_start.set(Instant::now());
                inbound.tls = true;
                // One step under the lock, so that nothing else is sent unencrypted after the reply.
                let mut wire = self.wire.lock();
                wire.tls = Some(connection);
                self.write_or_queue(wire, reply);
            }
        }
        Ok(())
    }

    /// Decrypts bytes and answers messages of TLS itself.
    fn decrypt(self: &Arc<Self>, mut bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut plain = Vec::new();
        let mut wire = self.wire.lock();
        let Some(tls) = &mut wire.tls else { return Err("TLS was not started".into()) };
        let mut ended = Ok(());
        while !bytes.is_empty() && ended.is_ok() {
            ended = tls.read_tls(&mut bytes).map_err(|error| error.to_string()).and_then(|_| {
                let state = tls.process_new_packets().map_err(|error| format!("TLS: {error}"))?;
                let at = plain.len();
                plain.resize(at + state.plaintext_bytes_to_read(), 0);
                tls.reader().read_exact(&mut plain[at..]).map_err(|error| error.to_string())?;
                if state.peer_has_closed() { Err("the peer ended TLS".into()) } else { Ok(()) }
            });
        }
        if ended.is_ok() && !tls.is_handshaking() && self.tls_peer.get().is_none() {
            let _ = self.tls_peer.set(TlsPeer::of(tls));
        }
        if let Ok(bytes) = encrypted(tls)
            && !bytes.is_empty()
        {
            self.write_or_queue(wire, bytes);
        }
        ended.map(|()| plain)
    }
}
