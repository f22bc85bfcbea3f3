//! A repository of floats to an entropy-coded file.

use super::allocate::{Candidate, measure_reference, relative_step, wants_own_steps};
use super::report::{QuantizeReport, TensorOutcome, TensorReport, decibels};
use super::weights::{Factors, NO_NUMBERS, Spread, bytes_of, matrix_of, sample, singles};
use super::{QuantizeOptions, Reference, Target};
use crate::convert::ecq::spool::Spool;
use crate::convert::ecq::{MatrixPlan, NewPart, matrix_parts};
use crate::convert::{MEMORY_LEN, OutputDirectory, Progress, Repository};
use crate::options::thread_count;
use crate::pipeline::tasks::{self, Budget};
use crate::{Dtype, Error};
use mithril_codec::ecq::Coding;
use mithril_codec::quantised::Layout;
use mithril_format::ecq::{COLUMN_SCALES, LEVELS, SCALES, SideSum, metadata};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Weights that are looked at before steps are chosen, of all tensors together and of each.
const SAMPLE_WEIGHTS: usize = 1 << 23;
const SAMPLE_OF_EACH: std::ops::RangeInclusive<usize> = 1 << 13..=1 << 17;

/// Quantises the matrices of a model to one entropy-coded file, and copies everything else.
///
/// # Errors
/// When there is nothing to quantise, the target is out of reach, or a file cannot be read or written. Nothing is left
/// behind then.
pub fn quantize(
    repository: &Repository,
    output: OutputDirectory,
    options: &QuantizeOptions,
    progress: Progress<'_>,
) -> Result<QuantizeReport, Error> {
    options.check()?;
    let Sorted { candidates, mut kept, refused } = sort(repository, options)?;
    if candidates.is_empty() {
        return Err(nothing_to_quantise(&refused));
    }
    let relative = relative_step(&candidates, options.target)?;
    let references: Vec<_> = REFERENCES
        .iter()
        .filter_map(|name| Reference::from_name(name))
        .map(|reference| measure_reference(&candidates, reference))
        .collect();
    let job = Job { repository, candidates: &candidates, relative };
    let spool = Spool::create(&output)?;
    let done = job.run(&spool, options.threads, progress)?;

    let (mut bits, mut error, mut n) = (0.0, 0.0, 0.0);
    let mut described = BTreeMap::new();
    let mut tensors = refused;
    for (candidate, (report, coded_len)) in candidates.iter().zip(done) {
        let tensor = &repository.tensors()[candidate.idx];
        match &report.outcome {
            TensorOutcome::Quantised { snr_db, .. } => {
                bits += 8.0 * coded_len as f64;
                error += 10f64.powf(-snr_db / 10.0) * report.n_weights as f64;
                n += report.n_weights as f64;
                let entry = json!({
                    "tensor": tensor.name,
                    "dtype": tensor.dtype.name(),
                    "shape": tensor.shape,
                    "snr_db": rounded(*snr_db),
                });
                described.insert(stem(&tensor.name).to_owned(), entry);
            }
            TensorOutcome::Kept(_) => kept.push(candidate.idx),
        }
        tensors.push(report);
    }
    if n == 0.0 {
        return Err(Error::invalid("no matrix gets smaller at this target"));
    }
    for &idx in &kept {
        spool.add(vec![copy(repository, idx)?])?;
    }
    let (bits_per_weight, snr_db) = (bits / n, decibels(error / n));
    let block = BTreeMap::from([
        ("mode", json!("levels")),
        ("lossy", json!(true)),
        ("target", describe(options.target)),
        ("bits_per_weight", json!(rounded(bits_per_weight))),
        ("snr_db", json!(rounded(snr_db))),
        ("tensors", json!(described)),
    ]);
    let (_, coded_len) = spool.finish(&output, "model.safetensors", &metadata(block, None))?;
    for other in repository.others() {
        output.copy(repository.path(), other)?;
    }
    output.commit()?;
    let raw_len = repository.tensors().iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).sum();
    let n_copied = kept.len();
    Ok(QuantizeReport { tensors, bits_per_weight, snr_db, references, raw_len, coded_len, n_copied })
}

/// Why no matrix of a model can be quantised.
fn nothing_to_quantise(refused: &[TensorReport]) -> Error {
    let Some(TensorReport { name, outcome: TensorOutcome::Kept(reason), .. }) = refused.first() else {
        return Error::invalid("no matrices of floats (F32, F16, BF16) with 4096 weights in rows of 32");
    };
    match refused.len() - 1 {
        0 => Error::invalid(format!("`{name}` cannot be quantised: {reason}")),
        n => Error::invalid(format!("`{name}` cannot be quantised: {reason}; nor can {n} more")),
    }
}

