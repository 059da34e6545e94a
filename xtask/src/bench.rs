//! `cargo xtask bench`: everything that is measured, on one page.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{ensure, run};

/// The server beside ours: program and packages.
pub(crate) const GANESHA: [(&str, &str); 1] = [("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs")];

/// Who measures what, by the words of `--only`; without any, everybody everything.
#[derive(Debug, Default, PartialEq)]
struct Only {
    is_given: bool,
    /// For `ivers bench`.
    ivers: Vec<String>,
    /// For `ivers-nfs-speed`.
    nfs: Vec<String>,
    /// Those of the peers are measured together.
    peers: bool,
}

impl Only {
    /// Take the words out of the options; what is left is for `ivers bench`.
    fn take(options: &[String]) -> (Self, Vec<String>) {
        let (mut only, mut rest) = (Self::default(), Vec::new());
        let mut options = options.iter();
        while let Some(option) = options.next() {
            let words = match option.strip_prefix("--only=") {
                Some(words) => words,
                None if option == "--only" => options.next().map_or("", String::as_str),
                None => {
                    rest.push(option.clone());
                    continue;
                }
            };
            only.is_given = true;
            for word in words.split(',').map(str::to_owned) {
                match word.split('_').next() {
                    Some("nfs") => only.nfs.push(word),
                    Some("peers") => only.peers = true,
                    _ => only.ivers.push(word),
                }
            }
        }
        (only, rest)
    }

    /// The option again, for one of those who measure; none if nothing is asked of him.
    fn option(&self, words: &[String]) -> Option<Vec<String>> {
        match words {
            [] if self.is_given => None,
            [] => Some(Vec::new()),
            words => Some(vec!["--only".to_owned(), words.join(",")]),
        }
    }
}

/// A program beside `ivers bench`: what it answers goes into this file. What cannot be had is said on the page, and is a failure.
fn beside(what: &str, is_built: bool, measure: &mut Command, file: &Path) -> bool {
    let missing = if is_built {
        println!("== {what}: {measure:?}");
        match File::create(file).map(|file| measure.stdout(file).status()) {
            Ok(Ok(status)) if status.success() => return true,
            Ok(Ok(status)) => status.to_string(),
            Ok(Err(error)) | Err(error) => error.to_string(),
        }
    } else {
        "it does not build here".to_owned()
    };
    // Debug quotes as JSON does, for texts as plain as these.
    let said = format!("{what}: {missing}");
    eprintln!("xtask: {said}");
    // Where this fails the page has no such file, and says so.
    _ = fs::write(file, format!("{{\"rows\": [], \"missing\": [{said:?}]}}"));
    false
}

/// The crates of others, beside ours.
fn others(target: &Path, file: &Path) -> bool {
    let manifest = "testing/peers/Cargo.toml";
    let is_built = run(
        "other crates",
        "cargo",
        &["build", "--release", "--manifest-path", manifest],
        &[("CARGO_TARGET_DIR", &target.to_string_lossy())],
    );
    beside("rows beside other crates", is_built, &mut Command::new(target.join("release/ivers-peers")), file)
}

/// Our NFSv4 server, beside nfs-ganesha where that is installed.
fn over_nfs(target: &Path, only: &[String], file: &Path) -> bool {
    let is_built =
        ensure(&GANESHA) && run("client", "cargo", &["build", "--release", "-p", "ivers-nfs-speed"], &[]);
    let mut measure = Command::new(target.join("release/ivers-nfs-speed"));
    measure.arg("--ivers").arg(target.join("release/ivers")).args(only);
    beside("rows over NFS", is_built, &mut measure, file)
}

fn target_dir() -> Option<PathBuf> {
    let target = PathBuf::from(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into()));
    std::path::absolute(target).ok()
}

/// The NFSv4 server beside nfs-ganesha; `options` are those of `ivers-nfs-speed`.
pub(crate) fn nfs_speed(options: &[String]) -> bool {
    let Some(target) = target_dir() else { return false };
    let [ivers, speed] = ["release/ivers", "release/ivers-nfs-speed"].map(|name| target.join(name));
    let (ivers, speed) = (ivers.to_string_lossy(), speed.to_string_lossy());
    let args: Vec<&str> = ["--ivers", &ivers].into_iter().chain(options.iter().map(String::as_str)).collect();
    run("build", "cargo", &["build", "--release", "-p", "ivers", "-p", "ivers-nfs-speed"], &[])
        && run("measure", &speed, &args, &[])
}

/// Build, install what peers need, measure, and write the page.
pub(crate) fn bench(dir: &Path, options: &[String]) -> bool {
    let Some(target) = target_dir() else { return false };
    if fs::create_dir_all(dir).is_err() {
        eprintln!("xtask: {} is no directory", dir.display());
        return false;
    }
    let (only, options) = Only::take(options);
    let ivers = target.join("release/ivers");
    let (ivers, dir_word) = (ivers.to_string_lossy(), dir.to_string_lossy());
    let [rows, nfs, peers] = ["rows.json", "nfs.json", "peers.json"].map(|name| dir.join(name));
    let (mut parts, mut is_whole) = (Vec::new(), true);
    if !run("ivers", "cargo", &["build", "--release", "-p", "ivers"], &[]) {
        return false;
    }
    if let Some(only) = only.option(&only.ivers) {
        let words = ["bench", "--install-peers", "--report", &dir_word];
        let measure: Vec<&str> =
            words.into_iter().chain(options.iter().chain(&only).map(String::as_str)).collect();
        if !run("measure", &ivers, &measure, &[]) {
            return false;
        }
        parts.push(rows.clone());
    }
    if let Some(only) = only.option(&only.nfs) {
        is_whole &= over_nfs(&target, &only, &nfs);
        parts.push(nfs);
    }
    if only.peers || !only.is_given {
        is_whole &= others(&target, &peers);
        parts.push(peers);
    }
    let mut page = vec!["bench".into(), "--report".into(), dir_word.clone()];
    for part in &parts {
        page.extend(["--from".into(), part.to_string_lossy()]);
    }
    let page: Vec<&str> = page.iter().map(|word| &**word).collect();
    run("page", &ivers, &page, &[])
        && parts.iter().filter(|part| **part != rows).all(|part| fs::remove_file(part).is_ok())
        && is_whole
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(options: &[&str]) -> (Only, Vec<String>) {
        Only::take(&options.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn rows_are_asked_of_those_who_measure_them() {
        let (only, rest) = taken(&["--ops", "5", "--only", "append,nfs_getattr,peers_create", "--only=nfs"]);
        assert_eq!(rest, ["--ops", "5"]);
        assert_eq!(only.option(&only.ivers).unwrap(), ["--only", "append"]);
        assert_eq!(only.option(&only.nfs).unwrap(), ["--only", "nfs_getattr,nfs"]);
        assert!(only.peers);
        let (only, _) = taken(&["--only", "nfs_write"]);
        assert_eq!((only.option(&only.ivers), only.peers), (None, false));
        let (only, _) = taken(&[]);
        assert_eq!((only.option(&only.ivers), only.option(&only.nfs)), (Some(vec![]), Some(vec![])));
    }
}
