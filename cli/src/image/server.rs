//! Servers that operands name: `nfs://server[:port]/path`.
//!
//! A process that parses replies is in the sandbox and cannot connect. A command connects once, before it
//! enters the sandbox. A mount gets each connection from its supervisor: see [`ConnectionMaker`].

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ivers_content_cache::{ContentCache, OpenError};
use ivers_nfs::identity::Identity;
use ivers_nfs::owners::Owners;
use ivers_nfs::target::Target;
use ivers_nfs::tls::{BadPem, Pem, Tls};
use ivers_nfs::{Dial, NO_RECONNECTION, Nfs, NfsOptions, Patience};
use ivers_vfs::{Cred, MountOptions, Vfs};

use super::channel::Channel;
use super::open_options::{BtrfsOptions, ImageOptions, ServerOptions, TlsFiles, TransportSecurity};
use crate::arguments::is_server;
use crate::output::failure::{BUSY, FAILED, REFUSED, failure, usage};
use crate::output::format::Shown;

/// How long an attempt to connect takes at most.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the worker of a mount waits for a connection: several addresses of the server may not answer.
const MAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a request is sent again with `soft`.
const RETRANS: u32 = 2;
/// How long a command waits for a server that does not answer.
const COMMAND_PATIENCE: Duration = Duration::from_secs(30);

fn target(image: &Path) -> Result<Target> {
    Target::parse(image.as_os_str().as_bytes()).map_err(|error| usage(format!("{}: {error}", image.shown())))
}

/// Refuses a command that works on images only.
pub fn refuse(image: &Path) -> Result<()> {
    if !is_server(image) {
        return Ok(());
    }
    Err(failure(REFUSED, format!("{} is on a server: this command is for images", image.shown())))
}

/// Refuses options that are for images.
fn check_options(image: &Path, options: &ImageOptions) -> Result<()> {
    let given = [
        (options.partition.is_some(), "partition"),
        (options.offset_bytes > 0, "offset"),
        (options.owners_given, "uid, gid, masks and utc_offset"),
        (options.no_replay, "norecovery"),
        (options.appraise, "appraise"),
        (options.btrfs != BtrfsOptions::default(), "subvol, subvolid, degraded and compress"),
        (options.format.is_some(), "type"),
    ];
    if let Some((_, name)) = given.iter().find(|(given, _)| *given) {
        return Err(usage(format!("option {name}: not for the server {}; remove it", image.shown())));
    }
    check_security(&options.server)?;
    minor_version(&options.server).map(drop)
}

/// Refuses security flavors other than AUTH_SYS.
fn check_security(wanted: &ServerOptions) -> Result<()> {
    match wanted.sec.as_deref() {
        None | Some("sys") => Ok(()),
        Some(sec @ ("krb5" | "krb5i" | "krb5p")) => Err(failure(
            REFUSED,
            format!(
                "option sec={sec}: Kerberos is not supported; use sec=sys, and xprtsec=tls to encrypt \
                 connections"
            ),
        )),
        Some(sec) => Err(usage(format!("option sec={sec}: unknown; only sys is supported"))),
    }
}

/// Returns the minor version of NFSv4 that `vers` names. `None`: 2, or 1 if the server lacks 2.
fn minor_version(wanted: &ServerOptions) -> Result<Option<u32>> {
    match wanted.vers.as_deref() {
        None | Some("4") => Ok(None),
        Some("4.0") => Ok(Some(0)),
        Some("4.1") => Ok(Some(1)),
        Some("4.2") => Ok(Some(2)),
        Some(vers @ ("2" | "3")) => Err(failure(
            REFUSED,
            format!("option vers={vers}: NFSv{vers} is not supported; use 4.0 or later"),
        )),
        Some(vers) => Err(usage(format!("option vers={vers}: unknown; use 4, 4.0, 4.1 or 4.2"))),
    }
}

/// A connection to a server, and the user whose credentials it sends. A sandboxed process cannot make one.
pub struct ServerConnection {
    target: Target,
    stream: TcpStream,
    own: Cred,
    owners: Owners,
    tls: Option<Tls>,
    contents: Option<Arc<ContentCache>>,
    /// Whether a command closes files before their contents are sent.
    defers_closes: bool,
}

/// The default size of a persistent cache in bytes.
const CACHE_BYTES: u64 = 1 << 30;

