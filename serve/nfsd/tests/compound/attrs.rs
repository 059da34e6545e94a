//! GETATTR, SETATTR, VERIFY, NVERIFY, ACCESS, and extended attributes.

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::{CreateArgs, SetAttrArgs};
use ivers_nfs4::ops::v42::{ListXattrsArgs, ListXattrsOk, SetXattrArgs, SetXattrOption};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Ace, Bitmap, CreateType, FileHandle, Ftype, ModeMasked, NfsTime, SetTime, StateId};
use ivers_nfsd::state::Access;
use ivers_vfs::{Cred, XattrMode};

use ivers_nfs_test::harness::*;

fn set(stateid: StateId, attrs: &Attrs) -> Op {
    Op::SetAttr(SetAttrArgs { stateid, attrs: attrs.encode() })
}

fn set_as(server: &Server, uid: u32, handle: &FileHandle, attrs: &Attrs) -> (NfsStat, Bitmap) {
    let (status, results) = server.call_as(uid, 2, vec![put(handle), set(StateId::ANONYMOUS, attrs)]);
    let Some(OpResult::SetAttr(res)) = results.last() else { panic!("{results:?}") };
    assert_eq!(res.status, status);
    (status, res.attrset.clone())
}

/// [RFC8881 18.7.3]
#[test]
fn supported_attributes_and_no_others_are_returned() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"hello");
        let root = server.handle(&[]);
        let (_, results) = server.call(0, vec![Op::PutRootFh(()), Op::GetFh(())]);
        let OpResult::GetFh(Ok(pseudo)) = &results[1] else { panic!("{results:?}") };
        for minor in 0..3 {
            for handle in [&file, &root, pseudo] {
                let all: Vec<u32> = Attrs::known().iter().filter(|bit| !attr::is_write_only(*bit)).collect();
                let got = server.attrs(minor, handle, &all);
                let mut supported = got.supported_attrs.clone().unwrap();
                assert!(supported.iter().all(|bit| attr::since(bit) <= minor), "{minor} {supported:?}");
                // [RFC8881 5.6]
                let required = (0..=11).chain([attr::FILEHANDLE]);
                assert!(required.into_iter().all(|bit| supported.contains(bit)));
                assert!(minor == 0 || supported.contains(attr::SUPPATTR_EXCLCREAT));
                for bit in supported.clone().iter().filter(|bit| attr::is_write_only(*bit)) {
                    supported.remove(bit);
                }
                assert_eq!(got.mask(), supported, "{minor}");
            }
            let ops = vec![put(&file), get_attr(&[attr::SIZE, attr::TIME_ACCESS_SET])];
            assert_eq!(server.call(minor, ops).0, NfsStat::Inval);
            let unknown = vec![put(&file), get_attr(&[attr::SIZE, 24, 70, 200])];
            assert_eq!(server.call(minor, unknown).0, NfsStat::Ok, "unknown attributes are omitted");
        }
        let got = server.attrs(
            2,
            &file,
            &[
                attr::TYPE,
                attr::SIZE,
                attr::FSID,
                attr::CHANGE_ATTR_TYPE,
                attr::MODE,
                attr::OWNER,
                attr::XATTR_SUPPORT,
                attr::MAXREAD,
                attr::MOUNTED_ON_FILEID,
                attr::FILEID,
                attr::SPACE_TOTAL,
            ],
        );
        assert_eq!((got.kind, got.size, got.mode), (Some(Ftype::Reg), Some(5), Some(0o644)));
        assert_eq!(got.fsid, server.attrs(0, &root, &[attr::FSID]).fsid);
        assert_ne!(got.fsid, server.attrs(0, pseudo, &[attr::FSID]).fsid);
        assert_eq!((got.owner.as_deref(), got.xattr_support), (Some(&b"0"[..]), Some(true)));
        assert_eq!(got.change_attr_type, Some(attr::ChangeAttrType::MonotonicIncr as u32));
        assert_eq!(got.mounted_on_fileid, got.fileid);
        assert!(got.space_total.unwrap() > 1 << 20 && got.maxread.unwrap() >= 1 << 16);
        let mount = server.attrs(0, &root, &[attr::MOUNTED_ON_FILEID, attr::FILEID]);
        assert_ne!(mount.mounted_on_fileid, mount.fileid, "the client detects the mount point");
    });
}

