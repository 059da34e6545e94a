//! Filehandles, the pseudo-root, and access to exports.

use ivers_nfs4::attr;
use ivers_nfs4::ops::v40::{CreateArgs, ReadDirArgs, SecInfoEntry};
use ivers_nfs4::ops::v41::SecInfoStyle;
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::rpc::{AUTH_NONE, AUTH_SYS};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Bitmap, CreateType, FileHandle, Opaque};
use ivers_nfsd::compound::{Exports, Filesystem};
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::rpc::Credential;

use ivers_nfs_test::harness::*;

/// [RFC8881 18.27.3] [RFC8881 18.17.3]
#[test]
fn operations_require_a_filehandle() {
    let server = Server::new(mem(), "no_root_squash");
    for minor in 0..3 {
        assert_eq!(server.status_of(minor, vec![Op::OpenAttr(true)]), NfsStat::Notsupp);
        let ends = |op: Op| server.call(minor, vec![op]).0;
        let saved = if minor == 0 { NfsStat::Restorefh } else { NfsStat::Nofilehandle };
        assert_eq!(ends(Op::RestoreFh(())), saved);
        for op in [
            Op::GetFh(()),
            Op::SaveFh(()),
            lookup("x"),
            Op::LookupP(()),
            Op::ReadLink(()),
            get_attr(&[attr::SIZE]),
            Op::Access(1),
            Op::Remove(b"x".to_vec()),
            Op::Link(b"x".to_vec()),
            Op::SecInfo(b"x".to_vec()),
            Op::OpenAttr(false),
            Op::Verify(no_attrs()),
        ] {
            assert_eq!(ends(op.clone()), NfsStat::Nofilehandle, "{op:?}");
        }
    }
}

/// [RFC8881 18.19.3]
#[test]
fn filehandles_refer_to_their_file_or_are_stale() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"x");
        let (_, results) = server.call(0, vec![put(&file), Op::GetFh(())]);
        assert_eq!(results[1], OpResult::GetFh(Ok(file.clone())));
        let ends = |handle: FileHandle| server.call(0, vec![Op::PutFh(handle)]).0;
        let mut forged = file.clone();
        forged.0[3] ^= 1;
        assert_eq!(ends(forged), NfsStat::Badhandle);
        assert_eq!(ends(Opaque(vec![])), NfsStat::Badhandle);
        assert_eq!(server.status_of(0, vec![Op::Remove(b"f".to_vec())]), NfsStat::Ok);
        assert_eq!(ends(file), NfsStat::Stale);
    });
}

/// Inode numbers start again after a remount, but the root keeps its filehandle unless it is another export.
#[test]
fn filehandles_of_another_mount_are_stale() {
    let server = Server::new(mem(), "no_root_squash");
    let (file, root) = (server.file("f", b"x"), server.handle(&[]));
    let export = server.service.exports().export(1).unwrap().clone();
    let policy = "i,name=/deep/data,no_root_squash".to_owned();
    let restart = |instance| {
        let write_verifier = export.filesystem.write_verifier;
        let filesystem = Filesystem { vfs: server.vfs.clone(), write_verifier, instance };
        let config = ExportConfig::from_flag(&policy).unwrap();
        let exports = Exports::new(&server.service.handles, vec![(config, 1, filesystem)], 78).unwrap();
        server.service.set_exports(exports);
    };
    restart(9);
    assert_eq!(server.call(0, vec![put(&file)]).0, NfsStat::Stale);
    assert_eq!(server.call(0, vec![put(&root)]).0, NfsStat::Ok);
    assert_eq!(server.handle(&[]), root);
    assert_ne!(server.handle(&["f"]), file);
    assert_eq!(server.call(0, vec![put(&server.handle(&["f"]))]).0, NfsStat::Ok);
    restart(0);
    assert_eq!(server.call(0, vec![put(&file)]).0, NfsStat::Ok);
}

