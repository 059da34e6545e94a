//! `attr`: extended attributes.

use anyhow::Result;
use ivers_vfs::{Cred, InodeRef, XattrMode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bytes::{Bytes, from_hex};
use super::hexadecimal;
use super::session::{Operation, Report, Session, Targets, Unmatched};
use crate::arguments::{image_path, image_path_bytes};
use crate::image::glob::is_pattern;
use crate::output::failure::{USAGE, failure};
use crate::output::format::hex;
use crate::output::{format, print};

/// The help of the command.
pub const HELP: &str = "\
Names are user.NAME, trusted.NAME, security.NAME, system.posix_acl_access, system.posix_acl_default and, in \
btrfs, btrfs.compression. A symbolic link is followed, except with --no-dereference. Setting or removing one \
attribute of one file is one transaction of the journal.

Text is printed as it is; with --hex, and for bytes that are not text, a value is hexadecimal after 0x.

JSON of get and list, one object per attribute: path, name, hex, value (null if it is not text). Of set and \
remove, one object per file: operation, path, dry_run, changed.

Examples:
  ivers attr list disk.img:/etc/passwd
  ivers attr get user.origin disk.img:/etc/passwd
  ivers attr set user.origin build-17 'disk.img:/etc/*.conf'
  ivers attr set --hex user.raw 0x00ff disk.img:/etc/passwd
  ivers attr remove user.origin disk.img:/etc/passwd";

/// Longest value in bytes: as hexadecimal it must fit into a message.
const VALUE_MAX: usize = 20 << 10;

/// Options that all actions share.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Common {
    /// Use symbolic links themselves instead of their targets
    #[arg(short = 'P', long)]
    no_dereference: bool,
}

/// Options of `attr get`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Get {
    /// The name of the attribute
    name: Bytes,
    /// Print the value as hexadecimal
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of `attr set`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Set {
    /// The name of the attribute
    name: Bytes,
    /// The value
    #[arg(allow_hyphen_values = true)]
    #[serde(with = "hexadecimal")]
    value: Bytes,
    /// The value is hexadecimal
    #[arg(long)]
    hex: bool,
    #[command(flatten)]
    common: Common,
}

/// Options of `attr remove`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct Remove {
    /// The name of the attribute
    name: Bytes,
    #[command(flatten)]
    common: Common,
}

/// Options of `attr list`.
#[derive(Debug, Clone, clap::Args, Serialize, Deserialize)]
pub struct List {
    /// Print values too
    #[arg(short, long)]
    long: bool,
    /// Print values as hexadecimal
    #[arg(long, requires = "long")]
    hex: bool,
    #[command(flatten)]
    common: Common,
}

fn report(operation: &'static str, verb: &'static str) -> Report {
    Report { operation, verbs: (verb, verb), verbose: false, dry_run: false }
}

impl Operation for Get {
    fn report(&self) -> Report {
        report("attr get", "read")
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let many = are_many(targets);
        session.each_read(&targets.operands, |session, path| {
            let inode = session.resolve(path, !self.common.no_dereference)?;
            let value = read(session, path, &inode, &self.name.0)?;
            if session.json {
                return print_json(session, path, &self.name.0, &value);
            }
            let file = if many { format!("{}: ", image_path(session.image, path)) } else { String::new() };
            print::line(format_args!("{file}{}", shown(&value, self.hex)))
        })
    }
}

impl Operation for List {
    fn report(&self) -> Report {
        report("attr list", "listed")
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        let many = are_many(targets);
        session.each_read(&targets.operands, |session, path| {
            let inode = session.resolve(path, !self.common.no_dereference)?;
            let listed = session.vfs.list_xattr(&Cred::root(), &inode);
            let mut names = session.stored(path, "extended attributes", listed)?;
            names.sort();
            for name in names {
                if session.json {
                    print_json(session, path, &name, &read(session, path, &inode, &name)?)?;
                    continue;
                }
                let file =
                    if many { format!("{}: ", image_path(session.image, path)) } else { String::new() };
                let value = if self.long {
                    format!(" {}", shown(&read(session, path, &inode, &name)?, self.hex))
                } else {
                    String::new()
                };
                print::line(format_args!("{file}{}{value}", format::name(&name)))?;
            }
            Ok(())
        })
    }
}

