//! Measurement and appraisal at the VFS's opens and closes, without a front end.

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
struct MemoryList {
    entries: Arc<Mutex<Vec<Entry>>>,
    full: Arc<AtomicBool>,
}

impl Sink for MemoryList {
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

impl MemoryList {
    /// Removes all entries and returns their paths. A violation has a `!` before its path.
    fn take(&self) -> Vec<String> {
        let entries = std::mem::take(&mut *self.entries.lock().unwrap());
        let mark = |entry: &Entry| if entry.is_violation() { "!" } else { "" };
        let name = |entry: &Entry| String::from_utf8(entry.fields().name.to_vec()).unwrap();
        entries.iter().map(|entry| format!("{}{}", mark(entry), name(entry))).collect()
    }
}

struct Fixture {
    vfs: Arc<Vfs>,
    root: InodeRef,
    list: MemoryList,
}

const READ: OpenMode = OpenMode::READ;
const WRITE: OpenMode = OpenMode::WRITE;

impl Fixture {
    fn new(policy: &str, enforce: bool, mode: ChangeMode) -> Self {
        let list = MemoryList::default();
        let sink = Box::new(list.clone());
        let hooks = Hooks::new(policy.parse().unwrap(), Algorithm::Sha256, Keyring::default(), enforce, sink);
        let options = MountOptions {
            observer: Some(Arc::new(hooks)),
            mode,
            background: false,
            ..MountOptions::default()
        };
        let vfs = Vfs::mount(Arc::new(Mem::new(64 << 20)), options).unwrap();
        let root = vfs.root().unwrap();
        Self { vfs, root, list }
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

    /// Opens, writes and closes a file.
    fn put(&self, inode: &InodeRef, bytes: &[u8]) {
        self.open(inode, WRITE).unwrap();
        self.write(inode, bytes);
        self.vfs.close(inode, WRITE);
    }

    /// Opens and closes a file for reading.
    fn get(&self, inode: &InodeRef) -> Result<()> {
        self.open(inode, READ)?;
        self.vfs.close(inode, READ);
        Ok(())
    }
}

#[test]
fn a_file_is_measured_at_the_last_close_and_after_changes() {
    let fixture = Fixture::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = fixture.make("f");
    fixture.open(&file, WRITE).unwrap();
    fixture.write(&file, b"one");
    assert!(fixture.list.take().is_empty(), "not closed yet");
    fixture.vfs.close(&file, WRITE);
    assert_eq!(fixture.list.take(), ["/f"]);
    fixture.get(&file).unwrap();
    // Opened for writing, but not changed.
    fixture.open(&file, WRITE).unwrap();
    fixture.vfs.close(&file, WRITE);
    fixture.get(&file).unwrap();
    assert!(fixture.list.take().is_empty());
    let queries = || fixture.vfs.stats().queries;
    fixture.put(&file, b"two");
    assert_eq!(fixture.list.take(), ["/f"]);
    // With two writers, the file is measured at the second close.
    fixture.open(&file, WRITE).unwrap();
    fixture.open(&file, WRITE).unwrap();
    fixture.write(&file, b"six");
    fixture.vfs.close(&file, WRITE);
    assert!(fixture.list.take().is_empty());
    fixture.vfs.close(&file, WRITE);
    assert_eq!(fixture.list.take(), ["/f"]);
    // Changed without an open (truncate by path, another front end): measured at the next open.
    let before = queries();
    fixture.write(&file, b"ten");
    fixture.get(&file).unwrap();
    assert_eq!(fixture.list.take(), ["/f"]);
    assert!(queries() > before);
}

#[test]
fn each_violation_is_recorded_once() {
    let fixture = Fixture::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = fixture.make("f");
    fixture.put(&file, b"one");
    fixture.get(&file).unwrap();
    fixture.list.take();
    fixture.open(&file, WRITE).unwrap();
    fixture.get(&file).unwrap();
    fixture.get(&file).unwrap();
    assert_eq!(fixture.list.take(), ["!/f"], "open_writers");
    fixture.vfs.close(&file, WRITE);
    fixture.open(&file, READ).unwrap();
    for _ in 0..2 {
        fixture.open(&file, WRITE).unwrap();
        fixture.vfs.close(&file, WRITE);
    }
    assert_eq!(fixture.list.take(), ["!/f"], "ToMToU");
    fixture.vfs.close(&file, READ);
    // An open for reading and writing counts as a writer only.
    fixture.open(&file, READ | WRITE).unwrap();
    fixture.open(&file, READ | WRITE).unwrap();
    assert!(fixture.list.take().is_empty());
    // A reader whose opens are not measured causes no violation.
    let fixture = Fixture::new("measure uid=1 mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = fixture.make("f");
    fixture.open(&file, WRITE).unwrap();
    fixture.open(&file, READ).unwrap();
    fixture.open(&file, WRITE).unwrap();
    assert!(fixture.list.take().is_empty());
}

/// Opens a file while it is open in `other` mode, and closes that a little later. Returns what was recorded
/// in the attempt in which the open waited: on a busy machine the close may come too late, or first.
fn recorded_while_waiting(other: OpenMode, open: OpenMode) -> Vec<String> {
    let fixture = Fixture::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = fixture.make("f");
    fixture.put(&file, b"one");
    for attempt in 0..20 {
        fixture.open(&file, other).unwrap();
        if other == WRITE {
            fixture.write(&file, &[attempt]);
        }
        fixture.list.take();
        let started = std::time::Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                fixture.vfs.close(&file, other);
            });
            fixture.open(&file, open).unwrap();
        });
        fixture.vfs.close(&file, open);
        let recorded = fixture.list.take();
        if started.elapsed().as_millis() >= 5 && !recorded.iter().any(|entry| entry.starts_with('!')) {
            return recorded;
        }
    }
    panic!("a violation each time");
}

