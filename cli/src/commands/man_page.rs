//! One manual page: the sections that man-pages(7) names, from the command line and the second half of its
//! help.
//!
//! That half is paragraphs and lists, separated by blank lines. A list is indented by two spaces. Its first
//! words tell where it belongs: "Examples", "Exit codes", "JSON", "... options ...". The rest describes.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// The date of the version in CHANGELOG.md.
const DATE: &str = "2026-11-25";

/// Files of commands.
const FILES: &[(&str, &[(&str, &str)])] = &[
    (
        "ivers",
        &[
            (
                "~/.local/state/ivers",
                "logs, measurement lists and states of servers; $XDG_STATE_HOME replaces ~/.local/state",
            ),
            (
                "/usr/libexec/ivers/fuse2fs",
                "a link by whose name the program takes the command line of fuse2fs",
            ),
            ("/usr/share/doc/ivers", "guides, limits, examples"),
        ],
    ),
    (
        "ivers-mount",
        &[
            ("/dev/fuse", "the device of FUSE; the user who mounts must be able to open it, or fusermount3"),
            ("/etc/fuse.conf", "whether users may give allow_other"),
            ("/etc/fstab", "mounts of type fuse.ivers"),
            ("~/.local/state/ivers/ivers.log", "messages of mounts in the background"),
        ],
    ),
    ("ivers-unmount", &[("~/.local/state/ivers/ivers.log", "messages of the mount, also those of its end")]),
    (
        "ivers-serve",
        &[
            ("/etc/ivers/NAME.toml", "the configuration of ivers-serve@NAME.service"),
            ("/var/lib/ivers/serve", "what outlives the server of root: clients and their locks"),
            ("~/.local/state/ivers/serve", "the same for other users"),
            ("/usr/share/doc/ivers/examples/serve.toml", "an example of a configuration"),
        ],
    ),
    ("ivers-stats", &[("/var/lib/ivers/serve", "the state directory that names the server of root")]),
    (
        "ivers-measure",
        &[
            ("~/.local/state/ivers/measure/list", "the measurement list of paths of the host"),
            (
                "~/.local/state/ivers/measure/list-DIGEST-IMAGE",
                "the measurement list of an image, by its path",
            ),
            ("~/.local/state/ivers/measure/store", "the store of known digests"),
            ("~/.local/state/ivers/measure/mounts/IMAGE.list", "the list of a mount"),
            ("/usr/share/doc/ivers/examples/measure.policy", "an example of a policy"),
        ],
    ),
];

/// Pages to read next, beside ivers(1).
const SEE_ALSO: &[(&str, &str)] = &[
    ("ivers-attr", "ivers-stat(1), getfattr(1), setfattr(1)"),
    ("ivers-cat", "ivers-cp(1), ivers-ls(1)"),
    ("ivers-changed", "ivers-stat(1), ivers-measure(1), rsync(1), restic(1)"),
    ("ivers-check", "ivers-info(1), e2fsck(8), fsck(8), fsck.fat(8)"),
    ("ivers-chmod", "ivers-chown(1), ivers-shell(1), chmod(1)"),
    ("ivers-chown", "ivers-chmod(1), ivers-shell(1), chown(1)"),
    ("ivers-cp", "ivers-ls(1), ivers-cat(1), cp(1), debugfs(8), mcopy(1)"),
    ("ivers-du", "ivers-ls(1), du(1)"),
    ("ivers-info", "ivers-stats(1), dumpe2fs(8), fsck.fat(8)"),
    ("ivers-label", "ivers-info(1), e2label(8), fatlabel(8)"),
    ("ivers-ln", "ivers-cp(1), ivers-shell(1), ln(1)"),
    ("ivers-ls", "ivers-tree(1), ivers-stat(1), ls(1)"),
    ("ivers-measure", "ivers-changed(1), evmctl(1)"),
    ("ivers-mkdir", "ivers-rm(1), ivers-shell(1), mkdir(1)"),
    ("ivers-mkfs", "ivers-info(1), mke2fs(8), mkfs.fat(8)"),
    ("ivers-mount", "ivers-unmount(1), ivers-stats(1), fusermount3(1), fuse(4), fstab(5), mount(8)"),
    ("ivers-mv", "ivers-cp(1), ivers-shell(1), mv(1)"),
    ("ivers-resize", "ivers-info(1), resize2fs(8)"),
    ("ivers-rm", "ivers-mkdir(1), ivers-shell(1), rm(1)"),
    ("ivers-serve", "ivers-stats(1), exports(5), nfs(5), systemd.socket(5)"),
    ("ivers-shell", "ivers-cp(1), ivers-ls(1), debugfs(8), guestfish(1)"),
    ("ivers-stat", "ivers-changed(1), stat(1), getfattr(1)"),
    ("ivers-stats", "ivers-mount(1), ivers-serve(1)"),
    ("ivers-subvolume", "ivers-cp(1), ivers-shell(1), btrfs-subvolume(8)"),
    ("ivers-tar", "ivers-cp(1), ivers-mkfs(1), tar(1)"),
    ("ivers-touch", "ivers-shell(1), touch(1)"),
    ("ivers-tree", "ivers-ls(1)"),
    ("ivers-unmount", "ivers-mount(1), umount(8)"),
];

