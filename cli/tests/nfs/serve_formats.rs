//! Formats other than ext4 over NFS: their features, what is refused, and filehandles across a restart.

use crate::common;
use std::path::Path;

use crate::common::served::Server;
use crate::common::wait_until;
use ivers_block::{Device, FileDevice, OpenMode};
use ivers_nfs_test::client::{Client, data, decoded, guarded, named, open, opened};
use ivers_nfs4::attr::{self, Attrs, Fattr};
use ivers_nfs4::ops::v40::{
    CommitArgs, CreateArgs, ReadArgs, RenameArgs, SeqState, SetAttrArgs, WriteArgs, share,
};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, CreateType, FileHandle, StableHow, StateId};
use ivers_oracle::have_programs;
use ivers_vfs::Timestamp;

const TEXT: &[u8] = b"one text";

fn make(client: &mut Client, name: &str) -> FileHandle {
    let open = open("o", share::BOTH | share::WANT_NO_DELEG, guarded(), named(name));
    let (opened, handle) = opened(&client.call([data(), vec![open, Op::GetFh(())]].concat()));
    let data = TEXT.to_vec().into();
    let write = WriteArgs { stateid: opened.stateid, offset: 0, stable: StableHow::Unstable, data };
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    let close = Op::Close(SeqState { seqid: 0, stateid: opened.stateid });
    let (status, results) = client.call(vec![Op::PutFh(handle.clone()), Op::Write(write), commit, close]);
    assert_eq!(status, NfsStat::Ok, "{results:?}");
    handle
}

fn below(client: &mut Client, ops: Vec<Op>) -> (NfsStat, Vec<OpResult>) {
    client.call([data(), ops].concat())
}

fn read(client: &mut Client, place: Vec<Op>) -> Result<Vec<u8>, NfsStat> {
    let read = Op::Read(ReadArgs { stateid: StateId::ANONYMOUS, offset: 0, count: 100 });
    let (status, results) = client.call_with_retry(&[place, vec![read]].concat());
    match results.last() {
        Some(OpResult::Read(Ok(read))) => Ok(read.data.to_vec()),
        _ => Err(status),
    }
}

fn by_name(name: &str) -> Vec<Op> {
    [data(), vec![Op::Lookup(name.into())]].concat()
}

/// Sets attributes of a file; returns the status, and its size and mode afterwards.
fn set(client: &mut Client, file: &FileHandle, attrs: Attrs) -> (NfsStat, u64, u32) {
    let put = Op::PutFh(file.clone());
    let args = SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: attrs.encode() };
    let (status, _) = client.call(vec![put.clone(), Op::SetAttr(args)]);
    let (_, results) = client.call(vec![put, Op::GetAttr(Bitmap::of([attr::SIZE, attr::MODE]))]);
    let attrs = decoded(results.last());
    (status, attrs.size.unwrap(), attrs.mode.unwrap())
}

fn started(image: &Path) -> (Server, Client) {
    let export = format!("{},name=/data,no_root_squash", image.display());
    let server = Server::start(&image.with_extension("state"), ["--lease", "2", &export]);
    if server.log().contains("grace period begins") {
        wait_until("grace is over", || server.log().contains("grace period ends"));
    }
    let client = Client::new(server.address(), "a");
    (server, client)
}

struct Format {
    name: &'static str,
    make: fn(&Path),
    check: fn(&Path),
    /// Checks the image of a killed server.
    check_crashed: fn(&Path),
    /// Whether the format has symbolic and hard links.
    links: bool,
    owners: bool,
    /// Whether owners have more than 16 bits.
    large_owners: bool,
    /// The status of a filehandle after a restart.
    restarted: Result<(), NfsStat>,
}

