//! `mithril inspect --html`: one page with pictures, which needs nothing but itself.

use super::survey::{Survey, Tensor};
use super::tensor_to_json;
use crate::failure::Failure;
use crate::progress::Meter;
use crate::report;
use mithril::compare::change_map;
use mithril::container::{Bases, Model};
use mithril::{Error, field_entropies};
use serde_json::{Value, json};
use std::path::Path;

/// The sections of the page and the script that fills them.
pub(crate) const BODY: &str = include_str!("page.html");

/// Tensors that a page shows; of more, the largest.
const MAX_TENSORS: usize = 4000;

/// Parts that a tensor has in a change map.
const N_PARTS: usize = 96;

/// Writes the page; returns its length. A base that is not found stops it only if it `must_be_there`.
pub(super) fn write(
    survey: &Survey<'_>,
    model: &Model,
    must_be_there: bool,
    path: &Path,
    replace: bool,
) -> Result<u64, Failure> {
    report::write(BODY, &data(survey, model, must_be_there)?, path, replace)
}

fn data(survey: &Survey<'_>, model: &Model, must_be_there: bool) -> Result<Value, Failure> {
    let refused = |error: &Error| Failure::model(&survey.name, error);
    let mut largest: Vec<&Tensor<'_>> = survey.tensors.iter().collect();
    largest.sort_by_key(|tensor| std::cmp::Reverse(tensor.raw_len));
    largest.truncate(MAX_TENSORS);
    let meter = Meter::new(Some(largest.iter().map(|tensor| tensor.raw_len).sum()));
    let mut tensors = Vec::new();
    for tensor in
        survey.tensors.iter().filter(|tensor| largest.iter().any(|kept| std::ptr::eq(*kept, *tensor)))
    {
        let mut value = tensor_to_json(tensor);
        if let Some(value) = value.as_object_mut() {
            value.insert("fields".to_owned(), fields(tensor, model).map_err(|error| refused(&error))?);
            let changes = changes(tensor, model, must_be_there).map_err(|error| refused(&error))?;
            value.insert("changes".to_owned(), changes);
        }
        meter.add(tensor.raw_len);
        tensors.push(value);
    }
    let facts: Vec<[String; 2]> =
        survey.facts().into_iter().map(|(key, value)| [key.to_owned(), value]).collect();
    Ok(json!({
        "file": survey.name,
        "packed": survey.is_packed,
        "facts": facts,
        "n_tensors": survey.tensors.len(),
        "tensors": tensors,
    }))
}

/// The entropies of a float tensor's fields; nothing for others, and for those whose base is not at hand.
fn fields(tensor: &Tensor<'_>, model: &Model) -> Result<Value, Error> {
    let Some(idx) = model.find(tensor.name) else { return Ok(Value::Null) };
    let opened = match model.open_tensor(idx) {
        Err(error) if error.kind() == mithril::ErrorKind::Base => return Ok(Value::Null),
        opened => opened?,
    };
    let found = field_entropies(&opened, tensor.dtype, 0)?;
    Ok(found.map_or(Value::Null, |found| {
        json!({
            "sign": found.sign,
            "exponent": found.exponent,
            "mantissa": found.mantissa,
            "exponent_bits": found.exponent_bits,
            "mantissa_bits": found.mantissa_bits,
        })
    }))
}

/// Where a tensor differs from its base, or, when the base is not at hand, how many bits its blocks take.
fn changes(tensor: &Tensor<'_>, model: &Model, must_be_there: bool) -> Result<Value, Error> {
    let Some(reader) = model.container() else { return Ok(Value::Null) };
    let Ok(entry_idx) = reader.find(tensor.name) else { return Ok(Value::Null) };
    if reader.entries()[entry_idx].base().is_none() {
        return Ok(Value::Null);
    }
    let none = Bases::none();
    let bases = model.bases().unwrap_or(&none);
    match reader.open_base(entry_idx, bases) {
        Ok(Some(base)) => {
            let opened = reader.open_tensor(entry_idx, bases)?;
            let element_len = tensor.dtype.unit_len() as u64;
            let shares = change_map(&opened, &base, element_len, N_PARTS, 0)?;
            Ok(json!({"what": "share of changed elements", "parts": shares, "most": 1.0}))
        }
        Ok(None) => Ok(Value::Null),
        Err(error) if must_be_there && error.is_missing_base() => Err(error),
        Err(_) => {
            let lens = reader.block_lens(entry_idx)?;
            let n_elements = tensor.n_elements() as f64 / lens.len().max(1) as f64;
            let bits: Vec<f64> = lens.iter().map(|&len| 8.0 * len as f64 / n_elements.max(1.0)).collect();
            let most = tensor.dtype.bits_per_element();
            Ok(json!({"what": "bits per element of each block", "parts": bits, "most": most}))
        }
    }
}
