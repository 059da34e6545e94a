//! A server that lies. Whatever it says: an error, in bounded time and memory.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use ivers_nfs4::attr::{self, Attrs, Fattr};
use ivers_nfs4::compound::{CompoundArgs, CompoundRes};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::v41::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{CallHeader, Reply};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;
use ivers_nfs4::xdr::{Decoder, Encoder, List, Xdr};
use ivers_vfs::Error;

/// What the server lies about. `None`: the truth.
type Lie = Box<dyn Fn(&Op) -> Option<OpResult> + Send + Sync>;
/// Changes the bytes of a reply, before the record mark.
type Damage = Box<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>;

fn start(lie: Lie, damage: Damage) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (lie, damage) = (Arc::new(lie), Arc::new(damage));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (lie, damage) = (lie.clone(), damage.clone());
            std::thread::spawn(move || serve(stream.unwrap(), &lie, &damage));
        }
    });
    address
}

pub fn liar(lie: impl Fn(&Op) -> Option<OpResult> + Send + Sync + 'static) -> SocketAddr {
    start(Box::new(lie), Box::new(|reply| reply))
}

fn serve(mut stream: TcpStream, lie: &Lie, damage: &Damage) {
    let (mut records, mut buffer) = (Records::new(1 << 20), vec![0; 64 << 10]);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        let mut bytes = &buffer[..len];
        while let Some(message) = records.feed(&mut bytes).unwrap() {
            let mut from = Decoder::new(&message);
            let xid = CallHeader::take(&mut from).unwrap().xid;
            let args = CompoundArgs::take(&mut from).unwrap();
            let mut to = Encoder::default();
            Reply::SUCCESS.put(xid, &mut to);
            execute(args, lie).put(&mut to);
            let reply = damage(to.into_bytes());
            if stream.write_all(&[&mark(reply.len())[..], &reply].concat()).is_err() {
                return;
            }
        }
    }
}

pub fn execute(args: CompoundArgs, lie: &dyn Fn(&Op) -> Option<OpResult>) -> CompoundRes {
    let (mut status, mut results) = (NfsStat::Ok, Vec::new());
    for op in args.ops {
        let result = lie(&op).unwrap_or_else(|| truth(&op));
        status = result.status();
        results.push(result);
        if status != NfsStat::Ok {
            break;
        }
    }
    CompoundRes { status, tag: args.header.tag, results }
}

pub fn attrs(fileid: u64, kind: Ftype) -> Attrs {
    let filehandle = Some(Opaque(fileid.to_be_bytes().to_vec()));
    let (size, mode, change) = (Some(100_000), Some(0o755), Some(5));
    Attrs { kind: Some(kind), change, size, mode, fileid: Some(fileid), filehandle, ..Attrs::default() }
}

/// Returns the attributes that were asked for.
pub fn asked(attrs: Attrs, wanted: &Bitmap) -> Fattr {
    let mut attrs = attrs;
    if !wanted.contains(attr::FILEHANDLE) {
        attrs.filehandle = None;
    }
    attrs.encode()
}

/// A file that an OPEN creates. It answers what names and closes the file, and asks for its attributes.
#[derive(Default)]
pub struct OneFile {
    /// The current filehandle is that of the file.
    is_current: AtomicBool,
}

impl OneFile {
    pub fn answer(&self, op: &Op) -> Option<OpResult> {
        let (file, stateid) = (Opaque(b"file".to_vec()), StateId { seqid: 1, other: [7; 12] });
        match op {
            Op::PutFh(handle) => self.is_current.store(*handle == file, Relaxed),
            Op::PutRootFh(()) => self.is_current.store(false, Relaxed),
            Op::Open(_) => self.is_current.store(true, Relaxed),
            _ => {}
        }
        let is_current = self.is_current.load(Relaxed);
        Some(match op {
            Op::GetFh(()) if is_current => OpResult::GetFh(Ok(file)),
            Op::GetAttr(wanted) if is_current => OpResult::GetAttr(Ok(asked(attrs(2, Ftype::Reg), wanted))),
            Op::Open(_) => OpResult::Open(Ok(Opened {
                stateid,
                cinfo: ChangeInfo { atomic: true, before: 5, after: 6 },
                rflags: 0,
                attrset: Bitmap::default(),
                delegation: OpenDelegation::None,
            })),
            Op::Close(_) => OpResult::Close(Ok(stateid)),
            _ => return None,
        })
    }
}

