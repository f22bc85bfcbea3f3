use super::*;
use crate::CodecError;

/// The parts of a coded run, owned.
#[derive(Debug, Clone, PartialEq)]
struct Owned {
    luts: Vec<u8>,
    encoded: Vec<u8>,
    signs_mantissas: Vec<u8>,
    entry: EntryPoints,
}

impl Owned {
    fn coded(&self, geometry: Geometry) -> Result<Coded<'_>, CodecError> {
        let parts = Parts {
            luts: &self.luts,
            encoded_exponent: &self.encoded,
            sign_mantissa: &self.signs_mantissas,
            output_positions: &self.entry.output_positions,
            gaps: &self.entry.gaps,
        };
        Coded::new(parts, geometry)
    }

    fn decode(&self, geometry: Geometry) -> Result<Vec<u8>, CodecError> {
        let coded = self.coded(geometry)?;
        let mut raw = vec![0; 2 * coded.n_elements()];
        coded.decode_into(&mut raw)?;
        Ok(raw)
    }
}

fn encode(raw: &[u8], geometry: Geometry, piece_len: usize) -> Result<Owned, Unencodable> {
    let mut profile = Profile::new();
    raw.chunks(piece_len).for_each(|piece| profile.add(piece));
    let plan = Plan::new(&profile, geometry)?;
    let mut encoder = Encoder::new(&plan);
    let (mut encoded, mut signs_mantissas) = (Vec::new(), Vec::new());
    raw.chunks(piece_len).for_each(|piece| encoder.push(piece, &mut encoded, &mut signs_mantissas));
    let entry = encoder.finish(&mut encoded);
    assert_eq!(encoded.len(), plan.encoded_len());
    assert_eq!(signs_mantissas.len(), plan.n_elements());
    assert_eq!(entry.gaps.len(), plan.gaps_len());
    assert_eq!(entry.output_positions.len(), plan.output_positions_len());
    Ok(Owned { luts: plan.luts().to_vec(), encoded, signs_mantissas, entry })
}

/// Codes, checks every way of decoding, returns the parts.
fn check(raw: &[u8], geometry: Geometry) -> Owned {
    let owned = encode(raw, geometry, 1 << 16).unwrap();
    assert_eq!(owned, encode(raw, geometry, 2 * 777).unwrap(), "pieces of another size");
    let coded = owned.coded(geometry).unwrap();
    let mut back = vec![0; raw.len()];
    coded.decode_into(&mut back).unwrap();
    assert!(back == raw, "lanes");
    back.fill(0xaa);
    two_phase::decode_into(&coded, &mut back).unwrap();
    assert!(back == raw, "two phases");
    coded.check_entry_points().unwrap();
    let middle = coded.n_workgroups() / 2;
    let elements = coded.elements(middle..coded.n_workgroups());
    let part = &mut back[2 * elements.start..2 * elements.end];
    part.fill(0x55);
    coded.decode_workgroups(middle..coded.n_workgroups(), part).unwrap();
    assert!(*part == raw[2 * elements.start..], "workgroups from the middle on");
    owned
}

/// Numbers without end, the same for the same seed.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Weights whose exponents fall off by half from `top - 1` downwards, `n_exponents` of them, and `top` now and then.
fn weights(n: usize, top: u8, n_exponents: u32, seed: u64) -> Vec<u8> {
    let mut next = random(seed);
    let number = |bits: u64| {
        let below = 1 + (bits.trailing_zeros() % n_exponents).to_le_bytes()[0];
        let [low, high, ..] = (bits >> 40).to_le_bytes();
        let below = if below == 1 && bits >> 62 == 0 { 0 } else { below };
        join(top - below, low ^ high).to_le_bytes()
    };
    (0..n).flat_map(|_| number(next())).collect()
}

/// Weights with exactly these counts of exponents from 0 on, shuffled.
fn with_counts(counts: &[usize], seed: u64) -> Vec<u8> {
    let mut exponents: Vec<u8> =
        (0u8..).zip(counts).flat_map(|(symbol, &n)| std::iter::repeat_n(symbol, n)).collect();
    let mut next = random(seed);
    for idx in (1..exponents.len()).rev() {
        exponents.swap(idx, usize::try_from(next() % (idx as u64 + 1)).unwrap());
    }
    exponents.iter().flat_map(|&exponent| join(exponent, next().to_le_bytes()[0]).to_le_bytes()).collect()
}

