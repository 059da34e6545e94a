//! The sandbox of a command that parses an image without mounting it.
//!
//! The command opens the images and standard output before. In the sandbox it can open no file, create no
//! socket and run no program. Commands that need files of the host later (`cp`, `changed`, `measure`) leave
//! the parsing to an [image process](super::process).

use crate::output::failure::warn;

/// Enters the sandbox unless `-o nosandbox` is given. Call it before the first byte of an image is read and
/// before the first thread starts.
pub fn enter(wanted: bool) {
    if !wanted {
        return;
    }
    let sandbox = ivers_sandbox::enter();
    if !sandbox.is_whole() {
        warn(format_args!("the kernel supports only part of the sandbox: {sandbox}"));
    }
}
