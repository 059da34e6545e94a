//! The hashes that order the names of an indexed directory: the legacy hash, half-MD4 and TEA, each over
//! signed or unsigned characters.
//!
//! A hash is a pair. The index stores the *major* half; its lowest bit is free to mark a collision that
//! continues in the next leaf. The *minor* half only distinguishes names with equal major halves.

/// The hash of a directory, with the numbers of `s_def_hash_version` and `dx_root_info.hash_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashVersion {
    /// 0 (3 unsigned): the oldest one, weak.
    Legacy,
    /// 1 (4 unsigned): MD4 with half of its rounds; the default.
    HalfMd4,
    /// 2 (5 unsigned): the Tiny Encryption Algorithm as a compression function.
    Tea,
}

/// A hash function with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameHasher {
    version: HashVersion,
    unsigned: bool,
    seed: [u32; 4],
}

/// The hash of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NameHash {
    /// The half that the index stores; its lowest bit is clear.
    pub major: u32,
    /// The other half.
    pub minor: u32,
}

/// The initial state of MD4, used if the superblock has no seed.
const INITIAL: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
/// A major hash that some readers take for the end of a directory: no name gets it.
const END_OF_DIRECTORY: u32 = 0xFFFF_FFFE;

impl NameHasher {
    /// Makes a hasher; `version` as stored, `unsigned_default` from the superblock's flags. `None` for an
    /// unknown version.
    pub fn new(version: u8, unsigned_default: bool, seed: [u32; 4]) -> Option<Self> {
        let (version, unsigned) = match version {
            0 => (HashVersion::Legacy, unsigned_default),
            1 => (HashVersion::HalfMd4, unsigned_default),
            2 => (HashVersion::Tea, unsigned_default),
            3 => (HashVersion::Legacy, true),
            4 => (HashVersion::HalfMd4, true),
            5 => (HashVersion::Tea, true),
            _ => return None,
        };
        let seed = if seed == [0; 4] { INITIAL } else { seed };
        Some(Self { version, unsigned, seed })
    }

    /// The number for `dx_root_info.hash_version`, without signedness: the superblock stores that.
    pub fn stored_version(&self) -> u8 {
        match self.version {
            HashVersion::Legacy => 0,
            HashVersion::HalfMd4 => 1,
            HashVersion::Tea => 2,
        }
    }

    /// Hashes a name.
    pub fn hash(&self, name: &[u8]) -> NameHash {
        let (raw, minor) = match self.version {
            HashVersion::Legacy => (self.legacy(name), 0),
            HashVersion::HalfMd4 => {
                let state = self.absorb::<8>(name, half_md4);
                (state[1], state[2])
            }
            HashVersion::Tea => {
                let state = self.absorb::<4>(name, tea);
                (state[0], state[1])
            }
        };
        let major = raw & !1;
        NameHash { major: if major == END_OF_DIRECTORY { END_OF_DIRECTORY - 2 } else { major }, minor }
    }

    /// A character as the 32-bit number that enters the sums: sign-extended if the hash is signed.
    fn widen(&self, byte: u8) -> u32 {
        if self.unsigned { u32::from(byte) } else { i32::from(byte as i8) as u32 }
    }

    fn legacy(&self, name: &[u8]) -> u32 {
        let (mut last, mut before) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
        for &byte in name {
            let mixed = before.wrapping_add(last ^ self.widen(byte).wrapping_mul(7_152_373));
            before = last;
            last = if mixed >> 31 == 1 { mixed.wrapping_sub(0x7FFF_FFFF) } else { mixed };
        }
        last << 1
    }

    /// Feeds the name in blocks of `WORDS` 32-bit words to a compression function.
    fn absorb<const WORDS: usize>(
        &self,
        name: &[u8],
        compress: fn([u32; 4], &[u32; WORDS]) -> [u32; 4],
    ) -> [u32; 4] {
        let mut state = self.seed;
        let mut rest = name;
        while !rest.is_empty() {
            state = compress(state, &self.pack(rest));
            rest = rest.get(WORDS * 4..).unwrap_or_default();
        }
        state
    }

    /// The next words of a name, most significant byte first. Missing bytes are filled with the length of the
    /// rest.
    fn pack<const WORDS: usize>(&self, rest: &[u8]) -> [u32; WORDS] {
        let length = rest.len() as u32;
        let half = length | (length << 8);
        let padding = half | (half << 16);
        let mut words = [padding; WORDS];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word = bytes.iter().fold(padding, |value, &byte| (value << 8).wrapping_add(self.widen(byte)));
        }
        words
    }
}

