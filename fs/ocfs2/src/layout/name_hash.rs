//! Hashes of names: in indexes of directories, and of extended attributes.

/// Rounds of the cipher TEA for 16 bytes of a name, and its constant.
const ROUNDS: u32 = 16;
const DELTA: u32 = 0x9E37_79B9;

/// One step of the hash: TEA with 16 bytes of the name as its key.
fn mix(state: &mut [u32; 4], key: [u32; 4]) {
    let [mut left, mut right] = [state[0], state[1]];
    let mut sum = 0u32;
    for _ in 0..ROUNDS {
        sum = sum.wrapping_add(DELTA);
        let half = |half: u32, a: u32, b: u32| {
            (half << 4).wrapping_add(a) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(b)
        };
        left = left.wrapping_add(half(right, key[0], key[1]));
        right = right.wrapping_add(half(left, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

/// The 16 bytes of a key from the rest of a name: words whose first byte is the highest. What is missing is
/// the length of the rest, in each byte.
fn key(rest: &[u8]) -> [u32; 4] {
    let pad = u32::from_le_bytes([rest.len() as u8; 4]);
    let mut words = rest[..rest.len().min(16)].chunks(4);
    std::array::from_fn(|_| {
        let word = words.next().unwrap_or_default();
        // Bytes are signed, as they are on most machines.
        word.iter().fold(pad, |value, &byte| (i32::from(byte as i8) as u32).wrapping_add(value << 8))
    })
}

/// Returns the hash of a name in an index. `.` and `..` have 0.
pub fn of_name(name: &[u8], seed: [u32; 4]) -> [u32; 2] {
    if matches!(name, b"." | b"..") {
        return [0, 0];
    }
    let mut state = seed;
    let mut rest = name;
    while !rest.is_empty() {
        mix(&mut state, key(rest));
        rest = rest.get(16..).unwrap_or_default();
    }
    [state[0], state[1]]
}

/// Returns the hash of the name of an extended attribute, without its prefix.
pub fn of_attribute(name: &[u8], seed: u32) -> u32 {
    name.iter().fold(seed, |hash, &byte| {
        // Bytes are signed, as they are on most machines.
        (hash << 5) ^ (hash >> 27) ^ i32::from(byte as i8) as u32
    })
}
