//! What kernels do: one trait, which every instruction set implements as far as it is faster than the definitions.
//!
//! A method does a part of its work, or nothing, and says how much: a number of elements, or whether it did it at all. The
//! caller does what is left by the scalar definition, which is beside every call. So a set leaves out what it has no kernel
//! for, and no caller asks which set runs.

use crate::block::QUAD;
use crate::block::symbols::FieldSymbols;
use crate::checksum::LANES as SUM_LANES;
use crate::contexts::ColumnClasses;
use crate::delta::encode_words::{Kept, Windows};
use crate::delta::words::Walk;
use crate::delta::{ContextRule, Elements32};
use crate::ecq::gemv::{Activations, Exponents, FourBlocks};
use crate::entropy::rans8::{DecodeTable, EncodeTable, Streams, Symbols, Window};
use crate::entropy::rans12;
use crate::prediction::tile::{Coded, Lists, Tile, TileSymbols};
use crate::prediction::{CodedElements, TableRules};
use crate::quantised::products::CodeRow;
use crate::transform::fields::{FieldSplit, Finish};

/// The kernels of an instruction set.
#[expect(unused_variables, reason = "a default does nothing with what it is given")]
pub(crate) trait Kernels {
    /// See `checksum::step_lanes`.
    fn checksum_lanes(&self, lanes: &mut [u32; SUM_LANES], rounds: &[[u8; 4 * SUM_LANES]]) -> bool {
        false
    }

    /// Decodes groups of one or four streams from the front of `out` while a step cannot read past `data`; returns how
    /// many symbols are done.
    fn rans8_decode(
        &self,
        streams: Streams<'_>,
        table: &DecodeTable,
        values: &[u8; 16],
        data: &[u8],
        out: &mut [u8],
    ) -> usize {
        0
    }

    /// Decodes streams to outputs of their own while a step cannot read past `data`; returns how many symbols of each are
    /// done.
    fn rans8_decode_apart(
        &self,
        streams: Streams<'_>,
        table: &DecodeTable,
        data: &[u8],
        outs: &mut [&mut [u8]],
    ) -> usize {
        0
    }

    /// Decodes four streams, joins them with the rest and finishes whole tiles from the front of `out` while the streams
    /// cannot run past the data; returns how many elements are done.
    ///
    /// # Panics
    /// When the rest is shorter than the tiles need.
    fn rans8_decode_join(
        &self,
        streams: Streams<'_>,
        fields: &FieldSymbols<'_>,
        out: &mut [u8],
        finish: &mut Finish<'_>,
    ) -> usize {
        0
    }

    /// Encodes all symbols, whole groups of one or four streams, and brings `next` into a cache on the way.
    ///
    /// # Panics
    /// When a stream has no room for a byte for each of its symbols and eight more.
    fn rans8_encode(
        &self,
        streams: Streams<'_>,
        room: &mut [u8],
        table: &EncodeTable,
        symbols: &[u8],
        next: &[u8],
    ) -> bool {
        false
    }

    /// Encodes four blocks of equal length, whole groups of 32, as four streams.
    ///
    /// # Panics
    /// As `rans8_encode`.
    fn rans8_encode_apart(
        &self,
        streams: Streams<'_>,
        room: &mut [u8],
        table: &EncodeTable,
        blocks: [&[u8]; 4],
    ) -> bool {
        false
    }

    /// Counts sixteen consecutive values in a sample of `plane`: see `rans8::window::count_sampled`.
    fn count_window(&self, plane: &[u8], offset: u8, counts: &mut [u32; 16]) -> bool {
        false
    }

    /// Counts sixteen consecutive values in whole groups of 128; returns how many bytes were looked at.
    fn count_values(&self, bytes: &[u8], first: u8, counts: &mut [u32; 16]) -> usize {
        0
    }

    /// Turns values into symbols: see `rans8::Window::map`. Returns how many are done.
    fn map_window(&self, window: &Window, plane: &mut [u8], first: u32, escapes: &mut Vec<u32>) -> usize {
        0
    }

