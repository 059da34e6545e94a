//! The server's COMPOUND procedure without sockets ([`Server`]). The test decides which client state exists
//! ([`FakeClients`]).

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use ivers_block::{Device, MemDevice};
use ivers_ext4::mkfs::{MkfsOptions, mkfs};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_nfs4::attr::{Attrs, Fattr};
use ivers_nfs4::compound::{CompoundArgs, CompoundHeader, CompoundRes};
use ivers_nfs4::ops::v41::{SequenceArgs, SequenceOk};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::rpc::AuthSys;
use ivers_nfs4::status::{NfsStat, Res};
use ivers_nfs4::types::{Bitmap, ChangeInfo, FileHandle, StateId};
use ivers_nfs4::xdr::{Encoder, List, Xdr};
use ivers_nfsd::compound::{
    Clients, Context, CopyJob, EndPermit, Exports, Filesystem, Origin, PermitGuard, Service,
};
use ivers_nfsd::executor::{Executor, Progress, StateOps, StateReply};
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::exports::handle::Handles;
use ivers_nfsd::rpc::Credential;
use ivers_nfsd::state::{
    Access, Caller, Config, ConnId, FileId, Permit, PreviousBoot, Rng, SessionRequest, StateManager, Step,
    Stop, Time,
};
use ivers_vfs::{Cred, DriverOptions, MountOptions, Vfs};
use parking_lot::Mutex;

/// The ID of a user that has no open.
pub const NON_OPENER: u32 = 4242;

/// An action of another client during a request.
pub type ConcurrentAction = Box<dyn FnOnce() + Send>;

/// Client state that permits every access, unless a test says otherwise.
#[derive(Default)]
pub struct FakeClients {
    /// Errors for the next accesses. When the queue is empty, accesses are granted.
    pub stops: Mutex<VecDeque<Stop>>,
    /// The number of accesses to grant before one fails.
    pub grants_left: Mutex<Option<usize>>,
    /// The stateid and kind of each requested access.
    pub requested: Mutex<Vec<(StateId, Access)>>,
    /// The inode number of each requested access.
    pub files: Mutex<Vec<u64>>,
    /// Runs during the next request for access.
    pub during_next_permit: Mutex<Option<ConcurrentAction>>,
    /// The permits, and the number of those that are granted and not ended.
    pub permits: Arc<FakePermits>,
    /// The reply size of each request that finished.
    pub finished: Mutex<Vec<Option<usize>>>,
    /// The reply limit in bytes that SEQUENCE sets, and whether the reply is cached.
    pub sequence_reply: Mutex<Option<(usize, bool)>>,
    /// SEQUENCE detects a retry whose reply was not cached.
    pub uncached: Mutex<bool>,
    /// SEQUENCE detects a retry with this cached reply.
    pub replay: Mutex<Option<Arc<[u8]>>>,
}

struct NoRandomness;

impl Rng for NoRandomness {
    fn next_u64(&mut self) -> u64 {
        0
    }
}

/// A state without clients, which grants every permit.
pub struct FakePermits {
    state: Mutex<StateManager>,
    outstanding: AtomicUsize,
}

impl Default for FakePermits {
    fn default() -> Self {
        let (config, past) = (Config::default(), PreviousBoot::default());
        let state = StateManager::new(Time(0), config, 1, past, Box::new(NoRandomness));
        Self { state: Mutex::new(state), outstanding: AtomicUsize::new(0) }
    }
}

impl FakePermits {
    /// Returns the number of permits that are granted and not ended.
    pub fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::SeqCst)
    }
}

