//! The persistent cache: a second mount reads from the server only what changed, and never returns old bytes.

use super::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use ivers_content_cache::{BYTES_MIN, ContentCache};
use ivers_vfs::{ChangeMode, OpenMode, SetAttr};

/// A directory with a cache, and mounts that use it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("cache")
    }

    fn options(&self) -> NfsOptions {
        // Ten times the contents: with less, blocks that fall into one set evict each other by chance.
        let contents = ContentCache::open(&self.dir(), 64 * BYTES_MIN).unwrap();
        NfsOptions {
            contents: Some(Arc::new(contents)),
            delegations: false,
            attribute_timeout: Duration::from_secs(3),
            ..options()
        }
    }

    fn mount(&self, address: SocketAddr) -> Mounted {
        mount(address, &self.options()).unwrap()
    }
}

/// Opens and reads a file, as a program does.
fn opened(client: &Mounted, path: &str) -> Vec<u8> {
    let file = client.find(path).unwrap();
    client.vfs.open(&Cred::root(), &file, OpenMode::READ).unwrap();
    let bytes = client.contents(path).unwrap();
    client.vfs.close(&file, OpenMode::READ);
    bytes
}

fn count(client: &Mounted, name: &str) -> u64 {
    client.vfs.counters().iter().find(|(found, _)| *found == name).unwrap().1
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 7 + at / 4096 + seed * 13) % 251) as u8).collect()
}

/// Lengths around the sizes of blocks and of requests.
const LENGTHS: [usize; 12] =
    [0, 1, 4095, 4096, 16_383, 16_384, 16_385, 100_000, 131_072, 1_048_576, 1_100_000, 3_000_001];

/// [`P5`] A second mount sends no READ for unchanged files, and one for a file that changed.
#[test]
fn a_second_mount_reads_only_what_changed() {
    let served = Served::new(ext4());
    let root = served.root();
    let files: Vec<_> = LENGTHS
        .iter()
        .enumerate()
        .map(|(nth, len)| served.file(&root, format!("f{nth}").as_bytes(), &pattern(nth, *len)))
        .collect();
    let place = Place::new();
    let read_all = |client: &Mounted, changed: Option<usize>| {
        for (nth, len) in LENGTHS.iter().enumerate() {
            let seed = if changed == Some(nth) { nth + 50 } else { nth };
            assert_eq!(opened(client, &format!("/f{nth}")), pattern(seed, *len), "file {nth}");
        }
    };
    let first = place.mount(served.address());
    read_all(&first, None);
    assert!(count(&first, "server_read") > 10);
    assert_eq!(count(&first, "server_commit"), 1, "the verifier is asked for once");
    first.vfs.unmount().unwrap();
    drop(first);

    let second = place.mount(served.address());
    read_all(&second, None);
    assert_eq!((count(&second, "server_read"), count(&second, "disk_cache_damaged")), (0, 0));
    second.vfs.unmount().unwrap();
    drop(second);

    served.write(&files[7], &pattern(57, LENGTHS[7]));
    let third = place.mount(served.address());
    read_all(&third, Some(7));
    assert_eq!(count(&third, "server_read"), 1, "one file changed, and fits in one READ");
    // A mount without the cache reads the same.
    let plain = mount(served.address(), &options()).unwrap();
    read_all(&plain, Some(7));
    third.vfs.unmount().unwrap();
    drop(third);

    // A change of attributes alone changes the change attribute, too.
    let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
    served.vfs.set_attr(&Cred::root(), &files[9], &set).unwrap();
    let fourth = place.mount(served.address());
    read_all(&fourth, Some(7));
    assert!(count(&fourth, "server_read") > 0);
    fourth.vfs.unmount().unwrap();
    drop(fourth);

    // After a clean restart the server has the same write verifier: the cache stays valid.
    let Served { vfs, server, state } = served;
    server.stop().unwrap();
    let server = serve_at(state.path(), &vfs, ",no_root_squash", "127.0.0.1:0".parse().unwrap());
    let fifth = place.mount(server.addresses()[0]);
    read_all(&fifth, Some(7));
    assert_eq!(count(&fifth, "server_read"), 0);
    fifth.vfs.unmount().unwrap();
}

