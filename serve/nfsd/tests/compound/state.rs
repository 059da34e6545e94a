//! Operations with real clients' state.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{ReadArgs, WriteArgs};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{FileHandle, StableHow, StateId};
use ivers_nfsd::compound::{Clients, Context, CopyJob, EndPermit, Origin, PermitGuard, Service};
use ivers_nfsd::executor::{Executor, StateOps, StateReply};
use ivers_nfsd::exports::handle::Handles;
use ivers_nfsd::state::{
    Access, Caller, ClientRecord, Config, FileId, Permit, PreviousBoot, Principal, Rng, SessionRequest,
    StateManager, Step, Stop, Time,
};
use parking_lot::Mutex;

use ivers_nfs_test::harness::*;

struct Counting(u64);

impl Rng for Counting {
    fn next_u64(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}

/// Real state, and the number of its permits.
struct Permits(Mutex<StateManager>, Arc<AtomicU64>);

impl EndPermit for Permits {
    fn end_permit(self: Arc<Self>, permit: Permit) {
        self.0.lock().end_permit(Time(0), permit);
        self.1.fetch_sub(1, Ordering::SeqCst);
    }
}

struct Real(Arc<Permits>);

impl Real {
    fn held(&self, permit: Permit) -> PermitGuard {
        self.0.1.fetch_add(1, Ordering::SeqCst);
        PermitGuard::new(permit, self.0.clone())
    }
}

impl Clients for Real {
    fn begin_access(
        &self,
        caller: Caller,
        file: FileId,
        stateid: &StateId,
        does: Access,
    ) -> Step<PermitGuard> {
        let permit = self.0.0.lock().permit(Time(0), caller, file, stateid, does)?;
        Ok(self.held(permit))
    }

    fn is_opener(&self, _: &Origin, _: Caller, _: &StateId) -> bool {
        false
    }

    fn begin_getattr(&self, caller: Caller, file: FileId) -> Step<PermitGuard> {
        let permit = self.0.0.lock().begin_getattr(Time(0), caller, file)?;
        Ok(self.held(permit))
    }

    fn begin_copy(&self, _: Caller, _: Option<&SessionRequest>, _: CopyJob) -> Step<Option<StateId>> {
        Ok(None)
    }
}

impl StateOps for Real {
    fn operate(&self, _: &mut Context, _: &Op) -> Step<StateReply> {
        Err(Stop::Fail(NfsStat::Notsupp))
    }

    fn finish(&self, _: SessionRequest, _: Option<&[u8]>) {}
}

fn server(past: PreviousBoot) -> (Server, Arc<AtomicU64>) {
    let mut server = Server::new(mem(), "no_root_squash");
    let state = StateManager::new(Time(0), Config::default(), 3, past, Box::new(Counting(0)));
    let out = Arc::new(AtomicU64::new(0));
    let real = Arc::new(Real(Arc::new(Permits(Mutex::new(state), out.clone()))));
    let handles = Handles::new([7; 16]);
    let exports = exports(&handles, &server.vfs, "no_root_squash");
    server.service = Arc::new(Service::new(handles, real.clone(), exports, 3));
    server.executor = Executor::new(server.service.clone(), real, || {});
    (server, out)
}

fn ends(server: &Server, file: &FileHandle, stateid: StateId) -> [NfsStat; 2] {
    let read = Op::Read(ReadArgs { stateid, offset: 0, count: 1 });
    let write =
        Op::Write(WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: vec![1].into() });
    [read, write].map(|op| server.call(0, vec![put(file), op]).0)
}

#[test]
fn stateids_are_checked_before_io() {
    let (server, out) = server(PreviousBoot::default());
    let file = server.file("f", b"contents");
    assert_eq!(ends(&server, &file, StateId::ANONYMOUS), [NfsStat::Ok; 2]);
    let made_up = StateId { seqid: 1, other: [9; 12] };
    let before = server.change(&file);
    assert_eq!(ends(&server, &file, made_up), [NfsStat::StaleStateid; 2]);
    assert_eq!(server.change(&file), before);
    assert_eq!(server.status_of(0, vec![Op::Remove(b"f".to_vec())]), NfsStat::Ok);
    assert_eq!(out.load(Ordering::SeqCst), 0, "every access has ended");
}

/// [RFC8881 8.4.2.1]
#[test]
fn grace_period_refuses_io_with_special_stateids() {
    let principal = Principal::new(b"p");
    let record =
        ClientRecord { sessions: true, owner: b"c".to_vec(), verifier: [0; 8], principal, revoked: false };
    let (server, _) = server(PreviousBoot { clients: vec![record], ..PreviousBoot::default() });
    let file = server.file("f", b"contents");
    assert_eq!(ends(&server, &file, StateId::ANONYMOUS), [NfsStat::Grace; 2]);
}
