//! Mounts that measure and appraise.

use super::*;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::time::Duration;

/// A mount with a policy, and its list.
struct Measured {
    place: Place,
    kept: Kept,
    options: String,
}

impl Measured {
    fn new(policy: &str, more: &str) -> Self {
        let (place, kept) = (Place::new(), Kept::new());
        fs::write(kept.path("policy"), policy).unwrap();
        let (file, list) = (kept.path("policy"), kept.path("mount.list"));
        let options = format!("measure={},measure_list={}{more}", file.display(), list.display());
        Self { place, kept, options }
    }

    fn mount(&self) {
        self.place.mount(&self.options);
    }

    /// Returns the entries of the list without the first: name and kind.
    fn entries(&self) -> Vec<(String, &'static str)> {
        let bytes = fs::read(self.kept.path("mount.list")).unwrap();
        let entries = ivers_ima::reader::Reader::new(&bytes).map(Result::unwrap).skip(1);
        let shown = entries.map(|entry| {
            let kind = if entry.is_violation() { "violation" } else { "measured" };
            (String::from_utf8_lossy(entry.fields().name).into_owned(), kind)
        });
        shown.collect()
    }

    /// Waits for new entries and returns them: RELEASE arrives after close(2) returns.
    fn added(&self, before: &mut usize, count: usize) -> Vec<(String, &'static str)> {
        wait_until("the list has grown", || self.entries().len() >= *before + count);
        std::thread::sleep(Duration::from_millis(100));
        let added = self.entries().split_off(*before);
        *before += added.len();
        added
    }
}

fn read(path: impl AsRef<Path>) -> Vec<u8> {
    fs::read(path).unwrap()
}

fn owned(entries: &[(&str, &'static str)]) -> Vec<(String, &'static str)> {
    entries.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect()
}

const READERS: &str = "dont_measure path=/quiet\nmeasure func=FILE_CHECK mask=^MAY_READ\n";

#[test]
fn opens_closes_and_violations_are_recorded_as_ima_does() {
    if !can_mount() {
        return;
    }
    let measured = Measured::new(READERS, "");
    let place = &measured.place;
    place.mount("");
    fs::create_dir_all(place.path("etc")).unwrap();
    fs::create_dir_all(place.path("quiet")).unwrap();
    for name in ["etc/a", "etc/b", "etc/c", "quiet/d"] {
        fs::write(place.path(name), name).unwrap();
    }
    place.unmount();
    measured.mount();
    let mut seen = 0;
    read(place.path("etc/a"));
    read(place.path("quiet/d"));
    assert_eq!(measured.added(&mut seen, 1), owned(&[("/etc/a", "measured")]));
    // Read again, and touched: no new entry.
    read(place.path("etc/a"));
    assert_eq!(measured.added(&mut seen, 0), []);
    drop(OpenOptions::new().write(true).open(place.path("etc/a")).unwrap());
    read(place.path("etc/a"));
    assert_eq!(measured.added(&mut seen, 0), []);
    // Changed: an entry at the last close, and none at the next read.
    fs::write(place.path("etc/a"), "other contents").unwrap();
    assert_eq!(measured.added(&mut seen, 1), owned(&[("/etc/a", "measured")]));
    read(place.path("etc/a"));
    assert_eq!(measured.added(&mut seen, 0), []);
    // A new file is measured when it is complete.
    let mut new = File::create(place.path("etc/new")).unwrap();
    new.write_all(b"half").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(measured.added(&mut seen, 0), []);
    new.write_all(b" and half").unwrap();
    drop(new);
    assert_eq!(measured.added(&mut seen, 1), owned(&[("/etc/new", "measured")]));
    // open_writers: recorded once, however often it is read meanwhile.
    let mut writer = OpenOptions::new().append(true).open(place.path("etc/b")).unwrap();
    read(place.path("etc/b"));
    read(place.path("etc/b"));
    assert_eq!(measured.added(&mut seen, 2), owned(&[("/etc/b", "violation"), ("/etc/b", "measured")]));
    writer.write_all(b"more").unwrap();
    drop(writer);
    assert_eq!(measured.added(&mut seen, 1), owned(&[("/etc/b", "measured")]));
    // ToMToU.
    let mut reader = File::open(place.path("etc/c")).unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    let writer = OpenOptions::new().write(true).open(place.path("etc/c")).unwrap();
    assert_eq!(measured.added(&mut seen, 2), owned(&[("/etc/c", "measured"), ("/etc/c", "violation")]));
    drop((reader, writer));
    // A renamed file keeps its measurement; the next change uses the new name.
    fs::rename(place.path("etc"), place.path("moved")).unwrap();
    read(place.path("moved/a"));
    assert_eq!(measured.added(&mut seen, 0), []);
    fs::write(place.path("moved/a"), "moved").unwrap();
    assert_eq!(measured.added(&mut seen, 1), owned(&[("/moved/a", "measured")]));

    let (list, pcrs) = (measured.kept.path("copy"), measured.kept.path("pcrs"));
    let output = ivers([
        OsStr::new("measure"),
        "--json".as_ref(),
        "--of".as_ref(),
        place.dir.as_ref(),
        "--list".as_ref(),
        list.as_ref(),
        "--pcrs".as_ref(),
        pcrs.as_ref(),
    ]);
    assert!(output.status.success(), "{}", said(&output));
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["violations"], &told["entries"]), (&2.into(), &(seen + 1).into()));
    if ivers_oracle::have_programs(&["evmctl", "python3"]) {
        super::evmctl::agree(&list, &pcrs, &told["aggregates"]);
    }
    // The next mount appends to the list and does not repeat entries.
    place.unmount();
    measured.mount();
    read(place.path("moved/a"));
    assert_eq!(measured.added(&mut seen, 0), []);
    // A changed list is detected.
    let mut bytes = fs::read(measured.kept.path("mount.list")).unwrap();
    let last = bytes.len() - 1;
    bytes.truncate(last);
    fs::write(measured.kept.path("mount.list"), bytes).unwrap();
    let output = ivers([OsStr::new("measure"), "--of".as_ref(), place.dir.as_ref()]);
    assert_eq!(output.status.code(), Some(5), "{}", said(&output));
}