#[test]
fn change_attribute_differs_after_each_change_only() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"x");
        let mut last = server.change(&file);
        assert_eq!(server.change(&file), last);
        for at in 0..20 {
            let attrs = Attrs { mode: Some(0o600 + at % 2), ..Attrs::default() };
            assert_eq!(set_as(server, 0, &file, &attrs).0, NfsStat::Ok);
            let now = server.change(&file);
            assert!(now > last);
            last = now;
        }
    });
}

/// [RFC8881 18.30.3]
#[test]
fn attributes_are_set() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"hello");
        let at = NfsTime { seconds: 1_234_567_890, nseconds: 123_456_789 };
        let attrs = Attrs {
            size: Some(2),
            mode: Some(0o4711),
            owner: Some(b"1000".to_vec()),
            owner_group: Some(b"100".to_vec()),
            time_access_set: Some(SetTime::Client(at)),
            time_modify_set: Some(SetTime::Client(at)),
            ..Attrs::default()
        };
        assert_eq!(set_as(server, 0, &file, &attrs), (NfsStat::Ok, attrs.mask()));
        let want =
            [attr::SIZE, attr::MODE, attr::OWNER, attr::OWNER_GROUP, attr::TIME_ACCESS, attr::TIME_MODIFY];
        let got = server.attrs(0, &file, &want);
        assert_eq!((got.size, got.mode), (Some(2), Some(0o4711)));
        assert_eq!(
            (got.owner.as_deref(), got.owner_group.as_deref()),
            (Some(&b"1000"[..]), Some(&b"100"[..]))
        );
        assert_eq!((got.time_access, got.time_modify), (Some(at), Some(at)));
        let now = Attrs { time_modify_set: Some(SetTime::Server), ..Attrs::default() };
        assert_eq!(set_as(server, 1000, &file, &now).0, NfsStat::Ok);
        assert!(server.attrs(0, &file, &[attr::TIME_MODIFY]).time_modify.unwrap().seconds > at.seconds);
        let asked = std::mem::take(&mut *server.clients.requested.lock());
        let does: Vec<Access> = asked.into_iter().map(|(_, does)| does).collect();
        assert_eq!(does, [Access::Resize, Access::Metadata]);
        assert_eq!(set_as(server, 0, &file, &Attrs::default()), (NfsStat::Ok, Bitmap::default()));
    });
}