    /// Turns listed values into symbols: see `rans8::Symbols::map`. Returns how many are done.
    fn map_listed(&self, symbols: &Symbols, plane: &mut [u8], escapes: &mut Vec<u32>) -> usize {
        0
    }

    /// Decodes groups of rANS12 from the front while bytes for a whole group are left; returns how many groups, and how
    /// many bytes of words they took.
    fn rans12_decode_groups(
        &self,
        states: &mut [u32; rans12::LANES],
        cells: &[u32; rans12::FREQUENCY_SUM],
        words: &[u8],
        groups: &mut [[u8; rans12::LANES]],
    ) -> (usize, usize) {
        (0, 0)
    }

    /// See `transform::fields::split_tiles`. Takes whole tiles; returns how many elements are done.
    fn split_tiles(&self, split: &FieldSplit, source: &[u8], plane: &mut [u8], rest: &mut [u8]) -> usize {
        0
    }

    /// The kernel that joins the tiles of a split, if there is one.
    fn tile_joiner(&self, split: &FieldSplit) -> Option<Box<dyn JoinTiles>> {
        None
    }

    /// See `transform::fields::sign_plane`.
    fn take_signs(&self, width: usize, elements: &[u8], signs: &mut [u8]) -> bool {
        false
    }

    /// See `transform::fields::set_signs`.
    fn set_signs(&self, signs: &[u8], width: usize, elements: &mut [u8]) -> bool {
        false
    }

    /// See `block::signs::spread_portable`.
    fn spread_signs(&self, quads: &[u8], signs: &mut [[u8; QUAD]]) -> bool {
        false
    }

    /// See `block::signs::collect_portable`.
    fn collect_signs(&self, signs: &[[u8; QUAD]], quads: &mut [u8]) -> bool {
        false
    }

    /// Rows to buckets: see `contexts::Buckets::gather`. `at` has a position in `bucketed` per column class for each row
    /// class.
    ///
    /// # Panics
    /// When `plane` has fewer rows, or a class would be written past the end of `bucketed`.
    fn gather_rows(
        &self,
        columns: &ColumnClasses<'_>,
        row_classes: &[u8],
        plane: &[u8],
        at: &mut [usize],
        bucketed: &mut [u8],
    ) -> bool {
        false
    }

    /// Buckets to rows: see `contexts::Scatter::next_rows`; `at` as in `gather_rows`.
    ///
    /// # Panics
    /// When a row does not fit `plane`, or a class would be read past the end of `bucketed`.
    fn scatter_rows(
        &self,
        columns: &ColumnClasses<'_>,
        row_classes: &[u8],
        bucketed: &[u8],
        at: &mut [usize],
        plane: &mut [u8],
    ) -> bool {
        false
    }

    /// The kernels that take differences in words of 64 elements from symbols to elements in one go, and back.
    fn delta_words(&self) -> Option<&dyn WordKernels> {
        None
    }

    /// See `delta::contexts::assign`, for elements of `width` bytes. Takes whole vectors; returns how many elements are done.
    fn delta_contexts(&self, width: usize, rule: ContextRule, base: &[u8], contexts: &mut [u8]) -> usize {
        0
    }

    /// See `delta::encode::set_codes`, for elements of two bytes and centers of zero. `rests` are the low and high bytes of
    /// what is left. Takes whole vectors; returns how many elements are done.
    fn delta_codes_16(
        &self,
        sign: bool,
        source: &[u8],
        base: &[u8],
        codes: &mut [u8],
        rests: [&mut [u8]; 2],
    ) -> usize {
        0
    }

    /// See `delta::encode::set_codes`, for elements of four bytes. `rests` are the bytes of what is left, the lowest first.
    /// Takes whole vectors; returns how many elements are done.
    fn delta_codes_32(
        &self,
        elements: Elements32<'_>,
        source: &[u8],
        codes: &mut [u8],
        rests: [&mut [u8]; 4],
    ) -> usize {
        0
    }

