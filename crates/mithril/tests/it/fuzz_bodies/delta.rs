//! What the fuzz target of deltas does with its input.

use mithril::block::{CodedBlock, Scratch, Shared, decode_block};
use mithril::{
    Base, DecodeOptions, Dtype, Effort, FrameOptions, apply_known_into, compress_delta, decompress_delta,
};
use mithril_codec::without_kernels;

/// Differences come back, and hostile blocks give the same with kernels and without.
///
/// An odd first byte asks for a round trip of the two halves of the input; a multiple of four for decoding a block, whose
/// base is the first part of the input; another even one for a block with shared tables of its own.
pub fn apply_delta(input: &[u8]) {
    let [mode, choice, rest @ ..] = input else { return };
    if mode % 2 == 1 {
        round_trip(*choice, Effort::Fast, rest);
    } else if mode % 4 == 2 {
        decode_shared(*choice, rest);
    } else {
        decode(*choice, rest);
    }
}

/// Shared tables are a part of the input, before the base and the block.
fn decode_shared(choice: u8, rest: &[u8]) {
    let [len, rest @ ..] = rest else { return };
    let (shared, rest) = rest.split_at(rest.len().min(4 * usize::from(*len)));
    let Ok(shared) = Shared::parse(shared) else { return };
    let (base, block) = rest.split_at(rest.len() * usize::from(choice) / 256);
    let decoded = || {
        let mut out = vec![0; base.len()];
        let block = CodedBlock { base: Some(base), ..block.into() };
        decode_block(block, &shared, &mut out, &mut Scratch::new()).map(|()| out)
    };
    let with_kernels = decoded();
    let scalar = without_kernels(decoded);
    assert_eq!(with_kernels.ok(), scalar.ok(), "kernels decode to other bytes");
}

fn round_trip(choice: u8, effort: Effort, halves: &[u8]) {
    let (current, base) = halves[..halves.len() / 2 * 2].split_at(halves.len() / 2);
    let dtype = Dtype::ALL[usize::from(choice) % Dtype::ALL.len()];
    // Units of several bytes must be whole only where there is a shape.
    let options = FrameOptions::default().with_dtype(dtype).with_effort(effort).with_threads(1);
    let base = Base::new(base);
    let frame = compress_delta(current, &base, &options).expect("halves of one length");
    let scalar = without_kernels(|| compress_delta(current, &base, &options)).expect("as with kernels");
    assert_eq!(frame, scalar, "kernels write other bytes");
    assert_eq!(decompress_delta(&frame, &base).expect("what was written"), current);
    let mut live = base.bytes().to_vec();
    apply_known_into(&frame, &mut live, base.digest(), &DecodeOptions::default().with_threads(1))
        .expect("what was written");
    assert_eq!(live, current);
}

fn decode(choice: u8, rest: &[u8]) {
    let (base, block) = rest.split_at(rest.len() * usize::from(choice) / 256);
    let decoded = || {
        let mut out = vec![0; base.len()];
        let block = CodedBlock { base: Some(base), ..block.into() };
        decode_block(block, &Shared::default(), &mut out, &mut Scratch::new()).map(|()| out)
    };
    let with_kernels = decoded();
    let scalar = without_kernels(decoded);
    assert_eq!(with_kernels.ok(), scalar.ok(), "kernels decode to other bytes");
}
