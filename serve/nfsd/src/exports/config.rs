//! The configuration of an export. This crate reads no files: the caller fills in these types, or parses the
//! words of a flag.

mod values;

use std::collections::BTreeSet;
use std::path::PathBuf;

use thiserror::Error;

pub use values::{Flavor, Mode, Network, Secured};

/// User and group ID of `nobody` on most systems.
pub const NOBODY: u32 = 65534;

/// An error in the configuration of an export.
#[derive(Debug, Error)]
#[error("export {export}: {why}")]
pub struct ExportError {
    /// Name or image of the export.
    pub export: String,
    /// The error, and what is expected.
    pub why: String,
}

fn invalid(export: &str, why: impl Into<String>) -> ExportError {
    ExportError { export: export.to_owned(), why: why.into() }
}

/// Access settings for some clients of an export. Missing settings are those of the export.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    pub deferred: Option<bool>,
    /// Permitted flavors; the default is `sys`.
    pub sec: Option<BTreeSet<Flavor>>,
    /// Required TLS; the default is none.
    pub tls: Option<Secured>,
    /// The client's certificate must contain one of these DNS names. A leading `*.` matches one label.
    pub names: Option<Vec<String>>,
}

/// The configuration of an export.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// Sets an option once, and refuses a contradicting second value.
fn once<T: PartialEq>(place: &mut Option<T>, value: T) -> Result<(), &'static str> {
    match place.replace(value) {
        Some(before) if place.as_ref() != Some(&before) => Err("contradicts an earlier option"),
        _ => Ok(()),
    }
}

const FLAG: &str = "IMAGE[,name=/PATH][,type=TYPE][,ro|rw][,clients=ADDRESS;NETWORK...]\
    [,root_squash|no_root_squash][,all_squash][,anonuid=N][,anongid=N][,async][,sec=sys;none]\
    [,tls=required|certificate][,names=NAME;NAME...], and mount options";

impl ExportConfig {
    /// Parses a flag; its error message shows the syntax. The default name is that of the image.
    pub fn from_flag(flag: &str) -> Result<Self, ExportError> {
        let words: Vec<String> = flag.split(',').map(str::to_owned).collect();
        Self::from_words(&words, |_| false)
    }

    /// Parses the comma-separated words of a flag. `is_option` decides whether an unknown word is a mount
    /// option.
    pub fn from_words(words: &[String], is_option: impl Fn(&str) -> bool) -> Result<Self, ExportError> {
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
                ("tls", "required" | "certificate") => {
                    settings.tls = Some(value.parse().map_err(|why: String| bad(&why))?);
                }
                ("names", _) => settings.names = Some(list().collect()),
                ("clients", _) => {
                    let networks: Result<_, String> = list().map(|item| item.parse()).collect();
                    settings.clients = Some(networks.map_err(|why| bad(&why))?);
                }
                ("sec", _) => {
                    let flavors: Result<_, String> = list().map(|item| item.parse()).collect();
                    settings.sec = Some(flavors.map_err(|why| bad(&why))?);
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
    pub fn check(&self) -> Result<(), ExportError> {
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

    #[test]
    fn flags_are_parsed() {
        assert_eq!(ExportConfig::from_flag("/srv/photos.img").unwrap().name, "/photos");
        let words = ["none", "type=mem", "noatime", "ro", "cache=1G"].map(str::to_owned);
        let export = ExportConfig::from_words(&words, |word| word != "nonsense").unwrap();
        assert_eq!((export.fs_type.as_deref(), &*export.options), (Some("mem"), "noatime,cache=1G"));
    }

    #[test]
    fn errors_of_flags_name_the_cause() {
        for (flag, expected) in [
            ("", "has no image"),
            ("i,wr", "\"wr\": unknown option"),
            ("i,anonuid=x", "not a user or group ID"),
            ("i,sec=krb5", "not a supported flavor"),
            ("i,clients=x", "neither an address"),
            ("i,name=x", "not an absolute path"),
            ("i,ro=1", "unknown option"),
        ] {
            let error = ExportConfig::from_flag(flag).unwrap_err().to_string();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }
}
