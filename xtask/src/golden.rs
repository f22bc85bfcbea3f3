//! Minting of golden files: frames, one per block kind, coder and group of dtypes, and containers.
//!
//! A file is written once and never again. The index is added to; an entry that would change is an error, because
//! then an input has changed, or a file was exchanged.

use crate::inputs::{V0_1_0, column_class, row_class};
use crate::sha256::sha256;
use crate::{Outcome, containers, deltas, ecq, rejected, rejected_containers, repository};
use mithril_codec::block::{
    FieldRecipe, MAX_OVERHEAD, Place, Recipe, Scratch, Shared, SymbolCoder, SymbolTables, encode_block,
};
use mithril_codec::entropy::lz::Compressor;
use mithril_codec::entropy::rans8::{Frequencies, Window};
use mithril_codec::entropy::rans12::FrequencyTable;
use mithril_codec::transform::fields::{FieldSplit, Layout, Order};
use mithril_codec::{Contexts, Dtype, checksum};
use mithril_format::frame::{BlockHeader, FrameHeader, FrameView, Trailer};
use serde_json::{Map, Value, json};
use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};

/// How a golden frame is written.
pub(crate) struct Frame {
    header: FrameHeader,
    recipe: Recipe,
    /// First bytes that the first coded block must have, so that a file holds what its name says.
    starts_with: &'static [u8],
}

impl Frame {
    /// A frame of one block without shape or shared tables.
    fn new(dtype: Dtype, recipe: Recipe, starts_with: &'static [u8]) -> Self {
        let block_len = 1 << 20;
        // Blocks hold whole units.
        let block_len = block_len - block_len % u32::try_from(dtype.unit_len()).unwrap_or(1);
        let shared = Shared::default();
        let (raw_len, checksums) = (Some(0), true);
        let header = FrameHeader { dtype, shape: None, block_len, raw_len, checksums, shared, base: None };
        Self { header, recipe, starts_with }
    }

    /// A matrix in blocks of so many rows, with shared tables.
    fn matrix(mut self, shape: [u64; 2], block_rows: u64, shared: Shared) -> Self {
        let row_len = shape[1] * self.header.dtype.unit_len() as u64;
        self.header.block_len = u32::try_from(block_rows * row_len).unwrap_or(0);
        self.header.shape = Some(shape.to_vec());
        self.header.shared = shared;
        self
    }

    fn with_shape(mut self, shape: &[u64]) -> Self {
        self.header.shape = Some(shape.to_vec());
        self
    }

    fn with_block_len(mut self, block_len: u32) -> Self {
        self.header.block_len = block_len;
        self
    }

    /// As a writer leaves it that does not know the end, and was asked for no checksums.
    fn streamed(mut self) -> Self {
        self.header.raw_len = None;
        self.header.checksums = false;
        self
    }

    /// The bytes of the frame.
    fn write(mut self, raw: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        if let Some(raw_len) = &mut self.header.raw_len {
            *raw_len = raw.len() as u64;
        }
        let checksums = self.header.checksums;
        let mut frame = Vec::new();
        self.header.write(&mut frame);
        let mut trailer = Trailer { coded_lens: Vec::new(), raw_len: raw.len() as u64 };
        let mut scratch = Scratch::new();
        let mut first_byte = 0;
        for block in raw.chunks(self.header.block_len as usize) {
            let mut coded = vec![0; block.len() + MAX_OVERHEAD];
            let place = Place { first_byte, ..Place::default() };
            let len = encode_block(&self.recipe, &self.header.shared, place, block, &mut scratch, &mut coded);
            if first_byte == 0 && !coded[..len].starts_with(self.starts_with) {
                return Err(format!(
                    "coded block starts with {:?}, not {:?}",
                    &coded[..len.min(8)],
                    self.starts_with
                )
                .into());
            }
            push_block(
                &mut frame,
                &mut trailer,
                checksums.then(|| checksum(block)),
                block.len(),
                &coded[..len],
            )?;
            first_byte += block.len() as u64;
        }
        trailer.write(&mut frame);
        Ok(frame)
    }
}

