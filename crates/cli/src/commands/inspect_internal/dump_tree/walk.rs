//! Walking trees and printing their blocks.
//!
//! 1. Levels fall by one from parent to child, so every walk ends.
//! 2. A block that a tree reaches a second time is left out: a damaged tree could otherwise be printed for years.
//! 3. Nothing that is wrong with one block keeps others from being printed; the command fails at its end.

use super::image::Image;
use super::nodes::{Child, children, items, level_of};
use crate::error::CliError;
use crate::report;
use butterfs_ondisk::dump::{self, DumpOptions};
use butterfs_ondisk::items::RootItem;
use butterfs_ondisk::{Key, KeyType, Level, Logical};
use std::collections::HashSet;
use std::io::Write;

/// In which order the blocks of a tree are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Each node directly before what is below it.
    DepthFirst,
    /// Level by level.
    BreadthFirst,
}

/// Prints blocks and trees of one image.
pub struct Printer<'a> {
    image: &'a Image,
    order: Order,
    options: DumpOptions<'a>,
    failures: usize,
    /// Blocks that something was told about.
    told: HashSet<Logical>,
}

/// The callback of a walk for each block.
type Visit<'v> = &'v mut dyn FnMut(&[u8]) -> Result<(), CliError>;

impl<'a> Printer<'a> {
    /// Prints from `image`.
    pub fn new(image: &'a Image, order: Order, options: DumpOptions<'a>) -> Printer<'a> {
        Printer { image, order, options, failures: 0, told: HashSet::new() }
    }

    /// The source of the dump.
    pub fn image(&self) -> &'a Image {
        self.image
    }

    /// Tells what went wrong; the command will fail.
    pub fn fail(&mut self, sentence: &str) {
        self.failures += 1;
        report::warn(sentence);
    }

    /// Tells what is wrong with a block, once: a walk may come to it several times.
    fn fail_at(&mut self, at: Logical, sentence: &str) {
        if self.told.insert(at) {
            self.fail(sentence);
        }
    }

    /// Whether everything could be printed.
    pub fn outcome(self) -> Result<(), CliError> {
        match self.failures {
            0 => Ok(()),
            1 => Err(CliError::failed("the dump is not complete, see the warning")),
            count => Err(CliError::failed(format!("the dump is not complete, see the {count} warnings"))),
        }
    }

    /// Prints one block.
    pub fn block(&mut self, out: &mut dyn Write, at: Logical) -> Result<(), CliError> {
        match self.read(at, None) {
            Some(block) => Ok(dump::tree_block(out, &block, &self.options)?),
            None => Ok(()),
        }
    }

    /// Prints the tree below a root.
    pub fn tree(&mut self, out: &mut dyn Write, root: Logical) -> Result<(), CliError> {
        let options = self.options;
        self.walk(root, &mut |block| Ok(dump::tree_block(out, block, &options)?))
    }

    /// Looks at each block of the tree below a root, parents first.
    pub fn each_block(&mut self, root: Logical, visit: Visit<'_>) -> Result<(), CliError> {
        self.depth_first(root, visit)
    }

    /// Prints the leaves of the tree below a root, without its nodes.
    pub fn leaves(&mut self, out: &mut dyn Write, root: Logical) -> Result<(), CliError> {
        let options = self.options;
        self.depth_first(root, &mut |block| match level_of(block) {
            Level(0) => Ok(dump::tree_block(out, block, &options)?),
            _ => Ok(()),
        })
    }

    /// Prints where a root is, after `label`.
    pub fn short_root(&mut self, out: &mut dyn Write, label: &str, at: Logical) -> Result<(), CliError> {
        match self.read(at, None) {
            Some(block) => Ok(writeln!(out, "{label}{at} level {}", level_of(&block).get())?),
            None => Ok(()),
        }
    }

    /// Whether the block at `at` can be read; if not, that is told.
    pub fn can_read(&mut self, at: Logical) -> bool {
        self.read(at, None).is_some()
    }

    /// The roots in a root tree, as far as it can be read: keys of ROOT_ITEMs, and addresses.
    pub fn roots(&mut self, root_tree: Logical) -> Vec<(Key, Logical)> {
        let mut roots = Vec::new();
        let _ = self.depth_first(root_tree, &mut |block| {
            let parsed = items(block, KeyType::ROOT_ITEM).filter_map(|(key, data)| Some((key, RootItem::parse(data)?)));
            roots.extend(parsed.map(|(key, root)| (key, Logical(root.bytenr.get()))));
            Ok(())
        });
        roots
    }

    fn walk(&mut self, root: Logical, visit: Visit<'_>) -> Result<(), CliError> {
        match self.order {
            Order::DepthFirst => self.depth_first(root, visit),
            Order::BreadthFirst => self.breadth_first(root, visit),
        }
    }

    fn depth_first(&mut self, root: Logical, visit: Visit<'_>) -> Result<(), CliError> {
        let Some(block) = self.read(root, None) else { return Ok(()) };
        self.visit_below(&block, Level(0), &mut HashSet::from([root]), visit)
    }

    /// Level by level from the root. Memory holds one path and the addresses seen, so upper nodes are read again for
    /// each level below them.
    fn breadth_first(&mut self, root: Logical, visit: Visit<'_>) -> Result<(), CliError> {
        let Some(block) = self.read(root, None) else { return Ok(()) };
        visit(&block)?;
        for level in (0..level_of(&block).get()).rev().map(Level) {
            let only_level: Visit<'_> = &mut |block| if level_of(block) == level { visit(block) } else { Ok(()) };
            self.visit_below(&block, level, &mut HashSet::from([root]), only_level)?;
        }
        Ok(())
    }

    /// Visits a block and those below it, down to `lowest`.
    fn visit_below(
        &mut self,
        block: &[u8],
        lowest: Level,
        seen: &mut HashSet<Logical>,
        visit: Visit<'_>,
    ) -> Result<(), CliError> {
        visit(block)?;
        if level_of(block) <= lowest {
            return Ok(());
        }
        for child in children(block) {
            if !seen.insert(child.at) {
                self.fail_at(child.at, &format!("tree block {} is in its tree twice", child.at));
            } else if let Some(below) = self.read(child.at, Some(child)) {
                self.visit_below(&below, lowest, seen, visit)?;
            }
        }
        Ok(())
    }

    /// A block; if it cannot be read, or is not what its parent says, that is told.
    fn read(&mut self, at: Logical, expect: Option<Child>) -> Option<Vec<u8>> {
        match self.image.block(at, expect) {
            Ok(block) => Some(block),
            Err(sentence) => {
                self.fail_at(at, &sentence);
                None
            }
        }
    }
}
