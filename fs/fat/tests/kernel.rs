//! The kernel's vfat in an emulated machine reads what ivers wrote, and ivers reads what the kernel writes.

use anyhow::{Context, Result, ensure};
use ivers_block::{FileDevice, OpenMode};
use ivers_fat::{Fat, OpenOptions};
use ivers_oracle::machine::{self, Boot, Guest, Initramfs, Kernel};
use ivers_oracle::{FAT_PROGRAMS, FatImage, fsck_fat, have_programs};
use ivers_vfs::*;
use std::collections::BTreeMap;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

/// Kernel modules, in the order of loading.
const MODULES: &[&str] = &["loop", "nls_cp437", "nls_iso8859-1", "nls_utf8", "fat", "vfat"];

const KINDS: &[(&str, u64, &[&str])] = &[
    ("fat12", 2 << 20, &["-F", "12", "-s", "4"]),
    ("fat16", 8 << 20, &["-F", "16", "-s", "2"]),
    ("fat32", 36 << 20, &["-F", "32", "-s", "1"]),
];

/// Contents by path below the root. `None` is a directory.
type Tree = BTreeMap<String, Option<Vec<u8>>>;

fn mount(image: &Path) -> Result<Arc<Vfs>> {
    let device = Arc::new(FileDevice::open(image, OpenMode::ReadWrite)?);
    Ok(Vfs::mount(Fat::open(device, OpenOptions::default())?, MountOptions::default())?)
}

fn read_tree(vfs: &Arc<Vfs>, dir: &InodeRef, at: &str, tree: &mut Tree) -> Result<()> {
    for entry in vfs.list(&Cred::root(), dir, 0, 10_000)? {
        let path = format!("{at}/{}", String::from_utf8_lossy(&entry.name));
        let inode = entry.inode?;
        if inode.kind == FileType::Directory {
            tree.insert(path.clone(), None);
            read_tree(vfs, &inode, &path, tree)?;
        } else {
            let mut data = vec![0; inode.size() as usize];
            ensure!(vfs.read(&Cred::root(), &inode, 0, &mut data)? == data.len());
            tree.insert(path, Some(data));
        }
    }
    Ok(())
}

fn whole_tree(vfs: &Arc<Vfs>) -> Result<Tree> {
    let mut tree = Tree::new();
    read_tree(vfs, &vfs.root()?, "", &mut tree)?;
    Ok(tree)
}

fn host_tree(dir: &Path, at: &str, tree: &mut Tree) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = format!("{at}/{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            tree.insert(path.clone(), None);
            host_tree(&entry.path(), &path, tree)?;
        } else {
            tree.insert(path, Some(std::fs::read(entry.path())?));
        }
    }
    Ok(())
}

/// Makes a tree with short and long names, generated short names, other alphabets, moved and removed files.
fn fill(vfs: &Arc<Vfs>) -> Result<()> {
    let cred = Cred::root();
    let root = vfs.root()?;
    let (dir, _) = vfs.create(&cred, &root, b"A directory", &CreateSpec::directory(0o755), false)?;
    let (inner, _) = vfs.create(&cred, &dir, b"INNER", &CreateSpec::directory(0o755), false)?;
    let names = ["README.TXT", "readme.too", "Größe 日本 😀.dat", "a.b.c.d", "x y z"];
    for (nth, name) in names
        .iter()
        .chain(&["long name of several slots, one", "long name of several slots, two"])
        .enumerate()
    {
        for dir in [&root, &dir, &inner] {
            let (file, _) = vfs.create(&cred, dir, name.as_bytes(), &CreateSpec::file(0o644), false)?;
            let data: Vec<u8> = (0..nth * 3001).map(|at| (at / 7 + nth) as u8).collect();
            vfs.write(&cred, &file, 0, &data, WriteFlags::empty())?;
        }
    }
    for nth in 0..100 {
        vfs.create(&cred, &inner, format!("file number {nth}").as_bytes(), &CreateSpec::file(0o644), false)?;
    }
    for nth in (0..100).step_by(2) {
        vfs.unlink(&cred, &inner, format!("FILE number {nth}").as_bytes(), false)?;
    }
    let flags = RenameFlags::empty();
    vfs.rename(&cred, &dir, b"INNER", &root, b"was inside", flags, false)?;
    vfs.rename(&cred, &root, b"README.TXT", &inner, b"came from above", flags, false)?;
    vfs.rename(&cred, &dir, b"readme.too", &dir, b"README.TXT", flags, false)?;
    let file = vfs.resolve(&cred, "/x y z", true)?;
    vfs.set_attr(&cred, &file, &SetAttr { size: Some(100_000), ..SetAttr::default() })?;
    vfs.set_attr(&cred, &file, &SetAttr { size: Some(5_000), ..SetAttr::default() })?;
    Ok(())
}

