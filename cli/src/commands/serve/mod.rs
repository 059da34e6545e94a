//! `serve`: images over NFSv4.
//!
//! The server first opens all that it needs: images, sockets, certificates, its state directory. Then it
//! enters the sandbox. Only then it reads the first byte of an image and serves the first client. In the
//! sandbox it creates no socket, connects to no host, and opens only files of its state directory. A helper
//! process without sandbox reads the configuration files again and connects to clients for callbacks.
//!
//! | module | contents |
//! |---|---|
//! | [`args`] | options |
//! | [`config_file`] | the format of the configuration file |
//! | [`config_files`] | reading files that the configuration names |
//! | [`helper`] | the helper process |
//! | [`plan`] | the configuration |
//! | [`exports`] | the images |
//! | [`reload`] | reloading on SIGHUP |
//! | [`stats`], [`stats_server`] | statistics and who may query them |
//! | [`notify`] | messages to systemd |

mod args;
mod config_file;
mod config_files;
mod exports;
mod help;
pub mod helper;
mod notify;
mod plan;
mod reload;
pub mod stats;
pub mod stats_server;

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ivers_nfsd::compound::NameTables;
use ivers_nfsd::exports::config::ExportConfig;
use ivers_nfsd::net::listen::{self, ListenError};
use ivers_nfsd::net::tls::Tls;
use ivers_nfsd::server::{Dial, NfsServer, Setup, StartError};
use ivers_nfsd::stable::{StableError, StableStorage};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub use args::Args;

use crate::output::failure::{BUSY, CORRUPT, FAILED, REFUSED, USAGE, failure, line, usage};
use crate::output::format::Shown;
use crate::output::{log as output_log, print};
use config_file::LogFormat;
use config_files::Contents;
use exports::{Mounted, Opened, mount_all, open_all, requires_tls, unmount_all};
use helper::Helper;
use notify::Notify;
use plan::Plan;
use reload::Reload;
use stats::StatsSource;

/// Signals within this time count as one. A signal of a terminal can arrive twice, e.g. directly and through
/// sudo(8).
const SIGNAL_WINDOW: Duration = Duration::from_secs(1);

/// Files and sockets that are open before the process enters the sandbox.
struct Prepared {
    signals: Signals,
    notify: Notify,
    listeners: Vec<TcpListener>,
    metrics: Option<TcpListener>,
    stats: UnixListener,
    stable: StableStorage,
    tls: Option<Tls>,
    names: Option<NameTables>,
    helper: Option<Arc<Helper>>,
    images: Vec<Opened>,
}

/// A server that runs, for reports.
struct Serving<'a> {
    plan: &'a Plan,
    mounted: &'a [Mounted],
    addresses: Vec<SocketAddr>,
    metrics: Option<SocketAddr>,
    /// The sandbox of this process, in words.
    sandbox: Option<String>,
}

/// Runs `ivers serve`.
pub fn run(args: &Args, json: bool) -> Result<()> {
    let mut plan = Plan::read(args)?;
    output_log::start(plan.log_format == LogFormat::Json);
    let prepared = prepare(args, &mut plan)?;
    let result = serve(args, &plan, prepared, json);
    stats_server::remove_socket(&plan.state);
    result
}

