//! Keys that signatures are checked with: RSA and ECDSA on the curves P-256 and P-384, from X.509
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

/// Why a file of keys cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// It holds none.
    #[error("no key in it: certificates or public keys in PEM or DER are wanted")]
    None,
    /// One that we cannot use.
    #[error("key {number}: {why}")]
    Unusable {
        /// Which one, from 1.
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
    /// Names that signers have for it: the end of SHA-1 over the key, as `evmctl` counts, and of the
    /// certificate's own identifier, as the kernel does.
    ids: Vec<[u8; 4]>,
    key: PublicKey,
}

/// Keys, by their identifiers.
#[derive(Default)]
pub struct Keyring(Vec<Key>);

impl Keyring {
    /// Take the keys of a file in: PEM, with as many blocks as there are, or DER.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), KeyError> {
        let text = std::str::from_utf8(bytes).unwrap_or_default();
        let begins: Vec<usize> = text.match_indices("-----BEGIN ").map(|(at, _)| at).collect();
        if begins.is_empty() {
            if bytes.is_empty() {
                return Err(KeyError::None);
            }
            self.0.push(of_der(bytes).map_err(|why| KeyError::Unusable { number: 1, why })?);
            return Ok(());
        }
        for (number, &begin) in begins.iter().enumerate() {
            let end = begins.get(number + 1).map_or(text.len(), |&next| next);
            let key = of_pem(&text[begin..end]);
            self.0.push(key.map_err(|why| KeyError::Unusable { number: number + 1, why })?);
        }
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the key of this identifier signed that digest. Nothing: there is no such key.
    pub fn verify(&self, keyid: [u8; 4], digest: &Digest, signature: &[u8]) -> Option<bool> {
        // Four bytes can be two keys' by chance: one that fits is enough.
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
            PublicKey::P384(key) => p384::ecdsa::Signature::from_der(signature)
                .is_ok_and(|signature| key.verify_prehash(&widened(digest.bytes(), 48), &signature).is_ok()),
        }
    }
}

/// A digest shorter than the curve's numbers stands for a number itself (FIPS 186-5, 6.4.2): zeros before it
/// change nothing, and the crate refuses those that are much shorter.
fn widened(digest: &[u8], len: usize) -> Vec<u8> {
    [&vec![0; len.saturating_sub(digest.len())], digest].concat()
}

fn of_pem(block: &str) -> Result<Key, String> {
    let end = block.find("-----END ").map(|at| at + block[at..].find('\n').unwrap_or(block.len() - at));
    let block = &block[..end.ok_or("its PEM has no end")?];
    let (label, der) = Document::from_pem(block).map_err(|error| format!("bad PEM: {error}"))?;
    match label {
        "CERTIFICATE" => of_certificate(der.as_bytes()),
        "PUBLIC KEY" => of_spki(der.as_bytes()),
        "RSA PUBLIC KEY" => {
            let key = RsaPublicKey::from_pkcs1_der(der.as_bytes()).map_err(|error| error.to_string())?;
            Ok(Key { ids: vec![id_of(der.as_bytes())], key: PublicKey::Rsa(key) })
        }
        other => Err(format!("a {other}: a certificate or a public key is wanted")),
    }
}

fn of_der(der: &[u8]) -> Result<Key, String> {
    of_certificate(der).or_else(|_| of_spki(der))
}

fn of_certificate(der: &[u8]) -> Result<Key, String> {
    let certificate = Certificate::from_der(der).map_err(|error| format!("bad certificate: {error}"))?;
    let spki =
        certificate.tbs_certificate.subject_public_key_info.to_der().map_err(|error| error.to_string())?;
    let mut key = of_spki(&spki)?;
    if let Ok(Some((_, id))) = certificate.tbs_certificate.get::<SubjectKeyIdentifier>()
        && let Some(tail) = id.0.as_bytes().last_chunk::<4>()
        && !key.ids.contains(tail)
    {
        key.ids.push(*tail);
    }
    Ok(key)
}

fn of_spki(der: &[u8]) -> Result<Key, String> {
    let spki = SubjectPublicKeyInfoRef::from_der(der).map_err(|error| format!("bad public key: {error}"))?;
    let bits = spki.subject_public_key.as_bytes().ok_or("a public key of odd bits")?;
    let rsa = || RsaPublicKey::from_public_key_der(der).map(PublicKey::Rsa).ok();
    let p256 = || p256::ecdsa::VerifyingKey::from_public_key_der(der).map(PublicKey::P256).ok();
    let p384 = || p384::ecdsa::VerifyingKey::from_public_key_der(der).map(PublicKey::P384).ok();
    let key = rsa().or_else(p256).or_else(p384);
    let key = key.ok_or("neither RSA (up to 4096 bits) nor ECDSA on P-256 or P-384")?;
    Ok(Key { ids: vec![id_of(bits)], key })
}

/// As `calc_keyid_v2` of evmctl: the end of SHA-1 over the key's bits.
fn id_of(bits: &[u8]) -> [u8; 4] {
    let digest = Algorithm::Sha1.digest(bits);
    *digest.bytes().last_chunk().expect("a digest of 20 bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_key_is_refused() {
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