/// A directory with one file and itself as a directory.
pub fn truth(op: &Op) -> OpResult {
    let root = Opaque(1_u64.to_be_bytes().to_vec());
    match op {
        Op::ExchangeId(_) => OpResult::ExchangeId(Ok(ExchangeIdOk {
            clientid: 1,
            sequenceid: 1,
            flags: 0,
            protect: ProtectNone,
            owner: ServerOwner { minor: 0, major: Opaque(b"liar".to_vec()) },
            scope: Opaque(b"liar".to_vec()),
            implementation: List(Vec::new()),
        })),
        Op::CreateSession(args) => OpResult::CreateSession(Ok(CreateSessionOk {
            sessionid: [9; 16],
            sequence: args.sequence,
            flags: 0,
            fore: args.fore.clone(),
            back: args.back.clone(),
        })),
        Op::Sequence(args) => OpResult::Sequence(Ok(SequenceOk {
            sessionid: args.sessionid,
            sequenceid: args.sequenceid,
            slotid: args.slotid,
            highest_slotid: 31,
            target_highest_slotid: 31,
            status_flags: 0,
        })),
        Op::ReclaimComplete(_) => OpResult::ReclaimComplete(Ok(())),
        Op::DestroySession(_) => OpResult::DestroySession(Ok(())),
        Op::DestroyClientId(_) => OpResult::DestroyClientId(Ok(())),
        Op::PutRootFh(()) => OpResult::PutRootFh(Ok(())),
        Op::PutFh(_) => OpResult::PutFh(Ok(())),
        Op::Lookup(_) => OpResult::Lookup(Ok(())),
        Op::LookupP(()) => OpResult::LookupP(Ok(())),
        Op::GetFh(()) => OpResult::GetFh(Ok(root)),
        Op::GetAttr(wanted) => OpResult::GetAttr(Ok(asked(attrs(1, Ftype::Dir), wanted))),
        Op::Access(asked) => OpResult::Access(Ok(AccessOk { supported: *asked, access: *asked })),
        Op::Read(args) => {
            OpResult::Read(Ok(ReadOk { eof: false, data: vec![7; args.count as usize].into() }))
        }
        Op::ReadDir(args) => OpResult::ReadDir(Ok(listing(args, vec![(10, b"f".to_vec())], true))),
        Op::ReadLink(()) => OpResult::ReadLink(Ok(b"f".to_vec())),
        op => OpResult::failure(op.number(), NfsStat::Notsupp),
    }
}

fn listing(args: &ReadDirArgs, entries: Vec<(u64, Vec<u8>)>, eof: bool) -> ReadDirOk {
    let entry = |(cookie, name)| Entry { cookie, name, attrs: asked(attrs(cookie, Ftype::Reg), &args.attrs) };
    ReadDirOk { verifier: [1; 8], entries: entries.into_iter().map(entry).collect(), eof }
}

pub fn root_options() -> NfsOptions {
    NfsOptions { root: b"/".to_vec(), patience: impatient(), ..options() }
}

/// Does what users do, and returns the first error.
fn use_everything(address: SocketAddr) -> Result<()> {
    let client = mount(address, &root_options())?;
    let cred = Cred::root();
    let root = client.vfs.root()?;
    client.vfs.readdir(&cred, &root, 0, &mut |_| ControlFlow::Continue(()))?;
    let child = client.vfs.lookup(&cred, &root, b"child")?;
    client.vfs.get_attr(&cred, &child)?;
    client.vfs.stat_fs()?;
    client.vfs.lookup(&cred, &child, b"..")?;
    drop((child, root));
    client.vfs.unmount()
}

