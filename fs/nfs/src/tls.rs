//! RPC with TLS (RFC 9289): the request for it, and the handshake.
//!
//! TLS 1.3 only (section 5), without early data and resumption. The server's certificate must be valid for
//! its name, and signed by an authority that the mount trusts. A server without TLS is refused: there is no
//! fallback to plain text.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

use ivers_nfs4::record::{Records, mark};
use ivers_nfs4::rpc::{AUTH_TLS, CallHeader, OpaqueAuth, Reply, STARTTLS};
use ivers_nfs4::xdr::{Decoder, Encoder};
use ivers_nfs4::{NFS_PROGRAM, NFS_V4};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::connection::Broken;
use crate::wire::{Wire, is_pause};

/// The ALPN protocol name (section 8.2).
const ALPN: &[u8] = b"sunrpc";
/// The procedure of the request for TLS (section 4.1).
const PROC_NULL: u32 = 0;
/// The transaction ID of that request. It is the first one of its connection.
const XID: u32 = 1;
/// The longest reply to it, in bytes.
const REPLY_BYTES_MAX: usize = 1024;

/// PEM data of the client.
#[derive(Clone, Copy)]
pub struct Pem<'a> {
    /// Certificates of the authorities that sign the server's certificate.
    pub authorities: &'a [u8],
    /// The client's certificate with its intermediate certificates, and the private key.
    pub identity: Option<(&'a [u8], &'a [u8])>,
}

/// Which part of [`Pem`] cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadPem {
    /// The authorities.
    #[error("not PEM with certificates: {0}")]
    Authorities(String),
    /// The client's certificate.
    #[error("not PEM with a certificate: {0}")]
    Certificate(String),
    /// The private key.
    #[error("not PEM with a private key that matches the certificate: {0}")]
    Key(String),
    /// The name of the server.
    #[error("no certificate can be valid for the server's name {0:?}")]
    Name(String),
}

/// How to use TLS with a server.
#[derive(Clone)]
pub struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.name)
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Vec<_> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    if found.is_empty() { Err("no certificate found".into()) } else { Ok(found) }
}

impl Tls {
    /// Reads PEM data. `host` is the name or address of the server that its certificate must be valid for.
    pub fn new(host: &str, pem: &Pem<'_>) -> Result<Self, BadPem> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| BadPem::Name(host.to_owned()))?;
        let mut roots = RootCertStore::empty();
        // The bundle of a system may have certificates that rustls does not accept: they are skipped.
        let (added, _) =
            roots.add_parsable_certificates(certificates(pem.authorities).map_err(BadPem::Authorities)?);
        if added == 0 {
            return Err(BadPem::Authorities("no certificate of an authority found".into()));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| BadPem::Key(error.to_string()))?
            .with_root_certificates(roots);
        let mut config = match pem.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate).map_err(BadPem::Certificate)?;
                let key =
                    PrivateKeyDer::from_pem_slice(key).map_err(|error| BadPem::Key(error.to_string()))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| BadPem::Key(error.to_string()))?
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), name })
    }

    /// Requests TLS on a new connection, and does the handshake, before `deadline`. Fails early if
    /// `is_stopped` returns true.
    pub fn start(
        &self,
        mut stream: TcpStream,
        deadline: Instant,
        is_stopped: &dyn Fn() -> bool,
    ) -> Result<Wire, Broken> {
        let go_on = || {
            if is_stopped() || Instant::now() >= deadline {
                return Err(Broken("the server does not complete the TLS handshake".into()));
            }
            Ok(())
        };
        ask(&mut stream, &go_on)?;
        let mut tls = ClientConnection::new(self.config.clone(), self.name.clone())
            .map_err(|error| Broken(format!("TLS: {error}")))?;
        // No limit is needed: `Wire::send` takes encrypted bytes out at once.
        tls.set_buffer_limit(None);
        while tls.is_handshaking() || tls.wants_write() {
            go_on()?;
            // One step at a time: a server that sends byte after byte must not keep this thread.
            match step(&mut tls, &mut stream) {
                Ok(()) => {}
                Err(error) if is_pause(error.kind()) => {}
                Err(error) => return Err(Broken(format!("TLS: {error}"))),
            }
        }
        Ok(Wire::secured(stream, tls))
    }
}

/// Writes or reads once for the handshake.
fn step(tls: &mut ClientConnection, stream: &mut TcpStream) -> std::io::Result<()> {
    if tls.wants_write() {
        return tls.write_tls(stream).map(drop);
    }
    if tls.read_tls(stream)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    tls.process_new_packets().map(drop).map_err(|error| {
        // The alert tells the server why.
        let _ = tls.write_tls(stream);
        std::io::Error::other(error)
    })
}

/// Sends the request for TLS, and checks the reply (section 4.1).
fn ask(stream: &mut TcpStream, go_on: &dyn Fn() -> Result<(), Broken>) -> Result<(), Broken> {
    let mut record = Encoder::with_capacity(64);
    // Space for the record mark.
    record.word(0);
    let header = CallHeader {
        xid: XID,
        program: NFS_PROGRAM,
        version: NFS_V4,
        procedure: PROC_NULL,
        cred: OpaqueAuth { flavor: AUTH_TLS, body: Vec::new() },
        verf: OpaqueAuth::NONE,
    };
    header.put(&mut record);
    let mut record = record.into_bytes();
    let marked = mark(record.len() - 4);
    record[..4].copy_from_slice(&marked);
    stream.write_all(&record).map_err(|error| Broken(format!("cannot send: {error}")))?;
    let mut records = Records::new(REPLY_BYTES_MAX);
    let mut buffer = [0; REPLY_BYTES_MAX];
    let message = loop {
        go_on()?;
        let len = match stream.read(&mut buffer) {
            Ok(0) => return Err(Broken("the server closed the connection when it was asked for TLS".into())),
            Ok(len) => len,
            Err(error) if is_pause(error.kind()) => continue,
            Err(error) => return Err(Broken(format!("cannot receive: {error}"))),
        };
        let mut bytes = &buffer[..len];
        match records.feed(&mut bytes) {
            Ok(Some(message)) if bytes.is_empty() => break message,
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return Err(Broken("an invalid answer to the request for TLS".into())),
        }
    };
    let mut from = Decoder::new(&message);
    match Reply::take(&mut from) {
        Ok((XID, Reply::Success { verf })) if verf.body == STARTTLS => Ok(()),
        Ok((XID, _)) => Err(Broken("the server offers no TLS (RFC 9289)".into())),
        _ => Err(Broken("an invalid answer to the request for TLS".into())),
    }
}
