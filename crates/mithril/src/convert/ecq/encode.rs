//! Quantised files to entropy-coded ones.

use super::directory::Inputs;
use super::find::{Found, find};
use super::matrix::{MatrixPlan, NewPart, matrix_parts};
use super::spool::Spool;
use crate::convert::repository::{cannot, in_file};
use crate::convert::{MEMORY_LEN, OutputDirectory, PIECE_LEN, Progress};
use crate::options::thread_count;
use crate::pipeline::tasks::{self, Budget};
use crate::{Effort, Error, FrameOptions, compress};
use mithril_codec::Dtype;
use mithril_codec::ecq::Coding;
use mithril_codec::entropy::log2_65536ths;
use mithril_codec::quantised::{Layout, bit_packing, gguf, zero_codes};
use mithril_format::ecq::{
    BIAS_RESIDUALS, BIASES, FRAME, SCALES, SOURCE_TENSOR, SideSum, Source, SourceFormat, ZERO_CODES, metadata,
};
use mithril_format::source::{self, Kind};
use mithril_format::{Digester, ReadAt, TensorInfo};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// What came of a model.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct EncodeSummary {
    /// All tensors that hold codes, in the order of their files.
    pub tensors: Vec<EncodedTensor>,
    /// Bytes of all files of weights before.
    pub raw_len: u64,
    /// Bytes of all files of weights after.
    pub coded_len: u64,
    /// Files of weights.
    pub n_files: usize,
    /// Other files that were carried along.
    pub n_carried: usize,
}

/// What came of a matrix.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EncodedTensor {
    /// Its name.
    pub name: String,
    /// Its layout.
    pub layout: Layout,
    /// Bytes of codes, scales and biases before.
    pub raw_len: u64,
    /// What happened.
    pub outcome: Outcome,
}

/// What happened to a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// It is entropy-coded.
    Coded {
        /// Bits of its codes.
        bits: u8,
        /// Codes that share a scale; 0 where the layout says.
        group_size: u32,
        /// Bytes of all its parts.
        coded_len: u64,
    },
    /// It stays as it was, because coding does not make it smaller.
    Kept,
}

/// Entropy-codes a quantised model: a safetensors or GGUF file, or a directory of them.
///
/// # Errors
/// When nothing there is quantised, or a file is damaged, or cannot be read or written. Nothing is left behind then.
pub fn encode(
    path: &Path,
    output: OutputDirectory,
    threads: usize,
    progress: Progress<'_>,
) -> Result<EncodeSummary, Error> {
    let inputs = Inputs::open(path)?;
    let mut summary = EncodeSummary::default();
    let mut weight_map = BTreeMap::new();
    for weights in &inputs.weights {
        let (name, tensors) = encode_file(weights, &inputs, &output, threads, progress, &mut summary)
            .map_err(|error| in_file(error, weights))?;
        weight_map.extend(tensors.into_iter().map(|tensor| (tensor, name.clone())));
    }
    if !summary.tensors.iter().any(|tensor| matches!(tensor.outcome, Outcome::Coded { .. })) {
        return Err(Error::invalid(match summary.tensors.len() {
            0 => "no quantised weights are there that it knows: MLX and GGUF, GPTQ, AWQ and compressed-tensors, \
                  with scales that fit their codes"
                .to_owned(),
            n => format!("coding makes none of its {n} quantised matrices smaller"),
        }));
    }
    summary.n_files = inputs.weights.len();
    summary.n_carried = inputs.carry(&output, &weight_map)?;
    output.commit()?;
    Ok(summary)
}

