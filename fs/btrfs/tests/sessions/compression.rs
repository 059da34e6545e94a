//! Compression of data that is written. Linux reads what ivers compressed, and writes on; `btrfs check` finds
//! nothing. `IVERS_SEED` and `IVERS_STEPS` replay and lengthen a run, `IVERS_KIND` selects a kind.

use crate::common;
use crate::common::fill::in_dir;
use crate::common::storm::Storm;
use crate::common::*;
use ivers_block::{CountedDevice, Device, FileDevice, IoCounts, OpenMode};
use ivers_btrfs::{CompressWith, OpenOptions};
use ivers_crash::env;
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const METHODS: [&str; 3] = ["zlib", "lzo", "zstd"];
const COMPRESSED: &[&str] = &["default", "nodes of 4 KiB", "mixed groups", "old features", "sha256", "RAID0"];

fn with(method: &str) -> OpenOptions {
    OpenOptions { compress: CompressWith::parse(method), ..OpenOptions::default() }
}

/// How many extents of each form are in the top-level subvolume, as `btrfs` prints them.
fn forms(images: &Images) -> BTreeMap<String, usize> {
    let dump = |device: &str| {
        let words = ["inspect-internal", "dump-tree", "-t", "5", device];
        ivers_oracle::run("btrfs", words).unwrap().stdout
    };
    let dump = match &images.paths[..] {
        [path] => dump(path.to_str().unwrap()),
        _ => images.with_loops(|loops| dump(&loops[0])),
    };
    let (mut forms, mut kind) = (BTreeMap::new(), "");
    let text = String::from_utf8_lossy(&dump);
    for line in text.lines().map(str::trim) {
        if line.contains("(inline)") {
            kind = "inline";
        } else if line.contains("(regular)") {
            kind = "regular";
        }
        let method = line.rsplit_once("compression ").map(|(_, rest)| rest);
        let name = method.and_then(|rest| rest.split_once('(')).and_then(|(_, name)| name.split_once(')'));
        if let Some((name, _)) = name {
            *forms.entry(format!("{kind} {name}")).or_default() += 1;
        }
    }
    forms
}

fn text(bytes: usize) -> Vec<u8> {
    (0u32..).flat_map(|number| format!("{number}\n").into_bytes()).take(bytes).collect()
}

fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut noise = vec![0; bytes];
    rand::rngs::SmallRng::seed_from_u64(seed).fill_bytes(&mut noise);
    noise
}

