//! What is to be served, and how: the file, and what the command line says, which counts before it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use ivers_nfsd::exports::config::{
    ConfigError, ExportConfig, LimitsConfig, LogFormat, Mode, OwnersConfig, ServerConfig, TlsConfig,
};
use ivers_nfsd::net::Limits;
use ivers_nfsd::net::tls::TlsFiles;
use ivers_nfsd::state;
use ivers_vfs::{InodeFlags, MountOptions};

use super::given;
use crate::failure::{USAGE, failure, usage};
use crate::image::How;
use crate::{args, options};

/// An export, and how its image is opened.
pub struct Planned {
    /// For whom, and under which name.
    pub config: ExportConfig,
    /// As `ivers mount -t` takes it.
    pub fs_type: String,
    /// How to open the image.
    pub how: How,
    /// For the VFS.
    pub vfs: MountOptions,
    /// `rw` was said: read-only will not do.
    pub writable: bool,
}

/// All of it.
pub struct Plan {
    /// Where to listen, if it was said.
    pub listen: Option<Vec<SocketAddr>>,
    /// Where to keep what outlives the server.
    pub state: PathBuf,
    /// Where to answer with statistics.
    pub metrics: Option<SocketAddr>,
    /// The lease time.
    pub lease_seconds: u32,
    /// Whether clients get delegations.
    pub delegations: bool,
    /// Whether the process is locked in.
    pub sandbox: bool,
    /// How messages look.
    pub log_format: LogFormat,
    /// Bounds of connections.
    pub limits: Limits,
    /// Bounds of what clients hold.
    pub state_limits: state::Limits,
    /// TLS, if it is offered.
    pub tls: Option<TlsFiles>,
    /// Names of owners, if they are not numbers.
    pub owners: Option<OwnersConfig>,
    /// What is exported.
    pub exports: Vec<Planned>,
}

impl Plan {
    /// What the command line says, and the file that it names.
    pub fn of(args: &args::Serve) -> Result<Self> {
        let file = match &args.config {
            Some(path) => {
                let bytes = given::read_first(path);
                file(path, &bytes.with_context(|| format!("cannot read {}", path.display()))?)?
            }
            None => ServerConfig::default(),
        };
        Self::of_file(args, file)
    }

