//! Exit codes, and errors as one line on standard error.

use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::sync::OnceLock;

use ivers_block::BlockError;
use ivers_vfs::{Error, NameError};

use super::format;

/// The operation failed.
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// A file, image, partition or attribute does not exist.
pub const NOT_FOUND: u8 = 3;
/// The image requires an unsupported feature, or contains no supported filesystem.
pub const REFUSED: u8 = 4;
/// The image is damaged.
pub const CORRUPT: u8 = 5;
/// The image or the mount is in use.
pub const BUSY: u8 = 6;

/// The name of each exit code in JSON.
const CODE_NAMES: [(u8, &str); 6] = [
    (FAILED, "failed"),
    (USAGE, "usage"),
    (NOT_FOUND, "not_found"),
    (REFUSED, "refused"),
    (CORRUPT, "damaged"),
    (BUSY, "busy"),
];

/// The words of the command line, if errors are printed as JSON.
static JSON: OnceLock<Vec<Vec<u8>>> = OnceLock::new();

/// Prints the errors of this process as JSON. `words` is the command line, whose operands errors name.
pub fn print_json(words: &[OsString]) {
    let words = words.iter().skip(1).map(|word| word.as_bytes().to_vec());
    let _ = JSON.set(words.filter(|word| !word.starts_with(b"-")).collect());
}

/// Bytes of operands that fit into a message to another process.
const OPERANDS_BYTES_MAX: usize = 8 << 10;

/// Returns the argument of [`print_json_about`] for another process of this command. `None`: errors are text.
pub fn json_operands() -> Option<Vec<Vec<u8>>> {
    let operands = JSON.get()?;
    let bytes: usize = operands.iter().map(Vec::len).sum();
    Some(if bytes > OPERANDS_BYTES_MAX { Vec::new() } else { operands.clone() })
}

/// Prints the errors of this process as JSON. `operands` are those of the command line.
pub fn print_json_about(operands: Vec<Vec<u8>>) {
    let _ = JSON.set(operands);
}

/// Returns whether [`print_json`] was called.
pub fn is_json() -> bool {
    JSON.get().is_some()
}

/// Returns the operand that a message is about: the one that it begins with, else one that it contains as a
/// word.
fn operand_in<'a>(message: &str, operands: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    // Messages show them so.
    let operands = operands.iter().map(|operand| (operand, format::name(operand)));
    let operands: Vec<(&Vec<u8>, String)> = operands.filter(|(_, shown)| !shown.is_empty()).collect();
    let ends = |rest: &str| rest.starts_with([':', ' ', ',', ';', '"', '/']) || rest.is_empty();
    let begins = |(_, operand): &&(_, String)| message.strip_prefix(operand.as_str()).is_some_and(ends);
    let contains = |(_, operand): &&(_, String)| {
        // A short word such as `a` occurs in sentences by chance, but not before a colon.
        let is_name = operand.contains(['/', '.', ':']) || operand.len() > 8;
        message.match_indices(operand.as_str()).any(|(at, _)| {
            let (before, rest) = (message[..at].chars().next_back(), &message[at + operand.len()..]);
            before.is_none_or(|c| " /\"".contains(c)) && ends(rest) && (is_name || rest.starts_with(':'))
        })
    };
    let longest = |(_, found): &&(_, String)| found.len();
    let first = operands.iter().filter(begins).max_by_key(longest);
    let found = first.or_else(|| operands.iter().filter(contains).max_by_key(longest));
    found.map(|(operand, _)| operand.as_slice())
}

/// Formats a message of `program` for standard error: text, or a JSON object if [`print_json`] was called.
/// `code` is `None` for a warning.
fn formatted(program: &str, code: Option<u8>, message: &str) -> String {
    formatted_as(program, code, code, message)
}

/// Formats a message as [`formatted`] does, for a command with other exit codes. `kind` is the code of this
/// kind of error in the other commands, `code` the exit code of this one.
fn formatted_as(program: &str, kind: Option<u8>, code: Option<u8>, message: &str) -> String {
    match json_error(kind, code, message) {
        Some(error) => error.to_string(),
        None => format!("{program}: {message}"),
    }
}

