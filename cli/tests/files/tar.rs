//! `ivers tar` against GNU tar and bsdtar, and against hostile archives.

use crate::common::*;
use ivers_oracle::{Image, TreeOptions, tree};
use rustix::fs::{CWD, FileType, Mode};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, UNIX_EPOCH};

const ISLAND: u64 = 3 << 20;

fn image() -> Option<Image> {
    ivers_oracle::have_programs(&["mkfs.ext4", "e2fsck", "tar", "bsdtar"])
        .then(|| Image::new("ext4", 64 << 20, &["-b", "4096"]).unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn inside(image: &Image, path: &str) -> String {
    format!("{}:{path}", image.path().display())
}

fn works(words: &[&str]) -> Output {
    let output = ivers(["tar"].iter().chain(words));
    assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {}", said(&output));
    output
}

fn runs_quietly(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).env("LC_ALL", "C.UTF-8").output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", said(&output));
}

/// Creates every kind of file and metadata that this user may create and an archive can have.
fn fill(source: &Path) {
    fs::create_dir_all(source.join("sub/empty")).unwrap();
    fs::write(source.join("sub/file"), "contents").unwrap();
    fs::set_permissions(source.join("sub/file"), fs::Permissions::from_mode(0o4751)).unwrap();
    xattr::set(source.join("sub/file"), "user.note", b"a\nb\0c=d").unwrap();
    let acl = [
        [2, 0, 0, 0].as_slice(),
        &[1, 0, 7, 0, 255, 255, 255, 255],
        // A user without a name: GNU tar writes names where there are some.
        &[2, 0, 4, 0, 0x77, 0x11, 1, 0],
        &[4, 0, 5, 0, 255, 255, 255, 255],
        &[16, 0, 5, 0, 255, 255, 255, 255],
        &[32, 0, 1, 0, 255, 255, 255, 255],
    ]
    .concat();
    let _ = xattr::set(source.join("sub/file"), "system.posix_acl_access", &acl);
    let _ = xattr::set(source.join("sub/empty"), "system.posix_acl_default", &acl);
    fs::hard_link(source.join("sub/file"), source.join("twin")).unwrap();
    std::os::unix::fs::symlink("sub/file", source.join("link")).unwrap();
    std::os::unix::fs::symlink("x/".repeat(150), source.join("long link")).unwrap();
    let deep = source.join("d".repeat(200)).join("e".repeat(200));
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join("f".repeat(200)), vec![7; 70_000]).unwrap();
    fs::write(source.join("Grüße\nzwei"), "").unwrap();
    let sparse = fs::File::create(source.join("sparse")).unwrap();
    sparse.write_all_at(b"island", ISLAND).unwrap();
    sparse.set_len(1 << 34).unwrap();
    let islands = fs::File::create(source.join("islands")).unwrap();
    // More than the four ranges of a header and the 21 of an extension.
    (0..60).for_each(|nth| islands.write_all_at(b"island", nth * (64 << 10)).unwrap());
    rustix::fs::mknodat(CWD, source.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o640), 0).unwrap();
    if is_root() {
        let special = |name, kind, rdev| {
            rustix::fs::mknodat(CWD, source.join(name), kind, Mode::from_raw_mode(0o640), rdev).unwrap();
        };
        special("null", FileType::CharacterDevice, 0x103);
        special("disk", FileType::BlockDevice, (0x12 << 20) | (7 << 8) | 0x34);
        xattr::set(source.join("null"), "trusted.note", b"kept too").unwrap();
        std::os::unix::fs::lchown(source.join("link"), Some(7), Some(8)).unwrap();
        std::os::unix::fs::lchown(source.join("pipe"), Some(3_000_000), Some(u32::MAX - 1)).unwrap();
    }
    for (nth, name) in ["sub/file", "sparse", "islands", "sub/empty", "sub"].iter().enumerate() {
        let time = UNIX_EPOCH + Duration::new(1_000_000_000 + nth as u64, 123_456_789);
        fs::File::open(source.join(name)).unwrap().set_modified(time).unwrap();
    }
}

fn all_paths(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_owned()];
    let mut next = 0;
    while next < all.len() {
        if fs::symlink_metadata(&all[next]).unwrap().is_dir() {
            let entries = fs::read_dir(&all[next]).unwrap();
            all.extend(entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>());
        }
        next += 1;
    }
    all.sort();
    all
}

