//! The change attribute as programs see it through a mount with the write-back cache.

use crate::common::*;
use ivers_fuse::{CHILDREN, FuseOptions, GENERATION, parse_children};
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

/// Asserts that the change attribute is different and larger.
#[track_caller]
fn grows(path: &std::path::Path, last: &mut u64) {
    let now = change(path);
    assert!(now > *last, "{now} is not above {last}");
    *last = now;
    assert_eq!(change(path), now, "looking twice");
}

#[test]
fn changes_raise_the_value_and_reads_do_not() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    fs::write(&path, b"one").unwrap();
    let mut last = change(&path);
    assert_eq!(change(&path), last);
    assert_eq!(fs::read(&path).unwrap(), b"one");
    fs::metadata(&path).unwrap();
    assert_eq!(change(&path), last, "reading is no change");

    fs::write(&path, b"two").unwrap();
    grows(&path, &mut last);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    grows(&path, &mut last);
    fs::rename(&path, m.path("g")).unwrap();
    let path = m.path("g");
    grows(&path, &mut last);
    xattr::set(&path, "user.a", b"b").unwrap();
    grows(&path, &mut last);
    xattr::remove(&path, "user.a").unwrap();
    grows(&path, &mut last);
    fs::hard_link(&path, m.path("h")).unwrap();
    grows(&path, &mut last);
    fs::remove_file(m.path("h")).unwrap();
    grows(&path, &mut last);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(1).unwrap();
    grows(&path, &mut last);
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    grows(&path, &mut last);

    let mut dir = change(m.dir.path());
    fs::create_dir(m.path("d")).unwrap();
    grows(m.dir.path(), &mut dir);
    fs::remove_dir(m.path("d")).unwrap();
    grows(m.dir.path(), &mut dir);
}

#[test]
fn a_query_flushes_open_files() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    fs::create_dir(m.path("d")).unwrap();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(m.path("d/f")).unwrap();
    fs::rename(m.path("d/f"), m.path("d/g")).unwrap();
    fs::rename(m.path("d"), m.path("e")).unwrap();
    let path = m.path("e/g");
    let mut last = change(&path);
    for n in 0..200 {
        // In the kernel's cache only; the times need not have changed either.
        file.write_all_at(&[n as u8], 0).unwrap();
        let now = change(&path);
        assert!(now > last, "write {n} does not show: {last}, {now}");
        assert_eq!(change(&path), now, "nothing happened since");
        last = now;
    }
    // The file stays open for writing and readable in between.
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    assert_eq!(change(&path), last);
    drop(file);
    assert_eq!(change(&path), last, "closing is no change");
}

#[test]
fn a_query_commits_nothing() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    let before = m.vfs.stats();
    for _ in 0..20 {
        change(&path);
    }
    let after = m.vfs.stats();
    assert_eq!(
        after.written_back_bytes, before.written_back_bytes,
        "the FSYNC of a query reached the filesystem"
    );
}

#[test]
fn changes_of_unlinked_open_files_raise_the_value() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let file = fs::File::create(m.path("f")).unwrap();
    fs::remove_file(m.path("f")).unwrap();
    use xattr::FileExt;
    let get = || -> u64 {
        String::from_utf8(file.get_xattr(ivers_fuse::CHANGE).unwrap().unwrap()).unwrap().parse().unwrap()
    };
    let first = get();
    std::os::unix::fs::FileExt::write_all_at(&file, b"x", 0).unwrap();
    assert!(get() > first);
}

/// Data that a full filesystem cannot store is shown by the kernel until it drops the pages, without a
/// request. So no change attribute may stay valid.
#[test]
fn unstored_data_has_no_stable_change_attribute() {
    if !can_mount() {
        return;
    }
    // Without this option the kernel truncates a file by OPEN.
    for strict_queries in [true, false] {
        let m = mount_vfs(mem_vfs(1 << 20), FuseOptions { strict_queries, ..FuseOptions::default() });
        let path = m.path("f");
        fs::write(&path, b"before").unwrap();
        let first = change(&path);
        let more = vec![b'x'; 4 << 20];
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&more, 0).unwrap();
        file.sync_all().unwrap_err();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), more, "what the kernel still has");
        let shown = change(&path);
        assert!(shown > first);
        let file = fs::File::open(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_ne!(fs::read(&path).unwrap(), more, "it has dropped it");
        assert!(change(&path) > shown);
        fs::write(&path, b"less").unwrap();
        let last = change(&path);
        assert!(last > shown);
        assert_eq!(change(&path), last, "it is as it is shown");
    }
}

