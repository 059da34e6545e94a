//! Write delegations: what closes defer, and when it is sent.

use super::recovery::{Crashing, patient};
use super::*;
use ivers_vfs::{Error, NameError, OpenMode, SetAttr, TimeSet, Timestamp};

const READ_WRITE: OpenMode = OpenMode::READ.union(OpenMode::WRITE);

/// Options of a mount whose opens for writing ask for delegations. Attributes count as current for long, so
/// that the number of requests does not depend on time.
pub fn holding() -> NfsOptions {
    let attribute_timeout = Duration::from_secs(1000);
    NfsOptions { write_delegations: true, attribute_timeout, ..options() }
}

pub fn served_contents(served: &Served, path: &str) -> Vec<u8> {
    let file = served.vfs.resolve(&Cred::root(), path, false).unwrap();
    let mut bytes = vec![0; served.vfs.stat(&file).size as usize];
    let read = served.vfs.read(&Cred::root(), &file, 0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

fn at(sec: i64) -> Option<TimeSet> {
    Some(TimeSet::At(Timestamp { sec, nsec: 0 }))
}

/// Does what tar does for a file: creates, writes, sets owner, mode and times, closes.
fn unpack(client: &Mounted, dir: &InodeRef, name: &str, bytes: &[u8]) -> InodeRef {
    let cred = Cred::root();
    assert!(matches!(client.vfs.lookup(&cred, dir, name.as_bytes()), Err(Error::Name(NameError::NotFound))));
    let file = client.make(dir, name, &CreateSpec::file(0o600)).unwrap();
    client.vfs.open(&cred, &file, READ_WRITE).unwrap();
    client.vfs.write(&cred, &file, 0, bytes, WriteFlags::empty()).unwrap();
    for set in [
        SetAttr { atime: at(1_000_000_001), mtime: at(1_000_000_000), ..SetAttr::default() },
        SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() },
        SetAttr { perm: Some(0o644), ..SetAttr::default() },
    ] {
        client.vfs.set_attr(&cred, &file, &set).unwrap();
    }
    client.vfs.close(&file, READ_WRITE);
    file
}

/// An unpacked file costs one round trip. What closes defer is sent for many files at once.
#[test]
fn an_archive_costs_one_round_trip_a_file() {
    const FILES: u64 = 160;
    let served = Served::new(ext4());
    let client = mount(served.address(), &holding()).unwrap();
    let root = client.vfs.root().unwrap();
    let dir = client.make(&root, "dir", &CreateSpec::directory(0o755)).unwrap();
    let waits = || client.count("server_requests") - client.count("server_background_requests");
    // The first lookup in a new directory looks whether it is empty.
    assert!(client.vfs.lookup(&Cred::root(), &dir, b"f").is_err());
    let before = (waits(), client.count("server_requests"));
    let files: Vec<_> = (0..FILES)
        .map(|nth| unpack(&client, &dir, &format!("f{nth}"), format!("contents {nth}").as_bytes()))
        .collect();
    assert_eq!(waits() - before.0, FILES, "one round trip a file");
    client.vfs.sync().unwrap();
    let all = client.count("server_requests") - before.1;
    let counters: Vec<_> = client.vfs.counters().into_iter().filter(|(_, count)| *count > 0).collect();
    assert!(all <= FILES + FILES / 4, "{all} requests for {FILES} files: {counters:?}");
    let shared = client.count("server_shared_requests");
    assert!((FILES / 16..FILES / 8).contains(&shared), "{shared} requests with the data of several files");
    // Here, too, whether the delegation was returned or not.
    for (nth, file) in files.iter().enumerate() {
        let attr = client.vfs.get_attr(&Cred::root(), file).unwrap();
        assert_eq!(
            (attr.mtime.sec, attr.perm, attr.size),
            (1_000_000_000, 0o644, 9 + nth.to_string().len() as u64)
        );
    }
    for nth in 0..FILES {
        let path = format!("/dir/f{nth}");
        // Reading moves the access time.
        let attr = served.vfs.stat(&served.vfs.resolve(&Cred::root(), &path, false).unwrap());
        assert_eq!((attr.mtime.sec, attr.atime.sec, attr.perm), (1_000_000_000, 1_000_000_001, 0o644));
        assert_eq!(served_contents(&served, &path), format!("contents {nth}").as_bytes());
    }
    client.vfs.unmount().unwrap();
    assert_eq!(client.count("server_delegations"), client.count("server_delegreturn"));
    assert_eq!(client.count("server_open"), client.count("server_close"));
    served.server.stop().unwrap();
}

/// The root of a server is often a filesystem of its own: its free space decides nothing.
#[test]
fn an_export_below_the_root_has_its_own_space() {
    const FILES: u64 = 64;
    let served = Served::new(ext4());
    let export = b"/deep/data".to_vec();
    let below_root = NfsOptions { root: b"/".to_vec(), facts_of: export, ..holding() };
    let client = mount(served.address(), &below_root).unwrap();
    let dir = client.find("/deep/data").unwrap();
    for nth in 0..FILES {
        // The space is asked for after each group.
        unpack(&client, &dir, &format!("f{nth}"), b"contents");
        if nth % 16 == 15 {
            client.vfs.sync().unwrap();
        }
    }
    client.vfs.unmount().unwrap();
    let shared = client.count("server_shared_requests");
    assert!(shared >= FILES / 16, "{shared} requests with the data of several files");
}

/// [`D9`] Another client that opens the file gets what a close has deferred, and its times.
#[test]
fn another_client_sees_what_a_close_deferred() {
    let served = Served::new(ext4());
    let a = mount(served.address(), &holding()).unwrap();
    let b = mount(served.address(), &options()).unwrap();
    let root = a.vfs.root().unwrap();
    for nth in 0..20 {
        let name = format!("f{nth}");
        let file = unpack(&a, &root, &name, b"from a");
        let change = a.vfs.change(&file).unwrap();
        assert_eq!(b.contents(&format!("/{name}")).unwrap(), b"from a");
        let seen = b.find(&format!("/{name}")).unwrap();
        let attr = b.vfs.get_attr(&Cred::root(), &seen).unwrap();
        assert_eq!((attr.mtime.sec, attr.perm, attr.size), (1_000_000_000, 0o644, 6));
        assert!(b.vfs.change(&seen).unwrap() >= change, "it includes what a has seen");
        b.vfs.open(&Cred::root(), &seen, READ_WRITE).unwrap();
        b.vfs.write(&Cred::root(), &seen, 5, b"b", WriteFlags::empty()).unwrap();
        b.vfs.close(&seen, READ_WRITE);
        assert_eq!(a.contents(&format!("/{name}")).unwrap(), b"from b");
        assert!(a.vfs.change(&file).unwrap() > change);
    }
    a.vfs.unmount().unwrap();
    b.vfs.unmount().unwrap();
}

/// [`D10`] The change attribute rises once when the first write is cached, and once after each query. The
/// server learns it by CB_GETATTR: another client that only asks for attributes sees size and change.
#[test]
fn a_cached_write_raises_the_change_attribute_once_and_others_see_it() {
    let served = Served::new(ext4());
    served.file(&served.root(), b"f", b"contents");
    let (a, b) = (mount(served.address(), &holding()).unwrap(), mount(served.address(), &options()).unwrap());
    let file = a.find("/f").unwrap();
    a.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    assert_eq!(a.count("server_delegations"), 1);
    // A write of part of a page reads the rest of it.
    assert_eq!(a.vfs.read(&Cred::root(), &file, 0, &mut [0; 10]).unwrap(), 8);
    let (first, requests) = (a.vfs.change(&file).unwrap(), a.nfs.requests());
    let append = |at: u64| a.vfs.write(&Cred::root(), &file, at, b"+", WriteFlags::empty()).unwrap();
    append(8);
    append(9);
    assert_eq!(a.vfs.change(&file).unwrap(), first + 1, "once for both");
    append(10);
    append(11);
    assert_eq!(a.vfs.change(&file).unwrap(), first + 2, "once after the query");
    assert_eq!((a.nfs.requests(), a.count("server_write")), (requests, 0));
    let seen = b.find("/f").unwrap();
    let attr = b.vfs.get_attr(&Cred::root(), &seen).unwrap();
    assert_eq!(attr.size, 12, "the holder has said so");
    let change = b.vfs.change(&seen).unwrap();
    assert!(change > first);
    assert_eq!((a.count("server_recalls"), a.count("server_write")), (0, 0));
    a.vfs.fsync(&file, false).unwrap();
    assert!(a.vfs.change(&file).unwrap() >= first + 2);
    // All is sent: asking the holder is no change, and moves no time.
    let set = SetAttr { mtime: at(1_000_000_000), ..SetAttr::default() };
    a.vfs.set_attr(&Cred::root(), &file, &set).unwrap();
    a.vfs.fsync(&file, false).unwrap();
    let (rests, recalls) = (b.vfs.change(&seen).unwrap(), a.count("server_recalls"));
    assert_eq!(b.vfs.get_attr(&Cred::root(), &seen).unwrap().mtime.sec, 1_000_000_000);
    assert_eq!((b.vfs.change(&seen).unwrap(), a.count("server_recalls")), (rests, recalls));
    append(12);
    a.vfs.close(&file, READ_WRITE);
    assert_eq!(b.contents("/f").unwrap(), b"contents+++++");
    assert!(b.vfs.change(&seen).unwrap() > change);
    a.vfs.unmount().unwrap();
    b.vfs.unmount().unwrap();
}

/// A write after utimes moves the modification time again.
#[test]
fn bytes_written_after_the_times_were_set_move_them() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &holding()).unwrap();
    let root = client.vfs.root().unwrap();
    let file = unpack(&client, &root, "f", b"contents");
    client.vfs.open(&Cred::root(), &file, READ_WRITE).unwrap();
    client.vfs.write(&Cred::root(), &file, 0, b"CON", WriteFlags::empty()).unwrap();
    client.vfs.close(&file, READ_WRITE);
    client.vfs.sync().unwrap();
    let there = served.vfs.stat(&served.vfs.resolve(&Cred::root(), "/f", false).unwrap());
    assert!(there.mtime.sec > 1_000_000_000 && there.atime.sec == 1_000_000_001, "{there:?}");
    assert_eq!(client.vfs.get_attr(&Cred::root(), &file).unwrap().mtime, there.mtime);
    client.vfs.unmount().unwrap();
}

