//! `butterfs image edit`.

use super::place::{Place, said};
use crate::commands::Run;
use crate::error::{CliError, os_message};
use butterfs::{Access, Dir, OpenOptions};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Largest file that is edited.
const MAX_LEN: u64 = 256 << 20;

/// Change a file of an image in an editor
///
/// The editor is that of VISUAL or EDITOR in the environment, else vi; it works on a copy. When it has ended with
/// success and the copy has changed, the file gets the new content in one transaction. Owner, mode and attributes stay.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The image, or a device; '@' and a number behind it mean a partition in it
    #[arg(value_name = "IMAGE[@NUMBER]")]
    image: String,
    /// The file
    path: PathBuf,
}

impl Run for Args {
    fn run(self, _: &mut dyn Write) -> Result<(), CliError> {
        let place = Place::parse(&self.image);
        place.check_writable()?;
        let before = self.read(&place)?;
        let copy = Copy::new(self.path.file_name().unwrap_or_default().into(), &before).map_err(cannot_copy)?;
        edit(&copy.path)?;
        let after = std::fs::read(&copy.path).map_err(cannot_copy)?;
        if after == before {
            return Ok(());
        }
        let hint = |path: PathBuf| format!("the edited text is in {}", path.display());
        self.write(&place, &before, &after).map_err(|error| error.hint(hint(copy.keep())))
    }
}

impl Args {
    fn read(&self, place: &Place) -> Result<Vec<u8>, CliError> {
        let filesystem = place.open(Access::ReadOnly)?;
        let metadata = filesystem.root().metadata(&self.path).map_err(said)?;
        let path = self.path.display();
        if !metadata.is_file() {
            return Err(CliError::failed(format!("{path} is no regular file")));
        }
        if metadata.len() > MAX_LEN {
            let sentence = format!("{path} has {} bytes, at most {MAX_LEN} can be edited", metadata.len());
            return Err(CliError::failed(sentence).hint("'butterfs image cp-out' and 'cp-in' take larger files"));
        }
        let content = filesystem.root().read(&self.path).map_err(said)?;
        filesystem.close().map_err(said)?;
        Ok(content)
    }

    fn write(&self, place: &Place, before: &[u8], after: &[u8]) -> Result<(), CliError> {
        let filesystem = place.open(Access::ReadWrite)?;
        let was_changed = filesystem.root().read(&self.path).map_err(said)? != before;
        if was_changed {
            let path = self.path.display();
            return Err(CliError::failed(format!("{path} was changed by somebody else meanwhile")));
        }
        filesystem.transaction(|tx| overwrite(&tx.root(), &self.path, after)).map_err(said)?;
        filesystem.close().map_err(said)
    }
}

fn overwrite(root: &Dir, path: &Path, content: &[u8]) -> butterfs::Result<()> {
    let file = root.open_with(path, &OpenOptions::read_write())?;
    let node = file.as_node();
    let attributes: Vec<(OsString, Option<Vec<u8>>)> = node
        .xattrs()?
        .into_iter()
        .map(|name| Ok((name.clone(), node.xattr(name)?)))
        .collect::<butterfs::Result<_>>()?;
    file.set_len(0)?;
    file.write_all_at(content, 0)?;
    // Writing takes away capabilities, as it does everywhere.
    for (name, value) in attributes {
        if let Some(value) = value
            && node.xattr(&name)?.as_ref() != Some(&value)
        {
            node.set_xattr(&name, &value)?;
        }
    }
    Ok(())
}

fn cannot_copy(error: io::Error) -> CliError {
    CliError::failed(format!("cannot make a copy to edit: {}", os_message(&error)))
}

/// Runs the editor; its end decides whether anything is written.
fn edit(path: &Path) -> Result<(), CliError> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".into());
    let mut script = editor.clone();
    script.push(" \"$@\"");
    let status = Command::new("sh").arg("-c").arg(script).arg("sh").arg(path).status();
    let status =
        status.map_err(|error| CliError::failed(format!("cannot start the editor: {}", os_message(&error))))?;
    match status.success() {
        true => Ok(()),
        false => {
            let sentence = format!("the editor '{}' failed ({status}); nothing was changed", editor.display());
            Err(CliError::failed(sentence))
        }
    }
}

/// A copy of a file in a folder of its own that nobody else can read, removed at the end.
struct Copy {
    folder: PathBuf,
    path: PathBuf,
}

impl Copy {
    fn new(name: OsString, content: &[u8]) -> io::Result<Copy> {
        let unique = uuid::Uuid::from_bytes(random()?);
        let folder = std::env::temp_dir().join(format!("butterfs-edit-{unique}"));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let copy = Copy { path: folder.join(name), folder };
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&copy.path)?;
        file.write_all(content)?;
        Ok(copy)
    }

    /// Leaves it where it is.
    fn keep(self) -> PathBuf {
        let path = self.path.clone();
        std::mem::forget(self);
        path
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // The result is in the image, or nothing was to be written.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(bytes)
}
