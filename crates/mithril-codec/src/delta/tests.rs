//! Difference blocks come back for every type and every bit pattern, and damage is refused.

use super::*;
use crate::Dtype;
use crate::arch::{kernel_sets, with_kernels};
use crate::bytes::Padded;
use crate::sizes;

/// A fixed generator.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 ^ self.0 >> 31
    }
}

fn layouts() -> Vec<Layout> {
    let mut layouts: Vec<Layout> = Dtype::ALL.iter().filter_map(|dtype| dtype.layout()).collect();
    layouts.dedup();
    layouts
}

/// Elements of a bell-like size, and the same with some of them moved by up to `2^spread` steps.
fn pair(layout: Layout, n: usize, spread: u32, share: u64, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let number = Number::of(layout);
    let mut random = Random(seed);
    let mut base = Vec::new();
    let mut source = Vec::new();
    for _ in 0..n {
        let octave = (random.next() | 1 << 20).trailing_zeros();
        let middle = number.mask() >> 2;
        let x = (random.next() & number.mask() & !middle & !(number.mask() >> 1 & !middle))
            | (middle.wrapping_sub((u64::from(octave) << layout.mantissa) + random.next() % 100) & middle);
        let moves = random.next() % 100 < share;
        let steps = (random.next() & ((1 << spread) - 1)).wrapping_sub((1 << spread) / 2);
        let moved = if moves { number.moved(x, steps & number.mask()) } else { x };
        base.extend(&x.to_le_bytes()[..number.width]);
        source.extend(&moved.to_le_bytes()[..number.width]);
    }
    (source, base)
}

fn recipes(layout: Layout) -> [DeltaRecipe; 3] {
    let recipe = DeltaRecipe { layout, per_octave: 1, row_len: None };
    [recipe, DeltaRecipe { per_octave: 2, ..recipe }, DeltaRecipe { row_len: Some(96), ..recipe }]
}

fn coded(recipe: &DeltaRecipe, source: &[u8], base: &[u8]) -> Vec<u8> {
    let mut block = vec![0];
    encode(recipe, base, source, &mut Scratch::default(), &mut block);
    block
}

/// The block comes back, and is the same, whichever kernels run.
fn check(recipe: &DeltaRecipe, source: &[u8], base: &[u8]) -> usize {
    let block = coded(recipe, source, base);
    for kernels in kernel_sets() {
        with_kernels(kernels, || {
            assert!(block == coded(recipe, source, base), "{kernels:?} {recipe:?}");
            let mut out = vec![0; source.len()];
            decode(block[..].into(), base, &mut out, &mut Scratch::default()).unwrap();
            assert!(out == source, "{kernels:?} {recipe:?}, {} bytes", source.len());
        });
    }
    block.len()
}

#[test]
fn elements_of_every_type_and_length_come_back() {
    for layout in layouts().into_iter().step_by(sizes(1, 3)) {
        for recipe in recipes(layout).into_iter().step_by(sizes(1, 2)) {
            for n in (0..=200).chain([1000, 4099, 20_001]).skip(sizes(0, 150)).step_by(sizes(1, 60)) {
                let moves = [(1, 3), (6, 45), (u32::from(layout.width) * 8 - 1, 90)];
                for (spread, share) in moves.into_iter().skip(sizes(0, 1)).take(sizes(3, 1)) {
                    let (mut source, mut base) = pair(layout, n, spread, share, n as u64);
                    // Bytes behind the last whole element.
                    source.extend([7; 3].iter().take(n % usize::from(layout.width)));
                    base.resize(source.len(), 1);
                    check(&recipe, &source, &base);
                    if n > 200 && spread == 1 {
                        break;
                    }
                }
            }
        }
    }
}

