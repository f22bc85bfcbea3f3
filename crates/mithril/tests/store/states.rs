//! Whole states, single tensors, buffers, files and containers come back as they were.

use super::{Run, bf16_tensor, f32_tensor, store, weights};
use crate::samples;
use mithril::Dtype;
use mithril::checkpoint::{Checkpoint, CheckpointError, CompressorConfig, SaveOptions, TensorData};
use mithril::container::EntryKind;
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn every_dtype_and_odd_shape_comes_back() {
    let (store, _) = store(CompressorConfig::default());
    let mut checkpoint = Checkpoint::new().with_step(12);
    for &dtype in Dtype::ALL.iter().filter(|dtype| dtype.id() < Dtype::Q4_0.id() && **dtype != Dtype::Bytes) {
        let n = u64::from(dtype.elements_per_unit()) * 64;
        let len = dtype.len_of(n * 3).unwrap() as usize;
        let data = samples::pattern("weights", dtype, len, 5);
        checkpoint =
            checkpoint.with_tensor(format!("t.{}", dtype.name()), TensorData::new(data, [3, n], dtype));
    }
    checkpoint = checkpoint
        .with_tensor("empty", TensorData::new(vec![], [0, 7], Dtype::F32))
        .with_tensor("scalar", TensorData::new(vec![1, 2, 3, 4], [], Dtype::F32))
        .with_tensor("a name with \"quotes\" and ü", TensorData::new(vec![9], [1], Dtype::U8));
    checkpoint.metadata.insert("epoch".to_owned(), serde_json::json!({ "n": 3, "done": [1.5, null] }));
    store.save(&checkpoint, "odd", None).unwrap();
    assert_eq!(store.load("odd").unwrap(), checkpoint);
    store.save(&Checkpoint::new().with_step(0), "nothing", Some("odd")).unwrap();
    assert!(store.load("nothing").unwrap().tensors.is_empty());
}

#[test]
fn single_tensors_buffers_and_files_are_the_same_bytes() {
    let (store, _) = store(CompressorConfig::default());
    let mut run = Run::new(3, 3, 1, 40_000);
    store.save(&run.step(), "step_1", None).unwrap();
    let second = run.step();
    store.save(&second, "step_2", Some("step_1")).unwrap();
    for (name, tensor) in &second.tensors {
        assert_eq!(store.load_tensor("step_2", name).unwrap(), *tensor);
    }
    let mut buffer = vec![0; second.tensors["layer.2.weight"].data.len()];
    let mut frozen = buffer.clone();
    store
        .load_into("step_2", &mut [("layer.2.weight", &mut buffer), ("layer.0.weight", &mut frozen)])
        .unwrap();
    assert_eq!(buffer, second.tensors["layer.2.weight"].data);
    assert_eq!(frozen, second.tensors["layer.0.weight"].data);
    let mut short = [0; 10];
    let error = store.load_into("step_2", &mut [("layer.2.weight", &mut short)]).unwrap_err();
    assert!(matches!(error, CheckpointError::ShapeMismatch { .. }), "{error}");
    let error = store.load_tensor("step_2", "layer.9.weight").unwrap_err();
    assert!(matches!(error, CheckpointError::NotFound { .. }), "{error}");

    let file = store.export("step_2", 0, Vec::new(), &|_| ()).unwrap();
    let tensors = mithril::safetensors::read(&file).unwrap();
    assert_eq!(tensors.len(), 3);
    for tensor in tensors {
        let bytes = &file[tensor.bytes.start as usize..tensor.bytes.end as usize];
        assert_eq!(bytes, second.tensors[&tensor.name].data);
    }
}

