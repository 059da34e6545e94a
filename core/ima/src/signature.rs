//! The label of a file, that is, its extended attribute `security.ima`; and its verification.
//!
//! ```text
//! 01 digest                        IMA_XATTR_DIGEST: SHA-1, 20 bytes
//! 03 02 hash keyid size signature  EVM_IMA_XATTR_DIGSIG, signature_v2_hdr
//! 04 hash digest                   IMA_XATTR_DIGEST_NG
//!
//! hash   one byte, a number of `enum hash_algo`
//! keyid  4 bytes
//! size   u16, big-endian: length of the signature
//! ```
//!
//! Source: security/integrity/integrity.h. `evmctl ima_sign` makes signatures. A signature covers the digest
//! itself: with an RSA key it is PKCS #1 v1.5, with ECDSA the DER encoding of its two numbers.

use crate::digest::{Algorithm, Digest, hex};
use crate::keys::Keyring;
use crate::policy::Appraise;
use thiserror::Error;

/// The name of the attribute.
pub const SECURITY_IMA: &[u8] = b"security.ima";
/// Upper bound of a label in bytes: more than a header and a signature by an RSA key of 8192 bits.
pub const LABEL_MAX: usize = 4096;

const DIGEST: u8 = 0x01;
const SIGNATURE: u8 = 0x03;
const DIGEST_NG: u8 = 0x04;
const VERITY_SIGNATURE: u8 = 0x06;
const VERSION: u8 = 2;

/// A decoded `security.ima`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// The digest of the contents.
    Digest(Digest),
    /// A signature of the digest of the contents.
    Signature {
        /// The algorithm of the digest.
        algorithm: Algorithm,
        /// The last four bytes of the key's identifier.
        keyid: [u8; 4],
        /// The signature.
        signature: Vec<u8>,
    },
}

/// Why a file does not match its label.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The file has no label.
    #[error("it has no security.ima")]
    NoLabel,
    /// The label has none of the supported forms.
    #[error("its security.ima is invalid or not supported: {0}")]
    Label(String),
    /// The label is a digest, but a signature is required.
    #[error("its security.ima is a digest; the policy requires a signature")]
    NotSigned,
    /// The contents have another digest.
    #[error("its contents do not match the digest in its security.ima")]
    Contents,
    /// The keyring has no key with the label's identifier.
    #[error("its security.ima is signed with key {0}; add that key if you trust it")]
    UnknownKey(String),
    /// The key did not sign these contents.
    #[error("its contents do not match the signature in its security.ima")]
    Signature,
}

impl Label {
    /// Decodes the value of `security.ima`.
    pub fn decode(bytes: &[u8]) -> Result<Self, Mismatch> {
        let bad = |why: String| Mismatch::Label(why);
        let algorithm_of = |id: u8| Algorithm::by_id(id).ok_or_else(|| bad(format!("hash algorithm {id}")));
        let wrong_len = || bad(format!("length {} bytes", bytes.len()));
        if bytes.len() > LABEL_MAX {
            return Err(wrong_len());
        }
        match bytes {
            [] => Err(wrong_len()),
            [DIGEST, digest @ ..] => {
                let digest = Digest::new(Algorithm::Sha1, digest).ok_or_else(wrong_len)?;
                Ok(Label::Digest(digest))
            }
            [DIGEST_NG, id, digest @ ..] => {
                Ok(Label::Digest(Digest::new(algorithm_of(*id)?, digest).ok_or_else(wrong_len)?))
            }
            [SIGNATURE, VERSION, id, rest @ ..] => {
                let (keyid, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong_len)?;
                let (size, signature) = rest.split_first_chunk::<2>().ok_or_else(wrong_len)?;
                if usize::from(u16::from_be_bytes(*size)) != signature.len() || signature.is_empty() {
                    return Err(bad(format!("a signature of {} bytes", signature.len())));
                }
                let algorithm = algorithm_of(*id)?;
                Ok(Label::Signature { algorithm, keyid: *keyid, signature: signature.to_vec() })
            }
            [SIGNATURE, version, ..] => Err(bad(format!("signature version {version}"))),
            [VERITY_SIGNATURE, ..] => Err(bad("a signature of an fs-verity digest".into())),
            [kind, ..] => Err(bad(format!("type {kind}"))),
        }
    }

