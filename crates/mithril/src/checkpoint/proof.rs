//! A save proves itself: what it stored can be read before its manifest says that it is there.

use super::blocking::CheckpointCompressor;
use super::chain::{Against, Chain};
use super::error::about;
use super::{CheckpointError, Manifest};
use crate::container::{Depth, SharedReader};
use std::collections::HashMap;

/// How far a save is checked before it is committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum SaveCheck {
    /// Every tensor is followed through all that it is stored against, by the digests in the indexes of the objects that
    /// the manifest lists. Nothing is decoded.
    #[default]
    Chain,
    /// Besides, all that was written is read back and decoded, and its digests are compared.
    Full,
}

impl CheckpointCompressor {
    /// Makes sure that a checkpoint can be read with what its manifest lists, and nothing else.
    pub(super) fn prove(
        &self,
        manifest: &Manifest,
        own: Vec<SharedReader>,
        against: Option<&Against>,
    ) -> Result<(), CheckpointError> {
        let key = &manifest.key;
        manifest.check(key).map_err(|reason| CheckpointError::InvalidFormat {
            what: format!("the manifest of `{key}` would break a rule: {reason}"),
        })?;
        let known: HashMap<&str, &SharedReader> =
            against.iter().flat_map(|against| against.objects()).collect();
        let needed = manifest.needed().iter().map(|object| {
            let reader = known.get(object.object.as_str()).map(|&reader| SharedReader::clone(reader));
            reader.ok_or_else(|| CheckpointError::InvalidFormat {
                what: format!("`{key}` would need `{}`, which it is not stored against", object.object),
            })
        });
        let chain = Chain::of(own, needed.collect::<Result<_, _>>()?);
        for (own_idx, reader) in chain.own.iter().enumerate() {
            if let Some(error) = chain.unlike(manifest, own_idx) {
                return Err(error);
            }
            if let Some(error) = chain.unresolved(own_idx).next() {
                return Err(about(key)(error));
            }
            if self.config.verify == SaveCheck::Full {
                let found =
                    reader.verify(&chain.bases, Depth::WithBases, self.config.coding.threads, &|_| ());
                if let Some(error) = found.map_err(about(key))?.problems.into_iter().next() {
                    return Err(about(key)(error));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dtype;
    use crate::checkpoint::{Checkpoint, CompressorConfig, TensorData};
    use crate::storage::MemoryStorage;
    use std::sync::Arc;

    /// A manifest that would not list an object which its tensors need is refused, and so is one that says something else
    /// than the container.
    #[test]
    fn what_cannot_be_read_is_not_committed() {
        let store = CheckpointCompressor::new(CompressorConfig::default(), Arc::new(MemoryStorage::new()));
        for step in 0..3u8 {
            let frozen = TensorData::new(vec![7; 4000], [4000], Dtype::U8);
            let moved = (0..4000u32).flat_map(|i| (f32::from(step) * 1e-6 + (i as f32).sin()).to_le_bytes());
            let moved = TensorData::new(moved.collect::<Vec<u8>>(), [4000], Dtype::F32);
            let state = Checkpoint::new().with_tensor("frozen", frozen).with_tensor("moved", moved);
            let previous = step.checked_sub(1).map(|step| format!("step_{step}"));
            store.save(&state, &format!("step_{step}"), previous.as_deref()).unwrap();
        }
        let manifest = Arc::new(store.manifest("step_2").unwrap());
        let chain = Chain::open(&store.store.storage, &manifest).unwrap();
        let own = chain.own.clone();
        let against = Against { manifest: Arc::clone(&manifest), chain };
        store.prove(&manifest, own.clone(), Some(&against)).unwrap();
        assert_eq!(manifest.objects.len(), 3);
        for left_out in 1..3 {
            let mut changed = Manifest::clone(&manifest);
            changed.objects.remove(left_out);
            for tensor in &mut changed.tensors {
                tensor.holder = 0;
                tensor.needs.clear();
            }
            let error = store.prove(&changed, own.clone(), Some(&against)).unwrap_err();
            assert!(error.to_string().contains("is missing"), "{error}");
        }
        let mut changed = Manifest::clone(&manifest);
        let moved = changed.tensors.iter_mut().find(|tensor| tensor.name == "moved").unwrap();
        moved.shape = vec![2, 2000];
        let error = store.prove(&changed, own.clone(), Some(&against)).unwrap_err();
        assert!(error.to_string().contains("do not agree about tensor `moved`"), "{error}");
        let mut changed = Manifest::clone(&manifest);
        changed.objects[2] = changed.objects[1].clone();
        let error = store.prove(&changed, own, Some(&against)).unwrap_err();
        assert!(error.to_string().contains("an object is listed twice"), "{error}");
    }
}