#[test]
fn saved_filehandle_is_restored() {
    let server = Server::new(mem(), "no_root_squash");
    let (file, root) = (server.file("f", b"x"), server.handle(&[]));
    let ops = vec![put(&file), Op::SaveFh(()), put(&root), Op::RestoreFh(()), Op::GetFh(())];
    let (_, results) = server.call(1, ops);
    assert_eq!(results[4], OpResult::GetFh(Ok(file)));
}

/// [RFC8881 18.14.3] [RFC8881 15.1.2]
#[test]
fn lookupp_ends_at_the_pseudo_root() {
    on_each_filesystem(|server| {
        server.directory("d");
        let up = Op::LookupP(());
        let root = server.handle(&[]);
        let (_, results) = server.at_root(0, vec![lookup("d"), up.clone(), Op::GetFh(())]);
        assert_eq!(results[2], OpResult::GetFh(Ok(root)));
        let ups = |count: usize| server.status_of(0, [vec![lookup("d")], vec![up.clone(); count]].concat());
        assert_eq!(ups(3), NfsStat::Ok, "to the pseudo-root");
        assert_eq!(ups(4), NfsStat::Noent);
        server.file("f", b"");
        assert_eq!(server.status_of(0, vec![lookup("f"), up.clone()]), NfsStat::Notdir);
        // [RFC8881 15.1.2]
        let kind = CreateType::Lnk(b"d".to_vec());
        let link = Op::Create(CreateArgs { kind, name: b"l".to_vec(), attrs: no_attrs() });
        assert_eq!(server.status_of(0, vec![link]), NfsStat::Ok);
        let above_link = |minor| server.status_of(minor, vec![lookup("l"), up.clone()]);
        assert_eq!([above_link(0), above_link(1)], [NfsStat::Notdir, NfsStat::Symlink]);
    });
}

/// [RFC8881 18.13.3] [RFC8881 14.5] [RFC8881 15.1.7]
#[test]
fn names_do_not_leave_the_export() {
    on_each_filesystem(|server| {
        server.file("f", b"");
        let link = CreateArgs {
            kind: CreateType::Lnk(b"../../..".to_vec()),
            name: b"l".to_vec(),
            attrs: no_attrs(),
        };
        assert_eq!(server.status_of(0, vec![Op::Create(link)]), NfsStat::Ok);
        let raw = |name: &[u8]| server.status_of(0, vec![Op::Lookup(name.to_vec())]);
        // [RFC8881 15.1.7]
        assert_eq!(raw(&[b'n'; 255]), NfsStat::Noent);
        assert_eq!(raw(&[b'n'; 256]), NfsStat::Nametoolong);
        let above = |len| server.call(0, vec![Op::PutRootFh(()), Op::Lookup(vec![b'n'; len])]).0;
        assert_eq!([above(255), above(256)], [NfsStat::Noent, NfsStat::Nametoolong]);
        assert_eq!(raw(b".."), NfsStat::Badname);
        assert_eq!(raw(b"."), NfsStat::Badname);
        assert_eq!(raw(b"a/b"), NfsStat::Badchar);
        assert_eq!(raw(b""), NfsStat::Inval);
        assert_eq!(raw(b"\xfe"), NfsStat::Inval);
        assert_eq!(raw(&[b'a'; 256]), NfsStat::Nametoolong);
        assert_eq!(raw(b"nothing"), NfsStat::Noent);
        assert_eq!(server.status_of(0, vec![lookup("f"), lookup("x")]), NfsStat::Notdir);
        assert_eq!(server.status_of(0, vec![lookup("l"), lookup("x")]), NfsStat::Symlink);
        for name in ["..", ".", "a/b", ""] {
            let above = server.call(0, vec![Op::PutRootFh(()), lookup(name)]).0;
            assert_ne!(above, NfsStat::Ok, "{name:?} in the pseudo-root");
        }
    });
}

