//! `mithril extract`: one tensor, or some of its rows, as `.npy` or as bytes.

use crate::arguments::ExtractArguments;
use crate::failure::{Failure, tell};
use crate::input::has_suffix;
use crate::open;
use crate::output::{Output, Target};
use crate::source::narrow_attributes;
use mithril::Dtype;
use mithril::container::ModelTensor;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;

/// Raw bytes that are decoded and written at a time.
const PIECE_LEN: u64 = 4 << 20;

/// Runs `mithril extract`.
pub(crate) fn run(arguments: &ExtractArguments) -> Result<(), Failure> {
    let name = arguments.file.display();
    let target = arguments.output.as_deref().map_or(Target::Stdout, Target::named);
    if matches!(target, Target::Stdout) && io::stdout().is_terminal() {
        let message = "a tensor is not written to a terminal";
        return Err(Failure::command(message).with_hint("name a file with `-o`, or send stdout to one"));
    }
    let model = open::model(&arguments.file, &arguments.base)?;
    let idx = model.find(&arguments.tensor).ok_or_else(|| {
        let names = model.tensors().iter().map(|tensor| tensor.name.as_str());
        let hint = match similar(&arguments.tensor, names) {
            Some(similar) => format!("did you mean `{}`?", similar.escape_debug()),
            None => format!("`mithril inspect {name}` lists its tensors"),
        };
        Failure::input(format!("`{name}` has no tensor `{}`", arguments.tensor.escape_debug()))
            .with_hint(hint)
    })?;
    let info = &model.tensors()[idx];
    let (shape, range) = part(info, arguments)?;
    let raw = arguments.raw || arguments.output.as_deref().is_some_and(|path| has_suffix(path, "bin"));
    let refused = |error: &mithril::Error| Failure::model(&name, error);
    let tensor = model.open_tensor(idx).map_err(|error| refused(&error))?;
    target.check_room(range.end - range.start, arguments.max_output)?;
    let mut output = Output::create(&target, arguments.force, narrow_attributes(&arguments.file)?)?;
    let output_name = output.name().to_owned();
    let failed = |error: io::Error| Failure::write(&output_name, &error);
    if !raw {
        let (header, note) = npy_header(info.dtype, &shape, range.end - range.start);
        if let Some(note) = note {
            tell(&format!("note: {note}"));
        }
        output.write_all(&header).map_err(failed)?;
    }
    // Pieces end where blocks do, so that no block is decoded twice.
    let piece_len = PIECE_LEN.next_multiple_of(tensor.block_len());
    let mut piece = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = ((at / piece_len + 1) * piece_len).min(range.end);
        piece.resize(usize::try_from(end - at).unwrap_or(usize::MAX), 0);
        let read = tensor.read_range(at..end, &mut piece, arguments.threads);
        read.map_err(|error| refused(&error.in_tensor(&info.name)))?;
        output.write_all(&piece).map_err(failed)?;
        at = end;
    }
    output.commit()?;
    Ok(())
}

/// The name that is most like a wanted one, if one is like it.
fn similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const ALIKE: f64 = 0.8;
    let scored = names.map(|name| (strsim::jaro_winkler(wanted, name), name));
    let alike = scored.filter(|(score, _)| *score > ALIKE);
    alike.max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// Shape and bytes of the part that is wanted.
fn part(tensor: &ModelTensor, arguments: &ExtractArguments) -> Result<(Vec<u64>, Range<u64>), Failure> {
    let Some(rows) = arguments.rows else { return Ok((tensor.shape.clone(), 0..tensor.raw_len)) };
    let name = tensor.name.escape_debug();
    let Some(&n_rows) = tensor.shape.first() else {
        return Err(Failure::command(format!("tensor `{name}` is a single number and has no rows")));
    };
    let rows = rows.within(n_rows).ok_or_else(|| {
        Failure::command(format!("tensor `{name}` has {n_rows} rows, and those wanted are not among them"))
    })?;
    let shape = [&[rows.end - rows.start], &tensor.shape[1..]].concat();
    let row_bits = match n_rows {
        0 => 0,
        _ => u128::from(tensor.raw_len) * 8 / u128::from(n_rows),
    };
    let byte = |row: u64| {
        let bits = u128::from(row) * row_bits;
        u64::try_from(bits / 8).ok().filter(|_| bits.is_multiple_of(8))
    };
    match (byte(rows.start), byte(rows.end)) {
        (Some(start), Some(end)) => Ok((shape, start..end)),
        _ => Err(Failure::command(format!(
            "rows of tensor `{name}` do not start on whole bytes: {} has {} bits",
            tensor.dtype.name(),
            tensor.dtype.bits()
        ))),
    }
}

