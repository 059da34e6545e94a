//! The names of a directory, sorted, in little memory: a directory can have millions.

/// The names of a directory. Each takes its bytes and 10 more.
#[derive(Debug, Default)]
pub struct SortedNames {
    /// Each name after its length.
    bytes: Vec<u8>,
    /// Where the length of each name starts, the first name last.
    starts: Vec<usize>,
}

impl SortedNames {
    /// The name whose entry (its length, then its bytes) begins at `start`.
    fn at(bytes: &[u8], start: usize) -> &[u8] {
        let len = u16::from_le_bytes([bytes[start], bytes[start + 1]]);
        &bytes[start + 2..][..usize::from(len)]
    }

    /// Returns the first name.
    pub fn first(&self) -> Option<&[u8]> {
        self.starts.last().map(|start| Self::at(&self.bytes, *start))
    }

    /// Removes the first name.
    pub fn remove_first(&mut self) -> Option<Vec<u8>> {
        let start = self.starts.pop()?;
        Some(Self::at(&self.bytes, start).to_vec())
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.starts.len()
    }
}

/// Names that are still collected.
#[derive(Debug, Default)]
pub struct Unsorted(SortedNames);

impl Unsorted {
    /// Adds a name. No filesystem has names of more than 65,535 bytes: of such a name the rest is cut.
    pub fn push(&mut self, name: &[u8]) {
        let len = u16::try_from(name.len()).unwrap_or(u16::MAX);
        self.0.starts.push(self.0.bytes.len());
        self.0.bytes.extend_from_slice(&len.to_le_bytes());
        self.0.bytes.extend_from_slice(&name[..usize::from(len)]);
    }

    /// Ends the collection.
    pub fn sort(self) -> SortedNames {
        let SortedNames { mut bytes, mut starts } = self.0;
        starts.sort_unstable_by(|a, b| SortedNames::at(&bytes, *b).cmp(SortedNames::at(&bytes, *a)));
        bytes.shrink_to_fit();
        starts.shrink_to_fit();
        SortedNames { bytes, starts }
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
}
