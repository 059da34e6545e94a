//! CREATE, LINK, REMOVE, RENAME, READDIR, READLINK.

use std::collections::BTreeSet;

use ivers_nfs4::attr::{self, Attrs};
use ivers_nfs4::ops::v40::{CreateArgs, Entry, ReadDirArgs, ReadDirOk, RenameArgs};
use ivers_nfs4::ops::{Op, OpResult};
use ivers_nfs4::status::NfsStat;
use ivers_nfs4::types::{Ace, Bitmap, CreateType, FileHandle, Ftype, ModeUmask, SpecData};
use ivers_vfs::{CreateSpec, Cred};

use ivers_nfs_test::harness::*;

fn create(kind: CreateType, name: &str, attrs: Attrs) -> Op {
    Op::Create(CreateArgs { kind, name: name.as_bytes().to_vec(), attrs: attrs.encode() })
}

fn remove(name: &str) -> Op {
    Op::Remove(name.as_bytes().to_vec())
}

fn rename(old: &str, new: &str) -> Op {
    Op::Rename(RenameArgs { old: old.as_bytes().to_vec(), new: new.as_bytes().to_vec() })
}

/// [RFC8881 18.4.3] [RFC8881 18.24.3]
#[test]
fn create_makes_all_types_but_files() {
    on_each_filesystem(|server| {
        let device = SpecData { major: 0xabc, minor: 0xf_1234 };
        let kinds = [
            (CreateType::Dir, Ftype::Dir),
            (CreateType::Lnk(b"to/somewhere".to_vec()), Ftype::Lnk),
            (CreateType::Sock, Ftype::Sock),
            (CreateType::Fifo, Ftype::Fifo),
            (CreateType::Blk(device), Ftype::Blk),
            (CreateType::Chr(device), Ftype::Chr),
        ];
        let root = server.handle(&[]);
        for (at, (kind, ftype)) in kinds.into_iter().enumerate() {
            let name = format!("n{at}");
            let attrs = Attrs { mode: Some(0o750), owner: Some(b"7".to_vec()), ..Attrs::default() };
            let before = server.change(&root);
            let want = [attr::TYPE, attr::MODE, attr::OWNER, attr::RAWDEV, attr::FILEID];
            let (status, results) =
                server.at_root(0, vec![create(kind, &name, attrs.clone()), get_attr(&want)]);
            assert_eq!(status, NfsStat::Ok, "{results:?}");
            let OpResult::Create(Ok(made)) = &results[0] else { panic!("{results:?}") };
            assert_changed(&made.cinfo);
            assert_eq!((made.cinfo.before, made.cinfo.after), (before, server.change(&root)));
            assert_eq!(made.attrset, attrs.mask());
            let OpResult::GetAttr(Ok(fattr)) = &results[1] else { panic!("{results:?}") };
            let got = Attrs::decode(fattr).unwrap();
            assert_eq!((got.kind, got.owner), (Some(ftype), Some(b"7".to_vec())));
            if ftype != Ftype::Lnk {
                assert_eq!(got.mode, Some(0o750));
            }
            let is_device = matches!(ftype, Ftype::Blk | Ftype::Chr);
            let none = SpecData { major: 0, minor: 0 };
            assert_eq!(got.rawdev, Some(if is_device { device } else { none }));
        }
        let (_, results) = server.at_root(0, vec![lookup("n1"), Op::ReadLink(())]);
        assert_eq!(results[1], OpResult::ReadLink(Ok(b"to/somewhere".to_vec())));
        let wrong = |minor| server.status_of(minor, vec![lookup("n0"), Op::ReadLink(())]);
        assert_eq!([wrong(0), wrong(1)], [NfsStat::Inval, NfsStat::WrongType]);
    });
}

