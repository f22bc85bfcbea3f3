//! Containers: what is packed comes back, what is damaged is refused, and little is read.

mod based;
mod damaged;
#[path = "../../../../mithril-format/tests/it/forge.rs"]
pub(crate) mod forge;
mod hostile;
mod links;
mod many;
mod random_layouts;
mod requests;
mod restore;
mod same_bytes;

use crate::samples::{Random, pattern};
use mithril::container::{Bases, EntryKind, Reader, Salvage};
use mithril::pack::{PackOptions, PackSummary, pack, unpack};
use mithril::{Dtype, Error};

/// A tensor of a file to be.
#[derive(Debug, Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) raw: Vec<u8>,
}

impl Tensor {
    /// A tensor of these bytes.
    pub(crate) fn new(name: &str, dtype: Dtype, shape: &[u64], raw: Vec<u8>) -> Self {
        Self { name: name.to_owned(), dtype, shape: shape.to_vec(), raw }
    }

    /// Weights of one dimension.
    pub(crate) fn weights(name: &str, dtype: Dtype, n: u64, seed: u64) -> Self {
        let len = usize::try_from(dtype.len_of(n).unwrap()).unwrap();
        Self::new(name, dtype, &[n], pattern("weights", dtype, len, seed))
    }

    /// Its entry in a safetensors header, when its bytes start at `start`.
    pub(crate) fn json(&self, start: usize) -> String {
        let (name, dtype) = (serde_json::Value::from(self.name.as_str()), self.dtype.name());
        let end = start + self.raw.len();
        format!(r#"{name}:{{"dtype":"{dtype}","shape":{:?},"data_offsets":[{start},{end}]}}"#, self.shape)
    }
}

/// A safetensors file with this header and these bytes behind it.
pub(crate) fn file_of(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// A safetensors file of tensors one behind the other.
pub(crate) fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut entries = Vec::new();
    for tensor in tensors {
        entries.push(tensor.json(data.len()));
        data.extend(&tensor.raw);
    }
    file_of(&format!("{{{}}}", entries.join(",")), &data)
}

pub(crate) fn packed_with(file: &[u8], options: &PackOptions) -> (Vec<u8>, PackSummary) {
    pack(&file, Vec::new(), options, &|_| ()).unwrap()
}

pub(crate) fn packed(file: &[u8]) -> (Vec<u8>, PackSummary) {
    packed_with(file, &PackOptions::default())
}

pub(crate) fn unpacked(container: &[u8]) -> Result<Vec<u8>, Error> {
    let reader = Reader::open(container)?;
    Ok(unpack(&reader, Vec::new(), &Bases::none(), 1, &|_| ())?.0)
}

/// What is intact of a damaged container, as a container, and the names of what is lost.
pub(crate) fn salvaged(damaged: &[u8]) -> (Vec<u8>, Vec<String>) {
    let salvage = Salvage::examine(&damaged, 1, &|_| ()).unwrap();
    let lost = salvage.lost().iter().map(|lost| lost.name.clone().unwrap_or_default()).collect();
    (salvage.write(damaged, Vec::new(), &|_| ()).unwrap().0, lost)
}

/// Packs a file, checks that it comes back as a whole, tensor by tensor and when its index is lost, and returns the kinds
/// of its entries.
pub(crate) fn check_restored(what: &str, file: &[u8], tensors: &[Tensor]) -> Vec<EntryKind> {
    let (container, summary) = packed(file);
    assert!(unpacked(&container).unwrap() == file, "{what}: another file comes back");
    let reader = Reader::open(container.as_slice()).unwrap();
    for tensor in tensors {
        let raw = reader.read(reader.find(&tensor.name).unwrap(), &Bases::none()).unwrap();
        assert!(raw == tensor.raw, "{what}: other bytes of `{}`", tensor.name);
    }
    assert_eq!(summary.raw_len, file.len() as u64, "{what}");
    assert_eq!(summary.packed_len, container.len() as u64, "{what}");
    let without_index = &container[..reader.directory().index_offset() as usize];
    let (saved, lost) = salvaged(without_index);
    assert_eq!(lost, [""; 0], "{what}");
    assert!(unpacked(&saved).unwrap() == file, "{what}: another file comes back without the index");
    summary.tensors.iter().map(|tensor| tensor.kind).collect()
}

/// F32 weights and their rounding to a narrower type, with the numbers that rounding treats apart.
pub(crate) fn master_and_copy(dtype: Dtype, n: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random::new(seed);
    let special =
        [0, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x7f7f_ffff, 0x0000_0001, 0x3300_0001];
    let values: Vec<u32> = (0..n)
        .map(|i| match special.get(i) {
            Some(&bits) if n > special.len() => bits,
            _ => (random.gaussian() * 0.1).to_bits(),
        })
        .collect();
    let narrow = values.iter().flat_map(|&bits| match dtype {
        Dtype::Bf16 => rounded_bf16(bits).to_le_bytes(),
        _ => rounded_f16(bits).to_le_bytes(),
    });
    (values.iter().flat_map(|bits| bits.to_le_bytes()).collect(), narrow.collect())
}

/// To the nearest of the two neighbours that have 16 bits, ties to even; by comparing distances.
fn rounded_bf16(bits: u32) -> u16 {
    let (high, low) = ((bits >> 16) as u16, bits & 0xffff);
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        return high | 0x40;
    }
    high + u16::from(low > 0x8000 || low == 0x8000 && high % 2 == 1)
}

/// The half whose value is nearest, found among all halves.
fn rounded_f16(bits: u32) -> u16 {
    let sign = (bits >> 16) as u16 & 0x8000;
    let value = f64::from(f32::from_bits(bits & 0x7fff_ffff));
    if value.is_nan() {
        return sign | 0x7e00;
    }
    let half_value = |half: u16| match half >> 10 {
        0 => f64::from(half) * 2f64.powi(-24),
        // Infinity stands where the next power of two would: that is where the middle is counted from.
        exponent => f64::from(half & 0x3ff | 0x400) * 2f64.powi(i32::from(exponent) - 25),
    };
    let below = (0..=0x7c00u16).collect::<Vec<_>>().partition_point(|&half| half_value(half) <= value) as u16;
    let (low, high) = (below.saturating_sub(1), below.min(0x7c00));
    let middle = (half_value(low) + half_value(high)) / 2.0;
    let up = value > middle || value == middle && low % 2 == 1;
    sign | if up { high } else { low }
}
