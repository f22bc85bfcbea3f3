//! Finds the base tensor that a tensor is stored against.

use super::layout::Layout;
use super::raw::Raw;
use crate::container::{Bases, Model, OpenTensor};
use crate::{Base, Error, FrameOptions, compress, compress_delta};
use mithril_format::{Digest, TensorInfo};
use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};

/// Bytes at the front of a tensor that tell most tensors apart.
const HEAD_LEN: u64 = 64;

/// Places of a tensor that are tried against a base of another name, and bytes tried at each.
const SAMPLE_PLACES: u64 = 3;
const SAMPLE_LEN: u64 = 16 << 10;

/// Base tensors of other names that are tried at most.
const MAX_TRIED: usize = 32;

/// Looks for base tensors: by name and shape, then by content, then by what a sample gains.
pub(super) struct BaseFinder<'a> {
    bases: &'a Bases,
    /// Names in the file that is packed: a base tensor of such a name belongs to the tensor that has it.
    names: HashSet<&'a str>,
    /// Base tensors by length and first bytes; made when a tensor is not found by name.
    by_head: OnceCell<PlacesByHead>,
    /// Base tensors by length and digest, if all digests are recorded.
    by_digest: OnceCell<Option<PlacesByDigest>>,
    lens: HashSet<u64>,
}

/// A model of the bases and a tensor of that model.
type Place = (usize, usize);

/// Places of tensors by their length and first bytes.
type PlacesByHead = HashMap<(u64, Vec<u8>), Vec<Place>>;

/// The first place of a tensor of this length and digest.
type PlacesByDigest = HashMap<(u64, Digest), Place>;

/// A base tensor.
pub(super) struct BaseTensor<'a> {
    model: &'a Model,
    tensor_idx: usize,
}

impl<'a> BaseTensor<'a> {
    /// What the base calls it, if that is not this name.
    pub(super) fn name_unless(&self, name: &str) -> Option<String> {
        let base_name = &self.model.tensors()[self.tensor_idx].name;
        (base_name != name).then(|| base_name.clone())
    }

    pub(super) fn digest(&self) -> Result<Digest, Error> {
        self.model.digest(self.tensor_idx)
    }

    pub(super) fn open(&self) -> Result<OpenTensor<'a>, Error> {
        self.model.open_tensor(self.tensor_idx)
    }

    /// Whether it has exactly these bytes, whose digest is this if it is known. Two digests are compared where both are
    /// known: the base is not read then.
    fn equals(&self, raw: &Raw<'_>, digest: Option<Digest>) -> Result<bool, Error> {
        if let (Some(digest), Some(base)) = (digest, self.model.known_digest(self.tensor_idx)) {
            return Ok(digest == base);
        }
        let base = self.open()?;
        let mut bytes = Vec::new();
        raw.all_pieces(|at, piece| {
            bytes.resize(piece.len(), 0);
            base.read_range(at..at + piece.len() as u64, &mut bytes, 0)?;
            Ok(bytes == piece)
        })
    }
}

impl<'a> BaseFinder<'a> {
    pub(super) fn new(bases: &'a Bases, layout: &'a Layout) -> Self {
        let names = layout.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let lens = layout.tensors.iter().map(|tensor| tensor.bytes.end - tensor.bytes.start).collect();
        Self { bases, names, by_head: OnceCell::new(), by_digest: OnceCell::new(), lens }
    }

    fn models(&self) -> impl Iterator<Item = &'a Model> + use<'a> {
        self.bases.models().iter().map(|model| &**model)
    }