/// [`D11`] A deferred mode decides what a caller may do.
#[test]
fn a_deferred_mode_decides_at_once() {
    let served = Served::with_flags(ext4(), "");
    served
        .vfs
        .set_attr(&Cred::root(), &served.root(), &SetAttr { perm: Some(0o777), ..SetAttr::default() })
        .unwrap();
    let own = Cred::user(1000, 1000);
    let identity = Identity { as_caller: true, ..Identity::of(own.clone()) };
    let client = mount(served.address(), &NfsOptions { identity, ..holding() }).unwrap();
    let root = client.vfs.root().unwrap();
    let (file, _) = client.vfs.create(&own, &root, b"f", &CreateSpec::file(0o600), false).unwrap();
    client.vfs.open(&own, &file, READ_WRITE).unwrap();
    client.vfs.write(&own, &file, 0, b"x", WriteFlags::empty()).unwrap();
    let before = client.nfs.requests();
    client.vfs.set_attr(&own, &file, &SetAttr { perm: Some(0o200), ..SetAttr::default() }).unwrap();
    assert_eq!(client.nfs.requests(), before, "deferred");
    client.vfs.close(&file, READ_WRITE);
    let read = client.vfs.access(&own, &file, ivers_vfs::access::READ);
    assert!(matches!(read, Err(Error::Name(NameError::Access))), "{read:?}");
    client.vfs.unmount().unwrap();
}

