//! Lines on standard output.

use std::io::Write;

use anyhow::Result;

use super::failure::StdoutError;

/// Prints a line of JSON.
pub fn json_line(value: &serde_json::Value) -> Result<()> {
    line(value)
}

/// Prints a line as it is. The caller has escaped all names in it; it may contain colours.
pub fn escaped_line(text: impl std::fmt::Display) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{text}").map_err(|error| StdoutError(error).into())
}

/// Prints one or more lines.
pub fn line(text: impl std::fmt::Display) -> Result<()> {
    // Names from an image are escaped where they are inserted. This replaces those that were not.
    let text = text.to_string().replace(|c: char| c.is_control() && c != '\n', " ");
    writeln!(std::io::stdout().lock(), "{text}").map_err(|error| StdoutError(error).into())
}
