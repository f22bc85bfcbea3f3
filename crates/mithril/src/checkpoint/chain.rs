//! What a checkpoint is stored against: the objects of its chain, opened, and how long a chain may grow.

use super::error::about;
use super::manifest::{DataObject, StoredTensor};
use super::{CheckpointError, CompressorConfig, Manifest};
use crate::container::{Bases, Content, Entry, EntryKind, Model, Reader};
use crate::pack::{DeltaBudget, Expected, ExpectedSize};
use crate::pipeline::tasks;
use crate::storage::{StorageBackend, StorageErrorKind};
use mithril_format::ReadAt;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The containers of a checkpoint, and those that they need.
pub(super) struct Chain {
    /// The containers of the checkpoint itself.
    pub(super) own: Vec<Reader<Box<dyn ReadAt>>>,
    /// What their tensors are stored against.
    pub(super) bases: Bases,
}

type Opened = Result<Reader<Box<dyn ReadAt>>, CheckpointError>;

/// Objects that are opened at a time: each takes a request or two, which mostly wait.
const N_OPENING: usize = 8;

impl Chain {
    /// Opens all objects of a checkpoint; each is compared with the digest in the manifest before anything is read.
    pub(super) fn open(storage: &dyn StorageBackend, manifest: &Manifest) -> Result<Self, CheckpointError> {
        let mut opened = open_all(storage, manifest).into_iter();
        let own: Vec<Opened> = opened.by_ref().take(manifest.own().len()).collect();
        let bases = needed_bases(manifest, opened)?;
        Ok(Self { own: own.into_iter().collect::<Result<_, _>>()?, bases })
    }

    /// A checkpoint as models that a new one is stored against.
    pub(super) fn open_as_bases(
        storage: &dyn StorageBackend,
        manifest: &Manifest,
    ) -> Result<Bases, CheckpointError> {
        let mut opened = open_all(storage, manifest).into_iter();
        let own: Vec<Opened> = opened.by_ref().take(manifest.own().len()).collect();
        let needed = needed_bases(manifest, opened)?;
        let models = manifest.own().iter().zip(own).map(|(object, reader)| {
            Ok::<_, CheckpointError>(Model::packed(object.key.clone(), reader?, needed.clone()))
        });
        Ok(Bases::new(models.collect::<Result<Vec<_>, _>>()?))
    }
}

/// Opens all objects of a checkpoint, own ones first, several at a time.
fn open_all(storage: &dyn StorageBackend, manifest: &Manifest) -> Vec<Opened> {
    tasks::map(&manifest.objects, N_OPENING, |object| open_object(storage, manifest, object))
}

/// The objects of earlier saves, from old to new: tensors are found in the oldest that has them, which holds their
/// bytes and not only their digest.
fn needed_bases(manifest: &Manifest, opened: impl Iterator<Item = Opened>) -> Result<Bases, CheckpointError> {
    let mut bases = Bases::none();
    for (object, reader) in manifest.needed().iter().zip(opened) {
        let model = Model::packed(object.key.clone(), reader?, bases.clone());
        bases = bases.and(&Bases::new([model]));
    }
    Ok(bases)
}

fn open_object(storage: &dyn StorageBackend, manifest: &Manifest, object: &DataObject) -> Opened {
    let source = open_source(storage, manifest, object)?;
    let reader = Reader::open(source).map_err(about(&manifest.key))?;
    let actual = reader.directory().digest();
    if actual == object.container {
        return Ok(reader);
    }
    Err(CheckpointError::BaseMismatch {
        needed_by: manifest.key.clone(),
        object: object.object.clone(),
        expected: object.container,
        actual,
    })
}

fn open_source(
    storage: &dyn StorageBackend,
    manifest: &Manifest,
    object: &DataObject,
) -> Result<Box<dyn ReadAt>, CheckpointError> {
    storage.open(&object.object).map_err(|error| match error.kind() {
        StorageErrorKind::NotFound => CheckpointError::MissingBase {
            needed_by: manifest.key.clone(),
            base_key: object.key.clone(),
            object: object.object.clone(),
            digest: object.container,
        },
        _ => error.into(),
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
    sizes: &[ExpectedSize],
    config: &CompressorConfig,
) -> DeltaBudget {
    let sizes: HashMap<&str, u64> = sizes.iter().map(|size| (size.name.as_str(), size.against)).collect();
    let mut budget = DeltaBudget::new(config.max_restore_cost - 1.0);
    let mut spare = 0;
    let mut candidates = Vec::new();
    for tensor in &previous.tensors {
        let is_deep = tensor.depth >= config.max_chain_depth;
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

/// What one container of a new save holds, before its place among the other objects is known.
pub(super) struct OwnObject {
    pub(super) object: DataObject,
    pub(super) entries: Vec<Entry>,
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
    let mut linked: Vec<Option<StoredTensor>> = Vec::with_capacity(own.entries.len());
    for entry in &own.entries {
        let stored_len = entry.frame().map_or(0, |(len, _)| len);
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
    for (entry_idx, entry) in own.entries.iter().enumerate() {
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
        let (target_idx, is_ref) = match own.entries[entry_idx].content {
            Content::Ref { entry_idx } => (entry_idx, true),
            Content::Derived { entry_idx, .. } => (entry_idx, false),
            _ => continue,
        };
        let target = linked[target_idx].clone().ok_or_else(|| unlinked(&own.entries[entry_idx]))?;
        if let Some(tensor) = &mut linked[entry_idx] {
            if is_ref {
                tensor.digest = target.digest;
            }
            (tensor.holder, tensor.needs) = (target.holder, target.needs);
            (tensor.depth, tensor.restore_len, tensor.full_len) =
                (target.depth, target.restore_len, target.full_len);
        }
    }
    Ok(own.entries.iter().zip(linked).filter_map(|(entry, tensor)| tensor.filter(|_| !entry.glue)).collect())
}
