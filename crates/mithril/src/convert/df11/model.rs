//! A DF11 directory as named tensors, of which any can be decoded alone.

use super::shapes::{ShapeSource, Shapes};
use super::{CONFIG_FILE, Config, elements, patterns};
use crate::Error;
use crate::convert::Repository;
use crate::convert::repository::cannot;
use mithril_codec::Dtype;
use mithril_codec::df11::Geometry;
use mithril_format::FormatError;
use mithril_format::df11::{Module, ModuleBytes, Part, damaged, modules, weight_sizes};
use std::ops::Range;
use std::path::Path;

/// A DF11 directory, opened. Only headers and split positions are in memory.
#[derive(Debug)]
pub struct Model {
    repository: Repository,
    config: Config,
    modules: Vec<Module>,
    tensors: Vec<ModelTensor>,
}

/// A tensor of the model that a DF11 directory stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModelTensor {
    /// Its name, as in the model before it was coded.
    pub name: String,
    /// Type of its elements.
    pub dtype: Dtype,
    /// Its dimensions. A coded weight whose shape nobody knows has one dimension.
    pub shape: Vec<u64>,
    /// Whether its dimensions are known.
    pub has_shape: bool,
    pub(super) place: Place,
}

/// Where the elements of a tensor are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In a tensor of the repository.
    Plain(usize),
    /// Among the elements of a module.
    Coded { module: usize, elements: Range<u64> },
}

impl ModelTensor {
    /// The module that it is coded in, by its number, and which of its elements it has; nothing if it is not coded.
    #[must_use]
    pub fn coded_elements(&self) -> Option<(usize, Range<u64>)> {
        match &self.place {
            Place::Plain(_) => None,
            Place::Coded { module, elements } => Some((*module, elements.clone())),
        }
    }
}

