//! `cp`: between the system and images, and between images.
//!
//! | module | what it holds |
//! |---|---|
//! | [`stream`] | what travels from the process that reads to the one that writes |
//! | [`source`] | reading: the system's files, an image |
//! | [`sink`] | writing: the system's files, an image |
//!
//! This process touches the system's files and no byte of an image but the marks by which one is known: each image has a [keeper](crate::keeper), locked in. They are joined by
//! one pipe, into which the sources write one after the other.

pub mod sink;
pub mod source;
pub mod stream;

use std::ffi::OsStr;
use std::io::{PipeWriter, pipe};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::failure::{told, usage};
use crate::image::{self, How, Place};
use crate::keeper::{Absorb, Emit, Keeper, Order};
use crate::{args, formats, show};
use sink::Outcome;
use source::{Emitter, Wish};
use stream::{BrokeOff, Message, Number, Sender};

/// The images of a command line, each with its keeper. The first is the one that is written, if one is.
struct Keepers(Vec<(PathBuf, Keeper)>);

impl Keepers {
    /// Open them all, so that nothing is done if one of them cannot be.
    fn start(args: &args::Cp, to: &Place, how: &How) -> Result<Self> {
        let mut wanted: Vec<(PathBuf, How)> = Vec::new();
        if let Place::Image { image, .. } = to {
            wanted.push((image.clone(), How { read_only: false, ..how.clone() }));
        }
        for word in &args.from {
            if let Place::Image { image, .. } = Place::parse(word)
                && !wanted.iter().any(|(open, _)| is_same(open, &image))
            {
                wanted.push((image, how.clone()));
            }
        }
        let open = |(image, how): (PathBuf, How)| -> Result<(PathBuf, Keeper)> {
            let device = image::open_image(&image, &how)?;
            let keeper = Keeper::start(&device, &image, &how)?;
            Ok((image, keeper))
        };
        Ok(Self(wanted.into_iter().map(open).collect::<Result<_>>()?))
    }

    fn finish(self) -> Result<()> {
        self.0.into_iter().try_for_each(|(_, keeper)| keeper.finish().map(drop))
    }

    fn find(&mut self, image: &Path) -> Result<(u32, &mut Keeper)> {
        let at = self.0.iter().position(|(open, _)| is_same(open, image)).context("an image is not open")?;
        // The system's own files are the origin before the first.
        Ok((at as u32 + sink::HOST_ORIGIN + 1, &mut self.0[at].1))
    }
}

/// Whether two words name one image: its lock would keep the second from being opened.
fn is_same(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let number = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}

/// `ivers cp`.
pub fn cp(args: &args::Cp, json: bool) -> Result<()> {
    let args = &args::Cp {
        recursive: args.recursive || args.archive,
        preserve: args.preserve || args.archive,
        ..args.clone()
    };
    let how = args.image.how()?;
    let to = Place::parse(&args.to);
    check_words(args, &to)?;
    let outcome = match &to {
        Place::Image { image, path } => into_image(args, &to, image, path, &how)?,
        Place::Host(path) => onto_host(args, &to, path, &how)?,
    };
    report(args, outcome, json)
}

/// A word that was meant to be IMAGE:/path and is none must not become a file of the system, nor overwrite the image.
fn check_words(args: &args::Cp, to: &Place) -> Result<()> {
    for word in args.from.iter().chain([&args.to]) {
        if let Some(meant) = Place::without_slash(word) {
            return Err(usage(format!(
                "{}: a path in an image begins with a slash: {meant}",
                word.display()
            )));
        }
    }
    if to.image().is_none() && args.from.iter().all(|word| Place::parse(word).image().is_none()) {
        // The likeliest image, for an example.
        let images = || std::iter::once(&args.to).chain(&args.from);
        let image = images().find(|word| formats::holds_filesystem(word));
        let root = image.map_or("IMAGE:/path".into(), |image| image::shown(image, b"/"));
        return Err(usage(format!(
            "no word names something in an image, as {root} does; between files of the system use the system's cp"
        )));
    }
    let Place::Host(path) = to else { return Ok(()) };
    let named = |word: &PathBuf| {
        let name = Place::parse(word).name().filter(|_| path.is_dir());
        name.map_or_else(|| path.clone(), |name| path.join(OsStr::from_bytes(&name)))
    };
    match args.from.iter().map(named).find(|target| formats::holds_filesystem(target)) {
        Some(target) if !args.force => {
            let (target, root) = (target.display(), image::shown(&target, b"/"));
            Err(usage(format!("{target}: holds a filesystem: {root} is in it; --force overwrites all of it")))
        }
        _ => Ok(()),
    }
}

