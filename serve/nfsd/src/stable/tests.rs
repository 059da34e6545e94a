//! Crashes at every step, files cut at every byte, failing media, and error messages.

use std::io;
use std::sync::Arc;

use proptest::prelude::*;

use super::contents::{Contents, ExportRecord, Record, ServerIdentity};
use super::log::{BadLog, Log, read};
use super::log_file::LogFile;
use super::*;
use crate::state::{ClientRecord, Principal};

#[derive(Clone, Default, Debug)]
struct Data {
    durable: Vec<u8>,
    written: Vec<u8>,
}

/// A disk whose writes are durable only after a flush.
#[derive(Default)]
struct Disk {
    log: Option<Data>,
    next: Option<Data>,
    /// The file that the name referred to before a rename that is not durable yet.
    before: Option<Option<Data>>,
    steps: usize,
    /// The step that fails, and whether it takes effect nevertheless. A failed flush flushes nothing.
    fails: Option<(usize, bool)>,
    /// Whether all later steps fail, too.
    dies: bool,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<Disk>>);

impl Fake {
    fn step(&self, effect: impl FnOnce(&mut Disk)) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.steps += 1;
        let steps = disk.steps;
        match disk.fails {
            Some((at, partly)) if steps == at => {
                if partly {
                    effect(&mut disk);
                }
                Err(io::Error::other("planted"))
            }
            Some((at, _)) if steps > at && disk.dies => Err(io::Error::other("no power")),
            _ => {
                effect(&mut disk);
                Ok(())
            }
        }
    }
}

impl LogFile for Fake {
    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().log.as_ref().map(|log| log.written.clone()))
    }

    fn write_next(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.step(|disk| disk.next = Some(Data { durable: Vec::new(), written: bytes.to_vec() }))
    }

    fn sync_next(&mut self) -> io::Result<()> {
        self.step(|disk| disk.next.iter_mut().for_each(|next| next.durable = next.written.clone()))
    }

    fn rename_next(&mut self) -> io::Result<()> {
        self.step(|disk| {
            let next = disk.next.take();
            let old = std::mem::replace(&mut disk.log, next);
            // After several renames that are not durable, a crash may restore the oldest file.
            disk.before.get_or_insert(old);
        })
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.step(|disk| disk.before = None)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.step(|disk| {
            if let Some(log) = &mut disk.log {
                log.written.truncate(at as usize);
                log.written.extend(bytes);
            }
        })
    }

    fn sync_log(&mut self) -> io::Result<()> {
        self.step(|disk| disk.log.iter_mut().for_each(|log| log.durable = log.written.clone()))
    }

    fn is_in_place(&mut self) -> io::Result<bool> {
        Ok(self.0.lock().log.is_some())
    }
}

impl Disk {
    /// Returns the possible contents after a crash now.
    fn images(&self) -> Vec<Option<Vec<u8>>> {
        let mut found = Vec::new();
        for log in self.before.iter().chain([&self.log]) {
            let Some(Data { durable, written }) = log else {
                found.push(None);
                continue;
            };
            let same = durable.iter().zip(written).take_while(|(one, other)| one == other).count();
            // Unflushed bytes: cut, or replaced by zeros or other data.
            for end in same.max(durable.len().min(written.len()))..=written.len() {
                let mut image = written[..end].to_vec();
                found.push(Some(image.clone()));
                image.resize(written.len(), 0);
                found.push(Some(image.clone()));
                image.truncate(end);
                image.resize(written.len(), 0xa5);
                found.push(Some(image));
            }
            found.push(Some(durable.clone()));
        }
        found
    }
}

fn client(name: &str, verifier: u8) -> ClientRecord {
    ClientRecord {
        sessions: verifier.is_multiple_of(2),
        owner: name.as_bytes().to_vec(),
        verifier: [verifier; 8],
        principal: Principal::new(b"somebody"),
        revoked: verifier.is_multiple_of(3),
    }
}

fn export(identity: u32, verifier: u64, open: bool) -> ExportRecord {
    ExportRecord { identity, uuid: [identity as u8; 16], device: b"/dev/x".to_vec(), verifier, open }
}

fn script() -> Vec<Record> {
    vec![
        Record::ServerIdentity(ServerIdentity { secret: [1; 16], owner: [2; 16], scope: [3; 16] }),
        Record::Lease(90_000),
        Record::Client(client("one", 2)),
        Record::Export(export(7, 1, true)),
        Record::Client(client("two", 4)),
        Record::Client(client("one", 6)),
        Record::Remove(vec![client("one", 2), client("two", 4)]),
        Record::Export(export(7, 1 << 32, false)),
        Record::Pseudo(5, 1),
        Record::Boot(2),
    ]
}