/// Compares trees: all that `tree` knows except times, then modification times, and the contents of the file
/// that is too long to hash. `nsec`: the archive has times to the nanosecond.
fn assert_equal(source: &Path, back: &Path, nsec: bool, what: &str) {
    for dir in [source, back] {
        // `tree` reads files in whole.
        fs::rename(dir.join("sparse"), dir.with_extension("sparse")).unwrap();
    }
    let options = TreeOptions { no_times: true, no_trusted: !is_root() };
    let look = |dir: &Path| tree(dir, options).unwrap();
    let trees = (look(source), look(back));
    for dir in [source, back] {
        fs::rename(dir.with_extension("sparse"), dir.join("sparse")).unwrap();
    }
    assert!(trees.0 == trees.1, "{what}\n{}\n---\n{}", trees.0, trees.1);
    for path in all_paths(source) {
        let other = back.join(path.strip_prefix(source).unwrap());
        let [one, two] = [&path, &other].map(|path| fs::symlink_metadata(path).unwrap());
        // The renames above changed it.
        if path != source {
            let time = |meta: &fs::Metadata| (meta.mtime(), if nsec { meta.mtime_nsec() } else { 0 });
            assert_eq!(time(&one), time(&two), "{what}: {}", path.display());
        }
        assert_eq!((one.size(), one.nlink()), (two.size(), two.nlink()), "{what}: {}", path.display());
    }
    let sparse = fs::File::open(back.join("sparse")).unwrap();
    let mut island = [0; 6];
    sparse.read_exact_at(&mut island, ISLAND).unwrap();
    assert_eq!(&island, b"island", "{what}");
    assert!(sparse.metadata().unwrap().blocks() < 64, "{what}: the hole was filled");
}

#[test]
fn archives_of_others_are_read_and_ours_are_read_by_others() {
    let Some(image) = image() else { return };
    let dir = image.dir();
    let (source, archive, ours) = (dir.join("source"), dir.join("a.tar"), dir.join("ours.tar"));
    fill(&source);
    let gnu = ["--xattrs", "--xattrs-include=*", "--acls", "--sparse", "--numeric-owner"];
    let gnu_posix = |version: &str| {
        let words = ["--format=posix".to_owned(), format!("--sparse-version={version}")];
        words.into_iter().chain(gnu.map(str::to_owned)).collect::<Vec<_>>()
    };
    let variants = [
        ("tar", gnu_posix("1.0"), true),
        ("tar", gnu_posix("0.1"), true),
        ("tar", gnu_posix("0.0"), true),
        ("bsdtar", vec!["--format=pax".to_owned(), "--acls".to_owned(), "--xattrs".to_owned()], true),
    ];
    let mut first = Vec::new();
    for (nth, (program, options, nsec)) in variants.iter().enumerate() {
        let what = format!("{program} {options:?}");
        let words: Vec<_> = options.iter().map(String::as_str).collect();
        // The comparison below changes it.
        fs::File::open(&source)
            .unwrap()
            .set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000))
            .unwrap();
        let from = ["-cf", text(&archive), "-C", text(&source), "."];
        runs_quietly(program, &[&words[..], &from].concat());
        let path = format!("/{nth}");
        let made = dir.join("empty");
        let _ = fs::create_dir(&made);
        let copied = ivers(["cp", "-r", text(&made), &inside(&image, &path)]);
        assert!(copied.status.success(), "{}", said(&copied));
        works(&["-x", &inside(&image, &path), "-f", text(&archive)]);
        works(&["-c", &inside(&image, &path), "-f", text(&ours)]);
        for (reader, options) in [("tar", &gnu[..]), ("bsdtar", &["--acls", "--xattrs", "--numeric-owner"])] {
            let back = dir.join(format!("back{nth}{reader}"));
            fs::create_dir(&back).unwrap();
            let from = ["-xpf", text(&ours), "-C", text(&back)];
            // Options of GNU tar for creating are refused when extracting.
            let options: Vec<_> = options.iter().filter(|word| **word != "--sparse").copied().collect();
            runs_quietly(reader, &[&options[..], &from].concat());
            assert_equal(&source, &back, *nsec, &format!("{what}, read by {reader}"));
        }
        let bytes = fs::read(&ours).unwrap();
        if first.is_empty() {
            first = bytes;
        } else {
            assert!(first == bytes, "{what}: equal trees make equal archives");
        }
    }
    image.check().unwrap();
}

