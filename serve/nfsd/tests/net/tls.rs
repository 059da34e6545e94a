//! RPC with TLS (RFC 9289), against rustls as a client.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use ivers_nfs4::rpc::{AUTH_TLS, AuthStat, OpaqueAuth, Reply, STARTTLS};
use ivers_nfsd::net::Limits;
use ivers_nfsd::net::tls::{ClientCertificates, Tls, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::common::*;

type Secured = Peer<StreamOwned<ClientConnection, TcpStream>>;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn certificate(&self) -> CertificateDer<'static> {
        self.0.as_ref().der().clone()
    }

    fn issue(&self, names: &[&str]) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.der().clone(), PrivatePkcs8KeyDer::from(key.serialize_der()).into())
    }
}

struct Case {
    authority: Authority,
    served: Served,
}

fn case(limits: Limits, clients: impl FnOnce(&Authority) -> ClientCertificates) -> Case {
    let authority = Authority::new();
    let (certificate, key) = authority.issue(&["server.example"]);
    let tls = Tls::new(vec![certificate], key, clients(&authority)).unwrap();
    Case { served: serve(limits, Some(tls)), authority }
}

fn probe() -> Vec<u8> {
    call_to(1, 0, OpaqueAuth { flavor: AUTH_TLS, body: Vec::new() }, b"")
}

fn token() -> Reply {
    Reply::Success { verf: OpaqueAuth { flavor: 0, body: STARTTLS.to_vec() } }
}

impl Case {
    fn client(
        &self,
        alpn: &[&str],
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    ) -> ClientConnection {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.certificate()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        ClientConnection::new(Arc::new(config), "server.example".try_into().unwrap()).unwrap()
    }

    fn probed(&self) -> TcpStream {
        let mut peer = connect(self.served.address);
        peer.send(&probe());
        assert_eq!(peer.reply(), (1, token(), Vec::new()));
        peer.stream
    }

    fn secured(
        &self,
        alpn: &[&str],
        identity: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
    ) -> Result<Secured, std::io::Error> {
        let mut stream = StreamOwned::new(self.client(alpn, identity), self.probed());
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Peer::new(stream))
    }
}

fn unasked(_: &Authority) -> ClientCertificates {
    ClientCertificates::NotRequested
}

/// [RFC9289 4.1] [RFC9289 5] [RFC9289 8.2]
#[test]
fn calls_work_inside_tls() {
    let case = case(Limits::default(), unasked);
    let mut peer = case.secured(&["sunrpc"], None).unwrap();
    assert_eq!(peer.stream.conn.alpn_protocol(), Some(&b"sunrpc"[..]));
    assert_eq!(peer.stream.conn.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    let large: Vec<u8> = (0..1 << 20).map(|at| (at * 31 % 251) as u8).collect();
    for _ in 0..3 {
        assert!(peer.call(ECHO, &large) == large);
        assert_eq!(peer.call(LARGE, &(3u32 << 20).to_be_bytes()).len(), 3 << 20);
    }
    // No certificate and no name, but the connection is known to use TLS.
    assert_eq!(peer.call(WHO, b""), [0, 0, 0, 1, 0, 0, 3, 232, 0, 0, 0, 2, 0, 0, 0, 0]);
    peer.send(&[call_to(1, LATER, sys(0), b"1st."), call_to(2, ECHO, sys(0), b"2nd.")].concat());
    assert_eq!((peer.reply().2, peer.reply().2), (b"2nd.".to_vec(), b"1st.".to_vec()));
    // A second AUTH_TLS probe inside TLS (RFC 9289 section 4.1: must be rejected), and one in another
    // procedure.
    peer.send(&probe());
    assert_eq!(peer.reply().1, Reply::AuthError(AuthStat::BadCred));
    let mut plain = connect(case.served.address);
    plain.send(&call_to(1, ECHO, OpaqueAuth { flavor: AUTH_TLS, body: Vec::new() }, b""));
    assert_eq!(plain.reply().1, Reply::AuthError(AuthStat::BadCred));
    assert_eq!(plain.call(ECHO, b"fine"), b"fine");
    drop((peer, plain));
    until("all connections are closed", || case.served.server.held() == (0, 0));
}

#[test]
fn a_slow_reader_inside_tls_gets_everything_and_costs_little() {
    let case = case(Limits { choke_bytes: 1 << 20, ..Limits::default() }, unasked);
    let mut peer = case.secured(&["sunrpc"], None).unwrap();
    for xid in 0..60 {
        peer.send(&call_to(xid, LARGE, sys(0), &(1u32 << 20).to_be_bytes()));
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(10));
        let (xid, _, results) = peer.reply();
        assert_eq!(results.len(), 1 << 20);
        seen.insert(xid);
        assert!(case.served.server.held().1 < 12 << 20);
    }
    assert_eq!(seen.len(), 60);
    // Others are not delayed, and both directions work at the same time.
    let mut other = case.secured(&["sunrpc"], None).unwrap();
    let large = vec![3; 1 << 20];
    for xid in 0..4 {
        peer.send(&call_to(xid, LARGE, sys(0), &(1u32 << 19).to_be_bytes()));
        assert!(other.call(ECHO, &large) == large);
    }
    for _ in 0..4 {
        assert_eq!(peer.reply().2.len(), 1 << 19);
    }
}

#[test]
fn the_linux_client_offers_no_protocol_and_others_offer_the_wrong_one() {
    let case = case(Limits::default(), unasked);
    assert_eq!(case.secured(&[], None).unwrap().call(ECHO, b"here"), b"here");
    assert!(case.secured(&["h2"], None).is_err());
    assert_eq!(case.secured(&["h2", "sunrpc"], None).unwrap().call(ECHO, b"here"), b"here");
}

