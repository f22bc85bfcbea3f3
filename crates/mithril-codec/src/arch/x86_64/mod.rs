//! AVX2 kernels, reached through a proof that the CPU has it; where it also has AVX-512 with byte permutations, the
//! same methods run wider ones.

#![expect(unsafe_code, reason = "vector loads and stores, and calls after feature detection")]

mod checksum;
mod count_wide;
mod delta;
mod delta_contexts_wide;
mod delta_elements;
mod delta_wide;
mod delta_wide_32;
mod delta_words;
mod delta_words_encode;
mod ecq_encode;
mod ecq_gemv;
mod ecq_gemv_wide;
mod join_wide;
mod low_rank;
mod predicted;
mod predicted_tiles;
mod products;
mod quantised_dot;
mod rans12;
mod rans8_decode;
mod rans8_encode;
mod rans8_encode_wide;
mod rans8_fused;
mod scatter;
mod split;
mod tile_sink;
mod tiles;
mod window;

use super::shared::{COMPACT, MaskShuffles};
pub(crate) use scatter::Columns;
use std::arch::x86_64::*;
pub(crate) use tiles::JoinKernel;

/// Proof that this CPU has AVX2 and the bit instructions that come with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2 {
    wide: Option<Avx512>,
}

/// Proof that this CPU also has AVX-512 with the instructions on bytes that the kernels use: Ice Lake, Zen 4 and later.
#[derive(Debug, Clone, Copy)]
struct Avx512(());

impl Avx2 {
    /// Asks the CPU; the answer is cached by the standard library.
    pub(crate) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt"))
        .then(|| Self { wide: Avx512::detect() })
    }

    /// Whether there are the wider kernels, too.
    pub(crate) fn is_wide(self) -> bool {
        self.wide.is_some()
    }

    /// The same without the wider kernels, so that they can be compared.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn narrow(self) -> Self {
        Self { wide: None }
    }
}

impl Avx512 {
    fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512cd")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("avx512vbmi2")
            && is_x86_feature_detected!("avx512bitalg")
            && is_x86_feature_detected!("gfni"))
        .then_some(Self(()))
    }
}

/// A 16-entry table in both halves of a register, ready to be looked up by a shuffle.
#[inline]
#[target_feature(enable = "avx2")]
fn table(entries: &[u8; 16]) -> __m256i {
    // SAFETY: `entries` is 16 readable bytes, and `loadu` has no alignment requirement.
    let half = unsafe { _mm_loadu_si128(entries.as_ptr().cast()) };
    _mm256_broadcastsi128_si256(half)
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: `bytes` is 32 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8; 32], vector: __m256i) {
    // SAFETY: `bytes` is 32 writable bytes, and `storeu` has no alignment requirement.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load_wide(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: `bytes` is 64 readable bytes, and `loadu` has no alignment requirement.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store_wide(bytes: &mut [u8; 64], vector: __m512i) {
    // SAFETY: `bytes` is 64 writable bytes, and `storeu` has no alignment requirement.
    unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), vector) }
}

/// Bytes of a plane for the lanes of a mask, and zero for the others.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi2,avx2,bmi1,bmi2,popcnt")]
fn next_bytes(plane: &[u8], taken: &mut usize, lanes: u32) -> __m512i {
    let n = lanes.count_ones();
    let next = &plane[*taken..][..n as usize];
    *taken += n as usize;
    let first_lanes = _bzhi_u32(u32::MAX, n);
    // SAFETY: the mask reads only the `n` bytes of `next`.
    let next = unsafe { _mm256_maskz_loadu_epi8(first_lanes, next.as_ptr().cast()) };
    _mm512_cvtepu8_epi16(_mm256_maskz_expand_epi8(lanes, next))
}

/// Four pieces of eight bytes in one register. Built from `movq` and `movhps` loads: `set_epi64x` costs an
/// extra instruction per pair (6.1 instead of 6.7 G symbols/s in the rANS8 decoder). `_mm_load_sd` and `_mm_loadh_pd` compile
/// to the same, but are for aligned numbers only.
///
/// # Safety
/// Each pointer must be valid for reading eight bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn load_pieces(a: *const u8, b: *const u8, c: *const u8, d: *const u8) -> __m256i {
    // SAFETY: the caller vouches for eight readable bytes at `a`.
    let low = _mm_setr_pd(unsafe { a.cast::<f64>().read_unaligned() }, 0.0);
    // SAFETY: the caller vouches for eight readable bytes at `b`.
    let low = _mm_setr_pd(_mm_cvtsd_f64(low), unsafe { b.cast::<f64>().read_unaligned() });
    // SAFETY: the caller vouches for eight readable bytes at `c`.
    let high = _mm_setr_pd(unsafe { c.cast::<f64>().read_unaligned() }, 0.0);
    // SAFETY: the caller vouches for eight readable bytes at `d`.
    let high = _mm_setr_pd(_mm_cvtsd_f64(high), unsafe { d.cast::<f64>().read_unaligned() });
    _mm256_castpd_si256(_mm256_insertf128_pd::<1>(_mm256_castpd128_pd256(low), high))
}

/// Writes the upper eight bytes of a register. `_mm_storeh_pd` compiles to the same, but is for aligned numbers only.
///
/// # Safety
/// The pointer must be valid for writing eight bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store_upper(to: *mut u8, vector: __m128i) {
    let vector = _mm_castsi128_pd(vector);
    let upper = _mm_cvtsd_f64(_mm_unpackhi_pd(vector, vector));
    // SAFETY: the caller vouches for eight writable bytes.
    unsafe { to.cast::<f64>().write_unaligned(upper) }
}

/// Moves packed bytes to the lanes whose mask bit is set, and zero to the others.
static EXPAND: MaskShuffles = expand_shuffles();

const fn expand_shuffles() -> MaskShuffles {
    let mut shuffles = [[0; 256]; 2];
    let mut mask = 0;
    while mask < 256 {
        let (mut lane, mut packed) = (0, 0);
        while lane < 8 {
            if mask >> lane & 1 == 1 {
                shuffles[0][mask] |= packed << (8 * lane);
                shuffles[1][mask] |= (packed + 8) << (8 * lane);
                packed += 1;
            } else {
                shuffles[0][mask] |= 0x80 << (8 * lane);
                shuffles[1][mask] |= 0x80 << (8 * lane);
            }
            lane += 1;
        }
        mask += 1;
    }
    shuffles
}

/// The shuffle of 32 lanes from a mask of 32 bits, one table entry per eight lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn mask_shuffle(shuffles: &'static MaskShuffles, mask: u32) -> __m256i {
    let [a, b, c, d] = mask.to_le_bytes();
    let entry = |half: usize, mask: u8| (&raw const shuffles[half][usize::from(mask)]).cast::<u8>();
    // SAFETY: each pointer is to a `u64` of a static table.
    unsafe { load_pieces(entry(0, a), entry(1, b), entry(0, c), entry(1, d)) }
}
