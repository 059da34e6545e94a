//! Setting ACLs.

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::{CreateArgs, SetAttrArgs};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Ace, Bitmap, CreateType, FileHandle, StateId};
use ivers_nfs4::xdr::List;
use ivers_vfs::acl::{ACCESS, Acl, DEFAULT, Entry, GROUP, GROUP_OBJ, MASK, OTHER, USER, USER_OBJ};
use ivers_vfs::{Cred, XattrMode};

use ivers_nfs_test::harness::*;

fn stored(server: &Server, path: &str, name: &[u8]) -> Option<Acl> {
    let inode = server.vfs.resolve(&Cred::root(), path, true).unwrap();
    let value = server.vfs.get_xattr(&Cred::root(), &inode, name).ok()?;
    Acl::parse(&value).unwrap()
}

fn aces(server: &Server, handle: &FileHandle) -> List<Ace> {
    server.attrs(0, handle, &[attr::ACL]).acl.unwrap()
}

fn set_as(server: &Server, uid: u32, handle: &FileHandle, attrs: &Attrs) -> (NfsStat, Bitmap) {
    let op = Op::SetAttr(SetAttrArgs { stateid: StateId::ANONYMOUS, attrs: attrs.encode() });
    let (status, results) = server.call_as(uid, 0, vec![put(handle), op]);
    let Some(OpResult::SetAttr(res)) = results.last() else { panic!("{results:?}") };
    (status, res.attrset.clone())
}

fn of(acl: List<Ace>) -> Attrs {
    Attrs { acl: Some(acl), ..Attrs::default() }
}

fn allow(mask: u32, who: &str) -> Ace {
    Ace { kind: 0, flags: 0, mask, who: who.as_bytes().to_vec() }
}

/// An ACL whose mask removes no permission.
fn sample(bits: u32) -> Acl {
    let perm = |at: u32| (bits >> (3 * at) & 7) as u16;
    let entry = |tag, at, id| Entry { tag, perm: perm(at), id };
    let masked = perm(1) | perm(2) | perm(3) | perm(4);
    Acl::new(vec![
        entry(USER_OBJ, 0, 0),
        entry(USER, 1, 7),
        entry(GROUP_OBJ, 2, 0),
        entry(GROUP, 3, 50),
        entry(GROUP, 4, 51),
        Entry { tag: MASK, perm: masked, id: 0 },
        entry(OTHER, 5, 0),
    ])
    .unwrap()
}

#[test]
fn reported_acl_can_be_set_unchanged() {
    on_each_filesystem(|server| {
        let (from, to) = (server.directory("from"), server.directory("to"));
        let inode = server.vfs.resolve(&Cred::root(), "from", true).unwrap();
        let keep = |name: &[u8], acl: &Acl| {
            server.vfs.set_xattr(&Cred::root(), &inode, name, &acl.encode(), XattrMode::Any).unwrap();
        };
        let mut bits = 0o123456u32;
        for _ in 0..200 {
            bits = bits.wrapping_mul(1_103_515_245).wrapping_add(12345);
            keep(ACCESS, &sample(bits >> 8));
            keep(DEFAULT, &sample(bits >> 3));
            let reported = aces(server, &from);
            assert_eq!(set_as(server, 0, &to, &of(reported.clone())), (NfsStat::Ok, Bitmap::of([attr::ACL])));
            for name in [ACCESS, DEFAULT] {
                assert_eq!(stored(server, "to", name), stored(server, "from", name), "{bits:o}");
            }
            assert_eq!(aces(server, &to), reported);
        }
        // A mode alone removes the stored ACL; an ACL without inherited entries removes the default ACL.
        let plain = server.file("plain", b"");
        let mut reported = aces(server, &plain);
        reported.0[0].mask |= 0x40;
        assert_eq!(set_as(server, 0, &to, &of(reported)).0, NfsStat::Ok);
        assert_eq!((stored(server, "to", ACCESS), stored(server, "to", DEFAULT)), (None, None));
        assert_eq!(server.attrs(0, &to, &[attr::MODE]).mode, Some(0o644));
    });
}

/// [RFC8881 6.4.1.3] [RFC8881 18.30.4]
#[test]
fn acl_is_set_after_the_mode() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"");
        let both = Attrs { mode: Some(0o4777), ..of(List(vec![allow(0x1, "OWNER@")])) };
        assert_eq!(set_as(server, 0, &file, &both), (NfsStat::Ok, both.mask()));
        assert_eq!(server.attrs(0, &file, &[attr::MODE]).mode, Some(0o4400));
        assert_eq!(set_as(server, 1000, &file, &of(List(vec![]))).0, NfsStat::Perm);
        let named = (0..900).map(|id| allow(0x1, &(1000 + id).to_string())).collect();
        let (status, set) = set_as(server, 0, &file, &Attrs { mode: Some(0o600), ..of(List(named)) });
        if status != NfsStat::Ok {
            assert_eq!((status, set), (NfsStat::Nospc, Bitmap::of([attr::MODE])), "more than a block holds");
            assert_eq!(server.attrs(0, &file, &[attr::MODE]).mode, Some(0o600));
        }
        let link = Op::Create(CreateArgs {
            kind: CreateType::Lnk(b"target".to_vec()),
            name: b"l".to_vec(),
            attrs: of(List(vec![allow(0x1, "OWNER@")])).encode(),
        });
        assert_eq!(server.status_of(0, vec![link]), NfsStat::Attrnotsupp);
        let made = |acl: Vec<Ace>| {
            let attrs = of(List(acl)).encode();
            Op::Create(CreateArgs { kind: CreateType::Dir, name: b"d".to_vec(), attrs })
        };
        assert_eq!(server.status_of(0, vec![made(vec![allow(0x1, "nobody")])]), NfsStat::Badowner);
        assert_eq!(
            server.status_of(0, vec![made(vec![allow(0x1, "EVERYONE@"), allow(0x20, "9")])]),
            NfsStat::Ok
        );
        let entries = stored(server, "d", ACCESS).unwrap();
        let perms: Vec<(u16, u16)> = entries.entries().iter().map(|entry| (entry.tag, entry.perm)).collect();
        assert_eq!(perms, [(USER_OBJ, 4), (USER, 5), (GROUP_OBJ, 4), (MASK, 5), (OTHER, 4)]);
    });
}
