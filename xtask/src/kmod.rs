//! `cargo xtask kmod`: tests `iversion.h` inside a Linux kernel, as a module built against Debian's headers
//! and loaded in an emulated machine.
//!
//! It also loads modules with a weakened header. They must fail: otherwise the stress test would prove
//! nothing.

use crate::{ensure, run, target_dir};
use ivers_oracle::machine::{self, Initramfs, Kernel, machine, wait};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const HEADER: &str = include_str!("../../include/iversion.h");
const VECTORS: &str = include_str!("../../core/iversion/tests/vectors.txt");
/// Files that are compiled or packed unchanged.
const SOURCES: [(&str, &str); 4] = [
    ("Kbuild", include_str!("../../core/iversion/tests/kmod/Kbuild")),
    ("iversion_test.c", include_str!("../../core/iversion/tests/kmod/iversion_test.c")),
    ("init", include_str!("../../core/iversion/tests/kmod/init")),
    ("vectors.h", include_str!("../../core/iversion/tests/c/vectors.h")),
];

/// Module names, and the text of the header that each replaces, with its replacement.
const MODULES: [(&str, Option<[&str; 2]>); 3] = [
    ("right", None),
    ("unmarked", Some(["&raw, raw | IVERSION_QUERIED)", "&raw, raw)"])),
    ("unfenced", Some(["iversion_fence_(); /* W */", "barrier();"])),
];

/// The time limit; the machine is emulated and the host can be busy.
const PATIENCE: Duration = Duration::from_secs(600);

/// Numbers of observers, and the rounds that each test must reach (`init` requests as many): about ten times
/// the rounds after which the slower weakened module failed.
const ROUNDS: [(u32, u64); 2] = [(1, 200_000), (2, 10_000)];

type Outcome<T> = Result<T, String>;

fn io<T>(what: &Path, result: std::io::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{}: {error}", what.display()))
}

