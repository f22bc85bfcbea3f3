//! Sizes that a file may claim, checked before anything is allocated for them.

/// Raw bytes of one block.
pub const MAX_BLOCK_LEN: u32 = 32 << 20;

/// Dimensions of a tensor.
pub const MAX_RANK: usize = 64;

/// Bytes of the tables that the blocks of a frame share.
pub const MAX_SHARED_LEN: u32 = 64 << 20;

/// Bytes of a safetensors header: the format's own limit.
pub const MAX_SAFETENSORS_HEADER_LEN: u64 = 100_000_000;

/// Bytes of the dictionary in a `.npy` file.
pub const MAX_NPY_HEADER_LEN: u32 = 1 << 20;

/// Bytes of the header or of the index of a container, coded and decoded.
pub const MAX_SECTION_LEN: u32 = 100_000_000;

/// Times that a section may be longer decoded than coded. Indexes of real models come to 5, of regular names to 15;
/// a writer stores a section that exceeds it.
pub const MAX_SECTION_RATIO: u64 = 32;

/// Sections up to this length may come of any number of coded bytes.
pub const SMALL_SECTION_LEN: u64 = 1 << 20;

/// Bytes before the index for each entry that it lists: a record takes more. So memory for entries is bounded by the bytes
/// of a container, not by what its index compresses to.
pub const MIN_BYTES_PER_ENTRY: u64 = 16;

/// Entries that any index may list.
pub const FEW_ENTRIES: u64 = 4096;

/// Raw bytes of a tensor whose bytes are in the index. A frame takes more around its bytes than this many.
pub const MAX_INLINE_LEN: usize = 64;

/// Bytes of a tensor's name: what the two bytes of a record can tell.
pub const MAX_NAME_LEN: usize = 65535;

/// Bytes of the name or place of a file in the header of a container.
pub const MAX_PATH_LEN: usize = 4096;

/// Largest alignment of frames, as a power of two.
pub const MAX_ALIGNMENT_LOG2: u8 = 16;

/// Bytes of the directory of a zip archive.
pub const MAX_ZIP_DIRECTORY_LEN: u64 = 256 << 20;

/// Bytes of the pickle of a PyTorch checkpoint.
pub const MAX_PICKLE_LEN: u64 = 256 << 20;

/// Values that a pickle may make, each of 16 bytes.
pub const MAX_PICKLE_VALUES: usize = 1 << 24;

/// Lists, tuples and dictionaries that a pickle may make: half a million tensors have five each.
pub const MAX_PICKLE_CONTAINERS: usize = 1 << 22;

/// Values that a pickle may remember.
pub const MAX_PICKLE_MEMO: usize = 1 << 22;

/// Bytes of a text in a pickle that can be a key.
pub const MAX_PICKLE_TEXT_LEN: u64 = 1 << 16;

/// Bytes of all names of tensors that are made of keys.
pub const MAX_NAMES_LEN: usize = 64 << 20;

/// Bytes of a text in the metadata of a GGUF file.
pub const MAX_GGUF_TEXT_LEN: u64 = 16 << 20;

/// Values in the metadata of a GGUF file, when they are asked for: vocabularies have some hundred thousand.
pub const MAX_GGUF_VALUES: usize = 1 << 22;

/// Bytes of the name of a tensor in a GGUF file.
pub const MAX_GGUF_NAME_LEN: u64 = 4096;

/// Dimensions of a tensor in a GGUF file.
pub const MAX_GGUF_DIMENSIONS: u32 = 4;