/// Opens the persistent cache of a mount. Called in the process that uses it.
fn contents(wanted: &ServerOptions) -> Result<Option<Arc<ContentCache>>> {
    let Some(dir) = &wanted.cache_dir else {
        return match wanted.cache_size {
            Some(_) => Err(usage("option cache-size: requires cache-dir=DIR")),
            None => Ok(None),
        };
    };
    let opened = ContentCache::open(Path::new(dir), wanted.cache_size.unwrap_or(CACHE_BYTES));
    opened.map(|cache| Some(Arc::new(cache))).map_err(|error| {
        let code = match error {
            OpenError::InUse => BUSY,
            OpenError::Shared | OpenError::Strange => REFUSED,
            _ => FAILED,
        };
        failure(code, format!("option cache-dir={dir}: {error}"))
    })
}

/// The file with the certificate authorities that a system trusts, on most distributions.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Reads the files that TLS needs. Returns `None` if connections are not encrypted.
fn tls(target: &Target, wanted: &ServerOptions) -> Result<Option<Tls>> {
    let TlsFiles { authorities, certificate, key } = &wanted.tls;
    let own = match (wanted.xprtsec, certificate, key) {
        (TransportSecurity::None, ..) if wanted.tls != TlsFiles::default() => {
            return Err(usage("options tls_*: require xprtsec=tls or xprtsec=mtls"));
        }
        (TransportSecurity::None, ..) => return Ok(None),
        (TransportSecurity::Tls, None, None) => None,
        (TransportSecurity::Tls, ..) => {
            return Err(usage("options tls_certificate and tls_key: require xprtsec=mtls"));
        }
        (TransportSecurity::Mtls, Some(certificate), Some(key)) => Some((certificate, key)),
        (TransportSecurity::Mtls, ..) => {
            return Err(usage("option xprtsec=mtls: requires tls_certificate=FILE and tls_key=FILE"));
        }
    };
    let read = |path: &str| std::fs::read(path).with_context(|| format!("cannot read {path}"));
    let authorities = authorities.as_deref().unwrap_or(SYSTEM_AUTHORITIES);
    let trusted = read(authorities)
        .context("option tls_authorities=FILE names the certificate authorities to trust")?;
    let pem = own.map(|(certificate, key)| Ok::<_, anyhow::Error>((read(certificate)?, read(key)?)));
    let pem = pem.transpose()?;
    let identity = pem.as_ref().map(|(certificate, key)| (certificate.as_slice(), key.as_slice()));
    Tls::new(&target.server.host, &Pem { authorities: &trusted, identity }).map(Some).map_err(|error| {
        let file = match (&error, own) {
            (BadPem::Authorities(_), _) => authorities,
            (BadPem::Certificate(_), Some((certificate, _))) => certificate,
            (BadPem::Key(_), Some((_, key))) => key,
            _ => return usage(error.to_string()),
        };
        failure(FAILED, format!("{file}: {error}"))
    })
}

/// Returns the users and groups of this machine, if the server sends them as names of a domain.
fn owners(wanted: &ServerOptions) -> Result<Owners> {
    let Some(domain) = &wanted.domain else { return Ok(Owners::default()) };
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| path.to_owned());
    Ok(Owners::new(&read("/etc/passwd")?, &read("/etc/group")?, domain))
}

/// Returns the user of this process.
fn own() -> Cred {
    let groups = rustix::process::getgroups().unwrap_or_default();
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Cred { groups: groups.into_iter().map(|group| group.as_raw()).collect(), ..Cred::user(uid, gid) }
}

impl ServerConnection {
    /// Connects to a server.
    pub fn open(image: &Path, options: &ImageOptions) -> Result<Self> {
        let target = target(image)?;
        check_options(image, options)?;
        let tls = tls(&target, &options.server)?;
        let stream = connect(&target).with_context(|| format!("{}: cannot connect", target.server))?;
        let owners = owners(&options.server)?;
        Ok(Self { target, stream, own: own(), owners, tls, contents: None, defers_closes: false })
    }

    /// Takes over a connection of another process.
    pub fn adopt(image: &Path, stream: OwnedFd, options: &ImageOptions) -> Result<Self> {
        let (target, owners) = (target(image)?, owners(&options.server)?);
        let (tls, contents) = (tls(&target, &options.server)?, contents(&options.server)?);
        let (stream, own) = (stream.into(), own());
        Ok(Self { target, stream, own, owners, tls, contents, defers_closes: false })
    }

