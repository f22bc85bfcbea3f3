//! What a checkpoint is stored against: the objects of its chain, opened, and how long a chain may grow.

use super::error::about;
use super::let_go::LetGo;
use super::manifest::{DataObject, StoredTensor};
use super::sources::Sources;
use super::{CheckpointError, CompressorConfig, Manifest};
use crate::Error;
use crate::container::{Bases, Content, Entry, EntryKind, Lineage, Model, Reader, SharedReader, digest_of};
use crate::pack::{DeltaBudget, Expected, ExpectedSize};
use crate::pipeline::tasks;
use crate::storage::{StorageBackend, StorageErrorKind};
use mithril_format::limits::{MAX_SECTION_RATIO, SMALL_SECTION_LEN};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The containers of a checkpoint, and those that they need.
pub(super) struct Chain {
    /// The containers of the checkpoint itself.
    pub(super) own: Vec<SharedReader>,
    /// What their tensors are stored against: the other objects that the manifest lists.
    pub(super) bases: Bases,
}

/// A checkpoint that a new one is stored against.
pub(super) struct Against {
    pub(super) manifest: Arc<Manifest>,
    pub(super) chain: Chain,
}

impl Against {
    /// As models, without the tensors that are let go.
    pub(super) fn models(&self, let_go: &LetGo<'_>) -> Bases {
        let objects = self.manifest.own().iter().zip(&self.chain.own).enumerate();
        Bases::new(objects.map(|(own_idx, (object, reader))| {
            let is_kept = |entry: &Entry| !let_go.contains(&(own_idx, entry.name.as_str()));
            let (name, reader, bases) = (object.key.clone(), Arc::clone(reader), self.chain.bases.clone());
            Model::packed_part(name, reader, bases, is_kept)
        }))
    }

    /// All its objects by their keys.
    pub(super) fn objects(&self) -> impl Iterator<Item = (&str, &SharedReader)> {
        let keys = self.manifest.objects.iter().map(|object| object.object.as_str());
        keys.zip(self.chain.own.iter().chain(self.chain.bases.lineage_readers()))
    }
}

/// Objects that are opened at a time: each takes a request or two, which mostly wait.
const N_OPENING: usize = 8;

/// Bytes of indexes beyond what one container may make of its coded bytes, of all objects together: indexes of up to a
/// mebibyte may come of any number of coded bytes, so that many objects of few bytes could take any memory.
const MAX_INDEX_EXCESS: u64 = 32 * SMALL_SECTION_LEN;

impl Chain {
    /// Opens all objects of a checkpoint; each is compared with the digest in the manifest before anything is read.
    pub(super) fn open(
        storage: &Arc<dyn StorageBackend>,
        manifest: &Manifest,
    ) -> Result<Self, CheckpointError> {
        let sources = Sources::new(storage);
        let excess = AtomicU64::new(0);
        let numbered: Vec<_> = manifest.objects.iter().enumerate().collect();
        let opened = tasks::map(&numbered, N_OPENING, |&(number, object)| {
            let reader = open_object(&sources, manifest, number, object)?;
            let (coded, raw) = reader.directory().index_lens();
            let more = raw.saturating_sub(coded.saturating_mul(MAX_SECTION_RATIO));
            if excess.fetch_add(more, Ordering::Relaxed).saturating_add(more) > MAX_INDEX_EXCESS {
                let what = format!("the indexes of the objects of `{}` take too much memory", manifest.key);
                return Err(CheckpointError::InvalidFormat { what });
            }
            Ok(reader)
        });
        let mut own = opened.into_iter().collect::<Result<Vec<_>, _>>()?;
        let needed = own.split_off(manifest.n_own);
        Ok(Self::of(own, needed))
    }

    /// Containers, and those of earlier saves that they are stored against, from old to new.
    pub(super) fn of(own: Vec<SharedReader>, needed: Vec<SharedReader>) -> Self {
        let bases = Bases::of_lineage(Lineage::new(needed, &own));
        Self { own, bases }
    }

