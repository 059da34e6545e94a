//! One module per command, with its arguments and help.
//!
//! From low to high; each command uses only commands above it in this table:
//!
//! | module | command |
//! |---|---|
//! | [`stat`], [`ls`], [`cat`], [`tree`], [`du`], [`info`], [`check`], [`scrub`], [`label`], [`resize`],
//! [`unmount`] | the command of that name |
//! | [`changed`] | `changed`, and the walks that it shares with the image process |
//! | [`measure`] | `measure` |
//! | [`cp`] | `cp` |
//! | [`tar`] | `tar`, and the reading of archives that it shares with `mkfs` |
//! | [`mkfs`] | `mkfs`, and the filling of a new filesystem that it shares with the image process |
//! | [`edit`] | `rm`, `mkdir`, `mv`, `ln`, `chmod`, `chown`, `touch`, `attr` |
//! | [`shell`] | `shell` |
//! | [`mount`] | `mount`: supervisor and worker |
//! | [`serve`] | `serve` and its helper |
//! | [`stats`] | `stats`, of a mount or a server |
//! | [`fuse2fs`] | `mount` with the command line of fuse2fs |
//! | [`man_page`], [`manpages`] | `man` and `completions` |
//! | [`image_process`] | the image process (hidden) |

pub mod cat;
pub mod changed;
pub mod check;
pub mod cp;
pub mod du;
pub mod edit;
pub mod fuse2fs;
pub mod image_process;
pub mod info;
pub mod label;
pub mod ls;
pub mod man_page;
pub mod manpages;
pub mod measure;
pub mod mkfs;
pub mod mount;
pub mod resize;
pub mod scrub;
pub mod serve;
pub mod shell;
pub mod stat;
pub mod stats;
pub mod tar;
pub mod tree;
pub mod unmount;
