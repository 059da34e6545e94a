//! A mixed workload on a mounted tree.

use anyhow::{Context, Result, bail, ensure};
use rand::Rng;
use rand::rngs::StdRng;
use rustix::fs::{CWD, FallocateFlags, RenameFlags, SeekFrom};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// The largest link count of ext4.
const LINKS_MAX: u64 = 65_000;

fn bytes(len: usize, tag: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ tag.wrapping_mul(0x9e37)) as u8).collect()
}

/// Creates the first contents: one or more of every kind.
pub fn fill(root: &Path) -> Result<()> {
    let fill = root.join("fill");
    fs::create_dir(&fill)?;
    for n in 0..40u64 {
        fs::write(fill.join(format!("file-{n}")), bytes((n * n * 97) as usize % 50_000, n))?;
    }
    for n in 0..400 {
        File::create(fill.join(format!("a-name-among-many-number-{n}")))?;
    }
    for len in [1, 59, 60, 61, 500] {
        symlink("t".repeat(len), fill.join(format!("link-{len}")))?;
    }
    fs::hard_link(fill.join("file-20"), fill.join("second-name"))?;
    let sparse = File::create(fill.join("sparse"))?;
    sparse.write_all_at(b"far out", 5 << 20)?;
    for len in [0, 1, 40, 200, 900] {
        set(&fill.join("file-21"), &format!("user.of-{len}"), len)?;
    }
    if rustix::process::geteuid().is_root() {
        rustix::fs::mknodat(
            CWD,
            fill.join("null"),
            rustix::fs::FileType::CharacterDevice,
            0o666.into(),
            rustix::fs::makedev(1, 3),
        )?;
    }
    rustix::fs::mknodat(CWD, fill.join("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)?;
    Ok(())
}

/// Creates a source tree: many directories, most files small, some large, a few links.
pub fn source_tree(root: &Path, files: u64, rng: &mut StdRng) -> Result<()> {
    fs::create_dir(root)?;
    let mut dir = root.to_owned();
    for n in 0..files {
        if n % 25 == 0 {
            dir = root.join(format!("part-{}/module-{}", n / 500, n / 25));
            fs::create_dir_all(&dir)?;
        }
        let len = match rng.random_range(0..100) {
            0..70 => rng.random_range(0..4096),
            70..97 => rng.random_range(4096..30_000),
            _ => rng.random_range(30_000..120_000),
        };
        let path = dir.join(format!("source-{n}.c"));
        fs::write(&path, bytes(len, n))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(if n % 9 == 0 { 0o755 } else { 0o644 }))?;
        match n % 40 {
            7 => symlink(format!("source-{n}.c"), dir.join(format!("link-{n}")))?,
            8 => fs::hard_link(&path, dir.join(format!("again-{n}.c")))?,
            _ => {}
        }
    }
    Ok(())
}

/// Packs a tree and unpacks it below `untar`.
pub fn untar(source: &Path, root: &Path) -> Result<()> {
    let archive = source.with_extension("tar");
    let tar = |args: [&OsStr; 5]| ivers_oracle::run("tar", args);
    tar(["-C".as_ref(), source.as_ref(), "-cf".as_ref(), archive.as_ref(), ".".as_ref()])?;
    let to = root.join("untar");
    fs::create_dir(&to)?;
    tar(["-C".as_ref(), to.as_ref(), "-xpf".as_ref(), archive.as_ref(), ".".as_ref()])?;
    Ok(fs::remove_file(archive)?)
}

/// Renames within and between directories, over other files, of directories, and exchanges.
pub fn rename_storm(root: &Path, renames: u64, rng: &mut StdRng) -> Result<()> {
    let mut done = 0;
    // Files replace each other and directories move into others: in the end little is left to rename.
    for (nth, first) in (0..renames).step_by(1000).enumerate() {
        done += rename_for_a_while(&root.join(format!("storm{nth}")), (renames - first).min(1000), rng)?;
    }
    ensure!(done > renames / 10, "only {done} of {renames} renames were possible");
    Ok(())
}

fn rename_for_a_while(storm: &Path, renames: u64, rng: &mut StdRng) -> Result<u64> {
    for dir in 0..12 {
        fs::create_dir_all(storm.join(format!("d{dir}")))?;
        for file in 0..20 {
            fs::write(storm.join(format!("d{dir}/f{file}")), bytes(100 * file, dir))?;
        }
    }
    let some = |rng: &mut StdRng| {
        let dir = storm.join(format!("d{}", rng.random_range(0..12)));
        match rng.random_range(0..10) {
            0 => dir,
            1 => dir.join(format!("d{}", rng.random_range(0..12))),
            _ => dir.join(format!("f{}", rng.random_range(0..30))),
        }
    };
    let mut done = 0;
    for _ in 0..renames {
        let (from, to) = (some(rng), some(rng));
        let flags = match rng.random_range(0..8) {
            0 => RenameFlags::EXCHANGE,
            1 => RenameFlags::NOREPLACE,
            _ => RenameFlags::empty(),
        };
        match rustix::fs::renameat_with(CWD, &from, CWD, &to, flags) {
            Ok(()) => done += 1,
            Err(
                Errno::NOENT | Errno::EXIST | Errno::NOTEMPTY | Errno::INVAL | Errno::ISDIR | Errno::NOTDIR,
            ) => {}
            Err(error) => bail!("{} to {}: {error}", from.display(), to.display()),
        }
        // Creates new ones, so that enough remain.
        if done % 50 == 0 {
            let back = storm.join(format!("d{}", rng.random_range(0..12)));
            let file = back.join(format!("f{}", rng.random_range(20..30)));
            // The name may have changed its type meanwhile.
            if fs::create_dir_all(&back).is_ok() && !file.is_dir() {
                fs::write(file, b"new")?;
            }
        }
    }
    Ok(done)
}

/// Sets a value. Images without attribute inodes refuse a value larger than a block; the trees are compared,
/// so both results are valid.
fn set(path: &Path, name: &str, len: usize) -> Result<()> {
    match xattr::set(path, name, &bytes(len, 5)) {
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::ArgumentListTooLong) => {
            Ok(())
        }
        other => other.with_context(|| format!("{name} of {len} bytes")),
    }
}

