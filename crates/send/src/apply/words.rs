//! The description of commands for users: the lines of `btrfs receive -v -v`, and the beginning of an error.

use crate::wire::{Command, Uuid};
use std::borrow::Cow;

/// Bytes as text, with what is no text replaced.
pub fn shown(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// A UUID as text.
pub fn uuid_text(uuid: &Uuid) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// A command and what it is about, as in `rename a -> b`.
pub fn brief(command: &Command<'_>) -> String {
    let name = command.name();
    match *command {
        Command::Rename { path, to } => format!("{name} {} -> {}", shown(path), shown(to)),
        Command::Link { path, existing } => format!("{name} {} -> {}", shown(path), shown(existing)),
        Command::Clone { path, source, .. } => format!("{name} {} -> {}", shown(source), shown(path)),
        Command::SetXattr { path, name: of, .. } | Command::RemoveXattr { path, name: of } => {
            format!("{name} {} of {}", shown(of), shown(path))
        }
        Command::Unknown { number } => format!("command {number}"),
        _ => match command.path() {
            Some(b"") => format!("{name} of the root"),
            Some(path) => format!("{name} {}", shown(path)),
            None => name.to_owned(),
        },
    }
}

/// The line that a command has with `-v` (1) or `-v -v` (2); none where it has none at this level.
pub fn line(command: &Command<'_>, verbosity: u32) -> Option<String> {
    let always = matches!(
        command,
        Command::Subvol { .. } | Command::Snapshot { .. } | Command::Write { .. } | Command::Clone { .. }
    );
    if verbosity == 0 || verbosity == 1 && !always {
        return None;
    }
    let name = command.name();
    Some(match *command {
        Command::Subvol { path, ref uuid, transid } => {
            format!("receiving subvol {} uuid={}, stransid={transid}", shown(path), uuid_text(uuid))
        }
        Command::Snapshot { path, ref uuid, transid, ref parent_uuid, parent_transid } => format!(
            "receiving snapshot {} uuid={}, ctransid={transid} parent_uuid={}, parent_ctransid={parent_transid}",
            shown(path),
            uuid_text(uuid),
            uuid_text(parent_uuid)
        ),
        Command::Write { path, offset, data } => {
            format!("write {} - offset={offset} length={}", shown(path), data.len())
        }
        Command::Clone { path, offset, len, source, source_offset, .. } => format!(
            "clone {} - source={} source offset={source_offset} offset={offset} length={len}",
            shown(path),
            shown(source)
        ),
        Command::Mknod { path, mode, rdev, .. } => format!("mknod {} mode={mode}, dev={rdev}", shown(path)),
        Command::Symlink { path, target, .. } => format!("symlink {} -> {}", shown(path), shown(target)),
        Command::SetXattr { path, name: of, value } => {
            format!("set_xattr {} - name={} data_len={} data={}", shown(path), shown(of), value.len(), shown(value))
        }
        Command::RemoveXattr { path, name: of } => format!("remove_xattr {} - name={}", shown(path), shown(of)),
        Command::Truncate { path, size } => format!("truncate {} size={size}", shown(path)),
        Command::Chmod { path, mode } => format!("chmod {} - mode=0{mode:o}", shown(path)),
        Command::Chown { path, uid, gid } => format!("chown {} - uid={uid}, gid={gid}", shown(path)),
        Command::UpdateExtent { path, offset, len } => {
            format!("update_extent {}: offset={offset}, len={len}", shown(path))
        }
        Command::Fallocate { path, mode, offset, len } => {
            format!("fallocate {} - offset={offset}, len={len}, mode={mode}", shown(path))
        }
        Command::EncodedWrite {
            path,
            offset,
            unencoded_file_len,
            unencoded_len,
            unencoded_offset,
            compression,
            encryption,
            data,
        } => format!(
            "encoded_write {} - offset={offset}, len={}, unencoded_offset={unencoded_offset}, \
             unencoded_file_len={unencoded_file_len}, unencoded_len={unencoded_len}, compression={compression}, \
             encryption={encryption}",
            shown(path),
            data.len()
        ),
        Command::Rename { path, to } => format!("rename {} -> {}", shown(path), shown(to)),
        Command::Link { path, existing } => format!("link {} -> {}", shown(path), shown(existing)),
        Command::Mkfile { path, .. }
        | Command::Mkdir { path, .. }
        | Command::Mkfifo { path, .. }
        | Command::Mksock { path, .. }
        | Command::Unlink { path }
        | Command::Rmdir { path }
        | Command::Utimes { path, .. }
        | Command::Fileattr { path, .. }
        | Command::EnableVerity { path, .. } => format!("{name} {}", shown(path)),
        Command::End {} | Command::Unknown { .. } => return None,
    })
}
