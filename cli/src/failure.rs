//! Exit codes, and errors on one line: what, where, and the way out.

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use ivers_block::BlockError;
use ivers_vfs::{Error, NameError};

/// Something failed while it was done.
pub const FAILED: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// A file, path or image is not there.
pub const NOT_FOUND: u8 = 3;
/// The image asks for something that ivers does not do, or holds no filesystem that it knows.
pub const REFUSED: u8 = 4;
/// The image is damaged.
pub const CORRUPT: u8 = 5;
/// The image or the mount is in use.
pub const BUSY: u8 = 6;

/// An error with an exit code of its own.
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub code: u8,
    /// What is said.
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// What went wrong was said already, where it did; the code is all that is left.
#[derive(Debug)]
pub struct Told(u8);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("see above")
    }
}

impl std::error::Error for Told {}

/// An error of which only the code is left to tell.
pub fn told(code: u8) -> anyhow::Error {
    Told(code).into()
}

/// An error that is the caller's to mend.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Failure { code: USAGE, message: message.into() }.into()
}

/// Standard output takes no more: there is nothing to go on with.
#[derive(Debug)]
pub struct Output(pub std::io::Error);

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output")
    }
}

impl std::error::Error for Output {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Problems of a command that goes on with the next file: each is said at once.
#[derive(Debug, Default)]
pub struct Tally {
    /// How many there were.
    pub problems: u64,
    /// The exit code: theirs if they agree.
    pub code: u8,
}

impl Tally {
    /// Count one that is being said.
    pub fn count(&mut self, code: u8) {
        self.code = if self.problems == 0 || self.code == code { code } else { FAILED };
        self.problems += 1;
    }

    /// Say what went wrong, and go on. An error that ends the command comes back.
    pub fn take(&mut self, result: anyhow::Result<()>) -> anyhow::Result<()> {
        let Err(error) = result else { return Ok(()) };
        if error.is::<Told>() || error.is::<Output>() {
            return Err(error);
        }
        say(format_args!("ivers: {}", line(&error)));
        self.count(code(&error));
        Ok(())
    }

    /// The end of the command.
    pub fn end(self) -> anyhow::Result<()> {
        if self.problems == 0 { Ok(()) } else { Err(told(self.code)) }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

/// An error with a code.
pub fn failure(code: u8, message: impl Into<String>) -> anyhow::Error {
    Failure { code, message: message.into() }.into()
}

/// The exit code of an error.
pub fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.code;
        }
        if let Some(Told(code)) = cause.downcast_ref() {
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
            // "Structure needs cleaning": what a mount answers where the image is damaged.
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

/// All of an error on one line.
pub fn line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        // Errors that wrap others often repeat them.
        if !line.ends_with(&text) {
            if !line.is_empty() {
                line += ": ";
            }
            line += &text;
        }
    }
    crate::show::one_line(&line)
}

/// Characters of a line that another process is told: even if each takes six bytes in JSON, they fit into a message.
const TOLD_MAX: usize = 2000;

/// The same line, without its middle if paths of an image made it too long for a message: what it is about stands at the beginning, why
/// at the end.
pub fn short_line(error: &anyhow::Error) -> String {
    let line = line(error);
    let count = line.chars().count();
    if count <= TOLD_MAX {
        return line;
    }
    let head = line.chars().take(TOLD_MAX / 2);
    head.chain(" ... ".chars()).chain(line.chars().skip(count - TOLD_MAX / 2)).collect()
}

/// A line, or some, on standard error. Where that takes none (a closed pipe, a full disk) there is nobody left to tell, and the work goes on:
/// `eprintln!` would panic in the middle of it, so that nothing else in this program writes there.
pub fn say(text: impl fmt::Display) {
    // One call of the system: lines of several processes do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// The command line was wrong, or asked for help.
pub fn explain(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { USAGE } else { 0 };
    // A closed pipe behind --help is no failure.
    let _ = error.print();
    ExitCode::from(code)
}

/// Say what went wrong, under the name that the program was called by, and end with its code.
pub fn report(program: &str, error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Told>() {
        say(format_args!("{program}: {}", line(error)));
    }
    ExitCode::from(code(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn causes_decide_the_code_and_the_line_is_one() {
        let error =
            Err::<(), _>(Error::corrupt("bad magic", "image, block 7")).context("disk.img").unwrap_err();
        assert_eq!(code(&error), CORRUPT);
        assert_eq!(line(&error), "disk.img: corrupt: bad magic (image, block 7)");
        assert_eq!(code(&usage("no")), USAGE);
        assert_eq!(code(&std::io::Error::from_raw_os_error(117).into()), CORRUPT);
        assert_eq!(code(&anyhow::anyhow!("plain")), FAILED);
    }

    #[test]
    fn a_line_that_another_process_is_told_has_room_in_a_message() {
        let error =
            Err::<(), _>(Error::corrupt("bad", "block 7")).context("\u{1}".repeat(64 << 10)).unwrap_err();
        let text = serde_json::to_vec(&short_line(&error)).unwrap();
        assert!(text.len() < 14 << 10, "{} bytes", text.len());
        assert!(short_line(&error).ends_with("corrupt: bad (block 7)"));
        assert_eq!(short_line(&anyhow::anyhow!("plain")), "plain");
    }
}
