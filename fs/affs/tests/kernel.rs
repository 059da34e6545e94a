//! Linux' affs in an emulated machine: it reads the tree that ivers wrote, and ivers reads the tree that
//! Linux wrote.

mod common;

use common::*;
use ivers_block::MemDevice;
use ivers_oracle::machine::{Boot, Guest, Initramfs, Kernel, PROGRAMS};
use ivers_vfs::*;
use md5::{Digest, Md5};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The volumes: low byte of the first word, and size in bytes.
const VOLUMES: &[(u8, u64)] = &[(0, DD), (1, DD), (2, HD), (3, 4 << 20), (4, DD), (5, 4 << 20)];
/// Linux mounts volumes with directory caches read-only.
const FIRST_CACHED: u8 = 4;

fn boot(images: &[(String, Arc<MemDevice>)]) -> anyhow::Result<Guest> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target directory");
    let kernel = Kernel::newest(&target.join("kernel"))?;
    let root = Initramfs::new()?;
    let dir = tempfile::tempdir()?;
    for (name, device) in images {
        let path = dir.path().join(name);
        std::fs::write(&path, device.to_bytes())?;
        root.file(name, &path)?;
    }
    Boot::new(kernel, root, &["loop", "affs"])?.boot("amiga")
}

/// Returns mode, size and MD5 sum of every regular file.
fn digest(vfs: &Arc<Vfs>) -> Vec<String> {
    let files = tree(vfs).into_keys().filter_map(|path| {
        let inode = find(vfs, &path);
        (inode.kind == FileType::Regular).then(|| {
            let data = get(vfs, &inode);
            let sum: String = Md5::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
            // Linux shows names in Latin-1, so such files are compared without their names.
            let name = if path.is_ascii() { path } else { "-".into() };
            format!("{name} {:o} {} {sum}", inode.attr().perm, data.len())
        })
    });
    let mut files: Vec<String> = files.collect();
    files.sort();
    files
}

/// Prints the same in the guest.
const DIGEST: &str = "cd /mnt && find . -type f | while IFS= read -r f; do \
    case \"$f\" in *[!\\ -~]*) n=-;; *) n=${f#.};; esac; \
    echo \"$n $(stat -c '%a %s' \"$f\") $(md5sum < \"$f\" | cut -d' ' -f1)\"; done | LC_ALL=C sort; cd /";

fn seen_by(guest: &mut Guest) -> Vec<String> {
    let mut seen: Vec<String> = guest.run(DIGEST).unwrap().lines().map(str::to_owned).collect();
    seen.sort();
    seen
}

fn fill(vfs: &Arc<Vfs>) {
    for nth in 0..40 {
        put(vfs, &format!("/file{nth:02}"), &pattern(nth, nth * 300));
    }
    make(vfs, "/Dir", &CreateSpec::directory(0o755));
    make(vfs, "/Dir/Below", &CreateSpec::directory(0o755));
    put(vfs, "/Dir/Below/large", &pattern(1, 200_000));
    put(vfs, "/Dir/\u{e4}ffin", &pattern(2, 700));
    for nth in 0..20 {
        rename(vfs, &format!("/file{nth:02}"), &format!("/Dir/moved{nth:02}")).unwrap();
    }
    link(vfs, "/file30", "/Dir/linked");
    link(vfs, "/file31", "/Dir/heir");
    unlink(vfs, "/file31");
    make(vfs, "/soft", &CreateSpec::symlink("Dir/Below/large"));
    let file = find(vfs, "/file32");
    vfs.set_attr(&root(), &file, &SetAttr { perm: Some(0o754), ..SetAttr::default() }).unwrap();
}

/// What the guest does on a mounted volume.
const WORK: &str = "mkdir /mnt/Guest && cp /mnt/Dir/Below/large /mnt/Guest/copy && \
    cat /mnt/file33 >> /mnt/Guest/copy && mv /mnt/file34 /mnt/Guest/moved && \
    rm /mnt/file35 /mnt/Dir/moved03 && ln /mnt/file36 /mnt/Guest/hard && \
    ln -s Dir/heir /mnt/Guest/soft && chmod 640 /mnt/file37 && echo short > /mnt/file38 && sync";

#[test]
fn linux_and_ivers_read_each_others_volumes() {
    let programs: Vec<&str> = PROGRAMS.iter().map(|(program, _)| *program).collect();
    if !ivers_oracle::have_programs(
        &[&programs[..], &["apt-get", "apt-cache", "dpkg", "base64", "gzip"]].concat(),
    ) {
        return;
    }
    let mut images = Vec::new();
    let mut wanted = Vec::new();
    for &(low_byte, bytes) in VOLUMES {
        let device = fresh(low_byte, 512, bytes);
        let vfs = mount(&device);
        fill(&vfs);
        wanted.push(digest(&vfs));
        vfs.unmount().unwrap();
        images.push((format!("image{low_byte}"), device));
    }
    let mut guest = boot(&images).unwrap();
    for (((name, _), wanted), &(low_byte, _)) in images.iter().zip(wanted).zip(VOLUMES) {
        guest.run(&format!("mount -t affs -o loop /{name} /mnt")).unwrap();
        assert_eq!(seen_by(&mut guest), wanted, "{name}");
        assert_eq!(guest.run("readlink /mnt/soft").unwrap(), "Dir/Below/large", "{name}");
        if low_byte >= FIRST_CACHED {
            guest.run("! touch /mnt/new 2>/dev/null && umount /mnt").unwrap();
            continue;
        }
        guest.run(WORK).unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let wanted = seen_by(&mut guest);
        guest.run("umount /mnt").unwrap();
        let packed =
            guest.run_within(&format!("gzip -c /{name} | base64"), Duration::from_secs(300)).unwrap();
        let device = Arc::new(MemDevice::from_bytes(&unpack(&packed)));
        let vfs = mount_fs(open(&device, writable()).unwrap());
        assert_eq!(digest(&vfs), wanted, "{name}");
        assert_eq!(vfs.read_link(&Cred::root(), &find(&vfs, "/Guest/soft")).unwrap(), b"Dir/heir", "{name}");
        assert_eq!(find(&vfs, "/Guest/hard").ino, find(&vfs, "/file36").ino, "{name}");
        assert_eq!(find(&vfs, "/file36").attr().nlink, 2, "{name}");
        // Linux leaves blocks past the end of a file that it truncates. Changing such files must work.
        for path in ["/file38", "/Guest/copy"] {
            let file = find(&vfs, path);
            vfs.set_attr(&root(), &file, &SetAttr { size: Some(5), ..SetAttr::default() }).unwrap();
        }
        unlink(&vfs, "/file36");
        put(&vfs, "/Guest/again", &pattern(3, 30_000));
        vfs.unmount().unwrap();
        check(&device, 512);
    }
}

fn unpack(packed: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (coded, image) = (dir.path().join("coded"), dir.path().join("image"));
    std::fs::write(&coded, packed).unwrap();
    let line = "base64 -d \"$1\" | gzip -dc > \"$2\"";
    ivers_oracle::run("sh", ["-ec", line, "sh", coded.to_str().unwrap(), image.to_str().unwrap()]).unwrap();
    std::fs::read(&image).unwrap()
}
