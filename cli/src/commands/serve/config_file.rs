//! The configuration file of a server, in TOML. The command line has options for the main keys.
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

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ivers_nfsd::exports::config::{ExportConfig, Flavor, Mode, Network, Secured, Settings};
use ivers_nfsd::net::listen::NFS_PORT;
use serde::{Deserialize, Deserializer, de};

use crate::output::format::Shown;

/// An address to listen on. The default port is that of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = || text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        let address = text.parse().or_else(|_| bare().map(|address| SocketAddr::new(address, NFS_PORT)));
        address.map(Self).map_err(|_| {
            format!("{text:?} is not an address like 192.0.2.1, 192.0.2.1:2049 or [2001:db8::1]:2049")
        })
    }
}

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The domain after the `@` of an owner.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Domain(pub String);

impl FromStr for Domain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if text.is_empty() || text.len() > 255 || !text.bytes().all(plain) {
            return Err(format!("{text:?} is not a domain like example.org"));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for Domain {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// Format of log messages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A value that is a string in the file.
struct Parsed<T>(T);

impl<'de, T: FromStr<Err: Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map(Self).map_err(de::Error::custom)
    }
}

/// Declares the keys of a table: its own ones and those of [`Settings`]. They are repeated instead of
/// flattened, because serde loses line numbers of flattened keys.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident { $($(#[$attribute:meta])* $key:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct $name {
            $($(#[$attribute])* $key: $type,)*
            clients: Option<Vec<Parsed<Network>>>,
            access: Option<Parsed<Mode>>,
            root_squash: Option<bool>,
            all_squash: Option<bool>,
            anonuid: Option<u32>,
            anongid: Option<u32>,
            #[serde(rename = "async")]
            deferred: Option<bool>,
            sec: Option<Vec<Parsed<Flavor>>>,
            tls: Option<Parsed<Secured>>,
            names: Option<Vec<String>>,
        }

        impl $name {
            fn settings(&mut self) -> Settings {
                let all = |clients: Vec<Parsed<Network>>| clients.into_iter().map(|it| it.0).collect();
                Settings {
                    clients: self.clients.take().map(all),
                    access: self.access.take().map(|it| it.0),
                    root_squash: self.root_squash,
                    all_squash: self.all_squash,
                    anonuid: self.anonuid,
                    anongid: self.anongid,
                    deferred: self.deferred,
                    sec: self.sec.take().map(|flavors| flavors.into_iter().map(|it| it.0).collect()),
                    tls: self.tls.take().map(|it| it.0),
                    names: self.names.take(),
                }
            }
        }
    };
}

table! {
    /// A rule of an export.
    RuleTable {}
}

table! {
    /// An export.
    ExportTable {
        name: String,
        image: PathBuf,
        #[serde(rename = "type")]
        fs_type: Option<String>,
        #[serde(default)]
        options: String,
        #[serde(default)]
        rule: Vec<RuleTable>,
    }
}

fn exports<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ExportConfig>, D::Error> {
    let export = |mut table: ExportTable| ExportConfig {
        settings: table.settings(),
        rules: table.rule.iter_mut().map(RuleTable::settings).collect(),
        name: table.name,
        image: table.image,
        fs_type: table.fs_type,
        options: table.options,
    };
    Ok(Vec::<ExportTable>::deserialize(from)?.into_iter().map(export).collect())
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
    pub busy_poll_us: Option<u16>,
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
    #[serde(default, rename = "export", deserialize_with = "exports")]
    pub exports: Vec<ExportConfig>,
}

/// The exports with their positions in the file.
#[derive(Deserialize)]
struct Places {
    #[serde(default)]
    export: Vec<toml::Spanned<toml::Value>>,
}

impl ServerConfig {
    /// Returns the paths that can be relative. An export of type `mem` has no image.
    fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let images = self.exports.iter_mut().filter(|export| export.fs_type.as_deref() != Some("mem"));
        let tls = self.tls.iter_mut().flat_map(|tls| {
            [&mut tls.certificate, &mut tls.key].into_iter().chain(&mut tls.client_authorities)
        });
        let owners = self.owners.iter_mut().flat_map(|owners| [&mut owners.passwd, &mut owners.group]);
        images.map(|export| &mut export.image).chain(tls).chain(owners).chain(&mut self.state)
    }
}

/// Parses the text of the file at `path`. Relative paths in it start at `dir`. An error names the file, the
/// line and the key or the export.
pub fn parse(path: &Path, dir: Option<&Path>, text: &str) -> Result<ServerConfig, String> {
    let mut config = parse_text(text).map_err(|error| format!("{}: {error}", path.shown()))?;
    if let Some(dir) = dir {
        config.paths().for_each(|path| *path = dir.join(&*path));
    }
    Ok(config)
}

