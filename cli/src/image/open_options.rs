//! How an image is opened.

use std::sync::OnceLock;

use ivers_block::OpenMode;
use ivers_content_cache::BYTES_MIN;
use serde::{Deserialize, Serialize};

use crate::arguments::{parse_size, source_date_epoch};

/// The type of `-t` that stands for "recognise the format".
pub const AUTO: &str = "auto";

/// How to open an image.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageOptions {
    /// Open for reading only.
    pub read_only: bool,
    /// Byte offset of the filesystem in the image.
    pub offset_bytes: u64,
    /// The partition: a number from 1, a name or a PARTUUID.
    pub partition: Option<String>,
    /// See `OpenOptions::trust_foreign`.
    pub trust_foreign: bool,
    /// See `OpenOptions::no_replay`.
    pub no_replay: bool,
    /// Interval between commits in seconds.
    pub commit_s: u64,
    /// The bound of all caches together in bytes.
    pub cache_bytes: u64,
    /// Sandbox the process that parses the image.
    pub sandbox: bool,
    /// The name of the format. `None`: recognise it.
    pub format: Option<String>,
    /// Owners and permissions, for formats that store none.
    pub owners: Owners,
    /// `owners` comes from options.
    pub owners_given: bool,
    /// The image was just made and is of no use before it is closed: see `OpenOptions::filling` of ext4.
    pub filling: bool,
    /// The session is a short one: see `OpenOptions::short_session` of ext4.
    pub short_session: bool,
    /// The clock stands still at this time, in seconds since 1970, and nothing is written in the background.
    pub stopped_clock: Option<i64>,
    /// Files are opened only if they match their `security.ima`.
    pub appraise: bool,
    /// What only btrfs has.
    pub btrfs: BtrfsOptions,
    /// What only servers have.
    pub server: ServerOptions,
}

impl ImageOptions {
    /// Sets the format to `name`, a type of `-t`.
    pub fn with_format(mut self, name: &str) -> Self {
        self.format = (name != AUTO).then(|| name.to_owned());
        self
    }

    /// Opens for writing. The time of changes is that of `SOURCE_DATE_EPOCH`, if it is set.
    pub fn for_editing(self) -> anyhow::Result<Self> {
        Ok(Self { read_only: false, short_session: true, stopped_clock: source_date_epoch()?, ..self })
    }

    /// Returns the mode to open the image file in.
    pub fn open_mode(&self) -> OpenMode {
        if self.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite }
    }
}

impl Default for ImageOptions {
    fn default() -> Self {
        Self {
            read_only: true,
            offset_bytes: 0,
            partition: None,
            trust_foreign: false,
            no_replay: false,
            commit_s: 5,
            cache_bytes: 256 << 20,
            sandbox: true,
            format: None,
            owners: Owners::default(),
            owners_given: false,
            filling: false,
            short_session: false,
            stopped_clock: None,
            appraise: false,
            btrfs: BtrfsOptions::default(),
            server: ServerOptions::default(),
        }
    }
}

/// Owner, permissions and time zone of files, for formats that store none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owners {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Permission bits that files lack.
    pub fmask: u32,
    /// Permission bits that directories lack.
    pub dmask: u32,
    /// Offset of the stored times from UTC in minutes; positive if they are ahead.
    pub utc_offset_minutes: i32,
}

impl Default for Owners {
    /// Returns user, group and umask of this process.
    fn default() -> Self {
        // Reading the umask sets it for a moment. So it is read once, before the process starts threads and
        // enters the sandbox: a server parses its options again later.
        static UMASK: OnceLock<rustix::fs::Mode> = OnceLock::new();
        let umask = *UMASK.get_or_init(|| {
            let umask = rustix::process::umask(rustix::fs::Mode::empty());
            rustix::process::umask(umask);
            umask
        });
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            fmask: umask.as_raw_mode() & 0o777,
            dmask: umask.as_raw_mode() & 0o777,
            utc_offset_minutes: 0,
        }
    }
}

impl Owners {
    /// The mount options that [`Owners::set`] takes.
    pub const OPTIONS: [&str; 6] = ["uid", "gid", "umask", "fmask", "dmask", "utc_offset"];

    /// Returns whether [`Owners::set`] takes the mount option `name`.
    pub fn has(name: &str) -> bool {
        Self::OPTIONS.contains(&name)
    }