/// Returns the JSON object of a message, if [`print_json`] was called.
fn json_error(kind: Option<u8>, code: Option<u8>, message: &str) -> Option<serde_json::Value> {
    let operands = JSON.get()?;
    let known = CODE_NAMES.iter().find(|(number, _)| Some(*number) == kind);
    let kind = if kind.is_none() { "warning" } else { known.map_or("failed", |(_, name)| name) };
    let error = serde_json::json!({
        "error": kind,
        "code": code,
        "message": format::one_line(message),
    });
    Some(format::with_names(error, [("path", operand_in(message, operands))]))
}

/// Prints an error with this exit code.
pub fn say_error(code: u8, message: &str) {
    say(formatted("ivers", Some(code), message));
}

/// Prints an error in a line of a script.
pub fn say_error_in_line(code: u8, line_number: u64, message: &str) {
    match json_error(Some(code), Some(code), message) {
        Some(mut error) => {
            error["line"] = line_number.into();
            say(error);
        }
        None => say_error(code, message),
    }
}

/// Prints an error of a command that has exit codes of its own. Returns an error that ends the command with
/// this exit code.
pub fn reported_as(error: &anyhow::Error, code_of_command: u8) -> anyhow::Error {
    say(formatted_as("ivers", Some(code(error)), Some(code_of_command), &line(error)));
    reported(code_of_command)
}

/// Returns an error that ends the command with another exit code than its own. Prints it, unless it was
/// printed already or nobody reads the output.
pub fn recoded(error: anyhow::Error, code_of_command: u8) -> anyhow::Error {
    if error.is::<Reported>() {
        reported(code_of_command)
    } else if is_broken_pipe(&error) {
        error
    } else {
        reported_as(&error, code_of_command)
    }
}

/// Prints a warning.
pub fn warn(message: impl fmt::Display) {
    let message = format::one_line(&message.to_string());
    say(formatted("ivers", None, &format::without_error_numbers(&message)));
}

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The message.
    pub message: String,
    /// What the message ends with, a line each on standard error.
    pub list: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if self.list.is_empty() { Ok(()) } else { write!(f, ": {}", self.list.join("; ")) }
    }
}

impl std::error::Error for Failure {}

/// An error that was printed already. Only its exit code is left.
#[derive(Debug)]
pub struct Reported(u8);

impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("see above")
    }
}

impl std::error::Error for Reported {}

/// Returns an error for a failure that was printed already, with its exit code.
pub fn reported(code: u8) -> anyhow::Error {
    Reported(code).into()
}

/// Returns an error in the command line.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    failure(USAGE, message)
}

/// Standard output cannot be written to, which ends the command.
#[derive(Debug)]
pub struct StdoutError(pub std::io::Error);

impl fmt::Display for StdoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output")
    }
}

impl std::error::Error for StdoutError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The errors of a command that continues with the next file.
#[derive(Debug, Default)]
pub struct Problems {
    /// The number of errors.
    pub count: u64,
    /// The exit code: that of the errors if all have the same, else [`FAILED`].
    pub code: u8,
}

impl Problems {
    /// Counts an error that the caller prints.
    pub fn add(&mut self, code: u8) {
        self.code = if self.count == 0 || self.code == code { code } else { FAILED };
        self.count += 1;
    }

    /// Prints and counts an error. Returns an error that ends the command.
    pub fn report(&mut self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = result else { return Ok(()) };
        if error.is::<Reported>() || error.is::<StdoutError>() {
            return Err(error);
        }
        say_error(code(&error), &printed(&error));
        self.add(code(&error));
        Ok(())
    }

    /// Returns the result of the command.
    pub fn into_result(self) -> anyhow::Result<()> {
        if self.count == 0 { Ok(()) } else { Err(reported(self.code)) }
    }
}

/// Returns whether an error means that nobody reads a pipe.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// Returns an error with an exit code.
pub fn failure(code: u8, message: impl Into<String>) -> anyhow::Error {
    Failure { code, message: message.into(), list: Vec::new() }.into()
}

/// Returns an error that ends with a list.
pub fn failure_with_list(code: u8, message: impl Into<String>, list: Vec<String>) -> anyhow::Error {
    Failure { code, message: message.into(), list }.into()
}

/// Returns an error as it is printed: its list has a line for each item, unless the form is JSON.
fn printed(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Failure>() {
        Some(failure) if error.chain().count() == 1 && failure.list.len() > 1 && !is_json() => {
            let items = failure.list.iter().map(|item| format!("\n  {}", format::one_line(item)));
            format!("{}:{}", format::one_line(&failure.message), items.collect::<String>())
        }
        _ => line(error),
    }
}

