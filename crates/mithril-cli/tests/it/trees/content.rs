//! What the files of a random tree hold, and what they are called.

use super::world::{File, Tensor, What};
use crate::{npy, safetensors, weights};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::Value;
use std::path::Path;

/// Names of directories, and of files before what their content adds. Some are those of other things.
const NAMES: [&str; 25] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model",
    "weights",
    "with space ",
    ".hidden",
    "-",
    "-dash",
    "--force",
    "größe 模型",
    "e\u{301}t\u{e9}",
    "quote\"'`$HOME",
    "new\nline",
    "*?[a]",
    "not.safetensors",
    "not.mckp",
    "not.mthf",
    "not.mth",
    "not.mithril",
    "not.npy",
    "files",
    "model.mckp",
    "a.tmp",
    "config.json",
    "a name of two hundred and twenty bytes, which is as long as file systems allow once the suffixes are added \
     ........................................................................................................",
];

/// Lengths around those of blocks, of buffers and of what lies in the list of a packed directory.
const LENS: [usize; 18] = [
    0,
    1,
    2,
    7,
    100,
    5000,
    (1 << 15) - 1,
    1 << 15,
    (1 << 15) + 1,
    (1 << 16) - 1,
    1 << 16,
    (1 << 16) + 2,
    (1 << 17) + 1,
    1 << 19,
    (1 << 20) - 1,
    (1 << 20) + 1,
    4 << 20,
    (4 << 20) + 1,
];

/// Types of tensors, and bytes of an element.
const DTYPES: [(&str, usize); 10] = [
    ("BF16", 2),
    ("F16", 2),
    ("F32", 4),
    ("F64", 8),
    ("F8_E4M3", 1),
    ("F8_E5M2", 1),
    ("I64", 8),
    ("I32", 4),
    ("U8", 1),
    ("BOOL", 1),
];

const FIXTURES: [&str; 13] = [
    "arrays.npz",
    "arrays.safetensors",
    "big_endian.npy",
    "checkpoint.pt",
    "compressed.npz",
    "fortran.npy",
    "legacy.pt",
    "odd.pt",
    "protocol_4.pt",
    "records.npy",
    "tiny.gguf",
    "weight.npy",
    "zip64.npz",
];

/// What lies at a place of a tree.
#[derive(Debug, Clone)]
pub(super) enum Content {
    Safetensors(Model),
    Npy(usize),
    Fixture(&'static str),
    /// A model file without its end.
    Cut(Model, Index),
    /// The index of a sharded model.
    ShardIndex,
    /// A frame: packed already.
    Frame(usize),
    Bytes(Fill, usize),
    Directory,
    Link(Index, Link),
}

/// Where a link leads.
#[derive(Debug, Clone, Copy)]
pub(super) enum Link {
    /// To another place of the tree, from where it is.
    Relative,
    /// To the same, from the root on, which is out of the tree.
    Absolute,
    /// To nothing.
    Dangling,
}

/// The tensors of a safetensors file.
#[derive(Debug, Clone)]
pub(super) struct Model {
    tensors: Vec<(usize, Vec<u64>, Fill)>,
    metadata: bool,
}

/// Bytes that a tensor or a file is full of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fill {
    Zeros,
    Text,
    /// Numbers like weights, of one of a few seeds, so that some tensors are equal, or roundings of others.
    Weights(u8),
    Noise(u8),
}

/// How a file of the second tree differs from that of the first.
#[derive(Debug, Clone, Copy)]
pub(super) enum Change {
    None,
    /// Some of the bytes of its first tensor.
    Some(u8),
    /// The values of all tensors but the first.
    Most,
    /// One tensor has another name, and there is a new one.
    Names,
}

