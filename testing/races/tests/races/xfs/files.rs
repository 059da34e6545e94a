//! Files that are written, cut, shared, moved and removed while commits, evictions and crashes happen.

use ivers_block::Device;
use ivers_races::*;
use ivers_vfs::{CreateSpec, Cred, InodeRef, RenameFlags, SetAttr, Vfs, WriteFlags};
use shuttle::thread::scope;
use std::sync::{Arc, Mutex, PoisonError};

const ROUNDS: u64 = 2;
const WORDS: usize = PAGE as usize / 8;
/// The pages of `kept` that are written.
const WRITTEN: [u64; 2] = [0, 2];
/// Words that are appended to `grown` at once: the end of the file lies inside a block.
const APPENDED: u64 = 300;

const NAMES: [&str; 5] = ["kept", "cut", "copy", "first", "grown"];

/// Who wrote a word: the upper half of it. The lower half is the round.
const KEPT: u64 = 1 << 32;
const CUT: u64 = 2 << 32;
const COPY: u64 = 3 << 32;
const NEW: u64 = 4 << 32;
const GROWN: u64 = 5 << 32;

/// What a crash leaves.
struct Crash {
    device: Arc<dyn Device>,
    /// The rounds of `kept`, and the size of `grown`, that were durable.
    kept: [u64; 2],
    grown: u64,
    /// The values that observers had, and the rounds that they saw.
    seen: Vec<(u64, [u64; 2])>,
}

/// The files of these races.
pub struct Files {
    fixture: XfsFixture,
    dirs: [InodeRef; 2],
    kept: InodeRef,
    cut: InodeRef,
    copy: InodeRef,
    /// Shared its blocks with `kept` before the race.
    first: InodeRef,
    grown: InodeRef,
    /// The rounds of `kept` that are written, and those that are durable.
    written: ObservationLog<2>,
    durable: ObservationLog<2>,
    /// The same for the size of `grown`.
    grew: ObservationLog<1>,
    durable_size: ObservationLog<1>,
    crashes: Mutex<Vec<Crash>>,
}

/// What one thread does.
pub type Part = fn(&Files);

fn make(vfs: &Vfs, dir: &InodeRef, name: &str, spec: &CreateSpec) -> InodeRef {
    vfs.create(&Cred::root(), dir, name.as_bytes(), spec, false).unwrap().0
}

/// Fills a page with one word.
fn fill(vfs: &Vfs, file: &InodeRef, page: u64, word: u64) {
    let flags = if coin() { WriteFlags::DIRECT } else { WriteFlags::empty() };
    let data = word.to_le_bytes().repeat(WORDS);
    assert_eq!(vfs.write(&Cred::root(), file, page * PAGE, &data, flags).unwrap(), data.len());
}