/// Returns the output of a command in the guest, which sends it to a port of the host.
fn fetch(guest: &mut Guest, command: &str) -> Result<Vec<u8>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let receiver = std::thread::spawn(move || -> std::io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        listener.accept()?.0.read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    guest.run(&format!("{command} | nc 10.0.2.2 {port}"))?;
    Ok(receiver.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??)
}

#[test]
fn the_kernels_vfat_and_ivers_read_the_same_tree() {
    let programs: Vec<&str> = machine::PROGRAMS.iter().map(|(program, _)| *program).collect();
    if !have_programs(&[&programs[..], FAT_PROGRAMS, &["apt-get", "apt-cache", "dpkg", "tar"]].concat()) {
        return;
    }
    compare_with_kernel().unwrap();
}

fn compare_with_kernel() -> Result<()> {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().context("a target directory")?;
    let kernel = Kernel::newest(&target.join("kernel"))?;
    let root = Initramfs::new()?;
    let mut images = Vec::new();
    for (name, bytes, args) in KINDS {
        let image = FatImage::mkfs(*bytes, args)?;
        let vfs = mount(&image.path())?;
        fill(&vfs)?;
        let tree = whole_tree(&vfs)?;
        vfs.unmount()?;
        drop(vfs);
        fsck_fat(&image.path())?;
        root.file(name, &image.path())?;
        images.push((name, tree));
    }
    let mut guest = Boot::new(kernel, root, MODULES)?.boot("vfat")?;
    for (name, ours) in images {
        guest.run(&format!("mount -t vfat -o loop,iocharset=utf8 /{name} /mnt"))?;
        // The kernel reads what ivers wrote.
        let archive = fetch(&mut guest, "tar cf - -C /mnt .")?;
        let host = tempfile::tempdir()?;
        let file = host.path().join("tar");
        std::fs::write(&file, archive)?;
        let there = host.path().join("tree");
        std::fs::create_dir(&there)?;
        ivers_oracle::run("tar", [Path::new("xf"), &file, Path::new("-C"), &there])?;
        let mut theirs = Tree::new();
        host_tree(&there, "", &mut theirs)?;
        ensure!(theirs == ours, "{name}: the kernel reads {:?}, ivers {:?}", theirs.keys(), ours.keys());
        // The kernel changes the tree, and ivers reads it.
        guest.run(
            "cd /mnt && mkdir 'made by the kernel' && cp 'x y z' 'made by the kernel/A copy.of it' \
             && mv 'a.b.c.d' 'made by the kernel/MOVED' && rm -r 'was inside/README.TXT' \
             && echo more >> 'x y z' && mv 'was inside' 'made by the kernel/' \
             && dd if=/dev/urandom of='Ein Würfel.bin' bs=1000 count=77 2>/dev/null",
        )?;
        let seen = fetch(&mut guest, "tar cf - -C /mnt .")?;
        guest.run("cd / && umount /mnt")?;
        let bytes = fetch(&mut guest, &format!("cat /{name}"))?;
        let image = host.path().join("image");
        std::fs::write(&image, bytes)?;
        std::fs::write(&file, seen)?;
        let there = host.path().join("after");
        std::fs::create_dir(&there)?;
        ivers_oracle::run("tar", [Path::new("xf"), &file, Path::new("-C"), &there])?;
        let mut theirs = Tree::new();
        host_tree(&there, "", &mut theirs)?;
        let vfs = mount(&image)?;
        let ours = whole_tree(&vfs)?;
        vfs.unmount()?;
        drop(vfs);
        ensure!(
            theirs == ours,
            "{name}: the kernel wrote {:?}, ivers reads {:?}",
            theirs.keys(),
            ours.keys()
        );
        fsck_fat(&image)?;
    }
    let complaints: Vec<_> =
        guest.complaints().into_iter().filter(|line| line.to_lowercase().contains("fat")).collect();
    ensure!(complaints.is_empty(), "{complaints:#?}");
    guest.off()
}
