//! The options of `mount`.

use std::path::PathBuf;

use crate::arguments::Completed;
use crate::image::mount_options::COMPLETED_OPTIONS;

/// The types that shells complete. The aliases are left out.
const TYPES: &[&str] =
    &["auto", "ext4", "ext3", "ext2", "fat", "affs", "xfs", "btrfs", "ocfs2", "ufs", "mem"];

/// Options of `mount`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = super::help::HELP)]
pub struct Args {
    /// The image file or block device, a partition of one: IMAGE@PARTITION, several of one btrfs:
    /// IMAGE,IMAGE, or nfs://server/path (with --type mem: any word)
    pub image: PathBuf,
    /// The directory to mount on
    pub dir: PathBuf,
    /// Mount options, separated by commas
    #[arg(
        short = 'o',
        value_name = "OPTIONS",
        value_parser = Completed(COMPLETED_OPTIONS),
        hide_possible_values = true
    )]
    pub options: Vec<String>,
    /// Mount read-only: the same as -o ro
    #[arg(short, long, visible_alias = "ro")]
    pub read_only: bool,
    /// The filesystem: auto (recognised), ext4 (also ext2 and ext3), fat, affs (OFS and FFS of the Amiga),
    /// xfs, btrfs, ocfs2, ufs (UFS1 and UFS2), or mem (in memory)
    #[arg(
        short = 't',
        long = "type",
        value_name = "TYPE",
        default_value = "auto",
        value_parser = Completed(TYPES),
        hide_possible_values = true
    )]
    pub fs_type: String,
    /// Stay in the foreground until unmounted
    #[arg(short, long)]
    pub foreground: bool,
    /// Append messages to this file (default: ivers/ivers.log under $XDG_STATE_HOME or ~/.local/state). At
    /// 1 MiB the older half is removed. In the foreground they go to standard error
    #[arg(long, value_name = "FILE", conflicts_with = "foreground")]
    pub log: Option<PathBuf>,
    /// Fall back to read-only even with `rw`, which mount(8) always passes.
    #[arg(long, hide = true)]
    pub rw_optional: bool,
    /// Run as the supervisor of a background mount.
    #[arg(long, hide = true)]
    pub supervisor: bool,
    /// Run as the worker.
    #[arg(long, hide = true)]
    pub worker: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::formats::FORMATS;

    #[test]
    fn shells_complete_every_format() {
        for format in FORMATS {
            assert!(TYPES.contains(&format.names[0]), "{}", format.title);
        }
    }
}