fn error_of(address: SocketAddr) -> String {
    let started = Instant::now();
    let error = use_everything(address).expect_err("the server lies").to_string();
    assert!(started.elapsed() < Duration::from_secs(60), "{error}: {:?}", started.elapsed());
    error
}

#[test]
fn an_honest_server_of_this_kind_works() {
    use_everything(liar(|_| None)).unwrap();
}

/// [`N7`]
#[test]
fn a_directory_without_end_is_an_error() {
    let next = |args: &ReadDirArgs, step: u64, modulus: u64| {
        let entries = (0..200).map(|nth| {
            let cookie = 10 + (args.cookie.saturating_sub(10) + nth * step + 1) % modulus;
            (cookie, b"name".to_vec())
        });
        listing(args, entries.collect(), false)
    };
    let looping = liar(move |op| match op {
        Op::ReadDir(args) => Some(OpResult::ReadDir(Ok(next(args, 1, 1009)))),
        _ => None,
    });
    assert!(error_of(looping).contains("without end"));
    let stuck = liar(|op| match op {
        Op::ReadDir(args) => Some(OpResult::ReadDir(Ok(listing(args, vec![(10, b"x".to_vec())], false)))),
        _ => None,
    });
    assert!(error_of(stuck).contains("cookies repeat"));
    let empty = liar(|op| match op {
        Op::ReadDir(args) => Some(OpResult::ReadDir(Ok(listing(args, Vec::new(), false)))),
        _ => None,
    });
    assert!(error_of(empty).contains("did not end"));
}

/// [`N8`]
#[test]
fn names_that_lead_out_of_the_mount_are_errors() {
    for name in [&b"../etc"[..], b"/etc/passwd", b"a\0b", b"", &[b'n'; 300]] {
        let address = liar(move |op| match op {
            Op::ReadDir(args) => Some(OpResult::ReadDir(Ok(listing(args, vec![(10, name.to_vec())], true)))),
            _ => None,
        });
        let error = error_of(address);
        assert!(error.contains("the server listed a name"), "{name:?}: {error}");
    }
}

#[test]
fn attributes_that_lie_are_errors() {
    for lies in [
        Attrs { change: None, ..attrs(1, Ftype::Dir) },
        Attrs { size: Some(u64::MAX), ..attrs(1, Ftype::Dir) },
        attrs(1, Ftype::Namedattr),
    ] {
        let address = liar(move |op| match op {
            Op::GetAttr(wanted) => Some(OpResult::GetAttr(Ok(asked(lies.clone(), wanted)))),
            _ => None,
        });
        assert!(error_of(address).contains("the server sent"), "{}", error_of(address));
    }
    // A file that changes its type stays what it was.
    let kinds = std::sync::atomic::AtomicU32::new(0);
    let changing = liar(move |op| match op {
        Op::GetAttr(wanted) => {
            let nth = kinds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let kind = if nth > 3 { Ftype::Reg } else { Ftype::Dir };
            Some(OpResult::GetAttr(Ok(asked(attrs(1, kind), wanted))))
        }
        _ => None,
    });
    let _ = use_everything(changing);
}

#[test]
fn reads_that_lie_are_errors() {
    for (data, eof) in [(5000, false), (1 << 20, false), (0, false)] {
        let address = liar(move |op| match op {
            Op::Read(_) => Some(OpResult::Read(Ok(ReadOk { eof, data: vec![1; data].into() }))),
            Op::GetAttr(wanted) => Some(OpResult::GetAttr(Ok(asked(attrs(2, Ftype::Reg), wanted)))),
            _ => None,
        });
        // The root of this server is a file, too.
        assert!(mount(address, &root_options()).is_err());
        let lookups = std::sync::atomic::AtomicBool::new(false);
        let address = liar(move |op| match op {
            Op::Read(_) => Some(OpResult::Read(Ok(ReadOk { eof, data: vec![1; data].into() }))),
            Op::Lookup(_) => {
                lookups.store(true, std::sync::atomic::Ordering::Relaxed);
                None
            }
            Op::GetFh(()) if lookups.load(std::sync::atomic::Ordering::Relaxed) => {
                Some(OpResult::GetFh(Ok(Opaque(b"file".to_vec()))))
            }
            Op::GetAttr(wanted) if lookups.load(std::sync::atomic::Ordering::Relaxed) => {
                let mut file = attrs(2, Ftype::Reg);
                file.size = Some(4096);
                Some(OpResult::GetAttr(Ok(asked(file, wanted))))
            }
            _ => None,
        });
        let client = mount(address, &root_options()).unwrap();
        let (root, cred) = (client.vfs.root().unwrap(), Cred::root());
        let file = client.vfs.lookup(&cred, &root, b"f").unwrap();
        let read = client.vfs.read(&cred, &file, 0, &mut [0; 4096]);
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{data} bytes, end {eof}: {read:?}");
    }
}

