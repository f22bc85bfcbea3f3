//! Tensors as a tree of the parts of their names.

use super::survey::{Survey, Tensor};
use super::{new_table, push_tensor};
use std::collections::BTreeMap;

/// Levels of a tree at most, whatever names a file has.
const MAX_DEPTH: usize = 32;

/// A part of names, and what is below it.
#[derive(Default)]
struct Node<'a> {
    below: BTreeMap<Part<'a>, Node<'a>>,
    tensor: Option<&'a Tensor>,
}

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

    fn text(&self) -> &'a str {
        match self {
            Self::Number(_, text) | Self::Word(text) => text,
        }
    }
}

/// The tensors as an indented table, with sums for every branch.
pub(super) fn render(survey: &Survey) -> String {
    let mut root = Node::default();
    for tensor in &survey.tensors {
        let parts = tensor.name.splitn(MAX_DEPTH, '.').map(Part::new);
        let node = parts.fold(&mut root, |node, part| node.below.entry(part).or_default());
        node.tensor = Some(tensor);
    }
    let mut table = new_table(survey);
    push(&root, 0, survey, &mut table);
    table.render()
}

fn push(node: &Node<'_>, depth: usize, survey: &Survey, table: &mut crate::table::Table) {
    for (part, below) in &node.below {
        let mut name = format!("{}{}", "  ".repeat(depth), part.text());
        let mut node = below;
        // A branch with one twig is written on one line.
        while node.tensor.is_none()
            && let Some((part, twig)) = node.below.first_key_value()
            && node.below.len() == 1
        {
            name += &format!(".{}", part.text());
            node = twig;
        }
        if let Some(tensor) = node.tensor {
            push_tensor(table, &name, tensor, survey);
        } else {
            push_sum(table, &name, node, survey);
        }
        push(node, depth + 1, survey, table);
    }
}

/// A branch: the sums of what is below it.
fn push_sum(table: &mut crate::table::Table, name: &str, node: &Node<'_>, survey: &Survey) {
    let mut tensors = Vec::new();
    collect(node, &mut tensors);
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

fn collect<'a>(node: &Node<'a>, tensors: &mut Vec<&'a Tensor>) {
    tensors.extend(node.tensor);
    node.below.values().for_each(|below| collect(below, tensors));
}
