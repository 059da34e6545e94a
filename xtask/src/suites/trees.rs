//! Work on many files of a mount: an archive unpacked, many renames, attributes of every size.

use super::{Mount, Volume, told};
use anyhow::{Context, Result, bail};
use ivers_oracle::tree::{TreeOptions, tree};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(crate) const FILES: u32 = 20_000;
const DIRECTORIES: u32 = 100;
/// Bytes of the largest value that Linux takes.
pub(super) const VALUE_MAX: usize = 64 << 10;

/// A sequence of numbers that look random.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(end)) as u32
    }
}

/// Writes `files` files that become the archive. Returns their names.
pub(crate) fn fill(source: &Path, files: u32) -> Result<Vec<PathBuf>> {
    let mut names = Vec::new();
    for number in 0..files {
        let place = number % DIRECTORIES;
        let dir = PathBuf::from(format!("d{}/sub{place}", place % 10));
        if number < DIRECTORIES {
            fs::create_dir_all(source.join(&dir))?;
        }
        let name = dir.join(format!("file-{number}-{}", "n".repeat(number as usize % 40)));
        let path = source.join(&name);
        match number % 50 {
            48 => std::os::unix::fs::symlink("t".repeat(number as usize % 900 + 1), path)?,
            49 => fs::hard_link(source.join(&names[number as usize / 50]), path)?,
            _ => fs::write(path, vec![number as u8; number as usize * 7 % 5000])?,
        }
        names.push(name);
    }
    Ok(names)
}

/// Renames files to new names and over others, once for each name. With `exchanges`, also exchanges names.
/// Updates `names`.
pub(crate) fn rename(root: &Path, names: &mut Vec<PathBuf>, exchanges: bool) -> Result<()> {
    let mut numbers = Numbers(7);
    for number in 0..names.len() as u32 {
        let from = numbers.below(names.len() as u32) as usize;
        let to = numbers.below(names.len() as u32) as usize;
        let what = || format!("rename {number}: {} to {}", names[from].display(), names[to].display());
        match numbers.below(20) {
            0 if from != to => {
                // Two names of one file stay both.
                let is_same = same_file(&root.join(&names[from]), &root.join(&names[to]))?;
                fs::rename(root.join(&names[from]), root.join(&names[to])).with_context(what)?;
                if !is_same {
                    names.swap_remove(from);
                }
            }
            1..=4 if exchanges => {
                let (from, to) = (root.join(&names[from]), root.join(&names[to]));
                renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE).with_context(what)?;
            }
            _ => {
                let dir = names[to].parent().context("files are in directories")?;
                let fresh = dir.join(format!("{number}-{}", "r".repeat(number as usize % 60)));
                fs::rename(root.join(&names[from]), root.join(&fresh)).with_context(what)?;
                names[from] = fresh;
            }
        }
    }
    Ok(())
}

fn same_file(a: &Path, b: &Path) -> Result<bool> {
    Ok(fs::symlink_metadata(a)?.ino() == fs::symlink_metadata(b)?.ino())
}

pub(crate) type Attributes = BTreeMap<(PathBuf, String), Vec<u8>>;

