//! Intents of mappings, as Linux logs them when it shares blocks or ends copy on write.
//!
//! | offset in the region | bytes | contents |
//! |---|---|---|
//! | 4 | 4 | `bui_nextents`: 1 |
//! | 16 | 8 | `me_owner`: the inode |
//! | 24 | 8 | `me_startblock` |
//! | 32 | 8 | `me_startoff`, in blocks of the file |
//! | 40 | 4 | `me_len`, in blocks |
//! | 44 | 4 | `me_flags`: the operation in the lowest byte, the fork, the state |

use crate::fork::{Extent, Which};
use crate::layout::bytes::array;
use crate::layout::dinode::{EXTENT_MAX, FILE_BLOCKS_END};
use crate::layout::superblock::FsBlock;
use ivers_block::FileBlock;

const MAP: u32 = 1;
const UNMAP: u32 = 2;
/// The bits with the operation.
const OPERATION: u32 = 0xFF;
const ATTRIBUTE_FORK: u32 = 1 << 31;
const UNWRITTEN: u32 = 1 << 30;
const REALTIME: u32 = 1 << 29;

/// What an intent promises: an extent that comes to a file, or leaves it. The blocks keep their contents.
/// Other intents change their references.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MappingIntent {
    pub ino: u64,
    pub which: Which,
    pub extent: Extent,
    pub removes: bool,
}

impl MappingIntent {
    /// Decodes the regions of an intent.
    pub(crate) fn decode(regions: &[Vec<u8>]) -> Result<Self, String> {
        let cut = || "an intent of a mapping is too short".to_owned();
        let [region] = regions else { return Err("an intent of a mapping has several regions".into()) };
        let word = |at| array(region, at).map(u32::from_le_bytes).ok_or_else(cut);
        let long = |at| array(region, at).map(u64::from_le_bytes).ok_or_else(cut);
        let (ino, start, at) = (long(16)?, long(24)?, long(32)?);
        let (len, flags) = (word(40)?, word(44)?);
        let is_whole = at.checked_add(len.into()).is_some_and(|end| end <= FILE_BLOCKS_END);
        if word(4)? != 1 || !(1..=EXTENT_MAX).contains(&len) || !is_whole || flags & REALTIME != 0 {
            return Err("an intent of a mapping is impossible".into());
        }
        let removes = match flags & OPERATION {
            MAP => false,
            UNMAP => true,
            other => return Err(format!("an intent of a mapping has the operation {other}")),
        };
        let which = if flags & ATTRIBUTE_FORK != 0 { Which::Attributes } else { Which::Data };
        let unwritten = flags & UNWRITTEN != 0;
        let extent = Extent { file_block: FileBlock(at), start: FsBlock(start), len: len.into(), unwritten };
        Ok(Self { ino, which, extent, removes })
    }
}

/// The regions of an intent.
#[cfg(test)]
pub(crate) fn regions(id: u64, intent: &MappingIntent) -> Vec<Vec<u8>> {
    let MappingIntent { ino, which, extent, removes } = intent;
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let flags = if *removes { UNMAP } else { MAP }
        | flag(*which == Which::Attributes, ATTRIBUTE_FORK)
        | flag(extent.unwritten, UNWRITTEN);
    let mut region = vec![0x44, 0x12, 1, 0, 1, 0, 0, 0];
    for long in [id, *ino, extent.start.0, extent.file_block.0] {
        region.extend(long.to_le_bytes());
    }
    region.extend((extent.len as u32).to_le_bytes());
    region.extend(flags.to_le_bytes());
    vec![region]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intent() -> MappingIntent {
        let extent = Extent { file_block: FileBlock(7), start: FsBlock(900), len: 3, unwritten: true };
        MappingIntent { ino: 131, which: Which::Data, extent, removes: false }
    }

    #[test]
    fn intents_decode() {
        for (removes, which) in [(false, Which::Data), (true, Which::Data), (true, Which::Attributes)] {
            let expected = MappingIntent { removes, which, ..intent() };
            assert_eq!(MappingIntent::decode(&regions(5, &expected)), Ok(expected));
        }
    }

    #[test]
    fn impossible_intents_are_refused() {
        let whole = regions(5, &intent());
        assert!((0..whole[0].len()).all(|len| MappingIntent::decode(&[whole[0][..len].to_vec()]).is_err()));
        assert!(MappingIntent::decode(&[]).is_err());
        assert!(MappingIntent::decode(&[whole.clone(), whole.clone()].concat()).is_err());
        // Two extents, a place behind the end of every file, no blocks, too many, an operation, real time.
        for (at, byte) in [(4, 2), (39, 1), (40, 0), (43, 1), (44, 3), (47, 0x60)] {
            let mut bytes = whole[0].clone();
            bytes[at] = byte;
            assert!(MappingIntent::decode(&[bytes]).is_err(), "{at}");
        }
    }
}
