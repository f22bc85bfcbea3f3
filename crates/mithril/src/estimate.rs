//! Predicts what packing a file will come to, from a small sample of its bytes.
//!
//! Every large tensor gives short runs, spread evenly. They are compressed together as one frame, and half of them as
//! another: what a frame takes beyond its content (headers, tables, the states of coders) is in both, the content halves.
//! So the two tell apart what a block costs and what a byte costs, and the whole tensor is predicted from both. Small
//! tensors share what may be read: some of them are sampled for the others of their role.
//!
//! What the efforts above `fast` search for (classes of rows and columns, low ranks) so short a sample does not show. So the
//! runs say what `fast` comes to, with a third of the bytes, and the others are spent on few tensors of each kind, of
//! which as many rows as possible are read (`gain`): how much smaller these get stands for all of their kind.

mod derived;
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

/// Above `fast`, one in so many for what `fast` comes to, and one in so many for what the effort gains.
const SHARE_OF_RUNS: u64 = 3 * SHARE;
const SHARE_OF_GAIN: u64 = 3 * SHARE / 2;

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
    /// How it will be stored: full, as a reference to one whose sample is the same, or derived from a wider one.
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
    let mut tensors = source::tensors_to_pack(kind, source)?;
    tensors.retain(can_be_an_entry);
    let (share, fast) = match options.coding.effort {
        Effort::Fast => (SHARE, options.clone()),
        _ => (SHARE_OF_RUNS, options.clone().with_effort(Effort::Fast)),
    };
    let derived = derived::Derived::find(source, &tensors)?;
    let roles = roles(&tensors);
    let lens_of_roles = lens_of(&tensors, &roles);
    let mut seen = HashSet::new();
    let mut looks = Vec::with_capacity(tensors.len());
    let mut credits: HashMap<Role<'_>, u64> = HashMap::new();
    for (idx, tensor) in tensors.iter().enumerate() {
        if derived.is_derived(idx) {
            looks.push(Look::Derived);
            continue;
        }
        // Roles of which there is too little for a sample have some by dtype.
        let is_sampled = lens_of_roles[&roles[idx]] / share >= 2 * sample::MIN_LEN;
        let credit = credits.entry(if is_sampled { roles[idx] } else { like(roles[idx])[2] }).or_default();
        looks.push(match Sample::read(source, tensor, share, credit)? {
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
    let typical = typical(&roles, &mut looks);
    let predict = |((tensor, look), role): ((&TensorInfo, &Look), &Role<'_>)| {
        look.predict(tensor, like(*role).iter().find_map(|role| typical.get(role)))
    };
    let mut estimates: Vec<TensorEstimate> = tensors.iter().zip(&looks).zip(&roles).map(predict).collect();
    derived.count_read(&mut estimates);
    if options.coding.effort != Effort::Fast {
        gain::apply(source, &tensors, &roles, &mut estimates, options, SHARE_OF_GAIN)?;
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
    /// It is taken to be the rounding of a wider one.
    Derived,
    /// Its sample, of so many bytes, is that of an earlier tensor of the same length.
    Twin(u64),
    /// What its sample of so many bytes says.
    Measured(Measured, u64),
}

impl Look {
    /// The prediction of a tensor, of which this may be typical.
    fn predict(&self, tensor: &TensorInfo, typical: Option<&Measured>) -> TensorEstimate {
        let raw_len = len_of(tensor);
        // A frame never takes more than its bytes and its headers.
        let bound = raw_len + 80 + 24 * raw_len.div_ceil(32 << 10);
        let (kind, (stored_len, seconds), sampled_len) = match self {
            Self::Small => {
                let stored = typical.map_or((bound, 0.0), |typical| typical.predict(raw_len));
                (EntryKind::Full, stored, 0)
            }
            Self::Derived => (EntryKind::Derived, (0, 0.0), 0),
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

/// What a tensor is used for. The averages of an optimizer have the shapes of the weights and other numbers, and lists are
/// not told apart by rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Role<'a> {
    dtype: Dtype,
    /// The first part of its name without numbers, if there is enough of its like, and the last.
    names: Option<(Option<&'a str>, &'a str, IsList)>,
}

/// Whether a tensor has no rows.
type IsList = bool;

/// Roles of less are one with others that end alike.
const MIN_LEN_OF_ROLE: u64 = SHARE_OF_GAIN * gain::MIN_LEN;

/// The role of every tensor.
fn roles(tensors: &[TensorInfo]) -> Vec<Role<'_>> {
    let number = |c: char| c.is_ascii_digit();
    let mut roles: Vec<Role<'_>> = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let first = tensor.name.split('.').next().unwrap_or_default().trim_end_matches(number);
        let last = tensor.name.rsplit('.').next().unwrap_or_default().trim_end_matches(number);
        roles.push(Role { dtype: tensor.dtype, names: Some((Some(first), last, tensor.shape.len() < 2)) });
    }
    let lens = lens_of(tensors, &roles);
    for role in &mut roles {
        if lens[role] < MIN_LEN_OF_ROLE {
            *role = like(*role)[1];
        }
    }
    roles
}

/// Bytes of all tensors of each role.
fn lens_of<'a>(tensors: &[TensorInfo], roles: &[Role<'a>]) -> HashMap<Role<'a>, u64> {
    let mut lens = HashMap::new();
    tensors.iter().zip(roles).for_each(|(tensor, role)| *lens.entry(*role).or_default() += len_of(tensor));
    lens
}

/// A role, and the roles of which it is one, the narrowest first.
fn like(role: Role<'_>) -> [Role<'_>; 3] {
    let of_dtype = Role { names: None, ..role };
    match role.names {
        None => [role; 3],
        Some((None, ..)) => [role, of_dtype, of_dtype],
        Some((Some(_), last, is_list)) => {
            [role, Role { names: Some((None, last, is_list)), ..role }, of_dtype]
        }
    }
}

/// What a block costs hardly depends on the tensor, and is hard to tell from one sample: every tensor is given the
/// median over those of its dtype. Returns what is typical of each role.
fn typical<'a>(roles: &[Role<'a>], looks: &mut [Look]) -> HashMap<Role<'a>, Measured> {
    let mut of_dtype: HashMap<Dtype, Vec<&mut Measured>> = HashMap::new();
    for (role, look) in roles.iter().zip(&mut *looks) {
        if let Look::Measured(measured, _) = look {
            of_dtype.entry(role.dtype).or_default().push(measured);
        }
    }
    for all in of_dtype.values_mut() {
        all.sort_by(|a, b| a.per_block().total_cmp(&b.per_block()));
        let median = all[all.len() / 2].per_block();
        all.iter_mut().for_each(|measured| measured.set_per_block(median));
    }
    let mut of_role: HashMap<Role<'a>, Vec<&Measured>> = HashMap::new();
    for (role, look) in roles.iter().zip(looks) {
        if let Look::Measured(measured, _) = look {
            let mut roles = like(*role).to_vec();
            roles.dedup();
            roles.into_iter().for_each(|role| of_role.entry(role).or_default().push(measured));
        }
    }
    of_role.into_iter().map(|(role, all)| (role, mean_of_small(&all))).collect()
}

/// Small tensors are more like small ones.
fn mean_of_small(all: &[&Measured]) -> Measured {
    let small: Vec<&Measured> = all.iter().copied().filter(|measured| measured.is_small()).collect();
    Measured::mean(if small.is_empty() { all } else { &small })
}

fn len_of(tensor: &TensorInfo) -> u64 {
    tensor.bytes.end - tensor.bytes.start
}
