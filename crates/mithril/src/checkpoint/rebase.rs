//! Making a checkpoint independent of all others.

use super::blocking::CheckpointCompressor;
use super::chain;
use super::original::OriginalFile;
use super::save::{Permit, Request, SourceFile, new_generation};
use super::{CheckpointError, CheckpointMeta, Manifest, key};
use crate::pack::writer_name;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

impl CheckpointCompressor {
    /// Stores a checkpoint anew without a delta of any other, under the same key. Readers see the old or the new one;
    /// those that are stored against it keep what they need.
    ///
    /// # Errors
    /// As [`CheckpointCompressor::load`] and [`CheckpointCompressor::save`]; `Changed` when another process
    /// changed the checkpoint meanwhile. What that did stands.
    pub fn rebase(&self, key: &str) -> Result<CheckpointMeta, CheckpointError> {
        let started = Instant::now();
        let storage = &*self.store.storage;
        let generation = new_generation(storage.location())?;
        let (before, manifest) = self.with_chain(key, |before, chain| {
            let object_keys: Vec<String> =
                (0..before.n_own).map(|part| key::data(&generation, part)).collect();
            let _held = self.store.hold(
                object_keys.iter().cloned().chain(before.objects.iter().map(|object| object.object.clone())),
            );
            let originals: Vec<_> =
                chain.own.iter().map(|reader| OriginalFile::new(reader, &chain.bases)).collect();
            let files = before.own().iter().zip(&originals);
            let files = files.map(|(object, source)| SourceFile { name: object.file.clone(), source });
            let request = Request {
                key,
                previous_key: None,
                step: Some(before.step),
                metadata: before.metadata.clone(),
                files: files.collect(),
                raw_len: before.raw_len,
            };
            let mut options = self.config.pack_options();
            options.step = before.has_step().then_some(before.step);
            let own = self.write_objects(&request, &object_keys, &options, &Permit::default(), &|_| ());
            let own = own.inspect_err(|_| self.remove_objects(&object_keys))?;
            let own_readers = own.iter().map(|own| Arc::clone(&own.reader)).collect();
            let (objects, tensors) = chain::link(own, None)?;
            check_same(before, &tensors).inspect_err(|_| self.remove_objects(&object_keys))?;
            let manifest = Manifest {
                generation: generation.clone(),
                previous: None,
                writer: writer_name(),
                effort: self.config.coding.effort.name().to_owned(),
                n_own: object_keys.len(),
                objects,
                tensors,
                seconds: started.elapsed().as_secs_f64(),
                pinned: Vec::new(),
                ..before.clone()
            };
            let proved = self.prove(&manifest, own_readers, None);
            proved.inspect_err(|_| self.remove_objects(&object_keys))?;
            let replaced = self.replace_manifest(before, &manifest, &object_keys);
            if let Err(CheckpointError::Changed { .. } | CheckpointError::Collected { .. }) = replaced {
                // No manifest lists it, and nothing was ever stored against it.
                self.remove_objects(&object_keys);
            }
            replaced?;
            Ok((before.clone(), manifest))
        })?;
        let meta = CheckpointMeta::of(&manifest);
        let old: BTreeSet<String> = before.kept_objects().map(str::to_owned).collect();
        // The new one is safe; what is left of the old one is garbage for later if it cannot be removed now.
        let _ = self.collect_objects(&old);
        Ok(meta)
    }
}

impl CheckpointCompressor {
    /// Puts a manifest in the place of another. Before that, the old one pins the new data: a removal that could not see
    /// it would otherwise take data away that the new manifest has just made somebody rely on.
    fn replace_manifest(
        &self,
        before: &Manifest,
        after: &Manifest,
        object_keys: &[String],
    ) -> Result<(), CheckpointError> {
        let key = before.key.as_str();
        let bytes = self.store.manifest_bytes(key)?;
        if Manifest::parse(key, &key::manifest(key), &bytes)? != *before {
            return Err(CheckpointError::Changed { key: key.to_owned() });
        }
        let pinning = Manifest { pinned: object_keys.to_vec(), ..before.clone() };
        let pinning_bytes = pinning.write();
        self.store.change_manifest(key, &bytes, Some(&pinning_bytes))?;
        if let Err(error) = self.check_still_there(&pinning) {
            self.store.change_manifest(key, &pinning_bytes, Some(&bytes))?;
            return Err(error);
        }
        self.store.change_manifest(key, &pinning_bytes, Some(&after.write()))
    }
}

/// What is stored anew must be what was there.
fn check_same(before: &Manifest, tensors: &[super::StoredTensor]) -> Result<(), CheckpointError> {
    let same = before.tensors.len() == tensors.len()
        && before
            .tensors
            .iter()
            .zip(tensors)
            .all(|(old, new)| old.name == new.name && old.digest == new.digest);
    if same {
        return Ok(());
    }
    let what = format!("the tensors of `{}` are not those that its manifest lists", before.key);
    Err(CheckpointError::InvalidFormat { what })
}
