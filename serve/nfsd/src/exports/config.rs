//! The configuration of the server: a TOML file, or one flag per export.
//!
//! ```toml
//! listen = ["127.0.0.1:2049", "[::1]:2049"]    # default: loopback, port 2049
//! state = "/var/lib/ivers/serve"
//! metrics = "127.0.0.1:9149"                   # default: no metrics
//! lease_s = 90
//!
//! [limits]
//! connections = 1024
//! client_connections = 256
//!
//! [tls]
//! certificate = "/etc/ivers/server.pem"
//! key = "/etc/ivers/server.key"
//! client_authorities = "/etc/ivers/clients.pem"
//!
//! [owners]                                     # default: numeric owners
//! domain = "example.org"
//! passwd = "/etc/passwd"                       # these are the defaults
//! group = "/etc/group"
//!
//! [[export]]
//! name = "/photos"
//! image = "/srv/photos.img"
//! options = "noatime,cache=1G"                 # mount options, as for ivers mount -o
//! clients = ["192.0.2.0/24", "2001:db8::/64"]  # default: loopback
//! access = "ro"
//! async = false                                # true: reply before names and attributes are durable
//!
//! [[export.rule]]                              # overrides the above for its clients; first match wins
//! clients = ["192.0.2.7"]
//! access = "rw"
//! tls = "certificate"
//! names = ["*.photos.example"]
//! ```

mod values;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

pub use values::{Address, Domain, Flavor, LogFormat, Mode, Network, Secured};

/// User and group ID of `nobody` on most systems.
pub const NOBODY: u32 = 65534;

/// An error in the configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// Invalid TOML or an unknown key.
    #[error("{}: {why}", path.display())]
    Toml {
        /// The configuration file.
        path: PathBuf,
        /// Line and error.
        why: String,
    },
    /// An invalid export.
    #[error(
        "{}export {export}: {why}",
        place.as_deref().map(|place| format!("{place}: ")).unwrap_or_default()
    )]
    Export {
        /// File and line, if the export is in a file.
        place: Option<String>,
        /// Name or image of the export.
        export: String,
        /// The error, and what is expected.
        why: String,
    },
}

fn invalid(export: &str, why: impl Into<String>) -> ConfigError {
    ConfigError::Export { place: None, export: export.to_owned(), why: why.into() }
}

/// Access settings for some clients of an export. Missing settings are those of the export.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Clients that the settings apply to. Default of an export: loopback.
    pub clients: Option<Vec<Network>>,
    /// Access mode; the default is read-write.
    pub access: Option<Mode>,
    /// Map user and group 0 to the anonymous ones (the default).
    pub root_squash: Option<bool>,
    /// Map all users and groups to the anonymous ones.
    pub all_squash: Option<bool>,
    /// Anonymous user ID.
    pub anonuid: Option<u32>,
    /// Anonymous group ID.
    pub anongid: Option<u32>,
    /// Reply to namespace and attribute changes before they are durable, as exports(5) describes (not the
    /// default).
    #[serde(rename = "async")]
    pub deferred: Option<bool>,
    /// Permitted flavors; the default is `sys`.
    pub sec: Option<BTreeSet<Flavor>>,
    /// Required TLS; the default is none.
    pub tls: Option<Secured>,
    /// The client's certificate must contain one of these DNS names. A leading `*.` matches one label.
    pub names: Option<Vec<String>>,
}

/// The configuration of an export.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Keys")]
pub struct ExportConfig {
    /// Absolute path in the server's namespace.
    pub name: String,
    /// Image or device that contains the filesystem.
    pub image: PathBuf,
    /// Filesystem type, as for `ivers mount -t`; `None` means the default.
    pub fs_type: Option<String>,
    /// Mount options, as for `ivers mount -o`.
    pub options: String,
    /// Settings for all clients.
    pub settings: Settings,
    /// Settings for some clients.
    pub rules: Vec<Settings>,
}

