//! The work on mounts of a server.

use super::linux;
use super::servers::{Kind, version_of_ganesha};
use super::watch::{Mounts, process_of};
use crate::suites::{Exclusions, FSX_WEIGHTS, Mount, PJDFSTEST, Setup, excluded, trees};
use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{SeekFrom, seek};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const PYTHON: &str = include_str!("work.py");
/// Seeds of fsx, and the operations of each run.
const FSX_SEEDS: [&str; 2] = ["1", "2"];
const FSX_OPERATIONS: &str = "10000";
/// The operations on a server in an emulated machine, which is slow.
const FSX_OPERATIONS_EMULATED: &str = "1500";

/// In each RELEASE_LOCKOWNER, nfs-ganesha before this version releases a reference that it does not hold, to
/// the path of the export. Then it reads freed memory, and aborts.
const FIRST_GANESHA_WITH_RELEASE: (u32, u32) = (5, 8);

/// The place of the work.
pub(super) struct Place<'a> {
    pub(super) setup: &'a Setup,
    pub(super) kind: Kind,
    /// The exported directory.
    pub(super) url: &'a str,
    /// The version of NFS.
    pub(super) vers: &'a str,
    /// What is mounted.
    pub(super) mounts: &'a Mounts,
}

/// A part of the work: its name, and a function that does it in an empty directory. It returns what was seen.
pub(super) type Part = (&'static str, fn(&Place<'_>, &str) -> Result<String>);

pub(super) const PARTS: [Part; 12] = [
    ("pjdfstest", pjdfstest),
    ("fsx", fsx),
    ("untar, rename storm", untar),
    ("locks of two clients", |place, dir| python(place, dir, "locks")),
    ("locks of ours and Linux's client", linux::locks),
    ("mmap on two clients", |place, dir| python(place, dir, "mapped")),
    ("write delegations", delegations),
    ("extended attributes", attributes),
    ("sparse copies", sparse),
    ("nconnect=4", connections),
    ("persistent cache", cache),
    ("large directory", directory),
];

impl Place<'_> {
    /// Mounts a directory of the export.
    pub(super) fn mount(&self, dir: &str, name: &str, options: &str) -> Result<Mount<'_>> {
        let options = format!("allow_other,vers={}{options}", self.vers);
        let url = PathBuf::from(format!("{}/{dir}", self.url));
        let at = self.setup.scratch.join(name);
        let log = self.setup.scratch.join("log");
        let words = ["--log", log.to_str().context("the path is not UTF-8")?];
        let mount = Mount::with(&self.setup.ivers, &words, &url, at, &options).context("the mount fails")?;
        self.mounts.add(process_of(&self.setup.ivers, &mount.dir)?);
        Ok(mount)
    }

    /// Returns why a part cannot run: what the server does wrong.
    pub(super) fn defect(&self, part: &str) -> Result<Option<&'static str>> {
        let locks = part.starts_with("locks") && self.vers == "4.0" && self.kind.is_ganesha();
        let ends = locks && version_of_ganesha()? < FIRST_GANESHA_WITH_RELEASE;
        Ok(ends.then_some(
            "not run: after RELEASE_LOCKOWNER, this version of the server reads freed memory and aborts",
        ))
    }

    /// Returns whether the server is in an emulated machine.
    fn is_slow(&self) -> bool {
        self.kind.is_emulated()
    }

    fn has_42(&self) -> bool {
        self.vers == "4.2"
    }

    /// Makes the directory of a part.
    pub(super) fn make(&self, dir: &str) -> Result<()> {
        let url = format!("{}/{dir}", self.url);
        let vers = format!("vers={}", self.vers);
        ivers_oracle::run(&self.program()?, ["mkdir", "-m", "777", "-o", &vers, &url]).map(drop)
    }

    fn program(&self) -> Result<String> {
        self.setup.ivers.to_str().map(str::to_owned).context("the path is not UTF-8")
    }

    fn counter(&self, mount: &Mount<'_>, name: &str) -> Result<u64> {
        let dir = mount.dir.to_str().context("the path is not UTF-8")?;
        let output = ivers_oracle::run(&self.program()?, ["stats", "--json", dir])?;
        let stats: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        stats[name].as_u64().with_context(|| format!("no counter {name}"))
    }
}

pub(super) fn end(mount: Mount<'_>) -> Result<()> {
    ensure!(mount.unmount(), "the unmount fails");
    Ok(())
}

