//! What is in a store: `list`, `log`, `show`, `diff`, `stats`.

use super::arguments::{DiffArguments, JsonArguments, LogArguments, ShowArguments, StatsArguments};
use super::{check_exists, counted, failed, page, resolve};
use crate::failure::{Failure, print, print_json, tell};
use crate::table::Table;
use mithril::checkpoint::blocking::CheckpointCompressor;
use mithril::checkpoint::{CheckpointMeta, Listing, Manifest, StoredTensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Lists the checkpoints.
pub(super) fn list(store: &CheckpointCompressor, arguments: &JsonArguments) -> Result<(), Failure> {
    check_exists(store)?;
    let listing = store.list().map_err(|error| failed(&error))?;
    if arguments.json {
        let unreadable = listing.unreadable.iter();
        let unreadable: Vec<_> =
            unreadable.map(|(key, error)| json!({ "key": key, "error": error.to_string() })).collect();
        let checkpoints: Vec<_> = listing.checkpoints.iter().map(meta_json).collect();
        print_json(&json!({
            "checkpoints": checkpoints, "unreadable": unreadable, "foreign": listing.foreign,
        }))?;
    } else {
        print(table(&listing.checkpoints))?;
        tell_unreadable(&listing);
        if listing.checkpoints.is_empty() && listing.unreadable.is_empty() {
            tell(&format!("there is no checkpoint in `{}`", store.storage().location()));
        }
    }
    refuse_unreadable(&listing)
}

fn tell_unreadable(listing: &Listing) {
    for object in &listing.foreign {
        tell(&format!("warning: `{object}` is none of the store's, and is left alone"));
    }
    for (key, error) in &listing.unreadable {
        tell(&format!("error: `{key}` cannot be read: {error}"));
    }
}

fn refuse_unreadable(listing: &Listing) -> Result<(), Failure> {
    let worst = listing.unreadable.iter().map(|(_, error)| failed(error).fault()).max();
    worst.map_or(Ok(()), |fault| Err(Failure::Reported(fault)))
}

/// Lists a checkpoint and those that it was stored against.
pub(super) fn log(store: &CheckpointCompressor, arguments: &LogArguments) -> Result<(), Failure> {
    let mut key = Some(resolve(store, arguments.key.as_deref().unwrap_or(super::LATEST))?);
    let mut metas: Vec<CheckpointMeta> = Vec::new();
    let mut gone = None;
    while let Some(next) = key.take() {
        // A key may have been deleted and used again, and then its line leads elsewhere or in a circle.
        if metas.iter().any(|meta| meta.key == next) {
            break;
        }
        match store.meta(&next) {
            Ok(meta) => {
                key = meta.base.clone();
                metas.push(meta);
            }
            Err(mithril::checkpoint::CheckpointError::NotFound { .. }) if !metas.is_empty() => {
                gone = Some(next)
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    if arguments.json {
        let checkpoints: Vec<_> = metas.iter().map(meta_json).collect();
        return print_json(&json!({ "checkpoints": checkpoints, "deleted": gone }));
    }
    print(table(&metas))?;
    if let Some(gone) = gone {
        tell(&format!("`{gone}`, which came before, was deleted; what is needed of it is kept"));
    }
    Ok(())
}

fn table(metas: &[CheckpointMeta]) -> String {
    let mut table = Table::new(
        3,
        ["key", "base", "saved", "step", "raw bytes", "stored", "ratio", "tensors", "depth", "restore reads"],
    );
    for meta in metas {
        table.push([
            meta.key.clone(),
            meta.base.clone().unwrap_or_else(|| "-".to_owned()),
            meta.saved.clone().unwrap_or_else(|| "-".to_owned()),
            if meta.has_step { meta.step.to_string() } else { "-".to_owned() },
            meta.original_size.to_string(),
            meta.compressed_size.to_string(),
            format!("{:.2}", meta.ratio),
            meta.n_tensors.to_string(),
            meta.depth.to_string(),
            meta.restore_len.to_string(),
        ]);
    }
    table.render()
}

/// What is known of a checkpoint, as JSON.
pub(super) fn meta_json(meta: &CheckpointMeta) -> Value {
    let kinds: BTreeMap<&str, Value> = meta
        .kinds
        .iter()
        .map(|(kind, total)| {
            let value =
                json!({ "n": total.n_tensors, "raw_len": total.raw_len, "stored_len": total.stored_len });
            (kind.name(), value)
        })
        .collect();
    json!({
        "key": meta.key,
        "step": meta.has_step.then_some(meta.step),
        "generation": meta.generation,
        "base": meta.base,
        "original_size": meta.original_size,
        "compressed_size": meta.compressed_size,
        "ratio": meta.ratio,
        "seconds": meta.seconds,
        "saved": meta.saved,
        "depth": meta.depth,
        "restore_len": meta.restore_len,
        "n_tensors": meta.n_tensors,
        "kinds": kinds,
    })
}

/// Describes a checkpoint.
pub(super) fn show(store: &CheckpointCompressor, arguments: &ShowArguments) -> Result<(), Failure> {
    let key = resolve(store, &arguments.key)?;
    let manifest = store.manifest(&key).map_err(|error| failed(&error))?;
    if arguments.json {
        return print_json(&manifest);
    }
    let mut facts = Table::new(2, ["checkpoint", &key]);
    let mut fact = |name: &str, value: String| facts.push([name.to_owned(), value]);
    match manifest.has_step() {
        true => fact("step", manifest.step.to_string()),
        false => fact("step", format!("none; saved after {}", manifest.step)),
    }
    fact("generation", manifest.generation.clone());
    if let Some(saved) = &manifest.saved {
        fact("saved", saved.clone());
    }
    fact("written by", format!("{}, effort {}", manifest.writer, manifest.effort));
    if let Some(previous) = &manifest.previous {
        fact("stored against", previous.key.clone());
    }
    fact("raw bytes", manifest.raw_len.to_string());
    fact("stored bytes", manifest.stored_len().to_string());
    let deltas = match manifest.depth() {
        0 => "no deltas".to_owned(),
        depth => format!("{} at most", counted(depth as usize, "delta")),
    };
    fact("restore reads", format!("{} bytes, {deltas}", manifest.restore_len()));
    for object in manifest.own() {
        let file = object.file.as_deref().unwrap_or("tensors from memory");
        fact("data", format!("{} ({file})", object.object));
    }
    for object in manifest.needed() {
        fact("needs", format!("{} of `{}`", object.object, object.key));
    }
    for (name, value) in &manifest.metadata {
        fact("metadata", format!("{name} = {value}"));
    }
    let mut tensors =
        Table::new(4, ["tensor", "dtype", "shape", "kind", "raw bytes", "stored", "ratio", "depth"]);
    for tensor in &manifest.tensors {
        let shape: Vec<String> = tensor.shape.iter().map(u64::to_string).collect();
        tensors.push([
            tensor.name.escape_debug().to_string(),
            tensor.dtype.clone(),
            format!("[{}]", shape.join(", ")),
            tensor.kind.clone(),
            tensor.raw_len.to_string(),
            tensor.stored_len.to_string(),
            ratio(tensor.raw_len, tensor.stored_len),
            tensor.depth.to_string(),
        ]);
    }
    print(format!("{}\n{}", facts.render(), tensors.render()))
}

fn ratio(raw_len: u64, stored_len: u64) -> String {
    if stored_len == 0 { "-".to_owned() } else { format!("{:.2}", raw_len as f64 / stored_len as f64) }
}

/// Says which tensors differ.
pub(super) fn diff(store: &CheckpointCompressor, arguments: &DiffArguments) -> Result<(), Failure> {
    let open = |key: &str| -> Result<Manifest, Failure> {
        let key = resolve(store, key)?;
        store.manifest(&key).map_err(|error| failed(&error))
    };
    let (old, new) = (open(&arguments.old)?, open(&arguments.new)?);
    let by_name = |manifest: &Manifest| -> BTreeMap<String, StoredTensor> {
        manifest.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect()
    };
    let (old_tensors, new_tensors) = (by_name(&old), by_name(&new));
    let mut rows = Vec::new();
    let mut n_equal = 0;
    for (name, tensor) in &new_tensors {
        let what = match old_tensors.get(name) {
            None => "only in the second",
            Some(before) if before.digest == tensor.digest && before.dtype == tensor.dtype => {
                n_equal += 1;
                continue;
            }
            Some(before) if before.shape != tensor.shape || before.dtype != tensor.dtype => {
                "other type or shape"
            }
            Some(_) => "changed",
        };
        rows.push((name.clone(), what, tensor.raw_len, tensor.stored_len));
    }
    for (name, tensor) in old_tensors.iter().filter(|(name, _)| !new_tensors.contains_key(*name)) {
        rows.push((name.clone(), "only in the first", tensor.raw_len, 0));
    }
    if arguments.json {
        let tensors: Vec<_> = rows
            .iter()
            .map(|(name, what, raw_len, stored_len)| {
                json!({ "name": name, "difference": what, "raw_len": raw_len, "stored_len": stored_len })
            })
            .collect();
        return print_json(&json!({
            "old": old.key, "new": new.key, "n_equal": n_equal, "tensors": tensors,
            "metadata_equal": old.metadata == new.metadata,
        }));
    }
    let mut table = Table::new(2, ["tensor", "difference", "raw bytes", "stored"]);
    for (name, what, raw_len, stored_len) in rows {
        table.push([
            name.escape_debug().to_string(),
            what.to_owned(),
            raw_len.to_string(),
            stored_len.to_string(),
        ]);
    }
    let is_or_are = if n_equal == 1 { "is" } else { "are" };
    print(format!("{}{} {is_or_are} equal\n", table.render(), counted(n_equal, "tensor")))
}

/// Says how large the store is.
pub(super) fn stats(store: &CheckpointCompressor, arguments: &StatsArguments) -> Result<(), Failure> {
    check_exists(store)?;
    let listing = store.list().map_err(|error| failed(&error))?;
    let metas = &listing.checkpoints;
    let raw_len: u64 = metas.iter().map(|meta| meta.original_size).sum();
    let objects = store.storage().list("data").map_err(|error| failed(&error.into()))?;
    let stored_len: u64 = objects.iter().map(|object| object.len).sum();
    let mut kinds: BTreeMap<&str, (usize, u64, u64)> = BTreeMap::new();
    for (kind, total) in metas.iter().flat_map(|meta| &meta.kinds) {
        let sum = kinds.entry(kind.name()).or_default();
        *sum = (sum.0 + total.n_tensors, sum.1 + total.raw_len, sum.2 + total.stored_len);
    }
    let deepest = metas.iter().map(|meta| meta.depth).max().unwrap_or(0);
    let value = json!({
        "store": store.storage().location(),
        "n_checkpoints": metas.len(),
        "n_unreadable": listing.unreadable.len(),
        "n_objects": objects.len(),
        "original_size": raw_len,
        "stored_size": stored_len,
        "ratio": raw_len as f64 / stored_len.max(1) as f64,
        "max_depth": deepest,
        "kinds": kinds.iter().map(|(kind, (n, raw_len, stored_len))| {
            ((*kind).to_owned(), json!({ "n": n, "raw_len": raw_len, "stored_len": stored_len }))
        }).collect::<serde_json::Map<_, _>>(),
    });
    // A page without some of the checkpoints would look like one of all.
    if let Some(path) = arguments.html.as_ref().filter(|_| listing.unreadable.is_empty()) {
        page::write(store, &value, metas, path, arguments.force)?;
        tell(&format!("wrote `{}`", path.display()));
    }
    if arguments.json {
        print_json(&value)?;
        return refuse_unreadable(&listing);
    }
    let mut facts = Table::new(1, ["checkpoints", &metas.len().to_string()]);
    if !listing.unreadable.is_empty() {
        facts.push(["unreadable".to_owned(), listing.unreadable.len().to_string()]);
    }
    facts.push(["raw bytes".to_owned(), raw_len.to_string()]);
    facts.push(["stored bytes".to_owned(), stored_len.to_string()]);
    facts.push(["ratio".to_owned(), ratio(raw_len, stored_len)]);
    facts.push(["data objects".to_owned(), objects.len().to_string()]);
    facts.push(["deepest chain".to_owned(), deepest.to_string()]);
    let mut table = Table::new(1, ["kind", "tensors", "raw bytes", "stored", "ratio"]);
    for (kind, (n, raw_len, stored_len)) in kinds {
        let cells = [kind.to_owned(), n.to_string(), raw_len.to_string(), stored_len.to_string()];
        let [kind, n, raw, stored] = cells;
        table.push([kind, n, raw, stored, ratio(raw_len, stored_len)]);
    }
    print(format!("{}\n{}", facts.render(), table.render()))?;
    tell_unreadable(&listing);
    refuse_unreadable(&listing)
}
