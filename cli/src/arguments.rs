//! Parts of the command line: names of images, operands such as IMAGE:/path, lists of options, sizes.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use ivers_nfs::target::{SCHEME, is_target};

use crate::output::failure::usage;
use crate::output::format;
use crate::output::format::Shown;

/// The operand that names standard input or output.
pub const STANDARD: &str = "-";

/// Returns whether a path of the host is a stream of bytes, without size and place: `-`, a FIFO or a
/// character device. Follows symbolic links, as /dev/stdin is one.
pub fn is_stream(path: &Path) -> bool {
    let is_special = |meta: std::fs::Metadata| {
        let kind = meta.file_type();
        kind.is_fifo() || kind.is_char_device()
    };
    path == Path::new(STANDARD) || std::fs::metadata(path).is_ok_and(is_special)
}

/// Splits the name of an image into the names of its files, which [`ImageName`] parses: `FILE,FILE` names the
/// devices of one filesystem. A name with a comma stays whole if it is that of an existing file, or if no
/// part of it is. A part is the longest name of an existing file, so names with commas can be parts.
pub fn split_image(name: &Path) -> Vec<PathBuf> {
    let whole = || vec![name.to_owned()];
    let bytes = name.as_os_str().as_bytes();
    if !bytes.contains(&b',') || is_server(name) || is_one_file(name) {
        return whole();
    }
    let (mut parts, mut rest) = (Vec::<PathBuf>::new(), bytes);
    loop {
        let part = |end: usize| Path::new(OsStr::from_bytes(&rest[..end]));
        let ends = || (0..rest.len()).filter(|&at| rest[at] == b',').chain([rest.len()]);
        let longest = ends().rfind(|&end| is_one_file(part(end)));
        let end = longest.or(ends().next()).unwrap_or(rest.len());
        parts.push(part(end).to_owned());
        match rest.get(end + 1..) {
            Some(more) => rest = more,
            None => break,
        }
    }
    let exist = || parts.iter().map(|part| is_one_file(part));
    // The name of a partition may have a comma, too.
    let has_partition = || ImageName::parse(name).partition.is_some();
    if exist().all(|found| found) || (exist().any(|found| found) && !has_partition()) {
        parts
    } else {
        whole()
    }
}

/// Returns whether a name is that of one existing file, or of a partition of one without a comma in its name.
fn is_one_file(name: &Path) -> bool {
    let ImageName { file, partition } = ImageName::parse(name);
    file.exists() && partition.is_none_or(|partition| !partition.contains(','))
}

/// Returns the name of an image with the canonical paths of its files.
pub fn canonical_image(name: &Path) -> std::io::Result<PathBuf> {
    let mut joined = OsString::new();
    for (nth, part) in split_image(name).iter().enumerate() {
        if nth > 0 {
            joined.push(",");
        }
        joined.push(ImageName::parse(part).canonicalize()?);
    }
    Ok(joined.into())
}

/// The name of a file of an image: `FILE`, or `FILE@PARTITION`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// The image file or block device.
    pub file: PathBuf,
    /// The partition: a number, a name or a PARTUUID.
    pub partition: Option<String>,
}

impl ImageName {
    /// Splits `FILE@PARTITION` at the last `@` for which FILE exists. If the whole name is a file, there is
    /// no partition. Nor is there if PARTITION is not UTF-8: numbers, names and PARTUUIDs are text.
    pub fn parse(name: &Path) -> Self {
        let bytes = name.as_os_str().as_bytes();
        if std::fs::symlink_metadata(name).is_err() {
            for at in (1..bytes.len().saturating_sub(1)).rev().filter(|&at| bytes[at] == b'@') {
                let file = Path::new(OsStr::from_bytes(&bytes[..at]));
                if file.exists()
                    && !file.is_dir()
                    && let Ok(partition) = std::str::from_utf8(&bytes[at + 1..])
                {
                    return Self { file: file.to_owned(), partition: Some(partition.to_owned()) };
                }
            }
        }
        Self { file: name.to_owned(), partition: None }
    }

    /// Returns the name with the canonical path of the file.
    pub fn canonicalize(&self) -> std::io::Result<PathBuf> {
        Ok(with_partition(&self.file.canonicalize()?, self.partition.as_deref()))
    }
}