/// Eight steps of MD4 with one round function. Each step replaces the oldest register: a, d, c, b, and again.
#[inline(always)]
fn md4_round(
    [mut a, mut b, mut c, mut d]: [u32; 4],
    words: [u32; 8],
    constant: u32,
    shifts: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
) -> [u32; 4] {
    let step = |old: u32, mixed: u32, word: u32, shift: u32| {
        old.wrapping_add(mixed).wrapping_add(word).wrapping_add(constant).rotate_left(shift)
    };
    for four in [0, 4] {
        a = step(a, mix(b, c, d), words[four], shifts[0]);
        d = step(d, mix(a, b, c), words[four + 1], shifts[1]);
        c = step(c, mix(d, a, b), words[four + 2], shifts[2]);
        b = step(b, mix(c, d, a), words[four + 3], shifts[3]);
    }
    [a, b, c, d]
}

/// The three round functions of MD4 over eight words instead of sixteen.
fn half_md4(state: [u32; 4], input: &[u32; 8]) -> [u32; 4] {
    let [i0, i1, i2, i3, i4, i5, i6, i7] = *input;
    let s = md4_round(state, *input, 0, [3, 7, 11, 19], |x, y, z| (x & y) | (!x & z));
    let words = [i1, i3, i5, i7, i0, i2, i4, i6];
    let s = md4_round(s, words, 0x5A82_7999, [3, 5, 9, 13], |x, y, z| (x & y) | (x & z) | (y & z));
    let words = [i3, i7, i2, i6, i1, i5, i0, i4];
    let s = md4_round(s, words, 0x6ED9_EBA1, [3, 9, 11, 15], |x, y, z| x ^ y ^ z);
    std::array::from_fn(|i| state[i].wrapping_add(s[i]))
}

/// Sixteen cycles of TEA: the input is the key, the first two words of the state are the text.
fn tea(state: [u32; 4], key: &[u32; 4]) -> [u32; 4] {
    const DELTA: u32 = 0x9E37_79B9;
    let [mut left, mut right, third, fourth] = state;
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        let mix = |half: u32, high: u32, low: u32| {
            (half << 4).wrapping_add(high) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(low)
        };
        left = left.wrapping_add(mix(right, key[0], key[1]));
        right = right.wrapping_add(mix(left, key[2], key[3]));
    }
    [state[0].wrapping_add(left), state[1].wrapping_add(right), third, fourth]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of `debugfs -R "dx_hash ..."` of e2fsprogs (seeded with the bytes 01 23 45 67 89 ab cd ef
    /// twice).
    #[test]
    fn hashes_match_known_values() {
        const SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x6745_2301, 0xEFCD_AB89];
        const LONG: &str = "thisisafairlylongname_that_spans_more_than_32_bytes";
        let cases: &[(u8, [u32; 4], &str, u32, u32)] = &[
            (0, [0; 4], "hello", 0x3225_2546, 0),
            (0, [0; 4], LONG, 0x5c07_ab66, 0),
            (0, SEED, "café-日本", 0x6a42_f3b4, 0),
            (1, [0; 4], "a", 0xd5fa_7d7a, 0xacb4_8187),
            (1, [0; 4], LONG, 0xa97d_c764, 0x9f78_56cb),
            (1, SEED, "a", 0x35dc_0cc4, 0x3f1d_acef),
            (1, SEED, "café-日本", 0xfe78_4032, 0x847e_f8df),
            (1, SEED, "0123456789abcdef0123456789abcdef", 0x992c_74da, 0xb847_327d),
            (2, [0; 4], LONG, 0xcd0a_584e, 0x2ea1_bb32),
            (2, SEED, "café-日本", 0x7216_3314, 0x2a5f_c78c),
            (2, SEED, "0123456789abcdef", 0x5a07_88b2, 0xefa4_e711),
        ];
        for &(version, seed, name, major, minor) in cases {
            let hash = NameHasher::new(version, false, seed).unwrap().hash(name.as_bytes());
            assert_eq!(hash, NameHash { major, minor }, "{version} {name}");
        }
    }

    #[test]
    fn signedness_matters_only_beyond_ascii() {
        for version in 0..3 {
            let signed = NameHasher::new(version, false, [0; 4]).unwrap();
            let unsigned = NameHasher::new(version, true, [0; 4]).unwrap();
            assert_eq!(signed.hash(b"plain"), unsigned.hash(b"plain"));
            assert_ne!(signed.hash(b"\xff\xfe"), unsigned.hash(b"\xff\xfe"));
            assert_eq!(NameHasher::new(version + 3, false, [0; 4]).unwrap(), unsigned);
        }
        assert_eq!(NameHasher::new(6, false, [0; 4]), None);
    }
}
