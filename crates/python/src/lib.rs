//! The Python module `butterfs`: classes over the Rust library of the same name.
//!
//! # Invariants
//! 1. Work on a filesystem runs without the interpreter lock; a callback takes it for its own duration.
//! 2. A Python exception in a callback ends the work, and the caller gets that exception.
//! 3. Types are described in `python/butterfs/__init__.pyi`, which a test compares with the classes here.
//!
//! The crate promises the stability of the Python module, not of its Rust items.

mod arguments;
mod checker;
mod detached;
mod device;
mod directory;
mod error;
mod file;
mod filesystem;
mod node;
mod streams;
mod values;

use pyo3::prelude::*;

#[pymodule]
fn _butterfs(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    error::add_to(module)?;
    module.add_class::<device::Device>()?;
    module.add_class::<directory::Dir>()?;
    module.add_class::<directory::Entries>()?;
    module.add_class::<file::File>()?;
    module.add_class::<filesystem::Filesystem>()?;
    module.add_class::<node::Node>()?;
    module.add_class::<values::DirEntry>()?;
    module.add_class::<values::Finding>()?;
    module.add_class::<values::Report>()?;
    module.add_class::<values::Stat>()?;
    module.add_class::<values::Subvolume>()?;
    module.add_class::<values::Usage>()?;
    module.add_function(wrap_pyfunction!(filesystem::mkfs, module)?)?;
    module.add_function(wrap_pyfunction!(filesystem::open, module)?)?;
    module.add_function(wrap_pyfunction!(checker::check, module)?)?;
    Ok(())
}
