//! `.npz` files: zip archives of numpy arrays.

use crate::checked_reader::CheckedReader;
use crate::tensor_info::{TensorInfo, in_order, shown};
use crate::{FormatError, ReadAt, ReadError, npy, zip};

const FORMAT: &str = "npz";

/// The arrays of an `.npz` file that stand in it as they are, named as `numpy.load` names them.
///
/// Arrays that `savez_compressed` has deflated are left out.
///
/// # Errors
/// When the archive or the header of an array is damaged, or the file cannot be read.
pub fn read(source: &dyn ReadAt) -> Result<Vec<TensorInfo>, ReadError> {
    let reader = CheckedReader::new(source, FORMAT)?;
    let mut tensors = Vec::new();
    for entry in zip::entries(&reader)?.into_iter().filter(|entry| entry.is_stored) {
        let Some(name) = entry.name.strip_suffix(".npy") else { continue };
        let tensor = npy::tensor(&reader, entry.bytes, name.to_owned()).map_err(|error| match error {
            ReadError::Format(FormatError::Foreign { reason, .. }) => {
                reader.invalid(format!("array `{}`: {reason}", shown(name)))
            }
            other => other,
        })?;
        tensors.push(tensor);
    }
    Ok(in_order(tensors, FORMAT)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zip::tests::archive;
    use mithril_codec::Dtype;

    fn array(header: &str, data: &[u8]) -> Vec<u8> {
        let len = u16::try_from(header.len()).unwrap().to_le_bytes();
        [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn arrays_are_found_in_the_archive() {
        let weights = array("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", &[7; 8]);
        let objects = array("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", b"\x80\x02N.");
        let file = archive(&[("w.npy", &weights), ("readme.txt", b"text"), ("o.npy", &objects)]);
        let found = read(&file).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].name.as_str(), found[0].dtype, found[0].shape.as_slice()),
            ("w", Dtype::F32, &[2][..])
        );
        assert_eq!(file.slice(found[0].bytes.clone()), Some(&[7; 8][..]));
        assert_eq!((found[1].name.as_str(), found[1].dtype), ("o", Dtype::Bytes));
        let short = archive(&[("w.npy", &weights[..weights.len() - 1])]);
        let error = read(&short).unwrap_err().to_string();
        assert!(error.contains("array `w`") && error.contains("does not fit 7 bytes"), "{error}");
    }
}