/// [`D12`] A server that restarts while closes have deferred something gets it afterwards.
#[test]
fn what_closes_deferred_survives_a_restart_of_the_server() {
    let mut crashing = Crashing::new();
    let options = NfsOptions { write_delegations: true, ..patient() };
    let client = mount(crashing.address, &options).unwrap();
    let root = client.vfs.root().unwrap();
    for round in 0..3 {
        let names: Vec<_> = (0..5).map(|nth| format!("f{round}-{nth}")).collect();
        let files: Vec<_> = names.iter().map(|name| unpack(&client, &root, name, name.as_bytes())).collect();
        crashing.crash();
        crashing.start();
        client.vfs.sync().unwrap();
        drop(files);
        let other = mount(crashing.address, &patient()).unwrap();
        for name in &names {
            assert_eq!(other.contents(&format!("/{name}")).unwrap(), name.as_bytes());
            let attr = other.vfs.stat(&other.find(&format!("/{name}")).unwrap());
            assert_eq!((attr.mtime.sec, attr.perm), (1_000_000_000, 0o644));
        }
        other.vfs.unmount().unwrap();
    }
    client.vfs.unmount().unwrap();
}

/// If the server refuses what closes deferred, a command knows it after its unmount.
#[test]
fn a_refusal_of_what_closes_deferred_is_known_after_the_unmount() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &holding()).unwrap();
    let root = client.vfs.root().unwrap();
    let bytes = vec![7; 100_000];
    let files: Vec<_> = (0..5).map(|nth| unpack(&client, &root, &format!("f{nth}"), &bytes)).collect();
    assert_eq!(client.count("server_deferred_closes"), 5);
    // Another user of the server fills its filesystem.
    let full = served.file(&served.root(), b"full", b"");
    let mut end = 0;
    while served.vfs.write(&Cred::root(), &full, end, &bytes, WriteFlags::empty()).is_ok() {
        end += bytes.len() as u64;
    }
    served.vfs.sync().unwrap();
    drop(files);
    client.vfs.unmount().unwrap();
    let loss = client.vfs.data_loss();
    assert!(matches!(loss, Some(Error::DataRefused(NameError::NoSpace))), "{loss:?}");
}

