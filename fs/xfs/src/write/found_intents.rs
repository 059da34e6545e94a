//! Intents that recovery found, and what finishes them.

use super::intents::Intent;
use super::space::{Space, journal_error};
use super::tx::Tx;
use super::works::Logged;
use crate::inode::Dinode;
use crate::log::{FoundIntent, intent_id, object, order_of};
use ivers_journal::{JournalError, ObjectId};
use ivers_vfs::{Error, Result};
use std::sync::Arc;

/// The type of a log item, which a record lacks.
const TYPE_BYTES: usize = 2;

impl Space {
    fn adopt(&self, id: ObjectId, record: &[u8]) -> Logged {
        let logged = Logged { id, record: record.into() };
        let finish_credits = match id.kind {
            object::ATTRIBUTE | object::MAPPING => self.credits_of_attribute(),
            _ => self.credits_of_change(),
        };
        self.journal.adopt(Arc::new(Intent { logged: logged.clone(), finish_credits }));
        logged
    }

    /// Finishes what recovery found. `load` returns the newest version of an inode.
    pub(crate) fn finish_intents(
        &self,
        mut found: Vec<FoundIntent>,
        load: &dyn Fn(u64) -> Result<Dinode>,
    ) -> Result<()> {
        let id_of = |intent: &FoundIntent| intent_id(intent.kind, intent.id);
        // What one kind changes needs that of the kinds before it: a block loses its owners before it is
        // freed, and blocks of attributes need the owners that the reverse map gets.
        found.sort_by_key(|intent| {
            let kind = id_of(intent).map(|id| id.kind);
            (kind == Some(object::ATTRIBUTE), kind.map(order_of))
        });
        let mut all = Vec::new();
        for intent in &found {
            let id = id_of(intent).ok_or_else(|| self.corrupt_log("an intent of unknown type".into()))?;
            let item = intent.regions.concat();
            let record = item.get(TYPE_BYTES..).ok_or_else(|| self.bad_intent(id, "it is too short"))?;
            // No other transaction begins before all are adopted.
            all.push((intent, self.adopt(id, record)));
        }
        for (intent, logged) in all {
            match logged.id.kind {
                object::ATTRIBUTE => self.finish_parent_intent(intent, logged, load)?,
                object::MAPPING => self.finish_map_intent(intent, logged, load)?,
                _ => self.begin_finishing(logged.id, &logged.record)?.finish()?,
            }
        }
        Ok(())
    }

    /// An empty transaction that finishes an intent which recovery found.
    pub(super) fn finishing(&self, id: ObjectId, credits: u32) -> Result<Tx<'_>> {
        let handle = self.journal.begin_finishing(id, credits).map_err(|error| match error {
            JournalError::TooLarge { .. } => Error::Incompatible(
                "the log has no space to finish its intents: mount and unmount the image with Linux".into(),
            ),
            error => journal_error(error),
        })?;
        Ok(Tx::new(self, handle, credits))
    }

    /// Begins the transaction that finishes an intent which recovery found: [`Tx::finish`] does the work. An
    /// intent that changes files is refused.
    pub(crate) fn begin_finishing(&self, id: ObjectId, record: &[u8]) -> Result<Tx<'_>> {
        let works = self.works(id, record)?;
        let logged = self.adopt(id, record);
        let mut tx = self.finishing(id, self.credits_of_change())?;
        tx.deferred.push_from_intent(works, logged);
        Ok(tx)
    }
}
