//! `butterfs subvolume list`.

use super::forest::{Forest, TOP_LEVEL};
use super::json::SubvolumeJson;
use super::local_date;
use super::uuid_or_dash;
use crate::commands::Run;
use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use crate::error::CliError;
use crate::open_filesystem::{ImageArgument, Intent, OpenFilesystem, about, plain};
use crate::output::{self, Format};
use butterfs_control::question::{FindSubvolume, ListDeleted};
use butterfs_control::{DeletedSubvolume, SubvolumeId, SubvolumeRecord};
use std::cmp::Ordering;
use std::io::Write;
use std::path::PathBuf;

/// List subvolumes and snapshots
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Print only subvolumes right below the subvolume of the path
    #[arg(short = 'o')]
    only_below: bool,
    /// Print all subvolumes, and mark paths that do not begin in the subvolume of the path
    #[arg(short = 'a')]
    all: bool,
    /// Print the id of the parent
    #[arg(short = 'p')]
    parent: bool,
    /// Print the generation of creation
    #[arg(short = 'c')]
    ogeneration: bool,
    /// Print the generation
    #[arg(short = 'g')]
    generation: bool,
    /// Print the UUID
    #[arg(short = 'u')]
    uuid: bool,
    /// Print the UUID of what it is a snapshot of
    #[arg(short = 'q')]
    parent_uuid: bool,
    /// Print the UUID that it was received as
    #[arg(short = 'R')]
    received_uuid: bool,
    /// List only snapshots
    #[arg(short = 's')]
    snapshots: bool,
    /// List only read-only subvolumes
    #[arg(short = 'r')]
    readonly: bool,
    /// List deleted subvolumes whose space has not all come back
    #[arg(short = 'd')]
    deleted: bool,
    /// Print a table
    #[arg(short = 't')]
    table: bool,
    /// List only generations of this value; at least it with a plus, at most it with a minus
    #[arg(short = 'G', value_name = "[+|-]VALUE", allow_hyphen_values = true, value_parser = Bound::parse)]
    with_generation: Option<Bound>,
    /// The same for the generation of creation
    #[arg(short = 'C', value_name = "[+|-]VALUE", allow_hyphen_values = true, value_parser = Bound::parse)]
    with_ogeneration: Option<Bound>,
    /// Sort by gen, ogen, rootid or path, several separated by commas, each after a minus to sort downwards
    #[arg(long, value_name = "KEYS", allow_hyphen_values = true, value_delimiter = ',', value_parser = Order::parse)]
    sort: Vec<Order>,
    #[command(flatten)]
    image: ImageArgument,
    /// Something on the filesystem
    #[arg(default_value = ".")]
    path: PathBuf,
}

/// A limit for a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bound {
    value: u64,
    least: bool,
    most: bool,
}

impl Bound {
    fn parse(text: &str) -> Result<Bound, String> {
        let (digits, least, most) = match text.as_bytes().first() {
            Some(b'+') => (&text[1..], true, false),
            Some(b'-') => (&text[1..], false, true),
            _ => (text, true, true),
        };
        let value = digits.parse().map_err(|_| format!("{text} is not a valid numeric value"))?;
        Ok(Bound { value, least, most })
    }

    fn holds(self, value: u64) -> bool {
        (!self.least || value >= self.value) && (!self.most || value <= self.value)
    }
}

/// One key to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Order {
    key: SortKey,
    downwards: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortKey {
    Generation,
    Ogeneration,
    Id,
    Path,
}

impl Order {
    fn parse(text: &str) -> Result<Order, String> {
        let name = text.trim_start_matches(['+', '-']);
        let key = match name {
            "gen" => SortKey::Generation,
            "ogen" => SortKey::Ogeneration,
            "rootid" => SortKey::Id,
            "path" => SortKey::Path,
            _ => return Err(format!("'{name}' is not one of gen, ogen, rootid, path")),
        };
        Ok(Order { key, downwards: text.starts_with('-') })
    }

    fn compare(self, a: &Line, b: &Line) -> Ordering {
        let order = match self.key {
            SortKey::Generation => a.generation.cmp(&b.generation),
            SortKey::Ogeneration => a.ogeneration().cmp(&b.ogeneration()),
            SortKey::Id => a.id.cmp(&b.id),
            SortKey::Path => a.path.cmp(&b.path),
        };
        if self.downwards { order.reverse() } else { order }
    }
}

/// An entry of the list.
struct Line {
    id: u64,
    generation: u64,
    path: Vec<u8>,
    record: SubvolumeRecord,
}

impl Line {
    fn ogeneration(&self) -> u64 {
        self.record.created.transid
    }
}