/// The keys of an export in the file. They are listed here instead of flattened, because serde loses line
/// numbers of flattened keys.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    name: String,
    image: PathBuf,
    #[serde(rename = "type")]
    fs_type: Option<String>,
    #[serde(default)]
    options: String,
    #[serde(default)]
    rule: Vec<Settings>,
    clients: Option<Vec<Network>>,
    access: Option<Mode>,
    root_squash: Option<bool>,
    all_squash: Option<bool>,
    anonuid: Option<u32>,
    anongid: Option<u32>,
    #[serde(rename = "async")]
    deferred: Option<bool>,
    sec: Option<BTreeSet<Flavor>>,
    tls: Option<Secured>,
    names: Option<Vec<String>>,
}

impl From<Keys> for ExportConfig {
    fn from(keys: Keys) -> Self {
        let Keys { name, image, fs_type, options, rule, clients, access, root_squash, all_squash, .. } = keys;
        let Keys { anonuid, anongid, deferred, sec, tls, names, .. } = keys;
        let ids =
            Settings { clients, access, root_squash, all_squash, anonuid, anongid, ..Settings::default() };
        let settings = Settings { deferred, sec, tls, names, ..ids };
        Self { name, image, fs_type, options, settings, rules: rule }
    }
}

/// TLS files, in PEM format.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate and its intermediate certificates.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
    /// Authorities that sign client certificates.
    pub client_authorities: Option<PathBuf>,
    /// Refuse clients without a certificate.
    #[serde(default)]
    pub client_required: bool,
}

/// Names of owners and groups.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnersConfig {
    /// Domain after the `@`, the same on server and clients.
    pub domain: Domain,
    /// Users, in the format of passwd(5).
    #[serde(default = "OwnersConfig::passwd")]
    pub passwd: PathBuf,
    /// Groups, in the format of group(5).
    #[serde(default = "OwnersConfig::group")]
    pub group: PathBuf,
}

impl OwnersConfig {
    /// Uses the users and groups of this machine.
    pub fn here(domain: Domain) -> Self {
        Self { domain, passwd: Self::passwd(), group: Self::group() }
    }

    fn passwd() -> PathBuf {
        "/etc/passwd".into()
    }

    fn group() -> PathBuf {
        "/etc/group".into()
    }
}

/// Limits for what clients create.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Maximum number of connections.
    pub connections: Option<usize>,
    /// Maximum number of connections per address.
    pub client_connections: Option<usize>,
    /// Maximum bytes of requests and unread replies.
    pub total_bytes: Option<usize>,
    /// Maximum bytes of requests and unread replies per address.
    pub client_bytes: Option<usize>,
    /// Maximum number of clients.
    pub clients: Option<usize>,
    /// Maximum number of sessions per client.
    pub sessions: Option<usize>,
    /// Maximum number of opens, lock-owners and delegations per client.
    pub client_stateids: Option<usize>,
    /// Maximum number of delegations per client.
    pub client_delegations: Option<usize>,
    /// Maximum number of locked ranges per client.
    pub client_locks: Option<usize>,
}

/// The configuration file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Addresses to listen on.
    pub listen: Option<Vec<Address>>,
    /// State directory.
    pub state: Option<PathBuf>,
    /// Address for statistics (HTTP, Prometheus text).
    pub metrics: Option<SocketAddr>,
    /// Lease time in seconds.
    pub lease_s: Option<u32>,
    /// Number of threads.
    pub threads: Option<usize>,
    /// Maximum time to busy-poll for a client's next request, in microseconds.
    pub linger_us: Option<u16>,
    /// Whether to grant delegations.
    pub delegations: Option<bool>,
    /// Format of log messages.
    pub log_format: Option<LogFormat>,
    /// Whether to enter the sandbox before reading an image.
    pub sandbox: Option<bool>,
    /// Limits.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// TLS files.
    pub tls: Option<TlsConfig>,
    /// Names of owners; numeric owners if missing.
    pub owners: Option<OwnersConfig>,
    /// The exports.
    #[serde(default, rename = "export")]
    pub exports: Vec<ExportConfig>,
}

/// The exports with their positions in the file.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    export: Vec<toml::Spanned<toml::Value>>,
}

impl ServerConfig {
    /// Parses the contents of the file at `path`. Relative paths in it start at `dir`.
    pub fn of(path: &Path, dir: Option<&Path>, text: &str) -> Result<Self, ConfigError> {
        let mut config = Self::parse(text).map_err(|error| match error {
            ConfigError::Toml { why, .. } => ConfigError::Toml { path: path.to_owned(), why },
            ConfigError::Export { place, export, why } => {
                let place = place.map(|line| format!("{}, {line}", path.display()));
                ConfigError::Export { place, export, why }
            }
        })?;
        if let Some(dir) = dir {
            config.paths().for_each(|path| *path = dir.join(&*path));
        }
        Ok(config)
    }

