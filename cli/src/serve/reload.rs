//! What is read again when the server is told to (SIGHUP): its file, the certificates, the names of owners. All of it is looked at before any of it counts; whatever is
//! wrong with it, the server goes on as before and says so.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ivers_nfsd::compound::Tables;
use ivers_nfsd::exports::config::{ExportConfig, OwnersConfig, ServerConfig};
use ivers_nfsd::net::tls::{Tls, TlsFiles, TlsPem};
use ivers_nfsd::server::NfsServer;

use super::attendant::Attendant;
use super::given::Contents;
use super::plan::{self, Plan, Planned};
use super::{Mounted, wants_tls};
use crate::args;
use crate::failure::usage;

/// The files that a server is told by.
pub fn paths(args: &args::Serve, plan: &Plan) -> Vec<PathBuf> {
    args.config.iter().cloned().chain(named(plan)).collect()
}

/// Those that its own file names, or the command line.
pub fn named(plan: &Plan) -> Vec<PathBuf> {
    let tls = plan.tls.iter().flat_map(|files| {
        [&files.certificate, &files.key].into_iter().chain(&files.client_authorities).cloned()
    });
    let owners = plan.owners.iter().flat_map(|owners| [owners.passwd.clone(), owners.group.clone()]);
    tls.chain(owners).collect()
}

/// TLS by what the files hold.
pub fn tls(files: &TlsFiles, contents: &Contents) -> Result<Tls> {
    let pem = TlsPem {
        certificate: contents.get(&files.certificate)?,
        key: contents.get(&files.key)?,
        client_authorities: files.client_authorities.as_ref().map(|path| contents.get(path)).transpose()?,
    };
    Ok(Tls::from_pem(files, &pem)?)
}

/// The names of owners by what the files hold.
pub fn names(owners: &OwnersConfig, contents: &Contents) -> Result<Tables> {
    // A name that is not UTF-8 cannot be sent; the others can.
    let text = |path| Ok::<_, anyhow::Error>(String::from_utf8_lossy(contents.get(path)?));
    Ok(Tables::new(&text(&owners.passwd)?, &text(&owners.group)?, &owners.domain.0))
}

/// What a server was started by.
pub struct Reload<'a> {
    pub args: &'a args::Serve,
    pub plan: &'a Plan,
    pub mounted: &'a [Mounted],
    /// None: there is no sandbox.
    pub attendant: Option<&'a Attendant>,
}

impl Reload<'_> {
    /// Read everything again; then it counts.
    pub fn apply(&self, server: &NfsServer) -> Result<()> {
        let contents = match self.attendant {
            Some(attendant) => attendant.read()?,
            None => Contents::again(&paths(self.args, self.plan)),
        };
        let file = match &self.args.config {
            Some(path) => plan::file(path, contents.get(path)?)?,
            None => ServerConfig::default(),
        };
        let plan = Plan::of_file(self.args, file)?;
        let offered = plan.tls.as_ref().map(|files| tls(files, &contents)).transpose()?;
        ensure!(
            self.plan.tls.is_some() == offered.is_some(),
            "TLS cannot be switched on or off while the server runs: start it again"
        );
        if offered.is_none() && plan.exports.iter().any(|export| wants_tls(&export.config)) {
            return Err(usage("an export wants TLS, and no certificate was given at the start"));
        }
        let names = plan.owners.as_ref().map(|owners| names(owners, &contents)).transpose()?;
        let exports = self.exports(&plan.exports)?;
        let (gone, left) = (self.mounted.len() - exports.len(), exports.len());
        server.set_exports(exports)?;
        if let Some(tls) = &offered {
            server.set_tls(tls);
        }
        server.set_names(names);
        if plan.fixed() != self.plan.fixed() {
            log::warn!(
                "listen, state, metrics, lease_s, threads, limits, delegations, sandbox and log_format are as at the start"
            );
        }
        log::info!(exports = left, not_exported_any_more = gone; "read again");
        Ok(())
    }

    /// The exports, each with the place of its filesystem: none is opened any more.
    fn exports(&self, planned: &[Planned]) -> Result<Vec<(ExportConfig, usize)>> {
        let mut free: Vec<usize> = (0..self.mounted.len()).collect();
        let mut exports = Vec::new();
        // Those that keep their names first: of two filesystems in memory nothing else tells which is which.
        for keeps_name in [true, false] {
            for export in planned {
                let config = &export.config;
                if exports.iter().any(|(done, _): &(ExportConfig, usize)| done.name == config.name) {
                    continue;
                }
                let is_it = |&place: &usize| {
                    let mounted = &self.mounted[place];
                    let same =
                        |one: &ExportConfig| (one.image.clone(), one.fs_type.clone(), one.options.clone());
                    same(&mounted.config) == same(config)
                        && (!keeps_name || mounted.config.name == config.name)
                };
                match free.iter().position(is_it) {
                    Some(at) => {
                        let place = free.remove(at);
                        self.fits(export, &self.mounted[place])?;
                        exports.push((config.clone(), place));
                    }
                    None if keeps_name => {}
                    None => {
                        let (name, image) = (&config.name, config.image.display());
                        return Err(usage(format!(
                            "export {name}: {image} was not opened so when the server was started: start it again"
                        )));
                    }
                }
            }
        }
        Ok(exports)
    }

    fn fits(&self, export: &Planned, mounted: &Mounted) -> Result<()> {
        let opened_for_reading = mounted.how.read_only && !export.how.read_only;
        if opened_for_reading || export.writable && mounted.vfs.is_read_only() {
            let name = &export.config.name;
            return Err(usage(format!("export {name}: it was opened for reading alone: start it again")));
        }
        Ok(())
    }
}