    /// One bit for each byte that is not `value`. Takes whole words of 64 bytes; returns how many.
    fn delta_flag(&self, bytes: &[u8], value: u8, words: &mut [u64]) -> usize {
        0
    }

    /// One bit for each byte that is at least `value`, which is 1 to 127, as are the bytes. Takes whole words of 64 bytes;
    /// returns how many.
    fn delta_flag_from(&self, bytes: &[u8], value: u8, words: &mut [u64]) -> usize {
        0
    }

    /// See `delta::flags::keep_flagged`. Takes whole words; returns how many, and how many bytes were kept.
    ///
    /// # Panics
    /// When `out` does not hold 64 bytes more than are kept.
    fn delta_keep_flagged(&self, bytes: &[u8], moved: &[u64], out: &mut [u8]) -> (usize, usize) {
        (0, 0)
    }

    /// See `delta::flags::merge`. Takes whole words; returns how many. `strings_at` holds contexts with the bit where their
    /// flags go on.
    ///
    /// # Panics
    /// When a string is shorter than its context.
    fn delta_merge_flags(
        &self,
        contexts: &[u8],
        all: u16,
        strings_at: &mut [(u8, usize)],
        strings: &[u8],
        moved: &mut [u64],
    ) -> usize {
        0
    }

    /// See `delta::flags::split`. Takes whole words; returns how many. `strings_at` as in `delta_merge_flags`.
    ///
    /// # Panics
    /// When a string is shorter than its context.
    fn delta_split_flags(
        &self,
        contexts: &[u8],
        moved: &[u64],
        strings_at: &mut [(u8, usize)],
        strings: &mut [u8],
    ) -> usize {
        0
    }

    /// See `delta::flags::pack`. Takes whole vectors; returns how many symbols are done.
    fn delta_pack_flags(&self, symbols: &[u8], out: &mut [u8]) -> usize {
        0
    }

    /// See `delta::flags::count_set`.
    ///
    /// # Panics
    /// When there are fewer bits.
    fn delta_count_set(&self, bytes: &[u8], n: usize) -> Option<usize> {
        None
    }

    /// See `delta::classes::merge`. Takes whole vectors; returns how many symbols are done.
    ///
    /// # Panics
    /// When a bucket does not hold 64 bytes more than its context has.
    fn delta_merge_classes(
        &self,
        moved_contexts: &[u8],
        starts: &mut [usize; 16],
        bucketed: &[u8],
        symbols: &mut [u8],
    ) -> usize {
        0
    }

    /// See `delta::classes::split`. Takes whole vectors; returns how many symbols are done.
    ///
    /// # Panics
    /// When a bucket is shorter than its context.
    fn delta_split_classes(
        &self,
        moved_contexts: &[u8],
        starts: &mut [usize; 16],
        symbols: &[u8],
        bucketed: &mut [u8],
    ) -> usize {
        0
    }

    /// Class symbols from codes, in place, by the number of bits that the first class of each context keeps and the number
    /// of its symbols. Takes whole vectors; returns how many are done. Places of codes without a symbol are appended to
    /// `without`.
    fn delta_symbols(
        &self,
        lows: &[u8; 16],
        n_symbols: &[u8; 16],
        contexts: &[u8],
        codes: &mut [u8],
        without: &mut Vec<usize>,
    ) -> usize {
        0
    }

    /// Kept bits of symbols of contexts without exact differences. Takes whole vectors; returns how many symbols are done.
    fn delta_raw_lens(&self, lows: &[u8; 16], contexts: &[u8], symbols: &[u8], raw_lens: &mut [u8]) -> usize {
        0
    }

    /// The kept bits above whole bytes, from the bytes of what is left, the lowest first. Takes whole vectors; returns how
    /// many elements are done.
    fn delta_top_bits(&self, raw_lens: &[u8], rests: &[Vec<u8>], raw_bits: &mut [u8]) -> usize {
        0
    }