/// The tests of pjdfstest that cannot pass on a server, by reason.
fn exclusions(kind: Kind) -> &'static Exclusions {
    match kind {
        Kind::Ganesha | Kind::GaneshaDelegates => {
            &[("the server ignores times of symbolic links", &["^utimensat::follow_symlink"])]
        }
        Kind::Linux(_) | Kind::NewerLinux => &[(
            "it compares times, and the clock of the server's machine differs",
            &["^utimensat::utime_now"],
        )],
        Kind::Ivers => &[],
    }
}

fn pjdfstest(place: &Place<'_>, dir: &str) -> Result<String> {
    let config = place.setup.scratch.join("pjdfstest.toml");
    fs::write(&config, PJDFSTEST)?;
    let (one, other) = (place.mount(dir, "one", "")?, place.mount("other-filesystem", "other", "")?);
    let mut suite = Command::new(place.setup.tools.join("pjdfstest"));
    suite.arg("-c").arg(&config).arg("-p").arg(&one.dir).arg("-s").arg(&other.dir);
    let output = suite.output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    fs::write(place.setup.scratch.join("pjdfstest.said"), &output.stdout)?;
    let ended = |how: &str| -> Vec<String> {
        said.lines()
            .filter_map(|line| line.strip_suffix(how))
            .map(|name| name.trim_end().to_owned())
            .collect()
    };
    let (passed, failed) = (ended(" ok"), ended(" FAILED"));
    let allowed = exclusions(place.kind);
    let wrong: Vec<_> = failed.iter().filter(|test| excluded(test, allowed).is_none()).collect();
    end(one)?;
    end(other)?;
    ensure!(passed.len() > 100, "{} tests passed: {said}", passed.len());
    ensure!(wrong.is_empty(), "{} tests passed, failed: {wrong:?}", passed.len());
    let mut seen = format!("{} tests pass", passed.len());
    for &(reason, _) in allowed {
        let count = failed.iter().filter(|test| excluded(test, allowed) == Some(reason)).count();
        if count > 0 {
            seen += &format!("; {count} cannot pass: {reason}");
        }
    }
    Ok(seen)
}

fn fsx(place: &Place<'_>, dir: &str) -> Result<String> {
    let mount = place.mount(dir, "one", "")?;
    let mut weights = FSX_WEIGHTS.to_owned();
    if !place.has_42() {
        weights = weights.replace("punch_hole = 5\n", "").replace("posix_fallocate = 3\n", "");
    }
    let small = "flen = 1048576\n[opsize]\nmax = 131072\n";
    let config = place.setup.scratch.join("fsx.toml");
    fs::write(&config, format!("{small}{weights}"))?;
    let usual = if place.is_slow() { FSX_OPERATIONS_EMULATED } else { FSX_OPERATIONS };
    let operations = std::env::var("IVERS_FSX_OPERATIONS").unwrap_or_else(|_| usual.to_owned());
    for seed in FSX_SEEDS {
        let output = Command::new(place.setup.tools.join("fsx"))
            .args(["-q", "-N", &operations, "-S", seed, "-P"])
            .arg(&place.setup.scratch)
            .arg("-f")
            .arg(&config)
            .arg(mount.dir.join(format!("file{seed}")))
            .output()?;
        ensure!(output.status.success(), "seed {seed}: {}", ivers_oracle::said(&output));
    }
    end(mount)?;
    Ok(format!("{} runs of {operations} operations pass", FSX_SEEDS.len()))
}

