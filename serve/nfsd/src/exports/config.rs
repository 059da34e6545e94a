//! What the server is told: a TOML file, or a flag an export.
//!
//! ```toml
//! listen = ["127.0.0.1:2049", "[::1]:2049"]    # loopback if nothing is said; 2049 if no port is
//! state = "/var/lib/ivers/serve"
//! metrics = "127.0.0.1:9149"                   # nowhere if nothing is said
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
//! [owners]                                     # numbers if nothing is said
//! domain = "example.org"
//! passwd = "/etc/passwd"                       # the usual ones, if nothing else is said
//! group = "/etc/group"
//!
//! [[export]]
//! name = "/photos"
//! image = "/srv/photos.img"
//! options = "noatime,cache=1G"                 # of the mount, as ivers mount -o takes them
//! clients = ["192.0.2.0/24", "2001:db8::/64"]  # loopback if nothing is said
//! access = "ro"
//! async = false                                # true: names and attributes are answered before they are durable
//!
//! [[export.rule]]                              # the first that names the client's address goes before the above
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

/// `nobody` of most systems.
pub const NOBODY: u32 = 65534;

/// What is wrong with what the server was told.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// It is no TOML, or holds what is not known.
    #[error("{}: {why}", path.display())]
    Toml {
        /// Which.
        path: PathBuf,
        /// Where, and what.
        why: String,
    },
    /// An export that makes no sense.
    #[error("{}export {export}: {why}", place.as_deref().map(|place| format!("{place}: ")).unwrap_or_default())]
    Export {
        /// Where it stands, if in a file.
        place: Option<String>,
        /// Its name, or its image.
        export: String,
        /// What is wrong, and what would be right.
        why: String,
    },
}

fn wrong(export: &str, why: impl Into<String>) -> ConfigError {
    ConfigError::Export { place: None, export: export.to_owned(), why: why.into() }
}

/// What holds for some of the clients of an export; what is not said is as for the export itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// For these. An export's own: loopback if nothing is said.
    pub clients: Option<Vec<Network>>,
    /// Reading alone, or writing too (the default).
    pub access: Option<Mode>,
    /// User and group 0 become nobody (the default).
    pub root_squash: Option<bool>,
    /// Everybody becomes nobody.
    pub all_squash: Option<bool>,
    /// Who nobody is.
    pub anonuid: Option<u32>,
    /// And his group.
    pub anongid: Option<u32>,
    /// Changes of names and attributes are answered before they are durable, as exports(5) has it (not the default).
    #[serde(rename = "async")]
    pub deferred: Option<bool>,
    /// Which flavours; `sys` if nothing is said.
    pub sec: Option<BTreeSet<Flavor>>,
    /// What TLS must have shown; nothing if nothing is said.
    pub tls: Option<Secured>,
    /// One of these must be among the DNS names of the client's certificate; `*.` at the beginning stands for one label.
    pub names: Option<Vec<String>>,
}

/// An export, as it is told.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "Keys")]
pub struct ExportConfig {
    /// Where it appears: an absolute path.
    pub name: String,
    /// The image or device that holds the filesystem.
    pub image: PathBuf,
    /// The filesystem's type, as `ivers mount -t` takes it; nothing: the usual one.
    pub fs_type: Option<String>,
    /// Options of the mount, as `ivers mount -o` takes them.
    pub options: String,
    /// For all clients.
    pub settings: Settings,
    /// For some.
    pub rules: Vec<Settings>,
}

/// As it stands in the file. Its settings are spelled out, not flattened: serde would forget on which line they stand.
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

/// Files of TLS.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate, and those between it and its authority (PEM).
    pub certificate: PathBuf,
    /// Its key (PEM).
    pub key: PathBuf,
    /// Authorities of clients (PEM).
    pub client_authorities: Option<PathBuf>,
    /// No client without a certificate gets a connection.
    #[serde(default)]
    pub client_required: bool,
}

