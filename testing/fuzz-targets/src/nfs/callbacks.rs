//! Callbacks of a hostile server to the NFS client. An input is several messages, each after its length in
//! two bytes.
//!
//! Each message is answered twice. The second time nothing is executed, and the reply is the same.

use crate::input::Input;
use ivers_nfs::callbacks::{BACK_BYTES, BACK_OPERATIONS, BackChannel, BackSlots, Callee, answer};
use ivers_nfs4::callback::*;
use ivers_nfs4::rpc::{CallHeader, OpaqueAuth};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, FileHandle, Opaque, Owner, SessionId, StateId};
use ivers_nfs4::xdr::{Encoder, List, Xdr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

const SESSION: SessionId = [3; 16];
/// The most messages in an input.
const MESSAGES_MAX: usize = 8;

/// Counts the calls of its methods.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Counting {
    fn count(&self) {
        self.0.fetch_add(1, Relaxed);
    }
}

impl Callee for Counting {
    fn recall(&self, _: &FileHandle, stateid: StateId) -> NfsStat {
        self.count();
        if stateid.seqid == 1 { NfsStat::Ok } else { NfsStat::BadStateid }
    }

    fn attributes(&self, file: &FileHandle) -> Option<(u64, u64)> {
        self.count();
        (file.0 == b"written").then_some((7, 9))
    }

    fn recall_any(&self, _: usize) {
        self.count();
    }

    fn lock_available(&self, _: &FileHandle) {
        self.count();
    }

    fn state_revoked(&self) {}

    fn path_down(&self) {}

    fn connection_lost(&self) {}
}

/// Runs one input.
pub fn run(input: &[u8]) {
    let (slots, callee) = (Arc::new(BackSlots::default()), Counting::default());
    let slots = |session: &SessionId| (*session == SESSION).then(|| slots.clone());
    let channel = BackChannel { minor: 2, slots: &slots };
    let mut rest = Input::new(input);
    for _ in 0..MESSAGES_MAX {
        let len = usize::from(rest.byte()) << 8 | usize::from(rest.byte());
        let message: Vec<u8> = (0..len.min(BACK_BYTES as usize)).map(|_| rest.byte()).collect();
        let before = callee.0.load(Relaxed);
        let first = answer(&message, &channel, Some(&callee));
        let executed = callee.0.load(Relaxed);
        assert!(executed - before < BACK_OPERATIONS as usize, "CB_SEQUENCE is one of them");
        assert_eq!(answer(&message, &channel, Some(&callee)), first);
        assert_eq!(callee.0.load(Relaxed), executed, "executed twice");
        if let Ok(record) = first {
            assert!(record.len() <= 4 + BACK_BYTES as usize);
        }
        let _ = answer(&message, &BackChannel { minor: 2, slots: &|_| None }, None);
    }
}

fn message(procedure: u32, ops: Vec<CbOp>) -> Vec<u8> {
    let mut to = Encoder::default();
    let (program, version) = (CALLBACK_PROGRAM, CALLBACK_VERSION);
    let (cred, verf) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    CallHeader { xid: 9, program, version, procedure, cred, verf }.put(&mut to);
    CbCompoundArgs { tag: b"t".to_vec(), minor_version: 2, ident: 0, ops: List(ops) }.put(&mut to);
    let bytes = to.into_bytes();
    [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat()
}

/// Returns the fuzz inputs: each operation, and several callbacks in a row.
pub fn inputs() -> Vec<Vec<u8>> {
    let file: FileHandle = Opaque(b"f".to_vec());
    let sequence = |slotid, sequenceid| {
        CbOp::Sequence(CbSequenceArgs {
            sessionid: SESSION,
            sequenceid,
            slotid,
            highest_slotid: 3,
            cache_this: false,
            referring: List(vec![ReferringCalls {
                sessionid: SESSION,
                calls: List(vec![ReferringCall { sequenceid: 7, slotid: 1 }]),
            }]),
        })
    };
    let stateid = |seqid| StateId { seqid, other: [7; 12] };
    let recall =
        |seqid| CbOp::Recall(CbRecallArgs { stateid: stateid(seqid), truncate: false, file: file.clone() });
    let owner = Owner { clientid: 1, owner: Opaque(b"o".to_vec()) };
    let each = [
        recall(1),
        recall(2),
        CbOp::RecallAny(CbRecallAnyArgs { keep: 5, types: Bitmap::of([recall_any::READ_DELEG]) }),
        CbOp::RecallSlot(3),
        CbOp::NotifyLock(CbNotifyLockArgs { file: file.clone(), owner }),
        CbOp::GetAttr(CbGetAttrArgs { file: file.clone(), attrs: Bitmap::of([3, 4]) }),
        CbOp::GetAttr(CbGetAttrArgs { file: Opaque(b"written".to_vec()), attrs: Bitmap::of([3, 4]) }),
        sequence(1, 1),
    ];
    let mut inputs: Vec<Vec<u8>> =
        each.iter().map(|op| message(PROC_CB_COMPOUND, vec![sequence(0, 1), op.clone()])).collect();
    let row = (1..=4).flat_map(|nth| message(PROC_CB_COMPOUND, vec![sequence(nth % 3, nth), recall(nth)]));
    inputs.push(row.collect());
    inputs.push(message(PROC_CB_COMPOUND, vec![sequence(3, 1), recall(1), recall(1), recall(1)]));
    inputs.push(message(PROC_CB_NULL, Vec::new()));
    inputs
}
