//! `serve`: images over NFSv4.
//!
//! First it opens all that it will ever need: images, sockets, certificates, its state directory. Then it locks itself in, and only then reads the
//! first byte of an image and answers the first client: from there on it makes no socket, connects to nobody, and opens no file but those of its state. A small process
//! beside it, which stays outside, reads its files again and connects to clients who want that.
//!
//! | module | what lives there |
//! |---|---|
//! | [`plan`] | what the file and the command line say |
//! | [`attendant`] | the process outside the sandbox |
//! | [`reload`] | what is read again |
//! | [`given`] | the files that it is told by |
//! | [`endpoint`] | where it is asked how it is |
//! | [`stats`] | what it answers |
//! | [`notify`] | what systemd is told |

mod attendant;
mod endpoint;
mod given;
mod notify;
mod plan;
mod reload;
mod stats;

use std::io::IsTerminal;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ivers_block::FileDevice;
use ivers_nfsd::compound::Tables;
use ivers_nfsd::exports::config::{ExportConfig, LogFormat};
use ivers_nfsd::net::listen::{self, ListenError};
use ivers_nfsd::net::tls::Tls;
use ivers_nfsd::server::{Dial, Exported, NfsServer, Setup, StartError};
use ivers_nfsd::stable::{Stable, StableError};
use ivers_vfs::Vfs;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{BUSY, CORRUPT, FAILED, REFUSED, failure, line, usage};
use crate::image::How;
use crate::{args, daemon, image, show};
use attendant::Attendant;
use given::Contents;
use notify::Notify;
use plan::{Plan, Planned};
use reload::Reload;
use stats::Board;

pub use attendant::attend;
pub use endpoint::ask;
pub use stats::{label, lines, prometheus};

/// Signals within this time are one: a terminal's reaches this process by way of sudo(8), say, once more.
const TOGETHER: Duration = Duration::from_secs(1);

/// An image, before anybody has read it.
struct Opened {
    plan: Planned,
    device: Option<FileDevice>,
    /// Why it is open for reading alone, though that was not asked for.
    only_read: Option<String>,
    image: PathBuf,
}

/// A filesystem that is being served.
struct Mounted {
    config: ExportConfig,
    vfs: Arc<Vfs>,
    how: How,
    image: PathBuf,
    device: Option<Vec<u8>>,
    read_only_because: Option<String>,
}

/// All that is open before the process locks itself in.
struct Ready {
    signals: Signals,
    notify: Notify,
    listeners: Vec<TcpListener>,
    metrics: Option<TcpListener>,
    stats: UnixListener,
    stable: Stable,
    tls: Option<Tls>,
    names: Option<Tables>,
    attendant: Option<Arc<Attendant>>,
    images: Vec<Opened>,
}

/// `ivers serve`.
pub fn serve(args: &args::Serve, json: bool) -> Result<()> {
    let mut plan = Plan::of(args)?;
    daemon::start_log_as(plan.log_format == LogFormat::Json);
    let ready = prepare(args, &mut plan)?;
    let result = run(args, &plan, ready, json);
    endpoint::leave(&plan.state);
    result
}

fn run(args: &args::Serve, plan: &Plan, ready: Ready, json: bool) -> Result<()> {
    let sandbox = lock_in(plan);
    let Ready { mut signals, notify, listeners, metrics, stats, stable, tls, names, attendant, images } =
        ready;
    let mounted = mount(images)?;
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
        dial: attendant.clone().map(dial),
        exports: mounted.iter().map(exported).collect(),
    });
    let server = match server {
        Ok(server) => server,
        Err(error) => {
            // Nothing was served: the images are as they were.
            let _ = unmount(&mounted);
            return Err(refused(error));
        }
    };
    let metrics_at = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let images = mounted.iter().map(|it| (it.config.name.clone(), it.image.display().to_string()));
    let board = Arc::new(Board { watch: server.watch(), sandbox: sandbox.clone(), images: images.collect() });
    endpoint::answer_socket(stats, board.clone())?;
    if let Some(listener) = metrics {
        endpoint::answer_http(listener, board)?;
    }
    announce(plan, &mounted, &addresses, metrics_at);
    if json {
        let told = tell(plan, &mounted, &addresses, metrics_at, sandbox);
        // Who does not listen is no reason not to serve.
        told.unwrap_or_else(|error| log::warn!("{}", line(&error)));
    }
    notify.tell("READY=1\nSTATUS=serving");

    let reload = Reload { args, plan, mounted: &mounted, attendant: attendant.as_deref() };
    let first = signals.forever().find(|&signal| {
        if signal != SIGHUP || std::io::stdin().is_terminal() {
            return true;
        }
        notify.tell("RELOADING=1\nSTATUS=reading again");
        if let Err(error) = reload.apply(&server) {
            log::error!("nothing is changed: {}", line(&error));
        }
        notify.tell("READY=1\nSTATUS=serving");
        false
    });
    log::info!("signal {}: ending; another one ends it at once", first.unwrap_or_default());
    notify.tell("STOPPING=1\nSTATUS=finishing what is under way");
    hasten(signals)?;
    // While the directory is still ours.
    endpoint::leave(&plan.state);
    let stopped = server.stop().map_err(refused);
    let unmounted = unmount(&mounted);
    stopped.and(unmounted)?;
    log::info!("ended in good order");
    Ok(())
}