#[test]
fn a_session_that_cannot_work_is_refused_by_name() {
    for change in [
        |fore: &mut ChannelAttrs| fore.max_requests = 0,
        |fore: &mut ChannelAttrs| fore.max_response = 100,
        |fore: &mut ChannelAttrs| fore.max_operations = 2,
    ] {
        let address = liar(move |op| match (op, truth(op)) {
            (Op::CreateSession(_), OpResult::CreateSession(Ok(mut granted))) => {
                change(&mut granted.fore);
                Some(OpResult::CreateSession(Ok(granted)))
            }
            _ => None,
        });
        assert!(error_of(address).contains("too small"));
    }
    let old = liar(|op| match op {
        Op::ExchangeId(_) => Some(OpResult::ExchangeId(Err(NfsStat::MinorVersMismatch))),
        _ => None,
    });
    assert!(error_of(old).contains("neither NFSv4.2 nor NFSv4.1"));
    let moved = liar(|op| match op {
        Op::Lookup(_) => Some(OpResult::Lookup(Err(NfsStat::Moved))),
        _ => None,
    });
    assert!(error_of(moved).contains("referral"));
}

#[test]
fn a_server_that_refuses_every_request_is_given_up() {
    for status in
        [NfsStat::Badsession, NfsStat::Delay, NfsStat::SeqMisordered, NfsStat::ConnNotBoundToSession]
    {
        let address = liar(move |op| match op {
            Op::Sequence(_) => Some(OpResult::Sequence(Err(status))),
            _ => None,
        });
        error_of(address);
    }
    let grace = liar(|op| match op {
        Op::GetAttr(_) => Some(OpResult::GetAttr(Err(NfsStat::Grace))),
        _ => None,
    });
    error_of(grace);
}

/// Replies with random damage, in every part of a session. The generator is seeded: a failure repeats.
#[test]
fn damaged_replies_end_in_errors() {
    std::thread::scope(|scope| {
        for thread in 0..8 {
            scope.spawn(move || (0..5).for_each(|nth| damaged(thread * 5 + nth)));
        }
    });
}

fn damaged(seed: u64) {
    let state = std::sync::Mutex::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let random = move || {
        let mut state = state.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    let damage = move |mut reply: Vec<u8>| {
        if random() % 4 == 0 {
            let at = random() as usize % reply.len();
            match random() % 4 {
                0 => reply[at] = random() as u8,
                1 => reply[at] ^= 1 << (random() % 8),
                2 => reply.truncate(at),
                _ => reply.extend([random() as u8; 9]),
            }
        }
        reply
    };
    let started = Instant::now();
    let _ = use_everything(start(Box::new(|_| None), Box::new(damage)));
    assert!(started.elapsed() < Duration::from_secs(60), "seed {seed}: {:?}", started.elapsed());
}

/// [`N2`], [`N3`]
#[test]
fn a_stream_that_is_no_reply_breaks_the_connection() {
    for garbage in
        [&[0xff; 64][..], &[0x7f, 0xff, 0xff, 0xff, 1, 2, 3], &[0; 64], b"HTTP/1.1 400 Bad Request\r\n"]
    {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let garbage = garbage.to_vec();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let _ = stream.write_all(&garbage);
                let _ = stream.read(&mut [0; 100]);
            }
        });
        error_of(address);
    }
}
