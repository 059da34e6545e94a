//! Written bytes that the server keeps in its memory until a commit.

use super::*;
use std::sync::Weak;
use std::time::Duration;

fn unstable_file(it: &Both, name: &str, data: &[u8]) -> InodeRef {
    let file = create(&it.client, name);
    write(&it.client, &file, data);
    // A query sends cached writes.
    it.client.change(&file).unwrap();
    file
}

fn on_server(it: &Both, name: &str) -> Vec<u8> {
    read(&it.server, &it.server.resolve(&Cred::root(), format!("/{name}"), true).unwrap())
}

#[test]
fn fsync_sends_what_a_restarted_server_has_lost() {
    let it = both(|_| Ok(()));
    it.fs.write_unstably();
    let file = unstable_file(&it, "f", b"kept");
    assert_eq!(on_server(&it, "f"), b"kept");
    assert!(it.client.dirty_bytes() > 0, "the server may lose it");
    it.fs.restart_server().unwrap();
    assert_eq!(on_server(&it, "f"), b"");
    assert_eq!(it.client.get_attr(&Cred::root(), &file).unwrap().size, 4, "an old reply cuts nothing off");
    it.client.fsync(&file, false).unwrap();
    assert_eq!(it.client.dirty_bytes(), 0);
    it.fs.restart_server().unwrap();
    assert_eq!(on_server(&it, "f"), b"kept");
}

#[test]
fn fdatasync_sync_and_unmount_send_it_too() {
    let it = both(|_| Ok(()));
    it.fs.write_unstably();
    let files = ["a", "b", "c"].map(|name| unstable_file(&it, name, name.as_bytes()));
    it.fs.restart_server().unwrap();
    it.client.fsync(&files[0], true).unwrap();
    it.fs.restart_server().unwrap();
    assert_eq!(on_server(&it, "a"), b"a");
    it.client.sync().unwrap();
    it.fs.restart_server().unwrap();
    assert_eq!((on_server(&it, "b"), on_server(&it, "c")), (b"b".to_vec(), b"c".to_vec()));
    write(&it.client, &files[0], b"d");
    it.client.change(&files[0]).unwrap();
    it.fs.restart_server().unwrap();
    it.client.unmount().unwrap();
    assert_eq!(on_server(&it, "a"), b"d");
}

#[test]
fn a_page_that_is_written_again_meanwhile_is_sent_once_more() {
    let it = both(|_| Ok(()));
    it.fs.write_unstably();
    let file = unstable_file(&it, "f", b"first");
    write(&it.client, &file, b"again");
    it.fs.restart_server().unwrap();
    it.client.fsync(&file, false).unwrap();
    it.fs.restart_server().unwrap();
    assert_eq!(on_server(&it, "f"), b"again");
    // Cut to nothing, the unstable page is gone, and counts no more.
    write(&it.client, &file, b"third");
    it.client.change(&file).unwrap();
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    it.client.set_attr(&Cred::root(), &file, &cut).unwrap();
    assert_eq!(it.client.dirty_bytes(), 0);
}

/// Pages that were sent, but not committed, fill the limit of dirty memory. A close or a query finds nothing
/// to send. The next writer commits them.
#[test]
fn a_writer_over_the_limit_commits_what_others_have_sent() {
    let server = Vfs::mount(Arc::new(Mem::default()), quiet()).unwrap();
    let fs = Arc::new(RemoteFs::new(server.clone(), BASE, Box::new(|_| Ok(()))).unwrap());
    let client = Vfs::mount(fs.clone(), MountOptions { dirty_bytes: 64 << 10, ..quiet() }).unwrap();
    fs.write_unstably();
    let files = ["closed", "asked"].map(|name| create(&client, name));
    for file in &files {
        client.write(&Cred::root(), file, 0, &[1; 24 << 10], WriteFlags::empty()).unwrap();
    }
    for _ in 0..2 {
        client.flush_descriptor(&files[0], &client.error_cursor(&files[0])).unwrap();
        client.change(&files[1]).unwrap();
    }
    assert_eq!(client.dirty_bytes(), 48 << 10);
    let (done, written) = mpsc::channel();
    std::thread::spawn(move || {
        let last = create(&client, "last");
        client.write(&Cred::root(), &last, 0, &[2; 32 << 10], WriteFlags::empty()).unwrap();
        done.send(client.dirty_bytes()).unwrap();
    });
    let dirty = written.recv_timeout(Duration::from_secs(20)).expect("the writer waits in vain");
    assert!(dirty <= 64 << 10, "{dirty}");
}