#[test]
fn pseudo_root_is_read_only() {
    let server = Server::new(mem(), "no_root_squash");
    let (_, results) = server.call(
        2,
        vec![
            Op::PutRootFh(()),
            get_attr(&[attr::TYPE, attr::FSID, attr::MODE, attr::CHANGE]),
            Op::Access(0x3f),
            lookup("deep"),
            Op::GetFh(()),
        ],
    );
    let fattr = last_ok(&results[..2], |res| if let OpResult::GetAttr(it) = res { Some(it) } else { None });
    let attrs = attr::Attrs::decode(fattr).unwrap();
    assert_eq!((attrs.mode, attrs.change), (Some(0o555), Some(77)));
    let OpResult::Access(Ok(access)) = &results[2] else { panic!("{results:?}") };
    assert_eq!((access.supported, access.access), (0x1f, 0x3));
    let make = CreateArgs { kind: CreateType::Dir, name: b"x".to_vec(), attrs: no_attrs() };
    for op in [Op::Create(make), Op::Remove(b"deep".to_vec()), Op::Link(b"x".to_vec())] {
        let ops = vec![Op::PutRootFh(()), Op::SaveFh(()), op.clone()];
        assert_ne!(server.call(0, ops).0, NfsStat::Ok, "{op:?}");
    }
    let gone = server.service.handles.pseudo("/gone");
    let gone = server.service.handles.encode(ivers_nfsd::exports::handle::Target::Pseudo(gone));
    assert_eq!(server.call(0, vec![put(&gone)]).0, NfsStat::Stale);
}

#[test]
fn pseudo_root_lists_visible_exports_only() {
    let server = Server::new(mem(), "no_root_squash");
    let list = |cookie, verifier, maxcount| {
        let attrs = Bitmap::of([attr::FSID, attr::MOUNTED_ON_FILEID, attr::RDATTR_ERROR]);
        let args = ReadDirArgs { cookie, verifier, dircount: 0, maxcount, attrs };
        let (status, results) = server.call(0, vec![Op::PutRootFh(()), Op::ReadDir(args)]);
        match results.into_iter().next_back() {
            Some(OpResult::ReadDir(Ok(listed))) => Ok(listed),
            _ => Err(status),
        }
    };
    let all = list(0, [0; 8], 4096).unwrap();
    let names: Vec<_> = all.entries.iter().map(|entry| entry.name.as_slice()).collect();
    assert_eq!(names, [&b"deep"[..], b"more", b"other"]);
    assert!(all.eof && all.entries.iter().all(|entry| entry.cookie > 2));
    let rest = list(all.entries[0].cookie, all.verifier, 4096).unwrap();
    assert_eq!(rest.entries, all.entries[1..]);
    let few = list(0, [0; 8], 80).unwrap();
    assert_eq!((few.entries.as_slice(), few.eof), (&all.entries[..1], false));
    for other in [[9; 8], [0; 8]] {
        assert_eq!(list(all.entries[0].cookie, other, 4096), Err(NfsStat::NotSame));
    }
    assert_eq!(list(0, [0; 8], 17), Err(NfsStat::Toosmall));
    assert_eq!(list(1, all.verifier, 4096), Err(NfsStat::BadCookie));
}