    /// See `delta::raw::add_plane`. Takes whole vectors; returns how many elements are done, and how many bits they took.
    ///
    /// # Panics
    /// When the string is shorter than the elements need.
    fn delta_add_bits(&self, plane: u8, string: &[u8], raw_lens: &[u8], bits: &mut [u8]) -> (usize, usize) {
        (0, 0)
    }

    /// See `delta::raw::take_plane`. Takes whole vectors; returns how many elements are done, and how many bits they gave.
    ///
    /// # Panics
    /// When the string has no room for them.
    fn delta_take_bits(&self, plane: u8, raw_lens: &[u8], bits: &[u8], string: &mut [u8]) -> (usize, usize) {
        (0, 0)
    }

    /// Steps of two bytes from symbols and kept bits; `low_bytes` are those of the symbols that keep eight bits or more.
    /// Takes whole vectors of 16; returns how many steps are done, and how many bytes they took.
    ///
    /// # Panics
    /// When there are fewer bytes.
    fn delta_steps_16(
        &self,
        symbols: &[u8],
        raw_lens: &[u8],
        raw_bits: &[u8],
        low_bytes: &[u8],
        steps: &mut [u16],
    ) -> (usize, usize) {
        (0, 0)
    }

    /// Moves elements of two bytes by the next step where they are flagged. Takes whole words of 64; returns how many, and
    /// how many steps they took.
    ///
    /// # Panics
    /// When there are fewer than 32 steps more than flags.
    fn delta_apply_16(
        &self,
        sign: bool,
        base: &[u8],
        moved: &[u64],
        steps: &[u16],
        out: &mut [u8],
    ) -> (usize, usize) {
        (0, 0)
    }

    /// See `prediction::tile::predict`.
    fn predict_tile(
        &self,
        tile: &Tile<'_>,
        predicted: &mut [u32],
        scales: &mut [i16],
        contexts: &mut [u8],
    ) -> bool {
        false
    }

    /// See `prediction::tile::set_symbols`.
    fn symbols_of_tile(
        &self,
        tile: &Tile<'_>,
        detail: u8,
        source: &[u8],
        lists: &mut Lists,
        out: &mut TileSymbols<'_>,
    ) -> bool {
        false
    }

    /// See `prediction::tile::code`.
    fn code_tile(
        &self,
        tile: &Tile<'_>,
        detail: u8,
        source: &[u8],
        lists: &mut Lists,
        coded: &mut Coded<'_>,
    ) -> bool {
        false
    }

    /// Replaces bytes below 64 by what the table says. Takes whole vectors; returns how many bytes are done.
    fn look_up_64(&self, table: &[u8; 64], bytes: &mut [u8]) -> usize {
        0
    }

    /// Adds how often each bucket occurs to `counts`, which has an entry for each. Takes whole vectors; returns how many
    /// bytes are done.
    fn count_buckets(&self, buckets: &[u8], counts: &mut [usize]) -> usize {
        0
    }

    /// Puts every byte into its bucket; `starts` has the next free place of each. Takes whole vectors; returns how many
    /// bytes are done.
    ///
    /// # Panics
    /// When a bucket has no room.
    fn split_buckets(
        &self,
        buckets: &[u8],
        bytes: &[u8],
        starts: &mut [usize],
        bucketed: &mut [u8],
    ) -> usize {
        0
    }

    /// The other way: takes the next byte of its bucket for each element. Takes whole vectors; returns how many are done.
    ///
    /// # Panics
    /// When a bucket does not have 64 bytes more than are taken.
    fn merge_buckets(&self, buckets: &[u8], starts: &mut [usize], bucketed: &[u8], out: &mut [u8]) -> usize {
        0
    }

    /// How many bits each symbol keeps: see `prediction::symbols::raw_len`. Takes whole vectors; returns how many elements
    /// are done.
    fn predicted_raw_lens(
        &self,
        rules: TableRules,
        tables: &[u8],
        symbols: &[u8],
        raw_lens: &mut [u8],
    ) -> usize {
        0
    }

