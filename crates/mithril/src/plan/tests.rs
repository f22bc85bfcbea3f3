use super::*;
use crate::Effort;

/// Numbers that look like weights: sums of uniform ones, scaled.
fn weights(n: usize, seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(2) + 1;
    (0..n).map(move |_| {
        let sum: i64 = (0..4)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                i64::from(u32::try_from(state >> 40).unwrap()) - (1 << 23)
            })
            .sum();
        f32::from_bits((sum as f32 * 1e-9).to_bits())
    })
}

fn bf16(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|value| u16::try_from(value.to_bits() >> 16).unwrap().to_le_bytes()).collect()
}

fn f32s(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn plan(source: &[u8], dtype: Dtype, effort: Effort, shape: Option<[u64; 2]>) -> TensorPlan {
    let mut options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
    options.shape = shape.map(Into::into);
    tensor(source, Evidence::All, None, &options).unwrap()
}

#[test]
fn dense_weights_are_split_into_fields() {
    let source = bf16(weights(200_000, 1));
    let plan = plan(&source, Dtype::Bf16, Effort::Fast, None);
    assert!(matches!(plan.recipe, Recipe::Fields(FieldRecipe { coder: SymbolCoder::Rans8, .. })));
    assert!(plan.shared.is_empty());
    // Three blocks of equal length rather than three full ones and a rest.
    assert_eq!(plan.block_len as usize, 200_000usize.div_ceil(3).next_multiple_of(256) * 2);
}

#[test]
fn noise_gets_no_tables() {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()[0]
    };
    let source: Vec<u8> = (0..2 * 64 * 512).map(|_| next()).collect();
    for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
        let plan = plan(&source, Dtype::Bf16, effort, Some([64, 512]));
        assert!(plan.shared.is_empty(), "{effort:?}");
    }
}

#[test]
fn half_floats_with_equal_signs_are_coded_with_their_signs() {
    let half = |value: f32| {
        let bits = value.to_bits();
        u16::try_from(bits >> 16 & 0x8000 | (bits >> 13 & 0x3_ffff).saturating_sub(112 << 10))
            .unwrap()
            .to_le_bytes()
    };
    let of = |shift: f32| -> Vec<u8> { weights(100_000, 5).flat_map(|w| half(w + shift)).collect() };
    let recipe = |source: &[u8]| match plan(source, Dtype::F16, Effort::Fast, None).recipe {
        Recipe::Fields(recipe) => (recipe.layout.sign, recipe.coder),
        other => panic!("{other:?}"),
    };
    assert_eq!(recipe(&of(0.0001)), (true, SymbolCoder::Rans8));
    assert_eq!(recipe(&of(0.02)), (false, SymbolCoder::Rans8Listed));
    for source in [of(0.0001), of(0.02)] {
        let [fast, balanced, max] = [Effort::Fast, Effort::Balanced, Effort::Max]
            .map(|effort| frame_len(&source, Dtype::F16, effort, None));
        assert!(balanced <= fast && max <= fast, "{fast}, {balanced} and {max}");
    }
}

#[test]
fn pruned_weights_are_sparse() {
    let source = bf16(weights(100_000, 2).enumerate().map(|(i, w)| if i % 3 == 0 { w } else { 0.0 }));
    assert!(matches!(plan(&source, Dtype::Bf16, Effort::Fast, None).recipe, Recipe::Sparse { width: 2, .. }));
}

#[test]
fn dequantised_weights_get_a_palette() {
    let source = f32s(weights(100_000, 3).map(|w| (w * 500.0).round() * 0.01));
    assert!(matches!(plan(&source, Dtype::F32, Effort::Fast, None).recipe, Recipe::Palette { width: 4, .. }));
}

#[test]
fn repeated_weights_go_to_a_compressor() {
    let row = f32s(weights(400, 4));
    let source = row.repeat(300);
    assert!(matches!(plan(&source, Dtype::F32, Effort::Fast, None).recipe, Recipe::Planes { width: 1, .. }));
}

#[test]
fn bytes_decide_block_by_block_and_text_gets_long_blocks() {
    let text = "the quick brown fox jumps over the lazy dog, ".repeat(50_000);
    let numbers = f32s(weights(500_000, 5));
    for (source, block_len) in [(text.as_bytes(), blocks::COMPRESSOR), (&numbers, blocks::UNTYPED[0])] {
        let plan = plan(source, Dtype::Bytes, Effort::Fast, None);
        let Recipe::Untyped { compressors } = plan.recipe else { panic!() };
        assert_eq!(compressors, [Compressor::Zstd { level: 3 }]);
        assert_eq!(plan.block_len as usize, block_len);
    }
}

#[test]
fn zeros_leave_mantissa_bits_out_of_the_field() {
    let layout = Dtype::F32.layout().unwrap();
    let dense = f32s(weights(100_000, 10));
    assert_eq!(sample::wide_fields(&dense, layout).joint, 2);
    // Zeros lie further below the others than any octaves but all of them reach.
    let dead = f32s(weights(100_000, 10).enumerate().map(|(i, w)| if i / 500 % 16 == 0 { 0.0 } else { w }));
    assert_eq!(sample::wide_fields(&dead, layout).joint, 0);
}

