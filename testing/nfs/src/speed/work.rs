//! The requests of each row, and the session that sends them.

use std::time::Instant;

use ivers_nfs_test::client::{Client, named, open};
use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::shared::SharedBytes;
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;

/// Size of the file for 4 KiB writes, in bytes.
const SMALL_FILE_BYTES: u64 = 64 << 20;
/// Size of the file for 1 MiB reads and writes, in bytes.
const LARGE_FILE_BYTES: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// The attributes that Linux requests after each WRITE from its page cache.
const LINUX_ATTRS: [u32; 7] = [
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FILEID,
    attr::SPACE_USED,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
];

/// A kind of request to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// WRITE of 4 KiB, unstable, without query.
    Write4k,
    /// WRITE of 4 KiB, unstable, then GETATTR with the change attribute: what Linux sends for buffered I/O.
    Write4kQueried,
    /// WRITE of 4 KiB with FILE_SYNC, without query: what Linux sends for direct I/O that fits into one
    /// request.
    Write4kSync,
    /// GETATTR.
    GetAttr,
    /// Sequential WRITE of 1 MiB into a new file, then a COMMIT.
    Write1m,
    /// READ of 1 MiB.
    Read1m,
    /// OPEN of a new file, CLOSE, REMOVE.
    CreateUnlink,
}

/// A session with a server, and the files that it uses.
pub struct Session {
    client: Client,
    /// Operations that make the export's root the current filehandle.
    to_root: Vec<Op>,
    small: (StateId, FileHandle),
    large: Option<(StateId, FileHandle)>,
    /// Size of the large file in MiB.
    large_mib: u64,
    /// The number of files created so far.
    files: u64,
}

/// Asserts that a request succeeded.
fn expect_ok(status: NfsStat, results: &[OpResult]) {
    assert_eq!(status, NfsStat::Ok, "{:?}", results.last());
}

impl Session {
    /// Connects and creates the small file. `export` is a path below the server's root.
    pub fn start(address: std::net::SocketAddr, export: &str) -> Self {
        let mut client = Client::with_minor(address, &format!("speed {}", std::process::id()), 2);
        let steps = export.split('/').filter(|name| !name.is_empty()).map(|name| Op::Lookup(name.into()));
        let to_root: Vec<Op> = [Op::PutRootFh(())].into_iter().chain(steps).collect();
        let small = make(&mut client, &to_root, "small");
        write(&mut client, &small, SMALL_FILE_BYTES);
        Self { client, to_root, small, large: None, large_mib: 0, files: 0 }
    }

    /// Sends `ops` requests, `depth` of them in flight. Returns the time in seconds.
    pub fn run(&mut self, work: Work, depth: usize, ops: u64) -> f64 {
        if work == Work::Read1m && self.large.is_none() {
            self.run(Work::Write1m, depth, max_ops(work));
        }
        if work == Work::Write1m {
            self.remove_large();
            self.large = Some(make(&mut self.client, &self.to_root, "large"));
            self.large_mib = ops;
        }
        let (stateid, handle) = self.small.clone();
        let put = || Op::PutFh(handle.clone());
        let started = Instant::now();
        match work {
            Work::Write4k | Work::Write4kQueried | Work::Write4kSync => {
                let stable =
                    if work == Work::Write4kSync { StableHow::FileSync } else { StableHow::Unstable };
                let data = SharedBytes::from(vec![ops as u8; 4096]);
                let make = |nth: u64| {
                    let offset = nth * 4096 % SMALL_FILE_BYTES;
                    let args = WriteArgs { stateid, offset, stable, data: data.clone() };
                    let mut ops = vec![put(), Op::Write(args)];
                    if work == Work::Write4kQueried {
                        ops.push(Op::GetAttr(Bitmap::of(LINUX_ATTRS)));
                    }
                    ops
                };
                self.client.stream(depth, ops, make, expect_ok);
            }
            Work::GetAttr => {
                let make = |_| vec![put(), Op::GetAttr(Bitmap::of(LINUX_ATTRS))];
                self.client.stream(depth, ops, make, expect_ok);
            }
            Work::Write1m | Work::Read1m => self.large_io(work, depth, ops),
            Work::CreateUnlink => (0..ops).for_each(|_| self.create_unlink()),
        }
        started.elapsed().as_secs_f64()
    }

    /// Renews the lease of an idle session.
    pub fn renew_lease(&mut self) {
        let (status, results) = self.client.call(Vec::new());
        expect_ok(status, &results);
    }

    fn large_io(&mut self, work: Work, depth: usize, ops: u64) {
        let (stateid, handle) = self.large.clone().expect("`run` creates the large file");
        let mib = self.large_mib;
        let data = SharedBytes::from(if work == Work::Write1m { vec![7; MIB as usize] } else { Vec::new() });
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
        let check = |status, results: &[OpResult]| {
            expect_ok(status, results);
            let bytes = match results.last() {
                Some(OpResult::Write(Ok(wrote))) => u64::from(wrote.count),
                Some(OpResult::Read(Ok(read))) => read.data.len() as u64,
                other => panic!("{other:?}"),
            };
            assert_eq!(bytes, MIB, "short read or write");
        };
        self.client.stream(depth, ops, make, check);
        if work == Work::Write1m {
            let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
            let (status, results) = self.client.call(vec![Op::PutFh(handle), commit]);
            expect_ok(status, &results);
        }
    }

    fn create_unlink(&mut self) {
        self.files += 1;
        let name = format!("f{}", self.files);
        let (stateid, handle) = make(&mut self.client, &self.to_root, &name);
        close(&mut self.client, stateid, handle);
        let remove = [self.to_root.clone(), vec![Op::Remove(name.into())]].concat();
        let (status, results) = self.client.call_with_retry(&remove);
        expect_ok(status, &results);
    }

    fn remove_large(&mut self) {
        if let Some((stateid, handle)) = self.large.take() {
            close(&mut self.client, stateid, handle);
            let remove = [self.to_root.clone(), vec![Op::Remove("large".into())]].concat();
            let (status, results) = self.client.call_with_retry(&remove);
            expect_ok(status, &results);
        }
    }
}

/// Returns the maximum number of requests per round: a round writes the large file once at most.
pub fn max_ops(work: Work) -> u64 {
    if matches!(work, Work::Write1m | Work::Read1m) { LARGE_FILE_BYTES / MIB } else { u64::MAX }
}

fn close(client: &mut Client, stateid: StateId, handle: FileHandle) {
    let close = Op::Close(SeqState { seqid: 0, stateid });
    let (status, results) = client.call(vec![Op::PutFh(handle), close]);
    expect_ok(status, &results);
}

fn make(client: &mut Client, to_dir: &[Op], name: &str) -> (StateId, FileHandle) {
    let attrs = Attrs { mode: Some(0o644), ..Attrs::default() }.encode();
    let how = OpenHow::Create(CreateHow::Unchecked(attrs));
    let open = open("speed", share::BOTH | share::WANT_NO_DELEG, how, named(name));
    let ops = [to_dir, &[open, Op::GetFh(()), Op::GetAttr(Bitmap::of(LINUX_ATTRS))]].concat();
    let (status, results) = client.call_with_retry(&ops);
    expect_ok(status, &results);
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
            data: vec![1; MIB as usize].into(),
        };
        let (status, results) = client.call(vec![Op::PutFh(handle.clone()), Op::Write(args)]);
        expect_ok(status, &results);
    }
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    let (status, results) = client.call(vec![Op::PutFh(handle.clone()), commit]);
    expect_ok(status, &results);
}
