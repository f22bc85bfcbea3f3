//! The loops of `prediction::tile` compiled for wider vectors: the same code, so the same results. Numbers of floating
//! point are multiplied and added one operation at a time in any of them.

use super::Avx2;
use crate::prediction::tile::{Coded, Lists, Tile, code, predict, set_symbols};

/// Compiles a definition for both kinds of vectors, and gives it a safe face.
macro_rules! compiled {
    ($(#[$doc:meta])* $name:ident, $wide:ident, $narrow:ident = $definition:ident($($argument:ident: $type:ty),*)) => {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512cd,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,popcnt,lzcnt"
        )]
        fn $wide($($argument: $type),*) {
            $definition($($argument),*);
        }

        #[target_feature(enable = "avx2,bmi1,bmi2,popcnt,lzcnt")]
        fn $narrow($($argument: $type),*) {
            $definition($($argument),*);
        }

        impl Avx2 {
            $(#[$doc])*
            pub(crate) fn $name(self, $($argument: $type),*) {
                match self.wide {
                    // SAFETY: `wide` is there only when `detect` saw the features.
                    Some(_) => unsafe { $wide($($argument),*) },
                    // SAFETY: `self` exists only when `detect` saw the features.
                    None => unsafe { $narrow($($argument),*) },
                }
            }
        }
    };
}

compiled! {
    /// See `prediction::tile::predict`.
    predict_tile, predict_wide, predict_narrow =
        predict(tile: &Tile<'_>, predicted: &mut [u32], scales: &mut [i16], contexts: &mut [u8])
}

compiled! {
    /// See `prediction::tile::set_symbols`.
    symbols_of_tile, symbols_wide, symbols_narrow = set_symbols(
        tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, contexts: &mut [u8], symbols: &mut [u8]
    )
}

compiled! {
    /// See `prediction::tile::code`.
    code_tile, code_wide, code_narrow =
        code(tile: &Tile<'_>, detail: u8, source: &[u8], lists: &mut Lists, coded: &mut Coded<'_>)
}