/// Formats that cannot hold everything: what they hold arrives.
#[test]
fn older_formats_are_read() {
    let Some(image) = image() else { return };
    let dir = image.dir();
    let (source, archive, back) = (dir.join("source"), dir.join("a.tar"), dir.join("back"));
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), vec![9; 100_000]).unwrap();
    fs::hard_link(source.join("sub/file"), source.join("twin")).unwrap();
    std::os::unix::fs::symlink("sub/file", source.join("link")).unwrap();
    for path in all_paths(&source) {
        let time = rustix::fs::Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let gnu = ["--format=v7", "--format=oldgnu", "--format=gnu", "--format=ustar"];
    let variants = gnu.iter().map(|format| ("tar", *format)).chain([("bsdtar", "--format=ustar")]);
    for (nth, (program, format)) in variants.enumerate() {
        let nested = dir.join(format!("{nth}"));
        fs::create_dir(&nested).unwrap();
        runs_quietly(program, &[format, "-cf", text(&archive), "-C", text(&source), "."]);
        let made = ivers(["cp", "-r", text(&nested), &inside(&image, "/")]);
        assert!(made.status.success(), "{}", said(&made));
        works(&["-x", &inside(&image, &format!("/{nth}")), "-f", text(&archive)]);
        let copied = ivers(["cp", "-a", &inside(&image, &format!("/{nth}/.")), text(&back)]);
        assert!(copied.status.success(), "{}", said(&copied));
        let options = TreeOptions { no_times: true, no_trusted: !is_root() };
        assert_eq!(tree(&source, options).unwrap(), tree(&back, options).unwrap(), "{format}");
        assert_eq!(fs::metadata(back.join("sub")).unwrap().mtime(), 1_000_000_000, "{format}");
        fs::remove_dir_all(&back).unwrap();
    }
    // The old GNU form of sparse files.
    let islands = fs::File::create(source.join("islands")).unwrap();
    (0..60).for_each(|nth| islands.write_all_at(b"island", nth * (64 << 10)).unwrap());
    islands.set_len(1 << 30).unwrap();
    runs_quietly("tar", &["--format=gnu", "--sparse", "-cf", text(&archive), "-C", text(&source), "islands"]);
    assert!(fs::metadata(&archive).unwrap().len() < 1 << 20);
    works(&["-x", &inside(&image, "/"), "-f", text(&archive)]);
    let copied = ivers(["cp", "-a", &inside(&image, "/islands"), text(&back)]);
    assert!(copied.status.success(), "{}", said(&copied));
    runs_quietly("cmp", &[text(&source.join("islands")), text(&back)]);
    image.check().unwrap();
}

