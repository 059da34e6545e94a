//! Reloading on SIGHUP: the file of the server, certificates, names of owners. All of it is checked before it
//! takes effect. On any error the server continues unchanged and logs the error.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use ivers_nfsd::compound::NameTables;
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::tls::{Tls, TlsFiles, TlsPem};
use ivers_nfsd::server::NfsServer;

use super::args::Args;
use super::config_file::{OwnersConfig, ServerConfig};
use super::config_files::Contents;
use super::exports::{Mounted, requires_tls};
use super::helper::Helper;
use super::plan::{self, ExportPlan, Plan};
use crate::output::failure::usage;
use crate::output::format::Shown;

/// Returns the configuration files of a server.
pub fn paths(args: &Args, plan: &Plan) -> Vec<PathBuf> {
    args.config.iter().cloned().chain(named_files(plan)).collect()
}

/// Returns the files that the configuration file or the command line names.
pub fn named_files(plan: &Plan) -> Vec<PathBuf> {
    let tls = plan.tls.iter().flat_map(|files| {
        [&files.certificate, &files.key].into_iter().chain(&files.client_authorities).cloned()
    });
    let owners = plan.owners.iter().flat_map(|owners| [owners.passwd.clone(), owners.group.clone()]);
    tls.chain(owners).collect()
}

/// Sets up TLS with the contents of its files.
pub fn tls(files: &TlsFiles, contents: &Contents) -> Result<Tls> {
    let pem = TlsPem {
        certificate: contents.get(&files.certificate)?,
        key: contents.get(&files.key)?,
        client_authorities: files.client_authorities.as_ref().map(|path| contents.get(path)).transpose()?,
    };
    Ok(Tls::from_pem(files, &pem)?)
}

/// Reads the names of owners.
pub fn names(owners: &OwnersConfig, contents: &Contents) -> Result<NameTables> {
    // A name that is not UTF-8 cannot be sent.
    let text = |path| Ok::<_, anyhow::Error>(String::from_utf8_lossy(contents.get(path)?));
    Ok(NameTables::new(&text(&owners.passwd)?, &text(&owners.group)?, &owners.domain.0))
}

/// The state that a reload compares with.
pub struct Reload<'a> {
    /// The command line.
    pub args: &'a Args,
    /// The configuration at the start.
    pub plan: &'a Plan,
    /// The open images.
    pub mounted: &'a [Mounted],
    /// The helper. `None` without a sandbox.
    pub helper: Option<&'a Helper>,
}

impl Reload<'_> {
    /// Reads everything again and applies it.
    pub fn apply(&self, server: &NfsServer) -> Result<()> {
        let contents = match self.helper {
            Some(helper) => helper.read()?,
            None => Contents::reread(&paths(self.args, self.plan)),
        };
        let file = match &self.args.config {
            Some(path) => plan::parse_file(path, contents.get(path)?)?,
            None => ServerConfig::default(),
        };
        let plan = Plan::with_file(self.args, file)?;
        let offered = plan.tls.as_ref().map(|files| tls(files, &contents)).transpose()?;
        ensure!(
            self.plan.tls.is_some() == offered.is_some(),
            "TLS cannot be switched on or off while the server runs; restart it"
        );
        if offered.is_none() && plan.exports.iter().any(|export| requires_tls(&export.config)) {
            return Err(usage(
                "an export requires TLS, but the server was started without a certificate; restart it",
            ));
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
                "changes of listen, state, metrics, lease_s, threads, limits, delegations, sandbox and \
                 log_format require a restart"
            );
        }
        log::info!(exports = left, removed_exports = gone; "reloaded");
        Ok(())
    }

    /// Returns the exports, each with the index of its filesystem in `mounted`. Images are not opened again.
    fn exports(&self, planned: &[ExportPlan]) -> Result<Vec<(ExportConfig, usize)>> {
        let mut free: Vec<usize> = (0..self.mounted.len()).collect();
        let mut exports = Vec::new();
        // Exports that keep their names come first: only the name distinguishes two filesystems in memory.
        for keeps_name in [true, false] {
            for export in planned {
                let config = &export.config;
                if exports.iter().any(|(done, _): &(ExportConfig, usize)| done.name == config.name) {
                    continue;
                }
                let matches = |&at: &usize| {
                    let mounted = &self.mounted[at];
                    let same =
                        |one: &ExportConfig| (one.image.clone(), one.fs_type.clone(), one.options.clone());
                    same(&mounted.config) == same(config)
                        && (!keeps_name || mounted.config.name == config.name)
                };
                match free.iter().position(matches) {
                    Some(at) => {
                        let index = free.remove(at);
                        check_access(export, &self.mounted[index])?;
                        exports.push((config.clone(), index));
                    }
                    None if keeps_name => {}
                    None => {
                        let (name, image) = (&config.name, config.image.shown());
                        return Err(usage(format!(
                            "export {name}: {image} was not opened with these options at the start; \
                             restart the server"
                        )));
                    }
                }
            }
        }
        Ok(exports)
    }
}

/// Fails if an export needs to be written and its image is open for reading only.
fn check_access(export: &ExportPlan, mounted: &Mounted) -> Result<()> {
    let opened_read_only = mounted.image_options.read_only && !export.image_options.read_only;
    if opened_read_only || export.writable && mounted.vfs.is_read_only() {
        let name = &export.config.name;
        return Err(usage(format!("export {name}: its image is open for reading only; restart the server")));
    }
    Ok(())
}