impl Operation for Set {
    fn report(&self) -> Report {
        report("attr set", "changed")
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        session.each(&targets.operands, Unmatched::Error, |session, path| {
            let inode = session.resolve(path, !self.common.no_dereference)?;
            let set =
                session.vfs.set_xattr(&Cred::root(), &inode, &self.name.0, &self.value.0, XattrMode::Any);
            set_or_explain(session, path, &self.name.0, set)?;
            session.changed(path)
        })
    }
}

impl Set {
    /// Returns this request with the value as bytes, or why the value cannot be set.
    pub fn decoded(self) -> Result<Self, String> {
        let name = format::name(&self.name.0);
        let value = match self.hex {
            true => from_hex(self.value.0.strip_prefix(b"0x").unwrap_or(&self.value.0)),
            false => Some(self.value.0),
        };
        match value {
            None => Err(format!(
                "{name}: the value has an even number of hexadecimal digits, after 0x if you like"
            )),
            Some(value) if value.len() > VALUE_MAX => Err(format!(
                "{name}: the value has {} bytes, at most {VALUE_MAX} are possible here; set it on a mount",
                value.len()
            )),
            Some(value) => Ok(Self { value: Bytes(value), hex: false, ..self }),
        }
    }
}

impl Operation for Remove {
    fn report(&self) -> Report {
        report("attr remove", "changed")
    }

    fn run(&self, session: &mut Session<'_>, targets: &Targets) -> Result<()> {
        session.each(&targets.operands, Unmatched::Error, |session, path| {
            let inode = session.resolve(path, !self.common.no_dereference)?;
            let removed = session.vfs.remove_xattr(&Cred::root(), &inode, &self.name.0);
            set_or_explain(session, path, &self.name.0, removed)?;
            session.changed(path)
        })
    }
}

/// Returns whether several files can be printed.
fn are_many(targets: &Targets) -> bool {
    targets.operands.len() > 1 || targets.operands.iter().any(|operand| is_pattern(&operand.0))
}

/// Adds path and attribute to an error.
fn set_or_explain(
    session: &Session<'_>,
    path: &[u8],
    name: &[u8],
    done: ivers_vfs::Result<()>,
) -> Result<()> {
    let done = session.stored(path, "extended attributes", done);
    done.map_err(|error| about(name, error))
}

/// Names that are not those of a class of attributes. A file has none of them, whatever the format.
const CLASSES: [&str; 5] = ["user.", "trusted.", "security.", "system.", "btrfs."];

/// Adds the name to an error, or says that no attribute has such a name.
fn about(name: &[u8], error: anyhow::Error) -> anyhow::Error {
    let shown = format::name(name);
    if CLASSES.iter().any(|class| name.starts_with(class.as_bytes())) {
        return error.context(format!("attribute {shown}"));
    }
    let why = "names begin with user., trusted., security. or system.";
    failure(USAGE, format!("attribute {shown}: {why}; did you mean user.{shown}?"))
}

fn read(session: &Session<'_>, path: &[u8], inode: &InodeRef, name: &[u8]) -> Result<Vec<u8>> {
    let value = session.vfs.get_xattr(&Cred::root(), inode, name);
    let value = session.stored(path, "extended attributes", value);
    value.map_err(|error| about(name, error))
}

/// Returns the value if it is text without control characters.
fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|text| !text.chars().any(char::is_control))
}

fn shown(value: &[u8], as_hex: bool) -> String {
    text(value).filter(|_| !as_hex).map_or_else(|| format!("0x{}", hex(value)), str::to_owned)
}

fn print_json(session: &Session<'_>, path: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
    let file = image_path_bytes(session.image, path);
    let text = std::str::from_utf8(value).map_or(Value::Null, Value::from);
    let object = json!({ "hex": hex(value), "value": text });
    print::json_line(&format::with_names(object, [("path", Some(&file[..])), ("name", Some(name))]))
}