/// [RFC8881 6.2.5]
#[test]
fn masked_mode_bits_are_set() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"hello");
        let masked =
            |value, mask| Attrs { mode_set_masked: Some(ModeMasked { value, mask }), ..Attrs::default() };
        let mode = |server: &Server| server.attrs(0, &file, &[attr::MODE]).mode.unwrap();
        assert_eq!(
            set_as(server, 0, &file, &Attrs { mode: Some(0o4640), ..Attrs::default() }).0,
            NfsStat::Ok
        );
        for (value, mask, after) in [
            (0o007, 0o007, 0o4647),
            (0o777, 0o010, 0o4657),
            (0, 0o200, 0o4457),
            (0o7777, 0, 0o4457),
            (0o124, 0o7777, 0o124),
            (0o4000, 0o4000, 0o4124),
        ] {
            let attrs = masked(value, mask);
            assert_eq!(set_as(server, 0, &file, &attrs), (NfsStat::Ok, attrs.mask()));
            assert_eq!(mode(server), after, "{value:o} {mask:o}");
        }
        // Changing the owner clears the set-id bits, unless the client sets them explicitly.
        let given = |bits: Attrs, owner: &str| Attrs { owner: Some(owner.into()), ..bits };
        assert_eq!(set_as(server, 0, &file, &given(masked(0o600, 0o700), "7")).0, NfsStat::Ok);
        assert_eq!(mode(server), 0o624);
        assert_eq!(set_as(server, 0, &file, &given(masked(0o4000, 0o4000), "8")).0, NfsStat::Ok);
        assert_eq!(mode(server), 0o4624);
        for wrong in [masked(0o10000, 0), masked(0, 0o10000), Attrs { mode: Some(0o600), ..masked(0, 0o7) }] {
            assert_eq!(set_as(server, 0, &file, &wrong).0, NfsStat::Inval);
        }
        assert_eq!(set_as(server, 4242, &file, &masked(0, 0)).0, NfsStat::Perm);
        let made = Op::Create(CreateArgs {
            kind: CreateType::Dir,
            name: b"new".to_vec(),
            attrs: masked(0o700, 0o700).encode(),
        });
        assert_eq!(server.call(1, vec![put(&server.handle(&[])), made]).0, NfsStat::Inval);
        // NFSv4.0 does not have the attribute.
        let op = Op::SetAttr(SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: masked(0, 0).encode() });
        assert_eq!(server.call(0, vec![put(&file), op]).0, NfsStat::Attrnotsupp);
    });
}

/// [RFC8881 18.30.3] [RFC8881 5.9] [RFC8881 14.5] [RFC8881 18.30.4]
#[test]
fn invalid_attributes_are_refused() {
    on_each_filesystem(|server| {
        let (file, dir) = (server.file("f", b"hello"), server.directory("d"));
        let plain = Attrs::default;
        let ends = |handle: &FileHandle, attrs: Attrs| set_as(server, 0, handle, &attrs);
        let refused = |status| (status, Bitmap::default());
        assert_eq!(ends(&file, Attrs { change: Some(1), ..plain() }), refused(NfsStat::Inval));
        assert_eq!(ends(&file, Attrs { archive: Some(true), ..plain() }), refused(NfsStat::Attrnotsupp));
        assert_eq!(ends(&file, Attrs { mode: Some(0o10000), ..plain() }), refused(NfsStat::Inval));
        let late = NfsTime { seconds: 0, nseconds: 1_000_000_000 };
        let time = Attrs { time_access_set: Some(SetTime::Client(late)), ..plain() };
        assert_eq!(ends(&file, time), refused(NfsStat::Inval));
        for owner in ["root", "01", "x@y"] {
            let owner = Attrs { owner: Some(owner.as_bytes().to_vec()), ..plain() };
            assert_eq!(ends(&file, owner), refused(NfsStat::Badowner));
        }
        // [RFC8881 14.5]
        assert_eq!(ends(&file, Attrs { owner: Some(vec![]), ..plain() }), refused(NfsStat::Inval));
        assert_eq!(ends(&file, Attrs { owner_group: Some(vec![]), ..plain() }), refused(NfsStat::Inval));
        // A stateid of another user's open grants nothing.
        let stolen = Op::SetAttr(SetAttrArgs {
            stateid: StateId { seqid: 1, other: [5; 12] },
            attrs: Attrs { size: Some(0), ..plain() }.encode(),
        });
        assert_eq!(server.call_as(NON_OPENER, 0, vec![put(&file), stolen]).0, NfsStat::Access);
        assert_eq!(ends(&dir, Attrs { size: Some(0), ..plain() }), refused(NfsStat::Isdir));
        assert_eq!(ends(&file, Attrs { size: Some(u64::MAX), ..plain() }), refused(NfsStat::Fbig));
        let mut broken = Attrs { size: Some(1), ..plain() }.encode();
        broken.values.push(0);
        let op = Op::SetAttr(SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: broken });
        assert_eq!(server.call(0, vec![put(&file), op]).0, NfsStat::Badxdr);
        let user = |attrs: Attrs| set_as(server, 1000, &file, &attrs);
        assert_eq!(user(Attrs { mode: Some(0o777), ..plain() }), refused(NfsStat::Perm));
        assert_eq!(user(Attrs { size: Some(0), ..plain() }), refused(NfsStat::Access));
        assert_eq!(user(Attrs { owner: Some(b"1000".to_vec()), ..plain() }), refused(NfsStat::Perm));
        // A caller that has the file open for writing may truncate it; if it requests more than it may,
        // nothing changes.
        let open = StateId { seqid: 1, other: [5; 12] };
        let by_open = |attrs: &Attrs| {
            let (status, results) = server.call_as(1000, 0, vec![put(&file), set(open, attrs)]);
            let Some(OpResult::SetAttr(res)) = results.last() else { panic!("{results:?}") };
            let got = server.attrs(0, &file, &[attr::SIZE, attr::MODE]);
            assert_eq!(got.mode, Some(0o644));
            (status, res.attrset.clone(), got.size)
        };
        let size = server.attrs(0, &file, &[attr::SIZE]).size;
        let both = Attrs { size: Some(1), mode: Some(0o777), ..plain() };
        assert_eq!(by_open(&both), (NfsStat::Perm, Bitmap::default(), size));
        let cut = (NfsStat::Ok, Bitmap::of([attr::SIZE]), Some(1));
        assert_eq!(by_open(&Attrs { size: Some(1), ..plain() }), cut);
        let (status, _) = server
            .call(0, vec![Op::PutRootFh(()), set(StateId::ANONYMOUS, &Attrs { mode: Some(0), ..plain() })]);
        assert_eq!(status, NfsStat::Rofs);
    });
}