/// A column's name and value.
type Column = (&'static str, String);

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let lines = self.lines(&mut opened)?;
        let zone = Zone::of_system();
        for (index, line) in lines.iter().enumerate() {
            let columns = self.columns(line, &zone);
            if self.table && index == 0 {
                write_head(out, &columns)?;
            }
            if self.table { write_row(out, &columns, &line.path)? } else { write_line(out, &columns, &line.path)? }
        }
        opened.close()
    }

    fn run_as(self, format: Format, out: &mut dyn Write) -> Result<(), CliError> {
        if format == Format::Text {
            return self.run(out);
        }
        let mut opened = self.image.open(&self.path, Intent::Look)?;
        let lines = self.lines(&mut opened)?;
        let shown: Vec<SubvolumeJson> = lines.iter().map(|line| SubvolumeJson::of(&line.record, &line.path)).collect();
        output::json(out, "subvolume-list", &shown)?;
        opened.close()
    }
}

impl Args {
    /// All lines in their order.
    fn lines(&self, opened: &mut OpenFilesystem) -> Result<Vec<Line>, CliError> {
        let mut lines = if self.deleted { deleted(opened)? } else { self.living(opened)? };
        lines.sort_by(|a, b| {
            let orders = self.sort.iter().map(|order| order.compare(a, b));
            orders.fold(Ordering::Equal, Ordering::then)
        });
        Ok(lines)
    }

    fn living(&self, opened: &mut OpenFilesystem) -> Result<Vec<Line>, CliError> {
        let asking = about([&opened.object(&self.path)?], |[inode]| FindSubvolume { inode });
        let SubvolumeId(own) = opened.ask_one("cannot list subvolumes", asking)?;
        let forest = Forest::ask(opened)?;
        let shown = |record: &&SubvolumeRecord| {
            record.id != TOP_LEVEL
                && (!self.only_below || record.parent == own)
                && (!self.snapshots || record.parent_uuid != [0; 16])
                && (!self.readonly || record.is_read_only())
                && self.with_generation.is_none_or(|bound| bound.holds(record.generation))
                && self.with_ogeneration.is_none_or(|bound| bound.holds(record.created.transid))
        };
        let line = |record: &SubvolumeRecord| Line {
            id: record.id,
            generation: record.generation,
            path: self.path_of(&forest, own, record),
            record: record.clone(),
        };
        Ok(forest.all.values().filter(shown).map(line).collect())
    }

    fn path_of(&self, forest: &Forest, own: u64, record: &SubvolumeRecord) -> Vec<u8> {
        match (self.only_below, self.all) {
            (true, _) => forest.path_from_top(record.id),
            (_, true) if record.parent == own => forest.path_from_top(record.id),
            (_, true) => [b"<FS_TREE>/", forest.path_from_top(record.id).as_slice()].concat(),
            _ => forest.path_from(own, record.id),
        }
    }

    fn columns(&self, line: &Line, zone: &Zone) -> Vec<Column> {
        let record = &line.record;
        let all = [
            (true, "ID", line.id.to_string()),
            (true, "gen", line.generation.to_string()),
            (
                self.ogeneration || self.snapshots || self.with_ogeneration.is_some(),
                "cgen",
                line.ogeneration().to_string(),
            ),
            (self.parent, "parent", record.parent.to_string()),
            (true, "top level", record.parent.to_string()),
            (self.snapshots, "otime", local_date::short(zone, record.created.seconds)),
            (self.parent_uuid, "parent_uuid", uuid_column(&record.parent_uuid)),
            (self.received_uuid, "received_uuid", uuid_column(&record.received_uuid)),
            (self.uuid, "uuid", uuid_column(&record.uuid)),
        ];
        all.into_iter().filter(|(wanted, ..)| *wanted).map(|(_, name, value)| (name, value)).collect()
    }
}

fn uuid_column(uuid: &[u8; 16]) -> String {
    format!("{:<36}", uuid_or_dash(uuid))
}

fn deleted(opened: &mut OpenFilesystem) -> Result<Vec<Line>, CliError> {
    let records = opened.ask("cannot list deleted subvolumes", plain(ListDeleted {}))?;
    let line = |DeletedSubvolume { id, generation }| {
        let record = SubvolumeRecord { id, generation, ..SubvolumeRecord::default() };
        Line { id, generation, path: b"DELETED".to_vec(), record }
    };
    Ok(records.into_iter().map(line).collect())
}

fn write_line(out: &mut dyn Write, columns: &[Column], path: &[u8]) -> Result<(), CliError> {
    for (name, value) in columns {
        write!(out, "{name} {value} ")?;
    }
    out.write_all(&[b"path ", path, b"\n"].concat())?;
    Ok(())
}

fn write_head(out: &mut dyn Write, columns: &[Column]) -> Result<(), CliError> {
    let names = || columns.iter().map(|(name, _)| *name).chain(["path"]);
    for name in names() {
        write!(out, "{name}\t")?;
    }
    writeln!(out)?;
    for name in names() {
        write!(out, "{}\t", "-".repeat(name.len()))?;
    }
    Ok(writeln!(out)?)
}

/// The top level's column is as wide as its name, two tabs.
fn write_row(out: &mut dyn Write, columns: &[Column], path: &[u8]) -> Result<(), CliError> {
    for (name, value) in columns {
        write!(out, "{value}\t{}", if *name == "top level" { "\t" } else { "" })?;
    }
    out.write_all(&[path, b"\n"].concat())?;
    Ok(())
}
