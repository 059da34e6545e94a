//! What answers NFSv4 requests, without sockets ([`Server`]); its clients hold nothing but what a test gives them ([`Fake`]). And requests that nobody in his
//! senses would send ([`odd`]).

#![forbid(unsafe_code)]

pub mod odd;

use std::any::Any;
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
    Answered, Clients, Compound, Context, CopyOrder, Exports, Filesystem, Held, Origin, Progress, Service,
};
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::exports::handle::Handles;
use ivers_nfsd::rpc::Credential;
use ivers_nfsd::state::{Caller, Conn, Does, File, Step, Stop};
use ivers_vfs::{Cred, MountOptions, Vfs};
use parking_lot::Mutex;

/// Who has never opened anything.
pub const STRANGER: u32 = 4242;

/// Something that somebody else does.
pub type Meanwhile = Box<dyn FnOnce() + Send>;

/// Clients that may do everything, unless a test says otherwise.
#[derive(Default)]
pub struct Fake {
    /// What the next questions are answered with; behind them, everything is granted.
    pub stops: Mutex<VecDeque<Stop>>,
    /// After so many more leaves, one is refused.
    pub granted: Mutex<Option<usize>>,
    /// What was asked for.
    pub asked: Mutex<Vec<(StateId, Does)>>,
    /// Of which files.
    pub files: Mutex<Vec<u64>>,
    /// What somebody else does while the next leave is given.
    pub meanwhile: Mutex<Option<Meanwhile>>,
    /// Leaves that are out.
    pub out: Arc<AtomicUsize>,
    /// Requests that were finished, with the size of their replies.
    pub finished: Mutex<Vec<Option<usize>>>,
    /// What SEQUENCE says of the reply.
    pub reply: Mutex<Option<(usize, bool)>>,
    /// SEQUENCE finds a repetition whose reply was not kept.
    pub uncached: Mutex<bool>,
    /// SEQUENCE finds a repetition, and this was the reply.
    pub replay: Mutex<Option<Arc<[u8]>>>,
}

