//! Devices by tag, as in `UUID=…`: mount(8) looks them up before it calls, others may not.

use crate::error::CliError;
use std::path::{Path, PathBuf};

/// The folders of links that are named after tags.
const FOLDERS: [(&str, &str); 4] = [
    ("UUID=", "/dev/disk/by-uuid"),
    ("LABEL=", "/dev/disk/by-label"),
    ("PARTUUID=", "/dev/disk/by-partuuid"),
    ("PARTLABEL=", "/dev/disk/by-partlabel"),
];

/// The device that a source stands for: a path stands for itself.
pub fn resolved(source: &Path) -> Result<PathBuf, CliError> {
    let Some((folder, tag)) = source.to_str().and_then(tag) else { return Ok(source.to_owned()) };
    let link = Path::new(folder).join(as_udev_writes(tag));
    match link.symlink_metadata() {
        Ok(_) => Ok(link),
        Err(_) => Err(CliError::failed(format!("there is no device {}", source.display()))
            .hint(format!("{} does not exist; give the path of the device", link.display()))),
    }
}

fn tag(source: &str) -> Option<(&'static str, &str)> {
    let found = FOLDERS.iter().find_map(|(name, folder)| Some((*folder, source.strip_prefix(name)?)));
    // A file can be called anything.
    found.filter(|(_, tag)| !tag.contains('/') && !Path::new(source).exists())
}

/// Characters that are not plain as `\x20`.
fn as_udev_writes(tag: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte) || !byte.is_ascii();
    let tag = tag.trim_matches('"');
    let mut bytes = Vec::new();
    for byte in tag.bytes() {
        match plain(byte) {
            true => bytes.push(byte),
            false => bytes.extend(format!("\\x{byte:02x}").bytes()),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_become_names_of_links() {
        assert_eq!(tag("UUID=abc"), Some(("/dev/disk/by-uuid", "abc")));
        assert_eq!(tag("LABEL=\"a b\""), Some(("/dev/disk/by-label", "\"a b\"")));
        assert_eq!(as_udev_writes("\"a b/ö\""), "a\\x20b\\x2fö");
        assert_eq!((tag("/dev/sda"), tag("UUID=a/b"), tag("uuid=a")), (None, None, None));
        assert_eq!(resolved(Path::new("disk.img")).unwrap(), Path::new("disk.img"));
        let error = resolved(Path::new("UUID=00000000-dead")).unwrap_err();
        assert!(format!("{error:?}").contains("UUID=00000000-dead"));
    }
}