    /// What one of the containers needs and cannot be read with what the manifest lists, as far as indexes tell.
    pub(super) fn unresolved(&self, own_idx: usize) -> impl Iterator<Item = Error> {
        let reader = &self.own[own_idx];
        let entries = 0..reader.entries().len();
        entries.filter_map(|entry_idx| reader.resolve(entry_idx, &self.bases).err())
    }

    /// The first tensor of one of the containers of which the manifest does not say what its index says.
    pub(super) fn unlike(&self, manifest: &Manifest, own_idx: usize) -> Option<CheckpointError> {
        let entries = self.own[own_idx].entries();
        let mut stored = entries.iter().enumerate().filter(|(_, entry)| !entry.glue);
        let mut listed = manifest.tensors.iter().filter(|tensor| tensor.object == own_idx);
        let name = loop {
            match (stored.next(), listed.next()) {
                (None, None) => return None,
                (Some((entry_idx, entry)), Some(tensor)) => {
                    let digest = digest_of(entries, entry_idx);
                    let is_same = tensor.name == entry.name
                        && tensor.dtype() == Some(entry.dtype)
                        && tensor.shape == entry.shape
                        && tensor.raw_len == entry.raw_len()
                        && tensor.entry_kind() == Some(entry.kind())
                        && tensor.stored_len == entry.stored_len()
                        && digest.is_none_or(|digest| digest == tensor.digest);
                    if !is_same {
                        break &entry.name;
                    }
                }
                (Some((_, entry)), None) => break &entry.name,
                (None, Some(tensor)) => break &tensor.name,
            }
        };
        let object = manifest.objects.get(own_idx).map_or("", |object| object.object.as_str());
        let what = format!(
            "the manifest of `{}` and the index of `{object}` do not agree about tensor `{}`",
            manifest.key,
            name.escape_debug()
        );
        Some(CheckpointError::InvalidFormat { what })
    }
}

fn open_object(
    sources: &Arc<Sources>,
    manifest: &Manifest,
    number: usize,
    object: &DataObject,
) -> Result<SharedReader, CheckpointError> {
    let source = sources.open(number, &object.object).map_err(|error| match error.kind() {
        StorageErrorKind::NotFound => CheckpointError::MissingBase {
            needed_by: manifest.key.clone(),
            base_key: object.key.clone(),
            object: object.object.clone(),
            digest: object.container,
        },
        _ => error.into(),
    })?;
    let reader = Reader::open(source).map_err(about(&manifest.key))?;
    let actual = reader.directory().digest();
    if actual == object.container {
        return Ok(Arc::new(reader));
    }
    Err(CheckpointError::BaseMismatch {
        needed_by: manifest.key.clone(),
        object: object.object.clone(),
        expected: object.container,
        actual,
    })
}

/// The tensors whose deltas can only be judged by a sample: nothing is known of earlier ones.
pub(super) fn without_deltas(previous: &Manifest) -> BTreeSet<&str> {
    let full = previous.tensors.iter().filter(|tensor| tensor.depth == 0);
    full.map(|tensor| tensor.name.as_str()).collect()
}

/// The part of what deltas may take that is kept for those that take more than expected.
const RESERVED_PART: i64 = 32;

