//! The guard at the VFS's own opens and closes, without a front end: what is recorded, in which order, and
//! what is refused.

use ivers_ima::digest::Algorithm;
use ivers_ima::hooks::{Hooks, Sink};
use ivers_ima::keys::Keyring;
use ivers_ima::list::Entry;
use ivers_ima::signature::{Label, SECURITY_IMA};
use ivers_mem::Mem;
use ivers_vfs::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Kept {
    entries: Arc<Mutex<Vec<Entry>>>,
    full: Arc<AtomicBool>,
}

impl Sink for Kept {
    fn record(&self, entry: &Entry) -> std::io::Result<()> {
        if self.full.load(Ordering::Relaxed) {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let mut entries = self.entries.lock().unwrap();
        if entry.is_violation() || !entries.contains(entry) {
            entries.push(entry.clone());
        }
        Ok(())
    }

    fn report(&self) -> String {
        "{}".into()
    }
}

impl Kept {
    /// Names since the last question; violations with a mark.
    fn take(&self) -> Vec<String> {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap());
        let mark = |entry: &Entry| if entry.is_violation() { "!" } else { "" };
        let name = |entry: &Entry| String::from_utf8(entry.fields().name.to_vec()).unwrap();
        entries.iter().map(|entry| format!("{}{}", mark(entry), name(entry))).collect()
    }
}

struct World {
    vfs: Arc<Vfs>,
    root: InodeRef,
    kept: Kept,
}

const READ: OpenMode = OpenMode::READ;
const WRITE: OpenMode = OpenMode::WRITE;

impl World {
    fn new(policy: &str, enforce: bool, mode: ChangeMode) -> Self {
        let kept = Kept::default();
        let sink = Box::new(kept.clone());
        let guard = Hooks::new(policy.parse().unwrap(), Algorithm::Sha256, Keyring::default(), enforce, sink);
        let options = MountOptions {
            observer: Some(Arc::new(guard)),
            mode,
            background: false,
            ..MountOptions::default()
        };
        let vfs = Vfs::mount(Arc::new(Mem::new(64 << 20)), options).unwrap();
        let root = vfs.root().unwrap();
        Self { vfs, root, kept }
    }

    fn make(&self, name: &str) -> InodeRef {
        self.vfs
            .create(&Cred::root(), &self.root, name.as_bytes(), &CreateSpec::file(0o644), false)
            .unwrap()
            .0
    }

    fn open(&self, inode: &InodeRef, mode: OpenMode) -> Result<()> {
        self.vfs.open(&Cred::root(), inode, mode)
    }

    fn write(&self, inode: &InodeRef, bytes: &[u8]) {
        self.vfs.write(&Cred::root(), inode, 0, bytes, WriteFlags::empty()).unwrap();
    }

    /// Opened, written and closed.
    fn put(&self, inode: &InodeRef, bytes: &[u8]) {
        self.open(inode, WRITE).unwrap();
        self.write(inode, bytes);
        self.vfs.close(inode, WRITE);
    }

    fn get(&self, inode: &InodeRef) -> Result<()> {
        self.open(inode, READ)?;
        self.vfs.close(inode, READ);
        Ok(())
    }
}

#[test]
fn a_file_is_measured_when_it_is_complete_and_when_it_changed() {
    let world = World::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = world.make("f");
    world.open(&file, WRITE).unwrap();
    world.write(&file, b"one");
    assert!(world.kept.take().is_empty(), "not complete");
    world.vfs.close(&file, WRITE);
    assert_eq!(world.kept.take(), ["/f"]);
    world.get(&file).unwrap();
    // Open for writing, and nothing written.
    world.open(&file, WRITE).unwrap();
    world.vfs.close(&file, WRITE);
    world.get(&file).unwrap();
    assert!(world.kept.take().is_empty());
    let reads = || world.vfs.stats().queries;
    world.put(&file, b"two");
    assert_eq!(world.kept.take(), ["/f"]);
    // Two writers: at the last one's close.
    world.open(&file, WRITE).unwrap();
    world.open(&file, WRITE).unwrap();
    world.write(&file, b"six");
    world.vfs.close(&file, WRITE);
    assert!(world.kept.take().is_empty());
    world.vfs.close(&file, WRITE);
    assert_eq!(world.kept.take(), ["/f"]);
    // Changed behind the opens (truncate by name, another front end): at the next open.
    let before = reads();
    world.write(&file, b"ten");
    world.get(&file).unwrap();
    assert_eq!(world.kept.take(), ["/f"]);
    assert!(reads() > before);
}

#[test]
fn violations_are_said_once_each_time() {
    let world = World::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = world.make("f");
    world.put(&file, b"one");
    world.get(&file).unwrap();
    world.kept.take();
    world.open(&file, WRITE).unwrap();
    world.get(&file).unwrap();
    world.get(&file).unwrap();
    assert_eq!(world.kept.take(), ["!/f"], "open_writers");
    world.vfs.close(&file, WRITE);
    world.open(&file, READ).unwrap();
    for _ in 0..2 {
        world.open(&file, WRITE).unwrap();
        world.vfs.close(&file, WRITE);
    }
    assert_eq!(world.kept.take(), ["!/f"], "ToMToU");
    world.vfs.close(&file, READ);
    // Reading and writing is writing.
    world.open(&file, READ | WRITE).unwrap();
    world.open(&file, READ | WRITE).unwrap();
    assert!(world.kept.take().is_empty());
    // Whom the policy does not measure nobody spoils.
    let world = World::new("measure uid=1 mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = world.make("f");
    world.open(&file, WRITE).unwrap();
    world.open(&file, READ).unwrap();
    world.open(&file, WRITE).unwrap();
    assert!(world.kept.take().is_empty());
}

#[test]
fn a_close_that_is_on_its_way_is_waited_for() {
    let world = World::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = world.make("f");
    world.put(&file, b"one");
    world.kept.take();
    world.open(&file, WRITE).unwrap();
    world.write(&file, b"two");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            world.vfs.close(&file, WRITE);
        });
        world.get(&file).unwrap();
    });
    assert_eq!(world.kept.take(), ["/f"], "measured once, and no violation");
}