/// The contents after each record of the script.
fn histories() -> Vec<Contents> {
    let mut all = vec![Contents::default()];
    for record in script() {
        let mut next = all[all.len() - 1].clone();
        next.apply(record);
        all.push(next);
    }
    all
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new() {
    let histories = histories();
    let mut images = 0;
    for (crash, partly) in (1..100).flat_map(|at| [(at, false), (at, true)]) {
        let fake = Fake::default();
        *fake.0.lock() = Disk { fails: Some((crash, partly)), dies: true, ..Disk::default() };
        let mut done = None;
        if let Ok(mut log) = Log::create(fake.clone(), Contents::default(), [9; 16]) {
            done = Some(0);
            for (step, record) in script().into_iter().enumerate() {
                match log.append(record) {
                    Ok(()) => done = Some(step + 1),
                    Err(_) => break,
                }
                assert_eq!(log.contents(), &histories[step + 1]);
            }
        }
        for image in fake.0.lock().images() {
            images += 1;
            match (image, done) {
                (None, done) => assert_eq!(done, None, "step {crash}: what was durable is gone"),
                (Some(image), done) => {
                    let (found, _) = read(&image).unwrap_or_else(|bad| panic!("step {crash}: {bad:?}"));
                    let old = done.unwrap_or(0);
                    let new = (old + usize::from(done.is_some())).min(histories.len() - 1);
                    assert!(
                        found == histories[old] || found == histories[new],
                        "step {crash}: neither of two"
                    );
                }
            }
        }
        if done == Some(script().len()) {
            assert!(images > 1000, "{images}");
            return;
        }
    }
    panic!("the script has no end");
}

#[test]
fn a_medium_that_fails_once_loses_nothing_that_was_acknowledged() {
    for (at, partly) in (5..40).flat_map(|at| [(at, false), (at, true)]) {
        let fake = Fake::default();
        *fake.0.lock() = Disk { fails: Some((at, partly)), ..Disk::default() };
        let log_file = fake.clone();
        let mut log = Log::create(log_file, Contents::default(), [9; 16]).unwrap();
        let mut expected = Contents::default();
        for record in script() {
            if log.append(record.clone()).is_ok() {
                expected.apply(record);
            }
            assert_eq!(log.contents(), &expected, "step {at}");
        }
        // A record without a change repairs the file, too.
        log.append(Record::Boot(expected.boot)).unwrap();
        for image in fake.0.lock().images() {
            assert_eq!(read(&image.unwrap()), Ok((expected.clone(), 0)), "step {at}");
        }
    }
}

#[test]
fn a_long_log_is_replaced() {
    let fake = Fake::default();
    let mut log = Log::create(fake.clone(), Contents::default(), [9; 16]).unwrap();
    let mut longest = 0;
    for round in 0..20_000u32 {
        log.append(Record::Client(ClientRecord {
            verifier: u64::from(round).to_be_bytes(),
            ..client("same", 2)
        }))
        .unwrap();
        longest = longest.max(fake.0.lock().log.as_ref().unwrap().written.len());
    }
    assert!((1 << 20..(1 << 20) + 1000).contains(&longest), "{longest}");
    let steps = fake.0.lock().steps;
    log.append(Record::Remove(vec![client("nobody", 2)])).unwrap();
    assert_eq!(fake.0.lock().steps, steps, "nothing new costs nothing");
    let written = fake.0.lock().log.clone().unwrap().written;
    assert_eq!(&read(&written).unwrap().0, log.contents());
}

#[test]
fn damage_is_told_from_a_crash() {
    let fake = Fake::default();
    let mut log = Log::create(fake.clone(), histories()[5].clone(), [9; 16]).unwrap();
    let base = fake.0.lock().log.clone().unwrap().written.len();
    log.append(Record::Client(client("third", 8))).unwrap();
    let before_last = fake.0.lock().log.clone().unwrap().written.len();
    let acknowledged = log.contents().clone();
    log.append(Record::Client(client("fourth", 10))).unwrap();
    let whole = fake.0.lock().log.clone().unwrap().written;
    // A flipped bit in the last record looks like a crash, anywhere else like damage.
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let found = read(&bytes);
        if bit / 8 < before_last {
            assert!(matches!(found, Err(BadLog::Damaged(at)) if at <= bit / 8), "bit {bit}: {found:?}");
        } else {
            assert_eq!(found, Ok((acknowledged.clone(), whole.len() - before_last)), "bit {bit}");
        }
    }
    for cut in 0..whole.len() {
        match read(&whole[..cut]) {
            Ok((contents, _)) if cut >= before_last => assert_eq!(contents, acknowledged),
            Ok((contents, _)) => assert!(cut >= base && contents == histories()[5]),
            Err(bad) => assert!(cut < base && bad == BadLog::Damaged(cut).min_at(cut), "cut {cut}: {bad:?}"),
        }
    }
}