    /// Returns the paths that may be relative. An export of type `mem` has no image.
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let images = self.exports.iter_mut().filter(|export| export.fs_type.as_deref() != Some("mem"));
        let tls = self.tls.iter_mut().flat_map(|tls| {
            [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authorities)
        });
        let owners = self.owners.iter_mut().flat_map(|owners| [&mut owners.passwd, &mut owners.group]);
        images.map(|export| &mut export.image).chain(tls).chain(owners).chain(&mut self.state)
    }

    /// Parses the contents of a configuration file.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| format!("line {}: ", line_of(text, span.start)));
            let why = line.unwrap_or_default() + error.message();
            ConfigError::Toml { path: PathBuf::new(), why }
        })?;
        for (at, export) in config.exports.iter().enumerate() {
            export.check().map_err(|error| with_line(error, text, at))?;
        }
        Ok(config)
    }
}

/// Sets an option once, and refuses a contradicting second value.
fn once<T: PartialEq>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        Some(before) if place.as_ref() != Some(&before) => Err("contradicts an earlier option"),
        _ => Ok(()),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Adds the line of the export to the error.
fn with_line(error: ConfigError, text: &str, at: usize) -> ConfigError {
    let begins = || toml::from_str::<Places>(text).ok()?.export.get(at).map(|export| export.span().start);
    match (error, begins()) {
        (ConfigError::Export { export, why, .. }, Some(begins)) => {
            let place = Some(format!("line {}", line_of(text, begins)));
            ConfigError::Export { place, export, why }
        }
        (error, _) => error,
    }
}

const FLAG: &str = "IMAGE[,name=/PATH][,type=TYPE][,ro|rw][,clients=ADDRESS;NETWORK...]\
    [,root_squash|no_root_squash][,all_squash][,anonuid=N][,anongid=N][,async][,sec=sys;none]\
    [,tls=required|certificate][,names=NAME;NAME...], and mount options";

impl ExportConfig {
    /// Parses a flag; its error message shows the syntax. The default name is that of the image.
    pub fn from_flag(flag: &str) -> Result<Self, ConfigError> {
        let words: Vec<String> = flag.split(',').map(str::to_owned).collect();
        Self::from_words(&words, |_| false)
    }

