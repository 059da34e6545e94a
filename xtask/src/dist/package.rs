//! The package of Debian and the archive for other systems.

use super::documents::copy_documents;
use super::{Release, call, copy, write};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Where files of a tree go.
struct Places<'a> {
    root: &'a Path,
    man: &'a str,
    bash: &'a str,
    zsh: &'a str,
    fish: &'a str,
    units: &'a str,
    doc: &'a str,
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).with_context(|| path.display().to_string())
}

/// Compresses a file without its name and time, so that equal files give equal bytes.
fn compress(path: &Path) -> Result<()> {
    call("gzip", [OsStr::new("-9nf"), path.as_os_str()]).map(drop)
}

/// Copies what both kinds of package contain.
fn fill(release: &Release, places: &Places<'_>) -> Result<()> {
    let root = places.root;
    let man = root.join(places.man);
    call(&release.binary, [OsStr::new("man"), man.as_os_str()])?;
    for entry in fs::read_dir(&man)? {
        compress(&entry?.path())?;
    }
    for (shell, path) in [("bash", places.bash), ("zsh", places.zsh), ("fish", places.fish)] {
        write(&root.join(path), call(&release.binary, ["completions", shell])?)?;
    }
    for unit in ["ivers-serve@.service", "ivers-serve@.socket"] {
        copy(Path::new("packaging/systemd").join(unit), &root.join(places.units).join(unit))?;
    }
    let doc = root.join(places.doc);
    copy_documents(&doc, &format!("{}/blob/v{}", env!("CARGO_PKG_REPOSITORY"), release.version))?;
    for dir in ["docs/examples", "include"] {
        for entry in fs::read_dir(dir).with_context(|| dir.to_owned())? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending != "md") {
                copy(&path, &doc.join("examples").join(path.file_name().unwrap_or_default()))?;
            }
        }
    }
    // Where links of the documents expect them.
    symlink("../examples", doc.join("docs/examples")).context("the link docs/examples")
}

/// Sets the modes and times of all files below `path`, and returns the sum of their sizes.
fn settle(path: &Path, epoch: &str) -> Result<u64> {
    let meta = fs::symlink_metadata(path)?;
    let mut bytes = meta.len();
    if meta.is_dir() {
        set_mode(path, 0o755)?;
        for entry in fs::read_dir(path)? {
            bytes += settle(&entry?.path(), epoch)?;
        }
    } else if meta.is_file() {
        let is_program = path.file_name() == Some(OsStr::new("ivers"))
            && path.parent().is_some_and(|dir| dir.ends_with("bin"));
        set_mode(path, if is_program { 0o755 } else { 0o644 })?;
    }
    call("touch", [OsStr::new("-h"), OsStr::new("-d"), OsStr::new(&format!("@{epoch}")), path.as_os_str()])?;
    Ok(bytes)
}

/// Returns whether a program has no loader.
fn is_static(binary: &Path) -> Result<bool> {
    Ok(!call("readelf", [OsStr::new("-lW"), binary.as_os_str()])?.contains("INTERP"))
}

/// Returns the fields of the control file that say what the program needs of the system. FUSE is needed only
/// for mounts of ordinary users.
fn depends(binary: &Path) -> Result<String> {
    if is_static(binary)? {
        return Ok("Recommends: fuse3".to_owned());
    }
    let bytes = fs::read(binary).with_context(|| binary.display().to_string())?;
    let marks = bytes.windows(8).enumerate().filter(|(_, window)| *window == b"GLIBC_2.");
    let newest = marks
        .map(|(at, _)| bytes[at + 8..].iter().take_while(|byte| byte.is_ascii_digit()))
        .filter_map(|digits| String::from_utf8(digits.copied().collect()).ok()?.parse::<u32>().ok())
        .max();
    let minor = newest.context("a dynamic program without versions of glibc")?;
    Ok(format!("Depends: libc6 (>= 2.{minor}), libgcc-s1\nRecommends: fuse3"))
}