impl BadLog {
    /// Damage is reported at the end of the file, or before.
    fn min_at(self, cut: usize) -> Self {
        match self {
            Self::Damaged(at) => Self::Damaged(at.min(cut)),
            other => other,
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let _ = <Record as ivers_nfs4::xdr::Xdr>::from_bytes(&bytes);
    }
}

#[test]
fn records_survive_encoding() {
    use ivers_nfs4::xdr::Xdr;
    for record in script() {
        assert_eq!(Record::from_bytes(&record.to_bytes()), Ok(record));
    }
    for contents in histories() {
        let mut again = Contents::default();
        contents.records().into_iter().for_each(|record| again.apply(record));
        assert_eq!(again, contents);
    }
}

// The directory itself.

fn open(path: &Path) -> StableStorage {
    StableStorage::open(path).unwrap()
}

#[test]
fn contents_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/er");
    let first = open(&path);
    let (identity, one, two) = (first.identity(), client("one", 2), client("two", 3));
    assert_eq!(first.previous_boot(), PreviousBoot::default());
    let boot = first.boot();
    first.set_lease(Millis(90_000), false).unwrap();
    first.change_clients(&RecordChange::Put(one.clone())).unwrap();
    first.change_clients(&RecordChange::Put(two.clone())).unwrap();
    let a = first.identify([1; 16], b"/a").unwrap();
    let clone = first.identify([1; 16], b"/b").unwrap();
    assert_eq!(first.identify([1; 16], b"/a").unwrap(), a);
    assert!(a != clone && a != 0);
    let other = StableStorage::open(&path).unwrap_err();
    assert!(matches!(other, StableError::Busy { .. }), "{other}");
    drop(first);

    let second = open(&path);
    assert_eq!((second.boot(), second.identity()), (boot + 1, identity));
    let past = PreviousBoot { clients: vec![two.clone(), one.clone()], lease: Millis(90_000) };
    assert_eq!(second.previous_boot(), past);
    assert_eq!(second.identify([1; 16], b"/b").unwrap(), clone);
    // A crash now leads to another grace period of the longer lease; after the grace period, the new lease
    // counts.
    second.set_lease(Millis(10_000), false).unwrap();
    second.change_clients(&RecordChange::Remove(vec![one])).unwrap();
    drop(second);
    let third = open(&path);
    assert_eq!(third.previous_boot(), PreviousBoot { clients: vec![two], lease: Millis(90_000) });
    third.set_lease(Millis(10_000), true).unwrap();
    drop(third);
    assert_eq!(open(&path).previous_boot().lease, Millis(10_000));
    use std::os::unix::fs::PermissionsExt;
    let mode = |name: &str| std::fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("state")), (0o700, 0o600));
}

#[test]
fn the_verifier_changes_when_writes_may_be_lost() {
    let dir = tempfile::tempdir().unwrap();
    let stable = open(dir.path());
    let export = stable.identify([1; 16], b"/a").unwrap();
    let first = stable.attach(export).unwrap();
    // Two lost writes, then a clean end.
    stable.detach(export, first + 2).unwrap();
    drop(stable);
    let stable = open(dir.path());
    assert_eq!(stable.attach(export).unwrap(), first + 2);
    drop(stable);
    // Two crashes.
    let mut seen = vec![first, first + 1, first + 2];
    for _ in 0..2 {
        let verifier = open(dir.path()).attach(export).unwrap();
        assert!(!seen.contains(&verifier));
        seen.push(verifier);
    }
    let stable = open(dir.path());
    let volatile = stable.identify_volatile();
    assert_ne!(stable.attach(volatile).unwrap(), stable.attach(volatile).unwrap());
    stable.detach(volatile, 1).unwrap();
}

#[test]
fn the_pseudo_root_changes_with_the_exports() {
    let dir = tempfile::tempdir().unwrap();
    let change = |digest| open(dir.path()).pseudo_change(digest).unwrap();
    assert_eq!([0, 0, 5, 5, 0].map(change), [1, 1, 2, 2, 3]);
}