fn into_image(args: &args::Cp, to: &Place, image: &Path, path: &[u8], how: &How) -> Result<Outcome> {
    if how.no_replay {
        return Err(usage("-o norecovery: only where nothing is written, or the journal would be lost"));
    }
    let mut keepers = Keepers::start(args, to, how)?;
    let (from, into) = pipe()?;
    let (origin, keeper) = keepers.find(image)?;
    let (many, preserve) = (args.from.len() > 1, args.preserve);
    let absorb = Absorb { path: path.to_vec(), many, preserve, origin };
    keeper.order(&Order::Absorb(absorb), &[from.as_fd()])?;
    drop(from);
    let fed = feed(args, &mut keepers, None, into);
    // If the writer failed, that is why the sources could not go on.
    let outcome = keepers.0.remove(0).1.finish()?;
    fed?;
    keepers.finish()?;
    outcome.context("the process that writes has nothing to say")
}

fn onto_host(args: &args::Cp, to: &Place, path: &Path, how: &How) -> Result<Outcome> {
    let words: Vec<_> = args.from.iter().map(|word| Place::parse(word).name()).collect();
    let target = sink::Host::new(path, &words, args.preserve)?;
    let mut keepers = Keepers::start(args, to, how)?;
    let (from, into) = pipe()?;
    let (fed, absorbed) = std::thread::scope(|scope| {
        let feeder = scope.spawn(|| feed(args, &mut keepers, target.number(), into));
        let absorbed = sink::absorb(&target, from);
        (feeder.join(), absorbed)
    });
    // A source that died cuts the stream short: its own error says more.
    if absorbed.as_ref().is_err_and(|error| error.is::<BrokeOff>()) {
        fed.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    }
    let outcome = absorbed?;
    keepers.finish()?;
    Ok(outcome)
}

/// Have all sources written into the pipe, in their order.
fn feed(args: &args::Cp, keepers: &mut Keepers, avoid: Option<Number>, into: PipeWriter) -> Result<()> {
    let (recursive, preserve) = (args.recursive, args.preserve);
    let mut host = Emitter::new(sink::HOST_ORIGIN, Wish { recursive, preserve, avoid });
    let mut out = Sender::new(&into);
    for word in &args.from {
        let shown = word.display().to_string();
        match Place::parse(word) {
            Place::Host(path) => {
                let name = image::last_name(path.as_os_str().as_bytes());
                let node = if recursive { Ok(path.clone()) } else { path.canonicalize().map_err(Into::into) };
                host.emit(&source::Host, node, &shown, name, &mut out)?;
            }
            Place::Image { image, path } => {
                let (origin, keeper) = keepers.find(&image)?;
                let emit = Emit { origin, shown, path, recursive, preserve };
                keeper.order(&Order::Emit(emit), &[into.as_fd()])?;
            }
        }
    }
    out.send(&Message::Finish)?;
    out.flush()
}

fn report(args: &args::Cp, outcome: Outcome, json: bool) -> Result<()> {
    if json {
        show::json_line(&serde_json::json!({
            "copied": args.from.len(), "files": outcome.files, "problems": outcome.problems,
        }))?;
    }
    if outcome.problems == 0 { Ok(()) } else { Err(told(outcome.code)) }
}