/// A second signal does not wait. To images and clients that is a crash.
fn hasten(mut signals: Signals) -> Result<()> {
    let begun = Instant::now();
    let wait = move || {
        let ends = |signal: &i32| *signal != SIGHUP && begun.elapsed() >= TOGETHER;
        if let Some(signal) = signals.forever().find(ends) {
            log::warn!("signal {signal}: ending at once, as in a crash");
            std::process::exit(FAILED.into());
        }
    };
    std::thread::Builder::new().name("ivers-signals".into()).spawn(wait)?;
    Ok(())
}

/// Open everything, and read nothing of any image.
fn prepare(args: &args::Serve, plan: &mut Plan) -> Result<Ready> {
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    let notify = Notify::from_env();
    let listeners = listeners(plan)?;
    let metrics = plan.metrics.map(|address| listen::on(address).map_err(not_listening)).transpose()?;
    let contents = Contents::first(&reload::named(plan));
    let tls = plan.tls.as_ref().map(|files| reload::tls(files, &contents)).transpose()?;
    if tls.is_none() && plan.exports.iter().any(|export| wants_tls(&export.config)) {
        return Err(usage("an export wants TLS, and no certificate is given: --tls-certificate, --tls-key"));
    }
    let names = plan.owners.as_ref().map(|owners| reload::names(owners, &contents)).transpose()?;
    let mut images: Vec<Opened> = Vec::new();
    for export in plan.exports.drain(..) {
        let opened = open(export)?;
        let same = |other: &Opened| other.device.is_some() && device(other) == device(&opened);
        if opened.device.is_some() && images.iter().any(same) {
            return Err(usage(format!("{}: export it once", opened.image.display())));
        }
        images.push(opened);
    }
    // Of all servers that are given this directory one gets further.
    let stable = Stable::open(&plan.state).map_err(|error| refused(error.into()))?;
    if stable.forgotten_bytes() > 0 {
        log::info!("the last server did not end in good order");
    }
    let stats = endpoint::listen(&plan.state);
    let stats = stats.with_context(|| format!("cannot answer in {}", plan.state.display()))?;
    let attendant =
        plan.sandbox.then(|| Attendant::start(reload::paths(args, plan))).transpose()?.map(Arc::new);
    Ok(Ready { signals, notify, listeners, metrics, stats, stable, tls, names, attendant, images })
}

fn dial(attendant: Arc<Attendant>) -> Dial {
    Box::new(move |to, client| attendant.connect(to, client))
}

fn device(opened: &Opened) -> Vec<u8> {
    plan::device(&opened.image, &opened.plan.how)
}

fn wants_tls(config: &ExportConfig) -> bool {
    use ivers_nfsd::exports::config::Secured;
    let wants = |tls: Option<Secured>| tls.is_some_and(|tls| tls != Secured::Optional);
    std::iter::once(&config.settings).chain(&config.rules).any(|settings| wants(settings.tls))
}

/// Sockets that systemd opened, or those that are asked for, or both addresses of this machine that nobody else reaches.
fn listeners(plan: &Plan) -> Result<Vec<TcpListener>> {
    let handed_over = listen::handed_over().map_err(not_listening)?;
    if !handed_over.is_empty() {
        if plan.listen.is_some() {
            log::info!("serving at the sockets of LISTEN_FDS, not where it says `listen`");
        }
        return Ok(handed_over);
    }
    if let Some(addresses) = &plan.listen {
        return addresses.iter().map(|&address| listen::on(address).map_err(not_listening)).collect();
    }
    let [first, second] = listen::loopback();
    let mut listeners = vec![listen::on(first).map_err(not_listening)?];
    match listen::on(second) {
        Ok(listener) => listeners.push(listener),
        // A machine without IPv6.
        Err(ListenError::Address { source, .. })
            if matches!(
                rustix::io::Errno::from_io_error(&source),
                Some(rustix::io::Errno::ADDRNOTAVAIL | rustix::io::Errno::AFNOSUPPORT)
            ) => {}
        Err(error) => return Err(not_listening(error)),
    }
    Ok(listeners)
}

fn not_listening(error: ListenError) -> anyhow::Error {
    match &error {
        ListenError::Address { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            failure(BUSY, format!("{error}: --listen ADDRESS:PORT takes another one"))
        }
        _ => failure(FAILED, error.to_string()),
    }
}

fn refused(error: StartError) -> anyhow::Error {
    let code = match &error {
        StartError::Stable(StableError::Busy { .. }) => BUSY,
        StartError::Stable(StableError::Damaged { .. }) => CORRUPT,
        StartError::Stable(StableError::Newer { .. }) => REFUSED,
        StartError::Exports(_) => crate::failure::USAGE,
        StartError::Stable(_) | StartError::Io(_) => FAILED,
    };
    failure(code, error.to_string())
}