/// [RFC8881 2.6.3.1.1] [RFC8881 18.29.3] [RFC8881 18.45.3]
#[test]
fn wrong_security_flavor_gets_the_required_ones() {
    let server = Server::new(mem(), "no_root_squash");
    let to = |name: &str, more: Vec<Op>| [vec![Op::PutRootFh(()), lookup(name)], more].concat();
    assert_eq!(server.call(1, to("other", vec![])).0, NfsStat::Wrongsec);
    assert_eq!(server.call(1, to("theirs", vec![])).0, NfsStat::Noent, "hidden from this client");
    let (status, results) =
        server.call(1, vec![Op::PutRootFh(()), Op::SecInfo(b"other".to_vec()), Op::GetFh(())]);
    assert_eq!(status, NfsStat::Nofilehandle, "SECINFO consumes the filehandle");
    let OpResult::SecInfo(Ok(list)) = &results[1] else { panic!("{results:?}") };
    assert_eq!(list.0, [SecInfoEntry::Flavor(AUTH_SYS)]);
    let (_, results) = server.call(0, vec![Op::PutRootFh(()), Op::SecInfo(b"deep".to_vec()), Op::GetFh(())]);
    let OpResult::SecInfo(Ok(list)) = &results[1] else { panic!("{results:?}") };
    assert_eq!(list.0, [SecInfoEntry::Flavor(AUTH_SYS), SecInfoEntry::Flavor(AUTH_NONE)]);
    // A filehandle that another client has passed on.
    let export = server.service.exports().export(2).unwrap().clone();
    let root = export.filesystem.vfs.root().unwrap();
    let target = ivers_nfsd::exports::handle::Target::Object {
        export: 2,
        inode: root.ino.0,
        generation: root.generation,
    };
    let handle = server.service.handles.encode(target);
    let ends = |ops: Vec<Op>| {
        let (status, results) = server.call(1, [vec![put(&handle)], ops].concat());
        (status, results.len())
    };
    assert_eq!(ends(vec![get_attr(&[attr::TYPE])]), (NfsStat::Wrongsec, 1), "PUTFH fails");
    assert_eq!(ends(vec![]), (NfsStat::Ok, 1));
    assert_eq!(ends(vec![lookup("x")]), (NfsStat::Wrongsec, 2), "LOOKUP fails");
    assert_eq!(ends(vec![Op::SecInfoNoName(SecInfoStyle::CurrentFh)]), (NfsStat::Ok, 2));
    assert_eq!(ends(vec![Op::SecInfoNoName(SecInfoStyle::Parent)]), (NfsStat::Ok, 2));
    assert_eq!(ends(vec![Op::SecInfo(b"x".to_vec())]), (NfsStat::Ok, 2));
    assert_eq!(ends(vec![Op::SaveFh(()), Op::RestoreFh(()), Op::GetFh(())]), (NfsStat::Wrongsec, 3));
    assert_eq!(ends(vec![Op::PutRootFh(()), Op::GetFh(())]), (NfsStat::Ok, 3));
    // An excluded address learns nothing else.
    let mut origin = Server::origin(0, 0);
    origin.address = [192, 0, 2, 9].into();
    let res = answer(server.begin(origin, 0, vec![put(&handle)]));
    assert_eq!(res.status, NfsStat::Access);
    let mut origin = Server::origin(0, 0);
    origin.credential = Credential::None;
    let res = answer(server.begin(origin, 0, to("more", vec![])));
    assert_eq!(res.status, NfsStat::Wrongsec);
}

#[test]
fn read_only_export_refuses_changes() {
    let server = Server::new(mem(), "ro,no_root_squash");
    let file = server.file("f", b"x");
    let ends = |op: Op| server.call(2, vec![put(&file), op]).0;
    let write = ivers_nfs4::ops::v40::WriteArgs {
        stateid: ivers_nfs4::types::StateId::ANONYMOUS,
        offset: 0,
        stable: ivers_nfs4::types::StableHow::Unstable,
        data: vec![1].into(),
    };
    assert_eq!(ends(Op::Write(write)), NfsStat::Rofs);
    assert_eq!(ends(Op::RemoveXattr(b"a".to_vec())), NfsStat::Rofs);
    assert_eq!(server.status_of(0, vec![Op::Remove(b"f".to_vec())]), NfsStat::Rofs);
    let (_, results) = server.call(0, vec![put(&file), Op::Access(0x3f)]);
    let OpResult::Access(Ok(access)) = &results[1] else { panic!("{results:?}") };
    assert_eq!(access.access, 1);
}
