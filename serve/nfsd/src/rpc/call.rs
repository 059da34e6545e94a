//! A call, its caller, and the handle that answers it.

use std::sync::Arc;

use ivers_nfs4::record::mark;
use ivers_nfs4::rpc::{AuthSys, Reply};
use ivers_nfs4::xdr::Encoder;

use crate::net::budget::Charge;
use crate::net::connection::Connection;

/// Bytes before the results of a successful reply: record mark, and a header with an empty verifier.
const HEAD_BYTES: usize = 28;

/// The identity that the caller claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// No identity (`AUTH_NONE`).
    None,
    /// User and group IDs (`AUTH_SYS`). Only the client's address or certificate vouches for them.
    Sys(AuthSys),
}

/// The caller of an RPC. The connection has its address, TLS peer and backchannel.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The connection.
    pub connection: Arc<Connection>,
    /// The credential.
    pub credential: Credential,
}

/// A call of an RPC program.
#[derive(Debug)]
pub struct Call {
    /// The caller.
    pub caller: Caller,
    /// The caller's transaction ID.
    pub xid: u32,
    /// The program's version, one of [`Program::versions`](super::Program::versions).
    pub version: u32,
    /// The procedure number, never 0.
    pub procedure: u32,
    pub(super) message: Vec<u8>,
    pub(super) arguments_at: usize,
}

impl Call {
    /// Returns the encoded arguments.
    pub fn arguments(&self) -> &[u8] {
        &self.message[self.arguments_at..]
    }

    /// Returns the number of bytes before the arguments, without the record mark.
    pub fn head_bytes(&self) -> usize {
        self.arguments_at
    }
}

/// Answers one call, from any thread. If it is dropped without a reply, for example after a panic, it replies
/// `SYSTEM_ERR`.
#[derive(Debug)]
pub struct ReplyHandle {
    connection: Arc<Connection>,
    xid: u32,
    answered: bool,
    /// The charge for the request's bytes, held until the reply.
    _charge: Charge,
}

impl ReplyHandle {
    pub(super) fn new(connection: Arc<Connection>, xid: u32, charge: Charge) -> Self {
        connection.call_started();
        Self { connection, xid, answered: false, _charge: charge }
    }

    /// Returns an encoder with room for `capacity` bytes of results. It already contains the header
    /// ([`Self::head_bytes`]), so that a large reply is never copied.
    pub fn start(&self, capacity: usize) -> Encoder {
        let mut encoder = Encoder::with_capacity(HEAD_BYTES + capacity);
        encoder.word(0);
        Reply::SUCCESS.put(self.xid, &mut encoder);
        debug_assert_eq!(encoder.len(), HEAD_BYTES);
        encoder
    }

    /// Returns the number of bytes that [`Self::start`] writes before the results.
    pub const fn head_bytes() -> usize {
        HEAD_BYTES
    }

    /// Replies with the results written into the encoder of [`Self::start`].
    pub fn send(mut self, mut results: Encoder) {
        let len = results.len() - 4;
        results.patch_word(0, u32::from_be_bytes(mark(len)));
        self.answer(results);
    }

    /// Replies with results that are already encoded, for example from the reply cache.
    pub fn send_encoded(self, results: &[u8]) {
        let mut encoder = self.start(results.len());
        encoder.fixed(results);
        self.send(encoder);
    }

    /// Replies with an error of RPC, for example invalid arguments or an unknown procedure.
    pub fn refuse(mut self, why: &Reply) {
        self.answer(without_results(self.xid, why));
    }

    /// Closes the connection without a reply. The client reconnects and sends the call again.
    pub fn hang_up(mut self, why: &str) {
        self.answered = true;
        self.connection.close(why);
    }

    fn answer(&mut self, record: Encoder) {
        self.answered = true;
        self.connection.send(record.into_bytes());
    }
}

impl Drop for ReplyHandle {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(without_results(self.xid, &Reply::SystemError));
        }
        self.connection.call_ended();
    }
}

/// Encodes the record of a reply without results.
pub(super) fn without_results(xid: u32, reply: &Reply) -> Encoder {
    let mut encoder = Encoder::with_capacity(64);
    encoder.word(0);
    reply.put(xid, &mut encoder);
    let len = encoder.len() - 4;
    encoder.patch_word(0, u32::from_be_bytes(mark(len)));
    encoder
}
