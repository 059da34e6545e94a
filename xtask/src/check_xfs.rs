//! `cargo xtask check-corpus-xfs [STEP]`: compares `ivers check` with `xfs_repair -n` on images that xfs_db
//! damages, and writes the result to docs/results/check-xfs.md.
//!
//! Linux fills the images, so this needs root and loop mounts. Each field of each kind of structure is
//! overwritten in several ways with a right checksum. Then random bits of its block are inverted. STEP takes
//! one of so many images.

use anyhow::{Context, Result, bail};
use ivers_oracle::LoopMount;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkers::{Ran, copy_image, ivers_check, run_limited};
use crate::target_dir;
use crate::verdicts::{Page, Row, command_of, verdict};

/// The page that the comparison is written to.
const PAGE: &str = "docs/results/check-xfs.md";
/// How long a checker may take for one image, in seconds.
const LIMIT_S: u32 = 30;
/// What `fuzz` of xfs_db can do to a field.
const VERBS: [&str; 7] = ["zeroes", "ones", "firstbit", "middlebit", "lastbit", "add", "sub"];
/// Fields of one structure that are damaged.
const FIELDS_MAX: usize = 70;
/// Images of a structure with inverted bits in its block.
const TRASHED: u32 = 10;

/// How an image is made: its name, and arguments of mkfs.xfs.
const BASES: [(&str, &[&str]); 2] = [
    ("4 KiB", &["-m", "rmapbt=1", "-i", "nrext64=1"]),
    ("1 KiB", &["-b", "size=1024", "-m", "rmapbt=1", "-n", "size=4096"]),
];

