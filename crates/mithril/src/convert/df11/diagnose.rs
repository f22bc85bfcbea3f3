//! Whether the decode kernel can run on a device: shared memory of every module, and memory for all of them.

use super::Model;
use crate::Error;
use mithril_format::df11::Part;

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
    modules.sort_by(|a, b| b.shared_memory.cmp(&a.shared_memory).then(a.name.cmp(&b.name)));
    let stored_len =
        (0..repository.tensors().len()).map(|idx| super::spread::byte_len(repository, idx)).sum();
    Ok(Diagnosis {
        threads_per_block: geometry.threads_per_block(),
        bytes_per_thread: geometry.bytes_per_thread(),
        buffer_len: modules.iter().map(|module| 2 * module.n_elements).max().unwrap_or(0),
        modules,
        stored_len,
    })
}
