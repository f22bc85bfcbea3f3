//! The globals that a checkpoint may name, and what each means here. None of them is ever looked up or run.

use mithril_codec::Dtype;

/// How the elements of a storage or tensor lie in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Elements {
    pub(super) dtype: Dtype,
    /// Bytes of one element.
    pub(super) len: u64,
}

impl Elements {
    /// What they are in a file of this byte order: numbers whose bytes are turned round are just bytes.
    pub(super) fn in_order(self, is_big_endian: bool) -> Self {
        if is_big_endian && self.len > 1 { Self { dtype: Dtype::Bytes, ..self } } else { self }
    }

    /// Numbers per element, where that is not one: a last dimension of the shape.
    pub(super) fn parts(self) -> Option<u64> {
        let parts = 8 * self.len / u64::from(self.dtype.bits());
        (parts != 1).then_some(parts)
    }

    /// The dtype and number of elements of so many bytes in one dimension.
    pub(super) fn flat(self, len: u64) -> (Dtype, u64) {
        (self.dtype, 8 * len / u64::from(self.dtype.bits()))
    }
}

/// A known global.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    /// A storage type, which stands in the name of a storage.
    Storage(Elements),
    /// A dtype.
    Dtype(Elements),
    /// A dictionary type: called, it makes a dictionary.
    Dict,
    /// `set`, `list` and the like: called with a list, it is that list.
    Sequence,
    /// `torch.Size`: called with a tuple, it is that tuple.
    Size,
    /// `_rebuild_tensor` and its later versions, from storage, offset, size, stride.
    RebuildTensor,
    /// As above with the dtype behind.
    RebuildTensorWithDtype,
    /// Functions that wrap the tensor that is their first argument.
    RebuildFromFirst,
    /// A function with the arguments of another behind it: function, type, arguments, state.
    RebuildFromType,
    /// A function of several tensors: what it makes is its arguments.
    RebuildFromParts,
    /// Something plain without tensors: what it is called with does not matter.
    Plain,
    /// The class of a layer: what it is made of and given as state may hold tensors.
    Layer,
}

/// The global of this name, if a checkpoint may use it.
pub(super) fn known(module: &str, name: &str) -> Option<Global> {
    // Classes of TorchScript stand in the file itself; both are data here, and are not looked up.
    let is_layer = module.starts_with("__torch__") || module.starts_with("torch.nn.modules.");
    if is_layer { Some(Global::Layer) } else { plain(module, name) }
}

fn plain(module: &str, name: &str) -> Option<Global> {
    Some(match (module, name) {
        ("collections", "OrderedDict" | "defaultdict" | "Counter") => Global::Dict,
        ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple") => Global::Sequence,
        ("builtins" | "__builtin__", "dict") => Global::Dict,
        ("builtins" | "__builtin__", "bytearray" | "complex" | "int" | "float" | "bool" | "str") => {
            Global::Plain
        }
        ("_codecs", "encode") => Global::Plain,
        ("torch", "Size") => Global::Size,
        ("torch", "device" | "Tensor") => Global::Plain,
        ("torch.nn.parameter", "Parameter") => Global::Plain,
        ("torch.serialization", "_get_layout") => Global::Plain,
        (
            "torch",
            "per_tensor_affine"
            | "per_tensor_symmetric"
            | "per_channel_affine"
            | "per_channel_symmetric"
            | "per_channel_affine_float_qparams",
        ) => Global::Plain,
        ("torch._utils", "_rebuild_tensor" | "_rebuild_tensor_v2" | "_rebuild_qtensor") => {
            Global::RebuildTensor
        }
        ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTensorWithDtype,
        (
            "torch._utils",
            "_rebuild_parameter" | "_rebuild_parameter_with_state" | "_rebuild_device_tensor_from_cpu_tensor",
        ) => Global::RebuildFromFirst,
        ("torch._tensor", "_rebuild_from_type_v2") => Global::RebuildFromType,
        ("torch._utils", "_rebuild_sparse_tensor" | "_rebuild_nested_tensor") => Global::RebuildFromParts,
        ("torch._utils", "_rebuild_meta_tensor_no_storage") => Global::Plain,
        // What TorchScript makes lists of numbers by, and what it wraps values in.
        (
            "torch.jit._pickle",
            "build_intlist" | "build_doublelist" | "build_boollist" | "build_tensorlist",
        ) => Global::Sequence,
        ("torch.jit._pickle", "restore_type_tag") => Global::RebuildFromFirst,
        // Scalars and random states of numpy, whose bytes stand in the pickle.
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar" | "_reconstruct") => Global::Plain,
        ("numpy", "dtype" | "ndarray") => Global::Plain,
        ("torch", storage) if storage.ends_with("Storage") => Global::Storage(storage_elements(storage)?),
        ("torch.storage", "UntypedStorage") => Global::Storage(Elements { dtype: Dtype::Bytes, len: 1 }),
        ("torch", dtype) => Global::Dtype(dtype_elements(dtype)?),
        _ => return None,
    })
}

fn storage_elements(name: &str) -> Option<Elements> {
    dtype_elements(match name {
        "DoubleStorage" => "float64",
        "FloatStorage" => "float32",
        "HalfStorage" => "float16",
        "BFloat16Storage" => "bfloat16",
        "LongStorage" => "int64",
        "IntStorage" => "int32",
        "ShortStorage" => "int16",
        "CharStorage" => "int8",
        "ByteStorage" => "uint8",
        "BoolStorage" => "bool",
        "ComplexDoubleStorage" => "complex128",
        "ComplexFloatStorage" => "complex64",
        "QInt8Storage" => "qint8",
        "QUInt8Storage" => "quint8",
        "QInt32Storage" => "qint32",
        "QUInt4x2Storage" => "quint4x2",
        "QUInt2x4Storage" => "quint2x4",
        _ => return None,
    })
}

fn dtype_elements(name: &str) -> Option<Elements> {
    let (dtype, len) = match name {
        "float64" | "double" => (Dtype::F64, 8),
        "float32" | "float" => (Dtype::F32, 4),
        "float16" | "half" => (Dtype::F16, 2),
        "bfloat16" => (Dtype::Bf16, 2),
        "int64" | "long" => (Dtype::I64, 8),
        "int32" | "int" | "qint32" => (Dtype::I32, 4),
        "int16" | "short" => (Dtype::I16, 2),
        "int8" | "qint8" => (Dtype::I8, 1),
        "uint8" | "quint8" | "quint4x2" | "quint2x4" | "bits8" | "bits1x8" | "bits2x4" | "bits4x2" => {
            (Dtype::U8, 1)
        }
        "uint16" | "bits16" => (Dtype::U16, 2),
        "uint32" => (Dtype::U32, 4),
        "uint64" => (Dtype::U64, 8),
        "bool" => (Dtype::Bool, 1),
        "complex128" | "cdouble" => (Dtype::F64, 16),
        "complex64" | "cfloat" => (Dtype::C64, 8),
        "complex32" | "chalf" => (Dtype::F16, 4),
        "bcomplex32" => (Dtype::Bf16, 4),
        "float8_e4m3fn" => (Dtype::F8E4m3, 1),
        "float8_e5m2" => (Dtype::F8E5m2, 1),
        "float8_e4m3fnuz" => (Dtype::F8E4m3Fnuz, 1),
        "float8_e5m2fnuz" => (Dtype::F8E5m2Fnuz, 1),
        "float8_e8m0fnu" => (Dtype::F8E8m0, 1),
        "float4_e2m1fn_x2" => (Dtype::F4, 1),
        _ => return None,
    };
    Some(Elements { dtype, len })
}
