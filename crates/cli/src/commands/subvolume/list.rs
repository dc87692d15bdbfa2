//! `butterfs subvolume list`.

use super::forest::{Forest, TOP_LEVEL};
use super::local_date;
use crate::commands::Run;
use crate::commands::inspect_internal::dump_tree::local_time::Zone;
use crate::error::CliError;
use crate::target::{ImageArgument, Intent, Question, Target, nonsense};
use butterfs_fuse::subvolumes::{SubvolumeRecord, uuid_text};
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

/// What is listed.
struct Line {
    id: u64,
    generation: u64,
    path: Vec<u8>,
    record: SubvolumeRecord,
}

impl Line {
    fn ogeneration(&self) -> u64 {
        self.record.transids[1]
    }
}

/// A column's name and value.
type Column = (&'static str, String);

impl Run for Args {
    fn run(self, out: &mut dyn Write) -> Result<(), CliError> {
        let mut target = self.image.target(&self.path, Intent::Look)?;
        let mut lines = if self.deleted { deleted(&mut target)? } else { self.living(&mut target)? };
        lines.sort_by(|a, b| {
            let orders = self.sort.iter().map(|order| order.compare(a, b));
            orders.fold(Ordering::Equal, Ordering::then)
        });
        let zone = Zone::of_system();
        for (index, line) in lines.iter().enumerate() {
            let columns = self.columns(line, &zone);
            if self.table && index == 0 {
                write_head(out, &columns)?;
            }
            if self.table { write_row(out, &columns, &line.path)? } else { write_line(out, &columns, &line.path)? }
        }
        target.close()
    }
}

impl Args {
    fn living(&self, target: &mut Target) -> Result<Vec<Line>, CliError> {
        let place = target.object(&self.path)?;
        let forest = Forest::ask(target, &place)?;
        let shown = |record: &&SubvolumeRecord| {
            record.id != TOP_LEVEL
                && (!self.only_below || record.parent == forest.asked_in)
                && (!self.snapshots || record.parent_uuid != [0; 16])
                && (!self.readonly || record.flags & 1 != 0)
                && self.with_generation.is_none_or(|bound| bound.holds(record.generation))
                && self.with_ogeneration.is_none_or(|bound| bound.holds(record.transids[1]))
        };
        let line = |record: &SubvolumeRecord| Line {
            id: record.id,
            generation: record.generation,
            path: self.path_of(&forest, record),
            record: record.clone(),
        };
        Ok(forest.all.values().filter(shown).map(line).collect())
    }

    fn path_of(&self, forest: &Forest, record: &SubvolumeRecord) -> Vec<u8> {
        match (self.only_below, self.all) {
            (true, _) => forest.path_from_top(record.id),
            (_, true) if record.parent == forest.asked_in => forest.path_from_top(record.id),
            (_, true) => [b"<FS_TREE>/", forest.path_from_top(record.id).as_slice()].concat(),
            _ => forest.path_from(forest.asked_in, record.id),
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
            (self.snapshots, "otime", local_date::short(zone, record.times[1])),
            (self.parent_uuid, "parent_uuid", uuid_or_dash(&record.parent_uuid)),
            (self.received_uuid, "received_uuid", uuid_or_dash(&record.received_uuid)),
            (self.uuid, "uuid", uuid_or_dash(&record.uuid)),
        ];
        all.into_iter().filter(|(wanted, ..)| *wanted).map(|(_, name, value)| (name, value)).collect()
    }
}

fn uuid_or_dash(uuid: &[u8; 16]) -> String {
    let text = if *uuid == [0; 16] { "-".to_owned() } else { uuid_text(uuid) };
    format!("{text:<36}")
}

fn deleted(target: &mut Target) -> Result<Vec<Line>, CliError> {
    let records = target.ask("cannot list deleted subvolumes", &Question::new("deleted"))?;
    let line = |words: &Vec<Vec<u8>>| {
        let number = |index: usize| std::str::from_utf8(words.get(index)?).ok()?.parse().ok();
        let (id, generation) = (number(0)?, number(1)?);
        let record = SubvolumeRecord { id, generation, ..SubvolumeRecord::default() };
        Some(Line { id, generation, path: b"DELETED".to_vec(), record })
    };
    records.iter().map(line).collect::<Option<_>>().ok_or_else(nonsense)
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
