//! Which tensors of a file hold codes, and how they are packed.

use mithril_codec::Dtype;
use mithril_codec::quantised::{Layout, zero_codes};
use mithril_format::TensorInfo;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Tensors that become one matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// What its parts are named after.
    pub(super) name: String,
    pub(super) layout: Layout,
    /// The tensor with the codes.
    pub(super) codes: usize,
    /// Scales and biases that are coded with it.
    pub(super) scales: Option<usize>,
    pub(super) biases: Option<usize>,
    pub(super) rows: usize,
    /// Bytes of a row of packed codes.
    pub(super) row_len: usize,
    /// Widths that the codes may have; the smallest result decides between several.
    pub(super) bits: Vec<u8>,
    /// Groups in a row; none without scales.
    pub(super) n_groups: Option<usize>,
}

/// The matrices of a file. `config` is the model's `config.json`, which tells widths that shapes leave open.
pub(super) fn find(tensors: &[TensorInfo], config: Option<&Value>) -> Vec<Found> {
    let by_name: HashMap<&str, usize> =
        tensors.iter().enumerate().map(|(idx, tensor)| (tensor.name.as_str(), idx)).collect();
    let finder = Finder { tensors, by_name, config };
    let mut found: Vec<Found> = (0..tensors.len()).filter_map(|idx| finder.matrix(idx)).collect();
    // Names of parts must not meet names of other tensors.
    let names: HashSet<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let is_free = |found: &Found| {
        let parts =
            [".compressed", ".stream_offsets", ".freq", ".low_bits", ".zero_codes", ".bias_residuals"];
        parts.iter().all(|part| !names.contains(format!("{}{part}", found.name).as_str()))
    };
    found.retain(is_free);
    found
}

struct Finder<'a> {
    tensors: &'a [TensorInfo],
    by_name: HashMap<&'a str, usize>,
    config: Option<&'a Value>,
}

impl Finder<'_> {
    fn matrix(&self, idx: usize) -> Option<Found> {
        let tensor = &self.tensors[idx];
        let (rows, row_len) = rows_and_len(tensor)?;
        let found = |name: &str, layout: Layout, bits: Vec<u8>| Found {
            name: name.to_owned(),
            layout,
            codes: idx,
            scales: None,
            biases: None,
            rows,
            row_len,
            bits,
            n_groups: None,
        };
        if !Layout::Gguf(tensor.dtype).sides().is_empty() {
            let layout = Layout::Gguf(tensor.dtype);
            return Some(found(&tensor.name, layout, layout.bits().into_iter().collect()));
        }
        let sibling =
            |stem: &str, suffix: &str| self.by_name.get(format!("{stem}{suffix}").as_str()).copied();
        match tensor.dtype {
            Dtype::U32 => {
                let stem = tensor.name.strip_suffix(".weight")?;
                let scales = sibling(stem, ".scales")?;
                let biases = sibling(stem, ".biases");
                let n_groups = self.groups(idx, scales)?;
                let packed_bits = 8 * row_len;
                let (layout, bits) = match biases {
                    Some(biases) => {
                        let (scales, biases) = (&self.tensors[scales], &self.tensors[biases]);
                        let fit = scales.shape == biases.shape && scales.dtype == biases.dtype;
                        let bits = self.affine_bits(stem, packed_bits, n_groups);
                        (fit && zero_codes::supports(scales.dtype)).then_some((Layout::MlxAffine, bits))?
                    }
                    None if self.tensors[scales].dtype == Dtype::U8 => match packed_bits / n_groups {
                        128 => (Layout::MlxMxfp4, vec![4]),
                        256 => (Layout::MlxMxfp8, vec![8]),
                        64 => (Layout::MlxNvfp4, vec![4]),
                        _ => return None,
                    },
                    None => return None,
                };
                let (scales, n_groups) = (Some(scales), Some(n_groups));
                (packed_bits.is_multiple_of(n_groups?) && !bits.is_empty()).then(|| Found {
                    scales,
                    biases,
                    n_groups,
                    ..found(stem, layout, bits)
                })
            }
            Dtype::I32 => {
                // GPTQ and AWQ have `qweight` with zeros and scales, compressed-tensors `weight_packed`.
                let name = tensor.name.as_str();
                let stem = name.strip_suffix(".qweight").map(|stem| (stem, ".scales"));
                let (stem, scale) =
                    stem.or_else(|| Some((name.strip_suffix(".weight_packed")?, ".weight_scale")))?;
                sibling(stem, scale)?;
                let bits = [4, 8, 2, 3]
                    .into_iter()
                    .filter(|&bits| (8 * row_len).is_multiple_of(bits))
                    .collect::<Vec<usize>>();
                let bits = bits.into_iter().filter_map(|bits| u8::try_from(bits).ok()).collect();
                Some(found(name, Layout::Codes, bits))
            }
            Dtype::I8 => {
                let stem = tensor.name.strip_suffix(".weight")?;
                [".weight_scale", ".scales", ".scale", ".weight_scales"]
                    .iter()
                    .find_map(|suffix| sibling(stem, suffix))?;
                Some(found(&tensor.name, Layout::Codes, vec![8]))
            }
            _ => None,
        }
    }

    /// Groups in a row, if the scales have the rows of the codes.
    fn groups(&self, codes: usize, scales: usize) -> Option<usize> {
        let (codes, scales) = (&self.tensors[codes], &self.tensors[scales]);
        let (n_groups, outer) = scales.shape.split_last()?;
        let same = codes.shape.split_last().is_some_and(|(_, codes_outer)| codes_outer == outer);
        usize::try_from(*n_groups).ok().filter(|&n| same && n > 0)
    }

    /// The width from the configuration of the module or of the model; without it, all that fit.
    fn affine_bits(&self, stem: &str, packed_bits: usize, n_groups: usize) -> Vec<u8> {
        let fits = |bits: usize| {
            packed_bits.is_multiple_of(bits)
                && [32, 64, 128].iter().any(|group_size| group_size * n_groups * bits == packed_bits)
        };
        let quantization = self.config.and_then(|config| config.get("quantization"));
        let of =
            |value: Option<&Value>| value?.get("bits")?.as_u64().and_then(|bits| usize::try_from(bits).ok());
        let told = of(quantization.and_then(|block| block.get(stem))).or_else(|| of(quantization));
        if let Some(bits) = told.filter(|&bits| (2..=8).contains(&bits) && fits(bits)) {
            return u8::try_from(bits).into_iter().collect();
        }
        [4, 8, 2, 6, 3, 5].into_iter().filter(|&bits| fits(usize::from(bits))).collect()
    }
}

/// Rows and bytes of a row of a tensor of two dimensions or more; nothing if it is empty.
fn rows_and_len(tensor: &TensorInfo) -> Option<(usize, usize)> {
    let (last, outer) = tensor.shape.split_last()?;
    let rows = outer.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))?;
    let len = tensor.dtype.len_of(*last)?;
    let is_matrix = !outer.is_empty() && rows > 0 && len > 0;
    is_matrix.then(|| Some((usize::try_from(rows).ok()?, usize::try_from(len).ok()?)))?
}
