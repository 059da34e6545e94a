//! Changes through the client, judged on the server.

use super::*;
use ivers_vfs::{Error, FileType, NameError, OpenMode, RenameFlags, SetAttr, TimeSet, Timestamp};

const READ_WRITE: OpenMode = OpenMode::READ.union(OpenMode::WRITE);

fn root_of(client: &Mounted) -> InodeRef {
    client.vfs.root().unwrap()
}

impl Mounted {
    pub fn make(&self, dir: &InodeRef, name: &str, spec: &CreateSpec) -> Result<InodeRef> {
        self.vfs.create(&Cred::root(), dir, name.as_bytes(), spec, false).map(|(inode, _)| inode)
    }

    /// Creates a file, writes it and closes it.
    pub fn put(&self, name: &str, contents: &[u8]) -> Result<InodeRef> {
        let file = self.make(&self.vfs.root()?, name, &CreateSpec::file(0o644))?;
        self.vfs.open(&Cred::root(), &file, READ_WRITE)?;
        let written = self.vfs.write(&Cred::root(), &file, 0, contents, WriteFlags::empty());
        self.vfs.close(&file, READ_WRITE);
        assert_eq!(written?, contents.len());
        Ok(file)
    }
}

impl Served {
    fn contents(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.vfs.resolve(&Cred::root(), path, false)?;
        let mut bytes = vec![0; self.vfs.stat(&file).size as usize];
        let mut len = 0;
        while len < bytes.len() {
            match self.vfs.read(&Cred::root(), &file, len as u64, &mut bytes[len..])? {
                0 => break,
                read => len += read,
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    fn names(&self, path: &str) -> Vec<String> {
        let dir = self.vfs.resolve(&Cred::root(), path, false).unwrap();
        let mut names = Vec::new();
        let listed = self.vfs.readdir(&Cred::root(), &dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b".." | b"lost+found") {
                names.push(String::from_utf8_lossy(entry.name).into_owned());
            }
            std::ops::ControlFlow::Continue(())
        });
        listed.unwrap();
        names.sort();
        names
    }
}

fn not_found<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Name(NameError::NotFound)))
}

/// Times that are given with a new file count, whatever marks its creation.
#[test]
fn a_file_is_created_with_the_given_times() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    let root = root_of(&client);
    let at = |sec| Some(TimeSet::At(Timestamp { sec, nsec: 7 }));
    for (name, kind) in [("f", FileType::Regular), ("d", FileType::Directory), ("l", FileType::Symlink)] {
        let times =
            CreateSpec { atime: at(1_000_000_001), mtime: at(1_000_000_000), ..CreateSpec::of(kind, 0o755) };
        client.make(&root, name, &CreateSpec { target: b"target".to_vec(), ..times }).unwrap();
        let attr =
            served.vfs.stat(&served.vfs.lookup(&Cred::root(), &served.root(), name.as_bytes()).unwrap());
        assert_eq!((attr.atime.sec, attr.mtime.sec), (1_000_000_001, 1_000_000_000), "{name}");
    }
    client.vfs.unmount().unwrap();
}

/// [`CreateSpec`] may name another group than that of the caller or the directory.
#[test]
fn a_new_file_has_the_group_that_was_asked_for() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    let root = root_of(&client);
    let shared = served.directory(&served.root(), b"shared");
    let set = SetAttr { gid: Some(7), ..SetAttr::default() };
    served.vfs.set_attr(&Cred::root(), &shared, &set).unwrap();
    let set = SetAttr { perm: Some(0o2775), ..SetAttr::default() };
    served.vfs.set_attr(&Cred::root(), &shared, &set).unwrap();
    let shared = client.find("/shared").unwrap();
    let group = |path: &str| served.vfs.stat(&served.vfs.resolve(&Cred::root(), path, false).unwrap()).gid;
    for kind in [FileType::Regular, FileType::Directory] {
        for (dir, place, gid, expected) in [
            (&root, "", None, 0),
            (&root, "", Some(7), 7),
            (&shared, "/shared", None, 7),
            (&shared, "/shared", Some(7), 7),
            (&shared, "/shared", Some(0), 0),
        ] {
            let name = format!("{kind:?}-{gid:?}");
            client.make(dir, &name, &CreateSpec { gid, ..CreateSpec::of(kind, 0o755) }).unwrap();
            assert_eq!(group(&format!("{place}/{name}")), expected, "{place}, {name}");
        }
    }
    client.vfs.unmount().unwrap();
}

