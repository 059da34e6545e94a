//! Images that are opened in a sandboxed process.
//!
//! From low to high; each module uses only modules above it in this table:
//!
//! | module | contents |
//! |---|---|
//! | [`open_options`] | how an image is opened |
//! | [`formats`], [`foreign_formats`] | the supported formats; names of others, for errors |
//! | [`partitions`] | partition tables, and what is in the partitions |
//! | [`mount_options`] | the options of `-o` |
//! | [`sandbox`] | the sandbox of this process |
//! | [`unmount_status`], [`image_lock`] | how a mount ended; waiting for the lock on an image |
//! | [`image_files`], [`other_devices`] | the files of an open image; finding them when one is named |
//! | [`cycle_guard`], [`sorted_names`], [`directory`] | walks over damaged trees; sorted listings |
//! | [`glob`] | patterns in paths of an image |
//! | [`channel`], [`server`] | messages between processes; connections to NFS servers |
//! | [`process`] | the image process as its command sees it |
//! | [`open`] | opening the files of an image and the filesystem in it |
//! | [`images`] | the images and servers that a command names |
//! | [`inode_handle`], [`filler`] | filling a directory with files that are named by path |

pub mod channel;
pub mod cycle_guard;
pub mod directory;
pub mod filler;
pub mod foreign_formats;
pub mod formats;
pub mod glob;
pub mod image_files;
pub mod image_lock;
pub mod images;
pub mod inode_handle;
pub mod mount_options;
pub mod open;
pub mod open_options;
pub mod other_devices;
pub mod partitions;
pub mod process;
pub mod sandbox;
pub mod server;
pub mod sorted_names;
pub mod unmount_status;
