//! The table of `docs/repair.md` is the table of the program.

use butterfs_repair::{Means, REPAIRS};
use std::path::Path;

fn line(repair: &butterfs_repair::Repair) -> String {
    let means = match repair.means {
        Means::Automatic => "yes",
        Means::WhereCertain => "where certain",
        Means::Consent => "`--accept-data`",
        Means::Instead => "no",
    };
    let lost = if repair.lost.is_empty() { "nothing" } else { repair.lost };
    format!("| `{}` | {} | {means} | {} | {lost} |", repair.finding, repair.pass, repair.how)
}

#[test]
fn the_document_has_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/repair.md");
    let text = std::fs::read_to_string(&path).expect("the document is there");
    let expected: Vec<String> = REPAIRS.iter().map(line).collect();
    let missing: Vec<&String> = expected.iter().filter(|line| !text.contains(line.as_str())).collect();
    if std::env::var_os("UPDATE_TABLE").is_some() {
        let (head, rest) = text.split_once("|---|---|---|---|---|\n").expect("the table has a head");
        let tail = rest.split_once("\n\n").map_or("", |(_, tail)| tail);
        let table = expected.join("\n");
        std::fs::write(&path, format!("{head}|---|---|---|---|---|\n{table}\n\n{tail}")).expect("it can be written");
        return;
    }
    assert!(missing.is_empty(), "write the table anew with UPDATE_TABLE=1: {missing:#?}");
}
