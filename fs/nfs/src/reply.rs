//! Replies to COMPOUND, checked against their request.

use ivers_nfs4::ops::{OpResult, number};
use ivers_nfs4::rpc::Reply;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::{Decoder, Xdr, XdrError};
use ivers_vfs::{Error, Result, ServerError};
use thiserror::Error;

use crate::attributes::FileAttributes;

/// A reply that the protocol does not permit. The connection must be closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Malformed {
    /// It cannot be decoded.
    #[error("a reply that cannot be decoded: {0}")]
    Xdr(#[from] XdrError),
    /// Its results do not belong to the operations of the request.
    #[error("a reply that does not fit its request: {0}")]
    Mismatch(&'static str),
}

/// What the server said.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request was executed, up to the first operation that failed.
    Compound(Compound),
    /// It was not: the reply of RPC.
    Refused(Reply),
}

/// The results of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compound {
    /// The status of the last operation that was executed.
    pub status: NfsStat,
    /// One result for each operation that was executed; all but the last succeeded.
    pub results: Vec<OpResult>,
}

/// Decodes the reply to a request of these operations.
pub fn decode(
    mut from: Decoder<'_>,
    xid: u32,
    ops: &[u32],
    tag: &[u8],
) -> std::result::Result<Answer, Malformed> {
    let (replied, reply) = Reply::take(&mut from)?;
    if replied != xid {
        return Err(Malformed::Mismatch("another transaction"));
    }
    if !matches!(reply, Reply::Success { .. }) {
        return Ok(Answer::Refused(reply));
    }
    let status = NfsStat::take(&mut from)?;
    let returned = from.opaque(tag.len())?;
    if returned != tag {
        return Err(Malformed::Mismatch("another tag"));
    }
    let count = from.count(ops.len())?;
    let mut results = Vec::with_capacity(count);
    for (nth, op) in ops.iter().enumerate().take(count) {
        let result = OpResult::take(&mut from)?;
        let is_last = nth + 1 == count;
        if result.number() != *op && !(is_last && result.number() == number::ILLEGAL) {
            return Err(Malformed::Mismatch("the result of another operation"));
        }
        let expected = if is_last { status } else { NfsStat::Ok };
        if result.status() != expected {
            return Err(Malformed::Mismatch("a status that is not that of the last operation"));
        }
        results.push(result);
    }
    from.finish()?;
    if status == NfsStat::Ok && count < ops.len() {
        return Err(Malformed::Mismatch("success without all results"));
    }
    Ok(Answer::Compound(Compound { status, results }))
}

/// The results of a request that succeeded, in the order of its operations.
pub struct Results(pub std::vec::IntoIter<OpResult>);

impl Results {
    /// Skips the result of an operation that returns nothing.
    pub fn skip(&mut self) {
        self.0.next();
    }

    /// Takes the attributes of a file, if the server got that far.
    pub fn attributes(&mut self, place: &str) -> Result<Option<FileAttributes>> {
        match self.0.next() {
            Some(OpResult::GetAttr(Ok(fattr))) => FileAttributes::take(&fattr, place).map(Some),
            _ => Ok(None),
        }
    }
}

/// Returns the error for results that [`decode`] would have refused.
pub fn unexpected() -> Error {
    ServerError::Failed.into()
}

/// Takes the next result, which is that of the operation `$op`.
macro_rules! take {
    ($results:expr, $op:ident) => {
        match $results.0.next() {
            Some(::ivers_nfs4::ops::OpResult::$op(Ok(value))) => Ok(value),
            _ => Err($crate::reply::unexpected()),
        }
    };
}
pub(crate) use take;

impl Compound {
    /// Returns the results, or the error of the operation that failed.
    pub fn ok(self, place: &str) -> Result<Results> {
        match self.status {
            NfsStat::Ok => Ok(Results(self.results.into_iter())),
            status => Err(crate::status::error(status, place)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_nfs4::compound::CompoundRes;
    use ivers_nfs4::xdr::Encoder;

    const OPS: [u32; 2] = [number::PUTROOTFH, number::LOOKUP];

    fn reply(status: NfsStat, results: Vec<OpResult>) -> Vec<u8> {
        let mut to = Encoder::default();
        Reply::SUCCESS.put(7, &mut to);
        CompoundRes { status, tag: b"t".to_vec(), results }.put(&mut to);
        to.into_bytes()
    }

    fn decoded(status: NfsStat, results: Vec<OpResult>) -> std::result::Result<Answer, Malformed> {
        decode(Decoder::new(&reply(status, results)), 7, &OPS, b"t")
    }

    #[test]
    fn a_reply_must_fit_its_request() {
        let root = || OpResult::PutRootFh(Ok(()));
        let all = vec![root(), OpResult::Lookup(Ok(()))];
        assert!(matches!(decoded(NfsStat::Ok, all.clone()), Ok(Answer::Compound(_))));
        let failed = vec![root(), OpResult::Lookup(Err(NfsStat::Noent))];
        assert!(decoded(NfsStat::Noent, failed.clone()).is_ok());
        assert!(decoded(NfsStat::Delay, Vec::new()).is_ok(), "refused as a whole");
        for (status, results) in [
            (NfsStat::Ok, vec![root()]),
            (NfsStat::Ok, failed),
            (NfsStat::Noent, all.clone()),
            (NfsStat::Ok, vec![root(), root()]),
            (NfsStat::Noent, vec![OpResult::PutRootFh(Err(NfsStat::Noent)), OpResult::Lookup(Ok(()))]),
            (NfsStat::Ok, [all.clone(), vec![root()]].concat()),
        ] {
            assert!(decoded(status, results.clone()).is_err(), "{results:?}");
        }
        let whole = reply(NfsStat::Ok, all);
        let fails = |bytes: &[u8], xid, tag| decode(Decoder::new(bytes), xid, &OPS, tag).is_err();
        assert!(fails(&whole, 8, b"t") && fails(&whole, 7, b"u"));
        for len in 0..whole.len() {
            assert!(fails(&whole[..len], 7, b"t"), "cut at {len}");
        }
        assert!(fails(&[whole, vec![0; 4]].concat(), 7, b"t"), "trailing bytes");
    }
}
