//! COMPOUND: a list of operations, executed in order until one fails (RFC 7530 section 15.2, RFC 8881 section
//! 16.2).

use crate::ops::{Op, OpResult};
use crate::status::NfsStat;
use crate::types::Utf8;
use crate::xdr::{Decoder, Encoder, Result, Xdr, XdrError, xdr_struct};

xdr_struct! {
    /// The fields of `COMPOUND4args` before the operations (RFC 7530 section 15.2).
    struct CompoundHeader {
        /// Chosen by the client, repeated in the reply.
        tag: Utf8,
        /// 0, 1 or 2.
        minor_version: u32,
    }
}

/// The operations of a request (`COMPOUND4args.argarray`, RFC 7530 section 15.2), decoded one by one during
/// execution. Operations after a failed or unknown one are not decoded.
#[derive(Debug, Clone)]
pub struct Operations<'a> {
    bytes: Decoder<'a>,
    left: u32,
    minor: u32,
}

/// The next operation of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// An operation.
    Op(Op),
    /// Its number is not an operation: answered as OP_ILLEGAL.
    Illegal,
    /// A known operation whose arguments cannot be decoded; its number.
    BadXdr(u32),
}

impl<'a> Operations<'a> {
    /// Starts after the header, whose minor version determines the known operations.
    pub fn take(mut from: Decoder<'a>, minor: u32) -> Result<Self> {
        let left = from.count(usize::MAX)?;
        Ok(Self { bytes: from, left: left as u32, minor })
    }

    /// Returns the number of operations that are left.
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Returns the number of the next operation without consuming it.
    pub fn peek(&self) -> Option<u32> {
        if self.left == 0 { None } else { self.bytes.clone().word().ok() }
    }

    /// Returns the next operation. After [`Next::Illegal`] or [`Next::BadXdr`] the rest cannot be decoded.
    pub fn next_op(&mut self) -> Option<Next> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        // If not even a number is left, there is no operation.
        let Ok(number) = self.bytes.word() else { return Some(Next::Illegal) };
        match Op::take_body(self.minor, number, &mut self.bytes) {
            Ok(Some(op)) => Some(Next::Op(op)),
            Ok(None) => Some(Next::Illegal),
            Err(_) => Some(Next::BadXdr(number)),
        }
    }
}

/// `COMPOUND4args` (RFC 7530 section 15.2): a complete request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundArgs {
    /// The fields before the operations.
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

/// `COMPOUND4res` (RFC 7530 section 15.2): a complete reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompoundRes {
    /// Status of the last operation.
    pub status: NfsStat,
    /// Tag of the request.
    pub tag: Utf8,
    /// Results of the executed operations.
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