/// Names of owners.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnersConfig {
    /// What stands behind the `@`, on both sides alike.
    pub domain: Domain,
    /// Users, as passwd(5) has them.
    #[serde(default = "OwnersConfig::passwd")]
    pub passwd: PathBuf,
    /// Groups, as group(5) has them.
    #[serde(default = "OwnersConfig::group")]
    pub group: PathBuf,
}

impl OwnersConfig {
    /// With the names of this machine.
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

/// How much there may be of what clients make.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitsConfig {
    /// Connections in all.
    pub connections: Option<usize>,
    /// Connections of one address.
    pub client_connections: Option<usize>,
    /// Bytes of requests and unread replies in all.
    pub total_bytes: Option<usize>,
    /// Bytes of requests and unread replies of one address.
    pub client_bytes: Option<usize>,
    /// Clients.
    pub clients: Option<usize>,
    /// Sessions of a client.
    pub sessions: Option<usize>,
    /// Opens, lock-owners and delegations of a client.
    pub client_stateids: Option<usize>,
    /// Delegations of a client.
    pub client_delegations: Option<usize>,
    /// Locked ranges of a client.
    pub client_locks: Option<usize>,
}

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Option<Vec<Address>>,
    /// Where to keep what outlives the server.
    pub state: Option<PathBuf>,
    /// Where to answer with statistics (HTTP, Prometheus text).
    pub metrics: Option<SocketAddr>,
    /// The lease time in seconds.
    pub lease_s: Option<u32>,
    /// Threads.
    pub threads: Option<usize>,
    /// Microseconds that a thread looks out for a client's next request.
    pub linger_us: Option<u16>,
    /// Whether clients may get delegations.
    pub delegations: Option<bool>,
    /// How messages look.
    pub log_format: Option<LogFormat>,
    /// Whether the process gives up what it does not need before it reads an image.
    pub sandbox: Option<bool>,
    /// Bounds.
    #[serde(default)]
    pub limits: LimitsConfig,
    /// TLS.
    pub tls: Option<TlsConfig>,
    /// Names of owners; without, they are numbers.
    pub owners: Option<OwnersConfig>,
    /// The exports.
    #[serde(default, rename = "export")]
    pub exports: Vec<ExportConfig>,
}

/// The exports alone, with their places.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    export: Vec<toml::Spanned<toml::Value>>,
}

impl ServerConfig {
    /// Read what a file held. Paths in it that are relative begin in `dir`.
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

    /// Those of files that are there whatever the type of an export: one of `mem` has no image.
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let images = self.exports.iter_mut().filter(|export| export.fs_type.as_deref() != Some("mem"));
        let tls = self.tls.iter_mut().flat_map(|tls| {
            [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authorities)
        });
        let owners = self.owners.iter_mut().flat_map(|owners| [&mut owners.passwd, &mut owners.group]);
        images.map(|export| &mut export.image).chain(tls).chain(owners).chain(&mut self.state)
    }

    /// Read what a file holds.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| format!("line {}: ", line_of(text, span.start)));
            let why = line.unwrap_or_default() + error.message();
            ConfigError::Toml { path: PathBuf::new(), why }
        })?;
        for (at, export) in config.exports.iter().enumerate() {
            export.check().map_err(|error| placed(error, text, at))?;
        }
        Ok(config)
    }
}

/// Set what may be said in one way only: of two that contradict each other nobody knows which was meant.
fn once<T: PartialEq>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        Some(before) if place.as_ref() != Some(&before) => Err("the opposite was said before"),
        _ => Ok(()),
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// With the line at which an export begins.
fn placed(error: ConfigError, text: &str, at: usize) -> ConfigError {
    let begins = || toml::from_str::<Places>(text).ok()?.export.get(at).map(|export| export.span().start);
    match (error, begins()) {
        (ConfigError::Export { export, why, .. }, Some(begins)) => {
            let place = Some(format!("line {}", line_of(text, begins)));
            ConfigError::Export { place, export, why }
        }
        (error, _) => error,
    }
}

const FLAG: &str = "IMAGE[,name=/PATH][,type=TYPE][,ro|rw][,clients=ADDRESS;NETWORK...][,root_squash|no_root_squash][,all_squash]\
    [,anonuid=N][,anongid=N][,async][,sec=sys;none][,tls=required|certificate][,names=NAME;NAME...], and options of the mount";