#[test]
fn rows_of_different_scale_get_classes() {
    let source = bf16(weights(512 * 384, 6).enumerate().map(|(i, w)| w * f32::from(1u8 << (i / 384 % 8))));
    for effort in [Effort::Balanced, Effort::Max] {
        let plan = plan(&source, Dtype::Bf16, effort, Some([512, 384]));
        assert_eq!(plan.shared.row_len(), Some(384), "{effort:?}");
        assert!((plan.block_len as usize).is_multiple_of(384 * 2));
    }
    assert!(plan(&source, Dtype::Bf16, Effort::Fast, Some([512, 384])).shared.is_empty());
}

#[test]
fn what_is_coded_in_batches_shares_nothing_and_has_blocks_that_fit_one() {
    let source = bf16(weights(512 * 384, 6).enumerate().map(|(i, w)| w * f32::from(1u8 << (i / 384 % 8))));
    let base = bf16(weights(512 * 384, 7));
    let (len, piece_len) = (source.len() << 10, 1 << 10);
    for effort in [Effort::Balanced, Effort::Max] {
        let options =
            FrameOptions::default().with_dtype(Dtype::Bf16).with_effort(effort).with_shape([512, 384]);
        assert!(!tensor(&source, Evidence::All, None, &options).unwrap().shared.is_empty());
        for (evidence, base) in [
            (Evidence::Front, None),
            (Evidence::Front, Some(&base[..])),
            (Evidence::Sample { len, piece_len }, None),
        ] {
            let plan = tensor(&source, evidence, base, &options).unwrap();
            assert!(plan.shared.is_empty(), "{effort:?} {evidence:?}");
            assert!(plan.block_len as usize <= blocks::MAX_IN_BATCHES);
            assert_eq!(plan.alone.is_some(), base.is_some());
        }
    }
}

#[test]
fn blocks_are_as_long_as_cost_models_count_them() {
    let n = 4096 * 384;
    let source = bf16(weights(n, 6).enumerate().map(|(i, w)| w * f32::from(1u8 << (i / 384 % 8))));
    let block = |effort| plan(&source, Dtype::Bf16, effort, Some([4096, 384])).block_len as usize / 2;
    assert_eq!(block(Effort::Fast), blocks::evenly(n, blocks::OWN_TABLES));
    assert_eq!(block(Effort::Balanced), blocks::rows_per_block(384) * 384);
}

#[test]
fn columns_that_lean_to_one_side_get_coded_signs() {
    let source =
        bf16(weights(512 * 384, 7).enumerate().map(|(i, w)| if i % 4 == 0 { -w.abs() } else { w.abs() }));
    let plan = plan(&source, Dtype::Bf16, Effort::Max, Some([512, 384]));
    let coded = crate::compress(
        &source,
        &FrameOptions::default().with_dtype(Dtype::Bf16).with_shape([512, 384]).with_effort(Effort::Max),
    );
    assert!(!plan.shared.is_empty());
    // Without coded signs the rest alone takes six bits per weight.
    let fast = crate::compress(&source, &FrameOptions::default().with_dtype(Dtype::Bf16)).unwrap();
    assert!(coded.unwrap().len() + 512 * 384 / 10 < fast.len());
}

#[test]
fn fair_signs_stay_raw() {
    let source = bf16(weights(512 * 384, 8));
    assert!(
        super::signs::model(
            &source,
            Dtype::Bf16.layout().unwrap(),
            Matrix { n_rows: 512, row_len: 384 },
            &Effort::Max.means().signs
        )
        .is_none()
    );
}

#[test]
fn rows_that_hold_narrower_values_are_coded_apart() {
    let source = f32s(
        weights(512 * 384, 9)
            .enumerate()
            .map(|(i, w)| if i / 384 % 9 == 0 { f32::from_bits(w.to_bits() & !0x1fff) } else { w }),
    );
    let plan = plan(&source, Dtype::F32, Effort::Balanced, Some([512, 384]));
    assert!(matches!(plan.recipe, Recipe::Rows(_)));
}

#[test]
fn every_block_fits_the_limit_and_the_bound() {
    for dtype in Dtype::ALL {
        // Quantised blocks are tried on a whole block, which takes time.
        let longest = if dtype.is_quantized() { 200_000 } else { 3 << 20 };
        for len in [0, 1, 7, 1000, 70_000, longest] {
            let source: Vec<u8> = (0..len).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect();
            for effort in [Effort::Fast, Effort::Balanced, Effort::Max] {
                let options = FrameOptions::default().with_dtype(*dtype).with_effort(effort).with_threads(1);
                let plan = tensor(&source, Evidence::All, None, &options).unwrap();
                assert!(
                    plan.block_len >= u32::try_from(MIN_BLOCK_LEN).unwrap() / 2
                        && plan.block_len <= mithril_format::limits::MAX_BLOCK_LEN
                );
                assert!((plan.block_len as usize).is_multiple_of(dtype.unit_len()), "{dtype:?} {len}");
            }
        }
    }
}

