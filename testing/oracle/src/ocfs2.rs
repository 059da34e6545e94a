//! OCFS2: mkfs.ocfs2 and fsck.ocfs2, and Linux in an emulated machine, which fills images.

use crate::machine::{self, Boot, Guest, Initramfs, Kernel};
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The programs that make and check images.
pub const OCFS2_PROGRAMS: &[&str] = &["mkfs.ocfs2", "fsck.ocfs2"];
/// Programs of the host that the machine runs, with their libraries.
const GUEST_PROGRAMS: [&str; 4] = ["cp", "getfattr", "setfacl", "setfattr"];
/// Kernel modules, in the order of loading.
const MODULES: &[&str] = &["loop", "virtio_blk", "crc32c_generic", "ocfs2"];

/// Returns whether the programs are installed that Linux needs to fill images in a machine.
pub fn can_fill_ocfs2() -> bool {
    let machine = machine::PROGRAMS.map(|(program, _)| program);
    crate::have_programs(
        &[OCFS2_PROGRAMS, &machine, &GUEST_PROGRAMS, &["apt-get", "apt-cache", "dpkg", "ldd"]].concat(),
    )
}

/// Makes a local filesystem in a new image.
pub fn mkfs_ocfs2(image: &Path, bytes: u64, options: &[&str]) -> Result<()> {
    File::create(image)?.set_len(bytes)?;
    let mut words = vec!["-q", "-F", "-M", "local"];
    words.extend(options);
    words.push(image.to_str().context("the image's name is not UTF-8")?);
    crate::run("mkfs.ocfs2", words)?;
    Ok(())
}

/// Returns the names of the problems that fsck.ocfs2 finds. It changes nothing. Its exit code says nothing.
pub fn fsck_ocfs2(image: &Path) -> Result<BTreeSet<String>> {
    let output = crate::output("fsck.ocfs2", ["-fn".as_ref(), image.as_os_str()])?;
    let said = crate::said(&output);
    let is_name = |name: &str| {
        name.len() > 3 && name.bytes().all(|c| c.is_ascii_uppercase() || c == b'_' || c.is_ascii_digit())
    };
    let problem = |line: &str| {
        let (name, _) = line.strip_prefix('[')?.split_once(']')?;
        is_name(name).then(|| name.to_owned())
    };
    let mut problems: BTreeSet<String> = said.lines().filter_map(problem).collect();
    if problems.is_empty() && !said.contains("All passes succeeded") {
        problems.insert(said);
    }
    Ok(problems)
}

/// A machine whose Linux knows OCFS2. Its disk has several images, one after the other.
pub struct Ocfs2Machine {
    guest: Guest,
    disk: File,
    /// The start and length of each image.
    places: Vec<(u64, u64)>,
    _dir: TempDir,
}

impl Ocfs2Machine {
    /// Boots a machine with copies of these images. Kernels are kept in `work`.
    pub fn boot(work: &Path, images: &[PathBuf]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("disk");
        let disk = File::options().create(true).truncate(true).read(true).write(true).open(&path)?;
        let (mut places, mut end) = (Vec::new(), 0);
        for image in images {
            let bytes = crate::read_image(image)?;
            places.push((end, bytes.len() as u64));
            for (nth, piece) in (0u64..).zip(bytes.chunks(4096)) {
                if piece.iter().any(|byte| *byte != 0) {
                    disk.write_all_at(piece, end + nth * 4096)?;
                }
            }
            end += bytes.len() as u64;
        }
        disk.set_len(end)?;
        let root = Initramfs::new()?;
        for name in GUEST_PROGRAMS {
            add_program(&root, name)?;
        }
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let boot = Boot::new(Kernel::newest(work)?, root, MODULES)?;
        let guest = boot.boot_with_disk("ocfs2", &path, port, port)?;
        Ok(Self { guest, disk, places, _dir: dir })
    }

    /// Mounts an image on `/mnt`.
    pub fn mount(&mut self, nth: usize) -> Result<()> {
        let start = self.places[nth].0;
        // Without the feature of attributes, Linux refuses the options for them.
        self.guest.run(&format!(
            "losetup -o {start} /dev/loop{nth} /dev/vda && \
             {{ mount -t ocfs2 -o heartbeat=none,acl,user_xattr /dev/loop{nth} /mnt || \
             mount -t ocfs2 -o heartbeat=none /dev/loop{nth} /mnt; }}"
        ))?;
        Ok(())
    }

    /// Runs a shell command in `/mnt`. Returns its output.
    pub fn run(&mut self, line: &str) -> Result<String> {
        self.guest.run(&format!("cd /mnt && export PATH=/bin:/usr/bin && {line}"))
    }

    /// Unmounts the image.
    pub fn unmount(&mut self) -> Result<()> {
        self.guest.run("umount /mnt && sync")?;
        Ok(())
    }

    /// Returns an image as it is on the disk. If it is mounted, that is what a crash leaves.
    pub fn image(&self, nth: usize) -> Result<Vec<u8>> {
        let (start, len) = self.places[nth];
        let mut bytes = vec![0; len as usize];
        self.disk.read_exact_at(&mut bytes, start)?;
        Ok(bytes)
    }

    /// Stops the machine. Returns an error if its kernel reported a bug, a warning or a hang.
    pub fn off(self) -> Result<()> {
        let complaints = self.guest.complaints();
        ensure!(complaints.is_empty(), "{complaints:#?}");
        Ok(())
    }
}

/// Copies a program to `usr/bin`, and its libraries to the places that they have on the host.
fn add_program(root: &Initramfs, name: &str) -> Result<()> {
    let program = crate::find_program(name).with_context(|| format!("{name} is not installed"))?;
    root.file(&format!("usr/bin/{name}"), &program)?;
    let said = crate::run("ldd", [&program])?;
    let said = String::from_utf8(said.stdout)?;
    let libraries: Vec<_> = said.split_whitespace().filter(|word| word.starts_with('/')).collect();
    if libraries.is_empty() {
        bail!("{name} has no libraries: {said}");
    }
    for library in libraries {
        root.file(library.trim_start_matches('/'), Path::new(library))?;
    }
    Ok(())
}
