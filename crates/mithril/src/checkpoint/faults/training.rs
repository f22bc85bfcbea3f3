//! The state of a training run, and what can happen to its tensors from one save to the next.

use super::simulated::Random;
use crate::Dtype;
use crate::checkpoint::TensorData;
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

/// Tensors by name.
pub(super) type Tensors = BTreeMap<String, TensorData>;

/// Names that tensors can have; two are those of the moments of another.
const NAMES: [&str; 9] =
    ["w", "w.exp_avg", "w.exp_avg_sq", "w.bf16", "embed", "head.weight", "bias", "flag", "a name/with é"];

/// Elements that tensors can have: none, one, less than a block needs to be worth coding, and more.
const LENS: [u64; 5] = [0, 1, 16, 300, 1100];

const DTYPES: [Dtype; 5] = [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::U8, Dtype::I64];

/// Something that happens to the tensors. Those that nothing happens to are frozen.
#[derive(Debug, Clone)]
pub(super) enum Change {
    /// An optimizer's step.
    Move(Index, u64),
    /// A tensor takes a value that its name had before.
    Return(Index, Index),
    /// Two tensors change places.
    Swap(Index, Index),
    Rename(Index, Index),
    Reshape(Index),
    /// Another dtype: of the same bytes, or of the same numbers rounded.
    Cast(Index),
    Add {
        name: Index,
        len: Index,
        dtype: Index,
        seed: u64,
    },
    Drop(Index),
    /// Another name for the same bytes. It is untied when one of them moves.
    Tie(Index, Index),
    /// A copy with rounded numbers.
    Round(Index, Index),
    /// All tensors are those of an earlier state again.
    Restore(Index),
}

pub(super) fn change() -> impl Strategy<Value = Change> {
    let index = any::<Index>;
    prop_oneof![
        6 => (index(), any::<u64>()).prop_map(|(tensor, seed)| Change::Move(tensor, seed)),
        4 => (index(), index()).prop_map(|(tensor, to)| Change::Return(tensor, to)),
        1 => (index(), index()).prop_map(|(a, b)| Change::Swap(a, b)),
        1 => (index(), index()).prop_map(|(tensor, name)| Change::Rename(tensor, name)),
        1 => index().prop_map(Change::Reshape),
        1 => index().prop_map(Change::Cast),
        3 => (index(), index(), index(), any::<u64>())
            .prop_map(|(name, len, dtype, seed)| Change::Add { name, len, dtype, seed }),
        1 => index().prop_map(Change::Drop),
        1 => (index(), index()).prop_map(|(tensor, name)| Change::Tie(tensor, name)),
        1 => (index(), index()).prop_map(|(tensor, name)| Change::Round(tensor, name)),
        1 => index().prop_map(Change::Restore),
    ]
}

/// A run: its tensors now, and all that there were.
#[derive(Debug, Default)]
pub(super) struct Training {
    now: Tensors,
    values: BTreeMap<String, Vec<TensorData>>,
    states: Vec<Tensors>,
}

impl Training {
    /// A weight, its copy and a flag.
    pub(super) fn new() -> Self {
        let weight = fresh(300, Dtype::F32, 1);
        let now = [("w", weight.clone()), ("embed", weight), ("flag", fresh(300, Dtype::U8, 3))];
        Self { now: now.map(|(name, tensor)| (name.to_owned(), tensor)).into(), ..Self::default() }
    }

    /// Lets something happen, if it can: a change of nothing changes nothing.
    pub(super) fn apply(&mut self, change: &Change) {
        let pick = |index: &Index| {
            let names: Vec<&String> = self.now.keys().collect();
            if names.is_empty() { None } else { Some(index.get(&names).to_string()) }
        };
        match change {
            Change::Add { name, len, dtype, seed } => {
                self.now
                    .insert(name.get(&NAMES).to_string(), fresh(*len.get(&LENS), *dtype.get(&DTYPES), *seed));
            }
            Change::Restore(state) => {
                if !self.states.is_empty() {
                    self.now = state.get(&self.states).clone();
                }
            }
            Change::Swap(a, b) => {
                if let (Some(a), Some(b)) = (pick(a), pick(b)) {
                    let (first, second) = (self.now[&a].clone(), self.now[&b].clone());
                    self.now.insert(a, second);
                    self.now.insert(b, first);
                }
            }
            Change::Return(tensor, to) => {
                if let Some(name) = pick(tensor)
                    && let Some(values) = self.values.get(&name)
                {
                    self.now.insert(name, to.get(values).clone());
                }
            }
            Change::Rename(tensor, to) => {
                if let Some(tensor) = pick(tensor).and_then(|name| self.now.remove(&name)) {
                    self.now.insert(to.get(&NAMES).to_string(), tensor);
                }
            }
            Change::Drop(tensor) => {
                pick(tensor).and_then(|name| self.now.remove(&name));
            }
            Change::Tie(tensor, to) => {
                if let Some(name) = pick(tensor) {
                    self.now.insert(to.get(&NAMES).to_string(), self.now[&name].clone());
                }
            }
            Change::Round(tensor, to) => {
                if let Some(name) = pick(tensor) {
                    self.now.insert(to.get(&NAMES).to_string(), rounded(&self.now[&name]));
                }
            }
            Change::Move(tensor, seed) => self.change_one(pick(tensor), |tensor| moved(tensor, *seed)),
            Change::Reshape(tensor) => self.change_one(pick(tensor), reshaped),
            Change::Cast(tensor) => self.change_one(pick(tensor), cast),
        }
    }