#[test]
fn a_shape_that_does_not_fit_is_refused() {
    let options = FrameOptions::default().with_dtype(Dtype::F32).with_shape([3, 5]);
    let error = tensor(&[0; 64], Evidence::All, None, &options).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::InvalidArgument);
    assert_eq!(error.to_string(), "shape [3, 5] of F32 does not take 64 bytes");
}

/// The bytes of a frame that decodes to what it was made of.
fn frame_len(source: &[u8], dtype: Dtype, effort: Effort, shape: Option<[u64; 2]>) -> usize {
    let mut options = FrameOptions::default().with_dtype(dtype).with_effort(effort);
    options.shape = shape.map(Into::into);
    let frame = crate::compress(source, &options).unwrap();
    assert!(crate::decompress(&frame).unwrap() == source, "{dtype:?} {effort:?}");
    frame.len()
}

#[test]
fn second_moments_have_no_sign_to_store() {
    let squares = f32s(weights(100_000, 9).map(|w| w * w));
    let mut nearly = squares.clone();
    nearly[4 * 77_777 + 3] |= 0x80;
    let n_signs = squares.len() / 32;
    for source in [squares, nearly] {
        let signed: Vec<u8> = source
            .chunks_exact(4)
            .enumerate()
            .flat_map(|(i, e)| [e[0], e[1], e[2], e[3] ^ if i % 2 == 0 { 0x80 } else { 0 }])
            .collect();
        let [len, of_signed] = [&source, &signed].map(|s| frame_len(s, Dtype::F32, Effort::Fast, None));
        assert!(len + n_signs * 9 / 10 < of_signed, "{len} and {of_signed}");
    }
}

#[test]
fn rows_whose_low_bits_have_few_values_are_coded_apart() {
    let mut source = f32s(weights(300 * 128, 7));
    for row in source.chunks_exact_mut(4 * 128).step_by(5) {
        for (i, element) in row.chunks_exact_mut(4).enumerate() {
            let low: u16 = [0x1c1a, 0x1b3e, 0x1ab3][i % 3];
            let kept = u16::from(element[1] & 0xe0) << 8;
            element[..2].copy_from_slice(&(kept | low).to_le_bytes());
        }
    }
    for effort in [Effort::Balanced, Effort::Max] {
        let plan = plan(&source, Dtype::F32, effort, Some([300, 128]));
        assert!(matches!(plan.recipe, Recipe::Rows(_)), "{effort:?}");
        // One row in five saves about ten bits per element.
        let fast = frame_len(&source, Dtype::F32, Effort::Fast, Some([300, 128]));
        let len = frame_len(&source, Dtype::F32, effort, Some([300, 128]));
        assert!(len + 300 * 128 / 5 < fast, "{len} and {fast}");
    }
}

#[test]
fn small_tensors_that_repeat_themselves_are_compressed() {
    let values: Vec<f32> = weights(13, 3).collect();
    let source = f32s((0..343).map(|i| if i % 5 == 0 { 0.0 } else { values[i * i % 13] }));
    for len in [588, 1372] {
        let source = &source[..len];
        let fast = frame_len(source, Dtype::F32, Effort::Fast, None);
        for effort in [Effort::Balanced, Effort::Max] {
            assert!(frame_len(source, Dtype::F32, effort, None) + len / 8 < fast, "{len} bytes");
        }
    }
    // Without repeats nothing is tried.
    let source = f32s(weights(500, 4));
    assert!(matches!(plan(&source, Dtype::F32, Effort::Max, None).recipe, Recipe::Fields(_)));
}

#[test]
fn a_matrix_of_low_rank_is_predicted_without_a_base() {
    let (rows, columns, noise): (Vec<f32>, Vec<f32>, Vec<f32>) =
        (weights(256, 1).collect(), weights(128, 2).collect(), weights(256 * 128, 3).collect());
    let entry = |i: usize| rows[i / 128] * columns[i % 128] * 1e3 + noise[i] * 1e-2;
    let source = f32s((0..256 * 128).map(entry));
    let shape = Some([256, 128]);
    assert!(matches!(plan(&source, Dtype::F32, Effort::Max, shape).recipe, Recipe::Predicted));
    assert!(matches!(plan(&source, Dtype::F32, Effort::Balanced, shape).recipe, Recipe::Fields(_)));
    let [max, balanced] =
        [Effort::Max, Effort::Balanced].map(|effort| frame_len(&source, Dtype::F32, effort, shape));
    assert!(max + source.len() / 20 < balanced, "{max} and {balanced}");
    let noise = f32s(weights(256 * 128, 3));
    assert!(!matches!(plan(&noise, Dtype::F32, Effort::Max, shape).recipe, Recipe::Predicted));
}
