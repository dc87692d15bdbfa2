//! `restore -l`: the roots of all trees, in the words of btrfs restore.

use crate::error::CliError;
use crate::output::{Format, json};
use butterfs_ondisk::dump::KeyText;
use butterfs_ondisk::{Key, KeyType};
use butterfs_rescue::Wreck;
use butterfs_rescue::roots::{Roots, Source, root_trees};
use butterfs_rescue::tree::Root;
use serde::Serialize;
use std::io::Write;

#[derive(Serialize)]
struct Row {
    tree: u64,
    bytenr: u64,
    level: u8,
    generation: u64,
}

/// Lists what a root tree names, that of the last commit unless another one was asked for.
pub fn list(wreck: &Wreck, asked: Option<(Root, Source)>, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
    let first = asked.or_else(|| root_trees(wreck).first().copied());
    let roots = first.map_or_else(Roots::default, |(root, source)| Roots::of(wreck, root, source));
    if format == Format::Json {
        let rows: Vec<Row> = roots
            .trees
            .iter()
            .map(|(id, root)| Row {
                tree: id.0,
                bytenr: root.root.at,
                level: root.root.level.unwrap_or_default(),
                generation: root.root.generation.unwrap_or_default(),
            })
            .collect();
        return json(out, "roots", &rows);
    }
    for (id, root) in &roots.trees {
        let key = Key::new(id.0, KeyType::ROOT_ITEM, root.key_offset);
        writeln!(out, " tree {} {} level {}", KeyText(key), root.root.at, root.root.level.unwrap_or_default())?;
    }
    Ok(out.flush()?)
}
