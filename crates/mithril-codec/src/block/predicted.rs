//! Blocks given the prediction that their frame shares: see [`crate::prediction`].

use super::output::{DoesNotFit, Output};
use super::{CodedBlock, RawBlock, Scratch, Shared};
use crate::CodecError;
use crate::bytes::Cursor;
use crate::forever::kind;
use crate::prediction;

pub(super) fn encode(
    raw: RawBlock<'_>,
    scratch: &mut Scratch,
    out: &mut Output<'_>,
) -> Result<(), DoesNotFit> {
    let RawBlock { source, shared, place } = raw;
    let model = shared.prediction.as_ref().ok_or(DoesNotFit)?;
    let mut coded = std::mem::take(&mut scratch.coded);
    coded.clear();
    coded.push(kind::PREDICTED);
    let encoded =
        prediction::encode(model, place.first_byte, place.base, source, &mut scratch.prediction, &mut coded);
    let written = encoded.ok_or(DoesNotFit).and_then(|()| out.push(&coded));
    scratch.coded = coded;
    written
}

pub(super) fn decode(
    cursor: Cursor<'_>,
    shared: &Shared,
    block: CodedBlock<'_>,
    out: &mut [u8],
    scratch: &mut Scratch,
) -> Result<(), CodecError> {
    let model = shared.prediction.as_ref();
    let model = model.ok_or(CodecError::corrupt("predicted block without a prediction to share"))?;
    prediction::decode(model, cursor, block.first_byte, block.base, out, &mut scratch.prediction)
}
