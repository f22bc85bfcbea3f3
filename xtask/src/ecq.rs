//! Golden entropy-coded files: one for every kind of matrix.

use crate::ecq_models::{
    GGUF_TYPES, Numbers, Tensor, bf16s, gguf_blocks, gguf_of, mlx_module, safetensors_of,
};
use crate::repository;
use mithril::Dtype;
use mithril::convert::ecq::{self, EcqFile, Layout, Outcome, SourceFormat, bit_packing};
use mithril::convert::{OutputDirectory, Repository};
use mithril::inference::{EntropyCodedLinear, WeightClass};
use mithril::quantize::{Grid, QuantizeOptions, QuantizeReport, Target, TensorOutcome, quantize};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

/// A golden file.
pub(crate) struct GoldenEcq {
    pub(crate) name: String,
    /// The original file, or the weights of all matrices as singles.
    pub(crate) restored: Vec<u8>,
    pub(crate) file: Vec<u8>,
}

/// Mode, bits and group of MLX's files, with rows and columns of their first matrix.
const MLX: [(&str, u8, usize, usize, usize); 13] = [
    ("affine", 2, 64, 40, 256),
    ("affine", 3, 64, 24, 256),
    // 33,280 symbols: two blocks, of which the last has few rows.
    ("affine", 4, 64, 130, 256),
    ("affine", 4, 32, 24, 256),
    ("affine", 4, 128, 24, 256),
    ("affine", 5, 64, 48, 256),
    ("affine", 6, 64, 48, 256),
    ("affine", 8, 64, 60, 256),
    ("affine", 8, 32, 60, 256),
    ("mxfp4", 4, 32, 48, 256),
    ("mxfp8", 8, 32, 96, 256),
    ("nvfp4", 4, 16, 60, 256),
    // Rows that are no multiple of 64 columns.
    ("affine", 3, 32, 60, 224),
];

