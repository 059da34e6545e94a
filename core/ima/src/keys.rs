//! Public keys that verify signatures: RSA, and ECDSA on the curves P-256 and P-384. They come from X.509
//! certificates or as bare public keys.

use crate::digest::{Algorithm, Digest};
use p256::ecdsa::signature::hazmat::PrehashVerifier;
use rsa::pkcs1::DecodeRsaPublicKey;
use rsa::pkcs8::DecodePublicKey;
use rsa::{Pkcs1v15Sign, RsaPublicKey};
use thiserror::Error;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Document, Encode};
use x509_cert::ext::pkix::SubjectKeyIdentifier;
use x509_cert::spki::SubjectPublicKeyInfoRef;

/// Why a key file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// It is empty.
    #[error("it has no key; give certificates or public keys in PEM or DER")]
    None,
    /// A key is damaged or not supported.
    #[error("key {number}: {why}")]
    Unusable {
        /// The key, counted from 1.
        number: usize,
        /// Why.
        why: String,
    },
}

enum PublicKey {
    Rsa(RsaPublicKey),
    P256(p256::ecdsa::VerifyingKey),
    P384(p384::ecdsa::VerifyingKey),
}

struct Key {
    /// The identifiers that a signer may use: the last bytes of the key's SHA-1 digest, as `evmctl` computes
    /// them, and the last bytes of the certificate's own key identifier, as the kernel takes them.
    ids: Vec<[u8; 4]>,
    key: PublicKey,
}

/// A set of keys.
#[derive(Default)]
pub struct Keyring(Vec<Key>);

impl Keyring {
    /// Adds the keys of a file: any number of PEM blocks, or one key in DER.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), KeyError> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let starts: Vec<usize> = text.match_indices("-----BEGIN ").map(|(at, _)| at).collect();
        if starts.is_empty() {
            if bytes.is_empty() {
                return Err(KeyError::None);
            }
            self.0.push(from_der(bytes).map_err(|why| KeyError::Unusable { number: 1, why })?);
            return Ok(());
        }
        for (number, &start) in starts.iter().enumerate() {
            let end = starts.get(number + 1).map_or(text.len(), |&next| next);
            let key = from_pem(&text[start..end]);
            self.0.push(key.map_err(|why| KeyError::Unusable { number: number + 1, why })?);
        }
        Ok(())
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a key with this identifier signed the digest; `None` if there is no such key.
    pub fn verify(&self, keyid: [u8; 4], digest: &Digest, signature: &[u8]) -> Option<bool> {
        // Two keys may have the same four bytes by chance, so all of them are tried.
        let mut keys = self.0.iter().filter(|key| key.ids.contains(&keyid)).peekable();
        keys.peek()?;
        Some(keys.any(|key| key.key.verify(digest, signature)))
    }
}

impl PublicKey {
    fn verify(&self, digest: &Digest, signature: &[u8]) -> bool {
        match self {
            PublicKey::Rsa(key) => {
                let scheme = match digest.algorithm() {
                    Algorithm::Sha1 => Pkcs1v15Sign::new::<sha1::Sha1>(),
                    Algorithm::Sha256 => Pkcs1v15Sign::new::<sha2::Sha256>(),
                    Algorithm::Sha384 => Pkcs1v15Sign::new::<sha2::Sha384>(),
                    Algorithm::Sha512 => Pkcs1v15Sign::new::<sha2::Sha512>(),
                };
                key.verify(scheme, digest.bytes(), signature).is_ok()
            }
            PublicKey::P256(key) => p256::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| key.verify_prehash(digest.bytes(), &signature).is_ok()),
            PublicKey::P384(key) => p384::ecdsa::Signature::from_der(signature).is_ok_and(|signature| {
                key.verify_prehash(&zero_extended(digest.bytes(), 48), &signature).is_ok()
            }),
        }
    }
}

/// Returns the digest with leading zeros, `len` bytes long. ECDSA interprets a short digest as a number
/// (FIPS 186-5, 6.4.2), so leading zeros do not change it; but `p384` refuses a digest that is much shorter
/// than the curve's numbers.
fn zero_extended(digest: &[u8], len: usize) -> Vec<u8> {
    [&vec![0; len.saturating_sub(digest.len())], digest].concat()
}

fn from_pem(block: &str) -> Result<Key, String> {
    let end = block.find("-----END ").map(|at| at + block[at..].find('\n').unwrap_or(block.len() - at));
    let block = &block[..end.ok_or("PEM block without an end line")?];
    let (label, der) = Document::from_pem(block).map_err(|error| format!("bad PEM: {error}"))?;
    match label {
        "CERTIFICATE" => from_certificate(der.as_bytes()),
        "PUBLIC KEY" => from_spki(der.as_bytes()),
        "RSA PUBLIC KEY" => {
            let key = RsaPublicKey::from_pkcs1_der(der.as_bytes()).map_err(|error| error.to_string())?;
            Ok(Key { ids: vec![key_id(der.as_bytes())], key: PublicKey::Rsa(key) })
        }
        other => Err(format!("PEM block {other:?}; give a certificate or a public key")),
    }
}

fn from_der(der: &[u8]) -> Result<Key, String> {
    from_certificate(der).or_else(|_| from_spki(der))
}

fn from_certificate(der: &[u8]) -> Result<Key, String> {
    let certificate = Certificate::from_der(der).map_err(|error| format!("bad certificate: {error}"))?;
    let spki =
        certificate.tbs_certificate.subject_public_key_info.to_der().map_err(|error| error.to_string())?;
    let mut key = from_spki(&spki)?;
    if let Ok(Some((_, id))) = certificate.tbs_certificate.get::<SubjectKeyIdentifier>()
        && let Some(tail) = id.0.as_bytes().last_chunk::<4>()
        && !key.ids.contains(tail)
    {
        key.ids.push(*tail);
    }
    Ok(key)
}

fn from_spki(der: &[u8]) -> Result<Key, String> {
    let spki = SubjectPublicKeyInfoRef::from_der(der).map_err(|error| format!("bad public key: {error}"))?;
    let bits = spki.subject_public_key.as_bytes().ok_or("bad public key: not a whole number of bytes")?;
    let rsa = || RsaPublicKey::from_public_key_der(der).map(PublicKey::Rsa).ok();
    let p256 = || p256::ecdsa::VerifyingKey::from_public_key_der(der).map(PublicKey::P256).ok();
    let p384 = || p384::ecdsa::VerifyingKey::from_public_key_der(der).map(PublicKey::P384).ok();
    let key = rsa().or_else(p256).or_else(p384);
    let key = key.ok_or("key type not supported; use RSA up to 4096 bits or ECDSA on P-256 or P-384")?;
    Ok(Key { ids: vec![key_id(bits)], key })
}

/// Returns the identifier as evmctl's `calc_keyid_v2` does: the last bytes of the SHA-1 digest of the key.
fn key_id(bits: &[u8]) -> [u8; 4] {
    let digest = Algorithm::Sha1.digest(bits);
    *digest.bytes().last_chunk().expect("a SHA-1 digest has 20 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_keys_are_refused() {
        let mut keys = Keyring::default();
        assert_eq!(keys.add(b""), Err(KeyError::None));
        for bad in [
            "nonsense",
            "-----BEGIN PUBLIC KEY-----\n",
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        ] {
            assert!(matches!(keys.add(bad.as_bytes()), Err(KeyError::Unusable { number: 1, .. })), "{bad}");
        }
        assert!(keys.is_empty());
    }
}
