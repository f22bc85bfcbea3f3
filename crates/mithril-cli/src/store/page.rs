//! `mithril store URL stats --html`: a run as one page with pictures.

use super::report::meta_json;
use crate::failure::Failure;
use crate::inspect::page::{PLACE, script_value};
use crate::output::{Output, Target};
use mithril::checkpoint::CheckpointMeta;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

/// The page without its data.
const TEMPLATE: &str = include_str!("page.html");

/// Groups of tensors that a page shows; of more, the largest.
const MAX_GROUPS: usize = 200;

/// Writes the page.
pub(super) fn write(
    stats: &Value,
    metas: &[CheckpointMeta],
    path: &Path,
    replace: bool,
) -> Result<(), Failure> {
    let mut output = Output::create(&Target::File(path.to_owned()), replace)?;
    let checkpoints: Vec<Value> = metas.iter().map(meta_json).collect();
    let data = json!({ "stats": stats, "checkpoints": checkpoints, "groups": groups(metas) });
    let page = TEMPLATE.replacen(PLACE, &script_value(&data), 1);
    output.write_all(page.as_bytes()).map_err(|error| Failure::write(path.display(), &error))?;
    output.commit().map(|_| ())
}

/// Stored bytes of the whole run by tensor, the largest first.
fn groups(metas: &[CheckpointMeta]) -> Vec<Value> {
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for tensor in metas.iter().flat_map(|meta| &meta.tensors) {
        let sum = sums.entry(&tensor.name).or_default();
        *sum = (sum.0 + tensor.raw_len, sum.1 + tensor.stored_len);
    }
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, (_, stored_len))| std::cmp::Reverse(*stored_len));
    sums.truncate(MAX_GROUPS);
    let value = |(name, (raw_len, stored_len)): (&str, (u64, u64))| json!({ "name": name, "raw_len": raw_len, "stored_len": stored_len });
    sums.into_iter().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_has_one_place_for_data_and_asks_for_nothing_else() {
        assert_eq!(TEMPLATE.matches(PLACE).count(), 1);
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!TEMPLATE.contains(outside), "{outside}");
        }
    }
}
