//! `mithril gpu`: the device, and whether and how fast its kernels decode.

mod rows;

use crate::failure::{Failure, print, print_json};
use crate::table::Table;
use clap::{Args, Subcommand};
use mithril_gpu::{Gpu, GpuError};
use rows::{Row, rows};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to do with the GPU.
#[derive(Debug, Subcommand)]
pub(crate) enum GpuCommand {
    /// Name the device that would be used, and its limits
    Info {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Decode every tensor on the GPU and compare with the CPU, bit for bit
    Verify(FileArguments),
    /// Measure decoding on the GPU, with the way there and back, beside the CPU
    Bench(FileArguments),
}

/// Arguments of `verify` and `bench`.
#[derive(Debug, Args)]
#[command(after_help = "\
FILE is a container (`.mckp`), whose tensors stored against a base are left out, a frame (`.mthf`), a safetensors file with
frames, an entropy-coded file or directory (`convert --to ecq`, `quantize`), or a DFloat11 directory. Blocks that no kernel
knows are decoded by the CPU and counted.

Exit code: 0 all equal, 1 a tensor differs or is damaged, 2 there is no GPU.")]
pub(crate) struct FileArguments {
    /// Container, frame, or file or directory of coded weights
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Runs `mithril gpu`.
pub(crate) fn run(command: &GpuCommand) -> Result<(), Failure> {
    let gpu = Gpu::new().map_err(|error| no_gpu(&error))?;
    match command {
        GpuCommand::Info { json: false } => print(describe(&gpu)),
        GpuCommand::Info { json: true } => print_json(&info_json(&gpu)),
        GpuCommand::Verify(arguments) => report(&gpu, arguments, false),
        GpuCommand::Bench(arguments) => report(&gpu, arguments, true),
    }
}

fn no_gpu(error: &GpuError) -> Failure {
    Failure::command(error.to_string()).with_hint(
        "a driver for Vulkan or Metal is needed; Debian's `mesa-vulkan-drivers` has one without a GPU",
    )
}

fn describe(gpu: &Gpu) -> String {
    let info = gpu.info();
    let mut table = Table::new(2, ["what", "value"]);
    let rows = [
        ("device", info.name.clone()),
        ("kind", info.kind.clone()),
        ("through", info.backend.clone()),
        ("driver", info.driver.clone()),
        ("subgroups", format!("{} to {} invocations", info.subgroup.0, info.subgroup.1)),
        ("workgroups", format!("{} invocations", info.workgroup_invocations)),
        ("workgroup memory", format!("{} bytes", info.workgroup_memory)),
        ("largest buffer", format!("{} bytes", info.buffer_len)),
    ];
    rows.into_iter().for_each(|(what, value)| table.push([what.to_owned(), value]));
    table.render()
}

fn info_json(gpu: &Gpu) -> Value {
    let info = gpu.info();
    json!({
        "device": info.name,
        "kind": info.kind,
        "backend": info.backend,
        "driver": info.driver,
        "subgroup": [info.subgroup.0, info.subgroup.1],
        "workgroup_invocations": info.workgroup_invocations,
        "workgroup_memory": info.workgroup_memory,
        "buffer_len": info.buffer_len,
    })
}

fn report(gpu: &Gpu, arguments: &FileArguments, with_speed: bool) -> Result<(), Failure> {
    let rows = rows(gpu, &arguments.file)?;
    let n_different = rows.iter().filter(|row| !row.is_equal).count();
    let on_gpu: usize = rows.iter().map(|row| row.n_blocks.0).sum();
    let on_cpu: usize = rows.iter().map(|row| row.n_blocks.1).sum();
    if arguments.json {
        let tensors: Vec<Value> = rows.iter().map(|row| row_json(row, with_speed)).collect();
        print_json(&json!({
            "file": arguments.file,
            "gpu": info_json(gpu),
            "equal": n_different == 0,
            "blocks_on_gpu": on_gpu,
            "blocks_on_cpu": on_cpu,
            "tensors": tensors,
        }))?;
    } else {
        if with_speed {
            print(speeds(gpu, &rows))?;
        }
        let total = rows.len();
        print(format!(
            "{}: {} of {total} tensors equal; {on_gpu} blocks decoded by the GPU, {on_cpu} by the CPU\n",
            arguments.file.display(),
            total - n_different
        ))?;
    }
    match rows.iter().find(|row| !row.is_equal) {
        Some(row) => Err(Failure::input(format!("`{}` decodes to other bits on the GPU", row.name))),
        None => Ok(()),
    }
}

fn speeds(gpu: &Gpu, rows: &[Row]) -> String {
    let mut table = Table::new(1, ["tensor", "bytes", "GPU GB/s", "CPU GB/s"]);
    let rate = |len: usize, seconds: f64| format!("{:.3}", len as f64 / 1e9 / seconds.max(1e-9));
    for row in rows {
        table.push([
            row.name.clone(),
            row.len.to_string(),
            rate(row.len, row.gpu_seconds),
            rate(row.len, row.cpu_seconds),
        ]);
    }
    let mut text = table.render();
    if gpu.info().kind == "Cpu" {
        text += "the device is software on the CPU: its speed says nothing about a GPU\n";
    }
    text
}

fn row_json(row: &Row, with_speed: bool) -> Value {
    let mut value = json!({
        "name": row.name,
        "bytes": row.len,
        "equal": row.is_equal,
        "blocks_on_gpu": row.n_blocks.0,
        "blocks_on_cpu": row.n_blocks.1,
    });
    if let (true, Some(object)) = (with_speed, value.as_object_mut()) {
        object.insert("gpu_seconds".to_owned(), json!(row.gpu_seconds));
        object.insert("cpu_seconds".to_owned(), json!(row.cpu_seconds));
    }
    value
}
