use super::*;
use crate::container::Bases;
use crate::pack::{PackOptions, pack};
use serde_json::json;

/// A safetensors file of these tensors: name, dtype, shape, bytes.
fn file(tensors: &[(&str, &str, &[u64], Vec<u8>)]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}

fn model(file: Vec<u8>) -> Model {
    Model::open("model", Box::new(file), Bases::none()).unwrap()
}

fn packed(file: &[u8]) -> Model {
    model(pack(&file, Vec::new(), &PackOptions::default(), &|_| ()).unwrap().0)
}

fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

#[test]
fn packed_model_equals_the_file_it_was_made_of() {
    let plain = file(&[
        ("weights", "F32", &[300, 1000], f32s((0..300_000u32).map(|i| (i as f32).sin()))),
        ("empty", "F32", &[0], Vec::new()),
    ]);
    let outcomes = compare(&model(plain.clone()), &packed(&plain), 1, &|_| ()).unwrap();
    assert!(outcomes.iter().all(|pair| pair.outcome == Outcome::Same), "{outcomes:?}");
    assert_eq!(outcomes.len(), 2);
}

#[test]
fn each_kind_of_difference_is_named() {
    let values = f32s([1.0, 2.0, 3.0]);
    let a = file(&[
        ("same", "F32", &[3], values.clone()),
        ("changed", "F32", &[3], values.clone()),
        ("reshaped", "F32", &[3], values.clone()),
        ("gone", "F32", &[3], values.clone()),
    ]);
    let b = file(&[
        ("same", "F32", &[3], values.clone()),
        ("changed", "F32", &[3], f32s([1.0, 2.5, 3.0])),
        ("reshaped", "F32", &[1, 3], values.clone()),
        ("new", "F32", &[3], values),
    ]);
    let (a, b) = (model(a), model(b));
    let found = compare(&a, &b, 1, &|_| ()).unwrap();
    let outcome = |name: &str| &found.iter().find(|pair| pair.name == name).unwrap().outcome;
    assert_eq!(*outcome("same"), Outcome::Same);
    assert_eq!(*outcome("changed"), Outcome::Different { first_offset: 6 });
    assert_eq!(*outcome("reshaped"), Outcome::OtherType);
    assert_eq!(*outcome("gone"), Outcome::OnlyInA);
    assert_eq!(*outcome("new"), Outcome::OnlyInB);
    assert_eq!(found.len(), 5);
}

#[test]
fn distances_count_and_measure_what_changed() {
    let a = model(file(&[
        ("f32", "F32", &[4], f32s([1.0, 2.0, f32::INFINITY, 0.0])),
        ("i8", "I8", &[3], vec![0x80, 0, 1]),
        ("f4", "F4", &[4], vec![0x21, 0x43]),
    ]));
    let b = model(file(&[
        ("f32", "F32", &[4], f32s([1.0, 2.5, 1.0, -0.0])),
        ("i8", "I8", &[3], vec![0x7f, 0, 1]),
        ("f4", "F4", &[4], vec![0x21, 0x44]),
    ]));
    let found = diff(&a, &b, 1, &|_| ()).unwrap();
    let distance = |name: &str| match found.iter().find(|pair| pair.name == name).unwrap().outcome {
        Outcome::Apart(distance) => distance,
        ref other => panic!("{name}: {other:?}"),
    };
    let f32 = distance("f32");
    assert_eq!((f32.n_elements, f32.n_changed, f32.n_not_finite), (4, 3, 1));
    assert_eq!((f32.max_abs, f32.mean_abs), (Some(0.5), 0.125));
    assert_eq!(f32.max_ulp, Some(0x7f80_0000 - 0x3f80_0000));
    let i8 = distance("i8");
    assert_eq!((i8.n_changed, i8.max_abs, i8.max_ulp), (1, Some(255.0), Some(255)));
    let f4 = distance("f4");
    assert_eq!((f4.n_elements, f4.n_changed, f4.max_ulp), (4, 1, Some(1)));
    assert_eq!(f4.max_abs, Some(0.5));
}

#[test]
fn change_map_shows_where_elements_changed() {
    let values: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let mut changed = values.clone();
    changed[500..750].iter_mut().for_each(|value| *value += 1.0);
    let a = model(file(&[("w", "F32", &[1000], f32s(values))]));
    let b = model(file(&[("w", "F32", &[1000], f32s(changed))]));
    let map = change_map(&a.open_tensor(0).unwrap(), &b.open_tensor(0).unwrap(), 4, 4, 1).unwrap();
    assert_eq!(map, [0.0, 0.0, 1.0, 0.0]);
}