fn small() -> Geometry {
    Geometry::new(8, 8).unwrap()
}

#[test]
fn runs_of_every_length_come_back() {
    let mut n_coded = 0;
    for n in (1..400).chain([4095, 4096, 4097, 12_000, 30_000]) {
        let raw = weights(n, 126, 7, n as u64);
        match encode(&raw, small(), 1 << 16) {
            Ok(_) => {
                check(&raw, small());
                check(&raw, Geometry::default());
                n_coded += 1;
            }
            // Whether short runs have too few exponents is a matter of chance.
            Err(error) => assert!(error == Unencodable::FewExponents && n < 400, "{n} elements: {error}"),
        }
    }
    assert!(n_coded > 100, "{n_coded} runs");
}

#[test]
fn every_geometry_codes_the_same_bits() {
    let raw = weights(50_000, 130, 12, 1);
    let usual = check(&raw, Geometry::default());
    for (threads, bytes) in [(8, 8), (32, 8), (1024, 8), (16, 16), (64, 40)] {
        let other = check(&raw, Geometry::new(threads, bytes).unwrap());
        assert_eq!(other.encoded, usual.encoded);
        assert_eq!(other.luts, usual.luts);
    }
    assert!(
        Geometry::new(48, 8).is_none() && Geometry::new(4, 8).is_none() && Geometry::new(2048, 8).is_none()
    );
    assert!(Geometry::new(512, 4).is_none() && Geometry::new(512, 0).is_none());
}

#[test]
fn long_codes_go_through_several_tables() {
    // Halves down to one, and Fibonacci numbers: the deepest trees that counts of this size can give.
    let halves: Vec<usize> = (0..18).map(|power| 1 << power).collect();
    let owned = check(&with_counts(&halves, 2), small());
    assert_eq!(owned.luts.len() / 256, 4, "three tables and the lengths");
    let mut fibonacci = vec![1, 1];
    for idx in 2..25 {
        fibonacci.push(fibonacci[idx - 1] + fibonacci[idx - 2]);
    }
    let owned = check(&with_counts(&fibonacci, 3), Geometry::default());
    assert_eq!(*owned.luts[owned.luts.len() - 256..].iter().max().unwrap(), 25);
}

#[test]
fn counts_that_need_longer_codes_than_a_gap_can_say_are_flattened() {
    let mut counts = [0u64; 256];
    let (mut a, mut b) = (1, 1);
    for count in &mut counts[..40] {
        *count = a;
        (a, b) = (b, a + b);
    }
    let code = code::Code::from_counts(&counts);
    let longest = code.lengths.iter().copied().max().unwrap().max(code.end.1);
    // The package was seen to stop after flattening twelve counts, with codes of 32 bits and five rows.
    assert_eq!(longest, 32);
    assert_eq!(tables::build(&code).unwrap().len(), 5 * 256);
    let kraft: f64 =
        code.lengths.iter().chain([&code.end.1]).filter(|&&l| l > 0).map(|&l| 0.5f64.powi(l.into())).sum();
    assert_eq!(kraft, 1.0);
}

/// The code of the golden file, as its makers' encoder printed it.
#[test]
fn ties_are_broken_as_in_the_worked_example() {
    let expected = [
        (121, "00"),
        (120, "010"),
        (117, "011000"),
        (115, "01100100"),
        (114, "011001010"),
        (112, "0110010110"),
        (110, "011001011101"),
        (113, "01100101111"),
        (116, "0110011"),
        (118, "01101"),
        (119, "0111"),
        (123, "10"),
        (122, "11"),
    ];
    let counts = [
        (110, 5),
        (112, 8),
        (113, 6),
        (114, 14),
        (115, 30),
        (116, 71),
        (117, 118),
        (118, 280),
        (119, 579),
        (120, 1107),
        (121, 2183),
        (122, 4305),
        (123, 3582),
    ];
    let mut histogram = [0; 256];
    counts.iter().for_each(|&(symbol, count)| histogram[symbol] = count);
    let code = code::Code::from_counts(&histogram);
    assert_eq!(code.end, (0b0110_0101_1100, 12));
    for (symbol, bits) in expected {
        let written = format!("{:0width$b}", code.codes[symbol], width = usize::from(code.lengths[symbol]));
        assert_eq!(written, bits, "exponent {symbol}");
    }
}

