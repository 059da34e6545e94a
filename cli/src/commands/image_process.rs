//! The image process itself: see [`crate::image::process`].

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use ivers_block::{FileDevice, FileRange, OpenMode};
use ivers_vfs::raises::RAISED_BY;
use ivers_vfs::{Cred, MountOptions, Vfs};

use super::changed::walk::write_state;
use super::cp::interrupt::{self, Interrupted};
use super::cp::reader::{self, ReadOptions, Reader};
use super::cp::stream::{FileId, Sender, Truncated};
use super::cp::writer::{self, WriteOptions};
use super::edit::job::Job;
use super::measure;
use super::mkfs::{fill, spec};
use crate::arguments::{image_path_bytes, is_server, last_name};
use crate::image::channel::Channel;
use crate::image::image_files::ImageFiles;
use crate::image::images::{self, Source};
use crate::image::open_options::ImageOptions;
use crate::image::process::{CopyOutcome, PartitionPlace, ReadCopy, Reply, Request, WriteCopy, descriptor};
use crate::image::server::ServerConnection;
use crate::image::{glob, partitions, sandbox};
use crate::output::colours::Colours;
use crate::output::failure::{self, FAILED, failure};
use crate::output::format::Shown;
use crate::output::progress;
use crate::process;

/// Runs an image process.
pub fn run() -> Result<()> {
    let channel = Channel::inherited()?;
    // Signals of a terminal reach the command too. It decides what they mean: when it ends the requests, or
    // ends, the image is closed. Copies, jobs of `edit` and the filling of a new filesystem end early.
    interrupt::catch()?;
    let reply = match serve(&channel) {
        Ok(()) => Reply::Closed,
        Err(error) => failed(&error),
    };
    // If the command has ended, nothing waits for the reply.
    let _ = channel.send(&reply, &[]);
    Ok(())
}

fn failed(error: &anyhow::Error) -> Reply {
    let (line, list) = failure::short_parts(error);
    Reply::Failed { code: failure::code(error), line, list }
}

fn serve(channel: &Channel) -> Result<()> {
    let (request, fds) = channel.receive()?.context("an image process is started by other commands only")?;
    match request {
        Request::Open { image, options, files, facts_of, quiet, json } => {
            if quiet {
                progress::silence();
            }
            if let Some(operands) = json {
                failure::print_json_about(operands);
            }
            let image = PathBuf::from(OsString::from_vec(image));
            let source = if is_server(&image) {
                let connection = descriptor(fds)?.into();
                Source::Server(Box::new(ServerConnection::adopt(&image, connection, &options)?), facts_of)
            } else {
                Source::Image(ImageFiles::adopt_some(&image, files, fds, options.open_mode())?)
            };
            serve_image(channel, source, image, &options)
        }
        Request::FindPartition { image, wanted, sandbox } => {
            let image = PathBuf::from(OsString::from_vec(image));
            let device = FileDevice::adopt(descriptor(fds)?, image.clone(), OpenMode::ReadOnly)?;
            sandbox::enter(sandbox);
            let (disk, at) = partitions::find(&device, &image.shown(), &wanted)?;
            let FileRange { start, len } = disk.partition(at)?.range;
            let place = PartitionPlace { start, len, in_rdb: disk.is_rdb() };
            channel.send(&Reply::Partition(place), &[])
        }
        _ => bail!("no image is open"),
    }
}

fn serve_image(channel: &Channel, source: Source, image: PathBuf, options: &ImageOptions) -> Result<()> {
    if options.read_only {
        // A reader has nothing to close. If the command ends during a long walk, the lock on the image must
        // not stay.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    }
    // These look outside the sandbox.
    Colours::of_stdout();
    let budget = process::metered_budget(options.cache_bytes);
    sandbox::enter(options.sandbox);
    let mount_options = MountOptions { background: !options.read_only, budget, ..MountOptions::default() };
    let vfs = source.parse(&image, options, mount_options)?;
    if let Some(why) = vfs.health().read_only.as_ref().filter(|_| !options.read_only) {
        return Err(failure(FAILED, format!("{}: read-only: {why}", image.shown())));
    }
    channel.send(&Reply::Done, &[])?;
    let mut jobs = Jobs {
        vfs: vfs.clone(),
        image,
        channel,
        reader: None,
        exclude: None,
        writer: None,
        spec: Vec::new(),
    };
    let served = jobs.run();
    let written = jobs.end_copy();
    // Unmount also on error, so that earlier writes reach the image.
    // A server is told that the client leaves.
    let has_end = !options.read_only || is_server(&jobs.image);
    let closed = if has_end { images::close(&vfs, &jobs.image) } else { Ok(()) };
    served?;
    written?;
    closed
}

struct Jobs<'a> {
    vfs: Arc<Vfs>,
    image: PathBuf,
    channel: &'a Channel,
    reader: Option<Reader>,
    /// The directory that a copy is written to.
    exclude: Option<FileId>,
    writer: Option<JoinHandle<Result<CopyOutcome>>>,
    /// What the next request applies to a new filesystem.
    spec: Vec<spec::Entry>,
}

