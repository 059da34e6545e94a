//! The machine and the command of a run.

use std::process::Command;
use std::time::SystemTime;

use serde_json::{Map, Value, json};
use time::UtcDateTime;

use crate::find_program;

/// Other programs that take part, and their version options.
const TOOLS: [(&str, &str); 4] =
    [("mkfs.ext4", "-V"), ("fuse2fs", "-V"), ("fio", "--version"), ("fusermount3", "--version")];

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn version(program: &str, flag: &str) -> Option<String> {
    let output = Command::new(find_program(program)?).arg(flag).output().ok()?;
    let said = [output.stderr, output.stdout].concat();
    let said = String::from_utf8_lossy(&said);
    Some(said.lines().find(|line| !line.trim().is_empty())?.trim().to_owned())
}

/// Formats a time as `2017-12-13 14:19:58 UTC`.
fn utc(at: UtcDateTime) -> String {
    let (date, hour, minute, second) = (at.date(), at.hour(), at.minute(), at.second());
    format!("{date} {hour:02}:{minute:02}:{second:02} UTC")
}

/// Describes the machine.
pub(crate) fn machine() -> Value {
    let memory_kib = field("/proc/meminfo", "MemTotal")
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let tools: Map<_, _> = TOOLS
        .iter()
        .filter_map(|(program, flag)| Some(((*program).to_owned(), version(program, flag)?.into())))
        .collect();
    json!({
        "date": utc(UtcDateTime::from(SystemTime::now())),
        "cpu": field("/proc/cpuinfo", "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        "cpus": std::thread::available_parallelism().map_or(1, |cpus| cpus.get()),
        "memory_bytes": memory_kib << 10,
        "kernel": kernel.trim(),
        "ivers": env!("CARGO_PKG_VERSION"),
        "build": if cfg!(debug_assertions) { "with debug assertions: times mean nothing" } else { "release" },
        "tools": tools,
    })
}

/// Returns the command line, quoted for a shell.
pub(crate) fn command_line() -> String {
    let word = |word: String| match word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./=,:+".contains(c))
    {
        true if !word.is_empty() => word,
        _ => format!("'{}'", word.replace('\'', r"'\''")),
    };
    let words = std::env::args_os().skip(1).map(|arg| word(arg.to_string_lossy().into_owned()));
    std::iter::once("cargo xtask bench".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
