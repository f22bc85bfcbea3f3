//! A directory of weights as one model, so that it can be compared with another.

use super::repository::cannot;
use super::{Repository, components, df11, is_pipeline};
use crate::Error;
use crate::container::{self, ModelTensor};
use mithril_format::ReadAt;
use mithril_format::df11::{ModuleBytes, damaged};
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Opens the safetensors files of a directory as one model. A DFloat11 directory is the model that it stands for; shapes
/// that it does not have are looked up in the model at `shapes_from`, DFloat11 or not. The tensors of a diffusers pipeline
/// are those of its components, each with the name of its component and a slash before its own.
///
/// # Errors
/// When there are no safetensors files, or one of them is damaged.
pub fn open_directory(path: &Path, shapes_from: Option<&Path>) -> Result<container::Model, Error> {
    let name = path.display().to_string();
    if is_pipeline(path) {
        return open_pipeline(name, path, shapes_from);
    }
    if !is_df11(path)? {
        let repository = Repository::open(path)?;
        let tensors = repository.tensors().iter().map(|tensor| ModelTensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            raw_len: tensor.bytes.end - tensor.bytes.start,
        });
        let tensors: Vec<_> = tensors.collect();
        return Ok(container::Model::of_parts(name, tensors, |places| {
            Box::new(Plain { repository, places })
        }));
    }
    let other = shapes_from.and_then(|other| Repository::open(other).ok());
    let other_model =
        shapes_from.filter(|other| other.is_dir()).and_then(|other| df11::Model::open(other).ok());
    let shapes = df11::ShapeSource { repository: other.as_ref(), model: other_model.as_ref() };
    let model = df11::Model::open_with(path, &shapes)?;
    let tensors = model.tensors().iter().map(|tensor| ModelTensor {
        name: tensor.name.clone(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        raw_len: model.byte_len(tensor),
    });
    let tensors: Vec<_> = tensors.collect();
    Ok(container::Model::of_parts(name, tensors, |places| {
        Box::new(Coded { model, places, held: Mutex::new(None) })
    }))
}

/// Opens all components of a pipeline as one model.
fn open_pipeline(name: String, path: &Path, shapes_from: Option<&Path>) -> Result<container::Model, Error> {
    let mut pipeline = Pipeline::default();
    let mut tensors = Vec::new();
    for component in components(path)? {
        let model =
            open_directory(&path.join(&component), shapes_from.map(|from| from.join(&component)).as_deref())?;
        for (idx, tensor) in model.tensors().iter().enumerate() {
            pipeline.tensors.push((pipeline.models.len(), idx));
            tensors.push(ModelTensor { name: format!("{component}/{}", tensor.name), ..tensor.clone() });
        }
        pipeline.models.push(model);
    }
    Ok(container::Model::of_parts(name, tensors, |places| Box::new(Pipeline { places, ..pipeline })))
}

/// Whether a directory is DFloat11.
fn is_df11(path: &Path) -> Result<bool, Error> {
    let config = path.join("config.json");
    if !config.is_file() {
        return Ok(false);
    }
    let text = std::fs::read(&config).map_err(|error| cannot("read", &config, error))?;
    Ok(df11::Config::is_in(&text))
}

/// The tensors of a directory, one behind the other.
#[derive(Debug)]
struct Plain {
    repository: Repository,
    places: Vec<Range<u64>>,
}

/// The decoded tensors of a DFloat11 directory, one behind the other.
#[derive(Debug)]
struct Coded {
    model: df11::Model,
    places: Vec<Range<u64>>,
    /// The module that was read last, as the next bytes are likely to be its as well.
    held: Mutex<Option<(usize, ModuleBytes)>>,
}

/// The tensors of the components of a pipeline, one behind the other.
#[derive(Debug, Default)]
struct Pipeline {
    models: Vec<container::Model>,
    /// The model of each tensor, and its number there.
    tensors: Vec<(usize, usize)>,
    places: Vec<Range<u64>>,
}

impl ReadAt for Pipeline {
    fn size(&self) -> io::Result<u64> {
        Ok(self.places.last().map_or(0, |place| place.end))
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (tensor, offset) = find(&self.places, offset, out.len())?;
        let (model, idx) = self.tensors[tensor];
        let end = offset + out.len() as u64;
        let opened = self.models[model].open_tensor(idx).map_err(io::Error::other)?;
        opened.read_range(offset..end, out, 1).map_err(io::Error::other)
    }
}

impl ReadAt for Plain {
    fn size(&self) -> io::Result<u64> {
        Ok(self.places.last().map_or(0, |place| place.end))
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (tensor, offset) = find(&self.places, offset, out.len())?;
        self.repository.read_into(tensor, offset, out).map_err(io::Error::other)
    }
}

impl ReadAt for Coded {
    fn size(&self) -> io::Result<u64> {
        Ok(self.places.last().map_or(0, |place| place.end))
    }

    fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (tensor, offset) = find(&self.places, offset, out.len())?;
        let Some((module, elements)) = self.model.tensors()[tensor].coded_elements() else {
            return self.model.read_plain_into(tensor, offset, out).map_err(io::Error::other);
        };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.as_ref().is_none_or(|(held, _)| *held != module) {
            *held = None;
            *held = Some((module, self.model.read_module(module).map_err(io::Error::other)?));
        }
        let name = &self.model.modules()[module].name;
        let bytes = held.as_ref().map(|(_, bytes)| bytes).expect("a module was just read");
        let coded = bytes.coded(name, self.model.geometry()).map_err(io::Error::other)?;
        // Whole elements only: tensors are compared in pieces of even length.
        if !offset.is_multiple_of(2) || !out.len().is_multiple_of(2) {
            return Err(io::Error::other(damaged(name, "half an element was asked for")));
        }
        let start = usize::try_from(elements.start + offset / 2).map_err(io::Error::other)?;
        df11::decode_elements(&coded, name, start..start + out.len() / 2, out, 0).map_err(io::Error::other)
    }
}

/// The tensor at an offset, and where in it that is. Reads do not cross tensors.
fn find(places: &[Range<u64>], offset: u64, len: usize) -> io::Result<(usize, u64)> {
    let tensor = places.partition_point(|place| place.end <= offset);
    let place = places.get(tensor).filter(|place| {
        place.contains(&offset) && offset.checked_add(len as u64).is_some_and(|end| end <= place.end)
    });
    place.map(|place| (tensor, offset - place.start)).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
