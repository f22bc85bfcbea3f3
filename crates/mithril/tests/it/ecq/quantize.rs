//! Quantising meets its target, and tells the truth about its error.

use super::{Numbers, safetensors_of};
use crate::folder::Folder;
use mithril::convert::ecq::EcqFile;
use mithril::convert::{OutputDirectory, Repository};
use mithril::inference::EntropyCodedLinear;
use mithril::quantize::{
    QuantizeOptions, QuantizeReport, Reference, Target, TensorOutcome, dequantize, quantize,
};
use mithril::{Error, safetensors};
use std::collections::BTreeMap;

/// Weights like those of a layer: a bell, with a few outliers.
fn weights(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let mut numbers = Numbers::new(seed);
    let mut one = || {
        let sum: f32 = (0..8).map(|_| numbers.next(1 << 16) as f32 / 65536.0 - 0.5).sum();
        if numbers.next(5000) == 0 { 9.0 * scale * sum } else { scale * sum }
    };
    (0..n).map(|_| one()).collect()
}

fn bytes(weights: &[f32]) -> Vec<u8> {
    weights.iter().flat_map(|weight| weight.to_le_bytes()).collect()
}

fn model(folder: &Folder) -> BTreeMap<&'static str, Vec<f32>> {
    let tensors = BTreeMap::from([
        ("a.weight", weights(1, 256 * 384, 0.02)),
        ("b.weight", weights(2, 96 * 512, 0.4)),
        ("conv", weights(3, 64 * 100, 1.0)),
        ("norm.weight", vec![1.0; 512]),
    ]);
    let shapes = [vec![256, 384], vec![96, 512], vec![64, 4, 5, 5], vec![512]];
    let list: Vec<_> = tensors
        .iter()
        .zip(shapes)
        .map(|((name, weights), shape)| ((*name).to_owned(), "F32", shape, bytes(weights)))
        .collect();
    folder.write("model/model.safetensors", &safetensors_of(&list));
    folder.write("model/config.json", b"{}");
    tensors
}

fn run(folder: &Folder, out: &str, options: &QuantizeOptions) -> Result<QuantizeReport, Error> {
    let repository = Repository::open(&folder.join("model"))?;
    quantize(&repository, OutputDirectory::create(&folder.join(out), false)?, options, &|_| ())
}

#[test]
fn the_error_is_in_the_header_and_true() {
    let report = check_error("quantize-error", Target::SnrDb(20.0));
    assert!((19.8..20.4).contains(&report.snr_db), "{} dB", report.snr_db);
    // Rows and columns with scales of their own.
    check_error("quantize-error-of-rows", Target::BitsPerWeight(3.8));
}

fn check_error(test: &str, target: Target) -> QuantizeReport {
    let folder = Folder::new(test);
    let tensors = model(&folder);
    let report = run(&folder, "out", &QuantizeOptions::new(target)).unwrap();
    let file = EcqFile::open(&folder.join("out/model.safetensors")).unwrap().unwrap();
    let block: serde_json::Value = serde_json::from_str(&file.metadata()["quantization"]).unwrap();
    assert_eq!((&block["type"], &block["lossy"]), (&"entropy_coded".into(), &true.into()));
    assert!((block["snr_db"].as_f64().unwrap() - report.snr_db).abs() < 1e-3);
    dequantize(&folder.join("out"), OutputDirectory::create(&folder.join("back"), false).unwrap(), &|_| ())
        .unwrap();
    let back = std::fs::read(folder.join("back/model.safetensors")).unwrap();
    let read = safetensors::tensors(&back, back.len() as u64).unwrap();
    assert_eq!(read.len(), 4);
    for tensor in &read {
        let decoded = &back[tensor.bytes.start as usize..tensor.bytes.end as usize];
        let original = &tensors[tensor.name.as_str()];
        let decoded = decoded.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let (mut error, mut energy) = (0f64, 0f64);
        for (was, is) in original.iter().zip(decoded) {
            error += f64::from(was - is).powi(2);
            energy += f64::from(*was).powi(2);
        }
        let Some(told) = report.tensors.iter().find(|report| report.name == tensor.name) else {
            assert_eq!(error, 0.0, "`{}` stays as it was", tensor.name);
            continue;
        };
        let TensorOutcome::Quantised { snr_db, .. } = told.outcome else { panic!("{told:?}") };
        let measured = -10.0 * (error / energy).log10();
        assert!((measured - snr_db).abs() < 0.01, "`{}`: {measured} dB, told {snr_db}", tensor.name);
    }
    report
}