/// Returns the second half of a command's help.
pub fn after_help(command: &Command) -> String {
    command.get_after_long_help().map(ToString::to_string).unwrap_or_default()
}

/// Where a part of the help belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    Description,
    Options,
    Json,
    ExitStatus,
    Examples,
}

/// A paragraph with the list that follows it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part<'a> {
    text: Vec<&'a str>,
    list: Vec<&'a str>,
    /// Whether the list has terms and explanations. Otherwise it is shown as it is.
    defines: bool,
}

/// Returns the term and the explanation of a line of a list.
fn split_term(line: &str) -> Option<(&str, &str)> {
    let (term, rest) = line.strip_prefix("  ")?.split_once("  ")?;
    (!term.is_empty() && !term.starts_with(' ')).then(|| (term, rest.trim_start()))
}

/// Returns the parts of a help text with their sections.
fn parts(help: &str) -> Vec<(Section, Part<'_>)> {
    let mut parts: Vec<(Section, Part<'_>)> = Vec::new();
    for block in help.split("\n\n") {
        let (list, text): (Vec<&str>, Vec<&str>) = block.lines().partition(|line| line.starts_with("  "));
        // A list that goes on after a blank line.
        if text.is_empty()
            && let Some((_, last)) = parts.last_mut()
        {
            last.list.push("");
            last.list.extend(list);
            continue;
        }
        let first = text.first().copied().unwrap_or_default();
        let section = if first.starts_with("Examples") || first.starts_with("Getting started") {
            Section::Examples
        } else if first.starts_with("Exit codes") {
            Section::ExitStatus
        } else if first.starts_with("JSON") {
            Section::Json
        } else if !list.is_empty() && first.to_lowercase().contains("options") {
            Section::Options
        } else {
            Section::Description
        };
        // The term of a long option is alone on its line, so the second line counts too.
        let defines =
            section != Section::Examples && list.first().is_some_and(|line| split_term(line).is_some());
        parts.push((section, Part { text, list, defines }));
    }
    parts
}

fn paragraph(page: &mut Roff, text: &str) {
    page.control("PP", []).text([roman(text)]);
}

/// Appends lines as they are.
fn verbatim(page: &mut Roff, lines: &[&str]) {
    page.control("PP", []).control("nf", []).control("RS", ["4"]);
    for line in lines {
        // An empty line would be a fault inside a page.
        let line = line.strip_prefix("  ").unwrap_or(line);
        page.text([roman(if line.is_empty() { " " } else { line })]);
    }
    page.control("RE", []).control("fi", []);
}

/// Appends a list of terms and explanations.
fn definitions(page: &mut Roff, lines: &[&str]) {
    let mut items: Vec<(String, Vec<&str>)> = Vec::new();
    for line in lines.iter().filter(|line| !line.is_empty()) {
        match (split_term(line), items.last_mut()) {
            (Some((term, rest)), _) => items.push((term.to_owned(), vec![rest])),
            // A line that is indented further continues the explanation.
            (None, Some((_, explanation))) if line.starts_with("   ") => explanation.push(line.trim()),
            // Terms that go on in the next line.
            (None, Some((term, explanation))) if explanation.is_empty() => {
                *term = format!("{term} {}", line.trim());
            }
            (None, _) => items.push((line.trim().to_owned(), Vec::new())),
        }
    }
    for (term, explanation) in items {
        page.control("TP", []).text([bold(term)]).text([roman(explanation.join(" "))]);
    }
}

impl Part<'_> {
    fn append(&self, page: &mut Roff) {
        let text = self.text.join(" ");
        // These words say no more than the title of the section.
        if !["Examples:", "Getting started:", "Exit codes of all commands:"].contains(&text.as_str()) {
            paragraph(page, &text);
        }
        if self.defines {
            definitions(page, &self.list);
        } else if !self.list.is_empty() {
            verbatim(page, &self.list);
        }
    }
}