/// Appends a block and notes it for the trailer.
pub(crate) fn push_block(
    frame: &mut Vec<u8>,
    trailer: &mut Trailer,
    checksum: Option<u64>,
    raw_len: usize,
    coded: &[u8],
) -> Outcome {
    let (coded_len, raw_len) = (u32::try_from(coded.len())?, u32::try_from(raw_len)?);
    let at = frame.len();
    frame.resize(at + BlockHeader::len(checksum.is_some()), 0);
    BlockHeader { coded_len, raw_len, checksum: checksum.unwrap_or(0) }
        .write(checksum.is_some(), &mut frame[at..]);
    frame.extend(coded);
    trailer.coded_lens.push(coded_len);
    Ok(())
}

/// Writes what is missing under `golden/`.
pub(crate) fn mint() -> Outcome {
    fs::create_dir_all(repository("golden/rejected"))?;
    let index_path = repository("golden/index.json");
    let mut index: Value = match fs::read(&index_path) {
        Ok(bytes) => serde_json::from_slice(&bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound => json!({ "frames": {}, "rejected": {} }),
        Err(error) => return Err(error.into()),
    };
    for (name, input) in V0_1_0 {
        let raw = input();
        let file = format!("v0_1_0_{name}.mthf");
        let frame = frame(name, &raw).ok_or_else(|| format!("no frame for {name}"))?;
        let bytes = frame.write(&raw).map_err(|error| format!("{file}: {error}"))?;
        if decode(&bytes)? != raw {
            return Err(format!("{file} does not decode to its input").into());
        }
        write_once(&format!("golden/{file}"), &bytes)?;
        add(&mut index["frames"], &file, json!({ "raw_len": raw.len(), "sha256": sha256(&raw) }))?;
    }
    for (name, expected, bytes) in rejected::frames()? {
        let file = format!("{name}.mthf");
        write_once(&format!("golden/rejected/{file}"), &bytes)?;
        let (kind, error) = expected;
        add(&mut index["rejected"], &file, json!({ "kind": kind, "error": error }))?;
    }
    mint_deltas(&mut index)?;
    mint_containers(&mut index)?;
    mint_ecq(&mut index)?;
    let mut text = serde_json::to_string_pretty(&index)?;
    text.push('\n');
    fs::write(&index_path, text)?;
    Ok(())
}

fn mint_deltas(index: &mut Value) -> Outcome {
    if index["deltas"].is_null() {
        index["deltas"] = json!({});
    }
    fs::create_dir_all(repository("golden/deltas"))?;
    for golden in deltas::all()? {
        let file = format!("v0_1_0_{}.mthf", golden.name);
        write_once(&format!("golden/deltas/{file}"), &golden.frame)?;
        let base = format!("v0_1_0_{}.mthf", golden.base);
        let entry = json!({ "raw_len": golden.raw.len(), "sha256": sha256(&golden.raw), "base": base });
        add(&mut index["deltas"], &file, entry)?;
    }
    Ok(())
}

fn mint_containers(index: &mut Value) -> Outcome {
    for section in ["containers", "rejected_containers"] {
        if index[section].is_null() {
            index[section] = json!({});
        }
    }
    for golden in containers::all()? {
        let file = format!("v0_1_0_{}.mckp", golden.name);
        write_once(&format!("golden/{file}"), &golden.container)?;
        let mut entry = json!({ "raw_len": golden.restored.len(), "sha256": sha256(&golden.restored) });
        if !golden.bases.is_empty() {
            entry["bases"] = json!(golden.bases);
        }
        add(&mut index["containers"], &file, entry)?;
    }
    for (name, (kind, error), bytes) in rejected_containers::containers() {
        let file = format!("{name}.mckp");
        write_once(&format!("golden/rejected/{file}"), &bytes)?;
        add(&mut index["rejected_containers"], &file, json!({ "kind": kind, "error": error }))?;
    }
    Ok(())
}

fn mint_ecq(index: &mut Value) -> Outcome {
    if index["ecq"].is_null() {
        index["ecq"] = json!({});
    }
    fs::create_dir_all(repository("golden/ecq"))?;
    for golden in ecq::all()? {
        let file = format!("v0_1_0_{}.safetensors", golden.name);
        write_once(&format!("golden/ecq/{file}"), &golden.file)?;
        let entry = json!({ "raw_len": golden.restored.len(), "sha256": sha256(&golden.restored) });
        add(&mut index["ecq"], &file, entry)?;
    }
    Ok(())
}

fn decode(frame: &[u8]) -> Result<Vec<u8>, mithril_format::FormatError> {
    let view = FrameView::parse(frame)?;
    let mut raw = Vec::new();
    for (block_idx, entry) in view.blocks().iter().enumerate() {
        let start = raw.len();
        raw.resize(start + entry.header.raw_len as usize, 0);
        view.decode_block(block_idx, None, &mut raw[start..], &mut Scratch::new())?;
    }
    Ok(raw)
}

/// Writes a file unless it exists.
fn write_once(path: &str, bytes: &[u8]) -> Outcome {
    match OpenOptions::new().write(true).create_new(true).open(repository(path)) {
        Ok(mut file) => {
            file.write_all(bytes)?;
            eprintln!("{path}: {} bytes", bytes.len());
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(format!("{path}: {error}").into()),
    }
}

/// Adds an entry to a section of the index; an entry that is there must be the same.
fn add(section: &mut Value, file: &str, entry: Value) -> Outcome {
    let section: &mut Map<String, Value> =
        section.as_object_mut().ok_or("golden/index.json is not an index")?;
    match section.get(file) {
        Some(there) if *there != entry => {
            Err(format!("golden/index.json says {there} about {file}, not {entry}").into())
        }
        Some(_) => Ok(()),
        None => {
            section.insert(file.to_owned(), entry);
            Ok(())
        }
    }
}

/// The frame of a golden file.
fn frame(name: &str, raw: &[u8]) -> Option<Frame> {
    let zstd = vec![Compressor::Zstd { level: 3 }];
    Some(match name {
        "bytes_empty" => Frame::new(Dtype::Bytes, Recipe::Stored, &[]),
        "f32_empty_shape" => Frame::new(Dtype::F32, Recipe::Stored, &[]).with_shape(&[3, 0, 2]),
        "f32_scalar" => Frame::new(Dtype::F32, Recipe::Stored, &[0]).with_shape(&[]),
        "bytes_stored" => Frame::new(Dtype::Bytes, Recipe::Stored, &[0]).with_block_len(500),
        "bytes_constant" => Frame::new(Dtype::Bytes, Recipe::Stored, &[1]),
        "bf16_symbols_constant" | "bf16_rans8_one_stream" => {
            Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b101])
        }
        "bf16_rans8_four_streams" => {
            Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b1_0101]).with_shape(&[16416])
        }
        "f16_rans8_four_streams" => {
            Frame::new(Dtype::F16, fields(Dtype::F16)?, &[2, 0b1_0101]).with_shape(&[128, 128])
        }
        "f16_listed_four_streams" => Frame::new(Dtype::F16, listed(), &[2, 0b1_0001, 10]),
        "f16_listed_one_stream" => Frame::new(Dtype::F16, listed(), &[2, 1, 10]),
        "f16_joint_dead" => {
            let recipe = FieldRecipe { joint: 2, ..field_recipe(Dtype::F16)? };
            Frame::new(Dtype::F16, Recipe::Fields(recipe), &[2, 0b101, 10, 2, 1])
        }
        "f32_rans8_four_streams" => Frame::new(Dtype::F32, fields(Dtype::F32)?, &[2, 0b1_0110, 23, 0, 0]),
        "f32_dead_bits" => Frame::new(Dtype::F32, fields(Dtype::F32)?, &[2, 0b1_0110, 23, 0, 13]),
        "f64_two_byte_escapes" => {
            let recipe = FieldRecipe { base: 900, ..field_recipe(Dtype::F64)? };
            Frame::new(Dtype::F64, Recipe::Fields(recipe), &[2, 0b111, 52, 0, 0, 0x84, 3])
        }
        "c64_pairs" => Frame::new(Dtype::C64, fields(Dtype::C64)?, &[2, 0b110]).with_shape(&[450]),
        "c64_shared_rans8" => {
            let contexts = classes(40, 100);
            let tables = rans8_tables(&contexts, field_recipe(Dtype::C64)?, raw);
            let shared = Shared::new(Some((contexts, tables)), None);
            Frame::new(Dtype::C64, fields(Dtype::C64)?, &[2, 0b110]).matrix([40, 50], 20, shared)
        }
        "f8_e4m3_four_streams" => Frame::new(Dtype::F8E4m3, fields(Dtype::F8E4m3)?, &[2, 0b100]),
        "f8_e5m2_one_stream" => Frame::new(Dtype::F8E5m2, fields(Dtype::F8E5m2)?, &[2, 0b100]),
        "f8_e8m0_two_segments" => Frame::new(Dtype::F8E8m0, fields(Dtype::F8E8m0)?, &[2, 0]),
        "i8_flip_four_streams" => Frame::new(Dtype::I8, fields(Dtype::I8)?, &[2, 0b1000]),
        "u8_one_stream" => Frame::new(Dtype::U8, fields(Dtype::U8)?, &[2, 0]),
        "bf16_rans12_joint" => Frame::new(Dtype::Bf16, Recipe::Fields(joint()?), &[2, 0b101, 7, 2]),
        "bf16_shared_rans8" => {
            let contexts = classes(96, 64);
            let tables = rans8_tables(&contexts, field_recipe(Dtype::Bf16)?, raw);
            let shared = Shared::new(Some((contexts, tables)), None);
            Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b101]).matrix([96, 64], 32, shared)
        }
        "bf16_shared_rans12_joint" => {
            let contexts = classes(128, 100);
            let tables = rans12_tables(&contexts, joint()?, raw)?;
            let shared = Shared::new(Some((contexts, tables)), None);
            Frame::new(Dtype::Bf16, Recipe::Fields(joint()?), &[2, 0b101, 7, 2]).matrix(
                [128, 100],
                80,
                shared,
            )
        }
        "bf16_classed_rans8" => {
            let shared = Shared::new(Some((classes(120, 70), SymbolTables::Rans8PerBlock)), None);
            Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b101]).matrix([120, 70], 70, shared)
        }
        "bf16_classed_four_columns" => halving_columns(40, 61, 4)?,
        "bf16_classed_eight_columns" => halving_columns(20, 260, 8)?,
        "bf16_shared_coded_signs" => {
            let contexts = classes(90, 75);
            let tables = rans8_tables(&contexts, field_recipe(Dtype::Bf16)?, raw);
            let sign_contexts = Contexts::new(row_classes(90), vec![0; 75]);
            let quads = quad_tables(&sign_contexts, 2, raw);
            let shared = Shared::new(Some((contexts, tables)), Some((sign_contexts, quads)));
            Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b10_0101]).matrix([90, 75], 60, shared)
        }
        "f16_signs_only" => {
            let contexts = Contexts::new(row_classes(40), vec![0; 100]);
            let quads = quad_tables(&contexts, 2, raw);
            let shared = Shared::new(None, Some((contexts, quads)));
            Frame::new(Dtype::F16, fields(Dtype::F16)?, &[2, 0b10_0101]).matrix([40, 100], 40, shared)
        }
        "f32_rows" => {
            let contexts = classes(48, 80);
            let tables = rans8_tables(&contexts, field_recipe(Dtype::F32)?, raw);
            let shared = Shared::new(Some((contexts, tables)), None);
            Frame::new(Dtype::F32, Recipe::Rows(field_recipe(Dtype::F32)?), &[6, 4]).matrix(
                [48, 80],
                24,
                shared,
            )
        }
        "f32_coded_low" => {
            let recipe = FieldRecipe { coded_low: true, ..field_recipe(Dtype::F32)? };
            Frame::new(Dtype::F32, Recipe::Fields(recipe), &[2, 0b1001_0110, 23, 0, 16])
        }
        "f32_rows_coded_low" => {
            let recipe = FieldRecipe { coded_low: true, ..field_recipe(Dtype::F32)? };
            let shared = Shared::new(Some((classes(48, 80), SymbolTables::Rans8PerBlock)), None);
            Frame::new(Dtype::F32, Recipe::Rows(recipe), &[6, 4]).matrix([48, 80], 48, shared)
        }
        "bf16_no_length_no_checksums" => Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b101])
            .with_block_len(4096)
            .streamed()
            .with_shape(&[3000]),
        "i32_planes_zstd" => Frame::new(Dtype::I32, planes(4, zstd), &[3, 4, 5]),
        "i64_planes" => Frame::new(Dtype::I64, planes(8, Vec::new()), &[3, 8]),
        "u16_planes_huffman" => Frame::new(Dtype::U16, planes(2, Vec::new()), &[3, 2, 3]),
        "i16_planes_huffman_one_stream" => Frame::new(Dtype::I16, planes(2, Vec::new()), &[3, 2, 3]),
        "bytes_planes_rans12" => Frame::new(Dtype::Bytes, planes(1, Vec::new()), &[3, 1, 4]),
        "bytes_planes_lz4" => Frame::new(Dtype::Bytes, planes(1, vec![Compressor::Lz4]), &[3, 1, 6]),
        "bytes_planes_brotli" => {
            Frame::new(Dtype::Bytes, planes(1, vec![Compressor::Brotli { quality: 9 }]), &[3, 1, 7])
        }
        "f4_nibbles_rans8" => Frame::new(Dtype::F4, planes(0, Vec::new()), &[3, 0, 2]),
        "f6_planes_width_three" => {
            Frame::new(Dtype::F6E2m3, planes(3, Vec::new()), &[3, 3]).with_shape(&[2800])
        }
        "q4_1_planes_of_runs" => {
            let recipe = Recipe::Runs { run_lens: Dtype::Q4_1.run_lens(), compressors: Vec::new() };
            Frame::new(Dtype::Q4_1, recipe, &[3, 20, 5, 1, 1, 1, 1, 16]).with_shape(&[3, 3200])
        }
        "bool_planes_rans8" => Frame::new(Dtype::Bool, planes(1, Vec::new()), &[3, 1, 2]).with_shape(&[5000]),
        "f32_palette" => {
            let otherwise = Box::new(Recipe::Stored);
            Frame::new(Dtype::F32, Recipe::Palette { width: 4, compressors: Vec::new(), otherwise }, &[4, 4])
        }
        "f32_sparse" => {
            let nonzero = Box::new(fields(Dtype::F32)?);
            Frame::new(Dtype::F32, Recipe::Sparse { width: 4, nonzero }, &[5, 4])
        }
        _ => return None,
    })
}

