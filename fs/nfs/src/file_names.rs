//! NFSv4.0: the names by which a file can be opened, because 4.0 cannot open a filehandle.

use std::collections::VecDeque;

use ivers_nfs4::types::FileHandle;

/// The most names of a file that are remembered.
pub const NAMES_MAX: usize = 16;

/// A directory, and a name in it.
pub type FileName = (FileHandle, Vec<u8>);

/// The known names of a file, the newest first.
#[derive(Debug, Default)]
pub struct FileNames(VecDeque<FileName>);

impl FileNames {
    /// Remembers a name as the newest one. Forgets the oldest one if there are too many.
    pub fn note(&mut self, dir: &FileHandle, name: &[u8]) {
        if self.0.front().is_some_and(|newest| newest.0 == *dir && newest.1 == name) {
            return;
        }
        self.forget(dir, name);
        self.0.truncate(NAMES_MAX - 1);
        self.0.push_front((dir.clone(), name.to_vec()));
    }

    /// Forgets a name: it is gone, or has become that of another file.
    pub fn forget(&mut self, dir: &FileHandle, name: &[u8]) {
        self.0.retain(|known| known.0 != *dir || known.1 != name);
    }

    /// Returns the names, the newest first.
    pub fn all(&self) -> Vec<FileName> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_nfs4::types::Opaque;

    #[test]
    fn the_newest_names_are_remembered() {
        let dirs: [FileHandle; 2] = [Opaque(b"d".to_vec()), Opaque(b"e".to_vec())];
        let mut names = FileNames::default();
        let all = |names: &FileNames| names.all().into_iter().map(|(_, name)| name).collect::<Vec<_>>();
        names.note(&dirs[0], b"a");
        names.note(&dirs[0], b"b");
        names.note(&dirs[1], b"a");
        assert_eq!(all(&names), [b"a", b"b", b"a"], "the same name in two directories");
        names.note(&dirs[0], b"b");
        names.note(&dirs[0], b"b");
        assert_eq!(all(&names), [b"b", b"a", b"a"], "it is the newest one again");
        names.forget(&dirs[1], b"a");
        names.forget(&dirs[1], b"b");
        assert_eq!(all(&names), [b"b", b"a"]);
        (0..NAMES_MAX as u8 - 1).for_each(|nth| names.note(&dirs[1], &[nth]));
        assert_eq!((names.all().len(), &*names.all()[NAMES_MAX - 1].1), (NAMES_MAX, &b"b"[..]));
    }
}