/// A thread makes a change and no further request. A query is answered nevertheless, with a stable change
/// attribute.
#[test]
fn a_strict_query_does_not_wait_for_completed_changes() {
    if !can_mount() {
        return;
    }
    for writeback_cache in [true, false] {
        let m = mount_with(FuseOptions { writeback_cache, ..FuseOptions::default() });
        let (path, other, dir) = (m.path("f"), m.path("g"), m.path("d"));
        fs::write(&path, b"contents").unwrap();
        fs::create_dir(&dir).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        // A request would end an earlier change: so each change has its own thread.
        let change_by_another = |make: &(dyn Fn() + Sync)| {
            let (done, is_done) = std::sync::mpsc::channel();
            std::thread::scope(|scope| {
                let (end, wait) = std::sync::mpsc::channel::<()>();
                scope.spawn(move || {
                    make();
                    done.send(()).unwrap();
                    let _ = wait.recv();
                });
                is_done.recv().unwrap();
                let now = [change(&path), change(m.dir.path()), change(&dir)];
                let again = [change(&path), change(m.dir.path()), change(&dir)];
                assert_eq!(again, now, "nothing changed");
                drop(end);
                now
            })
        };
        let mut last = change_by_another(&|| ());
        let mut changes_these = |which: [bool; 3], make: &(dyn Fn() + Sync)| {
            let now = change_by_another(make);
            for (at, changes) in which.into_iter().enumerate() {
                assert_eq!(now[at] > last[at], changes, "{at}: {last:?} {now:?}");
            }
            last = now;
        };
        let (the_file, names, names_and_file) =
            ([true, false, false], [false, true, false], [true, true, false]);
        changes_these(the_file, &|| file.set_len(3).unwrap());
        changes_these(the_file, &|| file.write_all_at(b"x", 1).unwrap());
        changes_these(the_file, &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap());
        // As when the kernel hands over its own times.
        let recently = fs::FileTimes::new().set_modified(SystemTime::now() - Duration::from_secs(30));
        changes_these(the_file, &|| file.set_times(recently).unwrap());
        changes_these(the_file, &|| xattr::set(&path, "user.a", b"b").unwrap());
        changes_these(the_file, &|| xattr::remove(&path, "user.a").unwrap());
        changes_these(the_file, &|| {
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 9000).unwrap()
        });
        changes_these(names_and_file, &|| fs::hard_link(&path, &other).unwrap());
        changes_these(names_and_file, &|| fs::remove_file(&other).unwrap());
        changes_these(names_and_file, &|| {
            fs::rename(&path, &other).unwrap();
            fs::rename(&other, &path).unwrap();
        });
        changes_these([false, false, true], &|| drop(fs::File::create(dir.join("new")).unwrap()));
        changes_these([false, true, true], &|| fs::rename(dir.join("new"), m.path("new")).unwrap());
        changes_these(names, &|| fs::remove_file(m.path("new")).unwrap());
        changes_these(names, &|| fs::create_dir(m.path("e")).unwrap());
        changes_these(names, &|| fs::remove_dir(m.path("e")).unwrap());
        changes_these(names, &|| symlink("f", m.path("l")).unwrap());
    }
}

/// To be flushed, a file must be found by a name that remains.
#[test]
fn an_open_file_that_lost_its_latest_names_is_found_by_an_older_one() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    let file = OpenOptions::new().write(true).create_new(true).open(&path).unwrap();
    let others: Vec<_> = (0..8).map(|n| m.path(&format!("other{n}"))).collect();
    for other in &others {
        fs::hard_link(&path, other).unwrap();
        fs::rename(other, m.path("moved")).unwrap();
        fs::rename(m.path("moved"), other).unwrap();
    }
    for other in &others {
        fs::remove_file(other).unwrap();
    }
    let mut last = change(&path);
    for n in 0..10 {
        file.write_all_at(&[n], 0).unwrap();
        grows(&path, &mut last);
    }
}

