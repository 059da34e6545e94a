//! The configuration of a server, from its file and the command line. The command line has precedence.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ivers_nfsd::exports::config::{ExportConfig, Mode};
use ivers_nfsd::net::Limits;
use ivers_nfsd::net::tls::TlsFiles;
use ivers_nfsd::state;
use ivers_vfs::{InodeFlags, MountOptions};

use super::args::Args;
use super::config_file::{self, LimitsConfig, LogFormat, OwnersConfig, ServerConfig, TlsConfig};
use super::config_files;
use crate::arguments::{split_options, with_partition};
use crate::image::mount_options::{is_export_option, parse_for_export};
use crate::image::open_options::{AUTO, ImageOptions};
use crate::output::failure::{USAGE, failure, usage};
use crate::output::format::Shown;
use crate::process::{env_path, user_state_dir};

/// The plan of an export.
pub struct ExportPlan {
    /// The name of the export and its rules for clients.
    pub config: ExportConfig,
    /// The type, as in `ivers mount -t`.
    pub fs_type: String,
    /// How to open the image.
    pub image_options: ImageOptions,
    /// The options of the VFS.
    pub vfs: MountOptions,
    /// `rw` is given: refuse to serve it read-only.
    pub writable: bool,
}

/// The configuration of a server.
pub struct Plan {
    /// The addresses to listen on, if given.
    pub listen: Option<Vec<SocketAddr>>,
    /// The state directory.
    pub state: PathBuf,
    /// The address of the HTTP server for statistics.
    pub metrics: Option<SocketAddr>,
    /// The lease time in seconds.
    pub lease_seconds: u32,
    /// Clients get delegations.
    pub delegations: bool,
    /// The process enters the sandbox.
    pub sandbox: bool,
    /// The format of log messages.
    pub log_format: LogFormat,
    /// Bounds of connections.
    pub limits: Limits,
    /// Bounds of the state of clients.
    pub state_limits: state::Limits,
    /// The files of TLS, if it is offered.
    pub tls: Option<TlsFiles>,
    /// The files with names of owners. `None`: owners are numbers.
    pub owners: Option<OwnersConfig>,
    /// The exports.
    pub exports: Vec<ExportPlan>,
}

impl Plan {
    /// Reads the configuration: the command line and the file that it names.
    pub fn read(args: &Args) -> Result<Self> {
        let file = match &args.config {
            Some(path) => {
                let bytes = config_files::read_at_start(path);
                parse_file(path, &bytes.with_context(|| format!("cannot read {}", path.shown()))?)?
            }
            None => ServerConfig::default(),
        };
        Self::with_file(args, file)
    }

    /// Combines the command line with its file.
    pub fn with_file(args: &Args, file: ServerConfig) -> Result<Self> {
        let exports = exports(args, file.exports)?;
        if exports.is_empty() {
            return Err(usage("nothing to serve: name an image, or a --config FILE with an [[export]]"));
        }
        let lease_seconds = args.lease.or(file.lease_s).unwrap_or(90);
        if !(1..=3600).contains(&lease_seconds) {
            return Err(usage("the lease time must be from 1 to 3600 seconds"));
        }
        let threads = args.threads.or(file.threads);
        if threads.is_some_and(|threads| !(3..=256).contains(&threads)) {
            return Err(usage("the number of threads must be from 3 to 256"));
        }
        let (mut limits, state_limits) = limits(&file.limits, threads)?;
        if let Some(us) = args.busy_poll.or(file.busy_poll_us) {
            if us > 1000 {
                return Err(usage("busy_poll_us must be at most 1000"));
            }
            limits.busy_poll = Duration::from_micros(us.into());
        }
        let log_format = match args.log_format.as_deref() {
            Some("json") => LogFormat::Json,
            Some(_) => LogFormat::Text,
            None => file.log_format.unwrap_or_default(),
        };
        let listen: Vec<SocketAddr> = if args.listen.is_empty() {
            file.listen.iter().flatten().map(|address| address.0).collect()
        } else {
            args.listen.iter().map(|address| address.0).collect()
        };
        Ok(Self {
            listen: (!listen.is_empty()).then_some(listen),
            state: match args.state.clone().or(file.state) {
                Some(state) => state,
                None => default_state()?,
            },
            metrics: args.metrics.or(file.metrics),
            lease_seconds,
            delegations: !args.no_delegations && file.delegations.unwrap_or(true),
            sandbox: !args.no_sandbox && file.sandbox.unwrap_or(true),
            log_format,
            limits,
            state_limits,
            tls: tls(args, file.tls),
            owners: owners(args, file.owners),
            exports,
        })
    }

    /// Returns the settings that a reload cannot change, for comparison.
    pub fn fixed(&self) -> String {
        let Self { listen, state, metrics, lease_seconds, delegations, sandbox, log_format, .. } = self;
        let limits = (&self.limits, &self.state_limits);
        format!("{:?}", (listen, state, metrics, lease_seconds, delegations, sandbox, log_format, limits))
    }
}

/// Parses the file of a server. Relative paths in it start in its directory; if it is a descriptor, in the
/// current directory.
pub fn parse_file(path: &Path, bytes: &[u8]) -> Result<ServerConfig> {
    let text = std::str::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.shown()))?;
    let dir = if config_files::is_descriptor(path) { None } else { path.parent() };
    config_file::parse(path, dir, text).map_err(refused)
}

fn refused(error: impl std::fmt::Display) -> anyhow::Error {
    failure(USAGE, error.to_string())
}

