//! `cargo xtask soak nfs_client`: mounts of other projects' servers and of ours, with the suites and work of
//! `work`, and kills of server and client. Writes `docs/results/nfs-client.md`.
//!
//! `IVERS_SERVER` selects servers by a part of their name, `IVERS_VERS` a version, `IVERS_PART` a part of the
//! work. With any of them, the page is printed and not written.

mod kills;
mod servers;
mod work;

use crate::ensure;
use crate::suites::{Setup, with_setup};
use anyhow::{Context, Result};
use ivers_oracle::machine;
use servers::Kind;
use std::fmt::Write;
use std::time::Instant;
use work::{PARTS, Place};

const VERSIONS: [&str; 3] = ["4.2", "4.1", "4.0"];
const PAGE: &str = "docs/results/nfs-client.md";

/// The results of one part of the work on one server, by version.
struct Row {
    server: String,
    part: String,
    seen: Vec<Result<String, String>>,
}

fn only(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn is_wanted(only: Option<&String>, name: &str) -> bool {
    only.is_none_or(|only| name.contains(only.as_str()))
}

/// Prints and returns the result of a part.
fn told(
    server: &str,
    vers: &str,
    part: &str,
    result: Result<String>,
    begin: Instant,
) -> Result<String, String> {
    let result = result.map_err(|error| format!("{error:#}"));
    let shown = result.as_ref().map_or_else(|why| format!("FAILED: {why}"), String::clone);
    println!("== {server}, {vers}, {part}: {shown} ({} s)", begin.elapsed().as_secs());
    result
}

/// Runs all parts on one server.
fn on_server(setup: &Setup, kind: Kind, rows: &mut Vec<Row>) -> Result<()> {
    let (vers, part) = (only("IVERS_VERS"), only("IVERS_PART"));
    let server = kind.start(&setup.ivers, &crate::target_dir())?;
    let mut table: Vec<Row> = PARTS
        .iter()
        .filter(|(name, _)| is_wanted(part.as_ref(), name))
        .map(|(name, _)| Row { server: kind.name(), part: (*name).to_owned(), seen: Vec::new() })
        .collect();
    let mut first = true;
    for vers in VERSIONS.into_iter().filter(|version| is_wanted(vers.as_ref(), version)) {
        let place = Place { setup, kind, url: &server.url, vers };
        if first {
            place.make("other-filesystem")?;
            first = false;
        }
        for row in &mut table {
            let Some((nth, (_, work))) = PARTS.iter().enumerate().find(|(_, (name, _))| *name == row.part)
            else {
                continue;
            };
            let dir = format!("{}-{nth}", vers.replace('.', ""));
            let begin = Instant::now();
            let done = place.make(&dir).and_then(|()| work(&place, &dir));
            row.seen.push(told(&row.server, vers, &row.part, done, begin));
        }
    }
    rows.append(&mut table);
    let begin = Instant::now();
    let checked = server.stop(kind).map(|()| "clean".to_owned());
    let seen = vec![told(&kind.name(), "-", "filesystem afterwards", checked, begin)];
    rows.push(Row { server: kind.name(), part: "filesystem afterwards".to_owned(), seen });
    Ok(())
}

fn page(rows: &[Row]) -> Result<String> {
    let mut text = String::new();
    writeln!(text, "# The NFS client\n")?;
    writeln!(
        text,
        "For people who mount servers with ivers, and for maintainers: what was run on mounts of other\n\
         projects' servers, and what was seen. `cargo xtask soak nfs_client` writes this page.\n\
         [limits.md](../limits.md#files-of-a-server) has what the client does not do,\n\
         [nfs.md](../nfs.md) how it works.\n"
    )?;
    let mut server = "";
    for row in rows {
        if row.server != server {
            server = &row.server;
            writeln!(text, "## {server}\n")?;
            writeln!(text, "| part | seen |\n|---|---|")?;
        }
        let seen: Vec<String> = row
            .seen
            .iter()
            .map(|seen| {
                seen.clone()
                    .unwrap_or_else(|why| format!("FAILED: {}", why.lines().next().unwrap_or_default()))
            })
            .collect();
        let all_equal = seen.windows(2).all(|pair| pair[0] == pair[1]);
        let shown = match &seen[..] {
            [one, ..] if all_equal => one.clone(),
            many => VERSIONS
                .iter()
                .zip(many)
                .map(|(vers, seen)| format!("{vers}: {seen}"))
                .collect::<Vec<_>>()
                .join("<br>"),
        };
        writeln!(text, "| {} | {shown} |", row.part)?;
        let next = rows.iter().skip_while(|other| !std::ptr::eq(*other, row)).nth(1);
        if next.is_none_or(|next| next.server != server) {
            writeln!(text)?;
        }
    }
    Ok(format!("{}\n", text.trim_end()))
}

fn run(setup: &Setup) -> Result<bool> {
    let (wanted, part) = (only("IVERS_SERVER"), only("IVERS_PART"));
    let mut rows = Vec::new();
    for kind in Kind::ALL.into_iter().filter(|kind| is_wanted(wanted.as_ref(), &kind.name())) {
        on_server(setup, kind, &mut rows).with_context(|| kind.name())?;
    }
    for (name, work) in kills::PARTS {
        if is_wanted(wanted.as_ref(), kills::SERVER) && is_wanted(part.as_ref(), name) {
            let begin = Instant::now();
            let seen = vec![told(kills::SERVER, "4.2", name, work(setup), begin)];
            rows.push(Row { server: kills::SERVER.to_owned(), part: name.to_owned(), seen });
        }
    }
    let text = page(&rows)?;
    if wanted.is_none() && part.is_none() && only("IVERS_VERS").is_none() {
        std::fs::write(PAGE, &text)?;
    }
    println!("{text}");
    Ok(rows.iter().all(|row| row.seen.iter().all(Result::is_ok)))
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
    ];
    ensure(&[&machine::PROGRAMS[..], &programs].concat())
        && with_setup(|setup| run(setup).inspect_err(|error| eprintln!("xtask: nfs_client: {error:#}")).ok())
}
