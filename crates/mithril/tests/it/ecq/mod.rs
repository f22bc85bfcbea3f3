//! Quantised models to entropy-coded ones and back.

mod damaged;
mod inference;
mod quantize;
mod spec;

use crate::folder::Folder;
use mithril::convert::OutputDirectory;
use mithril::convert::ecq::{self, EcqFile, EncodeSummary, Layout, Outcome, SourceFormat, bit_packing};
use mithril::{Dtype, Error};
use std::path::Path;

/// Numbers from a fixed seed.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % below
    }

    /// A bell over the codes of so many bits.
    fn code(&mut self, bits: u8) -> u8 {
        let sum: u64 = (0..4).map(|_| self.next(1 << bits)).sum();
        (sum / 4) as u8
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.next(256) as u8).collect()
    }
}

type Tensor = (String, &'static str, Vec<usize>, Vec<u8>);

/// A safetensors file of tensors, with metadata.
fn safetensors_of(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!({"format": "mlx"}));
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

/// bf16 numbers near `scale`, as bytes.
fn bf16s(numbers: &mut Numbers, n: usize, scale: f32) -> Vec<u8> {
    let one = |numbers: &mut Numbers| {
        let value = scale * (0.5 + numbers.next(1000) as f32 / 1000.0);
        ((value.to_bits() >> 16) as u16).to_le_bytes()
    };
    (0..n).flat_map(|_| one(numbers)).collect()
}

/// A module as MLX packs it: `weight`, `scales` and, for affine, `biases` of whole steps.
fn mlx_module(name: &str, mode: &str, bits: u8, group: usize, rows: usize, columns: usize) -> Vec<Tensor> {
    let mut numbers = Numbers::new(7 + u64::from(bits) + group as u64);
    let codes: Vec<u8> = (0..rows * columns).map(|_| numbers.code(bits)).collect();
    let mut packed = vec![0; codes.len() * usize::from(bits) / 8];
    bit_packing::pack(bits, &codes, &mut packed);
    let words = columns * usize::from(bits) / 32;
    let weight = (format!("{name}.weight"), "U32", vec![rows, words], packed);
    let n = rows * columns / group;
    if mode != "affine" {
        let scales = (0..n).map(|_| 118 + numbers.next(4) as u8).collect();
        return vec![weight, (format!("{name}.scales"), "U8", vec![rows, columns / group], scales)];
    }
    let scales = bf16s(&mut numbers, n, 0.01);
    let mut bias = |scale: &[u8; 2]| {
        let value =
            f32::from_bits(u32::from(u16::from_le_bytes(*scale)) << 16) * -(numbers.next(4) as f32 + 6.0);
        ((value.to_bits() >> 16) as u16).to_le_bytes()
    };
    let biases = scales.as_chunks().0.iter().flat_map(&mut bias).collect();
    let side = |suffix: &str, bytes| (format!("{name}.{suffix}"), "BF16", vec![rows, columns / group], bytes);
    vec![weight, side("scales", scales), side("biases", biases)]
}

fn encode(input: &Path, output: &Path, threads: usize) -> Result<EncodeSummary, Error> {
    ecq::encode(input, OutputDirectory::create(output, false)?, threads, &|_| ())
}

fn decode(input: &Path, output: &Path, format: SourceFormat) -> Result<(), Error> {
    ecq::decode(input, format, OutputDirectory::create(output, false)?, 2, &|_| ()).map(|_| ())
}

/// Codes a directory and takes it back; every file must come back byte for byte. Returns what was coded.
fn check_round_trip(test: &str, files: &[(&str, Vec<u8>)], format: SourceFormat) -> EncodeSummary {
    let folder = Folder::new(test);
    for (name, bytes) in files {
        folder.write(&format!("model/{name}"), bytes);
    }
    let (model, coded, back) = (folder.join("model"), folder.join("coded"), folder.join("back"));
    let summary = encode(&model, &coded, 2).unwrap();
    assert!(decode(&coded, &folder.join("wrong"), other(format)).is_err());
    decode(&coded, &back, format).unwrap();
    for (name, bytes) in files {
        assert!(std::fs::read(back.join(name)).unwrap() == *bytes, "{test}: `{name}` comes back otherwise");
    }
    assert_eq!(std::fs::read_dir(&back).unwrap().count(), files.len(), "{test}: no other files");
    // The number of threads does not change a byte.
    let alone = folder.join("alone");
    encode(&model, &alone, 1).unwrap();
    for entry in std::fs::read_dir(&coded).unwrap() {
        let name = entry.unwrap().file_name();
        if name.to_string_lossy().ends_with(".safetensors") {
            assert!(std::fs::read(coded.join(&name)).unwrap() == std::fs::read(alone.join(&name)).unwrap());
        }
    }
    summary
}

fn other(format: SourceFormat) -> SourceFormat {
    if format == SourceFormat::Gguf { SourceFormat::Safetensors } else { SourceFormat::Gguf }
}

#[test]
fn mlx_repositories_of_every_mode_come_back_byte_for_byte() {
    let modes = [
        ("affine", 2, 64),
        ("affine", 3, 32),
        ("affine", 4, 64),
        ("affine", 5, 64),
        ("affine", 6, 128),
        ("affine", 8, 64),
        ("mxfp4", 4, 32),
        ("mxfp8", 8, 32),
        ("nvfp4", 4, 16),
    ];
    for (mode, bits, group) in modes {
        let mut tensors = mlx_module("model.layers.0.q_proj", mode, bits, group, 96, 256);
        tensors.extend(mlx_module("model.embed_tokens", mode, bits, group, 40, 384));
        tensors.push((
            "model.norm.weight".to_owned(),
            "BF16",
            vec![256],
            bf16s(&mut Numbers::new(1), 256, 1.0),
        ));
        let config = format!(r#"{{"quantization": {{"group_size": {group}, "bits": {bits}}}, "x": 1}}"#);
        let test = format!("ecq-{mode}-{bits}");
        let files = [
            ("model.safetensors", safetensors_of(&tensors)),
            ("config.json", config.into_bytes()),
            ("tokenizer.json", b"{}".to_vec()),
        ];
        let summary = check_round_trip(&test, &files, SourceFormat::Safetensors);
        let layout = match (mode, bits) {
            ("affine", _) => Layout::MlxAffine,
            ("mxfp4", _) => Layout::MlxMxfp4,
            ("mxfp8", _) => Layout::MlxMxfp8,
            _ => Layout::MlxNvfp4,
        };
        assert_eq!(summary.tensors.len(), 2);
        for tensor in &summary.tensors {
            assert_eq!(tensor.layout, layout, "{mode}");
            let Outcome::Coded { bits: found, group_size, coded_len } = tensor.outcome else {
                panic!("{mode}, {bits} bits: `{}` is not coded", tensor.name);
            };
            assert_eq!((found, group_size as usize), (bits, group), "{mode}");
            assert!(coded_len < tensor.raw_len);
        }
    }
}

#[test]
fn widths_are_found_without_a_configuration() {
    // 4 bits in groups of 64 and 2 in groups of 128 have the same shapes.
    let files = [("m.safetensors", safetensors_of(&mlx_module("a", "affine", 4, 64, 64, 512)))];
    let summary = check_round_trip("ecq-widths", &files, SourceFormat::Safetensors);
    assert!(matches!(summary.tensors[0].outcome, Outcome::Coded { bits: 4, group_size: 64, .. }));
}

#[test]
fn shards_and_their_index_come_back() {
    let files = [
        ("model-1.safetensors", safetensors_of(&mlx_module("a", "affine", 4, 64, 64, 256))),
        ("model-2.safetensors", safetensors_of(&mlx_module("b", "affine", 4, 64, 64, 256))),
        ("model.safetensors.index.json", br#"{"weight_map": {"a.weight": "model-1.safetensors"}}"#.to_vec()),
    ];
    check_round_trip("ecq-shards", &files, SourceFormat::Safetensors);
}

#[test]
fn packings_of_pytorch_quantisers_are_coded_as_codes() {
    let mut numbers = Numbers::new(5);
    let mut packed = |bits: u8, n: usize| {
        let codes: Vec<u8> = (0..n).map(|_| numbers.code(bits)).collect();
        let mut packed = vec![0; n * usize::from(bits) / 8];
        bit_packing::pack(bits, &codes, &mut packed);
        packed
    };
    let small = || ("BF16", vec![4usize], vec![1u8; 8]);
    let mut tensors = vec![
        ("gptq.qweight".to_owned(), "I32", vec![32, 256], packed(4, 65536)),
        ("awq.qweight".to_owned(), "I32", vec![256, 32], packed(4, 65536)),
        ("ct.weight_packed".to_owned(), "I32", vec![256, 64], packed(4, 131_072)),
        ("int8.weight".to_owned(), "I8", vec![128, 256], packed(8, 32768)),
        ("plain.weight".to_owned(), "I8", vec![128, 256], packed(8, 32768)),
    ];
    for name in ["gptq.scales", "awq.scales", "ct.weight_scale", "int8.weight_scale"] {
        let (dtype, shape, bytes) = small();
        tensors.push((name.to_owned(), dtype, shape, bytes));
    }
    let files = [("model.safetensors", safetensors_of(&tensors))];
    let summary = check_round_trip("ecq-pytorch", &files, SourceFormat::Safetensors);
    let coded: Vec<(&str, u8)> = summary
        .tensors
        .iter()
        .filter_map(|tensor| match tensor.outcome {
            Outcome::Coded { bits, .. } => Some((tensor.name.as_str(), bits)),
            _ => None,
        })
        .collect();
    let expected = [("gptq.qweight", 4), ("awq.qweight", 4), ("ct.weight_packed", 4), ("int8.weight", 8)];
    assert_eq!(coded, expected);
}

/// A GGUF file of tensors of these types, rows of 512 weights.
pub(crate) fn gguf_of(tensors: &[(&str, Dtype, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend(1u64.to_le_bytes());
    let text = |file: &mut Vec<u8>, text: &str| {
        file.extend((text.len() as u64).to_le_bytes());
        file.extend(text.as_bytes());
    };
    text(&mut file, "general.architecture");
    file.extend(8u32.to_le_bytes());
    text(&mut file, "llama");
    let mut offset = 0;
    for (name, dtype, kind, bytes) in tensors {
        text(&mut file, name);
        file.extend(2u32.to_le_bytes());
        let rows = dtype.elements_in(bytes.len() as u64) / 512;
        file.extend(512u64.to_le_bytes());
        file.extend(rows.to_le_bytes());
        file.extend(kind.to_le_bytes());
        file.extend((offset as u64).to_le_bytes());
        offset += bytes.len().next_multiple_of(32);
    }
    for (_, _, _, bytes) in tensors {
        file.resize(file.len().next_multiple_of(32), 0xee);
        file.extend(bytes);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file
}

/// Blocks whose codes are a bell and whose scales are close to each other.
pub(crate) fn gguf_blocks(dtype: Dtype, rows: usize) -> Vec<u8> {
    let layout = Layout::Gguf(dtype);
    let mut numbers = Numbers::new(u64::from(dtype.id()));
    let n = rows * 512;
    let Some(bits) = layout.bits() else {
        return numbers.bytes(n / dtype.elements_per_unit() as usize * dtype.unit_len());
    };
    let codes: Vec<u8> = (0..n).map(|_| numbers.code(bits)).collect();
    let n_units = n / dtype.elements_per_unit() as usize;
    let plane = |side: &ecq::Side, numbers: &mut Numbers| -> Vec<u8> {
        let n = n_units * side.per_unit;
        match side.dtype {
            Dtype::F16 => (0..n).flat_map(|_| (0x2400 + numbers.next(200) as u16).to_le_bytes()).collect(),
            _ => (0..n).map(|_| 20 + numbers.next(30) as u8).collect(),
        }
    };
    let sides: Vec<Vec<u8>> = layout.sides().iter().map(|side| plane(side, &mut numbers)).collect();
    let sides: Vec<&[u8]> = sides.iter().map(Vec::as_slice).collect();
    let mut blocks = vec![0; n_units * dtype.unit_len()];
    ecq::gguf::join(dtype, &codes, &sides, &mut blocks);
    blocks
}

/// All types with their numbers in GGUF.
const GGUF_TYPES: [(Dtype, u32); 12] = [
    (Dtype::Q4_0, 2),
    (Dtype::Q4_1, 3),
    (Dtype::Q5_0, 6),
    (Dtype::Q5_1, 7),
    (Dtype::Q8_0, 8),
    (Dtype::Q4K, 12),
    (Dtype::Q5K, 13),
    (Dtype::Q6K, 14),
    (Dtype::Iq4Nl, 20),
    (Dtype::Mxfp4, 39),
    (Dtype::Q2K, 10),
    (Dtype::Iq2Xxs, 16),
];

#[test]
fn gguf_files_come_back_byte_for_byte() {
    let names: Vec<String> =
        GGUF_TYPES.iter().map(|(dtype, _)| format!("blk.{}.weight", dtype.name())).collect();
    let mut tensors: Vec<(&str, Dtype, u32, Vec<u8>)> = GGUF_TYPES
        .iter()
        .zip(&names)
        .map(|(&(dtype, kind), name)| (name.as_str(), dtype, kind, gguf_blocks(dtype, 24)))
        .collect();
    tensors.push(("norm.weight", Dtype::F32, 0, vec![7; 4 * 512]));
    let files = [("model.gguf", gguf_of(&tensors))];
    let summary = check_round_trip("ecq-gguf", &files, SourceFormat::Gguf);
    let coded = |tensor: &&ecq::EncodedTensor| matches!(tensor.outcome, Outcome::Coded { .. });
    assert_eq!(
        summary.tensors.iter().filter(coded).count(),
        10,
        "all but Q2_K and IQ2_XXS, which are frames"
    );
}

#[test]
fn rows_of_a_matrix_are_read_alone() {
    let folder = Folder::new("ecq-rows");
    for (bits, seed) in [(3u8, 1u64), (4, 2), (6, 3), (8, 4)] {
        let name = format!("m{bits}.safetensors");
        let tensors = mlx_module("a", "affine", bits, 64, 300, 1024);
        folder.write(&name, &safetensors_of(&tensors));
        let coded = folder.join(&format!("coded{bits}"));
        encode(&folder.join(&name), &coded, 1).unwrap();
        let file = EcqFile::open(&coded.join(&name)).unwrap().unwrap();
        let mut codes = vec![0; 300 * 1024];
        let packed = &tensors[0].3;
        // The width is found by size, so the codes are those of the width that was chosen.
        let header = file.header("a").unwrap();
        let columns = header.shape.columns();
        codes.resize(300 * columns, 0);
        bit_packing::unpack(header.bits, packed, &mut codes);
        let mut numbers = Numbers::new(seed);
        for _ in 0..40 {
            let start = numbers.next(300) as usize;
            let end = start + numbers.next(301 - start as u64) as usize;
            let rows = file.read_codes("a", start..end).unwrap();
            assert!(rows == codes[start * columns..end * columns], "{bits} bits, rows {start} to {end}");
            let scales = file.read_side("a.scales", Some(start as u64..end as u64)).unwrap().1;
            assert!(scales == tensors[1].3[start * 32..end * 32], "scales of rows {start} to {end}");
        }
        assert!(file.read_codes("a", 290..301).is_err());
    }
}

#[test]
fn models_without_codes_are_refused_and_leave_nothing() {
    let folder = Folder::new("ecq-none");
    let plain = vec![("a.weight".to_owned(), "BF16", vec![8, 8], vec![0u8; 128])];
    folder.write("model.safetensors", &safetensors_of(&plain));
    let error = encode(&folder.join("model.safetensors"), &folder.join("out"), 1).unwrap_err().to_string();
    assert!(error.contains("no quantised weights"), "{error}");
    // Noise does not get smaller.
    let noise = Numbers::new(9).bytes(4096);
    folder.write("noise.gguf", &gguf_of(&[("a", Dtype::Q8_0, 8, noise[..34 * 16 * 7].to_vec())]));
    assert!(encode(&folder.join("noise.gguf"), &folder.join("out"), 1).is_err());
    folder.write("broken.gguf", b"GGUF\x03\0\0\0");
    assert!(encode(&folder.join("broken.gguf"), &folder.join("out"), 1).is_err());
    assert!(!folder.join("out").exists());
    assert_eq!(std::fs::read_dir(folder.join("")).unwrap().count(), 3);
}