/// Fills a small image.
const FILL: &str = r#"
set -e
mkdir few block leaf node attrs
for i in 1 2 3 4 5; do echo $i > few/file-$i; done
for i in $(seq 30); do echo $i > block/a-name-$i; done
for i in $(seq 200); do echo $i > leaf/a-longer-name-$i; done
for i in $(seq 900); do ln few/file-1 node/a-rather-long-name-of-a-file-$i; done
rm node/*7* leaf/*3*
head -c 200000 /dev/urandom > large; cp --reflink=always large clone; truncate -s 100000 clone
xfs_io -f -c 'falloc 0 256k' -c 'pwrite -q 30000 10000' unwritten
xfs_io -f -c 'truncate 8m' tree
for i in $(seq 0 2 700); do echo "pwrite -q $((i * 8192)) 512"; done | xfs_io tree
ln -s short s1; ln -s $(printf 'x%.0s' $(seq 1 1000)) s2; mkfifo fifo; mknod null c 1 3
setfattr -n user.short -v value few
for i in $(seq 12); do setfattr -n user.name-$i -v $(printf 'v%.0s' $(seq 1 90)) leaf; done
for i in $(seq 300); do setfattr -n user.attribute-$i -v $(printf 'v%.0s' $(seq 1 60)) attrs; done
setfattr -n user.remote -v $(printf 'r%.0s' $(seq 1 7000)) large
rm few/file-3 block/a-name-1?
"#;

/// Files whose inodes are damaged, and blocks of theirs: commands of xfs_db after `inode N`.
const FILES: [(&str, &[(&str, &str)]); 13] = [
    ("", &[("root directory", "")]),
    ("few", &[("short directory and attributes", "")]),
    ("few/file-1", &[("file", "")]),
    ("block", &[("inode of a block directory", ""), ("block directory", "dblock 0")]),
    (
        "leaf",
        &[
            ("data of a leaf directory", "dblock 0"),
            ("leaf of a directory", "dblock LEAF"),
            ("leaf of attributes", "ablock 0"),
        ],
    ),
    (
        "node",
        &[
            ("data of a node directory", "dblock 0"),
            ("node of a directory", "dblock LEAF"),
            ("leaf of a node directory", "dblock LEAF+1"),
            ("free index", "dblock FREE"),
        ],
    ),
    ("attrs", &[("node of attributes", "ablock 0"), ("leaf of a node of attributes", "ablock 1")]),
    ("large", &[("shared file", ""), ("leaf of a remote value", "ablock 0"), ("remote value", "ablock 1")]),
    ("unwritten", &[("unwritten file", "")]),
    ("tree", &[("file with an extent B-tree", ""), ("block of an extent B-tree", "addr u3.bmbt.ptrs[1]")]),
    ("s1", &[("short link", "")]),
    ("s2", &[("remote link", ""), ("target of a remote link", "dblock 0")]),
    ("null", &[("device", "")]),
];

/// Structures of the filesystem: a name and commands of xfs_db.
const STRUCTURES: [(&str, &str); 18] = [
    ("superblock", "sb 0"),
    ("copy of the superblock", "sb 1"),
    ("AGF", "agf 0"),
    ("AGF of group 1", "agf 1"),
    ("AGI", "agi 0"),
    ("AGFL", "agfl 0"),
    ("free space by block", "agf 0;addr bnoroot"),
    ("free space by size", "agf 0;addr cntroot"),
    ("free space by block, group 1", "agf 1;addr bnoroot"),
    ("reverse map", "agf 0;addr rmaproot"),
    ("leaf of the reverse map", "agf 0;addr rmaproot;addr ptrs[1]"),
    ("reference counts", "agf 0;addr refcntroot"),
    ("inode B-tree", "agi 0;addr root"),
    ("leaf of the inode B-tree", "agi 0;addr root;addr ptrs[1]"),
    ("free inodes", "agi 0;addr free_root"),
    ("realtime bitmap inode", "sb 0;addr rbmino"),
    ("realtime summary inode", "sb 0;addr rsumino"),
    ("free inode", "FREE-INODE"),
];

struct Base {
    image: PathBuf,
    /// Structures, and the commands that lead to them.
    targets: Vec<(String, Vec<String>)>,
}

fn make(dir: &Path, name: &str, args: &[&str]) -> Result<Base> {
    let image = dir.join(name.replace(' ', "-"));
    std::fs::File::create(&image)?.set_len(48 << 20)?;
    let mut all = vec!["--unsupported", "-q", "-f", "-K", "-d", "agcount=2", "-l", "size=13m"];
    all.extend(args);
    let path = image.to_string_lossy().into_owned();
    all.push(&path);
    ivers_oracle::run("mkfs.xfs", &all)?;
    let mounted = LoopMount::new(&image, "")?;
    let done = Command::new("sh").args(["-c", FILL]).current_dir(mounted.path()).output()?;
    if !done.status.success() {
        bail!("cannot fill the image: {}", String::from_utf8_lossy(&done.stderr));
    }
    let mut targets = Vec::new();
    let words = |commands: &str| commands.split(';').map(str::to_owned).collect::<Vec<_>>();
    for (structure, commands) in STRUCTURES {
        let free = mounted.path().join("few/file-2").metadata()?.ino();
        let commands = words(&commands.replace("FREE-INODE", &format!("inode {free}")));
        targets.push((format!("{name}: {structure}"), commands));
    }
    std::fs::remove_file(mounted.path().join("few/file-2"))?;
    let block_bytes: u64 = if name.starts_with('1') { 1024 } else { 4096 };
    for (file, parts) in FILES {
        let ino = mounted.path().join(file).symlink_metadata()?.ino();
        for (part, command) in parts {
            let unit = 4096 / block_bytes;
            let command = command
                .replace("LEAF+1", &((1 << 35) / block_bytes + unit).to_string())
                .replace("LEAF", &((1 << 35) / block_bytes).to_string())
                .replace("FREE", &((1u64 << 36) / block_bytes).to_string());
            let mut commands = vec![format!("inode {ino}")];
            if !command.is_empty() {
                commands.push(command);
            }
            targets.push((format!("{name}: {part}"), commands));
        }
    }
    mounted.unmount()?;
    Ok(Base { image, targets })
}

fn xfs_db(image: &Path, flags: &[&str], commands: &[String]) -> Result<String> {
    let mut words = vec!["xfs_db"];
    words.extend(flags);
    words.extend(commands.iter().flat_map(|one| ["-c", one]));
    Ok(run_limited(LIMIT_S, &words, image)?.text)
}

/// The names of the fields of a structure, as `print` shows them.
fn fields(base: &Base, commands: &[String]) -> Result<Vec<String>> {
    let commands = [commands, &["print".to_owned()]].concat();
    let mut names = Vec::new();
    for line in xfs_db(&base.image, &["-r"], &commands)?.lines() {
        let Some((name, value)) = line.split_once(" = ") else { continue };
        let name = name.trim();
        let list = name.split_once('[').map(|(list, _)| list);
        // Records: `recs[1-3] = [startblock,blockcount]`; numbers: `bno[0-117] = 0:6 1:7`.
        let parts = value.trim().strip_prefix('[').and_then(|parts| parts.strip_suffix(']'));
        match (list, parts) {
            (Some(list), Some(parts)) => {
                names.extend(parts.split(',').map(|part| format!("{list}[1].{part}")));
            }
            (Some(list), None) if name.ends_with(']') && name.contains('-') => {
                names.extend([format!("{list}[0]"), format!("{list}[1]")]);
            }
            _ => names.push(name.to_owned()),
        }
    }
    let mut seen = BTreeSet::new();
    let is_checksum = |name: &str| name.rsplit('.').next().is_some_and(|last| last == "crc");
    names.retain(|name| !is_checksum(name) && seen.insert(name.clone()));
    // Long lists of names say the same again and again.
    names.truncate(FIELDS_MAX);
    Ok(names)
}

fn compare(ivers: &str, image: &Path, target: &str, damage: &str) -> Result<Row> {
    let (ran, codes) = ivers_check(LIMIT_S, ivers, &[], image)?;
    let ours = verdict(&ran).with_context(|| format!("{target}, {damage}"))?;
    let Ran { code, text: said } = run_limited(LIMIT_S, &["xfs_repair", "-n"], image)?;
    let theirs = match code {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    Ok(Row { target: target.into(), damage: damage.into(), theirs, ours, codes, said })
}

/// Lines of xfs_repair that say what is wrong.
fn complaints(said: &str) -> String {
    let usual =
        ["Phase", "        -", "No modify", "- ", "Cannot get host", "Repair may fail", "the image and"];
    let lines = said.lines().filter(|line| !usual.iter().any(|start| line.starts_with(start)));
    lines.take(3).collect::<Vec<_>>().join("; ")
}

fn run(step: usize, only: Option<&str>) -> Result<bool> {
    let ivers = target_dir().join("debug/ivers").to_string_lossy().into_owned();
    let work = tempfile::tempdir()?;
    let image = work.path().join("damaged");
    let (mut rows, mut nth) = (Vec::new(), 0usize);
    for (name, args) in BASES {
        let base = make(work.path(), name, args)?;
        let undamaged = std::fs::read(&base.image)?;
        let clean = compare(&ivers, &base.image, name, "none")?;
        if (clean.theirs, clean.ours) != (Some(false), Some(false)) {
            let said = complaints(&clean.said);
            bail!("{name}: the undamaged image: they {:?} ({said}), we {:?}", clean.theirs, clean.codes);
        }
        let mut one = |target: &str, damage: &str, commands: &[String]| -> Result<()> {
            nth += 1;
            if !nth.is_multiple_of(step) || only.is_some_and(|only| !target.contains(only)) {
                return Ok(());
            }
            copy_image(&base.image, &image)?;
            xfs_db(&image, &["-x"], commands)?;
            // A field that is not there, or has that value already.
            if std::fs::read(&image)? == undamaged {
                return Ok(());
            }
            let row = compare(&ivers, &image, target, damage)?;
            if row.theirs == Some(true) && row.ours != Some(true) {
                println!("{target}: {damage}: they: {}; we {:?}", complaints(&row.said), row.ours);
            }
            rows.push(row);
            Ok(())
        };
        for (target, commands) in &base.targets {
            for field in fields(&base, commands)? {
                for verb in VERBS {
                    let damage = format!("{field} {verb}");
                    one(target, &damage, &[&commands[..], &[format!("fuzz -d {field} {verb}")]].concat())?;
                }
            }
        }
        for (target, commands) in &base.targets {
            for seed in 1..=TRASHED {
                let trash = format!("blocktrash -z -2 -n 1 -x 1 -y 64 -s {seed}");
                one(target, &format!("bits, seed {seed}"), &[&commands[..], &[trash]].concat())?;
            }
        }
    }
    let version = Command::new("xfs_repair").arg("-V").output()?;
    let page = Page {
        other: "xfs_repair",
        damager: "xfs_db",
        command: &command_of("check-corpus-xfs", step),
        other_command: &format!("`xfs_repair -n`: {}", String::from_utf8_lossy(&version.stdout).trim()),
    };
    std::fs::write(PAGE, page.text(&rows)?)?;
    println!("{PAGE} is written: {} images", rows.len());
    Ok(!rows.iter().any(|row| row.theirs == Some(true) && row.ours != Some(true)))
}

/// Compares the checkers on damaged images. Fails where only xfs_repair finds damage.
pub fn check_xfs(step: usize, only: Option<&str>) -> bool {
    let built = crate::run("build", "cargo", &["build", "-p", "ivers"], &[]);
    built
        && run(step.max(1), only).unwrap_or_else(|error| {
            eprintln!("xtask: check-corpus-xfs: {error:#}");
            false
        })
}
