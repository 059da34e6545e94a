//! Opens by name for NFSv4.0, which cannot open a filehandle.
//!
//! The driver remembers names of each file. If no name leads to the file when it is opened, the open fails
//! with [`NameError::Stale`], and the caller looks the file up again.

use std::sync::Arc;

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{OpenClaim, Opened, SeqState, share};
use ivers_nfs4::types::{FileHandle, OpenHow, StateId};
use ivers_vfs::{Cred, Error, NameError, Result};

use crate::attributes::{self, FileAttributes};
use crate::file_names::FileName;
use crate::file_open::{Busy, FileOpen};
use crate::opens::{Opens, Pace, open_op};
use crate::owner_seqids::THIS_VERSION;
use crate::reply::take;

/// What OPEN returned, and the attributes of the file with the number of their request.
type Asked = (Opened, Option<(FileAttributes, u64)>);

impl Opens {
    /// Sends OPEN with a name of a file, and with its other names if that one is gone.
    pub(crate) fn ask_by_name(
        &self,
        file: &Arc<FileOpen>,
        caller: &Cred,
        access: u32,
        pace: Pace,
    ) -> Result<Asked> {
        let mut refused = NameError::Stale.into();
        for name in file.with_names(|names| names.all()) {
            match self.ask_with_name(file, &name, caller, access, pace) {
                Ok(Some(asked)) => return Ok(asked),
                Ok(None) => file.with_names(|names| names.forget(&name.0, &name.1)),
                // This caller may be able to search the directory of another name.
                Err(error @ Error::Name(NameError::Access)) => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Sends OPEN with one name. `None`: the file no longer has it.
    fn ask_with_name(
        &self,
        file: &Arc<FileOpen>,
        (dir, name): &FileName,
        caller: &Cred,
        access: u32,
        pace: Pace,
    ) -> Result<Option<Asked>> {
        let place = self.client.name();
        let ops = [
            Op::PutFh(dir.clone()),
            open_op(access, OpenHow::NoCreate, OpenClaim::Null(name.clone())),
            Op::GetFh(()),
            Op::GetAttr(attributes::of_file()),
        ];
        let (mut results, sent) = match self.call(caller, &ops, pace)?.up_to(3, place) {
            // The name or its directory is gone, or has another type.
            Err(Error::Name(
                NameError::NotFound
                | NameError::IsDirectory
                | NameError::Loop
                | NameError::NotDirectory
                | NameError::Stale,
            )) => return Ok(None),
            other => other?,
        };
        results.skip();
        let opened = take!(results, Open)?;
        let handle = take!(results, GetFh)?;
        if handle != file.handle {
            self.close_another(&handle, opened.stateid, caller, pace);
            return Ok(None);
        }
        self.granted(file, &opened.delegation, share::WANT_NO_DELEG, (sent, 0));
        let attributes = results.attributes(place)?.map(|attributes| (attributes, sent));
        Ok(Some((opened, attributes)))
    }

    /// Closes the other file that the name led to, unless this client has it open. If another thread is
    /// opening or closing that file, it stays open on the server: that thread may wait for this one, so this
    /// one must not wait.
    fn close_another(&self, handle: &FileHandle, stateid: StateId, caller: &Cred, pace: Pace) {
        let other = self.table.find(handle);
        {
            let mut state = other.state.lock();
            if state.busy || state.access != 0 {
                return;
            }
            state.busy = true;
        }
        let _busy = Busy(&other);
        let ops = [Op::PutFh(handle.clone()), Op::Close(SeqState { seqid: THIS_VERSION, stateid })];
        if let Err(error) = self.call(caller, &ops, pace) {
            log::info!("{}: CLOSE: {error}", self.client.name());
        }
    }
}