/// Attributes of all sizes: growing, shrinking, removed; on files, directories and links.
pub fn attributes(root: &Path) -> Result<()> {
    let dir = root.join("attributes");
    fs::create_dir(&dir)?;
    let sizes = [
        0, 1, 2, 3, 4, 15, 16, 31, 64, 80, 95, 96, 97, 128, 200, 255, 500, 900, 1000, 1024, 2000, 3900, 4000,
        4050, 4096, 5000, 10_000, 30_000, 65_536,
    ];
    for len in sizes {
        let path = dir.join(format!("one-{len}"));
        fs::write(&path, b"x")?;
        set(&path, "user.value", len)?;
    }
    let many = dir.join("many");
    fs::create_dir(&many)?;
    for n in 0..60 {
        set(&many, &format!("user.number-{n}"), n)?;
    }
    let changing = dir.join("changing");
    fs::write(&changing, b"x")?;
    for len in sizes.iter().chain(sizes.iter().rev()).step_by(3) {
        set(&changing, "user.value", *len)?;
        set(&changing, "user.beside", 70)?;
    }
    xattr::remove(&changing, "user.beside")?;
    // Equal values, which may share a block until one of them changes.
    for n in 0..5 {
        let path = dir.join(format!("equal-{n}"));
        fs::write(&path, b"x")?;
        set(&path, "user.value", 700)?;
    }
    set(&dir.join("equal-2"), "user.value", 701)?;
    if rustix::process::geteuid().is_root() {
        xattr::set(&changing, "trusted.of-root", b"secret")?;
        symlink("nowhere", dir.join("link"))?;
        xattr::set(dir.join("link"), "trusted.of-a-link", b"t")?;
    }
    Ok(())
}

/// Creates many names of one file, up to the limit of the format.
pub fn links(root: &Path, files: u64) -> Result<()> {
    let dir = root.join("links");
    fs::create_dir(&dir)?;
    let file = dir.join("file");
    fs::write(&file, b"one of many")?;
    // The limit in the long run only; a hundred otherwise.
    let wanted = if files >= 20_000 { LINKS_MAX - 1 } else { 100 };
    for n in 0..wanted {
        fs::hard_link(&file, dir.join(format!("l{n}")))?;
    }
    ensure!(fs::metadata(&file)?.nlink() == wanted + 1);
    if wanted + 1 == LINKS_MAX {
        let error = fs::hard_link(&file, dir.join("one-too-many")).unwrap_err();
        ensure!(error.kind() == ErrorKind::TooManyLinks, "{error}");
    }
    for n in (0..wanted).filter(|n| n % 5 != 0) {
        fs::remove_file(dir.join(format!("l{n}")))?;
    }
    // An open file outlives its name, and its blocks are freed afterwards.
    let gone = File::options().read(true).write(true).create_new(true).open(dir.join("gone"))?;
    fs::remove_file(dir.join("gone"))?;
    gone.write_all_at(&bytes(300_000, 4), 0)?;
    gone.sync_all()?;
    ensure!(gone.metadata()?.nlink() == 0 && gone.metadata()?.len() == 300_000);
    Ok(())
}

