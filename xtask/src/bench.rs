//! `cargo xtask bench`: runs `testing/bench`, and with a directory also the rows over NFS and beside other
//! libraries, on one page.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::{ensure, run, target_dir};

/// The NFS server that ours is compared with: program and packages.
pub(crate) const GANESHA: [(&str, &str); 1] = [("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs")];

/// The words of `--only`, by the program that measures them. Without `--only` each program measures all.
#[derive(Debug, Default, PartialEq)]
struct RowFilter {
    is_given: bool,
    /// For `ivers-bench`.
    bench: Vec<String>,
    /// For `ivers-nfs-speed`.
    nfs: Vec<String>,
    /// The rows beside other libraries are measured together.
    competitors: bool,
}

impl RowFilter {
    /// Splits `--only` from the options; the rest is for `ivers-bench`.
    fn take(options: &[String]) -> (Self, Vec<String>) {
        let (mut filter, mut rest) = (Self::default(), Vec::new());
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
            filter.is_given = true;
            for word in words.split(',').map(str::to_owned) {
                match word.split('_').next() {
                    Some("nfs") => filter.nfs.push(word),
                    Some("peers") => filter.competitors = true,
                    _ => filter.bench.push(word),
                }
            }
        }
        (filter, rest)
    }

    /// Returns the option for one program; `None` if none of its rows is requested.
    fn option(&self, words: &[String]) -> Option<Vec<String>> {
        match words {
            [] if self.is_given => None,
            [] => Some(Vec::new()),
            words => Some(vec!["--only".to_owned(), words.join(",")]),
        }
    }
}

/// Runs a measuring program and keeps its output in a file. A failure is reported on the page and returned.
fn measure_into(what: &str, is_built: bool, measure: &mut Command, file: &Path) -> bool {
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
    let message = format!("{what}: {missing}");
    eprintln!("xtask: {message}");
    // Debug quotes plain text as JSON does. If this write fails, the page reports the missing file.
    _ = fs::write(file, format!("{{\"rows\": [], \"missing\": [{message:?}]}}"));
    false
}

/// Measures the crates of others beside ours.
fn measure_competitors(target: &Path, file: &Path) -> bool {
    let manifest = "testing/competitor-bench/Cargo.toml";
    let is_built = run(
        "other crates",
        "cargo",
        &["build", "--release", "--manifest-path", manifest],
        &[("CARGO_TARGET_DIR", &target.to_string_lossy())],
    );
    let mut measure = Command::new(target.join("release/ivers-competitor-bench"));
    measure_into("rows beside other crates", is_built, &mut measure, file)
}

/// Measures our NFSv4 server, beside nfs-ganesha where that is installed.
fn measure_nfs(target: &Path, only: &[String], file: &Path) -> bool {
    let is_built =
        ensure(&GANESHA) && run("client", "cargo", &["build", "--release", "-p", "ivers-nfs-test"], &[]);
    let mut measure = Command::new(target.join("release/ivers-nfs-speed"));
    measure.arg("--ivers").arg(target.join("release/ivers")).args(only);
    measure_into("rows over NFS", is_built, &mut measure, file)
}

/// Measures the NFSv4 server beside nfs-ganesha; `options` are those of `ivers-nfs-speed`.
pub(crate) fn nfs_speed(options: &[String]) -> bool {
    let target = target_dir();
    let [ivers, speed] = ["release/ivers", "release/ivers-nfs-speed"].map(|name| target.join(name));
    let (ivers, speed) = (ivers.to_string_lossy(), speed.to_string_lossy());
    let args: Vec<&str> = ["--ivers", &ivers].into_iter().chain(options.iter().map(String::as_str)).collect();
    run("build", "cargo", &["build", "--release", "-p", "ivers", "-p", "ivers-nfs-test"], &[])
        && run("measure", &speed, &args, &[])
}

/// Builds `ivers` and `ivers-bench` without output to stdout. Returns the path of `ivers-bench`.
pub(crate) fn build() -> Result<PathBuf, String> {
    let args = ["build", "--release", "--quiet", "-p", "ivers", "-p", "ivers-bench"];
    let status = crate::cargo().args(args).stdout(Stdio::null()).status();
    match status {
        Ok(status) if status.success() => {}
        _ => return Err("ivers and ivers-bench do not build".into()),
    }
    Ok(target_dir().join("release/ivers-bench"))
}

/// Runs `ivers-bench` with these options and returns its exit code.
pub(crate) fn run_options(options: &[String]) -> Result<u8, String> {
    let program = build()?;
    let status = Command::new(&program).args(options).status();
    let status = status.map_err(|error| format!("{}: {error}", program.display()))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Measures everything, installs what the compared programs need, and writes the page into `dir`.
pub(crate) fn write_page(dir: &Path, options: &[String]) -> bool {
    let target = target_dir();
    if let Err(error) = fs::create_dir_all(dir) {
        eprintln!("xtask: {}: {error}", dir.display());
        return false;
    }
    let program = match build() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("xtask: {error}");
            return false;
        }
    };
    let (filter, options) = RowFilter::take(options);
    let (program, dir_word) = (program.to_string_lossy(), dir.to_string_lossy());
    let [rows, nfs, competitors] = ["rows.json", "nfs.json", "peers.json"].map(|name| dir.join(name));
    let (mut parts, mut is_complete) = (Vec::new(), true);
    if let Some(only) = filter.option(&filter.bench) {
        let words = ["--install-peers", "--report", &dir_word];
        let measure: Vec<&str> =
            words.into_iter().chain(options.iter().chain(&only).map(String::as_str)).collect();
        if !run("measure", &program, &measure, &[]) {
            return false;
        }
        parts.push(rows.clone());
    }
    if let Some(only) = filter.option(&filter.nfs) {
        is_complete &= measure_nfs(&target, &only, &nfs);
        parts.push(nfs);
    }
    if filter.competitors || !filter.is_given {
        is_complete &= measure_competitors(&target, &competitors);
        parts.push(competitors);
    }
    let mut page = vec!["--report".into(), dir_word.clone()];
    for part in &parts {
        page.extend(["--from".into(), part.to_string_lossy()]);
    }
    let page: Vec<&str> = page.iter().map(|word| &**word).collect();
    run("page", &program, &page, &[])
        && parts.iter().filter(|part| **part != rows).all(|part| fs::remove_file(part).is_ok())
        && is_complete
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(options: &[&str]) -> (RowFilter, Vec<String>) {
        RowFilter::take(&options.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn each_program_gets_the_names_of_its_rows() {
        let (only, rest) = split(&["--ops", "5", "--only", "append,nfs_getattr,peers_create", "--only=nfs"]);
        assert_eq!(rest, ["--ops", "5"]);
        assert_eq!(only.option(&only.bench).unwrap(), ["--only", "append"]);
        assert_eq!(only.option(&only.nfs).unwrap(), ["--only", "nfs_getattr,nfs"]);
        assert!(only.competitors);
        let (only, _) = split(&["--only", "nfs_write"]);
        assert_eq!((only.option(&only.bench), only.competitors), (None, false));
        let (only, _) = split(&[]);
        assert_eq!((only.option(&only.bench), only.option(&only.nfs)), (Some(vec![]), Some(vec![])));
    }
}