fn open(plan: Planned) -> Result<Opened> {
    let place = || format!("export {}", plan.config.name);
    let mut image = plan.config.image.clone();
    if plan.fs_type != "mem" {
        image =
            image.canonicalize().with_context(|| format!("{}: cannot open {}", place(), image.display()))?;
    }
    let opened = image::open_device_or_fall_back(&plan.fs_type, &image, &plan.how);
    let (device, only_read) = opened.with_context(place)?;
    if let Some(why) = only_read.as_ref().filter(|_| plan.writable) {
        return Err(not_writable(&plan.config, &image, why));
    }
    Ok(Opened { plan, device, only_read, image })
}

/// Give up what is not needed any more. What holds the process from here on, in words.
fn lock_in(plan: &Plan) -> Option<String> {
    if !plan.sandbox {
        return None;
    }
    let needs = ivers_sandbox::Needs { accept: true, files_in: Some(&plan.state), ..Default::default() };
    let sandbox = ivers_sandbox::enter_with(&needs);
    if !sandbox.is_whole() {
        log::warn!("the sandbox is not whole: {sandbox}");
    }
    Some(sandbox.to_string())
}

fn not_writable(config: &ExportConfig, image: &Path, why: &str) -> anyhow::Error {
    let (name, image) = (&config.name, image.display());
    failure(
        REFUSED,
        format!("export {name}: {image} cannot be written: {why}; without rw it is served read-only"),
    )
}

fn mount(images: Vec<Opened>) -> Result<Vec<Mounted>> {
    let mut mounted = Vec::new();
    for opened in images {
        match mount_one(opened) {
            Ok(one) => mounted.push(one),
            Err(error) => {
                // Nothing was served: the others are as they were.
                let _ = unmount(&mounted);
                return Err(error);
            }
        }
    }
    Ok(mounted)
}

fn mount_one(opened: Opened) -> Result<Mounted> {
    let name = opened.device.as_ref().map(|_| device(&opened));
    let Opened { plan: Planned { config, how, vfs, writable, .. }, device, only_read, image } = opened;
    // What was asked for is kept: a reload is compared with that.
    let opened_as = How { read_only: how.read_only || only_read.is_some(), ..how.clone() };
    let vfs =
        image::open_on(device, &image, &opened_as, vfs).with_context(|| format!("export {}", config.name))?;
    let read_only_because = only_read.or(vfs.info().read_only.clone().filter(|_| !how.read_only));
    if let Some(why) = &read_only_because {
        if writable {
            vfs.unmount()?;
            return Err(not_writable(&config, &image, why));
        }
        log::warn!("{}: served read-only: {why}", config.name);
    }
    Ok(Mounted { config, vfs, how, image, device: name, read_only_because })
}

fn exported(mounted: &Mounted) -> Exported {
    Exported { config: mounted.config.clone(), vfs: mounted.vfs.clone(), device: mounted.device.clone() }
}

/// Close the images. All of them, whatever becomes of one; the first that went wrong is told.
fn unmount(mounted: &[Mounted]) -> Result<()> {
    let mut all = Ok(());
    for one in mounted {
        let closed = one.vfs.unmount().with_context(|| format!("closing {}", one.image.display()));
        if let (Err(error), Err(_)) = (&closed, &all) {
            log::error!("{}", line(error));
        }
        all = all.and(closed);
    }
    all
}

fn announce(plan: &Plan, mounted: &[Mounted], addresses: &[SocketAddr], metrics: Option<SocketAddr>) {
    for one in mounted {
        let access = if one.vfs.is_read_only() { "ro" } else { "rw" };
        log::info!(export = one.config.name.as_str(), image:% = one.image.display(), access; "exported");
    }
    for address in addresses {
        log::info!(address:%; "serving");
    }
    log::info!("`ivers stats {}` tells how it is", plan.state.display());
    if let Some(address) = metrics {
        log::info!("so does http://{address}/metrics");
    }
    if addresses.iter().any(|address| !address.ip().is_loopback()) {
        for one in mounted.iter().filter(|one| is_for_this_machine(&one.config)) {
            let name = one.config.name.as_str();
            log::warn!(export = name; "nobody but this machine comes in: `clients` names others");
        }
    }
}

/// Whether nobody was named who may come in.
fn is_for_this_machine(config: &ExportConfig) -> bool {
    config.settings.clients.is_none() && config.rules.is_empty()
}

/// What is served where, in JSON.
fn tell(
    plan: &Plan,
    mounted: &[Mounted],
    addresses: &[SocketAddr],
    metrics: Option<SocketAddr>,
    sandbox: Option<String>,
) -> Result<()> {
    let exports = mounted.iter().map(|one| {
        json!({
            "name": one.config.name,
            "image": one.image.to_string_lossy(),
            "read_only": one.vfs.is_read_only(),
            "read_only_because": one.read_only_because,
        })
    });
    show::json_line(&json!({
        "pid": std::process::id(),
        "addresses": addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "exports": exports.collect::<Vec<_>>(),
        "metrics": metrics.map(|address| address.to_string()),
        "state": plan.state.to_string_lossy(),
        "sandbox": sandbox,
    }))
}