    /// Applies a mount option. `None`: the value is invalid.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Option<()> {
        let mask = || u32::from_str_radix(value?, 8).ok().filter(|mask| *mask <= 0o777);
        match name {
            "uid" => self.uid = value?.parse().ok()?,
            "gid" => self.gid = value?.parse().ok()?,
            "umask" => (self.fmask, self.dmask) = (mask()?, mask()?),
            "fmask" => self.fmask = mask()?,
            "dmask" => self.dmask = mask()?,
            "utc_offset" => {
                self.utc_offset_minutes = value?.parse().ok().filter(|m| (-1440..=1440).contains(m))?;
            }
            _ => return None,
        }
        Some(())
    }
}

/// How to open btrfs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BtrfsOptions {
    /// The path of the subvolume to open, from the top level.
    pub subvol: Option<String>,
    /// Its number.
    pub subvolid: Option<u64>,
    /// Read what is left if devices are missing.
    pub degraded: bool,
    /// How new data is compressed, as `CompressWith::parse` takes it.
    pub compress: Option<String>,
}

impl BtrfsOptions {
    /// The mount options that [`BtrfsOptions::set`] takes.
    pub const OPTIONS: [&str; 4] = ["subvol", "subvolid", "degraded", "compress"];

    /// Returns whether [`BtrfsOptions::set`] takes the mount option `name`.
    pub fn has(name: &str) -> bool {
        Self::OPTIONS.contains(&name)
    }

    /// Applies a mount option. `None`: the value is invalid.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Option<()> {
        match (name, value) {
            ("subvol", Some(path)) if !path.is_empty() => self.subvol = Some(path.to_owned()),
            ("subvolid", Some(number)) => self.subvolid = Some(number.parse().ok()?),
            ("degraded", None) => self.degraded = true,
            ("compress", None) => self.compress = Some("zlib".to_owned()),
            ("compress", Some("no" | "none")) => self.compress = None,
            ("compress", Some(how)) => {
                ivers_btrfs::CompressWith::parse(how)?;
                self.compress = Some(how.to_owned());
            }
            _ => return None,
        }
        Some(())
    }
}

/// How connections to a server are secured, with the names of nfs(5).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TransportSecurity {
    /// No encryption.
    #[default]
    None,
    /// TLS with a certificate of the server.
    Tls,
    /// TLS with certificates of the server and the client.
    Mtls,
}

/// The files that TLS needs, in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFiles {
    /// The certificate authorities to trust.
    pub authorities: Option<String>,
    /// The client's certificate.
    pub certificate: Option<String>,
    /// The client's private key.
    pub key: Option<String>,
}

/// How a mount uses an NFS server, by the names of nfs(5).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerOptions {
    /// The longest READ in bytes.
    pub rsize: Option<u32>,
    /// The longest WRITE in bytes.
    pub wsize: Option<u32>,
    /// The most connections that carry requests.
    pub nconnect: Option<u32>,
    /// How long attributes count as current, in seconds.
    pub actimeo: Option<u32>,
    /// Opens ask for no delegation.
    pub nodelegations: bool,
    /// Opens for writing ask for no delegation.
    pub nowritedelegations: bool,
    /// Requests end after some time without a reply.
    pub soft: bool,
    /// After this time without a reply a request is sent again, in tenths of a second.
    pub timeo: Option<u32>,
    /// How many times a request is sent again before it fails, with `soft`.
    pub retrans: Option<u32>,
    /// Owners that the server sends as names of this domain are those of this machine.
    pub domain: Option<String>,
    /// The directory of the persistent cache.
    pub cache_dir: Option<String>,
    /// The size of the persistent cache in bytes.
    pub cache_size: Option<u64>,
    /// The version of NFS.
    pub vers: Option<String>,
    /// The security flavor of requests.
    pub sec: Option<String>,
    /// How connections are secured.
    pub xprtsec: TransportSecurity,
    /// The files that TLS needs.
    pub tls: TlsFiles,
}

impl ServerOptions {
    /// The mount options that [`ServerOptions::set`] takes.
    pub const OPTIONS: [&str; 21] = [
        "vers",
        "nfsvers",
        "sec",
        "xprtsec",
        "tls_authorities",
        "tls_certificate",
        "tls_key",
        "rsize",
        "wsize",
        "nconnect",
        "actimeo",
        "noac",
        "nodelegations",
        "nowritedelegations",
        "soft",
        "hard",
        "timeo",
        "retrans",
        "cache-dir",
        "cache-size",
        "domain",
    ];

    /// Those of [`ServerOptions::OPTIONS`] that other commands take, too.
    pub const OF_COMMANDS: [&str; 7] =
        ["vers", "nfsvers", "sec", "xprtsec", "tls_authorities", "tls_certificate", "tls_key"];

    /// Returns whether [`ServerOptions::set`] takes the mount option `name`.
    pub fn has(name: &str) -> bool {
        Self::OPTIONS.contains(&name)
    }

