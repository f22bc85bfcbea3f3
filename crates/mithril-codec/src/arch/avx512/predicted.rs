//! Predicted blocks with AVX-512: from contexts to tables, from buckets to elements, and numbers put together a vector at
//! a time. The definitions are in `prediction::decode` and `prediction::symbols`.

use super::delta_codes::{next_of, spread};
use super::{load_wide, next_bytes, store_wide};
use crate::arch::avx2::load;
use crate::prediction::{CodedElements, TableRules};
use std::arch::x86_64::*;

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(super) fn look_up(table: &[u8; 64], bytes: &mut [u8]) -> usize {
    let table = load_wide(table);
    let (vectors, _) = bytes.as_chunks_mut::<64>();
    let n = 64 * vectors.len();
    for bytes in vectors {
        let found = _mm512_permutexvar_epi8(load_wide(bytes), table);
        store_wide(bytes, found);
    }
    n
}

/// Buckets at most.
const MAX_BUCKETS: usize = 64;

/// The bucket of every lane, and where its next byte is.
type Next = (__m512i, usize);

/// All buckets. That none waits for the one before pays even where a vector has bytes of few of them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn all_buckets(starts: &[usize]) -> ([Next; MAX_BUCKETS], usize) {
    let mut all = [(_mm512_setzero_si512(), 0); MAX_BUCKETS];
    for (number, (next, &start)) in (0u8..).zip(all.iter_mut().zip(starts)) {
        *next = (_mm512_set1_epi8(number.cast_signed()), start);
    }
    (all, starts.len().min(MAX_BUCKETS))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn merge(buckets: &[u8], starts: &mut [usize], bucketed: &[u8], out: &mut [u8]) -> usize {
    let vectors = buckets.as_chunks::<64>().0;
    let (mut all, n) = all_buckets(starts);
    for (members_of, out) in vectors.iter().zip(out.as_chunks_mut::<64>().0) {
        let members_of = load_wide(members_of);
        let mut merged = _mm512_setzero_si512();
        for (bucket, at) in &mut all[..n] {
            let members = _mm512_cmpeq_epi8_mask(members_of, *bucket);
            let next: &[u8; 64] = bucketed[*at..].first_chunk().expect("buckets have bytes behind them");
            merged = _mm512_mask_expand_epi8(merged, members, load_wide(next));
            *at += members.count_ones() as usize;
        }
        store_wide(out, merged);
    }
    starts.iter_mut().zip(all).for_each(|(start, (_, at))| *start = at);
    64 * vectors.len()
}

/// Bytes that are counted at a time, so that they stay in the first-level cache.
const COUNTED: usize = 1 << 13;

#[target_feature(enable = "avx512f,avx512bw,popcnt")]
pub(super) fn count(buckets: &[u8], counts: &mut [usize]) -> usize {
    let vectors = buckets.as_chunks::<64>().0;
    for vectors in vectors.chunks(COUNTED / 64) {
        for (bucket, count) in (0u8..).zip(&mut *counts) {
            let bucket = _mm512_set1_epi8(bucket.cast_signed());
            let members = |vector| _mm512_cmpeq_epi8_mask(load_wide(vector), bucket).count_ones() as usize;
            *count += vectors.iter().map(members).sum::<usize>();
        }
    }
    64 * vectors.len()
}

#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn split(buckets: &[u8], bytes: &[u8], starts: &mut [usize], bucketed: &mut [u8]) -> usize {
    let vectors = buckets.as_chunks::<64>().0;
    let (mut all, n) = all_buckets(starts);
    // A bucket ends where the next one starts.
    let mut ends = [bucketed.len(); MAX_BUCKETS];
    ends.iter_mut().zip(starts.iter().skip(1)).for_each(|(end, &next)| *end = next);
    for (members_of, bytes) in vectors.iter().zip(bytes.as_chunks::<64>().0) {
        let (members_of, bytes) = (load_wide(members_of), load_wide(bytes));
        for ((bucket, at), &end) in all[..n].iter_mut().zip(&ends) {
            let members = _mm512_cmpeq_epi8_mask(members_of, *bucket);
            let n_members = members.count_ones();
            let packed = _mm512_maskz_compress_epi8(members, bytes);
            let room = &mut bucketed[*at..end];
            if let Some(room) = room.first_chunk_mut() {
                // What is behind the packed bytes will be overwritten by the next of the bucket.
                store_wide(room, packed);
            } else {
                let room = &mut room[..n_members as usize];
                let lanes = _bzhi_u64(u64::MAX, n_members);
                // SAFETY: the mask writes the bytes of `room` and no other.
                unsafe { _mm512_mask_storeu_epi8(room.as_mut_ptr().cast(), lanes, packed) };
            }
            *at += n_members as usize;
        }
    }
    starts.iter_mut().zip(all).for_each(|(start, (_, at))| *start = at);
    64 * vectors.len()
}