impl ExportConfig {
    /// An export as a flag says it: see the message about a wrong one. The name is the image's, if none is given.
    pub fn from_flag(flag: &str) -> Result<Self, ConfigError> {
        let words: Vec<String> = flag.split(',').map(str::to_owned).collect();
        Self::from_words(&words, |_| false)
    }

    /// The same, taken apart already. What is not known here may be an option of the mount.
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
            let bad = |what: &str| wrong(label, format!("{part:?}: {what}; expected {FLAG}"));
            let id = || value.parse::<u32>().map_err(|_| bad("no number of a user or group"));
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
                    settings.sec = Some(flavors.ok_or_else(|| bad("no flavour that is served"))?);
                }
                _ if is_option(part) => {
                    export.options += if export.options.is_empty() { "" } else { "," };
                    export.options += part;
                }
                _ => return Err(bad("not known")),
            }
        }
        export.check()?;
        Ok(export)
    }

    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), ConfigError> {
        let bad = |why: &str| Err(wrong(&self.name, why));
        let Some(path) = self.name.strip_prefix('/') else {
            return bad("its name is no absolute path, like /photos");
        };
        let labels = || path.split('/');
        if !path.is_empty() && labels().any(|label| matches!(label, "" | "." | "..") || label.len() > 255) {
            return bad("its name has an empty part, '.', '..' or one that is longer than 255 bytes");
        }
        if self.name.contains('\0') {
            return bad("its name holds a NUL");
        }
        if self.image.as_os_str().is_empty() {
            return bad("no image is named");
        }
        let text = self.image.to_string_lossy();
        if !self.image.exists() && text.contains(":/") {
            return bad(
                "an export is a whole filesystem: a handle does not tell below which directory its file is. \
                Name the image without the path behind ':'",
            );
        }
        for settings in std::iter::once(&self.settings).chain(&self.rules) {
            if settings.sec.as_ref().is_some_and(BTreeSet::is_empty) {
                return bad("sec names no flavour: nobody could use it");
            }
            if settings.names.is_some() && settings.tls != Some(Secured::Certificate) {
                return bad("names are those of certificates: they need tls = \"certificate\" beside them");
            }
        }
        if self.rules.iter().any(|rule| rule.clients.is_none()) {
            return bad("a rule names no clients");
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
    fn relative_paths_begin_in_the_directory_of_the_file() {
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
    fn the_file_of_the_documentation_is_read() {
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
    fn a_flag_says_the_same() {
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
    fn what_is_wrong_is_named() {
        let cases = [
            ("listen = [\"here\"]", "\"here\" is no address"),
            ("nothing = 1", "unknown field `nothing`"),
            ("[[export]]\nimage = \"i\"", "name"),
            ("[[export]]\nname = \"a\"\nimage = \"i\"", "no absolute path"),
            ("[[export]]\nname = \"/a//b\"\nimage = \"i\"", "empty part"),
            ("[[export]]\nname = \"/a/..\"\nimage = \"i\"", "'..'"),
            ("[[export]]\nname = \"/a\"\nimage = \"\"", "no image"),
            ("[[export]]\nname = \"/a\"\nimage = \"i:/sub\"", "whole filesystem"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nclients = [\"host.example\"]", "neither an address"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nsec = [\"krb5\"]", "krb5"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nsec = []", "no flavour"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nnames = [\"x\"]", "certificate"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\nsquash = true", "squash"),
            ("[[export]]\nname = \"/a\"\nimage = \"i\"\n[[export.rule]]\naccess = \"ro\"", "no clients"),
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
            ("", "no image"),
            ("i,wr", "\"wr\": not known"),
            ("i,anonuid=x", "no number"),
            ("i,sec=krb5", "no flavour"),
            ("i,clients=x", "neither an address"),
            ("i,name=x", "no absolute path"),
            ("i,ro=1", "not known"),
        ] {
            let error = ExportConfig::from_flag(flag).unwrap_err().to_string();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }

    #[test]
    fn a_wrong_key_is_named_with_its_line() {
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