fn serve(args: &Args, plan: &Plan, prepared: Prepared, json: bool) -> Result<()> {
    let sandbox = enter_sandbox(plan);
    let Prepared { mut signals, notify, listeners, metrics, stats, stable, tls, names, helper, images } =
        prepared;
    let mounted = mount_all(images)?;
    let addresses: Vec<SocketAddr> = listeners.iter().filter_map(|it| it.local_addr().ok()).collect();
    let server = NfsServer::start(Setup {
        stable,
        lease_seconds: plan.lease_seconds,
        delegations: plan.delegations,
        limits: plan.limits,
        state_limits: plan.state_limits.clone(),
        listeners,
        tls,
        names,
        dial: helper.clone().map(dial),
        exports: mounted.iter().map(Mounted::exported).collect(),
    });
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            // Nothing was served, so the images are unchanged.
            let _ = unmount_all(&mounted);
            return Err(start_error(error));
        }
    };
    let metrics_address = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let images = mounted.iter().map(|it| (it.config.name.clone(), it.image.shown()));
    let source = Arc::new(StatsSource {
        handle: server.stats_handle(),
        sandbox: sandbox.clone(),
        images: images.collect(),
    });
    stats_server::serve_socket(stats, source.clone())?;
    if let Some(listener) = metrics {
        stats_server::serve_http(listener, source)?;
    }
    let serving = Serving { plan, mounted: &mounted, addresses, metrics: metrics_address, sandbox };
    serving.log();
    if json && let Err(error) = serving.print_json() {
        // The server runs even if standard output is closed.
        log::warn!("{}", line(&error));
    }
    notify.send("READY=1\nSTATUS=serving");

    let reload = Reload { args, plan, mounted: &mounted, helper: helper.as_deref() };
    let first = signals.forever().find(|&signal| {
        if signal != SIGHUP || std::io::stdin().is_terminal() {
            return true;
        }
        notify.send("RELOADING=1\nSTATUS=reloading");
        if let Err(error) = reload.apply(&server) {
            log::error!("cannot reload, nothing is changed: {}", line(&error));
        }
        notify.send("READY=1\nSTATUS=serving");
        false
    });
    log::info!("signal {}: shutting down; another signal ends the server at once", first.unwrap_or_default());
    notify.send("STOPPING=1\nSTATUS=finishing requests");
    exit_on_second_signal(signals)?;
    // Before the server releases the lock on the state directory.
    stats_server::remove_socket(&plan.state);
    let stopped = server.stop().map_err(start_error);
    let unmounted = unmount_all(&mounted);
    stopped.and(unmounted)?;
    log::info!("ended, all images are closed");
    Ok(())
}

/// Ends the process at a second signal, which is a crash for images and clients.
fn exit_on_second_signal(mut signals: Signals) -> Result<()> {
    let started = Instant::now();
    let wait = move || {
        let ends = |signal: &i32| *signal != SIGHUP && started.elapsed() >= SIGNAL_WINDOW;
        if let Some(signal) = signals.forever().find(ends) {
            log::warn!("signal {signal}: ending at once, as in a crash");
            std::process::exit(FAILED.into());
        }
    };
    std::thread::Builder::new().name("ivers-signals".into()).spawn(wait)?;
    Ok(())
}

/// Opens everything that needs rights, and reads no image.
fn prepare(args: &Args, plan: &mut Plan) -> Result<Prepared> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let notify = Notify::from_env();
    let listeners = listeners(plan)?;
    let metrics = plan.metrics.map(|address| listen::on(address).map_err(listen_error)).transpose()?;
    let contents = Contents::at_start(&reload::named_files(plan));
    let tls = plan.tls.as_ref().map(|files| reload::tls(files, &contents)).transpose()?;
    if tls.is_none() && plan.exports.iter().any(|export| requires_tls(&export.config)) {
        return Err(usage(
            "an export requires TLS, but there is no certificate; use --tls-certificate and --tls-key",
        ));
    }
    let names = plan.owners.as_ref().map(|owners| reload::names(owners, &contents)).transpose()?;
    let images = open_all(plan.exports.drain(..))?;
    // Locks the state directory: a second server fails here.
    let stable = StableStorage::open(&plan.state).map_err(|error| start_error(error.into()))?;
    if stable.discarded_bytes() > 0 {
        log::info!("the previous server was not shut down properly");
    }
    let stats = stats_server::listen(&plan.state);
    let stats = stats.with_context(|| format!("cannot listen in {}", plan.state.shown()))?;
    let helper = plan.sandbox.then(|| Helper::start(reload::paths(args, plan))).transpose()?.map(Arc::new);
    Ok(Prepared { signals, notify, listeners, metrics, stats, stable, tls, names, helper, images })
}

fn dial(helper: Arc<Helper>) -> Dial {
    Box::new(move |to, client| helper.connect(to, client))
}