/// Small reads anywhere in a file fill the cache with whole blocks.
#[test]
fn parts_of_files_are_kept() {
    let served = Served::new(ext4());
    let contents = pattern(1, 200_001);
    served.file(&served.root(), b"f", &contents);
    let place = Place::new();
    let offsets = [0, 5, 16_380, 70_001, 199_990, 120_000];
    for (round, reads) in [(0, true), (1, false)] {
        let client = place.mount(served.address());
        let file = client.find("/f").unwrap();
        for offset in offsets {
            let mut bytes = [0; 10];
            client.vfs.read(&Cred::root(), &file, offset as u64, &mut bytes).unwrap();
            assert_eq!(bytes, contents[offset..offset + 10], "round {round}, {offset}");
        }
        assert_eq!(count(&client, "server_read") > 0, reads, "round {round}");
        client.vfs.unmount().unwrap();
    }
}

/// [`P1`] Other clients and this mount change a file while it is read. A later mount never reads old bytes.
#[test]
fn concurrent_writers_leave_no_old_bytes() {
    let served = Served::new(ext4());
    let file = served.file(&served.root(), b"f", &vec![0; 300_000]);
    let place = Place::new();
    for round in 0..25_u8 {
        let client = place.mount(served.address());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut value = round;
                while !stop.load(Relaxed) {
                    value = value.wrapping_add(1);
                    for part in 0..3 {
                        let bytes = vec![value; 100_000];
                        let at = part * 100_000;
                        served.vfs.write(&Cred::root(), &file, at, &bytes, WriteFlags::empty()).unwrap();
                    }
                }
            });
            for _ in 0..6 {
                assert_eq!(opened(&client, "/f").len(), 300_000);
            }
            stop.store(true, Relaxed);
        });
        // This mount writes, too.
        let here = client.find("/f").unwrap();
        client.vfs.write(&Cred::root(), &here, 50_000, &[round; 7000], WriteFlags::empty()).unwrap();
        client.vfs.fsync(&here, false).unwrap();
        opened(&client, "/f");
        drop(here);
        client.vfs.unmount().unwrap();
        drop(client);
        let mut expected = vec![0; 300_000];
        served.vfs.read(&Cred::root(), &file, 0, &mut expected).unwrap();
        let again = place.mount(served.address());
        let found = opened(&again, "/f");
        assert_eq!(found.iter().zip(&expected).position(|(one, other)| one != other), None, "round {round}");
        again.vfs.unmount().unwrap();
    }
}

/// Mounts an image, writes `contents` to its file `f`, and serves it. Also returns the change attribute of
/// `f`.
fn history(image: &[u8], contents: &[u8], state: &Path) -> (Arc<Vfs>, NfsServer, u64) {
    let device: Arc<dyn Device> = Arc::new(MemDevice::from_bytes(image));
    let options = DriverOptions { place: "a test".into(), ..DriverOptions::default() };
    let vfs = Vfs::mount(Ext4::open(device, OpenOptions::from(options)).unwrap(), quiet()).unwrap();
    let file = vfs.resolve(&Cred::root(), "/f", false).unwrap();
    vfs.change(&file).unwrap();
    vfs.write(&Cred::root(), &file, 0, contents, WriteFlags::empty()).unwrap();
    vfs.sync().unwrap();
    let change = vfs.change(&file).unwrap();
    let server = serve_at(state, &vfs, ",no_root_squash", "127.0.0.1:0".parse().unwrap());
    (vfs, server, change)
}