#[test]
fn rows_and_columns_have_scales_of_their_own_where_a_size_is_wanted() {
    let folder = Folder::new("quantize-rows");
    // The last row of each is an eighth as large as the others, and the first is zero; so is the second column a sixteenth
    // as large, and the first one zero.
    let matrix = |rows: usize, columns: usize| {
        let mut matrix = weights(5, rows * columns, 1.0);
        matrix[..columns].fill(0.0);
        matrix[(rows - 1) * columns..].iter_mut().for_each(|weight| *weight *= 0.125);
        for row in matrix.chunks_exact_mut(columns) {
            (row[0], row[1]) = (0.0, row[1] / 16.0);
        }
        matrix
    };
    let list = [
        ("layer.weight".to_owned(), "F32", vec![400, 384], bytes(&matrix(400, 384))),
        ("narrow.weight".to_owned(), "F32", vec![100, 64], bytes(&matrix(100, 64))),
        ("table.weight".to_owned(), "F32", vec![4000, 384], bytes(&matrix(4000, 384))),
    ];
    folder.write("model/model.safetensors", &safetensors_of(&list));
    for (out, target, n_scales) in [
        ("size", Target::BitsPerWeight(4.0), 400),
        ("error", Target::SnrDb(22.0), 1),
        ("small", Target::BitsPerWeight(2.0), 1),
    ] {
        run(&folder, out, &QuantizeOptions::new(target)).unwrap();
        let file = EcqFile::open(&folder.join(out).join("model.safetensors")).unwrap().unwrap();
        let n = |name: &str| file.find(name).unwrap().shape[0];
        assert_eq!((n("layer.scales"), n("narrow.scales"), n("table.scales")), (n_scales, 1, 1), "{out}");
        let column_scales = file.find("layer.column_scales").map(|tensor| tensor.shape.clone());
        assert_eq!(column_scales, (n_scales > 1).then(|| vec![384]), "{out}");
        assert!(file.find("table.column_scales").is_none());
        let back = folder.join(&format!("{out}-back"));
        dequantize(&folder.join(out), OutputDirectory::create(&back, false).unwrap(), &|_| ()).unwrap();
        let read = std::fs::read(back.join("model.safetensors")).unwrap();
        let layer = safetensors::tensors(&read, read.len() as u64).unwrap();
        let layer = layer.iter().find(|tensor| tensor.name == "layer.weight").unwrap();
        let decoded = &read[layer.bytes.start as usize..layer.bytes.end as usize];
        let decoded: Vec<f32> =
            decoded.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let original = matrix(400, 384);
        let error = |row: usize| {
            let (was, is) = (&original[384 * row..][..384], &decoded[384 * row..][..384]);
            let energy: f32 = was.iter().map(|was| was * was).sum();
            was.iter().zip(is).map(|(was, is)| (was - is).powi(2)).sum::<f32>() / energy
        };
        let is_equal = error(399) < 2.0 * error(50);
        assert_eq!(is_equal, n_scales > 1, "{out}: {} and {}", error(399), error(50));
        // A column of a sixteenth has steps of a quarter.
        let column_error = |column: usize| {
            let pairs = original.iter().zip(&decoded).skip(column).step_by(384);
            pairs.map(|(was, is)| (was - is).powi(2)).sum::<f32>()
        };
        let ratio = column_error(1) / column_error(2);
        // At two bits nothing is left of such a column.
        let is_finer = (0.03..0.12).contains(&ratio);
        assert!(is_finer == (n_scales > 1) || out == "small", "{out}: {ratio}");
    }
}

#[test]
fn targets_of_size_and_of_other_formats_are_met() {
    let folder = Folder::new("quantize-targets");
    model(&folder);
    for bits in [1.6, 2.7, 3.75, 5.0, 7.0] {
        let report =
            run(&folder, &format!("bits{bits}"), &QuantizeOptions::new(Target::BitsPerWeight(bits))).unwrap();
        assert!(
            (bits - 0.12..bits + 0.05).contains(&report.bits_per_weight),
            "{bits}: {}",
            report.bits_per_weight
        );
    }
    let like = Reference::from_name("affine4-g64").unwrap();
    let report = run(&folder, "like", &QuantizeOptions::new(Target::Like(like))).unwrap();
    let reference = report.references.iter().find(|reference| reference.name == "affine4-g64").unwrap();
    assert!((report.snr_db - reference.snr_db).abs() < 0.3, "{} and {}", report.snr_db, reference.snr_db);
    assert!(report.bits_per_weight < 4.0, "{} bits", report.bits_per_weight);
}

