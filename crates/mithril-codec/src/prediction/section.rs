//! What stands in the shared tables of a frame about its prediction.

use super::low_rank::LowRank;
use super::symbols::{MAX_DETAIL, is_value, raw_len};
use super::{Format, Matrix, N_CONTEXTS, Prediction, Predictor, Tables};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::contexts::MAX_LISTED;
use crate::entropy::rans12::FrequencyTable;
use crate::entropy::stream::{self, Allowed};

const BASE: u8 = 1 << 2;
const DECAY: u8 = 1 << 3;
const ROWS: u8 = 1 << 4;
const COLUMNS: u8 = 1 << 5;
const LOW_RANK: u8 = 1 << 6;

/// A scale lies within this of zero, so that sums with those of rows and columns do too.
const MAX_SCALE: i16 = 4096;

impl Predictor {
    /// Bytes that it takes in the section, without tables.
    pub fn written_len(&self) -> usize {
        let mut out = Vec::new();
        self.write(0, &mut out);
        out.len()
    }

    /// Appends it, with the detail of the tables, which stands among its fields.
    fn write(&self, detail: u8, out: &mut Vec<u8>) {
        let Self { format, from_base, decay, scale, matrix } = self;
        let mut flags = match format {
            Format::Bf16 => 0,
            Format::F16 => 1,
            Format::F32 => 2,
        };
        let mut set = |flag: u8, is_set: bool| flags |= if is_set { flag } else { 0 };
        set(BASE, *from_base);
        set(DECAY, decay.is_some());
        if let Some(matrix) = matrix {
            set(ROWS, !matrix.row_scales.is_empty());
            set(COLUMNS, !matrix.column_scales.is_empty());
            set(LOW_RANK, matrix.low_rank.is_some());
        }
        out.extend([flags, detail]);
        out.extend(scale.to_le_bytes());
        if let Some(decay) = decay {
            out.extend(decay.to_le_bytes());
        }
        if let Some(matrix) = matrix {
            out.extend(u32::try_from(matrix.row_len).unwrap_or(u32::MAX).to_le_bytes());
            if matrix.is_listed() {
                out.extend(u32::try_from(matrix.n_rows).unwrap_or(u32::MAX).to_le_bytes());
            }
            for scales in [&matrix.row_scales, &matrix.column_scales] {
                if !scales.is_empty() {
                    stream::encode_smallest(scales, Allowed::Entropy, out);
                }
            }
            if let Some(low_rank) = &matrix.low_rank {
                low_rank.write(out);
            }
        }
    }
}

impl Prediction {
    /// Appends the section.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        self.predictor.write(self.tables.detail, out);
        out.push(u8::try_from(self.tables.lasts.len()).unwrap_or(u8::MAX));
        out.extend(&self.tables.lasts);
        self.tables.all().for_each(|table| table.write(out));
    }

    /// Reads what [`Prediction::write`] wrote.
    pub(crate) fn read(cursor: &mut Cursor<'_>) -> Result<Self, CodecError> {
        let flags = cursor.u8()?;
        let format = match flags & 3 {
            0 => Format::Bf16,
            1 => Format::F16,
            2 => Format::F32,
            _ => return Err(CodecError::Unsupported { what: "prediction", id: u32::from(flags) }),
        };
        if flags >> 7 != 0 {
            return Err(CodecError::Unsupported { what: "prediction", id: u32::from(flags) });
        }
        let has = |flag: u8| flags & flag != 0;
        let adjusts = has(DECAY) || has(LOW_RANK);
        if (has(DECAY) && !has(BASE)) || (adjusts && format == Format::F16) {
            return Err(CodecError::corrupt("flags of a prediction"));
        }
        let detail = cursor.u8()?;
        let scale = i16::from_le_bytes(cursor.array()?);
        if detail > MAX_DETAIL || !(-MAX_SCALE..=MAX_SCALE).contains(&scale) {
            return Err(CodecError::corrupt("detail or scale of a prediction"));
        }
        let mut decay = None;
        if has(DECAY) {
            let factor = f32::from_le_bytes(cursor.array()?);
            if !factor.is_normal() {
                return Err(CodecError::corrupt("decay of a prediction"));
            }
            decay = Some(factor);
        }
        let mut matrix = None;
        if flags & (ROWS | COLUMNS | LOW_RANK) != 0 {
            matrix = Some(read_matrix(cursor, flags)?);
        }
        let tables = read_tables(cursor, format, detail)?;
        Ok(Self::new(Predictor { format, from_base: has(BASE), decay, scale, matrix }, tables))
    }
}

fn read_matrix(cursor: &mut Cursor<'_>, flags: u8) -> Result<Matrix, CodecError> {
    let row_len = cursor.len32()?;
    let n_rows = if flags & (ROWS | LOW_RANK) != 0 { cursor.len32()? } else { 0 };
    let n_listed = if flags & (COLUMNS | LOW_RANK) != 0 { row_len } else { 0 };
    if row_len == 0
        || (flags & (ROWS | LOW_RANK) != 0 && n_rows == 0)
        || n_rows > MAX_LISTED
        || n_listed > MAX_LISTED
    {
        return Err(CodecError::corrupt("rows or columns of a prediction"));
    }
    let mut matrix = Matrix {
        row_len,
        n_rows,
        row_scales: vec![0; if flags & ROWS != 0 { n_rows } else { 0 }],
        column_scales: vec![0; if flags & COLUMNS != 0 { row_len } else { 0 }],
        low_rank: None,
    };
    for (flag, scales) in [(ROWS, &mut matrix.row_scales), (COLUMNS, &mut matrix.column_scales)] {
        if flags & flag != 0 {
            stream::decode_into(cursor, scales)?;
        }
    }
    if flags & LOW_RANK != 0 {
        matrix.low_rank = Some(LowRank::read(cursor, n_rows, row_len)?);
    }
    Ok(matrix)
}

fn read_tables(cursor: &mut Cursor<'_>, format: Format, detail: u8) -> Result<Tables, CodecError> {
    let n = usize::from(cursor.u8()?);
    let lasts = cursor.take(n)?.to_vec();
    if !lasts.is_sorted_by(|a, b| a < b) || lasts.iter().any(|&last| usize::from(last) >= N_CONTEXTS) {
        return Err(CodecError::corrupt("contexts of the tables of a prediction"));
    }
    let mut tables = Vec::with_capacity(n);
    for &last in &lasts {
        let table = FrequencyTable::read(cursor)?;
        let value = is_value(usize::from(last));
        let exists = |symbol: u8| raw_len(format, detail, value, symbol).is_some();
        if (0..=255).zip(table.frequencies()).any(|(symbol, &share)| share > 0 && !exists(symbol)) {
            return Err(CodecError::corrupt("symbol of a prediction that does not exist"));
        }
        tables.push(table);
    }
    Ok(Tables { detail, lasts, tables })
}