#[test]
fn a_truncated_file_is_read_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let stable = open(dir.path());
    let boot = stable.boot();
    let base = std::fs::read(dir.path().join("state")).unwrap().len();
    let one = client("one", 2);
    stable.change_clients(&RecordChange::Put(one.clone())).unwrap();
    drop(stable);
    let whole = std::fs::read(dir.path().join("state")).unwrap();
    assert!(base < whole.len());
    for cut in 0..=whole.len() {
        std::fs::write(dir.path().join("state"), &whole[..cut]).unwrap();
        std::fs::write(dir.path().join("state.new"), &whole[..cut / 2]).unwrap();
        match StableStorage::open(dir.path()) {
            Ok(stable) => {
                assert!(cut >= base);
                let there = cut == whole.len();
                assert_eq!(stable.previous_boot().clients, if there { vec![one.clone()] } else { vec![] });
                assert_eq!(
                    (stable.boot(), stable.discarded_bytes()),
                    (boot + 1, if there { 0 } else { cut - base })
                );
            }
            Err(error) => {
                assert!(cut < base);
                let text = error.to_string();
                assert!(text.contains("state is damaged at byte") && text.contains("move it away"), "{text}");
                assert_eq!(
                    std::fs::read(dir.path().join("state")).unwrap(),
                    &whole[..cut],
                    "it is left alone"
                );
            }
        }
    }
    // Without the file, everything starts again.
    std::fs::rename(dir.path().join("state"), dir.path().join("moved")).unwrap();
    let anew = open(dir.path()).boot();
    assert!(anew.abs_diff(boot) > 1, "clients of the one boot would be taken for those of the other");
}

#[test]
fn errors_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let text = StableStorage::open(&file).unwrap_err().to_string();
    assert!(text.contains("file") && text.contains("another directory"), "{text}");
    // A symbolic link would lead the server elsewhere.
    let path = dir.path().join("state-dir");
    drop(open(&path));
    let elsewhere = dir.path().join("elsewhere");
    std::fs::rename(path.join("state"), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, path.join("state")).unwrap();
    assert!(matches!(StableStorage::open(&path), Err(StableError::Io { doing: "cannot read", .. })));
    // A file of a later version.
    let mut bytes = std::fs::read(&elsewhere).unwrap();
    std::fs::remove_file(path.join("state")).unwrap();
    bytes = super::log::of_version(&bytes, 2);
    std::fs::write(path.join("state"), &bytes).unwrap();
    let text = StableStorage::open(&path).unwrap_err().to_string();
    assert!(text.contains("later version (format 2)"), "{text}");
}

#[test]
fn removed_files_are_written_again() {
    let parent = tempfile::tempdir().unwrap();
    let (path, aside) = (parent.path().join("kept"), parent.path().join("aside"));
    let stable = open(&path);
    let put = |name: &str| stable.change_clients(&RecordChange::Put(client(name, 1)));
    put("one").unwrap();
    assert!(stable.ensure_in_place().unwrap());
    // Only the file is removed: the next write restores it with all clients.
    std::fs::remove_file(path.join("state")).unwrap();
    put("two").unwrap();
    assert!(path.join("state").exists() && stable.ensure_in_place().unwrap());
    std::fs::rename(path.join("state"), path.join("copy")).unwrap();
    assert!(!stable.ensure_in_place().unwrap());
    assert!(stable.ensure_in_place().unwrap());
    std::fs::remove_file(path.join("lock")).unwrap();
    assert!(!stable.ensure_in_place().unwrap());
    assert!(matches!(StableStorage::open(&path), Err(StableError::Busy { .. })));
    // The directory is moved away and back.
    std::fs::rename(&path, &aside).unwrap();
    for failed in [stable.ensure_in_place().unwrap_err(), put("three").unwrap_err()] {
        assert!(failed.to_string().contains("removed, or moved away"), "{failed}");
    }
    std::fs::rename(&aside, &path).unwrap();
    assert!(stable.ensure_in_place().unwrap());
    put("three").unwrap();
    // The directory is removed, and another one created.
    std::fs::remove_dir_all(&path).unwrap();
    assert!(put("four").is_err());
    std::fs::create_dir(&path).unwrap();
    assert!(!stable.ensure_in_place().unwrap());
    put("five").unwrap();
    // Another server has created it.
    std::fs::rename(&path, &aside).unwrap();
    let other = open(&path);
    let failed = put("six").unwrap_err().to_string();
    assert!(failed.contains("another server"), "{failed}");
    drop(other);
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::rename(&aside, &path).unwrap();
    let boot = stable.boot();
    drop(stable);
    let again = open(&path);
    let owners = |names: [&str; 4]| names.map(|name| client(name, 1)).to_vec();
    let mut clients = again.previous_boot().clients;
    clients.sort();
    let mut expected = owners(["one", "two", "three", "five"]);
    expected.sort();
    assert_eq!((again.boot(), clients), (boot + 1, expected));
}