/// Returns the sockets that systemd passes, or those of `listen`, or both loopback addresses.
fn listeners(plan: &Plan) -> Result<Vec<TcpListener>> {
    let inherited = listen::inherited().map_err(listen_error)?;
    if !inherited.is_empty() {
        if plan.listen.is_some() {
            log::info!("serving at the sockets of LISTEN_FDS; `listen` is ignored");
        }
        return Ok(inherited);
    }
    if let Some(addresses) = &plan.listen {
        return addresses.iter().map(|&address| listen::on(address).map_err(listen_error)).collect();
    }
    let [first, second] = listen::loopback();
    let mut listeners = vec![listen::on(first).map_err(listen_error)?];
    match listen::on(second) {
        Ok(listener) => listeners.push(listener),
        // A machine without IPv6.
        Err(ListenError::Address { source, .. })
            if matches!(
                rustix::io::Errno::from_io_error(&source),
                Some(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::AFNOSUPPORT)
            ) => {}
        Err(error) => return Err(listen_error(error)),
    }
    Ok(listeners)
}

fn listen_error(error: ListenError) -> anyhow::Error {
    match &error {
        ListenError::Address { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            failure(BUSY, format!("{error}; choose another with --listen ADDRESS:PORT"))
        }
        _ => failure(FAILED, error.to_string()),
    }
}

fn start_error(error: StartError) -> anyhow::Error {
    let code = match &error {
        StartError::StableStorage(StableError::Busy { .. }) => BUSY,
        StartError::StableStorage(StableError::Damaged { .. }) => CORRUPT,
        StartError::StableStorage(StableError::Newer { .. }) => REFUSED,
        StartError::Exports(_) => USAGE,
        StartError::StableStorage(_) | StartError::Io(_) => FAILED,
    };
    failure(code, error.to_string())
}

/// Enters the sandbox. Returns its description.
fn enter_sandbox(plan: &Plan) -> Option<String> {
    if !plan.sandbox {
        return None;
    }
    let needs = ivers_sandbox::Needs { accept: true, files_in: Some(&plan.state), ..Default::default() };
    let sandbox = ivers_sandbox::enter_with(&needs);
    if !sandbox.is_whole() {
        log::warn!("the kernel supports only part of the sandbox: {sandbox}");
    }
    Some(sandbox.to_string())
}

impl Serving<'_> {
    /// Logs what is served where.
    fn log(&self) {
        for one in self.mounted {
            let access = if one.vfs.is_read_only() { "ro" } else { "rw" };
            log::info!(export = one.config.name.as_str(), image:% = one.image.shown(), access; "exported");
        }
        for one in self.mounted.iter().filter(|one| one.admits_no_writer()) {
            log::warn!(
                export = one.config.name.as_str();
                "no client can create a file: the root directory belongs to root, and root of clients is \
                 squashed; change its owner (mkfs --root-owner for a new image) or export it with \
                 no_root_squash"
            );
        }
        for address in &self.addresses {
            log::info!(address:%; "serving");
        }
        log::info!("for statistics run `ivers stats {}`", self.plan.state.shown());
        if let Some(address) = self.metrics {
            log::info!("statistics for Prometheus are at http://{address}/metrics");
        }
        if self.addresses.iter().any(|address| !address.ip().is_loopback()) {
            for one in self.mounted.iter().filter(|one| is_local_only(&one.config)) {
                let name = one.config.name.as_str();
                log::warn!(export = name; "only this machine has access; allow others with `clients`");
            }
        }
    }

    /// Prints what is served where in JSON.
    fn print_json(&self) -> Result<()> {
        let exports = self.mounted.iter().map(|one| {
            json!({
                "name": one.config.name,
                "image": one.image.to_string_lossy(),
                "read_only": one.vfs.is_read_only(),
                "read_only_because": one.read_only_because,
            })
        });
        print::json_line(&json!({
            "pid": std::process::id(),
            "addresses": self.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "exports": exports.collect::<Vec<_>>(),
            "metrics": self.metrics.map(|address| address.to_string()),
            "state": self.plan.state.to_string_lossy(),
            "sandbox": self.sandbox,
        }))
    }
}

/// Returns whether an export names no clients, so that only this machine has access.
fn is_local_only(config: &ExportConfig) -> bool {
    config.settings.clients.is_none() && config.rules.is_empty()
}