    /// See `prediction::decode`. Takes whole vectors; returns how many elements are done, and how many bytes of each plane
    /// they took.
    ///
    /// # Panics
    /// When a plane is shorter than the elements need.
    fn restore_predicted(&self, elements: &CodedElements<'_>, out: &mut [u8]) -> (usize, [usize; 4]) {
        (0, [0; 4])
    }

    /// See `prediction::LowRank::sum_rows`. `pairs` holds `n_pairs` for each row, `columns` `2 * n_columns` entries for
    /// each pair of a row. Takes whole groups of columns of every row; returns how many columns are done.
    ///
    /// # Panics
    /// When there are fewer entries or sums than that.
    fn low_rank_sums(
        &self,
        pairs: &[[i16; 2]],
        n_pairs: usize,
        columns: &[i16],
        n_columns: usize,
        sums: &mut [i32],
    ) -> usize {
        0
    }

    /// See `prediction::add_products`. Takes whole groups of rows, if the width is one of whole groups of columns; returns
    /// how many rows are done.
    ///
    /// # Panics
    /// When the lengths do not agree.
    fn add_products(&self, left: &[f32], right: &[f32], width: usize, sums: &mut [f32]) -> usize {
        0
    }

    /// Integer sums of rows of four blocks while their streams cannot run past the data; returns how many rows of each
    /// block are done. `out` has the rows of the blocks one after the other.
    fn ecq_dot_levels(
        &self,
        streams: Streams<'_>,
        blocks: &FourBlocks<'_>,
        levels: &[i8],
        x: &[i8],
        out: &mut [i32],
    ) -> usize {
        0
    }

    /// As `ecq_dot_levels`, for bf16 weights.
    fn ecq_dot_bf16(
        &self,
        streams: Streams<'_>,
        blocks: &FourBlocks<'_>,
        exponents: &Exponents,
        x: &Activations,
        out: &mut [f32],
    ) -> usize {
        0
    }

    /// Products of rows of bf16 weights whose symbols are packed four bits each.
    fn ecq_dot_bf16_packed(
        &self,
        packed: &[u8],
        low: &[u8],
        exponents: &Exponents,
        x: &Activations,
        out: &mut [f32],
    ) -> bool {
        false
    }

    /// See `ecq::gemv::dot_plain_levels`.
    fn dot_plain_levels(&self, packed: &[u8], levels: &[i8], x: &[i8], out: &mut [i32]) -> bool {
        false
    }

    /// See `ecq::gemv::dot_plain_bf16`.
    fn dot_plain_bf16(&self, weights: &[u8], x: &Activations, out: &mut [f32]) -> bool {
        false
    }

    /// Products of a row of 32 columns or a multiple, whose groups are of 16, or of 32 or a multiple, with some vectors,
    /// each padded to a multiple of 64.
    ///
    /// # Panics
    /// When parts of the row are too short.
    fn dot_codes(&self, row: &CodeRow<'_>, columns: usize, x: &[f32], out: &mut [f32]) -> bool {
        false
    }
}

/// A kernel that joins the tiles of one split.
pub(crate) trait JoinTiles {
    /// See `transform::fields::Joiner::join`. Takes whole tiles; returns how many elements are done.
    fn join(
        &self,
        split: &FieldSplit,
        plane: &[u8],
        signs: Option<&[u8]>,
        rest: &[u8],
        out: &mut [u8],
    ) -> usize;
}

/// Differences 64 elements at a time: see `delta::words` and `delta::encode_words`, for which all of this is needed.
pub(crate) trait WordKernels {
    /// Codes of `n` elements that all have a class, by what each symbol says. Writes whole vectors of 64.
    ///
    /// # Panics
    /// When there are fewer symbols or less room than whole vectors need.
    fn codes_of_all(&self, code_of: &[u8; 16], symbols: &[u8], codes: &mut [u8], n: usize);