/// A place, what lies there, its mode, and how the second tree differs.
pub(super) type Leaf = (Vec<&'static str>, Content, u32, Change);

pub(super) fn tree() -> impl Strategy<Value = Vec<Leaf>> {
    let place = prop_oneof![
        6 => select(&NAMES[..]).prop_map(|name| vec![name]),
        3 => (select(&NAMES[..]), select(&NAMES[..])).prop_map(|(a, b)| vec![a, b]),
        1 => prop::collection::vec(select(&NAMES[..]), 3..6),
    ];
    let mode = select(vec![0o644, 0o644, 0o600, 0o755, 0o444, 0o640]);
    let change = prop_oneof![
        Just(Change::None),
        any::<u8>().prop_map(Change::Some),
        Just(Change::Most),
        Just(Change::Names),
    ];
    prop::collection::vec((place, content(), mode, change), 1..9)
}

fn content() -> impl Strategy<Value = Content> {
    let link = select(vec![Link::Relative, Link::Relative, Link::Absolute, Link::Dangling]);
    let len = prop_oneof![8 => select(&LENS[..15]), 1 => select(&LENS[15..])];
    prop_oneof![
        8 => model().prop_map(Content::Safetensors),
        2 => (0..5000usize).prop_map(Content::Npy),
        3 => select(&FIXTURES[..]).prop_map(Content::Fixture),
        1 => (model(), any::<Index>()).prop_map(|(model, at)| Content::Cut(model, at)),
        1 => Just(Content::ShardIndex),
        1 => (0..3000usize).prop_map(Content::Frame),
        5 => (fill(), len).prop_map(|(fill, len)| Content::Bytes(fill, len)),
        1 => Just(Content::Directory),
        2 => (any::<Index>(), link).prop_map(|(to, link)| Content::Link(to, link)),
    ]
}

fn model() -> impl Strategy<Value = Model> {
    let shape = prop_oneof![
        1 => Just(vec![]),
        1 => Just(vec![0]),
        1 => Just(vec![3, 0, 5]),
        3 => (1..300u64).prop_map(|n| vec![n]),
        // Few shapes, so that tensors are equal, and large enough for classes of rows.
        3 => Just(vec![24, 100]),
        1 => Just(vec![128, 256]),
        1 => (1..40u64, 1..200u64).prop_map(|(rows, columns)| vec![rows, columns]),
    ];
    let tensors = prop::collection::vec((0..DTYPES.len(), shape, fill()), 0..7);
    (tensors, any::<bool>()).prop_map(|(tensors, metadata)| Model { tensors, metadata })
}

fn fill() -> impl Strategy<Value = Fill> {
    prop_oneof![
        1 => Just(Fill::Zeros),
        1 => Just(Fill::Text),
        5 => (0..3u8).prop_map(Fill::Weights),
        1 => (0..3u8).prop_map(Fill::Noise),
    ]
}

impl Fill {
    /// So many bytes, of numbers of this type where it has any.
    fn bytes(self, dtype: &str, len: usize) -> Vec<u8> {
        match self {
            Self::Zeros => vec![0; len],
            Self::Text => b"a few words, again and ".iter().copied().cycle().take(len).collect(),
            Self::Weights(seed) if matches!(dtype, "F32" | "BF16") => {
                let numbers = weights(len / if dtype == "F32" { 4 } else { 2 }, u64::from(seed) + 1);
                let mut bytes: Vec<u8> = match dtype {
                    "F32" => numbers.into_iter().flat_map(f32::to_le_bytes).collect(),
                    _ => numbers.into_iter().flat_map(rounded).collect(),
                };
                bytes.resize(len, 0);
                bytes
            }
            Self::Weights(seed) | Self::Noise(seed) => {
                let mut state = u64::from(seed);
                let mut byte = || {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    state.to_le_bytes()[7]
                };
                let mask = if dtype == "BOOL" { 1 } else { 0xff };
                (0..len).map(|_| byte() & mask).collect()
            }
        }
    }
}

/// The nearest number of 16 bits, even where two are as near.
fn rounded(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let [_, _, low, high] = (bits + 0x7fff + (bits >> 16 & 1)).to_le_bytes();
    [low, high]
}

impl Model {
    fn tensors(&self) -> Vec<Tensor> {
        let tensors = self.tensors.iter().enumerate().map(|(idx, (dtype, shape, fill))| {
            let (dtype, element_len) = DTYPES[*dtype];
            let n: u64 = shape.iter().product();
            let name =
                ["layer.0.weight", "layer.0.bias", "λ/../x", "a b", "", "-", "q\"\\\n"][idx].to_owned();
            let bytes = fill.bytes(dtype, usize::try_from(n).unwrap() * element_len);
            Tensor { name, dtype, shape: shape.clone(), bytes }
        });
        tensors.collect()
    }

    fn file(&self, tensors: Vec<Tensor>) -> File {
        let listed: Vec<(&str, &str, &[u64], &[u8])> = tensors
            .iter()
            .map(|tensor| {
                (tensor.name.as_str(), tensor.dtype, tensor.shape.as_slice(), tensor.bytes.as_slice())
            })
            .collect();
        let mut bytes = safetensors(&listed);
        if self.metadata {
            bytes = with_metadata(&bytes);
        }
        File::new(bytes, What::Model(Some(tensors)))
    }
}

/// A safetensors file with texts of its user, and a header that is padded.
fn with_metadata(file: &[u8]) -> Vec<u8> {
    let header_end = 8 + usize::try_from(u64::from_le_bytes(*file.first_chunk().unwrap())).unwrap();
    let mut header: Value = serde_json::from_slice(&file[8..header_end]).unwrap();
    header["__metadata__"] = serde_json::json!({"format": "pt", "π": "3.14\n"});
    let header = format!("{:<997}", header.to_string());
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &file[header_end..]].concat()
}