/// Returns the name of a partition of an image, unless `image` names it already.
pub fn with_partition(image: &Path, partition: Option<&str>) -> PathBuf {
    let Some(suffix) = partition.map(|partition| format!("@{partition}")) else { return image.to_owned() };
    if image.as_os_str().as_bytes().ends_with(suffix.as_bytes()) {
        return image.to_owned();
    }
    let mut name = image.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns PARTITION of an image named `FILE@PARTITION`, where FILE is `file`. It accesses no file.
pub fn partition_of(image: &Path, file: &Path) -> Option<String> {
    let rest = image.as_os_str().as_bytes().strip_prefix(file.as_os_str().as_bytes())?;
    std::str::from_utf8(rest.strip_prefix(b"@")?).ok().map(str::to_owned)
}

/// A file that an operand names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operand {
    /// A path of the host.
    Host(PathBuf),
    /// A path in an image.
    Image {
        /// The name of the image, which may name a partition: see [`ImageName`].
        image: PathBuf,
        /// The path, which starts with a slash.
        path: Vec<u8>,
    },
}

impl Operand {
    /// Parses `IMAGE:/path`, or the name of a file on a server. Anything else is a path of the host. So is a
    /// word that is an existing file or a partition of one, and a word whose IMAGE is a directory.
    pub fn parse(word: &Path) -> Self {
        if let Some((image, path)) = split_server(word) {
            return Operand::Image { image, path };
        }
        let bytes = word.as_os_str().as_bytes();
        let is_partition = ImageName::parse(word).partition.is_some_and(|name| !name.contains(":/"));
        if !is_partition && std::fs::symlink_metadata(word).is_err() {
            for at in (0..bytes.len()).filter(|&at| bytes[at..].starts_with(b":/")) {
                let image = PathBuf::from(OsString::from_vec(bytes[..at].to_vec()));
                if at > 0 && !image.is_dir() && (names_file(&image) || !bytes[at + 1..].contains(&b':')) {
                    return Operand::Image { image, path: bytes[at + 1..].to_vec() };
                }
            }
        }
        Operand::Host(word.to_owned())
    }

    /// Parses an operand as [`Operand::parse`] does. But a path of the host that is not a directory is an
    /// image: the operand names its root.
    pub fn parse_image(word: &Path) -> Self {
        match Self::parse(word) {
            Operand::Host(image) if !image.is_dir() => Operand::Image { image, path: b"/".to_vec() },
            operand => operand,
        }
    }

    /// Returns the last name of the path: that of a copy of it. `None` if the path ends in `/`, `.` or `..`.
    pub fn name(&self) -> Option<Vec<u8>> {
        let path = match self {
            Operand::Host(path) => path.as_os_str().as_bytes(),
            Operand::Image { path, .. } => path,
        };
        last_name(path).map(<[u8]>::to_vec)
    }

    /// Returns the image.
    pub fn image(&self) -> Option<&Path> {
        match self {
            Operand::Image { image, .. } => Some(image),
            Operand::Host(_) => None,
        }
    }
}

/// Returns whether an operand names a server, or a file of one, instead of an image.
pub fn is_server(image: &Path) -> bool {
    is_target(image.as_os_str().as_bytes())
}

/// Splits `nfs://server[:port]/path` into the server, which takes the place of an image, and the path.
fn split_server(word: &Path) -> Option<(PathBuf, Vec<u8>)> {
    if !is_server(word) {
        return None;
    }
    let bytes = word.as_os_str().as_bytes();
    let slash = bytes[SCHEME.len()..].iter().position(|&byte| byte == b'/');
    let (server, path) = bytes.split_at(slash.map_or(bytes.len(), |at| SCHEME.len() + at));
    let path = if path.is_empty() { b"/" } else { path };
    Some((OsStr::from_bytes(server).into(), path.to_vec()))
}

/// Returns whether a name of an image names an existing file.
fn names_file(image: &Path) -> bool {
    split_image(image).iter().any(|part| ImageName::parse(part).file.exists())
}

/// Returns `IMAGE:/path` if `word` is `IMAGE:path` without the slash, for a hint in an error.
pub fn with_missing_slash(word: &Path) -> Option<String> {
    let bytes = word.as_os_str().as_bytes();
    let Operand::Host(path) = Operand::parse(word) else { return None };
    if std::fs::symlink_metadata(path).is_ok() {
        return None;
    }
    let colons = (1..bytes.len()).rev().filter(|&at| bytes[at] == b':');
    let mut parts = colons.map(|at| (Path::new(OsStr::from_bytes(&bytes[..at])), &bytes[at + 1..]));
    let (image, rest) = parts.find(|(image, _)| names_file(image) && !image.is_dir())?;
    Some(image_path(image, &join(b"/", rest)))
}

/// Returns the bytes of `IMAGE:/path`.
pub fn image_path_bytes(image: &Path, path: &[u8]) -> Vec<u8> {
    let separator: &[u8] = if is_server(image) { b"" } else { b":" };
    [image.as_os_str().as_bytes(), separator, path].concat()
}