/// Bytes that a server loses are sent again. That does not move times that a program has set.
#[test]
fn times_that_were_set_survive_a_restart_of_the_server() {
    let mut crashing = Crashing::new();
    let client = mount(crashing.address, &patient()).unwrap();
    let root = client.vfs.root().unwrap();
    let files: Vec<_> = (0..5).map(|nth| unpack(&client, &root, &format!("f{nth}"), b"contents")).collect();
    crashing.crash();
    crashing.start();
    client.vfs.sync().unwrap();
    drop(files);
    let other = mount(crashing.address, &patient()).unwrap();
    for nth in 0..5 {
        let path = format!("/f{nth}");
        assert_eq!(other.contents(&path).unwrap(), b"contents");
        assert_eq!(other.vfs.stat(&other.find(&path).unwrap()).mtime.sec, 1_000_000_000);
    }
    other.vfs.unmount().unwrap();
    client.vfs.unmount().unwrap();
}

/// [`D9`] The same for a file that is open when its delegation is recalled: the return sends bytes and times,
/// and then the server loses what is not committed.
#[test]
fn times_that_a_recall_sends_survive_a_crash_of_the_server() {
    let mut crashing = Crashing::new();
    let client = mount(crashing.address, &NfsOptions { write_delegations: true, ..patient() }).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    // One WRITE, and several.
    let contents = [vec![1; 1000], vec![2; 3_000_000]];
    let files: Vec<_> = contents
        .iter()
        .enumerate()
        .map(|(nth, bytes)| {
            let file = client.make(&root, &format!("f{nth}"), &CreateSpec::file(0o644)).unwrap();
            client.vfs.open(&cred, &file, READ_WRITE).unwrap();
            client.vfs.write(&cred, &file, 0, bytes, WriteFlags::empty()).unwrap();
            let times = SetAttr { atime: at(1_000_000_001), mtime: at(1_000_000_000), ..SetAttr::default() };
            client.vfs.set_attr(&cred, &file, &times).unwrap();
            file
        })
        .collect();
    assert_eq!(client.count("server_setattr"), 0, "deferred");
    let other = mount(crashing.address, &patient()).unwrap();
    for (nth, bytes) in contents.iter().enumerate() {
        assert_eq!(&other.contents(&format!("/f{nth}")).unwrap(), bytes);
    }
    other.vfs.unmount().unwrap();
    assert!(client.count("server_recalls") > 0);
    crashing.crash();
    crashing.start();
    for file in &files {
        client.vfs.fsync(file, false).unwrap();
        client.vfs.close(file, READ_WRITE);
    }
    client.vfs.unmount().unwrap();
    let other = mount(crashing.address, &patient()).unwrap();
    for (nth, bytes) in contents.iter().enumerate() {
        let path = format!("/f{nth}");
        assert_eq!(other.vfs.stat(&other.find(&path).unwrap()).mtime.sec, 1_000_000_000, "{path}");
        assert_eq!(&other.contents(&path).unwrap(), bytes);
    }
    other.vfs.unmount().unwrap();
}

/// A file whose size exceeds what one request carries is sent by its close, as without a delegation.
#[test]
fn the_close_of_a_large_file_waits() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &holding()).unwrap();
    let big: Vec<u8> = (0..1_500_000_u32).map(|at| (at * 7 % 251) as u8).collect();
    client.put("big", &big).unwrap();
    assert_eq!(served_contents(&served, "/big"), big);
    client.vfs.unmount().unwrap();
}

