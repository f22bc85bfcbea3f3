//! Which weights of a repository are coded, and which of them together.

use super::PatternDict;
use crate::Error;
use crate::convert::Repository;
use mithril_codec::Dtype;
use regex_lite::Regex;
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Weights that are coded as one run, under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModuleSource {
    pub(super) name: String,
    /// The number of the pattern that chose it.
    pub(super) pattern: usize,
    /// The numbers of the weights' tensors in the repository.
    pub(super) weights: Vec<usize>,
}

/// A pattern for every module that is a Linear or an Embedding by the look of it: a BF16 matrix named `weight`.
///
/// Names are escaped, so that a dot matches a dot. Modules of transformers' `Conv1D` look the same and are none: those
/// of the model types that use it are left out.
#[must_use]
pub fn automatic_patterns(repository: &Repository, model_type: Option<&str>) -> PatternDict {
    const CONV1D_MODEL_TYPES: [&str; 4] = ["gpt2", "openai-gpt", "imagegpt", "decision_transformer"];
    const CONV1D_NAMES: [&str; 4] = ["c_attn", "q_attn", "c_proj", "c_fc"];
    let has_conv1d = model_type.is_some_and(|model_type| CONV1D_MODEL_TYPES.contains(&model_type));
    let mut names: Vec<&str> = repository
        .tensors()
        .iter()
        .filter(|tensor| tensor.dtype == Dtype::Bf16 && tensor.shape.len() == 2 && !tensor.shape.contains(&0))
        .filter_map(|tensor| tensor.name.strip_suffix(".weight"))
        .filter(|name| !(has_conv1d && CONV1D_NAMES.contains(&name.rsplit('.').next().unwrap_or(name))))
        .collect();
    names.sort_by(|a, b| natural_order(a, b));
    PatternDict(names.into_iter().map(|name| (escape(name), Vec::new())).collect())
}

/// A regular expression that matches exactly this name, escaped as Python's `re.escape` does.
#[must_use]
pub fn escape(name: &str) -> String {
    const SPECIAL: &str = "()[]{}?*+-|^$\\.&~# \t\n\r\x0b\x0c";
    let mut pattern = String::with_capacity(name.len() + 8);
    for character in name.chars() {
        if SPECIAL.contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

/// A pattern that must match whole names.
pub(super) fn compile(pattern: &str) -> Result<Regex, Error> {
    let whole = format!("^(?:{pattern})$");
    Regex::new(&whole).map_err(|error| Error::invalid(format!("pattern `{pattern}`: {error}")))
}

/// The modules that patterns choose, in the order of the patterns and then of the names.
pub(super) fn choose(repository: &Repository, patterns: &PatternDict) -> Result<Vec<ModuleSource>, Error> {
    let names = module_names(repository);
    let mut taken = BTreeSet::new();
    let mut modules = Vec::new();
    for (idx, (pattern, attributes)) in patterns.0.iter().enumerate() {
        let regex = compile(pattern)?;
        for &name in names.iter().filter(|name| regex.is_match(name)) {
            let weights = weights_of(repository, name, attributes).map_err(|reason| {
                Error::invalid(format!("pattern `{pattern}` matches `{name}`, {reason}"))
            })?;
            for &weight in &weights {
                if !taken.insert(weight) {
                    let tensor = &repository.tensors()[weight].name;
                    return Err(Error::invalid(format!("patterns choose `{tensor}` twice")));
                }
            }
            modules.push(ModuleSource { name: name.to_owned(), pattern: idx, weights });
        }
    }
    Ok(modules)
}

/// Every name that is a module: what stands before a dot in the name of a tensor.
fn module_names(repository: &Repository) -> Vec<&str> {
    let mut names = BTreeSet::new();
    for tensor in repository.tensors() {
        let mut name = tensor.name.as_str();
        while let Some((module, _)) = name.rsplit_once('.') {
            names.insert(module);
            name = module;
        }
    }
    let mut names: Vec<&str> = names.into_iter().collect();
    names.sort_by(|a, b| natural_order(a, b));
    names
}

/// The weights of a module: its own, if it has a matrix, or those of the listed submodules.
fn weights_of(repository: &Repository, name: &str, attributes: &[String]) -> Result<Vec<usize>, String> {
    let own = repository.find(&format!("{name}.weight"));
    let own = own.filter(|&weight| repository.tensors()[weight].shape.len() == 2);
    let weights: Vec<usize> = match own {
        Some(weight) => vec![weight],
        None => {
            let find = |attribute: &String| {
                let tensor = format!("{name}.{attribute}.weight");
                repository.find(&tensor).ok_or_else(|| format!("which has no `{tensor}`"))
            };
            attributes.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    if weights.is_empty() {
        return Err("which is no Linear or Embedding, and the pattern lists no submodules".to_owned());
    }
    for &weight in &weights {
        let tensor = &repository.tensors()[weight];
        if tensor.dtype != Dtype::Bf16 {
            return Err(format!(
                "whose `{}` is {}, and DFloat11 holds BF16",
                tensor.name,
                tensor.dtype.name()
            ));
        }
    }
    Ok(weights)
}

/// Text before text, numbers by their value: layer 2 comes before layer 10, as in the model.
pub(super) fn natural_order(a: &str, b: &str) -> Ordering {
    let pieces = |name: &str| -> Vec<(u64, String)> {
        let piece = |piece: &str| match piece.parse() {
            Ok(number) => (number, String::new()),
            Err(_) => (u64::MAX, piece.to_owned()),
        };
        name.split('.').map(piece).collect()
    };
    pieces(a).cmp(&pieces(b)).then(a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_names_match_themselves_only() {
        assert_eq!(escape("layers.1.up-proj"), r"layers\.1\.up\-proj");
        for name in ["layers.1.up", "a b#c&d~e", "x(y)[z]{w}?*+|^$\\"] {
            let regex = compile(&escape(name)).unwrap();
            assert!(regex.is_match(name), "{name}");
            assert!(!regex.is_match(&format!("{name}x")) && !regex.is_match(&format!("x{name}")), "{name}");
        }
        assert!(!compile(&escape("a.b")).unwrap().is_match("axb"));
    }

    #[test]
    fn patterns_match_whole_names() {
        let regex = compile(r"model\.layers\.\d+").unwrap();
        assert!(regex.is_match("model.layers.10"));
        assert!(!regex.is_match("model.layers.10.mlp") && !regex.is_match("x.model.layers.1"));
        assert!(compile("a|b").unwrap().is_match("b") && !compile("a|b").unwrap().is_match("ab"));
        assert!(compile("(").is_err());
    }

    #[test]
    fn layers_are_counted_as_numbers() {
        let mut names = ["layers.10.up", "layers.2.up", "embed", "layers.2.down", "layers.2"];
        names.sort_by(|a, b| natural_order(a, b));
        assert_eq!(names, ["embed", "layers.2", "layers.2.down", "layers.2.up", "layers.10.up"]);
    }
}