impl Content {
    /// The file that is to lie there; nothing for what is no file.
    pub(super) fn file(&self) -> Option<File> {
        Some(match self {
            Self::Safetensors(model) => model.file(model.tensors()),
            Self::Npy(n) => File::new(npy(&Fill::Weights(1).bytes("F32", 4 * n)), What::Model(None)),
            Self::Fixture(name) => {
                let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mithril-format/tests/fixtures");
                File::new(std::fs::read(fixtures.join(name)).unwrap(), What::Model(None))
            }
            Self::Cut(model, at) => {
                let mut bytes = model.file(model.tensors()).bytes.to_vec();
                bytes.truncate(at.index(bytes.len()));
                File::new(bytes, What::Broken)
            }
            Self::ShardIndex => {
                let index = serde_json::json!({
                    "metadata": {"total_size": 4800},
                    "weight_map": {"layer.0.weight": NAMES[0], "layer.0.bias": NAMES[1]},
                });
                File::new(serde_json::to_vec_pretty(&index).unwrap(), What::Other)
            }
            Self::Frame(len) => {
                let bytes = Fill::Weights(2).bytes("F32", *len);
                File::new(mithril::compress(&bytes, &mithril::FrameOptions::default()).unwrap(), What::Packed)
            }
            Self::Bytes(fill, len) => File::new(fill.bytes("F32", *len), What::Other),
            Self::Directory | Self::Link(..) => return None,
        })
    }

    /// The same file after some training.
    pub(super) fn tuned(&self, change: Change) -> Option<File> {
        let Self::Safetensors(model) = self else { return self.file() };
        let mut tensors = model.tensors();
        match change {
            Change::None => {}
            Change::Some(at) => {
                let first = tensors.iter_mut().find(|tensor| !tensor.bytes.is_empty());
                let bytes = first.map_or(&mut [][..], |tensor| &mut tensor.bytes);
                // Only lowest bits of flags: others are none.
                bytes.iter_mut().skip(usize::from(at) % 40).step_by(36).for_each(|byte| *byte ^= 1);
            }
            Change::Most => {
                for tensor in tensors.iter_mut().skip(1) {
                    tensor.bytes = Fill::Weights(7).bytes(tensor.dtype, tensor.bytes.len());
                }
            }
            Change::Names => {
                if let Some(tensor) = tensors.first_mut() {
                    tensor.name = "renamed".to_owned();
                }
                let bytes = Fill::Weights(9).bytes("BF16", 400);
                tensors.push(Tensor { name: "new".to_owned(), dtype: "BF16", shape: vec![20, 10], bytes });
            }
        }
        Some(model.file(tensors))
    }
}