    /// Returns the descriptor, to pass it to another process.
    pub fn lend(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Sends the contents of several files in one request, after they were closed. For a command that creates
    /// many files: it must end with [`close`](super::images::close).
    pub fn defer_closes(&mut self) {
        self.defers_closes = true;
    }

    /// Opens the server's root for a command. What the command says of the change attribute holds for the
    /// filesystem of the path `facts_of`.
    pub fn open_for_command(
        self,
        facts_of: &[u8],
        options: &ImageOptions,
        mount_options: MountOptions,
    ) -> Result<Arc<Vfs>> {
        let first = Mutex::new(Some(self.stream));
        let dial: Dial = Box::new(move |_| {
            let first = first.lock().unwrap_or_else(PoisonError::into_inner).take();
            first.ok_or_else(|| std::io::Error::new(NO_RECONNECTION, "a command does not connect again"))
        });
        let patience =
            Patience { reply: COMMAND_PATIENCE, request: Some(COMMAND_PATIENCE), ..Patience::default() };
        let nfs = NfsOptions {
            patience,
            facts_of: facts_of.to_vec(),
            delegations: self.defers_closes,
            write_delegations: self.defers_closes,
            minor_version: minor_version(&options.server)?,
            tls: self.tls,
            ..NfsOptions::new(Identity::of(self.own))
        };
        mount(&self.target, dial, &nfs, options, mount_options)
    }

    /// Opens the target for a mount. More connections come from `maker`. `busy_poll`: how long a thread polls
    /// for a reply before it sleeps; `None`: as usual.
    pub fn open_for_mount(
        self,
        maker: Channel,
        options: &ImageOptions,
        busy_poll: Option<Duration>,
        mount_options: MountOptions,
    ) -> Result<Arc<Vfs>> {
        let first = Mutex::new(Some(self.stream));
        let dial: Dial =
            Box::new(move |_| match first.lock().unwrap_or_else(PoisonError::into_inner).take() {
                Some(stream) => Ok(stream),
                None => ask_for_connection(&maker),
            });
        // Only root may send the user of each caller.
        let as_caller = self.own.uid == 0;
        let identity = Identity { as_caller, ..Identity::of(self.own) };
        let wanted = as_wanted(&options.server, identity);
        let nfs = NfsOptions {
            root: self.target.path.clone(),
            minor_version: minor_version(&options.server)?,
            owners: self.owners,
            tls: self.tls,
            contents: self.contents,
            patience: Patience {
                busy_poll: busy_poll.unwrap_or(wanted.patience.busy_poll),
                ..wanted.patience
            },
            ..wanted
        };
        mount(&self.target, dial, &nfs, options, mount_options)
    }
}

/// Returns how a mount with these options uses a server.
fn as_wanted(wanted: &ServerOptions, identity: Identity) -> NfsOptions {
    let usual = NfsOptions::new(identity);
    let bytes = |size: Option<u32>| size.map_or(u64::MAX, u64::from);
    let attribute_timeout =
        wanted.actimeo.map_or(usual.attribute_timeout, |seconds| Duration::from_secs(seconds.into()));
    let reply = wanted.timeo.map_or(usual.patience.reply, |tenths| Duration::from_millis(100) * tenths);
    let request = wanted.soft.then(|| reply * (wanted.retrans.unwrap_or(RETRANS) + 1));
    NfsOptions {
        connections: wanted.nconnect.map_or(usual.connections, |count| count as usize),
        attribute_timeout,
        transfer_bytes_max: (bytes(wanted.rsize), bytes(wanted.wsize)),
        patience: Patience { reply, request, ..Patience::default() },
        delegations: !wanted.nodelegations,
        // A soft mount gives writes up: then close must report it.
        write_delegations: !wanted.nodelegations && !wanted.nowritedelegations && !wanted.soft,
        ..usual
    }
}

/// Refuses options that are for servers.
pub fn check_options_of_image(image: &Path, options: &ImageOptions) -> Result<()> {
    if is_server(image) || options.server == ServerOptions::default() {
        return Ok(());
    }
    let names = ServerOptions::OPTIONS.join(", ");
    Err(usage(format!("options {names}: for servers only, and not for the image {}", image.shown())))
}

fn connect(target: &Target) -> std::io::Result<TcpStream> {
    ivers_nfs::connect(&target.server, CONNECT_TIMEOUT)
}

fn mount(
    target: &Target,
    dial: Dial,
    nfs: &NfsOptions,
    options: &ImageOptions,
    mut mount_options: MountOptions,
) -> Result<Arc<Vfs>> {
    mount_options.read_only |= options.read_only;
    mount_options.cache_bytes = options.cache_bytes;
    let name = target.server.to_string();
    let fs = Nfs::open(&name, dial, nfs)?;
    Vfs::mount(fs, mount_options).context(name)
}

/// Makes connections to one server for a process in the sandbox. It runs in another process.
pub struct ConnectionMaker {
    target: Target,
    channel: Channel,
}

/// The time limit of [`ask_for_connection`] must be set before the sandbox is entered.
pub fn limit_asking(maker: &Channel) -> Result<()> {
    maker.set_timeout(MAKE_TIMEOUT)
}

fn ask_for_connection(maker: &Channel) -> std::io::Result<TcpStream> {
    let lost = |why: &str| std::io::Error::other(why.to_owned());
    maker.send(&(), &[]).map_err(|error| lost(&error.to_string()))?;
    match maker.receive::<Option<String>>() {
        Ok(Some((None, fds))) => {
            let stream = fds.into_iter().next().ok_or_else(|| lost("a reply without a connection"))?;
            Ok(stream.into())
        }
        Ok(Some((Some(why), _))) => Err(lost(&why)),
        Ok(None) => Err(std::io::Error::new(NO_RECONNECTION, "the supervisor has ended")),
        Err(error) => Err(lost(&error.to_string())),
    }
}

impl ConnectionMaker {
    /// Returns a maker for the server of `image`, and the other end for the process that asks.
    pub fn new(image: &Path) -> Result<(Self, OwnedFd)> {
        let (channel, theirs) = Channel::pair()?;
        Ok((Self { target: target(image)?, channel }, theirs))
    }

