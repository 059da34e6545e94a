//! Parent pointers that the log promises.
//!
//! Linux changes them after the entry of the directory, in transactions of their own. What it had done when
//! it stopped is in the inode: each of these changes is one transaction that leaves the attributes whole.

use super::space::Space;
use super::works::Logged;
use crate::inode::Dinode;
use crate::layout::features::Incompat;
use crate::log::{FoundIntent, ParentIntent};
use ivers_vfs::Result;

impl Space {
    /// Does what an intent of a parent pointer promises. `load` returns the newest version of an inode.
    pub(super) fn finish_parent_intent(
        &self,
        intent: &FoundIntent,
        logged: Logged,
        load: &dyn Fn(u64) -> Result<Dinode>,
    ) -> Result<()> {
        let id = logged.id;
        let decoded = ParentIntent::decode(&intent.regions).map_err(|what| self.bad_intent(id, &what))?;
        let Some(change) = decoded.filter(|_| self.sb.incompat.contains(Incompat::PARENT)) else {
            return Err(self.bad_intent(id, "it is not of a parent pointer"));
        };
        let mut inode = self.inode_of_intent(&logged, change.ino, load)?;
        if inode.generation() != change.generation {
            return Err(self.bad_intent(id, "its inode is another one now"));
        }
        let mut tx = self.finishing(id, self.credits_of_attribute())?;
        tx.complete_parent(&mut inode, change.old, change.new)?;
        inode.log(&mut tx)?;
        tx.deferred.push_from_intent(Vec::new(), logged);
        tx.finish()
    }
}