#[test]
fn what_cannot_be_quantised_stays_and_is_named() {
    let folder = Folder::new("quantize-kept");
    let mut broken = weights(4, 64 * 128, 1.0);
    broken[5000] = f32::NAN;
    let list = [
        ("broken.weight".to_owned(), "F32", vec![64, 128], bytes(&broken)),
        ("zero.weight".to_owned(), "F32", vec![64, 128], vec![0; 64 * 128 * 4]),
        ("good.weight".to_owned(), "F32", vec![256, 128], bytes(&weights(5, 256 * 128, 1.0))),
        ("embed.weight".to_owned(), "F32", vec![64, 128], bytes(&weights(6, 64 * 128, 1.0))),
        ("column".to_owned(), "F32", vec![8192, 1], bytes(&weights(7, 8192, 1.0))),
    ];
    folder.write("model/model.safetensors", &safetensors_of(&list));
    let mut options = QuantizeOptions::new(Target::BitsPerWeight(3.0));
    options.keep.push("embed".to_owned());
    let report = run(&folder, "out", &options).unwrap();
    let file = EcqFile::open(&folder.join("out/model.safetensors")).unwrap().unwrap();
    assert_eq!(file.matrices().collect::<Vec<_>>(), ["good"]);
    for (name, _, _, bytes) in list.iter().filter(|(name, ..)| name != "good.weight") {
        assert!(file.read(name).unwrap() == *bytes, "`{name}` changed");
    }
    assert_eq!(report.n_copied, 4);
    let reasons: Vec<_> = report
        .tensors
        .iter()
        .filter_map(|tensor| match tensor.outcome {
            TensorOutcome::Kept(reason) => Some((tensor.name.as_str(), reason)),
            _ => None,
        })
        .collect();
    let broken = ("broken.weight", "it has weights that are no numbers");
    assert_eq!(reasons, [broken, ("zero.weight", "its weights are all zero")]);
    options.sensitivities.insert("good.weight".to_owned(), f64::NAN);
    assert!(run(&folder, "out2", &options).is_err());
    for target in [Target::BitsPerWeight(0.0), Target::BitsPerWeight(f64::NAN), Target::SnrDb(400.0)] {
        assert!(run(&folder, "out2", &QuantizeOptions::new(target)).is_err(), "{target:?}");
    }
    assert!(!folder.join("out2").exists());
}

#[test]
fn sensitive_tensors_get_more_bits() {
    let folder = Folder::new("quantize-sensitive");
    model(&folder);
    let mut options = QuantizeOptions::new(Target::BitsPerWeight(3.5));
    options.sensitivities.insert("b.weight".to_owned(), 16.0);
    let report = run(&folder, "out", &options).unwrap();
    let bits = |name: &str| {
        let tensor = report.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        let TensorOutcome::Quantised { bits_per_weight, .. } = tensor.outcome else { panic!("{tensor:?}") };
        bits_per_weight
    };
    // A factor of 16 in the error is two bits.
    assert!((1.7..2.3).contains(&(bits("b.weight") - bits("a.weight"))), "{report:?}");
}

/// A model of one matrix with a few weights changed, and what became of it.
fn changed(test: &str, change: impl FnOnce(&mut [f32])) -> (Folder, Vec<f32>, QuantizeReport) {
    let folder = Folder::new(test);
    let (mut odd, good) = (weights(8, 128 * 256, 0.02), weights(9, 64 * 128, 1.0));
    change(&mut odd);
    let list = [
        ("odd.weight".to_owned(), "F32", vec![128, 256], bytes(&odd)),
        ("good.weight".to_owned(), "F32", vec![64, 128], bytes(&good)),
    ];
    folder.write("model/model.safetensors", &safetensors_of(&list));
    let report = run(&folder, "out", &QuantizeOptions::new(Target::SnrDb(20.0))).unwrap();
    let back = OutputDirectory::create(&folder.join("back"), false).unwrap();
    dequantize(&folder.join("out"), back, &|_| ()).unwrap();
    let file = std::fs::read(folder.join("back/model.safetensors")).unwrap();
    let read = safetensors::tensors(&file, file.len() as u64).unwrap();
    let odd = read.iter().find(|tensor| tensor.name == "odd.weight").unwrap();
    let bytes = &file[odd.bytes.start as usize..odd.bytes.end as usize];
    (folder, bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(), report)
}

