//! Every operation through a real mount.

use crate::common::*;
use ivers_block::Budget;
use ivers_fuse::FuseOptions;
use ivers_mem::Mem;
use ivers_vfs::{Cred, MountOptions, Vfs};
use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom, XattrFlags};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

#[test]
fn names_are_created_renamed_and_removed() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    fs::create_dir(m.path("d")).unwrap();
    fs::write(m.path("d/a"), b"hello").unwrap();
    assert_eq!(fs::read(m.path("d/a")).unwrap(), b"hello");
    fs::hard_link(m.path("d/a"), m.path("b")).unwrap();
    assert_eq!(fs::metadata(m.path("b")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(m.path("b")).unwrap().ino(), fs::metadata(m.path("d/a")).unwrap().ino());
    symlink("d/a", m.path("l")).unwrap();
    assert_eq!(fs::read_link(m.path("l")).unwrap().to_str(), Some("d/a"));
    assert_eq!(fs::read(m.path("l")).unwrap(), b"hello");
    assert_eq!(fs::remove_dir(m.path("d")).unwrap_err().raw_os_error(), Some(39), "ENOTEMPTY");
    fs::remove_file(m.path("d/a")).unwrap();
    assert_eq!(fs::metadata(m.path("b")).unwrap().nlink(), 1);
    fs::remove_dir(m.path("d")).unwrap();
    assert!(!m.path("d").exists());
    assert_eq!(
        fs::File::open(m.path(&"n".repeat(256))).unwrap_err().raw_os_error(),
        Some(36),
        "ENAMETOOLONG"
    );
    if is_root() {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, m.path("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let device = rustix::fs::makedev(300, 70_000);
        rustix::fs::mknodat(CWD, m.path("dev"), rustix::fs::FileType::CharacterDevice, mode, device).unwrap();
        assert_eq!(fs::metadata(m.path("dev")).unwrap().rdev(), device);
    }
}

/// The kernel keeps the times of a file that it may write back, and shows its own.
#[test]
fn times_of_fallocate_are_stored_as_the_mount_shows_them() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let names: Vec<_> = (0..3000).map(|nth| format!("f{nth}")).collect();
    let shown: Vec<_> = names
        .iter()
        .map(|name| {
            let file = File::create(m.path(name)).unwrap();
            rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 4096).unwrap();
            let meta = file.metadata().unwrap();
            [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())]
        })
        .collect();
    let stored = |name: &String| {
        let inode = m.vfs.resolve(&Cred::root(), format!("/{name}"), true).unwrap();
        let attr = m.vfs.stat(&inode);
        [attr.mtime, attr.ctime].map(|time| (time.sec, i64::from(time.nsec)))
    };
    let differ = names.iter().zip(&shown).filter(|(name, shown)| stored(name) != **shown).count();
    assert_eq!(differ, 0, "of {}", names.len());
}

#[test]
fn large_directories_list_every_name_once() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    for n in 0..1500 {
        File::create(m.path(&format!("some-longer-name-{n}"))).unwrap();
    }
    for _ in 0..2 {
        let names: Vec<_> = fs::read_dir(m.dir.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                assert!(entry.metadata().unwrap().is_file());
                entry.file_name().into_string().unwrap()
            })
            .collect();
        assert_eq!(names.len(), 1500);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 1500);
        fs::remove_file(m.path("some-longer-name-7")).unwrap();
        File::create(m.path("some-longer-name-7")).unwrap();
    }
}

