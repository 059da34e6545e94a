//! READ, WRITE, COMMIT, and ranges.

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::{CommitArgs, ReadArgs, ReadOk, SetAttrArgs, WriteArgs, WriteOk};
use ivers_nfs4::ops::v42::{
    CloneArgs, Content, CopyArgs, CopyRes, Data, Hole, IoAdviseArgs, NetLoc, RangeArgs, ReadPlusOk, SeekArgs,
    SeekOk,
};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, FileHandle, StableHow, StateId};
use ivers_nfs4::xdr::List;
use ivers_nfsd::state::Access;
use ivers_vfs::{Cred, SetAttr, XattrMode};

use ivers_nfs_test::harness::*;

const ANY: StateId = StateId::ANONYMOUS;

fn read(
    server: &Server,
    minor: u32,
    handle: &FileHandle,
    offset: u64,
    count: u32,
) -> Result<ReadOk, NfsStat> {
    let args = ReadArgs { stateid: ANY, offset, count };
    match server.call(minor, vec![put(handle), Op::Read(args)]) {
        (_, results) if matches!(results.last(), Some(OpResult::Read(Ok(_)))) => {
            let Some(OpResult::Read(Ok(ok))) = results.into_iter().next_back() else { unreachable!() };
            Ok(ok)
        }
        (status, _) => Err(status),
    }
}

fn write(
    server: &Server,
    handle: &FileHandle,
    offset: u64,
    stable: StableHow,
    data: &[u8],
) -> Result<WriteOk, NfsStat> {
    let args = WriteArgs { stateid: ANY, offset, stable, data: data.to_vec().into() };
    match server.call(1, vec![put(handle), Op::Write(args)]) {
        (_, results) if matches!(results.last(), Some(OpResult::Write(Ok(_)))) => {
            let Some(OpResult::Write(Ok(ok))) = results.into_iter().next_back() else { unreachable!() };
            Ok(ok)
        }
        (status, _) => Err(status),
    }
}

/// [RFC8881 18.22.3]
#[test]
fn reads_end_at_end_of_file() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"hello world");
        let ok = |data: &[u8], eof| Ok(ReadOk { eof, data: data.to_vec().into() });
        assert_eq!(read(server, 0, &file, 0, 5), ok(b"hello", false));
        assert_eq!(read(server, 0, &file, 6, 5), ok(b"world", true));
        assert_eq!(read(server, 0, &file, 6, 500), ok(b"world", true));
        assert_eq!(read(server, 0, &file, 11, 5), ok(b"", true));
        assert_eq!(read(server, 0, &file, u64::MAX, u32::MAX), ok(b"", true));
        assert_eq!(read(server, 0, &file, 3, 0), ok(b"", false));
        let dir = server.directory("d");
        assert_eq!(read(server, 0, &dir, 0, 1), Err(NfsStat::Isdir));
        let make = |kind, name: &str| {
            let args = ivers_nfs4::ops::v40::CreateArgs { kind, name: name.into(), attrs: no_attrs() };
            assert_eq!(server.status_of(0, vec![Op::Create(args)]), NfsStat::Ok);
            server.handle(&[name])
        };
        let link = make(ivers_nfs4::types::CreateType::Lnk(b"f".to_vec()), "l");
        let fifo = make(ivers_nfs4::types::CreateType::Fifo, "p");
        let ends = |minor, handle| read(server, minor, handle, 0, 1).unwrap_err();
        assert_eq!([ends(0, &link), ends(0, &fifo)], [NfsStat::Inval; 2]);
        assert_eq!([ends(1, &link), ends(1, &fifo)], [NfsStat::Symlink, NfsStat::WrongType]);
        assert_eq!(write(server, &dir, 0, StableHow::Unstable, b"x"), Err(NfsStat::Isdir));
    });
}

