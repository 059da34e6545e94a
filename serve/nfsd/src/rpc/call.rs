//! A call, who made it, and the handle that answers it.

use std::sync::Arc;

use ivers_nfs4::record::mark;
use ivers_nfs4::rpc::{AuthSys, Reply};
use ivers_nfs4::xdr::Encoder;

use crate::net::budget::Charge;
use crate::net::connection::Connection;

/// Words before the results of a successful reply: the record's mark, and a head whose verifier is empty.
const HEAD_BYTES: usize = 28;

/// Who a caller says he is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Credential {
    /// Nobody (`AUTH_NONE`).
    None,
    /// Numbers, which only his address or his certificate vouch for (`AUTH_SYS`).
    Sys(AuthSys),
}

/// Who calls, over which connection. Address, TLS and the backchannel are the connection's.
#[derive(Debug, Clone)]
pub struct Caller {
    /// The connection.
    pub connection: Arc<Connection>,
    /// The credential.
    pub credential: Credential,
}

/// A call of a program.
#[derive(Debug)]
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// The caller's number for it.
    pub xid: u32,
    /// The program's version: one of those it has.
    pub version: u32,
    /// What is called; never 0.
    pub procedure: u32,
    pub(super) message: Vec<u8>,
    pub(super) arguments_at: usize,
}

impl Call {
    /// The arguments, undecoded.
    pub fn arguments(&self) -> &[u8] {
        &self.message[self.arguments_at..]
    }

    /// Bytes before the arguments: credential and all, but for what marks the record.
    pub fn head_bytes(&self) -> usize {
        self.arguments_at
    }
}

/// Answers one call, now or later, from any thread. Dropped without an answer (whoever held it has died), it says `SYSTEM_ERR`.
#[derive(Debug)]
pub struct ReplyHandle {
    connection: Arc<Connection>,
    xid: u32,
    answered: bool,
    /// The request's bytes, held until it is answered.
    _charge: Charge,
}

impl ReplyHandle {
    pub(super) fn new(connection: Arc<Connection>, xid: u32, charge: Charge) -> Self {
        connection.begin();
        Self { connection, xid, answered: false, _charge: charge }
    }

    /// What the results of a successful reply are to be put into, with so much room for them. It begins with what goes before them
    /// ([`Self::head_bytes`]), so that a large reply is never moved.
    pub fn start(&self, capacity: usize) -> Encoder {
        let mut encoder = Encoder::with_capacity(HEAD_BYTES + capacity);
        encoder.word(0);
        Reply::SUCCESS.put(self.xid, &mut encoder);
        debug_assert_eq!(encoder.len(), HEAD_BYTES);
        encoder
    }

    /// Bytes that [`Self::start`] puts before the results.
    pub const fn head_bytes() -> usize {
        HEAD_BYTES
    }

    /// Answer with what was put into an encoder that [`Self::start`] made.
    pub fn send(mut self, mut results: Encoder) {
        let len = results.len() - 4;
        results.patch_word(0, u32::from_be_bytes(mark(len)));
        self.answer(results);
    }

    /// Answer with results that were encoded before: those that were kept for a repeated request, say.
    pub fn send_encoded(self, results: &[u8]) {
        let mut encoder = self.start(results.len());
        encoder.fixed(results);
        self.send(encoder);
    }

    /// Answer without results: the arguments make no sense, or there is no such procedure.
    pub fn refuse(mut self, why: &Reply) {
        self.answer(without_results(self.xid, why));
    }

    /// End the connection instead: the caller will make another one and ask again.
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
        self.connection.end();
    }
}

/// The record of a reply that has no results.
pub(super) fn without_results(xid: u32, reply: &Reply) -> Encoder {
    let mut encoder = Encoder::with_capacity(64);
    encoder.word(0);
    reply.put(xid, &mut encoder);
    let len = encoder.len() - 4;
    encoder.patch_word(0, u32::from_be_bytes(mark(len)));
    encoder
}
