//! Predicts what packing a file will come to, from a small sample of its bytes.
//!
//! Every large tensor gives short runs, spread evenly. They are compressed together as one frame, and half of them as
//! another: what a frame takes beyond its content (headers, tables, the states of coders) is in both, the content halves.
//! So the two tell apart what a block costs and what a byte costs, and the whole tensor is predicted from both. Small
//! tensors share what may be read: some of them are sampled for the others of their dtype.
//!
//! What the efforts above `fast` search for (classes of rows and columns, low ranks) so short a sample does not show. So the
//! runs say what `fast` comes to, with half of the bytes, and the other half is spent on few tensors of each kind, of
//! which as many rows as possible are read (`gain`): how much smaller these get stands for all of their kind.

mod gain;
mod sample;

use crate::container::EntryKind;
use crate::pack::{PackOptions, can_be_an_entry};
use crate::{Effort, Error};
use mithril_codec::Dtype;
use mithril_format::{ReadAt, TensorInfo, source};
use sample::{Measured, Sample};
use std::collections::{HashMap, HashSet};

/// One byte in so many is read.
const SHARE: u64 = 50;

/// What packing a file is predicted to come to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Estimate {
    /// Bytes of the file.
    pub raw_len: u64,
    /// Predicted bytes of the container.
    pub stored_len: u64,
    /// Predicted seconds of one thread's work.
    pub seconds: f64,
    /// Bytes of tensors that were read: at most one in 50.
    pub sampled_len: u64,
    /// Its tensors, in order.
    pub tensors: Vec<TensorEstimate>,
}

/// What packing a tensor is predicted to come to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TensorEstimate {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions.
    pub shape: Vec<u64>,
    /// Its bytes.
    pub raw_len: u64,
    /// How it will be stored: full, or as a reference to one whose sample is the same.
    pub kind: EntryKind,
    /// Predicted bytes of its frame.
    pub stored_len: u64,
    /// Predicted seconds of one thread's work.
    pub seconds: f64,
    /// Bytes of it that were read.
    pub sampled_len: u64,
}

/// Predicts what [`pack`](crate::pack::pack) will come to with these options; bases are not looked at. Reads at most one
/// byte in 50 of the tensors, besides the file's own header.
///
/// # Errors
/// When the file is of no known kind, breaks its rules or cannot be read.
pub fn estimate(source: &dyn ReadAt, options: &PackOptions) -> Result<Estimate, Error> {
    let raw_len = source.size().map_err(Error::reading)?;
    let kind = source::detect(source).ok_or_else(|| {
        Error::invalid("no model file of a known kind (safetensors, npy, npz, pt, gguf, onnx)")
    })?;
    let mut tensors = source::tensors(kind, source)?;
    tensors.retain(can_be_an_entry);
    // A short sample at `fast`; above it, half of the bytes are left for what the effort gains.
    let (share, fast) = match options.effort {
        Effort::Fast => (SHARE, options.clone()),
        _ => (2 * SHARE, options.clone().with_effort(Effort::Fast)),
    };
    let mut seen = HashSet::new();
    let mut looks = Vec::with_capacity(tensors.len());
    let mut credits: HashMap<Dtype, u64> = HashMap::new();
    for tensor in &tensors {
        looks.push(match Sample::read(source, tensor, share, credits.entry(tensor.dtype).or_default())? {
            None => Look::Small,
            Some(sample) => {
                let sampled_len = sample.len();
                match seen.insert((len_of(tensor), sample.digest())) {
                    true => Look::Measured(sample.measure(tensor, &fast, share)?, sampled_len),
                    false => Look::Twin(sampled_len),
                }
            }
        });
    }
    let typical = typical(&tensors, &mut looks);
    let mut estimates: Vec<TensorEstimate> =
        tensors.iter().zip(&looks).map(|(tensor, look)| look.predict(tensor, &typical)).collect();
    if options.effort != Effort::Fast {
        gain::apply(source, &tensors, &mut estimates, options, 2 * SHARE)?;
    }
    let sum = |of: fn(&TensorEstimate) -> u64| estimates.iter().map(of).fold(0, u64::saturating_add);
    // A record and padding before every frame, a line in the index; prologue, header and footer.
    let padding = 1u64 << options.alignment_log2 >> 1;
    let around = estimates.iter().map(|tensor| 40 + 2 * tensor.name.len() as u64 / 3 + padding).sum::<u64>();
    // Headers of files are text with many repeats.
    let outside = raw_len.saturating_sub(sum(|tensor| tensor.raw_len)) / 8;
    Ok(Estimate {
        raw_len,
        stored_len: sum(|tensor| tensor.stored_len).saturating_add(around + outside + 400),
        seconds: estimates.iter().map(|tensor| tensor.seconds).sum(),
        sampled_len: sum(|tensor| tensor.sampled_len),
        tensors: estimates,
    })
}