#[test]
fn io_without_open_checks_permissions() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"secret");
        let mode = |mode| {
            let attrs = attr::Attrs { mode: Some(mode), ..attr::Attrs::default() };
            let args = ivers_nfs4::ops::v40::SetAttrArgs { stateid: ANY, attrs: attrs.encode() };
            assert_eq!(server.call(0, vec![put(&file), Op::SetAttr(args)]).0, NfsStat::Ok);
        };
        let ends = |stateid, uid| {
            let read = Op::Read(ReadArgs { stateid, offset: 0, count: 1 });
            let data = vec![1];
            let write =
                Op::Write(WriteArgs { stateid, offset: 0, stable: StableHow::Unstable, data: data.into() });
            [read, write].map(|op| server.call_as(uid, 0, vec![put(&file), op]).0)
        };
        let open = StateId { seqid: 1, other: [1; 12] };
        mode(0o600);
        assert_eq!(ends(ANY, 1000), [NfsStat::Access; 2]);
        assert_eq!(ends(StateId::READ_BYPASS, 1000), [NfsStat::Access; 2]);
        assert_eq!(ends(open, 1000), [NfsStat::Ok; 2], "the caller opened the file");
        assert_eq!(ends(open, NON_OPENER), [NfsStat::Access; 2], "another user opened the file");
        mode(0o601);
        assert_eq!(ends(ANY, 1000), [NfsStat::Ok, NfsStat::Access], "execute permission suffices for READ");
        mode(0o602);
        assert_eq!(ends(ANY, 1000), [NfsStat::Access, NfsStat::Ok]);
        let asked = server.clients.requested.lock();
        assert!(asked.contains(&(open, Access::Read)) && asked.contains(&(open, Access::Write)));
    });
}

/// [RFC8881 18.32.3] [RFC8881 18.3.3]
#[test]
fn data_is_written_and_committed() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"");
        let five = 5u64.to_be_bytes();
        for (at, stable) in
            [StableHow::Unstable, StableHow::DataSync, StableHow::FileSync].into_iter().enumerate()
        {
            let before = server.change(&file);
            let ok = WriteOk { count: 3, committed: stable, verifier: five };
            assert_eq!(write(server, &file, at as u64 * 3, stable, b"abc"), Ok(ok));
            assert!(server.change(&file) > before);
        }
        assert_eq!(*read(server, 0, &file, 0, 100).unwrap().data, *b"abcabcabc");
        assert_eq!(write(server, &file, 0, StableHow::Unstable, b"").unwrap().count, 0);
        assert_eq!(write(server, &file, u64::MAX, StableHow::Unstable, b"ab"), Err(NfsStat::Inval));
        assert_eq!(write(server, &file, u64::MAX - 9, StableHow::Unstable, b"ab"), Err(NfsStat::Fbig));
        let commit = |handle: &FileHandle, offset, count| {
            let (status, results) =
                server.call(0, vec![put(handle), Op::Commit(CommitArgs { offset, count })]);
            match results.last() {
                Some(OpResult::Commit(Ok(verifier))) => Ok(*verifier),
                _ => Err(status),
            }
        };
        assert_eq!(commit(&file, 0, 0), Ok(five), "nothing was lost");
        assert_eq!(commit(&file, u64::MAX, 1), Err(NfsStat::Inval));
        assert_eq!(commit(&server.handle(&[]), 0, 0), Err(NfsStat::Isdir));
    });
}

/// Clients cache by the change attribute: one value must never stand for two contents.
#[test]
fn no_change_value_repeats() {
    on_each_filesystem(|server| {
        let (file, root) = (server.file("f", b""), server.handle(&[]));
        let want = get_attr(&[attr::CHANGE]);
        let mut last = server.change(&file);
        for at in 0..1000u64 {
            let data = vec![at as u8];
            let args =
                WriteArgs { stateid: ANY, offset: at % 7, stable: StableHow::Unstable, data: data.into() };
            let (status, results) = server.call(0, vec![put(&file), Op::Write(args), want.clone()]);
            assert_eq!(status, NfsStat::Ok);
            let OpResult::GetAttr(Ok(fattr)) = &results[2] else { panic!("{results:?}") };
            let now = attr::Attrs::decode(fattr).unwrap().change.unwrap();
            assert!(now > last, "write {at}");
            last = now;
        }
        let mut last = server.change(&root);
        for at in 0..500 {
            let kind = ivers_nfs4::types::CreateType::Fifo;
            let args = ivers_nfs4::ops::v40::CreateArgs { kind, name: b"x".to_vec(), attrs: no_attrs() };
            let (_, made) = server.call(0, vec![put(&root), Op::Create(args)]);
            let (_, gone) = server.call(0, vec![put(&root), Op::Remove(b"x".to_vec())]);
            let OpResult::Create(Ok(made)) = &made[1] else { panic!("{made:?}") };
            let OpResult::Remove(Ok(gone)) = &gone[1] else { panic!("{gone:?}") };
            for info in [&made.cinfo, gone] {
                assert_changed(info);
                assert_eq!(info.before, last, "change {at}: no concurrent change");
                last = info.after;
            }
        }
    });
}