/// [RFC8881 18.4.3] [RFC8881 18.25.3]
#[test]
fn failed_create_leaves_nothing() {
    on_each_filesystem(|server| {
        server.file("f", b"");
        let ends = |kind, name: &str, attrs| server.status_of(2, vec![create(kind, name, attrs)]);
        let plain = Attrs::default;
        assert_eq!(ends(CreateType::Other(1), "x", plain()), NfsStat::Badtype);
        assert_eq!(ends(CreateType::Other(99), "x", plain()), NfsStat::Badtype);
        assert_eq!(ends(CreateType::Dir, "f", plain()), NfsStat::Exist);
        assert_eq!(ends(CreateType::Dir, "..", plain()), NfsStat::Badname);
        assert_eq!(ends(CreateType::Dir, "", plain()), NfsStat::Inval);
        assert_eq!(ends(CreateType::Lnk(vec![]), "x", plain()), NfsStat::Inval);
        assert_eq!(ends(CreateType::Lnk(vec![b'a'; 5000]), "x", plain()), NfsStat::Nametoolong);
        let huge = SpecData { major: 1 << 12, minor: 0 };
        assert_eq!(ends(CreateType::Chr(huge), "x", plain()), NfsStat::Inval);
        let sized = Attrs { size: Some(1), ..plain() };
        assert_eq!(ends(CreateType::Dir, "x", sized), NfsStat::Inval);
        let audit = Ace { kind: 2, flags: 0, mask: 1, who: b"EVERYONE@".to_vec() };
        let acl = Attrs { acl: Some(ivers_nfs4::xdr::List(vec![audit])), ..plain() };
        assert_eq!(ends(CreateType::Dir, "x", acl), NfsStat::Attrnotsupp);
        let owner = Attrs { owner: Some(b"nobody@nowhere".to_vec()), ..plain() };
        assert_eq!(ends(CreateType::Dir, "x", owner), NfsStat::Badowner);
        assert_eq!(
            server.status_of(0, vec![lookup("f"), create(CreateType::Dir, "x", plain())]),
            NfsStat::Notdir
        );
        // A user without write permission for the directory, and one who creates devices or changes owners.
        let as_user = |ops: Vec<Op>| server.call_as(1000, 0, [data(), ops].concat()).0;
        assert_eq!(as_user(vec![create(CreateType::Dir, "x", plain())]), NfsStat::Access);
        assert_eq!(
            server.status_of(0, vec![create(CreateType::Dir, "t", Attrs { mode: Some(0o777), ..plain() })]),
            NfsStat::Ok
        );
        let given = Attrs { owner: Some(b"7".to_vec()), ..plain() };
        assert_eq!(as_user(vec![lookup("t"), create(CreateType::Dir, "x", given)]), NfsStat::Perm);
        let group = Attrs { owner_group: Some(b"7".to_vec()), ..plain() };
        assert_eq!(as_user(vec![lookup("t"), create(CreateType::Dir, "x", group)]), NfsStat::Perm);
        let small = SpecData { major: 1, minor: 3 };
        assert_eq!(as_user(vec![lookup("t"), create(CreateType::Chr(small), "x", plain())]), NfsStat::Perm);
        assert_eq!(
            server.status_of(0, vec![lookup("t"), lookup("x")]),
            NfsStat::Noent,
            "nothing was created"
        );
        let umask = Attrs { mode_umask: Some(ModeUmask { mode: 0o777, umask: 0o27 }), ..plain() };
        let (_, results) =
            server.at_root(2, vec![create(CreateType::Dir, "u", umask), get_attr(&[attr::MODE])]);
        let OpResult::GetAttr(Ok(fattr)) = &results[1] else { panic!("{results:?}") };
        assert_eq!(Attrs::decode(fattr).unwrap().mode, Some(0o750));
    });
}

/// [RFC8881 18.9.3]
#[test]
fn link_adds_a_name() {
    on_each_filesystem(|server| {
        let (file, root) = (server.file("f", b"x"), server.handle(&[]));
        let dir = server.directory("d");
        let link = |from: &FileHandle, to: &FileHandle, name: &str| {
            let ops = vec![put(from), Op::SaveFh(()), put(to), Op::Link(name.as_bytes().to_vec())];
            server.call(0, ops)
        };
        let (status, results) = link(&file, &root, "g");
        assert_eq!(status, NfsStat::Ok);
        let OpResult::Link(Ok(info)) = &results[3] else { panic!("{results:?}") };
        assert_changed(info);
        assert_eq!(server.handle(&["g"]), file);
        assert_eq!(server.attrs(0, &file, &[attr::NUMLINKS]).numlinks, Some(2));
        assert_eq!(link(&file, &root, "g").0, NfsStat::Exist);
        assert_eq!(link(&dir, &root, "x").0, NfsStat::Isdir);
        assert_eq!(link(&file, &file, "x").0, NfsStat::Notdir);
        assert_eq!(link(&file, &root, "a/b").0, NfsStat::Badchar);
        let (_, results) = server.call(0, vec![Op::PutRootFh(()), lookup("more"), Op::GetFh(())]);
        let OpResult::GetFh(Ok(more)) = &results[2] else { panic!("{results:?}") };
        assert_eq!(link(&file, more, "x").0, NfsStat::Rofs);
        assert_eq!(link(more, &root, "x").0, NfsStat::Isdir);
        assert_eq!(server.call(0, vec![put(&root), Op::Link(b"x".to_vec())]).0, NfsStat::Nofilehandle);
    });
}

