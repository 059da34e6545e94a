//! Exit codes, and errors as one line on standard error.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use ivers_block::BlockError;
use ivers_vfs::{Error, NameError};

use super::format;

/// The operation failed.
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// A file, path or image does not exist.
pub const NOT_FOUND: u8 = 3;
/// The image requires an unsupported feature, or contains no supported filesystem.
pub const REFUSED: u8 = 4;
/// The image is damaged.
pub const CORRUPT: u8 = 5;
/// The image or the mount is in use.
pub const BUSY: u8 = 6;

/// An error with its exit code.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// The message.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
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
    Failure { code: USAGE, message: message.into() }.into()
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
        say(format_args!("ivers: {}", line(&error)));
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
    Failure { code, message: message.into() }.into()
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
                Error::Name(NameError::NotFound) => NOT_FOUND,
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
    format::one_line(&line)
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

/// Prints one or more lines on standard error. Errors (a closed pipe, a full disk) are ignored, and the work
/// goes on. Nothing else in this program writes to standard error: `eprintln!` would panic.
pub fn say(text: impl fmt::Display) {
    // One system call, so that lines of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints an error in the command line, or the help that it asks for. Returns the exit code.
pub fn print_usage(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { USAGE } else { 0 };
    // `ivers --help | head` closes the pipe early, which is no error.
    let _ = error.print();
    ExitCode::from(code)
}

/// Prints an error of `program`, the name that this program was called by. Returns the exit code.
pub fn report(program: &str, error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Reported>() {
        say(format_args!("{program}: {}", line(error)));
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
        assert_eq!(line(&error), "disk.img: corrupt: bad magic (image, block 7)");
        assert_eq!(code(&usage("no")), USAGE);
        assert_eq!(code(&std::io::Error::from_raw_os_error(117).into()), CORRUPT);
        assert_eq!(code(&anyhow::anyhow!("plain")), FAILED);
    }

    #[test]
    fn a_short_line_fits_into_a_message() {
        let error =
            Err::<(), _>(Error::corrupt("bad", "block 7")).context("\u{1}".repeat(64 << 10)).unwrap_err();
        let text = serde_json::to_vec(&short_line(&error)).unwrap();
        assert!(text.len() < 14 << 10, "{} bytes", text.len());
        assert!(short_line(&error).ends_with("corrupt: bad (block 7)"));
        assert_eq!(short_line(&anyhow::anyhow!("plain")), "plain");
    }
}
