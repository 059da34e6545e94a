//! The names of a directory, sorted, in little memory: a directory can have millions.

/// The names of a directory. Each takes its bytes and 10 more, and what is known of its file.
#[derive(Debug)]
pub struct SortedNames<Known = ()> {
    /// Each name after its length.
    bytes: Vec<u8>,
    /// Where the length of each name starts, and what is known of its file, the first name last.
    starts: Vec<(usize, Known)>,
}

/// Returns the name at `start`, where its length is, followed by its bytes.
fn at(bytes: &[u8], start: usize) -> &[u8] {
    let len = u16::from_le_bytes([bytes[start], bytes[start + 1]]);
    &bytes[start + 2..][..usize::from(len)]
}

impl<Known> SortedNames<Known> {
    /// Returns the first name.
    pub fn first(&self) -> Option<&[u8]> {
        self.starts.last().map(|(start, _)| at(&self.bytes, *start))
    }

    /// Removes the first name. Returns also what is known of its file.
    pub fn remove_first_known(&mut self) -> Option<(Vec<u8>, Known)> {
        let (start, known) = self.starts.pop()?;
        Some((at(&self.bytes, start).to_vec(), known))
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.starts.len()
    }
}

impl SortedNames {
    /// Removes the first name.
    pub fn remove_first(&mut self) -> Option<Vec<u8>> {
        self.remove_first_known().map(|(name, ())| name)
    }
}

/// Names that are still collected.
#[derive(Debug)]
pub struct Unsorted<Known = ()>(SortedNames<Known>);

impl<Known> Default for Unsorted<Known> {
    fn default() -> Self {
        Self(SortedNames { bytes: Vec::new(), starts: Vec::new() })
    }
}

impl<Known> Unsorted<Known> {
    /// Adds a name, with what is known of its file. No filesystem has names of more than 65,535 bytes: of
    /// such a name the rest is cut.
    pub fn push_known(&mut self, name: &[u8], known: Known) {
        let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        self.0.starts.push((self.0.bytes.len(), known));
        self.0.bytes.extend_from_slice(&len.to_le_bytes());
        self.0.bytes.extend_from_slice(&name[..usize::from(len)]);
    }

    /// Ends the collection.
    pub fn sort(self) -> SortedNames<Known> {
        let SortedNames { mut bytes, mut starts } = self.0;
        starts.sort_unstable_by(|(a, _), (b, _)| at(&bytes, *b).cmp(at(&bytes, *a)));
        bytes.shrink_to_fit();
        starts.shrink_to_fit();
        SortedNames { bytes, starts }
    }
}

impl Unsorted {
    /// Adds a name.
    pub fn push(&mut self, name: &[u8]) {
        self.push_known(name, ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_out_sorted() {
        let words = ["b", "", "a.b", "a", "B", "a/"];
        let mut collected = Unsorted::default();
        words.iter().for_each(|word| collected.push(word.as_bytes()));
        let mut names = collected.sort();
        assert_eq!((names.len(), names.first()), (6, Some(&b""[..])));
        let sorted: Vec<_> = std::iter::from_fn(|| names.remove_first()).collect();
        assert_eq!(sorted, ["", "B", "a", "a.b", "a/", "b"].map(|word| word.as_bytes().to_vec()));
        assert_eq!((names.len(), names.first()), (0, None));
    }

    #[test]
    fn a_name_keeps_what_is_known_of_its_file() {
        let mut collected = Unsorted::default();
        [("b", 1), ("a", 2), ("a.b", 3)].iter().for_each(|(name, known)| {
            collected.push_known(name.as_bytes(), *known);
        });
        let mut names = collected.sort();
        let sorted: Vec<_> = std::iter::from_fn(|| names.remove_first_known()).collect();
        assert_eq!(sorted, [("a", 2), ("a.b", 3), ("b", 1)].map(|(name, known)| (name.into(), known)));
    }
}
