//! `cargo xtask soak nfs_client`: mounts of other projects' servers and of ours, with the suites and work of
//! `work`, and kills of server and client. Writes `docs/results/nfs-client.md`.
//!
//! `IVERS_SERVER` selects servers by a part of their name, `IVERS_VERS` a version, `IVERS_PART` a part of the
//! work. `!` before a text selects what does not contain it. A run replaces only its own results in the
//! page.

mod delay;
mod kills;
mod linux;
mod page;
mod peers;
mod servers;
pub(crate) mod speed;
mod watch;
mod work;

use crate::ensure;
use crate::suites::{Setup, with_setup};
use anyhow::Result;
use ivers_oracle::machine;
use page::{Row, page};
use servers::Kind;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;
use tempfile::TempDir;
use watch::{Mounts, watched};
use work::{PARTS, Place};

const VERSIONS: [&str; 3] = ["4.2", "4.1", "4.0"];
const PAGE: &str = "docs/results/nfs-client.md";
/// What is done after all parts: the server is stopped, and the filesystem checked.
const AFTERWARDS: &str = "filesystem afterwards";

fn only(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn is_wanted(only: Option<&String>, name: &str) -> bool {
    only.is_none_or(|only| match only.strip_prefix('!') {
        Some(without) => !name.contains(without),
        None => name.contains(only.as_str()),
    })
}

/// Creates a directory that only this user may enter, as a persistent cache requires.
fn private_dir() -> std::io::Result<TempDir> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir()
}

/// Returns the commit that is tested, and the date.
fn tested() -> Result<String> {
    let text = |program: &str, words: &[&str]| -> Result<String> {
        let said = ivers_oracle::run(program, words)?;
        Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
    };
    let commit = text("git", &["log", "-1", "--format=%h"])?;
    // Without the pages that these tests write.
    let changed = text("git", &["status", "--porcelain", "--", ".", ":!docs/results"])?;
    let changes = if changed.is_empty() { "" } else { " and changes" };
    Ok(format!("{commit}{changes}, {}", text("date", &["+%F"])?))
}

/// Where results go: the console, and the page.
struct Report {
    /// What is tested, and when.
    when: String,
    passed: bool,
}

impl Report {
    fn new() -> Result<Self> {
        Ok(Self { when: tested()?, passed: true })
    }

    /// Adds the result of a part, which began at `begin`.
    fn add(
        &mut self,
        (server, part, vers): (&str, &str, Option<&'static str>),
        result: Result<String>,
        begin: Instant,
    ) -> Result<()> {
        let seen = result.map_err(|error| format!("{error:#}"));
        let shown = seen.as_ref().map_or_else(|why| format!("FAILED: {why}"), String::clone);
        let version = vers.unwrap_or("all versions");
        println!("== {server}, {version}, {part}: {shown} ({} s)", begin.elapsed().as_secs());
        self.passed &= seen.is_ok();
        let row = Row { server: server.to_owned(), part: part.to_owned(), vers, seen };
        let old = std::fs::read_to_string(PAGE).unwrap_or_default();
        std::fs::write(PAGE, page(&old, &row, &order(), &self.when))?;
        Ok(())
    }
}

/// Runs the parts on one server.
fn on_server(setup: &Setup, kind: Kind, report: &mut Report) -> Result<()> {
    let (only_vers, only_part) = (only("IVERS_VERS"), only("IVERS_PART"));
    let parts: Vec<_> =
        PARTS.iter().enumerate().filter(|(_, (name, _))| is_wanted(only_part.as_ref(), name)).collect();
    if parts.is_empty() {
        return Ok(());
    }
    let mut server = kind.start(&setup.ivers, &crate::target_dir())?;
    let (url, mounts) = (server.url.clone(), Mounts::default());
    let mut first = true;
    for vers in VERSIONS.into_iter().filter(|version| is_wanted(only_vers.as_ref(), version)) {
        let place = Place { setup, kind, url: &url, vers, mounts: &mounts };
        if first {
            place.make("other-filesystem")?;
            first = false;
        }
        for (nth, (part, work)) in &parts {
            let dir = format!("{}-{nth}", vers.replace('.', ""));
            let begin = Instant::now();
            let done = match place.defect(part)? {
                Some(why) => Ok(why.to_owned()),
                None => watched(&mut server, &mounts, || place.make(&dir).and_then(|()| work(&place, &dir))),
            };
            report.add((&kind.name(), part, Some(vers)), done, begin)?;
            server.start_again(kind, &setup.ivers)?;
        }
    }
    let begin = Instant::now();
    let checked = server.stop(kind).map(|()| "clean".to_owned());
    report.add((&kind.name(), AFTERWARDS, None), checked, begin)
}

/// The names of all servers, and of the parts that run on each.
fn order() -> Vec<(String, Vec<&'static str>)> {
    let parts: Vec<_> = PARTS.iter().map(|(name, _)| *name).chain([AFTERWARDS]).collect();
    let mut all: Vec<_> = Kind::ALL.into_iter().map(|kind| (kind.name(), parts.clone())).collect();
    all.push((kills::SERVER.to_owned(), kills::PARTS.iter().map(|(name, _)| *name).collect()));
    all
}

fn run(setup: &Setup) -> Result<bool> {
    let (server, part) = (only("IVERS_SERVER"), only("IVERS_PART"));
    let mut report = Report::new()?;
    for kind in Kind::ALL.into_iter().filter(|kind| is_wanted(server.as_ref(), &kind.name())) {
        if let Err(error) = on_server(setup, kind, &mut report) {
            eprintln!("xtask: {}: {error:#}", kind.name());
            report.passed = false;
        }
    }
    for (name, work) in kills::PARTS {
        if is_wanted(server.as_ref(), kills::SERVER) && is_wanted(part.as_ref(), name) {
            let begin = Instant::now();
            report.add((kills::SERVER, name, None), work(setup), begin)?;
        }
    }
    Ok(report.passed)
}

/// Runs everything. It requires root, for the suites and for nfs-ganesha's filesystem.
pub(crate) fn nfs_client() -> bool {
    let programs = [
        ("ganesha.nfsd", "nfs-ganesha nfs-ganesha-vfs"),
        ("mkfs.ext4", "e2fsprogs"),
        ("mkfs.xfs", "xfsprogs"),
        ("mkfs.btrfs", "btrfs-progs"),
        ("python3", "python3"),
        ("tar", "tar"),
        ("gcc", "gcc"),
        ("xz", "xz-utils"),
    ];
    ensure(&[&machine::PROGRAMS[..], &programs].concat())
        && with_setup(|setup| run(setup).inspect_err(|error| eprintln!("xtask: nfs_client: {error:#}")).ok())
}
