//! `mithril store URL stats --html`: a run as one page with pictures.

use super::failed;
use super::report::meta_json;
use crate::failure::Failure;
use crate::report;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{CheckpointError, CheckpointMeta};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The sections of the page and the script that fills them.
pub(crate) const BODY: &str = include_str!("page.html");

/// Groups of tensors that a page shows; of more, the largest.
const MAX_GROUPS: usize = 200;

/// Writes the page.
pub(super) fn write(
    store: &CheckpointCompressor,
    stats: &Value,
    metas: &[CheckpointMeta],
    path: &Path,
    replace: bool,
) -> Result<(), Failure> {
    let checkpoints: Vec<Value> = metas.iter().map(meta_json).collect();
    let data = json!({ "stats": stats, "checkpoints": checkpoints, "groups": groups(store, metas)? });
    report::write(BODY, &data, path, replace).map(|_| ())
}

/// Stored bytes of the whole run by tensor, the largest first. Manifests are read one by one: their tensors take much memory.
fn groups(store: &CheckpointCompressor, metas: &[CheckpointMeta]) -> Result<Vec<Value>, Failure> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for meta in metas {
        let manifest = match store.manifest(&meta.key) {
            // Deleted since it was listed.
            Err(CheckpointError::NotFound { .. }) => continue,
            found => found.map_err(|error| failed(&error))?,
        };
        for tensor in manifest.tensors {
            let sum = sums.entry(tensor.name).or_default();
            *sum = (sum.0 + tensor.raw_len, sum.1 + tensor.stored_len);
        }
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (_, stored_len))| std::cmp::Reverse(*stored_len));
    sums.truncate(MAX_GROUPS);
    let value = |(name, (raw_len, stored_len)): (String, (u64, u64))| json!({ "name": name, "raw_len": raw_len, "stored_len": stored_len });
    Ok(sums.into_iter().map(value).collect())
}
