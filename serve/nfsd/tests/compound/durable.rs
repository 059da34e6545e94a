//! Durable replies survive a crash that keeps only flushed writes.

use std::sync::Arc;
use std::time::Duration;

use ivers_block::{Device, FaultDevice, MemDevice};
use ivers_ext4::mkfs::{MkfsOptions, mkfs};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_nfs4::attr::Attrs;
use ivers_nfs4::ops::v40::{CommitArgs, CreateArgs, RenameArgs, SetAttrArgs, WriteArgs};
use ivers_nfs4::ops::v42::{RangeArgs, SetXattrArgs, SetXattrOption};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{CreateType, FileHandle, StableHow, StateId};
use ivers_vfs::{Cred, DriverOptions, InodeRef, MountOptions, Vfs};

use ivers_nfs_test::harness::*;

fn mount(device: Arc<dyn Device>) -> Arc<Vfs> {
    // No commit runs by itself.
    let commit_interval = Duration::from_secs(900);
    let fs = Ext4::open(
        device,
        OpenOptions::from(DriverOptions {
            place: "a test".into(),
            commit_interval,
            ..DriverOptions::default()
        }),
    )
    .unwrap();
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn server(options: &str) -> (Server, Arc<FaultDevice>) {
    let plain: Arc<dyn Device> = Arc::new(MemDevice::new(16 << 20));
    mkfs(&plain, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
    let device = Arc::new(FaultDevice::new(plain));
    let vfs = mount(device.clone());
    (Server::new(vfs, options), device)
}

/// The filesystem after a crash that keeps only flushed writes.
fn crashed(device: &FaultDevice) -> Arc<Vfs> {
    mount(Arc::new(device.image_where(device.len(), |_| false).unwrap()))
}

fn find(vfs: &Arc<Vfs>, path: &str) -> Option<InodeRef> {
    vfs.resolve(&Cred::root(), path, false).ok()
}

fn contents(vfs: &Arc<Vfs>, path: &str) -> Vec<u8> {
    let Some(inode) = find(vfs, path) else { return b"nothing there".to_vec() };
    let mut buf = vec![0; 100];
    let read = vfs.read(&Cred::root(), &inode, 0, &mut buf).unwrap();
    buf.truncate(read);
    buf
}

fn done(server: &Server, handle: &FileHandle, ops: Vec<Op>) {
    let (status, results) = server.call(2, [vec![put(handle), Op::SaveFh(())], ops].concat());
    assert_eq!(status, NfsStat::Ok, "{results:?}");
}

fn write(stable: StableHow, data: &[u8]) -> Vec<Op> {
    let args = WriteArgs { stateid: StateId::ANONYMOUS, offset: 0, stable, data: data.to_vec().into() };
    vec![Op::Write(args)]
}

/// [RFC8881 18.32.3] [RFC8881 18.3.3]
#[test]
fn data_reported_stable_survives_a_crash() {
    let (server, device) = server("no_root_squash");
    let file = server.file("f", b"");
    done(
        &server,
        &server.handle(&[]),
        vec![Op::Create(CreateArgs { kind: CreateType::Fifo, name: b"p".to_vec(), attrs: no_attrs() })],
    );
    done(&server, &file, write(StableHow::Unstable, b"unstable"));
    assert_eq!(
        contents(&crashed(&device), "f"),
        b"",
        "unstable data is lost, so the test detects a missing flush"
    );
    done(&server, &file, vec![Op::Commit(CommitArgs { offset: 0, count: 0 })]);
    assert_eq!(contents(&crashed(&device), "f"), b"unstable");
    done(&server, &file, write(StableHow::DataSync, b"data sync"));
    assert_eq!(contents(&crashed(&device), "f"), b"data sync");
    done(&server, &file, write(StableHow::FileSync, b"file sync!"));
    assert_eq!(contents(&crashed(&device), "f"), b"file sync!");
}

#[test]
fn names_and_attributes_survive_a_crash_after_the_reply() {
    let (server, device) = server("no_root_squash");
    let (root, file) = (server.handle(&[]), server.file("f", b"some"));
    let dir = CreateArgs { kind: CreateType::Dir, name: b"d".to_vec(), attrs: no_attrs() };
    done(&server, &root, vec![Op::Create(dir)]);
    assert!(find(&crashed(&device), "d").is_some());
    let below = server.handle(&["d"]);
    done(&server, &file, vec![put(&below), Op::Link(b"g".to_vec())]);
    assert!(find(&crashed(&device), "d/g").is_some());
    let args = RenameArgs { old: b"f".to_vec(), new: b"h".to_vec() };
    done(&server, &root, vec![put(&below), Op::Rename(args)]);
    let after = crashed(&device);
    assert!(find(&after, "d/h").is_some() && find(&after, "f").is_none());
    done(&server, &below, vec![Op::Remove(b"g".to_vec())]);
    assert!(find(&crashed(&device), "d/g").is_none());
    let attrs = Attrs { mode: Some(0o751), size: Some(2), ..Attrs::default() };
    let args = SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: attrs.encode() };
    done(&server, &file, vec![Op::SetAttr(args)]);
    let after = crashed(&device);
    let stat = after.stat(&find(&after, "d/h").unwrap());
    assert_eq!((stat.perm, stat.size), (0o751, 2));
    let args = SetXattrArgs { option: SetXattrOption::Either, name: b"x".to_vec(), value: b"value".to_vec() };
    done(&server, &file, vec![Op::SetXattr(args)]);
    let after = crashed(&device);
    let inode = find(&after, "d/h").unwrap();
    assert_eq!(after.get_xattr(&Cred::root(), &inode, "user.x").unwrap(), b"value");
    let range = RangeArgs { stateid: StateId::ANONYMOUS, offset: 0, length: 8192 };
    done(&server, &file, vec![Op::Allocate(range)]);
    let after = crashed(&device);
    assert_eq!(after.stat(&find(&after, "d/h").unwrap()).size, 8192);
}

/// An `async` export replies before names and attributes are durable, but not before data is.
#[test]
fn async_export_defers_only_names_and_attributes() {
    let (server, device) = server("no_root_squash,async");
    let root = server.handle(&[]);
    let dir = CreateArgs { kind: CreateType::Dir, name: b"d".to_vec(), attrs: no_attrs() };
    done(&server, &root, vec![Op::Create(dir)]);
    let file = server.file("f", b"");
    let args = SetXattrArgs { option: SetXattrOption::Either, name: b"x".to_vec(), value: b"value".to_vec() };
    let attrs = SetAttrArgs {
        stateid: StateId::ANONYMOUS,
        attrs: Attrs { mode: Some(0o751), ..Attrs::default() }.encode(),
    };
    done(&server, &file, vec![Op::SetXattr(args), Op::SetAttr(attrs)]);
    assert!(find(&server.vfs, "d").is_some());
    let after = crashed(&device);
    assert!(find(&after, "d").is_none() && find(&after, "f").is_none());
    // The name becomes durable with the data.
    done(&server, &file, write(StableHow::Unstable, b"unstable"));
    done(&server, &file, vec![Op::Commit(CommitArgs { offset: 0, count: 0 })]);
    let after = crashed(&device);
    assert_eq!(contents(&after, "f"), b"unstable");
    assert_eq!(after.stat(&find(&after, "f").unwrap()).perm, 0o751);
    done(&server, &file, write(StableHow::FileSync, b"file sync!"));
    assert_eq!(contents(&crashed(&device), "f"), b"file sync!");
    done(&server, &root, vec![Op::Remove(b"f".to_vec())]);
    assert!(find(&server.vfs, "f").is_none());
    assert!(find(&crashed(&device), "f").is_some());
    server.vfs.sync().unwrap();
    assert!(find(&crashed(&device), "f").is_none(), "a stop flushes");
}

/// [RFC8881 18.32.4] The same for every caller: nothing was committed here.
#[test]
fn write_verifier_changes_when_data_is_lost() {
    let (server, device) = server("no_root_squash");
    let file = server.file("f", b"");
    let (_, results) = server.call(2, [vec![put(&file)], write(StableHow::Unstable, b"unstable")].concat());
    let before = last_ok(&results, |result| match result {
        OpResult::Write(res) => Some(res),
        _ => None,
    })
    .verifier;
    let export = server.service.exports().export(1).unwrap().clone();
    assert_eq!(export.filesystem.verifier(), before);
    device.fail_writes_from(Some(device.writes()));
    assert!(server.vfs.sync().is_err(), "write-back fails outside of COMMIT");
    device.fail_writes_from(None);
    assert_ne!(export.filesystem.verifier(), before);
    let commit = Op::Commit(CommitArgs { offset: 0, count: 0 });
    assert_eq!(server.call(2, vec![put(&file), commit]).0, NfsStat::Io);
}