#[test]
fn stores_through_a_mapping_raise_the_value() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    fs::write(&path, vec![0; 8192]).unwrap();
    let script = "import mmap,os,sys\n\
        fd=os.open(sys.argv[1],os.O_RDWR)\n\
        m=mmap.mmap(fd,8192)\n\
        os.close(fd)\n\
        for line in sys.stdin:\n  m[int(line)]=(m[int(line)]+1)%256\n  print('stored',flush=True)\n";
    let mut child = Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 runs: it maps the file, which this safe crate cannot");
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut last = change(&path);
    for n in 0..20 {
        writeln!(input, "{}", n % 3).unwrap();
        output.read_line(&mut String::new()).unwrap();
        let now = change(&path);
        assert!(now > last, "store {n} does not show: {last}, {now}");
        assert_eq!(change(&path), now);
        last = now;
    }
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(change(&path), last, "unmapping is no change");
}

#[test]
fn every_caller_that_may_stat_may_query() {
    if !can_mount() {
        return;
    }
    if !is_root() {
        eprintln!("asking as another user needs root");
        return;
    }
    let m = mounted();
    fs::write(m.path("secret"), b"x").unwrap();
    fs::set_permissions(m.path("secret"), fs::Permissions::from_mode(0o0)).unwrap();
    symlink("nowhere", m.path("link")).unwrap();
    fs::create_dir(m.path("closed")).unwrap();
    fs::set_permissions(m.path("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    // Uses python with setpriv instead of getfattr, which may be missing.
    let ask =
        "import os,sys\nprint(os.getxattr(sys.argv[1],'system.ivers.change',follow_symlinks=False).decode())";
    for name in ["secret", "link", "closed"] {
        let path = m.path(name);
        let asked = as_nobody("python3", &["-c", ask, path.to_str().unwrap()]);
        assert!(asked.status.success(), "{name}: {}", String::from_utf8_lossy(&asked.stderr));
        assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), change(&path).to_string());
    }
    let inside = m.path("closed/x");
    assert!(!as_nobody("python3", &["-c", ask, inside.to_str().unwrap()]).status.success());
}

#[test]
fn a_directory_lists_the_attributes_of_all_its_children() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let dir = m.path("dir");
    fs::create_dir(&dir).unwrap();
    // More files than one value holds, some names with blanks, and one file with data that the kernel holds
    // back.
    let long = "n".repeat(200);
    for number in 0..700 {
        fs::write(dir.join(format!("{long} {number:03}")), vec![b'x'; number]).unwrap();
    }
    fs::create_dir(dir.join("below")).unwrap();
    let held = format!("{long} 123");
    let mut writer = OpenOptions::new().append(true).open(dir.join(&held)).unwrap();
    writer.write_all(b"more").unwrap();
    let all = || {
        let (mut all, mut name) = (Vec::new(), CHILDREN.to_owned());
        loop {
            let (children, next) = parse_children(&xattr::get(&dir, &name).unwrap().unwrap()).unwrap();
            all.extend(children);
            match next {
                Some(next) => name = format!("{CHILDREN}.{next}"),
                None => return all,
            }
        }
    };
    // A close arrives here after close(2) has returned.
    let settled = |but: usize| {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            let children = all();
            if children.iter().filter(|child| child.change.is_none()).count() == but {
                return children;
            }
            assert!(Instant::now() < patience, "files stay held back that are closed");
        }
    };
    let children = settled(1);
    assert_eq!(children.len(), 701);
    for child in &children {
        let path = dir.join(OsStr::from_bytes(&child.name));
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((child.ino, child.mode, child.uid), (meta.ino(), meta.mode(), meta.uid()));
        if child.name == held.as_bytes() {
            assert_eq!(child.change, None, "it must be asked for alone");
            continue;
        }
        assert_eq!(child.size, meta.len());
        assert_eq!(child.change, Some(change(&path)));
        let generation = xattr::get(&path, GENERATION).unwrap().unwrap();
        assert_eq!(child.generation.to_string().as_bytes(), generation);
    }
    // It counts as a query: the next change shows.
    drop(writer);
    let other = format!("{long} 007");
    fs::write(dir.join(&other), "changed").unwrap();
    let value = |children: &[ivers_fuse::Child], name: &str| {
        children.iter().find(|child| child.name == name.as_bytes()).unwrap().change
    };
    let after = settled(0);
    assert!(value(&after, &other) > value(&children, &other));
    assert_eq!(value(&after, &format!("{long} 008")), value(&children, &format!("{long} 008")));
    // Files do not have the attribute, nor do directories that the caller may not read.
    assert!(xattr::get(dir.join(&other), CHILDREN).is_err());
    if is_root() {
        let ask = "import os,sys\nos.getxattr(sys.argv[1],'system.ivers.children')";
        let may = |mode| {
            fs::set_permissions(&dir, fs::Permissions::from_mode(mode)).unwrap();
            as_nobody("python3", &["-c", ask, dir.to_str().unwrap()]).status.success()
        };
        assert!(may(0o755) && !may(0o711) && !may(0o744) && !may(0o700));
    }
}

