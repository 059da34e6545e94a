//! Changes while connections break and the server restarts: nothing is lost, nothing is done twice.

use super::faults::{Fault, Plan, proxy};
use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use ivers_vfs::{Error, FileType, NameError, OpenMode, RenameFlags};

pub const READ_WRITE: OpenMode = OpenMode::READ.union(OpenMode::WRITE);

/// A server on a device that keeps what reached it, and loses the rest in a crash.
pub struct Crashing {
    device: Arc<dyn Device>,
    state: tempfile::TempDir,
    pub address: SocketAddr,
    pub lease_seconds: u32,
    running: Option<(Arc<Vfs>, NfsServer)>,
}

impl Crashing {
    pub fn new() -> Self {
        Self::with_lease(LEASE_SECONDS)
    }

    pub fn with_lease(lease_seconds: u32) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
        mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
        let state = tempfile::tempdir().unwrap();
        let any = "127.0.0.1:0".parse().unwrap();
        let mut crashing = Self { device, state, address: any, lease_seconds, running: None };
        crashing.start();
        crashing
    }

    fn vfs(&self) -> &Arc<Vfs> {
        &self.running.as_ref().unwrap().0
    }

    pub fn start(&mut self) {
        let options = DriverOptions { place: "a test".into(), ..DriverOptions::default() };
        let fs = Ext4::open(self.device.clone(), OpenOptions::from(options)).unwrap();
        let vfs = Vfs::mount(fs, quiet()).unwrap();
        let lease = (self.lease_seconds, None);
        let server = serve_with(self.state.path(), &vfs, ",no_root_squash", self.address, lease);
        self.address = server.addresses()[0];
        self.running = Some((vfs, server));
    }

    /// Returns a function that tells how often this run of the server has executed an operation.
    pub fn operations(&self) -> impl Fn(&str) -> u64 + Send + use<> {
        let stats = self.running.as_ref().unwrap().1.stats_handle();
        move |name| {
            let operations = stats.stats().unwrap().operations;
            operations.iter().filter(|count| count.name == name).map(|count| count.calls).sum()
        }
    }

    /// Crashes and starts. `fault` decides what happens to each reply of the new run. Its argument tells how
    /// often this run has executed an operation.
    pub fn restart_with(
        &mut self,
        plan: &Plan,
        mut fault: impl FnMut(&dyn Fn(&str) -> u64) -> Option<Fault> + Send + 'static,
    ) {
        self.crash();
        // No reply is forwarded before the function is set: a thread that renews the lease connects at once.
        let mut place = plan.fault.lock().unwrap();
        self.start();
        let counts = self.operations();
        *place = Some(Box::new(move || fault(&counts)));
    }

    /// What the server has not made durable is gone.
    pub fn crash(&mut self) {
        let (vfs, server) = self.running.take().unwrap();
        drop(server);
        drop(vfs);
    }

    pub fn contents(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.vfs().resolve(&Cred::root(), path, false)?;
        let mut bytes = vec![0; self.vfs().stat(&file).size as usize];
        let mut len = 0;
        while len < bytes.len() {
            len += self.vfs().read(&Cred::root(), &file, len as u64, &mut bytes[len..])?;
        }
        Ok(bytes)
    }

    fn exists(&self, path: &str) -> bool {
        self.vfs().resolve(&Cred::root(), path, false).is_ok()
    }
}

pub fn patient() -> NfsOptions {
    let patience = Patience { reply: Duration::from_millis(1500), request: None, ..Patience::default() };
    NfsOptions { patience, ..options() }
}