#[test]
fn one_huge_weight_takes_no_bits_from_the_others() {
    for huge in [1e30, -f32::MAX, 1e4] {
        let at = 77 * 256 + 3;
        let (_folder, decoded, report) = changed("quantize-outlier", |weights| weights[at] = huge);
        assert_eq!(decoded[at], huge, "an outlier is kept as it is");
        let original = weights(8, 128 * 256, 0.02);
        let (mut error, mut energy) = (0f64, 0f64);
        for (idx, (was, is)) in original.iter().zip(&decoded).enumerate().filter(|(idx, _)| *idx != at) {
            error += f64::from(was - is).powi(2);
            energy += f64::from(*was).powi(2);
            assert!((was - is).abs() < 0.02, "weight {idx}: {was} became {is}");
        }
        let measured = -10.0 * (error / energy).log10();
        let told = report.tensors.iter().find(|tensor| tensor.name == "odd.weight").unwrap();
        let TensorOutcome::Quantised { snr_db, n_escapes, .. } = told.outcome else { panic!("{told:?}") };
        assert!((measured - snr_db).abs() < 0.05 && n_escapes >= 1, "{measured} dB, told {snr_db}");
        assert!((19.0..21.0).contains(&snr_db) && (19.5..20.5).contains(&report.snr_db), "{report:?}");
        let affine = report.references.iter().find(|reference| reference.name == "affine4-g64").unwrap();
        assert!((10.0..25.0).contains(&affine.snr_db), "{affine:?}");
    }
}

#[test]
fn tensors_that_no_step_fits_stay_bit_for_bit() {
    let nan_late = |weights: &mut [f32]| weights[128 * 256 - 1] = f32::NAN;
    let infinite = |weights: &mut [f32]| weights[0] = f32::NEG_INFINITY;
    let tiny = |weights: &mut [f32]| weights.iter_mut().for_each(|weight| *weight *= 1e-36);
    let changes: [fn(&mut [f32]); 3] = [nan_late, infinite, tiny];
    for (name, change) in ["nan", "infinite", "tiny"].into_iter().zip(changes) {
        let (_folder, decoded, report) = changed(&format!("quantize-{name}"), change);
        let told = report.tensors.iter().find(|tensor| tensor.name == "odd.weight").unwrap();
        assert!(matches!(told.outcome, TensorOutcome::Kept(_)), "{name}: {told:?}");
        let mut wanted = weights(8, 128 * 256, 0.02);
        change(&mut wanted);
        let bits = |weights: &[f32]| weights.iter().map(|weight| weight.to_bits()).collect::<Vec<_>>();
        assert!(bits(&decoded) == bits(&wanted), "{name}");
        assert!((19.5..20.5).contains(&report.snr_db), "{name}: the other matrix meets the target");
    }
}

#[test]
fn products_with_scales_of_columns_are_those_of_the_weights() {
    let folder = Folder::new("quantize-columns");
    let (rows, columns) = (400, 300);
    let mut matrix = weights(9, rows * columns, 0.1);
    for row in matrix.chunks_exact_mut(columns) {
        row.iter_mut().enumerate().for_each(|(column, weight)| *weight *= 0.2 + (column % 9) as f32);
    }
    (matrix[7], matrix[columns + 11]) = (60.0, -90.0);
    let list = [("layer.weight".to_owned(), "F32", vec![rows, columns], bytes(&matrix))];
    folder.write("model/model.safetensors", &safetensors_of(&list));
    let report = run(&folder, "out", &QuantizeOptions::new(Target::BitsPerWeight(4.0))).unwrap();
    let TensorOutcome::Quantised { n_escapes, .. } = report.tensors[0].outcome else { panic!("{report:?}") };
    assert!(n_escapes > 1, "weights beyond all levels are there");
    let file = EcqFile::open(&folder.join("out/model.safetensors")).unwrap().unwrap();
    let layer = EntropyCodedLinear::from_file(&file, "layer").unwrap();
    let again = EntropyCodedLinear::from_parts("layer", layer.to_parts()).unwrap();
    assert_eq!(again.to_parts(), layer.to_parts());
    let decoded = layer.decode_rows(0..rows).unwrap();
    assert_eq!(decoded[7], 60.0);
    let mut numbers = Numbers::new(4);
    let x: Vec<f32> = (0..columns).map(|_| numbers.next(2001) as f32 / 1000.0 - 1.0).collect();
    let (mut singles, mut integers) = (vec![0.0; rows], vec![0.0; rows]);
    layer.forward(&x, &mut singles, 1).unwrap();
    layer.forward_int8(&x, &mut integers, 1).unwrap();
    for (row, (single, integer)) in decoded.chunks_exact(columns).zip(singles.iter().zip(&integers)) {
        let terms = row.iter().zip(&x).map(|(weight, x)| f64::from(*weight) * f64::from(*x));
        let (exact, size) = terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
        assert!((f64::from(*single) - exact).abs() < 1e-5 * size, "{single} and {exact}");
        assert!((f64::from(*integer) - exact).abs() < 0.02 * size, "{integer} and {exact}");
    }
    // A column that counts for nothing would be divided by.
    let mut parts = layer.to_parts();
    parts.iter_mut().filter(|part| part.name.ends_with("column_scales")).for_each(|part| part.bytes.fill(0));
    assert!(EntropyCodedLinear::from_parts("layer", parts).is_err());
}
