//! DFloat11 modules as tensors of safetensors files: six parts under the name of the module, instead of its weights.
//!
//! Bytes and rules: `docs/format/df11.md`. The codes inside are those of [`mithril_codec::df11`].

#[cfg(test)]
mod tests;

use crate::FormatError;
use crate::safetensors::TensorInfo;
use crate::safetensors_layout::NewTensor;
use mithril_codec::Dtype;
use mithril_codec::df11::{Coded, Geometry, Parts, Plan};
use std::collections::BTreeMap;

/// One of the six tensors that stand for the weights of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Tables and code lengths.
    Luts,
    /// Coded exponents.
    EncodedExponent,
    /// Signs and mantissas.
    SignMantissa,
    /// First elements of workgroups.
    OutputPositions,
    /// Starts of the threads' first codes.
    Gaps,
    /// Elements before each weight of the module but the first.
    SplitPositions,
}

impl Part {
    /// All parts.
    pub const ALL: [Self; 6] = [
        Self::Luts,
        Self::EncodedExponent,
        Self::SignMantissa,
        Self::OutputPositions,
        Self::Gaps,
        Self::SplitPositions,
    ];

    /// The last piece of its tensor's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Luts => "luts",
            Self::EncodedExponent => "encoded_exponent",
            Self::SignMantissa => "sign_mantissa",
            Self::OutputPositions => "output_positions",
            Self::Gaps => "gaps",
            Self::SplitPositions => "split_positions",
        }
    }

    /// The type of its elements.
    #[must_use]
    pub fn dtype(self) -> Dtype {
        if self == Self::SplitPositions { Dtype::I64 } else { Dtype::U8 }
    }

    /// The module and the part that a tensor's name says.
    fn of_tensor(name: &str) -> Option<(&str, Self)> {
        let (module, last) = name.rsplit_once('.')?;
        let part = Self::ALL.into_iter().find(|part| part.name() == last)?;
        Some((module, part))
    }
}

/// A module and where its parts are among the tensors of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// Its full name, with dots.
    pub name: String,
    /// The numbers of its parts' tensors, in the order of [`Part::ALL`].
    tensors: [usize; 6],
}

impl Module {
    /// The number of a part's tensor.
    #[must_use]
    pub fn tensor(&self, part: Part) -> usize {
        self.tensors[part as usize]
    }
}

/// Parts the tensors of a directory into modules, by name, and the numbers of those that belong to none.
///
/// # Errors
/// When a module lacks a part, or a part has another type or number of dimensions than it must have.
pub fn modules(tensors: &[TensorInfo]) -> Result<(Vec<Module>, Vec<usize>), FormatError> {
    let mut found: BTreeMap<&str, [Option<usize>; 6]> = BTreeMap::new();
    for tensor in tensors {
        if let Some((module, Part::EncodedExponent)) = Part::of_tensor(&tensor.name) {
            found.insert(module, [None; 6]);
        }
    }
    let mut others = Vec::new();
    for (idx, tensor) in tensors.iter().enumerate() {
        let place = Part::of_tensor(&tensor.name).and_then(|(module, part)| {
            found.get_mut(module).map(|places| (part, &mut places[part as usize]))
        });
        match place {
            Some((part, place)) => {
                check_part(part, tensor)?;
                *place = Some(idx);
            }
            None => others.push(idx),
        }
    }
    let complete = |(name, places): (&str, [Option<usize>; 6])| {
        let mut tensors = [0; 6];
        for ((part, place), tensor) in Part::ALL.into_iter().zip(places).zip(&mut tensors) {
            *tensor = place.ok_or_else(|| damaged(name, format!("has no `{}`", part.name())))?;
        }
        Ok(Module { name: name.to_owned(), tensors })
    };
    Ok((found.into_iter().map(complete).collect::<Result<_, _>>()?, others))
}

