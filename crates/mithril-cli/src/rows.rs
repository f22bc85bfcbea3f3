//! Rows of a report in JSON, each made when it is written: a file may have a million tensors.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// Things, and what a report says of each.
pub(crate) struct Rows<'a, T>(pub(crate) &'a [T], pub(crate) fn(&T) -> Value);

impl<T> Serialize for Rows<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}