#[test]
fn clients_present_certificates() {
    let stranger = Authority::new();
    let identity = |authority: &Authority| Some(authority.issue(&["one.example", "two.example"]));
    let names = |peer: &mut Secured| String::from_utf8(peer.call(WHO, b"")[16..].to_vec()).unwrap();
    let optional = case(Limits::default(), |own| ClientCertificates::Optional(vec![own.certificate()]));
    let mut peer = optional.secured(&["sunrpc"], identity(&optional.authority)).unwrap();
    assert_eq!(names(&mut peer).trim_end_matches('\0'), "one.example,two.example");
    assert_eq!(names(&mut optional.secured(&["sunrpc"], None).unwrap()), "");
    let required = case(Limits::default(), |own| ClientCertificates::Required(vec![own.certificate()]));
    let mut peer = required.secured(&["sunrpc"], identity(&required.authority)).unwrap();
    assert_eq!(names(&mut peer).trim_end_matches('\0'), "one.example,two.example");
    // With TLS 1.3, the client's handshake succeeds before the server has checked the certificate. The
    // connection ends before the first reply.
    for (case, identity) in
        [(&required, None), (&required, identity(&stranger)), (&optional, identity(&stranger))]
    {
        if let Ok(mut peer) = case.secured(&["sunrpc"], identity) {
            let _ = std::io::Write::write_all(&mut peer.stream, &call_to(1, ECHO, sys(0), b"here"));
            assert_eq!(peer.receive(), None);
        }
    }
}

/// [RFC9289 4.1] Cleartext after the probe could come from an attacker, and would be taken for protected
/// data.
#[test]
fn data_before_the_handshake_is_refused() {
    let case = case(Limits::default(), unasked);
    let call = call_to(2, ECHO, sys(0), b"evil");
    // In the same segment.
    let mut peer = connect(case.served.address);
    peer.send(&[probe(), call.clone()].concat());
    assert_eq!(peer.receive(), None);
    // A part of a record suffices.
    let mut peer = connect(case.served.address);
    peer.send(&[&probe()[..], &call[..1]].concat());
    assert_eq!(peer.receive(), None);
    // After the reply.
    let mut peer = Peer::new(case.probed());
    peer.send(&call);
    while let Some(alert) = {
        let mut byte = [0];
        std::io::Read::read(&mut peer.stream, &mut byte).ok().filter(|len| *len > 0)
    } {
        assert_eq!(alert, 1, "an alert instead of a reply");
    }
    // While another call runs, whose reply would be protected although its caller asked without TLS.
    let mut peer = connect(case.served.address);
    peer.send(&call_to(1, SLEEP, sys(0), &200u32.to_be_bytes()));
    until("the call runs", || case.served.echo.running.load(std::sync::atomic::Ordering::SeqCst) > 0);
    peer.send(&probe());
    assert_eq!(peer.receive(), None);
    assert_eq!(case.served.server.counters().panics.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn an_incomplete_handshake_times_out() {
    let case = case(Limits { handshake_time: Duration::from_secs(2), ..Limits::default() }, unasked);
    let mut peer = Peer::new(case.probed());
    assert_eq!(peer.receive(), None);
    // A completed handshake has no time limit.
    let mut peer = case.secured(&["sunrpc"], None).unwrap();
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!(peer.call(ECHO, b"here"), b"here");
}

#[test]
fn a_new_certificate_is_used_for_new_connections() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let tls = |by: &Authority| {
        let (certificate, key) = by.issue(&["server.example"]);
        Tls::new(vec![certificate], key, ClientCertificates::NotRequested).unwrap()
    };
    let offered = tls(&authority);
    let case = Case { served: serve(Limits::default(), Some(offered.clone())), authority };
    let mut first = case.secured(&["sunrpc"], None).unwrap();
    offered.replace(&tls(&stranger));
    assert!(case.secured(&["sunrpc"], None).is_err(), "the client does not trust the new certificate");
    assert_eq!(first.call(ECHO, b"here"), b"here");
    offered.replace(&tls(&case.authority));
    assert_eq!(case.secured(&["sunrpc"], None).unwrap().call(ECHO, b"anew"), b"anew");
}

#[test]
fn invalid_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, contents: &str| {
        std::fs::write(dir.path().join(name), contents).unwrap();
        dir.path().join(name)
    };
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["server.example".into()]).unwrap().self_signed(&key).unwrap();
    let good = TlsFiles {
        certificate: file("cert.pem", &certificate.pem()),
        key: file("key.pem", &key.serialize_pem()),
        client_authorities: None,
        client_required: false,
    };
    assert!(Tls::from_files(&good).is_ok());
    let with_clients = TlsFiles {
        client_authorities: Some(good.certificate.clone()),
        client_required: true,
        ..good.clone()
    };
    assert!(Tls::from_files(&with_clients).is_ok());
    let empty = file("empty.pem", "");
    let other = file("other.pem", &KeyPair::generate().unwrap().serialize_pem());
    let wrong = |files: &TlsFiles| Tls::from_files(files).unwrap_err().to_string();
    assert!(wrong(&TlsFiles { certificate: empty.clone(), ..good.clone() }).contains("empty.pem"));
    assert!(wrong(&TlsFiles { key: empty.clone(), ..good.clone() }).contains("a private key"));
    assert!(
        wrong(&TlsFiles { client_authorities: Some(dir.path().join("none.pem")), ..good.clone() })
            .contains("none.pem")
    );
    assert!(wrong(&TlsFiles { client_required: true, ..good.clone() }).contains("no authorities"));
    assert!(wrong(&TlsFiles { key: other, ..good }).contains("certificate, key"));
}