/// Sets attributes in every form: in the inode, in a block, in a tree, with values of their own; on a file, a
/// directory and a link. Replaces and removes some.
fn set_attributes(root: &Path, names: &[PathBuf], value_max: usize) -> Result<Attributes> {
    let mut all = Attributes::new();
    let is_link = |name: &&PathBuf| root.join(name).is_symlink();
    let link = names.iter().find(is_link).context("there are links")?;
    // Attributes of a file with several names would count for each.
    let has_one_name =
        |name: &&PathBuf| fs::symlink_metadata(root.join(name)).is_ok_and(|meta| meta.nlink() == 1);
    let mut files = names.iter().filter(|name| !is_link(name) && has_one_name(name));
    let mut plan: Vec<(PathBuf, String, usize)> = Vec::new();
    for len in [0, 1, 40, 255, 256, 1000, 3000, 4096, 20_000, VALUE_MAX].map(|len| len.min(value_max)) {
        let file = files.next().context("there are files")?;
        plan.push((file.clone(), format!("user.of{len}"), len));
    }
    let (many, few) = (files.next().context("files")?, files.next().context("files")?);
    plan.extend((0..600).map(|n| (many.clone(), format!("user.a-name-of-some-length-{n}"), n % 90)));
    plan.extend((0..25).map(|n| (few.clone(), format!("trusted.{n}"), n * 11)));
    plan.extend((0..12).map(|n| (PathBuf::from("d1"), format!("user.{n}"), n * 40)));
    plan.extend((0..4).map(|n| (link.clone(), format!("trusted.{n}"), n * 30)));
    for (name, attribute, len) in &plan {
        let value = vec![*len as u8; *len];
        xattr::set(root.join(name), attribute, &value)
            .with_context(|| format!("{}: {attribute} of {len} bytes", name.display()))?;
        all.insert((name.clone(), attribute.clone()), value);
    }
    for (number, (name, attribute, len)) in plan.iter().enumerate() {
        let key = (name.clone(), attribute.clone());
        let path = root.join(name);
        match number % 3 {
            0 => {
                xattr::remove(path, attribute).with_context(|| format!("{attribute} is removed"))?;
                all.remove(&key);
            }
            1 => {
                let value = vec![!(*len as u8); (len * 3 + 1).min(value_max)];
                xattr::set(path, attribute, &value).with_context(|| format!("{attribute} is replaced"))?;
                all.insert(key, value);
            }
            _ => {}
        }
    }
    Ok(all)
}

fn names_in(root: &Path, dir: &Path, found: &mut BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(root.join(dir))? {
        let entry = entry?;
        let name = dir.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            names_in(root, &name, found)?;
        } else {
            found.insert(name);
        }
    }
    Ok(())
}

pub(crate) fn compare(root: &Path, names: &[PathBuf], attributes: &Attributes) -> Result<()> {
    let mut found = BTreeSet::new();
    names_in(root, Path::new(""), &mut found)?;
    if found != names.iter().cloned().collect() {
        bail!("{} names instead of {}, or others", found.len(), names.len());
    }
    for ((name, attribute), value) in attributes {
        if xattr::get(root.join(name), attribute)?.as_ref() != Some(value) {
            bail!("{}: {attribute} has another value", name.display());
        }
    }
    let listed = attributes.keys().map(|(name, _)| name).collect::<BTreeSet<_>>();
    let count: usize = listed
        .into_iter()
        .map(|name| xattr::list(root.join(name)).map(Iterator::count))
        .sum::<std::io::Result<usize>>()?;
    if count != attributes.len() {
        bail!("{count} attributes instead of {}", attributes.len());
    }
    Ok(())
}

fn work(ivers: &Path, scratch: &Path, volume: &Volume<'_>) -> Result<()> {
    let (source, archive) = (scratch.join("source"), scratch.join("files.tar"));
    let mut names = fill(&source, FILES)?;
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let (from, to) = (source.to_string_lossy(), archive.to_string_lossy());
    ivers_oracle::run("tar", words(&["-cf", &to, "-C", &from, "."]))?;
    fs::remove_dir_all(&source)?;
    let image = scratch.join("trees.img");
    let mount = |options| {
        Mount::new(ivers, volume.kind, &image, scratch.join("trees"), options).context("the mount fails")
    };
    if !(volume.make)(&image) {
        bail!("the image cannot be made");
    }
    let mounted = mount("writeback_cache")?;
    let root = mounted.dir.clone();
    ivers_oracle::run("tar", words(&["-xf", &to, "-C", &root.to_string_lossy()]))?;
    rename(&root, &mut names, true)?;
    let attributes = set_attributes(&root, &names, volume.value_max)?;
    ivers_oracle::run("sync", words(&["-f", &root.to_string_lossy()]))?;
    compare(&root, &names, &attributes)?;
    let before = tree(&root, TreeOptions::default())?;
    if !mounted.unmount() {
        bail!("the unmount fails");
    }
    if !(volume.is_clean)(&image) {
        bail!("the image is not clean");
    }
    let mounted = mount("ro")?;
    compare(&root, &names, &attributes)?;
    if tree(&root, TreeOptions::default())? != before {
        bail!("the tree is another one after a remount");
    }
    if !mounted.unmount() {
        bail!("the second unmount fails");
    }
    Ok(())
}

/// Runs the work on a volume, which is judged after it.
pub(super) fn run(ivers: &Path, scratch: &Path, volume: &Volume<'_>) -> Option<bool> {
    println!("== trees on {}", volume.name);
    told(work(ivers, scratch, volume))
}
