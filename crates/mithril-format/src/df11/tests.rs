use super::*;

fn tensor(name: &str, dtype: Dtype, shape: &[u64]) -> TensorInfo {
    let len = dtype.len_of(shape.iter().product()).unwrap();
    TensorInfo { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes: 0..len }
}

fn module(name: &str) -> Vec<TensorInfo> {
    let shape = |part: Part| if part == Part::Luts { vec![3, 256] } else { vec![8] };
    Part::ALL.map(|part| tensor(&format!("{name}.{}", part.name()), part.dtype(), &shape(part))).to_vec()
}

#[test]
fn modules_are_found_by_name_and_all_else_is_left() {
    let mut tensors = module("layers.1.up");
    tensors.insert(2, tensor("norm.weight", Dtype::Bf16, &[4]));
    // Only the coded exponents make a module: these are somebody else's tensors.
    tensors.push(tensor("other.gaps", Dtype::F32, &[4, 4]));
    tensors.extend(module("embed"));
    let (modules, others) = modules(&tensors).unwrap();
    assert_eq!(
        modules.iter().map(|module| module.name.as_str()).collect::<Vec<_>>(),
        ["embed", "layers.1.up"]
    );
    assert_eq!(tensors[modules[1].tensor(Part::Gaps)].name, "layers.1.up.gaps");
    assert_eq!(
        others.iter().map(|&idx| tensors[idx].name.as_str()).collect::<Vec<_>>(),
        ["norm.weight", "other.gaps"]
    );
}

#[test]
fn modules_that_lack_a_part_or_have_a_wrong_one_are_refused_by_name() {
    for (missing, part) in Part::ALL.into_iter().enumerate() {
        let mut tensors = module("up");
        tensors.remove(missing);
        if part == Part::EncodedExponent {
            assert!(modules(&tensors).unwrap().0.is_empty());
            continue;
        }
        let error = modules(&tensors).unwrap_err().to_string();
        assert!(error.contains("`up`") && error.contains(part.name()), "{error}");
    }
    for wrong in [tensor("up.gaps", Dtype::I8, &[8]), tensor("up.luts", Dtype::U8, &[768])] {
        let mut tensors = module("up");
        tensors.retain(|tensor| tensor.name != wrong.name);
        tensors.push(wrong.clone());
        let error = modules(&tensors).unwrap_err().to_string();
        assert!(error.contains(&wrong.name), "{error}");
    }
}

#[test]
fn split_positions_give_the_sizes_back() {
    for sizes in [vec![5], vec![3, 0, 9], vec![1, 2, 3, 4]] {
        let bytes = split_positions(&sizes);
        assert_eq!(bytes.len(), 8 * (sizes.len() - 1));
        assert_eq!(weight_sizes("up", &bytes, sizes.iter().sum()).unwrap(), sizes);
    }
    let positions =
        |list: &[i64]| list.iter().flat_map(|position| position.to_le_bytes()).collect::<Vec<u8>>();
    for wrong in [positions(&[4, 3]), positions(&[-1]), positions(&[11]), vec![0; 7]] {
        let error = weight_sizes("up", &wrong, 10).unwrap_err().to_string();
        assert!(error.contains("`up`"), "{error}");
    }
}