struct Leave(Arc<AtomicUsize>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fake {
    /// Refuse a leave, but not the first `nth`.
    pub fn refuse_nth(&self, nth: usize) {
        *self.granted.lock() = Some(nth);
    }

    /// A leave.
    pub fn held(&self) -> Held {
        self.out.fetch_add(1, Ordering::SeqCst);
        Held::new(Leave(self.out.clone()))
    }

    fn next(&self) -> Step<()> {
        self.stops.lock().pop_front().map_or(Ok(()), Err)
    }
}

impl Clients for Fake {
    fn permit(&self, _: Caller, file: File, stateid: &StateId, does: Does) -> Step<Held> {
        self.asked.lock().push((*stateid, does));
        self.files.lock().push(file.inode);
        if let Some(act) = self.meanwhile.lock().take() {
            act();
        }
        self.next()?;
        let mut granted = self.granted.lock();
        match *granted {
            Some(0) => {
                *granted = None;
                return Err(Stop::Fail(NfsStat::Delay));
            }
            Some(left) => *granted = Some(left - 1),
            None => {}
        }
        Ok(self.held())
    }

    fn is_opener(&self, origin: &Origin, _: Caller, _: &StateId) -> bool {
        !matches!(&origin.credential, Credential::Sys(sys) if sys.uid == STRANGER)
    }

    fn look(&self, _: Caller, _: File) -> Step<Held> {
        self.next()?;
        Ok(self.held())
    }

    fn copy(&self, _: &Context, _: CopyOrder) -> Step<Option<StateId>> {
        Ok(None)
    }

    fn operate(&self, context: &mut Context, op: &Op) -> Step<Answered> {
        let Op::Sequence(args) = op else { return Err(Stop::Fail(NfsStat::Notsupp)) };
        if let Some(reply) = self.replay.lock().clone() {
            return Ok(Answered::Replay(reply));
        }
        context.caller = Caller::Client(1);
        context.session = Some(Box::new(()));
        context.uncached = *self.uncached.lock();
        if let Some((bytes, keep)) = *self.reply.lock() {
            (context.reply_bytes, context.keep) = (bytes, keep);
        }
        let SequenceArgs { sessionid, sequenceid, slotid, .. } = *args;
        let ok = SequenceOk {
            sessionid,
            sequenceid,
            slotid,
            highest_slotid: 0,
            target_highest_slotid: 0,
            status_flags: 0,
        };
        Ok(Answered::Result(Box::new(OpResult::Sequence(Ok(ok)))))
    }

    fn finish(&self, _: Box<dyn Any + Send>, reply: Option<&[u8]>) {
        self.finished.lock().push(reply.map(<[u8]>::len));
    }
}

/// Where requests come from.
pub const HOME: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// What answers requests.
pub struct Server {
    /// What they share.
    pub service: Arc<Service>,
    /// Who sends them.
    pub clients: Arc<Fake>,
    /// What is exported as `/deep/data`.
    pub vfs: Arc<Vfs>,
}

/// A filesystem in memory.
pub fn mem() -> Arc<Vfs> {
    Vfs::mount(
        Arc::new(ivers_mem::Mem::new(64 << 20)),
        MountOptions { background: false, ..MountOptions::default() },
    )
    .unwrap()
}

/// A fresh ext4 filesystem.
pub fn ext4() -> Arc<Vfs> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
    mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
    let fs = Ext4::open(device, OpenOptions { place: "a test".into(), ..OpenOptions::default() }).unwrap();
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

/// A test on each kind of filesystem, and no leave may be out behind it.
pub fn everywhere(test: impl Fn(&Server)) {
    for vfs in [mem(), ext4()] {
        let server = Server::new(vfs, "no_root_squash,sec=sys;none");
        test(&server);
        assert_eq!(server.clients.out.load(Ordering::SeqCst), 0, "a leave is out");
    }
}

/// An export named `/deep/data`, and one beside it, of another filesystem, named `/other`, that only TLS may use; and one that is for nobody here.
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
    /// That exports a filesystem as the options say.
    pub fn new(vfs: Arc<Vfs>, flags: &str) -> Self {
        let clients = Arc::new(Fake::default());
        let handles = Handles::new([7; 16]);
        let exports = exports(&handles, &vfs, flags);
        let service = Arc::new(Service::new(handles, clients.clone(), exports, 3));
        Self { service, clients, vfs }
    }

    /// A user of this machine.
    pub fn origin(uid: u32, gid: u32) -> Origin {
        let sys = AuthSys { stamp: 0, machine: Vec::new(), uid, gid, gids: List(Vec::new()) };
        static XID: AtomicU32 = AtomicU32::new(0);
        let xid = XID.fetch_add(1, Ordering::Relaxed);
        Origin {
            address: HOME,
            credential: Credential::Sys(sys),
            tls: None,
            conn: Conn(1),
            xid,
            head_bytes: 0,
        }
    }

    /// How far operations get at once.
    pub fn begin(&self, origin: Origin, minor: u32, ops: Vec<Op>) -> Progress {
        let ops = if minor == 0 { ops } else { [vec![sequence()], ops].concat() };
        let header = CompoundHeader { tag: b"tag".to_vec(), minor_version: minor };
        let bytes = CompoundArgs { header, ops }.to_bytes();
        Compound::begin(self.service.clone(), origin, bytes, Encoder::default()).unwrap().run()
    }

    /// What comes of operations, without SEQUENCE before them.
    pub fn call_as(&self, uid: u32, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let sequence = usize::from(minor > 0);
        let mut res = answer(self.begin(Self::origin(uid, uid), minor, ops));
        assert_eq!(res.tag, b"tag");
        let results = res.results.split_off(sequence);
        let last = results.last().map_or(NfsStat::Ok, OpResult::status);
        assert_eq!(res.status, last, "the status is that of the last operation");
        (res.status, results)
    }

    /// The same for user 0.
    pub fn call(&self, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        self.call_as(0, minor, ops)
    }

    /// Operations in the export's root; results of these alone.
    pub fn at_root(&self, minor: u32, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
        let (status, mut results) = self.call(minor, [data(), ops].concat());
        (status, results.split_off(3.min(results.len())))
    }

    /// How operations on the root end.
    pub fn ends(&self, minor: u32, ops: Vec<Op>) -> NfsStat {
        self.at_root(minor, ops).0
    }

    /// The handle of something below the export's root.
    pub fn handle(&self, names: &[&str]) -> FileHandle {
        let names = names.iter().map(|name| lookup(name)).collect();
        let (status, results) = self.call(0, [data(), names, vec![Op::GetFh(())]].concat());
        assert_eq!(status, NfsStat::Ok);
        let Some(OpResult::GetFh(Ok(handle))) = results.last() else { panic!("{results:?}") };
        handle.clone()
    }

    /// Make a file with contents, past the protocol.
    pub fn file(&self, name: &str, contents: &[u8]) -> FileHandle {
        let (root, cred) = (self.vfs.root().unwrap(), Cred::root());
        let spec = ivers_vfs::CreateSpec::file(0o644);
        let (inode, _) = self.vfs.create(&cred, &root, name.as_bytes(), &spec, false).unwrap();
        let flags = ivers_vfs::WriteFlags::empty();
        assert_eq!(self.vfs.write(&cred, &inode, 0, contents, flags).unwrap(), contents.len());
        self.handle(&[name])
    }

    /// Make a directory, past the protocol.
    pub fn directory(&self, name: &str) -> FileHandle {
        let spec = ivers_vfs::CreateSpec::directory(0o755);
        let root = self.vfs.root().unwrap();
        self.vfs.create(&Cred::root(), &root, name.as_bytes(), &spec, false).unwrap();
        self.handle(&[name])
    }

    /// Attributes of a handle.
    pub fn attrs(&self, minor: u32, handle: &FileHandle, want: &[u32]) -> Attrs {
        let ops = vec![put(handle), get_attr(want)];
        let (status, results) = self.call(minor, ops);
        assert_eq!(status, NfsStat::Ok, "{results:?}");
        let Some(OpResult::GetAttr(Ok(fattr))) = results.last() else { panic!("{results:?}") };
        Attrs::decode(fattr).unwrap()
    }

    /// The change attribute of a handle.
    pub fn change(&self, handle: &FileHandle) -> u64 {
        self.attrs(0, handle, &[ivers_nfs4::attr::CHANGE]).change.unwrap()
    }
}

