//! Which trees are printed, under which headings and in which order.
//!
//! The options combine as in btrfs-progs, where `--extents` with `--device` leaves only the device tree.

use super::walk::Printer;
use crate::error::CliError;
use butterfs_ondisk::dump::KeyText;
use butterfs_ondisk::superblock::{RootBackup, Superblock};
use butterfs_ondisk::{Ino, Key, Logical, TreeId};
use std::io::Write;

/// The request.
pub struct Selection {
    /// Only this tree.
    pub tree: Option<TreeId>,
    /// Only extents and devices, and of their trees only the leaves.
    pub extents: bool,
    /// Only items about devices.
    pub device: bool,
    /// Only the UUID tree.
    pub uuid: bool,
    /// Only where the roots are.
    pub roots: bool,
    /// The backup roots too.
    pub backups: bool,
}

impl Selection {
    /// Prints everything that was asked for.
    pub fn print(&self, out: &mut dyn Write, printer: &mut Printer<'_>) -> Result<(), CliError> {
        let sb = *printer.image().superblock();
        if let Some((name, at)) = self.alone(printer, &sb) {
            return print_alone(out, printer, name, at);
        }
        self.print_top(out, printer, &sb)?;
        self.print_trees(out, printer, Logical(sb.root.get()))?;
        if sb.log_root.get() != 0 {
            self.print_trees(out, printer, Logical(sb.log_root.get()))?;
        }
        self.print_end(out, &sb)
    }

    /// The selected tree, if it is one of those that are printed under a short heading and with nothing else: its
    /// name, and its address if there is such a tree.
    fn alone(&self, printer: &mut Printer<'_>, sb: &Superblock) -> Option<(&'static str, Option<Logical>)> {
        let pointer = |at: u64| (at != 0).then_some(Logical(at));
        Some(match self.tree? {
            TreeId::ROOT => ("root", pointer(sb.root.get())),
            TreeId::CHUNK => ("chunk", pointer(sb.chunk_root.get())),
            TreeId::TREE_LOG => ("log root", pointer(sb.log_root.get())),
            TreeId::BLOCK_GROUP => {
                let roots = printer.roots(Logical(sb.root.get()));
                let root = roots.into_iter().find(|(key, _)| key.objectid == TreeId::BLOCK_GROUP.get());
                ("block group", root.map(|(_, at)| at))
            }
            _ => return None,
        })
    }

    /// The trees that the superblock points at.
    fn print_top(&self, out: &mut dyn Write, printer: &mut Printer<'_>, sb: &Superblock) -> Result<(), CliError> {
        if self.extents || self.uuid || self.tree.is_some() {
            return Ok(());
        }
        for (name, at) in [("root", sb.root), ("chunk", sb.chunk_root), ("log root", sb.log_root)] {
            let at = Logical(at.get());
            if at.get() == 0 {
                continue;
            }
            if self.roots {
                printer.short_root(out, &format!("{name} tree: "), at)?;
            } else {
                writeln!(out, "{name} tree")?;
                printer.tree(out, at)?;
            }
        }
        Ok(())
    }

    /// The trees that have their roots in the tree at `root_tree`.
    fn print_trees(&self, out: &mut dyn Write, printer: &mut Printer<'_>, root_tree: Logical) -> Result<(), CliError> {
        for (key, at) in printer.roots(root_tree) {
            if self.takes(key) {
                self.print_tree(out, printer, key, at)?;
            }
        }
        Ok(())
    }

    fn takes(&self, key: Key) -> bool {
        let id = TreeId(key.objectid);
        if self.tree.is_some_and(|tree| tree != id) {
            return false;
        }
        match id {
            TreeId::EXTENT => !self.device && !self.uuid,
            TreeId::DEV => !self.uuid,
            TreeId::UUID => !self.extents && !self.device,
            TreeId(id) if id == Ino::TREE_ROOT_DIR.get() => true,
            _ => !self.extents && !self.device && !self.uuid,
        }
    }

    /// A tree whose root cannot be read has no heading either.
    fn print_tree(
        &self,
        out: &mut dyn Write,
        printer: &mut Printer<'_>,
        key: Key,
        at: Logical,
    ) -> Result<(), CliError> {
        let heading = format!("{} tree {}", tree_name(TreeId(key.objectid)), KeyText(key));
        if self.roots && !self.extents {
            return printer.short_root(out, &format!("{heading} "), at);
        }
        if !printer.can_read(at) {
            return Ok(());
        }
        if self.extents {
            writeln!(out, "{heading}")?;
            return printer.leaves(out, at);
        }
        writeln!(out, "{heading} ")?;
        printer.tree(out, at)
    }

    fn print_end(&self, out: &mut dyn Write, sb: &Superblock) -> Result<(), CliError> {
        if self.extents || self.device || self.uuid {
            return Ok(());
        }
        if self.backups {
            for (slot, backup) in sb.super_roots.iter().enumerate() {
                print_backup(out, slot, backup)?;
            }
        }
        writeln!(out, "total bytes {}\nbytes used {}", sb.total_bytes, sb.bytes_used)?;
        Ok(writeln!(out, "uuid {}", uuid::Uuid::from_bytes(sb.fsid))?)
    }
}

fn print_alone(
    out: &mut dyn Write,
    printer: &mut Printer<'_>,
    name: &str,
    at: Option<Logical>,
) -> Result<(), CliError> {
    let Some(at) = at else {
        printer.fail(&format!("cannot print {name} tree, invalid pointer"));
        return Ok(());
    };
    writeln!(out, "{name} tree")?;
    printer.tree(out, at)
}

fn print_backup(out: &mut dyn Write, slot: usize, backup: &RootBackup) -> Result<(), CliError> {
    writeln!(out, "btrfs root backup slot {slot}")?;
    writeln!(out, "\ttree root gen {} block {}", backup.tree_root_gen, backup.tree_root)?;
    let roots = [
        ("extent", backup.extent_root_gen, backup.extent_root),
        ("chunk", backup.chunk_root_gen, backup.chunk_root),
        ("device", backup.dev_root_gen, backup.dev_root),
        ("csum", backup.csum_root_gen, backup.csum_root),
        ("fs", backup.fs_root_gen, backup.fs_root),
    ];
    for (name, generation, at) in roots {
        writeln!(out, "\t\t{name} root gen {generation} block {at}")?;
    }
    let RootBackup { bytes_used, total_bytes, num_devices, .. } = backup;
    Ok(writeln!(out, "\t\t{bytes_used} used {total_bytes} total {num_devices} devices")?)
}

fn tree_name(id: TreeId) -> &'static str {
    match id.get() as i64 {
        1 => "root",
        2 => "extent",
        3 => "chunk",
        4 => "device",
        5 => "fs",
        6 => "directory",
        7 => "checksum",
        8 => "quota",
        9 => "uuid",
        10 => "free space",
        11 => "block group",
        -5 => "orphan",
        -6 => "log",
        -7 => "log fixup",
        -8 => "reloc",
        -9 => "data reloc",
        -10 => "extent checksum",
        -255 => "multiple",
        _ => "file",
    }
}