/// A matrix whose last classes of columns are small, with tables per block.
fn halving_columns(n_rows: u64, n_columns: u64, n_classes: u64) -> Option<Frame> {
    // Each class has half as many columns as the one before; the last ones hardly any.
    let class = |column: u64| u64::from((column + 1).trailing_zeros()).min(n_classes - 1);
    let columns = (0..n_columns).map(|column| class(column).to_le_bytes()[0]).collect();
    let contexts = Contexts::new(row_classes(n_rows), columns);
    let shared = Shared::new(Some((contexts, SymbolTables::Rans8PerBlock)), None);
    Some(Frame::new(Dtype::Bf16, fields(Dtype::Bf16)?, &[2, 0b101]).matrix(
        [n_rows, n_columns],
        n_rows,
        shared,
    ))
}

/// A layout with nothing joint and nothing below coded.
fn plain(layout: Layout, coder: SymbolCoder) -> FieldRecipe {
    FieldRecipe { layout, joint: 0, base: 0, coder, coded_low: false }
}

fn field_recipe(dtype: Dtype) -> Option<FieldRecipe> {
    Some(plain(dtype.layout()?, SymbolCoder::Rans8))
}

fn fields(dtype: Dtype) -> Option<Recipe> {
    Some(Recipe::Fields(field_recipe(dtype)?))
}

