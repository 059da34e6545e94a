//! Serves an ext4 image: `serve IMAGE[,OPTIONS] STATE-DIRECTORY ADDRESS:PORT [LEASE-SECONDS]`. Stops properly
//! at the end of its standard input.

use std::error::Error;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use ivers_block::{Device, FileDevice, OpenMode};
use ivers_ext4::{Ext4, OpenOptions};
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::listen;
use ivers_nfsd::server::{Exported, NfsServer, Setup};
use ivers_nfsd::stable::StableStorage;
use ivers_vfs::{DriverOptions, MountOptions, Vfs};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [export, state, address, lease @ ..] = &args[..] else {
        return Err("usage: serve IMAGE[,OPTIONS] STATE-DIRECTORY ADDRESS:PORT [LEASE-SECONDS]".into());
    };
    let lease_seconds = lease.first().map_or(Ok(90), |lease| lease.parse())?;
    let config = ExportConfig::from_flag(export)?;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&config.image, OpenMode::ReadWrite)?);
    let place = config.image.display().to_string();
    let vfs = Vfs::mount(
        Ext4::open(device, OpenOptions::from(DriverOptions { place, ..DriverOptions::default() }))?,
        MountOptions::default(),
    )?;
    let name = config.image.canonicalize()?.as_os_str().as_encoded_bytes().to_vec();
    let (stable, listeners) = (StableStorage::open(Path::new(state))?, vec![listen::on(address.parse()?)?]);
    let exports = vec![Exported { config, vfs: vfs.clone(), device: Some(name) }];
    let server = NfsServer::start(Setup { lease_seconds, ..Setup::new(stable, listeners, exports) })?;
    for address in server.addresses() {
        println!("serving at {address}");
    }
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop()?;
    vfs.unmount()?;
    Ok(())
}