/// Without a stored change attribute, no value repeats and no change info is atomic.
#[test]
fn without_change_attribute_every_value_is_unique() {
    use ivers_vfs::{ChangeMode, MountOptions, Vfs};
    let options = MountOptions { mode: ChangeMode::Off, background: false, ..MountOptions::default() };
    let vfs = Vfs::mount(std::sync::Arc::new(ivers_mem::Mem::new(1 << 20)), options).unwrap();
    let server = Server::new(vfs, "no_root_squash");
    let file = server.file("f", b"");
    let undefined = server.attrs(2, &file, &[attr::CHANGE_ATTR_TYPE]).change_attr_type;
    assert_eq!(undefined, Some(attr::ChangeAttrType::Undefined as u32));
    assert!(server.change(&file) < server.change(&file));
    let (_, results) = server.at_root(0, vec![Op::Remove(b"f".to_vec())]);
    let OpResult::Remove(Ok(info)) = &results[0] else { panic!("{results:?}") };
    assert!(!info.atomic && info.before != info.after);
}

fn sparse(server: &Server) -> FileHandle {
    let file = server.file("s", &[1; 4096]);
    write(server, &file, 5 << 20, StableHow::FileSync, &[2; 4096]).unwrap();
    file
}

/// [RFC7862 15.11.3]
#[test]
fn seek_finds_data_and_holes() {
    on_each_filesystem(|server| {
        let file = sparse(server);
        let end = (5 << 20) + 4096;
        let seek = |offset, what| {
            let args = SeekArgs { stateid: ANY, offset, what };
            let (status, results) = server.call(2, vec![put(&file), Op::Seek(args)]);
            match results.last() {
                Some(OpResult::Seek(Ok(ok))) => Ok(ok.clone()),
                _ => Err(status),
            }
        };
        let at = |offset| Ok(SeekOk { eof: false, offset });
        assert_eq!(seek(0, 0), at(0));
        assert_eq!(seek(0, 1), at(4096));
        assert_eq!(seek(4096, 0), at(5 << 20));
        assert_eq!(seek(5 << 20, 1), Ok(SeekOk { eof: true, offset: end }));
        assert_eq!(seek(end, 0), Err(NfsStat::Nxio));
        assert_eq!(seek(0, 7), Err(NfsStat::UnionNotsupp));
    });
}

/// [RFC7862 15.10.3]
#[test]
fn read_plus_omits_holes() {
    on_each_filesystem(|server| {
        let file = sparse(server);
        server.clients.requested.lock().clear();
        let args = |offset, count| Op::ReadPlus(ReadArgs { stateid: ANY, offset, count });
        let (status, results) = server.call(2, vec![put(&file), args(4000, 1 << 20)]);
        assert_eq!(status, NfsStat::Ok);
        let data = |offset, bytes: Vec<u8>| Content::Data(Data { offset, bytes });
        let hole = |offset, length| Content::Hole(Hole { offset, length });
        let contents = List(vec![data(4000, vec![1; 96]), hole(4096, (1 << 20) + 4000 - 4096)]);
        assert_eq!(results[1], OpResult::ReadPlus(Ok(ReadPlusOk { eof: false, contents })));
        let (_, results) = server.call(2, vec![put(&file), args((5 << 20) - 10, 1 << 20)]);
        let contents = List(vec![hole((5 << 20) - 10, 10), data(5 << 20, vec![2; 4096])]);
        assert_eq!(results[1], OpResult::ReadPlus(Ok(ReadPlusOk { eof: true, contents })));
        let (_, results) = server.call(2, vec![put(&file), args(6 << 20, 100)]);
        assert_eq!(results[1], OpResult::ReadPlus(Ok(ReadPlusOk { eof: true, contents: List(vec![]) })));
        assert!(server.clients.requested.lock().iter().all(|(_, does)| *does == Access::Read));
    });
}