/// Half floats whose sign is part of the top field.
fn listed() -> Recipe {
    let layout = Layout { width: 2, mantissa: 10, sign: false, flip: false };
    Recipe::Fields(plain(layout, SymbolCoder::Rans8Listed))
}

/// bf16 with two mantissa bits beside the exponent: ten bits, of which a plane holds those from 300 on.
fn joint() -> Option<FieldRecipe> {
    Some(FieldRecipe { joint: 2, base: 300, ..plain(Layout::float(2, 7), SymbolCoder::Rans12) })
}

fn planes(width: u8, compressors: Vec<Compressor>) -> Recipe {
    Recipe::Planes { width, compressors }
}

fn row_classes(n_rows: u64) -> Vec<u8> {
    (0..n_rows).map(|row| row_class(row).to_le_bytes()[0]).collect()
}

fn classes(n_rows: u64, n_columns: u64) -> Contexts {
    Contexts::new(
        row_classes(n_rows),
        (0..n_columns).map(|column| column_class(column).to_le_bytes()[0]).collect(),
    )
}

/// What a plane holds of every element, by context.
fn plane_counts(contexts: &Contexts, recipe: FieldRecipe, raw: &[u8]) -> Vec<[u32; 256]> {
    let split = FieldSplit { joint: recipe.joint, ..FieldSplit::plain(recipe.layout, Order::Natural) };
    let mut counts = vec![[0; 256]; contexts.n_contexts()];
    for (i, element) in raw.chunks_exact(usize::from(recipe.layout.width)).enumerate() {
        let mut word = [0; 8];
        word[..element.len()].copy_from_slice(element);
        let index = split.top(u64::from_le_bytes(word)).saturating_sub(u64::from(recipe.base)).min(255);
        let context = contexts.context(i / contexts.row_len(), i % contexts.row_len());
        counts[context][usize::from(index.to_le_bytes()[0])] += 1;
    }
    counts
}