/// Replies differ in size as the buffers of programs do, and the mount has to guess how much is requested.
#[test]
fn listings_with_buffers_of_any_size_have_every_name_once() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let all: Vec<_> = (0..1500).map(|n| m.path(&format!("some-longer-name-{n}"))).collect();
    all.iter().for_each(|path| _ = File::create(path).unwrap());
    for bytes in [4096, 32 << 10, 4096, 1 << 20, 300, 32 << 10] {
        // The kernel must not have the listing.
        fs::rename(&all[7], m.path("another")).unwrap();
        fs::rename(m.path("another"), &all[7]).unwrap();
        let dir = File::open(m.dir.path()).unwrap();
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); bytes];
        let mut listing = rustix::fs::RawDir::new(&dir, &mut buffer);
        let mut names = Vec::new();
        while let Some(entry) = listing.next() {
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            // Without this the kernel stops to request attributes.
            assert!(fs::symlink_metadata(m.path(&name)).is_ok());
            names.push(name);
        }
        assert_eq!(names.len(), 1502, "{bytes} bytes");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 1502, "{bytes} bytes");
    }
    // What did not fit into a reply was not counted: the kernel forgets all that it was told of.
    all.iter().for_each(|path| fs::remove_file(path).unwrap());
    let begun = std::time::Instant::now();
    while m.vfs.remembered_inodes() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} are left", m.vfs.remembered_inodes());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The kernel caches listings. Reader A lists a directory completely, the directory changes, then reader B
/// starts. When A ended, the kernel would serve B from the cache that it filled for A.
#[test]
fn a_listing_never_has_a_name_removed_before_it_started() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    fs::create_dir(m.path("d")).unwrap();
    let gone: [&dyn Fn(&str); 3] = [
        &|last| fs::remove_file(m.path(last)).unwrap(),
        &|last| fs::rename(m.path(last), m.path("elsewhere")).unwrap(),
        &|last| fs::rename(m.path(last), m.path("d/1")).unwrap(),
    ];
    for (nth, goes) in gone.iter().enumerate() {
        for name in ["d/1", "d/2", "d/3"] {
            fs::write(m.path(name), name).unwrap();
        }
        let [before, after] = [(); 2].map(|()| File::open(m.path("d")).unwrap());
        let [mut one, mut two] = [(); 2].map(|()| vec![std::mem::MaybeUninit::uninit(); 4096]);
        let mut one = rustix::fs::RawDir::new(&before, &mut one);
        let next = |dir: &mut rustix::fs::RawDir<'_, &File>| {
            dir.next().map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned())
        };
        let listed: Vec<_> = (0..5).map(|_| next(&mut one).unwrap()).collect();
        goes(&format!("d/{}", listed[4]));
        let mut two = rustix::fs::RawDir::new(&after, &mut two);
        let mut seen: Vec<_> = (0..4).map(|_| next(&mut two).unwrap()).collect();
        assert_eq!(next(&mut one), None);
        seen.extend(next(&mut two));
        assert_eq!(seen.len(), 4, "{nth}: {seen:?} after {listed:?}");
        assert!(!seen.contains(&listed[4]), "{nth}: {seen:?}");
    }
}

#[test]
fn data_is_read_as_written() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let m = mount_with(FuseOptions { writeback_cache, ..FuseOptions::default() });
        let data: Vec<u8> = (0..5_000_000u32).map(|n| ((n * 31) >> 3) as u8).collect();
        fs::write(m.path("f"), &data).unwrap();
        assert!(fs::read(m.path("f")).unwrap() == data);
        let mut file = OpenOptions::new().append(true).read(true).open(m.path("f")).unwrap();
        file.write_all(b"tail").unwrap();
        file.sync_all().unwrap();
        assert_eq!(size(&m.path("f")), 5_000_004);
        file.set_len(10).unwrap();
        file.rewind().unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, data[..10]);
        let truncated = OpenOptions::new().write(true).truncate(true).open(m.path("f")).unwrap();
        assert_eq!(truncated.metadata().unwrap().len(), 0);
        truncated.write_all_at(b"x", 1 << 20).unwrap();
        drop(truncated);
        assert_eq!(size(&m.path("f")), (1 << 20) + 1);
        // Unlinked files exist as long as they are open.
        let open = OpenOptions::new().read(true).write(true).open(m.path("f")).unwrap();
        fs::remove_file(m.path("f")).unwrap();
        open.write_all_at(b"still here", 0).unwrap();
        let mut back = [0; 10];
        open.read_exact_at(&mut back, 0).unwrap();
        assert_eq!(&back, b"still here");
    }
}