    /// As `codes_of_all`, of elements that have a class where their flag is set; zero for the others.
    ///
    /// # Panics
    /// When there are not 64 symbols after those of the flags, or less room than whole vectors need.
    fn codes_of_flagged(&self, code_of: &[u8; 16], flags: &[u8], symbols: &[u8], codes: &mut [u8], n: usize);

    /// Moves whole words of 64 elements of two bytes: see `delta::passes`.
    ///
    /// # Panics
    /// When the walk comes to an end before the elements do.
    fn move_16(&self, walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]);

    /// As `move_16`, for elements of four bytes.
    ///
    /// # Panics
    /// As `move_16`.
    fn move_32(&self, walk: &mut Walk<'_>, contexts: &[u8], base: &[u8], out: &mut [u8]);

    /// Sorts bytes by context, each context in order. `ends` holds contexts with the place of their next byte; whole vectors
    /// are written there. Takes whole words of 64.
    ///
    /// # Panics
    /// When there is no room for 64 bytes at the end of a context.
    fn sort(&self, contexts: &[u8], bytes: &[u8], ends: &mut [(u8, usize)], sorted: &mut [u8]);

    /// Flags the first `n` codes of a context that have a class in the first of the windows, and collects their symbols, in
    /// whole vectors; returns how many. `codes` are whole words of 64.
    ///
    /// # Panics
    /// When there is no room for whole words of flags, or for 64 symbols more.
    fn flag_classes(
        &self,
        window: &Windows,
        codes: &[u8],
        n: usize,
        flags: &mut [u8],
        symbols: &mut [u8],
    ) -> usize;

    /// Collects the kept bits of elements of two bytes, and the places of those that have no class. Takes whole words of 64.
    ///
    /// # Panics
    /// When there is no room for 64 bits or bytes more.
    fn keep_bits_16(
        &self,
        windows: &Windows,
        contexts: &[u8],
        codes: &[u8],
        rests: [&[u8]; 2],
        kept: &mut Kept<'_>,
    );

    /// As `keep_bits_16`, for elements of four bytes.
    ///
    /// # Panics
    /// As `keep_bits_16`.
    fn keep_bits_32(
        &self,
        windows: &Windows,
        contexts: &[u8],
        codes: &[u8],
        rests: [&[u8]; 4],
        kept: &mut Kept<'_>,
    );
}

/// No kernels: everything runs by its scalar definition.
pub(crate) struct Scalar;

impl Kernels for Scalar {}

/// Implements a trait by kernels that are compiled for the features of an instruction set, and by those of a narrower set
/// where this one has none.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "scalar-only")))]
macro_rules! implement {
    (
        impl $trait:ident for $set:ident {
            $(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty = $kernel:path;)*
        }
        $(all of it {
            $(fn $whole:ident($($whole_argument:ident: $whole_type:ty),*) = $whole_kernel:path;)*
        })?
        $(else $narrower:ident {
            $(fn $narrow:ident($($narrow_argument:ident: $narrow_type:ty),*) -> $narrow_result:ty;)*
        })?
        $(and {
            $($other:item)*
        })?
    ) => {
        impl $trait for $set {
            $(fn $name(&self, $($argument: $type),*) -> $result {
                // SAFETY: `self` exists only where the CPU has the features that the kernel is compiled for.
                unsafe { $kernel($($argument),*) }
            })*
            $($(fn $whole(&self, $($whole_argument: $whole_type),*) -> bool {
                // SAFETY: `self` exists only where the CPU has the features that the kernel is compiled for.
                unsafe { $whole_kernel($($whole_argument),*) };
                true
            })*)?
            $($(fn $narrow(&self, $($narrow_argument: $narrow_type),*) -> $narrow_result {
                self.$narrower.$narrow($($narrow_argument),*)
            })*)?
            $($($other)*)?
        }
    };
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(feature = "scalar-only")))]
pub(super) use implement;