/// [RFC7862 15.1.3]
#[test]
fn ranges_are_allocated_and_freed() {
    on_each_filesystem(|server| {
        let file = server.file("f", &[9; 20_000]);
        let range = |offset, length| RangeArgs { stateid: ANY, offset, length };
        let ends = |op: Op| server.call(2, vec![put(&file), op]).0;
        assert_eq!(ends(Op::Deallocate(range(4096, 8192))), NfsStat::Ok);
        let data = read(server, 0, &file, 0, 20_000).unwrap().data;
        assert!(
            data[4096..12_288].iter().all(|byte| *byte == 0) && data[12_288] == 9 && data.len() == 20_000
        );
        assert_eq!(ends(Op::Allocate(range(0, 40_000))), NfsStat::Ok);
        assert_eq!(server.attrs(0, &file, &[attr::SIZE]).size, Some(40_000));
        assert_eq!(ends(Op::Allocate(range(0, 0))), NfsStat::Inval);
        assert_eq!(ends(Op::Allocate(range(u64::MAX, 2))), NfsStat::Inval);
        let advice = IoAdviseArgs { stateid: ANY, offset: 0, count: 0, hints: Bitmap::of([1, 2]) };
        let (_, results) = server.call(2, vec![put(&file), Op::IoAdvise(advice)]);
        assert_eq!(results[1], OpResult::IoAdvise(Ok(Bitmap::default())));
    });
}

/// [RFC7862 15.2.3]
#[test]
fn ranges_are_copied() {
    on_each_filesystem(|server| {
        let (from, to) = (server.file("a", b"0123456789"), server.file("b", b"xxxx"));
        let copy = |source_offset, target_offset, count, elsewhere: bool| {
            let server_elsewhere = if elsewhere { vec![NetLoc::Name(b"other".to_vec())] } else { vec![] };
            CopyArgs {
                source: ANY,
                target: ANY,
                source_offset,
                target_offset,
                count,
                consecutive: false,
                synchronous: false,
                source_server: List(server_elsewhere),
            }
        };
        let act = |source: &FileHandle, target: &FileHandle, args: CopyArgs| {
            let ops = vec![put(source), Op::SaveFh(()), put(target), Op::Copy(args)];
            let (status, results) = server.call(2, ops);
            match results.last() {
                Some(OpResult::Copy(CopyRes::Ok(ok))) => Ok(ok.response.count),
                _ => Err(status),
            }
        };
        assert_eq!(act(&from, &to, copy(2, 1, 3, false)), Ok(3));
        assert_eq!(*read(server, 0, &to, 0, 100).unwrap().data, *b"x234");
        assert_eq!(act(&from, &to, copy(8, 4, 0, false)), Ok(2), "0 means up to the end");
        assert_eq!(*read(server, 0, &to, 0, 100).unwrap().data, *b"x23489");
        assert_eq!(act(&from, &to, copy(10, 0, 0, false)), Ok(0));
        assert_eq!(act(&from, &to, copy(8, 0, 3, false)), Err(NfsStat::Inval));
        assert_eq!(act(&from, &to, copy(11, 0, 0, false)), Err(NfsStat::Inval));
        assert_eq!(act(&from, &from, copy(0, 2, 4, false)), Err(NfsStat::Inval), "the ranges overlap");
        assert_eq!(act(&from, &from, copy(0, 10, 4, false)), Ok(4));
        assert_eq!(act(&from, &to, copy(0, 0, 1, true)), Err(NfsStat::Notsupp));
        assert_eq!(act(&server.handle(&[]), &to, copy(0, 0, 1, false)), Err(NfsStat::Isdir));
    });
}

