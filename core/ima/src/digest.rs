//! Hash algorithms, with the names and numbers of `<linux/hash_info.h>`, and digests.

use sha2::Digest as _;

/// A hash algorithm for files, templates and PCR banks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Algorithm {
    /// SHA-1: only for formats that have no other.
    Sha1,
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 4] = [Self::Sha1, Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the name in `hash_algo_name`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
        }
    }

    /// Returns the algorithm of this name.
    pub fn by_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().as_bytes() == name)
    }

    /// Returns the number in `enum hash_algo`.
    pub fn id(self) -> u8 {
        match self {
            Self::Sha1 => 2,
            Self::Sha256 => 4,
            Self::Sha384 => 5,
            Self::Sha512 => 6,
        }
    }

    /// Returns the algorithm of this number.
    pub fn by_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.id() == id)
    }

    /// Returns the length of a digest in bytes.
    pub fn digest_len(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// Returns the digest of `bytes`.
    pub fn digest(self, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(self);
        hasher.update(bytes);
        hasher.finish()
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Length of the longest digest in bytes.
const LEN_MAX: usize = 64;

/// A digest, with its algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    /// The digest, followed by zeros so that `==` compares digests. An array saves an allocation for each.
    bytes: [u8; LEN_MAX],
}

impl Digest {
    /// Returns a digest of these bytes; `None` if their number is not that of the algorithm.
    pub fn new(algorithm: Algorithm, bytes: &[u8]) -> Option<Self> {
        (bytes.len() == algorithm.digest_len()).then(|| Self::of(algorithm, bytes))
    }

    /// Returns a digest whose bytes are all `byte`.
    pub fn filled(algorithm: Algorithm, byte: u8) -> Self {
        Self::of(algorithm, &[byte; LEN_MAX][..algorithm.digest_len()])
    }

    fn of(algorithm: Algorithm, digest: &[u8]) -> Self {
        let mut bytes = [0; LEN_MAX];
        bytes[..digest.len()].copy_from_slice(digest);
        Self { algorithm, bytes }
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.digest_len()]
    }

    /// Returns the bytes in hexadecimal.
    pub fn hex(&self) -> String {
        hex(self.bytes())
    }
}

/// Returns bytes in hexadecimal: two lower-case digits a byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Computes a digest of bytes that arrive in pieces.
pub struct Hasher(State);

enum State {
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Sha384(sha2::Sha384),
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// Creates a hasher of no bytes yet.
    pub fn new(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Sha1 => State::Sha1(Default::default()),
            Algorithm::Sha256 => State::Sha256(Default::default()),
            Algorithm::Sha384 => State::Sha384(Default::default()),
            Algorithm::Sha512 => State::Sha512(Default::default()),
        })
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Sha1(state) => state.update(bytes),
            State::Sha256(state) => state.update(bytes),
            State::Sha384(state) => state.update(bytes),
            State::Sha512(state) => state.update(bytes),
        }
    }

    /// Returns the digest of all bytes added.
    pub fn finish(self) -> Digest {
        match self.0 {
            State::Sha1(state) => Digest::of(Algorithm::Sha1, &state.finalize()),
            State::Sha256(state) => Digest::of(Algorithm::Sha256, &state.finalize()),
            State::Sha384(state) => Digest::of(Algorithm::Sha384, &state.finalize()),
            State::Sha512(state) => Digest::of(Algorithm::Sha512, &state.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_standards() {
        // FIPS 180-2, "abc".
        let known = [
            (Algorithm::Sha1, "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (Algorithm::Sha256, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
        ];
        for (algorithm, digest) in known {
            assert_eq!(algorithm.digest(b"abc").hex(), digest);
        }
        for algorithm in Algorithm::ALL {
            let digest = algorithm.digest(b"");
            assert_eq!(digest.bytes().len(), algorithm.digest_len());
            assert_eq!(Algorithm::by_id(algorithm.id()), Some(algorithm));
            assert_eq!(Algorithm::by_name(algorithm.name().as_bytes()), Some(algorithm));
            assert_eq!(Digest::new(algorithm, &digest.bytes()[1..]), None);
        }
    }
}
