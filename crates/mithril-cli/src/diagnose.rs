//! `mithril diagnose`: whether a DFloat11 model can be decoded on a GPU, without one.

use crate::failure::{Failure, print, print_json};
use crate::table::Table;
use clap::Args;
use mithril::convert::df11::{Diagnosis, Model, diagnose, diagnose_pipeline};
use mithril::convert::is_pipeline;
use serde_json::json;
use std::path::PathBuf;

/// Modules that are listed unless all are asked for.
const N_LISTED: usize = 10;

/// Arguments of `diagnose`.
#[derive(Debug, Args)]
#[command(after_help = "\
The decode kernel asks for shared memory by the fullest workgroup of each module; where the device has less, it stops with
`CUDA_ERROR_INVALID_VALUE`. Nothing is decoded here, and no GPU is needed. 49152 bytes is what CUDA devices give a
workgroup unless a program asks for more, which the package does not.

Exit code: 0 the model fits, 1 it does not, or is damaged, 2 the command line is at fault.

Examples:
  mithril diagnose model-df11
  mithril diagnose model-df11 --shared-memory 49152 --vram 20e9
  mithril diagnose model-df11 --json")]
pub(crate) struct DiagnoseArguments {
    /// DFloat11 directory, or a diffusers pipeline with such components
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// Shared memory of a workgroup in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 49152)]
    pub(crate) shared_memory: u64,
    /// Memory of the device in bytes, such as 20e9
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) vram: Option<u64>,
    /// List all modules, not only the most demanding
    #[arg(long)]
    pub(crate) all: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs `mithril diagnose`.
pub(crate) fn run(arguments: &DiagnoseArguments) -> Result<(), Failure> {
    let name = arguments.directory.display();
    let diagnosis = if is_pipeline(&arguments.directory) {
        diagnose_pipeline(&arguments.directory)
    } else {
        Model::open(&arguments.directory).and_then(|model| diagnose(&model))
    };
    let diagnosis = diagnosis.map_err(|error| Failure::library(&name, &error))?;
    if arguments.json {
        print_json(&to_json(arguments, &diagnosis))?;
    } else {
        print(render(arguments, &diagnosis))?;
    }
    verdict(arguments, &diagnosis)
}

/// A failure if the model does not fit, with what to change.
fn verdict(arguments: &DiagnoseArguments, diagnosis: &Diagnosis) -> Result<(), Failure> {
    let (wanted, given) = (diagnosis.shared_memory(), arguments.shared_memory);
    if wanted > given {
        let worst = diagnosis.modules.first().map_or("", |module| module.name.as_str());
        let message = format!("`{worst}` asks for {wanted} bytes of shared memory, the device has {given}");
        let cure = match diagnosis.safe_threads(given) {
            Some(threads) => format!(
                "convert again with `--shared-memory {given}`; `--threads-per-block {threads}` suffices for any weights"
            ),
            None => "no workgroup of 32 threads or more does with so little".to_owned(),
        };
        return Err(Failure::input(message).with_hint(cure));
    }
    match arguments.vram {
        Some(vram) if diagnosis.device_memory() > vram => {
            let message = format!(
                "weights take {} bytes of device memory, the device has {vram}",
                diagnosis.device_memory()
            );
            Err(Failure::input(message)
                .with_hint("load it with `cpu_offload=True`, which keeps the coded weights in main memory"))
        }
        _ => Ok(()),
    }
}

fn to_json(arguments: &DiagnoseArguments, diagnosis: &Diagnosis) -> serde_json::Value {
    let modules = diagnosis.modules.iter().map(|module| {
        json!({
            "name": module.name,
            "n_elements": module.n_elements,
            "coded_bytes": module.coded_len,
            "largest_workgroup": module.largest_workgroup,
            "shared_memory": module.shared_memory,
        })
    });
    json!({
        "directory": arguments.directory,
        "threads_per_block": diagnosis.threads_per_block,
        "bytes_per_thread": diagnosis.bytes_per_thread,
        "shared_memory": diagnosis.shared_memory(),
        "shared_memory_limit": arguments.shared_memory,
        "device_memory": diagnosis.device_memory(),
        "device_memory_limit": arguments.vram,
        "fits": verdict(arguments, diagnosis).is_ok(),
        "modules": modules.collect::<Vec<_>>(),
    })
}

fn render(arguments: &DiagnoseArguments, diagnosis: &Diagnosis) -> String {
    let n_modules = diagnosis.modules.len();
    let n_over =
        diagnosis.modules.iter().filter(|module| module.shared_memory > arguments.shared_memory).count();
    let mut text = format!(
        "{}: {n_modules} modules, {} threads of {} bytes\n",
        arguments.directory.display(),
        diagnosis.threads_per_block,
        diagnosis.bytes_per_thread
    );
    text += &format!(
        "shared memory: at most {} bytes; {n_over} modules above {}\n",
        diagnosis.shared_memory(),
        arguments.shared_memory
    );
    text += &format!(
        "device memory: {} bytes stored and {} for decoding\n\n",
        diagnosis.stored_len, diagnosis.buffer_len
    );
    let mut table =
        Table::new(1, ["module", "elements", "coded bytes", "largest workgroup", "shared memory"]);
    let n_listed = if arguments.all { n_modules } else { N_LISTED };
    for module in diagnosis.modules.iter().take(n_listed) {
        table.push([
            module.name.clone(),
            module.n_elements.to_string(),
            module.coded_len.to_string(),
            module.largest_workgroup.to_string(),
            module.shared_memory.to_string(),
        ]);
    }
    text += &table.render();
    if n_modules > n_listed {
        text += &format!("{} more; `--all` lists them\n", n_modules - n_listed);
    }
    text
}

/// A number of bytes: digits, or a number such as `20e9`.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let whole = text.parse::<u64>().ok();
    let rounded = || text.parse::<f64>().ok().filter(|&number| (0.0..1e18).contains(&number));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 10^18")]
    whole
        .or_else(|| rounded().map(|number| number as u64))
        .ok_or_else(|| "expected a number of bytes".to_owned())
}