    fn change_one(&mut self, name: Option<String>, change: impl Fn(&TensorData) -> TensorData) {
        if let Some(name) = name {
            let changed = change(&self.now[&name]);
            self.now.insert(name, changed);
        }
    }

    /// The tensors as they are now, which is a state that they can return to.
    pub(super) fn state(&mut self) -> Tensors {
        for (name, tensor) in &self.now {
            self.values.entry(name.clone()).or_default().push(tensor.clone());
        }
        self.states.push(self.now.clone());
        self.now.clone()
    }
}

fn below(random: &mut Random, bound: u16) -> u16 {
    u16::try_from(random.below(u64::from(bound))).unwrap()
}

/// Values as weights have them, or flags.
fn fresh(len: u64, dtype: Dtype, seed: u64) -> TensorData {
    let mut random = Random(seed | 1);
    let mut data = Vec::new();
    for _ in 0..len {
        let number = random.below(1 << 16) as f32 / 65536.0 - 0.5;
        match dtype {
            Dtype::F32 => data.extend(number.to_le_bytes()),
            Dtype::Bf16 => data.extend(bf16(number).to_le_bytes()),
            // Halves between 0.125 and 0.5, of either sign.
            Dtype::F16 => {
                let sign = u16::from(random.below(2) == 1) << 15;
                data.extend((0x3000 | sign | below(&mut random, 1 << 11)).to_le_bytes());
            }
            Dtype::I64 => data.extend(random.below(1000).to_le_bytes()),
            _ => data.extend(&below(&mut random, 3).to_le_bytes()[..1]),
        }
    }
    TensorData::new(data, [len], dtype)
}

/// Some elements change a little.
fn moved(tensor: &TensorData, seed: u64) -> TensorData {
    let mut random = Random(seed | 1);
    let mut data = tensor.data.to_vec();
    for element in data.chunks_mut(tensor.dtype.unit_len()) {
        if random.below(3) == 0 {
            element[0] ^= 1 << random.below(2);
        }
    }
    TensorData::new(data, tensor.shape.clone(), tensor.dtype)
}

fn reshaped(tensor: &TensorData) -> TensorData {
    let len: u64 = tensor.shape.iter().product();
    let shape = match tensor.shape.len() {
        1 if len.is_multiple_of(4) => vec![4, len / 4],
        1 => vec![len, 1],
        2 => vec![1, len, 1],
        _ => vec![len],
    };
    TensorData::new(tensor.data.clone(), shape, tensor.dtype)
}

fn cast(tensor: &TensorData) -> TensorData {
    match tensor.dtype {
        Dtype::F32 => rounded(tensor),
        Dtype::Bf16 => {
            let wide = tensor.data.chunks(2).flat_map(|half| [0, 0, half[0], half[1]]);
            TensorData::new(wide.collect::<Vec<u8>>(), tensor.shape.clone(), Dtype::F32)
        }
        Dtype::U8 => TensorData::new(tensor.data.clone(), tensor.shape.clone(), Dtype::I8),
        Dtype::I64 => TensorData::new(tensor.data.clone(), tensor.shape.clone(), Dtype::F64),
        _ => tensor.clone(),
    }
}

/// As bf16, if it is f32.
fn rounded(tensor: &TensorData) -> TensorData {
    if tensor.dtype != Dtype::F32 {
        return tensor.clone();
    }
    let numbers = tensor.data.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let halves = numbers.flat_map(|number| bf16(number).to_le_bytes());
    TensorData::new(halves.collect::<Vec<u8>>(), tensor.shape.clone(), Dtype::Bf16)
}

/// To nearest, ties to even. No number here is infinite or none.
fn bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16
}
