//! What `security.ima` holds, and whether a file is what it says.
//!
//! ```text
//! 01 digest                        IMA_XATTR_DIGEST: 20 bytes of SHA-1
//! 03 02 hash keyid size signature  EVM_IMA_XATTR_DIGSIG, signature_v2_hdr: hash is a number of `enum
//! hash_algo`,
//!                                  keyid 4 bytes, size a big-endian u16
//! 04 hash digest                   IMA_XATTR_DIGEST_NG
//! ```
//!
//! (security/integrity/integrity.h; what signs is `evmctl ima_sign`.) The signature is one of the digest
//! itself: PKCS #1 v1.5 of RSA keys, DER of ECDSA's two numbers.

use crate::digest::{Algorithm, Digest, hex};
use crate::keys::Keyring;
use crate::policy::Appraise;
use thiserror::Error;

/// The name of the attribute.
pub const SECURITY_IMA: &[u8] = b"security.ima";
/// No honest value is longer: a header and a signature of RSA with 8192 bits.
pub const LABEL_MAX: usize = 4096;

const DIGEST: u8 = 0x01;
const SIGNATURE: u8 = 0x03;
const DIGEST_NG: u8 = 0x04;
const VERITY_SIGNATURE: u8 = 0x06;
const VERSION: u8 = 2;

/// What `security.ima` holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Label {
    /// A digest.
    Digest(Digest),
    /// A signature of a digest.
    Signature {
        /// Of that kind of digest.
        algorithm: Algorithm,
        /// By this key: the last four bytes of its identifier.
        keyid: [u8; 4],
        /// The key's part.
        signature: Vec<u8>,
    },
}

/// Why a file is not what its label says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// Nothing is said of it.
    #[error("it has no security.ima")]
    NoLabel,
    /// What is said is none of the forms above.
    #[error("its security.ima is not understood: {0}")]
    Label(String),
    /// A digest will not do.
    #[error("its security.ima is a digest, and a signature is wanted")]
    NotSigned,
    /// It has other contents.
    #[error("its contents are not those of its security.ima")]
    Contents,
    /// Somebody signed whom we do not know.
    #[error("it was signed with the key {0}, which was not given")]
    UnknownKey(String),
    /// The signature is not one of these contents by that key.
    #[error("the signature in its security.ima is not one of its contents")]
    Signature,
}

impl Label {
    /// Take the value of `security.ima` apart.
    pub fn decode(bytes: &[u8]) -> Result<Self, Mismatch> {
        let bad = |why: String| Mismatch::Label(why);
        let algorithm_of = |id: u8| Algorithm::by_id(id).ok_or_else(|| bad(format!("hash algorithm {id}")));
        let short = || bad(format!("{} bytes", bytes.len()));
        if bytes.len() > LABEL_MAX {
            return Err(short());
        }
        match bytes {
            [] => Err(short()),
            [DIGEST, digest @ ..] => {
                let digest = Digest::new(Algorithm::Sha1, digest).ok_or_else(short)?;
                Ok(Label::Digest(digest))
            }
            [DIGEST_NG, id, digest @ ..] => {
                Ok(Label::Digest(Digest::new(algorithm_of(*id)?, digest).ok_or_else(short)?))
            }
            [SIGNATURE, VERSION, id, rest @ ..] => {
                let (keyid, rest) = rest.split_first_chunk::<4>().ok_or_else(short)?;
                let (size, signature) = rest.split_first_chunk::<2>().ok_or_else(short)?;
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

    /// The value of `security.ima` for a file of this digest, as the kernel writes it when a file is
    /// complete.
    pub fn encode_digest(digest: &Digest) -> Vec<u8> {
        let mut bytes = vec![DIGEST_NG, digest.algorithm().id()];
        bytes.extend_from_slice(digest.bytes());
        bytes
    }

    /// How the file is to be hashed.
    pub fn algorithm(&self) -> Algorithm {
        match self {
            Label::Digest(digest) => digest.algorithm(),
            Label::Signature { algorithm, .. } => *algorithm,
        }
    }
}

/// With what a file is hashed that has this `security.ima`: as that says, as the kernel does it
/// (`ima_get_hash_algo`).
pub fn algorithm(label: &[u8], otherwise: Algorithm) -> Algorithm {
    Label::decode(label).map_or(otherwise, |label| label.algorithm())
}

/// What goes into the `sig` field of a list: the label if it is a signature.
pub fn listed(label: &[u8]) -> Option<&[u8]> {
    (label.first() == Some(&SIGNATURE)).then_some(label)
}

/// Whether a file of this digest is what its label (empty: it has none) says. The digest was made with
/// [`algorithm`].
pub fn appraise(label: &[u8], digest: &Digest, wanted: Appraise, keys: &Keyring) -> Result<(), Mismatch> {
    if label.is_empty() {
        return Err(Mismatch::NoLabel);
    }
    match Label::decode(label)? {
        Label::Digest(_) if wanted == Appraise::Signature => Err(Mismatch::NotSigned),
        Label::Digest(said) if said == *digest => Ok(()),
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
    fn labels_decode() {
        let sha1 = Algorithm::Sha1.digest(b"x");
        let sha512 = Algorithm::Sha512.digest(b"x");
        let old = [&[DIGEST], sha1.bytes()].concat();
        assert_eq!(Label::decode(&old), Ok(Label::Digest(sha1)));
        let new = Label::encode_digest(&sha512);
        assert_eq!(Label::decode(&new), Ok(Label::Digest(sha512)));
        assert_eq!((algorithm(&new, Algorithm::Sha256), listed(&new)), (Algorithm::Sha512, None));
        let signed = [3, 2, 4, 1, 2, 3, 4, 0, 2, 9, 9];
        assert_eq!(algorithm(&signed, Algorithm::Sha512), Algorithm::Sha256);
        assert_eq!(listed(&signed), Some(&signed[..]));
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