    /// Parses the comma-separated words of a flag. `is_option` decides whether an unknown word is a mount
    /// option.
    pub fn from_words(words: &[String], is_option: impl Fn(&str) -> bool) -> Result<Self, ConfigError> {
        let mut parts = words.iter().map(String::as_str);
        let image = PathBuf::from(parts.next().unwrap_or_default());
        let stem = image.file_stem().unwrap_or_default().to_string_lossy();
        let mut export = Self {
            name: format!("/{stem}"),
            image: image.clone(),
            fs_type: None,
            options: String::new(),
            settings: Settings::default(),
            rules: Vec::new(),
        };
        let label = &words.join(",");
        let settings = &mut export.settings;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let bad = |what: &str| invalid(label, format!("{part:?}: {what}; expected {FLAG}"));
            let id = || value.parse::<u32>().map_err(|_| bad("not a user or group ID"));
            let list = || value.split(';').filter(|item| !item.is_empty()).map(str::to_owned);
            match (key, value) {
                ("name", path) => export.name = path.to_owned(),
                ("type", fs_type) => export.fs_type = Some(fs_type.to_owned()),
                ("ro", "") => once(&mut settings.access, Mode::Ro).map_err(bad)?,
                ("rw", "") => once(&mut settings.access, Mode::Rw).map_err(bad)?,
                ("root_squash", "") => once(&mut settings.root_squash, true).map_err(bad)?,
                ("no_root_squash", "") => once(&mut settings.root_squash, false).map_err(bad)?,
                ("all_squash", "") => settings.all_squash = Some(true),
                ("anonuid", _) => settings.anonuid = Some(id()?),
                ("anongid", _) => settings.anongid = Some(id()?),
                ("async", "") => settings.deferred = Some(true),
                ("tls", "required") => settings.tls = Some(Secured::Required),
                ("tls", "certificate") => settings.tls = Some(Secured::Certificate),
                ("names", _) => settings.names = Some(list().collect()),
                ("clients", _) => {
                    let networks: Result<_, String> = list().map(Network::try_from).collect();
                    settings.clients = Some(networks.map_err(|why| bad(&why))?);
                }
                ("sec", _) => {
                    let flavors: Option<_> = list()
                        .map(|item| match item.as_str() {
                            "sys" => Some(Flavor::Sys),
                            "none" => Some(Flavor::None),
                            _ => None,
                        })
                        .collect();
                    settings.sec = Some(flavors.ok_or_else(|| bad("unsupported flavor"))?);
                }
                _ if is_option(part) => {
                    export.options += if export.options.is_empty() { "" } else { "," };
                    export.options += part;
                }
                _ => return Err(bad("unknown option")),
            }
        }
        export.check()?;
        Ok(export)
    }

    /// Checks the export.
    pub fn check(&self) -> Result<(), ConfigError> {
        let bad = |why: &str| Err(invalid(&self.name, why));
        let Some(path) = self.name.strip_prefix('/') else {
            return bad("its name is not an absolute path like /photos");
        };
        let labels = || path.split('/');
        if !path.is_empty() && labels().any(|label| matches!(label, "" | "." | "..") || label.len() > 255) {
            return bad("its name has an empty part, '.', '..' or a part longer than 255 bytes");
        }
        if self.name.contains('\0') {
            return bad("its name contains a NUL byte");
        }
        if self.image.as_os_str().is_empty() {
            return bad("it has no image");
        }
        let text = self.image.to_string_lossy();
        if !self.image.exists() && text.contains(":/") {
            return bad(
                "only a whole filesystem can be exported, because filehandles contain no directory; \
                remove the path after ':'",
            );
        }
        for settings in std::iter::once(&self.settings).chain(&self.rules) {
            if settings.sec.as_ref().is_some_and(BTreeSet::is_empty) {
                return bad("sec is empty, so no client has access; name a flavor");
            }
            if settings.names.is_some() && settings.tls != Some(Secured::Certificate) {
                return bad("names are checked against certificates; add tls = \"certificate\"");
            }
        }
        if self.rules.iter().any(|rule| rule.clients.is_none()) {
            return bad("a rule has no clients");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn toml(text: &str) -> Result<ServerConfig, String> {
        ServerConfig::parse(text).map_err(|error| error.to_string())
    }

    #[test]
    fn relative_paths_start_at_the_directory_of_the_file() {
        let text = "state = \"state\"\n[tls]\ncertificate = \"a.pem\"\nkey = \"/k.pem\"\n\
            [[export]]\nname = \"/a\"\nimage = \"a.img\"\n[[export]]\nname = \"/m\"\nimage = \"none\"\ntype = \"mem\"\n";
        let (file, dir) = (Path::new("/etc/ivers/a.toml"), Path::new("/etc/ivers"));
        let as_told = ServerConfig::of(file, None, text).unwrap();
        assert_eq!(as_told.state.as_deref(), Some(Path::new("state")));
        let config = ServerConfig::of(file, Some(dir), text).unwrap();
        let tls = config.tls.unwrap();
        assert_eq!((tls.certificate.to_str(), tls.key.to_str()), (Some("/etc/ivers/a.pem"), Some("/k.pem")));
        let images: Vec<_> = config.exports.iter().map(|export| export.image.to_str().unwrap()).collect();
        assert_eq!(images, ["/etc/ivers/a.img", "none"]);
        assert_eq!(config.state.as_deref(), Some(Path::new("/etc/ivers/state")));
    }

    #[test]
    fn the_documented_file_is_valid() {
        let text: String = include_str!("config.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| format!("{}\n", line.trim_start_matches("//!")))
            .collect();
        let config = toml(&text).unwrap();
        assert_eq!(config.listen.unwrap().len(), 2);
        assert_eq!((config.limits.connections, config.limits.clients), (Some(1024), None));
        let export = &config.exports[0];
        assert_eq!(export.name, "/photos");
        assert_eq!(export.settings.access, Some(Mode::Ro));
        assert!(export.settings.clients.as_ref().unwrap()[1].contains("2001:db8::7".parse().unwrap()));
        assert_eq!(export.rules[0].tls, Some(Secured::Certificate));
        assert_eq!(toml(""), Ok(ServerConfig::default()));
    }

    #[test]
    fn a_flag_equals_the_file() {
        let flag = "photos.img,name=/a/b,ro,clients=192.0.2.0/24;::1,no_root_squash,all_squash,anonuid=7,anongid=8,\
            async,sec=sys;none,tls=certificate,names=a.example;*.b.example";
        let file = r#"
            [[export]]
            image = "photos.img"
            name = "/a/b"
            access = "ro"
            clients = ["192.0.2.77/24", "::1"]
            root_squash = false
            all_squash = true
            anonuid = 7
            anongid = 8
            async = true
            sec = ["none", "sys"]
            tls = "certificate"
            names = ["a.example", "*.b.example"]
        "#;
        assert_eq!(ExportConfig::from_flag(flag).unwrap(), toml(file).unwrap().exports[0]);
        assert_eq!(ExportConfig::from_flag("/srv/photos.img").unwrap().name, "/photos");
        let words = ["none", "type=mem", "noatime", "ro", "cache=1G"].map(str::to_owned);
        let export = ExportConfig::from_words(&words, |word| word != "nonsense").unwrap();
        assert_eq!((export.fs_type.as_deref(), &*export.options), (Some("mem"), "noatime,cache=1G"));
    }

    #[test]
    fn errors_name_the_cause_and_the_line() {
        let cases = [
            ("listen = [\"here\"]", "\"here\" is not an address"),
            ("nothing = 1", "unknown field `nothing`"),
            ("[[export]]\nimage = \"i\"", "name"),
            ("[[export]]\nname = \"a\"\nimage = \"i\"", "not an absolute path"),
            ("[[export]]\nname = \"/a//b\"\nimage = \"i\"", "empty part"),
            ("[[export]]\nname = \"/a/..\"\nimage = \"i\"", "'..'"),
            ("[[export]]\nname = \"/a\"\nimage = \"\"", "has no image"),
            ("[[export]]\nname = \"/a\"\nimage = \"i:/sub\"", "whole filesystem"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nclients = [\"host.example\"]", "neither an address"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nsec = [\"krb5\"]", "krb5"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nsec = []", "sec is empty"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nnames = [\"x\"]", "certificate"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nsquash = true", "squash"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\n[[export.rule]]\naccess = \"ro\"", "has no clients"),
            (
                "[[export]]\nname = \"/a\"\nimage = \"i\"\n[[export.rule]]\nclients = []\nro = 1",
                "unknown field `ro`",
            ),
        ];
        for (text, expected) in cases {
            let error = toml(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            let error = toml(&format!("lease_s = 90\n\n{text}")).unwrap_err();
            let line = 2 + text.lines().count();
            let named = (3..=line).any(|line| error.contains(&format!("line {line}")));
            assert!(named, "{text}: {error}");
        }
        for (flag, expected) in [
            ("", "has no image"),
            ("i,wr", "\"wr\": unknown option"),
            ("i,anonuid=x", "not a user or group ID"),
            ("i,sec=krb5", "unsupported flavor"),
            ("i,clients=x", "neither an address"),
            ("i,name=x", "not an absolute path"),
            ("i,ro=1", "unknown option"),
        ] {
            let error = ExportConfig::from_flag(flag).unwrap_err().to_string();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }

    #[test]
    fn errors_of_keys_name_the_line() {
        let export = "[[export]]\nname = \"/a\"\nimage = \"i\"\n";
        for (text, line) in [
            (format!("{export}\nsquash = true"), 5),
            (format!("{export}clients = [\n\"here\"]"), 4),
            (format!("{export}anonuid = -1"), 4),
            (format!("{export}[[export.rule]]\nclients = []\nro = true"), 6),
            ("listen = [\"::1\"]\n[limits]\nbytes = 7".to_owned(), 3),
            (format!("{export}{export}image = \"j\""), 7),
            (format!("{export}\n[[export]]\nname = \"b\"\nimage = \"i\""), 5),
        ] {
            let error = toml(&text).unwrap_err();
            assert!(error.contains(&format!("line {line}")), "{text}: {error}");
        }
    }
}