#[test]
fn two_mounts_do_not_share_a_list() {
    if !can_mount() {
        return;
    }
    let (first, second) = (Measured::new(READERS, ""), Place::new());
    first.mount();
    let options = &first.options;
    let output = ivers([
        OsStr::new("mount"),
        "-o".as_ref(),
        options.as_ref(),
        second.image.path().as_ref(),
        second.dir.as_ref(),
    ]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
    for (policy, why) in
        [("measure\nhash\n", "line 2: hash"), ("appraise path=/etc\n", "requires `-o appraise`")]
    {
        fs::write(first.kept.path("policy"), policy).unwrap();
        let output = ivers([
            OsStr::new("mount"),
            "-o".as_ref(),
            format!("measure={}", first.kept.path("policy").display()).as_ref(),
            second.image.path().as_ref(),
            second.dir.as_ref(),
        ]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(why), "{}", said(&output));
    }
    for (policy, why) in
        [(b"measure\nmeasure path=/\xff\n".to_vec(), "line 2: not UTF-8"), (vec![b'#'; 2 << 20], "at most")]
    {
        fs::write(first.kept.path("policy"), policy).unwrap();
        let policy = first.kept.path("policy");
        let output = ivers([
            "measure".as_ref(),
            "--policy".as_ref(),
            policy.as_os_str(),
            second.image.path().as_ref(),
        ]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(why), "{}", said(&output));
    }
}

#[test]
fn files_without_a_change_attribute_are_measured_each_time() {
    if !can_mount() {
        return;
    }
    let measured = Measured::new("measure\n", ",noiversion");
    measured.mount();
    let path = measured.place.path("f");
    fs::write(&path, "one").unwrap();
    let mut seen = 0;
    assert_eq!(measured.added(&mut seen, 1).len(), 1);
    read(&path);
    assert_eq!(measured.added(&mut seen, 0), []);
    // The same length, and no difference in times.
    OpenOptions::new().write(true).open(&path).unwrap().write_all(b"two").unwrap();
    assert_eq!(measured.added(&mut seen, 1).len(), 1);
}

#[test]
fn files_that_fail_appraisal_are_not_opened() {
    if !can_mount() || !is_root() {
        // Only root may set attributes of `security.`.
        return;
    }
    let measured = Measured::new("measure\ndont_appraise path=/open\nappraise\n", ",appraise");
    let place = &measured.place;
    let label = |contents: &[u8]| {
        let digest = ivers_ima::digest::Algorithm::Sha256.digest(contents);
        ivers_ima::signature::Label::encode_digest(&digest)
    };
    place.mount("");
    fs::create_dir(place.path("open")).unwrap();
    for name in ["good", "bad", "none", "open/none"] {
        fs::write(place.path(name), name).unwrap();
    }
    xattr::set(place.path("good"), "security.ima", &label(b"good")).unwrap();
    xattr::set(place.path("bad"), "security.ima", &label(b"good")).unwrap();
    place.unmount();
    // After a listing the kernel has the name cached: the rule for a path applies all the same.
    measured.mount();
    let list = |dir: &str| {
        fs::read_dir(place.path(dir)).unwrap().for_each(|entry| _ = entry.unwrap().metadata().unwrap());
    };
    list("open");
    assert_eq!(read(place.path("open/none")), b"open/none");
    list("");
    assert_eq!(fs::read(place.path("none")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    place.unmount();
    measured.mount();
    let denied = |name: &str| {
        let error = fs::read(place.path(name)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{name}: {error}");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::ACCESS.raw_os_error()));
    };
    assert_eq!(read(place.path("good")), b"good");
    assert_eq!(read(place.path("open/none")), b"open/none");
    denied("bad");
    denied("none");
    let written = OpenOptions::new().write(true).truncate(true).open(place.path("bad"));
    assert_eq!(written.unwrap_err().kind(), ErrorKind::PermissionDenied);
    // A file is labelled after a permitted writer closes it, and so is a new file.
    for (name, contents) in [("good", "better"), ("new", "made here")] {
        fs::write(place.path(name), contents).unwrap();
        wait_until("it is labelled", || {
            xattr::get(place.path(name), "security.ima").unwrap().as_deref()
                == Some(&label(contents.as_bytes()))
        });
        assert_eq!(read(place.path(name)), contents.as_bytes());
    }
    // A removed or moved label is noticed at the next open.
    xattr::remove(place.path("new"), "security.ima").unwrap();
    denied("new");
    place.unmount();
    // A mount without appraisal opens the file.
    place.mount("");
    assert_eq!(read(place.path("bad")), b"bad");
}

/// Data that a writer has passed to the kernel counts, synced or not.
#[test]
fn a_file_that_fails_appraisal_after_an_open_write_is_not_readable() {
    if !can_mount() || !is_root() {
        return;
    }
    let measured = Measured::new("dont_measure\nappraise\n", ",appraise");
    let place = &measured.place;
    place.mount("");
    fs::write(place.path("file"), b"contents").unwrap();
    let digest = ivers_ima::digest::Algorithm::Sha256.digest(b"contents");
    let label = ivers_ima::signature::Label::encode_digest(&digest);
    xattr::set(place.path("file"), "security.ima", &label).unwrap();
    place.unmount();
    measured.mount();
    assert_eq!(read(place.path("file")), b"contents");
    let writer = OpenOptions::new().write(true).open(place.path("file")).unwrap();
    std::os::unix::fs::FileExt::write_at(&writer, b"TAMPERED", 0).unwrap();
    let error = fs::read(place.path("file")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    drop(writer);
}

/// A list that cannot grow reports that, and not that it was changed.
#[test]
fn a_full_disk_is_reported_as_such() {
    if !can_mount() || !is_root() {
        return;
    }
    struct Small(PathBuf);
    impl Drop for Small {
        fn drop(&mut self) {
            let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
        }
    }
    let (place, kept) = (Place::new(), Kept::new());
    place.mount("");
    fill(&place.dir, 100, 64);
    place.unmount();
    let small = Small(kept.path("small"));
    fs::create_dir(&small.0).unwrap();
    let words = ["-t", "tmpfs", "-o", "size=4k", "none"];
    let made = std::process::Command::new("mount").args(words).arg(&small.0).output().unwrap();
    assert!(made.status.success(), "{}", said(&made));
    fs::write(kept.path("policy"), "measure\n").unwrap();
    let list = small.0.join("list");
    place.mount(&format!("measure={},measure_list={}", kept.path("policy").display(), list.display()));
    let mut opened = (0..100).map(|number| fs::read(place.path(&format!("d000/f{number:05}"))));
    assert!(opened.any(|read| read.is_err()), "the list outgrew its disk");
    let output = ivers([OsStr::new("measure"), "--of".as_ref(), place.dir.as_ref()]);
    let text = said(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("of 4096 bytes") && text.contains("No space left"), "{text}");
    place.unmount();
}