#[test]
pub fn a_tree_is_made_on_the_server() {
    for vfs in [mem(), ext4()] {
        let served = Served::new(vfs);
        let cred = Cred::root();
        let client = mount(served.address(), &options()).unwrap();
        let root = root_of(&client);
        let dir = client.make(&root, "dir", &CreateSpec::directory(0o751)).unwrap();
        let spec = CreateSpec { target: b"../f".to_vec(), ..CreateSpec::of(FileType::Symlink, 0o777) };
        client.make(&dir, "link", &spec).unwrap();
        let spec = CreateSpec { rdev: 0x0103, ..CreateSpec::of(FileType::CharDevice, 0o600) };
        client.make(&dir, "null", &spec).unwrap();
        client.make(&dir, "fifo", &CreateSpec::of(FileType::Fifo, 0o644)).unwrap();
        let big: Vec<u8> = (0..3_000_001_u32).map(|at| (at * 7 % 251) as u8).collect();
        let file = client.put("f", &big).unwrap();
        client.vfs.link(&cred, &file, &dir, b"hard", false).unwrap();
        assert_eq!(client.vfs.get_attr(&cred, &file).unwrap().nlink, 2);
        assert!(matches!(
            client.make(&root, "dir", &CreateSpec::file(0o644)),
            Err(Error::Name(NameError::Exists))
        ));

        assert_eq!(served.names("/"), ["dir", "f"]);
        assert_eq!(served.names("/dir"), ["fifo", "hard", "link", "null"]);
        let there = |path: &str| served.vfs.stat(&served.vfs.resolve(&cred, path, false).unwrap());
        assert_eq!((there("/dir").mode() & 0o7777, there("/dir/null").rdev), (0o751, 0x0103));
        assert_eq!(served.contents("/f").unwrap(), big);
        assert_eq!(client.contents("/dir/hard").unwrap(), big);

        let time = Timestamp { sec: 1_234_567_890, nsec: 0 };
        let set = SetAttr {
            perm: Some(0o600),
            uid: Some(12),
            gid: Some(34),
            mtime: Some(TimeSet::At(time)),
            size: Some(5000),
            ..SetAttr::default()
        };
        client.vfs.set_attr(&cred, &file, &set).unwrap();
        let attr = there("/f");
        assert_eq!((attr.perm, attr.uid, attr.gid, attr.size), (0o600, 12, 34, 5000));
        assert_eq!(attr.mtime, time);
        assert_eq!(client.contents("/f").unwrap(), &big[..5000]);
        let set = SetAttr { size: Some(9000), ..SetAttr::default() };
        client.vfs.set_attr(&cred, &file, &set).unwrap();
        let grown = [&big[..5000], &[0; 4000][..]].concat();
        assert_eq!((client.contents("/f").unwrap(), served.contents("/f").unwrap()), (grown.clone(), grown));

        client.vfs.unlink(&cred, &root, b"f", false).unwrap();
        assert!(not_found(client.find("/f")) && not_found(served.contents("/f")));
        assert_eq!(client.vfs.get_attr(&cred, &file).unwrap().nlink, 1);
        assert!(matches!(
            client.vfs.rmdir(&cred, &root, b"dir", false),
            Err(Error::Name(NameError::NotEmpty))
        ));
        for name in ["fifo", "hard", "link", "null"] {
            client.vfs.unlink(&cred, &dir, name.as_bytes(), false).unwrap();
        }
        client.vfs.rmdir(&cred, &root, b"dir", false).unwrap();
        assert!(served.names("/").is_empty());
        drop((file, dir));
        client.vfs.unmount().unwrap();
        served.server.stop().unwrap();
    }
}