/// [RFC8881 18.31.3] [RFC8881 18.15.3]
#[test]
fn attributes_are_compared() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"hello");
        let both = |attrs: Attrs| {
            let fattr = attrs.encode();
            let verify = server.call(1, vec![put(&file), Op::Verify(fattr.clone())]).0;
            (verify, server.call(1, vec![put(&file), Op::NVerify(fattr)]).0)
        };
        let same = (NfsStat::Ok, NfsStat::Same);
        let other = (NfsStat::NotSame, NfsStat::Ok);
        let plain = Attrs::default;
        let change = server.change(&file);
        assert_eq!(both(Attrs { size: Some(5), change: Some(change), ..plain() }), same);
        assert_eq!(both(Attrs { size: Some(5), change: Some(change + 1), ..plain() }), other);
        assert_eq!(both(Attrs { size: Some(4), ..plain() }), other);
        assert_eq!(both(plain()), same);
        let inval = (NfsStat::Inval, NfsStat::Inval);
        assert_eq!(both(Attrs { rdattr_error: Some(0), ..plain() }), inval);
        assert_eq!(both(Attrs { time_modify_set: Some(SetTime::Server), ..plain() }), inval);
        let not = (NfsStat::Attrnotsupp, NfsStat::Attrnotsupp);
        assert_eq!(both(Attrs { hidden: Some(true), ..plain() }), not);
        let later = Attrs { xattr_support: Some(true), ..plain() };
        assert_eq!(both(later), not, "attribute of a later version");
    });
}

/// [RFC8881 18.1.3]
#[test]
fn access_agrees_with_permission_checks() {
    on_each_filesystem(|server| {
        let (file, dir) = (server.file("f", b""), server.directory("d"));
        let ask = |uid, minor, handle: &FileHandle, want| {
            let (status, results) = server.call_as(uid, minor, vec![put(handle), Op::Access(want)]);
            match results.last() {
                Some(OpResult::Access(Ok(ok))) => Ok((ok.supported, ok.access)),
                _ => Err(status),
            }
        };
        assert_eq!(ask(0, 0, &file, 0x3f), Ok((0x2d, 0x0d)), "no execute permission");
        assert_eq!(ask(1000, 0, &file, 0x3f), Ok((0x2d, 0x01)));
        assert_eq!(ask(1000, 0, &file, 0x04), Ok((0x04, 0)));
        assert_eq!(ask(0, 0, &dir, 0x3f), Ok((0x1f, 0x1f)));
        assert_eq!(ask(1000, 0, &dir, 0x3f), Ok((0x1f, 0x03)));
        assert_eq!(ask(1000, 2, &file, 0x1ff), Ok((0x1ed, 0x141)));
        assert_eq!(ask(1000, 1, &file, 0x40), Err(NfsStat::Inval), "attribute of a later version");
        assert_eq!(ask(1000, 2, &file, 0x200), Err(NfsStat::Inval));
    });
}

