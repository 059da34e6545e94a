//! TLS (RFC 9289): the client and ivers's own server.

use super::*;
use crate::faults::proxy;
use std::sync::atomic::Ordering::Relaxed;

use ivers_nfs::tls::{BadPem, Pem, Tls};
use ivers_nfsd::net::tls::{ClientCertificates, Tls as ServerTls};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.as_ref().pem()
    }

    /// Returns a certificate for a name, and its key.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (certificate.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }

    /// Returns the TLS settings of a client that trusts this authority.
    fn client(&self, identity: Option<&(String, String)>) -> Tls {
        let identity = identity.map(|(certificate, key)| (certificate.as_bytes(), key.as_bytes()));
        Tls::new("127.0.0.1", &Pem { authorities: self.pem().as_bytes(), identity }).unwrap()
    }

    /// Serves with a certificate for `name`.
    fn serve(&self, name: &str, requires_clients: bool) -> Served {
        let clients = match requires_clients {
            false => ClientCertificates::NotRequested,
            true => ClientCertificates::Required(vec![self.0.as_ref().der().clone()]),
        };
        let (certificate, key) = self.issue(name);
        let chain = vec![rustls::pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let tls = ServerTls::new(chain, key, clients).unwrap();
        let state = tempfile::tempdir().unwrap();
        let vfs = ext4();
        let flags = ",no_root_squash,tls=required";
        let server =
            serve_with(state.path(), &vfs, flags, "127.0.0.1:0".parse().unwrap(), (LEASE_SECONDS, Some(tls)));
        Served { vfs, server, state }
    }
}

fn with(tls: Tls, connections: usize) -> NfsOptions {
    NfsOptions { tls: Some(tls), connections, ..options() }
}

fn refused(address: SocketAddr, tls: Tls) -> String {
    let error = mount(address, &NfsOptions { patience: impatient(), ..with(tls, 1) }).map(drop).unwrap_err();
    error.to_string()
}

#[test]
fn files_are_read_and_written_in_tls() {
    let authority = Authority::new();
    let served = authority.serve("127.0.0.1", false);
    let big: Vec<u8> = (0..3_000_001_u32).map(|at| (at * 7 % 251) as u8).collect();
    served.file(&served.root(), b"big", &big);
    let (address, plan) = proxy(served.address());
    let client = mount(address, &with(authority.client(None), 3)).unwrap();
    assert_eq!(client.contents("/big").unwrap(), big);
    let (cred, root) = (Cred::root(), client.vfs.root().unwrap());
    plan.cut_after.store(700, Relaxed);
    std::thread::scope(|scope| {
        for nth in 0..6_u8 {
            let (client, cred, root, big) = (&client, &cred, &root, &big);
            scope.spawn(move || {
                let name = format!("copy{nth}");
                let spec = CreateSpec::file(0o644);
                let (file, _) = client.vfs.create(cred, root, name.as_bytes(), &spec, true).unwrap();
                client.vfs.write(cred, &file, 0, &big[..1_000_000], WriteFlags::empty()).unwrap();
                client.vfs.fsync(&file, false).unwrap();
            });
        }
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(10));
            plan.cut_after.store(300, Relaxed);
        }
    });
    plan.cut_after.store(0, Relaxed);
    let counters = client.vfs.counters();
    let count = |name: &str| counters.iter().find(|(found, _)| *found == name).unwrap().1;
    assert!(plan.cuts.load(Relaxed) > 0 && count("server_sessions") == 1, "{counters:?}");
    for nth in 0..6 {
        assert_eq!(client.contents(&format!("/copy{nth}")).unwrap(), big[..1_000_000]);
    }
    client.vfs.unmount().unwrap();
}

#[test]
fn a_server_without_tls_is_refused() {
    let served = Served::new(mem());
    let why = refused(served.address(), Authority::new().client(None));
    assert!(why.contains("offers no TLS"), "{why}");
}

#[test]
fn certificates_are_checked_by_both_sides() {
    let authority = Authority::new();
    let why = refused(authority.serve("127.0.0.1", false).address(), Authority::new().client(None));
    assert!(why.contains("invalid peer certificate"), "{why}");
    let why = refused(authority.serve("server.example", false).address(), authority.client(None));
    assert!(why.contains("not valid for name") || why.contains("NotValidForName"), "{why}");
    let served = authority.serve("127.0.0.1", true);
    let why = refused(served.address(), authority.client(None));
    assert!(why.to_lowercase().contains("certificate"), "{why}");
    let stranger = Authority::new().issue("client");
    let why = refused(served.address(), authority.client(Some(&stranger)));
    assert!(why.contains("TLS") || why.contains("alert"), "{why}");
    let own = authority.issue("client");
    let client = mount(served.address(), &with(authority.client(Some(&own)), 1)).unwrap();
    assert_eq!(client.names("/").unwrap().len(), 3, "`.`, `..` and lost+found");
    client.vfs.unmount().unwrap();
    // Without TLS the export is refused.
    assert!(mount(served.address(), &options()).is_err());
}

#[test]
fn pem_that_cannot_be_used_is_refused() {
    let authority = Authority::new();
    let (certificate, key) = authority.issue("client");
    let authorities = authority.pem();
    let tls = |authorities: &str, certificate: &str, key: &str| {
        let identity = Some((certificate.as_bytes(), key.as_bytes()));
        Tls::new("h", &Pem { authorities: authorities.as_bytes(), identity }).map(drop)
    };
    assert!(tls(&authorities, &certificate, &key).is_ok());
    assert!(matches!(tls("", &certificate, &key), Err(BadPem::Authorities(_))));
    assert!(matches!(tls(&authorities, &key, &key), Err(BadPem::Certificate(_))));
    assert!(matches!(tls(&authorities, &certificate, &certificate), Err(BadPem::Key(_))));
    assert!(matches!(tls(&authorities, &certificate, &authority.issue("x").1), Err(BadPem::Key(_))));
    let pem = Pem { authorities: authorities.as_bytes(), identity: None };
    assert!(matches!(Tls::new("no name", &pem), Err(BadPem::Name(_))));
}
