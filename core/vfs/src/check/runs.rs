//! Numbers that follow each other, joined for a report.

/// Joins numbers that come in ascending order to runs.
#[derive(Debug, Default)]
pub struct Runs {
    current: Option<(u64, u64)>,
}

impl Runs {
    /// Adds a number. Returns the run before it, first and last number, if the number does not continue it.
    pub fn push(&mut self, number: u64) -> Option<(u64, u64)> {
        match &mut self.current {
            Some((_, last)) if *last + 1 == number => {
                *last = number;
                None
            }
            _ => self.current.replace((number, number)),
        }
    }

    /// Returns the last run, first and last number.
    pub fn finish(self) -> Option<(u64, u64)> {
        self.current
    }
}

/// Names a run of blocks or inodes as the subject of a sentence, with its verb.
pub fn run_is(noun: &str, first: u64, last: u64) -> String {
    if first == last { format!("{noun} {first} is") } else { format!("{noun}s {first} to {last} are") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_joined() {
        let mut runs = Runs::default();
        let mut found: Vec<_> =
            [3, 4, 5, 9, 11, 12].into_iter().filter_map(|number| runs.push(number)).collect();
        found.extend(runs.finish());
        assert_eq!(found, [(3, 5), (9, 9), (11, 12)]);
        assert_eq!(Runs::default().finish(), None);
        assert_eq!(
            (run_is("block", 3, 3), run_is("block", 3, 5)),
            ("block 3 is".into(), "blocks 3 to 5 are".into())
        );
    }
}