/// The header of a `.npy` file, and what the user should know about its type.
pub(crate) fn npy_header(dtype: Dtype, shape: &[u64], len: u64) -> (Vec<u8>, Option<String>) {
    let descr = match dtype {
        Dtype::Bool => "|b1",
        Dtype::U8 | Dtype::Bytes => "|u1",
        Dtype::I8 => "|i1",
        Dtype::U16 => "<u2",
        Dtype::I16 => "<i2",
        Dtype::U32 => "<u4",
        Dtype::I32 => "<i4",
        Dtype::U64 => "<u8",
        Dtype::I64 => "<i8",
        Dtype::F16 => "<f2",
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        _ => return foreign_header(dtype, shape, len),
    };
    (header(descr, shape), None)
}

/// The header for a type that numpy does not have.
fn foreign_header(dtype: Dtype, shape: &[u64], len: u64) -> (Vec<u8>, Option<String>) {
    let name = dtype.name();
    let (descr, shape, what) = match dtype.unit_len() {
        1 if dtype.elements_per_unit() == 1 => ("|u1", shape, "unsigned integers of 8 bits"),
        2 if dtype.elements_per_unit() == 1 => ("<u2", shape, "unsigned integers of 16 bits"),
        _ => ("|u1", &[len][..], "one row of bytes"),
    };
    (header(descr, shape), Some(format!("numpy has no {name}: written as {what}")))
}

/// The header of a `.npy` file of version 1.0: padded so that the data starts on a multiple of 64.
fn header(descr: &str, shape: &[u64]) -> Vec<u8> {
    let mut tuple: String = shape.iter().map(|dimension| format!("{dimension}, ")).collect();
    // One dimension is written `(3,)`, more are `(3, 4)`.
    tuple.truncate(tuple.len() - if shape.len() > 1 { 2 } else { usize::from(shape.len() == 1) });
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({tuple}), }}");
    let len = (10 + text.len() + 1).next_multiple_of(64) - 10;
    let len_field = u16::try_from(len).expect("at most 64 dimensions of 20 digits each");
    let mut out = b"\x93NUMPY\x01\x00".to_vec();
    out.extend(len_field.to_le_bytes());
    out.extend(text.as_bytes());
    out.resize(10 + len - 1, b' ');
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn npy_headers_are_read_back_by_our_own_reader() {
        for shape in [&[][..], &[3], &[3, 4], &[0, 2, 5], &[u64::MAX; 64]] {
            let header = header("<f4", shape);
            assert!(header.len().is_multiple_of(64));
            let read = mithril::npy::parse(&header).unwrap();
            assert_eq!((read.dtype, read.shape.as_slice()), (Dtype::F32, shape));
            assert_eq!(read.data_offset, header.len());
        }
    }

    #[test]
    fn types_that_numpy_lacks_are_written_as_integers_with_a_note() {
        let (header, note) = npy_header(Dtype::Bf16, &[2, 3], 12);
        assert!(String::from_utf8_lossy(&header).contains("'<u2'"));
        assert!(note.unwrap().contains("BF16"));
        let (header, _) = npy_header(Dtype::F4, &[4], 2);
        assert!(String::from_utf8_lossy(&header).contains("'shape': (2,)"));
        assert_eq!(npy_header(Dtype::F32, &[2], 8).1, None);
    }
}