/// An access is granted for a file, not for a name: no other file is removed or replaced.
#[test]
fn concurrently_changed_names_are_checked_again() {
    on_each_filesystem(|server| {
        for op in [remove("f"), rename("f", "x"), rename("y", "f")] {
            for name in ["f", "g", "y"] {
                server.file(name, b"");
            }
            let (vfs, root) = (server.vfs.clone(), server.vfs.root().unwrap());
            let number =
                |name: &str| vfs.lookup(&Cred::root(), &root, name.as_bytes()).map(|inode| inode.ino.0);
            let (f, g) = (number("f").unwrap(), number("g").unwrap());
            let (other, dir) = (vfs.clone(), root.clone());
            *server.clients.during_next_permit.lock() = Some(Box::new(move || {
                let flags = ivers_vfs::RenameFlags::empty();
                other.rename(&Cred::root(), &dir, b"g", &dir, b"f", flags, false).unwrap();
            }));
            server.clients.files.lock().clear();
            let handle = server.handle(&[]);
            let (status, results) = server.call(0, vec![put(&handle), Op::SaveFh(()), op.clone()]);
            assert_eq!(status, NfsStat::Ok, "{results:?}");
            let asked = server.clients.files.lock().clone();
            assert!(asked.contains(&g), "{op:?} removed a file without checking its delegations: {asked:?}");
            assert!(number("f").ok().is_none_or(|now| now != f && now != g), "{op:?}");
            for name in ["f", "x", "y"] {
                let _ = vfs.unlink(&Cred::root(), &root, name.as_bytes(), false);
            }
        }
    });
}

/// [RFC8881 18.25.3]
#[test]
fn remove_deletes_a_name() {
    on_each_filesystem(|server| {
        server.file("f", b"x");
        let dir = server.directory("d");
        let (_, results) = server.at_root(0, vec![remove("f")]);
        let OpResult::Remove(Ok(info)) = &results[0] else { panic!("{results:?}") };
        assert_changed(info);
        assert_eq!(server.status_of(0, vec![remove("f")]), NfsStat::Noent);
        for (name, status) in [(".", NfsStat::Badname), ("..", NfsStat::Badname), ("", NfsStat::Inval)] {
            assert_eq!(server.status_of(0, vec![remove(name)]), status);
        }
        let inside = create(CreateType::Fifo, "x", Attrs::default());
        assert_eq!(server.call(0, vec![put(&dir), inside]).0, NfsStat::Ok);
        assert_eq!(server.status_of(0, vec![remove("d")]), NfsStat::Notempty);
        assert_eq!(server.call(0, vec![put(&dir), remove("x")]).0, NfsStat::Ok);
        assert_eq!(server.status_of(0, vec![remove("d")]), NfsStat::Ok);
        assert_eq!(server.call(0, vec![put(&dir)]).0, NfsStat::Stale);
        server.file("f", b"x");
        assert_eq!(server.call_as(1000, 0, [data(), vec![remove("f")]].concat()).0, NfsStat::Access);
        // Another client holds a delegation.
        let delay = ivers_nfsd::state::Stop::Fail(NfsStat::Delay);
        server.clients.stops.lock().push_back(delay);
        assert_eq!(server.status_of(0, vec![remove("f")]), NfsStat::Delay);
        assert_eq!(server.status_of(0, vec![lookup("f")]), NfsStat::Ok);
    });
}

