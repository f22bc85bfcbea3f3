//! Prints what entropy-coded matrices cost in bits and in time, one core, by CPU time of the thread; products of bf16 weights
//! also with two threads, by the clock.
//!
//! `cargo run --release -p mithril --example ecq_speed -- [ROWS COLUMNS]`; 4096 x 4096 by default, part of which stays in
//! the cache of many a CPU: 16384 x 4096 does not. Weights are a bell from a fixed seed. The best of nine rounds; rounds of
//! bf16 weights take turns, so that what else a machine does meets all of them.

use mithril::inference::{Activations, EntropyCodedLinear, WeightClass, dot_plain_bf16};
use mithril_codec::ecq::{Coded, Coding, Parts, Shape, encode, gemv::MAX_COLUMNS};
use mithril_codec::quantize::{Grid, quantize};
use rustix::time::{ClockId, clock_gettime};
use std::hint::black_box;

fn seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// The least time of nine rounds.
fn best(mut work: impl FnMut()) -> f64 {
    let time = |work: &mut dyn FnMut()| {
        let start = seconds();
        work();
        seconds() - start
    };
    (0..9).map(|_| time(&mut work)).fold(f64::INFINITY, f64::min)
}

fn bell(n: usize) -> Vec<f32> {
    let mut state = 88_172_645_463_325_252u64;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..n).map(|_| 0.02 * ((0..12).map(|_| uniform()).sum::<f32>() - 6.0)).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let (rows, columns) = match arguments.as_slice() {
        [rows, columns] => (*rows, *columns),
        _ => (4096, 4096),
    };
    assert!(columns.is_multiple_of(64) && columns <= MAX_COLUMNS, "columns are a multiple of 64");
    let n = (rows * columns) as f64;
    let weights = bell(rows * columns);
    let x: Vec<f32> = bell(columns).iter().map(|x| 50.0 * x).collect();
    let rate = |seconds: f64| n / 1e9 / seconds;
    println!("{rows} x {columns}, one core, best of 9, CPU time");

    // Symbols alone: 4-bit codes.
    let quantised = quantize(Grid::Zero4, 0.33 * 0.02, f32::MAX, columns, &weights);
    let shape = Shape::new(rows, columns, 0)?;
    let mut encoded = encode(&shape, &quantised.codes, &[], &[], Coding::Entropy);
    let encode_time =
        best(|| encoded = encode(&shape, black_box(&quantised.codes), &[], &[], Coding::Entropy));
    let parts = Parts {
        compressed: &encoded.compressed,
        stream_offsets: &encoded.stream_offsets,
        freq: &encoded.freq,
        low_bits: &[],
    };
    let coded = Coded::new(shape, parts)?;
    let mut symbols = vec![0; rows * columns];
    let decode_time = best(|| coded.decode_symbols(0..shape.n_blocks(), &mut symbols).expect("decodes"));
    assert!(symbols == quantised.codes);
    let bits = 8.0 * encoded.compressed.len() as f64 / n;
    println!(
        "codes: {bits:.3} bits; encode {:.2}, decode with sums {:.2} G symbols/s",
        rate(encode_time),
        rate(decode_time)
    );

    // Levels times 8-bit activations.
    for (grid, step) in [(Grid::Zero4, 0.62), (Grid::Halves5, 0.33), (Grid::Halves6, 0.2)] {
        let quantised = quantize(grid, step * 0.02, f32::MAX, columns, &weights);
        let low_bits = grid.bits() - 4;
        let shape = Shape::new(rows, columns, low_bits)?;
        let symbols: Vec<u8> = quantised.codes.iter().map(|code| code >> low_bits).collect();
        let mut plane = vec![0; rows * shape.low_row_len()];
        mithril_codec::ecq::low_bits::pack(low_bits, &quantised.codes, &mut plane);
        let encoded = encode(&shape, &symbols, &plane, &[], Coding::Entropy);
        let parts = Parts {
            compressed: &encoded.compressed,
            stream_offsets: &encoded.stream_offsets,
            freq: &encoded.freq,
            low_bits: &plane,
        };
        let coded = Coded::new(shape, parts)?;
        let x: Vec<i8> = (0..columns).map(|at| i8::try_from(at * 31 % 255).unwrap_or(-77)).collect();
        let mut sums = vec![0; rows];
        let time = best(|| {
            coded
                .dot_levels(0..shape.n_blocks(), &quantised.levels, black_box(&x), &mut sums)
                .expect("multiplies");
        });
        let bits = 8.0 * (encoded.compressed.len() + plane.len()) as f64 / n;
        println!("levels {grid:?}: {bits:.3} bits; product {:.2} G weights/s", rate(time));
    }
    plain_four_bits(&weights, rows, columns, rate);

    // bf16 weights.
    let bf16: Vec<u8> = weights.iter().flat_map(|w| [w.to_le_bytes()[2], w.to_le_bytes()[3]]).collect();
    let arranged = Activations::new(&x, columns);
    let layer = |class| EntropyCodedLinear::from_bf16("layer", &bf16, rows, columns, class);
    let layers = [layer(WeightClass::Fixed12)?, layer(WeightClass::EntropyCoded)?];
    let mut out = vec![0.0; rows];
    for threads in [1, 2] {
        let mut times = [f64::INFINITY; 3];
        for _ in 0..9 {
            let clock = std::time::Instant::now();
            let now = || if threads == 1 { seconds() } else { clock.elapsed().as_secs_f64() };
            let start = now();
            plain_on(threads, black_box(&bf16), &arranged, &mut out);
            times[0] = times[0].min(now() - start);
            for (layer, time) in layers.iter().zip(&mut times[1..]) {
                let start = now();
                layer.forward(black_box(&x), &mut out, threads)?;
                *time = time.min(now() - start);
            }
        }
        let [plain_time, coded_times @ ..] = times;
        println!("plain bf16, {threads} threads: 16 bits; product {:.2} G weights/s", rate(plain_time));
        for (layer, time) in layers.iter().zip(coded_times) {
            let bits = 8.0 * layer.resident_len() as f64 / n;
            let (class, times) = (layer.class(), plain_time / time);
            println!(
                "{class:?}, {threads} threads: {bits:.3} bits; product {:.2} G weights/s, {times:.2} x plain",
                rate(time)
            );
        }
    }
    Ok(())
}