fn make(vfs: &Arc<Vfs>, path: &str, content: &[u8]) -> InodeRef {
    let (cred, root) = (Cred::root(), vfs.root().unwrap());
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = if dir.is_empty() { root } else { vfs.resolve(&cred, format!("/{dir}"), false).unwrap() };
    let (file, _) = vfs.create(&cred, &dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
    for (part, bytes) in content.chunks(1 << 20).enumerate() {
        vfs.write(&cred, &file, (part << 20) as u64, bytes, WriteFlags::empty()).unwrap();
    }
    file
}

#[test]
fn random_changes_of_compressed_files() {
    if !can_fill() {
        return;
    }
    let (seed, steps) = (env("IVERS_SEED").unwrap_or(1), env("IVERS_STEPS").unwrap_or(250));
    let dir = tempfile::tempdir().unwrap();
    for (number, kind) in kinds_named(COMPRESSED).into_iter().enumerate() {
        for method in METHODS {
            let what = format!("{}, {method}", kind.name);
            println!("{what}: IVERS_SEED={seed} IVERS_STEPS={steps}");
            let images = Images::make(dir.path(), kind);
            let mount = || mount_writable_with(&images, with(method));
            let mut storm = Storm::new(mount(), seed + number as u64);
            for round in 0..2 {
                (0..steps).for_each(|_| storm.step());
                (0..steps).for_each(|_| storm.step_in_file());
                storm.check(&what);
                storm.unmount();
                assert_clean(&images, &format!("{what}, round {round}"));
                storm.mount(mount());
                storm.check(&format!("{what}, mounted again"));
            }
            storm.unmount();
            let ours = our_tree(&common::mount(&images), true).unwrap();
            assert_same(&ours, &images.with_kernel("ro", kernel_tree), &what);
            let forms = forms(&images);
            let count = |kind: &str| forms.get(&format!("{kind} {method}")).copied().unwrap_or(0);
            assert!(count("regular") > 20, "{what}: {forms:?}");
            let go_on = "mkdir kernel; seq 1 90000 > kernel/f; for f in *; do test ! -f $f || echo x >> $f; \
                         done; rm -rf [0-4]*; sync";
            images.with_kernel(&format!("compress={method}"), |root| in_dir(root, go_on));
            assert_clean(&images, &what);
            let theirs = images.with_kernel("ro", kernel_tree);
            assert_same(&our_tree(&common::mount(&images), true).unwrap(), &theirs, &what);
        }
    }
}

/// Compressed text takes less than half the space, and less than half the written bytes. Noise stays
/// uncompressed. Small files are stored in items.
#[test]
fn compressed_data_takes_less_space() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (text, noise) = (text(16 << 20), noise(16 << 20, 1));
    let (mut written, mut inline) = (BTreeMap::new(), BTreeMap::new());
    for method in ["none", "zlib", "lzo", "zstd"] {
        let images = Images::make(dir.path(), &DEFAULT);
        let counts = Arc::new(IoCounts::default());
        let device = FileDevice::open(&images.paths[0], OpenMode::ReadWrite).unwrap();
        let device: Arc<dyn Device> = Arc::new(CountedDevice::new(device, counts.clone()));
        let vfs = mount_devices(vec![device], with(method));
        let free = |vfs: &Arc<Vfs>| vfs.stat_fs().unwrap().blocks_free * 4096;
        let before = free(&vfs);
        make(&vfs, "text", &text);
        vfs.sync().unwrap();
        let bytes = counts.fields().into_iter().find(|(name, _)| *name == "device_written_bytes").unwrap().1;
        let of_text = (before - free(&vfs), bytes);
        make(&vfs, "noise", &noise);
        for number in 0..100 {
            make(&vfs, &format!("small-{number}"), &text[..40 * number]);
        }
        vfs.sync().unwrap();
        let of_all = before - free(&vfs);
        vfs.unmount().unwrap();
        println!("{method}: {of_text:?} bytes used and written for text, {of_all} used for all");
        written.insert(method, (of_text.0, of_text.1, of_all));
        let read = |root: &std::path::Path| {
            assert!(std::fs::read(root.join("text")).unwrap() == text);
            assert!(std::fs::read(root.join("noise")).unwrap() == noise);
            assert!(std::fs::read(root.join("small-77")).unwrap() == text[..40 * 77]);
        };
        images.with_kernel("ro", read);
        assert_clean(&images, method);
        let forms = forms(&images);
        assert!(forms.contains_key("regular none"), "{method}: {forms:?}");
        inline.insert(method, forms.get(&format!("inline {method}")).copied().unwrap_or(0));
    }
    let (plain, ..) = written["none"];
    assert!(plain >= 16 << 20);
    for method in METHODS {
        let (used, bytes, all) = written[method];
        assert!(used * 2 < plain && bytes * 2 < written["none"].1, "{method}: {used} and {bytes} of {plain}");
        assert!(all < written["none"].2 && all > 16 << 20, "{method}: {all}");
        assert!(inline[method] > 40 && inline["none"] == 0, "{inline:?}");
    }
}