/// [`N11`] Writers append and sync while the server crashes under them.
#[test]
pub fn fsynced_bytes_survive_restarts() {
    const WRITERS: usize = 3;
    let mut crashing = Crashing::new();
    let client = mount(crashing.address, &patient()).unwrap();
    let cred = Cred::root();
    let files: Vec<_> = (0..WRITERS).map(|nth| client.put(&format!("f{nth}"), b"").unwrap()).collect();
    let durable: Vec<_> = (0..WRITERS).map(|_| AtomicUsize::new(0)).collect();
    let stop = AtomicBool::new(false);
    let byte = |file: usize, at: usize| ((at / 100 + file * 31) % 251) as u8;
    let mut crashes = 0;
    std::thread::scope(|scope| {
        for (nth, file) in files.iter().enumerate() {
            let (client, durable, stop, cred) = (&client, &durable, &stop, &cred);
            scope.spawn(move || {
                client.vfs.open(cred, file, READ_WRITE).unwrap();
                let mut len = 0;
                while !stop.load(Relaxed) {
                    let text: Vec<u8> = (len..len + 1000 + nth * 7777).map(|at| byte(nth, at)).collect();
                    client.vfs.write(cred, file, len as u64, &text, WriteFlags::empty()).unwrap();
                    len += text.len();
                    if len % 3 != 0 {
                        client.vfs.fsync(file, false).unwrap();
                        durable[nth].store(len, Relaxed);
                    }
                    if len > 6 << 20 {
                        len = 0;
                        durable[nth].store(0, Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                client.vfs.close(file, READ_WRITE);
            });
        }
        for round in 0..6_u64 {
            std::thread::sleep(Duration::from_millis(300 + round * 37));
            let before: Vec<_> = durable.iter().map(|len| len.load(Relaxed)).collect();
            crashing.crash();
            crashing.start();
            crashes += 1;
            for (nth, len) in before.into_iter().enumerate() {
                let there = crashing.contents(&format!("/f{nth}")).unwrap();
                assert!(there.len() >= len, "file {nth}: {} of {len} bytes", there.len());
                let wrong = (0..len).find(|at| there[*at] != byte(nth, *at));
                assert_eq!(wrong, None, "file {nth} of {len} bytes, crash {round}");
            }
        }
        stop.store(true, Relaxed);
    });
    client.vfs.sync().unwrap();
    crashing.crash();
    crashing.start();
    for (nth, file) in files.iter().enumerate() {
        let there = crashing.contents(&format!("/f{nth}")).unwrap();
        assert_eq!(there.len() as u64, client.vfs.stat(file).size, "after {crashes} crashes");
        assert!(there.iter().enumerate().all(|(at, found)| *found == byte(nth, at)), "file {nth}");
    }
    drop(files);
    client.vfs.unmount().unwrap();
}

/// Runs a change whose reply is lost. The server crashes after it was executed, and `meanwhile` runs before
/// the client can ask again.
fn lose_reply<T: Send>(
    crashing: &mut Crashing,
    plan: &Plan,
    change: impl FnOnce() -> T + Send,
    executed: impl Fn(&Crashing) -> bool,
    meanwhile: impl FnOnce(&Crashing),
) -> T {
    plan.swallow.store(true, Relaxed);
    std::thread::scope(|scope| {
        let change = scope.spawn(change);
        let started = Instant::now();
        while !executed(crashing) {
            if started.elapsed() > Duration::from_secs(20) {
                // Or the thread would never end.
                plan.swallow.store(false, Relaxed);
                panic!("it was not executed");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // As durable as the server says it is, before its reply leaves.
        std::thread::sleep(Duration::from_millis(100));
        meanwhile(crashing);
        crashing.vfs().sync().unwrap();
        crashing.crash();
        crashing.start();
        plan.swallow.store(false, Relaxed);
        change.join().unwrap()
    })
}

/// [`N10`] Each change is executed, its reply is lost, and the session with it.
#[test]
fn nothing_is_done_twice() {
    let mut crashing = Crashing::new();
    let (address, plan) = proxy(crashing.address);
    let timeout = Duration::from_secs(1000);
    let client = mount(address, &NfsOptions { attribute_timeout: timeout, ..patient() }).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    let none = RenameFlags::empty();
    let nothing = |_: &Crashing| {};
    // What a change asks first must be cached: its reply would be lost as well.
    let look = |names: &[&str]| {
        client.vfs.change(&root).unwrap();
        names.iter().for_each(|name| drop(client.find(name)));
        client.vfs.access(&cred, &root, 7).unwrap();
    };

    for (name, spec) in [
        ("dir", CreateSpec::directory(0o755)),
        ("file", CreateSpec::file(0o644)),
        ("link", CreateSpec { target: b"x".to_vec(), ..CreateSpec::of(FileType::Symlink, 0o777) }),
    ] {
        let made = lose_reply(
            &mut crashing,
            &plan,
            || client.make(&root, name, &spec).map(|inode| inode.kind),
            |there| there.exists(&format!("/{name}")),
            nothing,
        );
        assert_eq!(made.unwrap(), spec.kind, "{name} is its own");
    }
    // Another program's is not taken for its own.
    let made = lose_reply(
        &mut crashing,
        &plan,
        || client.make(&root, "other", &CreateSpec::file(0o644)).map(drop),
        |there| there.exists("/other"),
        |there| {
            let (vfs, cred) = (there.vfs(), Cred::root());
            let dir = vfs.root().unwrap();
            vfs.unlink(&cred, &dir, b"other", false).unwrap();
            vfs.create(&cred, &dir, b"other", &CreateSpec::file(0o600), false).unwrap();
        },
    );
    assert!(matches!(made, Err(Error::Name(NameError::Exists))), "{made:?}");

    look(&["/file", "/moved"]);
    let moved = lose_reply(
        &mut crashing,
        &plan,
        || client.vfs.rename(&cred, &root, b"file", &root, b"moved", none, false).map(drop),
        |there| there.exists("/moved"),
        // A new file with the old name must not be renamed.
        |there| {
            let dir = there.vfs().root().unwrap();
            there.vfs().create(&Cred::root(), &dir, b"file", &CreateSpec::file(0o600), false).unwrap();
        },
    );
    moved.unwrap();
    assert!(crashing.exists("/file") && crashing.exists("/moved"));
    assert!(client.find("/file").is_ok() && client.find("/moved").is_ok());

    let file = client.find("/moved").unwrap();
    look(&["/second"]);
    let linked = lose_reply(
        &mut crashing,
        &plan,
        || client.vfs.link(&cred, &file, &root, b"second", false).map(drop),
        |there| there.exists("/second"),
        nothing,
    );
    linked.unwrap();
    assert_eq!(client.vfs.get_attr(&cred, &file).unwrap().nlink, 2);
    drop(file);

    look(&["/second"]);
    let removed = lose_reply(
        &mut crashing,
        &plan,
        || client.vfs.unlink(&cred, &root, b"second", false).map(drop),
        |there| !there.exists("/second"),
        |there| {
            let dir = there.vfs().root().unwrap();
            there.vfs().create(&Cred::root(), &dir, b"second", &CreateSpec::file(0o600), false).unwrap();
        },
    );
    removed.unwrap();
    assert!(crashing.exists("/second"), "the new file was removed as well");
    client.vfs.unmount().unwrap();
}

/// A reply that is cut costs a repetition, which brings the same reply.
#[test]
pub fn replies_to_changes_are_asked_for_again() {
    let served = Served::new(ext4());
    let (address, plan) = proxy(served.address());
    let client = mount(address, &patient()).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    let none = RenameFlags::empty();
    for (round, cut) in [1, 3, 40, 90, 130, 200, 260, 300].into_iter().enumerate() {
        let cutting = || plan.cut_after.store(cut, Relaxed);
        cutting();
        client.make(&root, "dir", &CreateSpec::directory(0o755)).unwrap();
        cutting();
        let file = client.put("file", &[round as u8; 9000]).unwrap();
        cutting();
        client.vfs.fsync(&file, false).unwrap();
        cutting();
        client.vfs.link(&cred, &file, &root, b"two", false).unwrap();
        cutting();
        client.vfs.rename(&cred, &root, b"file", &root, b"three", none, false).unwrap();
        plan.cut_after.store(0, Relaxed);
        assert_eq!(client.contents("/three").unwrap(), [round as u8; 9000]);
        for name in ["two", "three"] {
            cutting();
            client.vfs.unlink(&cred, &root, name.as_bytes(), false).unwrap();
        }
        cutting();
        client.vfs.rmdir(&cred, &root, b"dir", false).unwrap();
        plan.cut_after.store(0, Relaxed);
        assert_eq!(client.names("/").unwrap().len(), 3, "`.`, `..` and lost+found");
    }
    assert!(plan.cuts.load(Relaxed) >= 40, "{} cuts", plan.cuts.load(Relaxed));
    client.vfs.unmount().unwrap();
}

/// A client that was silent for longer than its lease has lost its opens, and gets them back.
#[test]
pub fn writers_go_on_after_their_lease_expired() {
    let served = Served::new(ext4());
    let (address, plan) = proxy(served.address());
    let client = mount(address, &patient()).unwrap();
    let cred = Cred::root();
    let file = client.put("f", b"first").unwrap();
    client.vfs.open(&cred, &file, READ_WRITE).unwrap();
    client.vfs.write(&cred, &file, 0, b"second", WriteFlags::empty()).unwrap();
    plan.swallow.store(true, Relaxed);
    // The lease is 3 s. Another client makes the server forget this one.
    std::thread::sleep(Duration::from_secs(7));
    let other = mount(served.address(), &options()).unwrap();
    other.put("g", b"g").unwrap();
    plan.swallow.store(false, Relaxed);
    client.vfs.fsync(&file, false).unwrap();
    client.vfs.write(&cred, &file, 6, b" third", WriteFlags::empty()).unwrap();
    client.vfs.close(&file, READ_WRITE);
    client.vfs.fsync(&file, false).unwrap();
    assert_eq!(other.contents("/f").unwrap(), b"second third");
    client.vfs.unmount().unwrap();
}

/// Opens outlive an orderly restart, and so does a file without a name here.
#[test]
pub fn opens_are_reclaimed_after_a_restart() {
    let mut crashing = Crashing::new();
    let client = mount(crashing.address, &patient()).unwrap();
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    let file = client.put("f", b"contents").unwrap();
    client.vfs.open(&cred, &file, READ_WRITE).unwrap();
    client.vfs.unlink(&cred, &root, b"f", false).unwrap();
    for round in 0..3_u8 {
        crashing.crash();
        crashing.start();
        client.vfs.write(&cred, &file, 8 + u64::from(round), &[round], WriteFlags::empty()).unwrap();
        client.vfs.fsync(&file, false).unwrap();
    }
    let mut bytes = [0; 20];
    let read = client.vfs.read(&cred, &file, 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..read], b"contents\x00\x01\x02");
    client.vfs.close(&file, READ_WRITE);
    drop(file);
    assert!(client.names("/").unwrap().iter().all(|name| !name.starts_with(".nfs")));
    client.vfs.unmount().unwrap();
}

/// [`N4`] A writer whose server is gone does not keep the mount.
#[test]
pub fn an_unmount_of_a_writer_ends() {
    let served = Served::new(mem());
    let (address, plan) = proxy(served.address());
    let client = mount(address, &options()).unwrap();
    let cred = Cred::root();
    let file = client.put("f", b"x").unwrap();
    client.vfs.open(&cred, &file, READ_WRITE).unwrap();
    client.vfs.write(&cred, &file, 0, b"never sent", WriteFlags::empty()).unwrap();
    plan.swallow.store(true, Relaxed);
    std::thread::scope(|scope| {
        let ended = scope.spawn(|| client.vfs.unmount());
        std::thread::sleep(Duration::from_millis(500));
        assert!(!ended.is_finished(), "a patient client waits");
        client.vfs.stop_waiting();
        let started = Instant::now();
        assert!(ended.join().unwrap().is_err(), "the bytes are lost, and that is said");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    });
}

/// [`N4`] An unmount waits for one request of a dead server, and not for one of each file.
#[test]
pub fn a_soft_unmount_waits_for_a_dead_server_once() {
    const FILES: usize = 40;
    let served = Served::new(mem());
    let (address, plan) = proxy(served.address());
    let patience = Patience {
        reply: Duration::from_millis(300),
        request: Some(Duration::from_millis(600)),
        ..Patience::default()
    };
    let client = mount(address, &NfsOptions { patience, ..options() }).unwrap();
    let cred = Cred::root();
    let files: Vec<_> = (0..FILES)
        .map(|nth| {
            let file = client.put(&format!("f{nth}"), b"x").unwrap();
            client.vfs.open(&cred, &file, READ_WRITE).unwrap();
            client.vfs.write(&cred, &file, 0, b"never sent", WriteFlags::empty()).unwrap();
            file
        })
        .collect();
    plan.swallow.store(true, Relaxed);
    let connections = plan.connections.load(Relaxed);
    assert!(client.vfs.unmount().is_err(), "the bytes are lost, and that is said");
    // A request that times out connects twice. A thread that renews the lease may do so too.
    let tried = plan.connections.load(Relaxed) - connections;
    assert!(tried <= 8, "{tried} connections to a dead server for {FILES} files");
    drop(files);
}