fn words(vfs: &Vfs, file: &InodeRef) -> Vec<u64> {
    let mut bytes = vec![0; vfs.stat(file).size as usize];
    let len = vfs.read(&Cred::root(), file, 0, &mut bytes).unwrap();
    bytes[..len].chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn set_size(vfs: &Vfs, file: &InodeRef, size: u64) {
    let set = SetAttr { size: Some(size), ..SetAttr::default() };
    vfs.set_attr(&Cred::root(), file, &set).unwrap();
}

impl Files {
    fn new() -> Self {
        let fixture = XfsFixture::new(Log::Small);
        let vfs = &fixture.vfs;
        let root = vfs.root().unwrap();
        let dirs = ["d", "e"].map(|name| make(vfs, &root, name, &CreateSpec::directory(0o755)));
        let file = CreateSpec::file(0o644);
        let [kept, cut, copy, first, grown] = NAMES.map(|name| make(vfs, &root, name, &file));
        drop(make(vfs, &dirs[0], "moved", &file));
        fill(vfs, &kept, WRITTEN[1], KEPT);
        vfs.clone_range(&Cred::root(), &kept, 0, &first, 0, 0).unwrap();
        vfs.sync().unwrap();
        Self {
            fixture,
            dirs,
            kept,
            cut,
            copy,
            first,
            grown,
            written: ObservationLog::default(),
            durable: ObservationLog::default(),
            grew: ObservationLog::default(),
            durable_size: ObservationLog::default(),
            crashes: Mutex::default(),
        }
    }

    fn vfs(&self) -> &Vfs {
        &self.fixture.vfs
    }

    fn rounds(&self, vfs: &Vfs, kept: &InodeRef) -> [u64; 2] {
        let words = words(vfs, kept);
        WRITTEN.map(|page| words.get(page as usize * WORDS).map_or(0, |word| word & 0xFFFF_FFFF))
    }

    fn sync_kept(&self, sync: impl FnOnce(&Vfs)) {
        let floor = self.written.floor();
        sync(self.vfs());
        floor.iter().enumerate().for_each(|(of, round)| self.durable.completed(of, *round));
    }

    fn sync_grown(&self, sync: impl FnOnce(&Vfs)) {
        let [size] = self.grew.floor();
        sync(self.vfs());
        self.durable_size.completed(0, size);
    }

    /// Overwrites pages.
    pub fn write(&self) {
        for round in 1..=ROUNDS {
            for (of, page) in WRITTEN.into_iter().enumerate() {
                fill(self.vfs(), &self.kept, page, KEPT | round);
                self.written.completed(of, round);
            }
            if coin() {
                self.fsync_kept();
            }
        }
    }

    fn fsync_kept(&self) {
        self.sync_kept(|vfs| vfs.fsync(&self.kept, coin()).unwrap());
        if coin() {
            self.crash();
        }
    }

    /// Appends to a file.
    pub fn grow(&self) {
        for _ in 0..ROUNDS + 1 {
            let at = vfs_size(self.vfs(), &self.grown);
            let words = (at / 8..at / 8 + APPENDED).flat_map(|nth| (GROWN | nth).to_le_bytes());
            let data: Vec<u8> = words.collect();
            let flags = WriteFlags::APPEND;
            assert_eq!(self.vfs().write(&Cred::root(), &self.grown, 0, &data, flags).unwrap(), data.len());
            self.grew.completed(0, at + data.len() as u64);
            if coin() {
                self.fsync_grown();
            }
        }
    }

    /// Makes what was appended so far durable.
    pub fn fsync_grown(&self) {
        self.sync_grown(|vfs| vfs.fsync(&self.grown, coin()).unwrap());
        if coin() {
            self.crash();
        }
    }

    /// Writes a file and cuts it.
    pub fn cut(&self) {
        for round in 1..=ROUNDS {
            (0..3).for_each(|page| fill(self.vfs(), &self.cut, page, CUT | round));
            set_size(self.vfs(), &self.cut, PAGE + 8 * draw(WORDS) as u64);
            if coin() {
                self.vfs().fsync(&self.cut, false).unwrap();
            }
        }
    }

    /// Writes back the file that is cut.
    pub fn fsync_cut(&self) {
        (0..ROUNDS).for_each(|_| self.vfs().fsync(&self.cut, coin()).unwrap());
    }

    /// Moves a name between two directories.
    pub fn rename(&self) {
        let [d, e] = &self.dirs;
        for (from, to) in [(d, e), (e, d), (d, e)] {
            let flags = RenameFlags::empty();
            self.vfs().rename(&Cred::root(), from, b"moved", to, b"moved", flags, false).unwrap();
        }
    }

    /// Files that lose their names while they are in use.
    pub fn make_and_remove(&self) {
        // Where the other files are: their blocks are near.
        let dir = &self.vfs().root().unwrap();
        for round in 1..=ROUNDS {
            let file = make(self.vfs(), dir, "new", &CreateSpec::file(0o600));
            fill(self.vfs(), &file, 0, NEW | round);
            self.vfs().unlink(&Cred::root(), dir, b"new", false).unwrap();
            fill(self.vfs(), &file, 1, NEW | round);
            assert!(words(self.vfs(), &file).iter().all(|word| *word == NEW | round));
        }
    }

    /// Gives a file the blocks of another one, and writes it.
    pub fn share(&self) {
        for round in 1..=ROUNDS {
            self.vfs().clone_range(&Cred::root(), &self.kept, 0, &self.copy, 0, 0).unwrap();
            fill(self.vfs(), &self.copy, 0, COPY | round);
            set_size(self.vfs(), &self.copy, PAGE * draw(3) as u64);
        }
    }

    /// Ends sharing the blocks that another file has.
    pub fn unshare(&self) {
        for round in 1..=ROUNDS {
            if coin() {
                fill(self.vfs(), &self.first, WRITTEN[1], COPY | round);
                self.vfs().fsync(&self.first, true).unwrap();
            } else {
                set_size(self.vfs(), &self.first, PAGE * draw(3) as u64);
            }
        }
    }

    /// Queries the change attribute, and reads.
    pub fn observe(&self) {
        for _ in 0..ROUNDS {
            self.written.observe(self.vfs(), &self.kept, || self.rounds(self.vfs(), &self.kept));
        }
    }

    /// Reclaims memory.
    pub fn press(&self) {
        for _ in 0..ROUNDS {
            self.fixture.press();
            drop(find(self.vfs(), &self.dirs[0], "nobody"));
        }
    }

    /// Makes everything durable. A crash follows.
    pub fn sync(&self) {
        self.sync_kept(|_| self.sync_grown(|vfs| vfs.sync().unwrap()));
        self.crash();
    }

    /// Keeps what a crash now leaves.
    pub fn crash(&self) {
        // All are from before the crash.
        let ([grown], kept, seen) = (self.durable_size.floor(), self.durable.floor(), self.written.seen());
        let crash = Crash { device: self.fixture.crash(), kept, grown, seen };
        self.crashes.lock().unwrap_or_else(PoisonError::into_inner).push(crash);
    }

    /// Checks what a crash left.
    fn check(&self, vfs: &Vfs, kept_floor: [u64; 2], grown_floor: u64, seen: &[(u64, [u64; 2])]) {
        let root = vfs.root().unwrap();
        let [kept, cut, copy, first, grown] = NAMES.map(|name| find(vfs, &root, name).expect("a file"));
        for (file, owners) in [(&kept, &[KEPT][..]), (&cut, &[CUT]), (&copy, &[COPY, KEPT])] {
            for word in words(vfs, file) {
                let owner = word >> 32 << 32;
                assert!(word == 0 || owners.contains(&owner), "{owners:x?} has the word {word:x}");
            }
        }
        let of_first = |word: &u64| [0, KEPT].contains(word) || *word >> 32 << 32 == COPY;
        assert!(
            words(vfs, &first).iter().all(of_first),
            "a file shows what another one wrote after the clone"
        );
        let appended = words(vfs, &grown);
        let right = |(nth, word): (u64, &u64)| *word == GROWN | nth;
        assert!((0..).zip(&appended).all(right), "what was appended is {appended:x?}");
        let size = vfs.stat(&grown).size;
        assert!(size >= grown_floor, "{size} bytes are left of {grown_floor} appended ones");
        let found = self.rounds(vfs, &kept);
        assert!((0..2).all(|of| found[of] >= kept_floor[of]), "{found:?} is left of {kept_floor:?}");
        let version = vfs.change(&kept).expect("there is a change attribute");
        for (old, contents) in seen {
            assert!(version > *old || (version, found) == (*old, *contents), "C4: {version} after {old}");
        }
        let places = ["d", "e"].map(|name| {
            let dir = find(vfs, &root, name).expect("a directory");
            usize::from(find(vfs, &dir, "moved").is_some())
        });
        assert_eq!(places.iter().sum::<usize>(), 1, "the moved file is in {places:?}");
    }
}

fn vfs_size(vfs: &Vfs, file: &InodeRef) -> u64 {
    vfs.stat(file).size
}

/// Runs `always`, and some of `others`, at the same time; a crash happens meanwhile. Each schedule draws its
/// participants: with many threads rare orders get rarer.
pub fn race(always: &[Part], others: &[Part]) {
    let files = Files::new();
    let mut parts = always.to_vec();
    let mut others = others.to_vec();
    while parts.len() < 4 && !others.is_empty() {
        parts.push(others.swap_remove(draw(others.len())));
    }
    parts.push(Files::crash);
    scope(|scope| {
        for part in parts {
            let files = &files;
            scope.spawn(move || part(files));
        }
    });
    let crashes = std::mem::take(&mut *files.crashes.lock().unwrap_or_else(PoisonError::into_inner));
    for Crash { device, kept, grown, seen } in crashes {
        recover(device, |vfs| files.check(vfs, kept, grown, &seen));
    }
    files.sync();
    let (kept, [grown]) = (files.durable.floor(), files.durable_size.floor());
    files.check(files.vfs(), kept, grown, &[]);
    let Files { fixture, dirs, kept, cut, copy, first, grown, .. } = files;
    drop((dirs, kept, cut, copy, first, grown));
    fixture.end();
}