#[test]
fn all_pairs_of_bytes_and_all_bit_patterns_of_two_bytes_come_back() {
    for layout in layouts() {
        let (source, base): (Vec<u8>, Vec<u8>) = match layout.width {
            1 => (0..=u16::MAX).map(|i| i.to_le_bytes()).map(|[x, base]| (x, base)).unzip(),
            _ => {
                let bits = |i: u16| i.to_le_bytes();
                let source = (0..=u16::MAX).flat_map(bits).collect();
                let base = (0..=u16::MAX).flat_map(|i| bits(i.wrapping_mul(40_503).rotate_left(5))).collect();
                (source, base)
            }
        };
        for recipe in recipes(layout) {
            check(&recipe, &source, &base);
            check(&recipe, &base, &source);
        }
    }
}

#[test]
fn blocks_with_as_many_contexts_as_there_can_be_come_back() {
    for layout in [Layout::float(2, 7), Layout::float(2, 10), Layout::float(4, 23)] {
        for recipe in recipes(layout) {
            // Few and many moved, by few and by many steps; the last word is not whole.
            for (spread, share) in [(1, 2), (5, 40), (11, 99)] {
                let (source, base) = pair(layout, 40_007, spread, share, 17);
                check(&recipe, &source, &base);
            }
        }
    }
}

#[test]
fn rows_that_moved_alike_cost_next_to_nothing() {
    let layout = Layout::float(4, 23);
    let number = Number::of(layout);
    let (_, base) = pair(layout, 96 * 400, 1, 0, 3);
    let mut random = Random(5);
    let source: Vec<u8> = (0..96 * 400)
        .flat_map(|at| {
            let x = number.read(&base, at);
            let steps: i64 = match at / 96 % 20 {
                0 => (random.next() % 100_000).cast_signed() - 50_000,
                _ if x >> 22 & 1 == 1 => -1357,
                _ => -998,
            };
            number.moved(x, steps.cast_unsigned() & number.mask()).to_le_bytes()[..4].to_vec()
        })
        .collect();
    let [plain, _, by_rows] = recipes(layout);
    let by_rows = check(&by_rows, &source, &base);
    assert!(by_rows * 4 < check(&plain, &source, &base));
    assert!(by_rows < 400 / 20 * 96 * 3 + 1500, "{by_rows}");
}

#[test]
fn unmoved_elements_cost_little() {
    let (source, base) = pair(Layout::float(2, 7), 1 << 16, 2, 5, 1);
    let len = check(&recipes(Layout::float(2, 7))[0], &source, &base);
    assert!(len * 8 < (1 << 16) / 2, "{len}");
}

#[test]
fn truncated_and_damaged_blocks_are_refused_or_harmless() {
    for layout in [Layout::float(2, 7), Layout::float(4, 23), Layout::float(1, 3)] {
        let (source, base) = pair(layout, 700, 9.min(u32::from(layout.width) * 8 - 1), 60, 11);
        for recipe in recipes(layout) {
            let mut block = coded(&recipe, &source, &base);
            let mut out = vec![0; source.len()];
            let mut scratch = Scratch::default();
            for len in 1..block.len() {
                assert!(
                    decode(Padded::new(&block, len).unwrap(), &base, &mut out, &mut scratch).is_err(),
                    "cut to {len}"
                );
                assert!(decode(block[..len].into(), &base, &mut out, &mut scratch).is_err(), "cut to {len}");
            }
            for bit in 8..8 * block.len() {
                block[bit / 8] ^= 1 << (bit % 8);
                // Any answer is right but a panic: what the bits mean is for the checksum to say.
                let _ = decode(block[..].into(), &base, &mut out, &mut scratch);
                block[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}

#[test]
fn decoding_does_not_depend_on_what_was_decoded_before() {
    let mut scratch = Scratch::default();
    let mut blocks = Vec::new();
    for (n, layout) in
        [(5000, Layout::float(4, 23)), (77, Layout::float(2, 7)), (30_000, Layout::float(1, 3))]
    {
        let (source, base) = pair(layout, n, 5, 50, 9);
        blocks.push((coded(&recipes(layout)[0], &source, &base), source, base));
    }
    for (block, source, base) in blocks.iter().chain(blocks.iter().rev()) {
        let mut out = vec![1; source.len()];
        decode(block[..].into(), base, &mut out, &mut scratch).unwrap();
        assert!(out == *source);
    }
}
