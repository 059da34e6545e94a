//! Replies: the result of a request, and how to send it on success.

use super::Ops;
use fuser::*;

pub(super) type Reply<T> = std::result::Result<T, Errno>;

/// A reply that can return an error instead.
pub(super) trait Refuse {
    fn refuse(self, error: Errno);
}

macro_rules! refuse {
    ($($reply:ty),*) => {
        $(impl Refuse for $reply {
            fn refuse(self, error: Errno) {
                self.error(error);
            }
        })*
    };
}

refuse!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLock,
    ReplyLseek,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite,
    ReplyXattr
);

impl Ops {
    /// Sends the result of a request. The last step of serving it.
    pub(super) fn answer<T, R: Refuse>(
        &self,
        request: &Request,
        reply: R,
        result: Reply<T>,
        send: impl FnOnce(R, T),
    ) {
        self.0.answer(request.pid(), || match result {
            Ok(value) => send(reply, value),
            Err(error) => reply.refuse(error),
        });
    }

    pub(super) fn empty(&self, request: &Request, reply: ReplyEmpty, result: Reply<()>) {
        self.answer(request, reply, result, |reply, ()| reply.ok());
    }
}

/// Sends an attribute's value, or only its size if the caller asks for that.
pub(super) fn value(value: &[u8], size: u32, reply: ReplyXattr) {
    if size == 0 {
        reply.size(value.len() as u32);
    } else if value.len() > size as usize {
        reply.error(Errno::ERANGE);
    } else {
        reply.data(value);
    }
}
