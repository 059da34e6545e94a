//! Names with several spellings: a change through one spelling is visible through all, and cached names do
//! not outlive a change.

use ivers_block::{Device, MemDevice};
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::{FAT_PROGRAMS, FatImage, SetOnDrop, fsck_fat, have_programs};
use ivers_vfs::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn mounted() -> Option<(Arc<MemDevice>, Arc<Vfs>)> {
    if !have_programs(FAT_PROGRAMS) {
        return None;
    }
    let image = FatImage::mkfs(16 << 20, &["-F", "16"]).unwrap();
    let device = Arc::new(MemDevice::from_bytes(&std::fs::read(image.path()).unwrap()));
    Some((device.clone(), mount(device)))
}

fn mount(device: Arc<dyn Device>) -> Arc<Vfs> {
    Vfs::mount(Fat::open(device, OpenOptions::default()).unwrap(), MountOptions::default()).unwrap()
}

struct Fixture {
    vfs: Arc<Vfs>,
    root: InodeRef,
    cred: Cred,
}

impl Fixture {
    fn find(&self, name: &str) -> Result<InodeRef> {
        self.vfs.lookup(&self.cred, &self.root, name.as_bytes())
    }

    fn make(&self, name: &str) -> Result<InodeRef> {
        Ok(self.vfs.create(&self.cred, &self.root, name.as_bytes(), &CreateSpec::file(0o644), false)?.0)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        self.vfs.rename(&self.cred, &self.root, from, &self.root, to, RenameFlags::empty(), false).map(drop)
    }

    fn absent(&self, name: &str) -> bool {
        matches!(self.find(name), Err(Error::Name(NameError::NotFound)))
    }

    fn names(&self) -> Vec<String> {
        let listed = self.vfs.list(&Cred::root(), &self.root, 0, 1000).unwrap();
        let mut names: Vec<_> =
            listed.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect();
        names.sort();
        names
    }
}

fn fixture() -> Option<(Arc<MemDevice>, Fixture)> {
    let (device, vfs) = mounted()?;
    let root = vfs.root().unwrap();
    Some((device, Fixture { vfs, root, cred: Cred::root() }))
}

#[test]
fn all_spellings_find_the_same_file() {
    let Some((_, fixture)) = fixture() else { return };
    for absent in ["A Long Name.txt", "a long name.TXT", "ALONGN~1.TXT", "a long name.txt..."] {
        assert!(fixture.absent(absent));
    }
    let made = fixture.make("A Long Name.txt").unwrap();
    for spelling in
        ["A Long Name.txt", "a long name.TXT", "ALONGN~1.TXT", "alongn~1.txt", "a long name.txt..."]
    {
        assert_eq!(fixture.find(spelling).unwrap().ino, made.ino, "{spelling}");
        assert!(matches!(fixture.make(spelling), Err(Error::Name(NameError::Exists))));
    }
    fixture.vfs.unlink(&fixture.cred, &fixture.root, b"alongn~1.TXT", false).unwrap();
    // The file is still open, and no name finds it.
    for spelling in ["A Long Name.txt", "a long name.TXT", "ALONGN~1.TXT"] {
        assert!(fixture.absent(spelling), "{spelling}");
    }
    assert_eq!(fixture.vfs.write(&fixture.cred, &made, 0, b"still here", WriteFlags::empty()).unwrap(), 10);
    let other = fixture.make("A long name.txt").unwrap();
    assert_ne!(other.ino, made.ino);
    assert_eq!(fixture.find("ALONGN~1.TXT").unwrap().ino, other.ino);
}

#[test]
fn a_rename_keeps_the_inode_and_may_change_only_the_case() {
    let Some((device, fixture)) = fixture() else { return };
    let file = fixture.make("file").unwrap();
    fixture.vfs.write(&fixture.cred, &file, 0, b"contents", WriteFlags::empty()).unwrap();
    for (from, to) in [
        ("file", "File"),
        ("FILE", "a much longer name than before"),
        ("a MUCH longer name than before", "x"),
    ] {
        fixture.rename(from, to).unwrap();
        assert_eq!(fixture.names(), [to]);
        assert_eq!(fixture.find(to).unwrap().ino, file.ino);
    }
    let target = fixture.make("Target").unwrap();
    fixture.rename("x", "TARGET").unwrap();
    assert_eq!(fixture.names(), ["Target"], "as in vfat, the replaced name keeps its spelling");
    assert_eq!(fixture.find("target").unwrap().ino, file.ino);
    assert_eq!(target.attr().nlink, 0);
    drop((file, target));
    let Fixture { vfs, root, .. } = fixture;
    vfs.unmount().unwrap();
    drop((root, vfs));
    let vfs = mount(device);
    let found = vfs.resolve(&Cred::root(), "/target", true).unwrap();
    let mut bytes = [0; 8];
    vfs.read(&Cred::root(), &found, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"contents");
}