#[test]
pub fn renames_replace_and_move() {
    let served = Served::new(ext4());
    let cred = Cred::root();
    let client = mount(served.address(), &options()).unwrap();
    let root = root_of(&client);
    let rename = |from: (&InodeRef, &str), to: (&InodeRef, &str)| {
        let none = RenameFlags::empty();
        client.vfs.rename(&cred, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), none, false)
    };
    let dir = client.make(&root, "dir", &CreateSpec::directory(0o755)).unwrap();
    let old = client.put("old", b"old").unwrap();
    client.put("new", b"new").unwrap();
    rename((&root, "new"), (&root, "old")).unwrap();
    assert_eq!(served.contents("/old").unwrap(), b"new");
    assert!(client.vfs.get_attr(&cred, &old).is_err() || client.vfs.stat(&old).nlink == 0);
    rename((&root, "old"), (&dir, "moved")).unwrap();
    assert_eq!((served.names("/"), served.names("/dir")), (vec!["dir".to_owned()], vec!["moved".to_owned()]));
    assert_eq!(client.contents("/dir/moved").unwrap(), b"new");
    let sub = client.make(&dir, "sub", &CreateSpec::directory(0o755)).unwrap();
    rename((&dir, "sub"), (&root, "sub")).unwrap();
    assert_eq!(client.vfs.lookup(&cred, &sub, b"..").unwrap().ino, root.ino);
    let loops = rename((&root, "dir"), (&dir, "below"));
    assert!(matches!(loops, Err(Error::Name(NameError::Invalid))), "{loops:?}");
    assert!(not_found(rename((&root, "none"), (&root, "x"))));
}

/// [`N13`]
#[test]
pub fn a_removed_file_stays_while_it_is_open() {
    let served = Served::new(ext4());
    let cred = Cred::root();
    let client = mount(served.address(), &options()).unwrap();
    let root = root_of(&client);
    for replaced in [false, true] {
        let file = client.put("f", b"contents").unwrap();
        client.vfs.open(&cred, &file, READ_WRITE).unwrap();
        if replaced {
            client.put("g", b"other").unwrap();
            client.vfs.rename(&cred, &root, b"g", &root, b"f", RenameFlags::empty(), false).unwrap();
            assert_eq!(client.contents("/f").unwrap(), b"other");
        } else {
            client.vfs.unlink(&cred, &root, b"f", false).unwrap();
            assert!(not_found(client.find("/f")));
        }
        assert_eq!(client.vfs.get_attr(&cred, &file).unwrap().nlink, 0, "as if it were removed");
        let hidden: Vec<_> = served.names("/").into_iter().filter(|name| name.starts_with(".nfs")).collect();
        assert_eq!(hidden.len(), 1);
        client.vfs.write(&cred, &file, 8, b" and more", WriteFlags::empty()).unwrap();
        client.vfs.fsync(&file, false).unwrap();
        assert_eq!(served.contents(&format!("/{}", hidden[0])).unwrap(), b"contents and more");
        client.vfs.close(&file, READ_WRITE);
        drop(file);
        assert_eq!(served.names("/"), if replaced { vec!["f".to_owned()] } else { vec![] });
    }
}

#[test]
fn names_that_this_client_changes_stay_cached() {
    let served = Served::new(ext4());
    let timeout = Duration::from_secs(1000);
    let client = mount(served.address(), &NfsOptions { attribute_timeout: timeout, ..options() }).unwrap();
    let root = root_of(&client);
    client.put("first", b"").unwrap();
    // Asks what the caller may do.
    client.find("/first").unwrap();
    let before = client.nfs.requests();
    for nth in 0..20 {
        client.make(&root, &format!("d{nth}"), &CreateSpec::directory(0o755)).unwrap();
    }
    let made = client.nfs.requests() - before;
    assert!(made <= 21, "{made} requests for 20 directories");
    let before = client.nfs.requests();
    assert!(client.find("/first").is_ok() && client.find("/d7").is_ok());
    assert_eq!(client.nfs.requests(), before, "nobody else changed the directory");
    // Another program does.
    let file = served.file(&served.root(), b"theirs", b"x");
    client.make(&root, "mine", &CreateSpec::directory(0o755)).unwrap();
    assert_eq!(client.contents("/theirs").unwrap(), b"x");
    drop(file);
    assert_eq!(client.vfs.change(&root), served.vfs.change(&served.root()));
}