fn default_state() -> Result<PathBuf> {
    // systemd names the directories of StateDirectory=, separated by colons.
    if let Some(all) = env_path("STATE_DIRECTORY") {
        let first = all.to_string_lossy().split(':').next().map(PathBuf::from);
        return first.ok_or_else(|| usage("STATE_DIRECTORY is empty"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/ivers/serve".into());
    }
    let dir = user_state_dir().ok_or_else(|| usage("no home directory for the state; use --state DIR"))?;
    Ok(dir.join("serve"))
}

/// Returns the exports of the file and of the command line. One of the command line replaces one of the file
/// with the same name.
fn exports(args: &Args, file: Vec<ExportConfig>) -> Result<Vec<ExportPlan>> {
    let (mut exports, mut given) = (file, Vec::<ExportConfig>::new());
    let named = args.export.iter().map(|word| match word.split_once('=') {
        Some((name, rest)) if !name.contains(',') => Ok((Some(name), rest)),
        _ => Err(usage(format!("--export {word}: must be NAME=IMAGE[,OPTIONS]"))),
    });
    let words = args.images.iter().map(|word| Ok((None, word.as_str())));
    for word in words.chain(named) {
        let (name, word) = word?;
        let parts = split_options(&[word.to_owned()]);
        let mut export = ExportConfig::from_words(&parts, is_export_option).map_err(refused)?;
        if let Some(name) = name {
            let slash = if name.starts_with('/') { "" } else { "/" };
            export.name = format!("{slash}{name}");
            export.check().map_err(refused)?;
        }
        // Otherwise the second would silently replace the first.
        if let Some(first) = given.iter().find(|other| other.name == export.name) {
            let (name, one, other) = (&export.name, first.image.shown(), export.image.shown());
            return Err(usage(format!(
                "two exports are named {name} ({one} and {other}); rename one with name=/PATH"
            )));
        }
        exports.retain(|other| other.name != export.name);
        given.push(export);
    }
    exports.append(&mut given);
    exports.into_iter().map(plan).collect()
}

fn plan(config: ExportConfig) -> Result<ExportPlan> {
    let all = || std::iter::once(&config.settings).chain(&config.rules);
    let writable = all().any(|settings| settings.access == Some(Mode::Rw));
    let read_only = config.settings.access == Some(Mode::Ro) && !writable;
    let of = |error: anyhow::Error| failure(USAGE, format!("export {}: {error}", config.name));
    let parsed = parse_for_export(&config.options, read_only).map_err(of)?;
    let sync_flags = InodeFlags::SYNC | InodeFlags::DIRSYNC;
    if parsed.vfs.sync_flags.intersects(sync_flags) && all().any(|settings| settings.deferred == Some(true)) {
        return Err(of(anyhow!("async contradicts sync and dirsync; remove one of them")));
    }
    let fs_type = config.fs_type.clone().unwrap_or_else(|| AUTO.to_owned());
    let image_options = parsed.image.with_format(&fs_type);
    Ok(ExportPlan { fs_type, image_options, vfs: parsed.vfs, writable, config })
}

fn tls(args: &Args, file: Option<TlsConfig>) -> Option<TlsFiles> {
    let (certificate, key) = match (&args.tls_certificate, &args.tls_key, &file) {
        (Some(certificate), Some(key), _) => (certificate.clone(), key.clone()),
        (_, _, Some(file)) => (file.certificate.clone(), file.key.clone()),
        _ => return None,
    };
    let given = args.tls_client_authorities.clone();
    Some(TlsFiles {
        certificate,
        key,
        client_authorities: given.or_else(|| file.as_ref()?.client_authorities.clone()),
        client_required: file.is_some_and(|file| file.client_required),
    })
}

fn owners(args: &Args, file: Option<OwnersConfig>) -> Option<OwnersConfig> {
    match (args.domain.clone(), file) {
        (Some(domain), Some(file)) => Some(OwnersConfig { domain, ..file }),
        (Some(domain), None) => Some(OwnersConfig::here(domain)),
        (None, file) => file,
    }
}

fn limits(file: &LimitsConfig, threads: Option<usize>) -> Result<(Limits, state::Limits)> {
    let (mut net, mut state) = (Limits::default(), state::Limits::default());
    let set = |limit: &mut usize, value: Option<usize>, name: &str| {
        match value {
            Some(0) => return Err(usage(format!("limits.{name}: must be at least 1"))),
            Some(value) => *limit = value,
            None => {}
        }
        Ok(())
    };
    set(&mut net.threads, threads, "threads")?;
    set(&mut net.bounds.total_connections, file.connections, "connections")?;
    set(&mut net.bounds.client_connections, file.client_connections, "client_connections")?;
    set(&mut net.bounds.total_bytes, file.total_bytes, "total_bytes")?;
    set(&mut net.bounds.client_bytes, file.client_bytes, "client_bytes")?;
    set(&mut state.clients, file.clients, "clients")?;
    set(&mut state.sessions, file.sessions, "sessions")?;
    set(&mut state.stateids.0, file.client_stateids, "client_stateids")?;
    set(&mut state.delegations.0, file.client_delegations, "client_delegations")?;
    set(&mut state.ranges.0, file.client_locks, "client_locks")?;
    // The longest record must fit, or the server would never reply to it.
    let least = net.record_bytes;
    if net.bounds.total_bytes < least || net.bounds.client_bytes < least {
        return Err(usage(format!("limits: total_bytes and client_bytes must be at least {least}")));
    }
    net.bounds.connection_bytes = net.bounds.connection_bytes.min(net.bounds.client_bytes);
    Ok((net, state))
}

/// Identifies the filesystem across restarts: by image, partition and offset.
pub fn device_name(image: &Path, options: &ImageOptions) -> Vec<u8> {
    let image = with_partition(image, options.partition.as_deref());
    let mut name = image.as_os_str().as_encoded_bytes().to_vec();
    if options.offset_bytes > 0 {
        name.extend(format!("@{}", options.offset_bytes).into_bytes());
    }
    name
}
