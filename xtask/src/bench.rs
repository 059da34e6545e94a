//! `cargo xtask bench`: everything that is measured, on one page.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run;

/// The crates of others, beside ours: what they answer goes into this file. What cannot be built is said on the page.
fn others(target: &Path, file: &Path) -> bool {
    let manifest = "testing/peers/Cargo.toml";
    let built = run(
        "other crates",
        "cargo",
        &["build", "--release", "--manifest-path", manifest],
        &[("CARGO_TARGET_DIR", &target.to_string_lossy())],
    );
    let missing = if built {
        let answer = File::create(file)
            .map(|file| Command::new(target.join("release/ivers-peers")).stdout(file).status());
        match answer {
            Ok(Ok(status)) if status.success() => return true,
            other => format!("{other:?}"),
        }
    } else {
        "they do not build here".to_owned()
    };
    // Debug quotes as JSON does, for texts as plain as these.
    fs::write(
        file,
        format!("{{\"rows\": [], \"missing\": [{:?}]}}", format!("rows beside other crates: {missing}")),
    )
    .is_ok()
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
    let ivers = target.join("release/ivers");
    let (ivers, dir_word) = (ivers.to_string_lossy(), dir.to_string_lossy());
    let [rows, peers] = ["rows.json", "peers.json"].map(|name| dir.join(name));
    let measure: Vec<&str> = ["bench", "--install-peers", "--report", &dir_word]
        .into_iter()
        .chain(options.iter().map(String::as_str))
        .collect();
    let from = [rows.to_string_lossy(), peers.to_string_lossy()];
    run("ivers", "cargo", &["build", "--release", "-p", "ivers"], &[])
        && run("measure", &ivers, &measure, &[])
        && others(&target, &peers)
        && run("page", &ivers, &["bench", "--report", &dir_word, "--from", &from[0], "--from", &from[1]], &[])
        && fs::remove_file(&peers).is_ok()
}
