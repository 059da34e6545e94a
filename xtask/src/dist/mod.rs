//! `cargo xtask dist`: the files of a release, in `target/dist`.
//!
//! The tools are those of the system (tar, dpkg-deb, sha256sum, strip): nothing is installed for it by cargo.

mod bill;
mod check;
mod documents;
mod licenses;
mod package;

use crate::target_dir;
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs that a release needs, with their packages.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("dpkg-deb", "dpkg"),
    ("strip", "binutils"),
    ("gzip", "gzip"),
    ("tar", "tar"),
    ("sha256sum", "coreutils"),
];

#[cfg(test)]
pub use bill::linked as linked_crates;
pub use check::PROGRAMS as PROGRAMS_OF_CHECK;

/// The target of the published program.
pub const MUSL: &str = "x86_64-unknown-linux-musl";
const GLIBC: &str = "x86_64-unknown-linux-gnu";

/// What the files of one release have in common.
struct Release {
    version: String,
    /// The architecture by Debian's name.
    architecture: String,
    /// The time of all files, in seconds since 1970.
    epoch: String,
    /// The stripped program.
    binary: PathBuf,
    /// Where the files go.
    dir: PathBuf,
}

/// Runs a program that must succeed, and returns what it prints.
fn call<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, words: impl IntoIterator<Item = S>) -> Result<String> {
    let program = program.as_ref();
    let mut command = Command::new(program);
    let output = command.args(words).stdin(Stdio::null()).output();
    let output = output.with_context(|| program.display().to_string())?;
    if !output.status.success() {
        bail!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Writes a file with its directories.
fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let context = || path.display().to_string();
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(context)?;
    fs::write(path, contents).with_context(context)
}

/// Copies a file, as one that is not executable, and makes its directories.
fn copy(from: impl AsRef<Path>, to: &Path) -> Result<()> {
    let from = from.as_ref();
    write(to, fs::read(from).with_context(|| from.display().to_string())?)
}

/// Builds the static program. Returns its path.
///
/// The C library is musl if its standard library is installed (`rustup target add`), else glibc's static one.
/// Of the two only musl can look up host names without files of the same glibc; ivers looks none up.
fn build() -> Result<PathBuf> {
    let sysroot = call("rustc", ["--print", "sysroot"])?;
    let has_musl = Path::new(sysroot.trim()).join("lib/rustlib").join(MUSL).exists();
    let target = if has_musl { MUSL } else { GLIBC };
    println!("xtask: building for {target}, static");
    let mut cargo = crate::cargo();
    cargo.args(["build", "--locked", "--profile", "shipped", "-p", "ivers", "--target", target]);
    // With --target the flags are not used for build scripts and macros, which cannot be static. Without the
    // second flag the crate getrandom looks the system call up by name, which a static program cannot do, and
    // then opens /dev/urandom, which the sandbox forbids.
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\"");
    if has_musl {
        cargo.env("CC_x86_64_unknown_linux_musl", "musl-gcc");
    }
    ensure!(cargo.status().context("cargo")?.success(), "the program did not build");
    Ok(target_dir().join(target).join("shipped/ivers"))
}

/// Returns the time of the last commit, unless SOURCE_DATE_EPOCH is set.
fn epoch() -> Result<String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    // A tree without git has the time of its changelog's date.
    let commit = call("git", ["log", "-1", "--format=%ct"]).map(|text| text.trim().to_owned());
    commit.or_else(|_| call("date", ["-r", "CHANGELOG.md", "+%s"]).map(|text| text.trim().to_owned()))
}

impl Release {
    /// Prepares a release of `binary` in `dir`.
    fn new(binary: &Path, dir: PathBuf) -> Result<Self> {
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let stripped = dir.join("work/ivers");
        fs::create_dir_all(dir.join("work"))?;
        let words = ["--remove-section=.comment", "-o"].map(OsStr::new);
        call("strip", words.into_iter().chain([stripped.as_os_str(), binary.as_os_str()]))?;
        let architecture = call("dpkg", ["--print-architecture"])?.trim().to_owned();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Ok(Self { version, architecture, epoch: epoch()?, binary: stripped, dir })
    }

    /// Makes a package of Debian, an archive, a bill of materials and the checksums. Returns their names.
    fn make(&self) -> Result<Vec<String>> {
        let metadata = bill::metadata()?;
        let licenses = licenses::text(&metadata)?;
        let names = vec![
            package::debian(self, &licenses)?,
            package::archive(self, &licenses)?,
            bill::write(self, &metadata)?,
        ];
        let sums = call(
            "env",
            ["-C", &self.dir.display().to_string(), "sha256sum"]
                .into_iter()
                .chain(names.iter().map(String::as_str)),
        )?;
        write(&self.dir.join("SHA256SUMS"), sums)?;
        let _ = fs::remove_dir_all(self.dir.join("work"));
        Ok(names)
    }
}

fn make_and_check(binary: Option<&Path>, with_check: bool) -> Result<()> {
    let built;
    let (binary, dir) = match binary {
        Some(binary) => (binary, target_dir().join("dist-of-binary")),
        None => {
            built = build()?;
            (built.as_path(), target_dir().join("dist"))
        }
    };
    let release = Release::new(binary, dir)?;
    for name in release.make()?.iter().map(String::as_str).chain(["SHA256SUMS"]) {
        let path = release.dir.join(name);
        let bytes = fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        println!("{:>10} bytes  {}", bytes, path.display());
    }
    if with_check { check::check(&release) } else { Ok(()) }
}

/// Makes the files of a release, of a program that exists or of a new build. `with_check` installs the
/// package in a clean Debian and removes it again.
pub fn dist(binary: Option<&Path>, with_check: bool) -> bool {
    make_and_check(binary, with_check).map_err(|error| eprintln!("xtask: {error:#}")).is_ok()
}