    /// Returns the label for contents of this digest, as the kernel sets it at the last writer's close.
    pub fn encode_digest(digest: &Digest) -> Vec<u8> {
        let mut bytes = vec![DIGEST_NG, digest.algorithm().id()];
        bytes.extend_from_slice(digest.bytes());
        bytes
    }

    /// Returns the algorithm that the file is hashed with.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Label::Digest(digest) => digest.algorithm(),
            Label::Signature { algorithm, .. } => *algorithm,
        }
    }
}

/// Returns the algorithm that a file with this label is hashed with: that of the label, otherwise `default`
/// (the kernel's `ima_get_hash_algo`).
pub fn algorithm(label: &[u8], default: Algorithm) -> Algorithm {
    Label::decode(label).map_or(default, |label| label.algorithm())
}

/// Returns the `sig` field of a list entry: the label if it is a signature.
pub fn signature_field(label: &[u8]) -> Option<&[u8]> {
    (label.first() == Some(&SIGNATURE)).then_some(label)
}

/// Verifies that a file with this digest matches its label. An empty label means that the file has none. The
/// caller hashes the file with the algorithm that [`algorithm`] returns.
pub fn appraise(label: &[u8], digest: &Digest, required: Appraise, keys: &Keyring) -> Result<(), Mismatch> {
    if label.is_empty() {
        return Err(Mismatch::NoLabel);
    }
    match Label::decode(label)? {
        Label::Digest(_) if required == Appraise::Signature => Err(Mismatch::NotSigned),
        Label::Digest(expected) if expected == *digest => Ok(()),
        Label::Digest(_) => Err(Mismatch::Contents),
        Label::Signature { algorithm, keyid, signature } => {
            if algorithm != digest.algorithm() {
                return Err(Mismatch::Contents);
            }
            match keys.verify(keyid, digest, &signature) {
                Some(true) => Ok(()),
                Some(false) => Err(Mismatch::Signature),
                None => Err(Mismatch::UnknownKey(hex(&keyid))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_decoded_and_appraised() {
        let sha1 = Algorithm::Sha1.digest(b"x");
        let sha512 = Algorithm::Sha512.digest(b"x");
        let old = [&[DIGEST], sha1.bytes()].concat();
        assert_eq!(Label::decode(&old), Ok(Label::Digest(sha1)));
        let new = Label::encode_digest(&sha512);
        assert_eq!(Label::decode(&new), Ok(Label::Digest(sha512)));
        assert_eq!((algorithm(&new, Algorithm::Sha256), signature_field(&new)), (Algorithm::Sha512, None));
        let signed = [3, 2, 4, 1, 2, 3, 4, 0, 2, 9, 9];
        assert_eq!(algorithm(&signed, Algorithm::Sha512), Algorithm::Sha256);
        assert_eq!(signature_field(&signed), Some(&signed[..]));
        for bad in
            [&[][..], &[1], &[2, 1], &[3, 1, 4], &[4, 1, 0], &[6, 3], &[3, 2, 4, 1, 2, 3, 4, 0, 3, 9, 9]]
        {
            assert!(Label::decode(bad).is_err(), "{bad:?}");
        }
        let none = Keyring::default();
        assert_eq!(appraise(&new, &sha512, Appraise::Digest, &none), Ok(()));
        assert_eq!(appraise(&new, &sha512, Appraise::Signature, &none), Err(Mismatch::NotSigned));
        assert_eq!(
            appraise(&new, &Algorithm::Sha512.digest(b"y"), Appraise::Digest, &none),
            Err(Mismatch::Contents)
        );
        assert_eq!(appraise(&[], &sha512, Appraise::Digest, &none), Err(Mismatch::NoLabel));
        let sha256 = Algorithm::Sha256.digest(b"x");
        let unknown = appraise(&signed, &sha256, Appraise::Signature, &none);
        assert_eq!(unknown, Err(Mismatch::UnknownKey("01020304".into())));
    }
}
