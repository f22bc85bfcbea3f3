//! What the blocks of a tensor share: classes of rows and columns, and a table for each context.

use crate::CodecError;
use crate::bytes::Cursor;
use crate::contexts::Contexts;
use crate::entropy::rans8::{Frequencies, Window};
use crate::entropy::{rans8, rans12};
use crate::prediction::Prediction;

/// Models that every block of a tensor may refer to. Empty when each block has its own tables.
#[derive(Debug, Default)]
pub struct Shared {
    pub(crate) symbols: Option<SharedSymbols>,
    pub(crate) signs: Option<SharedSigns>,
    pub(crate) prediction: Option<Prediction>,
}

/// Contexts and tables of the coded top bits.
#[derive(Debug)]
pub struct SharedSymbols {
    pub(crate) contexts: Contexts,
    pub(crate) tables: SymbolTables,
}

/// One table per context.
#[derive(Debug)]
#[non_exhaustive]
pub enum SymbolTables {
    /// Tables of the coder for sixteen symbols.
    Rans8(Vec<Window>),
    /// Tables of the coder for sixteen symbols that every block makes for itself: only the classes are shared.
    Rans8PerBlock,
    /// Tables of the coder for 256 symbols, and their decoding form, which is large and built once.
    Rans12(Vec<rans12::FrequencyTable>, Vec<rans12::DecodeTable>),
}

impl SymbolTables {
    /// Tables for 256 symbols.
    pub fn rans12(tables: Vec<rans12::FrequencyTable>) -> Self {
        let decode = tables.iter().map(rans12::DecodeTable::new).collect();
        Self::Rans12(tables, decode)
    }

    /// Whether there is one table for each of so many contexts.
    fn fits(&self, n_contexts: usize) -> bool {
        match self {
            Self::Rans8(windows) => windows.len() == n_contexts,
            Self::Rans8PerBlock => true,
            Self::Rans12(tables, _) => tables.len() == n_contexts,
        }
    }
}

/// Contexts of the signs, and how often each pattern of four signs occurs in them.
#[derive(Debug)]
pub struct SharedSigns {
    pub(crate) contexts: Contexts,
    pub(crate) quads: Vec<Frequencies>,
}

const SYMBOLS_RANS8: u8 = 1;
const SYMBOLS_RANS12: u8 = 2;
const SYMBOLS_PER_BLOCK: u8 = 3;
const SIGNS: u8 = 4;
const PREDICTION: u8 = 8;

impl Shared {
    /// Models of top bits and signs, each optional.
    ///
    /// # Panics
    /// When there is not one table per context.
    pub fn new(
        symbols: Option<(Contexts, SymbolTables)>,
        signs: Option<(Contexts, Vec<Frequencies>)>,
    ) -> Self {
        let symbols = symbols.map(|(contexts, tables)| {
            assert!(tables.fits(contexts.n_contexts()), "one table per context");
            SharedSymbols { contexts, tables }
        });
        let signs = signs.map(|(contexts, quads)| {
            assert_eq!(quads.len(), contexts.n_contexts(), "one table per context");
            SharedSigns { contexts, quads }
        });
        Self { symbols, signs, prediction: None }
    }

    /// A prediction and nothing else.
    pub fn predicted(prediction: Prediction) -> Self {
        Self { prediction: Some(prediction), ..Self::default() }
    }

    /// Whether there is nothing to share.
    pub fn is_empty(&self) -> bool {
        self.symbols.is_none() && self.signs.is_none() && self.prediction.is_none()
    }

    /// The classed matrix, whose rows blocks must hold whole.
    pub fn row_len(&self) -> Option<usize> {
        let contexts =
            self.symbols.as_ref().map(|s| &s.contexts).or(self.signs.as_ref().map(|s| &s.contexts));
        contexts.map(Contexts::row_len).or(self.prediction.as_ref().and_then(Prediction::row_len))
    }

    /// The bytes that [`Shared::parse`] reads; none when there is nothing to share.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        if self.is_empty() {
            return out;
        }
        let symbols = match self.symbols.as_ref().map(|symbols| &symbols.tables) {
            None => 0,
            Some(SymbolTables::Rans8(_)) => SYMBOLS_RANS8,
            Some(SymbolTables::Rans12(..)) => SYMBOLS_RANS12,
            Some(SymbolTables::Rans8PerBlock) => SYMBOLS_PER_BLOCK,
        };
        let signs = if self.signs.is_some() { SIGNS } else { 0 };
        out.push(symbols | signs | if self.prediction.is_some() { PREDICTION } else { 0 });
        if let Some(symbols) = &self.symbols {
            symbols.contexts.write(&mut out);
            match &symbols.tables {
                SymbolTables::Rans8(windows) => {
                    for window in windows {
                        out.push(window.offset);
                        out.extend(window.frequencies.bytes());
                    }
                }
                SymbolTables::Rans8PerBlock => {}
                SymbolTables::Rans12(tables, _) => tables.iter().for_each(|table| table.write(&mut out)),
            }
        }
        if let Some(signs) = &self.signs {
            signs.contexts.write(&mut out);
            signs.quads.iter().for_each(|quads| out.extend(quads.bytes()));
        }
        if let Some(prediction) = &self.prediction {
            prediction.write(&mut out);
        }
        out
    }

    /// Reads what a file says its blocks share.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn parse(bytes: &[u8]) -> Result<Self, CodecError> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        let mut cursor = Cursor::new(bytes, "shared tables");
        let flags = cursor.u8()?;
        if flags == 0 {
            return Err(CodecError::corrupt("shared tables of nothing"));
        }
        let symbols = match flags & !(SIGNS | PREDICTION) {
            0 => None,
            SYMBOLS_RANS8 => {
                let contexts = Contexts::read(&mut cursor)?;
                let mut windows = Vec::new();
                for _ in 0..contexts.n_contexts() {
                    let offset = cursor.u8()?;
                    windows.push(Window { offset, frequencies: Frequencies::parse(cursor.array()?)? });
                }
                Some((contexts, SymbolTables::Rans8(windows)))
            }
            SYMBOLS_RANS12 => {
                let contexts = Contexts::read(&mut cursor)?;
                let mut tables = Vec::new();
                for _ in 0..contexts.n_contexts() {
                    tables.push(rans12::FrequencyTable::read(&mut cursor)?);
                }
                Some((contexts, SymbolTables::rans12(tables)))
            }
            SYMBOLS_PER_BLOCK => Some((Contexts::read(&mut cursor)?, SymbolTables::Rans8PerBlock)),
            _ => return Err(CodecError::Unsupported { what: "shared tables", id: u32::from(flags) }),
        };
        let mut signs = None;
        if flags & SIGNS != 0 {
            let contexts = Contexts::read(&mut cursor)?;
            let mut quads = Vec::new();
            for _ in 0..contexts.n_contexts() {
                quads.push(rans8::Frequencies::parse(cursor.array()?)?);
            }
            signs = Some((contexts, quads));
        }
        let mut prediction = None;
        if flags & PREDICTION != 0 {
            prediction = Some(Prediction::read(&mut cursor)?);
        }
        if !cursor.is_empty() {
            return Err(CodecError::corrupt("bytes behind the shared tables"));
        }
        Ok(Self { prediction, ..Self::new(symbols, signs) })
    }
}