#[test]
fn properties_are_those_of_linux() {
    if !can_fill() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let images = Images::make(dir.path(), &DEFAULT);
    let text = text(300_000);
    // Linux sets properties, of which ivers takes those of the directory.
    images.with_kernel("", |root| {
        in_dir(
            root,
            "mkdir lzo none zip plain; setfattr -n btrfs.compression -v lzo lzo; \
             setfattr -n btrfs.compression -v none none; chattr +c zip; chattr +C plain; touch plain/old",
        )
    });
    let name = b"btrfs.compression";
    let cred = Cred::root();
    {
        let vfs = mount_writable_with(&images, with("zstd"));
        let root = vfs.root().unwrap();
        for path in ["lzo/a", "none/a", "zip/a", "plain/a", "a"] {
            make(&vfs, path, &text);
        }
        let sub = vfs.resolve(&cred, "/lzo", false).unwrap();
        vfs.create(&cred, &sub, b"sub", &CreateSpec::of(FileType::Directory, 0o755), false).unwrap();
        make(&vfs, "lzo/sub/a", &text);
        let value = |path: &str| vfs.get_xattr(&cred, &vfs.resolve(&cred, path, false).unwrap(), name);
        assert_eq!(value("/lzo/sub/a").unwrap(), b"lzo");
        assert_eq!(value("/none/a").unwrap(), b"none");
        assert!(value("/a").is_err());
        // ivers sets one.
        let set = |path: &str, value: &[u8]| {
            let inode = vfs.resolve(&cred, path, false).unwrap();
            vfs.set_xattr(&cred, &inode, name, value, XattrMode::Any)
        };
        let file = make(&vfs, "b", &[]);
        set("/b", b"zlib:9").unwrap();
        assert_eq!(vfs.list_xattr(&cred, &file).unwrap(), [name.to_vec()]);
        vfs.write(&cred, &file, 0, &text, WriteFlags::empty()).unwrap();
        for (path, value) in [("/b", &b"gzip"[..]), ("/plain/old", b"zstd"), ("/b", b"zlib:11")] {
            assert!(matches!(set(path, value), Err(Error::Name(NameError::Invalid))), "{path}");
        }
        let other = vfs.set_xattr(&cred, &root, b"btrfs.other", b"x", XattrMode::Any);
        assert!(matches!(other, Err(Error::Name(NameError::Invalid))), "{other:?}");
        // Who may not write the file may not set it.
        let denied = vfs.set_xattr(&Cred::user(1000, 1000), &file, name, b"lzo", XattrMode::Any);
        assert!(matches!(denied, Err(Error::Name(NameError::Access))), "{denied:?}");
        let cleared = make(&vfs, "cleared", &[]);
        set("/cleared", b"no").unwrap();
        set("/cleared", b"").unwrap();
        assert!(vfs.list_xattr(&cred, &cleared).unwrap().is_empty());
        vfs.write(&cred, &cleared, 0, &text, WriteFlags::empty()).unwrap();
        drop((file, cleared, sub, root));
        vfs.unmount().unwrap();
    }
    assert_clean(&images, "properties");
    let attributes = images.with_kernel("ro", |root| {
        let shown = |path: &str| {
            let output = ivers_oracle::run("lsattr", ["-d", root.join(path).to_str().unwrap()]).unwrap();
            let flags = String::from_utf8_lossy(&output.stdout).split(' ').next().unwrap().replace('-', "");
            let value = xattr::get(root.join(path), "btrfs.compression").unwrap().unwrap_or_default();
            format!("{path}:{flags}:{}", String::from_utf8(value).unwrap())
        };
        ["lzo/a", "lzo/sub", "lzo/sub/a", "none/a", "zip/a", "plain/a", "a", "b", "cleared"].map(shown)
    });
    let expected = [
        "lzo/a:c:lzo",
        "lzo/sub:c:lzo",
        "lzo/sub/a:c:lzo",
        "none/a:m:none",
        "zip/a:c:zlib",
        "plain/a:C:",
        "a::",
        "b:c:zlib:9",
        "cleared::",
    ];
    assert_eq!(attributes, expected);
    let forms = forms(&images);
    for form in ["regular lzo", "regular zlib", "regular zstd", "regular none"] {
        assert!(forms.get(form).is_some_and(|count| *count > 1), "{form}: {forms:?}");
    }
}
