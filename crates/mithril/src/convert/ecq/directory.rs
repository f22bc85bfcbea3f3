//! The files of a model: weights, configuration, and what only goes along.

use super::ORIGINALS;
use crate::Error;
use crate::convert::OutputDirectory;
use crate::convert::repository::{cannot, list};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a model consists of.
pub(super) struct Inputs {
    root: PathBuf,
    pub(super) weights: Vec<PathBuf>,
    others: Vec<PathBuf>,
    /// Index files of shards, which name tensors.
    indexes: Vec<PathBuf>,
    pub(super) config: Option<Value>,
}

const CONFIG: &str = "config.json";

impl Inputs {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let metadata = std::fs::metadata(path).map_err(|error| cannot("read", path, error))?;
        if !metadata.is_dir() {
            let (root, weights) = (PathBuf::new(), vec![path.to_owned()]);
            return Ok(Self { root, weights, others: Vec::new(), indexes: Vec::new(), config: None });
        }
        let (mut weights, mut others) = list(path)?;
        let is_gguf = |other: &PathBuf| {
            other.components().count() == 1 && other.extension().is_some_and(|extension| extension == "gguf")
        };
        weights.extend(others.extract_if(.., |other| is_gguf(other)).map(|name| path.join(name)));
        if weights.is_empty() {
            return Err(Error::invalid(format!("`{}` holds no safetensors or GGUF files", path.display())));
        }
        let mut indexes = Vec::new();
        for entry in std::fs::read_dir(path).map_err(|error| cannot("read", path, error))? {
            let name = entry.map_err(|error| cannot("read", path, error))?.file_name();
            if name.to_string_lossy().ends_with(".safetensors.index.json") {
                indexes.push(PathBuf::from(name));
            }
        }
        let text = std::fs::read(path.join(CONFIG)).ok();
        let config = text.and_then(|text| serde_json::from_slice(&text).ok());
        Ok(Self { root: path.to_owned(), weights, others, indexes, config })
    }

    /// Writes everything but weights. What names tensors or their format is rewritten, and its original kept.
    pub(super) fn carry(
        &self,
        output: &OutputDirectory,
        weight_map: &BTreeMap<String, String>,
    ) -> Result<usize, Error> {
        for other in &self.others {
            output.copy(&self.root, other)?;
        }
        let original = |name: &Path| {
            let text = std::fs::read(self.root.join(name)).map_err(|error| cannot("read", name, error))?;
            output.write(&format!("{ORIGINALS}/{}", name.display()), &text)
        };
        for index in &self.indexes {
            original(index)?;
            let text = json!({"metadata": {"format": "entropy_coded"}, "weight_map": weight_map}).to_string();
            output.write(&index.to_string_lossy(), text.as_bytes())?;
        }
        if let Some(Value::Object(config)) = &self.config
            && let Some(Value::Object(quantization)) = config.get("quantization")
        {
            original(Path::new(CONFIG))?;
            let mut config = config.clone();
            let mut quantization = quantization.clone();
            quantization.insert("type".to_owned(), json!("entropy_coded"));
            quantization.insert("version".to_owned(), json!(1));
            config.insert("quantization".to_owned(), quantization.into());
            let text = serde_json::to_string_pretty(&config)
                .map_err(|error| Error::invalid(format!("cannot write `{CONFIG}`: {error}")))?;
            output.write(CONFIG, text.as_bytes())?;
        }
        Ok(self.others.len() + self.indexes.len())
    }

    /// Writes everything but weights as it was before coding.
    pub(super) fn carry_back(&self, output: &OutputDirectory) -> Result<usize, Error> {
        let (originals, others): (Vec<_>, Vec<_>) =
            self.others.iter().partition(|other| other.starts_with(ORIGINALS));
        let restored: Vec<&Path> =
            originals.iter().filter_map(|other| other.strip_prefix(ORIGINALS).ok()).collect();
        for name in &restored {
            let path = self.root.join(ORIGINALS).join(name);
            let text = std::fs::read(&path).map_err(|error| cannot("read", &path, error))?;
            output.write(&name.to_string_lossy(), &text)?;
        }
        let others: Vec<_> =
            others.into_iter().filter(|other| !restored.contains(&other.as_path())).collect();
        for other in &others {
            output.copy(&self.root, other)?;
        }
        Ok(others.len() + restored.len())
    }
}