/// Creates files with holes, and punches holes later.
pub fn sparse(root: &Path, rng: &mut StdRng) -> Result<()> {
    let dir = root.join("sparse");
    fs::create_dir(&dir)?;
    for n in 0..6u64 {
        let file = File::options().read(true).write(true).create_new(true).open(dir.join(format!("s{n}")))?;
        let mut data = Vec::new();
        for _ in 0..12 {
            let at = rng.random_range(0..1u64 << (16 + 2 * n));
            file.write_all_at(&bytes(rng.random_range(1..9000), n), at)?;
            data.push(at);
        }
        let end = file.metadata()?.len();
        let (from, len) = (rng.random_range(0..end), rng.random_range(1..60_000));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, from, len)?;
        let mut back = vec![1; len.min(end.saturating_sub(from)) as usize];
        file.read_exact_at(&mut back, from)?;
        ensure!(back.iter().all(|byte| *byte == 0), "s{n}: a punched hole is no hole");
        file.set_len(end + 1_000_000)?;
        // The file shows no holes while it is open for writing, and RELEASE arrives after close(2) returns.
        drop(file);
        let path = dir.join(format!("s{n}"));
        let file = File::open(&path)?;
        let hole = || Ok::<_, std::io::Error>(rustix::fs::seek(&file, SeekFrom::Hole(end + 8192))?);
        let closed = Instant::now();
        while hole()? != end + 8192 {
            ensure!(closed.elapsed() < Duration::from_secs(10), "s{n}: data at {} behind the end", hole()?);
            std::thread::sleep(Duration::from_millis(5));
        }
        if n % 2 == 0 {
            File::options().write(true).open(&path)?.set_len(end / 2)?;
        }
    }
    Ok(())
}

/// Mixes O_DIRECT and cached reads and writes, truncations and holes on one file, and compares it with a copy
/// in memory.
pub fn direct(root: &Path, steps: u64, rng: &mut StdRng) -> Result<()> {
    const O_DIRECT: i32 = 0o40000;
    const PAGE: usize = 4096;
    let path = root.join("direct");
    let cached = File::options().read(true).write(true).create_new(true).open(&path)?;
    let direct = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(&path)?;
    let mut model: Vec<u8> = Vec::new();
    let mut room = vec![0u8; 17 * PAGE];
    let aligned = room.as_ptr().align_offset(PAGE);
    for step in 0..steps {
        let (page, pages) = (rng.random_range(0..64), rng.random_range(1..16));
        let (at, len) = (page * PAGE, pages * PAGE);
        match rng.random_range(0..6) {
            0 | 1 => {
                let piece = &mut room[aligned..aligned + len];
                piece.copy_from_slice(&bytes(len, step));
                direct.write_all_at(piece, at as u64)?;
                model.resize(model.len().max(at + len), 0);
                model[at..at + len].copy_from_slice(piece);
            }
            2 => {
                let at = at + rng.random_range(0..PAGE);
                let data = bytes(rng.random_range(1..20_000), step);
                cached.write_all_at(&data, at as u64)?;
                model.resize(model.len().max(at + data.len()), 0);
                model[at..at + data.len()].copy_from_slice(&data);
            }
            3 => {
                let read = direct.read_at(&mut room[aligned..aligned + len], at as u64)?;
                let expected = model.get(at..).map_or(&[][..], |rest| &rest[..rest.len().min(len)]);
                ensure!(room[aligned..aligned + read] == *expected, "step {step}: O_DIRECT at {at}, {len}");
            }
            4 => {
                let mut data = vec![0; len];
                let read = cached.read_at(&mut data, at as u64)?;
                let expected = model.get(at..).map_or(&[][..], |rest| &rest[..rest.len().min(len)]);
                ensure!(data[..read] == *expected, "step {step}: read at {at}, {len}");
            }
            _ => {
                let size = rng.random_range(0..model.len() + PAGE);
                cached.set_len(size as u64)?;
                model.resize(size, 0);
            }
        }
    }
    drop((cached, direct));
    ensure!(fs::read(&path)? == model, "the file is not what was written");
    Ok(())
}

/// Lists a directory with many names while names are added and removed.
pub fn many_names(root: &Path, names: u64) -> Result<()> {
    let dir = root.join("many");
    fs::create_dir(&dir)?;
    for n in 0..names {
        File::create(dir.join(format!("name-{n}")))?;
    }
    let mut kept = vec![false; names as usize];
    for (nth, entry) in fs::read_dir(&dir)?.enumerate() {
        let name = entry?.file_name().into_string().expect("names of ASCII");
        let n: usize = name.trim_start_matches("name-").parse()?;
        ensure!(!kept[n], "{name} was listed twice");
        kept[n] = true;
        if nth % 3 == 0 {
            fs::remove_file(dir.join(name))?;
        }
    }
    ensure!(kept.iter().all(|seen| *seen), "names were left out of a listing");
    ensure!(fs::read_dir(&dir)?.count() as u64 == names - names.div_ceil(3));
    Ok(())
}