fn acl(server: &Server, handle: &FileHandle) -> Vec<(u32, u32, u32, String)> {
    let aces = server.attrs(0, handle, &[attr::ACL]).acl.unwrap().0;
    let text = |ace: &Ace| String::from_utf8(ace.who.clone()).unwrap();
    aces.iter().map(|ace| (ace.kind, ace.flags, ace.mask & 0x27, text(ace))).collect()
}

#[test]
fn posix_acls_are_reported_as_nfs4_acls() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"");
        let entry = |kind, flags, mask, who: &str| (kind, flags, mask, who.to_owned());
        assert_eq!(
            acl(server, &file),
            [entry(0, 0, 0x7, "OWNER@"), entry(0, 0, 0x1, "GROUP@"), entry(0, 0, 0x1, "EVERYONE@"),]
        );
        // user::r-- user:7:rwx group::--x group:9:rw- mask::rw- other::r-x
        let value: Vec<u8> = [
            (1u16, 4u16, u32::MAX),
            (2, 7, 7),
            (4, 1, u32::MAX),
            (8, 6, 9),
            (16, 6, u32::MAX),
            (32, 5, u32::MAX),
        ]
        .iter()
        .flat_map(|(tag, perm, id)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat())
        .collect();
        let value = [&2u32.to_le_bytes()[..], &value].concat();
        let inode = server.vfs.resolve(&Cred::root(), "f", true).unwrap();
        let name = "system.posix_acl_access";
        server.vfs.set_xattr(&Cred::root(), &inode, name, &value, XattrMode::Any).unwrap();
        assert_eq!(
            acl(server, &file),
            [
                entry(0, 0, 0x1, "OWNER@"),
                entry(1, 0, 0x26, "OWNER@"),
                entry(0, 0, 0x7, "7"),
                entry(1, 0, 0x20, "7"),
                entry(0, 0, 0x0, "GROUP@"),
                entry(0, 0x40, 0x7, "9"),
                entry(1, 0, 0x21, "GROUP@"),
                entry(1, 0x40, 0x20, "9"),
                entry(0, 0, 0x21, "EVERYONE@"),
            ]
        );
        // The converted ACL and the VFS agree on the rights.
        for (uid, gid) in [(0, 0), (7, 7), (8, 9), (8, 0), (8, 8)] {
            let aces = server.attrs(0, &file, &[attr::ACL]).acl.unwrap().0;
            for (bit, want) in [(0x1, 4), (0x2, 2), (0x20, 1)] {
                let decided = aces.iter().find(|ace| {
                    let applies = match (ace.who.as_slice(), ace.flags & 0x40 != 0) {
                        (b"OWNER@", _) => uid == 0,
                        (b"GROUP@", _) => gid == 0,
                        (b"EVERYONE@", _) => true,
                        (who, true) => who == gid.to_string().as_bytes(),
                        (who, false) => who == uid.to_string().as_bytes(),
                    };
                    applies && ace.mask & bit != 0
                });
                let allowed = decided.is_some_and(|ace| ace.kind == 0);
                let posix = ivers_vfs::acl::Acl::parse(&value).unwrap().unwrap();
                assert_eq!(allowed, posix.permits(&Cred::user(uid, gid), 0, 0, want), "{uid} {gid} {want}");
            }
        }
    });
}