#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn raw_lens(rules: TableRules, tables: &[u8], symbols: &[u8], raw_lens: &mut [u8]) -> usize {
    let TableRules { format, detail, n_value_tables } = rules;
    let byte = |x: u8| _mm512_set1_epi8(x.cast_signed());
    let bits = u8::try_from(8 * format.width()).unwrap_or(0);
    let mantissa = u8::try_from(format.mantissa()).unwrap_or(0);
    let (zero, one) = (_mm512_setzero_si512(), byte(1));
    let shift = _mm_cvtsi32_si128(i32::from(detail));
    // Bytes are shifted as parts of words; what comes in from above is cut off.
    let below = byte(u8::MAX >> detail);
    let vectors = symbols.as_chunks::<64>().0;
    let places = vectors.iter().zip(tables.as_chunks::<64>().0);
    for ((symbols, tables), lens) in places.zip(raw_lens.as_chunks_mut::<64>().0) {
        let (symbol, table) = (load_wide(symbols), load_wide(tables));
        // Half of the symbol, rounded up.
        let class = _mm512_avg_epu8(symbol, zero);
        let above = _mm512_sub_epi8(class, byte(2 << detail));
        let len = _mm512_add_epi8(_mm512_and_si512(_mm512_srl_epi16(above, shift), below), one);
        let len = _mm512_maskz_mov_epi8(_mm512_cmpge_epu8_mask(class, byte(2 << detail)), len);
        let of_size =
            _mm512_mask_mov_epi8(byte(mantissa - 2), _mm512_cmpeq_epi8_mask(symbol, one), byte(bits));
        let of_size = _mm512_maskz_mov_epi8(_mm512_cmpneq_epi8_mask(symbol, zero), of_size);
        let is_value = _mm512_cmplt_epu8_mask(table, byte(n_value_tables));
        store_wide(lens, _mm512_mask_mov_epi8(len, is_value, of_size));
    }
    64 * vectors.len()
}

