//! Debian's kernel, as installed or from its package.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{FlockOperation, flock};

/// A kernel with its modules.
pub struct Kernel {
    image: PathBuf,
    modules: PathBuf,
}

impl Kernel {
    /// Returns the kernel of this release. Downloads are kept in `work`.
    pub fn of(release: &str, work: &Path) -> Result<Self> {
        let file = format!("boot/vmlinuz-{release}");
        let modules = format!("lib/modules/{release}/kernel");
        let installed = Path::new("/");
        if File::open(installed.join(&file)).is_ok() && installed.join(&modules).is_dir() {
            return Ok(Self { image: installed.join(file), modules: installed.join(modules) });
        }
        let root = work.join(release);
        fs::create_dir_all(&root)?;
        // Tests run concurrently in separate processes.
        let lock = File::create(work.join("lock"))?;
        flock(&lock, FlockOperation::LockExclusive)?;
        let done = root.join("unpacked");
        if !done.is_file() {
            let package = download(&root, &format!("linux-image-{release}"))?;
            crate::run("dpkg", [Path::new("-x"), &package, &root])?;
            fs::remove_file(package)?;
            File::create(done)?;
        }
        Ok(Self { image: root.join(file), modules: root.join(modules) })
    }

    /// Returns the kernel on which `linux-image-amd64` depends.
    pub fn newest(work: &Path) -> Result<Self> {
        let output = crate::run("apt-cache", ["depends", "--important", "linux-image-amd64"])?;
        let said = String::from_utf8(output.stdout)?;
        let release = said.lines().find_map(|line| line.trim().strip_prefix("Depends: linux-image-"));
        Self::of(release.with_context(|| format!("no kernel is packaged: {said}"))?, work)
    }

    /// Returns the bootable image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Returns the file of a module.
    pub fn module(&self, name: &str) -> Result<PathBuf> {
        let file = format!("{name}.ko");
        let mut dirs = vec![self.modules.clone()];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else if entry.file_name() == file.as_str() {
                    return Ok(entry.path());
                }
            }
        }
        bail!("{} has no {file}", self.modules.display())
    }
}

fn download(dir: &Path, package: &str) -> Result<PathBuf> {
    println!("== kernel: apt-get download {package}");
    let mut download = Command::new("apt-get");
    download.args(["download", "-q", "-o", "Acquire::Retries=5", package]);
    let status = download.current_dir(dir).status().context("apt-get")?;
    ensure!(status.success(), "{package} cannot be downloaded");
    let mut files = fs::read_dir(dir)?.flatten().map(|entry| entry.path());
    let file = files.find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    file.with_context(|| format!("{} holds no package", dir.display()))
}