#[test]
fn an_open_waits_for_a_late_close() {
    assert_eq!(recorded_while_waiting(WRITE, READ), ["/f"], "measured once");
    assert!(recorded_while_waiting(READ, WRITE).is_empty());
}

#[test]
fn concurrent_opens_for_reading_and_writing_are_a_violation() {
    let fixture = Fixture::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let file = fixture.make("f");
    fixture.put(&file, b"one");
    for _ in 0..100 {
        fixture.list.take();
        std::thread::scope(|scope| {
            scope.spawn(|| fixture.open(&file, READ).unwrap());
            scope.spawn(|| fixture.open(&file, WRITE).unwrap());
        });
        assert_eq!(fixture.list.take(), ["!/f"], "exactly one violation");
        fixture.vfs.close(&file, READ);
        fixture.vfs.close(&file, WRITE);
    }
}

#[test]
fn without_a_change_attribute_every_open_reads() {
    let fixture = Fixture::new("measure mask=^MAY_READ", false, ChangeMode::Off);
    let file = fixture.make("f");
    fixture.put(&file, b"one");
    assert_eq!(fixture.list.take(), ["/f"]);
    for contents in [b"two", b"six"] {
        fixture.write(&file, contents);
        fixture.get(&file).unwrap();
        assert_eq!(fixture.list.take(), ["/f"]);
    }
}

#[test]
fn a_full_list_refuses_opens() {
    let fixture = Fixture::new("dont_measure path=/free\nmeasure mask=^MAY_READ", false, ChangeMode::Lazy);
    let (file, known, free) = (fixture.make("f"), fixture.make("known"), fixture.make("free"));
    fixture.put(&known, b"x");
    fixture.list.full.store(true, Ordering::Relaxed);
    fixture.put(&file, b"x");
    assert!(matches!(fixture.get(&file), Err(Error::Io(_))));
    fixture.get(&known).unwrap();
    fixture.get(&free).unwrap();
    fixture.list.full.store(false, Ordering::Relaxed);
    fixture.get(&file).unwrap();
}

#[test]
fn a_file_that_does_not_match_its_label_is_refused() {
    let fixture = Fixture::new("dont_appraise path=/free\nappraise", true, ChangeMode::Lazy);
    let cred = Cred::root();
    let label = |inode: &InodeRef| fixture.vfs.get_xattr(&cred, inode, SECURITY_IMA);
    let of = |bytes: &[u8]| Label::encode_digest(&Algorithm::Sha256.digest(bytes));
    let file = fixture.make("f");
    // A new file has no label yet, and may be read.
    fixture.get(&file).unwrap();
    fixture.put(&file, b"one");
    assert_eq!(label(&file).unwrap(), of(b"one"));
    fixture.get(&file).unwrap();
    fixture.put(&file, b"two");
    assert_eq!(label(&file).unwrap(), of(b"two"));
    // Changed without an open.
    fixture.write(&file, b"six");
    let denied = |inode: &InodeRef, mode| {
        assert!(matches!(fixture.open(inode, mode), Err(Error::Name(NameError::Access))));
    };
    denied(&file, READ);
    denied(&file, WRITE);
    fixture.write(&file, b"two");
    fixture.get(&file).unwrap();
    fixture.vfs.remove_xattr(&cred, &file, SECURITY_IMA).unwrap();
    denied(&file, READ);
    // Refused opens do not count: the next close of a writer is the last.
    fixture.vfs.set_xattr(&cred, &file, SECURITY_IMA, &of(b"two"), XattrMode::Any).unwrap();
    fixture.put(&file, b"ten");
    assert_eq!(label(&file).unwrap(), of(b"ten"));
    let free = fixture.make("free");
    fixture.put(&free, b"x");
    assert!(label(&free).is_err());
    // If a signature is required, a digest does not suffice, and none is set.
    let fixture = Fixture::new("appraise appraise_type=imasig", true, ChangeMode::Lazy);
    let file = fixture.make("f");
    fixture.put(&file, b"x");
    assert!(fixture.vfs.get_xattr(&cred, &file, SECURITY_IMA).is_err());
    assert!(matches!(fixture.get(&file), Err(Error::Name(NameError::Access))));
}

#[test]
fn entries_have_the_current_path() {
    let fixture = Fixture::new("measure mask=^MAY_READ", false, ChangeMode::Lazy);
    let cred = Cred::root();
    let (dir, _) =
        fixture.vfs.create(&cred, &fixture.root, b"a", &CreateSpec::directory(0o755), false).unwrap();
    let (file, _) = fixture.vfs.create(&cred, &dir, b"f", &CreateSpec::file(0o644), false).unwrap();
    fixture.put(&file, b"one");
    let flags = RenameFlags::empty();
    fixture.vfs.rename(&cred, &fixture.root, b"a", &fixture.root, b"b", flags, false).unwrap();
    fixture.put(&file, b"two");
    fixture.vfs.rename(&cred, &dir, b"f", &fixture.root, b"g", flags, false).unwrap();
    fixture.put(&file, b"six");
    assert_eq!(fixture.list.take(), ["/a/f", "/b/f", "/g"]);
    // Unlinked before the last close: not measured.
    fixture.open(&file, WRITE).unwrap();
    fixture.vfs.unlink(&cred, &fixture.root, b"g", false).unwrap();
    fixture.vfs.close(&file, WRITE);
    assert!(fixture.list.take().is_empty());
}