/// The formats that a report sets beside.
const REFERENCES: [&str; 8] = [
    "affine2-g64",
    "affine3-g64",
    "affine4-g64",
    "affine4-g32",
    "affine5-g64",
    "affine6-g64",
    "mxfp4",
    "nvfp4",
];

fn describe(target: Target) -> Value {
    match target {
        Target::BitsPerWeight(bits) => json!({"bits_per_weight": bits}),
        Target::SnrDb(snr_db) => json!({"snr_db": snr_db}),
        Target::Like(reference) => json!({"like": reference.name()}),
    }
}

fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// What the parts of a tensor are named after: the module, where the tensor is its weight.
pub(super) fn stem(name: &str) -> &str {
    name.strip_suffix(".weight").filter(|stem| !stem.is_empty()).unwrap_or(name)
}

fn copy(repository: &Repository, idx: usize) -> Result<NewPart, Error> {
    let tensor = &repository.tensors()[idx];
    let bytes = repository.read(idx)?;
    Ok(NewPart { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone(), bytes })
}

/// What becomes of the tensors of a model.
struct Sorted {
    /// Matrices to quantise, with samples of them.
    candidates: Vec<Candidate>,
    /// Tensors that stay.
    kept: Vec<usize>,
    /// Those of them that are matrices, and why.
    refused: Vec<TensorReport>,
}

fn sort(repository: &Repository, options: &QuantizeOptions) -> Result<Sorted, Error> {
    let calibration = options.calibration.as_deref().map(Repository::open).transpose()?;
    let is_kept = |name: &str| options.keep.iter().any(|part| name.contains(part.as_str()));
    let sizes: Vec<Option<(usize, usize)>> = repository
        .tensors()
        .iter()
        .map(|tensor| matrix_of(tensor).filter(|_| !is_kept(&tensor.name)))
        .collect();
    let n_matrices = sizes.iter().flatten().count().max(1);
    let n_sample = (SAMPLE_WEIGHTS / n_matrices).clamp(*SAMPLE_OF_EACH.start(), *SAMPLE_OF_EACH.end());
    let (mut candidates, mut kept, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    for (idx, size) in sizes.into_iter().enumerate() {
        let Some(size) = size else {
            kept.push(idx);
            continue;
        };
        let name = &repository.tensors()[idx].name;
        let sample = sample(repository, idx, size, n_sample)?;
        let spread = match Spread::of(&sample) {
            Ok(spread) => spread,
            Err(reason) => {
                let n_weights = (size.0 * size.1) as u64;
                refused.push(TensorReport {
                    name: name.clone(),
                    n_weights,
                    outcome: TensorOutcome::Kept(reason),
                });
                kept.push(idx);
                continue;
            }
        };
        let mut sensitivity = options.sensitivities.get(name).copied().unwrap_or(1.0);
        if let Some(calibration) = &calibration {
            sensitivity *= input_sensitivity(calibration, name, size.1, &sample)?;
        }
        let has_own_steps = wants_own_steps(options.target, size);
        let factors = has_own_steps.then(|| Factors::of(&sample, size.1, spread));
        candidates.push(Candidate { idx, size, sample, spread, sensitivity, factors });
    }
    Ok(Sorted { candidates, kept, refused })
}

/// How much larger the relative error of a layer's output is than that of its weights, from the mean squares of its
/// inputs: `sum(h) sum(w^2) / (columns sum(w^2 h))`.
fn input_sensitivity(
    calibration: &Repository,
    name: &str,
    columns: usize,
    sample: &[f32],
) -> Result<f64, Error> {
    let Some(idx) = calibration.find(name) else { return Ok(1.0) };
    let tensor = &calibration.tensors()[idx];
    let moments = singles(tensor.dtype, &calibration.read(idx)?);
    let is_sound = tensor.dtype == Dtype::F32
        && moments.len() == columns
        && moments.iter().all(|moment| moment.is_finite() && *moment >= 0.0);
    if !is_sound {
        return Err(Error::invalid(format!("calibration of `{name}` is not {columns} mean squares in F32")));
    }
    let (mut energy, mut weighted) = (0f64, 0f64);
    for row in sample.chunks_exact(columns) {
        for (&weight, &moment) in row.iter().zip(&moments) {
            let square = f64::from(weight) * f64::from(weight);
            energy += square;
            weighted += square * f64::from(moment);
        }
    }
    let sum: f64 = moments.iter().map(|&moment| f64::from(moment)).sum();
    let sensitivity = sum * energy / (columns as f64 * weighted);
    Ok(if sensitivity.is_finite() { sensitivity.clamp(1e-3, 1e3) } else { 1.0 })
}

struct Job<'a> {
    repository: &'a Repository,
    candidates: &'a [Candidate],
    relative: f64,
}

