//! A proxy that delays both directions of a connection, and counts the requests: the messages of the client.

use anyhow::{Result, ensure};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// A message consists of fragments. Each fragment begins with a word of 32 bits: the low 31 bits are its
/// length, and the highest bit marks the last fragment (RFC 5531, 11).
const LAST: u32 = 1 << 31;

/// How many calls measure a round trip.
const EMPTY_CALLS: u32 = 50;

/// Counts the messages in a stream.
#[derive(Default)]
struct Messages {
    header: Vec<u8>,
    /// Bytes of the fragment that have not come yet.
    left: usize,
}

impl Messages {
    /// Returns how many messages have their last fragment's header in these bytes.
    fn count(&mut self, mut bytes: &[u8]) -> u64 {
        let mut count = 0;
        while !bytes.is_empty() {
            if self.left > 0 {
                let skipped = self.left.min(bytes.len());
                self.left -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.header.push(bytes[0]);
            bytes = &bytes[1..];
            if let [a, b, c, d] = self.header[..] {
                let word = u32::from_be_bytes([a, b, c, d]);
                count += u64::from(word & LAST != 0);
                self.left = (word & !LAST) as usize;
                self.header.clear();
            }
        }
        count
    }
}

/// A running proxy. Its threads end with the process.
pub(super) struct Proxy {
    pub(super) port: u16,
    requests: Arc<AtomicU64>,
}

impl Proxy {
    /// Starts a proxy for the server at this port of the loopback device.
    pub(super) fn start(server: u16, delay: Duration) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (port, requests) = (listener.local_addr()?.port(), Arc::new(AtomicU64::new(0)));
        let counter = requests.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let address = SocketAddr::from(([127, 0, 0, 1], server));
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(address)) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                if let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) {
                    forward(from, to, delay, Some(counter.clone()));
                    forward(server, client, delay, None);
                }
            }
        });
        Ok(Self { port, requests })
    }

    /// Returns how long a round trip takes at least: the shortest of several calls of the procedure NULL.
    pub(super) fn round_trip(&self) -> Result<Duration> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut shortest = Duration::MAX;
        for xid in 0..EMPTY_CALLS {
            // A call of version 4 of program 100003, procedure 0, without credentials (RFC 5531, 9).
            let words = [LAST | 40, xid, 0, 2, 100_003, 4, 0, 0, 0, 0, 0];
            let begin = Instant::now();
            stream.write_all(&words.map(u32::to_be_bytes).concat())?;
            let mut reply = [0; 28];
            stream.read_exact(&mut reply)?;
            ensure!(reply[4..8] == xid.to_be_bytes(), "another reply");
            shortest = shortest.min(begin.elapsed());
        }
        Ok(shortest)
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }
}

/// Forwards one direction.
fn forward(mut from: TcpStream, mut to: TcpStream, delay: Duration, counter: Option<Arc<AtomicU64>>) {
    let (sender, due) = channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        for (time, bytes) in due {
            std::thread::sleep(time.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    std::thread::spawn(move || {
        let (mut buffer, mut messages) = (vec![0; 256 << 10], Messages::default());
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if let Some(counter) = &counter {
                counter.fetch_add(messages.count(&buffer[..len]), Relaxed);
            }
            if sender.send((Instant::now() + delay, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_in_pieces_of_any_size() {
        let mut stream = Vec::new();
        for (len, last) in [(5_u32, true), (0, false), (300, false), (7, true), (0, true)] {
            stream.extend((len | if last { LAST } else { 0 }).to_be_bytes());
            stream.resize(stream.len() + len as usize, 0xff);
        }
        for piece in 1..stream.len() {
            let mut messages = Messages::default();
            let count: u64 = stream.chunks(piece).map(|bytes| messages.count(bytes)).sum();
            assert_eq!(count, 3, "pieces of {piece} bytes");
        }
    }
}