/// A directory that this client has made lacks the names that nobody has made in it. A name that another
/// client makes is found.
#[test]
fn names_that_nobody_made_are_absent_without_a_request() {
    let served = Served::new(ext4());
    let (a, b) = (mount(served.address(), &holding()).unwrap(), mount(served.address(), &options()).unwrap());
    let (cred, root) = (Cred::root(), a.vfs.root().unwrap());
    let dir = a.make(&root, "dir", &CreateSpec::directory(0o755)).unwrap();
    let is_there = |name: &str| a.vfs.lookup(&cred, &dir, name.as_bytes()).is_ok();
    assert!(!is_there("w"));
    let before = a.nfs.requests();
    assert!(!is_there("x") && a.nfs.requests() == before);
    a.make(&dir, "x", &CreateSpec::directory(0o755)).unwrap();
    let made = a.nfs.requests();
    assert!(is_there("x") && !is_there("y") && a.nfs.requests() == made, "its own names are known");
    a.vfs.rmdir(&cred, &dir, b"x", false).unwrap();
    assert!(!is_there("x"));
    b.make(&b.find("/dir").unwrap(), "y", &CreateSpec::directory(0o755)).unwrap();
    // Another client has changed the directory: the reply to the next request says so.
    a.make(&dir, "z", &CreateSpec::directory(0o755)).unwrap();
    assert!(is_there("y") && !is_there("x"));
    assert_eq!(a.count("server_absent_names"), 3, "the VFS knows the others");
    a.vfs.unmount().unwrap();
    b.vfs.unmount().unwrap();
}

/// On a filesystem that ignores case, another spelling of a name is not absent.
#[test]
fn other_spellings_are_found_where_the_server_ignores_case() {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(8 << 20));
    let now = Timestamp { sec: 1_763_766_000, nsec: 0 };
    ivers_affs::mkfs::format(&device, 3, 512, "Names", now).unwrap();
    let options = DriverOptions { place: "a test".into(), ..DriverOptions::default() };
    let fs = ivers_affs::Affs::open(device, ivers_affs::OpenOptions::from(options)).unwrap();
    let served = Served::new(Vfs::mount(fs, quiet()).unwrap());
    let client = mount(served.address(), &holding()).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    let dir = client.make(&root, "dir", &CreateSpec::directory(0o755)).unwrap();
    let is_there = |name: &str| client.vfs.lookup(&cred, &dir, name.as_bytes()).is_ok();
    assert!(!is_there("NAME") && !is_there("other"));
    client.make(&dir, "name", &CreateSpec::directory(0o755)).unwrap();
    assert!(is_there("Name") && is_there("NAME") && !is_there("other"));
    client.vfs.unmount().unwrap();
}

/// A walk asks once for each directory. Then one request asks for the whole tree.
#[test]
fn a_tree_is_walked_with_few_requests() {
    const DIRECTORIES: usize = 10;
    let served = Served::new(ext4());
    for nth in 0..DIRECTORIES {
        let dir = served.directory(&served.root(), format!("d{nth}").as_bytes());
        (0..10).for_each(|file| drop(served.file(&dir, format!("f{file}").as_bytes(), b"x")));
    }
    let identity = Identity { as_caller: true, ..Identity::of(Cred::root()) };
    let client = mount(served.address(), &NfsOptions { identity, ..holding() }).unwrap();
    // As a program of a user does that lists each directory and asks for the attributes of each file. What
    // the server permits a new user is not known, so it is asked although the attribute timeout is long.
    let walk = |uid: u32| {
        let (cred, before) = (Cred::user(uid, uid), client.nfs.requests());
        let mut names = Vec::new();
        let mut left = vec![client.vfs.root().unwrap()];
        while let Some(dir) = left.pop() {
            client.vfs.access(&cred, &dir, ivers_vfs::access::READ).unwrap();
            let listed = client.vfs.list_until(&cred, &dir, 0, false, &mut |_| false).unwrap();
            for entry in listed.into_iter().filter(|entry| &*entry.name != b"lost+found") {
                let inode = entry.inode.unwrap();
                client.vfs.get_attr(&cred, &inode).unwrap();
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
                if inode.kind == ivers_vfs::FileType::Directory {
                    left.push(inode);
                }
            }
        }
        (names, client.nfs.requests() - before)
    };
    let (names, requests) = walk(1);
    assert_eq!((names.len(), requests), (DIRECTORIES * 11, DIRECTORIES as u64 + 1));
    let (again, requests) = walk(2);
    assert_eq!((&again, requests), (&names, 1));
    // What changed on the server is found by the next request. Only this directory is listed again, and its
    // parent is asked for: it may be another one.
    let dir = served.vfs.resolve(&Cred::root(), "/d3", false).unwrap();
    served.file(&dir, b"new", b"x");
    let (newest, requests) = walk(3);
    assert!(newest.len() == names.len() + 1 && newest.contains(&"new".to_owned()));
    assert_eq!(requests, 3);
    client.vfs.unmount().unwrap();
}
