//! The images of a server: opened before the sandbox, mounted in it.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use ivers_block::Budget;
use ivers_nfsd::exports::config::{ExportConfig, Secured};
use ivers_nfsd::server::Exported;
use ivers_vfs::{Cred, Vfs};

use super::plan::{self, ExportPlan};
use crate::arguments::canonical_image;
use crate::image::image_files::ImageFiles;
use crate::image::open::{open_device_or_fall_back, open_on};
use crate::image::open_options::ImageOptions;
use crate::output::failure::{REFUSED, failure, line, usage};
use crate::output::format::Shown;
use crate::process;

/// An image that is open and not parsed.
pub struct Opened {
    plan: ExportPlan,
    files: Option<ImageFiles>,
    /// Why it is open for reading only, if that was not requested.
    read_only_because: Option<String>,
    image: PathBuf,
}

/// A filesystem that is served.
pub struct Mounted {
    /// The export.
    pub config: ExportConfig,
    /// The filesystem.
    pub vfs: Arc<Vfs>,
    /// The requested options, which a reload compares with its own.
    pub image_options: ImageOptions,
    /// The image.
    pub image: PathBuf,
    /// Why it is read-only, if that was not requested.
    pub read_only_because: Option<String>,
    device: Option<Vec<u8>>,
}

/// Returns whether an export requires TLS of some clients.
pub fn requires_tls(config: &ExportConfig) -> bool {
    let requires = |tls: Option<Secured>| tls.is_some_and(|tls| tls != Secured::Optional);
    std::iter::once(&config.settings).chain(&config.rules).any(|settings| requires(settings.tls))
}

/// Opens the images of all exports. Each may be exported once.
pub fn open_all(plans: impl Iterator<Item = ExportPlan>) -> Result<Vec<Opened>> {
    let mut images: Vec<Opened> = Vec::new();
    for plan in plans {
        let opened = open(plan)?;
        let same = |other: &Opened| other.files.is_some() && device_name(other) == device_name(&opened);
        if opened.files.is_some() && images.iter().any(same) {
            return Err(usage(format!("{}: exported twice; remove one export", opened.image.shown())));
        }
        images.push(opened);
    }
    share_memory(&mut images);
    Ok(images)
}

/// Gives each image a budget that shrinks while the process is larger than all of them together. Called
/// before the sandbox.
fn share_memory(images: &mut [Opened]) {
    // A filesystem in memory is larger than its caches.
    if images.iter().any(|opened| opened.files.is_none()) {
        return;
    }
    let all: u64 = images.iter().map(|opened| opened.plan.image_options.cache_bytes).sum();
    for Opened { plan, .. } in images {
        let own = plan.image_options.cache_bytes;
        let Some(meter) = process::resident_meter() else { return };
        let without_others = move || meter().map(|bytes| bytes.saturating_sub(all - own));
        plan.vfs.budget = Some(Arc::new(Budget::with_meter(own, Box::new(without_others))));
    }
}

fn open(plan: ExportPlan) -> Result<Opened> {
    let context = || format!("export {}", plan.config.name);
    let mut image = plan.config.image.clone();
    if plan.fs_type != "mem" {
        image = canonical_image(&image)
            .with_context(|| format!("{}: cannot open {}", context(), image.shown()))?;
    }
    let opened = open_device_or_fall_back(&plan.fs_type, &image, &plan.image_options);
    let (files, read_only_because) = opened.with_context(context)?;
    if let Some(why) = read_only_because.as_ref().filter(|_| plan.writable) {
        return Err(not_writable(&plan.config, &image, why));
    }
    Ok(Opened { plan, files, read_only_because, image })
}

fn device_name(opened: &Opened) -> Vec<u8> {
    plan::device_name(&opened.image, &opened.plan.image_options)
}

fn not_writable(config: &ExportConfig, image: &Path, why: &str) -> anyhow::Error {
    let (name, image) = (&config.name, image.shown());
    failure(
        REFUSED,
        format!("export {name}: {image} cannot be written: {why}; omit rw to serve it read-only"),
    )
}

/// Opens the filesystems of all images.
pub fn mount_all(images: Vec<Opened>) -> Result<Vec<Mounted>> {
    let mut mounted = Vec::new();
    for opened in images {
        match mount(opened) {
            Ok(one) => mounted.push(one),
            Err(error) => {
                // Nothing was served, so the other images are unchanged.
                let _ = unmount_all(&mounted);
                return Err(error);
            }
        }
    }
    Ok(mounted)
}

fn mount(opened: Opened) -> Result<Mounted> {
    let name = opened.files.as_ref().map(|_| device_name(&opened));
    let Opened { plan, files, read_only_because, image } = opened;
    let ExportPlan { config, image_options, vfs, writable, .. } = plan;
    let read_only = image_options.read_only || read_only_because.is_some();
    let actual_options = ImageOptions { read_only, ..image_options.clone() };
    let vfs =
        open_on(files, &image, &actual_options, vfs).with_context(|| format!("export {}", config.name))?;
    let because = vfs.health().read_only.filter(|_| !image_options.read_only);
    let read_only_because = read_only_because.or(because);
    if let Some(why) = &read_only_because {
        if writable {
            vfs.unmount()?;
            return Err(not_writable(&config, &image, why));
        }
        log::warn!("{}: served read-only: {why}", config.name);
    }
    Ok(Mounted { config, vfs, image_options, image, device: name, read_only_because })
}

impl Mounted {
    /// Returns whether the export may be written and yet no client can create the first file: only root may
    /// write to the root directory, all clients' root is another user, and no other directory exists.
    pub fn admits_no_writer(&self) -> bool {
        let all = || std::iter::once(&self.config.settings).chain(&self.config.rules);
        let keeps_root = all().any(|one| one.root_squash == Some(false) || one.anonuid == Some(0));
        if self.vfs.is_read_only() || keeps_root {
            return false;
        }
        let Ok(root) = self.vfs.root() else { return false };
        let attr = self.vfs.stat(&root);
        if attr.uid != 0 || attr.perm & 0o002 != 0 {
            return false;
        }
        let mut is_empty = true;
        let read = self.vfs.readdir(&Cred::root(), &root, 0, &mut |entry| {
            is_empty &= matches!(entry.name, b"." | b".." | b"lost+found");
            if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        is_empty && read.is_ok()
    }

    /// Converts the export to the type of the server.
    pub fn exported(&self) -> Exported {
        Exported { config: self.config.clone(), vfs: self.vfs.clone(), device: self.device.clone() }
    }
}

/// Closes all images, also after an error. Returns the first error and logs the others.
pub fn unmount_all(mounted: &[Mounted]) -> Result<()> {
    let mut all = Ok(());
    for one in mounted {
        let closed = one.vfs.unmount().with_context(|| format!("cannot close {}", one.image.shown()));
        if let (Err(error), Err(_)) = (&closed, &all) {
            log::error!("{}", line(error));
        }
        all = all.and(closed);
    }
    all
}