/// See `Kernels::restore_predicted`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
pub(super) fn restore(elements: &CodedElements<'_>, out: &mut [u8]) -> (usize, [usize; 4]) {
    match elements.rules.format.width() {
        2 => restore_16(elements, out),
        _ => restore_32(elements, out),
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn restore_16(elements: &CodedElements<'_>, out: &mut [u8]) -> (usize, [usize; 4]) {
    let CodedElements { predicted, scales, tables, symbols, .. } = *elements;
    let TableRules { format, detail, n_value_tables } = elements.rules;
    let word = |x: i16| _mm512_set1_epi16(x);
    let (zero, one) = (_mm512_setzero_si512(), word(1));
    let magnitudes = word(0x7fff);
    let first = word(2 << detail);
    let leading = word(1 << detail);
    let below = word((1 << detail) - 1);
    let detail = _mm_cvtsi32_si128(i32::from(detail));
    let kept_of_sizes = _mm_cvtsi32_si128(format.mantissa().cast_signed() - 2);
    let n_value_tables = word(i16::from(n_value_tables));
    let mut taken = [0; 4];
    let vectors = symbols.as_chunks::<32>().0;
    let places = predicted.as_chunks::<32>().0.iter().zip(scales.as_chunks::<32>().0);
    let coded = vectors.iter().zip(tables.as_chunks::<32>().0);
    let kept = elements.raw_lens.as_chunks::<32>().0.iter().zip(elements.raw_bits.as_chunks::<32>().0);
    let outputs = out.as_chunks_mut::<64>().0;
    for ((((predicted, scales), (symbols, tables)), (lens, bits)), out) in
        places.zip(coded).zip(kept).zip(outputs)
    {
        let [low, high] = predicted.as_chunks::<16>().0 else { break };
        // SAFETY: `low` is 64 readable bytes, and `loadu` has no alignment requirement.
        let low = unsafe { _mm512_loadu_si512(low.as_ptr().cast()) };
        // SAFETY: `high` is 64 readable bytes, and `loadu` has no alignment requirement.
        let high = unsafe { _mm512_loadu_si512(high.as_ptr().cast()) };
        let p = _mm512_inserti64x4::<1>(
            _mm512_castsi256_si512(_mm512_cvtepi32_epi16(low)),
            _mm512_cvtepi32_epi16(high),
        );
        // SAFETY: `scales` is 64 readable bytes, and `loadu` has no alignment requirement.
        let scale = unsafe { _mm512_loadu_si512(scales.as_ptr().cast()) };
        let symbol = _mm512_cvtepu8_epi16(load(symbols));
        let table = _mm512_cvtepu8_epi16(load(tables));
        let len = _mm512_cvtepu8_epi16(load(lens));
        let mut raw = _mm512_cvtepu8_epi16(load(bits));
        let keeps_byte = _mm512_test_epi16_mask(len, word(24));
        if keeps_byte != 0 {
            let shifted = _mm512_mask_slli_epi16::<8>(raw, keeps_byte, raw);
            raw = _mm512_or_si512(shifted, next_bytes(elements.planes[0], &mut taken[0], keeps_byte));
            let keeps_all = _mm512_test_epi16_mask(len, word(16));
            if keeps_all != 0 {
                let high = next_bytes(elements.planes[1], &mut taken[1], keeps_all);
                raw = _mm512_or_si512(raw, _mm512_slli_epi16::<8>(high));
            }
        }
        // Distances: the least of a class, then away from zero or towards it.
        let class = _mm512_srli_epi16::<1>(_mm512_add_epi16(symbol, one));
        let above = _mm512_sub_epi16(class, first);
        let raw_len = _mm512_add_epi16(_mm512_srl_epi16(above, detail), one);
        let least = _mm512_sllv_epi16(_mm512_or_si512(leading, _mm512_and_si512(above, below)), raw_len);
        let has_leading = _mm512_cmpge_epu16_mask(class, first);
        let least = _mm512_mask_blend_epi16(has_leading, class, least);
        let negative = _mm512_srai_epi16::<15>(p);
        let towards_zero = _mm512_sub_epi16(_mm512_and_si512(symbol, one), one);
        let flip = _mm512_xor_si512(towards_zero, negative);
        let distance = _mm512_sub_epi16(_mm512_xor_si512(_mm512_or_si512(least, raw), flip), flip);
        let ordered = _mm512_xor_si512(p, _mm512_and_si512(negative, magnitudes));
        let moved = _mm512_add_epi16(ordered, distance);
        let moved = _mm512_xor_si512(moved, _mm512_and_si512(_mm512_srai_epi16::<15>(moved), magnitudes));
        // Sizes: relative to the scale, with a sign relative to the prediction's.
        let is_value = _mm512_cmplt_epu16_mask(table, n_value_tables);
        let mut x = moved;
        if is_value != 0 {
            let size = _mm512_srli_epi16::<1>(_mm512_sub_epi16(symbol, word(2)));
            let size = _mm512_add_epi16(
                _mm512_sub_epi16(size, word(crate::prediction::LOWEST_SIZE)),
                _mm512_add_epi16(scale, scale),
            );
            let magnitude = _mm512_or_si512(_mm512_sll_epi16(size, kept_of_sizes), raw);
            let sign = _mm512_xor_si512(p, _mm512_slli_epi16::<15>(symbol));
            let value = _mm512_or_si512(
                _mm512_and_si512(magnitude, magnitudes),
                _mm512_andnot_si512(magnitudes, sign),
            );
            let value = _mm512_mask_blend_epi16(_mm512_cmpeq_epi16_mask(symbol, zero), value, p);
            let value = _mm512_mask_blend_epi16(_mm512_cmpeq_epi16_mask(symbol, one), value, raw);
            x = _mm512_mask_blend_epi16(is_value, x, value);
        }
        store_wide(out, x);
    }
    (32 * vectors.len(), taken)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt")]
fn restore_32(elements: &CodedElements<'_>, out: &mut [u8]) -> (usize, [usize; 4]) {
    let CodedElements { predicted, scales, tables, symbols, .. } = *elements;
    let TableRules { format, detail, n_value_tables } = elements.rules;
    let word = |x: i32| _mm512_set1_epi32(x);
    let (zero, one) = (_mm512_setzero_si512(), word(1));
    let magnitudes = word(i32::MAX);
    let first = word(2 << detail);
    let leading = word(1 << detail);
    let below = word((1 << detail) - 1);
    let detail = _mm_cvtsi32_si128(i32::from(detail));
    let kept_of_sizes = _mm_cvtsi32_si128(format.mantissa().cast_signed() - 2);
    let n_value_tables = word(i32::from(n_value_tables));
    let mut taken = [0; 4];
    let vectors = symbols.as_chunks::<16>().0;
    let places = predicted.as_chunks::<16>().0.iter().zip(scales.as_chunks::<16>().0);
    let coded = vectors.iter().zip(tables.as_chunks::<16>().0);
    let kept = elements.raw_lens.as_chunks::<16>().0.iter().zip(elements.raw_bits.as_chunks::<16>().0);
    let outputs = out.as_chunks_mut::<64>().0;
    for ((((predicted, scales), (symbols, tables)), (lens, bits)), out) in
        places.zip(coded).zip(kept).zip(outputs)
    {
        // SAFETY: `predicted` is 64 readable bytes, and `loadu` has no alignment requirement.
        let p = unsafe { _mm512_loadu_si512(predicted.as_ptr().cast()) };
        // SAFETY: `scales` is 32 readable bytes, and `loadu` has no alignment requirement.
        let scale = unsafe { _mm256_loadu_si256(scales.as_ptr().cast()) };
        let scale = _mm512_cvtepi16_epi32(scale);
        let (symbol, table, len) = (spread(symbols), spread(tables), spread(lens));
        let mut raw = _mm512_sllv_epi32(spread(bits), _mm512_and_si512(len, word(0x38)));
        let keeps = |n_bytes: i32| _mm512_cmpge_epi32_mask(len, word(8 * n_bytes));
        raw = _mm512_or_si512(raw, next_of(elements.planes[0], &mut taken[0], keeps(1)));
        let reaching = keeps(2);
        if reaching != 0 {
            let next = next_of(elements.planes[1], &mut taken[1], reaching);
            raw = _mm512_or_si512(raw, _mm512_slli_epi32::<8>(next));
            let next = next_of(elements.planes[2], &mut taken[2], keeps(3));
            raw = _mm512_or_si512(raw, _mm512_slli_epi32::<16>(next));
            let next = next_of(elements.planes[3], &mut taken[3], keeps(4));
            raw = _mm512_or_si512(raw, _mm512_slli_epi32::<24>(next));
        }
        // Distances: the least of a class, then away from zero or towards it.
        let class = _mm512_srli_epi32::<1>(_mm512_add_epi32(symbol, one));
        let above = _mm512_sub_epi32(class, first);
        let raw_len = _mm512_add_epi32(_mm512_srl_epi32(above, detail), one);
        let least = _mm512_sllv_epi32(_mm512_or_si512(leading, _mm512_and_si512(above, below)), raw_len);
        let has_leading = _mm512_cmpge_epi32_mask(class, first);
        let least = _mm512_mask_mov_epi32(class, has_leading, least);
        let negative = _mm512_srai_epi32::<31>(p);
        let towards_zero = _mm512_sub_epi32(_mm512_and_si512(symbol, one), one);
        let flip = _mm512_xor_si512(towards_zero, negative);
        let distance = _mm512_sub_epi32(_mm512_xor_si512(_mm512_or_si512(least, raw), flip), flip);
        let ordered = _mm512_xor_si512(p, _mm512_and_si512(negative, magnitudes));
        let moved = _mm512_add_epi32(ordered, distance);
        let mut x = _mm512_xor_si512(moved, _mm512_and_si512(_mm512_srai_epi32::<31>(moved), magnitudes));
        // Sizes: relative to the scale, with a sign relative to the prediction's.
        let is_value = _mm512_cmplt_epi32_mask(table, n_value_tables);
        if is_value != 0 {
            let size = _mm512_srli_epi32::<1>(_mm512_sub_epi32(symbol, word(2)));
            let size = _mm512_add_epi32(
                _mm512_sub_epi32(size, word(i32::from(crate::prediction::LOWEST_SIZE))),
                _mm512_add_epi32(scale, scale),
            );
            let magnitude = _mm512_or_si512(_mm512_sll_epi32(size, kept_of_sizes), raw);
            let sign = _mm512_xor_si512(p, _mm512_slli_epi32::<31>(symbol));
            let value = _mm512_or_si512(
                _mm512_and_si512(magnitude, magnitudes),
                _mm512_andnot_si512(magnitudes, sign),
            );
            let value = _mm512_mask_mov_epi32(value, _mm512_cmpeq_epi32_mask(symbol, zero), p);
            let value = _mm512_mask_mov_epi32(value, _mm512_cmpeq_epi32_mask(symbol, one), raw);
            x = _mm512_mask_mov_epi32(x, is_value, value);
        }
        store_wide(out, x);
    }
    (16 * vectors.len(), taken)
}
