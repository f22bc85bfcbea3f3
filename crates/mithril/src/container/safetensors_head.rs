//! The header of the safetensors file that a model is, or was before it was packed.

use super::{Bases, Model};
use crate::Error;
use mithril_format::source::Kind;
use mithril_format::{FormatError, framed_safetensors, safetensors};

impl Model {
    /// The safetensors file that this is or was, up to the end of its header; nothing for files of other kinds.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub fn safetensors_head(&self) -> Result<Option<Vec<u8>>, Error> {
        match self.plain_source() {
            Some((Kind::Safetensors, source)) => match framed_safetensors::read(source)? {
                Some(framed) => Ok(Some(framed.head)),
                None => head(
                    |range, out: &mut [u8]| source.read_exact_at(range, out).map_err(Error::reading),
                    source.size().map_err(Error::reading)?,
                ),
            },
            Some(_) => Ok(None),
            None => self.packed_head(),
        }
    }

    /// The header of a packed file is the start of its glue.
    fn packed_head(&self) -> Result<Option<Vec<u8>>, Error> {
        let Some(container) = self.container() else { return Ok(None) };
        let original = container.header()?.original;
        let glue = container.entries().iter().position(|entry| entry.glue);
        let Some(glue) = glue.filter(|_| original.is_some_and(|original| original.format == "safetensors"))
        else {
            return Ok(None);
        };
        // Glue needs no base.
        let no_bases = Bases::none();
        let glue = container.open_tensor(glue, &no_bases)?;
        head(|start, out: &mut [u8]| glue.read_range(start..start + out.len() as u64, out, 0), glue.raw_len())
    }
}

/// Reads the header length, and all bytes up to the header's end.
fn head(
    read: impl Fn(u64, &mut [u8]) -> Result<(), Error>,
    available: u64,
) -> Result<Option<Vec<u8>>, Error> {
    let cut_off = || FormatError::Corrupt { what: "the safetensors header is cut off", offset: 0 };
    if available < 8 {
        return Err(cut_off().into());
    }
    let mut first = [0; 8];
    read(0, &mut first)?;
    let end = safetensors::header_end(first)?;
    if end > available {
        return Err(cut_off().into());
    }
    let mut head = vec![0; usize::try_from(end).map_err(|_| cut_off())?];
    read(0, &mut head)?;
    Ok(Some(head))
}