/// The reply of a request that does not wait.
pub fn answer(progress: Progress) -> CompoundRes {
    let Progress::Done(encoder) = progress else { panic!("it waits") };
    CompoundRes::from_bytes(encoder.as_bytes()).unwrap()
}

/// SEQUENCE of whatever session.
pub fn sequence() -> Op {
    Op::Sequence(SequenceArgs {
        sessionid: [1; 16],
        sequenceid: 1,
        slotid: 0,
        highest_slotid: 0,
        cache_this: false,
    })
}

/// LOOKUP.
pub fn lookup(name: &str) -> Op {
    Op::Lookup(name.as_bytes().to_vec())
}

/// PUTFH.
pub fn put(handle: &FileHandle) -> Op {
    Op::PutFh(handle.clone())
}

/// To the root of the export.
pub fn data() -> Vec<Op> {
    vec![Op::PutRootFh(()), lookup("deep"), lookup("data")]
}

/// GETATTR.
pub fn get_attr(want: &[u32]) -> Op {
    Op::GetAttr(Bitmap::of(want.iter().copied()))
}

/// No attributes.
pub fn nothing() -> Fattr {
    Fattr::default()
}

/// A change that really was one, and atomic.
pub fn moved(info: &ChangeInfo) {
    assert!(info.atomic && info.after > info.before, "{info:?}");
}

/// What the last operation answered.
pub fn last_ok<T>(results: &[OpResult], pick: impl Fn(&OpResult) -> Option<&Res<T>>) -> &T {
    results.last().and_then(pick).and_then(|res| res.as_ref().ok()).unwrap_or_else(|| panic!("{results:?}"))
}