fn check_part(part: Part, tensor: &TensorInfo) -> Result<(), FormatError> {
    let fits = match (part, tensor.shape.as_slice()) {
        (Part::Luts, [_, 256]) => true,
        (Part::Luts, _) => false,
        (_, shape) => shape.len() == 1,
    };
    if fits && tensor.dtype == part.dtype() {
        return Ok(());
    }
    let reason = format!("is {} of shape {:?}", tensor.dtype.name(), tensor.shape);
    Err(damaged(&tensor.name, reason))
}

/// The bytes of a module's parts, in the order of [`Part::ALL`].
#[derive(Debug, Clone, Default)]
pub struct ModuleBytes(pub [Vec<u8>; 6]);

impl ModuleBytes {
    /// The bytes of a part.
    #[must_use]
    pub fn part(&self, part: Part) -> &[u8] {
        &self.0[part as usize]
    }

    /// All bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The coded weights, checked to fit together. `name` is the module's, for the error.
    ///
    /// # Errors
    /// When they do not fit together.
    pub fn coded(&self, name: &str, geometry: Geometry) -> Result<Coded<'_>, FormatError> {
        Coded::new(self.parts(), geometry).map_err(|error| damaged(name, error.to_string()))
    }

    /// The parts that decoders read, not checked.
    #[must_use]
    pub fn parts(&self) -> Parts<'_> {
        Parts {
            luts: self.part(Part::Luts),
            encoded_exponent: self.part(Part::EncodedExponent),
            sign_mantissa: self.part(Part::SignMantissa),
            output_positions: self.part(Part::OutputPositions),
            gaps: self.part(Part::Gaps),
        }
    }
}

/// How many elements each weight of a module has, from the bytes of its split positions and the number of elements.
///
/// # Errors
/// When the positions do not rise, or go past the last element.
pub fn weight_sizes(name: &str, split_positions: &[u8], n_elements: u64) -> Result<Vec<u64>, FormatError> {
    let (positions, rest) = split_positions.as_chunks();
    let mut sizes = Vec::with_capacity(positions.len() + 1);
    let mut before = 0;
    let positions = positions.iter().map(|&position| u64::from_le_bytes(position));
    for position in positions.chain([n_elements]) {
        let size = position.checked_sub(before).filter(|_| position <= n_elements && rest.is_empty());
        sizes.push(
            size.ok_or_else(|| damaged(name, "split positions do not rise to its last element".to_owned()))?,
        );
        before = position;
    }
    Ok(sizes)
}

/// The bytes of the split positions of weights with these numbers of elements.
#[must_use]
pub fn split_positions(sizes: &[u64]) -> Vec<u8> {
    let mut position = 0u64;
    let but_last = &sizes[..sizes.len().saturating_sub(1)];
    but_last.iter().flat_map(|size| (position += size, position.to_le_bytes()).1).collect()
}

/// Name, type and shape of the tensors that a module with this plan and this number of weights becomes.
#[must_use]
pub fn tensors_of(name: &str, plan: &Plan, n_weights: usize) -> [NewTensor; 6] {
    Part::ALL.map(|part| {
        let shape = match part {
            Part::Luts => vec![plan.luts().len() / 256, 256],
            Part::EncodedExponent => vec![plan.encoded_len()],
            Part::SignMantissa => vec![plan.n_elements()],
            Part::OutputPositions => vec![plan.output_positions_len()],
            Part::Gaps => vec![plan.gaps_len()],
            Part::SplitPositions => vec![n_weights.saturating_sub(1)],
        };
        let shape = shape.into_iter().map(|dimension| dimension as u64).collect();
        (format!("{name}.{}", part.name()), part.dtype(), shape)
    })
}

/// A DF11 module or one of its tensors breaks a rule.
#[must_use]
pub fn damaged(name: &str, reason: impl Into<String>) -> FormatError {
    FormatError::Foreign { format: "DFloat11", reason: format!("`{name}`: {}", reason.into()) }
}
