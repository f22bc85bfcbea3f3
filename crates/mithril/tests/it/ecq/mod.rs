//! Quantised models to entropy-coded ones and back.

mod damaged;
mod golden;
mod inference;
pub(crate) mod models;
mod quantised;
mod quantize;
mod spec;

use crate::folder::Folder;
use mithril::convert::OutputDirectory;
use mithril::convert::ecq::{self, EcqFile, EncodeSummary, Layout, Outcome, SourceFormat, bit_packing};
use mithril::{Dtype, Error};
use models::{GGUF_TYPES, bf16s, mlx_module, safetensors_of};
pub(crate) use models::{Numbers, gguf_blocks, gguf_of};
use std::path::Path;

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
        11,
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
