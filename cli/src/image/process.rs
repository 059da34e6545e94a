//! An image process, as its command sees it.
//!
//! The image process parses an image in the sandbox, while the command works with files of the host. The
//! command opens the image and passes the descriptor. What the image process reads it writes to a pipe, and
//! what it must write to the image it reads from a pipe: it opens no file. A hostile image that takes it over
//! gets that image and the pipe. The command checks what comes out of the pipe as it would check the image.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, bail};
use ivers_block::FileDevice;
use ivers_vfs::raises::Raises;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::channel::Channel;
use super::image_files::{ImageFiles, SentFile};
use super::open_options::ImageOptions;
use super::server::ServerConnection;
use crate::archive::member::NewOwners;
use crate::arguments::{ImageName, partition_of, split_image};
use crate::output::failure::{self, FAILED, failure_with_list};
use crate::output::progress;
use crate::process::{describe_exit, this_program};

/// The hidden subcommand that runs an image process.
pub const SUBCOMMAND: &str = "image-process";

/// Most paths that [`ImageProcess::expand`] takes from a process that a hostile image can have taken over.
const PATHS_MAX: usize = 100_000;

/// A request to an image process. Those that read or write a stream carry its descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Open the image; with the descriptors of its files. Or open the server; with its descriptor.
    Open {
        /// The path of the image, for errors.
        image: Vec<u8>,
        /// How to open it.
        options: Box<ImageOptions>,
        /// The files of the image; none for a server.
        files: Vec<SentFile>,
        /// A path on the server. The filesystem of this path decides what the change attributes promise.
        facts_of: Vec<u8>,
        /// Show no progress.
        quiet: bool,
        /// Print errors as JSON, with these operands of the command line.
        json: Option<Vec<Vec<u8>>>,
    },
    /// Find a partition; with the descriptor of the whole image. It is the only request.
    FindPartition {
        /// The path of the image, for errors.
        image: Vec<u8>,
        /// The partition: a number, a name or a PARTUUID.
        wanted: String,
        /// Read the table in the sandbox.
        sandbox: bool,
    },
    /// Return why the epoch of the filesystem rose.
    Raises,
    /// Write the saved state of a tree to the pipe. Refused if its change attributes end with this process.
    Walk {
        /// The tree.
        path: Vec<u8>,
    },
    /// Measure a tree. The job is read from the socket, the findings are written to it.
    Measure {
        /// The tree.
        path: Vec<u8>,
    },
    /// Start to write the copy that comes out of the pipe to the image.
    WriteCopy(WriteCopy),
    /// Read an operand of `cp` into the pipe.
    ReadCopy(ReadCopy),
    /// Wait for the end of the copy that [`Request::WriteCopy`] started, and forget what was copied.
    EndCopy,
    /// Return the paths that a pattern matches.
    Expand {
        /// The pattern.
        path: Vec<u8>,
    },
    /// Run a job of `edit`, encoded as JSON. It prints on standard output and standard error.
    Edit(Value),
    /// Read a spec file of `mkfs` for the next request.
    Spec,
    /// Fill a new filesystem from an archive.
    Fill(FillOptions),
}

/// How `mkfs` fills a new filesystem.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct FillOptions {
    /// The time of creation in seconds since 1970.
    pub time: i64,
    /// Later times become this one.
    pub latest: Option<i64>,
    /// The owner of the root directory, if it is not that of the source.
    pub root_owner: Option<(u32, u32)>,
    /// The owners of all files, instead of those of the source.
    pub owners: NewOwners,
    /// Patterns of files that are left out.
    pub exclude: Vec<OsString>,
    /// Symbolic links to directories are followed.
    pub keep_directory_symlinks: bool,
    /// Problems are counted and not shown.
    pub silent: bool,
    /// The bytes of the source, for the progress. 0 if unknown.
    pub source_bytes: u64,
}

/// What filling a filesystem did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillOutcome {
    /// Number of files, directories and links that were created.
    pub files: u64,
    /// Number of errors printed on standard error.
    pub problems: u64,
    /// The exit code: that of the errors if all have the same.
    pub code: u8,
    /// Free space in bytes.
    pub free_bytes: u64,
    /// Number of inodes in use.
    pub inodes_used: u64,
    /// The filesystem is too small: the error.
    pub full: Option<String>,
}

/// See [`Request::WriteCopy`].
#[derive(Debug, Serialize, Deserialize)]
pub struct WriteCopy {
    /// The destination.
    pub path: Vec<u8>,
    /// Several operands are copied.
    pub many: bool,
    /// Preserve attributes.
    pub preserve: bool,
    /// The origin of files that are read from this image.
    pub origin: u32,
    /// Existing files are left as they are.
    pub no_clobber: bool,
    /// Nothing is written. What would be written is printed on standard output.
    pub dry_run: bool,
    /// Each file is printed on standard output.
    pub verbose: bool,
    /// They are printed as JSON.
    pub json: bool,
}

