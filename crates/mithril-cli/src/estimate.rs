//! `mithril estimate`: size and time from a sample.

use crate::arguments::EstimateArguments;
use crate::failure::{Failure, Fault, print, print_json};
use crate::progress::Meter;
use crate::source::Source;
use crate::table::Table;
use mithril::Error;
use mithril::estimate::{Estimate, TensorEstimate, estimate};
use mithril::pack::{PackOptions, PackSummary, pack};
use serde_json::{Value, json};
use std::io;
use std::path::Path;

/// What was predicted of a file, and what is true.
struct Prediction {
    name: String,
    estimate: Estimate,
    /// What the file really comes to, and the seconds that took.
    truth: Option<(PackSummary, f64)>,
}

/// Runs `mithril estimate`.
pub(crate) fn run(arguments: &EstimateArguments) -> Result<(), Failure> {
    let mut predictions = Vec::new();
    let mut worst: Option<Fault> = None;
    for path in &arguments.files {
        match predict(path, arguments) {
            Ok(prediction) => predictions.push(prediction),
            Err(failure) if arguments.files.len() == 1 => return Err(failure),
            Err(failure) => worst = worst.max(failure.tell()),
        }
    }
    match arguments.json {
        true => print_json(&json!({
            "effort": arguments.coding.effort().name(),
            "files": predictions.iter().map(to_json).collect::<Vec<_>>(),
        }))?,
        false => print(render(&predictions, arguments))?,
    }
    worst.map_or(Ok(()), |fault| Err(Failure::Reported(fault)))
}

fn predict(path: &Path, arguments: &EstimateArguments) -> Result<Prediction, Failure> {
    let source = Source::open(path)?;
    let file = source.random_access()?;
    let options = PackOptions::default().with_coding(arguments.coding.coding());
    let refused = |error: &Error| Failure::model(&source.name, error);
    let estimate = estimate(&file, &options).map_err(|error| refused(&error))?;
    let truth = match arguments.check {
        false => None,
        true => {
            let meter = Meter::new(source.len);
            let packed = pack(&file, io::sink(), &options, &|len| meter.add(len));
            Some((packed.map_err(|error| refused(&error))?.1, meter.elapsed_seconds()))
        }
    };
    Ok(Prediction { name: source.name, estimate, truth })
}

fn render(predictions: &[Prediction], arguments: &EstimateArguments) -> String {
    let mut text = String::new();
    if arguments.tensors {
        for prediction in predictions {
            text += &render_tensors(prediction);
            text.push('\n');
        }
    }
    let mut table = match arguments.check {
        false => Table::new(1, ["file", "raw", "predicted", "ratio", "read", "CPU seconds"]),
        true => Table::new(
            1,
            ["file", "raw", "predicted", "ratio", "read", "CPU seconds", "true", "off by", "true seconds"],
        ),
    };
    for prediction in predictions {
        let estimate = &prediction.estimate;
        let cells = [
            prediction.name.clone(),
            estimate.raw_len.to_string(),
            estimate.stored_len.to_string(),
            format!("{:.4}", ratio(estimate.stored_len, estimate.raw_len)),
            format!("{:.2} %", 100.0 * ratio(estimate.sampled_len, estimate.raw_len)),
            format!("{:.3}", estimate.seconds),
        ];
        match &prediction.truth {
            None => table.push(cells),
            Some((truth, seconds)) => {
                let [name, raw, predicted, ratio, read, cpu] = cells;
                let (stored, off) =
                    (truth.packed_len.to_string(), format!("{:+.2} %", 100.0 * off(prediction)));
                table.push([name, raw, predicted, ratio, read, cpu, stored, off, format!("{seconds:.3}")]);
            }
        }
    }
    text + &table.render()
}

fn render_tensors(prediction: &Prediction) -> String {
    let mut table = Table::new(
        3,
        [prediction.name.as_str(), "dtype", "shape", "raw", "predicted", "bits/element", "seconds", "true"],
    );
    for (idx, tensor) in prediction.estimate.tensors.iter().enumerate() {
        let truth = prediction.truth.as_ref().and_then(|(truth, _)| truth.tensors.get(idx));
        table.push([
            tensor.name.escape_debug().to_string(),
            tensor.dtype.name().to_owned(),
            format!("{:?}", tensor.shape),
            tensor.raw_len.to_string(),
            tensor.stored_len.to_string(),
            format!("{:.3}", bits_per_element(tensor)),
            format!("{:.4}", tensor.seconds),
            truth.map_or_else(String::new, |truth| truth.stored_len.to_string()),
        ]);
    }
    table.render()
}

fn to_json(prediction: &Prediction) -> Value {
    let estimate = &prediction.estimate;
    let tensors = estimate.tensors.iter().map(|tensor| {
        json!({
            "name": tensor.name,
            "dtype": tensor.dtype.name(),
            "shape": tensor.shape,
            "raw_bytes": tensor.raw_len,
            "predicted_bytes": tensor.stored_len,
            "bits_per_element": bits_per_element(tensor),
            "kind": tensor.kind.name(),
            "sampled_bytes": tensor.sampled_len,
            "seconds": tensor.seconds,
        })
    });
    let mut value = json!({
        "file": prediction.name,
        "raw_bytes": estimate.raw_len,
        "predicted_bytes": estimate.stored_len,
        "ratio": ratio(estimate.stored_len, estimate.raw_len),
        "sampled_bytes": estimate.sampled_len,
        "cpu_seconds": estimate.seconds,
        "tensors": tensors.collect::<Vec<_>>(),
    });
    if let (Some((truth, seconds)), Some(value)) = (&prediction.truth, value.as_object_mut()) {
        value.insert("true_bytes".to_owned(), json!(truth.packed_len));
        value.insert("true_seconds".to_owned(), json!(seconds));
        value.insert("off_by".to_owned(), json!(off(prediction)));
    }
    value
}

/// How far the prediction is off, as a share of the true size.
fn off(prediction: &Prediction) -> f64 {
    let predicted = prediction.estimate.stored_len as f64;
    prediction.truth.as_ref().map_or(0.0, |(truth, _)| predicted / truth.packed_len.max(1) as f64 - 1.0)
}

fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

fn bits_per_element(tensor: &TensorEstimate) -> f64 {
    let n_elements = tensor.shape.iter().fold(1u64, |n, &dimension| n.saturating_mul(dimension));
    8.0 * tensor.stored_len as f64 / n_elements.max(1) as f64
}