/// [`P3`] A server that lost changes in a crash counts again from an older value. The same value then stands
/// for other bytes.
#[test]
fn a_value_that_a_crash_brings_back_finds_nothing() {
    let device = Arc::new(MemDevice::new(32 << 20));
    {
        let device: Arc<dyn Device> = device.clone();
        mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
        let options = DriverOptions { place: "a test".into(), ..DriverOptions::default() };
        let vfs = Vfs::mount(Ext4::open(device, OpenOptions::from(options)).unwrap(), quiet()).unwrap();
        let root = vfs.root().unwrap();
        let (file, _) = vfs.create(&Cred::root(), &root, b"f", &CreateSpec::file(0o644), false).unwrap();
        vfs.write(&Cred::root(), &file, 0, &[1; 50_000], WriteFlags::empty()).unwrap();
        drop((file, root));
        vfs.unmount().unwrap();
    }
    let image = device.to_bytes();
    let (place, state) = (Place::new(), tempfile::tempdir().unwrap());
    let (one, other) = (vec![2; 50_000], vec![3; 50_000]);
    let (vfs, server, change) = history(&image, &one, state.path());
    let client = place.mount(server.addresses()[0]);
    assert!(opened(&client, "/f") == one);
    client.vfs.unmount().unwrap();
    drop(client);
    // A crash: the server ends without notice, and loses what was not durable.
    drop(server);
    drop(vfs);

    let (_vfs, server, again) = history(&image, &other, state.path());
    assert_eq!(change, again, "the change attribute repeats");
    let client = place.mount(server.addresses()[0]);
    assert!(opened(&client, "/f") == other, "old bytes");
    client.vfs.unmount().unwrap();
    server.stop().unwrap();
}

/// [`P4`] Damage of the cache costs requests, but never returns wrong bytes.
#[test]
fn damage_is_read_again_from_the_server() {
    let served = Served::new(ext4());
    let contents = pattern(3, 900_000);
    served.file(&served.root(), b"f", &contents);
    let place = Place::new();
    let path = place.dir().join("contents");
    for round in 0..30_usize {
        let client = place.mount(served.address());
        assert_eq!(opened(&client, "/f"), contents, "round {round}");
        client.vfs.unmount().unwrap();
        drop(client);
        let mut bytes = std::fs::read(&path).unwrap();
        match round % 3 {
            0 => bytes.iter_mut().skip(4096 + round * 997).step_by(9973).for_each(|byte| *byte ^= 0x10),
            1 => bytes.truncate(bytes.len() / 30 * round),
            _ => bytes.rotate_left(4096),
        }
        std::fs::write(&path, &bytes).unwrap();
    }
}

/// [`P2`] Without a change attribute that is a counter, the persistent cache is refused.
#[test]
fn a_server_that_promises_nothing_is_refused() {
    let vfs = {
        let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
        mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
        let options = DriverOptions { place: "a test".into(), ..DriverOptions::default() };
        let fs = Ext4::open(device, OpenOptions::from(options)).unwrap();
        Vfs::mount(fs, MountOptions { mode: ChangeMode::Off, ..quiet() }).unwrap()
    };
    let served = Served::new(vfs);
    let error = mount(served.address(), &Place::new().options()).map(drop).unwrap_err();
    assert!(error.to_string().contains("change_attr_type"), "{error}");
    mount(served.address(), &options()).unwrap().vfs.unmount().unwrap();
}

/// Without an attribute timeout, each read asks for the change attribute, and finds a change.
#[test]
fn current_files_are_confirmed_without_their_attributes() {
    let served = Served::new(ext4());
    let contents = pattern(4, 400_000);
    let file = served.file(&served.root(), b"f", &contents);
    let place = Place::new();
    let noac = || NfsOptions { attribute_timeout: Duration::ZERO, ..place.options() };
    for _ in 0..2 {
        let client = mount(served.address(), &noac()).unwrap();
        assert_eq!(opened(&client, "/f"), contents);
        client.vfs.unmount().unwrap();
    }
    let client = mount(served.address(), &noac()).unwrap();
    let here = client.find("/f").unwrap();
    let mut bytes = vec![0; 4096];
    client.vfs.read(&Cred::root(), &here, 0, &mut bytes).unwrap();
    assert_eq!((&bytes[..], count(&client, "server_read")), (&contents[..4096], 0));
    let newer = pattern(5, 400_000);
    served.write(&file, &newer);
    client.vfs.read(&Cred::root(), &here, 300_000, &mut bytes).unwrap();
    assert_eq!(bytes, newer[300_000..304_096]);
    client.vfs.unmount().unwrap();
}
