//! A tree as text, one file a line: names, contents, modes, owners, times, extended attributes and links. Two
//! mounts of one image give equal texts on any server; a different line shows the difference.

use std::collections::HashMap;
use std::fs;
use std::hash::Hasher;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::io::Errno;

/// The properties to omit.
#[derive(Debug, Clone, Copy, Default)]
pub struct TreeOptions {
    /// Omit modification and change times.
    pub no_times: bool,
    /// Omit `trusted.*`, which only root sees.
    pub no_trusted: bool,
}

/// Returns the text of a tree, sorted by path, without access times, which reading changes.
pub fn tree(root: &Path, options: TreeOptions) -> Result<String> {
    let mut paths = vec![PathBuf::new()];
    let mut next = 0;
    while next < paths.len() {
        let path = root.join(&paths[next]);
        if fs::symlink_metadata(&path).with_context(|| path.display().to_string())?.is_dir() {
            for entry in fs::read_dir(&path).with_context(|| path.display().to_string())? {
                let child = paths[next].join(entry?.file_name());
                paths.push(child);
            }
        }
        next += 1;
    }
    paths.sort();
    let mut first_names: HashMap<u64, PathBuf> = HashMap::new();
    let mut text = String::new();
    for path in paths {
        text.push_str(
            &line(root, &path, options, &mut first_names).with_context(|| path.display().to_string())?,
        );
        text.push('\n');
    }
    Ok(text)
}

fn line(root: &Path, path: &Path, options: TreeOptions, first: &mut HashMap<u64, PathBuf>) -> Result<String> {
    let full = root.join(path);
    let meta = fs::symlink_metadata(&full)?;
    let mut line = format!(
        "{} {:o} {}:{}",
        path.as_os_str().as_bytes().escape_ascii(),
        meta.mode(),
        meta.uid(),
        meta.gid()
    );
    if !meta.is_dir() {
        line += &format!(" links={} size={}", meta.nlink(), meta.size());
    }
    if !options.no_times {
        line += &format!(
            " mtime={}.{:09} ctime={}.{:09}",
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime(),
            meta.ctime_nsec()
        );
    }
    if meta.nlink() > 1 && !meta.is_dir() {
        let name = first.entry(meta.ino()).or_insert_with(|| path.to_owned());
        line += &format!(" as={}", name.as_os_str().as_bytes().escape_ascii());
    }
    if meta.is_symlink() {
        line += &format!(" -> {}", fs::read_link(&full)?.as_os_str().as_bytes().escape_ascii());
    } else if meta.is_file() {
        line += &format!(" data={:016x}", digest(&full)?);
    } else if !meta.is_dir() {
        line += &format!(" rdev={:x}", meta.rdev());
    }
    let mut names: Vec<_> = match xattr::list(&full) {
        // NFSv4.0 and 4.1 have none.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => Vec::new(),
        listed => listed?.collect(),
    };
    names.sort();
    for name in names {
        let shown = name.as_bytes();
        // Omits our own attributes: other drivers show the record, ours hides it.
        if shown.starts_with(b"trusted.ivers.") || (options.no_trusted && shown.starts_with(b"trusted.")) {
            continue;
        }
        let value = xattr::get(&full, &name)?.unwrap_or_default();
        line += &format!(" {}={}", shown.escape_ascii(), value.escape_ascii());
    }
    Ok(line)
}

/// Returns a 64-bit hash of the contents; it detects differences, but not forgery.
fn digest(path: &Path) -> Result<u64> {
    let mut file = fs::File::open(path)?;
    let mut hasher = std::hash::DefaultHasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let mut filled = 0;
        // Fills whole buffers, so that short reads do not change the hash.
        while filled < buffer.len() {
            match file.read(&mut buffer[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        if filled == 0 {
            return Ok(hasher.finish());
        }
        hasher.write(&buffer[..filled]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_trees_have_equal_texts() {
        let dirs: Vec<_> = (0..2).map(|_| tempfile::tempdir().unwrap()).collect();
        let options = TreeOptions { no_times: true, no_trusted: true };
        for dir in &dirs {
            fs::create_dir(dir.path().join("d")).unwrap();
            fs::write(dir.path().join("d/f"), "contents").unwrap();
            fs::hard_link(dir.path().join("d/f"), dir.path().join("second")).unwrap();
            std::os::unix::fs::symlink("d/f", dir.path().join("link")).unwrap();
        }
        let texts: Vec<_> = dirs.iter().map(|dir| tree(dir.path(), options).unwrap()).collect();
        assert_eq!(texts[0], texts[1]);
        assert!(texts[0].contains("as=d/f"), "{}", texts[0]);
        fs::write(dirs[1].path().join("d/f"), "Contents").unwrap();
        assert_ne!(texts[0], tree(dirs[1].path(), options).unwrap());
    }
}