fn untar(place: &Place<'_>, dir: &str) -> Result<String> {
    let scratch = &place.setup.scratch;
    let (source, archive) = (scratch.join("source"), scratch.join("files.tar"));
    let usual = if place.is_slow() { trees::FILES / 20 } else { trees::FILES };
    let files = match std::env::var("IVERS_FILES") {
        Ok(count) => count.parse().context("IVERS_FILES")?,
        Err(_) => usual,
    };
    let mut names = trees::fill(&source, files)?;
    let count = names.len();
    let text = |path: &Path| path.to_str().map(str::to_owned).context("the path is not UTF-8");
    ivers_oracle::run("tar", ["-cf", &text(&archive)?, "-C", &text(&source)?, "."])?;
    fs::remove_dir_all(&source)?;
    let mount = place.mount(dir, "one", "")?;
    ivers_oracle::run("tar", ["-xf", &text(&archive)?, "-C", &text(&mount.dir)?])?;
    trees::rename(&mount.dir, &mut names, false)?;
    let nothing = trees::Attributes::new();
    trees::compare(&mount.dir, &names, &nothing)?;
    let before = ivers_oracle::tree(&mount.dir, ivers_oracle::TreeOptions::default())?;
    end(mount)?;
    let mount = place.mount(dir, "one", ",ro")?;
    trees::compare(&mount.dir, &names, &nothing)?;
    let after = ivers_oracle::tree(&mount.dir, ivers_oracle::TreeOptions::default())?;
    let differs = before.lines().zip(after.lines()).find(|(before, after)| before != after);
    ensure!(differs.is_none() && before.len() == after.len(), "after a remount: {differs:?}");
    end(mount)?;
    let _ = fs::remove_file(archive);
    Ok(format!("{count} files unpacked and renamed; the same tree after a remount"))
}

fn python(place: &Place<'_>, dir: &str, what: &str) -> Result<String> {
    let (one, other) = (place.mount(dir, "one", "")?, place.mount(dir, "other", "")?);
    let output = Command::new("python3").args(["-c", PYTHON, what]).args([&one.dir, &other.dir]).output()?;
    ensure!(output.status.success(), "{}", ivers_oracle::said(&output));
    end(one)?;
    end(other)?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Files that are written under a write delegation, if the server grants any.
const DELEGATED: u64 = 48;

/// One client writes files and closes them, and their bytes are sent together. Then the other client reads
/// each file at once after it was closed, and writes it.
fn delegations(place: &Place<'_>, dir: &str) -> Result<String> {
    let (one, other) = (place.mount(dir, "one", "")?, place.mount(dir, "other", "")?);
    let name = |nth: u64| format!("file{nth}");
    let bytes = |who: u8, nth: u64| vec![who ^ nth as u8; 3000 + 500 * nth as usize];
    for nth in 0..DELEGATED {
        fs::write(one.dir.join(format!("together{nth}")), bytes(3, nth))?;
    }
    rustix::fs::syncfs(File::open(&one.dir)?)?;
    for nth in 0..DELEGATED {
        let there = other.dir.join(format!("together{nth}"));
        ensure!(fs::read(there)? == bytes(3, nth), "together{nth}: other bytes there");
    }
    let shared = place.counter(&one, "server_shared_requests")?;
    for nth in 0..DELEGATED {
        let file = one.dir.join(name(nth));
        fs::write(&file, bytes(1, nth))?;
        ensure!(fs::read(other.dir.join(name(nth)))? == bytes(1, nth), "{}: other bytes there", name(nth));
        let before = change(&file)?;
        fs::write(other.dir.join(name(nth)), bytes(2, nth))?;
        ensure!(fs::read(&file)? == bytes(2, nth), "{}: other bytes here", name(nth));
        // Other servers promise less.
        let is_exact = place.kind == Kind::Ivers && before.is_some();
        ensure!(!is_exact || change(&file)? > before, "{}: the change attribute", name(nth));
    }
    let recalls = place.counter(&one, "server_recalls")? + place.counter(&other, "server_recalls")?;
    end(one)?;
    end(other)?;
    let seen = "each client sees at once what the other one has written";
    Ok(match shared {
        0 => format!("no write delegation is granted; {seen}"),
        _ => format!("{shared} requests carry bytes of several closed files; {recalls} recalls; {seen}"),
    })
}

/// Returns the change attribute of a file, if the server has one.
fn change(file: &Path) -> Result<Option<u64>> {
    let value = xattr::get(file, "system.ivers.change").ok().flatten();
    value.map(|value| Ok(String::from_utf8(value)?.trim().parse()?)).transpose()
}

/// Lengths of values: all of them fit into a block of ext4 together.
const VALUES: [usize; 5] = [0, 1, 40, 255, 1500];

fn attributes(place: &Place<'_>, dir: &str) -> Result<String> {
    let (one, other) = (place.mount(dir, "one", "")?, place.mount(dir, "other", "")?);
    let file = one.dir.join("file");
    fs::write(&file, "x")?;
    if let Err(error) = xattr::set(&file, "user.first", b"value") {
        let is_refused = error.raw_os_error() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error());
        ensure!(is_refused && (!place.has_42() || place.kind.is_ganesha()), "{error}");
        end(one)?;
        end(other)?;
        return Ok("the server has none, and the client says so".to_owned());
    }
    for len in VALUES {
        xattr::set(&file, format!("user.of{len}"), &vec![len as u8; len])?;
    }
    xattr::set(&file, "user.first", b"another")?;
    let there = other.dir.join("file");
    for len in VALUES {
        let value = xattr::get(&there, format!("user.of{len}"))?;
        ensure!(value == Some(vec![len as u8; len]), "a value of {len} bytes: {value:?}");
    }
    ensure!(xattr::get(&there, "user.first")?.as_deref() == Some(&b"another"[..]), "the newest value");
    let mut names: Vec<_> = xattr::list(&there)?.collect();
    names.retain(|name| name.as_encoded_bytes().starts_with(b"user."));
    ensure!(names.len() == VALUES.len() + 1, "{names:?}");
    xattr::remove(&there, "user.first")?;
    // The mount that set the attribute asks the server again after the attribute timeout.
    std::thread::sleep(std::time::Duration::from_millis(3200));
    ensure!(xattr::get(&file, "user.first")?.is_none(), "it was removed");
    let too_long = xattr::set(&file, "user.long", &vec![1; (64 << 10) + 1]);
    ensure!(too_long.is_err(), "a value beyond the limit of Linux");
    end(one)?;
    end(other)?;
    Ok(format!("{} values, seen by the other client", VALUES.len() + 1))
}