#[test]
fn two_clients_see_each_other_at_close_and_open() {
    let served = Served::new(ext4());
    let timeout = Duration::from_secs(1000);
    let options = NfsOptions { attribute_timeout: timeout, ..options() };
    let (one, two) = (mount(served.address(), &options).unwrap(), mount(served.address(), &options).unwrap());
    let cred = Cred::root();
    let mine = one.put("f", b"0").unwrap();
    let theirs = two.find("/f").unwrap();
    for round in 0..20_u8 {
        let text = vec![round; 5000 + usize::from(round) * 300];
        let (writer, reader, file, other) =
            if round % 2 == 0 { (&one, &two, &mine, &theirs) } else { (&two, &one, &theirs, &mine) };
        writer.vfs.open(&cred, file, OpenMode::WRITE).unwrap();
        let before = writer.vfs.change(file).unwrap();
        writer.vfs.write(&cred, file, 0, &text, WriteFlags::empty()).unwrap();
        assert!(writer.vfs.change(file).unwrap() > before, "a query counts cached writes");
        writer.vfs.close(file, OpenMode::WRITE);
        reader.vfs.open(&cred, other, OpenMode::READ).unwrap();
        assert!(reader.contents("/f").unwrap() == text, "round {round}");
        reader.vfs.close(other, OpenMode::READ);
    }
    for name in ["a", "b"] {
        one.put(name, name.as_bytes()).unwrap();
    }
    two.vfs.change(&root_of(&two)).unwrap();
    assert_eq!(two.contents("/b").unwrap(), b"b");
}

#[test]
pub fn many_threads_write_files_of_their_own() {
    let served = Served::new(ext4());
    let client = mount(served.address(), &options()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let client = &client;
            scope.spawn(move || {
                for nth in 0..30 {
                    let name = format!("f{thread}-{nth}");
                    let file = client.put(&name, name.repeat(200).as_bytes()).unwrap();
                    if nth % 3 == 0 {
                        client.vfs.fsync(&file, false).unwrap();
                    }
                    if nth % 5 == 0 {
                        let root = root_of(client);
                        client.vfs.unlink(&Cred::root(), &root, name.as_bytes(), false).unwrap();
                    }
                }
            });
        }
    });
    client.vfs.unmount().unwrap();
    let names = served.names("/");
    assert_eq!(names.len(), 6 * 24);
    for name in names {
        assert_eq!(served.contents(&format!("/{name}")).unwrap(), name.repeat(200).as_bytes());
    }
}

/// A file that its owner may not open again is written all the same.
#[test]
pub fn writes_have_the_rights_of_their_open() {
    let served = Served::new(ext4());
    let set = SetAttr { perm: Some(0o777), ..SetAttr::default() };
    served.vfs.set_attr(&Cred::root(), &served.root(), &set).unwrap();
    let identity = Identity { own: Cred::root(), as_caller: true };
    let client = mount(served.address(), &NfsOptions { identity, ..options() }).unwrap();
    let user = Cred::user(1000, 1000);
    let root = root_of(&client);
    let (file, _) = client.vfs.create(&user, &root, b"f", &CreateSpec::file(0o444), false).unwrap();
    client.vfs.open(&user, &file, OpenMode::WRITE).unwrap();
    client.vfs.write(&user, &file, 0, b"read-only", WriteFlags::empty()).unwrap();
    client.vfs.close(&file, OpenMode::WRITE);
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(served.contents("/f").unwrap(), b"read-only");
    let there = served.vfs.stat(&served.vfs.resolve(&Cred::root(), "/f", false).unwrap());
    assert_eq!((there.uid, there.gid, there.perm), (1000, 1000, 0o444));
    let denied = client.vfs.create(&Cred::user(7, 7), &root, b"f", &CreateSpec::file(0o644), false);
    assert!(matches!(denied, Err(Error::Name(NameError::Exists))));
}
