//! What golden frames share that predict their elements.

use mithril_codec::Dtype;
use mithril_codec::block::Shared;
use mithril_codec::prediction::{
    Counts, Factors, Format, LowRank, Matrix, Prediction, Predictor, Tables, count,
};

/// The prediction of a golden frame; nothing for those that have none.
pub(crate) fn shared(
    name: &str,
    dtype: Dtype,
    raw: &[u8],
    base: &[u8],
) -> Result<Shared, Box<dyn std::error::Error>> {
    if !name.contains("predicted") {
        return Ok(Shared::default());
    }
    let format = Format::of(dtype).ok_or("no format of this type")?;
    let n = raw.len() / format.width();
    let row_len = (24..64).find(|len| n.is_multiple_of(*len)).unwrap_or(1);
    let matrix = Matrix {
        row_len,
        n_rows: n / row_len,
        row_scales: list(n / row_len, 5),
        column_scales: list(row_len, 7),
        low_rank: None,
    };
    let plain = Predictor { format, from_base: true, decay: None, scale: 210, matrix: None };
    let predictor = match name {
        "f16_predicted" => Predictor { scale: 6, ..plain },
        "bf16_predicted_scales" => Predictor { matrix: Some(matrix), ..plain },
        "f32_predicted_low_rank" => Predictor {
            decay: Some(0.99),
            matrix: Some(Matrix { low_rank: low_rank(9, -40, &matrix), ..matrix }),
            ..plain
        },
        _ => Predictor {
            matrix: Some(Matrix {
                low_rank: low_rank(2, -30, &matrix),
                row_scales: Vec::new(),
                column_scales: Vec::new(),
                ..matrix
            }),
            ..plain
        },
    };
    let mut counts = Counts::default();
    let whole = n * format.width();
    count(&predictor, 0, Some(&base[..whole]), &raw[..whole], &mut counts);
    let (tables, _) = Tables::choose(format, &counts);
    Ok(Shared::predicted(Prediction::new(predictor, tables)))
}

fn list(n: usize, most: u8) -> Vec<u8> {
    (0..n).map(|at| (at * at % 251).to_le_bytes()[0] % most).collect()
}

fn low_rank(rank: usize, exponent: i16, matrix: &Matrix) -> Option<LowRank> {
    let factor = |component: usize, n: usize| -> Vec<i16> {
        let entry = |at: usize| i16::try_from((at * 7919 + component * 1_234_577) % 401).unwrap_or(0) - 200;
        (0..n).map(|at| entry(at) / (1 + i16::try_from(component).unwrap_or(0))).collect()
    };
    let factors = Factors {
        shifts: (0..rank).map(|component| (component / 3).to_le_bytes()[0]).collect(),
        rows: (0..rank).map(|component| factor(component, matrix.n_rows)).collect(),
        columns: (0..rank).map(|component| factor(component + 100, matrix.row_len)).collect(),
    };
    LowRank::new(exponent, list(matrix.n_rows, 4), list(matrix.row_len, 3), factors)
}