/// The kernel checks only the error of a write-back: a partial write must not look complete.
#[test]
fn fsync_reports_data_without_space() {
    if !can_mount() {
        return;
    }
    let options = || FuseOptions { allow_other: is_root(), ..FuseOptions::default() };
    for (room, at) in [(700 << 10, 512 << 10), (300 << 10, (1 << 20) - (256 << 10)), (2 << 20, 512 << 10)] {
        let m = mount_vfs(mem_vfs(room), options());
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(m.path("f")).unwrap();
        file.write_all_at(&[7; 1 << 20], at).unwrap();
        let told = file.sync_all().map_err(|error| error.kind());
        if room < 1 << 20 {
            assert_eq!(told, Err(std::io::ErrorKind::StorageFull), "{room}");
        } else {
            told.unwrap();
            drop(file);
            assert!(fs::read(m.path("f")).unwrap()[at as usize..] == [7; 1 << 20]);
        }
    }
}

/// The kernel caches what programs write and read. Large requests leave no second copy here.
#[test]
fn large_requests_leave_no_pages() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 8 << 20;
    let budget = Arc::new(Budget::new(64 << 20));
    let how = MountOptions { background: false, budget: Some(budget.clone()), ..MountOptions::default() };
    let m = mount_vfs(Vfs::mount(Arc::new(Mem::default()), how).unwrap(), FuseOptions::default());
    let data: Vec<u8> = (0..LEN).map(|at| (at / 777) as u8).collect();
    let before = budget.used();
    let file = File::create(m.path("f")).unwrap();
    file.write_all_at(&data, 0).unwrap();
    drop(file);
    // The kernel may send the first or last pages on their own.
    let few = before + (1 << 20);
    assert!(m.vfs.stats().written_back_bytes >= LEN as u64 * 7 / 8);
    assert!(m.vfs.dirty_bytes() <= 1 << 20 && budget.used() <= few, "{} of {LEN}", budget.used() - before);

    let dropped = OpenOptions::new().read(true).open(m.path("f")).unwrap();
    rustix::fs::fadvise(&dropped, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    assert!(fs::read(m.path("f")).unwrap() == data);
    assert!(budget.used() <= few, "{} of {LEN}", budget.used() - before);
}

#[test]
fn direct_io_and_the_cache_agree() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    const O_DIRECT: i32 = 0o40000;
    let page = vec![7u8; 8192];
    let direct = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(O_DIRECT)
        .open(m.path("f"))
        .unwrap();
    assert_eq!(direct.write_at(&page, 0).unwrap(), 8192);
    assert_eq!(fs::read(m.path("f")).unwrap(), page);
    let cached = OpenOptions::new().write(true).open(m.path("f")).unwrap();
    cached.write_all_at(&[9; 4096], 4096).unwrap();
    let direct = OpenOptions::new().read(true).custom_flags(O_DIRECT).open(m.path("f")).unwrap();
    let mut back = vec![0; 4096];
    direct.read_exact_at(&mut back, 4096).unwrap();
    assert_eq!(back, [9; 4096]);
}

#[test]
fn attributes_are_kept() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100640);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    for time in [
        SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789),
        SystemTime::UNIX_EPOCH - Duration::from_millis(1500),
    ] {
        file.set_modified(time).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
        let inode = m.vfs.resolve(&ivers_vfs::Cred::root(), "/f", false).unwrap();
        let stored = m.vfs.stat(&inode).mtime;
        let shown = fs::metadata(&path).unwrap();
        assert_eq!((stored.sec, i64::from(stored.nsec)), (shown.mtime(), shown.mtime_nsec()));
    }
    if is_root() {
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (12, 34));
    }
    let stat = rustix::fs::statvfs(m.dir.path()).unwrap();
    assert!(stat.f_blocks > 0 && stat.f_bavail <= stat.f_blocks && stat.f_namemax == 255);
}

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    assert_eq!(xattr::get(&path, "user.none").unwrap(), None);
    xattr::set(&path, "user.a", b"one").unwrap();
    assert_eq!(xattr::get(&path, "user.a").unwrap().as_deref(), Some(b"one".as_slice()));
    let create = rustix::fs::setxattr(&path, "user.a", b"two", XattrFlags::CREATE);
    assert_eq!(create, Err(rustix::io::Errno::EXIST));
    let replace = rustix::fs::setxattr(&path, "user.b", b"two", XattrFlags::REPLACE);
    assert_eq!(replace, Err(rustix::io::Errno::NODATA));
    assert_eq!(xattr::list(&path).unwrap().collect::<Vec<_>>(), ["user.a"]);
    xattr::remove(&path, "user.a").unwrap();
    assert_eq!(xattr::list(&path).unwrap().count(), 0);
}

