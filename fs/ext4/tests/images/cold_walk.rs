//! Device reads of a cold walk, counted.

use crate::common::mkfs;
use crate::common::recorder::mount;
use ivers_vfs::*;

const CACHE: u64 = 64 << 20;

#[test]
fn a_cold_walk_reads_inode_tables_and_directories_in_runs() {
    const DIRS: u64 = 8;
    const FILES: u32 = 1000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    mkfs(&path, &["-t", "ext4", "-b", "4096", "-N", "20000"], 256 << 20);
    let cred = Cred::root();
    {
        let (_, vfs) = mount(&path, CACHE);
        for nth in 0..DIRS {
            let name = format!("d{nth}");
            let spec = CreateSpec::directory(0o755);
            let dir = vfs.create(&cred, &vfs.root().unwrap(), name.as_bytes(), &spec, false).unwrap().0;
            for number in 0..FILES {
                let name = format!("a name of some length {number}");
                vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o600), false).unwrap();
            }
        }
        vfs.unmount().unwrap();
    }
    let (device, vfs) = mount(&path, CACHE);
    let walk = || {
        device.reads.lock().unwrap().clear();
        let mut seen = 0;
        for nth in 0..DIRS {
            let dir = vfs.resolve(&cred, format!("/d{nth}"), false).unwrap();
            let mut cursor = 0;
            loop {
                // As many entries as a READDIRPLUS of one page.
                let listed = vfs.list(&cred, &dir, cursor, 25).unwrap();
                let Some(last) = listed.last() else { break };
                cursor = last.next;
                for entry in &listed {
                    vfs.stat(entry.inode.as_ref().unwrap());
                    seen += 1;
                }
            }
        }
        assert_eq!(seen, DIRS * u64::from(FILES));
        device.reads.lock().unwrap().len() as u64
    };
    let cold = walk();
    println!("{cold} device reads for {} inodes", DIRS * u64::from(FILES));
    assert!(cold <= DIRS * u64::from(FILES) / 64, "{cold} device reads");
    assert_eq!(walk(), 0, "a warm walk reads nothing");
    vfs.unmount().unwrap();
}
