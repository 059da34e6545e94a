//! Read-ahead of directories: the requests that it saves, and what users see.

use ivers_vfs::*;

use super::*;

const DIRECTORIES: usize = 60;

/// A server with directories of two files each.
fn serve_tree() -> Served {
    let served = Served::new(mem());
    let tree = served.directory(&served.root(), b"tree");
    for nth in 0..DIRECTORIES {
        let dir = served.directory(&tree, format!("d{nth:02}").as_bytes());
        served.file(&dir, format!("a{nth}").as_bytes(), b"x");
        served.file(&dir, b"b", b"y");
    }
    served
}

/// The names below a directory, as find(1) visits them.
fn walk(client: &Mounted, cred: &Cred, dir: &InodeRef, names: &mut Vec<String>) -> Result<()> {
    let listed = client.vfs.list(cred, dir, 0, 1000)?;
    for entry in listed {
        let inode = entry.inode?;
        names.push(String::from_utf8_lossy(&entry.name).into_owned());
        client.vfs.get_attr(cred, &inode)?;
        if inode.kind == FileType::Directory {
            walk(client, cred, &inode, names)?;
        }
    }
    Ok(())
}

fn patient() -> NfsOptions {
    NfsOptions { attribute_timeout: Duration::from_secs(1000), ..options() }
}

#[test]
fn a_walk_waits_for_few_requests() {
    let served = serve_tree();
    let client = mount(served.address(), &patient()).unwrap();
    let tree = client.find("/tree").unwrap();
    let (before, mut names) = (client.nfs.requests(), Vec::new());
    walk(&client, &Cred::root(), &tree, &mut names).unwrap();
    let requests = client.nfs.requests() - before;
    assert_eq!(names.len(), 3 * DIRECTORIES);
    for nth in 0..DIRECTORIES {
        let at = names.iter().position(|name| *name == format!("d{nth:02}")).unwrap();
        let mut files = [names[at + 1].as_str(), &names[at + 2]];
        files.sort_unstable();
        assert_eq!(files, [format!("a{nth}").as_str(), "b"], "each directory has its own files");
    }
    // The tree, and d00, d03, d09, d27.
    assert!(requests <= 8, "{requests} requests for {DIRECTORIES} directories");
}

#[test]
fn a_program_that_lists_one_directory_gets_no_other() {
    let served = serve_tree();
    let client = mount(served.address(), &patient()).unwrap();
    let cred = Cred::root();
    let tree = client.find("/tree").unwrap();
    let listed = client.vfs.list(&cred, &tree, 0, 1000).unwrap();
    let before = client.count("server_readdir");
    let some = listed[DIRECTORIES / 2].inode.as_ref().unwrap();
    assert_eq!(client.vfs.list(&cred, some, 0, 1000).unwrap().len(), 2);
    assert_eq!(client.count("server_readdir") - before, 1);
}

#[test]
fn what_was_read_ahead_follows_this_client_and_the_rights_of_its_users() {
    let served = serve_tree();
    let (root, user) = (Cred::root(), Cred::user(1000, 1000));
    let secret = served.vfs.resolve(&root, "/tree/d01", false).unwrap();
    let set = SetAttr { perm: Some(0o700), ..SetAttr::default() };
    served.vfs.set_attr(&root, &secret, &set).unwrap();
    let identity = Identity { own: root.clone(), as_caller: true };
    let client = mount(served.address(), &NfsOptions { identity, ..patient() }).unwrap();
    let tree = client.find("/tree").unwrap();
    let listed = client.vfs.list(&root, &tree, 0, 1000).unwrap();
    let dir = |nth: usize| {
        let name = format!("d{nth:02}");
        listed.iter().find(|entry| *entry.name == *name.as_bytes()).unwrap().inode.as_ref().unwrap()
    };
    // It brings d01 and d02.
    client.vfs.list(&root, dir(0), 0, 1000).unwrap();
    let before = client.nfs.requests();
    assert_eq!(client.vfs.list(&root, dir(2), 0, 1000).unwrap().len(), 2);
    assert_eq!(client.nfs.requests(), before, "it was read ahead");
    let denied = client.vfs.access(&user, dir(1), access::READ);
    assert!(matches!(denied, Err(Error::Name(NameError::Access))), "{denied:?}");
    client.make(dir(2), "new", &CreateSpec::file(0o644)).unwrap();
    assert_eq!(client.vfs.list(&root, dir(2), 0, 1000).unwrap().len(), 3);
}