/// Returns the exit code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.code;
        }
        if let Some(Reported(code)) = cause.downcast_ref() {
            return *code;
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            return match error {
                Error::Corrupt { .. } => CORRUPT,
                Error::Incompatible(_) => REFUSED,
                Error::Name(NameError::NotFound | NameError::NoAttribute) => NOT_FOUND,
                Error::Name(NameError::Busy) => BUSY,
                _ => FAILED,
            };
        }
        if let Some(BlockError::Busy { .. }) = cause.downcast_ref() {
            return BUSY;
        }
        if let Some(ivers_fuse::MountError::Busy(_)) = cause.downcast_ref() {
            return BUSY;
        }
        if let Some(error) = cause.downcast_ref::<std::io::Error>() {
            // A mount returns EUCLEAN ("Structure needs cleaning") if the image is damaged.
            if error.raw_os_error() == Some(rustix::io::Errno::UCLEAN.raw_os_error()) {
                return CORRUPT;
            }
            if error.kind() == std::io::ErrorKind::NotFound {
                return NOT_FOUND;
            }
        }
    }
    FAILED
}

/// Returns an error and its causes on one line.
pub fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // An error often repeats the text of its cause.
        if !line.ends_with(&text) {
            if !line.is_empty() {
                line += ": ";
            }
            line += &text;
        }
    }
    if let Some(hint) = hint(error) {
        line += "; ";
        line += &hint;
    }
    format::one_line(&format::without_error_numbers(&line))
}

/// Returns whether the file of an image cannot grow: the filesystem of the host has no space.
fn is_host_full(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    error.chain().any(|cause| match cause.downcast_ref() {
        Some(BlockError::Io { source, .. }) => matches!(source.kind(), StorageFull | QuotaExceeded),
        _ => false,
    })
}

/// Returns what to do about an error, where the error itself cannot say so.
fn hint(error: &anyhow::Error) -> Option<String> {
    let dead = rustix::io::Errno::NOTCONN.raw_os_error();
    let is_dead = |cause: &std::io::Error| cause.raw_os_error() == Some(dead);
    if error.chain().filter_map(|cause| cause.downcast_ref()).any(is_dead) {
        return Some("the process of this mount has died: run ivers unmount on its directory".to_owned());
    }
    if is_host_full(error) {
        return Some(
            "the disk that holds the image is full, so the image cannot grow: free space there".into(),
        );
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<Error>())? {
        Error::Corrupt { what, .. } if what.starts_with("truncated") => {
            Some("get a complete copy".to_owned())
        }
        Error::Corrupt { .. } => Some(
            "the image is damaged: ivers check shows where; repair a copy with the checker of its format \
             (e2fsck, fsck.fat, xfs_repair, fsck_ffs, fsck.ocfs2)"
                .into(),
        ),
        _ => None,
    }
}

/// Characters of an error that fit into a message to another process, although JSON can escape each as six
/// bytes.
const MESSAGE_CHARS_MAX: usize = 2000;

/// Formats an error as [`line`] does, but short enough for a message to another process. Removes the middle,
/// which has long paths of an image: the start says what failed, and the end says why.
pub fn short_line(error: &anyhow::Error) -> String {
    let line = line(error);
    let count = line.chars().count();
    if count <= MESSAGE_CHARS_MAX {
        return line;
    }
    let head = line.chars().take(MESSAGE_CHARS_MAX / 2);
    head.chain(" ... ".chars()).chain(line.chars().skip(count - MESSAGE_CHARS_MAX / 2)).collect()
}

/// Returns an error without its list, and the list, both short enough for a message to another process. A
/// long one has no list: it is a part of the line.
pub fn short_parts(error: &anyhow::Error) -> (String, Vec<String>) {
    if let Some(failure) = error.downcast_ref::<Failure>().filter(|_| error.chain().count() == 1) {
        let chars: usize =
            failure.list.iter().chain([&failure.message]).map(|text| text.chars().count()).sum();
        if chars <= MESSAGE_CHARS_MAX {
            return (failure.message.clone(), failure.list.clone());
        }
    }
    (short_line(error), Vec::new())
}

