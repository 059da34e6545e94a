//! When changes become durable.

use ivers_nfs4::status::Res;
use ivers_vfs::InodeRef;

use crate::compound::Object;
use crate::compound::status::OrStatus;

/// Makes changes of names and attributes durable before the reply, unless the export is `async`. Then they
/// become durable within the commit interval of the mount. Data is separate: WRITE and COMMIT report when it
/// is durable, and the names that lead to it are durable with it.
pub(crate) fn commit_now(object: &Object, inodes: &[&InodeRef]) -> Res<()> {
    if object.is_deferred() { Ok(()) } else { object.vfs().commit(inodes).nfs() }
}
