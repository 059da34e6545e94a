//! Setting the label of a filesystem.

use crate::error::{NameError, Result};
use crate::vfs::Vfs;

impl Vfs {
    /// Sets the label durably; an empty one removes it. [`FsInfo::label`](crate::FsInfo::label) shows it from
    /// the next mount on.
    pub fn set_label(&self, label: &str) -> Result<()> {
        let labels = self.fs.labels().ok_or(NameError::NotSupported)?;
        let root = self.root()?;
        {
            let _lock = self.exclusive(&root)?;
            self.begin_change()?;
            self.with_space(|| labels.set_label(&root, label))?;
        }
        self.guarded(|| self.fs.sync())
    }
}
