//! A step of an optimiser with two moments: where it brings weights, told by the moments before and behind it.
//!
//! Adam moves a weight by a multiple of `m / (sqrt(v) + e)` and of the weight itself. Of the steps between two
//! checkpoints only the first and the last moments are known, so that the multiples are fitted, and what they do not
//! explain is coded as a delta. The arithmetic is part of the format: every reader must come to the same bits.

/// What is added to the root of a second moment.
const EPSILON: f64 = 1e-8;

/// Steps of an optimiser, in units of its rate, and weights are far below this.
const LARGEST_FITTED: f64 = 100.0;

/// The first and second moments before a step, then those behind it: F32 elements.
pub(crate) type MomentBytes<'a> = [&'a [u8]; 4];

/// Moves F32 weights by a step, in place. `factors` are the bits of its three factors.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn apply(weights: &mut [u8], moments: MomentBytes<'_>, factors: [u32; 3]) {
    let [a, b, c] = factors.map(value);
    let moments = moments.map(|bytes| bytes.as_chunks::<4>().0);
    let weights = weights.as_chunks_mut::<4>().0;
    assert!(moments.iter().all(|moment| moment.len() == weights.len()), "as many moments as weights");
    for (i, weight) in weights.iter_mut().enumerate() {
        let [m0, v0, m1, v1] = moments.map(|moment| value(u32::from_le_bytes(moment[i])));
        let start = value(u32::from_le_bytes(*weight));
        let moved = start + c * start + a * update(m0, v0) + b * update(m1, v1);
        // What cannot be a normal number stays where it was: no bits of it depend on the machine.
        if (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&moved.abs()) {
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest, ties to even")]
            let rounded = moved as f32;
            *weight = rounded.to_le_bytes();
        }
    }
}

/// The direction of a step.
fn update(first: f64, second: f64) -> f64 {
    first / (second.sqrt() + EPSILON)
}

/// A number, exactly; denormal ones count as zero, as some programs have the processor do.
fn value(bits: u32) -> f64 {
    if bits & 0x7f80_0000 == 0 { 0.0 } else { f64::from(f32::from_bits(bits)) }
}

/// The factors of the step that brings `before` nearest to `after`; nothing when there is none.
pub(crate) fn fit(after: &[u8], before: &[u8], moments: MomentBytes<'_>) -> Option<[u32; 3]> {
    let element =
        |bytes: &[u8], i: usize| bytes.as_chunks::<4>().0.get(i).map(|x| value(u32::from_le_bytes(*x)));
    let n = before.len() / 4;
    // Normal equations: sums of products of the three directions and of the way.
    let mut sums = [[0.0; 4]; 3];
    for i in 0..n {
        let [m0, v0, m1, v1] = moments.map(|moment| element(moment, i).unwrap_or(0.0));
        let (start, end) = (element(before, i)?, element(after, i)?);
        let row = [update(m0, v0), update(m1, v1), start, end - start];
        // Moments that cannot be an optimiser's must not decide about all the others.
        if row.iter().all(|x| x.abs() < LARGEST_FITTED) {
            for (sums, x) in sums.iter_mut().zip(row) {
                sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
            }
        }
    }
    let factors = solve(sums)?;
    #[expect(clippy::cast_possible_truncation, reason = "factors of F32")]
    let factors = factors.map(|factor| factor as f32);
    (factors.iter().all(|factor| factor.is_finite()) && factors.iter().any(|factor| *factor != 0.0))
        .then(|| factors.map(f32::to_bits))
}

/// Solves three equations by elimination. What hardly differs from what is known already gets the factor zero.
fn solve(mut rows: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    let scales = [rows[0][0], rows[1][1], rows[2][2]];
    let mut is_used = [true; 3];
    for at in 0..3 {
        if rows[at][at] <= scales[at] * 1e-9 || rows[at][at] <= 0.0 {
            is_used[at] = false;
            continue;
        }
        for other in 0..3 {
            if other != at {
                let factor = rows[other][at] / rows[at][at];
                let pivot = rows[at];
                rows[other].iter_mut().zip(pivot).for_each(|(x, y)| *x -= factor * y);
            }
        }
    }
    let factor = |at: usize| if is_used[at] { rows[at][3] / rows[at][at] } else { 0.0 };
    let factors = [factor(0), factor(1), factor(2)];
    factors.iter().all(|factor| factor.is_finite()).then_some(factors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_step_of_adam_is_found_again() {
        let n = 2000;
        let wave = |i: usize, speed: f32| (i as f32 * speed).sin();
        let w0: Vec<f32> = (0..n).map(|i| wave(i, 0.37) * 0.1).collect();
        let m0: Vec<f32> = (0..n).map(|i| wave(i, 1.9) * 1e-3).collect();
        let m1: Vec<f32> = (0..n).map(|i| m0[i] * 0.9 + wave(i, 0.11) * 1e-4).collect();
        let v0: Vec<f32> = (0..n).map(|i| 1e-6 + wave(i, 0.7).abs() * 1e-6).collect();
        let v1: Vec<f32> = v0.iter().map(|v| v * 0.95 + 1e-8).collect();
        let moved = |i: usize| w0[i] * (1.0 - 1e-4) - 1e-3 * m1[i] / (v1[i].sqrt() + 1e-8);
        let w1: Vec<f32> = (0..n).map(moved).collect();
        let moments = [bytes(&m0), bytes(&v0), bytes(&m1), bytes(&v1)];
        let moments = [&moments[0][..], &moments[1], &moments[2], &moments[3]];
        let (before, after) = (bytes(&w0), bytes(&w1));
        let factors = fit(&after, &before, moments).unwrap();
        let [a, b, c] = factors.map(f32::from_bits);
        assert!(a.abs() < 1e-6 && (b + 1e-3).abs() < 1e-6 && (c + 1e-4).abs() < 1e-6, "{a} {b} {c}");
        let mut stepped = before;
        apply(&mut stepped, moments, factors);
        let near = stepped
            .as_chunks::<4>()
            .0
            .iter()
            .zip(&w1)
            .filter(|(x, y)| f32::from_le_bytes(**x).to_bits().abs_diff(y.to_bits()) <= 2);
        assert!(near.count() > n * 9 / 10);
    }

    #[test]
    fn what_is_no_number_stays_where_it_was() {
        let strange = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, 3.4e38, 1.0, 1.0];
        let weights = bytes(&strange);
        let large = bytes(&[3.4e38; 8]);
        let negative = bytes(&[-1.0; 8]);
        let mut moved = weights.clone();
        apply(&mut moved, [&large, &negative, &large, &large], [1.0f32.to_bits(); 3]);
        assert_eq!(moved, weights, "the root of a negative moment is no number");
        let zeros = bytes(&[0.0; 8]);
        apply(&mut moved, [&zeros; 4], [0, 0, 1.0f32.to_bits()]);
        assert_eq!(moved[..24], weights[..24]);
        assert_eq!(moved[24..], bytes(&[2.0, 2.0]));
    }

    #[test]
    fn there_is_no_step_of_nothing() {
        let zeros = bytes(&[0.0; 100]);
        assert_eq!(fit(&zeros, &zeros, [&zeros; 4]), None);
        assert_eq!(fit(&[], &[], [&[]; 4]), None);
    }
}