impl EndPermit for FakePermits {
    fn end_permit(self: Arc<Self>, permit: Permit) {
        self.state.lock().end_permit(Time(0), permit);
        self.outstanding.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FakeClients {
    /// Grants `count` accesses and refuses the next one.
    pub fn refuse_after(&self, count: usize) {
        *self.grants_left.lock() = Some(count);
    }

    /// Grants an access.
    pub fn grant(&self) -> PermitGuard {
        let file = FileId { export: 0, inode: 0, generation: 0 };
        let (caller, stateid) = (Caller::V40, StateId::ANONYMOUS);
        let permit = self.permits.state.lock().permit(Time(0), caller, file, &stateid, Access::Metadata);
        self.permits.outstanding.fetch_add(1, Ordering::SeqCst);
        PermitGuard::new(permit.expect("no client is in the way"), self.permits.clone())
    }

    fn next_error(&self) -> Step<()> {
        self.stops.lock().pop_front().map_or(Ok(()), Err)
    }
}

impl Clients for FakeClients {
    fn begin_access(&self, _: Caller, file: FileId, stateid: &StateId, does: Access) -> Step<PermitGuard> {
        self.requested.lock().push((*stateid, does));
        self.files.lock().push(file.inode);
        if let Some(act) = self.during_next_permit.lock().take() {
            act();
        }
        self.next_error()?;
        let mut grants_left = self.grants_left.lock();
        match *grants_left {
            Some(0) => {
                *grants_left = None;
                return Err(Stop::Fail(NfsStat::Delay));
            }
            Some(left) => *grants_left = Some(left - 1),
            None => {}
        }
        Ok(self.grant())
    }

    fn is_opener(&self, origin: &Origin, _: Caller, _: &StateId) -> bool {
        !matches!(&origin.credential, Credential::Sys(sys) if sys.uid == NON_OPENER)
    }

    fn begin_getattr(&self, _: Caller, _: FileId) -> Step<PermitGuard> {
        self.next_error()?;
        Ok(self.grant())
    }

    fn begin_copy(&self, _: Caller, _: Option<&SessionRequest>, _: CopyJob) -> Step<Option<StateId>> {
        Ok(None)
    }
}

impl StateOps for FakeClients {
    fn operate(&self, context: &mut Context, op: &Op) -> Step<StateReply> {
        let Op::Sequence(args) = op else { return Err(Stop::Fail(NfsStat::Notsupp)) };
        if let Some(reply) = self.replay.lock().clone() {
            return Ok(StateReply::Replay(reply));
        }
        context.caller = Caller::Client(1);
        context.retry_uncached = *self.uncached.lock();
        if let Some((bytes, keep)) = *self.sequence_reply.lock() {
            (context.reply_bytes, context.cache_reply) = (bytes, keep);
        }
        let SequenceArgs { sessionid, sequenceid, slotid, .. } = *args;
        context.session = Some(SessionRequest {
            client: 1,
            session: sessionid,
            slot: slotid,
            sequence: sequenceid,
            keep: false,
            reply_bytes: 0,
        });
        let ok = SequenceOk {
            sessionid,
            sequenceid,
            slotid,
            highest_slotid: 0,
            target_highest_slotid: 0,
            status_flags: 0,
        };
        Ok(StateReply::Result(Box::new(OpResult::Sequence(Ok(ok)))))
    }

    fn finish(&self, _: SessionRequest, reply: Option<&[u8]>) {
        self.finished.lock().push(reply.map(<[u8]>::len));
    }
}

/// The address that requests come from.
pub const CLIENT_ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// A server without sockets.
pub struct Server {
    /// The state that all requests share.
    pub service: Arc<Service>,
    /// Executes requests.
    pub executor: Arc<Executor>,
    /// The client state.
    pub clients: Arc<FakeClients>,
    /// The filesystem exported as `/deep/data`.
    pub vfs: Arc<Vfs>,
}

/// Mounts a new filesystem in memory.
pub fn mem() -> Arc<Vfs> {
    Vfs::mount(
        Arc::new(ivers_mem::Mem::new(64 << 20)),
        MountOptions { background: false, ..MountOptions::default() },
    )
    .unwrap()
}

/// Makes and mounts an ext4 filesystem in memory.
pub fn ext4() -> Arc<Vfs> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
    mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
    let fs = Ext4::open(
        device,
        OpenOptions::from(DriverOptions { place: "a test".into(), ..DriverOptions::default() }),
    )
    .unwrap();
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

/// Runs a test on each filesystem type. No granted access may remain afterwards.
pub fn on_each_filesystem(test: impl Fn(&Server)) {
    for vfs in [mem(), ext4()] {
        let server = Server::new(vfs, "no_root_squash,sec=sys;none");
        test(&server);
        assert_eq!(server.clients.permits.outstanding(), 0, "an access is not released");
    }
}

/// Returns four exports:
///
/// - `/deep/data`: `vfs` with these flags
/// - `/other`: another filesystem, which requires TLS
/// - `/theirs`: not exported to [`CLIENT_ADDRESS`]
/// - `/more`: read-only
pub fn exports(handles: &Handles, vfs: &Arc<Vfs>, flags: &str) -> Exports {
    let filesystem = |vfs: &Arc<Vfs>| Filesystem { vfs: vfs.clone(), write_verifier: 5, instance: 0 };
    let config = |flag: String| ExportConfig::from_flag(&flag).unwrap();
    let all = vec![
        (config(format!("i,name=/deep/data,{flags}")), 1, filesystem(vfs)),
        (config("i,name=/other,tls=required".into()), 2, filesystem(&mem())),
        (config("i,name=/theirs,clients=192.0.2.1".into()), 3, filesystem(&mem())),
        (config("i,name=/more,no_root_squash,ro".into()), 4, filesystem(&mem())),
    ];
    Exports::new(handles, all, 77).unwrap()
}

impl Server {
    /// Exports `vfs` with these flags.
    pub fn new(vfs: Arc<Vfs>, flags: &str) -> Self {
        let clients = Arc::new(FakeClients::default());
        let handles = Handles::new([7; 16]);
        let exports = exports(&handles, &vfs, flags);
        let service = Arc::new(Service::new(handles, clients.clone(), exports, 3));
        let executor = Executor::new(service.clone(), clients.clone(), || {});
        Self { service, executor, clients, vfs }
    }

    /// Returns the origin of a request by this user.
    pub fn origin(uid: u32, gid: u32) -> Origin {
        let sys = AuthSys { stamp: 0, machine: Vec::new(), uid, gid, gids: List(Vec::new()) };
        static XID: AtomicU32 = AtomicU32::new(0);
        let xid = XID.fetch_add(1, Ordering::Relaxed);
        Origin {
            address: CLIENT_ADDRESS,
            credential: Credential::Sys(sys),
            tls: None,
            conn: ConnId(1),
            xid,
            head_bytes: 0,
        }
    }

    /// Runs operations until they are done or must wait.
    pub fn begin(&self, origin: Origin, minor: u32, ops: Vec<Op>) -> Progress {
        let ops = if minor == 0 { ops } else { [vec![sequence()], ops].concat() };
        let header = CompoundHeader { tag: b"tag".to_vec(), minor_version: minor };
        let bytes = CompoundArgs { header, ops }.to_bytes();
        self.executor.begin(origin, bytes, Encoder::default()).unwrap().run()
    }

    /// Runs operations as a user. Leaves out the result of SEQUENCE.
    pub fn call_as(&self, uid: u32, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let sequence = usize::from(minor > 0);
        let mut res = answer(self.begin(Self::origin(uid, uid), minor, ops));
        assert_eq!(res.tag, b"tag");
        let results = res.results.split_off(sequence);
        let last = results.last().map_or(NfsStat::Ok, OpResult::status);
        assert_eq!(res.status, last, "the status is that of the last operation");
        (res.status, results)
    }

    /// Runs operations as user 0.
    pub fn call(&self, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        self.call_as(0, minor, ops)
    }

    /// Runs operations with the export's root as current filehandle; returns their results only.
    pub fn at_root(&self, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let (status, mut results) = self.call(minor, [data(), ops].concat());
        (status, results.split_off(3.min(results.len())))
    }

    /// Returns the status of operations that run in the export's root.
    pub fn status_of(&self, minor: u32, ops: Vec<Op>) -> NfsStat {
        self.at_root(minor, ops).0
    }

    /// Looks up a path below the export's root.
    pub fn handle(&self, names: &[&str]) -> FileHandle {
        let names = names.iter().map(|name| lookup(name)).collect();
        let (status, results) = self.call(0, [data(), names, vec![Op::GetFh(())]].concat());
        assert_eq!(status, NfsStat::Ok);
        let Some(OpResult::GetFh(Ok(handle))) = results.last() else { panic!("{results:?}") };
        handle.clone()
    }

    /// Creates a file with contents through the VFS.
    pub fn file(&self, name: &str, contents: &[u8]) -> FileHandle {
        let (root, cred) = (self.vfs.root().unwrap(), Cred::root());
        let spec = ivers_vfs::CreateSpec::file(0o644);
        let (inode, _) = self.vfs.create(&cred, &root, name.as_bytes(), &spec, false).unwrap();
        let flags = ivers_vfs::WriteFlags::empty();
        assert_eq!(self.vfs.write(&cred, &inode, 0, contents, flags).unwrap(), contents.len());
        self.handle(&[name])
    }

    /// Creates a directory through the VFS.
    pub fn directory(&self, name: &str) -> FileHandle {
        let spec = ivers_vfs::CreateSpec::directory(0o755);
        let root = self.vfs.root().unwrap();
        self.vfs.create(&Cred::root(), &root, name.as_bytes(), &spec, false).unwrap();
        self.handle(&[name])
    }

    /// Returns attributes of a file.
    pub fn attrs(&self, minor: u32, handle: &FileHandle, want: &[u32]) -> Attrs {
        let ops = vec![put(handle), get_attr(want)];
        let (status, results) = self.call(minor, ops);
        assert_eq!(status, NfsStat::Ok, "{results:?}");
        let Some(OpResult::GetAttr(Ok(fattr))) = results.last() else { panic!("{results:?}") };
        Attrs::decode(fattr).unwrap()
    }

    /// Returns the change attribute of a file.
    pub fn change(&self, handle: &FileHandle) -> u64 {
        self.attrs(0, handle, &[ivers_nfs4::attr::CHANGE]).change.unwrap()
    }
}

/// Decodes the reply of a request that did not have to wait.
pub fn answer(progress: Progress) -> CompoundRes {
    let Progress::Done(encoder) = progress else { panic!("the request waits") };
    CompoundRes::from_bytes(encoder.as_bytes()).unwrap()
}

/// Returns a SEQUENCE; the session ID has no meaning here.
pub fn sequence() -> Op {
    Op::Sequence(SequenceArgs {
        sessionid: [1; 16],
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 0,
        cache_this: false,
    })
}

/// Returns a LOOKUP.
pub fn lookup(name: &str) -> Op {
    Op::Lookup(name.as_bytes().to_vec())
}

/// Returns a PUTFH.
pub fn put(handle: &FileHandle) -> Op {
    Op::PutFh(handle.clone())
}

/// Returns the operations that make the export's root the current filehandle.
pub fn data() -> Vec<Op> {
    vec![Op::PutRootFh(()), lookup("deep"), lookup("data")]
}

/// Returns a GETATTR.
pub fn get_attr(want: &[u32]) -> Op {
    Op::GetAttr(Bitmap::of(want.iter().copied()))
}

/// Returns an empty set of attributes.
pub fn no_attrs() -> Fattr {
    Fattr::default()
}

/// Asserts that a change is atomic and raised the change attribute.
pub fn assert_changed(info: &ChangeInfo) {
    assert!(info.atomic && info.after > info.before, "{info:?}");
}

/// Returns the successful result of the last operation.
pub fn last_ok<T>(results: &[OpResult], pick: impl Fn(&OpResult) -> Option<&Res<T>>) -> &T {
    results.last().and_then(pick).and_then(|res| res.as_ref().ok()).unwrap_or_else(|| panic!("{results:?}"))
}