/// Makes the package of Debian. Returns its name.
pub fn debian(release: &Release, licenses: &str) -> Result<String> {
    let tree = release.dir.join("work/debian");
    let doc = tree.join("usr/share/doc/ivers");
    let places = Places {
        root: &tree,
        man: "usr/share/man/man1",
        bash: "usr/share/bash-completion/completions/ivers",
        zsh: "usr/share/zsh/vendor-completions/_ivers",
        fish: "usr/share/fish/vendor_completions.d/ivers.fish",
        units: "usr/lib/systemd/system",
        doc: "usr/share/doc/ivers",
    };
    copy(&release.binary, &tree.join("usr/bin/ivers"))?;
    fs::create_dir_all(tree.join("usr/libexec/ivers"))?;
    symlink("../../bin/ivers", tree.join("usr/libexec/ivers/fuse2fs")).context("the link fuse2fs")?;
    fill(release, &places)?;

    let template = |name: &str| {
        let path = Path::new("packaging/debian").join(name);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    let mit = fs::read_to_string("LICENSE-MIT")?;
    let mit = mit.lines().map(|line| if line.is_empty() { " .".to_owned() } else { format!(" {line}") });
    let copyright = template("copyright.in")?.replace("@MIT@", &mit.collect::<Vec<_>>().join("\n"));
    write(&doc.join("copyright"), copyright)?;
    write(&doc.join("third-party-licenses.txt"), licenses)?;
    let control = template("control.in")?;
    let maintainer = control
        .lines()
        .find_map(|line| line.strip_prefix("Maintainer: "))
        .context("packaging/debian/control.in names no maintainer")?;
    let date = call("date", ["-u", "-R", "-d", &format!("@{}", release.epoch)])?;
    let changelog = format!(
        "ivers ({}) unstable; urgency=medium\n\n  * The changes are in CHANGELOG.md beside this file.\n\n \
         -- {maintainer}  {}\n",
        release.version,
        date.trim()
    );
    write(&doc.join("changelog"), changelog)?;
    for name in ["third-party-licenses.txt", "changelog"] {
        compress(&doc.join(name))?;
    }
    if is_static(&release.binary)? {
        write(&tree.join("usr/share/lintian/overrides/ivers"), template("lintian-overrides")?)?;
    }

    let bytes = settle(&tree, &release.epoch)?;
    let depends = depends(&release.binary)?;
    let control = control
        .replace("@VERSION@", &release.version)
        .replace("@ARCHITECTURE@", &release.architecture)
        .replace("@SIZE@", &bytes.div_ceil(1024).to_string())
        .replace("@DEPENDS@", &depends);
    let mut sums = String::new();
    for file in regular_files(&tree)? {
        let sum = call("md5sum", [&file])?;
        let name = file.strip_prefix(&tree)?.display();
        sums += &format!("{}  {name}\n", sum.split_whitespace().next().unwrap_or_default());
    }
    write(&tree.join("DEBIAN/control"), control)?;
    write(&tree.join("DEBIAN/md5sums"), sums)?;
    settle(&tree.join("DEBIAN"), &release.epoch)?;
    let name = format!("ivers_{}_{}.deb", release.version, release.architecture);
    let epoch = format!("SOURCE_DATE_EPOCH={}", release.epoch);
    let (tree, to) = (tree.display().to_string(), release.dir.join(&name).display().to_string());
    call("env", [&epoch, "dpkg-deb", "--build", "--root-owner-group", "-Zxz", &tree, &to])?;
    Ok(name)
}

/// Returns the regular files below `dir` in order.
fn regular_files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            found.extend(regular_files(&path)?);
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Makes the archive: the same files, to be unpacked anywhere. Returns its name.
pub fn archive(release: &Release, licenses: &str) -> Result<String> {
    let machine = call("uname", ["-m"])?;
    let folder = format!("ivers-{}-{}-linux", release.version, machine.trim());
    let tree = release.dir.join("work").join(&folder);
    let places = Places {
        root: &tree,
        man: "share/man/man1",
        bash: "share/bash-completion/completions/ivers",
        zsh: "share/zsh/site-functions/_ivers",
        fish: "share/fish/vendor_completions.d/ivers.fish",
        units: "lib/systemd/system",
        doc: "share/doc/ivers",
    };
    copy(&release.binary, &tree.join("bin/ivers"))?;
    fill(release, &places)?;
    for name in ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy(name, &tree.join(name))?;
    }
    write(&tree.join("third-party-licenses.txt"), licenses)?;
    settle(&tree, &release.epoch)?;
    let name = format!("{folder}.tar.gz");
    let (work, to) = (release.dir.join("work"), release.dir.join(&name));
    let sorted = ["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-I", "gzip -9n", "-C"];
    let words = sorted.iter().map(OsStr::new);
    let rest = [work.as_os_str(), OsStr::new("-cf"), to.as_os_str(), OsStr::new(&folder)];
    call("tar", words.chain(rest))?;
    Ok(name)
}