#[test]
fn the_example_of_the_specification_is_written_as_it_says() {
    let exponents = [121, 121, 121, 121, 121, 121, 121, 121, 120, 120, 120, 122, 122, 119];
    let raw: Vec<u8> = exponents.iter().flat_map(|&exponent| join(exponent, 0x85).to_le_bytes()).collect();
    let owned = check(&raw, Geometry::default());
    assert_eq!(owned.encoded, [0b1111_1111, 0b0000_0001, 0b1011_0101]);
    let changes: Vec<(usize, u8)> = (0..256)
        .filter(|&place| place == 0 || owned.luts[place] != owned.luts[place - 1])
        .map(|place| (place, owned.luts[place]))
        .collect();
    assert_eq!(changes, [(0, 120), (80, 119), (96, 122), (128, 121)]);
    assert_eq!(owned.entry.output_positions, [0, 0, 0, 0, 14, 0, 0, 0]);
    assert_eq!(owned.entry.gaps, [0; 320]);
}

#[test]
fn a_code_that_runs_over_into_an_empty_workgroup_leaves_out_its_position() {
    // Such runs are rare: search for one that ends on a byte, behind the start of a workgroup, in one long code.
    let mut n_found = 0;
    for seed in 0..3000usize {
        let rare = join(126 - 11, 3).to_le_bytes();
        let raw = [weights(1900 + seed % 200, 126, 11, seed as u64), rare.to_vec()].concat();
        let Ok(owned) = encode(&raw, small(), 1 << 16) else { continue };
        if owned.entry.output_positions.len() / 4 == small().n_workgroups(owned.encoded.len()) {
            check(&raw, small());
            n_found += 1;
        }
    }
    assert!(n_found > 0, "no such run");
}

#[test]
fn what_df11_cannot_hold_is_refused_with_the_reason() {
    let refused = |raw: &[u8]| encode(raw, Geometry::default(), 1 << 16).unwrap_err();
    assert_eq!(refused(&[]), Unencodable::Empty);
    assert_eq!(refused(&[0, 0]), Unencodable::FewExponents);
    assert_eq!(refused(&[0x80, 0x3f].repeat(1000)), Unencodable::FewExponents);
    let weights = weights(1000, 126, 7, 5);
    for special in [f32::INFINITY, f32::NAN, 1e35] {
        let bits = special.to_bits().to_le_bytes();
        let raw = [&weights[..], &bits[2..]].concat();
        assert!(matches!(refused(&raw), Unencodable::Exponent(240..)), "{special}");
    }
    // Zeros, subnormals and minus zero are ordinary.
    check(&[&weights[..], &[0, 0, 0, 0x80, 1, 0]].concat(), small());
    // Equal counts of all exponents below 240: about 2^8 prefixes of 8 bits.
    let two_levels: Vec<usize> = (0..200).map(|symbol| if symbol < 40 { 60 } else { 1 }).collect();
    let raw = with_counts(&two_levels, 6);
    assert!(matches!(refused(&raw), Unencodable::TooManyTables(17..)));
}

#[test]
fn workgroup_sizes_are_known_before_coding() {
    for top_exponents in [2, 3, 9] {
        let raw = weights(100_000, 126, top_exponents, 8);
        let mut profile = Profile::new();
        profile.add(&raw);
        let Ok(plan) = Plan::new(&profile, Geometry::default()) else { continue };
        let mut sizes = WorkgroupSizes::new(&plan);
        raw.chunks(9998).for_each(|piece| sizes.add(piece));
        for threads in [32, 64, 128, 256, 512, 1024] {
            let geometry = Geometry::new(threads, 8).unwrap();
            let owned = encode(&raw, geometry, 1 << 16).unwrap();
            let coded = owned.coded(geometry).unwrap();
            assert_eq!(sizes.largest(threads), coded.largest_workgroup(), "{threads} threads");
        }
    }
}

