//! Golden frames against a base decode to what they were made of, given their base.

use super::delta_inputs::DELTAS_V0_1_0;
use super::inputs::V0_1_0;
use super::{decode, repository};
use mithril_codec::block::Scratch;
use mithril_format::Digest;
use mithril_format::frame::FrameView;
use std::collections::BTreeSet;

#[test]
fn golden_deltas_decode_to_their_inputs() {
    for (name, of_base, width, target) in DELTAS_V0_1_0 {
        let frame = std::fs::read(repository(&format!("golden/deltas/v0_1_0_{name}.mthf"))).unwrap();
        let base = V0_1_0.iter().find(|(input, _)| input == of_base).unwrap().1();
        let view = FrameView::parse(&frame).unwrap();
        assert_eq!(view.header().base, Some(Digest::of(&base)), "{name}");
        assert_eq!(view.header().dtype.unit_len(), usize::from(*width), "{name}");
        let block_len = view.header().block_len as usize;
        let mut raw = vec![0; base.len()];
        let mut scratch = Scratch::new();
        for (block_idx, (out, base)) in raw.chunks_mut(block_len).zip(base.chunks(block_len)).enumerate() {
            view.decode_block(block_idx, Some(base), out, &mut scratch).unwrap();
        }
        assert!(raw == target(&base), "{name} decodes to other bytes than its input");
        assert!(decode(&frame).is_err(), "{name} without its base");
    }
}

#[test]
fn every_golden_delta_has_an_input() {
    let inputs: BTreeSet<String> =
        DELTAS_V0_1_0.iter().map(|(name, ..)| format!("v0_1_0_{name}.mthf")).collect();
    let files = std::fs::read_dir(repository("golden/deltas")).unwrap();
    let files: BTreeSet<String> =
        files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(files, inputs);
}