/// What the deltas of a new save may take. Chains end at a depth, and a restore of all of the checkpoint stays within its
/// bound: bytes beyond a full restore go first to those tensors that save most for each of them.
pub(super) fn delta_budget(
    previous: &Manifest,
    let_go: &LetGo<'_>,
    sizes: &[ExpectedSize],
    config: &CompressorConfig,
) -> DeltaBudget {
    let sizes: HashMap<&str, u64> = sizes.iter().map(|size| (size.name.as_str(), size.against)).collect();
    let mut budget = DeltaBudget::new(config.max_restore_cost - 1.0);
    let mut spare = 0;
    let mut candidates = Vec::new();
    for tensor in &previous.tensors {
        let is_deep =
            tensor.depth >= config.max_chain_depth || let_go.contains(&(tensor.object, tensor.name.as_str()));
        let full = signed(tensor.full_len).max(1);
        let deltas = signed(tensor.restore_len) - full;
        // What follows from another tensor adds nothing to a restore; most likely it does so again.
        if matches!(tensor.entry_kind(), Some(EntryKind::Ref | EntryKind::Derived)) {
            let expected = if is_deep { Expected::Full } else { Expected::Link };
            budget.plan(&tensor.name, full, deltas, expected);
            continue;
        }
        spare += budget.allowed(full);
        if is_deep {
            budget.plan(&tensor.name, full, deltas, Expected::Full);
            continue;
        }
        let len = match sizes.get(tensor.name.as_str()) {
            Some(&len) => signed(len),
            // As much as those before it, on average.
            None => deltas / i64::from(tensor.depth).max(1),
        };
        let extra = (deltas + len).max(1);
        candidates.push(((full - len).max(0) as f64 / extra as f64, len, extra, tensor));
    }
    // By name among equals, so that the same input gives the same choice.
    candidates.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.3.name.cmp(&b.3.name)));
    // What deltas will take is not known exactly.
    let reserve = spare / RESERVED_PART;
    for (_, len, extra, tensor) in candidates {
        let is_worth_it = extra <= spare - reserve;
        if is_worth_it {
            spare -= extra;
        }
        let full = signed(tensor.full_len).max(1);
        let expected = if is_worth_it { Expected::Delta(len) } else { Expected::Full };
        budget.plan(&tensor.name, full, signed(tensor.restore_len) - full, expected);
    }
    budget
}

