//! The public functions of an open filesystem, read from its sources, so that tests can compare their tables with them.

use std::path::Path;

/// One function.
#[derive(Clone, Debug)]
pub struct Function {
    /// The name of its source file.
    pub file: String,
    /// The first line of the `impl` block that it is in.
    pub block: String,
    /// Its name.
    pub name: String,
    /// Everything up to the brace that opens its body.
    pub signature: String,
    /// The first line of its body.
    pub first_line: String,
}

impl Function {
    /// Whether it is of the type `name` itself.
    pub fn is_of(&self, name: &str) -> bool {
        self.block == format!("impl {name} {{")
    }
}

/// All functions in the folder of the engine's public interface.
pub fn all() -> Vec<Function> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fs/src/filesystem");
    let files = std::fs::read_dir(folder).expect("the sources are there").flatten();
    let found = files.flat_map(|file| {
        let text = std::fs::read_to_string(file.path()).expect("a source file");
        let name = file.file_name().to_string_lossy().into_owned();
        functions_in(&text).into_iter().map(move |function| Function { file: name.clone(), ..function })
    });
    found.collect()
}

/// The functions in one source file.
pub fn functions_in(text: &str) -> Vec<Function> {
    let (mut found, mut block, mut lines) = (Vec::new(), "", text.lines());
    while let Some(line) = lines.next() {
        if line.starts_with("impl") {
            block = line;
        }
        let Some(rest) = line.strip_prefix("    pub fn ") else { continue };
        let name = rest.split(['(', '<']).next().unwrap_or_default();
        let mut signature = line.to_owned();
        while !signature.ends_with('{') {
            signature += lines.next().expect("a signature ends");
        }
        let first_line = lines.next().unwrap_or_default().to_owned();
        found.push(Function {
            file: String::new(),
            block: block.to_owned(),
            name: name.to_owned(),
            signature,
            first_line,
        });
    }
    found
}