/// Formats `IMAGE:/path` for messages.
pub fn image_path(image: &Path, path: &[u8]) -> String {
    format::name(&image_path_bytes(image, path))
}

/// Returns the last component of a path, unless it is `.` or `..`.
pub fn last_name(path: &[u8]) -> Option<&[u8]> {
    let name = path.rsplit(|&byte| byte == b'/').find(|part| !part.is_empty())?;
    (name != b"." && name != b"..").then_some(name)
}

/// Joins a directory and a name: `dir/name`.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if !path.is_empty() && !path.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Returns `--help` without `-h`, for a command in which `-h` asks for sizes for people.
pub fn help_without_h() -> clap::Arg {
    clap::Arg::new("help").long("help").action(clap::ArgAction::HelpLong).help("Print help")
}

/// A parser of an argument that takes any text. Shells complete it with some values.
#[derive(Clone)]
pub struct Completed(pub &'static [&'static str]);

impl TypedValueParser for Completed {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().copied().map(PossibleValue::new)))
    }
}

/// Returns the time that `SOURCE_DATE_EPOCH` sets (reproducible-builds.org), in seconds since 1970.
pub fn source_date_epoch() -> anyhow::Result<Option<i64>> {
    const VARIABLE: &str = "SOURCE_DATE_EPOCH";
    let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
    value.to_str().and_then(|text| text.parse().ok()).map(Some).ok_or_else(|| {
        let value = value.shown();
        usage(format!("{VARIABLE}={value}: must be seconds since 1970; correct it or unset it"))
    })
}

/// Splits the arguments of `-o` at commas. `\,` is a comma in a value.
pub fn split_options(words: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for word in words {
        let mut one = String::new();
        let mut chars = word.chars();
        while let Some(c) = chars.next() {
            match c {
                ',' => all.push(std::mem::take(&mut one)),
                '\\' => one.extend(chars.next()),
                c => one.push(c),
            }
        }
        all.push(one);
    }
    all.retain(|option| !option.is_empty());
    all
}

/// Returns an argument of `-o` that [`split_options`] turns back into `option`.
pub fn escape_option(option: &str) -> String {
    option.replace('\\', "\\\\").replace(',', "\\,")
}

/// Splits `NAME=VALUE`.
pub fn name_and_value(option: &str) -> (&str, Option<&str>) {
    option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)))
}