/// Codes a file; returns the name of the new one and its tensors.
fn encode_file(
    path: &Path,
    inputs: &Inputs,
    output: &OutputDirectory,
    threads: usize,
    progress: Progress<'_>,
    summary: &mut EncodeSummary,
) -> Result<(String, Vec<String>), Error> {
    let file = File::open(path).map_err(|error| cannot("read", path, error))?;
    let (kind, format) = match source::detect(&file) {
        Some(Kind::Safetensors) => (Kind::Safetensors, SourceFormat::Safetensors),
        Some(Kind::Gguf) => (Kind::Gguf, SourceFormat::Gguf),
        _ => return Err(Error::invalid(format!("`{}` is no safetensors or GGUF file", path.display()))),
    };
    let tensors = source::tensors(kind, &file)?;
    let source_name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let job = Job { file: &file, tensors: &tensors, format };
    let found = find(&tensors, inputs.config.as_ref());
    let spool = Spool::create(output)?;
    let outcomes: Vec<Mutex<Option<EncodedTensor>>> = found.iter().map(|_| Mutex::new(None)).collect();
    let kept: Mutex<Vec<usize>> = Mutex::default();
    let len =
        usize::try_from(file.size().map_err(|error| cannot("read", path, error))?).unwrap_or(usize::MAX);
    let n_threads = thread_count(threads, found.len().max(1), len);
    let largest = tensors.iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).max().unwrap_or(0);
    let budget = Budget::new(MEMORY_LEN + 6 * largest);
    tasks::run(found.len(), n_threads, |idx| {
        let found = &found[idx];
        let raw_len = job.raw_len(found);
        // Packed bytes, a byte for each code and for each symbol, and what is coded.
        let share = budget.take(6 * raw_len);
        let (outcome, parts) = job.encode(found).map_err(|error| error.in_tensor(&found.name))?;
        if parts.is_empty() {
            kept.lock().unwrap_or_else(PoisonError::into_inner).extend(found.tensors());
        } else {
            spool.add(parts)?;
        }
        drop(share);
        let tensor = EncodedTensor { name: found.name.clone(), layout: found.layout, raw_len, outcome };
        *outcomes[idx].lock().unwrap_or_else(PoisonError::into_inner) = Some(tensor);
        progress(raw_len);
        Ok(())
    })?;
    let covered: HashSet<usize> = found.iter().flat_map(Found::tensors).collect();
    let others = (0..tensors.len()).filter(|idx| !covered.contains(idx));
    let kept = kept.into_inner().unwrap_or_else(PoisonError::into_inner);
    for idx in others.chain(kept) {
        spool.add(vec![job.keep(idx)?])?;
        progress(tensors[idx].bytes.end - tensors[idx].bytes.start);
    }
    spool.add(vec![job.glue()?])?;
    let taken =
        outcomes.into_iter().filter_map(|one| one.into_inner().unwrap_or_else(PoisonError::into_inner));
    let own: Vec<EncodedTensor> = taken.collect();
    let source =
        Source { format, name: source_name.clone(), len: len as u64, digest: digest(&file, len as u64)? };
    let name = match format {
        SourceFormat::Safetensors => source_name,
        SourceFormat::Gguf => {
            format!("{}.safetensors", source_name.strip_suffix(".gguf").unwrap_or(&source_name))
        }
    };
    let (names, file_len) = spool.finish(output, &name, &metadata(quantization(&own), Some(&source)))?;
    summary.raw_len += source.len;
    summary.coded_len += file_len;
    summary.tensors.extend(own);
    Ok((name, names))
}

/// What the metadata say of all matrices: the layout, width and group of most weights.
fn quantization(tensors: &[EncodedTensor]) -> BTreeMap<&'static str, Value> {
    let mut lens: HashMap<(&str, u8, u32), u64> = HashMap::new();
    for tensor in tensors {
        if let Outcome::Coded { bits, group_size, .. } = tensor.outcome {
            *lens.entry((tensor.layout.name(), bits, group_size)).or_default() += tensor.raw_len;
        }
    }
    let most = lens.into_iter().max_by_key(|&(key, len)| (len, key));
    let Some(((mode, bits, group_size), _)) = most else { return BTreeMap::new() };
    BTreeMap::from([("mode", json!(mode)), ("bits", json!(bits)), ("group_size", json!(group_size))])
}

