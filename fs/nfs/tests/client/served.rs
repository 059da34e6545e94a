//! The client on ivers's own server.

use super::*;
use ivers_vfs::{Error, FileSystem, NameError, OpenMode, SetAttr, access};

#[test]
fn a_tree_is_read_as_it_is() {
    for vfs in [mem(), ext4()] {
        let served = Served::new(vfs);
        let (root, cred) = (served.root(), Cred::root());
        let big: Vec<u8> = (0..3_000_001_u32).map(|at| (at * 7 % 251) as u8).collect();
        served.file(&root, b"big", &big);
        served.file(&root, b"empty", b"");
        let dir = served.directory(&root, b"dir");
        served.file(&dir, "h\u{e4}".as_bytes(), b"umlaut");
        let spec =
            CreateSpec { target: b"../big".to_vec(), ..CreateSpec::of(ivers_vfs::FileType::Symlink, 0o777) };
        served.vfs.create(&cred, &dir, b"link", &spec, false).unwrap();
        let set = SetAttr { uid: Some(1234), perm: Some(0o751), ..SetAttr::default() };
        served.vfs.set_attr(&cred, &dir, &set).unwrap();

        let client = mount(served.address(), &options()).unwrap();
        assert_eq!(client.contents("/big").unwrap(), big);
        assert_eq!(client.contents("/empty").unwrap(), b"");
        assert_eq!(client.contents("/dir/h\u{e4}").unwrap(), b"umlaut");
        let link = client.find("/dir/link").unwrap();
        assert_eq!(client.vfs.read_link(&cred, &link).unwrap(), b"../big");
        assert_eq!(
            client.vfs.resolve(&cred, "/dir/link", true).unwrap().ino,
            client.find("/big").unwrap().ino
        );
        assert!(matches!(client.find("/dir/none").map(drop), Err(Error::Name(NameError::NotFound))));
        for path in ["/", "/big", "/dir", "/dir/link"] {
            let (here, there) = (client.find(path).unwrap(), served.vfs.resolve(&cred, path, false).unwrap());
            let (attr, expected) = (client.vfs.stat(&here), served.vfs.stat(&there));
            assert_eq!(
                (here.ino, attr.mode(), attr.size),
                (there.ino, expected.mode(), expected.size),
                "{path}"
            );
            assert_eq!((attr.uid, attr.nlink, attr.mtime), (expected.uid, expected.nlink, expected.mtime));
            assert_eq!(client.vfs.change(&here), served.vfs.change(&there), "{path}: all 64 bits");
        }
        let mut names = client.names("/dir").unwrap();
        names.sort();
        assert_eq!(names, [".", "..", "h\u{e4}", "link"]);
        let (free, there) = (client.vfs.stat_fs().unwrap(), served.vfs.stat_fs().unwrap());
        assert_eq!(free.blocks, there.blocks * u64::from(there.block_size) / 4096);
        client.vfs.unmount().unwrap();
        served.server.stop().unwrap();
    }
}

/// [`N9`] A query asks the server, however long attributes count as current otherwise.
#[test]
fn a_change_on_the_server_changes_the_attribute_at_once() {
    let served = Served::new(ext4());
    let file = served.file(&served.root(), b"f", b"one");
    let timeout = Duration::from_secs(1000);
    let client = mount(served.address(), &NfsOptions { attribute_timeout: timeout, ..options() }).unwrap();
    let here = client.find("/f").unwrap();
    let mut last = client.vfs.change(&here).unwrap();
    assert_eq!(client.vfs.change(&here), Some(last), "nothing changed");
    for round in 0..20_u8 {
        served.write(&file, &[round; 3]);
        let change = client.vfs.change(&here).unwrap();
        assert!(change > last, "round {round}");
        last = change;
        // The pages went with the old value.
        let mut bytes = [0; 3];
        client.vfs.read(&Cred::root(), &here, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [round; 3]);
        assert_eq!(client.vfs.change(&here), Some(last));
    }
    let semantics = client.vfs.info().semantics;
    assert!(semantics.data && semantics.metadata && semantics.monotonic && semantics.persistent);
    assert!(!semantics.crash_safe, "no type of change attribute promises it");
}

