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
            // A machine does not decompress modules.
            let words = ["-name", "*.ko.xz", "-exec", "xz", "--decompress", "{}", "+"].map(Path::new);
            crate::run("find", [root.as_path()].into_iter().chain(words))?;
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

    /// Returns the newest packaged kernel whose release begins with `series`, such as "6.12".
    pub fn newest_of(series: &str, work: &Path) -> Result<Self> {
        let pattern = format!(r"^linux-image-{series}\.[0-9]+\+deb[0-9]+-amd64$");
        let output = crate::run("apt-cache", ["search", "--names-only", &pattern])?;
        let said = String::from_utf8(output.stdout)?;
        let releases = said.lines().filter_map(|line| line.split(' ').next()?.strip_prefix("linux-image-"));
        let newest = releases.max_by_key(|release| patch_level(series, release));
        Self::of(newest.with_context(|| format!("no kernel {series} is packaged"))?, work)
    }

    /// Returns the bootable image.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// Returns these modules after those that they need, in load order. What is built into the kernel is
    /// omitted.
    pub fn with_needed(&self, names: &[&str]) -> Result<Vec<String>> {
        let mut order = Vec::new();
        names.iter().try_for_each(|name| self.add_needed(name, &mut order))?;
        Ok(order)
    }

    fn add_needed(&self, name: &str, order: &mut Vec<String>) -> Result<()> {
        let same = |known: &str| known.replace('-', "_") == name.replace('-', "_");
        if order.iter().any(|known| same(known)) {
            return Ok(());
        }
        let found = [name.to_owned(), name.replace('_', "-"), name.replace('-', "_")];
        let Some((name, file)) =
            found.iter().find_map(|name| self.module(name).ok().map(|file| (name, file)))
        else {
            return Ok(());
        };
        let bytes = fs::read(&file).with_context(|| file.display().to_string())?;
        for needed in needed_by(&bytes) {
            self.add_needed(&needed, order)?;
        }
        order.push(name.clone());
        Ok(())
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

/// Returns the modules that the file of a module names as needed (`depends=`, `softdep=pre:`).
fn needed_by(module: &[u8]) -> Vec<String> {
    let mut needed = Vec::new();
    for field in module.split(|byte| *byte == 0) {
        let Ok(field) = std::str::from_utf8(field) else { continue };
        if let Some(names) = field.strip_prefix("depends=") {
            needed.extend(names.split(',').filter(|name| !name.is_empty()).map(str::to_owned));
        } else if let Some(names) = field.strip_prefix("softdep=pre: ") {
            needed.extend(names.split_whitespace().map(str::to_owned));
        }
    }
    needed
}

/// Returns the number after the series in the release of a kernel.
fn patch_level(series: &str, release: &str) -> Option<u32> {
    let rest = release.strip_prefix(series)?.strip_prefix('.')?;
    rest.split(|digit: char| !digit.is_ascii_digit()).next()?.parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_release_has_a_higher_patch_level() {
        let level = |release| patch_level("6.12", release);
        assert!(level("6.12.117+deb12-amd64") > level("6.12.99+deb12-amd64"));
        assert_eq!(level("6.1.0-56-amd64"), None);
    }

    #[test]
    fn a_module_names_what_it_needs() {
        let module =
            b"\x7fELF\0\xff\0depends=sunrpc,grace\0softdep=pre: crc32c crc16\0depends=\0license=GPL\0";
        assert_eq!(needed_by(module), ["sunrpc", "grace", "crc32c", "crc16"]);
    }
}
