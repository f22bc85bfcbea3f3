//! A million tensors: in seconds, and with memory in proportion.

use super::{Tensor, check_restored, file_of, packed, safetensors, unpacked};
use mithril::container::{Bases, Entry, Reader};
use mithril::pack::unpack;
use mithril::{Dtype, FrameOptions, compress};
use mithril_format::container::{ContainerWriter, Content, Header};
use std::io::Write;
use std::time::{Duration, Instant};

/// Far more than it takes, which is seconds, also on a busy machine; far less than anything quadratic, which is hours.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn a_million_tensors_open_in_seconds_and_half_a_kilobyte_each() {
    let n = 1_000_000;
    let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), 6).unwrap();
    let raw =
        compress(&[1, 2, 3, 4], &FrameOptions::default().with_dtype(Dtype::F32).with_shape([1])).unwrap();
    let mut frame = writer.start_frame(Entry::full("first", Dtype::F32, [1])).unwrap();
    frame.write_all(&raw).unwrap();
    frame.finish();
    let start = Instant::now();
    for i in 1..n {
        let mut entry = Entry::full(format!("model.layers.{i}.weight"), Dtype::F32, [1]);
        entry.content = Content::Ref { entry_idx: 0 };
        writer.add_link(entry).unwrap();
    }
    let container = writer.finish().unwrap().writer;
    let mut reader = None;
    let allocated =
        allocation_counter::measure(|| reader = Some(Reader::open(container.as_slice()).unwrap()));
    let reader = reader.unwrap();
    assert_eq!(reader.entries().len(), n);
    let wanted = reader.find("model.layers.999999.weight").unwrap();
    assert_eq!(reader.read(wanted, &Bases::none()).unwrap(), [1, 2, 3, 4]);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
    assert!(allocated.bytes_max < 512 * n as u64, "{} bytes", allocated.bytes_max);
}

#[test]
fn tiny_tensors_take_no_more_than_in_their_file() {
    let n = 100_000u32;
    let tensor = |i: u32| {
        let raw = (0..4).flat_map(|k| (i ^ k << 28).wrapping_mul(0x9E37_79B9).to_le_bytes()).collect();
        Tensor::new(&format!("model.layers.{i}.weight"), Dtype::F32, &[4], raw)
    };
    let file = safetensors(&(0..n).map(tensor).collect::<Vec<_>>());
    let (container, _) = packed(&file);
    assert!(container.len() <= file.len(), "{} of {} bytes", container.len(), file.len());
    let mut reader = None;
    let allocated =
        allocation_counter::measure(|| reader = Some(Reader::open(container.as_slice()).unwrap()));
    assert!(allocated.bytes_max < 512 * u64::from(n), "{} bytes", allocated.bytes_max);
    assert!(unpack(&reader.unwrap(), Vec::new(), &Bases::none(), 1, &|_| ()).unwrap().0 == file);
}

#[test]
fn files_of_many_tensors_come_back_in_seconds() {
    // Two of three are stored, one is a reference.
    let tensors: Vec<Tensor> = (0..60_000u32)
        .map(|i| {
            let value = if i % 3 == 2 { i - 1 } else { i };
            Tensor::new(&format!("tensor {i}"), Dtype::U32, &[], value.to_le_bytes().to_vec())
        })
        .collect();
    let file = safetensors(&tensors);
    let start = Instant::now();
    let (container, _) = packed(&file);
    let reader = Reader::open(container.as_slice()).unwrap();
    assert!(unpack(&reader, Vec::new(), &Bases::none(), 1, &|_| ()).unwrap().0 == file);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn files_of_many_holes_come_back_in_seconds() {
    let mut data = Vec::new();
    let mut entries = Vec::new();
    for i in 0..30_000u32 {
        data.extend([0x55, i.to_le_bytes()[0]]);
        let tensor = Tensor::new(&format!("tensor {i}"), Dtype::U8, &[0], Vec::new());
        entries.push(tensor.json(data.len()));
    }
    let file = file_of(&format!("{{{}}}", entries.join(",")), &data);
    let (container, _) = packed(&file);
    let start = Instant::now();
    assert!(unpacked(&container).unwrap() == file);
    assert!(start.elapsed() < LIMIT, "{:?}", start.elapsed());
}

#[test]
fn a_small_tensor_costs_200_bytes_beside_its_frame_at_most() {
    let names =
        ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "mlp.up_proj.bias", "input_layernorm.weight"];
    let tensors: Vec<Tensor> = (0..400)
        .map(|i| {
            let name = format!("model.layers.{}.{}", i / 4, names[i % 4]);
            Tensor::weights(&name, Dtype::Bf16, 64, i as u64 + 1)
        })
        .collect();
    let file = safetensors(&tensors);
    check_restored("small tensors", &file, &tensors[..5]);
    let (container, summary) = packed(&file);
    let frames: u64 = summary.tensors.iter().map(|tensor| tensor.stored_len).sum();
    let overhead = (container.len() as u64 - frames) / tensors.len() as u64;
    // What the file's own header takes is in it.
    assert!(overhead <= 200, "{overhead} bytes for each tensor");
}
