//! The client against servers: ivers's own over a socket, the same behind a proxy that breaks connections,
//! and one that lies.

mod cached_changes;
mod callbacks;
mod deferred_closes;
mod delegations;
mod durable;
mod faults;
mod hostile;
mod kept;
mod lies;
mod locking;
mod orders;
mod ranges;
mod read_ahead;
mod recovery;
mod served;
mod tls;
mod turns;
mod version_40;
mod write_delegations;
mod writing;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ivers_block::{Device, MemDevice};
use ivers_ext4::mkfs::{MkfsOptions, mkfs};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_nfs::identity::Identity;
use ivers_nfs::target::ServerName;
use ivers_nfs::{Dial, Nfs, NfsOptions, Patience};
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::listen;
use ivers_nfsd::server::{Exported, NfsServer, Setup};
use ivers_nfsd::stable::StableStorage;
use ivers_vfs::{CreateSpec, Cred, DriverOptions, InodeRef, MountOptions, Result, Vfs, WriteFlags};

fn quiet() -> MountOptions {
    MountOptions { background: false, ..MountOptions::default() }
}

fn mem() -> Arc<Vfs> {
    Vfs::mount(Arc::new(ivers_mem::Mem::new(64 << 20)), quiet()).unwrap()
}

fn ext4() -> Arc<Vfs> {
    let device: Arc<dyn Device> = Arc::new(MemDevice::new(32 << 20));
    mkfs(&device, &MkfsOptions { zeroed: true, ..MkfsOptions::default() }).unwrap();
    let options = DriverOptions { place: "a test".into(), ..DriverOptions::default() };
    Vfs::mount(Ext4::open(device, OpenOptions::from(options)).unwrap(), quiet()).unwrap()
}

/// Exports a filesystem as `/deep/data` with these flags.
fn serve_at(state: &Path, vfs: &Arc<Vfs>, flags: &str, address: SocketAddr) -> NfsServer {
    serve_with(state, vfs, flags, address, (LEASE_SECONDS, None))
}

/// The lease of servers, unless a test has its own.
const LEASE_SECONDS: u32 = 3;

fn serve_with(
    state: &Path,
    vfs: &Arc<Vfs>,
    flags: &str,
    address: SocketAddr,
    (lease_seconds, tls): (u32, Option<ivers_nfsd::net::tls::Tls>),
) -> NfsServer {
    let config = ExportConfig::from_flag(&format!("image,name=/deep/data{flags}")).unwrap();
    let exports = vec![Exported { config, vfs: vfs.clone(), device: Some(b"image".to_vec()) }];
    let listeners = vec![listen::on(address).unwrap()];
    let setup = Setup::new(StableStorage::open(state).unwrap(), listeners, exports);
    NfsServer::start(Setup { lease_seconds, tls, ..setup }).unwrap()
}

/// A server with one export.
struct Served {
    vfs: Arc<Vfs>,
    server: NfsServer,
    state: tempfile::TempDir,
}

impl Served {
    fn new(vfs: Arc<Vfs>) -> Self {
        Self::with_flags(vfs, ",no_root_squash")
    }

    fn with_flags(vfs: Arc<Vfs>, flags: &str) -> Self {
        let state = tempfile::tempdir().unwrap();
        let server = serve_at(state.path(), &vfs, flags, "127.0.0.1:0".parse().unwrap());
        Self { vfs, server, state }
    }

    fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    fn root(&self) -> InodeRef {
        self.vfs.root().unwrap()
    }

    fn file(&self, dir: &InodeRef, name: &[u8], contents: &[u8]) -> InodeRef {
        let spec = CreateSpec::file(0o644);
        let (file, _) = self.vfs.create(&Cred::root(), dir, name, &spec, false).unwrap();
        self.write(&file, contents);
        file
    }

    fn write(&self, file: &InodeRef, contents: &[u8]) {
        let written = self.vfs.write(&Cred::root(), file, 0, contents, WriteFlags::empty()).unwrap();
        assert_eq!(written, contents.len());
    }

    fn directory(&self, dir: &InodeRef, name: &[u8]) -> InodeRef {
        self.vfs.create(&Cred::root(), dir, name, &CreateSpec::directory(0o755), false).unwrap().0
    }
}

fn dial(address: SocketAddr) -> Dial {
    let server = ServerName { host: address.ip().to_string(), port: address.port() };
    Box::new(move |timeout| ivers_nfs::connect(&server, timeout))
}

thread_local! {
    /// The minor version that clients of this thread ask for.
    static VERSION: std::cell::Cell<Option<u32>> = const { std::cell::Cell::new(None) };
    /// Whether clients of this thread ask for write delegations.
    static WRITE_DELEGATIONS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

fn options() -> NfsOptions {
    let root = b"/deep/data".to_vec();
    NfsOptions {
        root,
        minor_version: VERSION.get(),
        delegations: true,
        write_delegations: WRITE_DELEGATIONS.get(),
        attribute_timeout: Duration::ZERO,
        ..NfsOptions::new(Identity::of(Cred::root()))
    }
}

/// Requests that fail soon.
fn impatient() -> Patience {
    Patience {
        reply: Duration::from_millis(700),
        request: Some(Duration::from_secs(2)),
        ..Patience::default()
    }
}

struct Mounted {
    nfs: Arc<Nfs>,
    vfs: Arc<Vfs>,
}

fn mount(address: SocketAddr, options: &NfsOptions) -> Result<Mounted> {
    let nfs = Nfs::open("nfs://test", dial(address), options)?;
    Ok(Mounted { vfs: Vfs::mount(nfs.clone(), quiet())?, nfs })
}

impl Mounted {
    fn count(&self, name: &str) -> u64 {
        let counters = self.vfs.counters();
        counters.iter().find(|(found, _)| *found == name).unwrap().1
    }

    fn find(&self, path: &str) -> Result<InodeRef> {
        self.vfs.resolve(&Cred::root(), path, false)
    }

    fn contents(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.find(path)?;
        let mut bytes = vec![0; self.vfs.get_attr(&Cred::root(), &file)?.size as usize + 10];
        let mut len = 0;
        loop {
            match self.vfs.read(&Cred::root(), &file, len as u64, &mut bytes[len..])? {
                0 => break,
                read => len += read,
            }
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    fn names(&self, path: &str) -> Result<Vec<String>> {
        let dir = self.find(path)?;
        let mut names = Vec::new();
        self.vfs.readdir(&Cred::root(), &dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(names)
    }
}
