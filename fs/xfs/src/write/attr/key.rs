//! Which attribute a change is about.

use crate::attr::{Attribute, Value};
use crate::da::hash_name;
use crate::layout::bytes::number;

/// Which attribute it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Key<'a> {
    /// Bits of the namespace.
    pub namespace: u8,
    pub name: &'a [u8],
    /// Of a parent pointer: its value, since one name may be in several directories.
    pub value: Option<&'a [u8]>,
}

impl Key<'_> {
    /// The hash under which it is found.
    pub fn hash(&self) -> u32 {
        match self.value.and_then(|value| number(value, 0, 8)) {
            Some(parent) => hash_name(self.name) ^ (parent >> 32) as u32 ^ parent as u32,
            None => hash_name(self.name),
        }
    }

    pub fn is(&self, attribute: &Attribute) -> bool {
        let same_value =
            self.value.is_none_or(|wanted| matches!(&attribute.value, Value::Here(value) if value == wanted));
        attribute.is(self.namespace, self.name) && same_value
    }
}