#[test]
fn unsupported_operations_are_refused() {
    let Some((_, fixture)) = fixture() else { return };
    let file = fixture.make("file").unwrap();
    let is = |result: Result<()>, name: NameError| {
        assert!(matches!(result, Err(Error::Name(n)) if n == name), "{result:?}")
    };
    let create = |name: &[u8], spec: &CreateSpec| {
        fixture.vfs.create(&fixture.cred, &fixture.root, name, spec, false).map(drop)
    };
    is(create(b"l", &CreateSpec::symlink("x")), NameError::NotPermitted);
    is(create(b"p", &CreateSpec::of(FileType::Fifo, 0o644)), NameError::NotPermitted);
    is(create(b"a?b", &CreateSpec::file(0o644)), NameError::Invalid);
    is(create("x".repeat(256).as_bytes(), &CreateSpec::file(0o644)), NameError::NameTooLong);
    is(fixture.find(&"x".repeat(256)).map(drop), NameError::NameTooLong);
    // `name_max` counts characters. A name may have more bytes.
    assert_eq!(fixture.vfs.stat_fs().unwrap().name_max, 255);
    create("\u{20ac}".repeat(255).as_bytes(), &CreateSpec::file(0o644)).unwrap();
    is(
        fixture.vfs.link(&fixture.cred, &file, &fixture.root, b"other", false).map(drop),
        NameError::NotPermitted,
    );
    let set = |set: SetAttr| fixture.vfs.set_attr(&fixture.cred, &file, &set).map(drop);
    is(set(SetAttr { uid: Some(7), ..SetAttr::default() }), NameError::NotPermitted);
    let size = file.attr().size;
    is(set(SetAttr { uid: Some(7), size: Some(size + 5), ..SetAttr::default() }), NameError::NotPermitted);
    assert_eq!(file.attr().size, size, "a refused request changes nothing");
    is(set(SetAttr { size: Some(1 << 32), ..SetAttr::default() }), NameError::TooLarge);
    // Only the write permission of the owner is stored.
    for (perm, kept) in
        [(0o444, 0o555), (0o600, 0o755), (0o400, 0o555), (0o422, 0o555), (0o777, 0o755), (0o555, 0o555)]
    {
        set(SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
        assert_eq!(file.attr().perm, kept, "{perm:o}");
    }
    let time = Timestamp { sec: 1_000_000_001, nsec: 7 };
    let both =
        SetAttr { atime: Some(TimeSet::At(time)), mtime: Some(TimeSet::At(time)), ..SetAttr::default() };
    set(both).unwrap();
    let attr = file.attr();
    assert_eq!((attr.mtime.sec, attr.atime.sec), (1_000_000_000, 999_993_600));
    is(
        fixture.vfs.set_xattr(&fixture.cred, &file, b"user.x", b"y", XattrMode::Any).map(drop),
        NameError::NotSupported,
    );
}

/// Logging an inode writes its whole entry. That must not restore a name that another thread removes at the
/// same time, and a rename must not restore the older attributes of the entry.
#[test]
fn logging_an_inode_does_not_restore_a_removed_name() {
    let Some((device, mut fixture)) = fixture() else { return };
    for round in 0..200 {
        let file = fixture.make("b").unwrap();
        let done = AtomicBool::new(false);
        let size = std::thread::scope(|scope| {
            let (vfs, file, done) = (&fixture.vfs, &file, &done);
            let grower = scope.spawn(move || {
                let mut size = 0;
                while !done.load(Ordering::SeqCst) && size < 30_000 {
                    vfs.write(&Cred::root(), file, size, b"seven..", WriteFlags::empty()).unwrap();
                    size += 7;
                    vfs.fsync(file, false).unwrap();
                }
                size
            });
            {
                let _done = SetOnDrop(done);
                for _ in 0..20 {
                    fixture.rename("b", "a name that needs several slots").unwrap();
                    // A failed rename must not lose the file either.
                    assert!(fixture.rename("a name that needs several slots", "a?b").is_err());
                    fixture.rename("a name that needs several slots", "b").unwrap();
                }
                if round % 2 == 0 {
                    fixture.vfs.unlink(&fixture.cred, &fixture.root, b"b", false).unwrap();
                }
            }
            grower.join().unwrap()
        });
        drop(file);
        let Fixture { vfs, root, cred } = fixture;
        vfs.unmount().unwrap();
        drop((root, vfs));
        let vfs = mount(device.clone());
        fixture = Fixture { root: vfs.root().unwrap(), vfs, cred };
        if round % 2 == 0 {
            assert_eq!(fixture.names(), [""; 0], "round {round}");
        } else {
            assert_eq!(fixture.names(), ["b"], "round {round}");
            assert_eq!(fixture.find("b").unwrap().size(), size, "round {round}");
            fixture.vfs.unlink(&fixture.cred, &fixture.root, b"b", false).unwrap();
        }
    }
    let Fixture { vfs, root, .. } = fixture;
    vfs.unmount().unwrap();
    drop((root, vfs));
    let image = FatImage::mkfs(16 << 20, &["-F", "16"]).unwrap();
    std::fs::write(image.path(), device.to_bytes()).unwrap();
    fsck_fat(&image.path()).unwrap();
}