/// Products of plain weights, whose rows threads share.
fn plain_on(threads: usize, weights: &[u8], x: &Activations, out: &mut [f32]) {
    if threads == 1 {
        return dot_plain_bf16(weights, x, out);
    }
    let rows = out.len().div_ceil(threads);
    let row_len = weights.len() / out.len();
    std::thread::scope(|scope| {
        for (weights, out) in weights.chunks(rows * row_len).zip(out.chunks_mut(rows)) {
            scope.spawn(move || dot_plain_bf16(weights, x, out));
        }
    });
}

/// Four bits in memory, as kernels for plain quantised weights have them: nibbles, looked up and multiplied.
fn plain_four_bits(weights: &[f32], rows: usize, columns: usize, rate: impl Fn(f64) -> f64) {
    let quantised = quantize(Grid::Zero4, 0.62 * 0.02, f32::MAX, columns, weights);
    let mut packed = vec![0; weights.len() / 2];
    mithril_codec::ecq::low_bits::pack(4, &quantised.codes, &mut packed);
    let x: Vec<i8> = (0..columns).map(|at| i8::try_from(at * 31 % 255).unwrap_or(-77)).collect();
    let mut sums = vec![0; rows];
    let time = best(|| {
        mithril_codec::ecq::gemv::dot_plain_levels(black_box(&packed), &quantised.levels, &x, &mut sums)
    });
    println!("plain 4-bit levels: 4 bits; product {:.2} G weights/s", rate(time));
}
