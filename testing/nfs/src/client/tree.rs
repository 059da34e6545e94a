//! Work on a tree with many files: what a client does that lists it, reads attributes, and holds files open.

use std::net::SocketAddr;

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::*;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::*;

use super::{Client, named, open};

/// The attributes that Linux requests with the names of a directory.
const LISTED: [u32; 16] = [
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FSID,
    attr::RDATTR_ERROR,
    attr::FILEHANDLE,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::OWNER,
    attr::OWNER_GROUP,
    attr::RAWDEV,
    attr::SPACE_USED,
    attr::TIME_ACCESS,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
];

/// The attributes that Linux requests of one file.
const OF_FILE: [u32; 9] = [
    attr::TYPE,
    attr::CHANGE,
    attr::SIZE,
    attr::FILEID,
    attr::MODE,
    attr::NUMLINKS,
    attr::TIME_ACCESS,
    attr::TIME_METADATA,
    attr::TIME_MODIFY,
];

/// Size of the result of a READDIR in bytes.
const READDIR_BYTES: u32 = 256 << 10;

/// A file that was listed.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its filehandle.
    pub handle: FileHandle,
    /// The number of its directory: see [`Tree::directories`].
    pub dir: usize,
    /// Its name.
    pub name: Vec<u8>,
}

/// A tree of a server.
pub struct Tree {
    client: Client,
    /// The directories that the last walk found, the root first.
    pub directories: Vec<FileHandle>,
}

fn expect_ok(status: NfsStat, results: &[OpResult]) {
    assert_eq!(status, NfsStat::Ok, "{:?}", results.last());
}

impl Tree {
    /// Connects, and looks up a directory. Its path starts with that of the export.
    pub fn connect(address: SocketAddr, path: &str) -> Self {
        let mut client = Client::with_minor(address, &format!("tree {}", std::process::id()), 2);
        let steps = path.split('/').filter(|name| !name.is_empty()).map(|name| Op::Lookup(name.into()));
        let ops: Vec<Op> = [Op::PutRootFh(())].into_iter().chain(steps).chain([Op::GetFh(())]).collect();
        let (status, results) = client.call(ops);
        expect_ok(status, &results);
        let Some(OpResult::GetFh(Ok(root))) = results.last() else { panic!("{results:?}") };
        Self { client, directories: vec![root.clone()] }
    }

    /// Lists all directories with the attributes of their entries. Passes each file that is no directory to
    /// `visit`. Returns the number of these files.
    pub fn walk(&mut self, mut visit: impl FnMut(Listed)) -> u64 {
        self.directories.truncate(1);
        let (mut files, mut at) = (0, 0);
        while at < self.directories.len() {
            let (mut cookie, mut verifier) = (0, Verifier::default());
            loop {
                let args = ReadDirArgs {
                    cookie,
                    verifier,
                    dircount: READDIR_BYTES,
                    maxcount: READDIR_BYTES,
                    attrs: Bitmap::of(LISTED),
                };
                let (status, mut results) =
                    self.client.call(vec![Op::PutFh(self.directories[at].clone()), Op::ReadDir(args)]);
                expect_ok(status, &results);
                let Some(OpResult::ReadDir(Ok(listed))) = results.pop() else { panic!("{results:?}") };
                verifier = listed.verifier;
                for entry in listed.entries {
                    cookie = entry.cookie;
                    let attrs = Attrs::decode(&entry.attrs).unwrap();
                    let handle = attrs.filehandle.expect("a filehandle was requested");
                    if attrs.kind == Some(Ftype::Dir) {
                        self.directories.push(handle);
                    } else {
                        files += 1;
                        visit(Listed { handle, dir: at, name: entry.name });
                    }
                }
                if listed.eof {
                    break;
                }
            }
            at += 1;
        }
        files
    }

    /// Reads the attributes of `total` files by their filehandles, `depth` requests in flight.
    pub fn get_attrs(&mut self, depth: usize, total: u64, mut file: impl FnMut(u64) -> FileHandle) {
        let make = |nth| vec![Op::PutFh(file(nth)), Op::GetAttr(Bitmap::of(OF_FILE))];
        self.client.stream(depth, total, make, expect_ok);
    }

    /// Looks up `total` files by name, with their attributes, `depth` requests in flight.
    pub fn look_up<'a>(&mut self, depth: usize, total: u64, mut file: impl FnMut(u64) -> &'a Listed) {
        let dirs = &self.directories;
        let make = |nth| {
            let Listed { dir, name, .. } = file(nth);
            let to_dir = Op::PutFh(dirs[*dir].clone());
            vec![to_dir, Op::Lookup(name.clone()), Op::GetFh(()), Op::GetAttr(Bitmap::of(OF_FILE))]
        };
        self.client.stream(depth, total, make, expect_ok);
    }

    /// Opens a file for reading, without a delegation.
    pub fn open(&mut self, file: &Listed) -> StateId {
        let access = share::READ | share::WANT_NO_DELEG;
        let name = std::str::from_utf8(&file.name).expect("names of NFSv4 are UTF-8");
        let open = open("tree", access, OpenHow::NoCreate, named(name));
        let ops = [Op::PutFh(self.directories[file.dir].clone()), open];
        let (status, results) = self.client.call_with_retry(&ops);
        expect_ok(status, &results);
        let Some(OpResult::Open(Ok(opened))) = results.last() else { panic!("{results:?}") };
        opened.stateid
    }

    /// Closes a file.
    pub fn close(&mut self, file: &Listed, stateid: StateId) {
        let close = Op::Close(SeqState { seqid: 0, stateid });
        let (status, results) = self.client.call(vec![Op::PutFh(file.handle.clone()), close]);
        expect_ok(status, &results);
    }
}
