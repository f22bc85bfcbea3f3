//! `mithril compare` and `mithril diff`: two models side by side.

use crate::arguments::PairArguments;
use crate::failure::{Failure, Fault, print, print_json};
use crate::open;
use crate::progress::Meter;
use crate::table::Table;
use mithril::Error;
use mithril::compare::{Outcome, Pair, compare, diff};
use mithril::container::{Model, ModelTensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Runs `mithril compare`.
pub(crate) fn run_compare(arguments: &PairArguments) -> Result<(), Failure> {
    let pairs = pairs(arguments, |a, b, meter| compare(a, b, arguments.threads, &|len| meter.add(len)))?;
    let n_unlike = pairs.iter().filter(|pair| pair.outcome != Outcome::Same).count();
    if arguments.json {
        print_json(&to_json(arguments, &pairs))?;
    } else if n_unlike == 0 {
        print(format!("{} tensors are equal, bit for bit\n", pairs.len()))?;
    } else {
        let mut text = String::new();
        for pair in pairs.iter().filter(|pair| pair.outcome != Outcome::Same) {
            text += &format!("{}: {}\n", pair.name.escape_debug(), in_words(pair));
        }
        print(format!("{text}{n_unlike} of {} tensors are not equal\n", pairs.len()))?;
    }
    if n_unlike == 0 { Ok(()) } else { Err(Failure::Reported(Fault::Input)) }
}

/// Runs `mithril diff`.
pub(crate) fn run_diff(arguments: &PairArguments) -> Result<(), Failure> {
    let pairs = pairs(arguments, |a, b, meter| diff(a, b, arguments.threads, &|len| meter.add(len)))?;
    match arguments.json {
        true => print_json(&to_json(arguments, &pairs)),
        false => print(render(&pairs)),
    }
}

fn pairs(
    arguments: &PairArguments,
    work: impl FnOnce(&Model, &Model, &Meter) -> Result<Vec<Pair>, Error>,
) -> Result<Vec<Pair>, Failure> {
    let a = open::model_or_directory(&arguments.a, &arguments.base, &arguments.b)?;
    let b = open::model_or_directory(&arguments.b, &arguments.base, &arguments.a)?;
    let in_both = a.tensors().iter().filter(|tensor| b.find(&tensor.name).is_some());
    let meter = Meter::new(Some(in_both.map(|tensor| tensor.raw_len).fold(0, u64::saturating_add)));
    work(&a, &b, &meter).map_err(|error| {
        Failure::model(format!("{}` or `{}", arguments.a.display(), arguments.b.display()), &error)
    })
}

fn in_words(pair: &Pair) -> String {
    match &pair.outcome {
        Outcome::Same => "equal".to_owned(),
        Outcome::OnlyInA => "only in the first".to_owned(),
        Outcome::OnlyInB => "only in the second".to_owned(),
        Outcome::OtherType => format!("{} against {}", kind_of(pair.a.as_ref()), kind_of(pair.b.as_ref())),
        Outcome::Different { first_offset } => format!("bits differ from byte {first_offset} on"),
        Outcome::Apart(distance) => format!("{} elements differ", distance.n_changed),
        _ => "not equal".to_owned(),
    }
}

fn kind_of(tensor: Option<&ModelTensor>) -> String {
    tensor.map_or("nothing".to_owned(), |tensor| format!("{} {:?}", tensor.dtype.name(), tensor.shape))
}

fn render(pairs: &[Pair]) -> String {
    let mut table = Table::new(
        3,
        ["tensor", "dtype", "shape", "changed", "of", "share", "max abs", "mean abs", "max ulp"],
    );
    let mut others = String::new();
    let mut n_of = BTreeMap::new();
    for pair in pairs {
        let name = pair.name.escape_debug();
        match (&pair.outcome, pair.a.as_ref()) {
            (Outcome::Apart(distance), Some(tensor)) => {
                *n_of.entry("differ").or_insert(0) += 1;
                table.push([
                    name.to_string(),
                    tensor.dtype.name().to_owned(),
                    format!("{:?}", tensor.shape),
                    distance.n_changed.to_string(),
                    distance.n_elements.to_string(),
                    format!("{:.4} %", 100.0 * distance.n_changed as f64 / distance.n_elements.max(1) as f64),
                    distance.max_abs.map_or("-".to_owned(), |max| format!("{max:.3e}")),
                    format!("{:.3e}", distance.mean_abs),
                    distance.max_ulp.map_or("-".to_owned(), |max| max.to_string()),
                ]);
            }
            (Outcome::Same, _) => *n_of.entry("are equal").or_insert(0) += 1,
            _ => {
                *n_of.entry("have no counterpart of their type and shape").or_insert(0) += 1;
                others += &format!("{name}: {}\n", in_words(pair));
            }
        }
    }
    let table = if n_of.contains_key("differ") { table.render() } else { String::new() };
    let counts: Vec<String> = n_of.iter().map(|(what, n)| format!("{n} {what}")).collect();
    format!("{table}{others}{} tensors: {}\n", pairs.len(), counts.join(", "))
}

fn to_json(arguments: &PairArguments, pairs: &[Pair]) -> Value {
    let same = pairs.iter().all(|pair| pair.outcome == Outcome::Same);
    json!({
        "a": arguments.a.display().to_string(),
        "b": arguments.b.display().to_string(),
        "equal": same,
        "tensors": pairs.iter().map(pair_to_json).collect::<Vec<_>>(),
    })
}

fn pair_to_json(pair: &Pair) -> Value {
    let side = |tensor: Option<&ModelTensor>| {
        tensor.map(|tensor| json!({"dtype": tensor.dtype.name(), "shape": tensor.shape}))
    };
    let mut value = json!({"name": pair.name, "a": side(pair.a.as_ref()), "b": side(pair.b.as_ref())});
    let facts = match &pair.outcome {
        Outcome::Same => json!({"outcome": "equal"}),
        Outcome::OnlyInA => json!({"outcome": "only in a"}),
        Outcome::OnlyInB => json!({"outcome": "only in b"}),
        Outcome::OtherType => json!({"outcome": "other type"}),
        Outcome::Different { first_offset } => json!({"outcome": "different", "first_offset": first_offset}),
        Outcome::Apart(distance) => json!({
            "outcome": "different",
            "n_elements": distance.n_elements,
            "n_changed": distance.n_changed,
            "share_changed": distance.n_changed as f64 / distance.n_elements.max(1) as f64,
            "max_abs": distance.max_abs,
            "mean_abs": distance.mean_abs,
            "max_ulp": distance.max_ulp,
            "n_not_finite": distance.n_not_finite,
        }),
        _ => json!({"outcome": "different"}),
    };
    if let (Some(value), Some(facts)) = (value.as_object_mut(), facts.as_object()) {
        value.extend(facts.clone());
    }
    value
}