fn sparse(place: &Place<'_>, dir: &str) -> Result<String> {
    const LEN: u64 = 48 << 20;
    const AT: [u64; 3] = [0, 8 << 20, LEN - 70_000];
    let mount = place.mount(dir, "one", "")?;
    let path = mount.dir.join("sparse");
    let file = File::create(&path)?;
    file.set_len(LEN)?;
    let bytes: Vec<u8> = (0..65_536_u32).map(|at| (at % 251) as u8 + 1).collect();
    for at in AT {
        file.write_all_at(&bytes, at)?;
    }
    file.sync_all()?;
    drop(file);
    let mut seen = Vec::new();
    if place.has_42() {
        let file = File::open(&path)?;
        let hole = seek(&file, SeekFrom::Hole(0));
        let data = hole.and_then(|hole| seek(&file, SeekFrom::Data(hole)));
        match (hole, data) {
            (Ok(hole), Ok(data)) if hole < data => {
                ensure!((65_536..=AT[1]).contains(&hole) && data <= AT[1], "hole {hole}, data {data}");
                seen.push("holes found".to_owned());
            }
            (Ok(hole), _) if hole == LEN => seen.push("the server reports no holes".to_owned()),
            other => bail!("SEEK: {other:?}"),
        }
    }
    for (name, options) in
        [("copy", "--sparse=auto"), ("holes", "--sparse=always"), ("plain", "--sparse=never")]
    {
        let to = mount.dir.join(name);
        let words = [options, path.to_str().context("a path")?, to.to_str().context("a path")?];
        ivers_oracle::run("cp", words)?;
        let mut found = Vec::new();
        File::open(&to)?.read_to_end(&mut found)?;
        ensure!(found.len() as u64 == LEN, "{name}: {} bytes", found.len());
        let is_right = |(at, byte): (usize, &u8)| {
            let place = AT.iter().find(|start| (**start..**start + 65_536).contains(&(at as u64)));
            *byte == place.map_or(0, |start| bytes[at - *start as usize])
        };
        ensure!(found.iter().enumerate().all(is_right), "{name}: other bytes");
    }
    let blocks = |name: &str| fs::metadata(mount.dir.join(name)).map(|meta| meta.blocks() * 512);
    ensure!(blocks("holes")? < LEN / 2, "a copy with holes: {} bytes", blocks("holes")?);
    for (name, shown) in
        [("server_copy", "requests to copy on the server (COPY)"), ("server_clone", "to clone (CLONE)")]
    {
        let count = place.counter(&mount, name)?;
        if count > 0 {
            seen.push(format!("{shown}: {count}"));
        }
    }
    end(mount)?;
    seen.insert(0, "equal bytes".to_owned());
    Ok(seen.join(", "))
}