    /// The same, when the file has been read.
    pub fn of_file(args: &args::Serve, file: ServerConfig) -> Result<Self> {
        let exports = exports(args, file.exports)?;
        if exports.is_empty() {
            return Err(usage("nothing to serve: name an image, or --config FILE with [[export]] in it"));
        }
        let lease_seconds = args.lease.or(file.lease_s).unwrap_or(90);
        if !(1..=3600).contains(&lease_seconds) {
            return Err(usage("the lease time must be from 1 to 3600 seconds"));
        }
        let threads = args.threads.or(file.threads);
        if threads.is_some_and(|threads| !(3..=256).contains(&threads)) {
            return Err(usage("there must be from 3 to 256 threads"));
        }
        let (mut limits, state_limits) = limits(&file.limits, threads)?;
        if let Some(us) = args.linger.or(file.linger_us) {
            if us > 1000 {
                return Err(usage("linger_us: a millisecond (1000) is the most"));
            }
            limits.linger = Duration::from_micros(us.into());
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

    /// What stays as it is while a server runs, to be compared.
    pub fn fixed(&self) -> String {
        let Self { listen, state, metrics, lease_seconds, delegations, sandbox, log_format, .. } = self;
        let limits = (&self.limits, &self.state_limits);
        format!("{:?}", (listen, state, metrics, lease_seconds, delegations, sandbox, log_format, limits))
    }
}

/// What a server's file says. Relative paths in it begin where it lies; if it has come through a descriptor, where the server was started.
pub fn file(path: &Path, bytes: &[u8]) -> Result<ServerConfig> {
    let text = std::str::from_utf8(bytes).with_context(|| format!("{} is no text", path.display()))?;
    let dir = if given::is_handed_over(path) { None } else { path.parent() };
    ServerConfig::of(path, dir, text).map_err(refused)
}

fn refused(error: ConfigError) -> anyhow::Error {
    failure(USAGE, error.to_string())
}

fn default_state() -> Result<PathBuf> {
    let named = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // systemd names the directories of StateDirectory=, with colons between them.
    if let Some(all) = named("STATE_DIRECTORY") {
        let first = all.to_string_lossy().split(':').next().map(PathBuf::from);
        return first.ok_or_else(|| usage("STATE_DIRECTORY is empty"));
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/ivers/serve".into());
    }
    let state = named("XDG_STATE_HOME").or_else(|| Some(named("HOME")?.join(".local/state")));
    let state = state.ok_or_else(|| usage("there is no home: say --state DIR"))?;
    Ok(state.join("ivers/serve"))
}

/// Those of the file, and those of the command line, which take the place of what has their name.
fn exports(args: &args::Serve, file: Vec<ExportConfig>) -> Result<Vec<Planned>> {
    let (mut exports, mut told) = (file, Vec::<ExportConfig>::new());
    let named = args.export.iter().map(|word| match word.split_once('=') {
        Some((name, rest)) if !name.contains(',') => Ok((Some(name), rest)),
        _ => Err(usage(format!("--export {word}: must be NAME=IMAGE[,OPTIONS]"))),
    });
    let words = args.images.iter().map(|word| Ok((None, word.as_str())));
    for word in words.chain(named) {
        let (name, word) = word?;
        let parts = options::split(&[word.to_owned()]);
        let mut export = ExportConfig::from_words(&parts, options::is_serving).map_err(refused)?;
        if let Some(name) = name {
            let slash = if name.starts_with('/') { "" } else { "/" };
            export.name = format!("{slash}{name}");
            export.check().map_err(refused)?;
        }
        // Of two with one name here one would not be served, and nobody would be told.
        if let Some(first) = told.iter().find(|other| other.name == export.name) {
            let (name, one, other) = (&export.name, first.image.display(), export.image.display());
            return Err(usage(format!(
                "two exports are named {name} ({one} and {other}): name=/PATH gives one of them another name"
            )));
        }
        exports.retain(|other| other.name != export.name);
        told.push(export);
    }
    exports.append(&mut told);
    exports.into_iter().map(plan).collect()
}

fn plan(config: ExportConfig) -> Result<Planned> {
    let all = || std::iter::once(&config.settings).chain(&config.rules);
    let writable = all().any(|settings| settings.access == Some(Mode::Rw));
    let read_only = config.settings.access == Some(Mode::Ro) && !writable;
    let of = |error: anyhow::Error| failure(USAGE, format!("export {}: {error}", config.name));
    let parsed = options::parse_serving(&config.options, read_only).map_err(of)?;
    let at_once = InodeFlags::SYNC | InodeFlags::DIRSYNC;
    if parsed.vfs.at_once.intersects(at_once) && all().any(|settings| settings.deferred == Some(true)) {
        return Err(of(anyhow!(
            "async contradicts sync and dirsync: either names are durable when they are answered or they are not. Leave one out"
        )));
    }
    let fs_type = config.fs_type.clone().unwrap_or_else(|| crate::drivers::AUTO.to_owned());
    let how = parsed.how.of_format(&fs_type);
    Ok(Planned { fs_type, how, vfs: parsed.vfs, writable, config })
}

fn tls(args: &args::Serve, file: Option<TlsConfig>) -> Option<TlsFiles> {
    let (certificate, key) = match (&args.tls_certificate, &args.tls_key, &file) {
        (Some(certificate), Some(key), _) => (certificate.clone(), key.clone()),
        (_, _, Some(file)) => (file.certificate.clone(), file.key.clone()),
        _ => return None,
    };
    let told = args.tls_client_authorities.clone();
    Some(TlsFiles {
        certificate,
        key,
        client_authorities: told.or_else(|| file.as_ref()?.client_authorities.clone()),
        client_required: file.is_some_and(|file| file.client_required),
    })
}

fn owners(args: &args::Serve, file: Option<OwnersConfig>) -> Option<OwnersConfig> {
    match (args.domain.clone(), file) {
        (Some(domain), Some(file)) => Some(OwnersConfig { domain, ..file }),
        (Some(domain), None) => Some(OwnersConfig::here(domain)),
        (None, file) => file,
    }
}

fn limits(file: &LimitsConfig, threads: Option<usize>) -> Result<(Limits, state::Limits)> {
    let (mut net, mut state) = (Limits::default(), state::Limits::default());
    let put = |place: &mut usize, told: Option<usize>, name: &str| {
        match told {
            Some(0) => return Err(usage(format!("limits.{name}: must be 1 at least"))),
            Some(told) => *place = told,
            None => {}
        }
        Ok(())
    };
    put(&mut net.threads, threads, "threads")?;
    put(&mut net.bounds.total_connections, file.connections, "connections")?;
    put(&mut net.bounds.client_connections, file.client_connections, "client_connections")?;
    put(&mut net.bounds.total_bytes, file.total_bytes, "total_bytes")?;
    put(&mut net.bounds.client_bytes, file.client_bytes, "client_bytes")?;
    put(&mut state.clients, file.clients, "clients")?;
    put(&mut state.sessions, file.sessions, "sessions")?;
    put(&mut state.stateids.0, file.client_stateids, "client_stateids")?;
    put(&mut state.delegations.0, file.client_delegations, "client_delegations")?;
    put(&mut state.ranges.0, file.client_locks, "client_locks")?;
    // A record that fits nowhere would never be answered.
    let least = net.record_bytes;
    if net.bounds.total_bytes < least || net.bounds.client_bytes < least {
        return Err(usage(format!("limits: total_bytes and client_bytes must be {least} at least")));
    }
    net.bounds.connection_bytes = net.bounds.connection_bytes.min(net.bounds.client_bytes);
    Ok((net, state))
}

/// By which name a filesystem is known after a restart: where it is.
pub fn device(image: &Path, how: &How) -> Vec<u8> {
    let mut name = image.as_os_str().as_encoded_bytes().to_vec();
    if how.offset_bytes > 0 {
        name.extend(format!("@{}", how.offset_bytes).into_bytes());
    }
    name
}
