//! Checking that checkpoints can be restored.

use super::blocking::CheckpointCompressor;
use super::chain::Chain;
use super::error::about;
use super::manifest::DataObject;
use super::{CheckpointError, Manifest};
use crate::Error;
use crate::container::Depth;
use crate::pack::Progress;
use mithril_format::Digester;
use std::collections::HashSet;

/// Bytes of an object that are digested at a time.
const PIECE_LEN: u64 = 4 << 20;

/// How far checking goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Whether every object is digested and every tensor restored, with all that it is stored against. Otherwise each
    /// checkpoint's own objects are checked by their sums, and its chain by the digests of its containers.
    pub deep: bool,
}

impl VerifyOptions {
    /// Checks everything.
    #[must_use]
    pub fn deep() -> Self {
        Self { deep: true }
    }
}

/// What checking found.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Keys of the checkpoints that are intact.
    pub intact: Vec<String>,
    /// Keys of those that are not, each with everything that is wrong.
    pub damaged: Vec<(String, Vec<CheckpointError>)>,
    /// Tensors that were decoded.
    pub n_decoded: usize,
}

impl VerifyReport {
    /// Whether nothing was found damaged.
    pub fn is_intact(&self) -> bool {
        self.damaged.is_empty()
    }
}

/// Objects, and tensors in each that are damaged.
type Broken = HashSet<(String, String)>;

/// A tensor of a checkpoint that another one holds, and that is damaged there.
fn broken_base(manifest: &Manifest, broken: &Broken) -> Option<CheckpointError> {
    manifest.tensors.iter().find_map(|tensor| {
        let needs = tensor.needs.iter().chain([&tensor.holder]).filter(|&&idx| idx >= manifest.n_own);
        let mut objects = needs.filter_map(|&idx| manifest.objects.get(idx));
        let object = objects.find(|object| broken.contains(&(object.object.clone(), tensor.name.clone())))?;
        let what = format!(
            "tensor `{}` needs `{}` of checkpoint `{}`, in which it is damaged",
            tensor.name, object.object, object.key
        );
        Some(CheckpointError::InvalidFormat { what })
    })
}

impl CheckpointCompressor {
    /// Checks a checkpoint, or all of them. Goes on behind damage, so that all of it is found.
    ///
    /// # Errors
    /// `NotFound` when there is no such checkpoint, `NoStore` when there is no store; when the storage cannot be listed. Damage is no error but a
    /// finding.
    pub fn verify(
        &self,
        key: Option<&str>,
        options: &VerifyOptions,
        progress: Progress<'_>,
    ) -> Result<VerifyReport, CheckpointError> {
        let mut report = VerifyReport::default();
        let manifests = match key {
            None => {
                self.store.check_exists()?;
                let found = self.store.manifests(|manifest| manifest)?;
                report.damaged.extend(found.unreadable.into_iter().map(|(key, error)| (key, vec![error])));
                found.readable
            }
            Some(key) => match self.store.manifest(key) {
                Ok(manifest) => vec![manifest],
                Err(error @ (CheckpointError::NotFound { .. } | CheckpointError::NoStore { .. })) => {
                    return Err(error);
                }
                Err(error) => {
                    report.damaged.push((key.to_owned(), vec![error]));
                    Vec::new()
                }
            },
        };
        let mut digested = HashSet::new();
        let mut broken = Broken::default();
        let mut found = Vec::with_capacity(manifests.len());
        for manifest in &manifests {
            let problems = self.verify_one(
                manifest,
                options,
                &mut digested,
                &mut broken,
                &mut report.n_decoded,
                progress,
            );
            found.push((manifest, problems));
        }
        for (manifest, mut problems) in found {
            // Only deep checks read what a checkpoint is stored against, but what is wrong with that may be known.
            if problems.is_empty() {
                problems.extend(broken_base(manifest, &broken));
            }
            match problems.is_empty() {
                true => report.intact.push(manifest.key.clone()),
                false => report.damaged.push((manifest.key.clone(), problems)),
            }
        }
        Ok(report)
    }

    fn verify_one(
        &self,
        manifest: &Manifest,
        options: &VerifyOptions,
        digested: &mut HashSet<String>,
        broken: &mut Broken,
        n_decoded: &mut usize,
        progress: Progress<'_>,
    ) -> Vec<CheckpointError> {
        let mut problems = Vec::new();
        if options.deep {
            for object in manifest.own() {
                if digested.insert(object.object.clone())
                    && let Err(error) = self.check_object(manifest, object)
                {
                    problems.push(error);
                }
            }
        }
        let chain = match Chain::open(&self.store.storage, manifest) {
            Ok(chain) => chain,
            Err(error) => {
                problems.push(error);
                return problems;
            }
        };
        let depth = if options.deep { Depth::WithBases } else { Depth::Alone };
        for (own_idx, (object, reader)) in manifest.own().iter().zip(&chain.own).enumerate() {
            problems.extend(chain.unlike(manifest, own_idx));
            if depth == Depth::Alone {
                // Decoding finds it, too.
                problems.extend(chain.unresolved(own_idx).map(about(&manifest.key)));
            }
            match reader.verify(&chain.bases, depth, self.config.coding.threads, progress) {
                Ok(found) => {
                    *n_decoded += found.n_decoded;
                    let names = found.problems.iter().filter_map(|problem| match problem {
                        Error::Tensor { name, .. } => Some((object.object.clone(), name.clone())),
                        _ => None,
                    });
                    broken.extend(names);
                    let found = found.problems.into_iter().chain(found.missing_base);
                    problems.extend(found.map(about(&manifest.key)));
                }
                Err(error) => problems.push(about(&manifest.key)(error)),
            }
        }
        problems
    }

    /// Compares length and digest of a whole object with the manifest.
    fn check_object(&self, manifest: &Manifest, object: &DataObject) -> Result<(), CheckpointError> {
        let failed = |error| about(&manifest.key)(crate::Error::reading(error));
        let source = self.store.storage.open(&object.object)?;
        let len = source.size().map_err(failed)?;
        if len != object.len {
            let what = format!("`{}` has {len} bytes, not {}", object.object, object.len);
            return Err(CheckpointError::InvalidFormat { what });
        }
        let mut digester = Digester::default();
        let mut at = 0;
        while at < len {
            let end = (at + PIECE_LEN).min(len);
            digester.update(&source.read_range(at..end).map_err(failed)?);
            at = end;
        }
        let (expected, actual) = (object.digest, digester.finish());
        if expected != actual {
            return Err(CheckpointError::ChecksumMismatch {
                object: object.object.clone(),
                expected,
                actual,
            });
        }
        Ok(())
    }
}
