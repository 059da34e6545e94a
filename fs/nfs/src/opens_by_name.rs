//! Opens by name for NFSv4.0, which cannot open a filehandle.
//!
//! The driver remembers the newest known name of each file. If another file has this name when it is opened,
//! the open fails with [`NameError::Stale`], and the caller looks the name up again.

use std::sync::Arc;

use ivers_nfs4::ops::Op;
use ivers_nfs4::ops::v40::{OpenClaim, Opened, SeqState};
use ivers_nfs4::types::{FileHandle, OpenHow, StateId};
use ivers_vfs::{Cred, Error, NameError, Result};

use crate::attributes::{self, FileAttributes};
use crate::file_open::{Busy, FileOpen};
use crate::opens::{Opens, Pace, open_op};
use crate::owner_seqids::THIS_VERSION;
use crate::reply::take;

impl Opens {
    /// Sends OPEN with the name of a file.
    pub(crate) fn ask_by_name(
        &self,
        file: &Arc<FileOpen>,
        caller: &Cred,
        access: u32,
        pace: Pace,
    ) -> Result<(Opened, Option<(FileAttributes, u64)>)> {
        let place = self.client.name();
        let (dir, name) = file.name().ok_or(NameError::Stale)?;
        let ops = [
            Op::PutFh(dir),
            open_op(access, OpenHow::NoCreate, OpenClaim::Null(name)),
            Op::GetFh(()),
            Op::GetAttr(attributes::of_file()),
        ];
        let opened = self.call(caller, &ops, pace)?.up_to(3, place);
        let (mut results, sent) = opened.map_err(|error| match error {
            // The name is gone, or has another type.
            Error::Name(
                NameError::NotFound | NameError::IsDirectory | NameError::Loop | NameError::NotDirectory,
            ) => NameError::Stale.into(),
            other => other,
        })?;
        results.skip();
        let opened = take!(results, Open)?;
        let handle = take!(results, GetFh)?;
        if handle != file.handle {
            self.close_another(&handle, opened.stateid, caller, pace);
            return Err(NameError::Stale.into());
        }
        self.granted(file, &opened.delegation, false, (sent, 0));
        let attributes = results.attributes(place)?.map(|attributes| (attributes, sent));
        Ok((opened, attributes))
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