#[test]
fn a_flipped_bit_is_refused_or_changes_nothing_a_gpu_needs() {
    let raw = weights(700, 126, 7, 9);
    let owned = encode(&raw, small(), 1 << 16).unwrap();
    let mut n_refused = 0;
    let mut check_damaged = |damaged: &Owned, part: &str| {
        let Ok(coded) = damaged.coded(small()) else {
            n_refused += 1;
            return;
        };
        let mut lanes = vec![0; raw.len()];
        let mut phases = vec![0; raw.len()];
        let by_lanes = coded.decode_into(&mut lanes);
        let by_phases = two_phase::decode_into(&coded, &mut phases);
        assert_eq!(by_phases.is_ok(), coded.check_entry_points().is_ok() && by_phases.is_ok(), "{part}");
        if by_phases.is_ok() {
            assert!(by_lanes.is_ok() && lanes == phases, "{part}: the two ways differ");
        } else {
            n_refused += 1;
        }
        // DF11 has no checksums, so damaged codes can be other codes; damaged entry points cannot.
        if part == "gaps" || part == "positions" {
            assert!(by_phases.is_err() || phases == raw, "{part}: other numbers");
        }
    };
    for bit in 0..8 * owned.luts.len() {
        let mut damaged = owned.clone();
        damaged.luts[bit / 8] ^= 1 << (bit % 8);
        check_damaged(&damaged, "luts");
    }
    for bit in 0..8 * owned.encoded.len() {
        let mut damaged = owned.clone();
        damaged.encoded[bit / 8] ^= 1 << (bit % 8);
        check_damaged(&damaged, "encoded");
    }
    for bit in 0..8 * owned.entry.gaps.len() {
        let mut damaged = owned.clone();
        damaged.entry.gaps[bit / 8] ^= 1 << (bit % 8);
        check_damaged(&damaged, "gaps");
    }
    for bit in 0..8 * owned.entry.output_positions.len() {
        let mut damaged = owned.clone();
        damaged.entry.output_positions[bit / 8] ^= 1 << (bit % 8);
        check_damaged(&damaged, "positions");
    }
    assert!(n_refused > 1000, "{n_refused} refused");
}

#[test]
fn parts_of_any_other_length_are_refused() {
    let raw = weights(700, 126, 7, 10);
    let owned = encode(&raw, small(), 1 << 16).unwrap();
    let check_refused = |damage: &dyn Fn(&mut Owned)| {
        let mut damaged = owned.clone();
        damage(&mut damaged);
        assert!(damaged.decode(small()).is_err());
    };
    for len in 0..owned.luts.len() {
        check_refused(&|owned| owned.luts.truncate(len));
    }
    for len in 0..owned.encoded.len() {
        check_refused(&|owned| owned.encoded.truncate(len));
    }
    for len in 0..owned.signs_mantissas.len() {
        check_refused(&|owned| owned.signs_mantissas.truncate(len));
    }
    for len in 0..owned.entry.gaps.len() {
        check_refused(&|owned| owned.entry.gaps.truncate(len));
    }
    for len in 0..owned.entry.output_positions.len() {
        check_refused(&|owned| owned.entry.output_positions.truncate(len));
    }
    check_refused(&|owned| owned.luts.extend([0; 256 * 17]));
    check_refused(&|owned| owned.encoded.push(0));
    check_refused(&|owned| owned.signs_mantissas.push(0));
    check_refused(&|owned| owned.entry.gaps.push(0));
    check_refused(&|owned| owned.entry.output_positions.extend([0; 4]));
}

#[test]
fn tables_in_a_circle_and_codes_without_a_length_end() {
    let raw = weights(700, 126, 7, 11);
    let owned = encode(&raw, small(), 1 << 16).unwrap();
    let mut circle = owned.clone();
    circle.luts = [vec![255; 512], vec![3; 256]].concat();
    assert!(circle.decode(small()).is_err());
    let mut endless = owned.clone();
    let n = endless.luts.len();
    endless.luts[n - 256..].fill(0);
    assert!(endless.decode(small()).is_err());
    let mut beyond = owned;
    beyond.luts[n - 256..].fill(33);
    assert!(beyond.decode(small()).is_err());
}
