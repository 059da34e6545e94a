//! Where the lines of a shell come from: a terminal, a pipe or file, or the command line.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::format::Shown;

/// Longest line in bytes.
const LINE_MAX: usize = 1 << 20;

/// A source of lines.
pub enum Input {
    /// A terminal, with line editing.
    Terminal(Box<DefaultEditor>),
    /// A pipe or a file.
    Stream(Stream),
    /// Options `-c`.
    Words(VecDeque<OsString>),
}

/// A stream of lines. Waiting for one ends at a signal.
pub struct Stream {
    name: String,
    from: File,
    signals: PipeReader,
    buffer: Vec<u8>,
    at_end: bool,
}

/// What was read.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A line without its end.
    Line(Vec<u8>),
    /// The user gave up a line with Ctrl-C.
    Abandoned,
    /// A signal arrived before the next line.
    Signal,
    /// The end of the lines.
    End,
}

impl Input {
    /// Reads from a terminal.
    pub fn terminal() -> Result<Self> {
        let editor = DefaultEditor::new().context("cannot use the terminal")?;
        Ok(Input::Terminal(Box::new(editor)))
    }

    /// Reads from standard input.
    pub fn standard() -> Result<Self> {
        let from = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Input::Stream(Stream::new("standard input", from)?))
    }

    /// Reads from a file.
    pub fn file(path: &Path) -> Result<Self> {
        let name = path.shown();
        let from = File::open(path).with_context(|| format!("cannot open {name}"))?;
        Ok(Input::Stream(Stream::new(&name, from)?))
    }

    /// Returns whether a user types the lines: an error does not end the shell.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Input::Terminal(_))
    }

    /// Returns the name of the source in errors.
    pub fn name(&self) -> &str {
        match self {
            Input::Terminal(_) => "terminal",
            Input::Stream(stream) => &stream.name,
            Input::Words(_) => "-c",
        }
    }

    /// Reads the next line. A terminal shows `prompt`.
    pub fn next(&mut self, prompt: &str) -> Result<Next> {
        match self {
            Input::Words(words) => {
                Ok(words.pop_front().map_or(Next::End, |word| Next::Line(word.into_vec())))
            }
            Input::Stream(stream) => stream.next(),
            Input::Terminal(editor) => match editor.readline(prompt) {
                Ok(line) => {
                    let _ = editor.add_history_entry(&line);
                    Ok(Next::Line(line.into_bytes()))
                }
                Err(ReadlineError::Interrupted) => Ok(Next::Abandoned),
                Err(ReadlineError::Eof) => Ok(Next::End),
                Err(error) => Err(error).context("cannot read from the terminal"),
            },
        }
    }
}

impl Stream {
    fn new(name: &str, from: File) -> Result<Self> {
        let (signals, wake) = std::io::pipe()?;
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self { name: name.to_owned(), from, signals, buffer: Vec::new(), at_end: false })
    }

    fn next(&mut self) -> Result<Next> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=searched + at).collect();
                line.pop();
                return Ok(Next::Line(line));
            }
            if self.at_end {
                let rest = std::mem::take(&mut self.buffer);
                return Ok(if rest.is_empty() { Next::End } else { Next::Line(rest) });
            }
            searched = self.buffer.len();
            anyhow::ensure!(searched <= LINE_MAX, "{}: a line of more than {LINE_MAX} bytes", self.name);
            let mut ready =
                [PollFd::new(&self.from, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            rustix::io::retry_on_intr(|| rustix::event::poll(&mut ready, None))?;
            if !ready[1].revents().is_empty() {
                return Ok(Next::Signal);
            }
            let mut piece = [0; 64 << 10];
            let len = self.from.read(&mut piece).with_context(|| self.name.clone())?;
            self.at_end = len == 0;
            self.buffer.extend_from_slice(&piece[..len]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_stream_is_split_into_lines() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"first\n\nth\xffrd").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        let mut stream = Stream::new("test", file).unwrap();
        for line in [&b"first"[..], b"", b"th\xffrd"] {
            assert_eq!(stream.next().unwrap(), Next::Line(line.to_vec()));
        }
        assert_eq!(stream.next().unwrap(), Next::End);
    }
}