/// [RFC8881 18.26.3]
#[test]
fn rename_moves_a_name() {
    on_each_filesystem(|server| {
        let file = server.file("f", b"x");
        let (root, a, b) = (server.handle(&[]), server.directory("a"), server.directory("b"));
        let act = |from: &FileHandle, to: &FileHandle, old: &str, new: &str| {
            server.call(0, vec![put(from), Op::SaveFh(()), put(to), rename(old, new)])
        };
        let ends = |from, to, old, new| act(from, to, old, new).0;
        let (status, results) = act(&root, &a, "f", "g");
        assert_eq!(status, NfsStat::Ok);
        let OpResult::Rename(Ok(renamed)) = &results[3] else { panic!("{results:?}") };
        assert_changed(&renamed.source);
        assert_changed(&renamed.target);
        assert_eq!((renamed.source.after, renamed.target.after), (server.change(&root), server.change(&a)));
        assert_eq!(server.handle(&["a", "g"]), file);
        assert_eq!(ends(&root, &a, "f", "g"), NfsStat::Noent);
        assert_eq!(ends(&root, &root, "a", "b"), NfsStat::Ok, "an empty directory is replaced");
        assert_eq!(server.call(0, vec![put(&b)]).0, NfsStat::Stale);
        let b = server.directory("c");
        server.file("x", b"");
        // A directory and a file, and a directory that is not empty.
        assert_eq!(ends(&root, &root, "c", "x"), NfsStat::Exist);
        assert_eq!(ends(&root, &root, "x", "c"), NfsStat::Exist);
        assert_eq!(ends(&root, &root, "c", "b"), NfsStat::Exist);
        assert_eq!(ends(&root, &b, "c", "y"), NfsStat::Inval, "into itself");
        assert_eq!(ends(&root, &root, "..", "y"), NfsStat::Badname);
        assert_eq!(ends(&root, &root, "x", "."), NfsStat::Badname);
        assert_eq!(ends(&file, &root, "x", "y"), NfsStat::Notdir);
        assert_eq!(ends(&root, &file, "x", "y"), NfsStat::Notdir);
        assert_eq!(ends(&root, &root, "x", "x"), NfsStat::Ok);
        assert_eq!(server.status_of(0, vec![lookup("x")]), NfsStat::Ok);
    });
}

fn list(server: &Server, minor: u32, dir: &FileHandle, args: ReadDirArgs) -> Result<ReadDirOk, NfsStat> {
    let (status, results) = server.call(minor, vec![put(dir), Op::ReadDir(args)]);
    match results.into_iter().next_back() {
        Some(OpResult::ReadDir(Ok(listed))) => Ok(listed),
        _ => Err(status),
    }
}

fn args(maxcount: u32, attrs: &[u32]) -> ReadDirArgs {
    let attrs = Bitmap::of(attrs.iter().copied());
    ReadDirArgs { cookie: 0, verifier: [0; 8], dircount: 0, maxcount, attrs }
}

/// [RFC8881 18.23.3]
#[test]
fn readdir_lists_each_name_once_in_any_batch_size() {
    on_each_filesystem(|server| {
        let root = server.handle(&[]);
        let mut names = BTreeSet::new();
        for at in 0..300 {
            let name = format!("{}{at}", "n".repeat(at % 40));
            server.file(&name, &vec![0; at]);
            names.insert(name.into_bytes());
        }
        let vfs_root = server.vfs.root().unwrap();
        server.vfs.create(&Cred::root(), &vfs_root, b"\xff\xfe", &CreateSpec::file(0o600), false).unwrap();
        let want = [attr::SIZE, attr::FILEHANDLE, attr::FILEID];
        for (minor, maxcount) in [(0, 200), (1, 1000), (2, 32768)] {
            let mut seen: Vec<Entry> = Vec::new();
            let mut args = args(maxcount, &want);
            loop {
                let listed = list(server, minor, &root, args.clone()).unwrap();
                use ivers_nfs4::xdr::Xdr;
                assert!(listed.to_bytes().len() <= maxcount as usize);
                assert!(listed.eof || !listed.entries.is_empty());
                assert!(listed.entries.iter().all(|entry| entry.cookie > 2));
                seen.extend(listed.entries);
                if listed.eof {
                    break;
                }
                args.cookie = seen.last().unwrap().cookie;
                args.verifier = listed.verifier;
            }
            let found: Vec<_> =
                seen.iter().map(|entry| entry.name.clone()).filter(|name| name != b"lost+found").collect();
            assert_eq!(found.iter().cloned().collect::<BTreeSet<_>>(), names);
            assert_eq!(found.len(), names.len());
            for entry in seen.iter().filter(|entry| entry.name.starts_with(b"n")).take(20) {
                let attrs = Attrs::decode(&entry.attrs).unwrap();
                let name = String::from_utf8(entry.name.clone()).unwrap();
                let digits: String = name.chars().filter(char::is_ascii_digit).collect();
                assert_eq!(attrs.size, Some(digits.parse().unwrap()));
                assert_eq!(attrs.filehandle, Some(server.handle(&[&name])));
            }
        }
        // Listing without inodes gives the same names.
        let quick = list(server, 0, &root, args(1 << 19, &[attr::FILEID])).unwrap();
        let slow = list(server, 0, &root, args(1 << 19, &[attr::FILEID, attr::TYPE])).unwrap();
        let ids = |listed: &ReadDirOk| -> Vec<_> {
            let id = |entry: &Entry| Attrs::decode(&entry.attrs).unwrap().fileid;
            listed.entries.iter().map(|entry| (entry.name.clone(), id(entry))).collect()
        };
        assert_eq!(ids(&quick), ids(&slow));
        let few = ReadDirArgs { dircount: 40, ..args(1 << 19, &[]) };
        assert!(list(server, 0, &root, few).unwrap().entries.len() < 4);
    });
}

