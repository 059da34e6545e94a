//! Growing a filesystem while it is in use.

use crate::common::*;
use ivers_block::{ByteOffset, Device, FaultDevice, MemDevice};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const MIB: u64 = 1 << 20;

fn mount_on(device: Arc<dyn Device>, read_only: bool) -> Arc<Vfs> {
    let options = DriverOptions { read_only, place: "test image".into(), ..DriverOptions::default() };
    let fs = Ext4::open(device, OpenOptions::from(options)).unwrap();
    Vfs::mount(fs, MountOptions { background: false, ..MountOptions::default() }).unwrap()
}

fn write(vfs: &Arc<Vfs>, name: &str, len: usize) -> Result<()> {
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (file, _) = vfs.create(&cred, &root, name.as_bytes(), &CreateSpec::file(0o644), false)?;
    let bytes: Vec<u8> = (0..len).map(|at| (at / 7) as u8).collect();
    vfs.write(&cred, &file, 0, &bytes, WriteFlags::empty())?;
    vfs.fsync(&file, false)
}

/// Threads write and remove files while the filesystem grows in many steps.
#[test]
fn threads_allocate_while_it_grows() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (what, args) in
        VARIANTS.iter().filter(|(what, _)| !what.contains("meta_bg") && *what != "sparse_super2")
    {
        mkfs(&image, args, 16 * MIB);
        let vfs = mount(&image);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (vfs, stop) = (vfs.clone(), &stop);
                scope.spawn(move || {
                    let root = vfs.root().unwrap();
                    for nth in 0.. {
                        let name = format!("{thread}-{nth}");
                        match write(&vfs, &name, 90_000) {
                            Ok(()) | Err(Error::Name(NameError::NoSpace)) => {}
                            Err(error) => panic!("{what}: {error}"),
                        }
                        if nth % 3 == 0 {
                            let _ = vfs.unlink(&Cred::root(), &root, name.as_bytes(), false);
                        }
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                    }
                });
            }
            let mut before = vfs.stat_fs().unwrap().blocks;
            for mib in (17..80).step_by(6) {
                let grown = vfs.grow(Some(mib * MIB)).unwrap_or_else(|error| panic!("{what}: {error}"));
                let now = vfs.stat_fs().unwrap().blocks;
                assert!(now >= before && grown.blocks >= grown.old_blocks, "{what}, {mib}: {now}");
                before = now;
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(matches!(vfs.grow(Some(20 * MIB)), Err(Error::Incompatible(_))), "{what}");
        vfs.unmount().unwrap();
        drop(vfs);
        fsck(&image, what);
        assert!(std::fs::metadata(&image).unwrap().len() > 76 * MIB);
    }
}

/// A crash at any write leaves the old size or the new one, and the files that were there.
#[test]
fn a_crash_leaves_the_old_size_or_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let (old, new) = (12 * MIB, 44 * MIB);
    for (args, step) in [(&["-b", "1024"][..], 1), (&["-b", "4096", "-g", "1024"], 2), (&["-t", "ext3"], 3)] {
        mkfs(&image, args, old);
        let mut bytes = std::fs::read(&image).unwrap();
        bytes.resize(new as usize, 0);
        let faulty = Arc::new(FaultDevice::new(Arc::new(MemDevice::from_bytes(&bytes))));
        let vfs = mount_on(faulty.clone(), false);
        write(&vfs, "before", 300_000).unwrap();
        let kept = faulty.len();
        let grown = vfs.grow(None).unwrap();
        let done = faulty.len();
        // More than the old size had.
        write(&vfs, "after", 20 << 20).unwrap();
        vfs.unmount().unwrap();
        let mut seen = [0; 2];
        for crash in (kept..=faulty.len()).step_by(step) {
            let what = format!("{args:?}, crash after {crash} of {}", faulty.len());
            let state = Arc::new(faulty.image(crash).unwrap());
            let mut bytes = vec![0; new as usize];
            state.read_at(ByteOffset(0), &mut bytes).unwrap();
            let vfs = mount_on(state, true);
            let blocks = vfs.plan_blocks();
            seen[usize::from(blocks == grown.blocks)] += 1;
            assert!(
                blocks == grown.blocks || (blocks == grown.old_blocks && crash < done),
                "{what}: {blocks}"
            );
            let file = vfs.resolve(&Cred::root(), b"/before", true).unwrap();
            assert_eq!(vfs.stat(&file).size, 300_000, "{what}");
            drop(file);
            std::fs::write(&image, &bytes).unwrap();
            ivers_oracle::e2fsck_repair(&image).unwrap_or_else(|error| panic!("{what}: {error:#}"));
            fsck(&image, &what);
        }
        assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
    }
}

trait Blocks {
    fn plan_blocks(&self) -> u64;
}

impl Blocks for Arc<Vfs> {
    /// All blocks, with those of metadata.
    fn plan_blocks(&self) -> u64 {
        let facts = self.fs().describe();
        let found = facts.iter().find(|(name, _)| name == "blocks with metadata").unwrap();
        found.1.parse().unwrap()
    }
}
