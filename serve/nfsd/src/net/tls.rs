//! RPC with TLS (RFC 9289): the server's configuration, and the identity of a peer.
//!
//! TLS 1.3 only (section 5, MUST), without early data (section 5, MUST NOT). No session resumption:
//! connections last long, and the server judges a peer by the certificate that it presents on this
//! connection.
//! A client that offers protocols by ALPN must offer `sunrpc`. A client without ALPN is accepted, because the
//! Linux client's handshake daemon offers none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;

/// The ALPN protocol name (RFC 9289 section 8.2).
const ALPN: &[u8] = b"sunrpc";

/// The reason why TLS cannot be configured.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read, or has no PEM data of the expected kind.
    #[error("{}: {why}; expected PEM with {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The expected contents.
        what: &'static str,
        /// The error.
        why: String,
    },
    /// Certificate and key do not match, or the client authorities are invalid.
    #[error("certificate, key or client authorities: {0}")]
    Config(String),
}

/// Whether clients present certificates.
#[derive(Debug, Clone)]
pub enum ClientCertificates {
    /// Clients are not asked for a certificate.
    NotRequested,
    /// Clients may present a certificate, which must be signed by one of these authorities.
    Optional(Vec<CertificateDer<'static>>),
    /// Clients must present a certificate signed by one of these authorities.
    Required(Vec<CertificateDer<'static>>),
}

/// The files of a TLS configuration, in PEM format.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate and its intermediate certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Authorities that sign client certificates; `None` if clients are not asked.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients must present a certificate.
    pub client_required: bool,
}

/// The contents of [`TlsFiles`].
#[derive(Clone, Copy)]
pub struct TlsPem<'a> {
    /// The certificates.
    pub certificate: &'a [u8],
    /// The private key.
    pub key: &'a [u8],
    /// Authorities that sign client certificates.
    pub client_authorities: Option<&'a [u8]>,
}

/// A TLS configuration. Clones share it, also after [`Tls::replace`].
#[derive(Clone)]
pub struct Tls {
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let wrong = |why: String| TlsError::File { path: path.to_owned(), what: "one or more certificates", why };
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| wrong(error.to_string()))?;
    if found.is_empty() { Err(wrong("no certificate found".into())) } else { Ok(found) }
}

impl Tls {
    /// Reads the configuration from files.
    pub fn from_files(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| TlsError::File {
                path: path.clone(),
                what: "certificates or a key",
                why: error.to_string(),
            })
        };
        let authorities = files.client_authorities.as_ref().map(read).transpose()?;
        let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
        let client_authorities = authorities.as_deref();
        Self::from_pem(files, &TlsPem { certificate: &certificate, key: &key, client_authorities })
    }

    /// Creates the configuration from the contents of these files.
    pub fn from_pem(files: &TlsFiles, pem: &TlsPem<'_>) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(pem.key).map_err(|error| TlsError::File {
            path: files.key.clone(),
            what: "a private key",
            why: error.to_string(),
        })?;
        let authorities = files.client_authorities.as_deref().zip(pem.client_authorities);
        let clients = match (authorities, files.client_required) {
            (None, true) => {
                let why = "client certificates are required, but no authorities verify them; \
                           set client_authorities";
                return Err(TlsError::Config(why.into()));
            }
            (None, false) => ClientCertificates::NotRequested,
            (Some((path, pem)), false) => ClientCertificates::Optional(certificates(path, pem)?),
            (Some((path, pem)), true) => ClientCertificates::Required(certificates(path, pem)?),
        };
        Self::new(certificates(&files.certificate, pem.certificate)?, key, clients)
    }

    /// Creates the configuration from decoded certificates.
    pub fn new(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        clients: ClientCertificates,
    ) -> Result<Self, TlsError> {
        let wrong = |error: &dyn std::fmt::Display| TlsError::Config(error.to_string());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            // [RFC9289 5]
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| wrong(&error))?;
        let verifier = |authorities: Vec<CertificateDer<'static>>| {
            let mut roots = RootCertStore::empty();
            for authority in authorities {
                roots.add(authority).map_err(|error| wrong(&error))?;
            }
            Ok::<_, TlsError>(WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()))
        };
        let verifier = match clients {
            ClientCertificates::NotRequested => None,
            ClientCertificates::Optional(authorities) => {
                Some(verifier(authorities)?.allow_unauthenticated().build())
            }
            ClientCertificates::Required(authorities) => Some(verifier(authorities)?.build()),
        };
        let builder = match verifier {
            None => builder.with_no_client_auth(),
            Some(verifier) => builder.with_client_cert_verifier(verifier.map_err(|error| wrong(&error))?),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| wrong(&error))?;
        // [RFC9289 8.2]
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(RwLock::new(Arc::new(config))) })
    }

    /// Replaces the configuration for new connections. Existing connections keep theirs.
    pub fn replace(&self, by: &Self) {
        let config = by.config.read().clone();
        *self.config.write() = config;
    }

    /// Starts TLS on a connection.
    pub(super) fn connection(&self) -> Result<Box<ServerConnection>, rustls::Error> {
        let mut connection = ServerConnection::new(self.config.read().clone())?;
        // Encrypted bytes are taken out at once, so the limits of the connection's own queue apply.
        connection.set_buffer_limit(None);
        Ok(Box::new(connection))
    }
}

/// The identity of a TLS peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsPeer {
    /// The DNS names in the certificate; empty without a certificate.
    pub names: Vec<String>,
    /// The certificate in DER format.
    pub certificate: Option<Vec<u8>>,
}

impl TlsPeer {
    /// Returns whether the peer presented a certificate. If it did, the certificate is verified.
    pub fn authenticated(&self) -> bool {
        self.certificate.is_some()
    }

    pub(super) fn of(connection: &ServerConnection) -> Self {
        let Some(certificate) = connection.peer_certificates().and_then(|chain| chain.first()) else {
            return Self::default();
        };
        let names = webpki::EndEntityCert::try_from(certificate)
            .map(|parsed| parsed.valid_dns_names().map(str::to_owned).collect())
            .unwrap_or_default();
        Self { names, certificate: Some(certificate.to_vec()) }
    }
}

/// Returns the encrypted bytes that TLS has to send.
pub(super) fn encrypted(connection: &mut ServerConnection) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out)?;
    }
    Ok(out)
}