#[test]
fn the_attributes_are_hidden_and_read_only() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    assert_eq!(xattr::list(&path).unwrap().count(), 0);
    for name in ["change", "stored", "semantics", "stats", "other"] {
        let name = format!("system.ivers.{name}");
        assert_eq!(xattr::set(&path, &name, b"1").unwrap_err().raw_os_error(), Some(1), "EPERM for {name}");
        assert_eq!(xattr::remove(&path, &name).unwrap_err().raw_os_error(), Some(1), "EPERM for {name}");
    }
    assert_eq!(xattr::get(&path, "system.ivers.other").unwrap(), None);
    let before = m.vfs.stats().queries;
    let stored = attribute(&path, ivers_fuse::STORED);
    assert_eq!(m.vfs.stats().queries, before, "peeking is no query");
    assert_eq!(stored, change(&path).to_string(), "mem has no epoch");
    let semantics: serde_json::Value =
        serde_json::from_str(&attribute(&path, ivers_fuse::SEMANTICS)).unwrap();
    assert_eq!((&semantics["change_attribute"], &semantics["persistent"]), (&true.into(), &false.into()));
    let stats: serde_json::Value = serde_json::from_str(&attribute(&path, ivers_fuse::STATS)).unwrap();
    assert!(stats["changes"].as_u64() > Some(0) && stats["journal_blocks"].is_u64());
}

#[test]
fn without_a_change_attribute_queries_return_enodata() {
    if !can_mount() {
        return;
    }
    let options = ivers_vfs::MountOptions { mode: ivers_vfs::ChangeMode::Off, ..Default::default() };
    let vfs = ivers_vfs::Vfs::mount(std::sync::Arc::new(ivers_mem::Mem::new(1 << 24)), options).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let session = ivers_fuse::mount(vfs, dir.path(), FuseOptions::default()).unwrap();
    let path = dir.path().join("f");
    fs::write(&path, b"x").unwrap();
    assert_eq!(xattr::get(&path, ivers_fuse::CHANGE).unwrap(), None);
    assert_eq!(xattr::get(&path, ivers_fuse::STORED).unwrap(), None);
    let semantics: serde_json::Value =
        serde_json::from_str(&attribute(&path, ivers_fuse::SEMANTICS)).unwrap();
    assert_eq!(semantics["change_attribute"], false);
    assert!(semantics["no_change_attribute"].is_string());
    for promise in ["data", "metadata", "monotonic", "persistent", "crash_safe"] {
        assert_eq!(semantics[promise], false, "{promise} of a number that is not there");
    }
    session.unmount().unwrap();
}

#[test]
fn the_ioctl_returns_the_same_change_attribute() {
    if !can_mount() {
        return;
    }
    let m = mounted();
    let path = m.path("f");
    fs::write(&path, b"x").unwrap();
    let script = "import fcntl,struct,sys\n\
        print(*struct.unpack('=QQII',fcntl.ioctl(open(sys.argv[1]),int(sys.argv[2]),bytes(24))))";
    let command = ivers_fuse::IVERS_IOC_CHANGE.to_string();
    let output =
        Command::new("python3").args(["-c", script]).arg(&path).arg(command).output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    // Valid, data, metadata, monotonic; mem stores nothing across mounts.
    assert_eq!((numbers[0], numbers[3]), (change(&path), 0b1111));
}
