//! Tensors as a tree of the parts of their names.

use super::survey::{Survey, Tensor};
use super::{new_table, push_tensor};
use crate::table::Table;
use std::cmp::Ordering;

/// Levels of a tree at most, whatever names a file has.
const MAX_DEPTH: usize = 32;

/// A part of a name; numbers come in their own order, before words.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Part<'a> {
    Number(u64, &'a str),
    Word(&'a str),
}

impl<'a> Part<'a> {
    fn new(text: &'a str) -> Self {
        text.parse().map_or(Self::Word(text), |number| Self::Number(number, text))
    }
}

/// The parts of a name.
fn parts<'a>(tensor: &Tensor<'a>) -> impl Iterator<Item = &'a str> + use<'a> {
    tensor.name.splitn(MAX_DEPTH, '.')
}

/// The order of a tree: a name comes before those that go on where it ends.
fn in_order(a: &Tensor<'_>, b: &Tensor<'_>) -> Ordering {
    parts(a).map(Part::new).cmp(parts(b).map(Part::new))
}

/// The tensors as an indented table, with sums for every branch.
pub(super) fn table(survey: &Survey<'_>) -> Table {
    let mut tensors: Vec<&Tensor<'_>> = survey.tensors.iter().collect();
    tensors.sort_by(|a, b| in_order(a, b));
    let mut table = new_table(survey);
    push(&tensors, 0, 0, survey, &mut table);
    table
}

/// Adds tensors whose names share the first `n_shared` parts and go on, `depth` levels deep.
fn push(tensors: &[&Tensor<'_>], n_shared: usize, depth: usize, survey: &Survey<'_>, table: &mut Table) {
    for branch in tensors.chunk_by(|a, b| parts(a).nth(n_shared) == parts(b).nth(n_shared)) {
        let (first, last) = (branch[0], branch[branch.len() - 1]);
        let mut n = n_shared + 1;
        // A branch with one twig is written on one line. In order, what the first and the last share, all share.
        n += parts(first)
            .zip(parts(last))
            .skip(n)
            .take_while(|(of_first, of_last)| of_first == of_last)
            .count();
        let text: Vec<&str> = parts(first).take(n).skip(n_shared).collect();
        let name = "  ".repeat(depth) + &text.join(".");
        let ends_here = parts(first).count() == n;
        match ends_here {
            true => push_tensor(table, &name, first, survey),
            false => push_sum(table, &name, branch, survey),
        }
        push(&branch[usize::from(ends_here)..], n, depth + 1, survey, table);
    }
}

/// A branch: the sums of what is below it.
fn push_sum(table: &mut Table, name: &str, tensors: &[&Tensor<'_>], survey: &Survey<'_>) {
    let raw_len: u64 = tensors.iter().map(|tensor| tensor.raw_len).sum();
    let stored_len: u64 = tensors.iter().map(|tensor| tensor.stored_len.unwrap_or(tensor.raw_len)).sum();
    let n_elements: u64 = tensors.iter().map(|tensor| tensor.n_elements()).sum();
    let bits = format!("{:.3}", 8.0 * stored_len as f64 / n_elements.max(1) as f64);
    let (name, empty) = (name.escape_debug().to_string(), String::new);
    if !survey.is_packed {
        return table.push([name, empty(), empty(), raw_len.to_string(), bits]);
    }
    let ratio = format!("{:.4}", stored_len as f64 / raw_len.max(1) as f64);
    let (raw, stored) = (raw_len.to_string(), stored_len.to_string());
    table.push([name, empty(), empty(), raw, stored, ratio, bits, empty(), empty()]);
}