/// Prints one or more lines on standard error. Errors (a closed pipe, a full disk) are ignored, and the work
/// goes on. Nothing else in this program writes to standard error: `eprintln!` would panic.
pub fn say(text: impl fmt::Display) {
    // One system call, so that lines of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints an error in the command line of `program`, or the help that it asks for. Returns the exit code,
/// which is `exit_code` after an error.
pub fn print_usage(program: &str, error: &clap::Error, exit_code: u8) -> ExitCode {
    if !error.use_stderr() {
        // `ivers --help | head` closes the pipe early, which is no error.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.render().to_string();
    let text = text.trim_end();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    if is_json() {
        let message = text.split("\n\nUsage:").next().unwrap_or(text);
        let words: Vec<_> = message.split_whitespace().collect();
        say(formatted_as(program, Some(USAGE), Some(exit_code), &words.join(" ")));
    } else {
        say(format_args!("{program}: {text}"));
    }
    ExitCode::from(exit_code)
}

/// Prints an error of `program`, the name that this program was called by. Returns the exit code.
pub fn report(program: &str, error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Reported>() {
        say(formatted(program, Some(code(error)), &printed(error)));
    }
    ExitCode::from(code(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn an_error_has_the_exit_code_of_its_cause_and_one_line() {
        let error =
            Err::<(), _>(Error::corrupt("bad magic", "image, block 7")).context("disk.img").unwrap_err();
        assert_eq!(code(&error), CORRUPT);
        let what_to_do = line(&error);
        let what_to_do = what_to_do.strip_prefix("disk.img: corrupt: bad magic (image, block 7); the image ");
        assert!(what_to_do.is_some_and(|rest| rest.contains("e2fsck")), "{}", line(&error));
        let missing = anyhow::Error::from(std::io::Error::from_raw_os_error(2)).context("x");
        assert_eq!(line(&missing), "x: No such file or directory");
        assert_eq!(code(&usage("no")), USAGE);
        assert_eq!(code(&std::io::Error::from_raw_os_error(117).into()), CORRUPT);
        assert_eq!(code(&anyhow::anyhow!("plain")), FAILED);
    }

    #[test]
    fn a_list_has_a_line_for_each_item() {
        let list = vec!["1: boot".to_owned(), "2:\nroot".to_owned()];
        let error = failure_with_list(REFUSED, "disk.img: name a partition", list);
        assert_eq!(printed(&error), "disk.img: name a partition:\n  1: boot\n  2: root");
        assert_eq!(line(&error), "disk.img: name a partition: 1: boot; 2: root");
    }

    #[test]
    fn a_short_line_fits_into_a_message() {
        let error =
            Err::<(), _>(Error::corrupt("bad", "block 7")).context("\u{1}".repeat(64 << 10)).unwrap_err();
        let text = serde_json::to_vec(&short_line(&error)).unwrap();
        assert!(text.len() < 14 << 10, "{} bytes", text.len());
        assert!(short_line(&error).contains("corrupt: bad (block 7)"));
        assert_eq!(short_line(&anyhow::anyhow!("plain")), "plain");
        assert_eq!(short_parts(&anyhow::anyhow!("plain")), ("plain".to_owned(), Vec::new()));
        let list = vec!["1: boot".to_owned(), "2: root".to_owned()];
        let error = failure_with_list(REFUSED, "no partition", list.clone());
        assert_eq!(short_parts(&error), ("no partition".to_owned(), list));
        let long = failure_with_list(REFUSED, "no partition", vec!["\u{1}".repeat(10_000)]);
        let (line, list) = short_parts(&long);
        assert!(list.is_empty() && serde_json::to_vec(&line).unwrap().len() < 14 << 10);
    }

    #[test]
    fn a_message_is_about_the_operand_that_it_names() {
        let operands = [&b"ls"[..], b"disk.img", b"disk.img:/a", b"a", b"x.img:/\xff"].map(<[u8]>::to_vec);
        for (message, operand) in [
            ("disk.img: in use", Some("disk.img")),
            ("disk.img:/a: no such file", Some("disk.img:/a")),
            ("cannot open /tmp/disk.img: no", Some("disk.img")),
            ("a: is a directory", Some("a")),
            ("cannot open a: no such file", Some("a")),
            ("something is a directory", None),
            ("not a data: no", None),
        ] {
            assert_eq!(operand_in(message, &operands), operand.map(str::as_bytes), "{message}");
        }
        assert_eq!(operand_in("x.img:/\\xff: no", &operands), Some(&b"x.img:/\xff"[..]));
    }
}
