//! Attribute intents of parent pointers, as Linux logs them.
//!
//! | offset in the first region | bytes | contents |
//! |---|---|---|
//! | 4 | 4 | `alfi_igen`: the generation of the inode |
//! | 16 | 8 | `alfi_ino` |
//! | 24 | 4 | `alfi_op_flags`: the operation in the lowest byte |
//! | 28, 30 | 2, 2 | lengths of the old and of the new name, or one length in 4 bytes |
//! | 32 | 4 | `alfi_value_len`: of each value |
//! | 36 | 4 | `alfi_attr_filter`: the namespace |
//!
//! Names follow, and then values, in a region each.

use crate::layout::attribute::flags;
use crate::layout::bytes::array;

/// Operations on attributes of users, on which only kernels for developers log intents.
const USERS: [u32; 3] = [1, 2, 3];
/// Operations on parent pointers.
const SET: u32 = 4;
const REMOVE: u32 = 5;
const REPLACE: u32 = 6;
/// The bits with the operation.
const OPERATION: u32 = 0xFF;

const NAME_MAX: usize = 255;
/// Inode and generation of a directory.
const VALUE_BYTES: usize = 12;

/// A parent pointer: a name, and the directory that has it.
pub(crate) type Pointer<'a> = (&'a [u8], &'a [u8]);

/// What an intent promises.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ParentIntent<'a> {
    pub ino: u64,
    pub generation: u32,
    /// What goes.
    pub old: Option<Pointer<'a>>,
    /// What comes.
    pub new: Option<Pointer<'a>>,
}

impl<'a> ParentIntent<'a> {
    /// Decodes the regions of an attribute intent; `None` if it changes an attribute of a user.
    pub(crate) fn decode(regions: &'a [Vec<u8>]) -> Result<Option<Self>, String> {
        let cut = || "an attribute intent is too short".to_owned();
        let head = regions.first().ok_or_else(cut)?;
        let word = |at| array(head, at).map(u32::from_le_bytes).ok_or_else(cut);
        let half = |at| array(head, at).map(u16::from_le_bytes).map(usize::from).ok_or_else(cut);
        let generation = word(4)?;
        let ino = array(head, 16).map(u64::from_le_bytes).ok_or_else(cut)?;
        let operation = word(24)? & OPERATION;
        let one_name = word(28)? as usize;
        let (old_name, new_name) = (half(28)?, half(30)?);
        let (value_len, namespace) = (word(32)? as usize, word(36)?);
        if USERS.contains(&operation) {
            return Ok(None);
        }
        let lens = match operation {
            SET | REMOVE => vec![one_name],
            REPLACE => vec![old_name, new_name],
            _ => return Err(format!("an attribute intent has the operation {operation}")),
        };
        let valid = lens.iter().all(|len| (1..=NAME_MAX).contains(len));
        if !valid || value_len != VALUE_BYTES || namespace != flags::PARENT.into() {
            return Err("an intent of a parent pointer is impossible".into());
        }
        // A region may be padded.
        let region = |at: usize, len| regions.get(at).and_then(|region| region.get(..len)).ok_or_else(cut);
        let count = lens.len();
        let pointer =
            |nth: usize| Ok::<_, String>((region(1 + nth, lens[nth])?, region(1 + count + nth, value_len)?));
        let first = Some(pointer(0)?);
        let (old, new) = match operation {
            SET => (None, first),
            REMOVE => (first, None),
            _ => (first, Some(pointer(1)?)),
        };
        Ok(Some(Self { ino, generation, old, new }))
    }
}

/// The regions of an intent.
#[cfg(test)]
pub(crate) fn regions(
    (ino, generation): (u64, u32),
    old: Option<Pointer<'_>>,
    new: Option<Pointer<'_>>,
) -> Vec<Vec<u8>> {
    let both: Vec<Pointer<'_>> = old.into_iter().chain(new).collect();
    let operation = match (old, new) {
        (None, _) => SET,
        (_, None) => REMOVE,
        _ => REPLACE,
    };
    let mut head = vec![0x46, 0x12, 1 + 2 * both.len() as u8, 0];
    head.extend(generation.to_le_bytes());
    head.extend([7; 8]);
    head.extend(ino.to_le_bytes());
    head.extend(operation.to_le_bytes());
    head.extend((both[0].0.len() as u16).to_le_bytes());
    head.extend((both.get(1).map_or(0, |pointer| pointer.0.len()) as u16).to_le_bytes());
    head.extend([VALUE_BYTES as u32, flags::PARENT.into()].iter().flat_map(|word| word.to_le_bytes()));
    let padded = |name: &[u8]| [name, &[0, 0, 0][..name.len().next_multiple_of(4) - name.len()]].concat();
    let names = both.iter().map(|pointer| padded(pointer.0));
    let values = both.iter().map(|pointer| pointer.1.to_vec());
    [head].into_iter().chain(names).chain(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intents_decode() {
        let (one, two) = ((&b"name"[..], &[1; 12][..]), (&b"other name"[..], &[2; 12][..]));
        for (old, new) in [(None, Some(one)), (Some(one), None), (Some(two), Some(one))] {
            let mut regions = regions((131, 5), old, new);
            let expected = ParentIntent { ino: 131, generation: 5, old, new };
            assert_eq!(ParentIntent::decode(&regions), Ok(Some(expected)));
            let last = regions.len() - 1;
            regions[last].truncate(11);
            assert!(ParentIntent::decode(&regions).is_err(), "a value is cut off");
            assert!(ParentIntent::decode(&regions[..last]).is_err(), "a value is missing");
        }
    }

    #[test]
    fn impossible_intents_are_refused() {
        let whole = regions((131, 5), None, Some((b"name", &[1; 12])));
        let with = |at: usize, byte: u8| {
            let mut regions = whole.clone();
            regions[0][at] = byte;
            regions
        };
        // An operation, a length of a name and of a value, a namespace.
        for (at, byte) in [(24, 7), (24, 0), (28, 0), (29, 1), (32, 13), (36, 2)] {
            assert!(ParentIntent::decode(&with(at, byte)).is_err(), "{at}");
        }
        assert!((0..40).all(|len| ParentIntent::decode(&[whole[0][..len].to_vec()]).is_err()));
        assert!(ParentIntent::decode(&[]).is_err());
        assert_eq!(ParentIntent::decode(&with(24, 1)), Ok(None), "an attribute of a user");
    }
}
