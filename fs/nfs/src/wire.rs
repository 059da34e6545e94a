//! The bytes of a connection: a socket, with or without TLS.
//!
//! With TLS, a thread encrypts or decrypts under the lock of the TLS state, and never waits for the socket
//! under it. Only a thread that sends takes encrypted bytes out of the state, so that they keep their order.
//! So messages of TLS itself are sent with the next record.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};

use ivers_nfs4::shared::Message;
use ivers_vfs::sync::{RankedMutex, rank};
use rustls::ClientConnection;

/// Space for the plain text of a TLS record whose first bytes an earlier call received.
const RECORD_BYTES: usize = 17 << 10;

/// Returns whether an error of a socket means that nothing arrived yet.
pub fn is_pause(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Writes all parts, with as few calls as possible.
fn write_parts(mut stream: &TcpStream, parts: &[&[u8]]) -> io::Result<()> {
    let mut all: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut all[..];
    while !left.is_empty() {
        match stream.write_vectored(left) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(len) => IoSlice::advance_slices(&mut left, len),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A socket, with or without TLS.
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
    /// Uses a socket whose TLS handshake is complete.
    pub fn secured(stream: TcpStream, tls: ClientConnection) -> Self {
        Self { stream, tls: Some(RankedMutex::new(tls)) }
    }

    /// Returns the socket, to poll it.
    pub fn socket(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a record. Call it from one thread at a time.
    pub fn send(&self, record: &Message) -> io::Result<()> {
        let Some(tls) = &self.tls else { return write_parts(&self.stream, &record.parts()) };
        let mut encrypted = Vec::with_capacity(record.len() + record.len() / 64 + 64);
        {
            let mut tls = tls.lock();
            for part in record.parts() {
                tls.writer().write_all(part)?;
            }
            while tls.wants_write() {
                tls.write_tls(&mut encrypted)?;
            }
        }
        (&self.stream).write_all(&encrypted)
    }

    /// Reads what has arrived into the spare capacity of a buffer, which must have some. Returns as
    /// [`Wire::receive`]. Not for TLS: see [`Wire::is_secured`].
    pub fn receive_directly(&self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let len = rustix::io::read(&self.stream, rustix::buffer::spare_capacity(buffer))?;
        Ok(Some(len).filter(|len| *len > 0))
    }

    /// Returns whether TLS is used.
    pub fn is_secured(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads what has arrived into a buffer of at least twice [`RECORD_BYTES`]. Returns the number of bytes:
    /// 0 if a TLS record is incomplete, `None` at the end of the stream. Call it from one thread at a time.
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
            let plain = buffer.get_mut(at..end).ok_or_else(|| io::Error::other("TLS: too many bytes"))?;
            tls.reader().read_exact(plain)?;
            at = end;
            if state.peer_has_closed() {
                return Ok(None);
            }
        }
        Ok((len > 0).then_some(at))
    }

    /// Shuts down both directions. An error means that the socket is closed already.
    pub fn shutdown(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