/// See [`Request::ReadCopy`].
#[derive(Debug, Serialize, Deserialize)]
pub struct ReadCopy {
    /// The origin of the files.
    pub origin: u32,
    /// The operand as the user wrote it.
    pub operand: Vec<u8>,
    /// The path in the image.
    pub path: Vec<u8>,
    /// Copy directories with their contents. If not set, a symbolic link is followed.
    pub recursive: bool,
    /// Preserve attributes.
    pub preserve: bool,
    /// Read contents.
    pub contents: bool,
}

/// Where a partition is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionPlace {
    /// The first byte.
    pub start: u64,
    /// The length in bytes.
    pub len: u64,
    /// The table is a Rigid Disk Block, which the driver of the filesystem reads too.
    pub in_rdb: bool,
}

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyOutcome {
    /// Number of files, directories and links that were written.
    pub files: u64,
    /// Number of errors printed on standard error.
    pub problems: u64,
    /// The exit code: that of the errors if all have the same.
    pub code: u8,
}

impl FillOutcome {
    /// The outcome of a filesystem that is too small.
    pub fn full(why: String) -> Self {
        Self { files: 0, problems: 0, code: FAILED, free_bytes: 0, inodes_used: 0, full: Some(why) }
    }
}

/// The result of a job of `edit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditOutcome {
    /// Number of errors printed on standard error.
    pub problems: u64,
    /// The exit code: that of the errors if all have the same.
    pub code: u8,
    /// A signal, or the end of the command, ended the job early.
    pub interrupted: bool,
    /// Standard output cannot be written to, which ended the job. [`BROKEN_PIPE`] if nobody reads it.
    pub output_error: Option<String>,
}

/// See [`EditOutcome::output_error`].
pub const BROKEN_PIPE: &str = "broken pipe";

/// A reply of an image process: one to each request, and one when no more requests follow.
#[derive(Debug, Serialize, Deserialize)]
pub enum Reply {
    /// The request is done, or has started.
    Done,
    /// The partition was found.
    Partition(PartitionPlace),
    /// The filesystem is filled.
    Filled(FillOutcome),
    /// The result of [`Request::EndCopy`]; `None` if no copy was started.
    Copied(Option<CopyOutcome>),
    /// A path that [`Request::Expand`] found. [`Reply::Done`] follows the last.
    Path(Vec<u8>),
    /// The answer to [`Request::Raises`], as text.
    Raises(String),
    /// The result of [`Request::Edit`].
    Edited(EditOutcome),
    /// The image is closed.
    Closed,
    /// The request failed, or the process failed and ends.
    Failed {
        /// The exit code.
        code: u8,
        /// The error.
        line: String,
        /// What it ends with: see [`failure::Failure::list`].
        list: Vec<String>,
    },
}

/// The request that opens an image, or a server.
fn open_request(image: &Path, options: ImageOptions, files: Vec<SentFile>, facts_of: &[u8]) -> Request {
    Request::Open {
        image: image.as_os_str().as_bytes().to_vec(),
        options: Box::new(options),
        files,
        facts_of: facts_of.to_vec(),
        quiet: progress::is_silent(),
        json: failure::json_operands(),
    }
}

/// The command's end of the connection to an image process.
pub struct ImageProcess {
    child: Child,
    channel: Channel,
}

impl ImageProcess {
    /// Starts a process for an image that was opened with `options`.
    pub fn start(files: &ImageFiles, image: &Path, options: &ImageOptions) -> Result<Self> {
        Self::start_printing(files, image, options, Stdio::null())
    }

    /// As [`ImageProcess::start`], with a standard output for what the process prints.
    pub fn start_printing(
        files: &ImageFiles,
        image: &Path,
        options: &ImageOptions,
        output: Stdio,
    ) -> Result<Self> {
        let mut process = Self::spawn(output)?;
        let partition = options.partition.clone().or_else(|| match files.others[..] {
            [] => partition_of(image, files.first.device.path()),
            // The devices are limited to their partitions.
            _ => None,
        });
        let options = ImageOptions { partition, ..options.clone() };
        process.request_with(&open_request(image, options, files.sent(), &[]), &files.lend())?;
        Ok(process)
    }

    /// Starts a process for a server. `facts_of`: see [`Request::Open`].
    pub fn start_for_server(
        connection: &ServerConnection,
        image: &Path,
        options: &ImageOptions,
        output: Stdio,
        facts_of: &[u8],
    ) -> Result<Self> {
        let mut process = Self::spawn(output)?;
        process.request(&open_request(image, options.clone(), Vec::new(), facts_of), connection.lend())?;
        Ok(process)
    }

    fn spawn(output: Stdio) -> Result<Self> {
        let (channel, theirs) = Channel::pair()?;
        let child = this_program()?
            .arg(SUBCOMMAND)
            .stdin(Stdio::from(theirs))
            .stdout(output)
            .spawn()
            .context("cannot start the image process")?;
        Ok(Self { child, channel })
    }

