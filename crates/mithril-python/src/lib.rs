//! The compiled part of the Python package: buffers, exceptions and calls; what users see is in `python/mithril`.

mod buffer;
mod checkpoint;
mod cli;
mod df11;
mod dictionary;
mod ecq;
mod error;
mod frame;
mod gpu;
mod inference;
mod model;
mod options;
mod output;
mod pack;
mod storage;
mod work;

use pyo3::prelude::*;

/// The compiled part of mithril. Its functions are for the package's own use.
#[pymodule]
#[pyo3(name = "_mithril")]
fn fill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    error::register(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<buffer::BorrowedTensor>()?;
    module.add_class::<checkpoint::Meta>()?;
    module.add_class::<checkpoint::SaveHandle>()?;
    module.add_class::<checkpoint::Store>()?;
    module.add_class::<dictionary::RecordDictionary>()?;
    module.add_class::<frame::FrameInfo>()?;
    module.add_class::<ecq::CodedFile>()?;
    module.add_class::<inference::CodedMatrix>()?;
    module.add_class::<inference::QuantisedMatrix>()?;
    module.add_class::<model::Model>()?;
    module.add_class::<output::OutputDirectory>()?;
    module.add_class::<output::OutputFile>()?;
    module.add_class::<storage::Storage>()?;
    module.add_function(wrap_pyfunction!(cli::run_cli, module)?)?;
    module.add_function(wrap_pyfunction!(dictionary::dictionary_id, module)?)?;
    module.add_function(wrap_pyfunction!(dictionary::train_dictionary, module)?)?;
    module.add_function(wrap_pyfunction!(dictionary::update_dictionary, module)?)?;
    module.add_class::<df11::Df11Directory>()?;
    module.add_function(wrap_pyfunction!(df11::df11_decode, module)?)?;
    module.add_function(wrap_pyfunction!(inference::gguf_multiply, module)?)?;
    module.add_function(wrap_pyfunction!(inference::gguf_values, module)?)?;
    module.add_function(wrap_pyfunction!(inference::singles_multiply, module)?)?;
    module.add_function(wrap_pyfunction!(df11::df11_decode_into, module)?)?;
    module.add_function(wrap_pyfunction!(df11::df11_encode, module)?)?;
    module.add_function(wrap_pyfunction!(frame::compress, module)?)?;
    module.add_function(wrap_pyfunction!(frame::compress_delta, module)?)?;
    module.add_function(wrap_pyfunction!(frame::decompress, module)?)?;
    module.add_function(wrap_pyfunction!(frame::decompress_into, module)?)?;
    module.add_function(wrap_pyfunction!(gpu::decompress_on_gpu, module)?)?;
    module.add_function(wrap_pyfunction!(frame::dtype_name, module)?)?;
    module.add_function(wrap_pyfunction!(frame::dtype_names, module)?)?;
    module.add_function(wrap_pyfunction!(frame::dtype_width, module)?)?;
    module.add_function(wrap_pyfunction!(frame::inspect, module)?)?;
    module.add_function(wrap_pyfunction!(frame::magic, module)?)?;
    module.add_function(wrap_pyfunction!(frame::output_len, module)?)?;
    module.add_function(wrap_pyfunction!(pack::check_tensor_names, module)?)?;
    module.add_function(wrap_pyfunction!(pack::pack_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(pack::pack_file, module)?)?;
    module.add_function(wrap_pyfunction!(pack::pack_tensors, module)?)?;
    module.add_function(wrap_pyfunction!(pack::unpack_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(pack::unpack_file, module)?)?;
    module.add_function(wrap_pyfunction!(storage::without_secrets_of_urls, module)?)?;
    Ok(())
}
