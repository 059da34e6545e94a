//! Clients that use more files than fit into memory.

use ivers_nfs_test::client::tree::{Listed, Tree};
use ivers_vfs::{CreateSpec, Cred};

use super::*;

const FILES: u64 = 6000;
/// Room for a third of the files.
const CACHE_BYTES: u64 = 2 << 20;

/// An ext4 filesystem with many files in the directory `many`.
fn filled() -> Arc<Vfs> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(64 << 20));
    let options = MkfsOptions { zeroed: true, bytes_per_inode: Some(4096), ..MkfsOptions::default() };
    mkfs(&device, &options).unwrap();
    let budget = Arc::new(ivers_block::Budget::new(CACHE_BYTES));
    let common = DriverOptions { place: "a test".into(), budget: budget.clone(), ..DriverOptions::default() };
    let fs = Ext4::open(device, OpenOptions::from(common)).unwrap();
    let options = MountOptions { background: false, budget: Some(budget), ..MountOptions::default() };
    let vfs = Vfs::mount(fs, options).unwrap();
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (many, _) = vfs.create(&cred, &root, b"many", &CreateSpec::directory(0o755), false).unwrap();
    for number in 0..FILES {
        vfs.create(&cred, &many, format!("f{number}").as_bytes(), &CreateSpec::file(0o644), false).unwrap();
    }
    vfs
}

/// Asserts that little more than the bound is in use.
fn assert_bounded(vfs: &Vfs, what: &str) {
    let (used, inodes) = (vfs.memory_used(), vfs.cached_inodes() as u64);
    assert!(used < CACHE_BYTES + CACHE_BYTES / 2, "{what}: {used} bytes");
    assert!(inodes < FILES / 2, "{what}: {inodes} inodes in memory");
}

#[test]
fn neither_walks_nor_opens_keep_inodes_in_memory() {
    let (dir, vfs) = (tempfile::tempdir().unwrap(), filled());
    let (server, address) = serve(dir.path(), &vfs);
    let mut tree = Tree::connect(address, "/data/many");
    let mut files: Vec<Listed> = Vec::new();
    assert_eq!(tree.walk(|file| files.push(file)), FILES);
    assert_bounded(&vfs, "a walk");
    tree.get_attrs(4, FILES, |nth| files[nth as usize].handle.clone());
    assert_bounded(&vfs, "attributes by filehandle");
    tree.look_up(4, FILES, |nth| &files[nth as usize]);
    let opened: Vec<StateId> = files.iter().map(|file| tree.open(file)).collect();
    assert_eq!(vfs.remembered_inodes() as u64, FILES);
    assert_eq!(tree.walk(|_| ()), FILES);
    assert_bounded(&vfs, "a walk beside opens");

    // An open file outlives its name, also if its inode was out of memory.
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let many = vfs.lookup(&cred, &root, b"many").unwrap();
    vfs.unlink(&cred, &many, &files[7].name, false).unwrap();
    let gone = files[7].handle.clone();
    tree.get_attrs(1, 1, |_| gone.clone());
    let free_before = vfs.stat_fs().unwrap().files_free;
    for (file, stateid) in files.iter().zip(opened) {
        tree.close(file, stateid);
    }
    assert_eq!(vfs.remembered_inodes(), 0);
    let mut client = Client::new(address, "another");
    let is_deleted = || vfs.stat_fs().unwrap().files_free == free_before + 1;
    for _ in 0..500 {
        if is_deleted() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_deleted(), "the last close deletes the file");
    assert_eq!(client.call(vec![Op::PutFh(gone), change_and_size()]).0, NfsStat::Stale);
    drop((many, root));
    server.stop().unwrap();
}