/// All of them, made below a directory that is empty.
pub(crate) fn all() -> Result<Vec<GoldenEcq>, Failure> {
    let place = repository("target/golden-ecq");
    if place.exists() {
        std::fs::remove_dir_all(&place)?;
    }
    std::fs::create_dir_all(&place)?;
    let mut files = Vec::new();
    for (mode, bits, group, rows, columns) in MLX {
        let tensors = mlx_module("layer", mode, bits, group, rows, columns);
        let name = match mode {
            "affine" => format!("mlx_affine{bits}_g{group}_{columns}"),
            _ => format!("mlx_{mode}"),
        };
        let config =
            format!(r#"{{"quantization": {{"group_size": {group}, "bits": {bits}, "mode": "{mode}"}}}}"#);
        files.push(transcoded(&place.join(&name), &name, &with_norm(tensors), Some(&config), 1)?);
    }
    files.push(pytorch(&place.join("pytorch"))?);
    for (dtype, kind) in GGUF_TYPES {
        let name = format!("gguf_{}", dtype.name().to_lowercase());
        let tensors = [
            ("blk.weight", dtype, kind, gguf_blocks(dtype, 24)),
            ("norm.weight", Dtype::F32, 0, vec![7; 4 * 512]),
        ];
        let n_coded = usize::from(!Layout::Gguf(dtype).sides().is_empty());
        // What is not taken apart is stored as a frame beside a matrix that is.
        let mut with = tensors.to_vec();
        if n_coded == 0 {
            with.push(("other.weight", Dtype::Q4_0, 2, gguf_blocks(Dtype::Q4_0, 24)));
        }
        files.push(coded(&place.join(&name), &name, "model.gguf", &gguf_of(&with), None, 1)?);
    }
    for grid in [Grid::Zero4, Grid::Halves5, Grid::Halves6, Grid::Zero8] {
        files.push(quantised(&place, grid)?);
    }
    files.push(cross_levels(&place.join("levels_cross"))?);
    for (name, class) in [("entropy", WeightClass::EntropyCoded), ("fixed12", WeightClass::Fixed12)] {
        files.push(bf16(name, class)?);
    }
    Ok(files)
}

fn with_norm(mut tensors: Vec<Tensor>) -> Vec<u8> {
    tensors.push(("norm.weight".to_owned(), "BF16", vec![64], bf16s(&mut Numbers::new(1), 64, 1.0)));
    safetensors_of(&tensors)
}

fn transcoded(
    place: &Path,
    name: &str,
    source: &[u8],
    config: Option<&str>,
    n_coded: usize,
) -> Result<GoldenEcq, Failure> {
    coded(place, name, "model.safetensors", source, config, n_coded)
}

/// Codes a file and takes it back.
fn coded(
    place: &Path,
    name: &str,
    source_name: &str,
    source: &[u8],
    config: Option<&str>,
    n_coded: usize,
) -> Result<GoldenEcq, Failure> {
    std::fs::create_dir_all(place.join("model"))?;
    std::fs::write(place.join("model").join(source_name), source)?;
    if let Some(config) = config {
        std::fs::write(place.join("model/config.json"), config)?;
    }
    let output = OutputDirectory::create(&place.join("coded"), false)?;
    let summary = ecq::encode(&place.join("model"), output, 1, &|_| ())?;
    let is_coded = |tensor: &&ecq::EncodedTensor| matches!(tensor.outcome, Outcome::Coded { .. });
    if summary.tensors.iter().filter(is_coded).count() != n_coded {
        return Err(format!("{name}: {:?}", summary.tensors).into());
    }
    let file = std::fs::read(place.join("coded/model.safetensors"))?;
    let format = if source_name.ends_with(".gguf") { SourceFormat::Gguf } else { SourceFormat::Safetensors };
    let output = OutputDirectory::create(&place.join("back"), false)?;
    ecq::decode(&place.join("coded"), format, output, 1, &|_| ())?;
    if std::fs::read(place.join("back").join(source_name))? != source {
        return Err(format!("{name} does not come back").into());
    }
    Ok(GoldenEcq { name: name.to_owned(), restored: source.to_vec(), file })
}

/// Codes of GPTQ and of whole numbers, without a packing of their own.
fn pytorch(place: &Path) -> Result<GoldenEcq, Failure> {
    let mut numbers = Numbers::new(5);
    let mut packed = |bits: u8, n: usize| {
        let codes: Vec<u8> = (0..n).map(|_| numbers.code(bits)).collect();
        let mut packed = vec![0; n * usize::from(bits) / 8];
        bit_packing::pack(bits, &codes, &mut packed);
        packed
    };
    let tensors: [Tensor; 4] = [
        ("gptq.qweight".to_owned(), "I32", vec![16, 128], packed(4, 16384)),
        ("int8.weight".to_owned(), "I8", vec![128, 128], packed(8, 16384)),
        ("gptq.scales".to_owned(), "BF16", vec![4], vec![1; 8]),
        ("int8.weight_scale".to_owned(), "BF16", vec![4], vec![1; 8]),
    ];
    transcoded(place, "codes_gptq_int8", &safetensors_of(&tensors), None, 2)
}

/// Two matrices of our quantiser with these levels, and with outliers.
fn quantised(place: &Path, wanted: Grid) -> Result<GoldenEcq, Failure> {
    let name = format!("levels_{wanted:?}").to_lowercase();
    // The coarsest target, in quarters of a bit, for which the quantiser chooses these levels for both.
    for quarters in 4..34 {
        if let Some(golden) = with_target(&place.join(format!("{name}{quarters}")), &name, wanted, quarters)?
        {
            return Ok(golden);
        }
    }
    Err(format!("no target gives {name}").into())
}

fn with_target(place: &Path, name: &str, wanted: Grid, quarters: u8) -> Result<Option<GoldenEcq>, Failure> {
    let mut numbers = Numbers::new(11);
    let mut weights = |n: usize, outlier: f32| -> Vec<u8> {
        (0..n).flat_map(|_| weight(&mut numbers, outlier).to_le_bytes()).collect()
    };
    let tensors: [Tensor; 2] = [
        ("a.weight".to_owned(), "F32", vec![48, 160], weights(48 * 160, 20.0)),
        ("b.weight".to_owned(), "F32", vec![70, 96], weights(70 * 96, 1e9)),
    ];
    let report = quantise_to(place, &tensors, f64::from(quarters) / 4.0)?;
    let is_wanted =
        |outcome: &TensorOutcome| matches!(outcome, TensorOutcome::Quantised { grid, .. } if *grid == wanted);
    if !report.tensors.iter().all(|tensor| is_wanted(&tensor.outcome)) {
        return Ok(None);
    }
    Ok(Some(levels_of(place, name, &["a", "b"])?))
}

/// A weight of a bell; one in 800 is an outlier.
fn weight(numbers: &mut Numbers, outlier: f32) -> f32 {
    let sum: f32 = (0..8).map(|_| numbers.next(1 << 16) as f32 / 65536.0 - 0.5).sum();
    if numbers.next(800) == 0 { outlier * sum } else { sum }
}

/// A matrix large enough for scales of rows and columns, which differ.
fn cross_levels(place: &Path) -> Result<GoldenEcq, Failure> {
    let mut numbers = Numbers::new(17);
    let (rows, columns) = (300, 224);
    let mut weights = Vec::with_capacity(4 * rows * columns);
    for at in 0..rows * columns {
        let factor = (1 + at / columns % 5) as f32 * (1 + at % columns % 7) as f32;
        weights.extend((factor * weight(&mut numbers, 20.0)).to_le_bytes());
    }
    let tensors: [Tensor; 1] = [("a.weight".to_owned(), "F32", vec![rows, columns], weights)];
    quantise_to(place, &tensors, 3.75)?;
    let golden = levels_of(place, "levels_cross", &["a"])?;
    let file = EcqFile::open(&place.join("coded/model.safetensors"))?.ok_or("it is entropy-coded")?;
    if file.find("a.column_scales").is_none() {
        return Err("levels_cross has no scales of columns".into());
    }
    Ok(golden)
}

fn quantise_to(place: &Path, tensors: &[Tensor], bits: f64) -> Result<QuantizeReport, Failure> {
    std::fs::create_dir_all(place.join("model"))?;
    std::fs::write(place.join("model/model.safetensors"), safetensors_of(tensors))?;
    let output = OutputDirectory::create(&place.join("coded"), false)?;
    let model = Repository::open(&place.join("model"))?;
    Ok(quantize(&model, output, &QuantizeOptions::new(Target::BitsPerWeight(bits)), &|_| ())?)
}

/// A quantised file, and what its matrices stand for.
fn levels_of(place: &Path, name: &str, matrices: &[&str]) -> Result<GoldenEcq, Failure> {
    let path = place.join("coded/model.safetensors");
    let file = EcqFile::open(&path)?.ok_or("it is entropy-coded")?;
    let mut restored = Vec::new();
    for name in matrices {
        let matrix = EntropyCodedLinear::from_file(&file, name)?;
        restored.extend(matrix.decode_rows(0..matrix.rows())?.iter().flat_map(|weight| weight.to_le_bytes()));
    }
    Ok(GoldenEcq { name: name.to_owned(), restored, file: std::fs::read(path)? })
}

/// bf16 weights, some of which have other exponents than the rest.
fn bf16(name: &str, class: WeightClass) -> Result<GoldenEcq, Failure> {
    let mut numbers = Numbers::new(13);
    let mut bytes = bf16s(&mut numbers, 40 * 200, 0.02);
    for (at, odd) in [(3, 0x7fc1u16), (200, 0x7f80), (777, 0x8000), (4000, 0x0001), (7999, 0xff7f)] {
        bytes[2 * at..2 * at + 2].copy_from_slice(&odd.to_le_bytes());
    }
    for pair in bytes.as_chunks_mut::<2>().0.iter_mut().step_by(3) {
        pair[1] ^= 0x80;
    }
    let matrix = EntropyCodedLinear::from_bf16("weight", &bytes, 40, 200, class)?;
    let parts: Vec<Tensor> = matrix
        .to_parts()
        .into_iter()
        .map(|part| {
            let shape = part.shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
            (part.name, part.dtype.name(), shape, part.bytes)
        })
        .collect();
    let restored = bytes.as_chunks::<2>().0.iter().flat_map(|[low, high]| [0, 0, *low, *high]).collect();
    let metadata = mithril_format::ecq::metadata([("mode", serde_json::json!("bf16"))].into(), None);
    Ok(GoldenEcq { name: format!("bf16_{name}"), restored, file: with_metadata(&parts, &metadata) })
}

/// A safetensors file with these metadata.
fn with_metadata(tensors: &[Tensor], metadata: &std::collections::BTreeMap<String, String>) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".to_owned(), serde_json::json!(metadata));
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert(
            name.clone(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
        );
        data.extend(bytes);
    }
    let header = serde_json::Value::Object(header).to_string().into_bytes();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
