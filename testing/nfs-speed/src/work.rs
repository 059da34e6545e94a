//! What is measured, and how one server does it.

use std::time::Instant;

use ivers_nfs_peer::{Client, named, open};
use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;

/// The file of small writes.
const SMALL_FILE: u64 = 64 << 20;
/// The file of large ones.
const LARGE_FILE: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// What Linux asks for behind each WRITE that fills its cache.
const ASKED: [u32; 7] = [
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FILEID,
    attr::SPACE_USED,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
];

/// One row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// WRITE of 4 KiB, unstable, and nobody asks.
    Write4k,
    /// The same with GETATTR of the change attribute behind it: what buffered I/O of Linux's client sends.
    Write4kAsked,
    /// WRITE of 4 KiB, durable when it is answered, and nobody asks: what direct I/O of Linux's client sends for a write that fits into one request.
    Write4kSync,
    /// GETATTR.
    GetAttr,
    /// WRITE of 1 MiB into a new file, one after the other, and a COMMIT.
    Write1m,
    /// READ of 1 MiB.
    Read1m,
    /// OPEN of a new file, CLOSE, REMOVE.
    CreateUnlink,
}

/// A session with a server, and the files that it works on.
pub struct Course {
    client: Client,
    /// To the directory.
    place: Vec<Op>,
    small: (StateId, FileHandle),
    large: Option<(StateId, FileHandle)>,
    /// MiB in it.
    large_mib: u64,
    files: u64,
}

fn must(status: NfsStat, results: &[OpResult]) {
    assert_eq!(status, NfsStat::Ok, "{:?}", results.last());
}

impl Course {
    /// `export` is a path below the root of the server.
    pub fn begin(address: std::net::SocketAddr, export: &str) -> Self {
        let mut client = Client::of_minor(address, &format!("speed {}", std::process::id()), 2);
        let steps = export.split('/').filter(|name| !name.is_empty()).map(|name| Op::Lookup(name.into()));
        let place: Vec<Op> = [Op::PutRootFh(())].into_iter().chain(steps).collect();
        let small = make(&mut client, &place, "small");
        write(&mut client, &small, SMALL_FILE);
        Self { client, place, small, large: None, large_mib: 0, files: 0 }
    }

    /// Do it `ops` times; seconds.
    pub fn run(&mut self, work: Work, depth: usize, ops: u64) -> f64 {
        if work == Work::Read1m && self.large.is_none() {
            self.run(Work::Write1m, depth, most(work));
        }
        if work == Work::Write1m {
            self.remove_large();
            self.large = Some(make(&mut self.client, &self.place, "large"));
            self.large_mib = ops;
        }
        let (stateid, handle) = self.small.clone();
        let put = || Op::PutFh(handle.clone());
        let started = Instant::now();
        match work {
            Work::Write4k | Work::Write4kAsked | Work::Write4kSync => {
                let stable =
                    if work == Work::Write4kSync { StableHow::FileSync } else { StableHow::Unstable };
                let data = vec![ops as u8; 4096];
                let make = |nth: u64| {
                    let offset = nth * 4096 % SMALL_FILE;
                    let args = WriteArgs { stateid, offset, stable, data: data.clone() };
                    let mut ops = vec![put(), Op::Write(args)];
                    if work == Work::Write4kAsked {
                        ops.push(Op::GetAttr(Bitmap::of(ASKED)));
                    }
                    ops
                };
                self.client.stream(depth, ops, make, must);
            }
            Work::GetAttr => {
                let make = |_| vec![put(), Op::GetAttr(Bitmap::of(ASKED))];
                self.client.stream(depth, ops, make, must);
            }
            Work::Write1m | Work::Read1m => self.large(work, depth, ops),
            Work::CreateUnlink => (0..ops).for_each(|_| self.create_unlink()),
        }
        started.elapsed().as_secs_f64()
    }

