//! Shapes of coded weights, which DF11 files do not hold: a model's own code knows them, a file reader does not.
//!
//! Looked up in this order: the file that our encoder writes beside the weights; a repository that the caller names;
//! the bias of the same module, which is as long as a Linear has rows; the sizes that `config.json` gives for the usual
//! names of a language model. A shape counts only if it has as many elements as the weight.

use super::{Model, SHAPES_FILE};
use crate::Error;
use crate::convert::Repository;
use std::collections::HashMap;

/// Where shapes may be looked up besides the DF11 directory itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShapeSource<'a> {
    /// The model before it was coded, or any other with the same names and shapes.
    pub repository: Option<&'a Repository>,
    /// Another DF11 directory of the same model.
    pub model: Option<&'a Model>,
}

/// Everything that is known about shapes.
pub(super) struct Shapes<'a> {
    listed: HashMap<String, Vec<u64>>,
    coded: &'a Repository,
    source: ShapeSource<'a>,
    config: serde_json::Value,
}

impl<'a> Shapes<'a> {
    /// Reads what a DF11 directory says; `config` is the text of its `config.json`.
    pub(super) fn new(coded: &'a Repository, config: &[u8], source: &ShapeSource<'a>) -> Result<Self, Error> {
        let prefix = SHAPES_FILE.trim_end_matches(".json");
        let mut listed = HashMap::new();
        for other in coded.others() {
            let name = other.to_string_lossy();
            if name.starts_with(prefix) && name.ends_with(".json") {
                let path = coded.path().join(other);
                let text = std::fs::read(&path)
                    .map_err(|error| crate::convert::repository::cannot("read", &path, error))?;
                let shapes: HashMap<String, Vec<u64>> = serde_json::from_slice(&text)
                    .map_err(|error| mithril_format::df11::damaged(&name, error.to_string()))?;
                listed.extend(shapes);
            }
        }
        let config = serde_json::from_slice(config).unwrap_or(serde_json::Value::Null);
        Ok(Self { listed, coded, source: *source, config })
    }

    /// The shape of a weight with so many elements.
    pub(super) fn find(&self, weight: &str, n_elements: u64) -> Option<Vec<u64>> {
        let fits = |shape: &Vec<u64>| product(shape) == Some(n_elements);
        let listed = || self.listed.get(weight).cloned();
        let source = || {
            let repository = self.source.repository?;
            Some(repository.tensors()[repository.find(weight)?].shape.clone())
        };
        let model = || {
            let tensors = self.source.model?.tensors();
            Some(tensors.iter().find(|tensor| tensor.name == weight && tensor.has_shape)?.shape.clone())
        };
        listed()
            .filter(fits)
            .or_else(|| source().filter(fits))
            .or_else(|| model().filter(fits))
            .or_else(|| self.by_bias(weight, n_elements).filter(fits))
            .or_else(|| self.by_config(weight, n_elements).filter(fits))
    }

    fn by_bias(&self, weight: &str, n_elements: u64) -> Option<Vec<u64>> {
        let bias = self.coded.find(&format!("{}.bias", weight.strip_suffix(".weight")?))?;
        match self.coded.tensors()[bias].shape.as_slice() {
            &[rows] if rows > 0 => Some(vec![rows, n_elements / rows]),
            _ => None,
        }
    }

    fn by_config(&self, weight: &str, n_elements: u64) -> Option<Vec<u64>> {
        // Models of text and pictures keep the sizes of the text under a key of their own.
        let text = self.config.get("text_config");
        let number = |key: &str| {
            let value = self.config.get(key).or_else(|| text?.get(key));
            value.and_then(serde_json::Value::as_u64).filter(|&number| number > 0)
        };
        let hidden = number("hidden_size").or_else(|| number("n_embd"))?;
        let heads = || number("num_attention_heads");
        let head_len = || number("head_dim").or_else(|| Some(hidden / heads()?));
        let attention = || heads()?.checked_mul(head_len()?);
        let keys = || number("num_key_value_heads").or_else(heads)?.checked_mul(head_len()?);
        let module = weight.strip_suffix(".weight")?.rsplit('.').next()?;
        Some(match module {
            "q_proj" => vec![attention()?, hidden],
            "k_proj" | "v_proj" => vec![keys()?, hidden],
            "o_proj" => vec![hidden, attention()?],
            "gate_proj" | "up_proj" => vec![n_elements / hidden, hidden],
            "down_proj" => vec![hidden, n_elements / hidden],
            "embed_tokens" | "lm_head" | "word_embeddings" | "wte" => vec![n_elements / hidden, hidden],
            _ => return None,
        })
    }
}

/// How many elements a shape has, if that is a number.
fn product(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &dimension| n.checked_mul(dimension))
}