#[test]
fn large_tensors_of_a_chain_are_read_in_pieces_on_any_number_of_threads() {
    let mut run = Run::new(3, 2, 0, 1_200_001);
    let states = [run.step(), run.step(), run.step()];
    for threads in [1, 2, 5] {
        let (store, _) = store(CompressorConfig::default().with_threads(threads));
        store.save(&states[0], "step_0", None).unwrap();
        store.save(&states[1], "step_1", Some("step_0")).unwrap();
        store.save(&states[2], "step_2", Some("step_1")).unwrap();
        assert_eq!(store.manifest("step_2").unwrap().depth(), 2);
        let done = AtomicU64::new(0);
        let count = |len| {
            done.fetch_add(len, Ordering::Relaxed);
        };
        assert_eq!(store.load_with("step_2", &count).unwrap().tensors, states[2].tensors, "{threads}");
        assert_eq!(done.into_inner(), states[2].raw_len(), "all bytes are told of");
        // Not in the order of the file.
        let mut buffers: Vec<(&str, Vec<u8>)> = states[2]
            .tensors
            .iter()
            .rev()
            .map(|(name, tensor)| (&**name, vec![1; tensor.data.len()]))
            .collect();
        let mut borrowed: Vec<(&str, &mut [u8])> =
            buffers.iter_mut().map(|(name, buffer)| (*name, &mut buffer[..])).collect();
        store.load_into("step_2", &mut borrowed).unwrap();
        assert!(buffers.iter().all(|(name, buffer)| states[2].tensors[*name].data == *buffer), "{threads}");
    }
}

#[test]
fn files_come_back_byte_for_byte() {
    let (store, _) = store(CompressorConfig::default());
    let header = br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}   "#;
    let mut first = (header.len() as u64).to_le_bytes().to_vec();
    first.extend(header);
    first.extend([1, 2, 3, 4, 5, 6, 7, 8]);
    let mut second = first.clone();
    *second.last_mut().unwrap() = 99;
    let files: [(&str, &dyn mithril::ReadAt); 2] =
        [("model.safetensors", &first), ("other.safetensors", &second)];
    let meta = store.save_files(&files, "pair", Some(5), &SaveOptions::default()).unwrap();
    assert_eq!((meta.step, meta.original_size), (5, 2 * first.len() as u64));
    assert_eq!(store.export("pair", 0, Vec::new(), &|_| ()).unwrap(), first);
    assert_eq!(store.export("pair", 1, Vec::new(), &|_| ()).unwrap(), second);
    assert!(store.export("pair", 2, Vec::new(), &|_| ()).is_err());
    let options = SaveOptions::default().with_previous(Some("pair"));
    store.save_files(&files[..1], "again", None, &options).unwrap();
    assert_eq!(store.export("again", 0, Vec::new(), &|_| ()).unwrap(), first);
}

#[test]
fn a_copy_in_lower_precision_is_not_stored() {
    let (store, _) = store(CompressorConfig::default());
    let master = weights(9, 100_000);
    let state = Checkpoint::new()
        .with_tensor("master", f32_tensor(&master))
        .with_tensor("model", bf16_tensor(&master))
        .with_tensor("tied", bf16_tensor(&master));
    let meta = store.save(&state, "step_1", None).unwrap();
    assert_eq!(
        meta.kinds[&EntryKind::Derived].n_tensors
            + meta.kinds.get(&EntryKind::Ref).map_or(0, |kind| kind.n_tensors),
        2
    );
    assert_eq!(meta.kinds[&EntryKind::Derived].stored_len, 0);
    assert_eq!(store.load("step_1").unwrap().tensors, state.tensors);
    let moved: Vec<f32> = master.iter().map(|value| value * 1.0001).collect();
    let next =
        Checkpoint::new().with_tensor("master", f32_tensor(&moved)).with_tensor("model", bf16_tensor(&moved));
    let meta = store.save(&next, "step_2", Some("step_1")).unwrap();
    assert_eq!(meta.kinds[&EntryKind::Derived].n_tensors, 1);
    assert_eq!(store.load_tensor("step_2", "model").unwrap(), next.tensors["model"]);
}

#[test]
fn containers_in_memory_come_back() {
    let (store, _) = store(CompressorConfig::default());
    let mut run = Run::new(4, 2, 0, 20_000);
    let (first, second) = (run.step(), run.step());
    store.save(&first, "step_1", None).unwrap();
    let alone = store.compress(&second, None).unwrap();
    let against = store.compress(&second, Some("step_1")).unwrap();
    assert!(against.bytes.len() < alone.bytes.len());
    assert_eq!(store.decompress(&alone).unwrap().tensors, second.tensors);
    assert_eq!(store.decompress(&against).unwrap().tensors, second.tensors);
}
