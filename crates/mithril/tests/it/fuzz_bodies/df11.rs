//! DFloat11 runs from any bytes.

use mithril::convert::df11::{Coded, Encoder, Geometry, Parts, Plan, Profile, two_phase};

/// Any bytes decode, in the same way by lanes and by threads, or are refused; what was encoded comes back.
///
/// One byte chooses the geometry, one the number of tables, two each the lengths of coded exponents and of signs and
/// mantissas, one the number of output positions; the parts follow in this order, gaps last.
pub fn df11_decode(input: &[u8]) {
    let Some(([shape, n_tables, a, b, c, d, n_positions], rest)) = input.split_first_chunk::<7>() else {
        return;
    };
    let geometry = [(8, 8), (16, 8), (8, 16), (512, 8)][usize::from(shape % 4)];
    let geometry = Geometry::new(geometry.0, geometry.1).expect("a possible geometry");
    let mut rest = rest;
    let mut take = |len: usize| rest.split_off(..len.min(rest.len())).unwrap_or_default();
    let parts = Parts {
        luts: take(256 * usize::from(*n_tables)),
        encoded_exponent: take(usize::from(u16::from_le_bytes([*a, *b]))),
        sign_mantissa: take(usize::from(u16::from_le_bytes([*c, *d]))),
        output_positions: take(4 * usize::from(*n_positions)),
        gaps: take(usize::MAX),
    };
    if let Ok(coded) = Coded::new(parts, geometry) {
        compare_ways(&coded);
    }
    round_trip(&input[..input.len() / 2 * 2], geometry);
}

/// Where a GPU can decode, lanes give the same; a GPU can if and only if its entry points are right.
fn compare_ways(coded: &Coded<'_>) {
    let mut by_threads = vec![0; 2 * coded.n_elements()];
    let mut by_lanes = by_threads.clone();
    let threads = two_phase::decode_into(coded, &mut by_threads);
    let lanes = coded.decode_into(&mut by_lanes);
    assert_eq!(threads.is_ok(), coded.check_entry_points().is_ok(), "entry points and threads disagree");
    if threads.is_ok() {
        assert!(lanes.is_ok() && by_lanes == by_threads, "lanes and threads differ");
    }
}

fn round_trip(raw: &[u8], geometry: Geometry) {
    let mut profile = Profile::new();
    profile.add(raw);
    let Ok(plan) = Plan::new(&profile, geometry) else { return };
    let (mut encoded, mut signs_mantissas) = (Vec::new(), Vec::new());
    let mut encoder = Encoder::new(&plan);
    raw.chunks(54).for_each(|piece| encoder.push(piece, &mut encoded, &mut signs_mantissas));
    let entry_points = encoder.finish(&mut encoded);
    assert_eq!(encoded.len(), plan.encoded_len(), "another length than planned");
    let parts = Parts {
        luts: plan.luts(),
        encoded_exponent: &encoded,
        sign_mantissa: &signs_mantissas,
        output_positions: &entry_points.output_positions,
        gaps: &entry_points.gaps,
    };
    let coded = Coded::new(parts, geometry).expect("what was encoded fits together");
    let mut back = vec![0; raw.len()];
    coded.decode_into(&mut back).expect("decodes");
    assert!(back == raw, "other bytes came back");
    back.fill(0);
    two_phase::decode_into(&coded, &mut back).expect("decodes");
    assert!(back == raw, "other bytes came back from threads");
}
