//! RPC with TLS (RFC 9289): what a server needs to be configured with, and who a peer turned out to be.
//!
//! TLS 1.3 and nothing older (section 5, MUST); no early data (section 5, MUST NOT), and no resumption: connections last long, and a peer is judged
//! by the certificate that he shows now. Who offers protocols by ALPN must offer `sunrpc`; who offers none is served, since the Linux client's
//! handshake daemon offers none.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use thiserror::Error;

/// The protocol's name (RFC 9289 section 8.2).
const ALPN: &[u8] = b"sunrpc";

/// Why TLS cannot be offered.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file that cannot be read, or holds no PEM of the kind that is wanted.
    #[error("{}: {why}; expected PEM with {what}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// Certificate and key do not fit, or the authorities are of no use.
    #[error("certificate, key or client authorities: {0}")]
    Config(String),
}

/// Whether clients show certificates.
#[derive(Debug, Clone)]
pub enum ClientCertificates {
    /// They are not asked.
    Unasked,
    /// They may; what they show must be signed by one of these.
    Optional(Vec<CertificateDer<'static>>),
    /// They must.
    Required(Vec<CertificateDer<'static>>),
}

/// Files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authorities of clients, if clients are asked.
    pub client_authorities: Option<PathBuf>,
    /// Whether clients must show a certificate.
    pub client_required: bool,
}

/// What the files hold.
#[derive(Clone, Copy)]
pub struct TlsPem<'a> {
    /// See [`TlsFiles`].
    pub certificate: &'a [u8],
    /// Its key.
    pub key: &'a [u8],
    /// The authorities of clients.
    pub client_authorities: Option<&'a [u8]>,
}

/// What connections are secured with. Its clones are one.
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
    if found.is_empty() { Err(wrong("nothing found".into())) } else { Ok(found) }
}

impl Tls {
    /// From files.
    pub fn from_files(files: &TlsFiles) -> Result<Self, TlsError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| TlsError::File {
                path: path.clone(),
                what: "certificates, or a key",
                why: error.to_string(),
            })
        };
        let authorities = files.client_authorities.as_ref().map(read).transpose()?;
        let (certificate, key) = (read(&files.certificate)?, read(&files.key)?);
        let client_authorities = authorities.as_deref();
        Self::from_pem(files, &TlsPem { certificate: &certificate, key: &key, client_authorities })
    }

    /// From what these files hold.
    pub fn from_pem(files: &TlsFiles, pem: &TlsPem<'_>) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(pem.key).map_err(|error| TlsError::File {
            path: files.key.clone(),
            what: "a private key",
            why: error.to_string(),
        })?;
        let authorities = files.client_authorities.as_deref().zip(pem.client_authorities);
        let clients = match (authorities, files.client_required) {
            (None, true) => {
                let why = "client certificates are required, but no authorities are given to check them with";
                return Err(TlsError::Config(why.into()));
            }
            (None, false) => ClientCertificates::Unasked,
            (Some((path, pem)), false) => ClientCertificates::Optional(certificates(path, pem)?),
            (Some((path, pem)), true) => ClientCertificates::Required(certificates(path, pem)?),
        };
        Self::new(certificates(&files.certificate, pem.certificate)?, key, clients)
    }

    /// From what files hold.
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
            ClientCertificates::Unasked => None,
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

    /// Connections that begin from now on are secured by this; the others stay what they are.
    pub fn replace(&self, by: &Self) {
        let config = by.config.read().clone();
        *self.config.write() = config;
    }

    /// Another connection.
    pub(super) fn connection(&self) -> Result<Box<ServerConnection>, rustls::Error> {
        let mut connection = ServerConnection::new(self.config.read().clone())?;
        // What is encrypted is taken out at once: the queue's bounds are the ones that count.
        connection.set_buffer_limit(None);
        Ok(Box::new(connection))
    }
}

/// Who is at the other end, as far as TLS says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsPeer {
    /// The DNS names of the certificate, as they stand there; empty if none was shown.
    pub names: Vec<String>,
    /// The certificate (DER).
    pub certificate: Option<Vec<u8>>,
}

impl TlsPeer {
    /// Whether a certificate was shown; it has been verified then.
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

/// Encrypt what may have been put in, and whatever TLS has to say by itself.
pub(super) fn sealed(connection: &mut ServerConnection) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out)?;
    }
    Ok(out)
}