/// Parses a size in bytes, such as `64M`, `1G` or `4096`. A sign is no part of a size.
pub fn parse_size(text: &str) -> Option<u64> {
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let text = text.trim_end_matches(['b', 'B']).trim_end_matches('i');
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        b'T' => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_parse() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a:b.img");
        std::fs::write(&image, "").unwrap();
        let word = PathBuf::from(format!("{}:/etc/x:/y", image.display()));
        let inside = Operand::Image { image: image.clone(), path: b"/etc/x:/y".to_vec() };
        assert_eq!(Operand::parse(&word), inside);
        assert_eq!(Operand::parse(dir.path()), Operand::Host(dir.path().into()));
        let root = Operand::Image { image: image.clone(), path: b"/".to_vec() };
        assert_eq!(Operand::parse_image(&image), root);
        let meant = |rest: &str| with_missing_slash(Path::new(&format!("{}{rest}", image.display())));
        assert_eq!(meant(":"), Some(format!("{}:/", image.display())));
        assert_eq!(meant(":etc/x"), Some(format!("{}:/etc/x", image.display())));
        assert_eq!((meant(""), meant(":/etc"), meant(".other:")), (None, None, None));
        assert_eq!(with_missing_slash(Path::new("no.img:x")), None);
        let missing = Operand::Image { image: "no.img".into(), path: b"/x".to_vec() };
        assert_eq!(Operand::parse(Path::new("no.img:/x")), missing);
    }

    #[test]
    fn partitions_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a@b.img"), "").unwrap();
        std::fs::write(path("real@2"), "").unwrap();
        std::fs::write(path("real"), "").unwrap();
        let split = |name: &str| {
            let ImageName { file, partition } = ImageName::parse(&path(name));
            (file.file_name().unwrap().to_str().unwrap().to_owned(), partition)
        };
        assert_eq!(split("a@b.img@2"), ("a@b.img".into(), Some("2".into())));
        assert_eq!(split("a@b.img@my root"), ("a@b.img".into(), Some("my root".into())));
        assert_eq!(split("a@b.img"), ("a@b.img".into(), None));
        assert_eq!(split("real@2"), ("real@2".into(), None), "a file of this name");
        assert_eq!(split("real@3"), ("real".into(), Some("3".into())));
        assert_eq!(split("real@2@1"), ("real@2".into(), Some("1".into())));
        assert_eq!(split("real@"), ("real@".into(), None), "no partition");
        let not_text = path("real").with_file_name(OsStr::from_bytes(b"real@\xff"));
        assert_eq!(ImageName::parse(&not_text), ImageName { file: not_text.clone(), partition: None });
        assert_eq!(split("missing@1"), ("missing@1".into(), None));
        assert_eq!(ImageName::parse(Path::new("/@1")).partition, None, "a directory");
        assert_eq!(ImageName::parse(Path::new("@1")).partition, None);

        let word = |rest: &str| PathBuf::from(format!("{}{rest}", path("real").display()));
        let inside =
            |image: &str, path: &str| Operand::Image { image: word(image), path: path.as_bytes().to_vec() };
        assert_eq!(Operand::parse(&word("@3:/etc/a:/b")), inside("@3", "/etc/a:/b"));
        std::fs::create_dir(path("dir:")).unwrap();
        std::fs::write(path("dir:/image"), "").unwrap();
        assert_eq!(Operand::parse(&path("dir:/image@3")), Operand::Host(path("dir:/image@3")));
        let file = Operand::Image { image: path("dir:/image@3"), path: b"/f".to_vec() };
        assert_eq!(Operand::parse(&path("dir:/image@3:/f")), file);
        assert_eq!(Operand::parse_image(&word("@3")), inside("@3", "/"));
        assert_eq!(with_missing_slash(&word("@3:x")), Some(format!("{}:/x", word("@3").display())));
        assert_eq!(partition_of(&word("@3"), &word("")), Some("3".into()));
        assert_eq!(partition_of(&word("@2"), &word("@2")), None);
        assert_eq!(with_partition(&word(""), Some("3")), word("@3"));
        assert_eq!(with_partition(&word("@3"), Some("3")), word("@3"));
        assert_eq!(with_partition(&word("@2"), None), word("@2"));
    }

    #[test]
    fn several_images_are_split_at_commas() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c,d", "e@f"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let join = |names: &str| {
            let names: Vec<_> = names.split('|').map(|name| dir.path().join(name)).collect();
            let texts: Vec<_> = names.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
            (PathBuf::from(texts.join(",")), names)
        };
        for names in
            ["a", "a|b", "c,d", "c,d|a", "a|c,d|b", "a@1|b@root", "e@f|a", "e@f@2|c,d@1", "a|missing"]
        {
            let (image, parts) = join(names);
            assert_eq!(split_image(&image), parts, "{names}");
            let file = Operand::Image { image: image.clone(), path: b"/x".to_vec() };
            assert_eq!(Operand::parse(&PathBuf::from(format!("{}:/x", image.display()))), file, "{names}");
        }
        // A comma in a name that is missing, and in the name of a partition.
        for name in ["x,y", "a@my,root", "c,d@my,root"] {
            let image = dir.path().join(name);
            assert_eq!(split_image(&image), std::slice::from_ref(&image), "{name}");
        }
        assert_eq!(split_image(Path::new("nfs://h/a,b")), [PathBuf::from("nfs://h/a,b")]);
        let (image, _) = join("a|c,d@1");
        let canonical = dir.path().canonicalize().unwrap();
        let parts = ["a", "c,d@1"].map(|name| canonical.join(name).to_str().unwrap().to_owned());
        assert_eq!(canonical_image(&image).unwrap(), PathBuf::from(parts.join(",")));
        assert!(canonical_image(&join("a|missing").0).is_err());
    }

    #[test]
    fn a_server_takes_the_place_of_an_image() {
        let parsed = |word: &str| match Operand::parse_image(Path::new(word)) {
            Operand::Image { image, path } => Some((image_path(&image, &path), image, path)),
            Operand::Host(_) => None,
        };
        let file = ("nfs://h:1/a:/b".into(), "nfs://h:1".into(), b"/a:/b".to_vec());
        assert_eq!(parsed("nfs://h:1/a:/b"), Some(file));
        assert_eq!(parsed("nfs://h"), Some(("nfs://h/".into(), "nfs://h".into(), b"/".to_vec())));
        assert!(!is_server(Path::new("disk.img")) && !is_server(Path::new("nfs:/h")));
    }

    #[test]
    fn options_are_split_and_escaped() {
        assert_eq!(split_options(&["a,fsname=b\\,c".into()]), ["a", "fsname=b,c"]);
        assert_eq!(split_options(&[escape_option("fsname=b\\,c")]), ["fsname=b\\,c"]);
    }

    #[test]
    fn sizes_parse() {
        let parsed = ["64M", "1GiB", "7"].map(parse_size);
        assert_eq!(parsed, [Some(64 << 20), Some(1 << 30), Some(7)]);
        for bad in ["", "x", "99999999T", "+64M", "-64M", "+", "M"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