    /// Finds a partition of an image in a process of its own: the table is hostile.
    pub fn find_partition(disk: &FileDevice, wanted: &str, sandbox: bool) -> Result<PartitionPlace> {
        let mut process = Self::spawn(Stdio::null())?;
        let image = disk.path().as_os_str().as_bytes().to_vec();
        let request = Request::FindPartition { image, wanted: wanted.to_owned(), sandbox };
        // If the process has ended, sending fails and the reply says why.
        let sent = process.channel.send(&request, &[disk.lend()]);
        let Reply::Partition(place) = process.receive()? else {
            return Err(protocol_error("an unexpected reply"));
        };
        sent?;
        process.finish()?;
        Ok(place)
    }

    /// Sends a request and waits for the reply.
    pub fn request(&mut self, request: &Request, fd: BorrowedFd<'_>) -> Result<()> {
        self.request_with(request, &[fd])
    }

    fn request_with(&mut self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<()> {
        // If the process has ended, sending fails and the reply says why.
        let sent = self.channel.send(request, fds);
        match self.receive()? {
            Reply::Done => sent,
            _ => Err(protocol_error("an unexpected reply")),
        }
    }

    /// Sends a request without a descriptor and waits for the first reply.
    fn ask(&mut self, request: &Request) -> Result<Reply> {
        let sent = self.channel.send(request, &[]);
        let reply = self.receive()?;
        sent.map(|()| reply)
    }

    /// Runs a job of `edit`.
    pub fn edit(&mut self, job: &impl Serialize) -> Result<EditOutcome> {
        match self.ask(&Request::Edit(serde_json::to_value(job)?))? {
            Reply::Edited(outcome) => Ok(outcome),
            _ => Err(protocol_error("an unexpected reply")),
        }
    }

    /// Sends [`Request::Fill`] and waits for its outcome.
    pub fn fill(&mut self, options: FillOptions, archive: BorrowedFd<'_>) -> Result<FillOutcome> {
        let sent = self.channel.send(&Request::Fill(options), &[archive]);
        match self.receive()? {
            Reply::Filled(outcome) => sent.map(|()| outcome),
            _ => Err(protocol_error("an unexpected reply")),
        }
    }

    /// Returns the paths that a pattern matches.
    pub fn expand(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut reply = self.ask(&Request::Expand { path: path.to_vec() })?;
        let mut paths = Vec::new();
        loop {
            match reply {
                Reply::Path(path) if paths.len() < PATHS_MAX => paths.push(path),
                Reply::Done => return Ok(paths),
                _ => return Err(protocol_error("an unexpected reply")),
            }
            reply = self.receive()?;
        }
    }

    /// Returns why the epoch of the filesystem rose.
    pub fn raises(&mut self) -> Result<Raises> {
        match self.ask(&Request::Raises)? {
            Reply::Raises(text) => text.parse().map_err(protocol_error),
            _ => Err(protocol_error("an unexpected reply")),
        }
    }

    /// Waits until a copy is written.
    pub fn end_copy(&mut self) -> Result<Option<CopyOutcome>> {
        match self.ask(&Request::EndCopy)? {
            Reply::Copied(outcome) => Ok(outcome),
            _ => Err(protocol_error("an unexpected reply")),
        }
    }

    /// Returns the connection, for a thread that ends the requests.
    pub fn requests(&self) -> Result<OwnedFd> {
        self.channel.duplicate()
    }

    /// Returns whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends the requests and waits until the image is closed.
    pub fn finish(mut self) -> Result<()> {
        self.channel.finish()?;
        let Reply::Closed = self.receive()? else {
            return Err(protocol_error("an unexpected reply"));
        };
        self.child.wait()?;
        Ok(())
    }

    fn receive(&mut self) -> Result<Reply> {
        match self.channel.receive()? {
            Some((Reply::Failed { code, line, list }, _)) => Err(failure_with_list(code, line, list)),
            Some((reply, _)) => Ok(reply),
            None => bail!("the image process {}", describe_exit(self.child.wait()?)),
        }
    }
}

impl Drop for ImageProcess {
    fn drop(&mut self) {
        // The process ends when it has no more requests.
        let _ = self.channel.finish();
        let _ = self.child.wait();
    }
}

/// Returns an error for a message that the image process must not send: a hostile image can take it
/// over.
pub fn protocol_error(what: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("protocol error from the image process: {what}")
}

/// Takes the descriptor of a request.
pub fn descriptor(fds: Vec<std::os::fd::OwnedFd>) -> Result<File> {
    Ok(File::from(fds.into_iter().next().context("a request without a descriptor")?))
}

/// Returns whether two names are of one image, or of two that have a file in common. Its lock would prevent a
/// second open.
pub fn is_same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let ids = |image: &Path| -> Vec<_> {
        let id = |part: &PathBuf| {
            let ImageName { file, partition } = ImageName::parse(part);
            std::fs::metadata(file).map(|meta| (meta.dev(), meta.ino(), partition)).ok()
        };
        split_image(image).iter().filter_map(id).collect()
    };
    let (first, second) = (ids(one), ids(other));
    one == other || first.iter().any(|id| second.contains(id))
}
