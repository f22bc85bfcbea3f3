//! The tensors of a file, each decoded by the GPU and by the CPU.

use crate::clock;
use crate::failure::Failure;
use crate::open;
use mithril::container::EntryKind;
use mithril::convert::df11;
use mithril::convert::ecq::EcqFile;
use mithril::framed_safetensors::{self, Framed};
use mithril::{Dtype, FRAME_MAGIC, ReadAt};
use mithril_gpu::{Gpu, GpuError};
use std::fs::File;
use std::path::{Path, PathBuf};

/// What parts of entropy-coded matrices are called that are frames, unless they are plain numbers.
const SIDES: [&str; 6] =
    [".scales", ".biases", ".zero_codes", ".bias_residuals", ".sub_scales", ".sub_biases"];

/// A tensor or module, decoded both ways.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) len: usize,
    /// Blocks that the GPU decoded, and blocks that the CPU had to.
    pub(super) n_blocks: (usize, usize),
    pub(super) gpu_seconds: f64,
    pub(super) cpu_seconds: f64,
    pub(super) is_equal: bool,
}

/// All tensors of a file or directory that kernels know.
pub(super) fn rows(gpu: &Gpu, path: &Path) -> Result<Vec<Row>, Failure> {
    let name = path.display();
    let failed = |error: std::io::Error| Failure::read(&name, &error);
    if path.is_dir() {
        let coded = coded_files(path)?;
        if coded.is_empty() {
            return df11_rows(gpu, path);
        }
        let rows = coded.iter().map(|file| ecq_rows(gpu, file)).collect::<Result<Vec<_>, Failure>>()?;
        return Ok(rows.into_iter().flatten().collect());
    }
    let file = File::open(path).map_err(failed)?;
    let mut first = [0; 4];
    let is_long = file.size().map_err(failed)? >= 8;
    if is_long {
        file.read_exact_at(0, &mut first).map_err(failed)?;
    }
    if first == FRAME_MAGIC {
        let frame = std::fs::read(path).map_err(failed)?;
        return Ok(vec![frame_row(gpu, &name.to_string(), &frame)?]);
    }
    let model = open::model_alone(path)?;
    if model.container().is_some() {
        return container_rows(gpu, path, &model);
    }
    if is_long && let Ok(Some(framed)) = framed_safetensors::read(&file) {
        return framed_rows(gpu, path, &file, &framed);
    }
    match EcqFile::open(path) {
        Ok(Some(file)) => ecq_rows(gpu, &file),
        Err(error) if model.kind() == "safetensors" => Err(Failure::library(&name, &error)),
        _ => Err(Failure::input(format!("`{name}` is no container, frame, or file of coded weights"))
            .with_hint(
                "`mithril compress` makes one of a model, `mithril convert --to ecq` of a quantised one",
            )),
    }
}

/// The entropy-coded files of a directory.
fn coded_files(path: &Path) -> Result<Vec<EcqFile>, Failure> {
    let entries = std::fs::read_dir(path).map_err(|error| Failure::read(path.display(), &error))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    paths.sort();
    let open = |path: &PathBuf| EcqFile::open(path).map_err(|error| Failure::library(path.display(), &error));
    paths.iter().filter_map(|path| open(path).transpose()).collect()
}

fn frame_row(gpu: &Gpu, name: &str, frame: &[u8]) -> Result<Row, Failure> {
    let (on_gpu, gpu_time) = clock::time(|| gpu.decode_frame(frame));
    let on_gpu = on_gpu.map_err(|error| refused(name, &error))?;
    let (on_cpu, cpu_time) = clock::time(|| mithril::decompress(frame));
    let on_cpu = on_cpu.map_err(|error| Failure::library(name, &error))?;
    Ok(Row {
        name: name.to_owned(),
        len: on_cpu.len(),
        n_blocks: (on_gpu.n_on_gpu, on_gpu.n_on_cpu),
        gpu_seconds: gpu_time.wall,
        cpu_seconds: cpu_time.wall,
        is_equal: on_gpu.bytes == on_cpu,
    })
}

