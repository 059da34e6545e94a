//! `cargo xtask check-corpus DIR...`: compares `ivers check` with e2fsck and fsck.fat on the images in the
//! tests of e2fsprogs or dosfstools, and writes the result to docs/results/check.md.

use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::checkers::{Ran, copy_image, ivers_check, run_limited};
use crate::target_dir;

/// The page that the comparison is written to.
const PAGE: &str = "docs/results/check.md";
/// How long a checker may take for one image, in seconds.
const LIMIT_S: u32 = 20;

/// The verdict of a checker, or of a test.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Verdict {
    Clean,
    Damaged,
    /// The check could not be done.
    Failed,
    /// It did not end in time, or there is none.
    None,
}

impl Verdict {
    fn name(self) -> &'static str {
        match self {
            Verdict::Clean => "clean",
            Verdict::Damaged => "damaged",
            Verdict::Failed => "failed",
            Verdict::None => "-",
        }
    }
}

/// Whose image it is.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Ext,
    Fat,
}

struct Image {
    name: String,
    path: PathBuf,
    kind: Kind,
    /// What the test of the image expects.
    expected: Verdict,
}

/// The verdicts on one image.
struct Row {
    name: String,
    kind: Kind,
    theirs: Verdict,
    expected: Verdict,
    ours: Verdict,
    /// Whether the other checker has replayed the journal and removed orphans before its verdict.
    recovered: bool,
    /// Our findings, by kind.
    codes: Vec<String>,
}

impl Row {
    fn agreement(&self) -> &'static str {
        if self.ours == self.theirs {
            "yes"
        } else if self.ours == self.expected {
            "with its test"
        } else {
            "no"
        }
    }
}

/// The verdict of `e2fsck -fn`. Its exit code can be 0 although it asks whether to mend something.
fn e2fsck(image: &Path) -> Result<(Verdict, String)> {
    let Ran { code, text } = run_limited(LIMIT_S, &["e2fsck", "-fn"], image)?;
    let asks = |line: &str| line.contains("? no") && !line.contains("Optimize? no");
    let verdict = match code {
        None => Verdict::None,
        // 8: operational error.
        Some(code) if code & 8 != 0 && code & 4 == 0 => Verdict::Failed,
        Some(0) if !text.lines().any(asks) && !text.contains("Superblock invalid") => Verdict::Clean,
        Some(_) => Verdict::Damaged,
    };
    Ok((verdict, text))
}

/// The verdict of `e2fsck -fn` after a recovery, on a copy.
fn e2fsck_recovered(image: &Path) -> Result<Verdict> {
    let copy = image.with_extension("recovered");
    copy_image(image, &copy)?;
    run_limited(LIMIT_S, &["e2fsck", "-fy", "-E", "journal_only"], &copy)?;
    let verdict = e2fsck(&copy);
    std::fs::remove_file(&copy)?;
    Ok(verdict?.0)
}

fn fsck_fat(image: &Path) -> Result<Verdict> {
    Ok(match run_limited(LIMIT_S, &["fsck.fat", "-n"], image)?.code {
        None => Verdict::None,
        Some(0) => Verdict::Clean,
        Some(_) => Verdict::Damaged,
    })
}

/// Runs a program that unpacks an image.
fn unpacked(command: &mut Command) -> Result<bool> {
    Ok(command.status().with_context(|| format!("cannot run {command:?}"))?.success())
}

/// Lists the images of a source tree. e2fsprogs has `tests/f_*/image.gz`, and `expect.1` says how the test
/// ends. dosfstools has `tests/*.xxd`, and `tests/*.fsck` of the same name before fsck.fat mends it.
fn images(dir: &Path) -> Result<Vec<(PathBuf, Image)>> {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(dir.join("tests"))?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    entries.sort();
    let mut images = Vec::new();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let packed = path.join("image.gz");
        let image = |kind, expected| Image { name: name.clone(), path: PathBuf::new(), kind, expected };
        if name.starts_with("f_") && packed.is_file() {
            let text = std::fs::read_to_string(path.join("expect.1")).unwrap_or_default();
            let expected = match text.lines().rev().find_map(|line| line.strip_prefix("Exit status is ")) {
                Some("0") => Verdict::Clean,
                Some(_) => Verdict::Damaged,
                None => Verdict::None,
            };
            images.push((packed, image(Kind::Ext, expected)));
        } else if name.ends_with(".fsck") {
            images.push((path, image(Kind::Fat, Verdict::Damaged)));
        } else if name.ends_with(".xxd") {
            let mended = path.with_extension("fsck").is_file();
            let expected = if mended { Verdict::Clean } else { Verdict::None };
            images.push((path, image(Kind::Fat, expected)));
        }
    }
    Ok(images)
}

fn compare(ivers: &Path, image: Image) -> Result<Row> {
    let path = &image.path;
    let (Ran { code, text }, codes) = ivers_check(LIMIT_S, &ivers.to_string_lossy(), &[], path)?;
    let ours = match code {
        Some(0) => Verdict::Clean,
        Some(4) => Verdict::Damaged,
        Some(8) => Verdict::Failed,
        code => bail!("{}: ivers check ended with {code:?}: {text}", image.name),
    };
    let mut recovered = false;
    let theirs = match image.kind {
        Kind::Fat => fsck_fat(path)?,
        Kind::Ext => {
            let (verdict, said) = e2fsck(path)?;
            // With -n it neither replays the journal nor removes orphans, and calls such an image damaged.
            let pending = said.contains("skipping journal recovery") || text.contains("orphans ");
            recovered = pending && verdict != ours;
            if recovered { e2fsck_recovered(path)? } else { verdict }
        }
    };
    let Image { name, kind, expected, .. } = image;
    Ok(Row { name, kind, theirs, expected, ours, recovered, codes })
}