fn works(format: &Format) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    (format.make)(&image);
    let (server, mut client) = started(&image);
    let file = make(&mut client, "Some Name.text");
    let root = client.call([data(), vec![Op::GetFh(())]].concat()).1.pop();
    let Some(OpResult::GetFh(Ok(root))) = root else { panic!("{root:?}") };

    // Operations of every format.
    let dirs = CreateArgs { kind: CreateType::Dir, name: b"below".to_vec(), attrs: Fattr::default() };
    assert_eq!(below(&mut client, vec![Op::Create(dirs)]).0, NfsStat::Ok, "{}", format.name);
    let moved = [data(), vec![Op::SaveFh(()), Op::Lookup(b"below".to_vec())]].concat();
    let rename = Op::Rename(RenameArgs { old: b"Some Name.text".to_vec(), new: b"moved".to_vec() });
    assert_eq!(client.call([moved, vec![rename]].concat()).0, NfsStat::Ok);
    assert_eq!(read(&mut client, vec![Op::PutFh(file.clone())]).unwrap(), TEXT, "a rename keeps the handle");
    let inside = |name: &str| [by_name("below"), vec![Op::Lookup(name.into())]].concat();
    assert_eq!(read(&mut client, inside("moved")).unwrap(), TEXT);
    let size = Attrs { size: Some(3), ..Attrs::default() };
    assert_eq!(set(&mut client, &file, size).1, 3);

    // Unsupported operations are refused, and none is half done.
    let owner = Attrs { size: Some(1), owner: Some(b"70000".to_vec()), ..Attrs::default() };
    let (status, size, _) = set(&mut client, &file, owner);
    let expected = (format.large_owners, if format.large_owners { 1 } else { 3 });
    assert_eq!((status == NfsStat::Ok, size), expected, "{}: {status:?}", format.name);
    let owner = Attrs { owner: Some(b"7".to_vec()), ..Attrs::default() };
    assert_eq!(set(&mut client, &file, owner).0 == NfsStat::Ok, format.owners);
    let kind = CreateType::Lnk(b"target".to_vec());
    let link = CreateArgs { kind, name: b"soft".to_vec(), attrs: Fattr::default() };
    assert_eq!(below(&mut client, vec![Op::Create(link)]).0 == NfsStat::Ok, format.links);
    let hard = [vec![Op::PutFh(file.clone()), Op::SaveFh(())], data(), vec![Op::Link(b"hard".to_vec())]];
    let status = client.call(hard.concat()).0;
    assert_eq!(status == NfsStat::Ok, format.links, "{}: {status:?}", format.name);

    // A name is replaced by another.
    let kept = make(&mut client, "kept");
    let gone = make(&mut client, "gone");
    assert_eq!(below(&mut client, vec![Op::Remove(b"gone".to_vec())]).0, NfsStat::Ok);
    make(&mut client, "stays");
    assert_eq!(read(&mut client, vec![Op::PutFh(gone.clone())]), Err(NfsStat::Stale));

    drop(client);
    assert!(server.stop().success());
    (format.check)(&image);
    for crash in [false, true] {
        let (server, mut client) = started(&image);
        let place = |handle: &FileHandle| vec![Op::PutFh(handle.clone())];
        let ask = Op::GetAttr(Bitmap::of([attr::SIZE]));
        assert_eq!(client.call([place(&root), vec![ask]].concat()).0, NfsStat::Ok, "{}", format.name);
        let again = read(&mut client, place(&kept)).map(|text| assert_eq!(text, TEXT));
        assert_eq!(again, format.restarted, "{}", format.name);
        assert_eq!(read(&mut client, place(&gone)), Err(NfsStat::Stale), "never another file");
        for name in ["kept", "stays"] {
            assert_eq!(read(&mut client, by_name(name)).unwrap(), TEXT);
        }
        make(&mut client, &format!("after {crash}"));
        drop(client);
        match crash {
            true => server.kill(),
            false => assert!(server.stop().success()),
        }
    }
    let (server, mut client) = started(&image);
    assert_eq!(
        read(&mut client, by_name("after true")).unwrap(),
        TEXT,
        "what was committed before the crash"
    );
    drop(client);
    assert!(server.stop().success());
    (format.check_crashed)(&image);
}

fn empty(image: &Path, bytes: u64) -> FileDevice {
    std::fs::File::create(image).unwrap().set_len(bytes).unwrap();
    FileDevice::open(image, OpenMode::ReadWrite).unwrap()
}

#[test]
fn fat_is_served() {
    if !have_programs(&["mkfs.vfat", "fsck.fat"]) {
        return;
    }
    works(&Format {
        name: "FAT",
        make: |image| {
            empty(image, 32 << 20);
            ivers_oracle::run("mkfs.vfat", [image]).unwrap();
        },
        check: |image| drop(ivers_oracle::fat::fsck_fat(image).unwrap()),
        check_crashed: |image| ivers_oracle::fat::fsck_fat_after_crash(image).unwrap(),
        links: false,
        owners: false,
        large_owners: false,
        restarted: Err(NfsStat::Stale),
    });
}

#[test]
fn affs_is_served() {
    works(&Format {
        name: "AFFS",
        make: |image| {
            let device = empty(image, 8 << 20);
            ivers_affs::mkfs::format(&device, 3, 512, "Served", Timestamp { sec: 1 << 30, nsec: 0 }).unwrap();
            device.flush().unwrap();
        },
        check: |_| {},
        check_crashed: |_| {},
        links: true,
        owners: true,
        large_owners: false,
        restarted: Err(NfsStat::Stale),
    });
}

#[test]
fn xfs_is_served() {
    if !have_programs(&["xfs_repair"]) {
        return;
    }
    let check =
        |image: &Path| drop(ivers_oracle::run("xfs_repair", ["-n".as_ref(), image.as_os_str()]).unwrap());
    works(&Format {
        name: "XFS",
        make: |image| {
            let words = ["mkfs", "-q", "-t", "xfs", "--small", "--size", "64M", image.to_str().unwrap()];
            common::works(&words);
        },
        check,
        check_crashed: check,
        links: true,
        owners: true,
        large_owners: true,
        restarted: Ok(()),
    });
}

#[test]
fn btrfs_is_served() {
    if !have_programs(&["mkfs.btrfs", "btrfs"]) {
        return;
    }
    works(&Format {
        name: "btrfs",
        make: |image| {
            empty(image, 128 << 20);
            ivers_oracle::run("mkfs.btrfs", ["-q".as_ref(), image.as_os_str()]).unwrap();
        },
        check: |image| ivers_oracle::btrfs::judge(image).unwrap(),
        check_crashed: |image| ivers_oracle::btrfs::judge(image).unwrap(),
        links: true,
        owners: true,
        large_owners: true,
        restarted: Ok(()),
    });
}