    /// Keep the lease, which a session that only waits would lose.
    pub fn stay(&mut self) {
        let (status, results) = self.client.call(Vec::new());
        must(status, &results);
    }

    fn large(&mut self, work: Work, depth: usize, ops: u64) {
        let (stateid, handle) = self.large.clone().expect("it was written first");
        let mib = self.large_mib;
        let data = if work == Work::Write1m { vec![7; MIB as usize] } else { Vec::new() };
        let make = |nth: u64| {
            let offset = nth % mib * MIB;
            let op = match work {
                Work::Write1m => {
                    Op::Write(WriteArgs { stateid, offset, stable: StableHow::Unstable, data: data.clone() })
                }
                _ => Op::Read(ReadArgs { stateid, offset, count: MIB as u32 }),
            };
            vec![Op::PutFh(handle.clone()), op]
        };
        let whole = |status, results: &[OpResult]| {
            must(status, results);
            let bytes = match results.last() {
                Some(OpResult::Write(Ok(wrote))) => u64::from(wrote.count),
                Some(OpResult::Read(Ok(read))) => read.data.len() as u64,
                other => panic!("{other:?}"),
            };
            assert_eq!(bytes, MIB, "a part of it");
        };
        self.client.stream(depth, ops, make, whole);
        if work == Work::Write1m {
            let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
            let (status, results) = self.client.call(vec![Op::PutFh(handle), commit]);
            must(status, &results);
        }
    }

    fn create_unlink(&mut self) {
        self.files += 1;
        let name = format!("f{}", self.files);
        let (stateid, handle) = make(&mut self.client, &self.place, &name);
        close(&mut self.client, stateid, handle);
        let remove = [self.place.clone(), vec![Op::Remove(name.into())]].concat();
        let (status, results) = self.client.call_patiently(&remove);
        must(status, &results);
    }

    fn remove_large(&mut self) {
        if let Some((stateid, handle)) = self.large.take() {
            close(&mut self.client, stateid, handle);
            let remove = [self.place.clone(), vec![Op::Remove("large".into())]].concat();
            let (status, results) = self.client.call_patiently(&remove);
            must(status, &results);
        }
    }
}

/// How often one round does it at most: a large file is written once from end to end.
pub fn most(work: Work) -> u64 {
    if matches!(work, Work::Write1m | Work::Read1m) { LARGE_FILE / MIB } else { u64::MAX }
}

fn close(client: &mut Client, stateid: StateId, handle: FileHandle) {
    let close = Op::Close(SeqState { seqid: 0, stateid });
    let (status, results) = client.call(vec![Op::PutFh(handle), close]);
    must(status, &results);
}

fn make(client: &mut Client, place: &[Op], name: &str) -> (StateId, FileHandle) {
    let attrs = Attrs { mode: Some(0o644), ..Attrs::default() }.encode();
    let how = OpenHow::Create(CreateHow::Unchecked(attrs));
    let open = open("speed", share::BOTH | share::WANT_NO_DELEG, how, named(name));
    let ops = [place, &[open, Op::GetFh(()), Op::GetAttr(Bitmap::of(ASKED))]].concat();
    let (status, results) = client.call_patiently(&ops);
    must(status, &results);
    let [.., OpResult::Open(Ok(opened)), OpResult::GetFh(Ok(handle)), _] = &results[..] else {
        panic!("{results:?}")
    };
    (opened.stateid, handle.clone())
}

fn write(client: &mut Client, (stateid, handle): &(StateId, FileHandle), bytes: u64) {
    for nth in 0..bytes / MIB {
        let args = WriteArgs {
            stateid: *stateid,
            offset: nth * MIB,
            stable: StableHow::Unstable,
            data: vec![1; MIB as usize],
        };
        let (status, results) = client.call(vec![Op::PutFh(handle.clone()), Op::Write(args)]);
        must(status, &results);
    }
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    let (status, results) = client.call(vec![Op::PutFh(handle.clone()), commit]);
    must(status, &results);
}