#[test]
fn renames_replace_refuse_and_swap() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    fs::write(m.path("a"), b"a").unwrap();
    fs::write(m.path("b"), b"b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, m.path("a"), CWD, m.path("b"), flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(rustix::io::Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(m.path("a")).unwrap(), b"b");
    assert_eq!(fs::read(m.path("b")).unwrap(), b"a");
    rename(RenameFlags::empty()).unwrap();
    assert!(!m.path("a").exists());
    assert_eq!(fs::read(m.path("b")).unwrap(), b"b");
    fs::create_dir_all(m.path("d/e")).unwrap();
    assert_eq!(fs::rename(m.path("d"), m.path("d/e/f")).unwrap_err().raw_os_error(), Some(22), "EINVAL");
}

#[test]
fn dirty_pages_are_not_reported_as_holes() {
    if !can_mount() {
        return;
    }
    use rustix::fs::seek;
    use rustix::io::Errno;
    let m = mounted();
    let end = (1 << 20) + 4;
    let is_all_data = |file: &File| {
        for at in [0, 4096, end - 1] {
            assert_eq!(seek(file, SeekFrom::Data(at)), Ok(at));
            assert_eq!(seek(file, SeekFrom::Hole(at)), Ok(end));
        }
        for from in [SeekFrom::Data(end), SeekFrom::Hole(end), SeekFrom::Data(2 << 20)] {
            assert_eq!(seek(file, from), Err(Errno::NXIO));
        }
    };
    // Nothing has been synced: only the kernel has these pages, and the size.
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
    file.write_all_at(b"data", 1 << 20).unwrap();
    is_all_data(&file);
    drop(file);
    // The close arrives at the server after close(2) has returned.
    let file = File::open(m.path("f")).unwrap();
    let is_closed = || seek(&file, SeekFrom::Data(0)) == Ok(1 << 20);
    let closed = (0..100).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        is_closed()
    });
    assert!(closed);
    assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)), Ok(end));
    // The file cannot be found, so its size is unknown; this concerns this file only.
    let gone = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("g")).unwrap();
    gone.write_all_at(b"data", 1 << 20).unwrap();
    fs::remove_file(m.path("g")).unwrap();
    assert_eq!(seek(&gone, SeekFrom::Data(0)), Err(Errno::INVAL));
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(1 << 20));
}

#[test]
fn fallocate_and_copy_file_range_work() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("f")).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 65536).unwrap();
    assert_eq!(size(&m.path("f")), 65536);
    file.write_all_at(&[5; 65536], 0).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 4096, 8192).unwrap();
    let mut back = vec![1; 65536];
    file.read_exact_at(&mut back, 0).unwrap();
    assert!(back[..4096].iter().all(|b| *b == 5) && back[4096..12288].iter().all(|b| *b == 0));
    assert!(back[12288..].iter().all(|b| *b == 5));
    let copy = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("g")).unwrap();
    let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &copy, Some(&mut 0), 65536).unwrap();
    assert_eq!(copied, 65536);
    assert!(fs::read(m.path("g")).unwrap() == back);
}