#[test]
fn readers_and_writers_see_each_other_whoever_is_first() {
    let world = World::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = world.make("f");
    world.put(&file, b"one");
    for _ in 0..200 {
        world.kept.take();
        std::thread::scope(|scope| {
            scope.spawn(|| world.open(&file, READ).unwrap());
            scope.spawn(|| world.open(&file, WRITE).unwrap());
        });
        assert_eq!(world.kept.take(), ["!/f"], "one of the two violations");
        world.vfs.close(&file, READ);
        world.vfs.close(&file, WRITE);
    }
}

#[test]
fn without_a_number_every_open_reads() {
    let world = World::new("measure mask=^MAY_READ", false, ChangeMode::Off);
    let file = world.make("f");
    world.put(&file, b"one");
    assert_eq!(world.kept.take(), ["/f"]);
    for contents in [b"two", b"six"] {
        world.write(&file, contents);
        world.get(&file).unwrap();
        assert_eq!(world.kept.take(), ["/f"]);
    }
}

#[test]
fn a_list_that_takes_no_more_refuses_opens() {
    let world = World::new("dont_measure path=/free\nmeasure mask=^MAY_READ", false, ChangeMode::Lazy);
    let (file, known, free) = (world.make("f"), world.make("known"), world.make("free"));
    world.put(&known, b"x");
    world.kept.full.store(true, Ordering::Relaxed);
    world.put(&file, b"x");
    assert!(matches!(world.get(&file), Err(Error::Io(_))));
    world.get(&known).unwrap();
    world.get(&free).unwrap();
    world.kept.full.store(false, Ordering::Relaxed);
    world.get(&file).unwrap();
}

#[test]
fn what_is_not_what_its_label_says_is_refused() {
    let world = World::new("dont_appraise path=/free\nappraise", true, ChangeMode::Lazy);
    let cred = Cred::root();
    let label = |inode: &InodeRef| world.vfs.get_xattr(&cred, inode, SECURITY_IMA);
    let of = |bytes: &[u8]| Label::encode_digest(&Algorithm::Sha256.digest(bytes));
    let file = world.make("f");
    // Being made: it has no label yet, and may be read.
    world.get(&file).unwrap();
    world.put(&file, b"one");
    assert_eq!(label(&file).unwrap(), of(b"one"));
    world.get(&file).unwrap();
    world.put(&file, b"two");
    assert_eq!(label(&file).unwrap(), of(b"two"));
    // Changed behind the opens.
    world.write(&file, b"six");
    let denied = |inode: &InodeRef, mode| {
        assert!(matches!(world.open(inode, mode), Err(Error::Name(NameError::Access))));
    };
    denied(&file, READ);
    denied(&file, WRITE);
    world.write(&file, b"two");
    world.get(&file).unwrap();
    world.vfs.remove_xattr(&cred, &file, SECURITY_IMA).unwrap();
    denied(&file, READ);
    // What was refused is not open: its last writer is no last writer.
    world.vfs.set_xattr(&cred, &file, SECURITY_IMA, &of(b"two"), XattrMode::Any).unwrap();
    world.put(&file, b"ten");
    assert_eq!(label(&file).unwrap(), of(b"ten"));
    let free = world.make("free");
    world.put(&free, b"x");
    assert!(label(&free).is_err());
    // A signature is wanted: a digest will not do, and none is put there.
    let world = World::new("appraise appraise_type=imasig", true, ChangeMode::Lazy);
    let file = world.make("f");
    world.put(&file, b"x");
    assert!(world.vfs.get_xattr(&cred, &file, SECURITY_IMA).is_err());
    assert!(matches!(world.get(&file), Err(Error::Name(NameError::Access))));
}

#[test]
fn names_follow_directories_that_move() {
    let world = World::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let cred = Cred::root();
    let (dir, _) = world.vfs.create(&cred, &world.root, b"a", &CreateSpec::directory(0o755), false).unwrap();
    let (file, _) = world.vfs.create(&cred, &dir, b"f", &CreateSpec::file(0o644), false).unwrap();
    world.put(&file, b"one");
    let flags = RenameFlags::empty();
    world.vfs.rename(&cred, &world.root, b"a", &world.root, b"b", flags, false).unwrap();
    world.put(&file, b"two");
    world.vfs.rename(&cred, &dir, b"f", &world.root, b"g", flags, false).unwrap();
    world.put(&file, b"six");
    assert_eq!(world.kept.take(), ["/a/f", "/b/f", "/g"]);
    // Gone before its last writer: nothing is measured, and nothing kept of the number.
    world.open(&file, WRITE).unwrap();
    world.vfs.unlink(&cred, &world.root, b"g", false).unwrap();
    world.vfs.close(&file, WRITE);
    assert!(world.kept.take().is_empty());
}