type Done = (TensorReport, u64);

impl Job<'_> {
    fn run(&self, spool: &Spool, threads: usize, progress: Progress<'_>) -> Result<Vec<Done>, Error> {
        let results: Vec<Mutex<Option<Done>>> = self.candidates.iter().map(|_| Mutex::new(None)).collect();
        let len = |candidate: &Candidate| 16 * (candidate.size.0 * candidate.size.1) as u64;
        let largest = self.candidates.iter().map(len).max().unwrap_or(0);
        let budget = Budget::new(MEMORY_LEN + largest);
        let total: u64 = self.candidates.iter().map(len).sum();
        let threads = thread_count(threads, results.len(), usize::try_from(total).unwrap_or(usize::MAX));
        tasks::run(results.len(), threads, |at| {
            let candidate = &self.candidates[at];
            let share = budget.take(len(candidate));
            let done = self.one(candidate, spool)?;
            drop(share);
            let tensor = &self.repository.tensors()[candidate.idx];
            progress(tensor.bytes.end - tensor.bytes.start);
            *results[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            Ok(())
        })?;
        let take = |result: Mutex<Option<Done>>| result.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(results.into_iter().filter_map(take).collect())
    }

    /// Quantises and codes a matrix.
    fn one(&self, candidate: &Candidate, spool: &Spool) -> Result<Done, Error> {
        let tensor = &self.repository.tensors()[candidate.idx];
        let bytes = self.repository.read(candidate.idx)?;
        let weights = singles(tensor.dtype, &bytes);
        let (rows, columns) = candidate.size;
        let report =
            |outcome| TensorReport { name: tensor.name.clone(), n_weights: weights.len() as u64, outcome };
        if !weights.iter().all(|weight| weight.is_finite()) {
            return Ok((report(TensorOutcome::Kept(NO_NUMBERS)), 0));
        }
        let step = candidate.step(self.relative);
        let grid = candidate.measure(step).grid;
        let quantised = candidate.quantise(grid, step, &weights);
        // The format counts escapes of a block in 16 bits.
        if quantised.escapes.len() > weights.len() / 32 {
            return Ok((report(TensorOutcome::Kept("too many of its weights are outliers")), 0));
        }
        let name = stem(&tensor.name);
        let levels: Vec<u8> = quantised.levels.iter().map(|level| level.cast_unsigned()).collect();
        let (layout, scale_dtype) = if quantised.column_scales.is_empty() {
            (Layout::Levels, Dtype::F32)
        } else {
            (Layout::CrossLevels, Dtype::Bf16)
        };
        let scales = bytes_of(scale_dtype, &quantised.scales);
        let column_scales = bytes_of(scale_dtype, &quantised.column_scales);
        let plan = MatrixPlan {
            layout,
            bits: grid.bits(),
            group_size: 0,
            scale_dtype: None,
            size: (rows, columns),
            rows_per_block: None,
            escapes: &quantised.escapes,
            coding: Coding::Entropy,
            side_sum: SideSum::of(&[&levels, &scales, &column_scales]),
        };
        let mut parts = matrix_parts(name, &plan, &quantised.codes)?;
        let part = |suffix: &str, dtype, bytes: Vec<u8>| {
            let shape = vec![dtype_len(dtype, &bytes)];
            NewPart { name: format!("{name}{suffix}"), dtype, shape, bytes }
        };
        parts.extend([part(LEVELS, Dtype::I8, levels), part(SCALES, scale_dtype, scales)]);
        if layout == Layout::CrossLevels {
            parts.push(part(COLUMN_SCALES, scale_dtype, column_scales));
        }
        let coded_len: u64 = parts.iter().map(|part| part.bytes.len() as u64).sum();
        if coded_len >= bytes.len() as u64 {
            return Ok((report(TensorOutcome::Kept("coding does not make it smaller")), 0));
        }
        spool.add(parts)?;
        let outcome = TensorOutcome::Quantised {
            grid,
            bits_per_weight: 8.0 * coded_len as f64 / weights.len() as f64,
            snr_db: decibels(quantised.squared_error / quantised.energy.max(1e-300)),
            n_escapes: quantised.escapes.len() as u64,
        };
        Ok((report(outcome), coded_len))
    }
}

fn dtype_len(dtype: Dtype, bytes: &[u8]) -> u64 {
    dtype.elements_in(bytes.len() as u64)
}