fn signed(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

/// One container of a new save, before its place among the other objects is known.
pub(super) struct OwnObject {
    pub(super) object: DataObject,
    pub(super) reader: SharedReader,
}

/// Works out what every tensor of a new save needs, from its containers and the manifest it was stored against. Returns
/// the objects, own ones first, and the tensors.
pub(super) fn link(
    own: Vec<OwnObject>,
    previous: Option<&Manifest>,
) -> Result<(Vec<DataObject>, Vec<StoredTensor>), CheckpointError> {
    let n_own = own.len();
    let mut used = BTreeSet::new();
    let mut tensors = Vec::new();
    // Numbers of the previous manifest's objects are told from new ones by an offset, and replaced below.
    let by_name: HashMap<&str, &StoredTensor> = previous
        .iter()
        .flat_map(|manifest| &manifest.tensors)
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    let by_digest: HashMap<_, _> = previous
        .iter()
        .flat_map(|manifest| manifest.tensors.iter().rev())
        .map(|tensor| (tensor.digest, tensor))
        .collect();
    for (object_idx, own) in own.iter().enumerate() {
        let linked = link_entries(own, object_idx, n_own, &by_name, &by_digest)?;
        for tensor in &linked {
            used.extend(tensor.needs.iter().chain([&tensor.holder]).filter(|&&idx| idx >= n_own).copied());
        }
        tensors.extend(linked);
    }
    let mut objects: Vec<DataObject> = own.into_iter().map(|own| own.object).collect();
    let mut places = BTreeMap::new();
    if let Some(previous) = previous {
        // From old to new: what it needs, then itself.
        let n_previous = previous.objects.len();
        let chronological = (previous.n_own..n_previous).chain(0..previous.n_own);
        for idx in chronological.filter(|idx| used.contains(&(idx + n_own))) {
            places.insert(idx + n_own, objects.len());
            objects.push(previous.objects[idx].clone());
        }
    }
    let place = |idx: usize| places.get(&idx).copied().unwrap_or(idx);
    for tensor in &mut tensors {
        tensor.holder = place(tensor.holder);
        tensor.needs = tensor.needs.iter().map(|&idx| place(idx)).collect();
        tensor.needs.sort_unstable();
        tensor.needs.dedup();
        tensor.needs.retain(|&idx| idx != tensor.holder);
    }
    Ok((objects, tensors))
}

fn link_entries(
    own: &OwnObject,
    object_idx: usize,
    n_own: usize,
    by_name: &HashMap<&str, &StoredTensor>,
    by_digest: &HashMap<mithril_format::Digest, &StoredTensor>,
) -> Result<Vec<StoredTensor>, CheckpointError> {
    let unlinked = |entry: &Entry| CheckpointError::InvalidFormat {
        what: format!(
            "`{}`: tensor `{}` has no base in the previous checkpoint",
            own.object.object, entry.name
        ),
    };
    let mut linked: Vec<Option<StoredTensor>> = Vec::with_capacity(own.reader.entries().len());
    for entry in own.reader.entries() {
        let stored_len = entry.stored_len();
        let mut tensor = StoredTensor {
            name: entry.name.clone(),
            dtype: entry.dtype.name().to_owned(),
            shape: entry.shape.clone(),
            raw_len: entry.raw_len(),
            stored_len,
            kind: entry.kind().name().to_owned(),
            digest: entry.digest.unwrap_or(mithril_format::Digest([0; 32])),
            object: object_idx,
            holder: object_idx,
            needs: Vec::new(),
            depth: 0,
            restore_len: stored_len,
            full_len: stored_len,
        };
        if let Some((digest, name)) = entry.base() {
            let base = by_name.get(name).filter(|base| base.digest == digest);
            let base = base.or_else(|| by_digest.get(&digest)).ok_or_else(|| unlinked(entry))?;
            tensor.needs = base.needs.iter().map(|idx| idx + n_own).collect();
            (tensor.depth, tensor.full_len) = (base.depth, base.full_len);
            tensor.restore_len += base.restore_len;
            match entry.content {
                Content::Copy { .. } => {
                    (tensor.holder, tensor.digest) = (base.holder + n_own, digest);
                }
                _ => {
                    tensor.needs.push(base.holder + n_own);
                    tensor.depth += 1;
                }
            }
        }
        linked.push(Some(tensor));
    }
    // What the moments need that tell where a base went.
    for (entry_idx, entry) in own.reader.entries().iter().enumerate() {
        let Some(step) = entry.step() else { continue };
        let mut needs = Vec::new();
        for (&moment_idx, digest) in step.moments.iter().zip(&step.base_moments) {
            let moment = linked[moment_idx].as_ref().ok_or_else(|| unlinked(entry))?;
            needs.extend(moment.needs.iter().chain([&moment.holder]).filter(|&&idx| idx >= n_own));
            let base = by_name.get(moment.name.as_str()).filter(|base| base.digest == *digest);
            let base = base.or_else(|| by_digest.get(digest)).ok_or_else(|| unlinked(entry))?;
            needs.extend(base.needs.iter().chain([&base.holder]).map(|idx| idx + n_own));
        }
        if let Some(tensor) = &mut linked[entry_idx] {
            tensor.needs.extend(needs);
        }
    }
    // Entries that take their bytes from others of the same container, which may come later.
    for entry_idx in 0..linked.len() {
        let (target_idx, is_ref) = match own.reader.entries()[entry_idx].content {
            Content::Ref { entry_idx } => (entry_idx, true),
            Content::Derived { entry_idx, .. } => (entry_idx, false),
            _ => continue,
        };
        let target = linked[target_idx].clone().ok_or_else(|| unlinked(&own.reader.entries()[entry_idx]))?;
        if let Some(tensor) = &mut linked[entry_idx] {
            if is_ref {
                (tensor.digest, tensor.holder, tensor.needs) = (target.digest, target.holder, target.needs);
            } else {
                // What a later save copies is looked for by its digest, which only this container lists.
                tensor.needs = target.needs;
                tensor.needs.push(target.holder);
            }
            (tensor.depth, tensor.restore_len, tensor.full_len) =
                (target.depth, target.restore_len, target.full_len);
        }
    }
    Ok(own
        .reader
        .entries()
        .iter()
        .zip(linked)
        .filter_map(|(entry, tensor)| tensor.filter(|_| !entry.glue))
        .collect())
}