/// [RFC7862 15.13.3]
#[test]
fn blocks_are_shared_where_the_format_can() {
    on_each_filesystem(|server| {
        let (from, to) = (server.file("a", &[7; 8192]), server.file("b", &[9; 100]));
        let act = |source_offset, target_offset, count| {
            let clone = CloneArgs { source: ANY, target: ANY, source_offset, target_offset, count };
            server.call(2, vec![put(&from), Op::SaveFh(()), put(&to), Op::Clone(clone)]).0
        };
        if server.vfs.fs().clones().is_none() {
            assert_eq!(act(0, 0, 0), NfsStat::Notsupp);
            return;
        }
        assert_eq!(act(4096, 0, 0), NfsStat::Ok, "0 means up to the end");
        assert_eq!(*read(server, 0, &to, 0, 10_000).unwrap().data, [7; 4096]);
        assert_eq!(act(1, 0, 0), NfsStat::Inval);
        assert_eq!(act(0, 0, 12_288), NfsStat::Inval);
        assert_eq!(act(0, 0, u64::MAX), NfsStat::Inval);
    });
}

/// The rules of Linux: a change of data removes file capabilities for every caller, and set-id bits for a
/// caller other than root. A change of owner removes both for every caller.
#[test]
fn changes_of_data_and_owner_remove_privileges() {
    const CAPABILITY: &str = "security.capability";
    on_each_filesystem(|server| {
        let source = server.file("source", &[7; 8192]);
        let file = server.file("f", &[9; 8192]);
        let root = Cred::root();
        let inode = server.vfs.resolve(&root, b"/f", true).unwrap();
        let grant = || {
            let set = SetAttr { perm: Some(0o6777), uid: Some(7), gid: Some(7), ..SetAttr::default() };
            server.vfs.set_attr(&root, &inode, &set).unwrap();
            server.vfs.set_xattr(&root, &inode, CAPABILITY, b"any", XattrMode::Any).unwrap();
        };
        let range = || RangeArgs { stateid: ANY, offset: 0, length: 4096 };
        let set = |attrs: Attrs| Op::SetAttr(SetAttrArgs { stateid: ANY, attrs: attrs.encode() });
        let resize = |size| set(Attrs { size: Some(size), ..Attrs::default() });
        let copy = CopyArgs {
            source: ANY,
            target: ANY,
            source_offset: 0,
            target_offset: 0,
            count: 4096,
            consecutive: false,
            synchronous: true,
            source_server: List(Vec::new()),
        };
        let write =
            WriteArgs { stateid: ANY, offset: 0, stable: StableHow::Unstable, data: b"x".to_vec().into() };
        let data_changes = [
            ("WRITE", Op::Write(write)),
            ("ALLOCATE", Op::Allocate(range())),
            ("DEALLOCATE", Op::Deallocate(range())),
            ("COPY", Op::Copy(copy)),
            ("truncation", resize(10)),
            ("the same size", resize(10)),
            ("extension", resize(8192)),
        ];
        let owner = |id: &str| Some(id.as_bytes().to_vec());
        let change_owner = set(Attrs { owner: owner("8"), ..Attrs::default() });
        let same_group = set(Attrs { owner_group: owner("7"), ..Attrs::default() });
        let data_changes = data_changes.into_iter().flat_map(|(what, op)| {
            // The owner, root, and a user who may only write.
            [(7, 0o777), (0, 0o6777), (1000, 0o777)].map(|(uid, left)| (what, op.clone(), uid, left))
        });
        let owner_changes =
            [("OWNER", change_owner, 0, 0o777), ("OWNER_GROUP", same_group, 0, 0o777)].into_iter();
        for (what, op, uid, left) in data_changes.chain(owner_changes) {
            grant();
            let ops = vec![put(&source), Op::SaveFh(()), put(&file), op];
            let (status, results) = server.call_as(uid, 2, ops);
            assert_eq!(status, NfsStat::Ok, "{what} as {uid}: {results:?}");
            assert_eq!(server.vfs.stat(&inode).perm, left, "{what} as {uid}");
            let capability = server.vfs.get_xattr(&root, &inode, CAPABILITY);
            assert!(capability.is_err(), "{what} as {uid}: the capability is left");
        }
    });
}