/// [RFC8276 8.4.1.3] [RFC8276 8.4.2.3] [RFC8276 8.4.3.3]
#[test]
fn extended_attributes() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"");
        let call = |op: Op| {
            let (status, mut results) = server.call(2, vec![put(&file), op]);
            (status, results.pop().unwrap())
        };
        let put_in = |option, name: &str, value: &[u8]| {
            let args = SetXattrArgs { option, name: name.as_bytes().to_vec(), value: value.to_vec() };
            call(Op::SetXattr(args))
        };
        let list = |cookie, maxcount| match call(Op::ListXattrs(ListXattrsArgs { cookie, maxcount })) {
            (_, OpResult::ListXattrs(Ok(listed))) => Ok(listed),
            (status, _) => Err(status),
        };
        let nothing = ListXattrsOk { cookie: 0, names: ivers_nfs4::xdr::List(vec![]), eof: true };
        assert_eq!(list(0, 100), Ok(nothing));
        let before = server.change(&file);
        let (status, result) = put_in(SetXattrOption::Either, "b", b"two");
        assert_eq!(status, NfsStat::Ok);
        let OpResult::SetXattr(Ok(info)) = result else { panic!("{result:?}") };
        assert_changed(&info);
        assert_eq!((info.before, info.after), (before, server.change(&file)));
        assert_eq!(put_in(SetXattrOption::Create, "b", b"x").0, NfsStat::Exist);
        assert_eq!(put_in(SetXattrOption::Replace, "a", b"x").0, NfsStat::Noxattr);
        assert_eq!(put_in(SetXattrOption::Create, "a", b"one").0, NfsStat::Ok);
        assert_eq!(call(Op::GetXattr(b"b".to_vec())).1, OpResult::GetXattr(Ok(b"two".to_vec())));
        assert_eq!(call(Op::GetXattr(b"c".to_vec())).0, NfsStat::Noxattr);
        assert_eq!(call(Op::GetXattr(vec![])).0, NfsStat::Inval);
        assert_eq!(call(Op::GetXattr(vec![0xff])).0, NfsStat::Inval);
        assert_eq!(call(Op::GetXattr(vec![b'n'; 251])).0, NfsStat::Nametoolong);
        assert_eq!(put_in(SetXattrOption::Either, "big", &[0; 70_000]).0, NfsStat::Xattr2big);
        let all = list(0, 100).unwrap();
        assert_eq!((all.names.0, all.eof), (vec![b"a".to_vec(), b"b".to_vec()], true));
        let first = list(0, 24).unwrap();
        assert_eq!((first.names.0, first.eof), (vec![b"a".to_vec()], false));
        assert_eq!(list(first.cookie, 24).unwrap().names.0, [b"b".to_vec()]);
        assert_eq!(list(0, 20), Err(NfsStat::Toosmall));
        assert_eq!(call(Op::RemoveXattr(b"a".to_vec())).0, NfsStat::Ok);
        assert_eq!(call(Op::RemoveXattr(b"a".to_vec())).0, NfsStat::Noxattr);
        // Attributes outside the user namespace are not listed.
        let inode = server.vfs.resolve(&Cred::root(), "f", true).unwrap();
        server.vfs.set_xattr(&Cred::root(), &inode, "trusted.t", b"x", XattrMode::Any).unwrap();
        assert_eq!(list(0, 100).unwrap().names.0, [b"b".to_vec()]);
        let (status, _) = server.call_as(1000, 2, vec![put(&file), Op::RemoveXattr(b"b".to_vec())]);
        assert_eq!(status, NfsStat::Access);
        let (status, _) = server.call(1, vec![put(&file), Op::GetFh(()), get_attr(&[attr::XATTR_SUPPORT])]);
        assert_eq!(status, NfsStat::Ok);
        assert_eq!(server.call(2, vec![Op::PutRootFh(()), Op::GetXattr(b"a".to_vec())]).0, NfsStat::Notsupp);
    });
}
