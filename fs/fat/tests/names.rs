//! Names with several spellings: what one of them is told must hold for all, and nothing that is remembered may outlive a change.

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

struct World {
    vfs: Arc<Vfs>,
    root: InodeRef,
    cred: Cred,
}

impl World {
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

fn world() -> Option<(Arc<MemDevice>, World)> {
    let (device, vfs) = mounted()?;
    let root = vfs.root().unwrap();
    Some((device, World { vfs, root, cred: Cred::root() }))
}

#[test]
fn what_is_remembered_of_one_spelling_holds_for_all() {
    let Some((_, world)) = world() else { return };
    for absent in ["A Long Name.txt", "a long name.TXT", "ALONGN~1.TXT", "a long name.txt..."] {
        assert!(world.absent(absent));
    }
    let made = world.make("A Long Name.txt").unwrap();
    for spelling in
        ["A Long Name.txt", "a long name.TXT", "ALONGN~1.TXT", "alongn~1.txt", "a long name.txt..."]
    {
        assert_eq!(world.find(spelling).unwrap().ino, made.ino, "{spelling}");
        assert!(matches!(world.make(spelling), Err(Error::Name(NameError::Exists))));
    }
    world.vfs.unlink(&world.cred, &world.root, b"alongn~1.TXT", false).unwrap();
    // It is still open: nobody may find it all the same.
    for spelling in ["A Long Name.txt", "a long name.TXT", "ALONGN~1.TXT"] {
        assert!(world.absent(spelling), "{spelling}");
    }
    assert_eq!(world.vfs.write(&world.cred, &made, 0, b"still here", WriteFlags::empty()).unwrap(), 10);
    let other = world.make("A long name.txt").unwrap();
    assert_ne!(other.ino, made.ino);
    assert_eq!(world.find("ALONGN~1.TXT").unwrap().ino, other.ino);
}

#[test]
fn a_rename_keeps_the_inode_and_may_respell() {
    let Some((device, world)) = world() else { return };
    let file = world.make("file").unwrap();
    world.vfs.write(&world.cred, &file, 0, b"contents", WriteFlags::empty()).unwrap();
    for (from, to) in [
        ("file", "File"),
        ("FILE", "a much longer name than before"),
        ("a MUCH longer name than before", "x"),
    ] {
        world.rename(from, to).unwrap();
        assert_eq!(world.names(), [to]);
        assert_eq!(world.find(to).unwrap().ino, file.ino);
    }
    let target = world.make("Target").unwrap();
    world.rename("x", "TARGET").unwrap();
    assert_eq!(world.names(), ["Target"], "as vfat: the name that is there stays");
    assert_eq!(world.find("target").unwrap().ino, file.ino);
    assert_eq!(target.attr().nlink, 0);
    drop((file, target));
    let World { vfs, root, .. } = world;
    vfs.unmount().unwrap();
    drop((root, vfs));
    let vfs = mount(device);
    let found = vfs.resolve(&Cred::root(), "/target", true).unwrap();
    let mut bytes = [0; 8];
    vfs.read(&found, 0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"contents");
}

#[test]
fn what_the_format_cannot_do_is_refused() {
    let Some((_, world)) = world() else { return };
    let file = world.make("file").unwrap();
    let is = |result: Result<()>, name: NameError| {
        assert!(matches!(result, Err(Error::Name(n)) if n == name), "{result:?}")
    };
    let create = |name: &[u8], spec: &CreateSpec| {
        world.vfs.create(&world.cred, &world.root, name, spec, false).map(drop)
    };
    is(create(b"l", &CreateSpec::symlink("x")), NameError::NotPermitted);
    is(create(b"p", &CreateSpec::of(FileType::Fifo, 0o644)), NameError::NotPermitted);
    is(create(b"a?b", &CreateSpec::file(0o644)), NameError::Invalid);
    is(create("x".repeat(256).as_bytes(), &CreateSpec::file(0o644)), NameError::NameTooLong);
    is(world.find(&"x".repeat(256)).map(drop), NameError::NameTooLong);
    // What programs are told fits in letters; more bytes than that may fit too.
    assert_eq!(world.vfs.stat_fs().unwrap().name_max, 255);
    create("\u{20ac}".repeat(255).as_bytes(), &CreateSpec::file(0o644)).unwrap();
    is(world.vfs.link(&world.cred, &file, &world.root, b"other", false).map(drop), NameError::NotPermitted);
    let set = |set: SetAttr| world.vfs.set_attr(&world.cred, &file, &set).map(drop);
    is(set(SetAttr { uid: Some(7), ..SetAttr::default() }), NameError::NotPermitted);
    let size = file.attr().size;
    is(set(SetAttr { uid: Some(7), size: Some(size + 5), ..SetAttr::default() }), NameError::NotPermitted);
    assert_eq!(file.attr().size, size, "what is refused is not done by half");
    is(set(SetAttr { size: Some(1 << 32), ..SetAttr::default() }), NameError::TooLarge);
    // Whether the owner may write is all that is kept.
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
        world.vfs.set_xattr(&world.cred, &file, b"user.x", b"y", XattrMode::Any).map(drop),
        NameError::NotSupported,
    );
}

/// Who logs an inode puts its whole entry back: it must not bring a name back that somebody takes away meanwhile, nor may the rename
/// bring back what the entry said before.
#[test]
fn a_name_that_goes_is_gone_whoever_logs_the_inode() {
    let Some((device, mut world)) = world() else { return };
    for round in 0..200 {
        let file = world.make("b").unwrap();
        let done = AtomicBool::new(false);
        let size = std::thread::scope(|scope| {
            let (vfs, file, done) = (&world.vfs, &file, &done);
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
                    world.rename("b", "a name that needs several slots").unwrap();
                    // What fails must not lose anything either.
                    assert!(world.rename("a name that needs several slots", "a?b").is_err());
                    world.rename("a name that needs several slots", "b").unwrap();
                }
                if round % 2 == 0 {
                    world.vfs.unlink(&world.cred, &world.root, b"b", false).unwrap();
                }
            }
            grower.join().unwrap()
        });
        drop(file);
        let World { vfs, root, cred } = world;
        vfs.unmount().unwrap();
        drop((root, vfs));
        let vfs = mount(device.clone());
        world = World { root: vfs.root().unwrap(), vfs, cred };
        if round % 2 == 0 {
            assert_eq!(world.names(), [""; 0], "round {round}");
        } else {
            assert_eq!(world.names(), ["b"], "round {round}");
            assert_eq!(world.find("b").unwrap().size(), size, "round {round}");
            world.vfs.unlink(&world.cred, &world.root, b"b", false).unwrap();
        }
    }
    let World { vfs, root, .. } = world;
    vfs.unmount().unwrap();
    drop((root, vfs));
    let image = FatImage::mkfs(16 << 20, &["-F", "16"]).unwrap();
    std::fs::write(image.path(), device.to_bytes()).unwrap();
    fsck_fat(&image.path()).unwrap();
}
