//! What the server is told: a TOML file, or a flag an export.
//!
//! ```toml
//! listen = ["127.0.0.1:2049", "[::1]:2049"]    # loopback if nothing is said
//! state = "/var/lib/ivers-nfsd"
//!
//! [tls]
//! certificate = "/etc/ivers/server.pem"
//! key = "/etc/ivers/server.key"
//! client_authorities = "/etc/ivers/clients.pem"
//!
//! [[export]]
//! name = "/photos"
//! image = "/srv/photos.img"
//! clients = ["192.0.2.0/24", "2001:db8::/64"]  # loopback if nothing is said
//! access = "ro"
//!
//! [[export.rule]]                              # the first that names the client's address goes before the above
//! clients = ["192.0.2.7"]
//! access = "rw"
//! tls = "certificate"
//! names = ["*.photos.example"]
//! ```

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::Deserialize;
use thiserror::Error;

/// `nobody` of most systems.
pub const NOBODY: u32 = 65534;

/// What is wrong with what the server was told.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It is no TOML, or holds what is not known.
    #[error("{}: {why}", path.display())]
    Toml {
        /// Which.
        path: PathBuf,
        /// Where, and what.
        why: String,
    },
    /// An export that makes no sense.
    #[error("export {export}: {why}")]
    Export {
        /// Its name, or its image.
        export: String,
        /// What is wrong, and what would be right.
        why: String,
    },
}

fn wrong(export: &str, why: impl Into<String>) -> ConfigError {
    ConfigError::Export { export: export.to_owned(), why: why.into() }
}

/// One address, or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Network(IpNet);

impl TryFrom<String> for Network {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
        // A name would have to be looked up, and whoever answers would say who comes in.
        net.map(|net| Self(net.trunc())).map_err(|_| {
            format!("{text:?} is neither an address nor a network like 192.0.2.0/24 or 2001:db8::/64")
        })
    }
}

impl Network {
    /// Whether an address is in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// Reading alone, or writing too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reading.
    Ro,
    /// Both.
    Rw,
}

/// A flavour of `sec=`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavor {
    /// `AUTH_NONE`: nobody, always squashed.
    None,
    /// `AUTH_SYS`.
    Sys,
}

/// What TLS must have shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Secured {
    /// Nothing: it may be used.
    Optional,
    /// It must be used.
    Required,
    /// It must be used, and the client must have shown a certificate.
    Certificate,
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
    /// Which flavours; `sys` if nothing is said.
    pub sec: Option<BTreeSet<Flavor>>,
    /// What TLS must have shown; nothing if nothing is said.
    pub tls: Option<Secured>,
    /// One of these must be among the DNS names of the client's certificate; `*.` at the beginning stands for one label.
    pub names: Option<Vec<String>>,
}

/// An export, as it is told.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Keys")]
pub struct ExportConfig {
    /// Where it appears: an absolute path.
    pub name: String,
    /// The image or device that holds the filesystem.
    pub image: PathBuf,
    /// Options of the mount, as `ivers mount -o` takes them.
    pub options: String,
    /// For all clients.
    pub settings: Settings,
    /// For some.
    pub rules: Vec<Settings>,
}

/// As it stands in the file: what is not the export's alone belongs to its settings, which know what they know.
#[derive(Deserialize)]
struct Keys {
    name: String,
    image: PathBuf,
    #[serde(default)]
    options: String,
    #[serde(default)]
    rule: Vec<Settings>,
    #[serde(flatten)]
    settings: toml::Table,
}

impl TryFrom<Keys> for ExportConfig {
    type Error = toml::de::Error;

    fn try_from(keys: Keys) -> Result<Self, toml::de::Error> {
        let Keys { name, image, options, rule, settings } = keys;
        Ok(Self { name, image, options, settings: Settings::deserialize(settings)?, rules: rule })
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

/// The file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// Where to listen.
    pub listen: Option<Vec<SocketAddr>>,
    /// Where to keep what outlives the server.
    pub state: Option<PathBuf>,
    /// The lease time in seconds.
    pub lease_s: Option<u32>,
    /// Threads.
    pub threads: Option<usize>,
    /// TLS.
    pub tls: Option<TlsConfig>,
    /// The exports.
    #[serde(default, rename = "export")]
    pub exports: Vec<ExportConfig>,
}

impl ServerConfig {
    /// Read the file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|error| match error {
            ConfigError::Toml { why, .. } => ConfigError::Toml { path: path.to_owned(), why },
            other => other,
        })
    }

    /// Read what a file holds.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = toml::from_str(text)
            .map_err(|error| ConfigError::Toml { path: PathBuf::new(), why: error.to_string() })?;
        for export in &config.exports {
            export.check()?;
        }
        Ok(config)
    }
}

const FLAG: &str = "IMAGE[,name=/PATH][,ro|rw][,clients=ADDRESS;NETWORK...][,root_squash|no_root_squash][,all_squash]\
    [,anonuid=N][,anongid=N][,sec=sys;none][,tls=required|certificate][,names=NAME;NAME...]";

impl ExportConfig {
    /// An export as a flag says it: see the message about a wrong one. The name is the image's, if none is given.
    pub fn from_flag(flag: &str) -> Result<Self, ConfigError> {
        let mut parts = flag.split(',');
        let image = PathBuf::from(parts.next().unwrap_or_default());
        let stem = image.file_stem().unwrap_or_default().to_string_lossy();
        let mut export = Self {
            name: format!("/{stem}"),
            image: image.clone(),
            options: String::new(),
            settings: Settings::default(),
            rules: Vec::new(),
        };
        let label = flag;
        let settings = &mut export.settings;
        for part in parts {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let bad = |what: &str| wrong(label, format!("{part:?}: {what}; expected {FLAG}"));
            let id = || value.parse::<u32>().map_err(|_| bad("no number of a user or group"));
            let list = || value.split(';').filter(|item| !item.is_empty()).map(str::to_owned);
            match (key, value) {
                ("name", path) => export.name = path.to_owned(),
                ("ro", "") => settings.access = Some(Mode::Ro),
                ("rw", "") => settings.access = Some(Mode::Rw),
                ("root_squash", "") => settings.root_squash = Some(true),
                ("no_root_squash", "") => settings.root_squash = Some(false),
                ("all_squash", "") => settings.all_squash = Some(true),
                ("anonuid", _) => settings.anonuid = Some(id()?),
                ("anongid", _) => settings.anongid = Some(id()?),
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
                _ => return Err(bad("not known")),
            }
        }
        export.check()?;
        Ok(export)
    }

    fn check(&self) -> Result<(), ConfigError> {
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
            sec=sys;none,tls=certificate,names=a.example;*.b.example";
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
            sec = ["none", "sys"]
            tls = "certificate"
            names = ["a.example", "*.b.example"]
        "#;
        assert_eq!(ExportConfig::from_flag(flag).unwrap(), toml(file).unwrap().exports[0]);
        assert_eq!(ExportConfig::from_flag("/srv/photos.img").unwrap().name, "/photos");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("listen = [\"here\"]", "listen"),
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
}