fn container_rows(gpu: &Gpu, path: &Path, model: &mithril::container::Model) -> Result<Vec<Row>, Failure> {
    let Some(reader) = model.container() else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for (entry_idx, entry) in reader.entries().iter().enumerate() {
        let Some(frame) = reader.directory().frame(entry_idx).filter(|_| entry.kind() == EntryKind::Full)
        else {
            continue;
        };
        let bytes = ReadAt::read_range(reader.source(), frame.offset..frame.end())
            .map_err(|error| Failure::read(path.display(), &error))?;
        rows.push(frame_row(gpu, entry.label(), &bytes)?);
    }
    Ok(rows)
}

fn framed_rows(gpu: &Gpu, path: &Path, file: &File, framed: &Framed) -> Result<Vec<Row>, Failure> {
    let frames = framed.tensors.iter().filter(|tensor| tensor.is_frame);
    frames
        .map(|tensor| {
            let frame = file
                .read_range(tensor.stored.clone())
                .map_err(|error| Failure::read(path.display(), &error))?;
            frame_row(gpu, &tensor.original.name, &frame)
        })
        .collect()
}

/// Matrices by their symbols, which are all of them that is coded, and whatever stands beside them as a frame.
fn ecq_rows(gpu: &Gpu, file: &EcqFile) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    for name in file.matrices() {
        let failed = |error: mithril::Error| Failure::library(name, &error);
        let parts = file.matrix(name).map_err(failed)?;
        let (_, coded) = parts.read(name).map_err(failed)?;
        let shape = *coded.shape();
        let (on_gpu, gpu_time) = clock::time(|| gpu.decode_symbols(&coded));
        let on_gpu = on_gpu.map_err(|error| refused(name, &error))?;
        let mut on_cpu = vec![0; shape.rows() * shape.padded_columns()];
        let (decoded, cpu_time) = clock::time(|| coded.decode_symbols(0..shape.n_blocks(), &mut on_cpu));
        decoded.map_err(|error| Failure::input(format!("`{name}`: {error}")))?;
        rows.push(Row {
            name: name.to_owned(),
            len: on_cpu.len(),
            n_blocks: (shape.n_blocks(), 0),
            gpu_seconds: gpu_time.wall,
            cpu_seconds: cpu_time.wall,
            is_equal: on_gpu == on_cpu,
        });
    }
    let is_frame = |name: &str, dtype: Dtype| {
        name == "ecq.source"
            || name.ends_with(".frame")
            || dtype == Dtype::U8 && SIDES.iter().any(|side| name.ends_with(side))
    };
    for tensor in file.tensors().iter().filter(|tensor| is_frame(&tensor.name, tensor.dtype)) {
        let frame = file.read(&tensor.name).map_err(|error| Failure::library(&tensor.name, &error))?;
        rows.push(frame_row(gpu, &tensor.name, &frame)?);
    }
    Ok(rows)
}

fn df11_rows(gpu: &Gpu, path: &Path) -> Result<Vec<Row>, Failure> {
    let name = path.display();
    let failed = |error: mithril::Error| Failure::library(&name, &error);
    let model = df11::Model::open(path).map_err(failed)?;
    let mut rows = Vec::new();
    for (module_idx, module) in model.modules().iter().enumerate() {
        let bytes = model.read_module(module_idx).map_err(failed)?;
        let coded = bytes.coded(&module.name, model.geometry()).map_err(|error| failed(error.into()))?;
        let mut on_cpu = vec![0; 2 * coded.n_elements()];
        let (decoded, cpu_time) = clock::time(|| coded.decode_into(&mut on_cpu));
        decoded.map_err(|error| Failure::input(format!("`{}`: {error}", module.name)))?;
        let (on_gpu, gpu_time) = clock::time(|| gpu.decode_df11(bytes.parts(), model.geometry()));
        let on_gpu = on_gpu.map_err(|error| refused(&module.name, &error))?;
        rows.push(Row {
            name: module.name.clone(),
            len: on_cpu.len(),
            n_blocks: (coded.n_workgroups(), 0),
            gpu_seconds: gpu_time.wall,
            cpu_seconds: cpu_time.wall,
            is_equal: on_gpu == on_cpu,
        });
    }
    Ok(rows)
}

fn refused(name: &str, error: &GpuError) -> Failure {
    Failure::input(format!("`{name}`: {error}"))
}