/// The first line that a program prints about itself, for the page.
fn version(program: &str) -> Result<String> {
    let words: &[&str] = if program == "e2fsck" { &["-V"] } else { &["-n", "/dev/null"] };
    let output = Command::new(program).args(words).output()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| line.starts_with(program)).unwrap_or(program);
    let words: Vec<_> = line.split_whitespace().take(2).collect();
    Ok(words.join(" "))
}

fn page(rows: &[Row], command: &str) -> Result<String> {
    let mut text = String::new();
    let (e2fsck, fsck_fat) = (version("e2fsck")?, version("fsck.fat")?);
    writeln!(text, "# `ivers check` beside e2fsck and fsck.fat\n")?;
    writeln!(
        text,
        "For maintainers: which images in the tests of e2fsprogs and dosfstools each checker calls damaged.\n\
         `{command}` writes this page.\n"
    )?;
    writeln!(
        text,
        "| checker | images | agree | agree only with the test | disagree |\n|---|---|---|---|---|"
    )?;
    for (kind, name) in [(Kind::Ext, format!("{e2fsck} -fn")), (Kind::Fat, format!("{fsck_fat} -n"))] {
        let rows: Vec<_> = rows.iter().filter(|row| row.kind == kind).collect();
        let count = |wanted: &str| rows.iter().filter(|row| row.agreement() == wanted).count();
        let (yes, test, no) = (count("yes"), count("with its test"), count("no"));
        writeln!(text, "| {name} | {} | {yes} | {test} | {no} |", rows.len())?;
    }
    writeln!(
        text,
        "\n- The tests are newer than the installed checkers. Where a checker differs from the test of an\n  \
         image, ivers can agree only with the test.\n\
         - `*`: the verdict after a recovery of a copy, in which e2fsck replays the journal and removes\n  \
         the orphans. ivers replays in memory, and reports no orphans: the next mount removes them.\n\
         - e2fsck finds damage if it asks whether to mend something, also with exit code 0.\n\
         - `-`: the checker did not end within {LIMIT_S} seconds, or the test says nothing.\n"
    )?;
    writeln!(text, "## Disagreements\n")?;
    let differing: Vec<_> = rows.iter().filter(|row| row.agreement() == "no").collect();
    if differing.is_empty() {
        writeln!(text, "None.\n")?;
    } else {
        writeln!(text, "| image | they | we |\n|---|---|---|")?;
        for row in differing {
            writeln!(text, "| {} | {} | {} |", row.name, row.theirs.name(), row.ours.name())?;
        }
        writeln!(text)?;
    }
    writeln!(text, "## All images\n")?;
    writeln!(
        text,
        "| image | they | their test | we | agreement | our findings |\n|---|---|---|---|---|---|"
    )?;
    for row in rows {
        let mark = if row.recovered { "*" } else { "" };
        let more = if row.codes.len() > 3 { ", ..." } else { "" };
        writeln!(
            text,
            "| {} | {}{mark} | {} | {} | {} | {}{more} |",
            row.name,
            row.theirs.name(),
            row.expected.name(),
            row.ours.name(),
            row.agreement(),
            row.codes[..row.codes.len().min(3)].join(", ")
        )?;
    }
    Ok(text)
}

fn run(dirs: &[PathBuf]) -> Result<bool> {
    let ivers = target_dir().join("debug/ivers");
    let work = tempfile::tempdir()?;
    let mut rows = Vec::new();
    for dir in dirs {
        let images = images(dir).with_context(|| dir.display().to_string())?;
        if images.is_empty() {
            bail!("{}: no tests/f_*/image.gz and no tests/*.xxd", dir.display());
        }
        for (packed, mut image) in images {
            image.path = work.path().join("image");
            let done = match image.kind {
                Kind::Ext => {
                    let file = std::fs::File::create(&image.path)?;
                    unpacked(Command::new("gzip").arg("-dc").arg(&packed).stdout(file))?
                }
                Kind::Fat => unpacked(Command::new("xxd").arg("-r").args([&packed, &image.path]))?,
            };
            if !done {
                bail!("{}: cannot be unpacked", packed.display());
            }
            let path = image.path.clone();
            let row = compare(&ivers, image)?;
            if row.agreement() != "yes" {
                println!(
                    "{}: they {}, their test {}, we {} ({})",
                    row.name,
                    row.theirs.name(),
                    row.expected.name(),
                    row.ours.name(),
                    row.codes.join(", ")
                );
            }
            rows.push(row);
            std::fs::remove_file(path)?;
        }
    }
    std::fs::write(PAGE, page(&rows, "cargo xtask check-corpus E2FSPROGS DOSFSTOOLS")?)?;
    println!("{PAGE} is written: {} images", rows.len());
    Ok(rows.iter().all(|row| row.agreement() != "no"))
}

/// Compares the checkers on the images of these source trees. Fails on a disagreement.
pub fn check_corpus(dirs: &[PathBuf]) -> bool {
    let built = crate::run("build", "cargo", &["build", "-p", "ivers"], &[]);
    built
        && run(dirs).unwrap_or_else(|error| {
            eprintln!("xtask: check-corpus: {error:#}");
            false
        })
}