/// Creates a chain of directories and moves one half of it away.
pub fn deep(root: &Path, levels: u64) -> Result<()> {
    let top = root.join("deep");
    let mut path = top.clone();
    for _ in 0..levels {
        path.push("d");
    }
    fs::create_dir_all(&path)?;
    fs::write(path.join("bottom"), b"far down")?;
    let half = top.join("d/".repeat(levels as usize / 2));
    fs::rename(&half, root.join("deep-half"))?;
    let below = root.join("deep-half").join("d/".repeat(levels as usize - levels as usize / 2));
    ensure!(fs::read(below.join("bottom"))? == b"far down");
    Ok(())
}

/// Sets modes, owners and times at the limits of the format.
pub fn times_and_owners(root: &Path, privileged: bool, wide: bool) -> Result<()> {
    let dir = root.join("times");
    fs::create_dir(&dir)?;
    let seconds = [0u64, 1, 1_000_000_000, 0x7fff_ffff, 0x8000_0000, 0x1_0000_0000, 0x3_7fff_ffff];
    // Small inodes end in 2038: the device keeps the last second, and the mount shows the full value until it
    // ends.
    let held = seconds.into_iter().filter(|second| wide || *second <= 0x7fff_ffff);
    for (n, second) in held.enumerate() {
        let path = dir.join(format!("t{n}"));
        let mut file = File::create(&path)?;
        file.write_all(b"x")?;
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(second, 123_456_789))?;
        drop(file);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4700 + n as u32))?;
        if privileged {
            std::os::unix::fs::chown(&path, Some(70_000 + n as u32), Some(65_536 * n as u32))?;
        }
    }
    let before = File::create(dir.join("before-1970"))?;
    before.set_modified(SystemTime::UNIX_EPOCH - Duration::new(1_000_000_000, 250_000_000))?;
    Ok(())
}

/// Fills the device to the last block, expects ENOSPC, and continues when there is space.
pub fn no_space(root: &Path) -> Result<()> {
    let dir = root.join("full");
    fs::create_dir(&dir)?;
    fs::write(dir.join("before"), bytes(20_000, 3))?;
    let free_before = rustix::fs::statvfs(root)?.f_bfree;
    let filler = File::create(dir.join("filler"))?;
    let chunk = bytes(1 << 20, 9);
    let refused = (|| {
        for n in 0..1u64 << 20 {
            filler.write_all_at(&chunk, n << 20)?;
            if n % 16 == 0 {
                filler.sync_all()?;
            }
        }
        Ok(())
    })();
    let full = |error: std::io::Error| match error.kind() {
        ErrorKind::StorageFull => Ok(()),
        _ => Err(error).context("on a full device"),
    };
    match refused {
        Ok(()) => bail!("a terabyte fits"),
        Err(error) => full(error)?,
    }
    // A refused write is absent or complete: both are valid, but nothing else may break.
    let _ = filler.sync_all();
    for n in 0..200 {
        let path = dir.join(format!("small-{n}"));
        let written = File::create(&path).and_then(|file| {
            file.write_all_at(&bytes(9000, n), 0)?;
            file.sync_all()
        });
        written.or_else(full)?;
        fs::create_dir(dir.join(format!("dir-{n}"))).or_else(full)?;
    }
    ensure!(fs::read(dir.join("before"))? == bytes(20_000, 3), "an older file changed on a full device");
    drop(filler);
    fs::remove_file(dir.join("filler"))?;
    for n in 0..200 {
        let _ = fs::remove_file(dir.join(format!("small-{n}")));
        let _ = fs::remove_dir(dir.join(format!("dir-{n}")));
    }
    // The kernel may release a removed file late. Directories keep their blocks.
    let mut free_after = 0;
    for _ in 0..600 {
        free_after = rustix::fs::statvfs(root)?.f_bfree;
        if free_after + 2048 > free_before {
            let after = File::create(dir.join("after"))?;
            after.write_all_at(&bytes(2_000_000, 6), 0)?;
            return Ok(after.sync_all()?);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("{free_before} blocks were free, and now only {free_after}")
}

/// Removes parts of it: freed blocks and inodes are used again.
pub fn prune(root: &Path, rng: &mut StdRng) -> Result<()> {
    for part in fs::read_dir(root.join("untar"))? {
        let part = part?.path();
        for module in fs::read_dir(&part)? {
            let module = module?.path();
            match rng.random_range(0..4) {
                0 => fs::remove_dir_all(&module)?,
                1 => fs::write(module.join("new.c"), bytes(rng.random_range(0..9000), 7))?,
                _ => {}
            }
        }
    }
    Ok(())
}
