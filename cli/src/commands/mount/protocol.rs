//! Messages between the supervisor and the worker of a mount.

use serde::{Deserialize, Serialize};

use super::measurement::MeasureSetup;
use crate::image::image_files::SentFile;

/// A message from the supervisor to the worker.
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Measure files that are opened in the mount; with the descriptors of list, policy and keys.
    Measure(MeasureSetup),
    /// Open the image; with the descriptors of its files.
    Open {
        /// Open it read-only, whatever the options say.
        read_only: bool,
        /// Its files; none for a filesystem in memory.
        files: Vec<SentFile>,
    },
    /// Open the server; with a connection to it, and with the channel that more come from.
    OpenServer,
    /// Wait for the server no longer: the last message of a mount of one.
    GiveUp,
    /// Serve the mount; with the descriptors of `ivers_fuse::MountChannels`.
    Serve {
        /// The thread IDs of the connection.
        thread_ids: Vec<u32>,
        /// The process ID of the supervisor.
        pid: u32,
    },
}

/// A message from the worker to the supervisor, which does not trust it.
#[derive(Debug, Serialize, Deserialize)]
pub enum Event {
    /// The filesystem is open.
    Opened {
        /// Why it is read-only, if it is.
        read_only: Option<String>,
    },
    /// The worker serves requests of the kernel.
    Serving,
    /// The mount is gone. The image is being closed.
    Ended,
    /// The image is closed.
    Closed {
        /// Files that lack data that programs wrote.
        lost_files: u64,
        /// The names of the first ones.
        names: Vec<String>,
    },
    /// The worker failed and ends.
    Failed {
        /// The exit code.
        code: u8,
        /// The error.
        line: String,
    },
}
