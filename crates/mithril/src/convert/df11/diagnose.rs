//! Whether the decode kernel can run on a device: shared memory of every module, and memory for all of them.

use super::{CONFIG_FILE, Config, Model};
use crate::Error;
use crate::convert::{Repository, components};
use mithril_format::df11::Part;
use std::path::Path;

/// What the kernel asks for to decode one module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ModuleDemand {
    /// The module's name.
    pub name: String,
    /// Its elements.
    pub n_elements: u64,
    /// Bytes of its six tensors.
    pub coded_len: u64,
    /// The most elements of a workgroup.
    pub largest_workgroup: u64,
    /// Bytes of shared memory.
    pub shared_memory: u64,
}

/// What a model asks of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Diagnosis {
    /// Threads of a workgroup.
    pub threads_per_block: u32,
    /// Coded bytes of a thread.
    pub bytes_per_thread: u32,
    /// Every module, the most demanding one first.
    pub modules: Vec<ModuleDemand>,
    /// Bytes of all tensors as they are stored.
    pub stored_len: u64,
    /// Bytes of the buffer that the largest module is decoded to.
    pub buffer_len: u64,
}

impl Diagnosis {
    /// Bytes of device memory for the weights: all that is stored, and the buffer.
    #[must_use]
    pub fn device_memory(&self) -> u64 {
        self.stored_len + self.buffer_len
    }

    /// The most bytes of shared memory that a module asks for.
    #[must_use]
    pub fn shared_memory(&self) -> u64 {
        self.modules.first().map_or(0, |module| module.shared_memory)
    }

    /// The most threads of a workgroup, at most those of the model, with which this much shared memory would do for any
    /// weights: when every code has one bit.
    #[must_use]
    pub fn safe_threads(&self, shared_memory: u64) -> Option<u32> {
        let worst = |threads: u32| 4 * u64::from(threads) + 4 + 2 * 64 * u64::from(threads);
        [512, 256, 128, 64, 32]
            .into_iter()
            .find(|&n| n <= self.threads_per_block && worst(n) <= shared_memory)
    }
}

/// Looks at all components of a diffusers pipeline. Modules are named after their component; weights that are not coded
/// count as device memory as well, and all components share the largest buffer.
///
/// # Errors
/// As [`diagnose`], or when no component is DFloat11.
pub fn diagnose_pipeline(path: &Path) -> Result<Diagnosis, Error> {
    let mut whole: Option<Diagnosis> = None;
    let mut plain_len = 0;
    for name in components(path)? {
        let component = path.join(&name);
        let is_coded = std::fs::read(component.join(CONFIG_FILE)).is_ok_and(|text| Config::is_in(&text));
        if !is_coded {
            plain_len += stored_len(&Repository::open(&component)?);
            continue;
        }
        let mut found = diagnose(&Model::open(&component)?)?;
        for module in &mut found.modules {
            module.name = format!("{name}/{}", module.name);
        }
        whole = Some(match whole {
            None => found,
            Some(whole) => Diagnosis {
                threads_per_block: whole.threads_per_block.max(found.threads_per_block),
                bytes_per_thread: whole.bytes_per_thread.max(found.bytes_per_thread),
                modules: whole.modules.into_iter().chain(found.modules).collect(),
                stored_len: whole.stored_len + found.stored_len,
                buffer_len: whole.buffer_len.max(found.buffer_len),
            },
        });
    }
    let mut whole =
        whole.ok_or_else(|| Error::invalid(format!("no component of `{}` is DFloat11", path.display())))?;
    whole.stored_len += plain_len;
    sort(&mut whole.modules);
    Ok(whole)
}

/// The most demanding module first.
fn sort(modules: &mut [ModuleDemand]) {
    modules.sort_by(|a, b| b.shared_memory.cmp(&a.shared_memory).then(a.name.cmp(&b.name)));
}

fn stored_len(repository: &Repository) -> u64 {
    (0..repository.tensors().len()).map(|idx| super::spread::byte_len(repository, idx)).sum()
}

/// Looks at the output positions of every module; nothing is decoded.
///
/// # Errors
/// When a file cannot be read, or positions contradict themselves.
pub fn diagnose(model: &Model) -> Result<Diagnosis, Error> {
    let repository = model.repository();
    let geometry = model.geometry();
    let mut modules = Vec::with_capacity(model.modules().len());
    for (idx, module) in model.modules().iter().enumerate() {
        let positions = repository.read(module.tensor(Part::OutputPositions))?;
        let (positions, rest) = positions.as_chunks();
        let positions: Vec<u32> = positions.iter().map(|&position| u32::from_le_bytes(position)).collect();
        let rise = |pair: &[u32]| pair[1].checked_sub(pair[0]).map(u64::from);
        let largest = positions.windows(2).map(rise).collect::<Option<Vec<u64>>>();
        let largest = largest.and_then(|rises| rises.into_iter().max()).filter(|_| rest.is_empty());
        let largest_workgroup = largest
            .ok_or_else(|| mithril_format::df11::damaged(&module.name, "output positions do not rise"))?;
        modules.push(ModuleDemand {
            name: module.name.clone(),
            n_elements: repository.tensors()[module.tensor(Part::SignMantissa)].shape[0],
            coded_len: model.coded_len(idx),
            largest_workgroup,
            shared_memory: geometry.shared_memory_len(largest_workgroup),
        });
    }
    sort(&mut modules);
    Ok(Diagnosis {
        threads_per_block: geometry.threads_per_block(),
        bytes_per_thread: geometry.bytes_per_thread(),
        buffer_len: modules.iter().map(|module| 2 * module.n_elements).max().unwrap_or(0),
        modules,
        stored_len: stored_len(repository),
    })
}
