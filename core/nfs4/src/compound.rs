//! COMPOUND: a list of operations, done one behind the other until one fails (RFC 7530 section 15.2, RFC 8881 section 16.2).

use crate::ops::{Op, OpResult};
use crate::status::NfsStat;
use crate::types::Utf8;
use crate::xdr::{Decoder, Encoder, Result, Xdr, XdrError, xdr_struct};

xdr_struct! {
    /// What stands before the operations.
    struct CompoundHeader {
        /// The client's own, repeated in the reply.
        tag: Utf8,
        /// 0, 1 or 2.
        minor_version: u32,
    }
}

/// The operations of a request, decoded one by one as they are done: what stands behind one that fails, or that nobody knows, is
/// never looked at.
#[derive(Debug, Clone)]
pub struct Operations<'a> {
    bytes: Decoder<'a>,
    left: u32,
    minor: u32,
}

/// What comes next in a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An operation.
    Op(Op),
    /// A number that no operation has: answered as OP_ILLEGAL.
    Illegal,
    /// One that exists and cannot be decoded: its number.
    BadXdr(u32),
}

impl<'a> Operations<'a> {
    /// Behind the header, whose minor version says which operations there are.
    pub fn take(mut from: Decoder<'a>, minor: u32) -> Result<Self> {
        let left = from.count(usize::MAX)?;
        Ok(Self { bytes: from, left: left as u32, minor })
    }

    /// How many have not been taken.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// The number of the next one, not yet taken.
    pub fn peek(&self) -> Option<u32> {
        if self.left == 0 { None } else { self.bytes.clone().word().ok() }
    }

    /// The next one. After [`Next::Illegal`] or [`Next::BadXdr`] nothing that follows means anything.
    pub fn next_op(&mut self) -> Option<Next> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        // Without even a number it is nobody's operation.
        let Ok(number) = self.bytes.word() else { return Some(Next::Illegal) };
        match Op::take_body(self.minor, number, &mut self.bytes) {
            Ok(Some(op)) => Some(Next::Op(op)),
            Ok(None) => Some(Next::Illegal),
            Err(_) => Some(Next::BadXdr(number)),
        }
    }
}

/// A whole request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundArgs {
    /// Before the operations.
    pub header: CompoundHeader,
    /// The operations.
    pub ops: Vec<Op>,
}

impl Xdr for CompoundArgs {
    fn put(&self, to: &mut Encoder) {
        self.header.put(to);
        to.word(self.ops.len() as u32);
        self.ops.iter().for_each(|op| op.put(to));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let header = CompoundHeader::take(from)?;
        let count = from.count(usize::MAX)?;
        let mut ops = Vec::new();
        for _ in 0..count {
            let number = from.word()?;
            ops.push(Op::take_body(header.minor_version, number, from)?.ok_or(XdrError::BadValue(number))?);
        }
        Ok(Self { header, ops })
    }
}

/// A whole reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundRes {
    /// That of the last operation.
    pub status: NfsStat,
    /// The request's.
    pub tag: Utf8,
    /// As many as were done.
    pub results: Vec<OpResult>,
}

impl Xdr for CompoundRes {
    fn put(&self, to: &mut Encoder) {
        self.status.put(to);
        self.tag.put(to);
        to.word(self.results.len() as u32);
        self.results.iter().for_each(|result| result.put(to));
    }

    fn take(from: &mut Decoder<'_>) -> Result<Self> {
        let (status, tag) = (Xdr::take(from)?, Xdr::take(from)?);
        let count = from.count(usize::MAX)?;
        let mut results = Vec::new();
        for _ in 0..count {
            results.push(OpResult::take(from)?);
        }
        Ok(Self { status, tag, results })
    }
}
