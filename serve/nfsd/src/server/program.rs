//! NFS as an RPC program.

use std::ops::RangeInclusive;
use std::sync::Arc;

use ivers_nfs4::compound::{CompoundHeader, CompoundRes};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::rpc::Reply;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::xdr::{Decoder, Xdr};
use ivers_nfs4::{NFS_PROGRAM, NFS_V4, PROC_COMPOUND};

use super::core::Core;
use super::runtime::ReplySink;
use crate::compound::Origin;
use crate::executor::Executor;
use crate::net::connection::Connection;
use crate::rpc::{Call, Program, ReplyHandle};
use crate::state::ConnId;

/// The initial capacity of a reply. Most are smaller; that of a READ grows once.
const REPLY_BYTES: usize = 2048;

/// NFS version 4.
pub(super) struct Nfs {
    pub core: Arc<Core>,
    pub executor: Arc<Executor>,
}

struct Arguments(Call);

impl AsRef<[u8]> for Arguments {
    fn as_ref(&self) -> &[u8] {
        self.0.arguments()
    }
}

impl Program for Nfs {
    fn number(&self) -> u32 {
        NFS_PROGRAM
    }

    fn versions(&self) -> RangeInclusive<u32> {
        NFS_V4..=NFS_V4
    }

    fn call(&self, call: Call, reply: ReplyHandle) {
        if call.procedure != PROC_COMPOUND {
            return reply.refuse(&Reply::ProcedureUnavailable);
        }
        let connection = &call.caller.connection;
        self.core.connected(connection);
        let origin = Origin {
            address: connection.peer().ip().to_canonical(),
            credential: call.caller.credential.clone(),
            tls: connection.tls().cloned(),
            conn: ConnId(connection.id()),
            xid: call.xid,
            head_bytes: call.head_bytes(),
        };
        let begun = self.executor.begin(origin, Arguments(call), reply.start(REPLY_BYTES));
        match begun {
            Ok(compound) => self.core.proceed(compound.run(), ReplySink::Connection(reply)),
            Err(_) => reply.refuse(&Reply::GarbageArgs),
        }
    }

    fn announces_blocking(&self) -> bool {
        true
    }

    fn busy(&self, call: &Call) -> Option<Vec<u8>> {
        let mut from = Decoder::new(call.arguments());
        let header = CompoundHeader::take(&mut from).ok()?;
        from.count(usize::MAX).ok()?;
        let number = from.word().ok()?;
        let known = Op::take_body(header.minor_version, number, &mut from).is_ok_and(|op| op.is_none());
        let results = if known { Vec::new() } else { vec![OpResult::failure(number, NfsStat::Delay)] };
        Some(CompoundRes { status: NfsStat::Delay, tag: header.tag, results }.to_bytes())
    }

    fn closed(&self, connection: &Arc<Connection>) {
        let (core, id) = (self.core.clone(), connection.id());
        if let Some(runtime) = self.core.runtime.get() {
            runtime.run(move || core.disconnected(id));
        }
    }
}
