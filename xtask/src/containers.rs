//! Golden containers: every kind of entry, glue, alignments, and what a packed file may look like.

use crate::inputs::Random;
use mithril::container::{Bases, Entry, EntryKind, Model};
use mithril::pack::{PackOptions, pack};
use mithril::{Dtype, FrameOptions};
use mithril_format::Digest;
use mithril_format::container::{ContainerWriter, Content, Header, Rounding};
use std::io::Write;

type Failure = Box<dyn std::error::Error>;

/// A golden container.
pub(crate) struct Golden {
    pub(crate) name: &'static str,
    pub(crate) container: Vec<u8>,
    /// What restoring gives: the original file, or all tensors one behind the other.
    pub(crate) restored: Vec<u8>,
    /// Names of the golden containers that it needs as bases.
    pub(crate) bases: &'static [&'static str],
}

/// All golden containers. Their contents never change: new data is a new container.
pub(crate) fn all() -> Result<Vec<Golden>, Failure> {
    let base = digests_aligned_4096()?;
    let before = optimiser("moments", Bases::none(), &[])?;
    let model = Model::open("moments", Box::new(before.container.clone()), Bases::none())?;
    let stepped = optimiser("steps", Bases::new([model]), &["v0_1_0_moments.mckp"])?;
    Ok(vec![
        packed("safetensors_odd", odd_file(), PackOptions::default().with_name("odd.safetensors"))?,
        packed(
            "glue_only",
            safetensors(r#"{"__metadata__":{"a":"b"}}  "#, b"of no tensor"),
            PackOptions::default(),
        )?,
        packed(
            "metadata_dictionary",
            named_like_models(),
            PackOptions::default().with_name("model.safetensors"),
        )?,
        empty()?,
        tensors_only()?,
        copies(&base)?,
        deltas(&base)?,
        // Minted again when links got records.
        Golden { name: "recorded_links", ..tensors_only()? },
        Golden { name: "recorded_copies", ..copies(&base)? },
        derived_from_a_reference()?,
        // Minted again when tensors of a few bytes went into the index.
        packed("inline", odd_file(), PackOptions::default().with_name("odd.safetensors"))?,
        base,
        before,
        stepped,
    ])
}

fn packed(name: &'static str, file: Vec<u8>, options: PackOptions) -> Result<Golden, Failure> {
    let (container, _) = pack(&file, Vec::new(), &options, &|_| ())?;
    Ok(Golden { name, container, restored: file, bases: &[] })
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

/// F32 numbers like weights, with some that rounding treats apart.
fn weights(n: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let special = [
        0,
        1 << 31,
        0x7f80_0000,
        0xff80_0001,
        0x7f7f_ffff,
        0x477f_f000,
        0x3880_0001,
        0x3300_0001,
        0x3f80_8000,
    ];
    let number = |i: usize| match special.get(i) {
        Some(&bits) => bits,
        None => random.below(2) << 31 | (126 - random.halving(20)) << 23 | random.below(1 << 23),
    };
    (0..n).map(number).flat_map(|bits| bits.to_le_bytes().into_iter().take(4)).collect()
}

/// What a golden file means by rounding, written down apart from the code that it is to test.
fn to_bf16(wide: &[u8]) -> Vec<u8> {
    let round = |bits: u32| match bits & 0x7fff_ffff {
        0x7f80_0001.. => bits >> 16 | 0x40,
        _ => (bits >> 16) + u32::from(bits & 0xffff > 0x8000 || bits & 0x1_ffff == 0x1_8000),
    };
    let words = wide.as_chunks::<4>().0.iter().map(|word| round(u32::from_le_bytes(*word)));
    words.flat_map(|bits| bits.to_le_bytes().into_iter().take(2)).collect()
}

/// Tensors at places out of order, holes, equal tensors, rounded ones before and behind their master, one of no bytes,
/// one of no dimensions, and one whose name is no name.
fn odd_file() -> Vec<u8> {
    let (master, later) = (weights(600, 1), weights(500, 2));
    let parts: [(&str, &str, &str, Vec<u8>); 9] = [
        ("early", "BF16", "[20,25]", to_bf16(&later)),
        ("master", "F32", "[600]", master.clone()),
        ("scalar", "I64", "[]", 7u64.to_le_bytes().to_vec()),
        ("none", "F32", "[3,0]", Vec::new()),
        ("copy", "BF16", "[600]", to_bf16(&master)),
        ("tied", "F32", "[2,300]", master),
        ("../no name", "U8", "[5]", b"bytes".to_vec()),
        ("later", "F32", "[20,25]", later.clone()),
        ("tied/later", "F32", "[500]", later),
    ];
    let mut data = b"hole".to_vec();
    let mut entries = Vec::new();
    for (name, dtype, shape, raw) in parts {
        let (start, end) = (data.len(), data.len() + raw.len());
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#
        ));
        data.extend(raw);
        if name == "none" {
            data.extend(b"another hole");
        }
    }
    entries.rotate_left(4);
    data.extend(b"the end");
    safetensors(&format!(r#"{{"__metadata__":{{"format":"pt"}}, {}}}   "#, entries.join(",")), &data)
}

/// A file whose header and index are what the dictionary of metadata knows.
fn named_like_models() -> Vec<u8> {
    let names = ["input_layernorm.weight", "mlp.down_proj.weight", "self_attn.q_proj.weight"];
    let mut entries = Vec::new();
    let mut data = Vec::new();
    for layer in 0..4u32 {
        for (place, name) in (0..).zip(names) {
            let start = data.len();
            let first = 0x3d00_0000 + (3 * layer + place) * 262_144;
            data.extend((0..64).flat_map(|i| (first + 4099 * i).to_le_bytes()));
            entries.push(format!(
                r#""model.layers.{layer}.{name}":{{"dtype":"F32","shape":[8,8],"data_offsets":[{start},{}]}}"#,
                data.len()
            ));
        }
    }
    safetensors(&format!(r#"{{"__metadata__":{{"format":"pt"}},{}}}"#, entries.join(",")), &data)
}

fn empty() -> Result<Golden, Failure> {
    let container = ContainerWriter::new(Vec::new(), &Header::default(), 6)?.finish()?.writer;
    Ok(Golden { name: "empty", container, restored: Vec::new(), bases: &[] })
}

/// Many tensors of a file without glue between them, with digests, on pages.
fn digests_aligned_4096() -> Result<Golden, Failure> {
    let mut data = Vec::new();
    let mut entries = Vec::new();
    for i in 0..30 {
        let raw = weights(40 + 11 * usize::from(u8::try_from(i)?), 100 + i);
        let (name, start) = (format!("layers.{i}.weight"), data.len());
        let (n, end) = (raw.len() / 4, start + raw.len());
        entries.push(format!(r#""{name}":{{"dtype":"F32","shape":[{n}],"data_offsets":[{start},{end}]}}"#));
        data.extend(raw);
    }
    let file = safetensors(&format!("{{{}}}", entries.join(",")), &data);
    let mut options = PackOptions::default().with_digests(true).with_name("base.safetensors");
    options.alignment_log2 = 12;
    packed("digests_aligned_4096", file, options)
}

/// Adds an entry with a frame.
fn add_frame(writer: &mut ContainerWriter<Vec<u8>>, entry: Entry, raw: &[u8]) -> Result<(), Failure> {
    let options = FrameOptions::default().with_dtype(entry.dtype).with_shape(entry.shape.clone());
    let mut frame = writer.start_frame(entry)?;
    frame.write_all(&mithril::compress(raw, &options)?)?;
    frame.finish();
    Ok(())
}

/// A container that is no packed file: no alignment, a reference to another dtype, metadata, digests here and there.
fn tensors_only() -> Result<Golden, Failure> {
    let mut header = Header::default();
    header.step = Some(1000);
    header.metadata.insert("run".to_owned(), "golden".into());
    let mut writer = ContainerWriter::new(Vec::new(), &header, 0)?;
    let raw = weights(300, 5);
    let mut entry = Entry::full("w", Dtype::F32, [10, 30]);
    entry.digest = Some(Digest::of(&raw));
    add_frame(&mut writer, entry, &raw)?;
    add_frame(&mut writer, Entry::full("", Dtype::Bool, [3]), &[1, 0, 1])?;
    let mut entry = Entry::full("as/integers", Dtype::I32, [300]);
    entry.content = Content::Ref { entry_idx: 0 };
    writer.add_link(entry)?;
    let mut entry = Entry::full("λ", Dtype::Bf16, [300]);
    entry.digest = Some(Digest::of(&to_bf16(&raw)));
    entry.content = Content::Derived { entry_idx: 0, rounding: Rounding::NearestEven };
    writer.add_link(entry)?;
    let mut entry = Entry::full("tied", Dtype::Bf16, [1, 300]);
    entry.content = Content::Ref { entry_idx: 3 };
    writer.add_link(entry)?;
    let (container, narrow) = (writer.finish()?.writer, to_bf16(&raw));
    let restored = [&raw[..], &[1, 0, 1], &raw, &narrow, &narrow].concat();
    Ok(Golden { name: "tensors_only", container, restored, bases: &[] })
}

/// A tensor that was recorded before it was known that what it is derived from is a reference.
fn derived_from_a_reference() -> Result<Golden, Failure> {
    let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), 0)?;
    let raw: Vec<u8> = (0..20u8).flat_map(|i| (f32::from(i) * 0.3).to_le_bytes()).collect();
    add_frame(&mut writer, Entry::full("first", Dtype::F32, [20]), &raw)?;
    let rounding = Rounding::NearestEven;
    for (name, dtype, content) in [
        ("narrow", Dtype::Bf16, Content::Derived { entry_idx: 2, rounding }),
        ("wide", Dtype::F32, Content::Ref { entry_idx: 0 }),
    ] {
        writer.add_link(Entry { content, ..Entry::full(name, dtype, [4, 5]) })?;
    }
    let restored = [&raw[..], &to_bf16(&raw), &raw].concat();
    Ok(Golden { name: "derived_from_a_reference", container: writer.finish()?.writer, restored, bases: &[] })
}

/// Tensors of a base under their own and under other names, and roundings of them.
fn copies(base: &Golden) -> Result<Golden, Failure> {
    let model = Model::open("base", Box::new(base.container.clone()), Bases::none())?;
    let raw = |idx: usize| model.read(idx);
    let mut writer = ContainerWriter::new(Vec::new(), &Header::default(), 6)?;
    let copy = |name: &str, idx: usize, base_name: Option<String>| -> Result<Entry, Failure> {
        let mut entry = Entry::full(name, Dtype::F32, model.tensors()[idx].shape.clone());
        entry.content = Content::Copy { base: model.digest(idx)?, base_name };
        Ok(entry)
    };
    writer.add_link(copy("layers.4.weight", 4, None)?)?;
    add_frame(&mut writer, Entry::full("new", Dtype::U8, [4]), &[1, 2, 3, 4])?;
    writer.add_link(copy("renamed", 9, Some("layers.9.weight".to_owned()))?)?;
    let mut entry = Entry::full("rounded", Dtype::Bf16, model.tensors()[9].shape.clone());
    entry.content = Content::Derived { entry_idx: 2, rounding: Rounding::NearestEven };
    writer.add_link(entry)?;
    let mut entry = Entry::full("tied", Dtype::F32, model.tensors()[4].shape.clone());
    entry.content = Content::Ref { entry_idx: 0 };
    writer.add_link(entry)?;
    let container = writer.finish()?.writer;
    let restored = [raw(4)?, vec![1, 2, 3, 4], raw(9)?, to_bf16(&raw(9)?), raw(4)?].concat();
    Ok(Golden { name: "copies", container, restored, bases: &["v0_1_0_digests_aligned_4096.mckp"] })
}

/// A training state before or behind a step of Adam: weights, moments, and the rounding of the weights.
fn optimiser(
    name: &'static str,
    bases: Bases,
    base_names: &'static [&'static str],
) -> Result<Golden, Failure> {
    let has_base = !base_names.is_empty();
    let mut random = Random::new(77);
    let mut state = [(); 3].map(|()| Vec::new());
    for _ in 0..700 {
        let mut number =
            || f64::from(u32::try_from(random.next() >> 7).unwrap_or(0)) / f64::from(1 << 24) - 0.5;
        let (mut weight, mut first, mut second) = (0.1 * number(), 1e-3 * number(), 1e-6 * (0.6 + number()));
        let gradient = 1e-3 * number();
        if has_base {
            first = 0.9 * first + 0.1 * gradient;
            second = 0.95 * second + 0.05 * gradient * gradient;
            weight -= 1e-3 * first / (second.sqrt() + 1e-8) + 1e-4 * weight;
        }
        #[expect(clippy::cast_possible_truncation, reason = "a state of F32")]
        let numbers = [weight as f32, first as f32, second as f32];
        state.iter_mut().zip(numbers).for_each(|(bytes, number)| bytes.extend(number.to_le_bytes()));
    }
    // Numbers that no step moves.
    for (i, bits) in [0x7fc0_0001_u32, 0xff80_0000, 0x0000_0001, 0x8000_0000].into_iter().enumerate() {
        state[i % 3][40 * i..][..4].copy_from_slice(&bits.to_le_bytes());
    }
    let narrow = to_bf16(&state[0]);
    let tensors = [
        ("exp_avg.w", "F32", &state[1]),
        ("master.w", "F32", &state[0]),
        ("exp_avg_sq.w", "F32", &state[2]),
        ("model.w", "BF16", &narrow),
    ];
    let (mut data, mut entries) = (Vec::new(), Vec::new());
    for (name, dtype, raw) in tensors {
        let (start, end) = (data.len(), data.len() + raw.len());
        entries
            .push(format!(r#""{name}":{{"dtype":"{dtype}","shape":[700],"data_offsets":[{start},{end}]}}"#));
        data.extend(raw);
    }
    let file = safetensors(&format!("{{{}}}", entries.join(",")), &data);
    let mut options =
        PackOptions::default().with_digests(true).with_bases(bases).with_name("state.safetensors");
    options.from_moments = true;
    let (container, _) = pack(&file, Vec::new(), &options, &|_| ())?;
    let reader = mithril::container::Reader::open(container.clone())?;
    if reader.entries().iter().any(|entry| entry.step().is_some()) != has_base {
        return Err("not the entries that this golden file is for".into());
    }
    Ok(Golden { name, container, restored: file, bases: base_names })
}

/// The base after a little training: most of its tensors as deltas, some as copies, one under another name.
fn deltas(base: &Golden) -> Result<Golden, Failure> {
    let model = Model::open("base.safetensors", Box::new(base.container.clone()), Bases::none())?;
    let mut data = Vec::new();
    let mut entries = Vec::new();
    for (i, tensor) in model.tensors().iter().enumerate().skip(20) {
        let mut raw = model.read(i)?;
        if i % 5 != 0 {
            raw.iter_mut().step_by(28).for_each(|byte| *byte ^= 1);
        }
        let name = if i == 23 { "another.name" } else { &tensor.name };
        let (n, start, end) = (raw.len() / 4, data.len(), data.len() + raw.len());
        entries.push(format!(r#""{name}":{{"dtype":"F32","shape":[{n}],"data_offsets":[{start},{end}]}}"#));
        data.extend(raw);
    }
    let file = safetensors(&format!("{{{}}}", entries.join(",")), &data);
    let options = PackOptions::default().with_bases(Bases::new([model])).with_name("tuned.safetensors");
    let (container, summary) = pack(&file, Vec::new(), &options, &|_| ())?;
    let count = |kind: EntryKind| summary.tensors.iter().filter(|tensor| tensor.kind == kind).count();
    if count(EntryKind::Delta) != 8 || count(EntryKind::Copy) != 2 {
        return Err("not the entries that this golden file is for".into());
    }
    Ok(Golden { name: "deltas", container, restored: file, bases: &["v0_1_0_digests_aligned_4096.mckp"] })
}