/// Renders a page. Returns the name of its file and the text. `help_of_all` is the help that explains the
/// exit codes, for a command that does not explain its own.
pub fn render(command: &Command, help_of_all: &str) -> io::Result<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let version = concat!("ivers ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).date(DATE).source(version).manual("Manual of ivers");
    let file = man.get_filename();
    let help = after_help(command);
    let parts = parts(&help);
    let own = |section| parts.iter().filter(move |(of, _)| *of == section).map(|(_, part)| part);

    let mut text = Vec::new();
    man.render_title(&mut text)?;
    append(&mut text, |out| man.render_name_section(out))?;
    append(&mut text, |out| man.render_synopsis_section(out))?;
    append(&mut text, |out| man.render_description_section(out))?;
    add(&mut text, |page| own(Section::Description).for_each(|part| part.append(page)))?;
    append(&mut text, |out| man.render_options_section(out))?;
    add(&mut text, |page| own(Section::Options).for_each(|part| part.append(page)))?;
    if command.get_subcommands().any(|sub| !sub.is_hide_set()) {
        append(&mut text, |out| man.render_subcommands_section(out))?;
    }
    add(&mut text, |page| {
        let mut section = |title: &str, parts: &mut dyn Iterator<Item = &Part<'_>>| {
            let mut parts = parts.peekable();
            if parts.peek().is_some() {
                page.control("SH", [title]);
                parts.for_each(|part| part.append(page));
            }
        };
        section("JSON", &mut own(Section::Json));
        let of_all = self::parts(help_of_all);
        let of_all = if own(Section::ExitStatus).next().is_some() { &parts } else { &of_all };
        let codes = of_all.iter().filter(|(of, _)| *of == Section::ExitStatus).map(|(_, part)| part);
        section("EXIT STATUS", &mut codes.into_iter());
        section("EXAMPLES", &mut own(Section::Examples));
        if let Some((_, files)) = FILES.iter().find(|(of, _)| *of == name) {
            page.control("SH", ["FILES"]);
            for (file, what) in *files {
                page.control("TP", []).text([bold(*file)]).text([roman(*what)]);
            }
        }
        page.control("SH", ["SEE ALSO"]).text(see_also(command, &name));
    })?;
    Ok((file, text))
}

/// Returns the names of the pages to read next.
fn see_also(command: &Command, name: &str) -> Vec<Inline> {
    let others = SEE_ALSO.iter().find(|(of, _)| *of == name).map(|(_, others)| *others);
    let mut pages: Vec<String> =
        others.into_iter().flat_map(|others| others.split(", ")).map(str::to_owned).collect();
    let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
    pages.extend(subcommands.map(|sub| format!("ivers-{}(1)", sub.get_name())));
    if command.get_name() != name {
        pages.insert(0, "ivers(1)".to_owned());
    }
    pages.sort_by_key(|page| (page.rsplit('(').next().map(str::to_owned), page.clone()));
    let mut words = Vec::new();
    for page in pages {
        let (title, section) = page.split_once('(').unwrap_or((&page, ""));
        let comma = if words.is_empty() { "" } else { ", " };
        words.extend([roman(comma), bold(title), roman(format!("({section}"))]);
    }
    words
}

/// Appends what `build` puts on a page.
fn add(text: &mut Vec<u8>, build: impl FnOnce(&mut Roff)) -> io::Result<()> {
    let mut page = Roff::new();
    build(&mut page);
    append(text, |out| page.to_writer(out))
}

/// Appends rendered text without the definitions that each rendering begins with.
fn append(text: &mut Vec<u8>, render: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
    let mut rendered = Vec::new();
    render(&mut rendered)?;
    let mut preamble = Vec::new();
    Roff::new().to_writer(&mut preamble)?;
    let rendered = String::from_utf8_lossy(rendered.strip_prefix(&preamble[..]).unwrap_or(&rendered));
    // mandoc complains of breaks beside an empty line, which stand before the values of an option, and of a
    // paragraph at the start of a section.
    let rendered = rendered.replace(".br\n\n.br\n", ".sp\n");
    let mut after_title = false;
    for line in rendered.lines() {
        if !(after_title && line == ".PP") {
            text.extend_from_slice(line.as_bytes());
            text.push(b'\n');
        }
        after_title = line.starts_with(".SH ");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_may_have_exit_codes_of_its_own() {
        let of_all = "Exit codes of all commands:\n  3  missing";
        let own = "Exit codes are other ones:\n  8  broken";
        for (help, expected) in [("About.", "missing"), (own, "broken")] {
            let command = Command::new("x").after_long_help(help);
            let page = String::from_utf8(render(&command, of_all).unwrap().1).unwrap();
            let status = page.split(".SH \"EXIT STATUS\"").nth(1).unwrap();
            assert!(status.split(".SH").next().unwrap().contains(expected), "{page}");
            assert_eq!(page.matches("EXIT STATUS").count(), 1, "{page}");
        }
    }

    #[test]
    fn help_is_split_into_sections() {
        let help = "About it.\nMore.\n\nOptions of x:\n  a   first\n      goes on\n  b   second\n\n\
            A file:\n  x = 1\n\n  y  = 2\n\nJSON: a, b.\n\nExamples; two:\n  ivers  a\n";
        let found = parts(help);
        let sections: Vec<Section> = found.iter().map(|(section, _)| *section).collect();
        assert_eq!(
            sections,
            [Section::Description, Section::Options, Section::Description, Section::Json, Section::Examples]
        );
        let defines: Vec<bool> = found.iter().map(|(_, part)| part.defines).collect();
        assert_eq!(defines, [false, true, false, false, false]);
        assert_eq!(found[2].1.list, ["  x = 1", "", "  y  = 2"]);
        let mut page = Roff::new();
        found[1].1.append(&mut page);
        let text = page.to_roff();
        assert!(text.contains(".TP\n\\fBa\\fR\nfirst goes on\n.TP\n\\fBb\\fR\nsecond\n"), "{text}");
    }
}