fn connections(place: &Place<'_>, dir: &str) -> Result<String> {
    let (one, other) =
        (place.mount(dir, "one", ",nconnect=4,rsize=32768,wsize=32768")?, place.mount(dir, "other", "")?);
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..8_u8)
            .map(|nth| {
                let (here, there) = (one.dir.clone(), other.dir.clone());
                scope.spawn(move || -> Result<()> {
                    for round in 0..10_u8 {
                        let name = format!("file{nth}-{round}");
                        let bytes = vec![nth * 16 + round; 700_000];
                        fs::write(here.join(&name), &bytes)?;
                        ensure!(fs::read(there.join(&name))? == bytes, "{name}: other bytes");
                        ensure!(fs::read(here.join(&name))? == bytes, "{name}: other bytes here");
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a panic"))?)
    })?;
    let made = place.counter(&one, "server_connections")?;
    ensure!((2..=4).contains(&made), "{made} connections");
    end(one)?;
    end(other)?;
    Ok(format!("80 files of 700,000 bytes written and read over {made} connections"))
}

fn cache(place: &Place<'_>, dir: &str) -> Result<String> {
    let kept = super::private_dir()?;
    let options = format!(",cache-dir={},cache-size=64M", kept.path().display());
    let plain = place.mount(dir, "other", "")?;
    for nth in 0..50_u8 {
        fs::write(plain.dir.join(format!("file{nth}")), vec![nth; 50_000])?;
    }
    let is_right = |root: &Path, changed: Option<u8>| -> Result<()> {
        for nth in 0..50_u8 {
            let byte = if changed == Some(nth) { 0xee } else { nth };
            ensure!(
                fs::read(root.join(format!("file{nth}")))? == vec![byte; 50_000],
                "file{nth}: other bytes"
            );
        }
        Ok(())
    };
    let Ok(first) = place.mount(dir, "one", &options) else {
        let url = format!("{}/{dir}", place.url);
        let at = place.setup.scratch.join("one");
        let output = Command::new(&place.setup.ivers)
            .args(["mount", "-o", &format!("vers={}{options}", place.vers), &url])
            .arg(at)
            .output()?;
        let said = ivers_oracle::said(&output);
        end(plain)?;
        let whys = [
            " does not promise that each change raises the change attribute",
            "'s filehandles are not persistent",
        ];
        let why = whys.into_iter().find(|why| said.contains(*why));
        return Ok(format!(
            "the mount is refused, as it must be: the server{}",
            why.with_context(|| said.clone())?
        ));
    };
    is_right(&first.dir, None)?;
    end(first)?;
    let second = place.mount(dir, "one", &options)?;
    is_right(&second.dir, None)?;
    let sent = place.counter(&second, "server_read")?;
    let hits = place.counter(&second, "disk_cache_hits")?;
    ensure!(sent == 0 && hits > 0, "{sent} READs, {hits} hits after a remount");
    // The other client changes one file in place.
    let mut file = File::options().write(true).open(plain.dir.join("file7"))?;
    file.rewind()?;
    file.write_all(&vec![0xee; 50_000])?;
    drop(file);
    is_right(&second.dir, Some(7))?;
    end(second)?;
    let third = place.mount(dir, "one", &options)?;
    is_right(&third.dir, Some(7))?;
    end(third)?;
    end(plain)?;
    Ok(format!(
        "after a remount, {hits} blocks come from the cache and none from the server; a change is seen"
    ))
}

fn directory(place: &Place<'_>, dir: &str) -> Result<String> {
    let files = if place.is_slow() { 1000 } else { 5000 };
    let (one, other) = (place.mount(dir, "one", "")?, place.mount(dir, "other", "")?);
    for nth in 0..files {
        File::create_new(one.dir.join(format!("a-name-of-some-length-{nth}")))?;
    }
    let listed = |root: &Path| -> Result<usize> {
        let names = fs::read_dir(root)?.map(|entry| Ok(entry?.file_name()));
        let names = names.collect::<std::io::Result<std::collections::BTreeSet<_>>>()?;
        Ok(names.len())
    };
    ensure!(listed(&other.dir)? == files && listed(&one.dir)? == files, "not all names");
    // One mount removes the names that it lists.
    for entry in fs::read_dir(&other.dir)? {
        fs::remove_file(entry?.path())?;
    }
    ensure!(listed(&other.dir)? == 0, "names are left");
    std::thread::sleep(std::time::Duration::from_millis(3200));
    ensure!(listed(&one.dir)? == 0, "names are left for the other client");
    end(one)?;
    end(other)?;
    Ok(format!("{files} names are listed, and removed while they are listed"))
}