    fn tensor(&self, (model_idx, tensor_idx): Place) -> BaseTensor<'a> {
        BaseTensor { model: &self.bases.models()[model_idx], tensor_idx }
    }

    /// A base tensor with exactly these bytes: of the same name, else of any. `digest` is theirs if it is known.
    pub(super) fn find_equal(
        &self,
        tensor: &TensorInfo,
        raw: &Raw<'_>,
        digest: Option<Digest>,
    ) -> Result<Option<BaseTensor<'a>>, Error> {
        if self.bases.is_empty() || raw.len() == 0 {
            return Ok(None);
        }
        for model in self.models() {
            if let Some(tensor_idx) = model.find(&tensor.name)
                && model.tensors()[tensor_idx].raw_len == raw.len()
            {
                let base = BaseTensor { model, tensor_idx };
                if base.equals(raw, digest)? {
                    return Ok(Some(base));
                }
            }
        }
        if let (Some(digest), Some(by_digest)) = (digest, self.by_digest()) {
            return Ok(by_digest.get(&(raw.len(), digest)).map(|&place| self.tensor(place)));
        }
        let head = raw.read(0..raw.len().min(HEAD_LEN))?;
        for &place in self.by_head()?.get(&(raw.len(), head)).into_iter().flatten() {
            let base = self.tensor(place);
            if base.equals(raw, digest)? {
                return Ok(Some(base));
            }
        }
        Ok(None)
    }

    fn by_digest(&self) -> Option<&PlacesByDigest> {
        let found = self.by_digest.get_or_init(|| {
            let mut map = HashMap::new();
            for (model_idx, model) in self.models().enumerate() {
                for (tensor_idx, tensor) in model.tensors().iter().enumerate() {
                    let digest = model.known_digest(tensor_idx)?;
                    map.entry((tensor.raw_len, digest)).or_insert((model_idx, tensor_idx));
                }
            }
            Some(map)
        });
        found.as_ref()
    }

    fn by_head(&self) -> Result<&PlacesByHead, Error> {
        if let Some(map) = self.by_head.get() {
            return Ok(map);
        }
        let mut map: HashMap<_, Vec<Place>> = HashMap::new();
        for (model_idx, model) in self.models().enumerate() {
            for (tensor_idx, tensor) in model.tensors().iter().enumerate() {
                if tensor.raw_len == 0 || !self.lens.contains(&tensor.raw_len) {
                    continue;
                }
                let len = tensor.raw_len.min(HEAD_LEN);
                let mut head = vec![0; usize::try_from(len).expect("a few bytes")];
                model.open_tensor(tensor_idx)?.read_range(0..len, &mut head, 1)?;
                map.entry((tensor.raw_len, head)).or_default().push((model_idx, tensor_idx));
            }
        }
        Ok(self.by_head.get_or_init(|| map))
    }

    /// The base tensor of the same name, type and shape.
    pub(super) fn find_named(&self, tensor: &TensorInfo) -> Option<BaseTensor<'a>> {
        self.models().find_map(|model| {
            let tensor_idx = model.find(&tensor.name).filter(|&idx| fits(model, idx, tensor))?;
            Some(BaseTensor { model, tensor_idx })
        })
    }

    /// The base tensor that a delta is most likely small against: of the same name, else the one that gains most on a
    /// sample, if any gains.
    pub(super) fn find_similar(
        &self,
        tensor: &TensorInfo,
        raw: &Raw<'_>,
        options: &FrameOptions,
    ) -> Result<Option<BaseTensor<'a>>, Error> {
        if let Some(base) = self.find_named(tensor) {
            return Ok(Some(base));
        }
        let others = self.models().flat_map(|model| (0..model.tensors().len()).map(move |idx| (model, idx)));
        let others = others.filter(|&(model, idx)| {
            fits(model, idx, tensor) && !self.names.contains(model.tensors()[idx].name.as_str())
        });
        let mut options = options.clone().with_threads(1);
        options.shape = None;
        let mut best = None;
        for (model, tensor_idx) in others.take(MAX_TRIED) {
            let base = BaseTensor { model, tensor_idx };
            let gain = sample_gain(raw, &base, &options)?;
            if gain > best.as_ref().map_or(0, |(gain, _)| *gain) {
                best = Some((gain, base));
            }
        }
        Ok(best.map(|(_, base)| base))
    }
}

fn fits(model: &Model, tensor_idx: usize, tensor: &TensorInfo) -> bool {
    let base = &model.tensors()[tensor_idx];
    base.dtype == tensor.dtype && base.shape == tensor.shape
}

/// Bytes that a delta saves on a few places of a tensor; zero unless it is a tenth of what they take alone.
fn sample_gain(raw: &Raw<'_>, base: &BaseTensor<'_>, options: &FrameOptions) -> Result<usize, Error> {
    let unit = options.dtype.unit_len() as u64;
    let len = raw.len().min(SAMPLE_LEN) / unit * unit;
    let open = base.open()?;
    let (mut alone, mut against) = (0, 0);
    // A tensor of a single piece is looked at once.
    let n_places = if raw.len() <= SAMPLE_LEN { 1 } else { SAMPLE_PLACES };
    for place in 0..n_places {
        let at = (raw.len() - len) * place / (SAMPLE_PLACES - 1) / unit * unit;
        let current = raw.read(at..at + len)?;
        let mut before = vec![0; current.len()];
        open.read_range(at..at + len, &mut before, 1)?;
        alone += compress(&current, options)?.len();
        against += compress_delta(&current, &Base::new(&before), options)?.len();
    }
    Ok(if against * 10 < alone * 9 { alone - against } else { 0 })
}