fn oracle<T>(result: anyhow::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{error:#}"))
}

fn step(what: &str, program: &str, args: &[&str]) -> Outcome<()> {
    run(what, program, args, &[]).then_some(()).ok_or_else(|| format!("{what} failed"))
}

fn text(path: &Path) -> Outcome<&str> {
    path.to_str().ok_or_else(|| format!("{} is not UTF-8", path.display()))
}

/// Returns the number of results in the vectors.
fn results() -> usize {
    VECTORS.lines().filter(|line| !line.starts_with('#') && line.contains('=')).count()
}

/// Returns the header with a weakness; `None` if the header no longer contains the text to replace.
fn weakened(weakness: Option<[&str; 2]>) -> Option<String> {
    match weakness {
        None => Some(HEADER.to_owned()),
        Some([sound, weak]) => (HEADER.matches(sound).count() == 1).then(|| HEADER.replace(sound, weak)),
    }
}

/// Returns the newest kernel release whose headers are installed.
fn release() -> Option<String> {
    let entries = fs::read_dir("/usr/src").ok()?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let releases = names.filter_map(|name| {
        let release = name.strip_prefix("linux-headers-")?.to_owned();
        let numbers = |text: &str| text.split(['.', '-']).map(|n| n.parse::<u32>().ok()).collect::<Vec<_>>();
        let order = numbers(release.strip_suffix("-amd64")?);
        Some((order, release))
    });
    releases.max().map(|(_, release)| release)
}

fn build(name: &str, header: &str, release: &str, work: &Path) -> Outcome<PathBuf> {
    let dir = work.join(name);
    io(&dir, fs::create_dir_all(&dir))?;
    let vectors: String = VECTORS.lines().map(|line| format!("{line:?},\n")).collect();
    let generated = [("iversion.h", header), ("vectors.inc", vectors.as_str())];
    for (file, contents) in SOURCES.iter().chain(&generated) {
        let path = dir.join(file);
        io(&path, fs::write(&path, contents))?;
    }
    let headers = format!("/usr/src/linux-headers-{release}");
    step(name, "make", &["-s", "-C", &headers, &format!("M={}", text(&dir)?), "modules"])?;
    Ok(dir.join("iversion_test.ko"))
}

fn pack(modules: &[(&str, PathBuf)], work: &Path) -> Outcome<Initramfs> {
    let root = oracle(Initramfs::new())?;
    let init = work.join("right/init");
    oracle(root.script("init", &io(&init, fs::read_to_string(&init))?))?;
    for (name, module) in modules {
        oracle(root.file(&format!("{name}.ko"), module))?;
    }
    Ok(root)
}

/// Runs the machine until it powers off and returns its console output.
fn emulate(kernel: &Kernel, root: &Initramfs, work: &Path) -> Outcome<String> {
    let console = work.join("console.log");
    println!("== emulated kernel: {}", kernel.image().display());
    let mut machine = oracle(machine(kernel, &oracle(root.pack())?, &console, "loglevel=7"))?
        .args(["-smp", "2", "-nic", "none"])
        .spawn()
        .map_err(|error| format!("qemu-system-x86_64: {error}"))?;
    let ended = wait(&mut machine, PATIENCE);
    let said = String::from_utf8_lossy(&io(&console, fs::read(&console))?).into_owned();
    for line in said.lines().filter(|line| line.contains("iversion_test: ") || line.contains("kmod: ")) {
        println!("{}", line.trim_end());
    }
    ended.map(|()| said).map_err(|error| format!("{error:#}: {}", console.display()))
}

/// Returns what is wrong in the console output.
fn judge(said: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut must = |what: String| {
        if !said.contains(&what) {
            wrong.push(format!("missing: {what}"));
        }
    };
    must(format!("iversion_test: vectors: {} results compared", results()));
    must("kmod: end".to_owned());
    for (observers, least) in ROUNDS {
        let head = format!("iversion_test: hammer: {observers} observers, ");
        let rounds =
            said.split_once(&head).and_then(|(_, rest)| rest.split_once(" rounds")?.0.parse::<u64>().ok());
        if rounds.is_none_or(|rounds| rounds < least) {
            wrong.push(format!("{observers} observers: {rounds:?} rounds, of {least} at least"));
        }
    }
    let ends: Vec<(&str, &str)> = said
        .lines()
        .filter_map(|line| line.split_once("kmod: ")?.1.trim_end().rsplit_once(": "))
        .map(|(what, code)| (what.split(' ').next().unwrap_or(what), code))
        .collect();
    for (name, weakness) in MODULES {
        let codes: Vec<_> = ends.iter().filter(|(what, _)| *what == name).map(|(_, code)| *code).collect();
        let as_wanted = |code: &&str| (*code == "0") == weakness.is_none();
        if codes.is_empty() || !codes.iter().all(as_wanted) {
            let wanted = if weakness.is_none() { "must be loaded" } else { "must fail" };
            wrong.push(format!("the module `{name}` {wanted}, its codes were {codes:?}"));
        }
    }
    wrong
}

fn prove() -> Outcome<()> {
    let release = release().ok_or("no kernel headers; install package linux-headers-amd64")?;
    let target = target_dir();
    let target = io(&target, std::path::absolute(&target))?;
    let work = target.join("kmod");
    let kernel = oracle(Kernel::of(&release, &target.join("kernel")))?;
    let mut modules = Vec::new();
    for (name, weakness) in MODULES {
        let header = weakened(weakness)
            .ok_or_else(|| format!("iversion.h no longer contains the text that `{name}` replaces"))?;
        modules.push((name, build(name, &header, &release, &work)?));
    }
    let root = pack(&modules, &work)?;
    let wrong = judge(&emulate(&kernel, &root, &work)?);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Runs the test. Returns whether it passed; a test that cannot run has not passed.
pub(crate) fn kmod() -> bool {
    let programs = [&machine::PROGRAMS[..], &[("make", "make"), ("gcc", "gcc")]].concat();
    let headers = release().is_some() || ensure(&[("kernel headers", "linux-headers-amd64")]);
    if !headers || !ensure(&programs) {
        eprintln!("xtask: kmod: not run");
        return false;
    }
    match prove() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("xtask: kmod: {why}");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> String {
        format!(
            "[ 1.0] iversion_test: vectors: {} results compared\n[ 1.0] iversion_test: hammer: 1 \
                observers, 200001 rounds, \n\
             kmod: right vectors=1: 0\r\n[ 2.0] iversion_test: hammer: 2 observers, 10000 rounds, \nkmod: \
             right vectors=0: 0\r\n\
             kmod: unmarked vectors=0: 22\r\nkmod: unfenced vectors=0: 22\r\nkmod: end\r\n",
            results()
        )
    }

    #[test]
    fn every_weakness_replaces_one_place_of_the_header() {
        for (name, weakness) in MODULES {
            let header = weakened(weakness).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(header == HEADER, weakness.is_none(), "{name}");
        }
    }

    #[test]
    fn any_other_output_is_a_failure() {
        assert_eq!(judge(&good()), Vec::<String>::new());
        for (sound, broken) in [
            ("results compared", "results"),
            ("hammer: 2 observers", "hammer"),
            ("10000 rounds", "9999 rounds"),
            ("kmod: right vectors=0: 0", "kmod: right vectors=0: 22"),
            ("kmod: unmarked vectors=0: 22", "kmod: unmarked vectors=0: 0"),
            ("kmod: unfenced vectors=0: 22\r\n", ""),
            ("kmod: end", ""),
        ] {
            assert_eq!(judge(&good().replace(sound, broken)).len(), 1, "{broken}");
        }
    }
}
