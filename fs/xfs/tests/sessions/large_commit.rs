//! A transaction of more than a MiB of log records: whichever of its writes a crash loses, recovery by us and
//! by Linux finds the head of the log, and shows the names in the order in which they were made.

use crate::common;
use ivers_block::{Device, FaultDevice, MemDevice, Recorded};
use ivers_crash::states::{Kind, States};
use ivers_oracle::LoopMount;
use ivers_oracle::kernel::may_loop_mount;
use ivers_vfs::*;
use ivers_xfs::mkfs::{MkfsOptions, mkfs};
use ivers_xfs::{OpenOptions, Xfs};
use std::path::Path;
use std::sync::Arc;

const FILES: usize = 2500;
/// One state in so many is also recovered by Linux.
const LINUX_EVERY: usize = 16;

fn open(device: Arc<dyn Device>) -> Arc<Vfs> {
    let options = MountOptions { background: false, ..MountOptions::default() };
    Vfs::mount(Xfs::open(device, OpenOptions::default()).unwrap(), options).unwrap()
}

/// The names in the directory, which must be the first ones that were made.
fn count(mut names: Vec<usize>, what: &str) -> usize {
    names.sort_unstable();
    assert!(names.iter().copied().eq(0..names.len()), "{what}: {names:?}");
    names.len()
}

fn number(name: &[u8]) -> usize {
    std::str::from_utf8(name).unwrap().parse().unwrap()
}

fn recovered_by_us(device: Arc<dyn Device>, what: &str) -> usize {
    let vfs = open(device);
    let cred = Cred::root();
    let dir = vfs.resolve(&cred, "/d", true).unwrap();
    let entries = vfs.list(&cred, &dir, 0, usize::MAX).unwrap();
    let names = entries.iter().filter(|entry| !matches!(&entry.name[..], b"." | b".."));
    let count = count(names.map(|entry| number(&entry.name)).collect(), what);
    drop(dir);
    vfs.unmount().unwrap();
    count
}

fn recovered_by_linux(image: &Path, what: &str) -> usize {
    let mounted = LoopMount::new(image, "nouuid").unwrap_or_else(|error| panic!("{what}: {error:#}"));
    let names = std::fs::read_dir(mounted.path().join("d")).unwrap();
    let names = names.map(|entry| number(entry.unwrap().file_name().as_encoded_bytes()));
    let count = count(names.collect(), what);
    mounted.unmount().unwrap();
    common::repair_finds_nothing(image, what);
    count
}

/// The most bytes that a record has between two flushes.
fn largest_window(record: &[Recorded]) -> usize {
    let bytes = |op: &Recorded| if let Recorded::Write { data, .. } = op { data.len() } else { 0 };
    let windows = record.split(|op| *op == Recorded::Flush);
    windows.map(|window| window.iter().map(bytes).sum()).max().unwrap_or(0)
}

#[test]
fn a_large_transaction_is_there_as_a_whole_whatever_a_crash_loses() {
    if !common::have_xfsprogs() || !may_loop_mount() {
        return;
    }
    let base = Arc::new(MemDevice::new(64 << 20));
    mkfs(&*base, &MkfsOptions { uuid: [7; 16], small: true, ..MkfsOptions::default() }).unwrap();
    let cred = Cred::root();
    {
        let vfs = open(base.clone());
        let root = vfs.root().unwrap();
        drop(vfs.create(&cred, &root, b"d", &CreateSpec::directory(0o755), false).unwrap());
        drop(root);
        vfs.unmount().unwrap();
    }
    let device = Arc::new(FaultDevice::new(base.clone()));
    let vfs = open(device.clone());
    let dir = vfs.resolve(&cred, "/d", true).unwrap();
    vfs.sync().unwrap();
    let before = device.len();
    for nth in 0..FILES {
        let name = nth.to_string();
        drop(vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap());
    }
    vfs.sync().unwrap();
    let record = device.record();
    let window = largest_window(&record[before..]);
    assert!(window > 1 << 20, "{window} bytes between two flushes");
    let dir_of_images = tempfile::tempdir().unwrap();
    let image = dir_of_images.path().join("image");
    let (mut states, mut lost, mut by_linux) = (0, 0, 0);
    let whole = States::new(base, &record, 5);
    whole
        .each(
            |_| 0,
            |state, device| {
                if state.at < before {
                    return Ok(());
                }
                let what = format!("{state:?}");
                states += 1;
                lost += usize::from(matches!(state.kind, Kind::Omitted(_)));
                if states % LINUX_EVERY == 0 {
                    std::fs::write(&image, ivers_crash::history::bytes_of(&device)?)?;
                }
                let found = recovered_by_us(Arc::new(device), &what);
                if state.durable_len() == record.len() {
                    assert_eq!(found, FILES, "{what}");
                }
                if states % LINUX_EVERY == 0 {
                    assert_eq!(recovered_by_linux(&image, &what), found, "{what}");
                    by_linux += 1;
                }
                Ok(())
            },
        )
        .unwrap();
    assert!(lost > 20 && by_linux > 20, "{states} states, {lost} with writes lost, {by_linux} by Linux");
    println!("{states} states, {lost} with writes lost, {by_linux} by Linux; {window} bytes in a window");
}
