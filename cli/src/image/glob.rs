//! Patterns in paths of an image, such as `/etc/*.conf`: `*`, `?` and `[a-z]` match within one name.
//!
//! A name that exists literally wins, also if it contains such characters. A leading dot is matched by a dot
//! only. Where the format ignores case, so do patterns.

use std::path::Path;

use anyhow::{Context, Result};
use ivers_vfs::{Cred, Error, FileType, InodeRef, NameError, Vfs};

use super::directory::names;
use crate::arguments::{image_path, join};
use crate::output::failure::{FAILED, NOT_FOUND, failure, usage};
use crate::pattern::{Pattern, Rules, Text};

/// Most files that one pattern may match.
const MATCHES_MAX: usize = 100_000;
/// Most bytes of all paths that one pattern may match.
const PATHS_MAX: usize = 64 << 20;
/// Most names that one pattern may be compared with.
const NAMES_MAX: u64 = 10_000_000;

/// Returns whether a path contains a pattern.
pub fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[".contains(byte))
}

/// Returns the paths that `path` matches, sorted. A path without a pattern is returned as it is, whether or
/// not it exists.
pub fn expand(vfs: &Vfs, image: &Path, path: &[u8]) -> Result<Vec<Vec<u8>>> {
    if !is_pattern(path) || vfs.resolve(&Cred::root(), path, false).is_ok() {
        return Ok(vec![path.to_vec()]);
    }
    let found = Search { vfs, image, path, names: 0 }.run()?;
    if found.is_empty() {
        return Err(failure(NOT_FOUND, format!("{}: no file matches the pattern", image_path(image, path))));
    }
    Ok(found)
}

struct Search<'a> {
    vfs: &'a Vfs,
    image: &'a Path,
    path: &'a [u8],
    /// The number of names that were compared.
    names: u64,
}

impl Search<'_> {
    fn run(mut self) -> Result<Vec<Vec<u8>>> {
        let parts = self.path.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        let mut found = vec![b"/".to_vec()];
        for part in parts {
            found = self.step(&found, part)?;
        }
        if self.path.ends_with(b"/") {
            found.retain(|path| self.dir(path).is_ok_and(|dir| dir.is_some()));
        }
        Ok(found)
    }

    /// Returns the paths in the directories `dirs` whose names match `part`.
    fn step(&mut self, dirs: &[Vec<u8>], part: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut found = Vec::new();
        let mut bytes = 0;
        let pattern = is_pattern(part).then(|| self.pattern(part)).transpose()?;
        for path in dirs {
            let Some(pattern) = &pattern else {
                let path = join(path, part);
                match self.vfs.resolve(&Cred::root(), &path, false) {
                    Ok(_) => found.push(path),
                    Err(Error::Name(NameError::NotFound | NameError::NotDirectory)) => {}
                    Err(error) => return Err(error).with_context(|| image_path(self.image, &path)),
                }
                continue;
            };
            let Some(dir) = self.dir(path)? else { continue };
            let mut names = names(self.vfs, &dir).with_context(|| image_path(self.image, path))?;
            while let Some(name) = names.remove_first() {
                self.names += 1;
                if self.names > NAMES_MAX {
                    return Err(
                        self.too_much(&format!("has to be compared with more than {NAMES_MAX} names"))
                    );
                }
                if self.matches(pattern, &name) {
                    let path = join(path, &name);
                    bytes += path.len();
                    found.push(path);
                }
                if found.len() > MATCHES_MAX || bytes > PATHS_MAX {
                    return Err(self.too_much(&format!("matches more than {MATCHES_MAX} files")));
                }
            }
        }
        Ok(found)
    }

    fn dir(&self, path: &[u8]) -> Result<Option<InodeRef>> {
        match self.vfs.resolve(&Cred::root(), path, true) {
            Ok(inode) => Ok(Some(inode).filter(|inode| inode.kind == FileType::Directory)),
            // A dangling link, or a link in a circle.
            Err(Error::Name(_)) => Ok(None),
            Err(error) => Err(error).with_context(|| image_path(self.image, path)),
        }
    }

    fn pattern(&self, part: &[u8]) -> Result<Pattern> {
        Pattern::new(part).map_err(|why| usage(format!("{}: {why}", image_path(self.image, self.path))))
    }

    fn matches(&self, pattern: &Pattern, name: &[u8]) -> bool {
        let case_sensitive = !self.vfs.info().names_alias;
        pattern.matches(&Text::new(name), Rules { case_sensitive, literal_leading_dot: true })
    }

    fn too_much(&self, what: &str) -> anyhow::Error {
        let name = image_path(self.image, self.path);
        failure(FAILED, format!("{name}: the pattern {what}; use a narrower one"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_mem::Mem;
    use ivers_vfs::{CreateSpec, MountOptions};
    use std::sync::Arc;

    fn expanded(vfs: &Vfs, path: &str) -> Result<Vec<String>> {
        let paths = expand(vfs, Path::new("image"), path.as_bytes())?;
        Ok(paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect())
    }

    #[test]
    fn patterns_match_names_and_literal_names_win() {
        let vfs = Vfs::mount(Arc::new(Mem::new(16 << 20)), MountOptions::default()).unwrap();
        let (cred, root) = (Cred::root(), vfs.root().unwrap());
        let dir =
            |name: &[u8]| vfs.create(&cred, &root, name, &CreateSpec::directory(0o755), false).unwrap().0;
        let (etc, usr) = (dir(b"etc"), dir(b"usr"));
        for (dir, name) in [(&etc, "a.conf"), (&etc, ".b.conf"), (&etc, "c"), (&usr, "c"), (&root, "[c]")] {
            vfs.create(&cred, dir, name.as_bytes(), &CreateSpec::file(0o644), false).unwrap();
        }
        vfs.create(&cred, &root, b"link", &CreateSpec::symlink("etc"), false).unwrap();
        vfs.create(&cred, &etc, b"d\xff", &CreateSpec::file(0o644), false).unwrap();
        for (pattern, paths) in [
            ("/etc/*.conf", &["/etc/a.conf"][..]),
            ("/etc/.*", &["/etc/.b.conf"]),
            ("/*/c", &["/etc/c", "/link/c", "/usr/c"]),
            ("/[eu]??/c", &["/etc/c", "/usr/c"]),
            ("/[c]", &["/[c]"]),
            ("/et[!d]/", &["/etc"]),
            ("/li**", &["/link"]),
            ("/etc/nothing", &["/etc/nothing"]),
        ] {
            assert_eq!(expanded(&vfs, pattern).unwrap(), paths, "{pattern}");
        }
        for pattern in [&b"/etc/d?"[..], b"/[e]tc/d\xff", b"/etc/d[\xf0-\xff]"] {
            let found = expand(&vfs, Path::new("image"), pattern).unwrap();
            assert_eq!(found, [b"/etc/d\xff".to_vec()], "{}", pattern.escape_ascii());
        }
        assert!(expand(&vfs, Path::new("image"), "/[e]tc/d\u{fffd}".as_bytes()).is_err());
        for (pattern, code) in [("/etc/*.x", NOT_FOUND), ("/etc/C*", NOT_FOUND), ("/etc/[", 2)] {
            let error = expanded(&vfs, pattern).unwrap_err();
            assert_eq!(crate::output::failure::code(&error), code, "{pattern}: {error}");
        }
    }
}