#[test]
fn attributes_count_until_the_timeout_and_an_open_asks() {
    let served = Served::new(mem());
    let file = served.file(&served.root(), b"f", b"old");
    let timeout = Duration::from_secs(1000);
    let client = mount(served.address(), &NfsOptions { attribute_timeout: timeout, ..options() }).unwrap();
    let cred = Cred::root();
    let here = client.find("/f").unwrap();
    assert_eq!(client.contents("/f").unwrap(), b"old");
    let before = client.nfs.requests();
    served.write(&file, b"newer");
    assert_eq!(client.vfs.get_attr(&cred, &here).unwrap().size, 3);
    assert_eq!(client.contents("/f").unwrap(), b"old");
    assert_eq!(client.nfs.requests(), before, "nobody was asked");
    client.vfs.open(&cred, &here, OpenMode::READ).unwrap();
    assert_eq!(client.contents("/f").unwrap(), b"newer");
    client.vfs.close(&here, OpenMode::READ);
}

#[test]
fn names_follow_the_server() {
    let served = Served::new(ext4());
    let (root, cred) = (served.root(), Cred::root());
    let client = mount(served.address(), &options()).unwrap();
    for round in 0..5 {
        assert!(client.find("/f").is_err());
        let file = served.file(&root, b"f", format!("{round}").as_bytes());
        assert_eq!(client.contents("/f").unwrap(), format!("{round}").as_bytes());
        let here = client.find("/f").unwrap();
        served.vfs.remove(&cred, &root, b"f", &file, false).unwrap();
        drop(file);
        // The file is gone, and its number may be that of the next one.
        assert!(client.find("/f").is_err() && client.vfs.get_attr(&cred, &here).is_err());
    }
}

#[test]
fn a_listing_brings_the_attributes_of_its_names() {
    const FILES: usize = 3000;
    let served = Served::new(mem());
    let dir = served.directory(&served.root(), b"many");
    for nth in 0..FILES {
        served.file(&dir, format!("file number {nth}").as_bytes(), b"");
    }
    let timeout = Duration::from_secs(1000);
    let client = mount(served.address(), &NfsOptions { attribute_timeout: timeout, ..options() }).unwrap();
    let many = client.find("/many").unwrap();
    let before = client.nfs.requests();
    let names = client.names("/many").unwrap();
    let listed = client.nfs.requests() - before;
    assert_eq!(names.len(), FILES + 2);
    for name in &names[2..] {
        let file = client.vfs.lookup(&Cred::root(), &many, name.as_bytes()).unwrap();
        assert_eq!(client.vfs.stat(&file).size, 0);
    }
    let looked_up = client.nfs.requests() - before - listed;
    assert!(listed < 20, "{listed} requests to list {FILES} names");
    assert!(looked_up < 5, "{looked_up} requests to look them up");
    let mut sorted = names.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), names.len(), "each name once");

    // The attributes that came with a name do not outlive a change of the directory.
    let names = client.names("/many").unwrap();
    let victim = served.vfs.lookup(&Cred::root(), &dir, names[5].as_bytes()).unwrap();
    served.vfs.remove(&Cred::root(), &dir, names[5].as_bytes(), &victim, false).unwrap();
    client.vfs.change(&many).unwrap();
    assert!(client.vfs.lookup(&Cred::root(), &many, names[5].as_bytes()).is_err());
}

#[test]
pub fn the_server_decides_who_may_do_what() {
    let served = Served::new(ext4());
    let file = served.file(&served.root(), b"secret", b"x");
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    served.vfs.set_attr(&Cred::root(), &file, &set).unwrap();
    let denied = |result: Result<()>| matches!(result, Err(Error::Name(NameError::Access)));
    let user = |identity| {
        let client = mount(served.address(), &NfsOptions { identity, ..options() }).unwrap();
        let here = client.find("/secret").unwrap();
        let root = client.vfs.access(&Cred::root(), &here, access::READ);
        let other = client.vfs.access(&Cred::user(1000, 1000), &here, access::READ);
        let mut byte = [0];
        (root, other, client.vfs.read(&Cred::root(), &here, 0, &mut byte).map(drop))
    };
    let (root, other, read) = user(Identity { own: Cred::root(), as_caller: true });
    assert!(root.is_ok() && denied(other) && read.is_ok());
    let (root, other, read) = user(Identity::of(Cred::user(1000, 1000)));
    assert!(denied(root) && denied(other) && denied(read), "nobody is more than the process");
}