/// Some clients send zero instead of the verifier, for example libnfs.
#[test]
fn a_listing_continues_without_its_verifier() {
    on_each_filesystem(|server| {
        let root = server.handle(&[]);
        (0..100).for_each(|nth| drop(server.file(&format!("n{nth}"), b"")));
        let all = list(server, 0, &root, args(1 << 19, &[])).unwrap();
        assert!(all.eof && all.entries.len() >= 100);
        let (mut seen, mut requests) = (Vec::new(), 0);
        let mut part = args(1024, &[]);
        loop {
            let listed = list(server, 0, &root, part.clone()).unwrap();
            assert_ne!(listed.verifier, part.verifier, "zero is not the verifier");
            requests += 1;
            seen.extend(listed.entries);
            if listed.eof {
                break;
            }
            part.cookie = seen.last().unwrap().cookie;
        }
        assert_eq!(seen, all.entries);
        assert!(requests > 2);
    });
}

/// [RFC8881 18.23.3]
#[test]
fn invalid_readdir_arguments_are_refused() {
    on_each_filesystem(|server| {
        let (root, file) = (server.handle(&[]), server.file("f", b""));
        let ends = |dir: &FileHandle, args| list(server, 1, dir, args).map(|listed| listed.entries.len());
        assert_eq!(ends(&file, args(4096, &[])), Err(NfsStat::Notdir));
        assert_eq!(ends(&root, args(16, &[])), Err(NfsStat::Toosmall));
        assert_eq!(ends(&root, args(4096, &[attr::TIME_MODIFY_SET])), Err(NfsStat::Inval));
        for cookie in [1, 2] {
            let args = ReadDirArgs { cookie, ..args(4096, &[]) };
            assert_eq!(ends(&root, args), Err(NfsStat::BadCookie));
        }
        let foreign = ReadDirArgs { cookie: 99, verifier: [3; 8], ..args(4096, &[]) };
        assert_eq!(ends(&root, foreign), Err(NfsStat::NotSame));
        let hidden = create(CreateType::Dir, "h", Attrs { mode: Some(0o744), ..Attrs::default() });
        assert_eq!(server.status_of(0, vec![hidden]), NfsStat::Ok);
        let hidden = server.handle(&["h"]);
        let inside = create(CreateType::Fifo, "x", Attrs::default());
        assert_eq!(server.call(0, vec![put(&hidden), inside]).0, NfsStat::Ok);
        // Read permission without search permission: names with an error for each.
        let as_user = |attrs: &[u32]| {
            let ops = vec![put(&hidden), Op::ReadDir(args(4096, attrs))];
            server.call_as(1000, 0, ops)
        };
        assert_eq!(as_user(&[attr::SIZE]).0, NfsStat::Access);
        assert_eq!(as_user(&[attr::FILEID]).0, NfsStat::Ok);
        let (_, results) = as_user(&[attr::SIZE, attr::RDATTR_ERROR]);
        let OpResult::ReadDir(Ok(listed)) = &results[1] else { panic!("{results:?}") };
        let attrs = Attrs::decode(&listed.entries[0].attrs).unwrap();
        assert_eq!((attrs.rdattr_error, attrs.size), (Some(NfsStat::Access.number()), None));
    });
}
