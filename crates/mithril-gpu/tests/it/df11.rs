//! DFloat11 runs decoded by the kernel equal the weights and the CPU's two phases.

use crate::{GPU, random, weights};
use mithril_codec::df11::{Coded, Encoder, EntryPoints, Geometry, Parts, Plan, Profile, two_phase};

/// A coded run, owned.
struct Run {
    luts: Vec<u8>,
    encoded: Vec<u8>,
    signs_mantissas: Vec<u8>,
    entry: EntryPoints,
}

impl Run {
    fn encode(raw: &[u8], geometry: Geometry) -> Self {
        let mut profile = Profile::new();
        profile.add(raw);
        let plan = Plan::new(&profile, geometry).expect("weights that DF11 can hold");
        let mut encoder = Encoder::new(&plan);
        let (mut encoded, mut signs_mantissas) = (Vec::new(), Vec::new());
        encoder.push(raw, &mut encoded, &mut signs_mantissas);
        let entry = encoder.finish(&mut encoded);
        Self { luts: plan.luts().to_vec(), encoded, signs_mantissas, entry }
    }

    fn parts(&self) -> Parts<'_> {
        Parts {
            luts: &self.luts,
            encoded_exponent: &self.encoded,
            sign_mantissa: &self.signs_mantissas,
            output_positions: &self.entry.output_positions,
            gaps: &self.entry.gaps,
        }
    }

    /// What the CPU's two phases give.
    fn on_cpu(&self, geometry: Geometry) -> Option<Vec<u8>> {
        let coded = Coded::new(self.parts(), geometry).ok()?;
        let mut raw = vec![0; 2 * coded.n_elements()];
        two_phase::decode_into(&coded, &mut raw).ok()?;
        Some(raw)
    }
}

fn bf16(n: usize, seed: u64) -> Vec<u8> {
    weights(n, seed).iter().flat_map(|x| [x.to_le_bytes()[2], x.to_le_bytes()[3]]).collect()
}

#[test]
fn every_geometry_and_length_comes_back() {
    for (threads, bytes) in [(8, 8), (64, 16), (256, 8), (512, 8), (1024, 8)] {
        let geometry = Geometry::new(threads, bytes).expect("a geometry that kernels use");
        for n in [60, 100, 1000, 12_288, 40_000] {
            let raw = bf16(n, n as u64);
            let run = Run::encode(&raw, geometry);
            let decoded = GPU.decode_df11(run.parts(), geometry).expect("decodes");
            assert!(decoded == raw, "{threads} threads of {bytes} bytes, {n} elements");
        }
    }
}

#[test]
fn a_run_of_several_batches_comes_back() {
    // Workgroups of 64 bytes: a batch has 2^17 of them, a row of the grid 1024.
    let geometry = Geometry::new(8, 8).expect("a geometry that kernels use");
    let raw = bf16(30_000_000, 4);
    let run = Run::encode(&raw, geometry);
    assert!(run.encoded.len() > 8 << 20, "more than one batch");
    assert!(GPU.decode_df11(run.parts(), geometry).expect("decodes") == raw);
}

#[test]
fn damage_gives_what_the_cpu_gives() {
    let geometry = Geometry::default();
    let raw = bf16(20_000, 8);
    let run = Run::encode(&raw, geometry);
    let mut random = random(11);
    let mut n_refused = 0;
    for round in 0..150 {
        let mut damaged = Run {
            luts: run.luts.clone(),
            encoded: run.encoded.clone(),
            signs_mantissas: run.signs_mantissas.clone(),
            entry: run.entry.clone(),
        };
        let part = match round % 4 {
            0 => &mut damaged.luts,
            1 => &mut damaged.encoded,
            2 => &mut damaged.entry.gaps,
            _ => &mut damaged.entry.output_positions,
        };
        let at = usize::try_from(random() % part.len() as u64).expect("fits");
        part[at] ^= 1 << (random() % 8);
        let on_cpu = damaged.on_cpu(geometry);
        n_refused += usize::from(on_cpu.is_none());
        assert_eq!(GPU.decode_df11(damaged.parts(), geometry).ok(), on_cpu, "round {round}");
    }
    assert!(n_refused > 50, "only {n_refused} of 150 refused");
}