/// A header of 512 bytes with a valid sum.
fn header(name: &[u8], kind: u8, target: &[u8], size: u64) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    for at in [108, 116] {
        block[at..at + 7].copy_from_slice(b"0000000");
    }
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[136..147].copy_from_slice(b"00000000000");
    block[156] = kind;
    block[157..157 + target.len()].copy_from_slice(target);
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn file(name: &[u8], contents: &[u8]) -> Vec<u8> {
    let mut bytes = header(name, b'0', b"", contents.len() as u64);
    bytes.extend_from_slice(contents);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn extract_bytes(image: &Image, path: &str, archive: &[u8]) -> Output {
    let from = image.dir().join("hostile.tar");
    fs::write(&from, archive).unwrap();
    ivers(["tar", "-x", &inside(image, path), "-f", text(&from)])
}

#[test]
fn hostile_members_stay_in_the_directory() {
    let Some(image) = image() else { return };
    let empty = image.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let made = ivers(["cp", "-r", text(&empty), &inside(&image, "/target")]);
    assert!(made.status.success(), "{}", said(&made));
    let end = vec![0; 1024];
    let archive = [
        file(b"../escape", b"x"),
        file(b"a/../../escape", b"x"),
        file(b"/absolute", b"fine"),
        header(b"up", b'2', b"..", 0),
        file(b"up/escape", b"x"),
        header(b"up", b'5', b"", 0),
        header(b"hard", b'1', b"../escape", 0),
        header(b"hard", b'1', b"missing", 0),
        header(b"odd", b'Z', b"", 0),
        file(b"last", b"still read"),
        end.clone(),
    ]
    .concat();
    let output = extract_bytes(&image, "/target", &archive);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let problems = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = problems.lines().collect();
    for (line, words) in lines.iter().zip([
        ["../escape", "refused"],
        ["a/../../escape", "refused"],
        ["up/escape", "symbolic link"],
        ["up", "exists"],
        ["hard", "refused"],
        ["hard", "no such file"],
        ["odd", "type 'Z'"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{line} {words:?}");
    }
    assert_eq!(lines.len(), 7, "{problems}");
    let listed = String::from_utf8(ivers(["ls", &inside(&image, "/")]).stdout).unwrap();
    assert!(!listed.contains("escape") && !listed.contains("absolute"), "{listed}");
    for (name, contents) in [("absolute", "fine"), ("last", "still read")] {
        let read = ivers(["cat", &inside(&image, &format!("/target/{name}"))]);
        assert_eq!(String::from_utf8_lossy(&read.stdout), contents);
    }
    image.check().unwrap();
}

/// With `--keep-directory-symlink`, links lead to directories below the one that is filled, and nowhere else.
#[test]
fn links_to_directories_are_followed_on_request() {
    let Some(image) = image() else { return };
    let script = "mkdir -p /root/usr/lib /outside\nln -s usr/lib /root/lib\nln -s /usr/lib /root/absolute\n\
                  ln -s ../../outside /root/up\nln -s loop /root/loop\nln -s none /root/gone\n\
                  ln -s lib/file /root/to-file\n";
    let lines = script.lines().flat_map(|line| ["-c", line]);
    let done = ivers(["shell", text(image.path())].into_iter().chain(lines));
    assert!(done.status.success(), "{}", said(&done));
    let archive = [
        header(b"lib", b'5', b"", 0),
        file(b"lib/file", b"one"),
        file(b"absolute/deep/file", b"two"),
        header(b"hard", b'1', b"lib/file", 0),
        header(b"own", b'2', b"usr", 0),
        file(b"own/lib/third", b"three"),
        file(b"up/escape", b"x"),
        file(b"loop/x", b"x"),
        file(b"gone/x", b"x"),
        file(b"to-file/x", b"x"),
        header(b"to-file", b'5', b"", 0),
        vec![0; 1024],
    ]
    .concat();
    let from = image.dir().join("links.tar");
    fs::write(&from, archive).unwrap();
    let words = ["tar", "-x", &inside(&image, "/root"), "-f", text(&from)];
    let refused = ivers(words);
    assert!(
        said(&refused).contains("lib is a symbolic link; --keep-directory-symlink"),
        "{}",
        said(&refused)
    );
    // The directory in the archive has replaced no link.
    let output = ivers(words.iter().copied().chain(["--keep-directory-symlink"]));
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let problems = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<_> = problems.lines().collect();
    for (line, words) in lines.iter().zip([
        ["up/escape", "target of the link up"],
        ["loop/x", "too many symbolic links"],
        ["gone/x", "target of the link gone"],
        ["to-file/x", "not to a directory"],
        ["to-file", "not to a directory"],
    ]) {
        assert!(words.iter().all(|word| line.contains(word)), "{line} {words:?}");
    }
    assert_eq!(lines.len(), 5, "{problems}");
    let read = |path: &str| String::from_utf8(ivers(["cat", &inside(&image, path)]).stdout).unwrap();
    assert_eq!(read("/root/usr/lib/file"), "one");
    assert_eq!(read("/root/hard"), "one");
    assert_eq!(read("/root/usr/lib/deep/file"), "two");
    assert_eq!(read("/root/usr/lib/third"), "three");
    let all = said(&ivers(["ls", "-lR", &inside(&image, "/")]));
    for link in ["lib -> usr/lib", "absolute -> /usr/lib", "up -> ../../outside"] {
        assert!(all.contains(link), "{link}: {all}");
    }
    assert!(!all.contains("escape") && !said(&ivers(["ls", &inside(&image, "/")])).contains("usr"), "{all}");
    image.check().unwrap();
    // GNU tar agrees on the links that both follow.
    let root = image.dir().join("root");
    fs::create_dir_all(root.join("usr/lib")).unwrap();
    std::os::unix::fs::symlink("usr/lib", root.join("lib")).unwrap();
    let theirs = ["-xf", text(&from), "-C", text(&root), "--keep-directory-symlink", "lib", "hard"];
    runs_quietly("tar", &theirs);
    assert_eq!(fs::read(root.join("usr/lib/file")).unwrap(), b"one");
    assert!(root.join("lib").is_symlink() && root.join("hard").is_file());
}

#[test]
fn owners_are_replaced_on_request() {
    let Some(image) = image() else { return };
    let (source, archive) = (image.dir().join("source"), image.dir().join("a.tar"));
    fs::create_dir_all(source.join("sub")).unwrap();
    fs::write(source.join("sub/file"), "x").unwrap();
    runs_quietly("tar", &["-cf", text(&archive), "--owner=5", "--group=6", "-C", text(&source), "sub"]);
    let owners = |words: &[&str]| {
        works(&[&["-x", &inside(&image, "/"), "-f", text(&archive)], words].concat());
        let back = image.dir().join("back.tar");
        works(&["-c", &inside(&image, "/sub"), "-f", text(&back)]);
        listed_owners(&back)
    };
    assert_eq!(owners(&[]), ["5 6", "5 6"]);
    assert_eq!(owners(&["--owner", "7"]), ["7 6", "7 6"]);
    assert_eq!(owners(&["--owner", "root", "--group=8"]), ["0 8", "0 8"]);
    assert_eq!(owners(&["--all-root"]), ["0 0", "0 0"]);
    let back = image.dir().join("back.tar");
    works(&["-c", &inside(&image, "/sub"), "-f", text(&back), "--group", "70000"]);
    assert_eq!(listed_owners(&back), ["0 70000", "0 70000"]);
    for words in [["-t", "--all-root"], ["-t", "--keep-directory-symlink"]] {
        let output = ivers(["tar"].iter().chain(&words));
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
    }
}

/// Returns user and group of each member.
fn listed_owners(archive: &Path) -> Vec<String> {
    let listed = works(&["-t", "-v", "-f", text(archive)]);
    let lines = String::from_utf8(listed.stdout).unwrap();
    let owners = |line: &str| line.split_whitespace().skip(1).take(2).collect::<Vec<_>>().join(" ");
    lines.lines().map(owners).collect()
}

#[test]
fn damage_names_member_and_byte_and_leaves_a_clean_image() {
    let Some(image) = image() else { return };
    let whole = [file(b"first", b"whole"), file(b"second", &vec![5; 5000]), vec![0; 1024]].concat();
    for (len, words) in [
        (3000, vec!["second", "byte 3000", "truncated"]),
        (1200, vec!["byte 1200", "truncated"]),
        (whole.len() - 1024, vec!["no end mark"]),
    ] {
        let output = extract_bytes(&image, "/", &whole[..len]);
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(words.iter().all(|word| error.contains(word)), "{len}: {error}");
        image.check().unwrap();
        assert_eq!(ivers(["cat", &inside(&image, "/first")]).stdout, b"whole");
    }
    let mut damaged = whole.clone();
    damaged[1024 + 10] ^= 1;
    let error = String::from_utf8_lossy(&extract_bytes(&image, "/", &damaged).stderr).into_owned();
    assert!(error.contains("byte 1024") && error.contains("checksum"), "{error}");
    let compressed = extract_bytes(&image, "/", &[b"\x28\xb5\x2f\xfd".as_slice(), &[0; 600]].concat());
    assert!(said(&compressed).contains("zstd -dc"), "{}", said(&compressed));
    image.check().unwrap();
}

#[test]
fn options_select_and_show_members() {
    let Some(image) = image() else { return };
    let (source, archive) = (image.dir().join("source"), image.dir().join("a.tar"));
    for name in ["top/sub/a.o", "top/sub/a.c", "top/skip/b.c", "top/late"] {
        fs::create_dir_all(source.join(name).parent().unwrap()).unwrap();
        fs::write(source.join(name), name).unwrap();
    }
    runs_quietly("tar", &["-cf", text(&archive), "-C", text(&source), "top"]);
    let words = ["-x", &inside(&image, "/"), "-f", text(&archive), "--strip-components", "1"];
    let shown = works(&[&words[..], &["--exclude", "*.o", "--exclude", "skip", "-v"]].concat());
    let mut lines: Vec<_> = std::str::from_utf8(&shown.stdout).unwrap().lines().collect();
    lines.sort();
    assert_eq!(lines, ["top/late", "top/sub/", "top/sub/a.c"]);
    let tree = ivers(["tree", &inside(&image, "/sub")]);
    assert!(said(&tree).contains("a.c") && !said(&tree).contains("a.o"), "{}", said(&tree));
    let hardly = ivers(["cat", &inside(&image, "/late")]);
    assert_eq!(hardly.stdout, b"top/late");

    let create = |words: &[&str]| {
        works(
            &[&["-c", &inside(&image, "/"), "-f", text(&archive), "--exclude", "lost+found"], words].concat(),
        );
        let listed = works(&["-t", "-f", text(&archive)]);
        String::from_utf8(listed.stdout).unwrap().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(create(&[]), ["./", "./late", "./sub/", "./sub/a.c"], "sorted by name");
    assert_eq!(create(&["--exclude", "sub"]), ["./", "./late"]);
    create(&["--timestamp", "1000"]);
    let listed = works(&["-t", "-v", "-f", text(&archive)]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.lines().all(|line| line.contains("1970-01-01 00:16:40")), "{listed}");
    let told = works(&["-t", "--json", "-f", text(&archive)]);
    assert_eq!(serde_json::from_slice::<serde_json::Value>(&told.stdout).unwrap()["members"], 4);

    for (words, why) in [
        (vec!["-c"], "required"),
        (vec!["-c", "-x", "a.img"], "cannot be used"),
        (vec!["-t", "--strip-components", "1"], "only with -x"),
        (vec!["-x", "a.img", "--timestamp", "1"], "only with -c"),
        (vec!["-c", "a.img", "--exclude", "["], "--exclude"),
    ] {
        let output = ivers(["tar"].iter().chain(&words));
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(said(&output).contains(why), "{words:?}: {}", said(&output));
    }
    // The archive would destroy the image.
    let output = ivers(["tar", "-c", &inside(&image, "/"), "-f", text(image.path())]);
    assert!(said(&output).contains("contains a filesystem"), "{}", said(&output));
    image.check().unwrap();
}

#[test]
fn pipes_work_in_both_directions() {
    let Some(image) = image() else { return };
    let other = Image::new("ext4", 32 << 20, &[]).unwrap();
    let source = image.dir().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), vec![3; 3 << 20]).unwrap();
    fs::write(source.join(OsStr::from_bytes(b"not UTF-8 \xff")), "x").unwrap();
    let copied = ivers(["cp", "-a", &format!("{}/.", text(&source)), &inside(&image, "/")]);
    assert!(copied.status.success(), "{}", said(&copied));
    let mut writer =
        Command::new(IVERS).args(["tar", "-c", &inside(&image, "/")]).stdout(Stdio::piped()).spawn().unwrap();
    let read = Command::new(IVERS)
        .args(["tar", "-x", &inside(&other, "/")])
        .stdin(writer.stdout.take().unwrap())
        .output()
        .unwrap();
    assert!(read.status.success() && writer.wait().unwrap().success(), "{}", said(&read));
    let back = other.dir().join("back");
    let copied = ivers(["cp", "-a", &inside(&other, "/."), text(&back)]);
    assert!(copied.status.success(), "{}", said(&copied));
    fs::remove_dir(back.join("lost+found")).unwrap();
    let options = TreeOptions { no_times: true, no_trusted: true };
    assert_eq!(tree(&source, options).unwrap(), tree(&back, options).unwrap());
    other.check().unwrap();
}

#[test]
fn a_full_image_is_an_error_that_names_the_member() {
    let Some(image) = image() else { return };
    let big = image.dir().join("big.tar");
    let source = image.dir().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("small"), "fits").unwrap();
    fs::write(source.join("too large"), vec![1; 80 << 20]).unwrap();
    runs_quietly("tar", &["-cf", text(&big), "-C", text(&source), "small", "too large"]);
    let output = ivers(["tar", "-x", &inside(&image, "/"), "-f", text(&big)]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("too large: no space"), "{}", said(&output));
    assert_eq!(ivers(["cat", &inside(&image, "/small")]).stdout, b"fits");
    image.check().unwrap();
}