#[test]
fn a_root_that_cannot_be_mounted_is_named() {
    let served = Served::new(mem());
    served.file(&served.root(), b"f", b"x");
    let error = |root: &[u8]| {
        let options = NfsOptions { root: root.to_vec(), ..options() };
        mount(served.address(), &options).map(drop).unwrap_err().to_string()
    };
    assert!(error(b"/deep/missing/x").contains("\"missing\""), "{}", error(b"/deep/missing/x"));
    assert!(error(b"/deep/data/f").contains("\"f\""), "{}", error(b"/deep/data/f"));
    assert!(error(b"/deep/../data").contains(".."));
    let pseudo = mount(served.address(), &NfsOptions { root: b"/".to_vec(), ..options() }).unwrap();
    assert_eq!(pseudo.contents("/deep/data/f").unwrap(), b"x", "a walk from the server's root");
    assert!(pseudo.vfs.no_change_attribute().is_some());
    let facts_of = b"/deep/data/f".to_vec();
    let facts = mount(served.address(), &NfsOptions { root: b"/".to_vec(), facts_of, ..options() }).unwrap();
    assert!(facts.vfs.no_change_attribute().is_none(), "those of the export");
    let long = format!("/deep/data{}", "/d".repeat(40));
    let mut at = served.root();
    (0..40).for_each(|_| at = served.directory(&at, b"d"));
    assert!(mount(served.address(), &NfsOptions { root: long.into(), ..options() }).is_ok());
}

#[test]
fn a_server_that_is_not_there_is_an_error_at_once() {
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let started = std::time::Instant::now();
    let error = mount(address, &options()).map(drop).unwrap_err().to_string();
    assert!(error.contains("nfs://test: cannot connect"), "{error}");
    assert!(started.elapsed() < Duration::from_secs(2));
}

/// Queries of many files cost few round trips. A file that no longer exists does not hide the others.
#[test]
fn many_files_are_asked_for_in_one_request() {
    const FILES: usize = 600;
    let served = Served::new(ext4());
    let root = served.root();
    let there: Vec<_> =
        (0..FILES).map(|nth| served.file(&root, format!("f{nth}").as_bytes(), b"x")).collect();
    let client = mount(served.address(), &options()).unwrap();
    let here: Vec<_> = (0..FILES).map(|nth| client.find(&format!("/f{nth}")).unwrap()).collect();
    let count = |name| client.nfs.counters().iter().find(|(found, _)| *found == name).unwrap().1;
    let asked = |inodes: &[InodeRef]| {
        let before = (client.nfs.requests(), count("server_getattr"));
        let changes = client.vfs.changes(inodes);
        (changes, client.nfs.requests() - before.0, count("server_getattr") - before.1)
    };
    let expected: Vec<_> = there.iter().map(|file| served.vfs.change(file)).collect();
    let (changes, requests, getattrs) = asked(&here);
    assert_eq!(changes, expected);
    // The server accepts 512 operations: SEQUENCE, and two for each of 255 files.
    assert_eq!((requests, getattrs), (FILES.div_ceil(255) as u64, FILES as u64));
    assert_eq!(asked(&[]), (Vec::new(), 0, 0));

    served.write(&there[77], b"changed");
    let cred = Cred::root();
    served.vfs.unlink(&cred, &root, b"f5", false).unwrap();
    served.vfs.unlink(&cred, &root, b"f199", false).unwrap();
    drop(there);
    let (again, requests, _) = asked(&here);
    for (nth, (before, after)) in changes.iter().zip(&again).enumerate() {
        match nth {
            5 | 199 => assert_eq!(*after, None, "file {nth} is gone"),
            77 => assert!(after > before, "file {nth} changed"),
            _ => assert_eq!(after, before, "file {nth}"),
        }
    }
    assert!(requests <= FILES.div_ceil(255) as u64 + 1, "{requests} requests");
}
