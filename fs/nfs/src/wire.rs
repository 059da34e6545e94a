//! The bytes of a connection: a socket, perhaps with TLS.
//!
//! With TLS, what a thread reads is decrypted under the lock of the TLS state, and what a thread sends is
//! encrypted under it. Neither waits for the socket there. What TLS itself has to send goes with the next
//! record: only a thread that sends takes bytes out, so that they keep their order.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use ivers_vfs::sync::{RankedMutex, rank};
use rustls::ClientConnection;

/// Room for a TLS record that was incomplete: it becomes plain text with the bytes that complete it.
const RECORD_BYTES: usize = 17 << 10;

/// A socket, perhaps with TLS.
pub struct Wire {
    stream: TcpStream,
    tls: Option<RankedMutex<rank::Leaf, ClientConnection>>,
}

impl From<TcpStream> for Wire {
    fn from(stream: TcpStream) -> Self {
        Self { stream, tls: None }
    }
}

impl Wire {
    /// A socket whose TLS handshake is done.
    pub fn secured(stream: TcpStream, tls: ClientConnection) -> Self {
        Self { stream, tls: Some(RankedMutex::new(tls)) }
    }

    /// Sends a record. One thread at a time.
    pub fn send(&self, record: &[u8]) -> io::Result<()> {
        let Some(tls) = &self.tls else { return (&self.stream).write_all(record) };
        let mut encrypted = Vec::with_capacity(record.len() + record.len() / 64 + 64);
        {
            let mut tls = tls.lock();
            tls.writer().write_all(record)?;
            while tls.wants_write() {
                tls.write_tls(&mut encrypted)?;
            }
        }
        (&self.stream).write_all(&encrypted)
    }

    /// Reads what has arrived into a buffer of at least twice [`RECORD_BYTES`]. Returns its length, or `None`
    /// at the end of the stream. 0: it is not complete yet. One thread at a time.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(tls) = &self.tls else {
            return Ok(Some((&self.stream).read(buffer)?).filter(|len| *len > 0));
        };
        let room = buffer.len().saturating_sub(RECORD_BYTES);
        let len = (&self.stream).read(&mut buffer[..room])?;
        let encrypted = buffer[..len].to_vec();
        let mut left = encrypted.as_slice();
        let (mut tls, mut at) = (tls.lock(), 0);
        while !left.is_empty() {
            tls.read_tls(&mut left)?;
            let state = tls.process_new_packets().map_err(io::Error::other)?;
            let end = at + state.plaintext_bytes_to_read();
            let plain = buffer.get_mut(at..end).ok_or_else(|| io::Error::other("TLS grows"))?;
            tls.reader().read_exact(plain)?;
            at = end;
            if state.peer_has_closed() {
                return Ok(None);
            }
        }
        Ok((len > 0).then_some(at))
    }

    /// Ends both directions. An error means that the socket is closed already.
    pub fn shutdown(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