#[test]
fn flags_by_ioctl() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let file = File::create(m.path("f")).unwrap();
    use rustix::fs::IFlags;
    assert_eq!(rustix::fs::ioctl_getflags(&file).unwrap(), IFlags::empty());
    rustix::fs::ioctl_setflags(&file, IFlags::NODUMP).unwrap();
    assert_eq!(rustix::fs::ioctl_getflags(&file).unwrap(), IFlags::NODUMP);

    // The kernel does not check the 32-bit numbers.
    if !is_root() {
        return;
    }
    const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
    let script = format!(
        "import fcntl,struct,sys\n\
        fcntl.ioctl(open(sys.argv[1]),{FS_IOC32_SETFLAGS},struct.pack('i',int(sys.argv[2])))"
    );
    let set = |flags: IFlags| {
        let (path, flags) = (m.path("f"), flags.bits().to_string());
        let done = as_nobody("python3", &["-c", &script, path.to_str().unwrap(), &flags]);
        (done.status.success(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let refused = |(done, said): (bool, String)| !done && said.contains("Operation not permitted");
    fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o666)).unwrap();
    assert!(refused(set(IFlags::NODUMP | IFlags::NOATIME)), "another's file");
    std::os::unix::fs::chown(m.path("f"), Some(65534), None).unwrap();
    assert!(set(IFlags::NOATIME).0, "the owner's");
    for fixed in [IFlags::IMMUTABLE, IFlags::APPEND] {
        assert!(refused(set(fixed)), "{fixed:?}");
        rustix::fs::ioctl_setflags(&file, fixed).unwrap();
        assert!(refused(set(IFlags::empty())), "{fixed:?}");
    }
    rustix::fs::ioctl_setflags(&file, IFlags::empty()).unwrap();
}

/// The number encodes long, as in the kernel, and both return an int: the bytes after it belong to the
/// caller.
#[test]
fn the_generation_by_ioctl_is_an_int() {
    if !can_mount() {
        return;
    }
    const FS_IOC_GETVERSION: u32 = 0x8008_7601;
    let m = mounted();
    fs::write(m.path("f"), b"").unwrap();
    let script = format!(
        "import fcntl,sys\nroom=bytearray(b'\\xff'*8)\n\
        fcntl.ioctl(open(sys.argv[1]),{FS_IOC_GETVERSION},room)\n\
        print(int.from_bytes(room[:4],sys.byteorder),room[4:].hex())"
    );
    let said = std::process::Command::new("python3").args(["-c", &script]).arg(m.path("f")).output().unwrap();
    let generation = xattr::get(m.path("f"), ivers_fuse::GENERATION).unwrap().unwrap();
    let expected = format!("{} ffffffff\n", String::from_utf8(generation).unwrap());
    assert_eq!(String::from_utf8_lossy(&said.stdout), expected, "{}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn a_write_removes_set_id_bits() {
    if !can_mount() || !is_root() {
        return;
    }
    let m = mounted();
    fs::write(m.path("f"), b"program").unwrap();
    for change in ["printf y >> \"$0\"", ": > \"$0\"", "truncate -s 3 \"$0\""] {
        fs::set_permissions(m.path("f"), fs::Permissions::from_mode(0o6777)).unwrap();
        let path = m.path("f");
        let done = as_nobody("sh", &["-c", change, path.to_str().unwrap()]);
        assert!(done.status.success(), "{change}: {}", String::from_utf8_lossy(&done.stderr));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{change}");
    }
}

#[test]
fn four_threads_work_concurrently() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let m = &m;
            scope.spawn(move || {
                fs::create_dir(m.path(&format!("d{thread}"))).unwrap();
                for n in 0..200 {
                    let (own, shared) = (m.path(&format!("d{thread}/{n}")), m.path("shared"));
                    fs::write(&own, format!("{thread} {n}")).unwrap();
                    let _ = fs::hard_link(&own, &shared);
                    let _ = change(&own);
                    let file = OpenOptions::new().append(true).open(&own).unwrap();
                    (&file).write_all(b"!").unwrap();
                    let _ = change(&own);
                    drop(file);
                    let _ = fs::remove_file(&shared);
                    fs::rename(&own, m.path(&format!("d{thread}/{n}-moved"))).unwrap();
                    if n % 3 == 0 {
                        fs::remove_file(m.path(&format!("d{thread}/{n}-moved"))).unwrap();
                    }
                }
            });
        }
    });
    for thread in 0..4 {
        assert_eq!(fs::read_dir(m.path(&format!("d{thread}"))).unwrap().count(), 133);
        assert_eq!(
            fs::read_to_string(m.path(&format!("d{thread}/100-moved"))).unwrap(),
            format!("{thread} 100!")
        );
    }
}