pub(super) fn digest(file: &File, len: u64) -> Result<mithril_format::Digest, Error> {
    let mut digester = Digester::default();
    let mut buffer = vec![0; PIECE_LEN];
    let mut at = 0;
    while at < len {
        let piece = &mut buffer[..usize::try_from(len - at).unwrap_or(PIECE_LEN).min(PIECE_LEN)];
        file.read_exact_at(at, piece).map_err(Error::reading)?;
        digester.update(piece);
        at += piece.len() as u64;
    }
    Ok(digester.finish())
}

impl Found {
    fn tensors(&self) -> impl Iterator<Item = usize> {
        [Some(self.codes), self.scales, self.biases].into_iter().flatten()
    }
}

/// A file and its tensors.
struct Job<'a> {
    file: &'a File,
    tensors: &'a [TensorInfo],
    format: SourceFormat,
}

impl Job<'_> {
    fn read(&self, idx: usize) -> Result<Vec<u8>, Error> {
        self.file.read_range(self.tensors[idx].bytes.clone()).map_err(Error::reading)
    }

    fn raw_len(&self, found: &Found) -> u64 {
        found.tensors().map(|idx| self.tensors[idx].bytes.end - self.tensors[idx].bytes.start).sum()
    }

    /// The parts of a matrix; none if they are not smaller.
    fn encode(&self, found: &Found) -> Result<(Outcome, Vec<NewPart>), Error> {
        let packed = self.read(found.codes)?;
        let bits = best_bits(found, &packed);
        let (columns, codes, mut parts) = match found.layout {
            Layout::Gguf(dtype) => self.split_gguf(found, dtype, &packed)?,
            _ => {
                let columns = 8 * found.row_len / usize::from(bits);
                let mut codes = vec![0; found.rows * columns];
                bit_packing::unpack(bits, &packed, &mut codes);
                if found.layout == Layout::MlxMxfp8 {
                    codes.iter_mut().for_each(|code| *code = bit_packing::exponent_first(*code));
                }
                (columns, codes, self.mlx_sides(found)?)
            }
        };
        drop(packed);
        let group_size = found.n_groups.map_or(0, |n_groups| u32::try_from(columns / n_groups).unwrap_or(0));
        let plan = MatrixPlan {
            layout: found.layout,
            bits,
            group_size,
            scale_dtype: found.biases.and(found.scales).map(|idx| self.tensors[idx].dtype),
            size: (found.rows, columns),
            rows_per_block: None,
            escapes: &[],
            coding: Coding::Entropy,
            side_sum: SideSum::default(),
        };
        parts.extend(matrix_parts(&found.name, &plan, &codes)?);
        let coded_len: u64 = parts.iter().map(|part| part.bytes.len() as u64).sum();
        if coded_len >= self.raw_len(found) {
            return Ok((Outcome::Kept, Vec::new()));
        }
        Ok((Outcome::Coded { bits, group_size, coded_len }, parts))
    }

    fn split_gguf(
        &self,
        found: &Found,
        dtype: Dtype,
        blocks: &[u8],
    ) -> Result<(usize, Vec<u8>, Vec<NewPart>), Error> {
        let columns = found.row_len / dtype.unit_len() * dtype.elements_per_unit() as usize;
        let mut codes = vec![0; found.rows * columns];
        let sides = Layout::Gguf(dtype).sides();
        let mut planes = vec![Vec::new(); sides.len()];
        gguf::split(dtype, blocks, &mut codes, &mut planes);
        let part = |(side, plane): (&mithril_codec::quantised::Side, Vec<u8>)| {
            NewPart::frame(format!("{}.{}", found.name, side.name), side.dtype, found.rows, &plane)
        };
        let parts = sides.iter().zip(planes).map(part).collect::<Result<Vec<NewPart>, Error>>()?;
        Ok((columns, codes, parts))
    }

    /// Scales as a frame; biases as zero codes, or as a frame if that is smaller.
    fn mlx_sides(&self, found: &Found) -> Result<Vec<NewPart>, Error> {
        let Some(scales_idx) = found.scales else { return Ok(Vec::new()) };
        let dtype = self.tensors[scales_idx].dtype;
        let scales = self.read(scales_idx)?;
        let frame = |suffix: &str, dtype: Dtype, values: &[u8]| {
            NewPart::frame(format!("{}{suffix}", found.name), dtype, found.rows, values)
        };
        let mut parts = vec![frame(SCALES, dtype, &scales)?];
        if let Some(biases) = found.biases {
            let biases = self.read(biases)?;
            let coded = zero_codes::split(dtype, &scales, &biases);
            let residual = if dtype.unit_len() == 2 { Dtype::I16 } else { Dtype::I32 };
            let zero_codes = frame(ZERO_CODES, Dtype::I16, &coded.zero_codes)?;
            let residuals = frame(BIAS_RESIDUALS, residual, &coded.residuals)?;
            let plain = frame(BIASES, dtype, &biases)?;
            if zero_codes.bytes.len() + residuals.bytes.len() < plain.bytes.len() {
                parts.extend([zero_codes, residuals]);
            } else {
                parts.push(plain);
            }
        }
        Ok(parts)
    }

    /// A tensor as it is; as a frame if safetensors has no name for its type.
    fn keep(&self, idx: usize) -> Result<NewPart, Error> {
        let tensor = &self.tensors[idx];
        let bytes = self.read(idx)?;
        if tensor.name == SOURCE_TENSOR {
            return Err(Error::invalid(format!(
                "it is entropy-coded already: a tensor is named `{SOURCE_TENSOR}`"
            )));
        }
        if self.format == SourceFormat::Gguf && tensor.dtype.is_quantized() {
            let options = FrameOptions::default().with_dtype(tensor.dtype).with_effort(Effort::Balanced);
            return Ok(NewPart::bytes(format!("{}{FRAME}", tensor.name), compress(&bytes, &options)?));
        }
        Ok(NewPart { name: tensor.name.clone(), dtype: tensor.dtype, shape: tensor.shape.clone(), bytes })
    }

    /// Every byte that belongs to no tensor.
    fn glue(&self) -> Result<NewPart, Error> {
        let mut glue = Vec::new();
        let mut at = 0;
        let end = self.file.size().map_err(Error::reading)?;
        let ends = self.tensors.iter().map(|tensor| tensor.bytes.clone()).chain(std::iter::once(end..end));
        for bytes in ends {
            glue.extend(self.file.read_range(at..bytes.start.max(at)).map_err(Error::reading)?);
            at = bytes.end.max(at);
        }
        let options = FrameOptions::default().with_effort(Effort::Balanced);
        Ok(NewPart::bytes(SOURCE_TENSOR.to_owned(), compress(&glue, &options)?))
    }
}

/// The width with which the codes take least, judged by the first megabyte.
fn best_bits(found: &Found, packed: &[u8]) -> u8 {
    let sample = &packed[..packed.len().min(1 << 20) / 840 * 840];
    let cost = |&bits: &u8| {
        let mut codes = vec![0; 8 * sample.len() / usize::from(bits)];
        bit_packing::unpack(bits, sample, &mut codes);
        let low_bits = Layout::low_bits(bits);
        let mut counts = [0u64; 16];
        codes.iter().for_each(|&code| counts[usize::from(code >> low_bits)] += 1);
        let n = codes.len() as u64;
        let entropy: u64 =
            counts.iter().map(|&count| count * (log2_65536ths(n) - log2_65536ths(count))).sum();
        entropy + n * (u64::from(low_bits) << 16)
    };
    match found.bits.as_slice() {
        [only] => *only,
        _ => found.bits.iter().copied().min_by_key(cost).unwrap_or(8),
    }
}
