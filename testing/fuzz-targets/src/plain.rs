//! Targets whose input is the structure itself.

use crate::input::Input;
use ivers::state_format::{self, Header, Identity, Record};
use ivers_ext4::layout::{GroupDesc, Superblock, csum};
use ivers_vfs::epoch::{self, EpochRecord, Found, OtherWriters, RECORD_LEN};

/// Takes a superblock with a corrected checksum, in an image of any size; or patches of valid ones.
pub fn superblock(input: &[u8]) {
    let mut rest = Input::new(input);
    if rest.byte() & 1 == 0 {
        return crate::work::run(&input[input.len().min(1)..], crate::SUPERBLOCK);
    }
    let device_len = 1u64 << (rest.byte() % 64);
    let mut bytes = vec![0; 1024];
    let given = rest.bytes(1024);
    bytes[..given.len()].copy_from_slice(given);
    let sum = csum::crc32c(!0, &bytes[..1020]);
    bytes[1020..].copy_from_slice(&sum.to_le_bytes());
    let Ok(sb) = Superblock::parse(&bytes, device_len, "image") else { return };
    for group in
        [0, 1, 2, 3, 5, 7, 49, sb.groups() / 2, sb.groups() - 1].into_iter().filter(|&g| g < sb.groups())
    {
        let (_, byte) = sb.desc_place(group);
        assert!(byte + sb.desc_size as usize <= sb.block_size as usize, "a descriptor crosses a block");
        let first = sb.group_first_block(group);
        assert!(first.0 < sb.blocks_count() && sb.group_of_block(first).0 == group);
        assert!(sb.group_blocks(group) > 0);
        sb.base_meta_blocks(group);
        let mut desc = vec![0; sb.desc_size as usize];
        let more = rest.bytes(desc.len());
        desc[..more.len()].copy_from_slice(more);
        if let Some(decoded) = GroupDesc::decode(&sb, group, &desc) {
            decoded.encode(&sb, group, &mut desc);
            assert_eq!(GroupDesc::decode(&sb, group, &desc), Some(decoded));
        }
    }
    assert!(sb.group_of_inode(sb.inodes_count()).0 == sb.groups() - 1);
}

/// Takes an epoch record, with or without a valid checksum, and the decision of a mount.
pub fn epoch(input: &[u8]) {
    let mut rest = Input::new(input);
    let flags = rest.byte();
    let mut uuid = [0; 16];
    uuid.fill(rest.byte());
    let mut fingerprint = [0; 16];
    fingerprint.chunks_exact_mut(4).for_each(|field| field[..2].copy_from_slice(&rest.word().to_le_bytes()));
    let mut record = rest.bytes(RECORD_LEN + usize::from(flags & 1)).to_vec();
    if flags & 2 != 0 && record.len() == RECORD_LEN {
        // The record's checksum is inverted at both ends.
        let sum = !csum::crc32c(!0, &record[..RECORD_LEN - 4]);
        record[RECORD_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
    }
    if let Ok(decoded) = EpochRecord::decode(&record) {
        assert_eq!(EpochRecord::decode(&decoded.encode()), Ok(decoded));
    }
    let (clean, trust_foreign) = (flags & 4 != 0, flags & 8 != 0);
    let read_only = flags & 16 != 0;
    let others = match flags >> 5 & 3 {
        0 => OtherWriters::ByFingerprint,
        known => OtherWriters::Known([None, Some(false), Some(true)][usize::from(known - 1)]),
    };
    let found = Found { record: Some(&record), uuid, fingerprint, clean, trust_foreign, read_only, others };
    if let (Ok(decision), Ok(stored)) = (epoch::decide(&found), EpochRecord::decode(&record)) {
        assert!(decision.epoch >= stored.epoch, "an epoch went back");
        assert!(decision.raised.is_none() || decision.epoch > stored.epoch);
        epoch::base_of(decision.epoch);
    }
}

/// Takes a file of `ivers changed`, with and without its checksum.
pub fn saved_state(input: &[u8]) {
    let _ = state_format::decode(input);
    if let Some(state) = state_format::decode(&state_format::seal(input.to_vec())) {
        assert_eq!(state_format::decode(&state_format::encode(&state)).as_ref(), Some(&state));
    }
}

/// Returns the fuzz inputs of [`saved_state`].
pub fn states() -> Vec<Vec<u8>> {
    let header = Header { instance: "00ff".into(), ..Header::default() };
    let files = [("a", Some(1)), ("a/b", Some(u64::MAX >> 1)), ("a/bc", None), ("z", Some(0))];
    let record = |(path, change): (&str, _)| {
        let identity = Identity { ino: 12, generation: u32::MAX, change };
        (path.into(), Record { identity, is_dir: path == "a" })
    };
    let whole = [(header.clone(), Vec::new()), (header, files.map(record).to_vec())];
    let mut states: Vec<_> = whole.iter().map(state_format::encode).collect();
    // Without the checksum at the end.
    let bodies: Vec<_> = states.iter().map(|state| state[..state.len() - 8].to_vec()).collect();
    states.extend(bodies);
    states
}