    /// Applies a mount option. `None`: the value is invalid.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Option<()> {
        let number = |least: u32, most: u32| {
            let number = value?.parse().ok()?;
            (least..=most).contains(&number).then_some(Some(number))
        };
        let file = || value.filter(|path| !path.is_empty()).map(|path| Some(path.to_owned()));
        match name {
            "xprtsec" => {
                self.xprtsec = match value? {
                    "none" => TransportSecurity::None,
                    "tls" => TransportSecurity::Tls,
                    "mtls" => TransportSecurity::Mtls,
                    _ => return None,
                }
            }
            "vers" | "nfsvers" => self.vers = Some(value?.to_owned()),
            "sec" => self.sec = Some(value?.to_owned()),
            "tls_authorities" => self.tls.authorities = file()?,
            "tls_certificate" => self.tls.certificate = file()?,
            "tls_key" => self.tls.key = file()?,
            "cache-dir" => self.cache_dir = file()?,
            "cache-size" => self.cache_size = Some(parse_size(value?).filter(|size| *size >= BYTES_MIN)?),
            "rsize" => self.rsize = number(1024, 1 << 20)?,
            "wsize" => self.wsize = number(1024, 1 << 20)?,
            "nconnect" => self.nconnect = number(1, 16)?,
            "actimeo" => self.actimeo = number(0, 86_400)?,
            "timeo" => self.timeo = number(1, 6000)?,
            "retrans" => self.retrans = number(0, 100)?,
            "domain" => self.domain = Some(value.filter(|domain| !domain.is_empty())?.to_owned()),
            "noac" if value.is_none() => self.actimeo = Some(0),
            "nodelegations" if value.is_none() => self.nodelegations = true,
            "nowritedelegations" if value.is_none() => self.nowritedelegations = true,
            "soft" if value.is_none() => self.soft = true,
            "hard" if value.is_none() => self.soft = false,
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_for_owners_are_applied() {
        let mut owners = Owners::default();
        for (name, value) in
            [("uid", "7"), ("gid", "8"), ("umask", "027"), ("dmask", "2"), ("utc_offset", "-90")]
        {
            assert!(Owners::has(name) && owners.set(name, Some(value)).is_some());
        }
        let expected = Owners { uid: 7, gid: 8, fmask: 0o27, dmask: 2, utc_offset_minutes: -90 };
        assert_eq!(owners, expected);
        assert_eq!(owners.set("fmask", Some("8")), None);
        assert_eq!(owners.set("uid", None), None);
        assert!(!Owners::has("noatime") && owners.set("noatime", None).is_none());
    }

    #[test]
    fn options_of_servers_are_applied() {
        let mut options = ServerOptions::default();
        for (name, value) in [
            ("rsize", Some("4096")),
            ("noac", None),
            ("nodelegations", None),
            ("nowritedelegations", None),
            ("soft", None),
            ("timeo", Some("50")),
            ("retrans", Some("0")),
        ] {
            assert!(ServerOptions::has(name) && options.set(name, value).is_some(), "{name}");
        }
        let (rsize, actimeo, timeo, retrans) = (Some(4096), Some(0), Some(50), Some(0));
        let expected = ServerOptions {
            rsize,
            actimeo,
            nodelegations: true,
            nowritedelegations: true,
            soft: true,
            timeo,
            retrans,
            ..ServerOptions::default()
        };
        assert_eq!(options, expected);
        for (name, value) in
            [("rsize", Some("7")), ("wsize", None), ("soft", Some("1")), ("timeo", Some("0"))]
        {
            assert_eq!(options.set(name, value), None, "{name}");
        }
    }

    #[test]
    fn options_of_btrfs_are_applied() {
        let mut options = BtrfsOptions::default();
        for (name, value) in [
            ("subvol", Some("a/b")),
            ("subvolid", Some("256")),
            ("degraded", None),
            ("compress", Some("zstd:3")),
        ] {
            assert!(BtrfsOptions::has(name) && options.set(name, value).is_some());
        }
        let expected = BtrfsOptions {
            subvol: Some("a/b".into()),
            subvolid: Some(256),
            degraded: true,
            compress: Some("zstd:3".into()),
        };
        assert_eq!(options, expected);
        for (value, how) in [(None, Some("zlib")), (Some("no"), None), (Some("lzo"), Some("lzo"))] {
            options.set("compress", value).unwrap();
            assert_eq!(options.compress.as_deref(), how);
        }
        for (name, value) in [
            ("subvol", None),
            ("subvol", Some("")),
            ("subvolid", Some("x")),
            ("compress", Some("gzip")),
            ("compress", Some("lzo:2")),
            ("space", None),
        ] {
            assert_eq!(options.set(name, value), None, "{name}");
        }
    }
}
