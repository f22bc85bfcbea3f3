//! Measures how fast the BF16 matrices of safetensors files become DFloat11 and come back, on one core.
//!
//! ```text
//! cargo run --release -p mithril --example df11_speed -- MODEL.safetensors...
//! ```
//! Every matrix is a module of its own, as `mithril convert` does it by default, and everything is in memory. Encoding
//! counts exponents, builds codes and tables, and writes; decoding ends with a comparison of all bits that is not
//! timed, and the two phases of a GPU must give the same. GB/s are 10^9 bytes of BF16 per second of this thread's CPU
//! time, the best of all rounds; files that are too short for the clock have none. Linux only.

use mithril::convert::df11::{Coded, Encoder, EntryPoints, Geometry, Parts, Plan, Profile, two_phase};
use mithril::{Dtype, safetensors};
use std::error::Error;

/// Rounds for each file.
const ROUNDS: usize = 9;

/// Bytes that are coded at a time.
const PIECE_LEN: usize = 1 << 18;

/// A coded module.
struct Module {
    plan: Plan,
    encoded: Vec<u8>,
    signs_mantissas: Vec<u8>,
    entry_points: EntryPoints,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "file                                     modules        bytes   ratio  encode  decode   check  GB/s"
    );
    for path in std::env::args().skip(1) {
        let file = std::fs::read(&path)?;
        let mut matrices: Vec<&[u8]> = Vec::new();
        for tensor in safetensors::tensors(&file, file.len() as u64)? {
            if tensor.dtype == Dtype::Bf16 && tensor.shape.len() == 2 {
                let bytes = usize::try_from(tensor.bytes.start)?..usize::try_from(tensor.bytes.end)?;
                matrices.push(&file[bytes]);
            }
        }
        measure(&path, &matrices)?;
    }
    Ok(())
}

fn measure(path: &str, matrices: &[&[u8]]) -> Result<(), Box<dyn Error>> {
    let geometry = Geometry::default();
    let raw_len: usize = matrices.iter().map(|matrix| matrix.len()).sum();
    let mut modules = Vec::new();
    let mut out: Vec<Vec<u8>> = matrices.iter().map(|matrix| vec![0; matrix.len()]).collect();
    let [mut encode, mut decode, mut check] = [f64::MAX; 3];
    for _ in 0..ROUNDS {
        let started = cpu_seconds()?;
        let encoded: Result<Vec<Module>, _> =
            matrices.iter().map(|matrix| encode_module(matrix, geometry)).collect();
        encode = encode.min(cpu_seconds()? - started);
        modules = encoded?;
        let coded: Vec<Coded<'_>> =
            modules.iter().map(|module| coded(module, geometry)).collect::<Result<_, _>>()?;
        let started = cpu_seconds()?;
        for (coded, out) in coded.iter().zip(&mut out) {
            coded.decode_into(out)?;
        }
        decode = decode.min(cpu_seconds()? - started);
        let started = cpu_seconds()?;
        for coded in &coded {
            coded.check_entry_points()?;
        }
        check = check.min(cpu_seconds()? - started);
        if out.iter().zip(matrices).any(|(out, matrix)| out != matrix) {
            return Err("other bits came back".into());
        }
    }
    for (module, matrix) in modules.iter().zip(matrices) {
        let mut phases = vec![0; matrix.len()];
        two_phase::decode_into(&coded(module, geometry)?, &mut phases)?;
        if phases != *matrix {
            return Err("the two phases of a GPU give other bits".into());
        }
    }
    let parts = modules.iter().map(|module| {
        let entry_points = module.entry_points.gaps.len() + module.entry_points.output_positions.len();
        module.plan.luts().len() + module.encoded.len() + module.signs_mantissas.len() + entry_points
    });
    let ratio = parts.sum::<usize>() as f64 / raw_len as f64;
    let name = path.rsplit('/').next().unwrap_or(path);
    let rate = |seconds: f64| match seconds {
        MIN_SECONDS.. => format!("{:.2}", raw_len as f64 / seconds / 1e9),
        _ => "-".to_owned(),
    };
    println!(
        "{name:40} {:7} {raw_len:12} {ratio:7.4} {:>7} {:>7} {:>7}",
        matrices.len(),
        rate(encode),
        rate(decode),
        rate(check)
    );
    Ok(())
}

fn encode_module(raw: &[u8], geometry: Geometry) -> Result<Module, Box<dyn Error>> {
    let mut profile = Profile::new();
    raw.chunks(PIECE_LEN).for_each(|piece| profile.add(piece));
    let plan = Plan::new(&profile, geometry)?;
    let mut encoded = Vec::with_capacity(plan.encoded_len() + 8);
    let mut signs_mantissas = Vec::with_capacity(plan.n_elements());
    let mut encoder = Encoder::new(&plan);
    raw.chunks(PIECE_LEN).for_each(|piece| encoder.push(piece, &mut encoded, &mut signs_mantissas));
    let entry_points = encoder.finish(&mut encoded);
    Ok(Module { plan, encoded, signs_mantissas, entry_points })
}

fn coded(module: &Module, geometry: Geometry) -> Result<Coded<'_>, Box<dyn Error>> {
    let parts = Parts {
        luts: module.plan.luts(),
        encoded_exponent: &module.encoded,
        sign_mantissa: &module.signs_mantissas,
        output_positions: &module.entry_points.output_positions,
        gaps: &module.entry_points.gaps,
    };
    Ok(Coded::new(parts, geometry)?)
}

/// What takes less is not measured: the scheduler counts in steps of some milliseconds.
const MIN_SECONDS: f64 = 0.01;

/// Seconds that this thread has run, by the scheduler's own count: others on the machine do not disturb it much.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: f64 = text.split(' ').next().ok_or("no time")?.parse()?;
    Ok(nanoseconds / 1e9)
}
