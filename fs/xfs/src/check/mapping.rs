//! Who owns blocks, in the form of the reverse map.

use crate::layout::owner::Owner;

/// A run of blocks of a group, and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) owner: Owner,
}

/// Sorts mappings by owner, and joins those that continue each other.
pub(super) fn join(mappings: &mut Vec<Mapping>) {
    mappings.sort_unstable_by_key(|mapping| (mapping.owner, mapping.start));
    mappings.dedup_by(|next, last| {
        let end = u64::from(last.start) + u64::from(last.len);
        let joins = end == u64::from(next.start) && last.owner.after(last.len.into()) == next.owner;
        match last.len.checked_add(next.len) {
            Some(len) if joins => {
                last.len = len;
                true
            }
            _ => false,
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::owner::{TREE, UNWRITTEN};

    #[test]
    fn mappings_that_continue_are_joined() {
        let mapping = |start, len, owner, offset| Mapping { start, len, owner: Owner { owner, offset } };
        let mut all = vec![
            mapping(20, 5, 7, 15),
            mapping(10, 10, 7, 5),
            mapping(25, 1, 7, 20 | UNWRITTEN),
            mapping(31, 1, 7, TREE),
            mapping(30, 1, 7, TREE),
            Mapping { start: 3, len: 2, owner: Owner::SPACE },
            Mapping { start: 5, len: 2, owner: Owner::SPACE },
        ];
        join(&mut all);
        assert_eq!(
            all.iter().map(|mapping| (mapping.start, mapping.len)).collect::<Vec<_>>(),
            [(10, 15), (25, 1), (30, 2), (3, 4)]
        );
    }
}