fn rans8_tables(contexts: &Contexts, recipe: FieldRecipe, raw: &[u8]) -> SymbolTables {
    let window = |counts: &[u32; 256]| {
        let largest = (0u8..=255).rev().find(|&value| counts[usize::from(value)] > 100).unwrap_or(15);
        let offset = largest.saturating_sub(15);
        let mut sixteen = [0; 16];
        sixteen.copy_from_slice(&counts[usize::from(offset)..usize::from(offset) + 16]);
        Window::from_counts(offset, sixteen)
    };
    SymbolTables::Rans8(plane_counts(contexts, recipe, raw).iter().map(window).collect())
}

fn rans12_tables(contexts: &Contexts, recipe: FieldRecipe, raw: &[u8]) -> Option<SymbolTables> {
    let counts = plane_counts(contexts, recipe, raw);
    Some(SymbolTables::rans12(counts.iter().map(FrequencyTable::from_counts).collect::<Option<_>>()?))
}

/// How often each pattern of four signs occurs among columns of one class; every pattern gets a frequency.
fn quad_tables(contexts: &Contexts, width: usize, raw: &[u8]) -> Vec<Frequencies> {
    let mut counts = vec![[1; 16]; contexts.n_contexts()];
    let row_len = contexts.row_len();
    for (row, bytes) in raw.chunks_exact(row_len * width).enumerate() {
        for four in bytes.chunks_exact(4 * width) {
            let signs = four.chunks_exact(width).map(|element| usize::from(element[width - 1] >> 7));
            let quad = signs.enumerate().map(|(i, sign)| sign << i).sum::<usize>();
            counts[contexts.context(row, 0)][quad] += 1;
        }
    }
    counts.iter().map(Frequencies::from_counts).collect()
}
