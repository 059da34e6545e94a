//! The images and servers that commands work on. They are opened before the sandbox and parsed in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_vfs::{MountOptions, Vfs};

use super::image_files::ImageFiles;
use super::mount_options::ImageArgs;
use super::open::{ImagePath, open_image, open_on, parse_image_path, recognise};
use super::open_options::ImageOptions;
use super::partitions::{self, Disk};
use super::server::ServerConnection;
use super::{glob, sandbox};
use crate::arguments::{is_server, partition_of};
use crate::output::failure::{NOT_FOUND, code, failure};
use crate::output::format::Shown;

/// An image that is open and locked, or a server that is connected. Enter the sandbox before you parse it.
pub enum Source {
    /// An image.
    Image(ImageFiles),
    /// A server, and a path on it. The filesystem of this path decides what the change attributes promise.
    Server(Box<ServerConnection>, Vec<u8>),
}

impl Source {
    /// Opens and locks an image, or connects to a server. `path` is that of a file that the command works on.
    pub fn open(image: &Path, path: &[u8], options: &ImageOptions) -> Result<Self> {
        Ok(if is_server(image) {
            Self::Server(Box::new(ServerConnection::open(image, options)?), path.to_vec())
        } else {
            Self::Image(open_image(image, options)?)
        })
    }

    /// See [`ServerConnection::defer_closes`].
    pub fn defer_closes(&mut self) {
        if let Self::Server(server, _) = self {
            server.defer_closes();
        }
    }

    /// Opens the filesystem. It opens no file, so it works in the sandbox.
    pub fn parse(
        self,
        image: &Path,
        options: &ImageOptions,
        mount_options: MountOptions,
    ) -> Result<Arc<Vfs>> {
        match self {
            Self::Image(files) => open_on(Some(files), image, options, mount_options),
            Self::Server(server, path) => server.open_for_command(&path, options, mount_options),
        }
    }
}

/// Unmounts the filesystem of a command that changed it. Returns an error, too, if data was lost before.
pub fn close(vfs: &Vfs, image: &Path) -> Result<()> {
    vfs.unmount().with_context(|| format!("{}: cannot close the image", image.shown()))?;
    let lost = vfs.data_loss().map_or(Ok(()), Err);
    lost.with_context(|| format!("{}: files lack data that was written to them", image.shown()))
}

/// The images of a command that only reads them. All are opened before the process enters the sandbox and
/// parses the first.
pub struct Images {
    options: ImageOptions,
    images: Vec<(PathBuf, State)>,
}

enum State {
    Opened(Option<Source>),
    Parsed(Arc<Vfs>),
    /// The image could not be parsed: the command ends with this exit code.
    Refused(u8),
}

impl Images {
    /// Opens the images, then enters the sandbox: from then on this process opens no other file.
    pub fn open<'a>(images: impl IntoIterator<Item = &'a Path>, options: &ImageOptions) -> Result<Self> {
        let mut all = Self { options: options.clone(), images: Vec::new() };
        for image in images {
            if !all.images.iter().any(|(other, _)| other == image) {
                let source = Source::open(image, b"", options)?;
                all.images.push((image.to_owned(), State::Opened(Some(source))));
            }
        }
        if !all.images.is_empty() {
            sandbox::enter(options.sandbox);
        }
        Ok(all)
    }

    /// Notes a file that the command works on: see [`Source::Server`]. Only the first one of a server counts.
    pub fn note_path(&mut self, image: &Path, path: &[u8]) {
        for (other, state) in &mut self.images {
            if let State::Opened(Some(Source::Server(_, noted))) = state
                && other == image
                && noted.is_empty()
            {
                *noted = path.to_vec();
            }
        }
    }

    /// Parses operands that must name files of images or servers, opens these, and expands patterns.
    pub fn of_operands(words: &[PathBuf], args: &ImageArgs) -> Result<(Vec<ImagePath>, Self)> {
        let paths: Vec<_> = words.iter().map(|word| parse_image_path(word)).collect::<Result<_>>()?;
        let mut images = Self::open(paths.iter().map(|(image, _)| image.as_path()), &args.options()?)?;
        let mut expanded = Vec::new();
        paths.iter().for_each(|(image, path)| images.note_path(image, path));
        for (image, path) in paths {
            if glob::is_pattern(&path) {
                let vfs = images.get(&image)?;
                let found = match glob::expand(&vfs, &image, &path) {
                    // The command reports the name, and continues with the next operand.
                    Err(error) if code(&error) == NOT_FOUND => vec![path],
                    found => found?,
                };
                expanded.extend(found.into_iter().map(|path| (image.clone(), path)));
            } else {
                expanded.push((image, path));
            }
        }
        Ok((expanded, images))
    }

    /// Returns the partition table of one of the images. `None` if the image contains a filesystem itself, or
    /// if the user named a partition.
    pub fn disk(&self, image: &Path) -> Result<Option<Disk>> {
        let opened = self.images.iter().find(|(other, _)| other == image);
        let Some((_, State::Opened(Some(Source::Image(files))))) = opened else { return Ok(None) };
        let file = &*files.first.device;
        let is_named = self.options.partition.is_some() || partition_of(image, file.path()).is_some();
        if is_named || self.options.offset_bytes > 0 || !files.others.is_empty() {
            return Ok(None);
        }
        match recognise(file, &self.options)?.1 {
            Some(format) if !format.has_partitions => Ok(None),
            _ => partitions::read(file, &image.shown()),
        }
    }

    /// Returns the filesystem of one of the images.
    pub fn get(&mut self, image: &Path) -> Result<Arc<Vfs>> {
        let state = self.images.iter_mut().find(|(other, _)| other == image);
        let (_, state) = state.with_context(|| format!("{} is not open", image.shown()))?;
        let mount_options = MountOptions { background: false, ..MountOptions::default() };
        let opened = match state {
            State::Parsed(vfs) => return Ok(vfs.clone()),
            State::Refused(code) => {
                return Err(failure(*code, format!("{} was not opened: see the first error", image.shown())));
            }
            State::Opened(source) => {
                let source = source.take().context("an image is parsed once")?;
                source.parse(image, &self.options, mount_options)
            }
        };
        *state = match &opened {
            Ok(vfs) => State::Parsed(vfs.clone()),
            Err(error) => State::Refused(code(error)),
        };
        opened
    }
}

/// Tells servers that the client leaves. Images that were only read need no unmount.
impl Drop for Images {
    fn drop(&mut self) {
        for (image, state) in &self.images {
            if let State::Parsed(vfs) = state
                && is_server(image)
            {
                // `unmount` logs its errors, and the command has done its work.
                let _ = vfs.unmount();
            }
        }
    }
}