impl Jobs<'_> {
    /// Answers requests until the command ends them. A request that fails does not end the others.
    fn run(&mut self) -> Result<()> {
        while let Some((request, fds)) = self.channel.receive()? {
            let reply = self.execute(request, fds).unwrap_or_else(|error| failed(&error));
            self.channel.send(&reply, &[])?;
        }
        Ok(())
    }

    fn execute(&mut self, request: Request, fds: Vec<OwnedFd>) -> Result<Reply> {
        match request {
            Request::Spec => self.spec = fill::read_spec(descriptor(fds)?)?,
            Request::Fill(options) => {
                let stop = || interrupt::is_set() || self.channel.is_finished();
                return fill::from_archive(&self.vfs, descriptor(fds)?, &self.spec, &options, &stop)
                    .map(Reply::Filled);
            }
            Request::Open { .. } | Request::FindPartition { .. } => bail!("an image is open already"),
            Request::Raises => {
                let facts = self.vfs.fs().describe();
                let found = facts.into_iter().find(|(name, _)| name == RAISED_BY);
                return Ok(Reply::Raises(found.map_or(String::new(), |(_, text)| text)));
            }
            Request::Walk { path } => {
                write_state(&self.vfs, &self.image, &path, descriptor(fds)?)?;
            }
            Request::Measure { path } => {
                measure::image::measure(&self.vfs, &self.image, &path, descriptor(fds)?)?
            }
            Request::WriteCopy(WriteCopy {
                path,
                many,
                preserve,
                origin,
                no_clobber,
                dry_run,
                verbose,
                json,
            }) => {
                let pipe = descriptor(fds)?;
                let options = WriteOptions { no_clobber, dry_run, verbose, json };
                let operand = image_path_bytes(&self.image, &path);
                let target = writer::Image::new(self.vfs.clone(), origin, &path, operand, many, preserve)?;
                self.exclude = Some(target.dir_id());
                let thread = std::thread::Builder::new().name("ivers-writer".into());
                self.writer = Some(thread.spawn(move || writer::write_copy(&target, options, pipe))?);
            }
            Request::ReadCopy(ReadCopy { origin, operand, path, recursive, preserve, contents }) => {
                let pipe = descriptor(fds)?;
                let options = ReadOptions { recursive, preserve, contents, exclude: self.exclude };
                let reader = self.reader.get_or_insert_with(|| Reader::new(origin, options));
                let source = reader::Image(self.vfs.clone());
                let file = self.vfs.resolve(&Cred::root(), &path, !recursive).map_err(Into::into);
                reader.read_operand(&source, file, &operand, last_name(&path), &mut Sender::new(pipe))?;
            }
            Request::EndCopy => return Ok(Reply::Copied(self.end_copy()?)),
            Request::Expand { path } => {
                for path in glob::expand(&self.vfs, &self.image, &path)? {
                    self.channel.send(&Reply::Path(path), &[])?;
                }
            }
            Request::Edit(job) => {
                let job: Job = serde_json::from_value(job)?;
                interrupt::clear();
                let stop = || interrupt::is_set() || self.channel.is_finished();
                return Ok(Reply::Edited(job.run(&self.vfs, &self.image, &stop)));
            }
        }
        Ok(Reply::Done)
    }

    /// Waits for the writer of a copy, if there is one.
    fn end_copy(&mut self) -> Result<Option<CopyOutcome>> {
        (self.reader, self.exclude) = (None, None);
        let written = self.writer.take().map(JoinHandle::join);
        // The signal that ended this copy must not end the next.
        interrupt::clear();
        let Some(written) = written else { return Ok(None) };
        match written.unwrap_or_else(|_| bail!("the writer panicked")) {
            // The process that wrote to the pipe, or the writer itself, reports why it stopped.
            Err(error) if error.is::<Truncated>() || error.is::<Interrupted>() => Ok(None),
            outcome => outcome.map(Some),
        }
    }
}
