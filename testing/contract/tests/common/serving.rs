//! A filesystem exported by a server in this process.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::listen;
use ivers_nfsd::server::{Exported, NfsServer, Setup};
use ivers_nfsd::stable::StableStorage;
use ivers_vfs::Vfs;

use super::How;

pub struct Serving {
    pub server: NfsServer,
    pub vfs: Arc<Vfs>,
}

impl Serving {
    pub fn start(
        state: &Path,
        how: How,
        fs: Arc<dyn ivers_vfs::FileSystem>,
        budget: Arc<ivers_block::Budget>,
    ) -> Self {
        let vfs = how.mount(fs, budget).0;
        let config = ExportConfig::from_flag("image,name=/data,no_root_squash").unwrap();
        let exports = vec![Exported { config, vfs: vfs.clone(), device: Some(b"image".to_vec()) }];
        let listeners = vec![listen::on("127.0.0.1:0".parse().unwrap()).unwrap()];
        let setup = Setup::new(StableStorage::open(state).unwrap(), listeners, exports);
        let server = NfsServer::start(Setup { lease_seconds: 2, ..setup }).unwrap();
        Self { server, vfs }
    }

    pub fn address(&self) -> SocketAddr {
        self.server.addresses()[0]
    }

    pub fn stop(self) {
        self.server.stop().expect("it stops");
        self.vfs.unmount().expect("it closes");
    }
}