    /// Starts a thread that connects whenever it is asked to, until the other process ends.
    pub fn start(self) -> Result<()> {
        let thread = std::thread::Builder::new().name("ivers-connect".into());
        thread.spawn(move || {
            while let Ok(Some(((), _))) = self.channel.receive() {
                let sent = match connect(&self.target) {
                    Ok(stream) => self.channel.send(&None::<String>, &[stream.as_fd()]),
                    Err(error) => self.channel.send(&Some(error.to_string()), &[]),
                };
                if sent.is_err() {
                    return;
                }
            }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_on_images_refuses_a_server() {
        assert!(refuse(Path::new("disk.img")).is_ok());
        assert!(refuse(Path::new("nfs://h")).unwrap_err().to_string().contains("nfs://h is on a server"));
    }

    #[test]
    fn versions_and_flavors_have_names() {
        let refused = |vers: Option<&str>, sec: Option<&str>| {
            let (vers, sec) = (vers.map(str::to_owned), sec.map(str::to_owned));
            let server = ServerOptions { vers, sec, ..ServerOptions::default() };
            let options = ImageOptions { server, ..ImageOptions::default() };
            check_options(Path::new("nfs://h"), &options).unwrap_err().to_string()
        };
        assert!(refused(None, Some("krb5p")).contains("sec=krb5p: Kerberos is not supported"));
        assert!(refused(None, Some("lkey")).contains("sec=lkey: unknown"));
        assert!(refused(Some("3"), None).contains("NFSv3 is not supported"));
        assert!(refused(Some("5"), Some("sys")).contains("vers=5: unknown"));
        let minor = |vers: &str| {
            minor_version(&ServerOptions { vers: Some(vers.to_owned()), ..ServerOptions::default() }).unwrap()
        };
        assert_eq!((minor("4"), minor("4.0"), minor("4.2")), (None, Some(0), Some(2)));
    }

    #[test]
    fn options_for_images_are_refused() {
        let image = Path::new("nfs://h");
        let options = ImageOptions { offset_bytes: 1, ..ImageOptions::default() };
        assert!(check_options(image, &options).unwrap_err().to_string().contains("option offset"));
        assert!(check_options(image, &ImageOptions::default()).is_ok());
    }
}