#[test]
fn memory_pressure_forgets_no_uncommitted_page() {
    let server = Vfs::mount(Arc::new(Mem::default()), quiet()).unwrap();
    let fs = Arc::new(RemoteFs::new(server.clone(), BASE, Box::new(|_| Ok(()))).unwrap());
    let small = MountOptions { cache_bytes: 512 << 10, dirty_bytes: 256 << 10, ..quiet() };
    let client = Vfs::mount(fs.clone(), small).unwrap();
    fs.write_unstably();
    let file = create(&client, "f");
    let page = |at: u64| [at as u8 + 1; 4096];
    for at in 0..200 {
        client.write(&Cred::root(), &file, at * 4096, &page(at), WriteFlags::empty()).unwrap();
        assert!(client.dirty_bytes() <= 256 << 10);
    }
    client.change(&file).unwrap();
    assert!(client.dirty_bytes() > 0);
    fs.restart_server().unwrap();
    client.fsync(&file, false).unwrap();
    let theirs = server.resolve(&Cred::root(), "/f", true).unwrap();
    for at in 0..200 {
        let mut bytes = [0; 4096];
        server.read(&Cred::root(), &theirs, at * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, page(at), "page {at}");
    }
}

#[test]
fn a_server_that_restarts_before_a_commit_keeps_a_direct_write() {
    let restart = Arc::new(AtomicBool::new(true));
    let fs: Arc<OnceLock<Weak<RemoteFs>>> = Arc::default();
    let it = both({
        let (restart, fs) = (restart.clone(), fs.clone());
        move |what| {
            if what == "commit" && restart.swap(false, Ordering::Relaxed) {
                fs.get().and_then(Weak::upgrade).unwrap().restart_server().unwrap();
            }
            Ok(())
        }
    });
    fs.set(Arc::downgrade(&it.fs)).unwrap();
    it.fs.write_unstably();
    let file = create(&it.client, "f");
    it.client.write(&Cred::root(), &file, 0, &[7; 4096], WriteFlags::DIRECT).unwrap();
    assert!(!restart.load(Ordering::Relaxed), "it was committed");
    it.fs.restart_server().unwrap();
    assert_eq!(on_server(&it, "f"), [7; 100]);
}

#[test]
fn a_server_that_loses_everything_again_and_again_is_an_error() {
    let fs: Arc<OnceLock<Weak<RemoteFs>>> = Arc::default();
    let it = both({
        let fs = fs.clone();
        move |what| {
            if what == "commit"
                && let Some(fs) = fs.get().and_then(Weak::upgrade)
            {
                fs.restart_server().unwrap();
            }
            Ok(())
        }
    });
    it.fs.write_unstably();
    let file = unstable_file(&it, "f", b"never kept");
    fs.set(Arc::downgrade(&it.fs)).unwrap();
    assert!(matches!(it.client.fsync(&file, false), Err(Error::Server(ServerError::StateLost))));
    assert_eq!(read(&it.client, &file), b"never kept");
}

#[test]
fn a_page_that_others_changed_meanwhile_goes_with_its_commit() {
    let it = both(|_| Ok(()));
    it.fs.write_unstably();
    let file = unstable_file(&it, "f", b"ours");
    write(&it.server, &it.server.resolve(&Cred::root(), "/f", true).unwrap(), b"newer");
    it.client.get_attr(&Cred::root(), &file).unwrap();
    it.client.fsync(&file, false).unwrap();
    assert_eq!(read(&it.client, &file), b"newer");
}