/// What was learnt of a tensor.
enum Look {
    /// Too small to be sampled.
    Small,
    /// Its sample, of so many bytes, is that of an earlier tensor of the same length.
    Twin(u64),
    /// What its sample of so many bytes says.
    Measured(Measured, u64),
}

impl Look {
    fn predict(&self, tensor: &TensorInfo, typical: &HashMap<Dtype, Measured>) -> TensorEstimate {
        let raw_len = len_of(tensor);
        // A frame never takes more than its bytes and its headers.
        let bound = raw_len + 80 + 24 * raw_len.div_ceil(32 << 10);
        let (kind, (stored_len, seconds), sampled_len) = match self {
            Self::Small => {
                let stored =
                    typical.get(&tensor.dtype).map_or((bound, 0.0), |typical| typical.predict(raw_len));
                (EntryKind::Full, stored, 0)
            }
            Self::Twin(sampled_len) => (EntryKind::Ref, (0, 0.0), *sampled_len),
            Self::Measured(measured, sampled_len) => {
                (EntryKind::Full, measured.predict(raw_len), *sampled_len)
            }
        };
        TensorEstimate {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            raw_len,
            kind,
            stored_len: stored_len.min(bound),
            seconds,
            sampled_len,
        }
    }
}

/// What tensors are used for: their dtype, and the last part of their name. The averages of an optimizer have the shapes of
/// the weights and other numbers.
type Role<'a> = (Dtype, &'a str);

fn role(tensor: &TensorInfo) -> Role<'_> {
    (tensor.dtype, tensor.name.rsplit('.').next().unwrap_or_default())
}

/// What a block costs hardly depends on the tensor, and is hard to tell from one sample: every tensor is given the
/// median over those of its dtype. Returns what is typical of each dtype.
fn typical(tensors: &[TensorInfo], looks: &mut [Look]) -> HashMap<Dtype, Measured> {
    let mut of_dtype: HashMap<Dtype, Vec<&mut Measured>> = HashMap::new();
    for (tensor, look) in tensors.iter().zip(looks) {
        if let Look::Measured(measured, _) = look {
            of_dtype.entry(tensor.dtype).or_default().push(measured);
        }
    }
    let typical = of_dtype.into_iter().map(|(dtype, mut all)| {
        all.sort_by(|a, b| a.per_block().total_cmp(&b.per_block()));
        let median = all[all.len() / 2].per_block();
        all.iter_mut().for_each(|measured| measured.set_per_block(median));
        // Small tensors are more like small ones.
        let n_small = all.iter().filter(|measured| measured.is_small()).count();
        let like: Vec<&Measured> = all
            .iter()
            .map(|measured| &**measured)
            .filter(|measured| n_small == 0 || measured.is_small())
            .collect();
        (dtype, Measured::mean(&like))
    });
    typical.collect()
}

fn len_of(tensor: &TensorInfo) -> u64 {
    tensor.bytes.end - tensor.bytes.start
}
