//! Coded files checked without writing anything: every sum, and the digest of what they were made of.

use super::file::EcqFile;
use super::originals::Originals;
use crate::Error;
use crate::convert::Progress;
use crate::inference::EntropyCodedLinear;
use mithril_format::Digester;
use mithril_format::ecq::invalid;

/// What [`verify`] found.
#[derive(Debug, Default)]
pub struct Verified {
    /// Matrices that were decoded.
    pub n_matrices: usize,
    /// Whether the file that this one was made of was restored, and had the digest that it should have.
    pub is_source_equal: bool,
    /// Everything that is damaged.
    pub problems: Vec<Error>,
}

/// Decodes every matrix of a file. One that was made of another file is restored in memory, tensor by tensor, and compared
/// with the digest of that file. Tensors of other files that are no matrices carry no sums.
///
/// # Errors
/// When the file cannot be read. Damage is no error: it is what was asked for.
pub fn verify(file: &EcqFile, progress: Progress<'_>) -> Result<Verified, Error> {
    let mut verified = Verified { n_matrices: file.matrices().count(), ..Verified::default() };
    let mut note = |result: Result<(), Error>| match result {
        Err(error @ Error::Io { .. }) => Err(error),
        Err(error) => {
            verified.problems.push(error);
            Ok(())
        }
        Ok(()) => Ok(()),
    };
    if file.source().is_none() {
        for name in file.matrices() {
            note(EntropyCodedLinear::from_file(file, name).map(|layer| {
                progress(layer.resident_len() as u64);
            }))?;
        }
        return Ok(verified);
    }
    let originals = match Originals::of(file) {
        Ok(originals) => originals,
        Err(error) => {
            note(Err(error))?;
            return Ok(verified);
        }
    };
    let (mut digester, mut glue, mut at) = (Digester::default(), originals.glue.as_slice(), 0);
    let mut take_glue = |digester: &mut Digester, until: u64, at: u64| {
        let n = usize::try_from(until.saturating_sub(at)).unwrap_or(usize::MAX).min(glue.len());
        let (piece, rest) = glue.split_at(n);
        digester.update(piece);
        glue = rest;
    };
    for (idx, tensor) in originals.tensors().iter().enumerate() {
        take_glue(&mut digester, tensor.bytes.start, at);
        note(originals.read(idx).map(|bytes| digester.update(&bytes)))?;
        at = tensor.bytes.end;
        progress(tensor.bytes.end - tensor.bytes.start);
    }
    take_glue(&mut digester, originals.source.len, at);
    verified.is_source_equal = digester.finish() == originals.source.digest;
    if !verified.is_source_equal && verified.problems.is_empty() {
        let name = &originals.source.name;
        verified
            .problems
            .push(invalid(format!("`{name}` comes back with other bytes than it was made of")).into());
    }
    Ok(verified)
}