impl Model {
    /// Opens a DF11 directory.
    ///
    /// # Errors
    /// When it has no configuration, or a module is incomplete or contradicts itself.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_with(path, &ShapeSource::default())
    }

    /// Opens a DF11 directory; shapes that it does not have are looked up in `shapes`.
    ///
    /// # Errors
    /// As [`Model::open`].
    pub fn open_with(path: &Path, shapes: &ShapeSource<'_>) -> Result<Self, Error> {
        let config_path = path.join(CONFIG_FILE);
        let text = std::fs::read(&config_path).map_err(|error| cannot("read", &config_path, error))?;
        let config = Config::read(&text)?;
        let repository = Repository::open(path)?;
        let (modules, others) = modules(repository.tensors())?;
        let mut model = Self { repository, config, modules, tensors: Vec::new() };
        let shapes = Shapes::new(&model.repository, &text, shapes)?;
        model.tensors = model.list(&others, &shapes)?;
        Ok(model)
    }

    fn list(&self, others: &[usize], shapes: &Shapes<'_>) -> Result<Vec<ModelTensor>, Error> {
        let plain = others.iter().map(|&idx| {
            let tensor = &self.repository.tensors()[idx];
            let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
            ModelTensor { name, dtype: tensor.dtype, shape, has_shape: true, place: Place::Plain(idx) }
        });
        let mut tensors: Vec<ModelTensor> = plain.collect();
        let attributes = self.attributes()?;
        for (idx, module) in self.modules.iter().enumerate() {
            let n_elements = self.repository.tensors()[module.tensor(Part::SignMantissa)].shape[0];
            let splits = self.repository.read(module.tensor(Part::SplitPositions))?;
            let sizes = weight_sizes(&module.name, &splits, n_elements)?;
            let names = weight_names(module, sizes.len(), &attributes[idx])?;
            let mut start = 0;
            for (name, size) in names.into_iter().zip(sizes) {
                let shape = shapes.find(&name, size);
                let has_shape = shape.is_some();
                let place = Place::Coded { module: idx, elements: start..start + size };
                let shape = shape.unwrap_or_else(|| vec![size]);
                tensors.push(ModelTensor { name, dtype: Dtype::Bf16, shape, has_shape, place });
                start += size;
            }
        }
        tensors.sort_by(|a, b| patterns::natural_order(&a.name, &b.name));
        if let Some(twice) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(damaged(&twice[0].name, "is coded and is there as well").into());
        }
        Ok(tensors)
    }

    /// The submodules that the first pattern that matches each module lists.
    fn attributes(&self) -> Result<Vec<Vec<String>>, Error> {
        let mut found = vec![Vec::new(); self.modules.len()];
        let mut is_found = vec![false; self.modules.len()];
        for (pattern, attributes) in &self.config.patterns.0 {
            let regex = patterns::compile(pattern)?;
            for (idx, module) in self.modules.iter().enumerate() {
                if !is_found[idx] && regex.is_match(&module.name) {
                    is_found[idx] = true;
                    found[idx].clone_from(attributes);
                }
            }
        }
        Ok(found)
    }

    /// All tensors, in the order of their names, with numbers in them by their value.
    #[must_use]
    pub fn tensors(&self) -> &[ModelTensor] {
        &self.tensors
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The tensors as they lie in the files.
    #[must_use]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The coded modules.
    #[must_use]
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Threads of a workgroup and their bytes.
    #[must_use]
    pub fn geometry(&self) -> Geometry {
        self.config.geometry
    }

    /// Bytes of a module's tensors.
    pub(super) fn coded_len(&self, module: usize) -> u64 {
        let len = |part| super::spread::byte_len(&self.repository, self.modules[module].tensor(part));
        Part::ALL.into_iter().map(len).sum()
    }

    /// Bytes of a tensor, decoded.
    pub(in crate::convert) fn byte_len(&self, tensor: &ModelTensor) -> u64 {
        match &tensor.place {
            Place::Plain(idx) => super::spread::byte_len(&self.repository, *idx),
            Place::Coded { elements, .. } => 2 * (elements.end - elements.start),
        }
    }

    /// Reads bytes of a tensor that is not coded.
    pub(in crate::convert) fn read_plain_into(
        &self,
        tensor: usize,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Error> {
        match &self.tensors[tensor].place {
            Place::Plain(idx) => self.repository.read_into(*idx, offset, out),
            Place::Coded { .. } => Err(Error::invalid("a coded tensor has no plain bytes")),
        }
    }

    /// Reads the coded bytes of a module.
    ///
    /// # Errors
    /// When a file cannot be read.
    ///
    /// # Panics
    /// If there is no such module.
    pub fn read_module(&self, module: usize) -> Result<ModuleBytes, Error> {
        let mut bytes = ModuleBytes::default();
        for part in Part::ALL {
            bytes.0[part as usize] = self.repository.read(self.modules[module].tensor(part))?;
        }
        Ok(bytes)
    }

    /// Decodes a tensor into `out`, on several threads; 0 is one per core.
    ///
    /// # Errors
    /// When a file cannot be read, or the module is damaged.
    ///
    /// # Panics
    /// If there is no such tensor, or `out` has another length than it.
    pub fn read_into(&self, tensor: usize, out: &mut [u8], threads: usize) -> Result<(), Error> {
        match &self.tensors[tensor].place {
            Place::Plain(idx) => self.repository.read_into(*idx, 0, out),
            Place::Coded { module, elements } => {
                let name = &self.modules[*module].name;
                let bytes = self.read_module(*module)?;
                let coded = bytes.coded(name, self.geometry())?;
                let at = |element: u64| usize::try_from(element).unwrap_or(usize::MAX);
                let elements = at(elements.start)..at(elements.end);
                assert_eq!(out.len(), 2 * elements.len(), "room for another number of elements");
                elements::decode_elements(&coded, name, elements, out, threads)
            }
        }
    }

    /// All bytes of a tensor.
    ///
    /// # Errors
    /// As [`Model::read_into`].
    ///
    /// # Panics
    /// If there is no such tensor.
    pub fn read(&self, tensor: usize, threads: usize) -> Result<Vec<u8>, Error> {
        let len = usize::try_from(self.byte_len(&self.tensors[tensor]))
            .map_err(|_| Error::invalid("a tensor larger than memory"))?;
        let mut out = vec![0; len];
        self.read_into(tensor, &mut out, threads)?;
        Ok(out)
    }
}

/// The names of a module's weights.
fn weight_names(
    module: &Module,
    n_weights: usize,
    attributes: &[String],
) -> Result<Vec<String>, FormatError> {
    let name = &module.name;
    // One weight is the module's own, unless the pattern says that it is a submodule's: then the list has one entry
    // too, and the model alone could tell. The package's own patterns list several.
    if n_weights == attributes.len() && n_weights > 1 {
        return Ok(attributes.iter().map(|attribute| format!("{name}.{attribute}.weight")).collect());
    }
    match n_weights {
        1 if attributes.len() == 1 => Ok(vec![format!("{name}.{}.weight", attributes[0])]),
        1 => Ok(vec![format!("{name}.weight")]),
        _ => Err(damaged(name, format!("has {n_weights} weights, its pattern lists {}", attributes.len()))),
    }
}
