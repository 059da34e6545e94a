//! Colours of file names on a terminal, as `LS_COLORS` sets them.

use std::io::IsTerminal;
use std::sync::LazyLock;

use ivers_vfs::{Attr, FileType};
use lscolors::{Indicator, LsColors};

use super::format;

/// The colours of names. None, if standard output is no terminal.
pub struct Colours(Option<LsColors>);

impl Colours {
    /// Returns the colours for standard output. The first call must come before the sandbox, which hides
    /// terminals. `NO_COLOR` (no-color.org) and `TERM=dumb` turn colours off.
    pub fn of_stdout() -> &'static Self {
        static COLOURS: LazyLock<Colours> = LazyLock::new(Colours::find);
        &COLOURS
    }

    fn find() -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let plain = set("NO_COLOR").is_some() || set("TERM").is_none_or(|term| term == "dumb");
        let wanted = !plain && std::io::stdout().is_terminal();
        Self(wanted.then(|| LsColors::from_env().unwrap_or_default()))
    }

    /// Formats a name for a terminal, with the colour of its file.
    pub fn paint(&self, name: &[u8], attr: &Attr) -> String {
        let text = format::name(name);
        let Some(colours) = &self.0 else { return text };
        let by_suffix = || colours.style_for_str(&text);
        let style = match indicator(attr) {
            Indicator::RegularFile => {
                by_suffix().or_else(|| colours.style_for_indicator(Indicator::RegularFile))
            }
            other => colours.style_for_indicator(other),
        };
        match style {
            Some(style) => style.to_nu_ansi_term_style().paint(text).to_string(),
            None => text,
        }
    }
}

fn indicator(attr: &Attr) -> Indicator {
    let has = |bits: u32| attr.perm & bits == bits;
    match attr.kind {
        FileType::Directory if has(0o1002) => Indicator::StickyAndOtherWritable,
        FileType::Directory if has(0o0002) => Indicator::OtherWritable,
        FileType::Directory if has(0o1000) => Indicator::Sticky,
        FileType::Directory => Indicator::Directory,
        FileType::Symlink => Indicator::SymbolicLink,
        FileType::Fifo => Indicator::FIFO,
        FileType::Socket => Indicator::Socket,
        FileType::BlockDevice => Indicator::BlockDevice,
        FileType::CharDevice => Indicator::CharacterDevice,
        FileType::Regular if has(0o4000) => Indicator::Setuid,
        FileType::Regular if has(0o2000) => Indicator::Setgid,
        FileType::Regular if attr.perm & 0o111 != 0 => Indicator::ExecutableFile,
        FileType::Regular => Indicator::RegularFile,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ivers_vfs::{InodeFlags, Timestamp};

    fn attr(kind: FileType, perm: u32) -> Attr {
        let time = Timestamp { sec: 0, nsec: 0 };
        Attr {
            kind,
            perm,
            uid: 0,
            gid: 0,
            project: 0,
            nlink: 1,
            size: 0,
            blocks_512: 0,
            rdev: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: None,
            flags: InodeFlags::empty(),
        }
    }

    #[test]
    fn names_have_the_colour_of_their_type_or_suffix() {
        let colours = Colours(Some(LsColors::from_string("di=01;34:ex=32:*.tar=31:ow=7")));
        let painted = |name: &str, kind, perm| colours.paint(name.as_bytes(), &attr(kind, perm));
        assert_eq!(painted("d", FileType::Directory, 0o755), "\x1b[1;34md\x1b[0m");
        assert_eq!(painted("d", FileType::Directory, 0o757), "\x1b[7md\x1b[0m");
        assert_eq!(painted("x", FileType::Regular, 0o755), "\x1b[32mx\x1b[0m");
        assert_eq!(painted("x.tar", FileType::Regular, 0o644), "\x1b[31mx.tar\x1b[0m");
        assert!(painted("a\x1b[2J", FileType::Directory, 0o755).contains("a\\x1b[2J"), "escaped");
        assert_eq!(Colours(None).paint(b"d", &attr(FileType::Directory, 0o755)), "d");
    }
}