fn parse_text(text: &str) -> Result<ServerConfig, String> {
    let config: ServerConfig = toml::from_str(text).map_err(|error| match error.span() {
        Some(span) => format!("line {}: {}", line_of(text, span.start), error.message()),
        None => error.message().to_owned(),
    })?;
    for (at, export) in config.exports.iter().enumerate() {
        export.check().map_err(|error| match export_line(text, at) {
            Some(line) => format!("line {line}: {error}"),
            None => error.to_string(),
        })?;
    }
    Ok(config)
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// Returns the line of the export with this index.
fn export_line(text: &str, at: usize) -> Option<usize> {
    Some(line_of(text, toml::from_str::<Places>(text).ok()?.export.get(at)?.span().start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_start_at_the_directory_of_the_file() {
        let text = "state = \"state\"\n[tls]\ncertificate = \"a.pem\"\nkey = \"/k.pem\"\n\
            [[export]]\nname = \"/a\"\nimage = \"a.img\"\n\
            [[export]]\nname = \"/m\"\nimage = \"none\"\ntype = \"mem\"\n";
        let (file, dir) = (Path::new("/etc/ivers/a.toml"), Path::new("/etc/ivers"));
        let unchanged = parse(file, None, text).unwrap();
        assert_eq!(unchanged.state.as_deref(), Some(Path::new("state")));
        let config = parse(file, Some(dir), text).unwrap();
        let tls = config.tls.unwrap();
        assert_eq!((tls.certificate.to_str(), tls.key.to_str()), (Some("/etc/ivers/a.pem"), Some("/k.pem")));
        let images: Vec<_> = config.exports.iter().map(|export| export.image.to_str().unwrap()).collect();
        assert_eq!(images, ["/etc/ivers/a.img", "none"]);
        assert_eq!(config.state.as_deref(), Some(Path::new("/etc/ivers/state")));
    }

    #[test]
    fn the_documented_file_is_valid() {
        let text: String = include_str!("config_file.rs")
            .lines()
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .map(|line| format!("{}\n", line.trim_start_matches("//!")))
            .collect();
        let config = parse_text(&text).unwrap();
        assert_eq!(config.listen.unwrap().len(), 2);
        assert_eq!((config.limits.connections, config.limits.clients), (Some(1024), None));
        let export = &config.exports[0];
        assert_eq!(export.name, "/photos");
        assert_eq!(export.settings.access, Some(Mode::Ro));
        assert!(export.settings.clients.as_ref().unwrap()[1].contains("2001:db8::7".parse().unwrap()));
        assert_eq!(export.rules[0].tls, Some(Secured::Certificate));
        assert_eq!(parse_text(""), Ok(ServerConfig::default()));
    }

    #[test]
    fn the_example_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples/serve.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let config = parse_text(&text).unwrap();
        let names: Vec<_> = config.exports.iter().map(|export| export.name.as_str()).collect();
        assert_eq!(names, ["/photos", "/shared"]);
        // Also with the lines that it says to uncomment.
        let tls = text.replace("# [tls]", "[tls]").replace("# c", "c").replace("# key", "key");
        assert!(parse_text(&tls).unwrap().tls.unwrap().client_authorities.is_some());
    }

    #[test]
    fn a_flag_equals_the_file() {
        let flag = "photos.img,name=/a/b,ro,clients=192.0.2.0/24;::1,no_root_squash,all_squash,\
            anonuid=7,anongid=8,async,sec=sys;none,tls=certificate,names=a.example;*.b.example";
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
        assert_eq!(ExportConfig::from_flag(flag).unwrap(), parse_text(file).unwrap().exports[0]);
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
            let error = parse_text(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
            let error = parse_text(&format!("lease_s = 90\n\n{text}")).unwrap_err();
            let line = 2 + text.lines().count();
            let named = (3..=line).any(|line| error.contains(&format!("line {line}")));
            assert!(named, "{text}: {error}");
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
            let error = parse_text(&text).unwrap_err();
            assert!(error.contains(&format!("line {line}")), "{text}: {error}");
        }
    }

    #[test]
    fn the_default_port_is_that_of_nfs() {
        for (text, address) in [
            ("192.0.2.1", "192.0.2.1:2049"),
            ("192.0.2.1:7", "192.0.2.1:7"),
            ("::1", "[::1]:2049"),
            ("[::1]", "[::1]:2049"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(text.parse(), Ok(Address(address.parse().unwrap())), "{text}");
        }
        for text in ["", "host", "host:2049", "192.0.2.1:", "192.0.2.1:65536"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
